"""Networks trained at several depths on a surface seen in part: what F-bn-1 shows of them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from isthmus._errors import ConvergenceWarning
from isthmus._progress import ProgressFactory
from isthmus.experiments.bottleneck2023.summary_trained import deepen
from isthmus.measures import weight_spectra
from isthmus.networks import FullyConnected
from isthmus.objective import ridge_from
from isthmus.problems import partially_seen_surface
from isthmus.training import Phase, TrainingResult, train, train_together

Array = np.ndarray
#: Singular values kept of every layer.
SHOWN = 10


@dataclass(frozen=True)
class Settings:
    """What a training depends on besides its depth and its number."""

    latent_dim: int
    rank: int
    d_in: int
    d_out: int
    lam: float
    average_outputs: bool
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
        """In our convention."""
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
        return torch.tensor(problem.X, dtype=torch.float32), torch.tensor(problem.Y, dtype=torch.float32)


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
            "converged": np.array(self.result.state == "converged"),
            "diverged": np.array(self.result.state == "diverged"),
        }


_KEPT: dict[tuple[Settings, int, int], Trained] = {}


def trained(settings: Settings, depth: int, index: int) -> Trained:
    """A network from a random start, at the full λ from the first step; equal ones are trained once in a process."""
    key = settings, depth, index
    if key not in _KEPT:
        _KEPT[key] = _fit(settings, *_start(settings, depth, index))
    return _KEPT[key]


def trained_together(many: Sequence[Settings], depth: int, progress: ProgressFactory) -> list[Trained]:
    """The first network of each of several settings, which differ in λ and seed; as :func:`trained` to rounding."""
    starts = [_start(settings, depth, 0) for settings in many]
    X, Y = (torch.stack(parts) for parts in zip(*(settings.data() for settings in many)))
    with warnings.catch_warnings():
        # Not swallowed: the state is in the arrays and in an outcome.
        warnings.simplefilter("ignore", ConvergenceWarning)
        results = train_together(
            [net for net, _ in starts],
            X,
            Y,
            ridges=[settings.ridge for settings in many],
            phases=starts[0][1],
            tolerance=many[0].tolerance,
            seeds=[settings.seed for settings in many],
            show_progress=progress,
        )
    if any(result.state == "interrupted" for result in results):
        raise KeyboardInterrupt
    return [Trained(net, result) for (net, _), result in zip(starts, results)]


def _start(settings: Settings, depth: int, index: int) -> tuple[FullyConnected, list[Phase]]:
    """Random weights, and what is done with them."""
    dims = [settings.d_in, *[settings.width] * (depth - 1), settings.d_out]
    net = FullyConnected(dims, generator=torch.Generator().manual_seed(1000 * settings.seed + index))
    return net, [Phase("adam", settings.adam_steps, settings.learning_rate), Phase("lbfgs", settings.steps)]


def continued(settings: Settings, start: Trained, depth: int) -> Trained:
    """The same function at a greater depth, by identity layers in the middle, then trained to the end there."""
    net = deepen(start.net, settings.data()[0], depth)
    return _fit(settings, net, [Phase("lbfgs", settings.steps)])


def _fit(settings: Settings, net: FullyConnected, plan: list[Phase]) -> Trained:
    X, Y = settings.data()
    with warnings.catch_warnings():
        # Not swallowed: the state is in the arrays and in an outcome.
        warnings.simplefilter("ignore", ConvergenceWarning)
        options = {"ridge": settings.ridge, "tolerance": settings.tolerance, "seed": settings.seed}
        result = train(net, X, Y, phases=plan, **options)
    if result.state == "interrupted":
        # Half a training is no figure: let whoever called end as after any Ctrl-C.
        raise KeyboardInterrupt
    return Trained(net, result)
