"""Q-geodesic: representations up to rotation, K_ℓ = α̃_ℓᵀα̃_ℓ, through depth; planarity; the linear geodesic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus._checks import as_matrix, check_integer, check_number, fail
from isthmus._cite import cites
from isthmus.linalg import rank_tolerance, svd
from isthmus.trace import Trace


@cites("bottleneck2023", "§3.3", ids=("Q-geodesic",))
@cites("talk2023", "Representation geodesics", ids=("Q-geodesic",))
@torch.no_grad()
def kernels(trace: Trace) -> Iterator[Tensor]:
    """K_ℓ(x, y) = α̃_ℓ(x)ᵀα̃_ℓ(y) for ℓ = 0 … L, one (N, N) matrix at a time; K_0 is that of the inputs.

    An iterator: a caller who keeps none holds one matrix. :func:`kernel_path` needs no (N, N) matrix at all.
    """
    for ell in range(trace.depth + 1):
        Z = trace.Z(ell).double()
        yield Z.mT @ Z


@dataclass(frozen=True, eq=False)
class KernelPath:
    """How the kernels move through depth, measured without forming them.

    Attributes
    ----------
    norms : Tensor (L + 1,)
        ‖K_ℓ‖_F, ℓ = 0 … L.
    steps : Tensor (L,)
        ‖K_ℓ − K_{ℓ-1}‖_F: 0 where layers only rotate.
    alignments : Tensor (L,)
        ⟨K_ℓ, K_{ℓ-1}⟩ / (‖K_ℓ‖‖K_{ℓ-1}‖) ∈ [0, 1]; NaN beside a kernel that vanishes.
    """

    norms: Tensor
    steps: Tensor
    alignments: Tensor


@cites("bottleneck2023", "§3.3", ids=("Q-geodesic",))
@torch.no_grad()
def kernel_path(trace: Trace) -> KernelPath:
    """Norms ‖K_ℓ‖, steps ‖K_ℓ − K_{ℓ-1}‖ and alignments of consecutive kernels, in O(N·n + n²) memory.

    With [Z_{ℓ-1}ᵀ Z_ℓᵀ] = Q[R' R], K_ℓ − K_{ℓ-1} is RRᵀ − R'R'ᵀ up to rotation: no difference of large traces, so
    that a small step keeps its digits.
    """
    norms, steps, alignments = [], [], []
    for ell in range(trace.depth + 1):
        Z = trace.Z(ell).double().mT
        norms.append((Z.mT @ Z if Z.shape[1] < Z.shape[0] else Z @ Z.mT).norm())
        if ell:
            before = trace.Z(ell - 1).double().mT
            R = torch.linalg.qr(torch.cat([before, Z], dim=1), mode="r").R
            old, new = (part @ part.mT for part in R.split([before.shape[1], Z.shape[1]], dim=1))
            steps.append((new - old).norm())
            alignments.append((new * old).sum() / (norms[-1] * norms[-2]))
    return KernelPath(torch.stack(norms), torch.stack(steps), torch.stack(alignments))


@cites("bottleneck2023", "§3.3, Prop. 5", ids=("Q-geodesic",))
def planarity(Z: Any, k: int, *, affine: bool = False) -> float:
    """Share outside the best k-plane, Σ_{i>k} sᵢ² / Σ sᵢ²: 0 when the span of the points is k-dimensional.

    Parameters
    ----------
    Z : array (N, n)
        Points as rows.
    k : int
        Dimension of the plane, ≥ 0; k ≥ n gives 0.
    affine : bool, default False
        The paper's planes pass through 0. True takes the best plane anywhere: through the mean.

    Notes
    -----
    0 when the points all vanish (or, with ``affine``, coincide).
    """
    points = as_matrix("planarity", "Z", Z)
    check_integer("planarity", "k", k, low=0)
    size = points.abs().amax()
    # Squares of very small or large coordinates leave the range of float64: scale first.
    points = points / torch.where(size > 0, size, torch.ones_like(size))
    rounding = 0.0
    if affine:
        # Centring leaves rounding of the size of the mean, which is no direction of the points.
        rounding = float(points.mean(0).norm()) * torch.finfo(torch.float64).eps * len(points)
        points = points - points.mean(0)
    if points.shape[0] > 2 * points.shape[1]:
        points = torch.linalg.qr(points, mode="r").R
    square = torch.linalg.svdvals(points).square()
    total = float(square.sum())
    return float(square[k:].sum()) / total if total > rounding**2 else 0.0


@cites("bottleneck2023", "§3.1", ids=("Q-geodesic",))
@cites("features2022", "§3.1 (2)", ids=("Q-geodesic",))
def linear_representation(A: Any, X: Any, share: float) -> Tensor:
    """Rows X(AᵀA)^{t/2} in the basis of A's right singular vectors: F with FFᵀ = X(AᵀA)^t Xᵀ, (N, Rank A).

    The representation, up to rotation, that the least-norm linear network of the map A has at layer ℓ of L, t = ℓ/L.

    Parameters
    ----------
    A : array (d_out, d_in)
        The map x ↦ Ax.
    X : array (N, d_in)
        Inputs as rows.
    share : float in [0, 1]
        t = ℓ/L. At 0 it is the limit t → 0: X projected onto Im Aᵀ, which is X itself when A is injective.
    """
    who = "linear_representation"
    t = check_number(who, "share", share, low=0.0, high=1.0)
    M = as_matrix(who, "A", A)
    inputs = as_matrix(who, "X", X, columns=M.shape[1])
    _, s, Vh = svd(M)
    kept = s > rank_tolerance(s, (M.shape[0], M.shape[1]))
    return inputs @ Vh[kept].mT * s[kept] ** t


@cites("bottleneck2023", "§3.1", ids=("Q-geodesic",))
def linear_kernel(A: Any, X: Any, share: float, Y: Any = None) -> Tensor:
    """Σ_ℓ(x, y) = xᵀ(AᵀA)^{ℓ/L} y for rows x of X and y of Y (X by default), (N_x, N_y); ``share`` = ℓ/L."""
    left = linear_representation(A, X, share)
    right = left if Y is None else linear_representation(A, Y, share)
    return left @ right.mT


@cites("features2022", "§3.1 (2)", ids=("Q-geodesic",))
def linear_geodesic(X: Any, Z: Any, share: float) -> Tensor:
    """Z_ℓᵀZ_ℓ = Xᵀ(X^{-T} Z_LᵀZ_L X^{-1})^{ℓ/L} X: kernel between inputs X and outputs Z of a linear network, (N, N).

    Parameters
    ----------
    X : array (N, d_in)
        Inputs as rows; X⁺ takes the place of X^{-1} when X is not invertible (features2022 assumes that it is).
    Z : array (N, d_out)
        Outputs as rows: a linear function of the inputs, or the formula means nothing and this fails.
    share : float in [0, 1]
        ℓ/L, as in :func:`linear_representation`.
    """
    who = "linear_geodesic"
    inputs, outputs = as_matrix(who, "X", X), as_matrix(who, "Z", Z)
    if len(inputs) != len(outputs):
        got = f"{len(inputs)} and {len(outputs)}"
        fail(who, "`X` and `Z` must have the same number of rows", got, "Pass one row for each sample.")
    U, s, Vh = svd(inputs)
    kept = s > rank_tolerance(s, (inputs.shape[0], inputs.shape[1]))
    A = ((Vh[kept].mT / s[kept]) @ (U[:, kept].mT @ outputs)).mT
    left_over = float((inputs @ A.mT - outputs).norm() / outputs.norm().clamp_min(torch.finfo(torch.float64).tiny))
    condition = float(s[0] / s[kept][-1]) if bool(kept.any()) else 1.0
    if left_over > 1e-12 * condition * max(inputs.shape):
        fail(
            who,
            "`Z` must be a linear function of `X`",
            f"a share {left_over:.3g} of Z that no linear map of X gives",
            "Centre both if the map is affine; a non-linear network has no such formula.",
        )
    return linear_kernel(A, inputs, share)
