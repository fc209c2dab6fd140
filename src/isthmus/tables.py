"""Tables: text, Parquet and NumPy files read strictly, then columns chosen by name."""

from __future__ import annotations

import difflib
import fnmatch
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from isthmus._atomic import shown
from isthmus._checks import check_choice, fail
from isthmus._errors import DataError

if TYPE_CHECKING:
    import pandas as pd
from isthmus._oddities import marks_of
from isthmus._tablefile import _counted, _listed, _names, read_table
from isthmus._tablevalues import (
    _commas_in,
    _encode,
    _group,
    _indicator,
    _read_as_missing,
    _refused_marks,
    _replaced,
    _time,
    _values,
    _with_commas,
)

__all__ = ["Columns", "choose_columns", "exclude_columns", "match_columns", "read_table"]


@dataclass(frozen=True)
class Columns:
    """Numbers chosen from a table, and what was done to get them.

    Attributes
    ----------
    X : array (N, d_in)
        Features, finite, float64.
    Y : array (N, d_out) or None
        Targets, likewise.
    feature_names, target_names : tuple of str
        Names of the columns of X and Y; "city=Paris" is the indicator of one value of a text column.
    groups : int64 array (N,) or None
        Group of each row, numbered in order of appearance.
    time : array (N,) or None
        As given, or seconds since 1970 (UTC) for dates.
    notes : tuple of str
        What a reader of the result should know.
    fill : dict
        Value that replaced what was missing, by name of feature.
    rows : int64 array (N,)
        Number of each row in the table, from 0: what is left after rows with gaps were dropped.
    na_values : dict
        Numbers that were found to mean "missing", by name of feature.
    """

    X: np.ndarray
    Y: np.ndarray | None
    feature_names: tuple[str, ...]
    target_names: tuple[str, ...]
    groups: np.ndarray | None
    time: np.ndarray | None
    notes: tuple[str, ...]
    fill: dict[str, float] = field(default_factory=dict)
    rows: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    na_values: dict[str, tuple[float, ...]] = field(default_factory=dict)


def exclude_columns(frame: pd.DataFrame, patterns: str | Sequence[str]) -> pd.DataFrame:
    """The table without the columns that names or globs choose; the notes of the table say which.

    Parameters
    ----------
    frame : DataFrame (N, d)
    patterns : names or globs
        As in :func:`choose_columns`; each must match a column.
    """
    who = "exclude_columns"
    place = _places(who, frame)
    gone = set(_matching(who, "exclude", patterns, place))
    rest = frame.iloc[:, [j for name, j in place.items() if name not in gone]]
    note = f"left out {_counted(len(gone), 'column')} as asked: {_listed([n for n in place if n in gone])}"
    rest.attrs = {**frame.attrs, "isthmus_notes": (*frame.attrs.get("isthmus_notes", ()), note)}
    return rest


def choose_columns(
    frame: pd.DataFrame,
    *,
    targets: str | Sequence[str] | None,
    features: str | Sequence[str] | None = None,
    group: str | None = None,
    time: str | None = None,
    missing: str = "error",
    text: str = "error",
    need_targets: bool = True,
    marks: bool = True,
) -> Columns:
    """Take features, targets, groups and time from a table, as finite float64.

    Numbers written as text are read if a whole column is; true and false are 1 and 0.

    Parameters
    ----------
    frame : DataFrame (N, d)
        Of :func:`read_table`, or any other.
    targets, features : names or globs
        Case matters, and an exact name comes before its reading as a glob. Features are by default all columns
        without another role.
    group, time : name, optional
        A column has one role only.
    missing : {"error", "drop", "median"}
        What to do about missing and infinite values: refuse, leave out the rows, or put the median into features
        (rows without target, group or time are then left out).
    text : {"error", "indicators", "drop"}
        What to do about columns of text: refuse, one 0/1 column "city=Paris" per value, or leave out (features only).
    need_targets : bool, default True
        If false, targets that the table does not have are passed over, and ``Y`` may be None.
    marks : bool, default True
        Look for marks of missing values such as −9999, exact extreme values far outside the rest of a column: with
        ``missing="error"`` they are refused, else they are missing values. ``na_values`` of :func:`read_table` names
        them instead.
    """
    import pandas as pd

    who = "choose_columns"
    check_choice(who, "missing", missing, ("error", "drop", "median"))
    check_choice(who, "text", text, ("error", "indicators", "drop"))
    place = _places(who, frame)
    notes = [str(note) for note in frame.attrs.get("isthmus_notes", ())]
    y = _matching(who, "targets", targets, place, need=need_targets)
    g = _matching(who, "group", group, place, need=group is not None)
    t = _matching(who, "time", time, place, need=time is not None)
    others = {*y, *g, *t}
    x = [n for n in place if n not in others] if features is None else _matching(who, "features", features, place)
    twice = [name for name, count in Counter([*x, *y, *g, *t]).items() if count > 1]
    if twice:
        do = "Leave it out of one: of --features, --target, --group or --time."
        fail(who, "a column must have one role", f"more than one for {_listed(twice)}", do, error=DataError)
    # By role, columns by name; NaN or infinite where a value is missing, in groups too.
    blocks = {"feature": _encode(who, frame, place, x, text, notes)}
    blocks["target"] = _encode(who, frame, place, y, "error" if text == "drop" else text, notes)
    blocks["time"] = {name: _time(who, name, frame.iloc[:, place[name]]) for name in t}
    blocks["group"] = {name: _group(who, name, frame.iloc[:, place[name]]) for name in g}
    if not blocks["feature"]:
        do = "Name some with --features, exclude less, or encode columns of text with --text indicators."
        fail(who, "the table must have features", f"none among {_listed(list(place))}", do, error=DataError)
    found = _without_marks(who, blocks, missing, notes) if marks else {}
    arrays = {role: np.column_stack([*block.values()]) for role, block in blocks.items() if block}
    bad = {role: ~np.isfinite(A) for role, A in arrays.items()}
    if missing == "error":
        _refuse_gaps(who, [n for role in arrays for n in blocks[role]], np.hstack([*arrays.values()]))
    dropping = [role for role in arrays if bad[role].any() and (missing == "drop" or role != "feature")]
    keep = ~np.any([bad[role].any(axis=1) for role in dropping], axis=0) if dropping else np.ones(len(frame), bool)
    if dropping:
        dropped = _counted(len(keep) - int(keep.sum()), "row")
        notes.append(f"dropped {dropped} with a missing or infinite {' or '.join(dropping)}")
    if not keep.any():
        do = "Choose other columns, or missing='median' (--missing median)."
        fail(who, "some rows must be left", f"none of {len(keep)}", do, error=DataError)
    arrays = {role: A[keep] for role, A in arrays.items()}
    names = tuple(blocks["feature"])
    fill = _fill(who, names, arrays["feature"], notes) if missing == "median" else {}
    return Columns(
        X=arrays["feature"],
        Y=arrays.get("target"),
        feature_names=names,
        target_names=tuple(blocks["target"]),
        groups=pd.factorize(arrays["group"][:, 0])[0].astype(np.int64) if g else None,
        time=arrays["time"][:, 0] if t else None,
        notes=tuple(notes),
        fill=fill,
        rows=np.flatnonzero(keep),
        na_values={name: values for name, values in found.items() if name in names},
    )


def _without_marks(
    who: str, blocks: dict[str, dict[str, np.ndarray]], missing: str, notes: list[str]
) -> dict[str, tuple[float, ...]]:
    """Put NaN for marks in features and targets, with a note, or refuse them; what they were, by name."""
    columns = {**blocks["feature"], **blocks["target"]}
    marks = {name: found for name, values in columns.items() if (found := marks_of(values))}
    if marks and missing == "error":
        do = "use --missing drop or --missing median, which take them for missing; if they are measured values, add "
        _refused_marks(who, "columns", columns, marks, f"{do}--na-values '' (in Python: marks=False)")
    if marks:
        notes += _read_as_missing(columns, marks)
    for block in (blocks["feature"], blocks["target"]):
        block |= {n: np.where(np.isin(block[n], marks[n]), np.nan, block[n]) for n in block if n in marks}
    return marks


def match_columns(
    frame: pd.DataFrame,
    feature_names: Sequence[str],
    *,
    levels: Mapping[str, Sequence[str]] | None = None,
    fill: Mapping[str, float] | None = None,
    na_values: Mapping[str, Sequence[float]] | None = None,
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The features of a fitted model from a new table: by name, in the model's order, as finite float64.

    Parameters
    ----------
    frame : DataFrame (N, d)
        Other columns are passed over. Columns "0", "1", … are taken by position if there are as many as features and
        no name of the model is among them.
    feature_names : sequence of str
        ``Columns.feature_names`` of the fit. "city=Paris" is made from the column ``city`` if there is no such column.
    levels : mapping, optional
        Values of the text columns that were encoded; by default they are read off the names.
    fill : mapping, optional
        ``Columns.fill`` of the fit: what to put for missing values. A feature without one must have no gap.
    na_values : mapping, optional
        ``Columns.na_values`` of the fit: numbers that mean "missing".

    Returns
    -------
    X : array (N, len(feature_names))
    notes : tuple of str
    """
    who = "match_columns"
    place = _places(who, frame)
    names = [str(name) for name in feature_names]
    given = {name: value for name, value in (fill or {}).items() if math.isfinite(value)}
    notes = [str(note) for note in frame.attrs.get("isthmus_notes", ())]
    known = {f"{column}={level}": (column, str(level)) for column in levels or {} for level in (levels or {})[column]}
    sources = {name: _source(name, place, known) for name in names}
    absent = [name for name, source in sources.items() if source is None]
    count = [str(j) for j in range(len(names))]
    if absent == names and list(place) == count:
        sources, absent = {name: (j, None) for name, j in zip(names, count)}, []
        notes.append(f"the columns have no names: taken by position as {_listed(names)}")
    if absent or not names:
        must = f"the table must have the {_counted(len(names), 'feature')} of the model"
        do = f"Add or rename columns; the table has {_listed(list(place))}."
        fail(who, must, f"none for {_listed(absent)}", do, error=DataError)
    columns = {c: _values(who, c, frame.iloc[:, place[c]]) for c in dict.fromkeys(s[0] for s in sources.values() if s)}
    X, seen = np.empty((len(frame), len(names))), dict[str, np.ndarray]()
    for j, name in enumerate(names):
        column, level = sources[name] or ("", None)
        kind, values = columns[column]
        if level is None and kind != "number":
            got, do = f"{kind} in {shown(column, 60)}", "Write numbers with a decimal point, as in the data of the fit."
            if kind == "text" and _with_commas([cell for cell in values if cell is not None]):
                do = f"{_commas_in([column])}."
            fail(who, "features of the model must be numbers", got, do, error=DataError)
        X[:, j] = values if level is None else _indicator(values, level)
        if level is not None:
            seen[column] = seen.get(column, 0) + X[:, j]
    for column, hits in seen.items():
        if strange := int((hits == 0).sum()):
            rows = _counted(strange, "row")
            notes.append(
                f"{rows} with a value of {shown(column, 40)} that the model has not seen: its indicators are 0"
            )
    for j, name in enumerate(names):
        X[np.isin(X[:, j], list((na_values or {}).get(name, ()))), j] = np.nan
    _refuse_gaps(who, names, X, [name not in given for name in names])
    _fill(who, names, X, notes, given)
    return X, tuple(notes)


def _source(name: str, place: Mapping[str, int], known: Mapping[str, tuple[str, str]]) -> tuple[str, str | None] | None:
    """Column and level that the feature ``name`` comes from; a column of that very name comes first."""
    if name in place:
        return name, None
    if name in known:
        return known[name] if known[name][0] in place else None
    cuts = [i for i, character in enumerate(name) if character == "=" and name[:i] in place]
    return (name[: cuts[-1]], name[cuts[-1] + 1 :]) if cuts else None


def _places(who: str, frame: pd.DataFrame) -> dict[str, int]:
    """Position of each column by name, of a table that has rows."""
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        fail(who, "`frame` must be a pandas DataFrame", f"a {type(frame).__name__}", "Read a file with read_table.")
    if 0 in frame.shape:
        fail(who, "the table must have rows and columns", f"shape {frame.shape}", "Add some.", error=DataError)
    return {name: j for j, name in enumerate(_names(who, "the table", list(frame.columns)))}


def _matching(
    who: str, what: str, patterns: str | Sequence[str] | None, place: Mapping[str, int], *, need: bool = True
) -> list[str]:
    """Names that the patterns choose; if ``need``, at least one for each and one at all."""
    wanted = [patterns] if isinstance(patterns, str) else list(patterns or ())
    found: dict[str, None] = {}
    for pattern in (str(pattern).strip() for pattern in wanted):
        hits = [pattern] if pattern in place else []
        if not hits and what in ("targets", "features", "exclude"):
            hits = [name for name in place if fnmatch.fnmatchcase(name, pattern)]
        if not hits and need:
            short = [name for name in islice(place, 2000) if len(name) < 100]  # difflib is slow
            near = [name for name in short if name.lower() == pattern.lower()]
            near = near or difflib.get_close_matches(pattern[:100], short, 3)
            do = f"Did you mean {_listed(near)}? " if near else ""
            do += f"The table has {_listed(list(place), 12)}."
            fail(
                who,
                f"`{what}` must name columns of the table",
                f"no match for {shown(pattern, 60)}",
                do,
                error=DataError,
            )
        found |= dict.fromkeys(hits)
    if need and not found:
        fail(who, f"`{what}` must name a column", "none", f"The table has {_listed(list(place), 12)}.", error=DataError)
    return list(found)


def _refuse_gaps(who: str, names: Sequence[str], A: np.ndarray, judged: Sequence[bool] | None = None) -> None:
    """Fail if a (judged) column has missing or infinite values."""
    gaps = ~np.isfinite(A) & (True if judged is None else np.array(judged))
    counts = sorted(((int(n), j) for j, n in enumerate(gaps.sum(axis=0)) if n), key=lambda item: (-item[0], item[1]))
    if counts:
        said = []
        for n, j in counts[:4]:
            infinite = int((np.isinf(A[:, j]) & gaps[:, j]).sum())
            parts = [f"{n - infinite} missing"] * (n > infinite) + [f"{infinite} infinite"] * (infinite > 0)
            said.append(f"{shown(names[j], 40)}: {', '.join(parts)}")
        more = f"; and {len(counts) - 4} more columns" if len(counts) > 4 else ""
        got = f"{_counted(int(gaps.any(axis=1).sum()), 'row')} of {len(A)} with gaps ({'; '.join(said)}{more})"
        do = "Use --missing drop (leave out these rows) or --missing median (fill in features), or mend the data."
        if judged is not None:
            do = "Fill them in: the model was fitted without gaps there and has no value to put."
        fail(who, "values must be there and finite", got, do, error=DataError)


def _fill(
    who: str, names: Sequence[str], X: np.ndarray, notes: list[str], given: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Put medians, or given values, into the gaps of ``X``, in place; returns what was put."""
    used: dict[str, float] = {}
    gaps = ~np.isfinite(X)
    for j in np.flatnonzero(gaps.any(axis=0)).tolist():
        name, there = names[j], X[~gaps[:, j], j]
        if given is None and not there.size:
            do = "Leave it out with --exclude."
            fail(who, f"column {shown(name, 60)} must have a median", "no finite value", do, error=DataError)
        # Halved: the mean of the two middle values must not overflow.
        used[name] = float(given[name]) if given is not None else float(2 * np.median(there / 2))
        X[gaps[:, j], j] = used[name]
    if used:
        what = "the median" if given is None else "the value of the fit"
        cells = _counted(int(gaps.sum()), "missing or infinite value")
        notes.append(_replaced(cells, what, list(used)))
    return used
