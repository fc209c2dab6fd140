"""Rank_σ: how many neurons a pair of covariances needs at least; bounds, and whether they meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus._checks import as_matrix, check_integer, check_number, fail
from isthmus._cite import cites
from isthmus.linalg import matrix
from isthmus.trace import activate

#: Entries of a matrix that are compared in pairs: N ≤ 44.
LARGEST_SEARCH = 1000


@dataclass(frozen=True)
class SigmaRank:
    """lower ≤ Rank_σ(K, K^σ) ≤ upper.

    Attributes
    ----------
    lower, upper : int
    exact : bool
        Whether they meet.
    reasons : tuple of str
        What gives the lower bound, and what the upper.
    """

    lower: int
    upper: int
    exact: bool
    reasons: tuple[str, str]


@cites("features2022", "§4.1, §4.2, Def. 12", ids=("Q-sigmarank",))
def sigma_rank_bounds(
    K: Any, K_sigma: Any, *, bias: float, slope: float = 0.0, Z: Any = None, tolerance: float = 1e-11
) -> SigmaRank:
    """max(Rank K, Rank M, Rank_cp M) ≤ Rank_σ(K, K^σ) ≤ N(N+1), M = K^σ − β²11ᵀ; Rank_cp for the ReLU only.

    Rank_cp M itself is bounded by its rank and by :func:`cp_rank_bound`. The pair is taken to lie in the cone of
    networks: whether it does is not decided here.

    Parameters
    ----------
    K, K_sigma : array (N, N)
        ZᵀZ and σ(Z)ᵀσ(Z) + β²11ᵀ.
    bias, slope : float
        β and a of σ_a. For a ≠ 0 activations have both signs: no bound by the CP-rank.
    Z : array (n, N), optional
        Neurons of these covariances: as many as are not zero are enough.
    tolerance : float
        Relative to the largest entry of each matrix: what rounding may have added to an entry or to a singular value.
    """
    who = "sigma_rank_bounds"
    check_number(who, "slope", slope, low=-1.0, high=1.0)
    check_number(who, "bias", bias)
    check_number(who, "tolerance", tolerance, low=0.0, high=1e-2)
    first, second = _symmetric(who, "K", K, 1e-8), _symmetric(who, "K_sigma", K_sigma, 1e-8)
    if first.shape != second.shape:
        fail(who, "`K` and `K_sigma` must have one shape", (tuple(first.shape), tuple(second.shape)), "Check both.")
    M = second - bias**2
    # What subtracting β² leaves of rounding is relative to K^σ.
    noise = tolerance * float(second.abs().max())
    lower, why = _rank(first, tolerance * float(first.abs().max())), "Rank K"
    for count, reason in (
        (_rank(M, noise), "Rank(K^σ − β²11ᵀ)"),
        (_cp_bound(M, noise, slope), "CP-rank of K^σ − β²11ᵀ"),
    ):
        if count > lower:
            lower, why = count, reason
    N = len(first)
    upper, enough = N * (N + 1), "N(N+1), Carathéodory"
    if Z is not None:
        neurons = matrix(who, "Z", Z)
        _check_neurons(who, neurons, first, M, slope)
        alive = int((neurons.abs().amax(1) > 0).sum())
        if alive < upper:
            upper, enough = alive, "the neurons given that are not zero"
    if lower > upper:
        must = "`K` and `K_sigma` must be covariances of one layer"
        fail(who, must, f"{lower} ≤ Rank_σ ≤ {upper}", "Raise `tolerance` if they carry more rounding, or check them.")
    return SigmaRank(lower, upper, lower == upper, (why, enough))


@cites("features2022", "Prop. 13", ids=("Q-sigmarank",))
def cp_rank_bound(M: Any, *, tolerance: float = 1e-11) -> int:
    """A lower bound of Rank_cp M: entries of which no two can lie in one term of M = Σb_ib_iᵀ, b_i ≥ 0.

    Let M have k terms. Of the k products that sum to M_uv the largest is ≥ M_uv/k: call its term heavy for (u, v). If
    one term b is heavy for both (u, v) and (w, x), then M_uvM_wx/k² ≤ b_ub_vb_wb_x = (b_ub_w)(b_vb_x) ≤ M_uwM_vx, and
    likewise ≤ M_uxM_vw. So entries with min(M_uwM_vx, M_uxM_vw) < M_uvM_wx/k² have different heavy terms, and m entries
    of which this is true in pairs for k = m − 1 exclude m − 1 terms: Rank_cp M ≥ m.

    Where the support of M is a triangle-free graph, any two edges meet a zero: a term covers one edge, and the bound is
    at least the number of edges (Prop. 13, whose matrices are EᵀE with entries 0 and 1). The inequality needs no exact
    zeros: what ``tolerance`` leaves open is counted against the bound on both sides, so that a small entry taken
    for zero cannot raise it.

    Departs from the paper: it has supports only, and 0–1 incidence.

    Parameters
    ----------
    M : array (N, N)
        Symmetric.
    tolerance : float
        Relative to the largest entry: how far any entry may be off.
    """
    check_number("cp_rank_bound", "tolerance", tolerance, low=0.0, high=1e-2)
    given = _symmetric("cp_rank_bound", "M", M, 1e-8)
    return _entry_bound(given, tolerance * float(given.abs().max()))


def _cp_bound(M: Tensor, noise: float, slope: float) -> int:
    return _entry_bound(M, noise) if slope == 0.0 else 0


def _entry_bound(M: Tensor, noise: float) -> int:
    low, high = (M - noise).clamp_min(0.0), (M + noise).clamp_min(0.0)
    u, v = torch.triu_indices(len(M), len(M))
    kept = low[u, v] > 0.0
    u, v = u[kept], v[kept]
    # The largest entries, relative to their diagonals, are those that differ from their neighbours beyond rounding.
    diagonal = high.diagonal().sqrt()
    size = low[u, v] / (diagonal[u] * diagonal[v])
    if len(u) > LARGEST_SEARCH:
        first = torch.argsort(size, descending=True, stable=True)[:LARGEST_SEARCH]
        u, v = u[first], v[first]
    if not len(u):
        return 0
    crossed = torch.minimum(high[u][:, u] * high[v][:, v], high[u][:, v] * high[v][:, u])
    ratio = crossed / (low[u, v][:, None] * low[u, v][None, :])
    ratio.fill_diagonal_(torch.inf)
    best, k = 1, len(u)
    # Fewer terms are easier to exclude: from as many as there are entries down to what has been excluded.
    while k >= best:
        found = _pairwise(ratio * k**2 < 1.0, u == v)
        best = max(best, min(found, k + 1))
        k = k // 2 if k > 2 * best else k - 1
    return best


def _pairwise(apart: Tensor, loop: Tensor) -> int:
    """The size of a set of entries of which any two are ``apart``, grown greedily from two orders."""
    degree = apart.sum(1)
    best = 0
    for order in (torch.argsort(degree, descending=True, stable=True), torch.argsort(loop.long(), stable=True)):
        free = torch.ones(len(apart), dtype=torch.bool)
        count = 0
        for entry in order.tolist():
            if free[entry]:
                count += 1
                free &= apart[entry]
        best = max(best, count)
    return best


def _rank(M: Tensor, noise: float) -> int:
    # An entry off by `noise` moves a singular value by at most N times as much.
    return int((torch.linalg.svdvals(M) > noise * len(M)).sum())


def _symmetric(who: str, name: str, value: Any, tolerance: float) -> Tensor:
    M = as_matrix(who, name, value)
    check_integer(who, f"the rows of `{name}`", len(M), low=1, high=1000)
    if M.shape[0] != M.shape[1] or float((M - M.mT).abs().max()) > tolerance * float(M.abs().max()):
        fail(who, f"`{name}` must be symmetric", f"shape {tuple(M.shape)}", "Pass a covariance, e.g. Z.T @ Z.")
    return 0.5 * (M + M.mT)


def _check_neurons(who: str, Z: Tensor, K: Tensor, M: Tensor, slope: float) -> None:
    S = activate(Z, slope)
    for name, made, given in (("K", Z.mT @ Z, K), ("K_sigma", S.mT @ S, M)):
        if made.shape != given.shape or float((made - given).abs().max()) > 1e-8 * float(K.abs().max()):
            fail(who, f"`Z` must have the covariance `{name}`", "another one", "Pass the neurons they come from.")
