"""When as many intervals as were counted may hold what they say, if 95 % of all do."""

from __future__ import annotations

from scipy.stats import binom


def possible(inside: int, draws: int, level: float = 0.95) -> bool:
    """Whether so few of the draws, or fewer, happen by chance in one of a hundred such counts."""
    return bool(binom.cdf(inside, draws, level) > 0.01)
