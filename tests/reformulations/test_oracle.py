"""The oracle: sign patterns, bounds that no neuron exceeds, searches that find what is known."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.reformulations import certify_layer
from isthmus.reformulations._oracle import _refined, largest_ratio, search, sign_patterns
from isthmus.reformulations._over_covariances import Block
from isthmus.trace import activate
from tools import assert_close, gaussian, random_net


def ratios(c, V, Q, slope=0.0):
    c = c / c.norm(dim=1, keepdim=True)
    return (activate(c @ Q.mT, slope) @ V.mT).square().sum(1)


def many(r, seed=9, count=20_000):
    return gaussian(count, r, seed=seed)


@pytest.mark.parametrize(("N", "r"), [(4, 2), (6, 2), (5, 3), (7, 3), (4, 4), (3, 1)])
def test_as_many_cells_as_there_are(N, r):
    """N hyperplanes in general position cut ℝ^r into 2Σ_{i<r} C(N−1, i) cells; random points meet no others."""
    Q = gaussian(N, r)
    found = sign_patterns(Q)
    assert found is not None
    assert len(found) == 2 * sum(math.comb(N - 1, i) for i in range(r))
    cells = {tuple(row) for row in found.tolist()}
    assert {tuple(row) for row in (many(r) @ Q.mT).sign().tolist()} <= cells


def test_repeated_and_zero_rows():
    Q = torch.tensor([[1.0, 0.0], [0.0, 0.0], [2.0, 0.0], [0.0, 1.0]]).double()
    found = sign_patterns(Q)
    assert found is not None and len(found) == 4
    assert sign_patterns(gaussian(20, 20)) is None and sign_patterns(gaussian(12, 6), most=10) is None


def test_no_neuron_at_all():
    """Inputs of zero without bias: Im K^σ_0 = 0."""
    found = largest_ratio(gaussian(2, 4), torch.zeros(4, 0).double(), slope=0.0, target=1.0, starts=4, seed=0)
    assert (found.found, found.bound, len(found.c)) == (0.0, 0.0, 0)
    net = random_net([3, 4, 2], bias=0.0)
    for options in ({}, {"Y": gaussian(5, 2), "ridge": 0.1}):
        assert certify_layer(net, torch.zeros(5, 3).double(), 1, **options).verdict == "certified"


@pytest.mark.parametrize("slope", [0.0, 0.3, -0.5])
@pytest.mark.parametrize(("N", "r", "d"), [(3, 3, 2), (5, 2, 2), (6, 3, 4)])
def test_bounds_hold_and_are_near(N, r, d, slope):
    V, Q = gaussian(d, N), gaussian(N, r, seed=1)
    size = largest_ratio(V, Q, slope=slope, target=0.0, starts=32, seed=0).found
    V = V / size**0.5  # now the largest ratio is 1, as at an optimum
    found = largest_ratio(V, Q, slope=slope, target=1 + 1e-4, starts=32, seed=0)
    assert float(ratios(many(r), V, Q, slope).max()) <= found.found * (1 + 1e-9) <= found.bound * (1 + 2e-9)
    assert_close(float(ratios(found.c[None], V, Q, slope)), found.found)
    assert found.bound <= 1.01
    assert found.patterns > 0


@settings(max_examples=10)
@given(st.integers(0, 10_000))
def test_refined_bound_is_a_bound(seed):
    """On the cone Gc ≥ 0 no unit c exceeds it, and it is not above the largest eigenvalue."""
    M = gaussian(3, 3, seed=seed)
    M, G = M @ M.mT - 1.0, gaussian(4, 3, seed=seed + 1)
    top = float(torch.linalg.eigvalsh(M)[-1])
    bound = _refined(M, G, -math.inf, top)
    assert bound <= top
    c = many(3, seed=seed + 2, count=2000)
    c = c / c.norm(dim=1, keepdim=True)
    inside = ((c @ G.mT) >= 0).all(1)
    values = ((c @ M) * c).sum(1)[inside]
    assert not len(values) or float(values.max()) <= bound + 1e-9 * abs(top)


def test_refined_bound_is_tight_in_the_plane():
    """The quadrant c ≥ 0 and −c₁c₂: the largest value on it is 0, the largest eigenvalue ½."""
    M = torch.tensor([[0.0, -0.5], [-0.5, 0.0]]).double()
    assert abs(_refined(M, torch.eye(2).double(), 1e-3, 0.5)) < 2e-3


def test_by_norms():
    """An orthogonal V on all of ℝ^N: nothing exceeds 1, and no pattern is needed."""
    found = largest_ratio(torch.eye(30).double(), torch.eye(30).double(), slope=0.0, target=1 + 1e-9, starts=4, seed=0)
    assert found.patterns == 0
    assert_close([found.found, found.bound], [1.0, 1.0])


def test_search_returns_different_neurons():
    values, c = search(gaussian(3, 8), gaussian(8, 4, seed=1), slope=0.0, starts=20, seed=0)
    assert list(values) == sorted(values, reverse=True) and 1 < len(c) <= 12
    assert_close(c.norm(dim=1), torch.ones(len(c)))
    assert float(search(torch.zeros(2, 3).double(), torch.eye(3).double(), slope=0.0, starts=3, seed=0)[0][0]) == 0.0


# ------------------------------------------------------------------------------------------------------------ blocks


@pytest.mark.parametrize("gamma", [0.0, 0.3])
@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_block(gamma, bias):
    """Value, gradient and dual bound of one layer, each by a second route."""
    S, T = gaussian(3, 4), gaussian(2, 4, seed=1)
    block = Block.after(S, T, gamma, 0.1, bias)
    Z = gaussian(9, 3, seed=2) @ S
    C = block.coordinates(Z)
    assert_close(C @ block.Q.mT, Z)
    A = torch.linalg.pinv(S.mT @ S)
    assert_close(float(C.square().sum()), float(torch.trace(Z @ A @ Z.mT)), rtol=1e-8, reason="a pseudo-inverse")
    Z_sigma = activate(Z, 0.1)
    K = Z_sigma.mT @ Z_sigma + bias**2 + gamma * torch.eye(4).double()
    inverse = torch.linalg.inv(K)
    second = float(torch.trace(T @ inverse @ T.mT))
    assert_close(block.value(C), float(C.square().sum()) + second, rtol=1e-8, reason="an inverse")
    V = block.prices(C)
    assert_close(V, T @ inverse, rtol=1e-7, atol=1e-9, reason="an inverse")
    # −VᵀV is the derivative by K^σ.
    s = activate(Z[0], 0.1)
    step = 1e-6
    moved = float(torch.trace(T @ torch.linalg.inv(K + step * torch.outer(s, s)) @ T.mT))
    assert_close((moved - second) / step, -float((V @ s).square().sum()), rtol=1e-3, reason="a difference")
    assert block.value(block.reweighted(C, V)) <= block.value(C)
    ratio = largest_ratio(V, block.Q, slope=0.1, target=1.0, starts=32, seed=0)
    low = block.lower_bound(V, ratio.bound)
    for seed in range(50):
        other = gaussian(8, 3, seed=100 + seed) * 10 ** float(gaussian(1, seed=seed))
        assert block.value(other) >= low


def test_rank_deficient_block():
    """A T outside Im K^σ costs ∞ at γ = 0, and nothing is divided by 0 within it."""
    block = Block.after(torch.eye(3).double(), torch.eye(3).double()[:1], 0.0, 0.0, 0.0)
    assert block.value(torch.tensor([[0.0, 1.0, 0.0]]).double()) == math.inf
    assert_close(block.value(torch.tensor([[1.0, 0.0, 0.0]]).double()), 2.0)
