"""F-feat-2: the loss against the width: a plateau that begins far below N(N+1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator, ScalarFormatter
from torch import Tensor

from isthmus._checks import check_integer, check_number, fail
from isthmus._cite import cites
from isthmus._progress import Progress, ProgressFactory, silent
from isthmus.compression import rebalance
from isthmus.datasets import balanced_subset, mnist
from isthmus.experiments._experiment import Experiment, parameter
from isthmus.experiments._outcomes import Quote, condition
from isthmus.experiments.features2022._trained import fit_features, spanned, start, state_number
from isthmus.networks import FullyConnected
from isthmus.objective import constant_cost, cost, ridge_from
from isthmus.plotting.style import PALETTE, dress
from isthmus.runs import Outcome
from isthmus.training import Phase
from isthmus.training._result import AT_REST, STATES

#: Where the paper sees the plateau begin, and the factor up to which that is "near".
PAPER_START, NEAR = 10, 2.0

START = Quote(
    "In both settings, the plateau appears to start around 10, much earlier than N² = 10⁶.",
    "features2022, caption of Figure 2",
)
SMALLER = Quote(
    "The regularization term is included in the training loss but not the test, leading to a smaller test loss on the "
    "right.",
    "features2022, caption of Figure 2",
)


@dataclass(frozen=True)
class _Task:
    """Data of one panel, inputs in the coordinates that the training inputs span."""

    X: Tensor
    Y: Tensor
    X_test: Tensor
    Y_test: Tensor
    V: Tensor
    loss: str
    d_out: int
    unit: float


@cites("features2022", "Figure 2, App. A", ids=("F-feat-2",))
@dataclass(frozen=True, kw_only=True)
class FeaturesFigure2(Experiment):
    """Training and test loss at L = 3 against the width: MNIST with two λ, and a teacher of widths (50, 10, 10, 10).

    The training loss has the regularisation in it, the test loss has not. The mean squared error is read as averaged
    over outputs, as PyTorch's; the law of the teacher and both λ of MNIST are not stated. See ``docs/notes/f-feat.md``.
    """

    id: ClassVar[str] = "F-feat-2"
    title: ClassVar[str] = "The loss against the width: a plateau that begins early"
    paper: ClassVar[str] = "features2022"
    where: ClassVar[str] = "Figure 2"
    convention: ClassVar[str] = "features2022: C + λ‖θ‖²; ridge = λ, times d_out where C is averaged over outputs"
    quick_seconds: ClassVar[float] = 5.0
    full_seconds: ClassVar[float] = 800.0
    figure_size: ClassVar[tuple[float, float]] = (12.4, 5.2)

    data: str = parameter("mnist", "data of the left panel", source="paper", choices=("mnist", "synthetic"))
    samples: int = parameter(1000, "N, training samples", source="paper", low=20, high=5000)
    test_samples: int = parameter(2000, "held out", low=20, high=5000)
    widths: tuple[int, ...] = parameter(
        (2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 50, 80), "widths of both hidden layers", low=1, high=2000
    )
    lams: tuple[float, ...] = parameter((1e-2, 1e-3), "λ of the left panel", low=1e-9, high=10.0)
    teacher_dims: tuple[int, ...] = parameter(
        (50, 10, 10, 10), "widths of the teacher", source="paper", low=1, high=1000
    )
    teacher_lam: float = parameter(1e-6, "λ of the right panel", source="paper", low=1e-12, high=10.0)
    teacher_gain: float = parameter(1.0, "weights of the teacher are N(0, gain/n_{ℓ-1})", low=1e-6, high=1e6)
    average_outputs: bool = parameter(True, "whether the mean squared error is averaged over outputs")
    trials: int = parameter(3, "networks for each width in the left panel", low=1, high=100)
    teacher_trials: int = parameter(
        12,
        "the same on the right: one in six finds a student as wide as the teacher, and the paper has 3",
        low=1,
        high=100,
    )
    first_lam: float = parameter(1e-2, "λ that the left panel's trainings come down from", low=0.0, high=10.0)
    teacher_first_lam: float = parameter(1e-3, "the same for the right panel", low=0.0, high=10.0)
    steps: int = parameter(200, "of each part of a training: see the note", low=1, high=10**5)
    tolerance: float = parameter(1e-4, "of the training", low=0.0, high=1.0)
    flat: float = parameter(0.05, "of the level is called flat", low=1e-6, high=1.0)

    @classmethod
    def quick(cls) -> Self:
        """Ten Gaussian classes in place of images, few samples, three widths, two trials."""
        return cls(
            data="synthetic",
            samples=120,
            test_samples=200,
            widths=(2, 6, 16),
            lams=(3e-3, 1e-3),
            first_lam=3e-3,
            teacher_dims=(10, 4, 4, 4),
            teacher_lam=1e-4,
            teacher_first_lam=1e-2,
            trials=2,
            teacher_trials=2,
            steps=20,
        )

    def compute(self, progress: ProgressFactory) -> dict[str, np.ndarray]:
        """Train every network; losses (λ, trials, widths) and (trials, widths), states beside them."""
        arrays: dict[str, np.ndarray] = {"widths": np.array(self.widths), "lams": np.array(self.lams)}
        networks = len(self.lams) * self.trials + self.teacher_trials
        with progress(networks * len(self.widths), self.id) as bar:
            task = self._classes()
            arrays["left_constant"] = np.array(constant_cost(task.Y, task.loss))
            rows = [self._curve(task, lam, self.first_lam, 1.5, self.trials, bar) for lam in self.lams]
            arrays |= {f"left_{name}": np.stack([row[name] for row in rows]) for name in rows[0]}
            task, least = self._teacher()
            curve = self._curve(task, self.teacher_lam, self.teacher_first_lam, 3.0, self.teacher_trials, bar)
            arrays |= {f"right_{name}": values for name, values in curve.items()}
            arrays["teacher_loss"] = np.array(self.teacher_lam * least)
            arrays["right_constant"] = np.array(constant_cost(task.Y) * task.unit)
        return arrays

    def _curve(
        self, task: _Task, lam: float, first: float, adam: float, trials: int, bar: Progress
    ) -> dict[str, np.ndarray]:
        """One λ: what became of every trial at every width, (trials, widths) each."""
        names = ("train", "test", "states", "gradients", "decreases")
        table = {name: np.zeros((trials, len(self.widths))) for name in names}
        ridge, raised, n = ridge_from("features2022", lam) / task.unit, max(1.0, first / lam), self.steps
        plan = [
            Phase("adam", max(1, round(adam * n)), 1e-2, ridge_start=raised, ridge_end=raised, anneal=True),
            Phase("lbfgs", round((2.0 * adam - 2.0) * n), ridge_start=raised, ridge_share=0.8),
            Phase("lbfgs", 4 * n),
        ]
        dims = len(task.V), task.d_out
        for column, width in enumerate(self.widths):
            for trial in range(trials):
                net = start([dims[0], width, width, dims[1]], task.V, self.seed + 1000 * trial, torch.float32)
                options = {"ridge": ridge, "loss": task.loss, "tolerance": self.tolerance}
                result = fit_features(net, task.X, task.Y, plan, show=silent, **options)
                with torch.no_grad():
                    test = float(cost(net(task.X_test), task.Y_test, task.loss))
                values = (
                    result.loss * task.unit,
                    test * task.unit,
                    state_number(result),
                    result.criteria.gradient,
                    result.criteria.decrease,
                )
                for name, value in zip(names, values):
                    table[name][trial, column] = value
                bar.advance(1, loss=result.loss * task.unit)
        return table

    def _classes(self) -> _Task:
        count, held = self.samples, self.test_samples
        if self.data == "mnist":
            images = mnist()
            each = -(-(count + held) // 10)
            rows = balanced_subset(images.labels, classes=range(10), per_class=min(each, 892), seed=self.seed)
            rows = np.random.default_rng([self.seed, 2]).permutation(rows)[: count + held]
            X, labels = images.take(rows)
        else:
            rng = np.random.default_rng([self.seed, 3])
            labels = rng.integers(10, size=count + held)
            X = (rng.standard_normal((10, 30))[labels] + 0.7 * rng.standard_normal((count + held, 30))) / 5.0
        return _task(X, labels, count, "cross_entropy", 10, 1.0)

    def _teacher(self) -> tuple[_Task, float]:
        """The right panel's data, and ‖θ‖² of the teacher rebalanced: its loss bounds the least one at its width."""
        dims = self.teacher_dims
        rng = np.random.default_rng([self.seed, 4])
        Ws = [rng.standard_normal((m, n)) * np.sqrt(self.teacher_gain / n) for n, m in zip(dims, dims[1:])]
        net = FullyConnected.from_weights([torch.tensor(W) for W in Ws])
        X = torch.tensor(rng.standard_normal((self.samples + self.test_samples, dims[0])))
        with torch.no_grad():
            Y = net(X).numpy()
        unit = 1.0 / dims[-1] if self.average_outputs else 1.0
        return _task(X.numpy(), Y, self.samples, "mse", dims[-1], unit), rebalance(net).norm_after

    def plateaus(self, arrays: Mapping[str, np.ndarray]) -> list[Plateau]:
        """Of each λ on the left, then of the teacher."""
        tables = [*arrays["left_train"], arrays["right_train"]]
        return [plateau_of_losses(arrays["widths"], table, tolerance=self.flat) for table in tables]

    def _names(self) -> list[str]:
        left = "MNIST" if self.data == "mnist" else "synthetic classes"
        return [*(f"{left}, λ = {lam:g}" for lam in self.lams), "teacher"]

    def outcomes(self, arrays: Mapping[str, np.ndarray]) -> list[Outcome]:
        """Where each plateau begins to the eye, and the test loss; beside them where it begins strictly, and more."""
        statements, ours = [], []
        places = self.plateaus(arrays)
        bests = [best_losses(table) for table in [*arrays["left_train"], arrays["right_train"]]]
        constants = [*[float(arrays["left_constant"])] * len(self.lams), float(arrays["right_constant"])]
        for name, place, best, constant in zip(self._names(), places, bests, constants):
            statements.append(self._start(name, place, constant))
            excess = float(np.interp(PAPER_START, arrays["widths"], best) / place.level - 1.0)
            text = f"{name}: flat to the spread of the trials ({place.spread:.2g} of the level) from width"
            why = f"at width {PAPER_START} the loss is {excess:.2g} of the level above it"
            ours.append(condition(text, place.strict <= NEAR * PAPER_START, place.strict, PAPER_START, why))
        latest, bound = max(place.start for place in places), self.samples**2 / 100
        statements.append(START.judge("the latest start, below a hundredth of N²", latest <= bound, latest, bound))
        statements.append(self._test(arrays, places[-1]))
        converged = self._trainings(arrays)
        return [*statements, *converged, self._teacher_loss(arrays, bests[-1]), *ours]

    def _start(self, name: str, place: Plateau, constant: float) -> Outcome:
        text = f"{name}: within {self.flat:.0%} of the plateau from width ({place.low} to {place.high})"
        if place.level > 0.9 * constant:
            why = "the plateau is that of a constant: λ is too large, or the trainings ended in 0"
            return START.judge(text, None, place.start, PAPER_START, why)
        near = PAPER_START / NEAR <= place.start <= PAPER_START * NEAR
        why = "" if near else f"not within a factor {NEAR:g}"
        return START.judge(text, near, place.start, PAPER_START, why, otherwise="differs")

    def _test(self, arrays: Mapping[str, np.ndarray], place: Plateau) -> Outcome:
        chosen = arrays["right_train"].argmin(axis=0)
        columns = np.flatnonzero(arrays["widths"] >= place.start)
        ratios = arrays["right_test"][chosen[columns], columns] / arrays["right_train"].min(axis=0)[columns]
        ratio = float(np.median(ratios))
        below = ", ".join(str(n) for n, share in zip(arrays["widths"][columns], ratios) if share < 1.0)
        text = "teacher: test loss over training loss, median over the plateau's widths, below"
        return SMALLER.judge(text, ratio < 1.0, ratio, 1.0, f"below at width {below or 'none'}", otherwise="differs")

    def _teacher_loss(self, arrays: Mapping[str, np.ndarray], best: np.ndarray) -> Outcome:
        ratio = float(arrays["teacher_loss"]) / float(best[-1])
        text = f"loss of the teacher itself (width {max(self.teacher_dims[1:-1])}) over the plateau's level"
        return condition(text, 1.0 - 1e-6 <= ratio <= 1.0 + 2.0 * self.flat, ratio, 1.0)

    def _trainings(self, arrays: Mapping[str, np.ndarray]) -> list[Outcome]:
        found = []
        for name, states in zip(self._names(), [*arrays["left_states"], arrays["right_states"]]):
            share = float(np.isin(states, [STATES.index(state) for state in AT_REST]).mean())
            counts = [f"{int((states == i).sum())} {state}" for i, state in enumerate(STATES) if (states == i).any()]
            text = f"{name}: share of the trainings that converged"
            found.append(condition(text, share == 1.0, share, 1.0, ", ".join(counts)))
        return found

    def plot(self, arrays: Mapping[str, np.ndarray], figure: Figure) -> None:
        """Two panels of the loss against the width: training full, test dashed, trials as dots, starts marked."""
        places = self.plateaus(arrays)
        widths = arrays["widths"]
        curves = [
            WidthCurve(rf"$\lambda$ = {power(lam)}", train, test, place.start, place.low, place.high, place.level)
            for lam, train, test, place in zip(self.lams, arrays["left_train"], arrays["left_test"], places)
        ]
        last = places[-1]
        teacher = WidthCurve(
            rf"$\lambda$ = {power(self.teacher_lam)}",
            arrays["right_train"],
            arrays["right_test"],
            last.start,
            last.low,
            last.high,
            last.level,
        )
        left = f"(a) {'MNIST' if self.data == 'mnist' else 'synthetic classes'}, cross-entropy, N = {self.samples}"
        right = f"(b) teacher {self.teacher_dims}, mean squared error, N = {self.samples}"
        draw_widths_needed(figure, widths, [(left, curves, None), (right, [teacher], float(arrays["teacher_loss"]))])


def _task(X: np.ndarray, Y: np.ndarray, samples: int, loss: str, d_out: int, unit: float) -> _Task:
    inputs, targets = torch.tensor(X), torch.tensor(Y)
    V = spanned(inputs[:samples])
    inputs = (inputs @ V).float()
    targets = targets.float() if loss == "mse" else targets
    parts = (inputs[:samples], targets[:samples], inputs[samples:], targets[samples:])
    return _Task(*parts, V, loss, d_out, unit)


# ---- Where the least loss, as a function of the width, begins to be flat; and how surely


Array = np.ndarray[Any, Any]


#: Resampled sets of trials behind an interval, and the share of them within it.
DRAWS, COVERED = 500, 0.9


@dataclass(frozen=True)
class Plateau:
    """The start of a plateau.

    Attributes
    ----------
    level : float
        The least loss found at any width: the plateau's height.
    start : int
        Least width whose loss is at most (1 + tolerance)·level.
    low, high : int
        Where ``start`` falls for nine of ten resampled sets of trials with tolerances from half to twice the given one.
    tolerance : float
    spread : float
        What the seed makes of the loss: (median − least)/least of the trials at a width, its median over the wider half
        of the widths. Differences below it say nothing.
    strict : int
        ``start`` for the tolerance ``spread``: from here on the loss is flat as far as these trials can tell.
    """

    level: float
    start: int
    low: int
    high: int
    tolerance: float
    spread: float
    strict: int


def best_losses(losses: Array) -> Array:
    """The least loss found at most that wide, (widths,), from losses (trials, widths) in the order of the widths.

    A narrower network with neurons that are dead is a wider one of the same loss: the running minimum bounds the least
    loss at each width from above, and never rises (C-feat-4).
    """
    return np.minimum.accumulate(losses.min(axis=0))


def plateau_start(widths: Array, best: Array, tolerance: float) -> int:
    """Least width with ``best`` ≤ (1 + tolerance)·(its last value)."""
    return int(widths[np.flatnonzero(best <= (1.0 + tolerance) * best[-1])[0]])


def plateau_of_losses(
    widths: Any, losses: Any, *, tolerance: float = 0.05, draws: int = DRAWS, seed: int = 0
) -> Plateau:
    """The start of the plateau of losses (trials, widths), with an interval by the bootstrap.

    Parameters
    ----------
    widths : array (widths,) of int
        Increasing.
    losses : array (trials, widths)
        Positive and finite.
    tolerance : float, default 0.05
        What of the level is too little to be seen.
    draws, seed : int
        Of the bootstrap. With one trial it is over the tolerance alone.

    Examples
    --------
    >>> plateau_of_losses([5, 10, 20, 40], [[3.0, 1.02, 1.001, 1.0], [4.0, 1.1, 1.003, 1.002]]).start
    10
    """
    who = "plateau"
    check_number(who, "tolerance", tolerance, low=0.0, low_open=True)
    check_integer(who, "draws", draws, low=1)
    n, table = np.asarray(widths), np.asarray(losses, dtype=np.float64)
    if n.ndim != 1 or table.ndim != 2 or table.shape[1] != len(n) or len(n) == 0 or not (np.diff(n) > 0).all():
        must = "`losses` must be (trials, widths) for increasing `widths`"
        fail(who, must, f"shapes {table.shape} and {n.shape}", "Sort the widths, one column for each.")
    if not (np.isfinite(table).all() and (table > 0.0).all()):
        fail(who, "`losses` must be positive and finite", "others", "Leave out trainings that diverged.")
    best = best_losses(table)
    wide = table[:, len(n) // 2 :]
    spread = float(np.median(np.median(wide, axis=0) / wide.min(axis=0) - 1.0))
    rng = np.random.default_rng(seed)
    trials, columns = len(table), np.arange(len(n))
    found = np.empty(draws)
    for i in range(draws):
        chosen = table[rng.integers(trials, size=table.shape), columns]
        found[i] = plateau_start(n, best_losses(chosen), tolerance * 2.0 ** rng.uniform(-1.0, 1.0))
    low, high = np.quantile(found, [(1.0 - COVERED) / 2.0, (1.0 + COVERED) / 2.0], method="inverted_cdf")
    start = plateau_start(n, best, tolerance)
    strict = plateau_start(n, best, spread)
    return Plateau(float(best[-1]), start, min(int(low), start), max(int(high), start), tolerance, spread, strict)


# ---- Pictures of losses against the width of a network


_COLOURS = (PALETTE["blue"], PALETTE["vermilion"], PALETTE["green"])

_GREY = "#6B7480"

#: Below this ratio of the ends of an axis powers of ten alone are too few marks.
DECADES = 300.0


@dataclass(frozen=True, eq=False)
class WidthCurve:
    """Losses (trials, widths) of one setting, and where their plateau begins: start, interval and height."""

    label: str
    train: Array
    test: Array
    start: int
    low: int
    high: int
    level: float


def draw_widths_needed(
    figure: Figure, widths: Array, panels: Sequence[tuple[str, Sequence[WidthCurve], float | None]]
) -> None:
    """Loss against width on logarithmic axes, a panel for each title.

    Full lines are the best training losses, dots the trials, dashed lines the test loss of the best trial. A diamond
    marks the start of the plateau, a bar the interval of it.

    Parameters
    ----------
    figure : Figure
    widths : array (widths,)
    panels : sequence of (title, curves, reference)
        ``reference`` is a known loss, drawn as a dotted line.
    """
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for one, (title, curves, reference) in zip(axes, panels):
        one.set_xscale("log")
        one.set_yscale("log")
        for colour, curve in zip(_COLOURS, curves):
            _draw_curve(one, widths, curve, colour)
        if reference is not None:
            one.axhline(reference, color=_GREY, linestyle=":", linewidth=1.4, label="the teacher's own loss", zorder=1)
        dress(one, title=title, x="width of the hidden layers", y="loss")
        shown = [float(n) for n in widths if n in (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 50, 80, 100, 200)]
        one.xaxis.set_major_locator(FixedLocator(shown))
        one.xaxis.set_major_formatter(ScalarFormatter())
        one.xaxis.set_minor_locator(NullLocator())
        one.yaxis.set_minor_formatter(NullFormatter())
        low, high = one.get_ylim()
        one.set_ylim(low * (low / high) ** 0.06, high)
        if high / low < DECADES:
            one.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            one.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        _legend(one)


def power(value: float) -> str:
    r"""A number as people write it in a figure.

    Examples
    --------
    >>> power(1e-6), power(0.003)
    ('$10^{-6}$', '$3\\cdot 10^{-3}$')
    """
    digits, _, exponent = f"{value:.3e}".partition("e")
    digits = digits.rstrip("0").rstrip(".")
    ten = f"10^{{{int(exponent)}}}"
    return f"${ten}$" if digits == "1" else rf"${digits}\cdot {ten}$"


def _draw_curve(axes: Axes, widths: Array, curve: WidthCurve, colour: str) -> None:
    chosen = curve.train.argmin(axis=0)
    best, test = curve.train.min(axis=0), curve.test[chosen, np.arange(len(widths))]
    axes.plot(widths, best, "-", color=colour, linewidth=2.0, label=curve.label, zorder=3)
    axes.plot(widths, test, "--", color=colour, linewidth=1.5, zorder=2)
    for trial in curve.train:
        axes.plot(widths, trial, "o", color=colour, markersize=3.6, alpha=0.55, markeredgewidth=0.0, zorder=3)
    place = float(best[int(np.searchsorted(widths, curve.start))])
    axes.plot([curve.low, curve.high], [place, place], color=colour, linewidth=7.0, alpha=0.22, zorder=1)
    axes.plot(curve.start, place, "D", color=colour, markersize=8, markeredgecolor="white", zorder=5)
    text = f"{curve.start} ({curve.low}–{curve.high})" if curve.low < curve.high else str(curve.start)
    axes.annotate(
        text,
        (curve.start, place),
        textcoords="offset points",
        xytext=(0, -19),
        ha="center",
        fontsize=9.5,
        color=colour,
        zorder=6,
        bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
    )


def _legend(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    more = [
        Line2D([], [], color=_GREY, linestyle="-", label="training, best trial"),
        Line2D([], [], color=_GREY, linestyle="--", label="test"),
        Line2D([], [], color=_GREY, linestyle="", marker="o", markersize=4, label="trials"),
        Line2D([], [], color=_GREY, linestyle="", marker="D", markersize=7, label="start of the plateau (90 %)"),
    ]
    labels += [str(line.get_label()) for line in more]
    axes.legend([*handles, *more], labels, frameon=False, fontsize=9.5, loc="upper right")
