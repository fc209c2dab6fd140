"""A network trained on the losses of a gradient descent, and what F-bn-2 and F-talk-3 show of it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from isthmus._errors import ConvergenceWarning
from isthmus._progress import ProgressFactory
from isthmus.diagnosis import symmetry
from isthmus.diagnosis.symmetry_result import Symmetry
from isthmus.discovery.dynamics import dynamics_of
from isthmus.discovery.velocities import explained
from isthmus.measures.orbits import rotations_about
from isthmus.measures.spectra import weight_spectra
from isthmus.networks import FullyConnected
from isthmus.objective import constant_cost, cost
from isthmus.problems import gradient_descent_losses
from isthmus.problems.summary import descend, summary_statistics
from isthmus.training import Phase, TrainingResult, train

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
class Settings:
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


_KEPT: dict[Settings, dict[str, Array]] = {}


def measured(settings: Settings, progress: ProgressFactory) -> dict[str, Array]:
    """Train, then look: spectra, orbits, paths, maps, coordinates."""
    if settings not in _KEPT:
        found = look(*fit(settings, progress), settings)
        _KEPT.clear()
        _KEPT[settings] = found
    return dict(_KEPT[settings])


def plan(steps: int, learning_rate: float) -> list[Phase]:
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


def fit(settings: Settings, progress: ProgressFactory) -> tuple[FullyConnected, TrainingResult, Array, float]:
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
    options = {"ridge": settings.lam, "seed": settings.seed, "show_progress": progress}
    with warnings.catch_warnings():
        # Not swallowed: the state of the last training is in the arrays and in an outcome.
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = train(net, X[:n], Y[:n], phases=plan(steps, settings.learning_rate), **options)
        if result.state != "interrupted":
            net = deepen(net, X[:n], settings.depth)
            phases = [
                Phase("lbfgs", steps, ridge_start=RAISED_DEEP, ridge_end=RAISED_DEEP),
                Phase("lbfgs", steps, ridge_start=RAISED_DEEP, ridge_share=1.0),
                Phase("lbfgs", 2 * steps),
            ]
            result = train(net, X[:n], Y[:n], phases=phases, **options)
    if result.state == "interrupted":
        # Half a training is no figure: let whoever called end as after any Ctrl-C.
        raise KeyboardInterrupt
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


def look(net: FullyConnected, result: TrainingResult, w: Array, error: float, settings: Settings) -> dict[str, Array]:
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
        "converged": np.array(result.state == "converged"),
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
