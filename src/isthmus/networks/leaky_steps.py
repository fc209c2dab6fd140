"""How a leaky ResNet divides [0, 1] into steps ρ_1 … ρ_L: equidistant, irregular, adaptive."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from isthmus._checks import check_integer, check_number, fail
from isthmus._cite import cites

RULES = ("equidistant", "irregular", "adaptive")
#: An adaptive step is never shorter than this share of 1/L …
FLOOR = 0.1
#: … and never longer than this many times 1/L, or this share of 1/L̃, whichever is shorter.
CEILING = 4.0
LEAK = 0.9


@cites("hamiltonian2024", "§3, equidistant", ids=("M-leaky",))
def equidistant(layers: int) -> Tensor:
    """ρ_ℓ = 1/L."""
    check_integer("equidistant", "layers", layers, low=1)
    return torch.full((layers,), 1.0 / layers, dtype=torch.float64)


@cites("hamiltonian2024", "§3, irregular", ids=("M-leaky",))
def irregular(layers: int, irregularity: float = 0.9) -> Tensor:
    """ρ_ℓ = 1/L + (a/L)(1/4 − |ℓ/L − 1/2|), renormalised: short near the inputs and outputs, long in the middle.

    Departs from the paper: the printed sum is 1 only for even L, and 1 − a/(4L²) for odd L; here it is always 1.
    """
    check_integer("irregular", "layers", layers, low=1)
    check_number("irregular", "irregularity", irregularity, low=0.0, high=1.0)
    ell = torch.arange(1, layers + 1, dtype=torch.float64)
    rho = (1.0 + irregularity * (0.25 - (ell / layers - 0.5).abs())) / layers
    return rho / rho.sum()


def limits(layers: int, effective_depth: float) -> tuple[float, float]:
    """(floor, ceiling) of an adaptive step: the ceiling keeps ρ·L̃ < 1 wherever L steps can do so at all."""
    ceiling = CEILING / layers
    if effective_depth > 0:
        ceiling = min(ceiling, LEAK / effective_depth)
    # With few steps for a large L̃ no division has all ρ·L̃ < 1: then a little more than 1/L is the best there is.
    return FLOOR / layers, max(ceiling, 1.5 / layers)


def bounded(shares: Tensor, low: float, high: float) -> Tensor:
    """Positive ``shares`` scaled to the sum 1 with every entry in [low, high]: clip, and spread the rest.

    Parameters
    ----------
    shares : Tensor (L,), positive
    low, high : float
        L·low ≤ 1 ≤ L·high.
    """
    rho = shares / shares.sum()
    count = len(rho)
    if not low * count <= 1.0 <= high * count:
        fail("bounded", f"{count} steps must be able to sum to 1", f"limits {low:g} and {high:g}", "Widen the limits.")
    # clip(c·shares) has a sum that rises with c: bisection on log c, to the last bit.
    lower, upper = low / float(rho.max()), high / float(rho.min())
    values = rho.numpy(force=True)
    for _ in range(200):
        middle = (lower * upper) ** 0.5
        if middle in (lower, upper):
            break
        if np.clip(values * middle, low, high).sum() < 1.0:
            lower = middle
        else:
            upper = middle
    rho = (rho * upper).clamp(low, high)
    return rho / rho.sum()


@cites("hamiltonian2024", "§3, adaptive", ids=("M-leaky",))
def adapted(rho: Tensor, speeds: Tensor, effective_depth: float, *, damping: float = 0.5) -> Tensor:
    """New steps ρ_ℓ ∝ 1/c_ℓ for the speeds c_ℓ = ‖A_ℓ − A_{ℓ-1}‖/(ρ_ℓ‖A_ℓ‖), part of the way from the old ones.

    Departs from the paper: damped (a geometric mean of old and new, so that steps and weights do not chase each other)
    and bounded (c → 0 in a collapsed layer would otherwise take all of [0, 1]). Speeds that are not finite or all zero
    leave the steps as they are.

    Parameters
    ----------
    rho, speeds : Tensor (L,)
    damping : float in [0, 1)
        Share of the old logarithms kept.
    """
    if not bool(torch.isfinite(speeds).all()) or float(speeds.max()) <= 0.0:
        return rho
    old = rho.double()
    # A speed a million times below the largest says no more than "slow".
    target = 1.0 / (speeds.double() / float(speeds.max())).clamp_min(1e-6)
    shares = old**damping * (target / target.sum()) ** (1.0 - damping)
    low, high = limits(len(rho), effective_depth)
    return bounded(shares, low, high).to(rho)
