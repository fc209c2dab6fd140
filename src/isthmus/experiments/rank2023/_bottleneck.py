"""F-rank-1: a deep network trained on a rank-5 task builds a bottleneck of dimension 5."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from isthmus._cite import cites
from isthmus._progress import ProgressFactory
from isthmus.experiments._experiment import Experiment, parameter
from isthmus.experiments._outcomes import Quote, condition, under
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
from isthmus.plotting.style import PALETTE, dress
from isthmus.problems import teacher
from isthmus.runs import Outcome
from isthmus.training import TrainingResult, minimise

#: Kinds of evidence, in the order of the array ``ranks``.
KINDS = ("weights", "representations", "jacobian")

#: Singular values kept for the figure.
SHOWN = 12

PAPER_RANK, PAPER_NORM_PER_DEPTH = 5, 12.8

#: A direction is kept if its singular value is above this share of the largest.
KEPT = 0.1

#: Relative distance from the paper's norm up to which the norm agrees.
NEAR = 0.1

MIDDLE = Quote("The middle layers are approximately rank 5.", "rank2023, caption of Figure 1, (A)")
JACOBIANS = Quote(
    "First 10 singular values of the Jacobian Jf_W(x) at 10 random points. These are rank approximately rank 1 again.",
    "rank2023, caption of Figure 1, (C)",
)
NORM = Quote("At the end of training, we obtain ‖W‖²/L = 12.8.", "rank2023, caption of Figure 1")
ERRATUM = "the printed 1 is an error: the rank of the task is meant"


@cites("rank2023", "Figure 1", ids=("F-rank-1",))
@dataclass(frozen=True, kw_only=True)
class RankFigure1(Experiment):
    """Depth-10 network on y = h(g(x)) with five latent variables: five dimensions survive in the middle.

    The paper's cost is read as averaged over outputs, as PyTorch's ``MSELoss`` does: only then is its ‖W‖²/L = 12.8 of
    the right size (see ``docs/notes/f-rank-1.md``). With ``average_outputs=false`` it is summed.
    """

    id: ClassVar[str] = "F-rank-1"
    title: ClassVar[str] = "A task of low rank: the middle layers of a deep network have its rank"
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
        """The trained network, the inputs, and the result of the training."""
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
        # `train` would warn where it did not converge; here that is one of the outcomes.
        result = minimise(
            net,
            problem.X,
            problem.Y,
            ridge=self.ridge,
            learning_rate=self.learning_rate,
            seed=self.seed,
            progress=progress,
        )
        return net, torch.tensor(problem.X), result

    def compute(self, progress: ProgressFactory) -> dict[str, np.ndarray]:
        """Train the network and measure its spectra, norms and ranks."""
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
            "training": "flat" if converged else "diverged" if diverged else "budget",
        }

    @classmethod
    def spectrum_table(cls, arrays: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """Singular values of the weights."""
        return arrays["weight_spectra"]

    def outcomes(self, arrays: Mapping[str, np.ndarray]) -> list[Outcome]:
        """Rank of the middle representation and of Jacobians, the norm; beside them the weights, and convergence."""
        k = self.rank
        spectra = arrays["representation_spectra"]
        middle = spectra[len(spectra) // 2]
        kept, dropped = float(middle[k - 1] / middle[0]), float(middle[k] / middle[0])
        ranks = dict(zip(KINDS, arrays["ranks"].tolist()))
        reason = "" if k == PAPER_RANK else f"the paper's task has rank {PAPER_RANK}, this one {k}"
        name, below = "middle, centred representation", self.dropped_below
        statements = [
            MIDDLE.judge(f"{name}: s_{k}/s_1, above", kept > KEPT, kept, KEPT, reason),
            MIDDLE.judge(f"{name}: s_{k + 1}/s_1, below", dropped < below, dropped, below, reason),
            MIDDLE.judge("rank by representations", ranks["representations"] == k, ranks["representations"], k, reason),
            JACOBIANS.judge("rank by Jacobians", ranks["jacobian"] == k, ranks["jacobian"], k, ERRATUM),
        ]
        norm = float(arrays["weight_norms"].sum() / self.depth)
        if self.replace(seed=0, network_seed=0, learning_rate=1e-3, init_scale=1.0) == RankFigure1():
            good = abs(norm / PAPER_NORM_PER_DEPTH - 1.0) <= NEAR
            why = "" if good else "the paper's teacher is not stated; the norm depends on its regularity"
            outcome = NORM.judge("‖W‖²/L", good, norm, PAPER_NORM_PER_DEPTH, why, otherwise="differs")
            statements.append(outcome)
        converged = condition("training converged", bool(arrays["converged"]), float(arrays["gradient"]))
        why = "one direction is constant over the data and stands in for a bias" if ranks["weights"] == k + 1 else ""
        weights = condition("rank by weights", ranks["weights"] == k, ranks["weights"], k, why)
        return [*under([converged], statements), converged, weights]

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
        "converged": np.array(result.at_rest),
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


# ---- The picture of a bottleneck: four views of one network through its depth


#: Values below this share of the largest are drawn at the floor.
FLOOR = 1e-5

_GREY = "#B8BEC6"

_KEPT_COLOUR = PALETTE["blue"]

_DROPPED_COLOUR = PALETTE["vermilion"]


def draw_bottleneck(figure: Figure, arrays: Mapping[str, np.ndarray], *, rank: int, title: str = "") -> None:
    """Weight, representation and Jacobian spectra and the norm of each layer; ``rank`` values are highlighted.

    Parameters
    ----------
    figure : Figure
    arrays : mapping
        ``weight_spectra`` (L, r), ``representation_spectra`` (L + 1, r) from the inputs on, ``jacobian_spectra``
        (points, r), ``weight_norms`` (L,), ``bias_norms`` (L,); NaN where a layer has fewer values.
    rank : int
        How many values to highlight.
    title : str
        Above all four.
    """
    axes = figure.subplots(2, 2)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=14, color="#333333", fontweight="bold")
    _through_depth(axes[0, 0], arrays["weight_spectra"], rank, first=1)
    dress(axes[0, 0], title="Singular values of the weights", x="layer ℓ", y="$s_i(W_ℓ)$")
    axes[0, 0].set_ylim(0, None)
    relative = arrays["representation_spectra"] / arrays["representation_spectra"][:, :1]
    axes[0, 1].set_yscale("log")
    _through_depth(axes[0, 1], np.maximum(relative, FLOOR), rank, first=0)
    dress(axes[0, 1], title="Singular values of the centred representations", x="layer ℓ", y="$s_i\\,/\\,s_1$")
    axes[0, 1].set_ylim(FLOOR * 0.7, 1.6)
    _jacobians(axes[1, 0], arrays["jacobian_spectra"], rank)
    _norms(axes[1, 1], arrays["weight_norms"], arrays["bias_norms"], rank)


def _through_depth(axes: Axes, spectra: np.ndarray, rank: int, *, first: int) -> None:
    layers = np.arange(first, first + len(spectra))
    for index in range(spectra.shape[1] - 1, -1, -1):
        kept, next_ = index < rank, index == rank
        colour = _KEPT_COLOUR if kept else _DROPPED_COLOUR if next_ else _GREY
        label = (
            f"first {rank}"
            if index == 0
            else f"number {rank + 1}"
            if next_
            else "the rest"
            if index == rank + 1
            else None
        )
        axes.plot(
            layers,
            spectra[:, index],
            "o-",
            color=colour,
            linewidth=1.8 if kept or next_ else 1.0,
            markersize=4 if kept or next_ else 2.5,
            label=label,
            zorder=3 if kept else 4 if next_ else 2,
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: ("first", "number", "the").index(labels[i].split()[0]))
    axes.legend([handles[i] for i in order], [labels[i] for i in order], frameon=False, fontsize=9, loc="best")


def _jacobians(axes: Axes, spectra: np.ndarray, rank: int) -> None:
    axes.set_yscale("log")
    shown = spectra[:, : min(spectra.shape[1], 2 * rank + 2)]
    number = np.arange(1, shown.shape[1] + 1)
    floor = FLOOR * np.nanmax(shown)
    for values in shown:
        axes.plot(number, np.maximum(values, floor), "-", color=_GREY, linewidth=0.9, zorder=2)
    for index in number - 1:
        colour = _KEPT_COLOUR if index < rank else _DROPPED_COLOUR if index == rank else "#8A929C"
        column = np.maximum(shown[:, index], floor)
        axes.plot(np.full(len(column), index + 1), column, "o", color=colour, markersize=4, zorder=3)
    axes.axvline(rank + 0.5, color=_DROPPED_COLOUR, linewidth=1.0, linestyle=":")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    dress(axes, title=f"Singular values of the Jacobian at {len(spectra)} points", x="number i", y="$s_i(Jf(x))$")


def _norms(axes: Axes, weights: np.ndarray, biases: np.ndarray, rank: int) -> None:
    layers = np.arange(1, len(weights) + 1)
    axes.bar(layers, weights, color=PALETTE["sky"], width=0.7, label=r"$\|W_ℓ\|^2$", zorder=2)
    axes.bar(layers, biases, bottom=weights, color=PALETTE["orange"], width=0.7, label=r"$\|b_ℓ\|^2$", zorder=2)
    mean = float((weights + biases).mean())
    axes.axhline(mean, color="#333333", linewidth=1.2, label=rf"$\|\theta\|^2/L = {mean:.2f}$", zorder=3)
    axes.axhline(rank, color=_KEPT_COLOUR, linewidth=1.2, linestyle="--", label=f"k = {rank}", zorder=3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, float((weights + biases).max()) * 1.35)
    dress(axes, title="Norm of each layer", x="layer ℓ", y="squared norm")
    axes.legend(frameon=False, fontsize=9, ncols=2, loc="upper center")
