"""The data of a discovery: checked, in canonical order, with what is known before any training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from torch import Tensor

from isthmus._atomic import shown
from isthmus._checks import as_matrix, fail
from isthmus._errors import DataError
from isthmus._tablevalues import _with_commas, as_moments
from isthmus.discovery._splits import Splits, canonical_order
from isthmus.discovery._walk import Data
from isthmus.objective import constant_cost

Array = NDArray[np.float64]

#: Of the input and of the output columns.
Names = tuple[Sequence[str], Sequence[str]]


#: Columns beyond which inputs or outputs are rotated onto their principal axes.
COLUMNS = 256

#: Correlation of neighbouring rows above which they may be a series.
CORRELATED = 0.5


@dataclass(frozen=True, eq=False)
class Task:
    """Rows in canonical order.

    Attributes
    ----------
    X, Y : array
    groups : array of int, or None
    splits : Splits
    bound : int
        The rank cannot exceed it, whatever the data.
    why : str
        Where the bound comes from.
    notes : tuple of str
        What was noticed about the data.
    """

    X: Array
    Y: Array
    groups: NDArray[np.int64] | None
    splits: Splits
    bound: int
    why: str
    notes: tuple[str, ...]
    seed: int
    max_samples: int
    loss: str = "mse"
    units: str = "own"

    @property
    def autoencoder(self) -> bool:
        """Whether the outputs are the inputs."""
        return self.loss == "mse" and np.array_equal(self.X, self.Y)

    def data(self, index: int) -> tuple[Data, Scaling, Scaling]:
        """The ``index``-th division, scaled by its training rows, thinned to ``max_samples`` on either side."""
        rng = np.random.default_rng([self.seed, index, 1])
        train, held = (self._thinned(rows, rng) for rows in self.splits(index))
        inputs = Scaling.fit(self.X[train], COLUMNS, self.units)
        outputs = outputs_of(self.Y[train], self.loss, self.units)
        Y = outputs(self.Y[train])
        classes = self.loss == "cross_entropy"
        variance = constant_cost(torch.from_numpy(Y), self.loss) if classes else float((Y**2).sum() / len(Y))

        def tensor(A: Array) -> torch.Tensor:
            return torch.from_numpy(A).float()

        data = Data(
            tensor(inputs(self.X[train])),
            tensor(Y),
            tensor(inputs(self.X[held])),
            tensor(outputs(self.Y[held])),
            # Training rows that happen not to vary leave nothing to be relative to.
            variance if variance > 0 else 1.0,
            None if self.groups is None else self.groups[held],
            None if self.groups is None else self.groups[train],
            self.loss,
        )
        return data, inputs, outputs

    def _thinned(self, rows: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        if len(rows) <= self.max_samples:
            return rows
        return np.sort(rng.choice(rows, self.max_samples, replace=False))


def make_task(
    who: str,
    X: Array,
    Y: Array,
    *,
    groups: Any,
    time: Any,
    cv: Any,
    seed: int,
    max_samples: int,
    names: Names | None = None,
    loss: str = "mse",
    units: str = "own",
) -> Task:
    """Check what belongs to the rows, and put them in canonical order.

    For ``loss="cross_entropy"`` Y are rows of 0 and 1; every class is then divided for itself.
    """
    classes = loss == "cross_entropy"
    codes, moments = _codes(who, groups, len(X)), None if time is None else moments_of(who, time, len(X))
    # Rows named by `cv` must stay where they are.
    own_rows = cv is None or isinstance(cv, (int, np.integer))
    order = canonical_order(X, Y) if own_rows else np.arange(len(X))
    X, Y = X[order], Y[order]
    if codes is not None:
        # Numbered by first appearance in the canonical order: the names of groups must not matter either.
        _, first, inverse = np.unique(codes[order], return_index=True, return_inverse=True)
        codes = np.argsort(np.argsort(first))[inverse].astype(np.int64)
    unit = "groups"
    if codes is None and moments is None and own_rows:
        # Else a network that knows a row by heart would be praised for its copy.
        codes, unit = _repeated(X), "distinct inputs"
    when = None if moments is None else moments[order]
    labels = Y.argmax(axis=1).astype(np.int64) if classes else None
    splits = Splits(who, X, Y, cv=cv, groups=codes, unit=unit, time=when, seed=seed, labels=labels)
    scaling_in, scaling_out = Scaling.fit(X, COLUMNS, units), outputs_of(Y, loss, units)
    along = 0.0
    if groups is None and time is None and not (classes and _sorted(Y[np.argsort(order)])):
        along = _autocorrelation(scaling_out(Y)[np.argsort(order)])
    bound, why = _bound(scaling_in(X), scaling_out(Y), classes)
    names = names or ([f"x{i}" for i in range(X.shape[1])], [f"y{i}" for i in range(Y.shape[1])])
    notes = _notes(scaling_in, scaling_out, X, Y, names)
    if along > CORRELATED:
        notes += (
            f"neighbouring rows of Y resemble each other (correlation {along:.2f}): if they are a series, held-out "
            "rows are not new; pass `time` or `groups`",
        )
    return Task(X, Y, codes, splits, bound, why, notes, seed, max_samples, loss, units)


def outputs_of(Y: Array, loss: str, units: str = "own") -> Scaling:
    """How outputs are scaled; labels are not."""
    return Scaling.none(Y.shape[1]) if loss == "cross_entropy" else Scaling.fit(Y, COLUMNS, units)


def _sorted(Y: Array) -> bool:
    """Whether the rows stand class by class, as in many files: that they resemble each other then says nothing."""
    labels = Y.argmax(axis=1)
    return int((labels[1:] != labels[:-1]).sum()) < Y.shape[1]


def _bound(X: Array, Y: Array, classes: bool = False) -> tuple[int, str]:
    """What the rank cannot exceed: f = h∘g with g or h linear through the span of the inputs or of the outputs."""
    rank_in, rank_out = linear_rank(X), linear_rank(Y)
    if rank_out == 0:
        return 0, "there is one class: the rank is 0" if classes else "Y is constant: its bottleneck rank is 0"
    if rank_in == 0:
        return 0, "X is constant: nothing can depend on it, the rank is 0"
    if classes and rank_out <= rank_in:
        return (
            rank_out,
            f"{rank_out + 1} classes have as many logits, of which one is free: the rank is at most {rank_out}",
        )
    if rank_out <= rank_in:
        what = "there is one output" if Y.shape[1] == 1 else f"the outputs span {_dimensions(rank_out)}"
        return rank_out, f"{what}, and the rank is at most that: f = f∘identity"
    what = "there is one input" if X.shape[1] == 1 else f"the inputs span {_dimensions(rank_in)}"
    return rank_in, f"{what}, and the rank is at most that: f = f∘identity"


def _repeated(X: Array) -> NDArray[np.int64] | None:
    """One number for all rows of the same inputs, which are neighbours in canonical order; None if none repeat."""
    codes = np.concatenate([[0], np.cumsum((X[1:] != X[:-1]).any(axis=1))]).astype(np.int64)
    return codes if 0 < codes[-1] < len(X) - 1 else None


def _autocorrelation(Y: Array) -> float:
    """Correlation of each row with the next, over all columns."""
    if len(Y) < 10:
        return 0.0
    Y = Y - Y.mean(axis=0)
    return float((Y[1:] * Y[:-1]).sum() / max((Y**2).sum(), 1e-300))


def _dimensions(count: int) -> str:
    return "1 dimension" if count == 1 else f"{count} dimensions"


def _notes(inputs: Scaling, outputs: Scaling, X: Array, Y: Array, names: Names) -> tuple[str, ...]:
    notes = []
    for scaling, A, what, own in zip((inputs, outputs), (X, Y), ("input", "output"), names):
        count = int(scaling.constant.sum())
        if count:
            which = [name for name, same in zip(own, scaling.constant) if same]
            listed = ", ".join(repr(name) for name in which[:6]) + (", …" if count > 6 else "")
            notes.append(f"{count} constant {what} column{'s' * (count > 1)} set aside: {listed}")
            moving = int((A[:, scaling.constant] != A[0, scaling.constant]).any(axis=0).sum())
            if moving:
                notes[-1] += (
                    f"; {moving} of them varies by less than {CONSTANT:g} of its size, which is taken for rounding: "
                    "if it is not, subtract the offset before"
                )
        if scaling.axes is not None:
            notes.append(
                f"{len(scaling.shift)} {what} columns rotated onto {len(scaling.axes)} principal axes "
                f"with {scaling.share:.4%} of the variance"
            )
    distinct = len(np.unique(X, axis=0)) if X.size <= 10**7 else len(X)
    if distinct < len(X):
        notes.append(f"{len(X) - distinct} rows repeat the inputs of another")
    return tuple(notes)


def _codes(who: str, groups: Any, rows: int) -> NDArray[np.int64] | None:
    if groups is None:
        return None
    values = np.asarray(groups)
    if values.shape != (rows,):
        fail(who, f"`groups` must have {rows} entries, one for each row", values.shape, "Align it.", error=DataError)
    lost = int(pd.isna(values).sum())
    if lost:
        fail(who, "`groups` must not be missing", f"{lost} missing of {rows}", "Fill them in.", error=DataError)
    return np.unique(values.astype(str) if values.dtype.kind == "O" else values, return_inverse=True)[1].astype(
        np.int64
    )


def moments_of(who: str, time: Any, rows: int) -> Array:
    """An argument ``time`` as numbers, one for each row: as given, or seconds of dates and durations."""
    values = as_matrix(who, "time", as_moments(who, "time", time), columns=1).numpy()[:, 0]
    if len(values) != rows:
        fail(who, f"`time` must have {rows} entries, one for each row", len(values), "Align it.", error=DataError)
    return values


# ---- From the user's units to numbers a network can be trained on, and back


#: A column that varies by less than this share of its size is constant: what is left of it is rounding.
CONSTANT = 1e-13

#: Singular values below this share of the largest are no direction of the data.
NO_DIRECTION = 1e-9


@dataclass(frozen=True, eq=False)
class Scaling:
    """Centre and divide the columns; beyond ``limit`` columns, also rotate onto the leading principal axes.

    A squared error and a ridge do not notice rotations, and the weights of a minimum lie in the span of the data: with
    at least as many axes as samples, nothing is lost by the rotation.

    Attributes
    ----------
    shift, scale : array (d,)
        Mean and standard deviation (each column's own, or one for all); 1 for constant columns.
    axes : array (r, d) or None
        Orthonormal rows.
    constant : array (d,) of bool
    share : float
        Share of the variance that the axes keep.
    """

    shift: Array
    scale: Array
    axes: Array | None
    constant: NDArray[np.bool_]
    share: float = 1.0

    @staticmethod
    def fit(A: Array, limit: int, units: str = "own") -> Scaling:
        """Learn the scaling from the rows of ``A``; with ``units="common"`` all columns are divided by one number."""
        # Divided by their size first: squares of very large or small numbers leave the range of float64.
        size = np.abs(A).max(axis=0)
        size = np.where(size > 0, size, 1.0)
        mean, deviation = (A / size).mean(axis=0), (A / size).std(axis=0)
        constant = deviation <= CONSTANT
        scale = np.where(constant, 1.0, deviation * size)
        if units == "common" and not constant.all():
            largest = scale[~constant].max()
            scale = np.where(constant, 1.0, largest * np.sqrt(((scale[~constant] / largest) ** 2).mean()))
        plain = Scaling(mean * size, scale, None, constant)
        if A.shape[1] <= limit:
            return plain
        _, s, axes = np.linalg.svd(plain(A), full_matrices=False)
        count = max(1, min(limit, int((s > NO_DIRECTION * s[0]).sum())))
        share = float((s[:count] ** 2).sum() / max((s**2).sum(), 1e-300))
        return Scaling(plain.shift, plain.scale, axes[:count], constant, share)

    @staticmethod
    def none(columns: int) -> Scaling:
        """Columns as they are."""
        return Scaling(np.zeros(columns), np.ones(columns), None, np.zeros(columns, dtype=bool))

    def __call__(self, A: Array) -> Array:
        """Scaled (and rotated) rows."""
        B = np.where(self.constant, 0.0, (A - self.shift) / self.scale)
        return B if self.axes is None else B @ self.axes.T

    def undo(self, B: Array) -> Array:
        """Back to the user's units."""
        return (B if self.axes is None else B @ self.axes) * np.where(self.constant, 0.0, self.scale) + self.shift

    @property
    def columns(self) -> int:
        """Columns after scaling."""
        return len(self.shift) if self.axes is None else len(self.axes)


def linear_rank(B: Array) -> int:
    """Dimension of the affine span of the rows of ``B``, scaled columns; at most 2000 rows are looked at."""
    rows = B if len(B) <= 2000 else B[:: -(-len(B) // 2000)]
    s = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)
    return int((s > NO_DIRECTION * max(s[0], 1e-300)).sum()) if s.size and s[0] > 0 else 0


# ---- Columns that are no numbers or have gaps: which they are and what to do, for people with tables


#: Columns that a message names.
SHOWN = 4


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


# ---- Class labels as rows of 0 and 1, and how far probabilities from a network can be trusted


#: Temperatures that are looked at; a fit that wants more has not enough held-out rows to say.
COLDEST, HOTTEST = 0.1, 10.0

#: Rows of a class below which a note is made of it.
FEW = 8


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


def notes_on(Y: NDArray[np.float64], names: tuple[str, ...]) -> tuple[str, ...]:
    """What is to be said about classes with few rows."""
    counts = Y.sum(axis=0)
    few = [f"{name!r} ({int(n)})" for name, n in zip(names, counts) if n < FEW]
    if not few or len(names) == 1:
        return ()
    listed = ", ".join(few[:6]) + (", …" if len(few) > 6 else "")
    return (f"classes with fewer than {FEW} rows, about which little can be held out: {listed}",)


def temperature(outputs: Tensor, Y: Tensor) -> float:
    """T > 0 at which softmax(f/T) has the least log loss on rows (M, K) that were held out.

    The share 1/(M + 2) of every label is spread over the classes (M rows cannot tell rarer events): where all of them
    are right, T would otherwise fall to 0.
    """
    M, K = Y.shape
    logits, share = outputs.double(), 1.0 / (M + 2)
    target = (1.0 - share) * Y.double() + share / K
    if not bool(torch.isfinite(logits).all()):
        return 1.0

    def loss(log_T: float) -> float:
        return float(-(target * torch.log_softmax(logits / float(np.exp(log_T)), -1)).sum(1).mean())

    found: Any = minimize_scalar(loss, bounds=(np.log(COLDEST), np.log(HOTTEST)), method="bounded")
    return float(np.exp(found.x)) if loss(float(found.x)) < loss(0.0) else 1.0


def accuracy(outputs: Tensor, Y: Tensor) -> float:
    """Share of rows whose largest output is their class."""
    return float((outputs.argmax(1) == Y.argmax(1)).double().mean())
