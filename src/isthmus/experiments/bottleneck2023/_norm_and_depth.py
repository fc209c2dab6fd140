"""F-bn-1: the parameter norm against depth; the rank falls, the slope is the rank, and then nothing is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from scipy.stats import rankdata
from torch import Tensor

from isthmus._checks import fail
from isthmus._cite import cites
from isthmus._progress import ProgressFactory
from isthmus.experiments._experiment import Experiment, parameter
from isthmus.experiments._outcomes import Quote, condition, under
from isthmus.experiments.bottleneck2023._summary_statistics import deepen
from isthmus.measures import CostEstimate, estimate_costs, weight_spectra
from isthmus.networks import FullyConnected
from isthmus.objective import ridge_from
from isthmus.plotting.style import PALETTE, dress
from isthmus.problems import partially_seen_surface
from isthmus.runs import Outcome
from isthmus.training import Phase, TrainingResult, minimise, minimise_together

Array = np.ndarray

#: ‖θ‖² below which nothing is left but the bias of the last layer.
NOTHING = 1.0

#: How far a slope may be from the rank, in ranks; an interval wider than this judges nothing. Share of the paper's
#: depth by which that of the zero solution may be off: the learning rate decides where.
NEAR, WIDE, OFF = 0.25, 1.0, 0.2

#: Depths of one rank that a slope needs.
LEAST = 3

#: Rank correlation of depth and rank up to which the rank falls. Neighbouring depths may stand in any order: deep
#: networks from random starts lose dimensions by chance, and rounding decides which.
FALLS = -0.7

RANGES = Quote(
    "We see different ranges of depth where the network converges to different rank, with larger depths leading to "
    "smaller rank",
    "bottleneck2023, caption of Figure 1",
)
SLOPE = Quote(
    "Within each range the norm ‖θ‖² is well approximated by a affine function with slope equal to the rank.",
    "bottleneck2023, caption of Figure 1",
)
SAME = Quote(
    "suggesting the existence of sequences of local minima for different depths that all represent approximately the "
    "same function f, as can be seen in Figure 1",
    "bottleneck2023, §3.1",
)
ZERO = Quote("until training fails and recover the zero parameters for L > 25.", "bottleneck2023, caption of Figure 1")
UNDER = Quote("In contrast, we have never observed fitting rank-underestimating minima", "bottleneck2023, §3.1")


@cites("bottleneck2023", "Figure 1, App. E", ids=("F-bn-1",))
@cites("talk2023", "'Parameter norm and depth'")
@dataclass(frozen=True, kw_only=True)
class NormAndDepth(Experiment):
    """z ∈ ℝ⁸, x = g(z) ∈ ℝ²⁰, y = h(z_1, z_2) ∈ ℝ²⁰: at depths of one rank R0, ‖θ‖² ≈ L·R0 + R1.

    Each network starts at random, at the full λ, and in which minimum it ends depends on the depth: ranks and the zero
    solution are read from these, and slopes from the best of each depth. Of every rank the best is then continued to
    greater depths by identity layers, and slopes are read along these families too. A training depends on its depth,
    its number and the settings alone, so that a sweep may take the depths apart.

    The learning rate was chosen by where the zero solution begins, which it decides: in trials at L = 22 with 0.01, 26
    with 0.008, 28 with 0.006 and not up to 30 with 0.003. That depth is no evidence; that there is one, is.
    """

    id: ClassVar[str] = "F-bn-1"
    title: ClassVar[str] = "Parameter norm against depth: slopes equal to ranks, which fall until nothing is left"
    paper: ClassVar[str] = "bottleneck2023"
    where: ClassVar[str] = "Figure 1"
    convention: ClassVar[str] = "bottleneck2023: C + λ‖θ‖², C averaged over samples and outputs; ridge = λ·d_out"
    quick_seconds: ClassVar[float] = 10.0
    full_seconds: ClassVar[float] = 1000.0
    figure_size: ClassVar[tuple[float, float]] = (14.0, 5.6)
    sweep_names: ClassVar[Mapping[str, str]] = {"depth": "depths", "ridge": "lam", "task_rank": "rank"}

    latent_dim: int = parameter(8, "dimension of z", source="paper", low=1, high=1000)
    rank: int = parameter(2, "coordinates of z that y depends on", source="paper", low=1, high=1000)
    d_in: int = parameter(20, "dimension of x", source="paper", low=1, high=10_000)
    d_out: int = parameter(20, "dimension of y", source="paper", low=1, high=10_000)
    lam: float = parameter(1e-3, "λ", source="paper", low=1e-12, high=1e3)
    threshold: float = parameter(0.1, "singular values that count in the middle", source="paper", low=0.0, high=1e3)
    most_cost: float = parameter(0.1, "a training with a larger cost has failed", source="paper", low=0.0, high=1e3)
    last_depth: int = parameter(25, "beyond this depth nothing is left", source="paper", low=1, high=10_000)
    average_outputs: bool = parameter(True, "whether the cost is averaged over outputs")
    output_scale: float = parameter(
        1.2,
        "deviation of an output: large enough for the best fit of rank 1 to cost more than `most_cost`",
        low=1e-3,
        high=1e3,
    )
    depths: tuple[int, ...] = parameter(tuple(range(4, 33)), "depths L", low=3, high=1000)
    seeds: int = parameter(2, "networks of each depth", low=1, high=100)
    samples: int = parameter(500, "N, training samples", low=10, high=10**6)
    width: int = parameter(50, "width of the hidden layers", low=1, high=10_000)
    learning_rate: float = parameter(8e-3, "of Adam", low=1e-8, high=10.0)
    adam_steps: int = parameter(800, "of Adam, at the full λ from the start", low=1, high=10**7)
    steps: int = parameter(1000, "quasi-Newton steps after that, and of a continuation", low=0, high=10**7)
    tolerance: float = parameter(1e-3, "of the trainings", low=0.0, high=1.0)
    further: int = parameter(6, "depths to which the best network of a rank is continued", low=0, high=100)
    stride: int = parameter(3, "layers between them", low=1, high=100)

    def __post_init__(self) -> None:
        super().__post_init__()
        if list(self.depths) != sorted(set(self.depths)):
            do = "Sort them; raise `seeds` for several networks of a depth."
            fail(self.id, "`depths` must be increasing", self.depths, do)

    @classmethod
    def quick(cls) -> Self:
        """A smaller task, narrower networks, few depths."""
        return cls(
            latent_dim=3,
            d_in=6,
            d_out=6,
            depths=(4, 7, 11, 36),
            seeds=1,
            samples=80,
            width=14,
            lam=5e-3,
            output_scale=1.0,
            last_depth=30,
            adam_steps=200,
            steps=120,
            further=5,
        )

    @classmethod
    def single(cls, *, quick: bool = False) -> Self:
        """One network from a random start, continued nowhere."""
        return (cls.quick() if quick else cls()).replace(depths=(4,), seeds=1, further=0)

    def lasting(self) -> float:
        """A measure of the time it takes: layers of all networks together."""
        return float(sum(self.depths) * self.seeds)

    def measured(self, arrays: Mapping[str, Array]) -> dict[str, float | int | bool | str]:
        """Of a single network: rank, ‖θ‖², loss and cost in the paper's units, how its training ended."""
        if len(arrays["depths"]) != 1:
            return {}
        # Runs of before there were sweeps do not say.
        diverged, converged = bool(arrays.get("diverged", [False])[0]), bool(arrays["converged"][0])
        return {
            "rank": int(arrays["ranks"][0]),
            "norm": float(arrays["norms"][0]),
            "loss": float(arrays["losses"][0]),
            "cost": float(arrays["costs"][0]),
            "converged": converged,
            "training": "flat" if converged else "diverged" if diverged else "budget",
        }

    @classmethod
    def spectrum_table(cls, arrays: Mapping[str, Array]) -> Array | None:
        """Singular values of the layers of a single network."""
        return arrays["spectra"][0] if len(arrays["spectra"]) == 1 else None

    @property
    def settings(self) -> DepthSettings:
        """The parameters of a training."""
        return DepthSettings(**{item.name: getattr(self, item.name) for item in fields(DepthSettings)})

    def compute(self, progress: ProgressFactory) -> dict[str, Array]:
        """Train every network, by depth and then by number; continue the best of each rank."""
        nets: list[Trained] = []
        with progress(len(self.depths) * self.seeds, self.id) as bar:
            for L in self.depths:
                for index in range(self.seeds):
                    nets.append(trained(self.settings, L, index))
                    bar.advance(1)
        return self._with_continued(nets, progress)

    def batch_shape(self) -> tuple[Any, ...] | None:
        """Of a single network everything but its λ and seed, which may differ in one computation."""
        if len(self.depths) != 1 or self.seeds != 1:
            return None
        return tuple(item for item in self.parameters.items() if item[0] not in ("lam", "seed"))

    @classmethod
    def compute_together(cls, experiments: Sequence[Self], progress: ProgressFactory) -> list[dict[str, Array]]:
        """Train the networks of all in one computation; each then goes on as it does alone."""
        nets = trained_together([one.settings for one in experiments], experiments[0].depths[0], progress)
        return [one._with_continued([net], progress) for one, net in zip(experiments, nets)]

    def _with_continued(self, nets: Sequence[Trained], progress: ProgressFactory) -> dict[str, Array]:
        """The arrays of trained networks, and of the best of each rank as they are continued."""
        arrays = self._table(nets)
        if not self.further:
            return arrays
        starts = self.starts(arrays)
        family = [nets[i] for i in starts]
        with progress(len(starts) * self.further, f"{self.id}: continued") as bar:
            for i in starts:
                last = nets[i]
                for _ in range(self.further):
                    last = continued(self.settings, last, last.net.depth + self.stride)
                    family.append(last)
                    bar.advance(1)
        found = self._table(family)
        # The family that a network began in: its rank may change on the way, and must not hide that.
        members = [*starts, *(i for i in starts for _ in range(self.further))]
        found["families"] = np.array([arrays["ranks"][i] for i in members], dtype=np.int64)
        return arrays | {f"continued_{name}": values for name, values in found.items() if name != "spectra"}

    def _table(self, nets: Sequence[Trained]) -> dict[str, Array]:
        """One entry for each network; spectra padded with NaN, and what follows from the thresholds."""
        rows = [one.row(self.settings.unit) for one in nets]
        deepest = max((len(row["spectra"]) for row in rows), default=0)
        for row in rows:
            L = len(row["spectra"])
            row["ranks"] = np.array(int((row["spectra"][L // 2] > self.threshold).sum()))
            row["failed"] = row["costs"] > self.most_cost
            row["spectra"] = np.pad(row["spectra"], ((0, deepest - L), (0, 0)), constant_values=np.nan)
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]} if rows else {}

    def starts(self, arrays: Mapping[str, Array]) -> list[int]:
        """Of the task's rank k and of k + 1, the network of least C + λ(‖θ‖² − kL): of least R1, so to say."""
        found = []
        for k in range(self.rank, self.rank + 2):
            mine = np.flatnonzero((arrays["ranks"] == k) & ~arrays["failed"])
            if len(mine):
                rest = arrays["losses"][mine] - self.lam * k * arrays["depths"][mine]
                found.append(int(mine[np.argmin(rest)]))
        return found

    def outcomes(self, arrays: Mapping[str, Array]) -> list[Outcome]:
        """Ranks over depths, slopes in the ranges and along the families, where nothing is left."""
        depths, ranks, fit = arrays["depths"], arrays["ranks"], ~arrays["failed"]
        left = depths[~arrays["converged"]]
        why = "" if len(left) == 0 else f"at L = {', '.join(map(str, np.unique(left).tolist()))}"
        converged = condition("trainings that did not converge", len(left) == 0, len(left), 0, why)
        slopes = []
        best = best_of_depths(arrays)
        for k in sorted({int(ranks[i]) for i in best} - {0}):
            mine = [i for i in best if ranks[i] == k]
            if len(mine) >= LEAST:
                estimate = estimate_costs(depths[mine], arrays["norms"][mine])
                slopes.append(_slope(SLOPE, f"best networks of the depths of rank {k}", k, estimate, "differs"))
        for k, estimate in self.fits(arrays):
            slopes.append(_slope(SAME, f"networks continued at rank {k}", k, estimate, "fails"))
        below = int((fit & (ranks > 0) & (ranks < self.rank)).sum())
        name = f"networks that fit with a rank below that of the task, {self.rank}"
        why = "" if below == 0 else f"they cost less than {self.most_cost:g}"
        reached = int((ranks[fit] == self.rank).sum())
        return [
            _falls(depths[fit], ranks[fit]),
            *under([converged], slopes),
            self._ends(arrays),
            # Of minima: a training that has not come to rest may be on its way to a rank.
            *under([converged], [UNDER.judge(name, below == 0, below, 0, why, otherwise="differs")]),
            converged,
            condition("networks that fit with the rank of the task, at least one", reached > 0, reached, 1),
        ]

    def _ends(self, arrays: Mapping[str, Array]) -> Outcome:
        """The depth from which on most networks are the zero solution."""
        depths, zero, wanted = arrays["depths"], arrays["norms"] < NOTHING, self.last_depth + 1
        name = "first depth of the zero solution: of half the networks there, and from there on"
        starts = [L for L in np.unique(depths) if min(zero[depths == L].mean(), zero[depths >= L].mean()) >= 0.5]
        if not starts:
            deepest = int(depths.max())
            enough = deepest > (1.0 + OFF) * wanted
            why = f"not up to L = {deepest}; the learning rate decides where"
            return ZERO.judge(name, False if enough else None, None, wanted, why, otherwise="differs")
        first = int(starts[0])
        near = abs(first - wanted) <= OFF * wanted
        why = "the learning rate decides where, and was chosen by it"
        return ZERO.judge(name, near, first, wanted, why, otherwise="differs")

    def fits(self, arrays: Mapping[str, Array]) -> list[tuple[int, CostEstimate]]:
        """For each family: its rank, and L·R0 + R1 + R2/L over the networks in it that kept the rank."""
        found = []
        for k, L, norms in self._families(arrays):
            if len(np.unique(L)) >= LEAST:
                found.append((k, estimate_costs(L, norms)))
        return found

    def _families(self, arrays: Mapping[str, Array]) -> list[tuple[int, Array, Array]]:
        families = arrays.get("continued_families", np.zeros(0, dtype=np.int64))
        found = []
        for k in np.unique(families):
            mine = (families == k) & (arrays["continued_ranks"] == k) & ~arrays["continued_failed"]
            found.append((int(k), arrays["continued_depths"][mine], arrays["continued_norms"][mine]))
        return found

    def plot(self, arrays: Mapping[str, Array], figure: Figure) -> None:
        """(a) ‖θ‖² against L; (b) singular values through four networks."""
        slopes = {k: fit.R0.value for k, fit in self.fits(arrays)}
        draw_depths(figure, arrays, self._families(arrays), slopes)


def best_of_depths(arrays: Mapping[str, Array]) -> list[int]:
    """Of the networks that fit, the one of least loss at each depth."""
    found = []
    for L in np.unique(arrays["depths"]):
        mine = np.flatnonzero((arrays["depths"] == L) & ~arrays["failed"])
        if len(mine):
            found.append(int(mine[np.argmin(arrays["losses"][mine])]))
    return found


def _slope(words: Quote, whose: str, k: int, fit: CostEstimate, otherwise: str) -> Outcome:
    """Whether the slope is the rank: near it or with it in its interval, which is narrow enough to say something."""
    low, value, high = fit.R0.low, fit.R0.value, fit.R0.high
    reason, name = f"between {low:.3g} and {high:.3g}", f"{whose}: slope of ‖θ‖² in L"
    if fit.state == "computed" and high - low > WIDE and low <= k <= high:
        reason += ": the networks of this rank are too few, or minima too different, to say"
        return words.judge(name, None, value, float(k), reason)
    good = fit.state == "computed" and (abs(value - k) <= NEAR or low <= k <= high)
    reason += f", R1 = {fit.R1.value:.3g}" if good else ": minima of this rank do not lie on one line"
    reason += "" if fit.state == "computed" else f"; {fit.state}"
    return words.judge(name, good, value, float(k), reason, otherwise=otherwise)


def _falls(depths: Array, ranks: Array) -> Outcome:
    """Whether the rank falls with depth among networks that fit: by the rank correlation, and at the ends."""
    name = "networks that fit: rank of the least deep, above that of the deepest"
    if len(ranks) < 2:
        return RANGES.judge(name, None, None, None, "fewer than two networks fit")
    first, last = (int(ranks[depths == L].min()) for L in (depths.min(), depths.max()))
    least = [int(ranks[depths == L].min()) for L in np.unique(depths)]
    reason = f"least ranks {least} at L = {np.unique(depths).tolist()}"
    if first <= last:
        return RANGES.judge(name, False, first, last, reason)
    correlation = float(np.corrcoef(rankdata(depths), rankdata(ranks))[0, 1])
    reason = f"rank correlation of depth and rank {correlation:.2f}; {reason}"
    return RANGES.judge(name, correlation <= FALLS, first, last, reason, otherwise="differs")


# ---- Networks trained at several depths on a surface seen in part: what F-bn-1 shows of them

#: Singular values kept of every layer.
SHOWN = 10


@dataclass(frozen=True)
class DepthSettings:
    """What a training depends on besides its depth and its number."""

    latent_dim: int
    rank: int
    d_in: int
    d_out: int
    lam: float
    average_outputs: bool
    output_scale: float
    samples: int
    width: int
    learning_rate: float
    adam_steps: int
    steps: int
    tolerance: float
    seed: int

    @property
    def unit(self) -> int:
        """Outputs that the paper's cost is divided by."""
        return self.d_out if self.average_outputs else 1

    @property
    def ridge(self) -> float:
        """The ridge in our convention."""
        return ridge_from("bottleneck2023", self.lam, outputs=self.unit)

    def data(self) -> tuple[Tensor, Tensor]:
        """X and Y, (N, d_in) and (N, d_out)."""
        problem = partially_seen_surface(
            latent_dim=self.latent_dim,
            seen=self.rank,
            d_in=self.d_in,
            d_out=self.d_out,
            samples=self.samples,
            seed=self.seed,
        )
        X, Y = (torch.tensor(values, dtype=torch.float32) for values in (problem.X, problem.Y))
        return X, self.output_scale * Y


@dataclass(frozen=True, eq=False)
class Trained:
    """One network and the account of its training."""

    net: FullyConnected
    result: TrainingResult

    def row(self, unit: int) -> dict[str, Array]:
        """Depth, ‖θ‖², cost and loss in the paper's units, spectra (L, SHOWN), whether it converged or diverged."""
        spectra = np.zeros((self.net.depth, SHOWN))
        for row, s in zip(spectra, weight_spectra(self.net)):
            row[: min(SHOWN, len(s))] = s[:SHOWN].numpy()
        return {
            "depths": np.array(self.net.depth),
            "norms": np.array(sum(float(p.detach().double().square().sum()) for p in self.net.parameters())),
            "costs": np.array(self.result.cost / unit),
            "losses": np.array(self.result.loss / unit),
            "spectra": spectra,
            "converged": np.array(self.result.at_rest),
            "diverged": np.array(self.result.state == "diverged"),
        }


_KEPT: dict[tuple[DepthSettings, int, int], Trained] = {}


def trained(settings: DepthSettings, depth: int, index: int) -> Trained:
    """A network from a random start, at the full λ from the first step; equal ones are trained once in a process."""
    key = settings, depth, index
    if key not in _KEPT:
        _KEPT[key] = _fit(settings, *_start(settings, depth, index))
    return _KEPT[key]


def trained_together(many: Sequence[DepthSettings], depth: int, progress: ProgressFactory) -> list[Trained]:
    """The first network of each of several settings, which differ in λ and seed; as :func:`trained` to rounding."""
    starts = [_start(settings, depth, 0) for settings in many]
    X, Y = (torch.stack(parts) for parts in zip(*(settings.data() for settings in many)))
    # The state is in the arrays and in a condition.
    results = minimise_together(
        [net for net, _ in starts],
        X,
        Y,
        ridges=[settings.ridge for settings in many],
        phases=starts[0][1],
        tolerance=many[0].tolerance,
        seeds=[settings.seed for settings in many],
        progress=progress,
    )
    return [Trained(net, result) for (net, _), result in zip(starts, results)]


def _start(settings: DepthSettings, depth: int, index: int) -> tuple[FullyConnected, list[Phase]]:
    """Random weights, and what is done with them."""
    dims = [settings.d_in, *[settings.width] * (depth - 1), settings.d_out]
    net = FullyConnected(dims, generator=torch.Generator().manual_seed(1000 * settings.seed + index))
    return net, [Phase("adam", settings.adam_steps, settings.learning_rate), Phase("lbfgs", settings.steps)]


def continued(settings: DepthSettings, start: Trained, depth: int) -> Trained:
    """The same function at a greater depth, by identity layers in the middle, then trained to the end there."""
    net = deepen(start.net, settings.data()[0], depth)
    return _fit(settings, net, [Phase("lbfgs", settings.steps)])


def _fit(settings: DepthSettings, net: FullyConnected, plan: list[Phase]) -> Trained:
    X, Y = settings.data()
    # The state is in the arrays and in a condition.
    options = {"ridge": settings.ridge, "tolerance": settings.tolerance, "seed": settings.seed}
    result = minimise(net, X, Y, phases=plan, **options)
    return Trained(net, result)


# ---- ‖θ‖² against depth in the colours of the rank, and singular values through networks of several depths


#: Colours of the ranks 0, 1, 2, …; all above the last share its colour.
COLOURS = ("black", "purple", "blue", "green", "orange", "vermilion")

#: Networks whose singular values are shown.
PANELS = 4


def draw_depths(
    figure: Figure,
    arrays: Mapping[str, np.ndarray],
    families: Sequence[tuple[int, np.ndarray, np.ndarray]],
    slopes: Mapping[int, float],
) -> None:
    """(a) ‖θ‖² against L, dots where the data are fitted and crosses where not, families as lines; (b) s(W_ℓ).

    Parameters
    ----------
    figure : Figure
    arrays : mapping
        ``depths``, ``norms``, ``ranks``, ``failed`` (networks,), ``spectra`` (networks, deepest, r) with NaN.
    families : sequence of (rank, depths, norms)
        Networks continued to greater depths.
    slopes : mapping
        Of each family, by its rank.
    """
    grid = figure.add_gridspec(1, 2, width_ratios=(1.0, 1.25))
    left, right = (figure.add_subfigure(grid[0, column]) for column in range(2))
    axes = left.subplots()
    depths, norms, ranks, failed = (arrays[name] for name in ("depths", "norms", "ranks", "failed"))
    for L, norm, rank, bad in zip(depths, norms, ranks, failed):
        marker = {"marker": "x", "markersize": 7, "markeredgewidth": 1.8} if bad else {"marker": "o", "markersize": 6}
        axes.plot([L], [norm], linestyle="", color=_colour(rank), zorder=3, **marker)
    for rank, L, values in families:
        order = np.argsort(L)
        axes.plot(L[order], values[order], "-", color=_colour(rank), linewidth=1.2, alpha=0.8)
        axes.plot(L, values, "o", color=_colour(rank), markerfacecolor="white", markersize=4, zorder=2)
    handles = []
    for rank in sorted({int(r) for r in ranks}, reverse=True):
        reason = f"rank {rank}" + (f", continued with slope {slopes[rank]:.2f}" if rank in slopes else "")
        handles.append(Line2D([], [], marker="o", linestyle="", color=_colour(rank), label=reason))
    if failed.any():
        handles.append(Line2D([], [], marker="x", linestyle="", color="#666666", label="does not fit"))
    if families:
        hollow = {"marker": "o", "color": "#666666", "markerfacecolor": "white", "markersize": 4}
        handles.append(Line2D([], [], label="continued from the best of its rank", linewidth=1.2, **hollow))
    top = max(float(values.max(initial=0.0)) for values in (norms, *(values for _, _, values in families)))
    axes.set_ylim(0.0, 1.12 * max(top, 1e-9))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    dress(axes, title="(a) Parameter norm and depth", x="depth $L$", y=r"$\|\theta\|^2$")
    axes.legend(handles=handles, frameon=False, fontsize=9, loc="best")
    _networks(right, arrays)


def _networks(figure: SubFigure, arrays: Mapping[str, np.ndarray]) -> None:
    """Singular values of every layer in four of the networks, spread over the depths that fitted."""
    fitted = np.flatnonzero(~arrays["failed"])
    chosen = fitted if len(fitted) else np.arange(len(arrays["depths"]))
    order = chosen[np.argsort(arrays["depths"][chosen], kind="stable")]
    picked = list(dict.fromkeys(order[np.linspace(0, len(order) - 1, min(PANELS, len(order))).astype(int)]))
    panels = figure.subplots(2, 2, sharey=True).reshape(-1)
    for axes, index in zip(panels, picked):
        _network(axes, arrays, int(index))
    for axes in panels[len(picked) :]:
        axes.set_visible(False)


def _network(axes: Axes, arrays: Mapping[str, np.ndarray], index: int) -> None:
    L, rank = int(arrays["depths"][index]), int(arrays["ranks"][index])
    spectra = arrays["spectra"][index, :L]
    layers = np.arange(1, L + 1)
    for number in range(spectra.shape[1] - 1, -1, -1):
        kept = number < rank
        colour = _colour(rank) if kept else "#B8BEC6"
        axes.plot(layers, spectra[:, number], ".-", color=colour, linewidth=1.5 if kept else 0.8, markersize=4)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    dress(axes, title=f"(b) L = {L}: rank {rank}", x="layer ℓ", y="$s_i(W_ℓ)$")


def _colour(rank: float) -> str:
    return PALETTE[COLOURS[min(int(rank), len(COLOURS) - 1)]]
