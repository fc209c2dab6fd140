"""F-bn-2 and F-talk-3: a network that predicts losses of a descent learns its symmetry and its summary statistics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar, Self

import numpy as np
from matplotlib.figure import Figure

from isthmus._checks import fail
from isthmus._cite import cites
from isthmus._progress import ProgressFactory
from isthmus.experiments.base import Experiment, parameter
from isthmus.experiments.bottleneck2023.summary_trained import STATES, Settings, measured
from isthmus.measures import read_spectrum
from isthmus.plotting.orbits import draw_bijection, draw_symmetry_learning
from isthmus.runs import Outcome

#: Orbits count as collapsed below this share of the range; coordinates as a bijection above this R².
COLLAPSED, BIJECTION = 0.05, 0.95


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
    def settings(self) -> Settings:
        """The parameters of the training."""
        return Settings(**{item.name: getattr(self, item.name) for item in fields(Settings)})

    def compute(self, progress: ProgressFactory) -> dict[str, np.ndarray]:
        """Train one network, then look at it."""
        return measured(self.settings, progress)

    def trained(self, arrays: Mapping[str, np.ndarray]) -> Outcome:
        """Whether the training converged."""
        good = bool(arrays["converged"])
        why = "" if good else "the training did not meet its criterion; what is shown still moves slightly"
        return Outcome("training converged", "agrees" if good else "differs", float(arrays["gradient"]), None, why)


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
        """Singular values, orbits at layer 2 and with w ↦ −w, paths, convergence."""
        middle = arrays["weight_spectra"][self.depth // 2]
        reading = read_spectrum(middle[np.isfinite(middle)])
        count = reading.count if reading.status == "clear" else -1
        why = "" if count == 2 else f"{reading.status}: {reading.count} stand out"
        found = [Outcome("singular values that stand out in the middle", _status(count == 2), float(count), 2.0, why)]
        ratio, error = (float(x) for x in arrays["orbits"][:, 2])
        good, first = ratio < COLLAPSED, _from(arrays["orbits"][0])
        later = not good and 2 < first <= self.layer
        why = "" if good else f"± {error:.1g}; " + (f"below that from layer {first} on" if later else "nor later")
        name = "rotations around w: orbit distance at layer 2, share of the range"
        found.append(Outcome(name, "differs" if later else _status(good), ratio, COLLAPSED, why))
        first = _from(arrays["orbits_mirrored"][0])
        good = 0 < first <= self.layer
        why = "" if good else f"not collapsed at layer {self.layer}: {arrays['orbits_mirrored'][0][self.layer]:.3g}"
        name = f"with w ↦ −w too: first layer from which on orbits are collapsed, at most {self.layer}"
        found.append(Outcome(name, "agrees" if good else "differs", float(first), float(self.layer), why))
        state, (crossing, _), (missed, _) = int(arrays["dynamics"]), arrays["crossing"], arrays["unexplained"]
        why = "" if state == 0 else f"{STATES[state]}: a fit misses {missed:.2g} of the velocities' variance"
        name = f"paths in layer {self.layer} do not cross: disagreement of velocities where they meet"
        found.append(Outcome(name, "agrees" if state == 0 else "differs", float(crossing), COLLAPSED, why))
        return [*found, self.trained(arrays)]

    def plot(self, arrays: Mapping[str, np.ndarray], figure: Figure) -> None:
        """(a) singular values; (b) paths in the plane; (c) distances on a plane orthogonal to w."""
        draw_symmetry_learning(figure, arrays, layer=self.layer)


@cites("talk2023", "'Summary Statistics'", ids=("F-talk-3",))
@cites("bottleneck2023", "§5")
@dataclass(frozen=True, kw_only=True)
class LearnedStatistics(DescentLosses):
    """Coordinates inside the bottleneck are a bijection of u = ((wᵀv)², ‖(I − wwᵀ)v‖²), which nobody named."""

    id: ClassVar[str] = "F-talk-3"
    title: ClassVar[str] = "Summary statistics learned without being named"
    where: ClassVar[str] = "slides 'Summary Statistics'"
    figure_size: ClassVar[tuple[float, float]] = (14.0, 4.6)

    def outcomes(self, arrays: Mapping[str, np.ndarray]) -> list[Outcome]:
        """R² both ways, at the layer shown and in the middle, the worse of the two columns."""
        found = []
        for where in dict.fromkeys((self.layer, self.depth // 2)):
            there, back = (float(x) for x in arrays["scores"][:, where - 2])
            for name, value in (("u from the layer's plane", there), ("the layer's plane from u", back)):
                good = value >= BIJECTION
                why = "" if good else "less than a bijection leaves"
                found.append(Outcome(f"layer {where}: R² of {name}", _status(good), value, BIJECTION, why))
        return [*found, self.trained(arrays)]

    def plot(self, arrays: Mapping[str, np.ndarray], figure: Figure) -> None:
        """(a) the statistics; (b) the layer's plane in the same colours; (c) R² both ways through depth."""
        draw_bijection(figure, arrays, layer=self.layer)


def _status(good: bool) -> str:
    return "agrees" if good else "fails"


def _from(ratios: np.ndarray) -> int:
    """The first layer from which on all ratios are small; 0 if the last is not."""
    spread = np.flatnonzero(~(ratios < COLLAPSED))
    return 0 if spread[-1:] == len(ratios) - 1 else int(spread[-1]) + 1 if len(spread) else 1
