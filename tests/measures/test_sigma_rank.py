"""Q-sigmarank: bounds of Rank_σ, and the lower bound of the CP-rank behind them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus import IsthmusError
from isthmus.constructions import bipartite_optimum, complete_bipartite, incidence
from isthmus.measures import cp_rank_bound, sigma_rank_bounds
from isthmus.trace import activate
from tools import assert_close, gaussian


def gram(E):
    return E.mT @ E


def pair(Z, slope=0.0, bias=0.0):
    S = activate(Z, slope)
    return Z.mT @ Z, S.mT @ S + bias**2


@pytest.mark.parametrize(
    ("edges", "vertices"),
    [
        ([(0, 1)], 2),
        ([(i, (i + 1) % 5) for i in range(5)], 5),
        ([(0, i) for i in range(1, 7)], 7),
        ([(i, i + 1) for i in range(8)], 9),
        (complete_bipartite(10), 10),
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_triangle_free_graphs(edges, vertices, weighted):
    """As many terms as edges, with any positive entries: Prop. 13 has 0 and 1 only."""
    E = incidence(edges, vertices)
    if weighted:
        E = E * (0.5 + gaussian(*E.shape).abs())
    assert cp_rank_bound(gram(E)) == len(edges)


def test_isolated_vertices_count():
    M = torch.diag(torch.tensor([1.0, 2.0, 0.0])).double()
    assert cp_rank_bound(M) == 2 and cp_rank_bound(torch.zeros(3, 3)) == 0


def test_complete_graphs_are_not_counted_by_edges():
    """K₄ has 6 edges and CP-rank 4: here are the four terms. For K₃ rank and edges are both 3."""
    K_4 = gram(incidence([(i, j) for i in range(4) for j in range(i)], 4))
    c, a = 2**0.5, (24**0.5 - 8**0.5) / 8
    B = c * torch.eye(4).double() + a
    assert_close(gram(B), K_4)
    assert float(B.min()) > 0 and cp_rank_bound(K_4) <= 4
    K_3 = gram(incidence([(0, 1), (1, 2), (0, 2)], 3))
    assert int(torch.linalg.matrix_rank(K_3)) == 3


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 8), st.floats(0.2, 1.0))
def test_never_above_a_factor(seed, terms, N, density):
    """B ≥ 0 with k rows: no bound exceeds k, sparse or dense."""
    B = gaussian(terms, N, seed=seed).abs() * (gaussian(terms, N, seed=seed + 1).sigmoid() < density)
    assert cp_rank_bound(gram(B.double())) <= terms


@given(st.integers(0, 10_000), st.floats(-12.0, -1.0))
def test_small_entries_are_no_zeros(seed, exponent):
    """Dense factors with entries of very different sizes: what nearly vanishes must not raise the bound."""
    B = gaussian(3, 6, seed=seed).abs() * 10 ** (exponent * gaussian(3, 6, seed=seed + 1).abs())
    assert cp_rank_bound(gram(B)) <= 3


@pytest.mark.parametrize("size", [1e-14, 1e-9, 1e-4, 1e-3])
def test_nearly_bipartite(size):
    """A small positive entry in place of each zero: still 9 terms as long as size·max < (1/8)²."""
    E = incidence(complete_bipartite(6), 6)
    B = torch.cat([E, torch.full((1, 6), size**0.5).double()])
    assert cp_rank_bound(gram(B)) == 9


def test_permutation_and_scale():
    M = gram(incidence(complete_bipartite(6), 6))
    order = torch.randperm(6, generator=torch.Generator().manual_seed(1))
    d = torch.diag(0.5 + gaussian(6).abs())
    assert cp_rank_bound(1e-9 * M[order][:, order]) == cp_rank_bound(d @ M @ d) == 9


def test_exact_on_prop_14():
    Z = bipartite_optimum(6).Ws[0].detach()
    found = sigma_rank_bounds(*pair(Z), bias=0.0, Z=Z)
    assert (found.lower, found.upper, found.exact) == (9, 9, True)
    assert "CP-rank" in found.reasons[0] and "neurons" in found.reasons[1]
    assert not sigma_rank_bounds(*pair(Z), bias=0.0).exact


def test_small_ridge_needs_as_many():
    """Prop. 14 for λ > 0: the optimum's pair needs N²/4 neurons, by a bound and not by a limit λ → 0."""
    for N, ridge in ((4, 5e-3), (6, 1e-3), (8, 1e-4)):
        Z = bipartite_optimum(N, ridge=ridge).Ws[0].detach()
        assert sigma_rank_bounds(*pair(Z), bias=0.0).lower >= N * N // 4


@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 5), st.sampled_from([0.0, 1.0]))
def test_bounds_of_random_layers(seed, n, N, bias):
    Z = gaussian(n, N, seed=seed)
    for slope in (0.0, 0.3):
        found = sigma_rank_bounds(*pair(Z, slope, bias), bias=bias, slope=slope, Z=Z)
        assert min(n, N) <= found.lower <= found.upper <= min(n, N * (N + 1))


def test_bias_is_taken_off():
    """One neuron and the bias: K^σ has rank 2, the pair needs one neuron."""
    Z = torch.tensor([[1.0, -1.0, 2.0]]).double()
    K, K_sigma = pair(Z, bias=1.0)
    assert sigma_rank_bounds(K, K_sigma, bias=1.0, Z=Z).exact
    with pytest.raises(IsthmusError, match="covariance"):
        sigma_rank_bounds(K, K_sigma, bias=0.0, Z=Z)


def test_zero_pair():
    found = sigma_rank_bounds(torch.zeros(3, 3), torch.zeros(3, 3), bias=0.0, Z=torch.zeros(2, 3))
    assert (found.lower, found.upper, found.exact) == (0, 0, True)


@pytest.mark.parametrize(
    ("K", "other", "match"),
    [
        (torch.eye(2), torch.eye(3), "one shape"),
        (torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.eye(2), "symmetric"),
        (torch.ones(2, 3), torch.eye(2), "symmetric"),
    ],
)
def test_bad_input(K, other, match):
    with pytest.raises(IsthmusError, match=match):
        sigma_rank_bounds(K, other, bias=0.0)


def test_other_neurons_are_refused():
    Z = gaussian(3, 4)
    with pytest.raises(IsthmusError, match="must have the covariance"):
        sigma_rank_bounds(*pair(Z), bias=0.0, Z=gaussian(3, 4, seed=1))
