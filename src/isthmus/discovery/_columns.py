"""Tables as people have them, as numbers: names, gaps, labels, and which columns are at fault."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from isthmus._atomic import shown
from isthmus._checks import as_matrix, fail
from isthmus._errors import DataError
from isthmus._settings import Settings
from isthmus._tablefile import _counted
from isthmus._tablevalues import _replaced, _with_commas

Array = NDArray[np.float64]

#: Of the input and of the output columns.
Names = tuple[tuple[str, ...], tuple[str, ...]]

#: Columns that a message names.
SHOWN = 4


def read_arrays(
    X: Any, Y: Any, settings: Settings, feature_names: Any, target_names: Any
) -> tuple[Array, Array, Names, Array | None, tuple[str, ...]]:
    """Inputs and outputs as numbers (labels as rows of 0 and 1), their names, and medians put for gaps, with a note."""
    who = "discover"
    fill, lost = None, None
    frame_names = column_names(X), column_names(Y)
    if settings.missing == "median":
        X, fill, lost = _filled(who, X)
    inputs = numbers(who, "X", X, missing=settings.missing)
    if settings.loss == "cross_entropy":
        targets, classes = one_hot(who, Y)
        frame_names = frame_names[0], classes.tolist()
    else:
        targets = numbers(who, "Y", Y)
    if len(inputs) != len(targets):
        got = f"{len(inputs)} and {len(targets)}"
        fail(who, "`X` and `Y` must have as many rows", got, "Align them.", error=DataError)
    names = (
        checked_names(who, frame_names[0] if feature_names is None else feature_names, inputs.shape[1], "x"),
        checked_names(who, frame_names[1] if target_names is None else target_names, targets.shape[1], "y"),
    )
    notes: tuple[str, ...] = ()
    if lost is not None and lost.any():
        which = [names[0][j] for j in np.flatnonzero(lost.any(axis=0)).tolist()]
        notes = (_replaced(_counted(int(lost.sum()), "missing value"), "the median", which),)
    return inputs, targets, names, fill, notes


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
    """Whether ``A`` has a column of dates, which NumPy would make numbers of, in a unit that nobody chose."""
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
        What the caller was told to do about NaN in the inputs.
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
            array = np.asarray(A.detach().cpu() if hasattr(A, "detach") else A)
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
    """X as numbers, missing ones (None and pandas' NA too) as NaN."""
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


def _filled(who: str, X: Any) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """X with medians in place of NaN, the medians, and where NaN was."""
    array = with_gaps(who, X)
    lost = np.isnan(array)
    if array.ndim == 2 and lost.all(axis=0).any():
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
