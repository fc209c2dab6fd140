"""Q-nonneg: what σ does to the pre-activations of each layer, and what each layer costs beyond the rank."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus import IsthmusError, train
from isthmus.constructions import pad
from isthmus.measures import jacobian, nonnegativity, parameter_norms
from isthmus.measures._positivity import negative_part
from isthmus.networks import FullyConnected
from tools import assert_close, gaussian, random_net


def projection(k=2, d=5, depth=8):
    """x ↦ the first k coordinates, without biases: identity layers on the positive orthant between."""
    read = torch.eye(k, d, dtype=torch.float64)
    return FullyConnected.from_weights([read, *[torch.eye(k, dtype=torch.float64)] * (depth - 2), read.mT])


def test_identity_layers_on_an_orthant_change_nothing_and_cost_the_rank():
    found = nonnegativity(projection().trace(gaussian(30, 5).abs()), rank=2)
    for values in (found.negative_count, found.negative_share, found.change, found.excess, found.R1):
        assert float(values.abs().max()) == 0.0
    assert_close(found.R1_below, torch.zeros(8, dtype=torch.float64))


def test_both_signs_cost_more():
    """The same function where inputs have both signs takes two neurons for each coordinate."""
    X = gaussian(30, 5)
    cut = nonnegativity(projection().trace(X), rank=2)
    assert float(cut.change[0]) > 0.3 and float(cut.negative_count[0]) == pytest.approx(0.5, abs=0.2)
    net = pad(FullyConnected.from_weights([torch.eye(2, dtype=torch.float64)]), 6, signed=True).network
    pairs = nonnegativity(net.trace(X[:, :2]), rank=2)
    assert_close(net(X[:, :2]), X[:, :2])
    # Layers on ± pairs of coordinates cost 2k.
    assert float(pairs.excess[1:-1].min()) == pytest.approx(2.0)
    assert float(pairs.R1[-1]) > 5.0 and float(pairs.R1_below[-1]) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("slope", [-0.3, 0.0, 0.4, 1.0])
def test_numbers_by_hand(slope):
    net, X = random_net([4, 7, 7, 3], slope, seed=2), gaussian(25, 4)
    trace = net.trace(X)
    found = nonnegativity(trace, rank=2)
    for ell, Z in enumerate(trace.preactivations[:-1]):
        low = torch.where(Z < 0, Z, torch.zeros_like(Z))
        assert float(found.negative_count[ell]) == pytest.approx(float((Z < 0).sum()) / Z.numel())
        assert float(found.negative_share[ell]) == pytest.approx(float(low.square().sum() / Z.square().sum()))
        # σ_a(z) − z = (a − 1)z below zero.
        assert float(found.change[ell]) == pytest.approx(abs(1 - slope) * float(found.negative_share[ell]) ** 0.5)
    assert float(found.R1[-1]) == pytest.approx(parameter_norms(net).total - 2 * 3)
    s = torch.linalg.svdvals(jacobian(net, X))
    chosen = torch.linspace(0, 24, 16).long()
    assert float(found.R1_below[-1]) == pytest.approx(2 * float(s[chosen, :2].log().sum(1).max()))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), k=st.integers(0, 3), scale=st.floats(0.2, 3.0))
def test_the_path_costs_at_least_its_jacobians(seed, k, scale):
    net = random_net([3, 6, 6, 6, 3], seed=seed)
    with torch.no_grad():
        for W in net.weights:
            W.mul_(scale)
    found = nonnegativity(net.trace(gaussian(12, 3, seed=seed % 97)), rank=k)
    assert bool((found.R1_below <= found.R1 + 1e-9).all())


def test_a_corrupted_norm_is_noticed():
    """Were ‖W‖² counted once for two layers, the bound by the Jacobians would fail."""
    A = 3.0 * torch.eye(2, dtype=torch.float64)
    found = nonnegativity(FullyConnected.from_weights([A] * 4).trace(gaussian(9, 2).abs()), rank=2)
    assert bool((found.R1_below <= found.R1).all())
    assert not bool((found.R1_below <= found.R1 - found.excess[:1] * torch.arange(1, 5) / 1.2).all())


def test_a_trained_network_is_non_negative_inside():
    """Two coordinates and a constant that stands in for biases: in the middle σ changes little, and layers cost 3."""
    X = gaussian(200, 6, seed=3)
    Y = X[:, :2].abs() @ gaussian(2, 6, seed=4)
    net = FullyConnected([6, *[20] * 7, 6], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    train(net, X, Y, ridge=2e-3, finish=None)
    found = nonnegativity(net.trace(X), rank=3)
    middle = found.change[2:6]
    assert float(middle.max()) < 0.2 < float(found.change[0])
    assert float(found.excess.abs().max()) < 0.15
    # A minimum is balanced: what the path costs beyond the rank is shared by all layers alike.
    assert float(found.excess.std()) < 0.05


def test_without_a_rank_and_where_nothing_is():
    trace = random_net([4, 7, 3]).trace(gaussian(5, 4))
    found = nonnegativity(trace)
    assert found.rank is None and bool(found.excess.isnan().all())
    assert found.to_dict()["layers"][0]["excess"] is None
    assert found.to_dict()["layers"][-1]["change"] is None  # the outputs have no activation
    with pytest.raises(IsthmusError):
        nonnegativity(trace, rank=4)
    assert negative_part(torch.zeros(3, 2)) == (0.0, 0.0)
    assert all(map(math.isnan, negative_part(torch.zeros(0))))
    assert all(map(math.isnan, negative_part(torch.tensor([math.nan]))))
    assert negative_part(torch.tensor([-3e-200, 4e-200], dtype=torch.float64)) == pytest.approx((0.5, 0.36))
