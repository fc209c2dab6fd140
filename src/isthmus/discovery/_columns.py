"""Tables as people have them, as numbers: names, gaps, labels, and which columns are at fault."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from isthmus._atomic import shown
from isthmus._checks import as_matrix, check_number, fail, without_mask
from isthmus._errors import DataError
from isthmus._oddities import LARGEST, copies, has_heavy_tails, is_key, limits_of, marks_of, numbers_rows
from isthmus._settings import Settings
from isthmus._tablefile import _counted, _listed
from isthmus.tables import _read_as_missing, _refused_marks, _replaced, _with_commas

Array = NDArray[np.float64]

#: Of the input and of the output columns.
Names = tuple[tuple[str, ...], tuple[str, ...]]

#: Columns that a message names.
SHOWN = 4

#: Columns beyond which nothing is said of their tails.
MANY = 50


@dataclass(frozen=True, eq=False)
class Mending:
    """What is done to the inputs before the maps see them, to those of the fit and to new ones.

    Attributes
    ----------
    fill : array (d_in,) or None
        Medians that stand in for missing values.
    na_values : mapping of name to values
        Of the inputs in which some numbers stood for "missing".
    limits : mapping of name to (low, high)
        Of the inputs that had gross outliers: values beyond become these.
    """

    fill: Array | None = None
    na_values: Mapping[str, Sequence[float]] = field(default_factory=dict)
    limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def __call__(self, who: str, X: Any, names: Sequence[str]) -> Any:
        """X as the maps take it; as it came where there is nothing to do, or where its columns are not theirs."""
        if self.fill is None and not self.limits:
            return X
        array = numbers(who, "X", X) if self.fill is None else with_gaps(who, X)
        if array.ndim != 2 or array.shape[1] != len(names):
            return array
        array = array.copy()
        for j, name in enumerate(names):
            array[np.isin(array[:, j], self.na_values.get(name, ())), j] = np.nan
            if name in self.limits:
                array[:, j] = array[:, j].clip(*self.limits[name])
        return array if self.fill is None else np.where(np.isnan(array), self.fill, array)

    @property
    def settings(self) -> dict[str, Any]:
        """What a :class:`~isthmus.discovery.Discovery` keeps of it as plain data; the medians it has itself."""
        limits = {name: list(pair) for name, pair in self.limits.items()}
        parts = {"na_values": {name: list(values) for name, values in self.na_values.items()}, "limits": limits}
        return {name: part for name, part in parts.items() if part}

    @staticmethod
    def of(who: str, settings: Mapping[str, Any], fill: Array | None) -> Mending:
        """Inverse of :attr:`settings`, for data from a file."""
        parts: list[dict[str, tuple[float, ...]]] = []
        for key in ("na_values", "limits"):
            given = settings.get(key, {})
            if not isinstance(given, dict) or not all(isinstance(values, list) for values in given.values()):
                fail(who, f"`{key}` must be lists of numbers by name", ascii(given)[:200], "The file was altered.")
            parts.append({str(n): tuple(check_number(who, key, value) for value in given[n]) for n in given})
        limits = {name: (pair[0], pair[-1]) for name, pair in parts[1].items() if pair}
        return Mending(fill, parts[0], limits)


@dataclass(frozen=True, eq=False)
class Table:
    """Inputs and outputs as finite numbers, labels as rows of 0 and 1, and how they came to be that."""

    X: Array
    Y: Array
    names: Names
    mending: Mending
    notes: tuple[str, ...]


def read_arrays(
    X: Any, Y: Any, settings: Settings, feature_names: Any, target_names: Any, na_values: Sequence[float] | None = None
) -> Table:
    """The arguments of :func:`isthmus.discover`, checked, with gaps filled and outliers limited."""
    who, notes = "discover", []
    frame_names = column_names(X), column_names(Y)
    same, median = Y is X, settings.missing == "median"
    X, Y = without_mask(X), without_mask(Y)
    inputs = with_gaps(who, X) if median else numbers(who, "X", X)
    names_in = checked_names(who, frame_names[0] if feature_names is None else feature_names, inputs.shape[1], "x")
    marks = _marks(who, inputs, names_in, na_values)
    if marks and not median:
        do = "put NaN in their place and pass missing='median', or drop these rows; if they are measured values, pass"
        _refused_marks(who, "`X`", dict(zip(names_in, inputs.T)), marks, f"{do} na_values=()")
    if marks:
        notes += _read_as_missing(dict(zip(names_in, inputs.T)), marks)
        inputs = _unmarked(inputs, names_in, marks)
    fill = None
    if median:
        inputs, fill, lost = _filled(who, inputs)
        if lost.any():
            which = [names_in[j] for j in np.flatnonzero(lost.any(axis=0)).tolist()]
            notes.append(_replaced(_counted(int(lost.sum()), "missing value"), "the median", which))
    if settings.loss == "cross_entropy":
        targets, classes = one_hot(who, Y)
        frame_names = frame_names[0], classes.tolist()
    else:
        targets = inputs.copy() if same else numbers(who, "Y", Y)
    if len(inputs) != len(targets):
        got = f"{len(inputs)} and {len(targets)}"
        fail(who, "`X` and `Y` must have as many rows", got, "Align them.", error=DataError)
    names_out = checked_names(who, frame_names[1] if target_names is None else target_names, targets.shape[1], "y")
    limits: dict[str, tuple[float, float]] = {}
    for name, A, own in (("X", inputs, names_in), ("Y", targets, names_out)):
        _refuse_huge(who, name, A, own)
    if settings.loss == "mse" and not same and (found := _marks(who, targets, names_out, na_values)):
        do = "drop these rows: nothing can be learned from an output that is not there; if they are measured"
        _refused_marks(who, "`Y`", dict(zip(names_out, targets.T)), found, f"{do} values, pass na_values=()")
    inputs, limits, said = _limited(inputs, names_in, "input")
    notes += said
    if same:
        targets = inputs.copy()
    elif settings.loss == "mse":
        targets, _, said = _limited(targets, names_out, "output")
        notes += said
    notes += _suspects(inputs, targets, names_in, names_out)
    return Table(inputs, targets, (names_in, names_out), Mending(fill, marks, limits), tuple(notes))


def _marks(who: str, A: Array, names: Sequence[str], na_values: Sequence[float] | None) -> dict[str, tuple[float, ...]]:
    """By name of column the numbers in it that stand for "missing": those given, or those that look like it."""
    given = None if na_values is None else [check_number(who, "na_values", value) for value in na_values]
    found = {}
    for name, column in zip(names, A.T):
        marks = marks_of(column) if given is None else tuple(value for value in given if (column == value).any())
        if marks:
            found[name] = marks
    return found


def _unmarked(A: Array, names: Sequence[str], marks: Mapping[str, Sequence[float]]) -> Array:
    """``A`` with NaN for its marks."""
    return np.column_stack([np.where(np.isin(a, marks.get(name, ())), np.nan, a) for name, a in zip(names, A.T)])


def _refuse_huge(who: str, name: str, A: Array, names: Sequence[str]) -> None:
    """Fail where numbers are too large to be centred and scaled."""
    if not (huge := np.abs(A).max(axis=0) > LARGEST).any():
        return
    which = [f"{shown(names[j], 40)} ({A[np.abs(A[:, j]).argmax(), j]:.3g})" for j in np.flatnonzero(huge).tolist()]
    do = "Write such a column in another unit, or take logarithms: the rank does not change."
    fail(who, f"values of `{name}` must be at most {LARGEST:g}", _some(which), do, error=DataError)


_MONOTONE = "pass a growing function of the column, such as its logarithm or arsinh: the rank does not change"


def _limited(
    A: Array, names: Sequence[str], what: str
) -> tuple[Array, dict[str, tuple[float, float]], tuple[str, ...]]:
    """``A`` with its gross outliers put at the end of the range of the rest; that range by name; notes."""
    limits, said, changed = {}, [], A.copy()
    for j, name in enumerate(names):
        if (limit := limits_of(A[:, j])) is None:
            continue
        limits[name] = limit
        beyond = A[(A[:, j] < limit[0]) | (A[:, j] > limit[1]), j]
        changed[:, j] = A[:, j].clip(*limit)
        worst = beyond[np.abs(beyond - np.median(A[:, j])).argmax()]
        said.append(
            f"{shown(name, 40)} ({len(beyond)}, such as {worst:.6g}; the rest {limit[0]:.3g} to {limit[1]:.3g})"
        )
    # Of pixels and spectra nothing is said: many are dark but for a few rows.
    heavy = [name for name, a in zip(names, changed.T) if len(names) <= MANY and has_heavy_tails(a)]
    notes = (f"heavy tails of {what} columns, hard to learn from: {_listed(heavy)}; {_MONOTONE}",) if heavy else ()
    if not said:
        return A, {}, notes
    note = (
        f"gross outliers in {_counted(len(said), f'{what} column')}, which carry most of the variance, were put at the "
        f"end of the range of the rest: {_some(said)}; if they are right, {_MONOTONE}"
    )
    return changed, limits, (note, *notes)


#: Rows that are looked at for columns which should not be inputs.
_LOOKED_AT = 2000


def _suspects(X: Array, Y: Array, names_in: Sequence[str], names_out: Sequence[str]) -> list[str]:
    """Notes on inputs that number the rows, are keys, or copy a target; none of an autoencoder."""
    if X.shape == Y.shape and np.array_equal(X, Y):
        return []
    notes = []
    if numbered := [name for name, column in zip(names_in, X.T) if numbers_rows(column)]:
        does = "numbers the rows and is an input" if len(numbered) == 1 else "number the rows and are inputs"
        do = "leave an identifier out, pass a time as `time` (--exclude, --time)"
        notes.append(f"{_listed(numbered)} {does} like any other (different whole numbers in order): {do}")
    keys = [name for name, column in zip(names_in, X.T) if name not in numbered and is_key(column, Y)]
    if keys:
        does = "looks like a key" if len(keys) == 1 else "look like keys"
        notes.append(
            f"{_listed(keys)} {does}: different whole numbers that predict nothing; leave identifiers out (--exclude)"
        )
    rows = slice(None, None, max(1, -(-len(X) // _LOOKED_AT)))
    if pairs := copies(X[rows], Y[rows]):
        listed = [f"{shown(names_in[i], 40)} of {shown(names_out[j], 40)}" for i, j in pairs]
        what = "an input is a copy of a target" if len(pairs) == 1 else "inputs are copies of targets"
        notes.append(f"{what}, up to a monotone function: {_some(listed)}; leave out what is known no earlier than Y")
    return notes


def checked_names(who: str, given: Any, count: int, letter: str) -> tuple[str, ...]:
    """``count`` different names as given, or x0, x1, …"""
    if given is None:
        return tuple(f"{letter}{i}" for i in range(count))
    names = tuple(str(name) for name in given)
    if len(names) != count or len(set(names)) != count:
        got = f"{len(names)}, {len(set(names))} of them different"
        fail(who, f"names must be {count} different texts", got, "Name every column once.")
    return names


def column_names(A: Any) -> list[str] | None:
    """Those of a DataFrame or Series."""
    columns = getattr(A, "columns", None)
    if columns is not None:
        return [str(name) for name in columns]
    name = getattr(A, "name", None)
    return [name] if isinstance(name, str) else None


def holds_dates(A: Any) -> bool:
    """Whether ``A`` has a column of dates, which NumPy would make numbers of, in an arbitrary unit."""
    kinds = getattr(A, "dtypes", getattr(A, "dtype", None))
    return any(getattr(kind, "kind", "") in tuple("mM") for kind in (kinds if isinstance(kinds, Iterable) else [kinds]))


def numbers(who: str, name: str, A: Any, *, missing: str = "error") -> NDArray[np.float64]:
    """``A`` as finite numbers (N, d), or an error that names the columns and what to do.

    Parameters
    ----------
    who, name : str
        Of the function and its argument.
    A : array, DataFrame, …
    missing : {"error", "median"}
        What to do about NaN in the inputs.
    """
    try:
        return as_matrix(who, name, A).numpy()
    except DataError as problem:
        caught = problem
    # Outside of the handler: the general message would stand in the traceback as another error.
    refuse_columns(who, name, A, missing=missing)
    raise caught


def refuse_columns(who: str, name: str, A: Any, *, missing: str = "error", fitted: bool = False) -> None:
    """Fail if columns of ``A`` hold text, dates or (unless they are filled) gaps; return if none is at fault.

    Parameters
    ----------
    who, name, A
        As in :func:`numbers`; "X" are inputs, another name is that of outputs.
    missing : {"error", "median"}
        With "median" NaN is no fault.
    fitted : bool
        The rows are new ones for a model that is fitted already.
    """
    texts, dates, gaps, cells = [], [], [], 0
    lost, infinite = 0, 0
    for label, column in _columns(A):
        values = np.asarray(column)
        cells += len(values)
        kind, example = _kind(values)
        if kind == "text":
            texts.append((label, example))
        elif kind == "date":
            dates.append(label)
        elif kind == "number":
            holes, huge = _holes(values)
            holes = 0 if missing == "median" and name == "X" else holes
            if holes or huge:
                parts = [f"{holes} NaN"] * bool(holes) + [f"{huge} infinite"] * bool(huge)
                gaps.append(f"{label}: {', '.join(parts)}")
            lost, infinite = lost + holes, infinite + huge
    if texts:
        got = "text in " + _some([f"{label} (such as {shown(example, 30)})" for label, example in texts])
        fail(who, f"`{name}` must be numbers", got, _about_text(name, texts), error=DataError)
    if dates:
        do = "Leave them out of the columns, and pass them as `time=` if they order the rows."
        fail(who, f"`{name}` must be numbers", f"dates in {_some(dates)}", do, error=DataError)
    if gaps:
        got = f"{lost + infinite} NaN or infinite of {cells} values ({_some(gaps)})"
        fail(who, f"`{name}` must be finite", got, _about_gaps(name, lost, infinite, fitted), error=DataError)


def _columns(A: Any) -> Iterator[tuple[str, Any]]:
    """Each column with what to call it; none of what is no table."""
    names = column_names(A)
    if isinstance(A, (pd.DataFrame, pd.Series)):
        parts: Any = [A] if isinstance(A, pd.Series) else [A.iloc[:, j] for j in range(A.shape[1])]
    else:
        try:
            array = np.asarray(A.detach().cpu() if hasattr(A, "detach") else without_mask(A))
        except (TypeError, ValueError):  # ragged, or nothing that NumPy knows
            return
        if array.ndim not in (1, 2):
            return
        parts = [array] if array.ndim == 1 else array.T
    for j, part in enumerate(parts):
        yield (f"column {j}" if names is None or len(names) <= j else f"column {shown(names[j], 40)}"), part


def _kind(values: NDArray[Any]) -> tuple[str, str]:
    """Either "number", "date", "text" with an example, or "other", for which there is no advice."""
    if values.dtype.kind in "biuf":
        return "number", ""
    if values.dtype.kind in "mM":
        return "date", ""
    there = values[~pd.isna(values)] if values.dtype.kind == "O" else values
    if pd.api.types.infer_dtype(there) in ("datetime", "datetime64", "date", "timedelta", "timedelta64"):
        return "date", ""
    for cell in there.tolist():
        try:
            float(cell)
        except (TypeError, ValueError):
            return ("text", cell) if isinstance(cell, str) else ("other", "")
    return "number", ""


def _holes(values: NDArray[Any]) -> tuple[int, int]:
    """How many values are missing, and how many infinite."""
    if values.dtype.kind == "O":
        values = np.array([np.nan if gone else float(cell) for cell, gone in zip(values, pd.isna(values))])
    values = values.astype(np.float64)
    return int(np.isnan(values).sum()), int(np.isinf(values).sum())


def _some(parts: list[str]) -> str:
    return ", ".join(parts[:SHOWN]) + (f" and {len(parts) - SHOWN} more" if len(parts) > SHOWN else "")


def _about_text(name: str, texts: list[tuple[str, str]]) -> str:
    do = "Drop them, or make numbers of them: pandas.get_dummies, or scikit-learn's OneHotEncoder in a pipeline."
    if name != "X":
        do = f"{do} Classes are for BottleneckClassifier or loss='cross_entropy'."
    if commas := [example for _, example in texts if _with_commas([example])]:
        mark = f"If the comma of {shown(commas[0], 30)} is a decimal mark, read the file with"
        return f"{mark} pandas.read_csv(…, decimal=','). {do}"
    return do


def _about_gaps(name: str, lost: int, infinite: int, fitted: bool) -> str:
    if name != "X":
        return "Drop these rows: nothing can be learned from an output that is not there."
    if not lost:
        return f"Clip or drop {'them' if infinite > 1 else 'it'}: missing='median' fills in NaN only."
    if fitted:
        return "Fill them in, or fit with missing='median', which keeps medians for new rows."
    return "Pass missing='median' to fill in medians, impute (SimpleImputer in a pipeline), or drop these rows."


def with_gaps(who: str, X: Any) -> Array:
    """X as numbers, missing ones (None, pandas' NA and what is masked too) as NaN."""
    X = without_mask(X)
    try:
        if holds_dates(X):
            array = None
        elif hasattr(X, "to_numpy"):
            array = X.to_numpy(dtype=np.float64, na_value=np.nan)
        else:
            array = np.array(X, dtype=np.float64)
    except (TypeError, ValueError):
        array = None
    if array is None:
        refuse_columns(who, "X", X, missing="median")
        fail(who, "`X` must be numeric", "something else", "Encode text columns as numbers.", error=DataError)
    return array[:, None] if array.ndim == 1 else array


def _filled(who: str, array: Array) -> tuple[Array, Array, NDArray[np.bool_]]:
    """An array with medians in place of NaN, the medians, and where NaN was."""
    lost = np.isnan(array)
    if lost.all(axis=0).any():
        columns = np.flatnonzero(lost.all(axis=0))[:5].tolist()
        fail(who, "every column of `X` must have a value", f"none in columns {columns}", "Drop them.", error=DataError)
    fill = np.nanmedian(array, axis=0)
    return np.where(lost, fill, array), fill, lost


def one_hot(who: str, labels: Any) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Labels (N,) as rows (N, K) of 0 and 1, and the K classes in their order.

    Parameters
    ----------
    who : str
        For errors.
    labels : array (N,)
        Integers, truth values, texts or other things that can be sorted; a column (N, 1) is taken as flat.
    """
    values = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or not len(values):
        do = "Pass one label for each row; rows of 0 and 1 become labels by argmax(axis=1)."
        fail(who, "`Y` must be one class label for each row", f"shape {values.shape}", do, error=DataError)
    lost = int(pd.isna(values).sum())
    if lost:
        do = "Drop these rows, or give them a class of their own."
        fail(who, "every row must have a class", f"{lost} without one", do, error=DataError)
    if values.dtype.kind == "f" and not np.array_equal(values, np.round(values)):
        do = "Use loss='mse' for numbers, or cut them into classes."
        got = "Unknown label type: continuous numbers"
        fail(who, "`Y` must be class labels for loss='cross_entropy'", got, do, error=DataError)
    try:
        classes, index = np.unique(values, return_inverse=True)
    except TypeError:
        fail(who, "class labels must be of one type", "a mixture", "Convert all to text.", error=DataError)
    names = [str(name) for name in classes.tolist()]
    if len(set(names)) != len(names):
        fail(who, "classes must have different names", f"{names[:6]}", "Rename one of them.", error=DataError)
    return np.eye(len(classes))[index.reshape(-1)], classes
