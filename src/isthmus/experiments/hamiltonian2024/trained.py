"""Leaky ResNets trained on one task, and their mechanics as arrays: what the figures of this paper are made of."""

from __future__ import annotations

import time
import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from isthmus._errors import ConvergenceWarning
from isthmus._progress import Progress, ProgressFactory
from isthmus.measures import Mechanics, mechanics
from isthmus.networks import LeakyResNet
from isthmus.objective import constant_cost, cost, ridge_from
from isthmus.problems import Problem, teacher
from isthmus.training import Phase, TrainingResult, train
from isthmus.training.plans import STRUCTURE_SHARE, carrying_norm

#: Singular values kept for the figures.
SHOWN = 12
#: Curvature pairs: with millions of parameters more of them cost as much as the gradient itself.
MEMORY = 10
#: Steps of Adam at the beginning.
WARM = 100
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


def plan(net: LeakyResNet, Y: Tensor, ridge: float, steps: int, learning_rate: float, last: int) -> list[Phase]:
    """Fit at a small ridge, raise it until the structure appears, come back (``steps`` each), converge (``last``)."""
    top = max(1.0, STRUCTURE_SHARE * constant_cost(Y) / carrying_norm(net) / ridge)
    low = 1e-3 * top
    phases = [
        Phase("adam", WARM, learning_rate, ridge_start=low, ridge_end=low, anneal=True),
        Phase("lbfgs", steps, ridge_start=low, ridge_end=top, ridge_share=1.0, memory=MEMORY),
        Phase("lbfgs", steps, ridge_start=top, ridge_end=top, memory=MEMORY),
    ]
    if top > 1.0:
        phases.append(Phase("lbfgs", steps, ridge_start=top, ridge_share=1.0, memory=MEMORY))
    # Adaptive steps stand still in the last phase.
    return [*phases, Phase("lbfgs", last, memory=MEMORY)]


def fit(
    net: LeakyResNet,
    data: Split,
    ridge: float,
    *,
    steps: int,
    last: int,
    learning_rate: float,
    seed: int,
    show: ProgressFactory,
) -> tuple[TrainingResult, float]:
    """Train in place by :func:`plan`; the account of it, and the error on the test data per output."""
    with warnings.catch_warnings():
        # Not swallowed: the state is in the arrays and in an outcome.
        warnings.simplefilter("ignore", ConvergenceWarning)
        phases = plan(net, data.Y, ridge, steps, learning_rate, last)
        result = train(net, data.X, data.Y, ridge=ridge, phases=phases, seed=seed, show_progress=show)
    if result.state == "interrupted":
        raise KeyboardInterrupt
    with torch.no_grad():
        error = float(cost(net(data.X_test), data.Y_test)) / data.Y.shape[1]
    return result, error


@dataclass(frozen=True)
class Settings:
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


def ridge_of(settings: Settings, effective_depth: float) -> float:
    """The ridge in our convention."""
    outputs = settings.d_out if settings.average_outputs else None
    return ridge_from("hamiltonian2024", settings.lam, effective_depth=effective_depth, outputs=outputs)


_KEPT: dict[Settings, dict[str, np.ndarray]] = {}


def paths(settings: Settings, progress: ProgressFactory) -> dict[str, np.ndarray]:
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
        result, error = fit(net, data, ridge, show=show, last=4 * settings.steps, **options)
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
        "converged": np.array(result.state == "converged"),
        "gradient": np.array(result.criteria.gradient),
        "loss": np.array(result.loss),
        "cost": np.array(result.cost),
        "evaluations": np.array(float(result.evaluations)),
    }
