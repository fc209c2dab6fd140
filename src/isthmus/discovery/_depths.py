"""Q-depth: the depths at which a rank is the best one: too shallow overestimates it, too deep underestimates it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isthmus._checks import as_matrix, check_choice, check_integer, check_number, fail
from isthmus._cite import cites
from isthmus._deprecations import renamed
from isthmus._errors import DataError
from isthmus.constructions import rank_one
from isthmus.discovery._profile import RankProfile
from isthmus.discovery._result import Discovery
from isthmus.discovery._task import COLUMNS, Scaling
from isthmus.measures import diameter, path_lower_bound

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

#: What stays the same while the depth changes: λ of (λ/L)‖θ‖², or what multiplies ‖θ‖².
FIXED = ("strength", "ridge")

STATES = ("determined", "undetermined", "empty")


@dataclass(frozen=True, eq=False)
class DepthRange:
    """Depths L at which networks of a rank have the least regularised loss.

    Attributes
    ----------
    rank : int
        k.
    low, high : float
        First and last such depth; ``high`` is ∞ where nothing of a lower rank is known to win. NaN when empty.
    state : {"determined", "undetermined", "empty"}
        ``"empty"``: another rank is better at every depth.
    reasons : tuple of str
        What is in doubt, or what ends the range.
    fixed : {"strength", "ridge"}
    strength, ridge : float
        λ, and λ/L at the depth of the profile: what multiplies ‖θ‖², relative to the cost of the best constant.
    rows : tuple of dict
        For each rank that was tried, and 0: cost, R1, first and last depth (None where it is never the best).
    replicas : tuple of (float, float)
        The range by each further walk, from another seed, division and depth.
    interpolator : float
        From this depth on a network of rank 1 through all samples certainly has the lower loss; ∞ when not known.
    least_excess : float
        Lower bound 2·log(TSP(y)/diam(x)) of the excess norm ‖θ‖² − L of any rank-1 network through all samples, which
        grows as 2(1 − 1/k)·log N; NaN when not known.
    """

    rank: int
    low: float
    high: float
    state: str
    reasons: tuple[str, ...]
    fixed: str
    strength: float
    ridge: float
    rows: tuple[dict[str, Any], ...]
    replicas: tuple[tuple[float, float], ...]
    interpolator: float
    least_excess: float

    def best(self, depth: int) -> int:
        """The rank with the least loss at that depth, 0 being a constant."""
        check_integer("DepthRange.best", "depth", depth, low=1)
        return int(self.rows[int(np.argmin([self.loss(row, depth) for row in self.rows]))]["rank"])

    def loss(self, row: dict[str, Any], depth: float) -> float:
        """The loss c + λk + (λ/L)R1, or c + ridge·(Lk + R1), of a rank, relative to the cost of the best constant."""
        return row["cost"] + self._ridge(depth) * (depth * row["rank"] + row["R1"])

    def _ridge(self, depth: float) -> float:
        return self.strength / depth if self.fixed == "strength" else self.ridge

    @property
    def sentence(self) -> str:
        """What was found, in one sentence."""
        if self.state == "empty":
            return f"No depth: rank {self.rank} is nowhere the one of the least loss; {self.reasons[0]}."
        upto = f"to {self.high:.0f}" if math.isfinite(self.high) else "on, however deep"
        start = "Undetermined; by this profile" if self.state == "undetermined" else "Recovered"
        return f"{start}: rank {self.rank} has the least loss from depth {self.low:.0f} {upto}."

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {"sentence": self.sentence, **asdict(self)}

    def plot(self, figure: Figure | None = None) -> Figure:
        """The loss of every rank against the depth, and where this one is the best, as a matplotlib figure."""
        from isthmus.plotting.ranges import draw_depths

        return draw_depths(self, figure)

    def __repr__(self) -> str:
        return self.sentence


@cites("rank2023", "§4, after Prop. 5", ids=("Q-depth",))
@cites("bottleneck2023", "§3.1", ids=("Q-depth",))
@renamed(found="discovery")
def depth_range(
    discovery: Discovery,
    X: Any = None,
    Y: Any = None,
    *,
    rank: int | None = None,
    strength: float | None = None,
    fixed: str = "strength",
) -> DepthRange:
    """Depths L with k = argmin_j {cost_j + λj + (λ/L)R1_j}, from the rank profile of a discovery: nothing is trained.

    The norm of a network through j coordinates at depth L is at most j·L + R1_j with R1_j = ‖θ‖² − j·L of the profile:
    deeper ones have identity layers at the waist. In 1/L (or, with the ridge fixed, in L) losses are straight lines,
    and the ranks are the pieces of their lower envelope. In a shallow network R1 decides, which is smaller at higher
    ranks: the rank is overestimated. In a deep one the rank decides, and it is underestimated. Derivation:
    docs/notes/depths.md.

    Parameters
    ----------
    discovery : Discovery
        With a profile.
    X, Y : arrays, optional
        The data of the discovery: with them also the depth at which a rank-1 network through all samples takes over
        (squared error only).
    rank : int, optional
        k; by default the rank of the discovery.
    strength : float, optional
        λ; by default that of the profile. Far from it costs and R1 are those of other minima: the loss of each rank is
        concave in the ridge, and the straight line is its tangent.
    fixed : {"strength", "ridge"}
        What is the same at every depth: λ, the ridge being λ/L (rank2023), or the ridge itself, λ/L at the depth of the
        profile (bottleneck2023).

    Returns
    -------
    DepthRange

    Notes
    -----
    The profile ends at the ranks that were tried: a range that begins at depth 1 may begin later.

    Examples
    --------
    >>> import isthmus
    >>> task = isthmus.problems.linear(d_in=6, d_out=6, rank=2, samples=200)
    >>> found = isthmus.discover(task.X, task.Y, depth=4, replicas=0)
    >>> isthmus.depth_range(found, fixed="ridge").best(10000)
    0
    """
    who = "depth_range"
    check_choice(who, "fixed", fixed, FIXED)
    profile = discovery.profile
    if profile is None:
        fail(who, "the discovery must have a rank profile", "none: Y is constant", "Supply outputs that vary.")
    lam = profile.strength if strength is None else check_number(who, "strength", strength, low=0.0, low_open=True)
    k = discovery.rank if rank is None else check_integer(who, "rank", rank, low=1)
    rows = _rows(profile, lam, fixed)
    own = next((row for row in rows if row["rank"] == k), None)
    if own is None:
        got = f"{k}, and tried were {[row['rank'] for row in rows[1:]]}"
        fail(who, "`rank` must be one of the profile", got, "Raise `max_rank` of the discovery, or choose another.")
    others = tuple(_ends(_rows(one, lam, fixed), k) for one in discovery.replicas if one.row(k) is not None)
    ridge = lam / profile.depth
    taken, excess = math.inf, math.nan
    if X is not None and Y is not None and profile.loss_kind == "mse":
        constant, excess = _interpolator(who, discovery, X, Y)
        taken = _takes_over(own, constant, lam, ridge, fixed)
    low, high = _ends(rows, k)
    state, reasons = _judged(discovery, profile, k, rows, (low, high), others)
    if taken <= high:
        reasons = (*reasons, f"from depth {taken:.0f} on a rank-1 network through all samples has a lower loss")
        high = taken - 1
        if high < low:
            low, high, state, reasons = math.nan, math.nan, "empty", reasons[::-1]
    return DepthRange(k, low, high, state, reasons, fixed, lam, ridge, tuple(rows), others, taken, excess)


def _rows(profile: RankProfile, lam: float, fixed: str) -> list[dict[str, Any]]:
    """Rank, cost, R1 and the first and last depth of each; a constant first, without the wide network of the walk."""
    rows: list[dict[str, Any]] = [{"rank": 0, "cost": 1.0, "R1": 0.0}]
    for i, k in enumerate(profile.ranks[:-1]):
        if profile.states[i] != "diverged" and math.isfinite(profile.cost[i] + profile.regularity[i]):
            rows.append({"rank": int(k), "cost": float(profile.cost[i]), "R1": float(profile.regularity[i])})
    ranks, cost, R1 = (np.array([row[key] for row in rows], dtype=np.float64) for key in ("rank", "cost", "R1"))
    lows, highs = depth_intervals(ranks, cost, R1, lam, lam / profile.depth if fixed == "ridge" else None)
    for row, low, high in zip(rows, lows, highs):
        never = math.isnan(low)
        row |= {"low": None if never else float(low), "high": None if never else float(high)}
    return rows


def depth_intervals(
    ranks: Array, cost: Array, R1: Array, strength: float, ridge: float | None = None
) -> tuple[Array, Array]:
    """First and last whole depth at which each rank has the least loss; NaN where there is none.

    Parameters
    ----------
    ranks, cost, R1 : array (m,)
    strength : float
        λ of cost + λk + (λ/L)R1.
    ridge : float, optional
        With it, the loss is cost + ridge·(kL + R1).
    """
    # Straight lines a + b·t in t = 1/L, or in t = L.
    a, b = (cost + strength * ranks, strength * R1) if ridge is None else (cost + ridge * R1, ridge * ranks)
    lows, highs = np.full(len(ranks), math.nan), np.full(len(ranks), math.nan)
    for i in range(len(ranks)):
        # From t = 0, which is L = ∞ in the first case, to t = 1 there.
        first, last = (0.0, 1.0) if ridge is None else (1.0, math.inf)
        for j in range(len(ranks)):
            rise, room = b[i] - b[j], a[j] - a[i]
            if rise > 0.0:
                last = min(last, room / rise)
            elif rise < 0.0:
                first = max(first, room / rise)
            elif room < 0.0 or (room == 0.0 and j < i):
                last = -math.inf
        if not first <= last:
            continue
        if ridge is None:
            first, last = 1.0 / last if last > 0.0 else math.inf, 1.0 / first if first > 0.0 else math.inf
        if math.isinf(first):
            continue
        # A depth that is whole up to rounding counts.
        low, high = math.ceil(first * (1 - 1e-12)), math.floor(last * (1 + 1e-12)) if math.isfinite(last) else last
        if low <= high:
            lows[i], highs[i] = low, high
    return lows, highs


def _ends(rows: list[dict[str, Any]], k: int) -> tuple[float, float]:
    row = next((one for one in rows if one["rank"] == k), {})
    low, high = row.get("low"), row.get("high")
    return (math.nan, math.nan) if low is None or high is None else (low, high)


def _interpolator(who: str, found: Discovery, X: Any, Y: Any) -> tuple[float, float]:
    """C_N of a rank-1 network through all samples, in the units of the profile, and the bound below of any."""
    inputs = as_matrix(who, "X", X, columns=len(found.feature_names)).numpy()
    outputs = as_matrix(who, "Y", Y, columns=len(found.target_names)).numpy()
    if len(inputs) != len(outputs):
        got = f"{len(inputs)} and {len(outputs)}"
        fail(who, "`X` and `Y` must have as many rows", got, "Align them.", error=DataError)
    # Files of earlier versions know one of both.
    units = [str(found.settings.get(name, found.settings.get("units", "own"))) for name in ("units_in", "units_out")]
    inputs, outputs = (Scaling.fit(A, COLUMNS, own)(A) for A, own in zip((inputs, outputs), units))
    length, width = path_lower_bound(outputs).value, diameter(inputs)
    excess = 2.0 * math.log(length / width) if length > 0.0 and width > 0.0 else math.nan
    try:
        constant = float(rank_one(inputs, outputs, 3).known.details["norm_constant"])
    except DataError:
        # Equal inputs with different outputs: nothing goes through all samples.
        constant = math.inf
    return constant, excess


def _takes_over(row: dict[str, Any], constant: float, lam: float, ridge: float, fixed: str) -> float:
    """First depth at which λ(1 + C_N/L), or ridge·(L + C_N), is below the loss of the rank, and stays so."""
    k, cost, R1 = row["rank"], row["cost"], row["R1"]
    if not math.isfinite(constant) or k < 1:
        return math.inf
    if fixed == "strength":
        gap, more = cost + lam * (k - 1), lam * (constant - R1)
    else:
        gap, more = ridge * (k - 1), ridge * (constant - R1) - cost
    return max(3.0, float(math.floor(more / gap) + 1)) if gap > 0.0 else math.inf


def _judged(
    found: Discovery,
    profile: RankProfile,
    k: int,
    rows: list[dict[str, Any]],
    ends: tuple[float, float],
    others: tuple[tuple[float, float], ...],
) -> tuple[str, tuple[str, ...]]:
    """The state, and what ends the range or is in doubt."""
    winners = sorted(((row["low"], row["rank"]) for row in rows if row["low"] is not None), key=lambda one: one[0])
    ranks = [rank for _, rank in winners]
    listed = ", ".join(f"{rank} from depth {low:.0f}" for low, rank in winners)
    if k not in ranks:
        return "empty", (f"the best ranks are {listed}",)
    doubts = []
    if found.verdict == "undetermined" and k == found.rank:
        doubts.append("the rank itself is undetermined")
    place = ranks.index(k)
    near = [k, *ranks[max(place - 1, 0) : place], *ranks[place + 1 : place + 2]]
    for i, one in enumerate(profile.ranks):
        if int(one) in near and profile.states[i] != "at rest":
            doubts.append(f"at rank {int(one)} the loss was still falling")
    apart = [pair for pair in others if not (pair[0] <= ends[1] and ends[0] <= pair[1])]
    if apart:
        doubts.append(f"another walk has {k} from depth {apart[0][0]:.0f} to {apart[0][1]:.0f}")
    reasons = [f"the best ranks are {listed}"]
    if place == 0 and k == max(row["rank"] for row in rows):
        reasons.append(f"no rank above {k} was tried, so that it may begin later")
    return ("undetermined" if doubts else "determined"), tuple(doubts + reasons)
