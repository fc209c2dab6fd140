"""Leaky ResNets trained on one task, and their mechanics as arrays: what the figures of this paper are made of."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator
from torch import Tensor

from isthmus._progress import Progress, ProgressFactory
from isthmus.measures import Mechanics, mechanics
from isthmus.networks import LeakyResNet
from isthmus.objective import constant_cost, cost, ridge_from
from isthmus.plotting.draw import draw
from isthmus.plotting.mechanics import energies_along, spectra
from isthmus.plotting.style import PALETTE, dress
from isthmus.problems import Problem, teacher
from isthmus.training import Phase, TrainingResult, minimise
from isthmus.training._phases import STRUCTURE_SHARE

#: Singular values kept for the figures.
SHOWN = 12

#: Curvature pairs: with millions of parameters more of them cost as much as the gradient itself.
MEMORY = 10

#: Steps of Adam at the beginning.
WARM = 100

#: Half-widths of the bands in which kinks are rounded at the end of a training that is to be critical, one after the
#: other; how often those of the last are then moved onto the kinks.
BANDS, MOVES = (0.03, 0.01, 0.003), 1

#: How near a kink counts as on it, in units of the root mean square of a representation.
KINKS = 1e-3


@dataclass(frozen=True)
class Split:
    """Training and test data, demeaned and scaled to unit variance together."""

    X: Tensor
    Y: Tensor
    X_test: Tensor
    Y_test: Tensor


def split(problem: Problem, samples: int) -> Split:
    """The first ``samples`` rows to train on, the rest to test on; one scale for all columns."""
    parts = []
    for values in (problem.X, problem.Y):
        T = torch.tensor(values, dtype=torch.float32)
        parts.append((T - T.mean(0)) / T.std())
    X, Y = parts
    return Split(X[:samples], Y[:samples], X[samples:], Y[samples:])


def plan_of_path(
    net: LeakyResNet, Y: Tensor, ridge: float, steps: int, learning_rate: float, last: list[Phase]
) -> list[Phase]:
    """Fit at a small ridge, raise it until the structure appears, come back (``steps`` each), converge (``last``)."""
    top = max(1.0, STRUCTURE_SHARE * constant_cost(Y) / net.carrying_norm() / ridge)
    low = 1e-3 * top
    phases = [
        Phase("adam", WARM, learning_rate, ridge_start=low, ridge_end=low, anneal=True),
        Phase("lbfgs", steps, ridge_start=low, ridge_end=top, ridge_share=1.0, memory=MEMORY),
        Phase("lbfgs", steps, ridge_start=top, ridge_end=top, memory=MEMORY),
    ]
    if top > 1.0:
        phases.append(Phase("lbfgs", steps, ridge_start=top, ridge_share=1.0, memory=MEMORY))
    return [*phases, *last]


def to_criticality(steps: int) -> list[Phase]:
    """L-BFGS on rounded kinks, band after band, then with the bands moved onto the kinks; ``steps`` in each."""
    rounded = [Phase("lbfgs", steps, memory=MEMORY, band=band) for band in BANDS]
    return rounded + [Phase("lbfgs", steps, memory=MEMORY, band=BANDS[-1], moved=True)] * MOVES


def fit_path(
    net: LeakyResNet,
    data: Split,
    ridge: float,
    *,
    steps: int,
    last: list[Phase],
    learning_rate: float,
    seed: int,
    show: ProgressFactory,
) -> tuple[TrainingResult, float]:
    """Train in place by :func:`plan_of_path`; the account of it, and the error on the test data per output."""
    # The state is in the arrays and in a condition.
    phases = plan_of_path(net, data.Y, ridge, steps, learning_rate, last)
    result = minimise(net, data.X, data.Y, ridge=ridge, phases=phases, seed=seed, progress=show)
    with torch.no_grad():
        error = float(cost(net(data.X_test), data.Y_test)) / data.Y.shape[1]
    return result, error


@dataclass(frozen=True)
class PathSettings:
    """What F-ham-1 and F-ham-3 share: equal settings are trained once in a process."""

    d_in: int
    rank: int
    d_out: int
    width: int
    layers: int
    effective_depths: tuple[float, ...]
    samples: int
    lam: float
    average_outputs: bool
    relu_latents: bool
    gamma_share: float
    steps: int
    learning_rate: float
    seed: int


def ridge_of(settings: PathSettings, effective_depth: float) -> float:
    """The ridge in our convention."""
    outputs = settings.d_out if settings.average_outputs else None
    return ridge_from("hamiltonian2024", settings.lam, effective_depth=effective_depth, outputs=outputs)


_KEPT: dict[PathSettings, dict[str, np.ndarray]] = {}


def paths(settings: PathSettings, progress: ProgressFactory) -> dict[str, np.ndarray]:
    """Train one adaptive network for each L̃ and stack what its mechanics gives, first axis over L̃."""
    if settings in _KEPT:
        return dict(_KEPT[settings])
    problem = teacher(
        d_in=settings.d_in,
        rank=settings.rank,
        d_out=settings.d_out,
        relu_latents=settings.relu_latents,
        samples=2 * settings.samples,
        seed=settings.seed,
    )
    data = split(problem, settings.samples)
    rows = []
    for L_tilde in settings.effective_depths:
        net = LeakyResNet(
            settings.d_in,
            settings.d_out,
            settings.width,
            settings.layers,
            L_tilde,
            steps="adaptive",
            generator=torch.Generator().manual_seed(settings.seed),
        )
        ridge, began = ridge_of(settings, L_tilde), time.perf_counter()
        show = _labelled(progress, f"L̃ = {L_tilde:g}")
        options = {"steps": settings.steps, "learning_rate": settings.learning_rate, "seed": settings.seed}
        # Mechanics asks for a critical point: most of the work is at the end.
        result, error = fit_path(net, data, ridge, show=show, last=to_criticality(settings.steps), **options)
        seconds = time.perf_counter() - began
        found = mechanics(net, data.X, data.Y, ridge=ridge, gamma_share=settings.gamma_share, kinks=KINKS)
        rows.append({**_row(found, result), "test_error": np.array(error), "seconds": np.array(seconds)})
    _KEPT.clear()
    _KEPT[settings] = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return dict(_KEPT[settings])


def _labelled(progress: ProgressFactory, prefix: str) -> ProgressFactory:
    """The same display with ``prefix`` before its labels."""

    def show(total: int | None, label: str) -> AbstractContextManager[Progress]:
        return progress(total, f"{prefix}: {label}")

    return show


def _row(found: Mechanics, result: TrainingResult) -> dict[str, np.ndarray]:
    arrays = found.arrays
    if arrays is None:
        raise ArithmeticError(f"mechanics not applicable: {found.reason}")
    names = (
        "positions",
        "rho",
        "kinetic",
        "potential",
        "identity_cost",
        "effective_dimension",
        "hamiltonian",
        "force_norm",
        "weight_norm",
        "residual",
        "residual_plain",
        "momentum_norm",
        "negative_share",
        "size",
        "path",
        "step_length",
    )
    return {
        **{name: getattr(arrays, name) for name in names},
        "weight_spectra": arrays.weight_spectra[:, :SHOWN],
        "total_residual": np.array(arrays.total_residual),
        "spread": np.array(arrays.spread),
        "length": np.array(arrays.length),
        "path_length": np.array(arrays.path_length),
        "conserved": np.array(found.state == "conserved"),
        "converged": np.array(result.at_rest),
        "gradient": np.array(result.criteria.gradient),
        "loss": np.array(result.loss),
        "cost": np.array(result.cost),
        "evaluations": np.array(float(result.evaluations)),
    }


# ---- Pictures of leaky ResNets trained at several effective depths or discretisations


Array = np.ndarray[Any, Any]


_COLOURS = (PALETTE["blue"], PALETTE["orange"], PALETTE["green"])

_GREY = "#8A929C"


def draw_estimates(figure: Figure, arrays: Mapping[str, Array], *, rank: int) -> None:
    """Estimates of the rank against L̃, and beside them spectra and energies along up to three of the paths.

    Parameters
    ----------
    figure : Figure
    arrays : mapping
        Of F-ham-1: first axis over ``effective_depths``.
    rank : int
        The true one, as a line.
    """
    depths = arrays["effective_depths"]
    shown = list(range(len(depths)))[-3:]
    grid = figure.add_gridspec(2, 1 + len(shown), width_ratios=[1.15, *[1.0] * len(shown)])
    axes = figure.add_subplot(grid[:, 0])
    H = -2.0 / depths[:, None] * arrays["hamiltonian"]
    stable = -2.0 / depths[:, None] * (arrays["kinetic"] + arrays["potential"])
    middle = np.median(H, axis=1)
    bars = np.abs(np.stack([middle - H.min(axis=1), H.max(axis=1) - middle]))
    style = {"linewidth": 1.9, "markersize": 6, "capsize": 4}
    axes.errorbar(
        depths, middle, bars, fmt="o-", color=PALETTE["blue"], label=r"$-\frac{2}{\tilde L}\mathcal{H}$", **style
    )
    label = r"$-\frac{2}{\tilde L}\mathcal{H}_\gamma$"
    axes.plot(depths, np.median(stable, axis=1), "s--", color=PALETTE["sky"], label=label, linewidth=1.6)
    least = arrays["identity_cost"].min(axis=1)
    axes.plot(depths, least, "^-", color=PALETTE["orange"], label=r"$\min_p\|A_p\|^2_{K+\gamma}$", linewidth=1.9)
    axes.axhline(rank, color=_GREY, linewidth=1.2, linestyle=":", label="rank of the task")
    # The first layers of a net that is not critical would hide everything else.
    axes.set_ylim(max(float(H.min()), -1.5 * rank) - 0.5, max(float(least.max()), float(middle.max()), rank) * 1.2)
    dress(axes, title="(a) estimates of the rank", x=r"effective depth $\tilde L$")
    axes.legend(frameon=False, fontsize=10)
    for column, index in enumerate(shown, start=1):
        one = {name: np.asarray(values[index]) for name, values in arrays.items() if np.ndim(values) >= 2}
        depth, letter = float(depths[index]), "abcd"[column]
        top, bottom = figure.add_subplot(grid[0, column]), figure.add_subplot(grid[1, column])
        draw(top, spectra(SimpleNamespace(**one), depth), title=f"({letter}) L̃ = {depth:g}: singular values of W/L̃")
        draw(bottom, energies_along(SimpleNamespace(**one), depth))
        # Both energies blow up in the first layers, where only their difference says something.
        low, high = min(0.0, float(H[index].min())), max(3.0 * rank, 2.0 * float(np.abs(H[index]).max()))
        bottom.set_yscale("linear")
        bottom.set_ylim(low - 0.05 * (high - low), high)
        bottom.axhline(rank, color=_GREY, linewidth=1.2, linestyle=":", zorder=1)
        residual = float(arrays["total_residual"][index])
        bottom.set_title(f"energies; residual {residual:.2g}", loc="left", fontsize=11.5)
        if column > 1:
            top.set_ylabel("")
            bottom.set_ylabel("")
        legend = bottom.get_legend()
        if column > 1 and legend is not None:
            legend.remove()


def draw_paths(figure: Figure, arrays: Mapping[str, Array]) -> None:
    """Path length and largest momenta against L̃, in three panels."""
    depths = arrays["effective_depths"]
    panels = (
        (r"path length $\int\|\partial_pA_p\|\,dp$", arrays["length"], None),
        (r"$\|B_p\|$", np.median(arrays["momentum_norm"], axis=1), arrays["momentum_norm"]),
        (r"$\|B_p\sigma(A_p)^T\|$", np.median(arrays["force_norm"], axis=1), arrays["force_norm"]),
    )
    for axes, colour, (title, values, spread) in zip(figure.subplots(1, 3), _COLOURS, panels):
        if spread is not None:
            axes.fill_between(depths, spread.min(axis=1), spread.max(axis=1), color=colour, alpha=0.15, linewidth=0)
        axes.plot(depths, values, "o-", color=colour, linewidth=1.9)
        dress(axes, title=title, x=r"effective depth $\tilde L$")
        axes.set_ylim(bottom=0.0)


def draw_discretisations(figure: Figure, arrays: Mapping[str, Array], *, rules: Sequence[str]) -> None:
    """Test error against the number of steps for each rule; spectra and paths of the rules at one number."""
    first, second, third = figure.subplots(1, 3)
    layers = arrays["layers"]
    for rule, colour, errors in zip(rules, _COLOURS, arrays["errors"]):
        first.plot(layers, errors.mean(axis=1), "o-", color=colour, label=rule, linewidth=1.9)
        # Each seed is another task: its own line, not a band over all of them.
        first.plot(layers, errors, color=colour, linewidth=0.8, alpha=0.35, zorder=1)
    dress(first, title="(a) test error", x="number of steps $L$", y="mean square per output")
    first.xaxis.set_major_locator(FixedLocator([float(n) for n in layers]))
    first.legend(frameon=False, title="mean over seeds; thin: each seed", title_fontsize=9)
    last = rules[-1]
    one = SimpleNamespace(weight_spectra=arrays[f"{last}_spectra"], positions=arrays[f"{last}_positions"])
    draw(second, spectra(one, 1.0), title=f"(b) {last}, L = {int(arrays['shown'])}: singular values of W/L̃")
    for rule, colour in zip(rules, _COLOURS):
        third.plot(*arrays[f"{rule}_path"].T, "o-", color=colour, label=rule, linewidth=1.2, markersize=4)
    for index, name in ((0, "inputs"), (-1, "outputs")):
        ends = np.stack([arrays[f"{rule}_path"][index] for rule in rules])
        place = (float(ends[:, 0].mean()), float(ends[:, 1].max()))
        third.annotate(name, place, textcoords="offset points", xytext=(0, 9), ha="center", fontsize=10.5)
    dress(third, x="first direction", y="second direction")
    third.set_aspect("equal", adjustable="datalim")
    third.set_title(f"(c) the paths, L = {int(arrays['shown'])}", loc="left", fontsize=11.5)
    third.legend(frameon=False)
