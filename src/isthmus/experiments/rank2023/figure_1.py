"""F-rank-1: a deep network trained on a rank-5 task builds a bottleneck of dimension 5."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from isthmus._cite import cites
from isthmus._errors import ConvergenceWarning
from isthmus._progress import ProgressFactory
from isthmus.experiments.base import Experiment, parameter
from isthmus.measures import (
    BottleneckRank,
    bottleneck_rank,
    jacobian_spectra,
    parameter_norms,
    representation_spectra,
    weight_spectra,
)
from isthmus.networks import FullyConnected
from isthmus.objective import ridge_from
from isthmus.plotting.bottleneck import draw_bottleneck
from isthmus.problems import teacher
from isthmus.runs import Outcome
from isthmus.training import TrainingResult, train

#: Kinds of evidence, in the order of the array ``ranks``.
KINDS = ("weights", "representations", "jacobian")
#: Singular values kept for the figure.
SHOWN = 12
PAPER_NORM_PER_DEPTH = 12.8


@cites("rank2023", "Figure 1", ids=("F-rank-1",))
@dataclass(frozen=True, kw_only=True)
class RankFigure1(Experiment):
    """Depth-10 network on y = h(g(x)) with five latent variables: five dimensions survive in the middle.

    The paper's cost is read as averaged over outputs, as PyTorch's ``MSELoss`` does: only then is its ‖W‖²/L = 12.8 of
    the right size (see ``docs/notes/f-rank-1.md``). With ``average_outputs=false`` it is summed.
    """

    id: ClassVar[str] = "F-rank-1"
    title: ClassVar[str] = "A rank-5 task: the middle layers of a deep network have rank 5"
    paper: ClassVar[str] = "rank2023"
    where: ClassVar[str] = "Figure 1"
    convention: ClassVar[str] = "rank2023: mean square + (λ/L)‖W‖²; ridge = λ/L, times d_out if averaged over outputs"
    quick_seconds: ClassVar[float] = 20.0
    full_seconds: ClassVar[float] = 60.0
    figure_size: ClassVar[tuple[float, float]] = (11.0, 7.6)
    sweep_names: ClassVar[Mapping[str, str]] = {"ridge": "lam", "task_rank": "rank"}

    d_in: int = parameter(50, "inputs", source="paper", low=1, high=10_000)
    d_out: int = parameter(50, "outputs", source="paper", low=1, high=10_000)
    rank: int = parameter(5, "latent variables of the task", source="paper", low=1, high=1000)
    depth: int = parameter(10, "L, weight matrices", source="paper", low=3, high=1000)
    width: int = parameter(100, "width of the hidden layers", source="paper", low=1, high=10_000)
    samples: int = parameter(2000, "N, training samples", source="paper", low=10, high=10**7)
    lam: float = parameter(2e-4, "λ", source="paper", low=0.0, high=1e6)
    average_outputs: bool = parameter(True, "whether the cost is averaged over outputs")
    relu_latents: bool = parameter(True, "whether the task is a network with a layer of `rank` ReLU neurons")
    noise: float = parameter(0.0, "noise of the outputs, relative", low=0.0, high=10.0)
    learning_rate: float = parameter(1e-3, "of Adam, at the beginning", low=1e-8, high=10.0)
    init_scale: float = parameter(1.0, "multiplies the initial weights", low=1e-6, high=100.0)
    network_seed: int = parameter(0, "seed of the initial weights, added to `seed`", low=0, high=2**31)
    dropped_below: float = parameter(0.01, "what s_{k+1}/s_1 of the middle layer must stay below", low=0.0, high=1.0)
    points: int = parameter(10, "points at which the Jacobian is shown", source="paper", low=1, high=1000)

    @classmethod
    def quick(cls) -> Self:
        """A smaller task of the same kind."""
        return cls(d_in=16, d_out=16, rank=3, depth=7, width=24, samples=200, lam=1e-3, dropped_below=0.05)

    @property
    def ridge(self) -> float:
        """The ridge in our convention."""
        outputs = self.d_out if self.average_outputs else None
        return ridge_from("rank2023", self.lam, depth=self.depth, outputs=outputs)

    def solve(self, progress: ProgressFactory) -> tuple[FullyConnected, Tensor, TrainingResult]:
        """The trained network, the inputs and the training's own account."""
        problem = teacher(
            d_in=self.d_in,
            rank=self.rank,
            d_out=self.d_out,
            relu_latents=self.relu_latents,
            samples=self.samples,
            noise=self.noise,
            seed=self.seed,
        )
        dims = [self.d_in, *[self.width] * (self.depth - 1), self.d_out]
        generator = torch.Generator().manual_seed(self.seed + self.network_seed)
        net = FullyConnected(dims, init_scale=self.init_scale, generator=generator)
        with warnings.catch_warnings():
            # Not swallowed: the state is in the arrays and in an outcome.
            warnings.simplefilter("ignore", ConvergenceWarning)
            result = train(
                net,
                problem.X,
                problem.Y,
                ridge=self.ridge,
                learning_rate=self.learning_rate,
                seed=self.seed,
                show_progress=progress,
            )
        if result.state == "interrupted":
            # Half a training is no figure: let whoever called end as after any Ctrl-C.
            raise KeyboardInterrupt
        return net, torch.tensor(problem.X), result

    def compute(self, progress: ProgressFactory) -> dict[str, np.ndarray]:
        """Train, then measure."""
        net, X, result = self.solve(progress)
        return measure(net, X, result, self.points)

    def measured(self, arrays: Mapping[str, np.ndarray]) -> dict[str, float | int | bool | str]:
        """The rank that all evidence agrees on (NaN if it does not), ‖θ‖², loss and cost, how the training ended."""
        rank, converged, diverged = int(arrays["rank"]), bool(arrays["converged"]), bool(arrays.get("diverged", False))
        return {
            "rank": float("nan") if rank < 0 else rank,
            "norm": float(arrays["weight_norms"].sum() + arrays["bias_norms"].sum()),
            "loss": float(arrays["loss"]),
            "cost": float(arrays["cost"]),
            "converged": converged,
            "training": "converged" if converged else "diverged" if diverged else "budget",
        }

    @classmethod
    def spectrum_table(cls, arrays: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """Singular values of the weights."""
        return arrays["weight_spectra"]

    def outcomes(self, arrays: Mapping[str, np.ndarray]) -> list[Outcome]:
        """The middle layers' rank, the rank by each kind of evidence, the norm beside the paper's, convergence."""
        k = self.rank
        spectra = arrays["representation_spectra"]
        middle = spectra[len(spectra) // 2]
        kept, dropped = float(middle[k - 1] / middle[0]), float(middle[k] / middle[0])
        found = dict(zip(KINDS, arrays["ranks"].tolist()))
        results = [
            Outcome(f"middle representation: s_{k}/s_1 > 0.1", _status(kept > 0.1), kept, 0.1),
            Outcome(
                f"middle representation: s_{k + 1}/s_1 < {self.dropped_below:g}",
                _status(dropped < self.dropped_below),
                dropped,
                self.dropped_below,
            ),
        ]
        for kind in KINDS:
            good = found[kind] == k
            # One weight direction more may carry a constant, in place of a bias.
            spare = kind == "weights" and found[kind] == k + 1
            why = "one direction is constant over the data and stands in for a bias" if spare else ""
            status = "agrees" if good else "differs" if spare else "fails"
            results.append(Outcome(f"rank by {kind}", status, float(found[kind]), float(k), why))
        results.append(self._norm_outcome(float(arrays["weight_norms"].sum() / self.depth)))
        converged = bool(arrays["converged"])
        why = "" if converged else "the training did not meet its criterion; spectra still move slightly"
        results.append(
            Outcome("training converged", "agrees" if converged else "differs", float(arrays["gradient"]), None, why)
        )
        return results

    def _norm_outcome(self, value: float) -> Outcome:
        name = "‖W‖²/L beside the paper's"
        if self.replace(seed=0, network_seed=0, learning_rate=1e-3, init_scale=1.0) != RankFigure1():
            return Outcome(name, "differs", value, PAPER_NORM_PER_DEPTH, "other settings than the paper's")
        if abs(value / PAPER_NORM_PER_DEPTH - 1) <= 0.1:
            return Outcome(name, "agrees", value, PAPER_NORM_PER_DEPTH)
        why = "the paper's teacher is not stated; the norm depends on its regularity"
        return Outcome(name, "differs", value, PAPER_NORM_PER_DEPTH, why)

    def plot(self, arrays: Mapping[str, np.ndarray], figure: Figure) -> None:
        """Four views of the trained network."""
        title = (
            f"{self.d_in} inputs, {self.d_out} outputs, {self.depth} layers of {self.width}: rank {self.rank} inside"
        )
        draw_bottleneck(figure, arrays, rank=self.rank, title=title)


def measure(net: FullyConnected, X: Tensor, result: TrainingResult, points: int) -> dict[str, np.ndarray]:
    """Spectra, norms and evidence of a trained network, as arrays."""
    trace = net.trace(X)
    evidence: BottleneckRank = bottleneck_rank(trace)
    centred = X - X.mean(0)
    inputs = torch.linalg.svdvals(centred) / len(X) ** 0.5
    norms = parameter_norms(net)
    found = [evidence[kind].rank for kind in KINDS]
    return {
        "weight_spectra": _padded(weight_spectra(net)),
        "representation_spectra": _padded([inputs, *representation_spectra(trace)]),
        "jacobian_spectra": jacobian_spectra(net, X[:points])[:, : 2 * SHOWN].numpy(),
        "weight_norms": norms.weights.numpy(),
        "bias_norms": norms.biases.numpy(),
        "ranks": np.array([-1 if r is None else r for r in found]),
        "gaps": np.array([evidence[kind].number for kind in KINDS]),
        "rank": np.array(-1 if evidence.rank is None else evidence.rank),
        "norm_per_depth": np.array(norms.per_depth),
        "loss": np.array(result.loss),
        "cost": np.array(result.cost),
        "ridge": np.array(result.ridge),
        "converged": np.array(result.state == "converged"),
        "diverged": np.array(result.state == "diverged"),
        "gradient": np.array(result.criteria.gradient),
        "balance": np.array(result.criteria.balance),
        "history": np.stack([result.history[k] for k in ("loss", "cost", "norm", "ridge")]),
    }


def _padded(spectra: list[Tensor]) -> np.ndarray:
    """The first values of each spectrum, (layers, SHOWN), NaN where there are fewer."""
    table = np.full((len(spectra), SHOWN), np.nan)
    for row, s in zip(table, spectra):
        row[: min(SHOWN, len(s))] = s[:SHOWN].numpy()
    return table


def _status(good: bool) -> str:
    return "agrees" if good else "fails"
