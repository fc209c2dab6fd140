"""Norms ‖M‖²_{K+γI} = Tr[M(K+γI)⁻¹Mᵀ] for K = SᵀS, without forming K or any inverse."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus._checks import check_number, fail
from isthmus._cite import cites
from isthmus._errors import DataError
from isthmus.linalg import matrix, rank_tolerance, thin_svd
from isthmus.trace import LeakyTrace, Trace, activate, with_ones


class KernelNorm:
    """The norm of K = SᵀS (+ γI) for activations S of shape (n, N), samples as columns.

    From the thin SVD S = UsVᵀ, which works in the smaller of n and N: ‖M‖² = Σᵢ‖Mvᵢ‖²/(sᵢ²+γ) + ‖M−MVVᵀ‖²/γ. The part
    outside the image of K is formed itself and not as a difference of squares, and left out where it is rounding, so
    that a small γ does not amplify it.

    Parameters
    ----------
    S : Tensor (n, N)
    eps : float, optional
        Unit round-off of the data: singular values and remainders below it count as zero when γ = 0.
    cut : float, default 0
        Share of the largest singular value up to which the others count as zero when γ = 0, where that is more.
    """

    def __init__(self, S: Tensor, *, eps: float | None = None, cut: float = 0.0) -> None:
        if S.ndim != 2:
            fail("KernelNorm", "`S` must be a matrix", f"shape {tuple(S.shape)}", "Pass neurons × samples.")
        if not bool(torch.isfinite(S).all()):
            got = f"{int((~torch.isfinite(S)).sum())} NaN or infinite of {S.numel()} values"
            fail("KernelNorm", "`S` must be finite", got, "Check the network and its inputs.", error=DataError)
        self.S = S.double()
        self.U, self.s, self.Vh = thin_svd(self.S)
        self.eps = torch.finfo(torch.float64).eps if eps is None else eps
        self.cut = cut

    @property
    def top(self) -> float:
        """‖K‖_op = s₁²."""
        return float(self.s[0] ** 2) if len(self.s) else 0.0

    @property
    def rank(self) -> int:
        """Singular values of S above rounding, and above the cut."""
        noise = rank_tolerance(self.s, (self.S.shape[0], self.S.shape[1]), eps=self.eps)
        return int((self.s > torch.maximum(noise, self.cut * self.s[:1])).sum())

    def square(self, M: Tensor, gamma: float = 0.0) -> float:
        """‖M‖²_{K+γI}; for γ = 0 it is ∞ when the rows of M do not lie in the image of K."""
        return self.product(M, M, gamma)

    def split(self, M: Tensor) -> tuple[Tensor, Tensor]:
        """MV and M − MVVᵀ; what of both lies outside the image of K is zero where it is rounding.

        M in the image leaves rounding there, which a small γ would blow up. It is that of the arithmetic: for γ > 0 the
        singular values of data of any precision are taken as they are.
        """
        whole = M.double()
        C = whole @ self.Vh.mT
        P = whole - C @ self.Vh
        eps = torch.finfo(torch.float64).eps
        r = int((self.s > rank_tolerance(self.s, (self.S.shape[0], self.S.shape[1]), eps=eps)).sum())
        outside = math.hypot(float(C[:, r:].norm()), float(P.norm()))
        if outside <= 10 * max(self.S.shape) * eps * float(whole.norm()):
            C[:, r:] = 0.0
            P.zero_()
        return C, P

    def product(self, M: Tensor, other: Tensor, gamma: float = 0.0) -> float:
        """⟨M, M'⟩_{K+γI} = Tr[M(K+γI)⁻¹M'ᵀ]; NaN for γ = 0 when one of them does not lie in the image of K."""
        check_number("KernelNorm", "gamma", gamma, low=0.0)
        if gamma > 0.0:
            (C, P), (D, Q) = self.split(M), self.split(other)
            inside = float(((C * D).sum(0) / (self.s**2 + gamma)).sum())
            return inside + float((P * Q).sum()) / gamma
        first, second = M.double(), other.double()
        C, D = first @ self.Vh.mT, second @ self.Vh.mT
        P, Q = first - C @ self.Vh, second - D @ self.Vh
        r = self.rank
        for whole, kept, rest in ((first, C, P), (second, D, Q)):
            outside = math.hypot(float(kept[:, r:].norm()), float(rest.norm()))
            if outside > self.tolerance * float(whole.norm()):
                return math.inf if M is other else math.nan
        # Each by s, not the product by s²: activations of 1e-200 have no square.
        return float(((C[:, :r] / self.s[:r]) * (D[:, :r] / self.s[:r])).sum())

    @property
    def tolerance(self) -> float:
        """Share of ‖M‖ outside the image that is rounding."""
        # The directions of a singular value near the cut are known to eps·s₁/s only.
        r = self.rank
        spread = float(self.s[0] / self.s[r - 1]) if r else 1.0
        return min(1e-6, 10 * max(self.S.shape) * self.eps * max(spread, 1.0))

    def weights(self, M: Tensor) -> Tensor:
        """M S⁺, the smallest W with WS = M (least squares where there is none)."""
        r = self.rank
        return (M.double() @ self.Vh[:r].mT / self.s[:r]) @ self.U[:, :r].mT


def fewer_columns(matrices: Iterable[Tensor], before: Tensor | None = None) -> Tensor:
    """The R-factor, transposed, of matrices (m_i, N) stacked on one another: same inner products, ≤ Σm_i columns.

    Every K-norm depends on inner products over samples only, so that the columns may be rotated: R stands in for any
    number of samples. ``before`` is the result for earlier samples: samples can be streamed.
    """
    stacked = torch.cat([M.double() for M in matrices])
    if before is not None:
        stacked = torch.cat([before, stacked], 1)
    if stacked.shape[1] <= stacked.shape[0]:
        return stacked
    return torch.linalg.qr(stacked.mT, mode="r").R.mT


# ---- Q-coi: the cost of identity ‖A‖²_K, the norm of the smallest weights that rebuild a representation


#: γ_p as a share of ‖K_p‖_op, unless given.
GAMMA_SHARE = 1e-3


@cites("hamiltonian2024", "§1.3 and §1.4", ids=("Q-coi",))
def cost_of_identity(A: Any, *, gamma: float = 0.0, bias: float = 1.0, slope: float = 0.0) -> float:
    """‖A‖²_{K+γI} = Tr[A(K+γI)⁻¹Aᵀ] for K = σ(A)ᵀσ(A): the squared norm of the smallest W with Wσ(A) = A.

    Parameters
    ----------
    A : array (w, N)
        Samples as columns.
    gamma : float, default 0
        γ ≥ 0, absolute. 0 gives the cost itself: ∞ when the rows of A do not lie in the image of K.
    bias : float, default 1
        Amount of bias: 0 is the cost without bias, ‖A‖²_{K̄}.
    slope : float, default 0
        a of σ_a.

    Examples
    --------
    >>> round(cost_of_identity([[1.0, 2.0, 0.5], [2.0, 1.0, 0.0]], bias=0.0), 9)  # non-negative: the rank
    2.0
    """
    who = "cost_of_identity"
    M = matrix(who, "A", A)
    check_number(who, "gamma", gamma, low=0.0)
    return KernelNorm(with_ones(activate(M, slope), bias)).square(M, gamma)


@cites("hamiltonian2024", "Prop. 1", ids=("Q-coi",))
def identity_cost_bounds(A: Any) -> tuple[float, float]:
    """(‖A‖_*²/‖A‖_F², ‖A‖_F²/‖A‖_op²): lower bounds of the cost of identity *without bias*, the first the larger.

    With bias, or with γ > 0, they are not bounds. Both are 0 for A = 0.
    """
    s = torch.linalg.svdvals(matrix("identity_cost_bounds", "A", A))
    square = float((s**2).sum())
    if square == 0.0:
        return 0.0, 0.0
    return float(s.sum()) ** 2 / square, square / float(s.max()) ** 2


@dataclass(frozen=True)
class IdentityCosts:
    """Costs of identity of every representation of a network.

    Attributes
    ----------
    layers : tuple of int
        ℓ; for leaky ResNets 0 … L, for fully connected ones 1 … L−1 (pre-activations).
    cost : tuple of float
        Stable, with bias: ‖A‖²_{K+γI}; ∞ where K vanishes and A does not.
    without_bias : tuple of float
        Stable, ‖A‖²_{K̄+γI}.
    exact : tuple of float
        γ = 0, with bias; ∞ where the representation cannot be rebuilt.
    effective_dimension : tuple of float
        ‖A‖_*²/‖A‖_F².
    gamma : tuple of float
        γ_ℓ = ``gamma_share``·‖K_ℓ‖_op.
    """

    layers: tuple[int, ...]
    cost: tuple[float, ...]
    without_bias: tuple[float, ...]
    exact: tuple[float, ...]
    effective_dimension: tuple[float, ...]
    gamma: tuple[float, ...]


@cites("hamiltonian2024", "§2.1, γ_p", ids=("Q-coi",))
def identity_costs(trace: Trace | LeakyTrace, *, gamma_share: float = GAMMA_SHARE) -> IdentityCosts:
    """Costs of identity through depth, of a leaky ResNet or of a fully connected network (its pre-activations).

    Departs from the paper: γ_ℓ = γ₀‖K_ℓ‖_op, not its square (erratum).
    """
    check_number("identity_costs", "gamma_share", gamma_share, low=0.0, low_open=True)
    leaky = isinstance(trace, LeakyTrace)
    layers = range(trace.depth + 1) if leaky else range(1, trace.depth)
    rows: list[tuple[float, ...]] = []
    for ell in layers:
        A = trace.A(ell) if isinstance(trace, LeakyTrace) else trace.Z(ell)
        rows.append(_costs(A, trace.slope, trace.bias, gamma_share, trace.source_eps))
    columns = list(zip(*rows)) if rows else [()] * 5
    cost, without, exact, dimension, gamma = (tuple(column) for column in columns)
    return IdentityCosts(tuple(layers), cost, without, exact, dimension, gamma)


def _costs(A: Tensor, slope: float, bias: float, share: float, eps: float) -> tuple[float, ...]:
    S = with_ones(activate(A, slope), bias)
    # Rotated columns keep every inner product: enough for any number of samples.
    both = fewer_columns([S, A])
    S, M = both[: len(S)], both[len(S) :]
    norm = KernelNorm(S, eps=eps)
    gamma = share * norm.top
    bare = norm if bias == 0.0 else KernelNorm(S[:-1], eps=eps)
    # One γ for both, so that they can be compared. A kernel that vanishes leaves no scale for it: 0 if A does, else ∞.
    stable = norm.square(M, gamma), bare.square(M, gamma)
    return (*stable, norm.square(M), identity_cost_bounds(M)[0], gamma)
