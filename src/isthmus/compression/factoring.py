"""Low-rank factoring of a weight where it saves parameters, best for the data that it sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from isthmus._checks import as_tensor, check_integer, check_number, fail
from isthmus.linalg import matrix, thin_svd
from isthmus.measures.kernel_norms import fewer_columns


@dataclass(frozen=True, eq=False)
class Factors:
    """W ≈ A·B with r columns and rows, AᵀA = BBᵀ; A(Bx) + b in place of Wx + b.

    Attributes
    ----------
    A, B : Tensor (m, r), (r, n)
    b : Tensor (m,) or None
        What is added; changed by the mean of what was left out.
    rank : int
    error : float
        ‖(W − AB)S + …‖ / ‖W S‖ over the data, after the best constant if there are biases.
    """

    A: Tensor
    B: Tensor
    b: Tensor | None
    rank: int
    error: float


def saves(m: int, n: int, rank: int) -> bool:
    """Whether r(m + n) < mn."""
    return rank * (m + n) < m * n


def most_rank(m: int, n: int) -> int:
    """The largest r with r(m + n) < mn; 0 if there is none."""
    return max(0, (m * n - 1) // (m + n))


def factor(
    W: Any, S: Any, b: Any = None, *, rank: int | None = None, tolerance: float | None = None, offset: bool = True
) -> Factors | None:
    """The best W_r = A·B of rank r in ‖(W − W_r)S‖, or None where r(m + n) ≥ mn.

    With WS = UΣVᵀ the best is U_rU_rᵀW: the data's second moments SSᵀ decide what may be left out, not the singular
    values of W. The factors are balanced: A = P√s, B = √sQᵀ from W_r = PsQᵀ, of the least norm.

    Parameters
    ----------
    W : array (m, n)
    S : array (n, N)
        Activations before W, samples as columns.
    b : array (m,), optional
        What is added to W·S, corrected by the mean of (W − W_r)S if ``offset``.
    rank : int, optional
        r; otherwise ``tolerance`` is needed.
    tolerance : float, optional
        The least r whose relative error over the data is at most this.
    offset : bool
        Whether a constant may be moved into ``b``. False without ``b``.
    """
    who = "factor"
    M, A = matrix(who, "W", W), matrix(who, "S", S)
    m, n = M.shape
    if A.shape[0] != n:
        fail(who, f"`S` must have {n} rows, one for each column of `W`", tuple(A.shape), "Pass samples as columns.")
    if (rank is None) == (tolerance is None):
        fail(who, "one of `rank` and `tolerance` must be given", (rank, tolerance), "Pass one of them.")
    shift = None if b is None else as_tensor(who, "b", b)
    moved = offset and shift is not None
    mean = A.mean(1) if moved else A.new_zeros(n)
    # Inner products over samples are all that counts: as many columns as neurons hold them.
    R = fewer_columns([A - mean[:, None]])
    U, s, _ = thin_svd(M @ R)
    whole = float(s.norm())
    tails = s.square().flip(0).cumsum(0).flip(0).sqrt()
    if rank is not None:
        r = check_integer(who, "rank", rank, low=1, high=min(m, n))
    else:
        allowed = check_number(who, "tolerance", tolerance, low=0.0) * whole
        # tails[r] is what r values leave out.
        r = max(1, int((tails > allowed).sum()))
    r = min(r, len(s))
    if not saves(m, n, r):
        return None
    left = U[:, :r]
    P, t, Qh = thin_svd(left.mT @ M)
    root = t.sqrt()
    first, second = (left @ P) * root, root[:, None] * Qh
    if moved:
        assert shift is not None
        shift = shift + (M - first @ second) @ mean
    error = float(tails[r]) / whole if r < len(s) and whole > 0 else 0.0
    return Factors(first, second, shift, r, error)
