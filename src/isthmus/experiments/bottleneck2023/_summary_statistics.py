"""F-bn-2 and F-talk-3: a network that predicts losses of a descent learns its symmetry and its summary statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Self

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from isthmus._checks import fail
from isthmus._cite import cites
from isthmus._progress import ProgressFactory
from isthmus.diagnosis import Symmetry, symmetry
from isthmus.discovery import dynamics_of, explained
from isthmus.experiments._experiment import Experiment, parameter
from isthmus.experiments._outcomes import Quote, condition, under
from isthmus.measures import read_spectrum
from isthmus.measures._orbits import rotations_about
from isthmus.measures._spectra import weight_spectra
from isthmus.networks import FullyConnected
from isthmus.objective import constant_cost, cost
from isthmus.plotting.orbits import draw_bijection, draw_symmetry_learning
from isthmus.problems import descend, gradient_descent_losses, summary_statistics
from isthmus.runs import Outcome
from isthmus.training import Phase, TrainingResult, minimise

#: Orbits count as collapsed below this share of the range; coordinates as a bijection above this R².
COLLAPSED, BIJECTION = 0.05, 0.95

OUTLIERS = Quote(
    "Singular values of the weight matrices of the network, showing two outliers in the bottleneck, which implies that "
    "the network has recovered the true rank of 2.",
    "bottleneck2023, caption of Figure 2, (a)",
)
PATHS_APART = Quote(
    "we see how images of GD paths do not cross in this space, showing that the dynamics on these two dimensions are "
    "self-consistent.",
    "bottleneck2023, caption of Figure 2, (b)",
)
ORBITS = Quote(
    "we see that all points on the same symmetry orbit are collapsed together, proving that the network has learned "
    "the rotation symmetry.",
    "bottleneck2023, caption of Figure 2, (c), of the second hidden layer",
)
STATISTICS = Quote(
    "learns two dimensional hidden representations that are summary statistics (summary statistics are only defined up "
    "to bijections, so the learned representation match u(v) only up to bijection",
    "bottleneck2023, §5; talk2023, slide 'Summary Statistics'",
)


@dataclass(frozen=True, kw_only=True)
class DescentLosses(Experiment):
    """From v(0), predict C(v(1)), …, C(v(T)) of gradient descent on C(v) = ‖vvᵀ − (wwᵀ + E)‖²: shared settings."""

    paper: ClassVar[str] = "bottleneck2023"
    convention: ClassVar[str] = "bottleneck2023: mean over samples, sum over outputs, + λ‖θ‖²; ridge = λ"
    quick_seconds: ClassVar[float] = 20.0
    full_seconds: ClassVar[float] = 400.0

    d: int = parameter(4, "dimension of v", low=3, high=10_000)
    horizon: int = parameter(20, "T, steps of the descent", low=2, high=10_000)
    step_size: float = parameter(0.02, "η of the descent", low=1e-6, high=0.08)
    perturbation: float = parameter(0.0, "‖E‖", low=0.0, high=1.0)
    samples: int = parameter(1000, "N, training samples", low=10, high=10**6)
    width: int = parameter(200, "w", source="paper", low=2, high=10_000)
    depth: int = parameter(25, "L", source="paper", low=4, high=10_000)
    start_depth: int = parameter(8, "depth of the first training, deepened in the middle", low=4, high=10_000)
    lam: float = parameter(2e-4, "λ", source="paper", low=1e-12, high=1e6)
    layer: int = parameter(6, "the layer whose plane is shown", source="paper", low=2, high=10_000)
    steps: int = parameter(250, "quasi-Newton steps in a part of the training: 11 parts", low=1, high=10**6)
    learning_rate: float = parameter(1e-3, "of Adam, at the beginning", low=1e-8, high=10.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layer >= self.depth:
            fail(self.id, f"`layer` must be below the depth, {self.depth}", self.layer, "Choose a hidden layer.")
        if self.start_depth > self.depth:
            fail(self.id, f"`start_depth` must be at most the depth, {self.depth}", self.start_depth, "Lower it.")

    @classmethod
    def quick(cls) -> Self:
        """A smaller network, fewer samples, a larger λ: after few steps the spectrum is not clear at the paper's."""
        return cls(width=50, depth=12, start_depth=6, samples=400, steps=40, lam=5e-4)

    @property
    def settings(self) -> SummarySettings:
        """The parameters of the training."""
        return SummarySettings(**{item.name: getattr(self, item.name) for item in fields(SummarySettings)})

    def compute(self, progress: ProgressFactory) -> dict[str, np.ndarray]:
        """Train one network, then look at it."""
        return measured(self.settings, progress)

    def trained(self, arrays: Mapping[str, np.ndarray]) -> Outcome:
        """Whether the training converged."""
        return condition("training converged", bool(arrays["converged"]), float(arrays["gradient"]))


@cites("bottleneck2023", "Figure 2, §5", ids=("F-bn-2",))
@cites("talk2023", "'Summary Statistics'")
@dataclass(frozen=True, kw_only=True)
class SymmetryLearning(DescentLosses):
    """Two singular values stand out, orbits of the rotation collapse by layer 2, paths of layer 6 do not cross."""

    id: ClassVar[str] = "F-bn-2"
    title: ClassVar[str] = "Symmetry learning: rotations around w collapse, and the dynamics close in two dimensions"
    where: ClassVar[str] = "Figure 2"
    figure_size: ClassVar[tuple[float, float]] = (17.0, 4.4)

    def outcomes(self, arrays: Mapping[str, np.ndarray]) -> list[Outcome]:
        """Singular values, orbits at layer 2, paths; beside them orbits with w ↦ −w, and convergence."""
        middle = arrays["weight_spectra"][self.depth // 2]
        reading = read_spectrum(middle[np.isfinite(middle)])
        count = reading.count if reading.status == "clear" else -1
        why = "" if count == 2 else f"{reading.status}: {reading.count} stand out"
        statements = [OUTLIERS.judge("singular values that stand out in the middle", count == 2, count, 2, why)]
        ratio, error = (float(x) for x in arrays["orbits"][:, 2])
        first = _from(arrays["orbits"][0])
        later = 2 < first <= self.layer
        why = f"± {error:.1g}; " + (f"below that from layer {first} on" if later else "nor later")
        name, good = "rotations around w: orbit distance at layer 2, share of the range", ratio < COLLAPSED
        statements.append(
            ORBITS.judge(name, good, ratio, COLLAPSED, "" if good else why, otherwise="differs" if later else "fails")
        )
        state, (crossing, _), (missed, _) = int(arrays["dynamics"]), arrays["crossing"], arrays["unexplained"]
        why = "" if state == 0 else f"{STATES[state]}: a fit misses {missed:.2g} of the velocities' variance"
        name = f"paths in layer {self.layer} do not cross: disagreement of velocities where they meet"
        good = None if STATES[state] == "undetermined" else state == 0
        statements.append(PATHS_APART.judge(name, good, float(crossing), COLLAPSED, why, otherwise="differs"))
        converged = self.trained(arrays)
        # The paper speaks of rotations only.
        first = _from(arrays["orbits_mirrored"][0])
        name = f"with w ↦ −w too: first layer from which on orbits are collapsed, at most {self.layer}"
        mirrored = condition(name, 0 < first <= self.layer, first, self.layer)
        return [*under([converged], statements), converged, mirrored]

    def plot(self, arrays: Mapping[str, np.ndarray], figure: Figure) -> None:
        """(a) singular values; (b) paths in the plane; (c) distances on a plane orthogonal to w."""
        draw_symmetry_learning(figure, arrays, layer=self.layer)


@cites("talk2023", "'Summary Statistics'", ids=("F-talk-3",))
@cites("bottleneck2023", "§5")
@dataclass(frozen=True, kw_only=True)
class LearnedStatistics(DescentLosses):
    """Coordinates inside the bottleneck are a bijection of u = ((wᵀv)², ‖(I − wwᵀ)v‖²); training never sees u."""

    id: ClassVar[str] = "F-talk-3"
    title: ClassVar[str] = "Summary statistics learned without being named"
    where: ClassVar[str] = "slides 'Summary Statistics'"
    figure_size: ClassVar[tuple[float, float]] = (14.0, 4.6)

    def outcomes(self, arrays: Mapping[str, np.ndarray]) -> list[Outcome]:
        """R² both ways, at the layer shown and in the middle, the worse of the two columns."""
        statements = []
        for where in dict.fromkeys((self.layer, self.depth // 2)):
            there, back = (float(x) for x in arrays["scores"][:, where - 2])
            for name, value in (("u from the layer's plane", there), ("the layer's plane from u", back)):
                text = f"layer {where}: R² of {name}, at least"
                statements.append(STATISTICS.judge(text, value >= BIJECTION, value, BIJECTION))
        converged = self.trained(arrays)
        return [*under([converged], statements), converged]

    def plot(self, arrays: Mapping[str, np.ndarray], figure: Figure) -> None:
        """(a) the statistics; (b) the layer's plane in the same colours; (c) R² both ways through depth."""
        draw_bijection(figure, arrays, layer=self.layer)


def _from(ratios: np.ndarray) -> int:
    """The first layer from which on all ratios are small; 0 if the last is not."""
    spread = np.flatnonzero(~(ratios < COLLAPSED))
    return 0 if spread[-1:] == len(ratios) - 1 else int(spread[-1]) + 1 if len(spread) else 1


# ---- A network trained on the losses of a gradient descent, and what F-bn-2 and F-talk-3 show of it


Array = np.ndarray

#: Singular values kept for the figure; points along each side of a distance map; paths shown, and judged.
SHOWN, GRID, PATHS, JUDGED = 12, 61, 30, 80

#: Rows that coordinates and statistics are compared on.
ROWS = 600

#: Multiples of λ at which the first network stays, and the deep one, for which each dimension costs more; share of a
#: representation's norm that deepening may leave out.
RAISED, RAISED_DEEP, LEFT_OUT = 10.0, 4.0, 1e-2

#: States of a Dynamics by number.
STATES = ("closed", "not closed", "undetermined")

#: Where along w the plane of the distance maps lies, and how far from the axis its fixed point.
HEIGHT, RADIUS = 0.5, 0.8


@dataclass(frozen=True)
class SummarySettings:
    """What F-bn-2 and F-talk-3 share: equal settings are trained once in a process."""

    d: int
    horizon: int
    step_size: float
    perturbation: float
    samples: int
    width: int
    depth: int
    start_depth: int
    lam: float
    layer: int
    steps: int
    learning_rate: float
    seed: int


_KEPT: dict[SummarySettings, dict[str, Array]] = {}


def measured(settings: SummarySettings, progress: ProgressFactory) -> dict[str, Array]:
    """Train, then look: spectra, orbits, paths, maps, coordinates."""
    if settings not in _KEPT:
        found = look_at_axis(*fit_deep(settings, progress), settings)
        _KEPT.clear()
        _KEPT[settings] = found
    return dict(_KEPT[settings])


def plan_of_start(steps: int, learning_rate: float) -> list[Phase]:
    """For the first, less deep network: raise the ridge to ``RAISED`` times its value, stay there, come back.

    While the ridge is large the nonlinear part moves towards the first layers: hence the long stay.
    """
    low = 1e-3 * RAISED
    return [
        Phase("scale", 1),
        Phase("adam", 100, learning_rate, ridge_start=low, ridge_end=low, anneal=True),
        Phase("lbfgs", steps, ridge_start=low, ridge_end=RAISED, ridge_share=1.0),
        Phase("lbfgs", 5 * steps, ridge_start=RAISED, ridge_end=RAISED),
        Phase("lbfgs", steps, ridge_start=RAISED, ridge_share=1.0),
    ]


def deepen(net: FullyConnected, X: Tensor, depth: int) -> FullyConnected:
    """Put identity layers behind the hidden layer that needs the fewest dimensions on X, up to ``depth``.

    Each is the projection onto the leading directions of that layer's representation, up to ``LEFT_OUT`` of its norm:
    ReLU leaves the rest, which is positive, as it is.
    """
    best: tuple[int, int, Tensor] | None = None
    for ell, A in enumerate(net.trace(X).activations[1:], start=1):
        _, s, V = torch.linalg.svd(A, full_matrices=False)
        rest = s.square().flip(0).cumsum(0).flip(0).sqrt() / s.norm()
        k = int((rest > LEFT_OUT).sum())
        if best is None or k < best[1]:
            best = ell, k, V[:k].mT @ V[:k]
    assert best is not None
    ell, _, P = best
    extra = depth - net.depth
    Ws, bs = list(net.Ws), list(net.bs)
    Ws[ell:ell] = [P.to(Ws[0].dtype)] * extra
    bs[ell:ell] = [torch.zeros(len(P), dtype=Ws[0].dtype)] * extra
    deep = FullyConnected([Ws[0].shape[1], *(W.shape[0] for W in Ws)])
    with torch.no_grad():
        for new, old in zip((*deep.Ws, *deep.bs), (*Ws, *bs)):
            new.copy_(old)
    return deep


def fit_deep(
    settings: SummarySettings, progress: ProgressFactory
) -> tuple[FullyConnected, TrainingResult, Array, float]:
    """The trained network, the training's account, the axis w and the cost on as many new samples.

    Trained at ``start_depth`` first, where a step is cheap and few are needed, then deepened in the middle and trained
    to the end at the full depth.
    """
    problem = gradient_descent_losses(
        d=settings.d,
        steps=settings.horizon,
        step_size=settings.step_size,
        perturbation=settings.perturbation,
        samples=2 * settings.samples,
        seed=settings.seed,
    )
    X, Y = (torch.tensor(values, dtype=torch.float32) for values in (problem.X, problem.Y))
    n, steps = settings.samples, settings.steps
    dims = [settings.d, *[settings.width] * (settings.start_depth - 1), settings.horizon]
    net = FullyConnected(dims, generator=torch.Generator().manual_seed(settings.seed))
    options = {"ridge": settings.lam, "seed": settings.seed, "progress": progress}
    # The state of the last training is in the arrays and in a condition.
    minimise(net, X[:n], Y[:n], phases=plan_of_start(steps, settings.learning_rate), **options)
    net = deepen(net, X[:n], settings.depth)
    phases = [
        Phase("lbfgs", steps, ridge_start=RAISED_DEEP, ridge_end=RAISED_DEEP),
        Phase("lbfgs", steps, ridge_start=RAISED_DEEP, ridge_share=1.0),
        Phase("lbfgs", 2 * steps),
    ]
    result = minimise(net, X[:n], Y[:n], phases=phases, **options)
    with torch.no_grad():
        error = float(cost(net(X[n:]), Y[n:])) / constant_cost(Y[:n])
    return net, result, axis_of(problem.X, problem.latents), error


def axis_of(V: Array, statistics: Array) -> Array:
    """W from (wᵀv)², which is quadratic in v: the leading eigenvector of the matrix that fits it; up to sign."""
    d = V.shape[1]
    products = (V[:, :, None] * V[:, None, :]).reshape(len(V), -1)
    M = np.linalg.lstsq(products, statistics[:, 0], rcond=None)[0].reshape(d, d)
    return np.linalg.eigh((M + M.T) / 2)[1][:, -1]


def fresh(w: Array, count: int, seed: int) -> Array:
    """New samples of the task's law: wᵀv in [−1.2, 1.2] and the distance to the axis in [0, 1.2], uniform."""
    rng = np.random.default_rng([seed, 2])
    G = rng.standard_normal((count, len(w)))
    G -= np.outer(G @ w, w)
    aside = rng.uniform(0.0, 1.2, (count, 1)) * G / np.linalg.norm(G, axis=1, keepdims=True)
    return aside + np.outer(rng.uniform(-1.2, 1.2, count), w)


def look_at_axis(
    net: FullyConnected, result: TrainingResult, w: Array, error: float, settings: SummarySettings
) -> dict[str, Array]:
    """Everything that the two figures show, in float64, on samples that were not trained on."""
    net = net.double()
    V = fresh(w, min(ROWS, 2 * settings.samples), settings.seed)
    turned = symmetry(net, V, rotations_about(w), seed=settings.seed)
    mirrored = symmetry(net, V, rotations_about(w, reflect=True), seed=settings.seed)
    statistics = summary_statistics(V, w)
    planes = [_plane(A.numpy()) for A in net.trace(V).activations[2:]]
    shown = planes[settings.layer - 2]
    scores = np.array(
        [[explained(c, statistics).min(), explained(statistics, c).min()] for c in (p.of(p.A) for p in planes)]
    )
    starts = fresh(w, JUDGED, settings.seed + 1)
    paths, _ = descend(starts, w, steps=settings.horizon, step_size=settings.step_size)
    inside = net.trace(paths.reshape(-1, settings.d)).activations[settings.layer].numpy()
    places = shown.of(inside).reshape(JUDGED, settings.horizon + 1, 2)
    moving = dynamics_of(
        places.reshape(-1, 2),
        np.tile(np.arange(settings.horizon + 1.0), JUDGED),
        np.repeat(np.arange(JUDGED), settings.horizon + 1),
    )
    spectra = np.full((settings.depth, SHOWN), np.nan)
    for row, s in zip(spectra, weight_spectra(net)):
        row[: min(SHOWN, len(s))] = s[:SHOWN].numpy()
    return {
        "weight_spectra": spectra,
        "orbits": _ratios(turned),
        "orbits_mirrored": _ratios(mirrored),
        "scores": scores.T,
        "statistics": statistics,
        "coordinates": shown.of(shown.A),
        "paths": places[:PATHS],
        "dynamics": np.array(STATES.index(moving.state)),
        "crossing": np.array([moving.crossing, moving.crossing_error]),
        "unexplained": np.array([moving.unexplained, moving.unexplained_error]),
        **_maps(net, w),
        "test_error": np.array(error),
        "loss": np.array(result.loss),
        "cost": np.array(result.cost),
        "converged": np.array(result.at_rest),
        "gradient": np.array(result.criteria.gradient),
        "norm": np.array([sum(float(W.detach().square().sum()) for W in (*net.Ws, *net.bs))]),
    }


@dataclass(frozen=True, eq=False)
class _Plane:
    """The two leading principal axes of rows A."""

    A: Array
    middle: Array
    axes: Array
    scale: float

    def of(self, rows: Array) -> Array:
        return (rows - self.middle) @ self.axes / self.scale


def _plane(A: Array) -> _Plane:
    middle = A.mean(axis=0)
    axes = np.linalg.svd(A - middle, full_matrices=False)[2][:2].T
    return _Plane(A, middle, axes, float(((A - middle) @ axes[:, 0]).std()) or 1.0)


def _ratios(found: Symmetry) -> Array:
    """Orbit distance over range and its error at inputs, layers 1 …, outputs, (2, L + 1)."""
    return np.array([[layer.ratio, layer.error] for layer in found.layers]).T


def _maps(net: FullyConnected, w: Array) -> dict[str, Array]:
    """Distances to a fixed point on a plane orthogonal to w, in layers 1 and 2."""
    basis = np.linalg.svd(w[None])[2][1:3]
    axis = np.linspace(-1.2, 1.2, GRID)
    first, second = np.meshgrid(axis, axis)
    points = HEIGHT * w + first.reshape(-1, 1) * basis[0] + second.reshape(-1, 1) * basis[1]
    fixed = HEIGHT * w + RADIUS * basis[0]
    trace = net.trace(np.concatenate([fixed[None], points]))
    maps = {}
    for name, A in zip(("map_first", "map_second"), trace.activations[1:3]):
        maps[name] = (A[1:] - A[0]).norm(dim=1).reshape(GRID, GRID).numpy()
    return {**maps, "map_axis": axis, "map_point": np.array([RADIUS, 0.0])}
