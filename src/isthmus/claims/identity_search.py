"""Looking for representations of lower cost of identity: by scale, by deformation, by one more neuron."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.claims.samples import gaussian_inputs
from isthmus.measures.identity_cost import cost_of_identity
from isthmus.measures.kernel_norms import KernelNorm
from isthmus.trace import activate, with_ones

#: Random directions tried.
DRAWS = 64


def _inverse(A: Tensor) -> tuple[Tensor, Tensor]:
    """K⁺ and the projection to Im K, (N, N), for K with bias."""
    norm = KernelNorm(with_ones(activate(A, 0.0), 1.0))
    V = norm.Vh[: norm.rank].mT
    return (V / norm.s[: norm.rank] ** 2) @ V.mT, V @ V.mT


def scale_derivative(A: Tensor) -> float:
    """∂ log‖sA‖²_K/∂ log s at s = 1: 2‖AK⁺1‖²/‖A‖²_K; ∞ where the cost is."""
    cost = cost_of_identity(A)
    if cost == 0.0:
        return 0.0
    inverse, _ = _inverse(A)
    return 2.0 * float((A @ inverse.sum(1)).square().sum()) / cost if cost < float("inf") else float("inf")


def neuron_descent(A: Tensor) -> tuple[float, Tensor]:
    """The least zᵀK⁺z − σ̄(z)ᵀK⁺AᵀAK⁺σ̄(z) over tried z ∈ Im K of zᵀK⁺z = 1, and that z: ε² times it is the change.

    Where σ̄(z) leaves the image of K a new direction opens and only the first term is left. Tried are the columns of K̄
    (by which the paper proves non-negativity) with both signs, those of the projection to Im K, and random ones.
    """
    inverse, image = _inverse(A)
    S = activate(A, 0.0)
    bare = S.mT @ S
    tried = torch.cat([bare, -bare, image, -image, gaussian_inputs(DRAWS, A.shape[1], 5) @ image])
    tried = tried @ image
    sizes = (tried @ inverse * tried).sum(1)
    tried = tried[sizes > 1e-20] / sizes[sizes > 1e-20].sqrt()[:, None]
    active = activate(tried, 0.0)
    outside = (active - active @ image).norm(dim=1) > 1e-9 * active.norm(dim=1).clamp_min(1e-300)
    gained = (A @ inverse @ active.mT).square().sum(0)
    change = 1.0 - torch.where(outside, torch.zeros_like(gained), gained)
    best = int(change.argmin())
    return float(change[best]), tried[best]


def deformed(A: Tensor) -> float:
    """The least cost of identity among deformations A + εE of two sizes.

    E: each entry alone, random matrices with rows in Im K and without, and the negative part of A.
    """
    _, image = _inverse(A)
    w, N = A.shape
    size = float(A.norm())
    draws = gaussian_inputs(DRAWS * w, N, 6).reshape(DRAWS, w, N)
    alone = torch.eye(w * N, dtype=torch.float64).reshape(w * N, w, N)[:: max(1, w * N // DRAWS)]
    directions = [*draws, *(draws @ image), *alone, *(-alone), *(alone @ image), -A.clamp_max(0.0), -A]
    least = float("inf")
    for E in directions:
        length = float(E.norm())
        if length == 0.0:
            continue
        for step in (1e-2, 1e-3):
            least = min(least, cost_of_identity(A + step * size / length * E))
    return least
