"""How columns are scaled, and which of very many count: by what predicts rows that are held out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor

from isthmus.discovery._kernel import kernel_ridge

Array = NDArray[np.float64]
Columns = NDArray[np.int64]

#: Rows on which these choices are made.
ROWS = 600

#: Columns from which on, and ratio of their deviations, correlation of the logarithms of neighbours' and share of the
#: largest deviation below which it does not matter, with which columns may be of one unit.
FEWEST, SPREAD, ALIKE, SMALL = 16, 3.0, 0.5, 1e-3

#: What has at most this share of the error is better; common units of outputs, of which errors are other shares, are
#: taken only if these are much smaller.
BETTER, MUCH_BETTER = 0.9, 0.5

#: How many of very many columns are tried.
KEPT = (16, 64, 256)


@dataclass(frozen=True)
class Choice:
    """Units of inputs and outputs; the inputs that are kept, or None; and what was chosen, in words."""

    inputs: str
    outputs: str
    kept: Columns | None
    notes: tuple[str, ...]


def alike(A: Array) -> bool:
    """Whether the columns may be of one unit: many, and neighbours vary about as much as each other, as in pictures."""
    if A.shape[1] < FEWEST:
        return False
    deviations = A.std(axis=0)
    sizes = np.log(np.maximum(deviations, SMALL * deviations.max()))
    if not np.isfinite(sizes).all() or np.ptp(sizes) < np.log(SPREAD):
        return False
    return bool(np.corrcoef(sizes[1:], sizes[:-1])[0, 1] > ALIKE)


def choose_units(X: Array, Y: Array, groups: NDArray[np.int64] | None, seed: int, limit: int) -> Choice:
    """Try what may be better than each column's own unit, and all of more than ``limit`` inputs, by a kernel."""
    options = [("own", "common") if alike(A) else ("own",) for A in (X, Y)]
    many = X.shape[1] > limit
    if len(options[0]) == len(options[1]) == 1 and not many:
        return Choice("own", "own", None, ())
    train, held = _divided(len(X), groups, seed)
    Y_by = {units: _scaled(Y, train, units) for units in options[1]}
    X_by = {units: _scaled(X, train, units) for units in options[0]}
    errors = {
        (a, b): _error(kernel_ridge(X_by[a][train], Y_by[b][train], X_by[a][held]), Y_by[b][held])
        for a in options[0]
        for b in options[1]
    }
    least = {b: min(errors[a, b] for a in options[0]) for b in options[1]}
    outputs = "common" if least.get("common", np.inf) < MUCH_BETTER * least["own"] else "own"
    inputs = "common" if errors.get(("common", outputs), np.inf) < BETTER * errors["own", outputs] else "own"
    notes: list[str] = []
    for what, found in (("outputs", outputs), ("inputs", inputs)):
        if found == "common":
            notes.append(
                f"the {what} were divided by one number, not each by its own deviation: they predict better so"
            )
    kept = None
    if many:
        kept, error = _relevant(X_by[inputs], Y_by[outputs], train, held, seed)
        if error < BETTER * errors[inputs, outputs]:
            notes.append(
                f"{len(kept)} of {X.shape[1]} inputs were kept, by a forest of trees: with these a quick learner has "
                f"{error / errors[inputs, outputs]:.2g} times the error that it has with all"
            )
        else:
            kept = None
    return Choice(inputs, outputs, kept, tuple(notes))


def _relevant(X: Array, Y: Array, train: Columns, held: Columns, seed: int) -> tuple[Columns, float]:
    """The columns that trees ask most, as many of them as predict best, and the error with these."""
    axes = np.linalg.svd(Y[train] - Y[train].mean(axis=0), full_matrices=False)[2][:8]
    forest = ExtraTreesRegressor(100, min_samples_leaf=5, max_features=0.3, random_state=seed, n_jobs=1)
    forest.fit(X[train], Y[train] @ axes.T)
    order = np.argsort(-forest.feature_importances_, kind="stable")
    found = {}
    for count in KEPT:
        columns = np.sort(order[:count])
        part = X[:, columns]
        found[count] = _error(kernel_ridge(part[train], Y[train], part[held]), Y[held])
    best = min(found, key=lambda count: found[count])
    return np.sort(order[:best]), found[best]


def _divided(rows: int, groups: NDArray[np.int64] | None, seed: int) -> tuple[Columns, Columns]:
    """At most ROWS rows to learn from and as many to judge by; groups are not divided."""
    rng = np.random.default_rng([seed, 3])
    units = np.arange(rows) if groups is None else groups
    names = rng.permutation(np.unique(units))
    first = np.isin(units, names[: max(1, len(names) // 2)])
    parts = np.flatnonzero(first), np.flatnonzero(~first)
    train, held = (np.sort(rng.permutation(part)[:ROWS]) for part in parts)
    return train, held


def _scaled(A: Array, train: Columns, units: str) -> Array:
    mean, deviation = A[train].mean(axis=0), A[train].std(axis=0)
    moving = deviation > 1e-12 * np.maximum(np.abs(mean), 1e-300)
    common = float(np.sqrt((deviation**2).mean())) or 1.0
    scale = np.where(moving, deviation if units == "own" else common, np.inf)
    return (A - mean) / scale


def _error(predicted: Array, Y: Array) -> float:
    return float(((predicted - Y) ** 2).sum() / max(float((Y**2).sum()), 1e-300))
