"""The SweepResult: one row for each configuration, whatever became of it."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isthmus._checks import check_choice, fail
from isthmus.sweeps.places import FINISHED, RUNS, STATES

if TYPE_CHECKING:
    import pandas as pd

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

        if self.folder is None:
            fail("SweepResult.run", "the result must have a folder", "none", "Sweep with out=DIR.")
        if key not in self.frame.index:
            fail("SweepResult.run", "`key` must be that of a configuration", repr(key), "Take it from `frame.index`.")
        state = self.frame.loc[key, "state"]
        if state not in FINISHED:
            do = "Continue the sweep; failed ones are tried again if asked for."
            fail("SweepResult.run", f"the configuration {key} must be finished", repr(state), do)
        return Run.read(Inside(self.folder, RUNS, key))

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

        title = _html.heading(_html.strong(_html.name(self.experiment)), _html.told(self.title))
        states = ", ".join(f"{number} {state}" for state, number in self.counts.items())
        table = self.summary()
        head = [*map(str, table.index.names), *map(str, table.columns)]
        rows = []
        for values, row in list(zip(table.index, table.itertuples(index=False)))[:50]:
            cells = [*(values if isinstance(values, tuple) else (values,)), *row]
            rows.append([_html.number(cell) for cell in cells])
        return _html.card(title, _html.told(states), _html.items(self.problems), _html.table(head, rows))


def _numbers(column: Any) -> np.ndarray:
    """The numbers of a column, without gaps and texts."""
    import pandas as pd

    found = np.asarray(pd.to_numeric(column, errors="coerce"), dtype=np.float64)
    return found[~np.isnan(found)]
