"""Are coordinates self-consistent under dynamics: does du/dt = G(u) close, or do paths cross?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

from isthmus._checks import as_matrix, check_integer, check_number, check_seed, fail
from isthmus._cite import cites
from isthmus._errors import DataError
from isthmus._html import badge, card, heading, number, prose, table
from isthmus.discovery._task import moments_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Array = NDArray[np.float64]

STATES = ("closed", "not closed", "undetermined")

#: Nearest points of other trajectories that each point is compared with: more would be further away.
NEIGHBOURS = 2

#: Fewer trajectories say nothing about paths that might cross.
TRAJECTORIES = 8

#: Standard errors by which a share must be away from the tolerance.
SURE = 2.0

#: What a hidden variable leaves unexplained stays along a path; the noise of differences changes sign instead.
PERSISTS = 0.2

RESAMPLES = 100


@dataclass(frozen=True, eq=False)
class Dynamics:
    """Whether trajectories u(t) obey an equation of their own, du/dt = G(u).

    Attributes
    ----------
    state : {"closed", "not closed", "undetermined"}
    reason : str
    crossing, crossing_error : float
        Share of the velocities' variance in which near-coincident points of different trajectories disagree, carried
        to distance 0; 0 when paths do not cross.
    unexplained, unexplained_error : float
        Share of the velocities' variance that the fitted G misses on trajectories it has not seen.
    persistence : float
        Correlation of what G misses from one time to the next.
    method : str
        The G that was chosen: "polynomial of degree 3", "radial functions, length 1".
    coordinates, velocity : array (M, k)
        Points at which velocities are known, and these, in the units given.
    groups : array (M,)
        Trajectory of each.
    tolerance : float
    """

    state: str
    reason: str
    crossing: float
    crossing_error: float
    unexplained: float
    unexplained_error: float
    persistence: float
    method: str
    coordinates: Array
    velocity: Array
    groups: NDArray[np.int64]
    tolerance: float
    field: Field

    def predict(self, U: Any) -> Array:
        """G(u) for rows u, (N, k): the fit on all trajectories."""
        U = as_matrix("Dynamics.predict", "U", U, columns=self.coordinates.shape[1]).numpy()
        return self.field(U)

    @property
    def sentence(self) -> str:
        """What was found, in one sentence."""
        return f"{self.state.capitalize()}: {self.reason}."

    def to_dict(self) -> dict[str, Any]:
        """Everything but G itself, as plain data and arrays."""
        names = ("state", "reason", "crossing", "crossing_error", "unexplained", "unexplained_error", "persistence")
        told_of = {name: getattr(self, name) for name in (*names, "method", "tolerance")}
        arrays = {"coordinates": self.coordinates, "velocity": self.velocity, "groups": self.groups}
        return {"format": "isthmus.dynamics", "version": 1, "sentence": self.sentence, **told_of, **arrays}

    def plot(self, figure: Figure | None = None) -> Figure:
        """The paths with their velocities, and predicted beside measured velocities."""
        from isthmus.plotting.orbits import draw_dynamics

        return draw_dynamics({**self.to_dict(), "predicted": self.field(self.coordinates)}, figure)

    def __repr__(self) -> str:
        return self.sentence

    def _repr_html_(self) -> str:
        rows = [
            [prose("disagreement where paths meet"), number(self.crossing), number(self.crossing_error)],
            [prose("missed on held-out trajectories"), number(self.unexplained), number(self.unexplained_error)],
        ]
        columns = ["share of the velocities' variance", "value", "± error"]
        return card(heading(badge(self.state), prose(self.reason)), table(columns, rows))


@cites("bottleneck2023", "§5, self-consistency of the summary statistics")
@cites("talk2023", "summary statistics, ∂_t u ≈ G(u)")
def dynamics_of(
    coordinates: Any, time: Any, groups: Any, *, tolerance: float = 0.05, points: int = 5000, seed: int = 0
) -> Dynamics:
    """Whether du/dt = G(u): by whether paths cross, and by a fit of G judged on trajectories it has not seen.

    Parameters
    ----------
    coordinates : array (N, k)
        u, one row for each trajectory and time.
    time : array (N,)
        Numbers or dates, of which velocities are then per second. Times may differ from trajectory to trajectory.
    groups : array (N,)
        Which trajectory a row belongs to, as integers or text.
    tolerance : float, default 0.05
        Share of the velocities' variance that may stay unexplained in dynamics called closed.
    points : int, default 5000
        At most this many rows are used, by leaving out whole trajectories.
    seed : int
        Of the splits and of the trajectories left out.

    Returns
    -------
    Dynamics
        "closed" when both shares are below the tolerance by 2 standard errors; "not closed" when both are above by as
        much and what is unexplained persists along the paths; "undetermined" otherwise: too few trajectories, a fit
        that fails without a crossing, or noise.

    Notes
    -----
    At equal time steps h the velocity is (u(t+h) − u(t))/h. Dynamics that close have a map u(t) → u(t+h), so this asks
    the right question at any h, gradient descent included. At unequal steps it is a central difference.

    Examples
    --------
    >>> import numpy as np
    >>> starts = np.random.default_rng(0).uniform(-1, 1, (40, 2))
    >>> t = np.arange(10) * 0.1
    >>> turn = np.stack([np.stack([np.cos(t), np.sin(t)]), np.stack([-np.sin(t), np.cos(t)])])
    >>> U = np.einsum("ni,ijt->ntj", starts, turn).reshape(-1, 2)
    >>> time, groups = np.tile(t, 40), np.repeat(np.arange(40), 10)
    >>> dynamics_of(U, time, groups).state, dynamics_of(U[:, 0], time, groups).state
    ('closed', 'not closed')
    """
    who = "dynamics_of"
    U = as_matrix(who, "coordinates", coordinates).numpy()
    t = moments_of(who, time, len(U))
    if np.shape(groups) != (len(U),):
        got = f"{np.shape(groups)} for {len(U)} rows"
        fail(who, "`groups` must have one entry for each row", got, "Align them.", error=DataError)
    check_number(who, "tolerance", tolerance, low=0.0, high=1.0, low_open=True)
    check_integer(who, "points", points, low=50)
    rng = np.random.default_rng(check_seed(who, seed))
    names, labels = np.unique(np.asarray(groups), return_inverse=True)
    P, V, owner = velocities(who, U, t, labels.astype(np.int64))
    count = len(np.unique(owner))
    if len(P) > points:
        order = rng.permutation(np.unique(owner))
        sizes = np.cumsum([np.count_nonzero(owner == g) for g in order])
        kept = np.isin(owner, order[: max(TRAJECTORIES, int(np.searchsorted(sizes, points)))])
        P, V, owner = P[kept], V[kept], owner[kept]
    if count < TRAJECTORIES:
        fail(
            who,
            f"there must be at least {TRAJECTORIES} trajectories",
            f"{count} of {len(names)} with two times",
            "Add some.",
            error=DataError,
        )
    spread = V.std(axis=0)
    if not (spread > 1e-12 * np.abs(V).max(axis=0)).all() or not (P.std(axis=0) > 0).all():
        do = "Leave constant coordinates out."
        fail(who, "every coordinate must move, at more than one speed", f"spreads {spread}", do, error=DataError)
    # Every coordinate and every velocity counts alike.
    places, speeds = (P - P.mean(axis=0)) / P.std(axis=0), (V - V.mean(axis=0)) / spread
    crossing, crossing_error = crossings(places, speeds, owner, rng)
    missed, choice = held_out(places, speeds, owner, rng)
    unexplained, unexplained_error = _share(missed, speeds, owner)
    persistence = _persistence(missed, owner)
    state, reason = _decide(
        (crossing, crossing_error), (unexplained, unexplained_error), persistence, tolerance, len(np.unique(owner))
    )
    return Dynamics(
        state=state,
        reason=reason,
        crossing=crossing,
        crossing_error=crossing_error,
        unexplained=unexplained,
        unexplained_error=unexplained_error,
        persistence=persistence,
        method=choice.name,
        coordinates=P,
        velocity=V,
        groups=owner,
        tolerance=tolerance,
        field=fit_field(P, V, choice),
    )


def crossings(places: Array, speeds: Array, owner: NDArray[np.int64], rng: np.random.Generator) -> tuple[float, float]:
    """Share of the velocities' variance that differs between points of different trajectories at distance 0.

    For pairs of near points, half the squared difference of their velocities is a + b·(squared distance), as long as G
    is smooth: a is what no function of the place explains. The error is over resampled trajectories.
    """
    first, second, gap = _near(places, owner)
    # Any function of the velocity closes when the velocity does; this one keeps a few fast points from deciding.
    calm = np.arcsinh(speeds / np.abs(speeds).mean(axis=0))
    half = 0.5 * ((calm[first] - calm[second]) ** 2 / calm.var(axis=0)).mean(axis=1)
    value = _at_zero(gap, half, np.ones(len(gap)))
    ids = np.unique(owner)
    draws = []
    for _ in range(RESAMPLES):
        times = np.bincount(rng.integers(len(ids), size=len(ids)), minlength=len(ids))
        weight = times[np.searchsorted(ids, owner[first])] * times[np.searchsorted(ids, owner[second])]
        if weight.sum() > 0:
            draws.append(_at_zero(gap, half, weight.astype(np.float64)))
    return max(0.0, value), float(np.std(draws))


def _near(places: Array, owner: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
    """Each point with its nearest neighbours on other trajectories; squared distances."""
    first, second, gaps = [], [], []
    for g in np.unique(owner):
        mine, others = np.flatnonzero(owner == g), np.flatnonzero(owner != g)
        distance, index = KDTree(places[others]).query(places[mine], k=min(NEIGHBOURS, len(others)))
        distance, index = distance.reshape(len(mine), -1), index.reshape(len(mine), -1)
        first.append(np.repeat(mine, distance.shape[1]))
        second.append(others[index].ravel())
        gaps.append(distance.ravel() ** 2)
    return np.concatenate(first), np.concatenate(second), np.concatenate(gaps)


def _at_zero(gap: Array, half: Array, weight: Array) -> float:
    """Intercept of a line through (gap, half)."""
    mean_x, mean_y = np.average(gap, weights=weight), np.average(half, weights=weight)
    variance = np.average((gap - mean_x) ** 2, weights=weight)
    slope = np.average((gap - mean_x) * (half - mean_y), weights=weight) / variance if variance > 0 else 0.0
    # Disagreement that falls with distance is chance: a mean is then the safer number.
    return float(mean_y - max(0.0, slope) * mean_x)


def _share(missed: Array, speeds: Array, owner: NDArray[np.int64]) -> tuple[float, float]:
    """Σ‖missed‖²/Σ‖speeds‖² and its standard error over trajectories."""
    ids = np.unique(owner)
    errors = np.array([(missed[owner == g] ** 2).sum() for g in ids])
    totals = np.array([(speeds[owner == g] ** 2).sum() for g in ids])
    share = errors.sum() / totals.sum()
    return float(share), float((errors - share * totals).std() * len(ids) ** 0.5 / totals.sum())


def _persistence(missed: Array, owner: NDArray[np.int64]) -> float:
    """Correlation of ``missed`` with its next value on the same trajectory; rows are in time order."""
    follows = owner[1:] == owner[:-1]
    now, then = missed[:-1][follows], missed[1:][follows]
    size = np.sqrt((now**2).sum() * (then**2).sum())
    return float((now * then).sum() / size) if size > 0 else 0.0


def _decide(
    crossing: tuple[float, float], missed: tuple[float, float], persistence: float, tolerance: float, count: int
) -> tuple[str, str]:
    shares = (
        f"velocities disagree by {crossing[0]:.2g} ± {crossing[1]:.1g} of their variance where paths meet, and a fit "
        f"misses {missed[0]:.2g} ± {missed[1]:.1g} on held-out trajectories"
    )
    below = [value + SURE * error < tolerance for value, error in (crossing, missed)]
    above = [value - SURE * error > tolerance for value, error in (crossing, missed)]
    if all(below):
        return "closed", shares
    if all(above) and persistence > PERSISTS:
        return "not closed", shares
    if all(above):
        why = f"what is missed does not persist along the paths (correlation {persistence:.2g}): noise may be why"
        return "undetermined", f"{shares}; {why}"
    if above[1] and below[0]:
        return "undetermined", f"{shares}: paths do not cross, and G is not found"
    return "undetermined", f"{shares}: too near {tolerance:g} for {count} trajectories"


# ---- Velocities along trajectories, and vector fields fitted to them

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
class FieldFamily:
    """One family of fields: a polynomial's degree, or the length of radial functions; and its ridge."""

    degree: int
    length: float
    ridge: float

    @property
    def name(self) -> str:
        """The family in words."""
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


def fit_field(P: Array, V: Array, choice: FieldFamily) -> Field:
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


def held_out(P: Array, V: Array, owner: NDArray[np.int64], rng: np.random.Generator) -> tuple[Array, FieldFamily]:
    """V − G(P) with each trajectory predicted by a fit to others, and the field chosen on all of them.

    The choice is made inside the fitted trajectories, on a third of them that is set aside.
    """
    fold = _folds(owner, FOLDS, rng)
    missed = np.empty_like(V)
    for turn in range(FOLDS):
        test = fold == turn
        choice = _choose(P[~test], V[~test], owner[~test], rng)
        missed[test] = V[test] - fit_field(P[~test], V[~test], choice)(P[test])
    return missed, _choose(P, V, owner, rng)


def explained(P: Array, V: Array, *, seed: int = 0) -> Array:
    """R² of each column of V as a smooth function of P, on rows that were not fitted, (d,).

    Parameters
    ----------
    P, V : array (N, k) and (N, d)
    seed : int
        Of the division of the rows.
    """
    missed, _ = held_out(P, V, np.arange(len(P)), np.random.default_rng(seed))
    return 1.0 - (missed**2).sum(axis=0) / ((V - V.mean(axis=0)) ** 2).sum(axis=0)


def candidates(rows: int, k: int) -> list[FieldFamily]:
    """Fields that ``rows`` points of k coordinates can tell apart."""
    found = []
    for degree in range(1, DEGREE + 1):
        if len(_powers(k, degree)) * ROWS_PER_TERM <= rows or degree == 1:
            found.append(FieldFamily(degree, 0.0, 1e-10))
    return found + [FieldFamily(0, length, ridge) for length in LENGTHS for ridge in RIDGES]


def _choose(P: Array, V: Array, owner: NDArray[np.int64], rng: np.random.Generator) -> FieldFamily:
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


def _features(inside: Array, choice: FieldFamily, centres: Array) -> Array:
    if choice.degree:
        return np.column_stack([inside[:, list(t)].prod(axis=1) for t in _powers(inside.shape[1], choice.degree)])
    squares = ((inside[:, None] - centres) ** 2).sum(axis=2)
    # A length per coordinate's standard deviation; with more coordinates points are further apart.
    return np.exp(-squares / (2.0 * choice.length**2 * inside.shape[1]))
