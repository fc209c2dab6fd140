"""The SweepResult: one row for each configuration, finished or not."""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isthmus._checks import check_choice, fail
from isthmus._html import plain
from isthmus._result import Badge, Table
from isthmus.sweeps.places import FINISHED, STATES

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from isthmus.plotting.sweeps import Gathered
    from isthmus.runs import Run

#: Columns of the frame that are neither swept nor measured.
COLUMNS = ("state", "seed", "seconds", "error")


class Spectra(Mapping[str, np.ndarray]):
    """Singular values of finished runs by key, (layers, values), read when they are asked for."""

    def __init__(self, keys: Sequence[str], read: Callable[[str], np.ndarray | None]) -> None:
        self._keys, self._read = dict.fromkeys(keys), functools.lru_cache(maxsize=256)(read)

    def __getitem__(self, key: str) -> np.ndarray:
        found = self._read(key) if key in self._keys else None
        if found is None:
            raise KeyError(key)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


@dataclass(frozen=True, eq=False, repr=False)
class SweepResult:
    """What a sweep has found so far.

    Attributes
    ----------
    experiment : str
        Id of the experiment, or ``"discover"``.
    title : str
    names : tuple of str
        Swept parameters as they were named, without the seed: those that take several values.
    frame : DataFrame
        One row for each configuration, by key: ``state``, the swept names, ``seed``, the measured scalars (NaN where
        there is no Run), ``seconds`` and ``error``.
    folder : Path or None
    spectra : mapping of str to ndarray
        For finished runs: singular values of the weights, (layers, values), read when asked for.
    problems : tuple of str
        What a person must know: failed, diverged, stale, unreadable, changed.
    """

    experiment: str
    title: str
    names: tuple[str, ...]
    frame: pd.DataFrame
    folder: Path | None = None
    spectra: Mapping[str, np.ndarray] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        lacking = [name for name in ("state", *self.names, "seed") if name not in self.frame.columns]
        if lacking:
            do = "Give every configuration its state, its seed and its values."
            fail("SweepResult", f"`frame` must have the columns {', '.join(lacking)}", list(self.frame.columns), do)
        for state in self.frame["state"].unique():
            check_choice("SweepResult", "state", state, STATES)

    @property
    def counts(self) -> dict[str, int]:
        """How many configurations are in each state, those that occur."""
        found = collections.Counter(self.frame["state"].tolist())
        return {state: found[state] for state in STATES if found[state]}

    @functools.cached_property
    def gathered(self) -> Gathered:
        """Its runs gathered into settings."""
        from isthmus.plotting.sweeps import gather

        return gather(self.frame, self.names)

    @functools.cached_property
    def families(self) -> list[Any]:
        """Networks by rank against depth with what was fitted to their norms; empty where depth was not swept."""
        from isthmus.measures import estimate_costs
        from isthmus.plotting.sweeps import families

        return families(self.gathered, estimate_costs)

    @property
    def verdict(self) -> str:
        """``"complete"``, ``"incomplete"``, ``"failures"`` or ``"empty"``."""
        if not self.counts:
            return "empty"
        if self.counts.get("failed", 0) + self.counts.get("diverged", 0):
            return "failures"
        return "complete" if set(self.counts) == {"done"} else "incomplete"

    @property
    def sentence(self) -> str:
        """How many runs are done, and which ranks they end with."""
        done, whole = self.counts.get("done", 0), len(self.frame)
        first = f"{done:,} of {whole:,} runs are done" if done != whole else f"All {whole:,} runs are done"
        ranks = self.gathered.ranks()
        if not ranks or not done:
            return f"{first}."
        span = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks from {ranks[0]} to {ranks[-1]}"
        return f"{first}; they end with {span}."

    @property
    def reasons(self) -> tuple[str, ...]:
        """The most important problems."""
        return tuple(plain(text, ERROR) for text in self.problems[:REASONS])

    def tables(self) -> list[Table]:
        """Setting by setting, the runs that need a look, fitted numbers, and every run."""
        every = [_settings(self), _problems(self), _costs(self), _runs(self)]
        return [one for one in every if one.rows]

    def plot(self, figure: Figure | None = None) -> Figure:
        """The rank over the settings, norms against depth and losses, as a matplotlib figure."""
        from isthmus.measures import estimate_costs
        from isthmus.plotting.sweeps import draw_sweep

        return draw_sweep(self.frame, self.names, estimate_costs, figure, title=self.sentence)

    @property
    def measured(self) -> tuple[str, ...]:
        """Names of the measured scalars."""
        columns = [str(name) for name in self.frame.columns]
        first = columns.index("seed") + 1
        return tuple(name for name in columns[first:] if name not in COLUMNS)

    def run(self, key: str) -> Run:
        """The Run of a key, read from the folder."""
        from isthmus._inside import Inside
        from isthmus.runs import Run
        from isthmus.sweeps import places

        if self.folder is None:
            fail("SweepResult.run", "the result must have a folder", "none", "Sweep with out=DIR.")
        if key not in self.frame.index:
            fail("SweepResult.run", "`key` must be that of a configuration", repr(key), "Take it from `frame.index`.")
        state = self.frame.loc[key, "state"]
        if state not in FINISHED:
            do = "Continue the sweep; failed ones are tried again if asked for."
            fail("SweepResult.run", f"the configuration {key} must be finished", repr(state), do)
        return Run.read(Inside(self.folder, places.RUNS, key))

    def to_frame(self) -> pd.DataFrame:
        """A copy of the table."""
        return self.frame.copy()

    def summary(self, by: str | Sequence[str] | None = None) -> pd.DataFrame:
        """Over the seeds of each cell: how many, the commonest rank, how many agree with it, medians.

        Parameters
        ----------
        by : str or sequence of str, optional
            Columns that make a cell: the swept names unless given.

        Returns
        -------
        DataFrame
            A row for each cell, by the values of ``by``. ``configurations``; ``count``, how many of them have a Run;
            ``rank``, the mode, the smallest of equally common ones; ``agreement``, the share of the ranks found that
            are it; medians of ``norm`` and ``loss``. Without a measured rank, medians of all measured numbers.
        """
        columns = list(self.names) if by is None else [by] if isinstance(by, str) else list(by)
        for name in columns:
            check_choice("summary", "by", name, self.frame.columns)
        import pandas as pd

        frame: Any = self.frame
        if not columns:
            return pd.DataFrame([self._cell(frame)])
        parts = {values: self._cell(part) for values, part in frame.groupby(columns, sort=True, dropna=False)}
        table = pd.DataFrame(list(parts.values()))
        table.index = pd.MultiIndex.from_tuples(list(parts), names=columns)
        return table if len(columns) > 1 else table.set_index(table.index.get_level_values(0))

    def _cell(self, part: Any) -> dict[str, float | int]:
        finished = part[part["state"].isin(FINISHED)]
        found: dict[str, float | int] = {"configurations": len(part), "count": len(finished)}
        names = self.measured
        if "rank" in part.columns:
            # A diverged training has a Run and no rank.
            done = finished[finished["state"] == "done"]
            values, counts = np.unique(_numbers(done["rank"]), return_counts=True)
            most = int(np.argmax(counts)) if len(values) else -1
            found["rank"] = float(values[most]) if most >= 0 else np.nan
            found["agreement"] = float(counts[most] / counts.sum()) if most >= 0 else np.nan
            names = tuple(name for name in ("norm", "loss") if name in part.columns)
        for name in names:
            numbers = _numbers(finished[name])
            found[name] = float(np.median(numbers)) if len(numbers) else np.nan
        return found

    def __repr__(self) -> str:
        states = ", ".join(f"{number} {state}" for state, number in self.counts.items())
        over = " × ".join(self.names) or "one configuration"
        return f"SweepResult({self.experiment!r}, {over}: {states})"

    def _repr_html_(self) -> str:
        from isthmus import _html

        return _html.result(self)


def _numbers(column: Any) -> np.ndarray:
    """The numbers of a column, without gaps and texts."""
    import pandas as pd

    found = np.asarray(pd.to_numeric(column, errors="coerce"), dtype=np.float64)
    return found[~np.isnan(found)]


#: Reasons beside the answer, rows of problems and of runs, of settings and fitted numbers, columns of what was
#: measured, characters of an error.
REASONS, PROBLEMS, RUNS, SETTINGS, MEASURED, ERROR = 12, 200, 300, 200, 10, 400
#: States that a person should look at; the others come to an end by themselves.
WRONG = ("failed", "diverged", "stale", "interrupted")
_FIRST = ("rank", "norm", "loss", "cost", "converged", "training")
_FITTED = (
    "‖θ‖² = L·R0 + R1 + R2/L by least squares over the depths at which the rank was found, with 95 % intervals; R2 "
    "needs four depths. “Not affine”: the norms break, and the numbers describe no one function."
)


def _settings(result: SweepResult) -> Table:
    """The summary, with the swept values before the numbers."""
    table = result.summary()
    if result.names:
        table = table.reset_index()
    rows = [[_cell(value) for value in row] for row in table.head(SETTINGS).itertuples(index=False)]
    left = f"The first {SETTINGS} of {len(table):,} settings." if len(table) > SETTINGS else ""
    reading = ["The commonest rank of the seeds, the share of them that agree, and medians.", left]
    heads = [plain(name, 40) for name in table.columns]
    return Table("settings", "Setting by setting", heads, rows, reading, folded=True)


def _problems(result: SweepResult) -> Table:
    """Every run that failed, diverged or did not converge."""
    frame: Any = _single(result)
    order = {state: place for place, state in enumerate(WRONG)}
    wrong = frame[frame["state"].isin(WRONG)]
    wrong = wrong.assign(_place=wrong["state"].map(order)).sort_values("_place", kind="stable")
    rows = []
    for key, row in list(zip(wrong.index, wrong.to_dict("records")))[:PROBLEMS]:
        error = row.get("error")
        why = plain(error, ERROR) if isinstance(error, str) else ""
        rows.append([Badge(str(row["state"])), *[_cell(row[name]) for name in (*result.names, "seed")], why, str(key)])
    left = len(wrong) - len(rows)
    reading = [f"{left:,} more are left out here: {_where(result)}."] if left else []
    heads = ["state", *[plain(name, 40) for name in result.names], "seed", "error", "key"]
    return Table("problems", "Runs that need a look", heads, rows, reading, brief=())


def _interval(one: Any) -> str:
    return f"{one.value:.4g} ({one.low:.4g} … {one.high:.4g})" if math.isfinite(one.value) else "—"


def _costs(result: SweepResult) -> Table:
    rows = []
    for at, parts in result.families:
        for piece in parts:
            if piece.fit is None:
                continue
            fit, depths = piece.fit, len(np.unique(piece.depths))
            numbers = [_interval(one) for one in (fit.R0, fit.R1)]
            rows.append([result.gathered.where(at) or "all", piece.rank, depths, len(piece.keys), *numbers, fit.state])
    left = f"The first {SETTINGS} of {len(rows):,} rows." if len(rows) > SETTINGS else ""
    heads = ["at", "rank", "depths", "networks", "R0, the slope", "R1", "state"]
    folded = len(rows) > 12
    return Table("costs", "R0 and R1 of each rank", heads, rows[:SETTINGS], [_FITTED, left], folded=folded, brief=())


def _runs(result: SweepResult) -> Table:
    frame: Any = _single(result)
    names = [*result.names, "seed"]
    measured = sorted(result.measured, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST))
    measured = list(dict.fromkeys(name for name in measured if name not in names))
    columns = [*names, *measured[:MEASURED], *(["seconds"] if "seconds" in frame.columns else [])]
    shown = frame.sort_values(names, kind="stable", key=lambda column: column.map(_sortable)).head(RUNS)
    rows = [
        [Badge(str(row["state"])), *[_cell(row[name]) for name in columns], str(key)]
        for key, row in zip(shown.index, shown.to_dict("records"))
    ]
    reading = []
    if left := len(frame) - len(rows):
        reading.append(f"The first {len(rows):,} of {len(frame):,}; {left:,} are left out here: {_where(result)}.")
    if len(measured) > MEASURED:
        reading.append(f"{len(measured) - MEASURED} more measured numbers are in the folder.")
    heads = ["state", *[plain(name, 40) for name in columns], "key"]
    return Table("runs", "One row for each run", heads, rows, reading, folded=len(rows) > 30, brief=())


def _where(result: SweepResult) -> str:
    """Where the whole list is found."""
    return "`isthmus runs` on the sweep's folder lists all" if result.folder else "`to_frame()` of the result has all"


def _single(result: SweepResult) -> Any:
    """The frame with one column of each name."""
    return result.frame.loc[:, ~result.frame.columns.duplicated()]


def _sortable(value: Any) -> tuple[int, float, str]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (0, float(value), "") if math.isfinite(value) else (2, 0.0, "")
    return (1, 0.0, str(value))


def _cell(value: Any) -> Any:
    """A number as a number, a whole one without a point; everything else as text."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 1e15 else value
    return value if isinstance(value, int) else plain(value, 200)
