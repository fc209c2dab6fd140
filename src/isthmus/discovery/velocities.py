"""Velocities along trajectories, and vector fields fitted to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from isthmus._checks import fail
from isthmus._errors import DataError

Array = NDArray[np.float64]
Field = Callable[[Array], Array]
#: Candidates: polynomials up to this degree, and radial functions of these lengths in standard deviations.
DEGREE = 7
LENGTHS = (0.5, 1.0, 2.0)
RIDGES = (1e-8, 1e-4)
CENTRES = 100
#: Rows that a polynomial must have for each of its terms.
ROWS_PER_TERM = 5
FOLDS = 5


@dataclass(frozen=True)
class Choice:
    """One family of fields: a polynomial's degree, or the length of radial functions; and its ridge."""

    degree: int
    length: float
    ridge: float

    @property
    def name(self) -> str:
        """For people."""
        if self.degree:
            return f"polynomial of degree {self.degree}"
        return f"radial functions of length {self.length:g}"


def velocities(who: str, U: Array, time: Array, owner: NDArray[np.int64]) -> tuple[Array, Array, NDArray[np.int64]]:
    """Points, their velocities and trajectories, in time order; forward differences at equal steps, else central."""
    trajectories, steps = [], []
    for g in np.unique(owner):
        rows = np.flatnonzero(owner == g)
        rows = rows[np.argsort(time[rows], kind="stable")]
        if len(rows) > 1:
            trajectories.append(rows)
            steps.append(np.diff(time[rows]))
    if not trajectories:
        fail(who, "trajectories must have at least two times", "single rows", "Pass `groups`.", error=DataError)
    step = np.concatenate(steps)
    if not (step > 0).all():
        got = f"{int((step <= 0).sum())} repeated times"
        fail(who, "the times of a trajectory must differ", got, "Give each trajectory its own group.", error=DataError)
    # Dates are large numbers of seconds: their differences have what rounding left of them.
    equal = np.ptp(step) <= 1e-6 * step.max() + 2 * np.finfo(np.float64).eps * np.abs(time).max()
    points, speeds, owners = [], [], []
    for rows in trajectories:
        path = U[rows]
        if equal:
            points.append(path[:-1])
            speeds.append(np.diff(path, axis=0) / np.diff(time[rows])[:, None])
        elif len(rows) > 2:
            # Not at the ends, where a one-sided difference is of lower order.
            points.append(path[1:-1])
            speeds.append(np.gradient(path, time[rows], axis=0)[1:-1])
        else:
            continue
        owners.append(np.full(len(points[-1]), owner[rows[0]]))
    if not points:
        fail(who, "at unequal steps a trajectory needs three times", "two", "Add times.", error=DataError)
    return np.concatenate(points), np.concatenate(speeds), np.concatenate(owners)


def fit_field(P: Array, V: Array, choice: Choice) -> Field:
    """G with V ≈ G(P), by ridge regression on the features of ``choice``."""
    middle, scale = P.mean(axis=0), P.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    inside = (P - middle) / scale
    centres = inside[np.unique(np.linspace(0, len(P) - 1, min(CENTRES, len(P))).astype(int))]
    Phi = _features(inside, choice, centres)
    mean = V.mean(axis=0)
    left, s, right = np.linalg.svd(Phi - Phi.mean(axis=0), full_matrices=False)
    shrunk = np.divide(s, s**2 + choice.ridge * s[0] ** 2, out=np.zeros_like(s), where=s > 1e-12 * s[0])
    weights = right.T @ (shrunk[:, None] * (left.T @ (V - mean)))
    offset = mean - Phi.mean(axis=0) @ weights

    def field(U: Array) -> Array:
        return _features((U - middle) / scale, choice, centres) @ weights + offset

    return field


def held_out(P: Array, V: Array, owner: NDArray[np.int64], rng: np.random.Generator) -> tuple[Array, Choice]:
    """V − G(P) with each trajectory predicted by a fit to others, and the field chosen on all of them.

    The choice is made inside the fitted trajectories, on a third of them that is set aside.
    """
    fold = _folds(owner, FOLDS, rng)
    missed = np.empty_like(V)
    for number in range(FOLDS):
        test = fold == number
        choice = _choose(P[~test], V[~test], owner[~test], rng)
        missed[test] = V[test] - fit_field(P[~test], V[~test], choice)(P[test])
    return missed, _choose(P, V, owner, rng)


def explained(P: Array, V: Array, *, seed: int = 0) -> Array:
    """R² of each column of V predicted from the rows of P that were not fitted, (columns,)."""
    missed, _ = held_out(P, V, np.arange(len(P)), np.random.default_rng(seed))
    return 1.0 - (missed**2).sum(axis=0) / ((V - V.mean(axis=0)) ** 2).sum(axis=0)


def candidates(rows: int, k: int) -> list[Choice]:
    """Fields that ``rows`` points of k coordinates can tell apart."""
    found = []
    for degree in range(1, DEGREE + 1):
        if len(_powers(k, degree)) * ROWS_PER_TERM <= rows or degree == 1:
            found.append(Choice(degree, 0.0, 1e-10))
    return found + [Choice(0, length, ridge) for length in LENGTHS for ridge in RIDGES]


def _choose(P: Array, V: Array, owner: NDArray[np.int64], rng: np.random.Generator) -> Choice:
    test = _folds(owner, 3, rng) == 0
    tried = candidates(int((~test).sum()), P.shape[1])
    # A high power far outside its points is as bad as it looks.
    errors = [((V[test] - fit_field(P[~test], V[~test], one)(P[test])) ** 2).mean() for one in tried]
    return tried[int(np.argmin(errors))]


def _folds(owner: NDArray[np.int64], folds: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """A fold for each row; rows of a trajectory share it."""
    ids = np.unique(owner)
    number = np.empty(len(ids), dtype=np.int64)
    number[rng.permutation(len(ids))] = np.arange(len(ids)) % folds
    return number[np.searchsorted(ids, owner)]


def _powers(k: int, degree: int) -> list[tuple[int, ...]]:
    return [term for order in range(1, degree + 1) for term in combinations_with_replacement(range(k), order)]


def _features(inside: Array, choice: Choice, centres: Array) -> Array:
    if choice.degree:
        return np.column_stack([inside[:, list(t)].prod(axis=1) for t in _powers(inside.shape[1], choice.degree)])
    squares = ((inside[:, None] - centres) ** 2).sum(axis=2)
    # A length per coordinate's standard deviation; with more coordinates points are further apart.
    return np.exp(-squares / (2.0 * choice.length**2 * inside.shape[1]))
