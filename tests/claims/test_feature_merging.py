"""C-feat-8: merging between scalars, its twin (opposite signs), and what it is not about."""

from __future__ import annotations

import pytest
import torch
from judged import status, verdict

from isthmus import FullyConnected
from isthmus.claims._base import CLAIMS, Subject
from isthmus.claims.features2022 import _merging as feature_merging
from isthmus.claims.features2022._merging import many_neurons_between_scalars
from tools import gaussian, random_net


def shallow(c, d, a, x, **known):
    tensors = [torch.as_tensor(v, dtype=torch.float64) for v in (c, d, a, x)]
    net = FullyConnected.from_weights([tensors[0][:, None], tensors[2][None, :]], [tensors[1], torch.zeros(1)])
    return Subject(net.double(), tensors[3][:, None], known=known)


def test_the_sample_holds():
    subject = many_neurons_between_scalars()
    found = verdict("C-feat-8", subject)
    assert found.status == "holds", found.reason
    before, after, most = found.details["neurons before, after, and 4N"]
    assert before == 200 and 12 < after <= 22 and most == 24
    norms = found.details["‖θ‖² before, and after each rule"]
    assert norms[1] < norms[0] and norms[2] < norms[0]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("bias", [1.0, 0.0, 0.5])
def test_any_shallow_network_between_scalars(seed, bias):
    """Random ones, some on a grid where cusps meet inputs and neurons are flat or unheard."""
    net = random_net([1, 1 + 7 * seed, 1], bias=bias, seed=seed)
    X = gaussian(1 + seed % 5, 1, seed=seed + 1)
    if seed % 2:
        with torch.no_grad():
            for p in net.parameters():
                p.copy_((2 * p).round() / 2)
        X = (2 * X).round() / 2
    found = verdict("C-feat-8", Subject(net, X, X.square(), 0.1))
    assert found.status == "holds", found.reason


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("ridge", [0.0, 1e-30])
def test_rounding_of_an_interpolated_loss_decides_nothing(seed, ridge):
    """The targets are the outputs: the loss before is 0 or 1e-31, and after it the square of rounding."""
    net = random_net([1, 9, 1], seed=seed)
    X = gaussian(3, 1, seed=seed + 1)
    found = verdict("C-feat-8", Subject(net, X, net.trace(X).outputs, ridge))
    assert found.status == "holds", found.reason


def test_a_pair_by_hand():
    """3(x − 0.2)₊ + (x − 0.4)₊ at 0 and 1: 4x − 1 there, so that ã² = √17."""
    found = verdict("C-feat-8", shallow([1.0, 1.0], [-0.2, -0.4], [3.0, 1.0], [0.0, 1.0], merge=[(0, 1)]))
    assert found.status == "holds"
    assert found.details["‖θ‖² before, and after each rule"][1] == pytest.approx(2 * 17**0.5)


@pytest.mark.parametrize(("c", "d", "a"), [((1, 1), (-0.8, -0.2), (3, -2.9)), ((1, -1), (-0.2, 0.4), (3, 1))])
def test_opposite_signs(c, d, a, monkeypatch):
    """The twin: not applicable; and with the hypothesis granted it fails, for the merged neuron is wrong."""
    subject = shallow(c, d, a, [0.0, 1.0], merge=[(0, 1)])
    found = verdict("C-feat-8", subject)
    assert found.status == "not applicable" and "signs of a and c: not met" in found.reason
    assert status("C-feat-8", subject.replace(known={})) == "holds"
    monkeypatch.setattr(feature_merging, "signs_agree", lambda groups, c, a: True)
    found = verdict("C-feat-8", subject)
    assert found.status == "fails" and "printed rule" in found.where


def test_cusps_in_different_gaps(monkeypatch):
    subject = shallow([1, 1], [-0.2, -0.8], [3, 1], [0.0, 0.5, 1.0], merge=[(0, 1)])
    found = verdict("C-feat-8", subject)
    assert found.status == "not applicable" and "between the same inputs: not met" in found.reason
    monkeypatch.setattr(feature_merging, "_agree", lambda groups, *values: True)
    assert status("C-feat-8", subject) == "fails"


def test_a_wrong_merge_fails(monkeypatch):
    true = feature_merging.merge_one_dimensional

    def too_long(c, d, a, x, *, bias):
        c, d, a = true(c, d, a, x, bias=bias)
        return 30.0 * c, 30.0 * d, a / 30.0

    monkeypatch.setattr(feature_merging, "merge_one_dimensional", too_long)
    found = verdict("C-feat-8", many_neurons_between_scalars())
    assert found.status == "fails" and "by active inputs: ‖θ‖²" in found.where
    monkeypatch.setattr(feature_merging, "merge_one_dimensional", lambda c, d, a, x, *, bias: (c, d, a))
    found = verdict("C-feat-8", many_neurons_between_scalars())
    assert found.status == "fails" and "4N" in found.where


def test_other_networks():
    X = gaussian(5, 1)
    assert "L = 2: not met" in verdict("C-feat-8", Subject(random_net([1, 4, 4, 1]), X)).reason
    assert "n_0 = n_2 = 1: not met" in verdict("C-feat-8", Subject(random_net([2, 4, 1]), gaussian(5, 2))).reason
    assert "ReLU: not met" in verdict("C-feat-8", Subject(random_net([1, 4, 1], slope=0.1), X)).reason
    assert CLAIMS["C-feat-8"].paper == "features2022"
