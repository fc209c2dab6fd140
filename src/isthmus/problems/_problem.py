"""The Problem: data with its truth attached, checked against theory when it is made."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator, SeedSequence, default_rng
from numpy.typing import NDArray

from isthmus._checks import as_matrix, check_integer, check_number, check_seed, fail

Array = NDArray[np.float64]

Map = Callable[[Array], Array]


#: Relative difference between ``function(X)`` and ``clean_Y`` that is still rounding. Undoing units, heavy
#: tails and finite differences amplifies the unit round-off by a few powers of ten.
FUNCTION_TOLERANCE = 1e-7


@dataclass(frozen=True, eq=False)
class Problem:
    """N samples of a task y = f(x) whose bottleneck rank is known. Arrays are float64, copied and read-only.

    Attributes
    ----------
    name : str
    X : array (N, d_in)
    Y : array (N, d_out)
        What a learner sees: ``clean_Y`` plus noise.
    rank : int
        Bottleneck rank Rank_BN(f): the smallest k with f = h∘g, g: Ω → R^k and h continuous. A constant f has
        rank 0, and so has pure noise, whose best prediction is a constant.
    jacobian_rank : int
        Rank_J(f) = max_x Rank Jf(x) ≤ Rank_BN(f). For inputs on a surface, Jf acts on tangent vectors.
    latents : array (N, rank)
        g(x): coordinates through which f factors. Any bijection of them is as good.
    clean_Y : array (N, d_out)
        f(x), without noise.
    function : callable (M, d_in) → (M, d_out), or None
        f itself, where it has a formula off the sampled surface.
    noise : float
        Standard deviation of Y − clean_Y divided by that of clean_Y, output by output, over the sample that
        was generated; ∞ for pure noise. A part of a problem keeps the value of the whole.
    groups : array (N,) of int64, or None
        Trajectory of each sample; rows of a group are in time order.
    feature_names, target_names : tuple of str
        By default ``x0, x1, …`` and ``y0, y1, …``.
    notes : str
        One sentence: what is known and why.
    """

    name: str
    X: Array
    Y: Array
    rank: int
    jacobian_rank: int
    latents: Array
    clean_Y: Array
    function: Map | None = None
    noise: float = 0.0
    groups: NDArray[np.int64] | None = None
    feature_names: tuple[str, ...] = ()
    target_names: tuple[str, ...] = ()
    notes: str = ""

    def __post_init__(self) -> None:
        who = f"Problem {self.name!r}"
        X = _frozen(who, "X", self.X)
        clean_Y = _frozen(who, "clean_Y", self.clean_Y, rows=len(X))
        Y = _frozen(who, "Y", self.Y, rows=len(X), columns=clean_Y.shape[1])
        # Rank 0 has no latent columns, which `as_matrix` would refuse as empty.
        no_latents = np.shape(self.latents) == (len(X), 0)
        latents = np.empty((len(X), 0)) if no_latents else _frozen(who, "latents", self.latents, rows=len(X))
        rank = check_integer(who, "rank", self.rank, low=0, high=min(X.shape[1], Y.shape[1]))
        check_integer(who, "jacobian_rank", self.jacobian_rank, low=0, high=rank)
        if latents.shape[1] != rank:
            fail(
                who,
                f"`latents` must have {rank} columns (its rank)",
                latents.shape,
                "Give one per dimension.",
            )
        if rank == 0 and np.ptp(clean_Y, axis=0).any():
            fail(who, "a function of rank 0 must be constant", "a varying `clean_Y`", "Raise `rank`.")
        if self.noise != math.inf:
            check_number(who, "noise", self.noise, low=0.0)
        if (self.noise == 0.0) != np.array_equal(Y, clean_Y):
            fail(
                who,
                "`noise` must be 0 exactly when Y = clean_Y",
                self.noise,
                "State the noise that was added.",
            )
        if self.function is not None:
            _check_function(who, self.function, X, clean_Y)
        values = {
            "X": X,
            "Y": Y,
            "clean_Y": clean_Y,
            "latents": latents,
            "groups": _frozen_groups(who, self.groups, len(X)),
            "feature_names": _names(who, "feature_names", self.feature_names, "x", X.shape[1]),
            "target_names": _names(who, "target_names", self.target_names, "y", Y.shape[1]),
        }
        for field, value in values.items():
            object.__setattr__(self, field, value)

    @property
    def samples(self) -> int:
        """N, the number of samples."""
        return len(self.X)

    @property
    def d_in(self) -> int:
        """Number of input columns."""
        return self.X.shape[1]

    @property
    def d_out(self) -> int:
        """Number of output columns."""
        return self.Y.shape[1]

    def take(self, rows: Any) -> Problem:
        """The same task on some of its rows (indices or a mask)."""
        return dataclasses.replace(
            self,
            X=self.X[rows],
            Y=self.Y[rows],
            latents=self.latents[rows],
            clean_Y=self.clean_Y[rows],
            groups=None if self.groups is None else self.groups[rows],
        )

    def split(self, fraction: float = 0.2, seed: int = 0) -> tuple[Problem, Problem]:
        """Training and held-out part; groups are never cut, rows keep their order.

        Parameters
        ----------
        fraction : float in (0, 1)
            Share of the samples (of the groups, where there are any) that is held out, rounded, at least one.
        seed : int
            Of the choice of rows or groups.
        """
        who = f"Problem {self.name!r}.split"
        share = check_number(who, "fraction", fraction, low=0.0, high=1.0, low_open=True)
        unit = np.arange(self.samples) if self.groups is None else self.groups
        units = np.unique(unit)
        held = max(1, round(share * len(units)))
        if held >= len(units):
            fail(
                who,
                f"`fraction` must leave at least one of the {len(units)} samples or groups for training",
                fraction,
                "Lower `fraction` or generate more.",
            )
        chosen = default_rng(check_seed(who, seed)).permutation(units)[:held]
        test = np.isin(unit, chosen)
        return self.take(~test), self.take(test)


def streams(who: str, seed: int) -> tuple[Generator, Generator, Generator]:
    """Independent generators for the function, the inputs and the noise.

    Apart, so that more samples or another noise level leave the task itself unchanged.
    """
    function, inputs, noise = SeedSequence(check_seed(who, seed)).spawn(3)
    return default_rng(function), default_rng(inputs), default_rng(noise)


def add_noise(who: str, clean_Y: Array, noise: float, rng: Generator) -> Array:
    """Y = clean_Y + noise · std(clean_Y) · N(0, 1), output by output."""
    level = check_number(who, "noise", noise, low=0.0)
    if level == 0.0:
        return clean_Y
    return clean_Y + level * clean_Y.std(axis=0) * rng.standard_normal(clean_Y.shape)


def isometry(rng: Generator, rows: int, columns: int) -> Array:
    """A uniformly random (rows, columns) matrix with orthonormal columns, columns ≤ rows."""
    Q, R = np.linalg.qr(rng.standard_normal((rows, columns)))
    # Without the signs the law depends on the LAPACK build.
    return Q * np.sign(np.diagonal(R))


def _frozen(who: str, name: str, value: Any, *, rows: int | None = None, columns: int | None = None) -> Array:
    array = as_matrix(who, name, value, columns=columns).numpy()
    if rows is not None and len(array) != rows:
        fail(who, f"`{name}` must have {rows} rows, as X has", array.shape, "Give one row for each sample.")
    array.flags.writeable = False
    return array


def _frozen_groups(who: str, groups: Any, rows: int) -> NDArray[np.int64] | None:
    if groups is None:
        return None
    array = np.array(groups)
    if array.shape != (rows,) or array.dtype.kind not in "iu":
        fail(
            who,
            f"`groups` must be {rows} integers",
            f"{array.dtype} {array.shape}",
            "Give one for each sample.",
        )
    array = array.astype(np.int64)
    array.flags.writeable = False
    return array


def _names(who: str, name: str, given: Sequence[str], letter: str, count: int) -> tuple[str, ...]:
    names = tuple(given) or tuple(f"{letter}{i}" for i in range(count))
    if len(names) != count or len(set(names)) != count:
        fail(who, f"`{name}` must be {count} different names", names, "Name every column once.")
    return names


def _check_function(who: str, function: Map, X: Array, clean_Y: Array) -> None:
    values = np.asarray(function(X))
    if values.shape != clean_Y.shape:
        fail(
            who,
            f"`function(X)` must have shape {clean_Y.shape}",
            values.shape,
            "Return one row for each sample.",
        )
    # Relative to each output: columns may be in very different units.
    worst = float((np.abs(values - clean_Y).max(axis=0) / (np.abs(clean_Y).max(axis=0) + 1e-300)).max())
    if not worst <= FUNCTION_TOLERANCE:
        fail(
            who,
            "`function(X)` must equal `clean_Y`",
            f"a relative difference of {worst:.1e}",
            "Correct one of them.",
        )
