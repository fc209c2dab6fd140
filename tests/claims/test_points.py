"""The points at which claims differentiate: off the kinks, of live and dead neurons of every size."""

from __future__ import annotations

import torch

from isthmus import FullyConnected
from isthmus.claims import verify
from isthmus.claims._base import CLAIMS, Subject
from isthmus.claims._evidence import points_of
from isthmus.constructions import divergent
from tools import gaussian, random_net


def matrix(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def test_a_nearly_dead_neuron_is_at_no_kink():
    net = random_net([3, 6, 6, 2], seed=1)
    X = gaussian(20, 3)
    net.weights[1].data[0] *= 1e-12
    net.biases[1].data[0] *= 1e-12
    assert len(points_of(Subject(net, X)).index) == 16
    # Nor is one that reads a small coordinate beside large ones: |W_i|·|α| is its size, ‖W_i‖·‖α‖ is not.
    deep = points_of(Subject(divergent(1000, 0.55).network, torch.rand(5, 3).double() + 0.1))
    assert len(deep.index) == 5


def test_samples_all_at_kinks_end_nothing():
    """The lines x_0 = ±x_1 are kinks: no claim has a point, and each says so."""
    net = FullyConnected.from_weights([matrix([1, -1], [1, 1]), torch.eye(2).double()])
    X = matrix([1, 1], [2, 2], [1, -1], [3, -3], [0, 0])
    found = points_of(Subject(net, X))
    assert (len(found.index), len(found.J), found.trace.samples, found.log_error) == (0, 0, 0, 0.0)
    for verdict in verify(net, X, X, ridge=0.1, claims=["C-rank-*", "C-bn-*"]):
        assert verdict.status == "not applicable" or "x off the kinks" not in CLAIMS[verdict.claim].hypotheses


def test_a_live_neuron_with_all_data_on_its_kink():
    """x = [σ(x_0 + x_1) ± (σ(x_0 − x_1) − σ(x_1 − x_0))]/2: the identity, its kink on the diagonal."""
    net = FullyConnected.from_weights([matrix([1, 1], [1, -1], [-1, 1]), matrix([1, 1, -1], [1, -1, 1]) / 2])
    t = torch.linspace(0.1, 1, 12).double()
    diagonal = Subject(net, torch.stack([t, t], 1), known={"tangents": torch.ones(12, 2, 1).double()})
    assert "x off the kinks" in CLAIMS["C-rank-12"].evaluate(diagonal).reason


def test_dead_neurons_are_at_no_kink():
    """A row of zeros, what reads only it, and what reads only neurons that do not fire there."""
    first = matrix([1, 2], [0, 0], [-1, -1])
    second = matrix([1, 0, 0], [0, 1, 0], [0, 1, 1])
    net = FullyConnected.from_weights([first, second, torch.ones(2, 3).double()])
    assert len(points_of(Subject(net, torch.rand(5, 2).double() + 0.1)).index) == 5
    # The same sums are at their kink where x is.
    assert len(points_of(Subject(net, torch.zeros(1, 2).double())).index) == 0


def test_points_are_spread_over_the_data():
    index = points_of(Subject(random_net([2, 4, 2]), gaussian(400, 2))).index
    assert len(index) == 16 and int(index[0]) < 40 and int(index[-1]) > 360


def test_a_rank_that_rises_late_is_seen():
    """f(x) = (x_0, σ(x_0 + x_1 − ½) − σ(x_0 − ½)) projects onto the axis only where x_0 < ½."""
    first, second = matrix([1, 0], [1, 1], [1, 0]), matrix([1, 0, 0], [0, 1, -1])
    net = FullyConnected.from_weights(
        [first, second], [torch.tensor([0, -0.5, -0.5]).double(), torch.zeros(2).double()]
    )
    t = torch.linspace(0.01, 0.99, 400).double()
    tangents = torch.tensor([[1.0], [0.0]]).double().expand(400, 2, 1)
    subject = Subject(net, torch.stack([t, 0 * t], 1), known={"tangents": tangents})
    assert "Rank Jf = k" in CLAIMS["C-rank-12"].evaluate(subject).reason


def test_a_sample_given_twice():
    """Between equal points there is no segment; C-bn-9 had 0/0 there, and failed."""
    X = gaussian(5, 3)
    X[1] = X[0]
    assert CLAIMS["C-bn-9"].evaluate(Subject(random_net([3, 6, 6, 2]), X)).status == "holds"


def chain(*values):
    return FullyConnected.from_weights([matrix([value]) for value in values])


def test_what_overflows_is_not_judged():
    """In float64: the kernel where activations are large, the product of the norms, and C² of a given C."""
    x = matrix([1.0], [2.0])
    large = verify(chain(1e100, 1.0, 1.0), 1e60 * x, claims="C-bn-9")[0]
    assert large.status == "not applicable" and "overflow" in large.reason
    lost = verify(chain(1e200, 1e200, 1e-300, 1e-100), 1e-250 * x, claims=["C-rank-1", "C-bn-9"])
    assert [v.status for v in lost] == ["not applicable"] * 2 and "overflow" in lost[0].reason
    bent = Subject(random_net([3, 6, 6, 2]), gaussian(5, 3), known={"C": 1e200})
    assert CLAIMS["C-bn-11"].evaluate(bent).status == "holds"
