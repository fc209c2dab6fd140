"""Φ and Ψ, the loss over representations and over covariances, and the useless part of weights."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tools
from isthmus import FullyConnected, IsthmusError
from isthmus.constructions import minimal_network
from isthmus.measures import (
    KernelNorm,
    covariance_loss,
    covariances,
    inadmissibility,
    minimal_weights,
    representation_cost_terms,
    representation_loss,
    representations,
    useless_part,
)
from isthmus.objective import cost
from tools import assert_close, gaussian, generator


def random_net(*args, **options):
    return tools.random_net(*args, **options).requires_grad_(False)


def loss_of(net, X, Y, ridge):
    return float(cost(net(X), Y)) + ridge * sum(float(p.square().sum()) for p in net.parameters())


CASES = [
    (slope, bias, dims) for slope in (0.0, 0.3, -1.0) for bias in (0.0, 1.0, 0.5) for dims in ([4, 9, 8, 3], [3, 4, 2])
]


@pytest.mark.parametrize(("slope", "bias", "dims"), CASES)
def test_the_maps_and_the_three_losses(slope, bias, dims):
    """Φ∘Ψ = id, 𝓛(ΨZ) = 𝓛^r(Z) = 𝓛^k, ‖W‖² = ‖ΨΦW‖² + Σ‖W̃‖²: four routes to one number, wide and narrow."""
    net, X, Y = random_net(dims, slope, bias), gaussian(6, dims[0], seed=1), gaussian(6, dims[-1], seed=2)
    Zs = representations(net, X)
    made = minimal_network(Zs, X, slope=slope, bias=bias).requires_grad_(False)
    for Z, back in zip(Zs, representations(made, X)):
        assert_close(back, Z, rtol=1e-9, atol=1e-10, reason="weights through a pseudo-inverse")
    over_Z = representation_loss(Zs, X, Y, ridge=0.1, slope=slope, bias=bias)
    assert over_Z == pytest.approx(loss_of(made, X, Y, 0.1), rel=1e-9)
    Ks = covariances(Zs, slope=slope, bias=bias)
    assert over_Z == pytest.approx(covariance_loss(Ks, Zs[-1], X, Y, ridge=0.1, bias=bias), rel=1e-9)
    useless = sum(useless_part(net.trace(X)))
    assert over_Z + 0.1 * useless == pytest.approx(loss_of(net, X, Y, 0.1), rel=1e-9)
    assert sum(useless_part(made.trace(X))) < 1e-18 * over_Z + 1e-20
    assert max(inadmissibility(Zs, X, slope=slope, bias=bias)) < 1e-12


def test_weights_by_torch():
    """The same weights by torch's pseudo-inverse; the bias column is b itself, whatever β."""
    X, Z = gaussian(4, 6, seed=3), gaussian(3, 4, seed=4)
    made = minimal_weights([Z], X, bias=0.5)
    S = torch.cat([X.mT, torch.full((1, 4), 0.5, dtype=torch.float64)])
    W = Z @ torch.linalg.pinv(S)
    assert_close(made.Ws[0], W[:, :-1])
    assert_close(made.bs[0], W[:, -1])
    assert_close(made.outputs, Z.mT)


def test_what_is_not_admissible():
    """Two samples that are one point cannot be told apart by any weights."""
    X = torch.tensor([[1.0, 2.0], [1.0, 2.0], [0.0, 1.0]], dtype=torch.float64)
    Zs = [torch.tensor([[1.0, -1.0, 0.0]], dtype=torch.float64)]
    with pytest.raises(IsthmusError, match="Z_1 must lie in the span of the rows of Z\\^σ_0"):
        minimal_weights(Zs, X)
    assert inadmissibility(Zs, X)[0] == pytest.approx(1.0)
    assert math.isinf(representation_loss(Zs, X, torch.zeros(3, 1), ridge=0.1))
    assert math.isinf(covariance_loss([], Zs[0], X, torch.zeros(3, 1), ridge=0.1))
    assert representation_loss(Zs, X, torch.zeros(3, 1), ridge=0.0) == pytest.approx(2 / 3)
    assert_close(minimal_weights(Zs, X, least_squares=True).outputs, torch.zeros(3, 1), atol=1e-12, reason="rounding")


def test_the_stable_terms():
    """Tr[Z(K+γI)⁻¹Zᵀ] by a solve, finite where Z is not admissible, growing to the term itself as γ falls."""
    net, X = random_net([3, 5, 2]), gaussian(8, 3, seed=5)
    Zs = representations(net, X)
    exact = representation_cost_terms(Zs, X)
    previous = (0.0, 0.0)
    for gamma in (1.0, 1e-2, 1e-5):
        terms = representation_cost_terms(Zs, X, gamma=gamma)
        for ell, S in ((1, net.trace(X).Z_sigma(0)), (2, net.trace(X).Z_sigma(1))):
            K = S.mT @ S + gamma * torch.eye(8, dtype=torch.float64)
            assert terms[ell - 1] == pytest.approx(
                float((Zs[ell - 1] * torch.linalg.solve(K, Zs[ell - 1].mT).mT).sum())
            )
            assert previous[ell - 1] < terms[ell - 1] < exact[ell - 1]
        previous = terms
    assert terms[0] == pytest.approx(exact[0], rel=1e-3)
    wrong = [Zs[0] + gaussian(5, 8, seed=6), Zs[1]]
    assert math.isinf(representation_cost_terms(wrong, X)[0])
    assert math.isfinite(representation_cost_terms(wrong, X, gamma=1e-3)[0])


def test_labels():
    net, X = random_net([3, 5, 4]), gaussian(6, 3, seed=5)
    Y, Zs = torch.tensor([0, 1, 2, 3, 0, 1]), representations(net, X)
    value = representation_loss(Zs, X, Y, ridge=0.1, loss="cross_entropy")
    parts = float(cost(net(X), Y, "cross_entropy")) + 0.1 * sum(representation_cost_terms(Zs, X))
    assert value == pytest.approx(parts)
    assert value == pytest.approx(covariance_loss(covariances(Zs), Zs[-1], X, Y, ridge=0.1, loss="cross_entropy"))


def test_useless_weights_by_hand():
    """X on a line: everything orthogonal to it is useless."""
    X = torch.tensor([[1.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    net = FullyConnected.from_weights([torch.tensor([[1.0, 3.0]]).double(), torch.tensor([[2.0]]).double()])
    assert useless_part(net.trace(X)) == pytest.approx((9.0, 0.0))
    dead = FullyConnected.from_weights([torch.tensor([[-1.0, 0.0]]).double(), torch.tensor([[2.0]]).double()])
    assert useless_part(dead.trace(X)) == pytest.approx((0.0, 4.0))


@given(st.integers(0, 10_000))
def test_rotations_and_orders_change_nothing(seed):
    """Permuted neurons and samples, and a rotated input, leave 𝓛^r as it is."""
    net, X, Y = random_net([3, 4, 2], seed=seed), gaussian(5, 3, seed=seed + 1), gaussian(5, 2, seed=seed + 2)
    Zs = representations(net, X)
    value = representation_loss(Zs, X, Y, ridge=0.2)
    samples, neurons = torch.randperm(5, generator=generator(seed)), torch.randperm(4, generator=generator(seed + 1))
    moved = [Zs[0][neurons][:, samples], Zs[1][:, samples]]
    Q = torch.linalg.qr(gaussian(3, 3, seed=seed + 3)).Q
    assert representation_loss(moved, X[samples] @ Q, Y[samples], ridge=0.2) == pytest.approx(value, rel=1e-7)


def test_errors_name_what_is_wrong():
    X = gaussian(4, 2)
    with pytest.raises(IsthmusError, match="Z_2 must have 4 columns"):
        inadmissibility([gaussian(3, 4), gaussian(4, 3)], X)
    with pytest.raises(IsthmusError, match="must not be empty"):
        minimal_weights([], X)
    with pytest.raises(IsthmusError, match="covariances must be 4 × 4"):
        covariance_loss([(torch.eye(3), torch.eye(3))], gaussian(1, 4), X, gaussian(4, 1), ridge=0.1)
    with pytest.raises(IsthmusError, match="at most 5000 samples"):
        covariances([torch.zeros(1, 5001), torch.zeros(1, 5001)])
    with pytest.raises(IsthmusError, match="take representation_loss"):
        covariance_loss([], torch.zeros(1, 5001), torch.zeros(5001, 1), torch.zeros(5001, 1), ridge=0.1)


def test_a_cut_makes_weights_blind_to_weak_directions():
    """Two samples 1e-9 apart: weights that tell them apart are of size 1e9; above a cut there are none."""
    X = gaussian(1, 3).repeat(2, 1)
    X[1] += 1e-9 * gaussian(1, 3, seed=1)[0]
    Z = gaussian(2, 2, seed=2)
    full, blind = (minimal_weights([Z], X, bias=0.0, least_squares=True, cut=cut) for cut in (0.0, 1e-7))
    assert float(full.Ws[0].norm()) > 1e6 > 1e3 > float(blind.Ws[0].norm())
    inside = [blind.outputs.mT]
    assert max(inadmissibility(inside, X, bias=0.0, cut=1e-7)) < 1e-12
    (term,) = representation_cost_terms(inside, X, bias=0.0, cut=1e-7)
    assert_close(term, float(blind.Ws[0].square().sum()))


def test_squares_of_tiny_activations_do_not_underflow():
    norm = KernelNorm(1e-200 * torch.eye(3, dtype=torch.float64))
    assert_close(norm.square(2e-200 * torch.eye(3, dtype=torch.float64)), 12.0)
