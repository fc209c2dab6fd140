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
from scipy.stats import t as student

from isthmus._cite import cites
from isthmus._progress import ProgressFactory, silent
from isthmus.experiments._experiment import Experiment, parameter
from isthmus.experiments._outcomes import Quote
from isthmus.experiments.hamiltonian2024._trained import (
    MEMORY,
    SHOWN,
    WARM,
    Split,
    draw_discretisations,
    fit_path,
    split,
)
from isthmus.measures import mechanics
from isthmus.networks import LeakyResNet
from isthmus.networks._leaky_resnet import RULES
from isthmus.objective import ridge_from
from isthmus.problems import teacher_chain
from isthmus.runs import Outcome
from isthmus.training import Phase
from isthmus.training._core import ADAPT_EVERY

#: Share of the time that measuring speeds for adaptive steps may take; confidence of the intervals.
OVERHEAD, LEVEL = 0.05, 0.95

ADVANTAGE = Quote(
    "we see a small but consistent advantage in the test error when using adaptive or irregular ρ_ℓs.",
    "hamiltonian2024, §4, of Figure 2",
)
COST = Quote(
    "For large networks, this has negligible computational cost (an approx. 2% longer training time in some "
    "experiments).",
    "hamiltonian2024, §4",
)
ENDS = Quote(
    "we see that the adaptive ρ_ℓs result in more steps especially in the beginning of the network, but also at the "
    "end.",
    "hamiltonian2024, §4, of Figure 2",
)
SPREAD = Quote(
    "Observe how adaptive ρ_ℓs appears to better spread out the steps.", "hamiltonian2024, caption of Figure 2, (c)"
)


@cites("hamiltonian2024", "Figure 2", ids=("F-ham-2",))
@dataclass(frozen=True, kw_only=True)
class HamiltonianFigure2(Experiment):
    """30 → 6 → 3 → 30 at L̃ = 3: adaptive and irregular steps against equidistant ones, for few and many steps.

    The task is a composition of random ResNets, as the paper's; their law is ours.
    """

    id: ClassVar[str] = "F-ham-2"
    title: ClassVar[str] = "Leaky ResNets: test error of three discretisations"
    paper: ClassVar[str] = "hamiltonian2024"
    where: ClassVar[str] = "Figure 2"
    convention: ClassVar[str] = (
        "hamiltonian2024: mean square + (λ/2L̃)Σρ‖W‖²; ridge = λ/(2L̃) on √ρW, times d_out if averaged over outputs"
    )
    quick_seconds: ClassVar[float] = 20.0
    full_seconds: ClassVar[float] = 6000.0
    figure_size: ClassVar[tuple[float, float]] = (15.0, 4.8)

    dims: tuple[int, ...] = parameter((30, 6, 3, 30), "dimensions of the task", source="paper", low=1, high=10_000)
    width: int = parameter(200, "w, of the path", source="paper", low=1, high=10_000)
    layers: tuple[int, ...] = parameter((4, 8, 13, 22), "numbers of steps", source="paper", low=1, high=10_000)
    effective_depth: float = parameter(3.0, "L̃", source="paper", low=0.01, high=1e4)
    samples: int = parameter(1000, "N, training samples; as many are held out", source="paper", low=10, high=10**6)
    lam: float = parameter(2e-3, "λ", source="paper", low=1e-12, high=1e6)
    average_outputs: bool = parameter(True, "whether the cost is averaged over outputs")
    teacher_depth: int = parameter(
        4, "matrices of each of the task's ResNets, the first and the last linear maps", low=2, high=100
    )
    irregularity: float = parameter(0.9, "a of the irregular steps", low=0.0, high=1.0)
    seeds: int = parameter(10, "networks and tasks for each point", low=1, high=1000)
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
                chain = {"dims": self.dims, "depth": self.teacher_depth, "residual": True}
                problem = teacher_chain(**chain, samples=2 * self.samples, seed=number)
                data = split(problem, self.samples)
                for column, count in enumerate(self.layers):
                    for row, rule in enumerate(RULES):
                        net = self._network(rule, count, number)
                        options = {"steps": self.steps, "learning_rate": self.learning_rate, "seed": number}
                        began = time.process_time()
                        # Adaptive steps stand still in the last phase.
                        last = [Phase("lbfgs", 2 * self.steps, memory=MEMORY)]
                        result, error = fit_path(net, data, self.ridge, show=silent, last=last, **options)
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
        """Gain over equidistant steps at all numbers of them, what adapting costs, where the adaptive steps lie."""
        found = [self._gain(arrays, "adaptive"), self._gain(arrays, "irregular")]
        cost = float(np.median(arrays["overhead"]))
        found.append(COST.judge("share of the time spent on adapting, at most", cost <= OVERHEAD, cost, OVERHEAD))
        equal, _, uneven = (float(v.std() / v.mean()) for v in (arrays[f"{rule}_step_length"] for rule in RULES))
        text = "variation of the adaptive steps' ‖A_ℓ − A_{ℓ-1}‖/‖A_ℓ‖, below that of equidistant ones"
        found.append(SPREAD.judge(text, uneven < equal, uneven, equal))
        for where, share in zip(("beginning", "end"), _crowding(arrays["adaptive_positions"])):
            text = f"adaptive steps in the fifth of the path at its {where}, over those of equidistant ones"
            found.append(ENDS.judge(text, share > 1.0, share, 1.0))
        return found

    def _gain(self, arrays: Mapping[str, np.ndarray], rule: str) -> Outcome:
        """1 − error/(that of equidistant steps), the geometric mean over all points, with Student's interval."""
        errors: dict[str, np.ndarray] = dict(zip(RULES, arrays["errors"]))
        ratio = np.log(errors[rule] / errors["equidistant"])
        reason = ", ".join(f"{1.0 - np.exp(x):.1%} at L = {L}" for L, x in zip(self.layers, ratio.mean(axis=1)))
        text = f"{rule} steps: gain in test error over all L, above"
        value = float(1.0 - np.exp(ratio.mean()))
        if self.seeds < 2:
            good = None if value > 0.0 else False
            return ADVANTAGE.judge(text, good, value, 0.0, f"one seed: {reason}", otherwise="differs")
        # The points of one seed share a task: it is seeds that are independent.
        each = ratio.mean(axis=0)
        reach = float(each.std(ddof=1) / np.sqrt(len(each)) * student.ppf(0.5 + LEVEL / 2.0, len(each) - 1))
        low, high = (float(1.0 - np.exp(each.mean() + sign * reach)) for sign in (1.0, -1.0))
        good = True if low > 0.0 else False if high < 0.0 else None
        reason = f"between {low:.1%} and {high:.1%}; {reason}"
        return ADVANTAGE.judge(text, good, value, 0.0, reason, otherwise="differs")

    def plot(self, arrays: Mapping[str, np.ndarray], figure: Figure) -> None:
        """(a) test error against the number of steps; (b) spectra with step marks; (c) the paths in the plane."""
        draw_discretisations(figure, arrays, rules=RULES)


def _crowding(positions: np.ndarray) -> tuple[float, float]:
    """Steps that begin in the first and end in the last fifth of [0, 1], as multiples of the equidistant number."""
    wanted = 0.2 * (len(positions) - 1)
    return float((positions[:-1] < 0.2).sum() / wanted), float((positions[1:] > 0.8).sum() / wanted)


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
