"""The gradient without a graph is autograd's, to rounding."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from isthmus import LeakyResNet
from isthmus.networks import Hourglass
from isthmus.training._direct import DirectChain, DirectLeaky, direct_for
from isthmus.training._flat import FlatObjective
from tools import assert_close, gaussian, generator, random_net

DIMS = [(5, 7, 3), (3, 1), (4, 9, 5, 3, 3, 1), (2, 3, 80, 3, 2), (5, 6, 6, 6, 3, 3, 3)]


def hourglass(slope=0.0, bias=1.0, *, dtype=torch.float64):
    parts = (((5, 7, 2), 0), ((2, 6, 3), 1))
    return Hourglass(*(random_net(dims, slope, bias, seed=seed, dtype=dtype) for dims, seed in parts))


def leaky(slope=0.0, bias=1.0, *, layers=5, embed="fixed", dtype=torch.float64, steps="irregular", width=12):
    options = {"embed": embed, "steps": steps, "init": "gaussian", "dtype": dtype, "generator": generator()}
    net = LeakyResNet(5, 3, width, layers, 0.9, slope=slope, bias=bias, **options)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1 * gaussian(*p.shape, seed=9, dtype=dtype))
    return net


def chain():
    return random_net((5, 40, 40, 3))


def data(net, rows=37, *, dtype=torch.float64):
    d_in, d_out = (net.d_in, net.d_out) if isinstance(net, LeakyResNet) else (net.dims[0], net.dims[-1])
    return gaussian(rows, d_in, seed=2, dtype=dtype), gaussian(rows, d_out, seed=3, dtype=dtype)


def both_ways(net, X, Y, loss="mse", *, rows=None, batch=None):
    """Values by the direct route and by autograd, at the same parameters."""
    found = []
    for kind in (DirectChain if not isinstance(net, LeakyResNet) else DirectLeaky, type(None)):
        objective = FlatObjective(net, X, Y, loss)
        objective.rows = rows or objective.rows
        objective.direct = objective.direct if kind is not type(None) else None
        assert isinstance(objective.direct, kind)
        with objective.attached():
            # Twice: what the first evaluation left in the buffers must not matter.
            objective(0.5)
            found.append(objective(0.07, batch))
    return found


def agree(one, other, dtype=torch.float64):
    if dtype == torch.float64:
        assert_close(one.loss, other.loss)
        assert_close(one.gradient, other.gradient)
        return
    assert abs(one.loss - other.loss) <= 1e-5 * abs(other.loss)
    assert float((one.gradient - other.gradient).norm()) <= 1e-5 * float(other.gradient.norm())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("slope", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("bias", [0.0, 1.0])
@pytest.mark.parametrize("dims", DIMS)
def test_chains(dims, slope, bias, dtype):
    net = random_net(dims, slope, bias, dtype=dtype)
    X, Y = data(net, dtype=dtype)
    agree(*both_ways(net, X, Y), dtype)
    agree(*both_ways(net, X, torch.arange(len(X)) % dims[-1], "cross_entropy"), dtype)


def test_inputs_are_taken_anew_when_they_are_others():
    net = chain()
    X, Y = data(net)
    objective = FlatObjective(net, X, Y, "mse")
    with objective.attached():
        found = [objective.direct.add(A, Y, 1.0, first=True) for A in (X, 2.0 * X, X)]
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_an_hourglass(slope):
    net = hourglass(slope)
    agree(*both_ways(net, *data(net)))


@pytest.mark.parametrize(("layers", "width"), [(1, 12), (4, 12), (5, 40)])
@pytest.mark.parametrize("embed", ["fixed", "learned"])
@pytest.mark.parametrize(("slope", "bias"), [(0.0, 1.0), (0.0, 0.0), (0.3, 1.0), (1.0, 1.0)])
def test_leaky_resnets(slope, bias, embed, layers, width):
    options = {"embed": embed, "layers": layers, "width": width}
    net = leaky(slope, bias, **options)
    X, Y = data(net)
    agree(*both_ways(net, X, Y))
    agree(*both_ways(net, X, torch.softmax(Y, 1), "cross_entropy"))
    agree(*both_ways(leaky(slope, bias, dtype=torch.float32, **options), X.float(), Y.float()), torch.float32)


def test_leaky_resnets_follow_steps_that_change():
    net = leaky(steps="adaptive")
    X, Y = data(net)
    objective = FlatObjective(net, X, Y, "mse")
    with objective.attached():
        before = objective(0.0).gradient
        net.adapt(X)
        after = objective(0.0).gradient
        objective.direct = None
        assert_close(after, objective(0.0).gradient)
    assert float((after - before).norm()) > 1e-3 * float(before.norm())


@pytest.mark.parametrize("rows", [1, 6, 12, 36, 37])
@pytest.mark.parametrize("make", [hourglass, leaky, chain])
def test_in_several_chunks_and_for_a_batch(make, rows):
    net = make()
    X, Y = data(net)
    whole = both_ways(net, X, Y)[1]
    parts = both_ways(net, X, Y, rows=rows)[0]
    assert_close(parts.gradient, whole.gradient)
    assert_close(parts.loss, whole.loss)
    one, other = both_ways(net, X, Y, rows=rows, batch=torch.tensor([3, 3, 17, 36, 0]))
    assert_close(one.gradient, other.gradient)


@pytest.mark.parametrize("make", [hourglass, leaky, chain])
def test_twice_half_is_once(make):
    net = make()
    X, Y = data(net, 8)
    objective = FlatObjective(net, X, Y, "mse")
    with objective.attached():
        once = objective(0.0)
        halves = sum(objective.direct.add(X, Y, 0.5, first=first) for first in (True, False))
        assert_close(halves, once.loss)
        assert_close(objective.buffer, once.gradient)


def test_the_derivative_of_a_relu_at_zero_is_zero():
    net = hourglass()
    with torch.no_grad():
        net.weights[0][0].zero_()
        net.biases[0][0] = 0.0
    one, other = both_ways(net, *data(net, 9))
    agree(one, other)
    assert not bool(one.cost_gradient[:5].any())


class Shifted(Hourglass):
    def forward(self, X):
        return super().forward(X) + 1.0


def test_where_the_direct_way_must_not_be_taken():
    frozen = hourglass()
    frozen.weights[1].requires_grad_(False)
    shifted = Shifted(random_net((5, 2)), random_net((2, 3)))
    others = (frozen, shifted, hourglass(slope=-1.0), hourglass(bias=0.3), leaky(slope=-0.5), nn.Linear(5, 3))
    for net in others:
        views = [p.detach() for p in net.parameters()]
        assert direct_for(net, "mse", views, views, 4) is None
    # And the gradients there are right.
    X, Y = gaussian(9, 5), gaussian(9, 3, seed=1)
    for net in others[:4]:
        objective = FlatObjective(net, X, Y, "mse")
        with objective.attached():
            found = objective(0.0).gradient
        twin = Shifted(net.encoder(), net.decoder()) if net is shifted else Hourglass(net.encoder(), net.decoder())
        ((twin(X) - Y) ** 2).sum(1).mean().backward()
        wanted = [p.grad.reshape(-1) for p, q in zip(twin.parameters(), net.parameters()) if q.requires_grad]
        assert_close(found, torch.cat(wanted))


def test_no_memory_is_taken_in_a_step():
    """The buffers of a second evaluation are those of the first."""
    net = chain()
    X, Y = data(net, 300)
    objective = FlatObjective(net, X, Y, "mse")
    places = []
    with objective.attached():
        for _ in range(2):
            objective(0.0)
            direct = objective.direct
            places.append([A.data_ptr() for A in (*direct.results, *(G for _, G, _ in direct.pulled))])
    assert places[0] == places[1]


def test_a_gradient_written_into_given_memory():
    net = chain()
    objective = FlatObjective(net, *data(net), "mse")
    room = torch.empty_like(objective.theta)
    with objective.attached():
        whole, found = objective(0.3), objective(0.3, into=room)
    assert found.gradient is room
    assert (found.loss, found.cost, found.norm) == (whole.loss, whole.cost, whole.norm)
    assert torch.equal(room, whole.gradient)
    assert torch.equal(found.cost_gradient, whole.cost_gradient)
    assert found.cost_gradient.data_ptr() != whole.cost_gradient.data_ptr()
