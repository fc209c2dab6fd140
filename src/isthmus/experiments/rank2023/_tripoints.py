"""F-rank-2: class boundaries of shallow and deep classifiers of four inverted-S classes in the plane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from matplotlib.figure import Figure

from isthmus._cite import cites
from isthmus._progress import ProgressFactory
from isthmus.experiments._experiment import Experiment, parameter
from isthmus.experiments._outcomes import Quote, condition, under
from isthmus.measures import Topology, tripoints
from isthmus.networks import FullyConnected
from isthmus.objective import ridge_from
from isthmus.plotting.boundary import draw_boundary
from isthmus.problems import Classes, inverted_s_classes
from isthmus.runs import Outcome
from isthmus.training import Phase, minimise

#: The order of the networks in all arrays: (deep, with L2).
CASES = ((False, False), (False, True), (True, False), (True, True))

#: Margins at which tripoints are counted beside the widest, as shares of it.
INNER = (0.25, 0.5)

#: PyTorch's initial weights are uniform with variance 1/3n, ours normal with 2/n.
TORCH_SCALE = 6.0**-0.5

TRIPOINTS = Quote(
    "The class boundaries in shallow networks (A,B) feature tripoints, which are not observed in deeper networks "
    "(C,D).",
    "rank2023, caption of Figure 2",
)

#: Share of the points that must be classified rightly.
ACCURATE = 0.99

#: Points along each axis at which the classes are kept for the picture.
SHOWN = 200


@cites("rank2023", "Figure 2", ids=("F-rank-2",))
@dataclass(frozen=True, kw_only=True)
class RankFigure2(Experiment):
    """Four inverted-S classes side by side: boundaries of a shallow network have tripoints, of a deep one none.

    A network of rank 1 orders the classes along a line, and no three classes meet. Looked for are tripoints in the box
    around the data, on a grid that is refined wherever three classes seem to meet (Q-topology).

    Without L2 there is no minimum, and the initial weights decide: at PyTorch's own scale nine layers have no
    tripoints, with weights √6 times as large they do, and ten thousand steps do not remove them.
    """

    id: ClassVar[str] = "F-rank-2"
    title: ClassVar[str] = "Classes in the plane: tripoints in shallow networks, none in deep ones"
    paper: ClassVar[str] = "rank2023"
    where: ClassVar[str] = "Figure 2"
    convention: ClassVar[str] = "rank2023: cross-entropy + (λ/L)‖W‖²; ridge = λ/L"
    quick_seconds: ClassVar[float] = 8.0
    full_seconds: ClassVar[float] = 300.0
    figure_size: ClassVar[tuple[float, float]] = (11.0, 7.6)

    shallow: int = parameter(2, "L of the shallow networks", source="paper", low=1, high=100)
    deep: int = parameter(9, "L of the deep networks", source="paper", low=2, high=100)
    classes: int = parameter(4, "classes", source="paper", low=3, high=8)
    samples: int = parameter(400, "N, training samples", low=10, high=10**6)
    width: int = parameter(100, "width of the hidden layers", low=1, high=10_000)
    lam: float = parameter(2e-3, "λ of the networks with L2", low=0.0, high=1e3)
    steps: int = parameter(10_000, "Adam steps of the networks without L2, at a falling rate", low=1, high=10**6)
    learning_rate: float = parameter(1e-3, "its beginning", low=1e-8, high=1.0)
    init_scale: float = parameter(
        round(TORCH_SCALE, 3), "multiplies the initial weights; this is PyTorch's", low=1e-6, high=100.0
    )
    seeds: int = parameter(3, "networks of each kind", low=1, high=100)
    margin: float = parameter(1.0, "room on every side of the data, as a share of their range", low=0.0, high=100.0)
    resolution: int = parameter(256, "cells along each axis at the start", low=8, high=4096)

    @classmethod
    def quick(cls) -> Self:
        """One seed, fewer points, smaller networks."""
        return cls(samples=160, width=40, seeds=1, steps=1500, learning_rate=3e-3, resolution=96)

    def problem(self) -> Classes:
        """The task: labelled points of the plane."""
        return inverted_s_classes(classes=self.classes, samples=self.samples, seed=self.seed)

    def network(self, deep: bool, regularised: bool, index: int, data: Classes) -> FullyConnected:
        """One trained network: to convergence with L2, for a number of Adam steps without (there is no minimum)."""
        depth = self.deep if deep else self.shallow
        generator = torch.Generator().manual_seed(1000 * self.seed + index)
        dims = [2, *[self.width] * (depth - 1), self.classes]
        net = FullyConnected(dims, init_scale=self.init_scale, generator=generator)
        ridge = ridge_from("rank2023", self.lam if regularised else 0.0, depth=depth)
        phases = None if regularised else [Phase("adam", self.steps, self.learning_rate, anneal=True)]
        # What counts is the picture; how well it fits is in the arrays.
        minimise(net, data.X, data.labels, ridge=ridge, loss="cross_entropy", phases=phases, seed=self.seed)
        return net

    def box(self, data: Classes) -> np.ndarray:
        """Low and high of both axes."""
        return _box(data.X, self.margin)

    def compute(self, progress: ProgressFactory) -> dict[str, np.ndarray]:
        """Train all networks and look where their classes meet."""
        data = self.problem()
        box = self.box(data)
        counts = np.zeros((len(CASES), self.seeds), dtype=np.int64)
        unresolved, accuracy = np.zeros_like(counts), np.zeros(counts.shape)
        inner = np.zeros((*counts.shape, len(INNER)), dtype=np.int64)
        pictures, stars, networks = [], [], []
        with progress(counts.size, "F-rank-2") as bar:
            for i, (deep, regularised) in enumerate(CASES):
                for j in range(self.seeds):
                    net = self.network(deep, regularised, j, data).double()
                    found: Topology = tripoints(net, box, points=self.resolution)
                    counts[i, j] = len(found.tripoints) if found.state != "too many cells" else -1
                    inner[i, j] = [_inside(found.tripoints.numpy(), data.X, share * self.margin) for share in INNER]
                    unresolved[i, j] = len(found.unresolved)
                    accuracy[i, j] = float((_scores(net, data.X).argmax(axis=1) == data.labels).mean())
                    if j == 0:
                        pictures.append(_scores(net, _grid(box)).argmax(axis=1).reshape(SHOWN, SHOWN))
                        stars.append(found.tripoints.numpy())
                        networks.append(np.full(len(found.tripoints), i))
                    bar.advance(1)
        return {
            "tripoints": counts,
            "inner": inner,
            "unresolved": unresolved,
            "accuracy": accuracy,
            "regions": np.stack(pictures).astype(np.int64),
            "points": np.array(data.X),
            "labels": np.array(data.labels),
            "box": box,
            "where": np.concatenate(stars).reshape(-1, 2),
            "whose": np.concatenate(networks).astype(np.int64),
        }

    def outcomes(self, arrays: Mapping[str, np.ndarray]) -> list[Outcome]:
        """Tripoints of each kind of network over its seeds; beside them accuracy, and cells that stay unresolved."""
        statements = []
        for i, ((deep, regularised), found) in enumerate(zip(CASES, arrays["tripoints"])):
            name = f"L = {self.deep if deep else self.shallow}, {'with' if regularised else 'without'} L2: tripoints"
            good = bool((found == 0).all() if deep else (found > 0).all())
            reason = f"{found.tolist()} over the seeds"
            # Runs of earlier versions counted at the widest margin only.
            for share, counts in zip(INNER, arrays["inner"][i].T if "inner" in arrays else ()):
                reason += f", {counts.tolist()} at a margin of {share * self.margin:g}"
            value, least = (found.max(), 0) if deep else (found.min(), 1)
            text = f"{name}, {'at most' if deep else 'at least'}"
            # Without L2 there is no minimum: what is seen depends on the initial weights and on when one stops.
            otherwise = "fails" if regularised else "differs"
            statements.append(TRIPOINTS.judge(text, good, int(value), least, reason, otherwise=otherwise))
        right, open_cells = float(arrays["accuracy"].min()), int(arrays["unresolved"].max())
        conditions = [
            condition("training accuracy, at least", right >= ACCURATE, right, ACCURATE),
            condition("cells in which no decision was possible", open_cells == 0, open_cells, 0),
        ]
        return [*under(conditions, statements), *conditions]

    def plot(self, arrays: Mapping[str, np.ndarray], figure: Figure) -> None:
        """The regions of the first network of each kind, tripoints as stars."""
        figure.suptitle(self.title, fontsize=14)
        names = [f"class {c}" for c in range(self.classes)]
        panels = figure.subplots(2, 2).reshape(-1)
        for i, (axes, (deep, regularised)) in enumerate(zip(panels, CASES)):
            regions = arrays["regions"][i]

            def scores(points: np.ndarray, regions: np.ndarray = regions) -> np.ndarray:
                low, high = arrays["box"].T
                at = np.rint((points - low) / (high - low) * (SHOWN - 1)).astype(int).clip(0, SHOWN - 1)
                return np.eye(self.classes)[regions[at[:, 1], at[:, 0]]]

            mine = arrays["where"][arrays["whose"] == i]
            draw_boundary(axes, scores, arrays["box"], names, arrays["points"], arrays["labels"], ("x", "y"), mine)
            how = "with L2" if regularised else "without L2"
            counts = ", ".join(str(int(n)) for n in arrays["tripoints"][i])
            reason = f"L = {self.deep if deep else self.shallow}, {how}: {counts} tripoints"
            axes.set_title(reason, loc="left", fontsize=11)
            if i != 1:
                axes.get_legend().remove()  # pyright: ignore[reportOptionalMemberAccess]


def _box(X: np.ndarray, margin: float) -> np.ndarray:
    low, high = X.min(axis=0), X.max(axis=0)
    return np.stack([low - margin * (high - low), high + margin * (high - low)], axis=1)


def _inside(points: np.ndarray, X: np.ndarray, margin: float) -> int:
    """How many of the points lie in the box with that margin around X."""
    low, high = _box(X, margin).T
    return int(((points >= low) & (points <= high)).all(axis=1).sum())


def _grid(box: np.ndarray) -> np.ndarray:
    x, y = (np.linspace(low, high, SHOWN) for low, high in box)
    return np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)


@torch.no_grad()
def _scores(net: FullyConnected, points: np.ndarray) -> np.ndarray:
    return net(torch.from_numpy(np.array(points))).numpy()
