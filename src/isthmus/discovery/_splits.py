"""Honest splits: rows that belong together stay together, the future is not used to predict the past."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isthmus._checks import check_integer, fail
from isthmus._errors import DataError, IsthmusError

Rows = NDArray[np.int64]


#: Columns by which rows are put in order.
_KEYS = 32


def canonical_order(X: NDArray[np.float64], Y: NDArray[np.float64]) -> Rows:
    """Rows in an order that depends on their content, not on where they stood: an answer must not depend on that."""
    keys = [*Y.T[:_KEYS][::-1], *X.T[:_KEYS][::-1]]
    if max(X.shape[1], Y.shape[1]) > _KEYS:
        # Rows that differ only in later columns.
        keys.insert(0, np.array([_digest(x) ^ _digest(y[::-1]) for x, y in zip(X, Y)], dtype=np.uint64))
    return np.lexsort(keys)


def _digest(row: NDArray[np.float64]) -> int:
    return int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=8).digest(), "little")


class Splits:
    """Gives the i-th division into training and held-out rows.

    Parameters
    ----------
    rows : int
    cv : None, int, scikit-learn splitter, or list of (train, test)
        None holds a quarter out; an integer K one K-th.
    groups : array (rows,) of int, optional
        Rows of a group are never divided.
    unit : str
        What the groups are, in words.
    time : array (rows,), optional
        The last rows in time are held out (the last groups, by the time each begins, if there are groups).
    seed : int
    labels : array (rows,) of int, optional
        Classes: where rows (or groups) are chosen at random, each class is divided for itself, and one that is
        alone in its class is not held out.
    """

    def __init__(
        self,
        who: str,
        X: NDArray[np.float64],
        Y: NDArray[np.float64],
        *,
        cv: Any = None,
        groups: Rows | None = None,
        unit: str = "groups",
        time: NDArray[np.float64] | None = None,
        seed: int = 0,
        labels: Rows | None = None,
    ) -> None:
        self.rows, self.groups, self.time, self.seed, self.labels = len(X), groups, time, seed, labels
        self.unit = "rows" if groups is None else unit
        self.given: list[tuple[Rows, Rows]] = []
        self.share = 0.25
        if cv is None:
            self.how = "a quarter"
        elif isinstance(cv, (int, np.integer)):
            folds = check_integer(who, "cv", cv, low=2)
            self.share = 1.0 / folds
            self.how = f"one {folds}th"
        else:
            try:
                pairs = cv.split(X, Y if labels is None else labels, groups) if hasattr(cv, "split") else cv
                self.given = [_pair(who, pair, self.rows) for pair in pairs]
            except IsthmusError:
                raise
            except (TypeError, ValueError) as problem:
                must = "`cv` must be None, an integer, a splitter or pairs of rows"
                fail(who, must, f"{cv!r} ({problem})", "Pass e.g. 4.")
            if not self.given:
                fail(who, "`cv` must give at least one split", "none", "Pass e.g. cv=4.")
            self.how = "the rows that `cv` gives"
        if not self.given:
            units = self.rows if groups is None else len(np.unique(groups))
            if units < 2:
                must = f"there must be at least 2 {self.unit}, one of them to be held out"
                fail(who, must, units, "Supply more data.", error=DataError)

    def describe(self) -> str:
        """In words, for the report."""
        if self.given:
            return self.how
        which = f"the last {self.how} in time" if self.time is not None else f"{self.how} at random"
        each = " of each class" if self.labels is not None and self.time is None else ""
        return f"{which} of the {self.unit}{each}"

    def __call__(self, index: int) -> tuple[Rows, Rows]:
        """(training rows, held-out rows) of the ``index``-th division."""
        if self.given:
            return self.given[index % len(self.given)]
        unit = np.arange(self.rows) if self.groups is None else self.groups
        if self.labels is not None and self.time is None:
            test = np.isin(unit, self._of_each_class(unit, self.labels, np.random.default_rng([self.seed, index])))
            return np.flatnonzero(~test), np.flatnonzero(test)
        if self.time is not None:
            # There is only one future: another division begins it earlier.
            share = min(0.5, self.share * (1.0 + 0.4 * index))
            first = np.full(int(unit.max()) + 1, np.inf)
            np.minimum.at(first, unit, self.time)
            units = np.unique(unit)
            units = units[np.argsort(first[units], kind="stable")]
            moments = first[units]
        else:
            share = self.share
            units = np.random.default_rng([self.seed, index]).permutation(np.unique(unit))
            moments = np.arange(len(units))
        cut = len(units) - min(max(1, round(share * len(units))), len(units) - 1)
        # What begins at one moment stays on one side, unless all does.
        early, late = np.searchsorted(moments, moments[cut]), np.searchsorted(moments, moments[cut], side="right")
        cut = early or (late if late < len(units) else cut)
        test = np.isin(unit, units[cut:])
        return np.flatnonzero(~test), np.flatnonzero(test)

    def _of_each_class(self, unit: Rows, labels: Rows, rng: np.random.Generator) -> Rows:
        """Units to hold out: the share of every class, never all of it; a unit counts for the rarest class in it."""
        names, index = np.unique(unit, return_inverse=True)
        has = np.zeros((len(names), int(labels.max()) + 1), dtype=bool)
        has[index, labels] = True
        rarity = np.where(has, has.sum(axis=0), len(names) + 1)
        stratum = rarity.argmin(axis=1)
        held: list[Rows] = []
        for label in np.unique(stratum):
            own = rng.permutation(np.flatnonzero(stratum == label))
            count = min(max(1, round(self.share * len(own))), len(own) - 1)
            held.append(names[own[:count]])
        chosen = np.concatenate(held)
        # Every class has one unit only: something must be held out all the same.
        return chosen if len(chosen) else rng.permutation(names)[:1]


def _pair(who: str, pair: Any, rows: int) -> tuple[Rows, Rows]:
    train, test = (np.flatnonzero(a) if np.asarray(a).dtype == bool else np.asarray(a, dtype=np.int64) for a in pair)
    both = np.concatenate([train, test])
    if not len(train) or not len(test) or both.min() < 0 or both.max() >= rows:
        fail(
            who, f"`cv` must give non-empty rows in [0, {rows - 1}]", f"{len(train)} and {len(test)} rows", "Check it."
        )
    if np.intersect1d(train, test).size:
        fail(who, "`cv` must give training rows that are not held out", "rows that are both", "Use a proper splitter.")
    return train, test
