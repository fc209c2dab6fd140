"""Norms ‖M‖²_{K+γI} = Tr[M(K+γI)⁻¹Mᵀ] for K = SᵀS, without forming K or any inverse."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from isthmus._checks import check_number, fail
from isthmus._errors import DataError
from isthmus.linalg import rank_tolerance, thin_svd


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
    """

    def __init__(self, S: Tensor, *, eps: float | None = None) -> None:
        if S.ndim != 2:
            fail("KernelNorm", "`S` must be a matrix", f"shape {tuple(S.shape)}", "Pass neurons × samples.")
        if not bool(torch.isfinite(S).all()):
            got = f"{int((~torch.isfinite(S)).sum())} NaN or infinite of {S.numel()} values"
            fail("KernelNorm", "`S` must be finite", got, "Check the network and its inputs.", error=DataError)
        self.S = S.double()
        self.U, self.s, self.Vh = thin_svd(self.S)
        self.eps = torch.finfo(torch.float64).eps if eps is None else eps

    @property
    def top(self) -> float:
        """‖K‖_op = s₁²."""
        return float(self.s[0] ** 2) if len(self.s) else 0.0

    @property
    def rank(self) -> int:
        """Singular values of S above rounding."""
        return int((self.s > rank_tolerance(self.s, (self.S.shape[0], self.S.shape[1]), eps=self.eps)).sum())

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
        return float(((C * D).sum(0)[:r] / self.s[:r] ** 2).sum())

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
