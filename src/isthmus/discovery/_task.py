"""The data of a discovery: checked, in canonical order, divided and scaled, with what is known before any training."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus._checks import as_matrix, check_integer, fail
from isthmus._errors import DataError, IsthmusError
from isthmus._settings import Settings
from isthmus.discovery._columns import Names
from isthmus.discovery._units import Choice, choose_units
from isthmus.objective import constant_cost
from isthmus.tables import as_moments

Array = NDArray[np.float64]
Rows = NDArray[np.int64]

#: Columns beyond which inputs or outputs are rotated onto their principal axes.
COLUMNS = 256

#: Correlation of neighbouring rows above which they may be a series.
CORRELATED = 0.5

#: Rows of a class below which a note is made of it.
FEW = 8


@dataclass(frozen=True, eq=False)
class Data:
    """Scaled training and held-out rows; ``variance`` is the cost of the best constant on the training rows.

    That is the variance of the outputs, summed; for ``loss="cross_entropy"``, where Y are rows of 0 and 1, the entropy
    of the labels. ``clusters`` are the groups of the held-out rows, ``origins`` those of the training rows.
    """

    X: Tensor
    Y: Tensor
    X_held: Tensor
    Y_held: Tensor
    variance: float
    clusters: Rows | None
    origins: Rows | None = None
    loss: str = "mse"

    @torch.no_grad()
    def errors(self, net: Callable[[Tensor], Tensor]) -> NDArray[np.float64]:
        """Squared error (or log loss) of each held-out row relative to a constant's; of each cluster of rows."""
        return self.errors_of(self.held_outputs(net))

    def errors_of(self, outputs: Tensor) -> NDArray[np.float64]:
        """The same of given outputs at the held-out rows."""
        return self._by_cluster(self._losses(outputs))

    @torch.no_grad()
    def held_outputs(self, net: Callable[[Tensor], Tensor]) -> Tensor:
        """Outputs at the held-out rows, in float64."""
        return torch.cat([net(part) for part in self.X_held.split(4096)]).double()

    @property
    def baseline(self) -> NDArray[np.float64]:
        """The same for the best constant: the mean of the training rows (0 after scaling), the shares of classes."""
        outputs = torch.zeros_like(self.Y_held).double()
        if self.loss == "cross_entropy":
            # A class that only held-out rows have is rare, not impossible.
            outputs = outputs + torch.log(self.Y.double().sum(0) + 0.5)
        return self._by_cluster(self._losses(outputs))

    def _losses(self, outputs: Tensor) -> NDArray[np.float64]:
        Y = self.Y_held.double()
        if self.loss == "cross_entropy":
            losses = -(Y * torch.log_softmax(outputs, -1)).sum(1)
        else:
            losses = ((outputs - Y) ** 2).sum(1)
        return losses.numpy() / self.variance

    def _by_cluster(self, squares: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.clusters is None:
            return squares
        _, index, counts = np.unique(self.clusters, return_inverse=True, return_counts=True)
        # Weighted so that the mean over clusters is the mean over rows.
        return np.bincount(index, squares).astype(np.float64) * (len(counts) / len(squares))


@dataclass(frozen=True, eq=False)
class RankTask:
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
    groups: Rows | None
    splits: Splits
    bound: int
    why: str
    notes: tuple[str, ...]
    settings: Settings
    units: Choice

    @property
    def autoencoder(self) -> bool:
        """Whether the outputs are the inputs."""
        return self.settings.loss == "mse" and np.array_equal(self.X, self.Y)

    def data(self, index: int) -> tuple[Data, Scaling, Scaling]:
        """The ``index``-th division, scaled by its training rows, thinned to ``max_samples`` on either side."""
        rng = np.random.default_rng([self.settings.seed, index, 1])
        train, held = (self._thinned(rows, rng) for rows in self.splits(index))
        inputs = Scaling.fit(self.X[train], COLUMNS, self.units.inputs, self.units.kept)
        outputs = outputs_of(self.Y[train], self.settings.loss, self.units.outputs)
        Y = outputs(self.Y[train])
        classes = self.settings.loss == "cross_entropy"
        variance = constant_cost(torch.from_numpy(Y), self.settings.loss) if classes else float((Y**2).sum() / len(Y))

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
            self.settings.loss,
        )
        return data, inputs, outputs

    def _thinned(self, rows: Rows, rng: np.random.Generator) -> Rows:
        if len(rows) <= self.settings.max_samples:
            return rows
        return np.sort(rng.choice(rows, self.settings.max_samples, replace=False))


def make_task(
    X: Array,
    Y: Array,
    settings: Settings,
    *,
    names: Names | None = None,
    groups: Any = None,
    time: Any = None,
    cv: Any = None,
) -> RankTask:
    """Check what belongs to the rows, and put them in canonical order.

    For ``loss="cross_entropy"`` Y are rows of 0 and 1; every class is then divided for itself.
    """
    who, classes = "discover", settings.loss == "cross_entropy"
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
    splits = Splits(who, X, Y, cv=cv, groups=codes, unit=unit, time=when, seed=settings.seed, labels=labels)
    if settings.units == "auto" and not (X.shape == Y.shape and np.array_equal(X, Y)):
        # Rows that are held out must not choose by what they are judged.
        seen = splits(0)[0]
        units = choose_units(X[seen], Y[seen], None if codes is None else codes[seen], settings.seed, COLUMNS)
    else:
        plain = "own" if settings.units == "auto" else settings.units
        units = Choice(plain, plain, None, ())
    scaling_in = Scaling.fit(X, COLUMNS, units.inputs, units.kept)
    scaling_out = outputs_of(Y, settings.loss, units.outputs)
    along = 0.0
    if groups is None and time is None and not (classes and _sorted(Y[np.argsort(order)])):
        along = _autocorrelation(scaling_out(Y)[np.argsort(order)])
    bound, why = _bound(scaling_in(X), scaling_out(Y), classes)
    names = names or (tuple(f"x{i}" for i in range(X.shape[1])), tuple(f"y{i}" for i in range(Y.shape[1])))
    notes = _notes(scaling_in, scaling_out, X, Y, names, units)
    if along > CORRELATED:
        notes += (
            f"neighbouring rows of Y resemble each other (correlation {along:.2f}): if they are a series, held-out "
            "rows are not new; pass `time` or `groups`",
        )
    notes += notes_on(Y, names[1]) if classes else ()
    return RankTask(X, Y, codes, splits, bound, why, notes, settings, units)


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


def _repeated(X: Array) -> Rows | None:
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


def _notes(inputs: Scaling, outputs: Scaling, X: Array, Y: Array, names: Names, units: Choice) -> tuple[str, ...]:
    notes = list(units.notes)
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
        if scaling.axes is not None and (units.kept is None or scaling is not inputs):
            notes.append(
                f"{len(scaling.shift)} {what} columns rotated onto {len(scaling.axes)} principal axes "
                f"with {scaling.share:.4%} of the variance"
            )
    distinct = len(np.unique(X, axis=0)) if X.size <= 10**7 else len(X)
    if distinct < len(X):
        notes.append(f"{len(X) - distinct} rows repeat the inputs of another")
    return tuple(notes)


def notes_on(Y: NDArray[np.float64], names: tuple[str, ...]) -> tuple[str, ...]:
    """What is to be said about classes with few rows."""
    counts = Y.sum(axis=0)
    few = [f"{name!r} ({int(n)})" for name, n in zip(names, counts) if n < FEW]
    if not few or len(names) == 1:
        return ()
    listed = ", ".join(few[:6]) + (", …" if len(few) > 6 else "")
    return (f"classes with fewer than {FEW} rows, about which little can be held out: {listed}",)


def _codes(who: str, groups: Any, rows: int) -> Rows | None:
    if groups is None:
        return None
    values = np.asarray(groups)
    if values.shape != (rows,):
        fail(who, f"`groups` must have {rows} entries, one for each row", values.shape, "Align it.", error=DataError)
    lost = int(pd.isna(values).sum()) + int(np.ma.count_masked(groups))
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


# ---- Honest splits: rows that belong together stay together, the future is not used to predict the past


#: Columns by which rows are put in order.
_KEYS = 32


def canonical_order(X: NDArray[np.float64], Y: NDArray[np.float64]) -> Rows:
    """Rows in an order that depends on their content, not on where they stood: an answer must not depend on that."""
    keys = [*Y.T[:_KEYS][::-1], *X.T[:_KEYS][::-1]]
    if max(X.shape[1], Y.shape[1]) > _KEYS:
        # Rows that differ only in later columns.
        keys.insert(0, np.array([_digest(x) ^ _digest(y[::-1]) for x, y in zip(X, Y)], dtype=np.uint64))
    return np.lexsort(keys)


def _digest(row: NDArray[np.float64]) -> int:
    return int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=8).digest(), "little")


class Splits:
    """Gives the i-th division into training and held-out rows.

    Parameters
    ----------
    rows : int
    cv : None, int, scikit-learn splitter, or list of (train, test)
        None holds a quarter out; an integer K one K-th.
    groups : array (rows,) of int, optional
        Rows of a group are never divided.
    unit : str
        What the groups are, in words.
    time : array (rows,), optional
        The last rows in time are held out (the last groups, by the time each begins, if there are groups).
    seed : int
    labels : array (rows,) of int, optional
        Classes: where rows (or groups) are chosen at random, each class is divided for itself, and one that is
        alone in its class is not held out.
    """

    def __init__(
        self,
        who: str,
        X: NDArray[np.float64],
        Y: NDArray[np.float64],
        *,
        cv: Any = None,
        groups: Rows | None = None,
        unit: str = "groups",
        time: NDArray[np.float64] | None = None,
        seed: int = 0,
        labels: Rows | None = None,
    ) -> None:
        self.rows, self.groups, self.time, self.seed, self.labels = len(X), groups, time, seed, labels
        self.unit = "rows" if groups is None else unit
        self.given: list[tuple[Rows, Rows]] = []
        self.share = 0.25
        if cv is None:
            self.how = "a quarter"
        elif isinstance(cv, (int, np.integer)):
            folds = check_integer(who, "cv", cv, low=2)
            self.share = 1.0 / folds
            self.how = f"one {folds}th"
        else:
            try:
                pairs = cv.split(X, Y if labels is None else labels, groups) if hasattr(cv, "split") else cv
                self.given = [_pair(who, pair, self.rows) for pair in pairs]
            except IsthmusError:
                raise
            except (TypeError, ValueError) as problem:
                must = "`cv` must be None, an integer, a splitter or pairs of rows"
                fail(who, must, f"{cv!r} ({problem})", "Pass e.g. 4.")
            if not self.given:
                fail(who, "`cv` must give at least one split", "none", "Pass e.g. cv=4.")
            self.how = "the rows that `cv` gives"
        if not self.given:
            units = self.rows if groups is None else len(np.unique(groups))
            if units < 2:
                must = f"there must be at least 2 {self.unit}, one of them to be held out"
                fail(who, must, units, "Supply more data.", error=DataError)

    def describe(self) -> str:
        """In words, for the report."""
        if self.given:
            return self.how
        which = f"the last {self.how} in time" if self.time is not None else f"{self.how} at random"
        each = " of each class" if self.labels is not None and self.time is None else ""
        return f"{which} of the {self.unit}{each}"

    def __call__(self, index: int) -> tuple[Rows, Rows]:
        """(training rows, held-out rows) of the ``index``-th division."""
        if self.given:
            return self.given[index % len(self.given)]
        unit = np.arange(self.rows) if self.groups is None else self.groups
        if self.labels is not None and self.time is None:
            test = np.isin(unit, self._of_each_class(unit, self.labels, np.random.default_rng([self.seed, index])))
            return np.flatnonzero(~test), np.flatnonzero(test)
        if self.time is not None:
            # There is only one future: another division begins it earlier.
            share = min(0.5, self.share * (1.0 + 0.4 * index))
            first = np.full(int(unit.max()) + 1, np.inf)
            np.minimum.at(first, unit, self.time)
            units = np.unique(unit)
            units = units[np.argsort(first[units], kind="stable")]
            moments = first[units]
        else:
            share = self.share
            units = np.random.default_rng([self.seed, index]).permutation(np.unique(unit))
            moments = np.arange(len(units))
        cut = len(units) - min(max(1, round(share * len(units))), len(units) - 1)
        # What begins at one moment stays on one side, unless all does.
        early, late = np.searchsorted(moments, moments[cut]), np.searchsorted(moments, moments[cut], side="right")
        cut = early or (late if late < len(units) else cut)
        test = np.isin(unit, units[cut:])
        return np.flatnonzero(~test), np.flatnonzero(test)

    def _of_each_class(self, unit: Rows, labels: Rows, rng: np.random.Generator) -> Rows:
        """Units to hold out: the share of every class, never all of it; a unit counts for the rarest class in it."""
        names, index = np.unique(unit, return_inverse=True)
        has = np.zeros((len(names), int(labels.max()) + 1), dtype=bool)
        has[index, labels] = True
        rarity = np.where(has, has.sum(axis=0), len(names) + 1)
        stratum = rarity.argmin(axis=1)
        held: list[Rows] = []
        for label in np.unique(stratum):
            own = rng.permutation(np.flatnonzero(stratum == label))
            count = min(max(1, round(self.share * len(own))), len(own) - 1)
            held.append(names[own[:count]])
        chosen = np.concatenate(held)
        # Every class has one unit only: something must be held out all the same.
        return chosen if len(chosen) else rng.permutation(names)[:1]


def _pair(who: str, pair: Any, rows: int) -> tuple[Rows, Rows]:
    train, test = (np.flatnonzero(a) if np.asarray(a).dtype == bool else np.asarray(a, dtype=np.int64) for a in pair)
    both = np.concatenate([train, test])
    if not len(train) or not len(test) or both.min() < 0 or both.max() >= rows:
        fail(
            who, f"`cv` must give non-empty rows in [0, {rows - 1}]", f"{len(train)} and {len(test)} rows", "Check it."
        )
    if np.intersect1d(train, test).size:
        fail(who, "`cv` must give training rows that are not held out", "rows that are both", "Use a proper splitter.")
    return train, test


# ---- From the user's units to numbers a network can be trained on, and back


#: A column that varies by less than this share of its size is constant: what is left of it is rounding.
CONSTANT = 1e-13

#: Columns of one unit, such as pixels, are rotated from this number on; axes with this share of variance are left out.
SIMILAR, NEGLIGIBLE = 32, 1e-6

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
    def fit(A: Array, limit: int, units: str = "own", kept: Rows | None = None) -> Scaling:
        """Learn the scaling from the rows of ``A``; with ``units="common"`` all columns are divided by one number.

        With ``kept`` only these columns are left, as they are: their axes are unit vectors.
        """
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
        if kept is not None:
            return Scaling(plain.shift, plain.scale, np.eye(A.shape[1])[kept], constant)
        if A.shape[1] <= (limit if units == "own" else SIMILAR):
            return plain
        _, s, axes = np.linalg.svd(plain(A), full_matrices=False)
        count = max(1, min(limit, int((s > NO_DIRECTION * s[0]).sum())))
        if units == "common":
            # Of pictures few axes hold nearly everything, and the rest would only take time.
            left = 1.0 - np.cumsum(s**2) / max((s**2).sum(), 1e-300)
            count = min(count, 1 + int((left > NEGLIGIBLE).sum()))
        share = float((s[:count] ** 2).sum() / max((s**2).sum(), 1e-300))
        return Scaling(plain.shift, plain.scale, axes[:count], constant, share)

    @staticmethod
    def none(columns: int) -> Scaling:
        """A scaling that leaves columns as they are."""
        return Scaling(np.zeros(columns), np.ones(columns), None, np.zeros(columns, dtype=bool))

    def __call__(self, A: Array) -> Array:
        """Scaled (and rotated) rows."""
        B = np.where(self.constant, 0.0, (A - self.shift) / self.scale)
        return B if self.axes is None else B @ self.axes.T

    def undo(self, B: Array) -> Array:
        """Scaled rows in the units of the user."""
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
