"""F-ham-2: where the steps of a leaky ResNet sit: test error of three discretisations against their number."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from matplotlib.figure import Figure

from isthmus._cite import cites
from isthmus._progress import ProgressFactory, silent
from isthmus.experiments._experiment import Experiment, parameter
from isthmus.experiments.hamiltonian2024._trained import SHOWN, WARM, Split, draw_discretisations, fit_path, split
from isthmus.measures import mechanics
from isthmus.networks import LeakyResNet
from isthmus.networks._leaky_resnet import RULES
from isthmus.objective import ridge_from
from isthmus.problems import teacher_chain
from isthmus.runs import Outcome
from isthmus.training._core import ADAPT_EVERY

#: Share of the time that measuring speeds for adaptive steps may take.
OVERHEAD = 0.05


@cites("hamiltonian2024", "Figure 2", ids=("F-ham-2",))
@dataclass(frozen=True, kw_only=True)
class HamiltonianFigure2(Experiment):
    """30 → 6 → 3 → 30 at L̃ = 3: adaptive and irregular steps against equidistant ones, for few and many steps."""

    id: ClassVar[str] = "F-ham-2"
    title: ClassVar[str] = "Leaky ResNets: test error of three discretisations"
    paper: ClassVar[str] = "hamiltonian2024"
    where: ClassVar[str] = "Figure 2"
    convention: ClassVar[str] = (
        "hamiltonian2024: mean square + (λ/2L̃)Σρ‖W‖²; ridge = λ/(2L̃) on √ρW, times d_out if averaged over outputs"
    )
    quick_seconds: ClassVar[float] = 20.0
    full_seconds: ClassVar[float] = 2400.0
    figure_size: ClassVar[tuple[float, float]] = (15.0, 4.8)

    dims: tuple[int, ...] = parameter((30, 6, 3, 30), "dimensions of the task", source="paper", low=1, high=10_000)
    width: int = parameter(200, "w, of the path", source="paper", low=1, high=10_000)
    layers: tuple[int, ...] = parameter((4, 8, 13, 22), "numbers of steps", source="paper", low=1, high=10_000)
    effective_depth: float = parameter(3.0, "L̃", source="paper", low=0.01, high=1e4)
    samples: int = parameter(1000, "N, training samples; as many are held out", source="paper", low=10, high=10**6)
    lam: float = parameter(2e-3, "λ", source="paper", low=1e-12, high=1e6)
    average_outputs: bool = parameter(True, "whether the cost is averaged over outputs")
    irregularity: float = parameter(0.9, "a of the irregular steps", low=0.0, high=1.0)
    seeds: int = parameter(3, "networks and tasks for each point", low=1, high=1000)
    steps: int = parameter(50, "quasi-Newton steps in each part of the training", low=1, high=10**6)
    learning_rate: float = parameter(1e-3, "of Adam, at the beginning", low=1e-8, high=10.0)

    @classmethod
    def quick(cls) -> Self:
        """A smaller task, two numbers of steps, one seed."""
        return cls(dims=(10, 4, 2, 10), width=24, layers=(4, 12), samples=150, seeds=1, steps=30)

    @property
    def ridge(self) -> float:
        """The ridge in our convention."""
        outputs = self.dims[-1] if self.average_outputs else None
        return ridge_from("hamiltonian2024", self.lam, effective_depth=self.effective_depth, outputs=outputs)

    def compute(self, progress: ProgressFactory) -> dict[str, np.ndarray]:
        """Train every combination; errors (rules, numbers of steps, seeds), and one path for each rule."""
        shape = (len(RULES), len(self.layers), self.seeds)
        errors, costs, adapting = np.zeros(shape), np.zeros(shape), np.zeros((len(self.layers), self.seeds))
        shown = [n for n in self.layers if n <= 18][-1] if min(self.layers) <= 18 else self.layers[0]
        kept: dict[str, np.ndarray] = {"shown": np.array(shown)}
        with progress(int(np.prod(shape)), self.id) as bar:
            for seed in range(self.seeds):
                number = self.seed + seed
                problem = teacher_chain(dims=self.dims, samples=2 * self.samples, seed=number)
                data = split(problem, self.samples)
                for column, count in enumerate(self.layers):
                    for row, rule in enumerate(RULES):
                        net = self._network(rule, count, number)
                        options = {"steps": self.steps, "learning_rate": self.learning_rate, "seed": number}
                        began = time.process_time()
                        result, error = fit_path(net, data, self.ridge, show=silent, last=2 * self.steps, **options)
                        spent = time.process_time() - began
                        errors[row, column, seed] = error
                        costs[row, column, seed] = result.cost / self.dims[-1]
                        if rule == "adaptive":
                            adapting[column, seed] = _share_of_adapting(net, data, result.steps, spent)
                        if seed == 0 and count == shown:
                            kept |= self._path(rule, net, data)
                        bar.advance(1, error=error)
        return {"errors": errors, "costs": costs, "overhead": adapting, "layers": np.array(self.layers), **kept}

    def _network(self, rule: str, layers: int, seed: int) -> LeakyResNet:
        return LeakyResNet(
            self.dims[0],
            self.dims[-1],
            self.width,
            layers,
            self.effective_depth,
            steps=rule,
            irregularity=self.irregularity,
            generator=torch.Generator().manual_seed(seed),
        )

    def _path(self, rule: str, net: LeakyResNet, data: Split) -> dict[str, np.ndarray]:
        found = mechanics(net, data.X, data.Y, ridge=self.ridge).arrays
        assert found is not None
        return {
            f"{rule}_positions": found.positions,
            f"{rule}_spectra": found.weight_spectra[:, :SHOWN] / self.effective_depth,
            f"{rule}_path": found.path,
            f"{rule}_step_length": found.step_length / np.maximum(found.size[1:], 1e-300),
        }

    def outcomes(self, arrays: Mapping[str, np.ndarray]) -> list[Outcome]:
        """Who is ahead at few steps, by seed; what adapting costs; whether it spreads the steps out."""
        errors = arrays["errors"]
        small = len(self.layers) // 2 or 1
        equidistant, irregular, adaptive = (errors[row, :small] for row in range(3))
        found = []
        for name, other in (("adaptive", adaptive), ("irregular", irregular)):
            gain = float(1.0 - (other / equidistant).mean())
            wins = float((other < equidistant).mean())
            good = gain > 0.0 and wins > 0.5
            why = "" if good else f"better in {wins:.0%} of the pairs"
            text = f"{name} steps: mean gain in test error at few steps ({', '.join(map(str, self.layers[:small]))})"
            found.append(Outcome(text, "agrees" if good else "differs", gain, 0.0, why))
        cost = float(np.median(arrays["overhead"]))
        status, why = ("agrees", "") if cost <= OVERHEAD else ("fails", "more than the paper's 2 % and our 5 %")
        found.append(Outcome("share of the time spent on adapting", status, cost, OVERHEAD, why))
        uneven = [float(arrays[f"{rule}_step_length"].std() / arrays[f"{rule}_step_length"].mean()) for rule in RULES]
        good = uneven[2] < uneven[0]
        why = "" if good else "the relative lengths vary as much as those of equidistant steps"
        text = "adaptive steps are spread more evenly: variation of ‖A_ℓ − A_{ℓ-1}‖/‖A_ℓ‖, beside equidistant"
        found.append(Outcome(text, "agrees" if good else "differs", uneven[2], uneven[0], why))
        return found

    def plot(self, arrays: Mapping[str, np.ndarray], figure: Figure) -> None:
        """(a) test error against the number of steps; (b) spectra with step marks; (c) the paths in the plane."""
        draw_discretisations(figure, arrays, rules=RULES)


def _share_of_adapting(net: LeakyResNet, data: Split, steps: int, spent: float) -> float:
    """Time of the updates of adaptive steps during a training, as a share of it: updates timed on their own."""
    tried, count = copy.deepcopy(net), 5
    began = time.process_time()
    for _ in range(count):
        tried.adapt(data.X)
    once = (time.process_time() - began) / count
    # As if in the last phase too, where steps stand still: an upper estimate.
    updates = WARM / net.adapt_every + max(0.0, steps - WARM) / ADAPT_EVERY
    return once * updates / max(spent, 1e-9)
