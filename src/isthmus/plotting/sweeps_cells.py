"""A table of runs gathered into settings: the ranks of all seeds, how many agree, what is missing.

Plain data for the pictures of a sweep; nothing here draws.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

#: The state of a run that was computed to its end.
DONE = "done"
#: Steps of an axis are equal within this share; values that spread over this factor are read by powers.
EVEN, SPREAD = 0.02, 30.0


@dataclass(frozen=True)
class Swept:
    """A parameter that was swept, and its values in their order."""

    name: str
    values: tuple[Any, ...]

    @property
    def labels(self) -> list[str]:
        """The values as people read them, with as few digits as keep them apart."""
        for digits in (3, 4, 6, 17):
            told = ["none" if v is None else f"{v:.{digits}g}" if isinstance(v, float) else str(v) for v in self.values]
            if len(set(told)) == len(told):
                break
        return told

    @property
    def numeric(self) -> bool:
        """Whether it can be an axis of numbers."""
        return len(self.values) > 1 and all(_is_number(value) for value in self.values)

    @property
    def logarithmic(self) -> bool:
        """Whether its values are geometric, or spread so unevenly that powers show them better."""
        if not self.numeric or min(self.values) <= 0 or len(self.values) < 3:
            return False
        steps = np.diff(np.asarray(self.values, dtype=np.float64))
        factors = np.diff(np.log(np.asarray(self.values, dtype=np.float64)))
        if np.ptp(steps) <= EVEN * steps.mean():
            return False
        return bool(np.ptp(factors) <= EVEN * factors.mean()) or self.values[-1] >= SPREAD * self.values[0]


@dataclass(frozen=True)
class Setting:
    """One value of every swept parameter, and what its seeds gave.

    Attributes
    ----------
    at : tuple of int
        Which value of each parameter.
    keys : tuple of str
        Its runs, whatever became of them.
    states : mapping of str to int
        How many runs are in which state.
    ranks : mapping of int to int
        How many of the finished runs have which rank.
    """

    at: tuple[int, ...]
    keys: tuple[str, ...]
    states: Mapping[str, int]
    ranks: Mapping[int, int]

    @property
    def measured(self) -> int:
        """Finished runs that have a rank."""
        return sum(self.ranks.values())

    @property
    def rank(self) -> int | None:
        """The most frequent rank, of equally frequent ones the smallest; None if nothing was measured."""
        return min(self.ranks, key=lambda rank: (-self.ranks[rank], rank)) if self.ranks else None

    @property
    def agreement(self) -> float:
        """The share of the measured runs that have :attr:`rank`."""
        return max(self.ranks.values()) / self.measured if self.ranks else math.nan

    @property
    def wanting(self) -> int:
        """Runs that have no rank: failed, diverged, not computed yet."""
        return len(self.keys) - self.measured

    @property
    def told(self) -> str:
        """What came out, in words."""
        others = [f"{count} {state}" for state, count in self.states.items() if state != DONE]
        if unread := self.states.get(DONE, 0) - self.measured:
            others.append(f"{unread} done without a rank")
        if self.rank is None:
            return "; ".join(others) or "nothing was computed"
        first = f"rank {self.rank} in {self.ranks[self.rank]} of {self.measured} run{'s' * (self.measured != 1)}"
        if len(self.ranks) > 1:
            rest = sorted(rank for rank in self.ranks if rank != self.rank)
            first += f", {', '.join(map(str, rest))} in the others"
        return "; ".join([first, *others])


@dataclass(frozen=True, eq=False)
class Gathered:
    """All settings of a sweep, and the numbers of its finished runs by name and key."""

    swept: tuple[Swept, ...]
    settings: tuple[Setting, ...]
    numbers: Mapping[str, Mapping[str, float]]

    def place(self, name: str) -> int:
        """The number of a swept parameter."""
        return [one.name for one in self.swept].index(name)

    def numeric(self) -> list[str]:
        """Swept parameters that can be an axis of numbers."""
        return [one.name for one in self.swept if one.numeric]

    def along(self, *names: str) -> dict[tuple[int, ...], list[Setting]]:
        """Settings that differ in ``names`` alone, by the place of all others (−1 at ``names``)."""
        free = {self.place(name) for name in names}
        found: dict[tuple[int, ...], list[Setting]] = {}
        for one in self.settings:
            found.setdefault(tuple(-1 if i in free else at for i, at in enumerate(one.at)), []).append(one)
        return dict(sorted(found.items()))

    def where(self, at: Sequence[int]) -> str:
        """A place in words: ``"ridge = 0.001, width = 50"``."""
        pairs = [(one.name, one.labels[i]) for one, i in zip(self.swept, at) if i >= 0 and len(one.values) > 1]
        return ", ".join(f"{name} = {value}" for name, value in pairs)

    def ranks(self) -> list[int]:
        """All ranks that were found."""
        return sorted({rank for one in self.settings for rank in one.ranks})


def gather(frame: pd.DataFrame, names: Sequence[str]) -> Gathered:
    """Settings from one row for each run: ``state``, a column for each of ``names``, and what was measured.

    Parameters
    ----------
    frame : DataFrame
        Indexed by key. Columns of numbers are kept for runs that are done.
    names : sequence of str
        Swept parameters, without the seed.
    """
    # A swept width and a measured width would be one column: the first of a name counts.
    frame = frame.loc[:, ~frame.columns.duplicated()]
    columns = [[_plain(value) for value in frame[name]] for name in names]
    swept = tuple(Swept(name, tuple(sorted(set(column), key=_order))) for name, column in zip(names, columns))
    places = [{value: i for i, value in enumerate(one.values)} for one in swept]
    keys, states = [str(key) for key in frame.index], [str(state) for state in frame["state"]]
    finished = [key for key, state in zip(keys, states) if state == DONE]
    done = frame[frame["state"] == DONE]
    numbers = {
        str(name): {key: _number(value) for key, value in zip(finished, done[name])}
        for name in frame.columns
        if name not in (*names, "state", "error", "seed")
    }
    rank = numbers.get("rank", {})
    members: dict[tuple[int, ...], list[int]] = {}
    for row in range(len(keys)):
        at = tuple(place[column[row]] for place, column in zip(places, columns))
        members.setdefault(at, []).append(row)
    settings = []
    for at, rows in sorted(members.items()):
        found = [rank[keys[row]] for row in rows if keys[row] in rank]
        ranks = Counter(int(value) for value in found if math.isfinite(value) and value >= 0 and value == int(value))
        counts = Counter(states[row] for row in rows)
        settings.append(Setting(at, tuple(keys[row] for row in rows), dict(counts), dict(ranks)))
    return Gathered(swept, tuple(settings), numbers)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    """A value as Python has it; None where there is none."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float):
        return None if math.isnan(value) else int(value) if value.is_integer() and abs(value) < 2**53 else value
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def _order(value: Any) -> tuple[int, Any]:
    """Numbers first, by size; then truths and texts; what is missing last."""
    return (2, "") if value is None else (0, value) if _is_number(value) else (1, str(value))


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


@dataclass(frozen=True, eq=False)
class Curve:
    """One number against a swept one, the others held at ``at``: median, least and greatest over the seeds."""

    at: tuple[int, ...]
    x: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray


def curves(found: Gathered, name: str, column: str) -> Iterator[Curve]:
    """Curves of ``column`` against the swept ``name``, one for every place of the others that has numbers."""
    axis, numbers = found.place(name), found.numbers.get(column, {})
    for at, members in found.along(name).items():
        rows = []
        for one in members:
            values = [numbers[key] for key in one.keys if math.isfinite(numbers.get(key, math.nan))]
            if values:
                x = float(found.swept[axis].values[one.at[axis]])
                rows.append((x, float(np.median(values)), min(values), max(values)))
        if rows:
            yield Curve(at, *np.array(rows, dtype=np.float64).T)


@dataclass(frozen=True, eq=False)
class Piece:
    """‖θ‖² of the networks of one rank over depths, and ‖θ‖² = L·R0 + R1 + R2/L fitted to them.

    ``fit`` is what ``estimate`` gave; None for rank 0, since where nothing is left there is no slope to read.
    """

    rank: int
    depths: np.ndarray
    norms: np.ndarray
    converged: np.ndarray
    keys: tuple[str, ...]
    fit: Any

    @property
    def drawn(self) -> bool:
        """Whether there is a line to draw."""
        return self.fit is not None and math.isfinite(self.fit.R0.value)

    @property
    def told(self) -> str:
        """The rank, and beside it the slope with its interval or why there is none."""
        if self.rank == 0:
            return "rank 0: nothing left"
        if not self.drawn:
            return f"rank {self.rank}" if self.fit is None else f"rank {self.rank}: {self.fit.state}"
        slope = f"rank {self.rank}: slope {self.fit.R0.value:.3g} ({self.fit.R0.low:.3g} … {self.fit.R0.high:.3g})"
        return slope if self.fit.state == "computed" else f"{slope}, {self.fit.state}"

    def line(self, count: int = 60) -> tuple[np.ndarray, np.ndarray]:
        """Depths and the fitted ‖θ‖² there."""
        L = np.linspace(self.depths.min(), self.depths.max(), count)
        rest = self.fit.R2.value if math.isfinite(self.fit.R2.value) else 0.0
        return L, L * self.fit.R0.value + self.fit.R1.value + rest / L


def pieces(
    found: Gathered, name: str, estimate: Callable[[Any, Any], Any], most: int | None = None
) -> list[tuple[tuple[int, ...], list[Piece]]]:
    """Finished networks by rank against the swept depth ``name``, for every place of the other parameters.

    Parameters
    ----------
    found : Gathered
    name : str
        The depth.
    estimate : callable
        :func:`isthmus.measures.estimate_costs`; what draws imports no measures.
    most : int, optional
        Places to fit, the first ones.
    """
    axis = found.place(name)
    norm, rank, settled = (found.numbers.get(key, {}) for key in ("norm", "rank", "converged"))
    result = []
    for at, members in list(found.along(name).items())[:most]:
        groups: dict[int, list[tuple[float, float, bool, str]]] = {}
        for one in members:
            L = float(found.swept[axis].values[one.at[axis]])
            for key in one.keys:
                k, size = rank.get(key, math.nan), norm.get(key, math.nan)
                if math.isfinite(k) and math.isfinite(size) and int(k) in one.ranks:
                    groups.setdefault(int(k), []).append((L, size, settled.get(key, 1.0) != 0.0, key))
        parts = []
        for k, rows in sorted(groups.items()):
            depths, norms, rest = (np.array([row[i] for row in rows]) for i in range(3))
            fit = estimate(depths, norms) if k else None
            parts.append(Piece(k, depths, norms, rest, tuple(row[3] for row in rows), fit))
        if parts:
            result.append((at, parts))
    return result
