"""Estimates from few draws, with intervals that say how far they can be trusted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.stats import chi2
from scipy.stats import t as student
from torch import Tensor

from isthmus._codec import Plain

#: Probability with which an interval holds the exact value.
LEVEL = 0.95

#: Intervals from few draws are computed for this probability, and claimed for ``LEVEL``. Of eight draws as skewed as
#: exp(standard normal), the interval of the logarithm of their mean by Student's t holds it in 89 % if it is computed
#: for 95 %, and in 95 % if for 99 %; of squares of standard normals in 91 and 97 %.
CAUTIOUS = 0.99

#: Draws without which no interval is given.
FEWEST_DRAWS = 8


@dataclass(frozen=True)
class Estimate(Plain):
    """A number, and the interval that holds the exact one with a probability of 95 %.

    Attributes
    ----------
    value, low, high : float
        NaN where nothing was computed; all three the same where it is exact.
    method : str
        ``"exact"``, or how it was estimated and from how many draws.
    """

    value: float
    low: float
    high: float
    method: str

    @property
    def shown(self) -> str:
        """The number with its interval, for people."""
        if math.isnan(self.low) or self.low == self.high:
            return f"{self.value:.3g}"
        high = f"{self.high:.3g}" if math.isfinite(self.high) else "∞"
        return f"{self.value:.3g} ({self.low:.3g} to {high})"


def certain(grams: Tensor) -> Estimate:
    """Mean trace of G_1, …, G_S (S, n, n), which need no estimate."""
    value = float(grams.diagonal(dim1=1, dim2=2).sum(1).mean())
    return Estimate(value, value, value, "exact")


def hutchinson(grams: Tensor, samples: int | None = None) -> Estimate:
    """Mean of Tr A_i over i ≤ S from G_i = Ω_iᵀ A_i Ω_i with Gaussian Ω_i (n, r), by Hutchinson's estimate Tr G_i/r.

    Parameters
    ----------
    grams : Tensor (S, r, r)
    samples : int, optional
        Where ``grams`` holds means already: over how many. By default S.

    Notes
    -----
    For Gaussian directions ωᵀAω has the mean Tr A and the variance 2‖A‖²_F. The mean over r of them is compared with
    Tr A · χ²_d/d of the same two moments, d = r·(Tr A)²/‖A‖²_F (Satterthwaite). ‖A‖²_F is estimated from the entries
    off the diagonal, ω_iᵀAω_j, whose squares have this mean; d is least, r, for rank one, and never taken to be less.
    The directions are the same at all samples: the estimate is that of the mean of the A_i.
    """
    G = grams.mean(0)
    r = len(G)
    value = float(G.diagonal().mean())
    method = f"Hutchinson, {r} Gaussian directions at {samples or len(grams)} samples"
    if not math.isfinite(value) or value <= 0 or r < 2:
        known = value == 0.0
        return Estimate(value, value if known else math.nan, value if known else math.nan, method)
    off = float((G.square().sum() - G.diagonal().square().sum()) / (r * (r - 1)))
    # This estimate errs by a factor of about 1 ± 2/r: half of the effective dimension that it shows is used.
    effective = max(1.0, 0.5 * value**2 / off) if off > 0 else float(r)
    d = r * effective
    low, high = chi2.ppf([(1 - LEVEL) / 2, (1 + LEVEL) / 2], d)
    return Estimate(value, value * d / high, value * d / low, method)


def spread(influences: Tensor) -> float:
    """Half the width of the interval of log θ, from the influence of each of n independent draws on it.

    Student's t of n − 1 degrees of freedom, times the deviation of the influences over √n: the logarithm, as what is
    positive is skewed to the right. NaN for fewer than eight draws.
    """
    n = len(influences)
    if n < FEWEST_DRAWS:
        return math.nan
    return float(student.ppf((1 + CAUTIOUS) / 2, n - 1)) * float(influences.std()) / math.sqrt(n)


def of_ratio(above: Tensor, below: Tensor, method: str) -> Estimate:
    """E a/E b from independent draws (a_i, b_i), by their means; with b = 1, the mean of positive numbers."""
    a, b = above.double(), below.double()
    value = float(a.mean() / b.mean())
    if not (value > 0 and math.isfinite(value)):
        return Estimate(value, value, value, method) if value == 0 else Estimate(value, math.nan, math.nan, method)
    error = spread(a / a.mean() - b / b.mean())
    return Estimate(value, value * math.exp(-error), value * math.exp(error), method)


def mean_of(values: Tensor, method: str) -> Estimate:
    """The mean of positive independent draws."""
    return of_ratio(values, torch.ones_like(values), method)
