"""Q-repcost: exact for linear and diagonal networks, with its expansion in 1/L; estimated from norms over depths."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import f as f_distribution
from scipy.stats import t as t_distribution

from isthmus._checks import as_tensor, check_integer, check_number, fail
from isthmus._cite import cites
from isthmus.linalg import matrix, rank_tolerance, schatten


@cites("rank2023", "§1", ids=("Q-repcost",))
@cites("bottleneck2023", "§3", ids=("Q-repcost",))
def linear_cost(A: Any, depth: int) -> float:
    """R(A; L) = L · Σ sᵢ(A)^{2/L}: the least ‖θ‖² of a linear network W_L ⋯ W_1 = A."""
    L = check_integer("linear_cost", "depth", depth, low=1)
    return float(L * schatten(_one_matrix("linear_cost", A), 2.0 / L))


@cites("rank2023", "§1", ids=("Q-repcost",))
def diagonal_cost(w: Any, depth: int) -> float:
    """R(w; L) = L · Σ |wᵢ|^{2/L}: the least ‖θ‖² of a diagonal linear network w = w_L ⊙ ⋯ ⊙ w_1."""
    L = check_integer("diagonal_cost", "depth", depth, low=1)
    vector = _one_vector("diagonal_cost", w)
    return float(L * vector.abs().pow(2.0 / L).sum())


@dataclass(frozen=True)
class Expansion:
    """R(A; L) = L·R0 + R1 + R2/L + O(L⁻²)."""

    R0: int
    R1: float
    R2: float

    def at(self, depth: int, terms: int = 3) -> float:
        """The first ``terms`` terms at depth L."""
        check_integer("Expansion.at", "depth", depth, low=1)
        check_integer("Expansion.at", "terms", terms, low=1, high=3)
        return sum((depth * self.R0, self.R1, self.R2 / depth)[:terms])


@cites("bottleneck2023", "§3", ids=("Q-repcost",))
def linear_expansion(A: Any) -> Expansion:
    """R0 = Rank A, R1 = 2 log|A|₊, R2 = ½‖log₊ AᵀA‖²_F of a linear map (2Σlog²sᵢ for R2)."""
    M = _one_matrix("linear_expansion", A)
    s = torch.linalg.svdvals(M)
    return _expansion(s[s > rank_tolerance(s, (M.shape[0], M.shape[1]))])


@cites("rank2023", "§1", ids=("Q-repcost",))
def diagonal_expansion(w: Any) -> Expansion:
    """The same three terms for a diagonal network: R0 = ‖w‖₀, R1 = 2Σlog|wᵢ|, R2 = 2Σlog²|wᵢ|."""
    vector = _one_vector("diagonal_expansion", w).abs()
    return _expansion(vector[vector > 0])


def _one_matrix(who: str, A: Any) -> torch.Tensor:
    M = matrix(who, "A", A)
    if M.ndim != 2:
        fail(who, "`A` must be one matrix", f"shape {tuple(M.shape)}", "Pass a 2-D array.")
    return M


def _one_vector(who: str, w: Any) -> torch.Tensor:
    vector = as_tensor(who, "w", w)
    if vector.ndim != 1:
        fail(who, "`w` must be a vector", f"shape {tuple(vector.shape)}", "Flatten it.")
    return vector


def _expansion(s: torch.Tensor) -> Expansion:
    logs = s.log()
    return Expansion(len(s), float(2 * logs.sum()), float(2 * logs.square().sum()))


@dataclass(frozen=True)
class Estimate:
    """A fitted number, its standard error and its confidence interval; NaN where it could not be fitted."""

    value: float
    standard_error: float
    low: float
    high: float


@dataclass(frozen=True)
class CostEstimate:
    """R0, R1 and R2 of ‖θ‖² = L·R0 + R1 + R2/L, fitted over depths.

    Attributes
    ----------
    R0, R1, R2 : Estimate
        R2 is NaN with fewer than 4 depths.
    residual : float
        Root mean square of what the fit leaves, per degree of freedom, in units of ‖θ‖².
    break_depth, break_p_value : float
        The depth after which another fit would describe the norms best, and the chance of so much improvement
        by noise alone; NaN with fewer than 7 depths, too few to tell a break from noise.
    state : str
        ``"computed"``; ``"too few depths"`` (fewer than 3: nothing is fitted); ``"not affine"``: the norms break after
        ``break_depth``, for example because the rank changes there. The numbers then describe no one function.
    """

    R0: Estimate
    R1: Estimate
    R2: Estimate
    residual: float
    break_depth: float
    break_p_value: float
    state: str


#: The least change of the slope, in ranks (or jump, in ranks × depth range), that counts as a break: a smaller one is
#: the next term of the expansion.
BEND = 0.25

_MISSING = Estimate(math.nan, math.nan, math.nan, math.nan)


@cites("bottleneck2023", "§2.1; Fig. 1", ids=("Q-repcost",))
@cites("rank2023", "§2", ids=("Q-repcost",))
def estimate_costs(depths: Any, norms: Any, errors: Any = None, *, confidence: float = 0.95) -> CostEstimate:
    """Least squares of ‖θ‖² = L·R0 + R1 (+ R2/L with at least 4 depths) over networks of one function.

    Parameters
    ----------
    depths : array (n,)
        L of each network; repetitions are allowed.
    norms : array (n,)
        ‖θ‖² of each.
    errors : array (n,), optional
        Standard errors of the norms, which weigh them. The intervals never fall below what they imply, and grow
        when the fit misses by more.
    confidence : float, default 0.95
        Of the intervals, which are Student's: with one degree of freedom they are honest, and wide.

    Notes
    -----
    The fit leaves out O(L⁻²). At small depths that is no noise, and no interval covers it: prefer large depths.
    """
    who = "estimate_costs"
    L, values = _one_vector(who, depths).cpu().numpy(), _one_vector(who, norms).cpu().numpy()
    level = check_number(who, "confidence", confidence, low=0.5, high=0.9999)
    if len(L) != len(values) or len(L) == 0 or bool((L < 1).any()):
        got = f"{len(L)} depths and {len(values)} norms"
        fail(who, "`depths` must be numbers ≥ 1, one for each norm", got, "Pass L and ‖θ‖² of each network.")
    sigma = np.ones_like(L)
    if errors is not None:
        sigma = _one_vector(who, errors).cpu().numpy()
        if len(sigma) != len(L) or bool((sigma <= 0).any()):
            fail(
                who, "`errors` must be positive, one for each norm", f"{len(sigma)} values", "Leave out what is exact."
            )
    distinct = np.unique(L)
    if len(distinct) < 3:
        return CostEstimate(_MISSING, _MISSING, _MISSING, math.nan, math.nan, math.nan, "too few depths")
    columns = np.stack([L, np.ones_like(L), 1.0 / L][: 3 if len(distinct) >= 4 else 2], axis=1)
    fit, misfit = _least_squares(columns / sigma[:, None], values / sigma)
    freedom = len(L) - columns.shape[1]
    variance = misfit / freedom if errors is None else max(1.0, misfit / freedom)
    inverse = np.linalg.pinv(columns / sigma[:, None])
    spread = np.sqrt(variance * (inverse**2).sum(1))
    reach = spread * float(t_distribution.ppf(0.5 + level / 2.0, freedom))
    found = [Estimate(*map(float, row)) for row in zip(fit, spread, fit - reach, fit + reach)]
    residual = float(np.linalg.norm(values - columns @ fit)) / math.sqrt(freedom)
    where, chance, material = _break(L, values, sigma, columns, misfit)
    state = "not affine" if chance < 0.01 and material else "computed"
    return CostEstimate(found[0], found[1], [*found, _MISSING][2], residual, where, chance, state)


def _least_squares(A: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float]:
    """Solution, and the sum of squares that it leaves."""
    size = np.linalg.norm(A, axis=0)  # columns of like size: 1/L and L differ by L²
    x = np.linalg.lstsq(A / size, y)[0] / size
    return x, float(((y - A @ x) ** 2).sum())


def _break(
    L: np.ndarray, values: np.ndarray, sigma: np.ndarray, columns: np.ndarray, misfit: float
) -> tuple[float, float, bool]:
    """Depth after which another slope and offset help most, the p-value of that, and whether they are material."""
    distinct = np.unique(L)
    freedom = len(L) - columns.shape[1] - 3  # a slope, an offset, and the depth of the break itself
    inner = distinct[1:-2]  # at least two depths on each side
    if len(distinct) < 7 or freedom < 1:
        return math.nan, math.nan, False
    trials = []
    for depth in inner:
        after = depth < L
        extra = np.stack([np.where(after, L - depth, 0.0), after.astype(float)], axis=1)
        fit, left = _least_squares(np.concatenate([columns, extra], axis=1) / sigma[:, None], values / sigma)
        trials.append((left, float(depth), fit[-2], fit[-1]))
    left, depth, slope, jump = min(trials)
    # Norms are known to rounding at best: a fit cannot be better than that.
    floor = len(L) * float((np.finfo(float).eps * np.abs(values / sigma)).max()) ** 2
    ratio = (misfit - left) / 3.0 / (max(left, floor) / freedom)
    # One test for each possible depth: Bonferroni's bound on the best of them.
    chance = min(1.0, len(inner) * float(f_distribution.sf(ratio, 3, freedom)))
    material = abs(slope) >= BEND or abs(jump) >= BEND * float(distinct[-1] - distinct[0])
    return depth, chance, material
