"""Where the least loss, as a function of the width, begins to be flat; and how surely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus._checks import check_integer, check_number, fail

Array = np.ndarray[Any, Any]

#: Resampled sets of trials behind an interval, and the share of them within it.
DRAWS, COVERED = 500, 0.9


@dataclass(frozen=True)
class Plateau:
    """The start of a plateau.

    Attributes
    ----------
    level : float
        The least loss found at any width: the plateau's height.
    start : int
        Least width whose loss is at most (1 + tolerance)·level.
    low, high : int
        Where ``start`` falls for nine of ten resampled sets of trials with tolerances from half to twice the given one.
    tolerance : float
    spread : float
        What the seed makes of the loss: (median − least)/least of the trials at a width, its median over the wider half
        of the widths. Differences below it say nothing.
    strict : int
        ``start`` for the tolerance ``spread``: from here on the loss is flat as far as these trials can tell.
    """

    level: float
    start: int
    low: int
    high: int
    tolerance: float
    spread: float
    strict: int


def best_losses(losses: Array) -> Array:
    """The least loss found at most that wide, (widths,), from losses (trials, widths) in the order of the widths.

    A narrower network with neurons that are dead is a wider one of the same loss: the running minimum bounds the least
    loss at each width from above, and never rises (C-feat-4).
    """
    return np.minimum.accumulate(losses.min(axis=0))


def plateau_start(widths: Array, best: Array, tolerance: float) -> int:
    """Least width with ``best`` ≤ (1 + tolerance)·(its last value)."""
    return int(widths[np.flatnonzero(best <= (1.0 + tolerance) * best[-1])[0]])


def plateau(widths: Any, losses: Any, *, tolerance: float = 0.05, draws: int = DRAWS, seed: int = 0) -> Plateau:
    """The start of the plateau of losses (trials, widths), with an interval by the bootstrap.

    Parameters
    ----------
    widths : array (widths,) of int
        Increasing.
    losses : array (trials, widths)
        Positive and finite.
    tolerance : float, default 0.05
        What of the level is too little to be seen.
    draws, seed : int
        Of the bootstrap. With one trial it is over the tolerance alone.

    Examples
    --------
    >>> plateau([5, 10, 20, 40], [[3.0, 1.02, 1.001, 1.0], [4.0, 1.1, 1.003, 1.002]]).start
    10
    """
    who = "plateau"
    check_number(who, "tolerance", tolerance, low=0.0, low_open=True)
    check_integer(who, "draws", draws, low=1)
    n, table = np.asarray(widths), np.asarray(losses, dtype=np.float64)
    if n.ndim != 1 or table.ndim != 2 or table.shape[1] != len(n) or len(n) == 0 or not (np.diff(n) > 0).all():
        must = "`losses` must be (trials, widths) for increasing `widths`"
        fail(who, must, f"shapes {table.shape} and {n.shape}", "Sort the widths, one column for each.")
    if not (np.isfinite(table).all() and (table > 0.0).all()):
        fail(who, "`losses` must be positive and finite", "others", "Leave out trainings that diverged.")
    best = best_losses(table)
    wide = table[:, len(n) // 2 :]
    spread = float(np.median(np.median(wide, axis=0) / wide.min(axis=0) - 1.0))
    rng = np.random.default_rng(seed)
    trials, columns = len(table), np.arange(len(n))
    found = np.empty(draws)
    for i in range(draws):
        chosen = table[rng.integers(trials, size=table.shape), columns]
        found[i] = plateau_start(n, best_losses(chosen), tolerance * 2.0 ** rng.uniform(-1.0, 1.0))
    low, high = np.quantile(found, [(1.0 - COVERED) / 2.0, (1.0 + COVERED) / 2.0], method="inverted_cdf")
    start = plateau_start(n, best, tolerance)
    strict = plateau_start(n, best, spread)
    return Plateau(float(best[-1]), start, min(int(low), start), max(int(high), start), tolerance, spread, strict)
