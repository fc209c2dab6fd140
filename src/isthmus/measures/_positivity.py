"""Non-negative representations: σ(α̃) = α̃ inside the bottleneck, and kernels that fit into an orthant.

A kernel is completely positive, K = BᵀB with B ≥ 0, by certificates for "yes" and "no"; otherwise "unknown".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from isthmus._checks import as_matrix, check_integer, check_number, fail
from isthmus._cite import cites
from isthmus.linalg import CHUNK_BYTES
from isthmus.measures._norms import parameter_norms
from isthmus.trace import Trace

#: Rows and columns of K up to which a factor is searched for.
SEARCH_SIZE = 100


@dataclass(frozen=True, eq=False)
class Positivity:
    """Whether K is completely positive, with what shows it.

    Attributes
    ----------
    verdict : str
        ``"yes"``, ``"no"`` or ``"unknown"``.
    factor : Tensor (r, N), or None
        B ≥ 0 with BᵀB = K up to ``residual``, when the verdict is "yes" and B was found and can be held.
    witness : Tensor (N, N), or None
        When the verdict is "no": a copositive C (vᵀCv ≥ 0 for all v ≥ 0) with ⟨C, K⟩ < 0. Completely positive
        matrices have ⟨C, BᵀB⟩ ≥ 0.
    residual : float
        max|BᵀB − K| / max K_ii of the factor, or of the best one tried; NaN when none was.
    reason : str
        The theorem, or what was tried.
    """

    verdict: str
    factor: Tensor | None
    witness: Tensor | None
    residual: float
    reason: str


@cites("bottleneck2023", "Thm. 3(3), Prop. 5", ids=("Q-geodesic",))
def is_completely_positive(
    K: Any, *, tolerance: float = 1e-9, restarts: int = 10, generator: torch.Generator | None = None
) -> Positivity:
    """K = BᵀB with B ≥ 0: do the points of the kernel K fit, rotated, into a cone R^m_+?

    In turn: K must be positive semi-definite and non-negative; this suffices for rank ≤ 2 (vectors in the plane at
    pairwise angles ≤ 90°) and for N ≤ 4. A positive semi-definite comparison matrix (K_ii, −K_ij) suffices always
    (diagonal dominance is a case of it) and is necessary when no three indices have K_ij, K_jk, K_ik > 0. What is
    left is searched for a factor; not finding one proves nothing.

    Parameters
    ----------
    K : array (N, N)
        Symmetric.
    tolerance : float, default 1e-9
        Relative to max K_ii: what counts as zero, as a violation and as a factor.
    restarts : int, default 10
        Random starts of the search.
    generator : torch.Generator, optional
        Source of the starts; by default one seeded with 0, so that a verdict can be repeated.
    """
    who = "is_completely_positive"
    M = as_matrix(who, "K", K).cpu().numpy()
    check_number(who, "tolerance", tolerance, low=0.0, high=0.1)
    check_integer(who, "restarts", restarts, low=0)
    if M.shape[0] != M.shape[1] or float(np.abs(M - M.T).max()) > max(tolerance, 1e-12) * float(np.abs(M).max()):
        fail(who, "`K` must be symmetric", f"shape {M.shape}", "Pass a kernel matrix, for example Z @ Z.T.")
    scale = float(np.abs(M.diagonal()).max()) or float(np.abs(M).max()) or 1.0
    M = (M + M.T) / (2.0 * scale)

    def yes(B: np.ndarray, reason: str) -> Positivity | None:
        # Rounding may leave −1e-17 in B: what counts is the product of what is returned.
        B = np.clip(B, 0.0, None)
        residual = _residual(B, M)
        if residual > tolerance:
            return None
        return Positivity("yes", torch.from_numpy(B * scale**0.5), None, residual, reason)

    def no(C: np.ndarray, reason: str) -> Positivity:
        return Positivity("no", None, torch.from_numpy(C), float("nan"), reason)

    i, j = np.unravel_index(int(M.argmin()), M.shape)
    if M[i, j] < -tolerance:
        C = np.zeros_like(M)
        C[i, j] = C[j, i] = 1.0
        return no(C, f"K[{i}, {j}] is negative")
    values, vectors = np.linalg.eigh(M)
    if values[0] < -tolerance:
        return no(np.outer(vectors[:, 0], vectors[:, 0]), "K has a negative eigenvalue")

    # What rounding left below zero is zero; a factor must still reproduce K itself.
    doubly = np.clip(M, 0.0, None)
    if np.count_nonzero(values > tolerance) <= 2:
        found = yes(_planar_factor(values, vectors), "rank at most 2, at angles of at most 90°")
        if found:
            return found
    comparison, triangle_free = _comparison(doubly, tolerance)
    lowest, prices, lowest_alone = _perron(comparison)
    if lowest >= -tolerance:
        reason = "the comparison matrix is positive semi-definite"
        edges = np.argwhere(np.triu(comparison < 0, 1))
        if 8.0 * (len(edges) + len(M)) * len(M) > CHUNK_BYTES:
            return Positivity("yes", None, None, float("nan"), f"{reason}; the factor is too large to hold")
        found = yes(_edge_factor(-comparison, prices, edges), reason)
        if found:
            return found
    elif triangle_free:
        # By Motzkin and Straus xᵀAx ≤ ½(Σx)² for x ≥ 0 and a triangle-free graph A, so that J − 2A is copositive.
        signs = np.where((comparison < 0) & ~np.eye(len(M), dtype=bool), -1.0, 1.0)
        C = signs * np.outer(lowest_alone, lowest_alone)
        if float((C * M).sum()) < 0.0:
            return no(C, "no three indices are pairwise positive, and the comparison matrix is indefinite")

    small = len(M) <= 4
    if len(M) > SEARCH_SIZE:
        return Positivity("unknown", None, None, float("nan"), f"no criterion decides, and N > {SEARCH_SIZE}")
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    root = np.sqrt(np.clip(values, 0.0, None))[:, None] * vectors.T
    residual = float("nan")
    for B in _searched_factors(M, root, restarts, generator):
        found = yes(B, "N ≤ 4: doubly non-negative, with a factor found" if small else "a factor was found")
        if found:
            return found
        residual = float(np.fmin(residual, _residual(B, M)))
    if small:
        return Positivity("yes", None, None, residual, "N ≤ 4: doubly non-negative; no factor found")
    return Positivity("unknown", None, None, residual, f"no criterion decides; no factor found in {restarts} starts")


def _residual(B: np.ndarray, M: np.ndarray) -> float:
    return float(np.abs(B.T @ B - M).max())


def _planar_factor(values: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Vectors in the plane, turned until the first of them lies on an axis and the last before the other."""
    z = np.sqrt(np.clip(values[-2:], 0.0, None)) * vectors[:, -2:]
    z = np.c_[z, np.zeros(len(z))][:, :2]  # one value only when N = 1
    lengths = np.linalg.norm(z, axis=1)
    longest = z[lengths.argmax()]
    # Angles from one of them lie in [−90°, 90°]: no branch cut is crossed.
    angles = np.arctan2(longest[0] * z[:, 1] - longest[1] * z[:, 0], z @ longest)
    angles = angles - angles[lengths > 1e-8 * lengths.max()].min() if lengths.max() > 0 else angles
    return lengths * np.stack([np.cos(angles), np.sin(angles)])


def _comparison(doubly: np.ndarray, tolerance: float) -> tuple[np.ndarray, bool]:
    """The comparison matrix K_ii, −K_ij (without entries below the tolerance); is its graph triangle-free?"""
    edges = doubly > tolerance
    np.fill_diagonal(edges, False)
    paths = edges.astype(np.float64) @ edges.astype(np.float64)
    return np.diag(doubly.diagonal()) - np.where(edges, doubly, 0.0), not bool((edges & (paths > 0.5)).any())


def _perron(comparison: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Least eigenvalue; the Perron vectors d > 0 of all components side by side; that of the lowest component alone."""
    prices, lowest, lowest_alone = np.ones(len(comparison)), np.inf, np.zeros(len(comparison))
    count, labels = connected_components(comparison != 0, directed=False)
    for label in range(count):
        inside = np.flatnonzero(labels == label)
        values, vectors = np.linalg.eigh(comparison[np.ix_(inside, inside)])
        # Positive by Perron and Frobenius, up to a sign and underflow.
        prices[inside] = np.maximum(np.abs(vectors[:, 0]), 1e-100)
        if values[0] < lowest:
            lowest, lowest_alone = float(values[0]), np.where(labels == label, prices, 0.0)
    return lowest, prices, lowest_alone


def _edge_factor(weights: np.ndarray, prices: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """One row for each edge, √K_ij (√(d_j/d_i) eᵢ + √(d_i/d_j) eⱼ), and one for what is left of each diagonal entry."""
    rows = np.zeros((len(edges), len(weights)))
    i, j = edges[:, 0], edges[:, 1]
    each, size, ratio = np.arange(len(edges)), np.sqrt(weights[i, j]), np.sqrt(prices[j] / prices[i])
    rows[each, i], rows[each, j] = size * ratio, size / ratio
    left = -weights.diagonal() - (rows**2).sum(0)
    return np.concatenate([rows, np.diag(np.sqrt(np.clip(left, 0.0, None)))])


def _searched_factors(
    M: np.ndarray, root: np.ndarray, restarts: int, generator: torch.Generator
) -> Iterator[np.ndarray]:
    """Candidates B ≥ 0, one for each start: alternating projections, then a descent on ‖BᵀB − K‖².

    Every factor of K is QV for V = ``root`` and some Q with orthonormal columns: project QV onto B ≥ 0, and the
    result back onto the factors (a polar decomposition). Inside the cone this ends exactly; at its border the
    descent with bounds finds the last digits.
    """
    n = len(M)
    rows = n if n <= 4 else min(n * (n + 1) // 2 - 4, 3 * n)  # enough for any completely positive K of N ≤ 5

    def misfit(flat: np.ndarray) -> tuple[float, np.ndarray]:
        B = flat.reshape(rows, n)
        E = B.T @ B - M
        return float((E**2).sum()), (4.0 * B @ E).reshape(-1)

    for _ in range(restarts):
        start = torch.randn(rows, n, generator=generator, dtype=torch.float64)
        Q = torch.linalg.qr(start).Q.numpy()
        for _ in range(300):
            B = Q @ root
            if float(B.min()) >= 0.0:
                break
            U, _, Wh = np.linalg.svd(np.clip(B, 0.0, None) @ root.T, full_matrices=False)
            Q = U @ Wh
        B = np.clip(Q @ root, 0.0, None)
        if _residual(B, M) > 1e-13:
            options = {"maxiter": 5000, "maxfun": 10000, "ftol": 0.0, "gtol": 1e-14}
            bounds = [(0.0, None)] * B.size
            B = minimize(misfit, B.reshape(-1), jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
            B = B.reshape(rows, n)
        yield B


# ---- Q-nonneg: inside the bottleneck σ(α̃) = α̃ up to small terms, and passing a layer costs k and no more


#: Samples at which the Jacobians of the layers are taken, evenly spaced.
JACOBIAN_POINTS = 16


@dataclass(frozen=True, eq=False)
class NonNegativity:
    """What σ does to the pre-activations of each layer, and what the norm of each layer exceeds the rank by.

    Attributes
    ----------
    negative_count : Tensor (L − 1,)
        Share of the entries of α̃_ℓ(X) that are negative, ℓ = 1 … L − 1.
    negative_share : Tensor (L − 1,)
        Their size, ‖[α̃_ℓ]₋‖²/‖α̃_ℓ‖²; 0 where α̃_ℓ vanishes.
    change : Tensor (L − 1,)
        ‖σ(α̃_ℓ) − α̃_ℓ‖/‖α̃_ℓ‖: 0 where the layer's activation does nothing.
    rank : int or None
        k, as given.
    excess : Tensor (L,)
        ‖W_ℓ‖² + ‖b_ℓ‖² − k, ℓ = 1 … L; they add up to ‖θ‖² − kL. NaN without a rank.
    R1, R1_below : Tensor (L,)
        ‖θ_{≤ℓ}‖² − kℓ, the sum of the first ℓ of them, and 2 log(s_1 ⋯ s_k) of Jα̃_ℓ(x), the largest over some samples:
        R(α̃_ℓ; Ω, ℓ) − kℓ, which tends to R1(α̃_ℓ; Ω), lies between. NaN without a rank.
    """

    negative_count: Tensor
    negative_share: Tensor
    change: Tensor
    rank: int | None
    excess: Tensor
    R1: Tensor
    R1_below: Tensor

    def to_dict(self) -> dict[str, Any]:
        """Plain data, layer by layer; what is not finite is null."""
        names = ("negative_count", "negative_share", "change", "excess", "R1", "R1_below")
        columns = {name: getattr(self, name).tolist() for name in names}
        rows = [
            {name: _number(values[ell]) if ell < len(values) else None for name, values in columns.items()}
            for ell in range(len(self.excess))
        ]
        return {"rank": self.rank, "layers": [{"layer": ell + 1, **row} for ell, row in enumerate(rows)]}


@cites("bottleneck2023", "§3.3", ids=("Q-nonneg",))
@torch.no_grad()
def nonnegativity(trace: Trace, *, rank: int | None = None) -> NonNegativity:
    """Share and size of the negative pre-activations of each layer, and ‖W_ℓ‖² + ‖b_ℓ‖² − k.

    Inside the bottleneck of a deep network of minimal norm σ(α̃_ℓ) = α̃_ℓ up to small terms, and R1 adds up along the
    path, R1(f) = R1(α̃_ℓ) + R1(σ(α̃_ℓ) → f), so that R1(id; α̃_ℓ) → 0: a layer costs ‖W_ℓ‖² + ‖b_ℓ‖² = k + O(1/L). Minima
    are balanced, so that the excess is shared by all layers, those at the ends too; the signs tell the inside apart.

    Parameters
    ----------
    trace : Trace
    rank : int, optional
        k, for example that of :func:`~isthmus.measures.bottleneck_rank`.
    """
    if rank is not None:
        check_integer("nonnegativity", "rank", rank, low=0, high=min(trace.dims))
    counts, shares, changes = [], [], []
    for ell, Z in enumerate(trace.preactivations[:-1], start=1):
        size, (count, share) = float(Z.norm()), negative_part(Z)
        counts.append(count)
        shares.append(share)
        changes.append(float((trace.activations[ell] - Z).norm()) / size if size > 0 else 0.0)
    norms = parameter_norms(trace)
    excess = norms.layers - (math.nan if rank is None else rank)
    below = torch.full_like(excess, math.nan) if rank is None else _log_products(trace, rank)
    count, share, change = (torch.tensor(values, dtype=torch.float64) for values in (counts, shares, changes))
    return NonNegativity(count, share, change, rank, excess, excess.cumsum(0), below)


def negative_part(Z: Tensor) -> tuple[float, float]:
    """Share of the entries of Z that are negative, and their size ‖[Z]₋‖²/‖Z‖²; NaN if Z is empty or not finite."""
    if Z.numel() == 0:
        return math.nan, math.nan
    scale = float(Z.abs().max())
    if not math.isfinite(scale):
        return math.nan, math.nan
    # Squares of very small or large entries leave the range of numbers: scale first.
    part = Z.double() / (scale or 1.0)
    whole = float(part.square().sum())
    return float((Z < 0).double().mean()), float(part.clamp_max(0.0).square().sum()) / (whole or 1.0)


def _log_products(trace: Trace, rank: int) -> Tensor:
    """2 log(s_1 ⋯ s_k) of Jα̃_ℓ(x), the largest over some samples, ℓ = 1 … L; −∞ where the Jacobian has less rank."""
    rows = torch.linspace(0, trace.samples - 1, min(trace.samples, JACOBIAN_POINTS)).long().unique()
    J = trace.Ws[0].double().expand(len(rows), -1, -1)
    found = []
    for ell in range(1, trace.depth + 1):
        if ell > 1:
            J = trace.Ws[ell - 1].double() @ (trace.derivative(ell - 1)[rows, :, None].double() * J)
        found.append(2.0 * torch.linalg.svdvals(J)[:, :rank].log().sum(1).max())
    return torch.stack(found)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
