"""Tables: text, Parquet and NumPy files read strictly, then columns chosen by name."""

from __future__ import annotations

import difflib
import fnmatch
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from isthmus._atomic import shown
from isthmus._checks import check_choice, fail
from isthmus._errors import DataError
from isthmus._oddities import marks_of
from isthmus._tablefile import _MISSING, _counted, _floats, _listed, _names, read_table

if TYPE_CHECKING:
    import pandas as pd

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


# ---- Columns of a table as numbers: text, dates, groups and indicators


MAX_LEVELS = 20
#: An ISO time that says no offset from UTC.
_NAIVE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d([.,]\d+)?)?")
_DATES = [f"{day}{clock}" for day in ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y") for clock in ("", " %H:%M", " %H:%M:%S")]


def _values(who: str, name: str, series: pd.Series) -> tuple[str, np.ndarray]:
    """A column as "number" (float64), "date" (float64, seconds) or "text" (stripped, None where missing)."""
    import pandas as pd

    kind = getattr(series.dtype, "kind", "O")
    if kind in "biuf":
        # What float64 cannot hold becomes infinite, and signalling NaNs plain ones: both are reported as gaps.
        with np.errstate(over="ignore", invalid="ignore"):
            return "number", series.to_numpy(np.float64, na_value=np.nan)
    if kind in "mM":
        return "date", _seconds(series)
    cells = _cells(series)
    present = [cell for cell in cells if cell is not None]
    if any(isinstance(cell, (complex, np.complexfloating)) for cell in present):
        do = "Store real and imaginary part as two columns."
        fail(who, f"column {shown(name, 60)} must be real", "complex numbers", do, error=DataError)
    if present and pd.api.types.infer_dtype(present, skipna=True) in ("date", "datetime", "datetime64"):
        return "date", _seconds(pd.Series(cells))
    if present and all(isinstance(cell, str) and cell.lower() in ("true", "false") for cell in present):
        return "number", np.array([math.nan if cell is None else float(cell.lower() == "true") for cell in cells])
    # The mark that the file was read with: what it made text must not become a number by the other.
    mark = series.attrs.get("isthmus_decimal", ".") if all(isinstance(cell, str) for cell in present) else "."
    numeric = _floats([_written(cell) for cell in cells], decimal=mark)
    if numeric is not None:
        return "number", numeric
    return "text", np.array([cell if cell is None else str(cell) for cell in cells], object)


def _cells(series: pd.Series) -> list[Any]:
    import pandas as pd

    values = series.astype(object).to_numpy()
    bare = (cell.strip() if isinstance(cell, str) else cell for cell in values)
    return [None if gone or (isinstance(c, str) and c in _MISSING) else c for c, gone in zip(bare, pd.isna(values))]


def _written(cell: Any) -> str:
    """The text of a cell, for :func:`_floats`."""
    if cell is None or isinstance(cell, str):
        return cell or ""
    try:
        return repr(float(cell))
    except OverflowError:
        return "inf"
    except (TypeError, ValueError):
        return "text"


def _seconds(series: pd.Series) -> np.ndarray:
    """Dates as seconds since 1970 (UTC), durations as seconds, NaN where missing."""
    import pandas as pd

    if getattr(series.dtype, "kind", "O") != "m":
        series = pd.to_datetime(series, utc=True).dt.tz_localize(None)
    values = series.to_numpy()
    scale = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[np.datetime_data(values.dtype)[0]]
    return np.where(np.isnat(values), np.nan, values.astype(np.int64) / scale)


def _time(who: str, name: str, series: pd.Series, what: str = "", do: str = "") -> np.ndarray:
    """A column as numbers that order it in time: as given, or seconds since 1970 (UTC) of dates, also as text."""
    import pandas as pd

    kind, values = _values(who, name, series)
    if kind != "text":
        return values
    # Before version 3 pandas gives a time without an offset that of the time before it.
    marked = np.array([f"{cell}Z" if cell and _NAIVE.fullmatch(cell) else cell for cell in values], object)
    readings: list[np.ndarray] = []
    for form in ("ISO8601", *_DATES):
        try:
            readings.append(_seconds(pd.Series(pd.to_datetime(pd.Series(marked), format=form, utc=True))))
        except (ValueError, OverflowError):
            continue
    if readings and all(np.array_equal(readings[0], reading, equal_nan=True) for reading in readings):
        return readings[0]
    example = shown(next(cell for cell in values if cell is not None), 40)
    got = f"{example}, where day and month may be either" if readings else f"text such as {example}"
    do = do or "Write numbers, or dates as 2020-12-31 23:59:59."
    what = what or f"the time column {shown(name, 60)}"
    return fail(who, f"{what} must hold numbers or dates", got, do, error=DataError)


def as_moments(who: str, name: str, values: Any) -> Any:
    """An argument of dates, whatever they came in and of any time zone, as the time column of a table is read.

    Numbers, and what is not one entry for each row, are given back as they came.
    """
    import pandas as pd

    if isinstance(values, pd.DataFrame) and values.shape[1] == 1:
        values = values.iloc[:, 0]
    if not isinstance(values, (pd.Series, pd.Index)):
        if hasattr(values, "detach"):  # a tensor holds numbers
            return values
        if np.ma.is_masked(values):
            # Which the next line would forget.
            got = f"{int(np.ma.count_masked(values))} masked"
            fail(who, f"`{name}` must have no masked entries", got, "Drop these rows.", error=DataError)
        try:
            array = np.asarray(values)
        except ValueError:
            return values
        array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
        if array.ndim != 1 or array.dtype.kind in "biufc":
            return values
        values = array
    do = "Pass dates, which pandas.to_datetime(…, dayfirst=True) or its format= reads from text, or numbers."
    return _time(who, name, pd.Series(values), f"`{name}`", do)


def _group(who: str, name: str, series: pd.Series) -> np.ndarray:
    """Codes in order of appearance, NaN where missing. Not by float64: long integers would be confused."""
    import pandas as pd

    plain = getattr(series.dtype, "kind", "O") in "biufmM"
    values = series if plain else np.array([c if c is None else str(c) for c in _cells(series)], object)
    codes = pd.factorize(values)[0]
    return np.where(codes < 0, np.nan, codes)


def _indicator(values: np.ndarray, level: str) -> np.ndarray:
    """1 where a column has the value ``level``, else 0, NaN where missing; the column may have become numeric."""
    if values.dtype != object:
        number = _floats([level])
        return np.where(np.isnan(values), np.nan, 0.0 if number is None else values == number[0])
    return np.array([math.nan if cell is None else float(cell == level) for cell in values])


def _encode(
    who: str, frame: pd.DataFrame, place: Mapping[str, int], names: Sequence[str], text: str, notes: list[str]
) -> dict[str, np.ndarray]:
    """Columns of numbers by name: as they are, or the indicators of a column of text."""
    found: dict[str, np.ndarray] = {}
    refused, dropped, commas = [], [], []
    mark = frame.attrs.get("isthmus_decimal", ".")
    for name in names:
        kind, values = _values(who, name, frame.iloc[:, place[name]])
        if kind == "date":
            do = "Pass it as --time, leave it out with --exclude, or store a number such as days since a start."
            fail(who, f"column {shown(name, 60)} must hold numbers", "dates", do, error=DataError)
        columns = {name: values}
        if kind == "text":
            levels = sorted({*values} - {None})
            if mark == "." and _with_commas(levels):
                commas.append(name)
            if text == "drop":
                dropped.append(name)
                continue
            if text == "error" or len(levels) > MAX_LEVELS:
                word = next((level for level in levels if _floats([level]) is None), levels[0])
                refused.append(
                    f"{shown(name, 40)} ({_counted(len(levels), 'distinct value')}, such as {shown(word, 30)})"
                )
                continue
            columns = {f"{name}={level}": _indicator(values, level) for level in levels}
            notes.append(f"encoded text column {shown(name, 40)} as {_counted(len(levels), 'indicator column')}")
        if clash := [column for column in columns if column in found or (column != name and column in place)]:
            fail(who, "names must stay different", f"two columns {_listed(clash)}", "Rename one.", error=DataError)
        found |= columns
    if refused:
        must = "columns must be numbers" + (f" or text of at most {MAX_LEVELS} values" if text == "indicators" else "")
        got = f"text in {', '.join(refused[:4])}" + (f" and {len(refused) - 4} more" if len(refused) > 4 else "")
        if commas:
            do = f"{_commas_in(commas)}. Else leave them out with --exclude, or encode them by --text indicators."
            fail(who, must, got, do, error=DataError)
        do = "Leave them out with --exclude, or encode text of few values by --text indicators (a 0/1 column for each)"
        number = "numbers need a decimal " + ("point" if mark == "." else "comma and no other mark")
        fail(who, must, got, f"{do}; {number}, dates go to --time.", error=DataError)
    if commas:
        notes.append(_commas_in(commas))
    if dropped:
        notes.append(f"left out {_counted(len(dropped), 'text column')}: {_listed(dropped)}")
    return found


def _with_commas(levels: Sequence[str]) -> bool:
    """Whether texts are numbers if a comma is a decimal mark, and one has a comma; it may also mark thousands."""
    return any("," in level for level in levels) and _floats(levels, decimal=",") is not None


def _commas_in(names: Sequence[str]) -> str:
    """What to say of columns that :func:`_with_commas` is true of."""
    hold = "holds" if len(names) == 1 else "hold"
    reading = "add --decimal , (in Python: read_table(path, decimal=','), or decimal=',' of pandas.read_csv)"
    return f"{_listed(names)} {hold} numbers with commas: if these are decimal commas, {reading}"


def _replaced(cells: str, what: str, names: Sequence[str]) -> str:
    """The note that gaps were filled."""
    return f"replaced {cells} by {what} of {_counted(len(names), 'column')}: {_listed(names)}"


def _read_as_missing(columns: Mapping[str, np.ndarray], marks: Mapping[str, Sequence[float]]) -> list[str]:
    """The note that marks, by name of column, were taken for missing values."""
    listed = _marked(columns, marks)
    some = ", ".join(listed[:4]) + (f" and {len(listed) - 4} more columns" if len(listed) > 4 else "")
    return [f"read as missing: {some}"]


def _refused_marks(
    who: str, name: str, columns: Mapping[str, np.ndarray], marks: Mapping[str, Sequence[float]], do: str
) -> NoReturn:
    """Fail: numbers far outside the rest of their columns stand for "missing"."""
    listed = _marked(columns, marks)
    got = ", ".join(listed[:4]) + (f" and {len(listed) - 4} more columns" if len(listed) > 4 else "")
    must = f"{name} must hold no marks of missing values, numbers far outside the rest of their column"
    fail(who, must, got, f"{do[0].upper()}{do[1:]}.", error=DataError)


def _marked(columns: Mapping[str, np.ndarray], marks: Mapping[str, Sequence[float]]) -> list[str]:
    """Of each column its marks, how often they are there, and the range of the rest."""
    out = []
    for name, values in marks.items():
        column = columns[name]
        rest = column[np.isfinite(column) & ~np.isin(column, values)]
        times = ", ".join(f"{value:.10g} {_times(int((column == value).sum()))}" for value in values)
        wide = f"; the rest is {rest.min():.3g} to {rest.max():.3g}" if rest.size else ""
        out.append(f"{times} in {shown(name, 40)}{wide}")
    return out


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
