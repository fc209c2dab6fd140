"""Q-spectra: singular values of weights and representations, and effective dimensions of a spectrum."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus._checks import as_tensor, check_choice, check_integer, fail
from isthmus._cite import cites
from isthmus._deprecations import renamed
from isthmus._errors import DataError
from isthmus.linalg import CHUNK_BYTES, chunk_rows
from isthmus.trace import Layered, Trace


@cites("bottleneck2023", "Fig. 1b", ids=("Q-spectra",))
@torch.no_grad()
def weight_spectra(net: Layered) -> list[Tensor]:
    """Singular values of W_1 … W_L, decreasing, in float64."""
    for ell, W in enumerate(net.Ws, start=1):
        if not bool(torch.isfinite(W).all()):
            fail(
                "weight_spectra",
                "weights must be finite",
                f"NaN or infinite entries in W_{ell}",
                "Replace them.",
                error=DataError,
            )
    return [torch.linalg.svdvals(W.detach().double()) for W in net.Ws]


@cites("rank2023", "Fig. 1A", ids=("Q-spectra",))
@torch.no_grad()
@renamed(of="kind")
def representation_spectra(trace: Trace, *, centered: bool = True, kind: str = "preactivations") -> list[Tensor]:
    """Singular values of the representations divided by √N, decreasing.

    Parameters
    ----------
    trace : Trace
        Of a network on data.
    centered : bool, default True
        Subtract the mean over samples: a direction that is constant over the data stands in for a bias and is
        not a dimension of the representation.
    kind : {"preactivations", "activations"}
        α̃_1 … α̃_L, or α_0 … α_{L-1}.

    Returns
    -------
    list of Tensor (min(N, n_ℓ),)

    Notes
    -----
    For N > n the values come from a QR factor (n × n), never from the covariance, whose square roots would
    put a floor at √eps on small singular values.
    """
    check_choice("representation_spectra", "kind", kind, ("preactivations", "activations"))
    return [_spectrum(A, centered) for A in getattr(trace, kind)]


def _spectrum(A: Tensor, centered: bool) -> Tensor:
    A = A.double()
    samples = A.shape[0]
    if centered:
        A = A - A.mean(0)
    if samples > 2 * A.shape[1]:
        A = torch.linalg.qr(A, mode="r").R
    return torch.linalg.svdvals(A) / samples**0.5


def _spectrum_in(who: str, s: Any) -> Tensor:
    values = as_tensor(who, "s", s)
    if values.ndim == 0 or values.shape[-1] == 0 or bool((values < 0).any()):
        fail(
            who,
            "`s` must be a non-empty array of singular values ≥ 0",
            f"shape {tuple(values.shape)}",
            "Pass s(A).",
        )
    return values


def participation_ratio(s: Any) -> Tensor:
    """(Σs²)² / Σs⁴: the number of directions that carry the variance; 0 for a zero spectrum.

    Parameters
    ----------
    s : array (..., r)
        Singular values, in any order.
    """
    square = _spectrum_in("participation_ratio", s).square()
    # Dividing by the largest first keeps s⁴ from under- or overflowing.
    top = square.amax(-1, keepdim=True)
    square = square / torch.where(top > 0, top, torch.ones_like(top))
    total = square.sum(-1)
    return total.square() / square.square().sum(-1).clamp_min(torch.finfo(square.dtype).tiny)


def stable_rank(s: Any) -> Tensor:
    """‖A‖²_F / ‖A‖²_op = Σs² / s₁²; 0 for a zero spectrum.

    Parameters
    ----------
    s : array (..., r)
        Singular values, in any order.
    """
    values = _spectrum_in("stable_rank", s)
    top = values.amax(-1, keepdim=True)
    return (values / torch.where(top > 0, top, torch.ones_like(top))).square().sum(-1)


# ---- Singular values of matrices of any size: exact while that is quick, beyond that the largest, with error bounds


#: Smaller side up to which all singular values are computed. On one thread an SVD of 2048² takes 3–4 s and grows with
#: the cube (4096²: half a minute; the 128 largest by random projection: 5 s), and a network has many layers.
EXACT_UP_TO = 2048

#: Round-off of the Gram matrix and its eigenvalues in units of √n · eps · s₁²; of many sizes tried the worst had 2.
GRAM_ROUNDING = 8.0

#: The Gram matrix is two to three times as fast as an SVD; its values are kept where their error, relative to s₁, is at
#: most this: a hundredth of what float32 weights carry themselves.
GRAM_ACCURACY = 1e-9

#: Below this size an SVD takes no time.
GRAM_FROM = 32

#: A tail norm is underestimated with probability at most FACTOR ** -PROBES (Halko, Martinsson, Tropp 2011, Lemma 4.1).
FACTOR, PROBES = 10.0, 10

#: Products with TᵀT before the lengths are read: the estimate is then too large by a factor near (8√n)^(1/25) ≈ 1.3.
TAIL_POWER = 12


@dataclass(frozen=True)
class Operator:
    """A matrix A (m, n) known by its products X ↦ A X and Y ↦ Aᵀ Y, on float64 tensors with columns."""

    shape: tuple[int, int]
    apply: Callable[[Tensor], Tensor]
    apply_transposed: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LargeSpectrum:
    """Singular values of a matrix and how far they can be trusted.

    Attributes
    ----------
    values : Tensor (r,)
        Decreasing; all min(m, n) of them, or the k largest.
    error : Tensor (r,)
        Bound on |sᵢ − ŝᵢ|. ``"randomised"``: max(τ − ŝᵢ, 0) + ‖A V − U Ŝ‖ with τ = ``tail_norm``, and rounding.
    residual : Tensor (r,)
        ‖A v − ŝ u‖ and ‖Aᵀu − ŝ v‖ over √2: within this distance of ŝᵢ lies *some* singular value of A (or 0).
    method : {"exact", "randomised", "not computed"}
    norm : float
        ‖A‖_F.
    tail_norm : float
        Bound on ‖A(I − VVᵀ)‖: no singular value that was left out is larger. Too small with probability at most
        10⁻¹⁰; 0 when exact.
    tail_mass : float
        (‖A‖²_F − Σŝ²)^½, what the values shown do not account for; below 1e-8 ‖A‖_F it is rounding.
    note : str
        Why nothing was computed, or what the numbers are.
    """

    values: Tensor
    error: Tensor
    residual: Tensor
    method: str
    norm: float
    tail_norm: float
    tail_mass: float
    note: str


@torch.no_grad()
def large_spectrum(
    A: Tensor | Operator,
    k: int = 128,
    *,
    exact_up_to: int = EXACT_UP_TO,
    oversampling: int = 32,
    power_iterations: int = 4,
    seed: int = 0,
) -> LargeSpectrum:
    """s₁ ≥ s₂ ≥ … of A: all if min(m, n) ≤ ``exact_up_to``, else the k largest by randomised subspace iteration.

    Parameters
    ----------
    A : Tensor (m, n) or Operator
        Of any real floating dtype; read in float64, a bounded number of rows at a time.
    k : int, default 128
        How many values to compute beyond ``exact_up_to``.
    oversampling, power_iterations : int
        Extra random directions, and passes A Aᵀ that sharpen them. More of either: smaller ``error``.
    seed : int, default 0
        Of the random directions.

    Notes
    -----
    Exact: square roots of the eigenvalues of the Gram matrix, kept only where their error, of order eps · s₁²/s, stays
    within 1e-9 · s₁ for every value (it is in ``error``); otherwise, and for small matrices, an SVD (of the QR factor
    of a long one).

    Non-finite entries give the method ``"not computed"``, never an error.
    """
    who = "large_spectrum"
    for name, value, low in (
        ("k", k, 1),
        ("exact_up_to", exact_up_to, 0),
        ("oversampling", oversampling, 2),
        ("power_iterations", power_iterations, 0),
    ):
        check_integer(who, name, value, low=low)
    if isinstance(A, Tensor) and (A.ndim != 2 or not A.is_floating_point()):
        fail(who, "`A` must be a real matrix", f"shape {tuple(A.shape)}, {A.dtype}", "Flatten or convert it.")
    m, n = A.shape
    small = min(m, n) <= exact_up_to
    if isinstance(A, Operator):
        if small or k + oversampling >= min(m, n):
            identity = torch.eye(min(m, n), dtype=torch.float64)
            A = A.apply(identity) if n <= m else A.apply_transposed(identity).mT
        else:
            norm = _operator_norm(A)
            return _randomised(_divided(A, norm or 1.0), 1.0, norm, k, oversampling, power_iterations, seed)
    if 0 in A.shape:
        none = torch.empty(0, dtype=torch.float64)
        return LargeSpectrum(none, none, none, "exact", 0.0, 0.0, 0.0, "")
    largest, bad = 0.0, 0
    for rows in _rows(A):
        bad += int((~torch.isfinite(rows)).sum())
        largest = max(largest, float(rows.abs().max()))
    if bad:
        return _not_computed(f"{bad} non-finite entries")
    # A power of two near the largest entry: squares neither over- nor underflow, and dividing by it is exact.
    scale = math.ldexp(1.0, math.frexp(largest)[1] - 1) if largest > 0 else 1.0
    norm = math.sqrt(sum(float((rows / scale).square().sum()) for rows in _rows(A)))
    if small or k + oversampling >= min(m, n):
        s, error = _exact(A, scale)
        return LargeSpectrum(s * scale, error * scale, error * scale, "exact", norm * scale, 0.0, 0.0, "")
    return _randomised(_chunked(A, scale), norm, scale, k, oversampling, power_iterations, seed)


def _not_computed(why: str) -> LargeSpectrum:
    none = torch.empty(0, dtype=torch.float64)
    return LargeSpectrum(none, none, none, "not computed", math.nan, math.nan, math.nan, f"not computed: {why}")


def _rows(A: Tensor) -> Iterator[Tensor]:
    """A in float64, a bounded number of rows at a time."""
    for rows in A.detach().split(chunk_rows(len(A), 8.0 * A.shape[1])):
        yield rows.to("cpu", torch.float64)


def _chunked(A: Tensor, scale: float) -> Operator:
    def apply(X: Tensor) -> Tensor:
        return torch.cat([rows @ X for rows in _rows(A)]) / scale

    def apply_transposed(Y: Tensor) -> Tensor:
        pieces = Y.split(chunk_rows(len(A), 8.0 * A.shape[1]))
        out = torch.zeros(A.shape[1], Y.shape[1], dtype=torch.float64)
        for rows, piece in zip(_rows(A), pieces):
            out += rows.mT @ piece
        return out / scale

    return Operator((A.shape[0], A.shape[1]), apply, apply_transposed)


def _divided(A: Operator, by: float) -> Operator:
    return Operator(A.shape, lambda X: A.apply(X) / by, lambda Y: A.apply_transposed(Y) / by)


def _operator_norm(A: Operator) -> float:
    """‖A‖_F from the products with the unit vectors, some at a time."""
    m, n = A.shape
    total, step = 0.0, chunk_rows(n, 8.0 * (m + n), CHUNK_BYTES)
    for start in range(0, n, step):
        E = torch.zeros(n, min(step, n - start), dtype=torch.float64)
        E[start : start + step].fill_diagonal_(1.0)
        total += float(A.apply(E).square().sum())
    return math.sqrt(total)


def _exact(A: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """All singular values of A / scale, and bounds on their errors."""
    if A.shape[0] < A.shape[1]:
        A = A.mT
    m, n = A.shape
    eps = torch.finfo(torch.float64).eps
    if n >= GRAM_FROM:
        gram = torch.zeros(n, n, dtype=torch.float64)
        for rows in _rows(A):
            rows = rows / scale
            gram += rows.mT @ rows
        s = torch.linalg.eigvalsh(gram).flip(0).clamp_min(0).sqrt()
        # |δ(s²)| ≤ c √n eps s₁² and δ(s²) = 2 s δs.
        rounding = GRAM_ROUNDING * math.sqrt(n) * eps * float(s[0]) ** 2
        if 0 < rounding <= 2 * GRAM_ACCURACY * float(s[0]) * float(s[-1]):
            return s, rounding / (2 * s)
    if m < 1.5 * n:
        s = torch.linalg.svdvals(A.to("cpu", torch.float64) / scale)
    else:
        R = torch.zeros(0, n, dtype=torch.float64)
        for rows in _rows(A):
            R = torch.linalg.qr(torch.cat([R, rows / scale]), mode="r").R
        s = torch.linalg.svdvals(R)
    return s, torch.full_like(s, m * eps * float(s[0]))


def _randomised(
    A: Operator, norm: float, scale: float, k: int, oversampling: int, power_iterations: int, seed: int
) -> LargeSpectrum:
    """The k largest by subspace iteration, of an operator that was divided by ``scale``."""
    if not math.isfinite(norm * scale):
        return _not_computed("the products of the operator are not finite")
    m, n = A.shape
    generator = torch.Generator().manual_seed(seed)
    Q = _orthonormal(A.apply(torch.randn(n, k + oversampling, generator=generator, dtype=torch.float64)))
    for _ in range(power_iterations):
        # A QR after every product: without it all columns would turn to the first singular vector.
        Q = _orthonormal(A.apply(_orthonormal(A.apply_transposed(Q))))
    V, s, Wh = torch.linalg.svd(A.apply_transposed(Q), full_matrices=False)
    U, s, V = Q @ Wh[:k].mT, s[:k], V[:, :k]
    missed = A.apply(V) - U * s
    other = A.apply_transposed(U) - V * s
    tail = _tail_norm(A, V, norm, generator)
    rounding = max(m, n) * torch.finfo(s.dtype).eps * s[0]
    # With Aᵀ U = V Ŝ the columns of U Ŝ and of A(I − VVᵀ) are orthogonal: A without the part it misses has the singular
    # values ŝ and others below the tail, and what it misses moves each by at most its norm (Weyl).
    error = (tail - s).clamp_min(0) + torch.linalg.matrix_norm(missed, 2) + rounding
    residual = ((missed.square().sum(0) + other.square().sum(0)) / 2).sqrt() + rounding
    return LargeSpectrum(
        values=s * scale,
        error=error * scale,
        residual=residual * scale,
        method="randomised",
        norm=norm * scale,
        tail_norm=tail * scale,
        tail_mass=math.sqrt(max(norm**2 - float(s.square().sum()), 0.0)) * scale,
        note=f"the {k} largest of {min(m, n)} by random projection; the rest has Frobenius norm `tail_mass`",
    )


def _orthonormal(Y: Tensor) -> Tensor:
    return torch.linalg.qr(Y).Q


def _tail_norm(A: Operator, V: Tensor, norm: float, generator: torch.Generator) -> float:
    """Bound on ‖T‖ for T = A(I − VVᵀ), from the lengths of T(TᵀT)^q ω.

    For r Gaussian ω, ‖M‖ ≤ α √(2/π) max‖M ω‖ fails with probability at most α^(−r). M = T(TᵀT)^q has the norm
    ‖T‖^(2q+1): the root brings the factor 8 near 1.
    """

    def project(X: Tensor) -> Tensor:
        return X - V @ (V.mT @ X)

    if norm == 0:
        return 0.0
    floor = torch.finfo(V.dtype).eps * norm
    X = project(torch.randn(A.shape[1], PROBES, generator=generator, dtype=torch.float64))
    log_lengths = torch.zeros(PROBES, dtype=torch.float64)
    for _ in range(TAIL_POWER):
        # Twice: a tail of rounding only is not orthogonal to V after its length was made 1.
        X = project(project(A.apply_transposed(A.apply(X))))
        lengths = X.norm(dim=0).clamp_min(floor**2)
        log_lengths += lengths.log()
        X = project(X / lengths)
    log_lengths += A.apply(X).norm(dim=0).clamp_min(floor).log()
    log_bound = math.log(FACTOR * math.sqrt(2 / math.pi)) + float(log_lengths.max())
    return min(math.exp(log_bound / (2 * TAIL_POWER + 1)), norm)
