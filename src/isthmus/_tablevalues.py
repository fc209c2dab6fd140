"""Columns of a table as numbers: text, dates, groups and indicators."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from isthmus._atomic import shown
from isthmus._checks import fail
from isthmus._errors import DataError

if TYPE_CHECKING:
    import pandas as pd
from isthmus._tablefile import _MISSING, _counted, _floats, _listed

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
