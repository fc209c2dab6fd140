"""F-feat-1: attraction and repulsion on the hidden representations of three digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from isthmus._cite import cites
from isthmus._progress import ProgressFactory
from isthmus.datasets import balanced_subset, mnist
from isthmus.experiments._experiment import Experiment, parameter
from isthmus.experiments._outcomes import Quote, condition, under
from isthmus.experiments.features2022._trained import fit_features, lifted, spanned, start, state_number
from isthmus.measures import class_separation, forces, ray_concentration, ray_groups
from isthmus.measures._forces import output_gradients
from isthmus.networks import FullyConnected
from isthmus.objective import ridge_from
from isthmus.plotting.style import PALETTE, dress, headline
from isthmus.runs import Outcome
from isthmus.trace import Trace
from isthmus.training import Phase
from isthmus.training._result import AT_REST, STATES

#: γ at which the cosine of the forces is kept beside that of ``gamma_share``.
GAMMAS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)

#: A pre-activation below this share of its neuron's root mean square counts as at the kink.
KINK = 1e-3

#: Residual off kinks up to which the point counts as stationary.
STATIONARY = 0.01

#: Share of the squared norm from which a ray is counted.
COUNTED = 0.01

CLUSTERS = Quote(
    "We observe a clustering of the inputs according to their digit, and of the neurons along 3 rays in grey dashed "
    "lines.",
    "features2022, caption of Figure 1",
)


@cites("features2022", "Figure 1, App. A", ids=("F-feat-1",))
@dataclass(frozen=True, kw_only=True)
class FeaturesFigure1(Experiment):
    """Digits 7, 8, 9 of MNIST at L = 3: samples cluster by class, neurons line up on 3 rays, forces oppose.

    Every threshold is ours: the paper shows a picture. λ is not stated, nor is γ; see ``docs/notes/f-feat.md``.
    """

    id: ClassVar[str] = "F-feat-1"
    title: ClassVar[str] = "Attraction and repulsion: samples cluster, neurons line up on rays"
    paper: ClassVar[str] = "features2022"
    where: ClassVar[str] = "Figure 1"
    convention: ClassVar[str] = "features2022: mean cross-entropy + λ‖θ‖²; ridge = λ"
    quick_seconds: ClassVar[float] = 4.0
    full_seconds: ClassVar[float] = 60.0
    figure_size: ClassVar[tuple[float, float]] = (11.0, 11.2)

    data: str = parameter("mnist", "which data", source="paper", choices=("mnist", "synthetic"))
    classes: tuple[int, ...] = parameter((7, 8, 9), "the classes", source="paper", low=0, high=9)
    per_class: int = parameter(14, "samples of each class", source="paper", low=2, high=800)
    width: int = parameter(50, "w, of both hidden layers", source="paper", low=1, high=2000)
    lam: float = parameter(1e-3, "λ", low=1e-9, high=1e3)
    gamma_share: float = parameter(1e-3, "γ of the forces, as a share of ‖K^σ‖", low=1e-12, high=1.0)
    steps: int = parameter(
        1500, "quasi-Newton steps of the first descent; the last has twice as many", low=0, high=10**6
    )
    polish: int = parameter(4000, "steps of Adam between the two", low=0, high=10**6)
    tolerance: float = parameter(1e-6, "of the training", low=0.0, high=1.0)
    separated: float = parameter(0.6, "between/total scatter of clustered classes, at least", low=0.0, high=1.0)
    on_rays: float = parameter(0.9, "squared norm on as many rays as classes, at least", low=0.0, high=1.0)
    one_ray: float = parameter(0.3, "distance of unit vectors on one ray, at most", low=0.0, high=1.0)
    opposite: float = parameter(-0.9, "cosine of opposite forces, at most", low=-1.0, high=0.0)

    @classmethod
    def quick(cls) -> Self:
        """Three classes around three random points in place of images, in seconds and without files."""
        return cls(data="synthetic", per_class=8, width=20, lam=3e-3, steps=300, polish=300)

    @property
    def ridge(self) -> float:
        """The ridge in our convention."""
        return ridge_from("features2022", self.lam)

    def samples(self) -> tuple[Tensor, Tensor]:
        """Inputs (N, n_0) and classes 0, 1, … (N,)."""
        labels = np.repeat(np.arange(len(self.classes)), self.per_class)
        if self.data == "mnist":
            images = mnist()
            rows = balanced_subset(images.labels, classes=self.classes, per_class=self.per_class, seed=self.seed)
            X = images.take(rows)[0]
        else:
            rng = np.random.default_rng([self.seed, 1])
            means = rng.standard_normal((len(self.classes), 100))
            X = (0.3 * means[labels] + rng.standard_normal((len(labels), 100))) / 10.0
        return torch.tensor(X), torch.tensor(labels)

    def compute(self, progress: ProgressFactory) -> dict[str, np.ndarray]:
        """Train to a stationary point, kinks resolved, in float64; measure that network and the one it began as."""
        X, labels = self.samples()
        V = spanned(X)
        dims = [X.shape[1], self.width, self.width, len(self.classes)]
        net = start(dims, V, self.seed, torch.float64)
        before = lifted(net, V)
        plan = [
            Phase("adam", 300, 1e-2, anneal=True),
            Phase("lbfgs", self.steps),
            # Quasi-Newton steps stop at kinks that a first-order method with falling rate walks along.
            Phase("adam", self.polish, 1e-3, anneal=True),
            Phase("lbfgs", 2 * self.steps),
        ]
        options = {"ridge": self.ridge, "loss": "cross_entropy", "tolerance": self.tolerance}
        result = fit_features(net, X @ V, labels, plan, show=progress, finish="stationary", **options)
        arrays = self.measure(lifted(net, V), X, labels)
        first = self.measure(before, X, labels)
        kept = ("separation", "nearest_mean", "ray_shares", "ray_counts", "cosine")
        return {
            **arrays,
            **{f"initial_{name}": first[name] for name in kept},
            "state": np.array(state_number(result)),
            "loss": np.array(result.loss),
            "cost": np.array(result.cost),
            "gradient": np.array(result.criteria.gradient),
            "decrease": np.array(result.criteria.decrease),
            "balance": np.array(result.criteria.balance),
            "training_steps": np.array(result.steps),
        }

    def measure(self, net: FullyConnected, X: Tensor, labels: Tensor) -> dict[str, np.ndarray]:
        """What the figure shows of a network on the samples: first axis of a list over the inputs and hidden layers."""
        trace, count = net.trace(X), len(self.classes)
        hidden = range(1, trace.depth)
        found = forces(trace, gamma_share=self.gamma_share)
        gradients = output_gradients(trace, labels, "cross_entropy")
        arrays: dict[str, np.ndarray] = {"labels": labels.numpy()}
        groups, shares = [], []
        for index, ell in enumerate(hidden):
            Z, att = trace.Z(ell), found.attraction[index]
            share, rays = ray_concentration(Z, count)
            shares.append(share)
            weights = [float(Z[group].square().sum() / Z.square().sum()) for group in self._groups(Z)]
            groups.append(sum(weight >= COUNTED for weight in weights))
            for name, value in (("Z", Z), ("attraction", att), ("repulsion", found.repulsion[index]), ("rays", rays)):
                arrays[f"{name}_{ell}"] = value.numpy()
        balance, smooth = self._first_layer(trace, gradients[0])
        layers = [trace.Z(ell) for ell in range(trace.depth)]
        return {
            **arrays,
            "separation": np.array([class_separation(Z, labels) for Z in layers]),
            "nearest_mean": np.array([nearest_mean(Z, labels) for Z in layers]),
            "ray_shares": np.array(shares),
            "ray_counts": np.array(groups),
            "cosine": np.array(found.cosine),
            "residual": np.array(found.residual),
            "invertible": np.array(found.invertible),
            "ranks": np.array([int(torch.linalg.matrix_rank(trace.Z_sigma(ell), rtol=1e-4)) for ell in range(3)]),
            "gammas": np.array(GAMMAS),
            "cosines": np.array([forces(trace, gamma_share=share).cosine for share in GAMMAS]),
            "cost_residual": np.array(balance),
            "smooth_samples": np.array(smooth),
            "weight_residuals": np.array(_weight_residuals(trace, gradients, self.ridge)),
        }

    def _first_layer(self, trace: Trace, gradient: Tensor) -> tuple[float, int]:
        """‖2Z_1K_0⁺ + ∂C/∂Z_1/λ‖ over the entries off kinks, relative, and the samples off kinks at layer 2.

        K_0 is invertible, so each such entry is 0 at a minimum, without a condition on K_1 or K_2. A sample at a kink
        of layer 2 has no derivative at layer 1.
        """
        pull, push = forces(trace, gamma_share=0.0).attraction[0], gradient / self.ridge
        smooth = ~_at_kinks(trace.Z(2)).any(dim=0)
        keep = ~_at_kinks(trace.Z(1)) & smooth
        size = max(float(pull[keep].norm()), float(push[keep].norm()))
        return (float((pull + push)[keep].norm()) / size if size > 0.0 else float("nan")), int(smooth.sum())

    def _groups(self, Z: Tensor) -> tuple[Tensor, ...]:
        return ray_groups(Z, tolerance=self.one_ray)

    def outcomes(self, arrays: Mapping[str, np.ndarray]) -> list[Outcome]:
        """Clusters and rays at each hidden layer; beside them forces, and whether the point is stationary."""
        count, statements, ours = len(self.classes), [], []
        raw, drawn = arrays["separation"][0], arrays["initial_ray_shares"]
        for index, ell in enumerate((1, 2)):
            value = float(arrays["separation"][ell])
            good = value >= self.separated and value > raw
            text = f"layer {ell}: scatter between classes over total (inputs: {raw:.2f}), at least"
            statements.append(CLUSTERS.judge(text, good, value, self.separated))
            value = float(arrays["ray_shares"][index])
            good = value >= self.on_rays and value > drawn[index]
            text = f"layer {ell}: squared norm of the neurons on {count} rays (start: {drawn[index]:.2f}), at least"
            statements.append(CLUSTERS.judge(text, good, value, self.on_rays))
            rays = int(arrays["ray_counts"][index])
            text = f"layer {ell}: rays with at least {COUNTED:.0%} of the squared norm"
            why = f"{rays} groups of neurons within {self.one_ray:g} of each other as unit vectors"
            otherwise = "differs" if rays <= 4 * count else "fails"
            statements.append(CLUSTERS.judge(text, rays == count, rays, count, why, otherwise=otherwise))
            value = float(arrays["nearest_mean"][ell])
            text = f"layer {ell}: nearest class mean, each sample left out (inputs: {arrays['nearest_mean'][0]:.2f})"
            ours.append(condition(text, value >= 0.95, value, 0.95))
            ours.append(self._opposite(ell, arrays))
        state = STATES[int(arrays["state"])]
        why = f"{state} after {int(arrays['training_steps'])} steps"
        converged = condition("training converged", state in AT_REST, float(arrays["decrease"]), None, why)
        return [*under([converged], statements), converged, self._balance(arrays), *ours]

    def _opposite(self, ell: int, arrays: Mapping[str, np.ndarray]) -> Outcome:
        """At a stationary point with invertible kernels the forces cancel (C-feat-2); the paper states no cosine."""
        value = float(arrays["cosine"][ell - 1])
        samples, ranks = self.per_class * len(self.classes), arrays["ranks"]
        missing = [f"K^σ_{k} has rank {ranks[k]} of {samples}" for k in (ell - 1, ell) if ranks[k] < samples]
        text = f"layer {ell}: cosine of attraction and repulsion, γ = {self.gamma_share:g}‖K^σ‖, at most"
        return condition(text, value <= self.opposite, value, self.opposite, "; ".join(missing))

    def _balance(self, arrays: Mapping[str, np.ndarray]) -> Outcome:
        value, smooth = float(arrays["cost_residual"]), int(arrays["smooth_samples"])
        samples = self.per_class * len(self.classes)
        text = f"layer 1, off kinks ({smooth} of {samples} samples): ‖attraction + ∂C/∂Z/λ‖, relative, at most"
        return condition(text, value <= STATIONARY and smooth > 0, value, STATIONARY)

    def plot(self, arrays: Mapping[str, np.ndarray], figure: Figure) -> None:
        """Both layers by samples and by neurons, with arrows along the negative gradients."""
        names = [str(c) for c in self.classes] if self.data == "mnist" else [f"class {c}" for c in self.classes]
        draw_forces(figure, arrays, names=names, layers=(1, 2))


def nearest_mean(Z: Tensor, labels: Tensor) -> float:
    """Share of the samples (columns) whose own class has the nearest mean, the mean taken without the sample itself."""
    Z, classes = Z.double(), labels.unique()
    onehot = (labels[:, None] == classes).double()
    sums, sizes = Z @ onehot, onehot.sum(0)
    right = 0
    for i, one in enumerate(labels):
        own = classes == one
        means = (sums - Z[:, i : i + 1] * own) / (sizes - own.double()).clamp_min(1.0)
        right += bool(own[(means - Z[:, i : i + 1]).norm(dim=0).argmin()])
    return right / len(labels)


def _at_kinks(Z: Tensor) -> Tensor:
    """Entries within KINK of 0 in units of their neuron; neurons that have died are at no kink."""
    sizes = Z.square().mean(dim=1, keepdim=True).sqrt()
    return (Z.abs() <= KINK * sizes) & (sizes > 1e-6 * sizes.max())


def _weight_residuals(trace: Trace, gradients: Sequence[Tensor], ridge: float) -> list[float]:
    """‖2λW_ℓ + (∂C/∂Z_ℓ)(Z^σ_{ℓ-1})ᵀ‖/2λ‖W_ℓ‖ with the biases in W_ℓ: C-feat-2 without inverses; kinks leave a rest."""
    found = []
    for ell, G in enumerate(gradients, start=1):
        W = torch.cat([trace.Ws[ell - 1], trace.bs[ell - 1][:, None]], dim=1)
        found.append(float((2.0 * ridge * W + G @ trace.Z_sigma(ell - 1).mT).norm() / (2.0 * ridge * W.norm())))
    return found


# ---- Pictures of hidden representations and the forces on them, by samples and by neurons


Array = np.ndarray[Any, Any]


#: As in the paper: attraction green, repulsion red.
ATTRACTION, REPULSION = PALETTE["green"], "#C8102E"

_CLASSES = (PALETTE["blue"], PALETTE["orange"], PALETTE["purple"], PALETTE["sky"], PALETTE["yellow"])

_MARKERS = "os^Dv"

_GREY = "#8A929C"

#: Length of a long arrow, as a share of the extent of the points.
REACH = 0.17


def draw_forces(figure: Figure, arrays: Mapping[str, Array], *, names: Sequence[str], layers: Sequence[int]) -> None:
    """For each layer the samples (left) and the neurons (right) in their two principal directions, with both forces.

    Arrows are negative gradients, all of a panel on one scale, the longest cut off. Samples are centred; neurons are
    seen from the origin, where rays begin.

    Parameters
    ----------
    figure : Figure
    arrays : mapping
        ``labels`` (N,), and for each layer ℓ ``Z_ℓ``, ``attraction_ℓ``, ``repulsion_ℓ`` (n_ℓ, N), ``rays_ℓ`` (k, N).
    names : sequence of str
        Of the classes 0, 1, ….
    layers : sequence of int
    """
    labels = arrays["labels"]
    axes = figure.subplots(len(layers), 2, squeeze=False)
    for row, ell in enumerate(layers):
        Z, att, rep = (arrays[f"{name}_{ell}"] for name in ("Z", "attraction", "repulsion"))
        letters = "abcdefgh"[2 * row : 2 * row + 2]
        _draw_samples(axes[row, 0], Z.T, att.T, rep.T, labels, names)
        title = f"({letters[0]}) layer {ell}: the {Z.shape[1]} samples"
        dress(axes[row, 0], title=title, x="first principal direction", y="second")
        _draw_neurons(axes[row, 1], Z, att, rep, arrays[f"rays_{ell}"])
        title = f"({letters[1]}) layer {ell}: the {Z.shape[0]} neurons"
        dress(axes[row, 1], title=title, x="first principal direction", y="second")
    headline(figure, "Attraction (green) and repulsion (red) on the hidden representations", "#333333", size=14)


def _draw_samples(axes: Axes, points: Array, att: Array, rep: Array, labels: Array, names: Sequence[str]) -> None:
    centred = points - points.mean(axis=0)
    directions = np.linalg.svd(centred, full_matrices=False)[2][:2]
    flat = centred @ directions.T
    _draw_arrows(axes, flat, -att @ directions.T, -rep @ directions.T)
    for index, name in enumerate(names):
        chosen = flat[labels == index]
        style = {"color": _CLASSES[index % 5], "marker": _MARKERS[index % 5], "edgecolors": "white", "linewidths": 0.7}
        axes.scatter(chosen[:, 0], chosen[:, 1], s=44, zorder=4, label=name, **style)
    _frame(axes, flat)
    axes.legend(frameon=False, fontsize=10, loc="best")


def _draw_neurons(axes: Axes, points: Array, att: Array, rep: Array, rays: Array) -> None:
    # Directions in which the neurons differ, yet seen from the origin, where rays begin.
    directions = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)[2][:2]
    flat, along = points @ directions.T, rays @ directions.T
    reach = 1.12 * float(np.linalg.norm(flat, axis=1).max() or 1.0)
    for ray in along:
        size = float(np.linalg.norm(ray))
        if size > 0.0:
            axes.plot(
                [0.0, reach * ray[0] / size], [0.0, reach * ray[1] / size], "--", color=_GREY, linewidth=1.3, zorder=1
            )
    _draw_arrows(axes, flat, -att @ directions.T, -rep @ directions.T)
    axes.scatter(flat[:, 0], flat[:, 1], s=32, color="#333333", edgecolors="white", linewidths=0.6, zorder=4)
    axes.plot(0.0, 0.0, "+", color="#333333", markersize=9, zorder=5)
    _frame(axes, np.concatenate([flat, np.zeros((1, 2))]))
    handles = [
        Line2D([], [], color=ATTRACTION, linewidth=2.2, label="attraction"),
        Line2D([], [], color=REPULSION, linewidth=2.2, label="repulsion"),
        Line2D([], [], color=_GREY, linestyle="--", linewidth=1.3, label=f"{len(rays)} rays"),
    ]
    axes.legend(handles=handles, frameon=False, fontsize=10, loc="best")


def _draw_arrows(axes: Axes, places: Array, att: Array, rep: Array) -> None:
    """Both kinds on one scale, so that opposite arrows of equal length are balanced forces."""
    sizes = np.linalg.norm(np.concatenate([att, rep]), axis=1)
    # Not the longest: one sample that is far off would make all others points.
    long = float(np.quantile(sizes, 0.9)) or 1.0
    extent = float(np.ptp(places, axis=0).max()) or 1.0
    for force, colour in ((att, ATTRACTION), (rep, REPULSION)):
        steps = force * (REACH * extent / long)
        lengths = np.linalg.norm(steps, axis=1, keepdims=True)
        steps = steps * np.minimum(1.0, 1.6 * REACH * extent / np.maximum(lengths, 1e-300))
        axes.quiver(
            places[:, 0],
            places[:, 1],
            steps[:, 0],
            steps[:, 1],
            angles="xy",
            scale_units="xy",
            scale=1.0,
            color=colour,
            width=0.0032,
            headwidth=4.0,
            headlength=5.0,
            alpha=0.75,
            zorder=3,
        )


def _frame(axes: Axes, places: Array) -> None:
    """Room for the arrows, a square of equal scales."""
    low, high = places.min(axis=0), places.max(axis=0)
    half, middle = 0.74 * float((high - low).max() or 1.0), (low + high) / 2.0
    axes.set_xlim(float(middle[0]) - half, float(middle[0]) + half)
    axes.set_ylim(float(middle[1]) - half, float(middle[1]) + half)
    axes.set_aspect("equal", adjustable="box")
