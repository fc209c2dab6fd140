"""Linear algebra: SVD with fixed signs, numerical rank, pseudo-determinant."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from isthmus._checks import as_tensor, check_integer, check_number, fail

#: Bytes that a chunked computation may hold in one intermediate, unless given.
CHUNK_BYTES = 2**28
#: Of one product in a chain of them: about what the cache of a core holds.
CACHE_BYTES = 2**21


def matrix(who: str, name: str, value: Any) -> Tensor:
    """Return ``value`` as a finite float64 tensor with at least two axes, or fail."""
    tensor = as_tensor(who, name, value)
    if tensor.ndim < 2:
        fail(who, f"`{name}` must have at least 2 axes", f"shape {tuple(tensor.shape)}", "Pass a matrix.")
    return tensor


def singular_values(A: Any) -> Tensor:
    """Singular values in decreasing order, in float64.

    Parameters
    ----------
    A : array (..., m, n)
        One matrix or a stack.

    Returns
    -------
    Tensor (..., min(m, n))
    """
    return torch.linalg.svdvals(matrix("singular_values", "A", A))


def thin_svd(A: Tensor, *, full_matrices: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """``torch.linalg.svd``, by the slower, more robust QR iteration where divide and conquer does not converge.

    It fails on rare finite matrices, such as those with clusters of singular values near rounding.
    """
    try:
        return torch.linalg.svd(A, full_matrices=full_matrices)
    except torch.linalg.LinAlgError:  # pyright: ignore[reportPrivateImportUsage]
        if A.ndim != 2:
            raise
        from scipy.linalg import svd as by_scipy

        found = by_scipy(A.detach().cpu().numpy(), full_matrices=full_matrices, lapack_driver="gesvd")
        U, s, Vh = (torch.from_numpy(part).to(A.device) for part in found)
        return U, s, Vh


def svd(A: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Thin SVD with fixed signs: A = U · diag(s) · Vh, the largest entry of each row of Vh positive.

    The signs make results reproducible across LAPACK builds; repeated singular values leave a rotation free.
    """
    U, s, Vh = thin_svd(matrix("svd", "A", A))
    largest = Vh.abs().argmax(dim=-1, keepdim=True)
    sign = torch.gather(Vh, -1, largest).sign()
    sign = torch.where(sign == 0, torch.ones_like(sign), sign)
    return U * sign.mT, s, Vh * sign


def rank_tolerance(s: Tensor, shape: tuple[int, int], *, eps: float | None = None) -> Tensor:
    """Threshold below which a singular value is rounding: s₁ · max(m, n) · eps (the LAPACK convention).

    ``eps`` is the unit round-off of the *data*: a float32 network analysed in float64 still carries float32
    noise, so pass ``torch.finfo(torch.float32).eps`` for it.
    """
    unit = torch.finfo(s.dtype).eps if eps is None else eps
    return s[..., :1] * max(shape) * unit


def numerical_rank(A: Any, *, tolerance: float | None = None, eps: float | None = None) -> Tensor:
    """Number of singular values above ``tolerance`` (absolute), by default above rounding.

    Returns
    -------
    Tensor (...) of int64
    """
    M = matrix("numerical_rank", "A", A)
    s = torch.linalg.svdvals(M)
    if tolerance is None:
        return (s > rank_tolerance(s, (M.shape[-2], M.shape[-1]), eps=eps)).sum(-1)
    return (s > check_number("numerical_rank", "tolerance", tolerance, low=0.0)).sum(-1)


def log_pseudo_determinant(A: Any, *, rank: int | None = None) -> Tensor:
    """log|A|₊ = Σ log sᵢ(A) over the non-zero singular values, or over the ``rank`` largest.

    A matrix of numerical rank 0 has the empty product: log|A|₊ = 0. With ``rank`` given, a vanishing
    singular value among the first ``rank`` gives −∞, as the product is then 0.
    """
    M = matrix("log_pseudo_determinant", "A", A)
    s = torch.linalg.svdvals(M)
    if rank is not None:
        check_integer("log_pseudo_determinant", "rank", rank, low=0, high=s.shape[-1])
        return s[..., :rank].log().sum(-1)
    kept = s > rank_tolerance(s, (M.shape[-2], M.shape[-1]))
    return torch.where(kept, s, torch.ones_like(s)).log().sum(-1)


def schatten(A: Any, p: float) -> Tensor:
    """Σ sᵢ(A)^p: the p-th power of the Schatten quasi-norm, for p > 0."""
    check_number("schatten", "p", p, low=0.0, low_open=True)
    M = matrix("schatten", "A", A)
    s = torch.linalg.svdvals(M)
    # Rounding-level singular values count as zero: for small p they would each contribute nearly 1.
    kept = s > rank_tolerance(s, (M.shape[-2], M.shape[-1]))
    return torch.where(kept, s, torch.zeros_like(s)).pow(p).sum(-1)


def chunk_rows(rows: int, bytes_per_row: float, budget: int = CHUNK_BYTES) -> int:
    """Rows to process at a time so that an intermediate stays within ``budget`` bytes; at least 1."""
    return max(1, min(rows, math.floor(budget / max(bytes_per_row, 1.0))))
