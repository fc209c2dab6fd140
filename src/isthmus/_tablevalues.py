"""Columns of a table as numbers: text, dates, groups and indicators."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from isthmus._atomic import shown
from isthmus._checks import fail
from isthmus._errors import DataError

if TYPE_CHECKING:
    import pandas as pd
from isthmus._tablefile import _MISSING, _counted, _floats, _listed

MAX_LEVELS = 20
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
    numeric = _floats([_written(cell) for cell in cells])
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


def _time(who: str, name: str, series: pd.Series) -> np.ndarray:
    import pandas as pd

    kind, values = _values(who, name, series)
    if kind != "text":
        return values
    readings: list[np.ndarray] = []
    for form in ("ISO8601", *_DATES):
        try:
            readings.append(_seconds(pd.Series(pd.to_datetime(pd.Series(values), format=form, utc=True))))
        except (ValueError, OverflowError):
            continue
    if readings and all(np.array_equal(readings[0], reading, equal_nan=True) for reading in readings):
        return readings[0]
    example = shown(next(cell for cell in values if cell is not None), 40)
    got = f"{example}, where day and month may be either" if readings else f"text such as {example}"
    do = "Write numbers, or dates as 2020-12-31 23:59:59."
    return fail(who, f"the time column {shown(name, 60)} must hold numbers or dates", got, do, error=DataError)


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
    refused, dropped = [], []
    for name in names:
        kind, values = _values(who, name, frame.iloc[:, place[name]])
        if kind == "date":
            do = "Pass it as --time, leave it out with --features, or store a number such as days since a start."
            fail(who, f"column {shown(name, 60)} must hold numbers", "dates", do, error=DataError)
        columns = {name: values}
        if kind == "text":
            levels = sorted({*values} - {None})
            if text == "drop":
                dropped.append(name)
                continue
            if text == "error" or len(levels) > MAX_LEVELS:
                word = next(level for level in levels if _floats([level]) is None)
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
        do = "Leave them out with --features, or encode text of few values by --text indicators (a 0/1 column for each)"
        fail(who, must, got, do + "; numbers need a decimal point, dates go to --time.", error=DataError)
    if dropped:
        notes.append(f"left out {_counted(len(dropped), 'text column')}: {_listed(dropped)}")
    return found
