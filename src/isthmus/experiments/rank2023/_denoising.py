"""F-rank-3: deep autoencoders bring noisy inputs back to the data, shallow ones do not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor

from isthmus._checks import fail
from isthmus._cite import cites
from isthmus._progress import ProgressFactory
from isthmus.datasets import balanced_subset, mnist
from isthmus.experiments._experiment import Experiment, parameter
from isthmus.experiments._outcomes import Quote, condition, under
from isthmus.measures import denoising, distance_to_data, jacobian, weight_spectra
from isthmus.networks import FullyConnected
from isthmus.objective import constant_cost, ridge_from
from isthmus.plotting.style import PALETTE, dress
from isthmus.runs import Outcome
from isthmus.training import Phase, TrainingResult, minimise

Array = np.ndarray

#: Share of the distance to the data that a projection may leave, and that what does not project must; share of the
#: variance that a reconstruction may miss; ‖J² − J‖/‖J‖ of what counts as a projection.
LEFT, STAYS, MISSED, DEFECT = 0.2, 0.5, 0.02, 0.1

DENOISING = Quote(
    "We see that for large depths (A, B) the learned autoencoder is naturally denoising, projecting points to the data "
    "distribution, which is not the case for shallow networks (C).",
    "rank2023, caption of Figure 3",
)
PROJECTION = Quote(
    "therefore Jf(x) is a projection to T, thus proving that rank recovering autoencoders are naturally (locally) "
    "denoising.",
    "rank2023, §5, 'Autoencoders'",
)

#: Points of the curve that distances are taken to; images shown.
DENSE, SHOWN = 20_001, 8

#: Singular values kept of the middle weight of an autoencoder of images.
SPECTRUM = 200


@cites("rank2023", "Figure 3; §5, 'Autoencoders'", ids=("F-rank-3",))
@dataclass(frozen=True, kw_only=True)
class RankFigure3(Experiment):
    """Autoencoders of handwritten digits and of a curve in the plane: noisy inputs, and where they are sent.

    The curve is (t, a·sin πt), t in [−1, 1]. With two dimensions a network is the identity for little more than 2L of
    norm; with one it saves L and pays for the bends, which must cost less than that at L = 6: hence a small a.
    In a trial with a = 0.5 the deep network kept two dimensions, and did not denoise.
    """

    id: ClassVar[str] = "F-rank-3"
    title: ClassVar[str] = "Deep autoencoders bring noisy inputs back to the data, shallow ones do not"
    paper: ClassVar[str] = "rank2023"
    where: ClassVar[str] = "Figure 3"
    convention: ClassVar[str] = "rank2023: C + (λ/L)‖W‖², C averaged over outputs; ridge = λ·d_out/L"
    quick_seconds: ClassVar[float] = 10.0
    full_seconds: ClassVar[float] = 250.0
    figure_size: ClassVar[tuple[float, float]] = (15.0, 4.0)

    lam: float = parameter(1e-4, "λ", source="paper", low=1e-12, high=1e3)
    deep_images: int = parameter(5, "L of the deep autoencoder of images", source="paper", low=3, high=100)
    deep_curve: int = parameter(6, "L of the deep autoencoder of the curve", source="paper", low=3, high=100)
    shallow: int = parameter(2, "L of the shallow ones", low=1, high=100)
    average_outputs: bool = parameter(True, "whether the cost is averaged over outputs")
    images: str = parameter("mnist", "images", source="paper", choices=("mnist", "digits"))
    samples: int = parameter(1000, "images to train on", low=50, high=5000)
    test_samples: int = parameter(500, "images held out", low=20, high=5000)
    image_noise: float = parameter(0.3, "noise of a pixel; pixels are in [0, 1]", low=1e-6, high=100.0)
    image_width: int = parameter(200, "width of the autoencoders of images", low=1, high=10_000)
    image_steps: int = parameter(500, "of Adam, and of quasi-Newton, for the images", low=1, high=10**6)
    amplitude: float = parameter(0.25, "a of the curve", low=0.0, high=10.0)
    points: int = parameter(200, "points of the curve to train on", low=10, high=10**5)
    curve_noise: float = parameter(0.1, "noise of the inputs beside the curve", low=1e-6, high=100.0)
    curve_width: int = parameter(50, "width of the autoencoders of the curve", low=1, high=10_000)
    curve_steps: int = parameter(0, "quasi-Newton steps for the curve; 0: the plan of `train`", low=0, high=10**6)

    @classmethod
    def quick(cls) -> Self:
        """Digits of 8 × 8 in place of MNIST, narrower networks, short trainings."""
        return cls(
            images="digits",
            samples=400,
            test_samples=100,
            image_noise=0.5,
            image_width=30,
            image_steps=150,
            points=60,
            curve_width=20,
            curve_steps=100,
        )

    def compute(self, progress: ProgressFactory) -> dict[str, Array]:
        """Train the four autoencoders, then send noisy inputs through them."""
        with progress(4, self.id) as bar:
            arrays: dict[str, Array] = {}
            for place, look in (("curve", self._curve), ("images", self._images)):
                rows = []
                for depth in (getattr(self, f"deep_{place}"), self.shallow):
                    rows.append(look(depth))
                    bar.advance(1)
                both = {name: (rows[0][name], rows[1][name]) for name in rows[0]}
                arrays |= {f"{place}_{name}": np.stack(values) for name, values in both.items()}
        return arrays

    def curve(self, t: Array) -> Array:
        """(t, a·sin πt), (N, 2)."""
        return np.stack([t, self.amplitude * np.sin(np.pi * t)], axis=1)

    def _curve(self, depth: int) -> dict[str, Array]:
        rng = np.random.default_rng([self.seed, 1])
        X = torch.from_numpy(self.curve(rng.uniform(-1.0, 1.0, self.points)))
        beside = self.curve(rng.uniform(-1.0, 1.0, 300)) + self.curve_noise * rng.standard_normal((300, 2))
        n = self.curve_steps
        net, result = self._trained(X, depth, self.curve_width, _raised(n) if n else None)
        found = denoising(net, X[:100])
        with torch.no_grad():
            sent = net(torch.from_numpy(beside)).numpy()
        dense = self.curve(np.linspace(-1.0, 1.0, DENSE))
        before, after = (float(distance_to_data(Z, dense).mean()) for Z in (beside, sent))
        size = torch.linalg.matrix_norm(jacobian(net, X[:100]))
        return {
            "data": X.numpy(),
            "noisy": beside,
            "outputs": sent,
            "left": np.array(after / before),
            "defect": np.array(float((found.projection / size).median())),
            "missed": np.array(result.cost / constant_cost(X)),
            "values": _middle(net, 2),
        }

    def _images(self, depth: int) -> dict[str, Array]:
        train_images, new = self._pixels()
        rng = np.random.default_rng([self.seed, 2])
        noisy = new + self.image_noise * rng.standard_normal(new.shape)
        X, Z = torch.from_numpy(train_images).float(), torch.from_numpy(noisy).float()
        n = self.image_steps
        plan = [Phase("adam", n, 1e-3, anneal=True), Phase("lbfgs", n)]
        net, _ = self._trained(X, depth, self.image_width, plan)
        with torch.no_grad():
            sent, clean = net(Z).double().numpy(), net(torch.from_numpy(new).float()).double().numpy()
        noise = float(((noisy - new) ** 2).sum())
        return {
            "clean": new[:SHOWN],
            "noisy": noisy[:SHOWN],
            "outputs": sent[:SHOWN],
            "left": np.array(float(((sent - new) ** 2).sum()) / noise),
            "passed": np.array(float(((sent - clean) ** 2).sum()) / noise),
            "missed": np.array(float(((clean - new) ** 2).sum() / ((new - new.mean(0)) ** 2).sum())),
            "values": _middle(net, SPECTRUM),
        }

    def _pixels(self) -> tuple[Array, Array]:
        """Images to train on and held out, rows of pixels in [0, 1]."""
        many = self.samples + self.test_samples
        if self.images == "digits":
            pixels = load_digits(return_X_y=True)[0] / 16.0
            rows = np.random.default_rng([self.seed, 3]).permutation(len(pixels))
            if many > len(pixels):
                fail(self.id, f"`samples` + `test_samples` must be at most {len(pixels)}", many, "Lower one of them.")
        else:
            data = mnist()
            pixels = data.pixels / 255.0
            rows = balanced_subset(data.labels, classes=range(10), per_class=-(-many // 10), seed=self.seed)
            rows = np.random.default_rng([self.seed, 3]).permutation(rows)
        chosen = np.asarray(pixels[rows[:many]], dtype=np.float64)
        return chosen[: self.samples], chosen[self.samples :]

    def _trained(
        self, X: Tensor, depth: int, width: int, plan: list[Phase] | None
    ) -> tuple[FullyConnected, TrainingResult]:
        d = X.shape[1]
        generator = torch.Generator().manual_seed(self.seed)
        net = FullyConnected([d, *[width] * (depth - 1), d], generator=generator).to(X.dtype)
        ridge = ridge_from("rank2023", self.lam, depth=depth, outputs=d if self.average_outputs else None)
        # What counts is where noise goes; how well it fits is in the arrays.
        result = minimise(net, X, X, ridge=ridge, phases=plan, tolerance=1e-3, seed=self.seed)
        return net, result

    def outcomes(self, arrays: Mapping[str, Array]) -> list[Outcome]:
        """What is left of the noise on the curve, deep and shallow, and on images, deep; then checks of ours."""
        left, flat = (float(x) for x in arrays["curve_left"])
        defect, other = (float(x) for x in arrays["curve_defect"])
        through, shallow = (float(x) for x in arrays["images_passed"])
        deep, L = self.deep_curve, self.shallow
        beside = f"{other:.3g} at L = {L}"
        statements = [
            DENOISING.judge(f"(B) curve, L = {deep}: distance to the curve left, at most", left <= LEFT, left, LEFT),
            DENOISING.judge(f"(C) curve, L = {L}: distance to the curve left, at least", flat >= STAYS, flat, STAYS),
            PROJECTION.judge(
                f"curve, L = {deep}: ‖J² − J‖/‖J‖ on the curve, at most", defect <= DEFECT, defect, DEFECT, beside
            ),
            DENOISING.judge(
                f"(A) images, L = {self.deep_images}: noise that gets through, at most",
                through <= STAYS,
                through,
                STAYS,
            ),
        ]
        missed = float(arrays["curve_missed"].max())
        fitted = condition("curve: share of the variance missed on the data, at most", missed <= MISSED, missed, MISSED)
        # The paper shows no shallow autoencoder of images.
        kept = [_kept(s) for s in arrays["images_values"]]
        why = f"dimensions kept: {kept[0]} at L = {self.deep_images}, {kept[1]} at L = {L}"
        name = f"images: noise that gets through at L = {self.deep_images}, less than at L = {L}"
        less = condition(name, through < shallow, through, shallow, why)
        far, near = (float(x) for x in arrays["images_left"])
        why = "of the variance without noise, {:.2g} and {:.2g} are missed".format(*arrays["images_missed"])
        name = f"images: distance to the clean image left at L = {self.deep_images}, less than at L = {L}"
        return [*under([fitted], statements), fitted, less, condition(name, far < near, far, near, why)]

    def plot(self, arrays: Mapping[str, Array], figure: Figure) -> None:
        """(A) images; (B) the curve, deep; (C) the curve, shallow."""
        depths = self.deep_images, self.deep_curve, self.shallow
        draw_autoencoders(figure, arrays, depths=depths, curve=self.curve(np.linspace(-1.0, 1.0, 400)))


def _raised(steps: int) -> list[Phase]:
    """A short form of the plan of ``train``: raise λ, remove dimensions for as long as that helps, come back."""
    top, low = 30.0, 0.03
    return [
        Phase("scale", 1),
        Phase("adam", steps, 5e-3, ridge_start=low, ridge_end=low, anneal=True),
        Phase("lbfgs", steps, ridge_start=low, ridge_end=top, ridge_share=1.0),
        Phase("narrow", 3 * steps, ridge_start=top, ridge_end=top),
        Phase("lbfgs", steps, ridge_start=top, ridge_share=1.0),
        Phase("lbfgs", 2 * steps),
    ]


def _middle(net: FullyConnected, many: int) -> Array:
    """The largest singular values of the middle weight, 0 where there are fewer."""
    s = weight_spectra(net)[net.depth // 2].numpy()[:many]
    return np.pad(s, (0, many - len(s)))


def _kept(s: Array) -> int:
    """Singular values above a tenth of the largest."""
    return int((s > 0.1 * s[0]).sum())


# ---- Where autoencoders send noisy inputs: images above each other, arrows in the plane


#: Arrows drawn.
ARROWS = 70


def draw_autoencoders(
    figure: Figure, arrays: Mapping[str, np.ndarray], *, depths: tuple[int, int, int], curve: np.ndarray
) -> None:
    """(A) Noisy images and outputs of the deep and the shallow network; (B), (C) arrows from noisy points to outputs.

    Parameters
    ----------
    figure : Figure
    arrays : mapping
        ``images_noisy``, ``images_outputs``, ``images_clean`` (2, shown, pixels), ``curve_data`` (2, N, 2),
        ``curve_noisy`` and ``curve_outputs`` (2, M, 2), ``curve_left`` and ``images_left`` (2,); deep first.
    depths : (L of the images, L of the curve, L of the shallow ones)
    curve : array (n, 2)
        The curve itself, to draw.
    """
    images, deep, shallow = figure.subplots(1, 3, width_ratios=(1.25, 1.0, 1.0))
    rows = (arrays["images_noisy"][0], arrays["images_outputs"][0], arrays["images_outputs"][1])
    side = math.isqrt(rows[0].shape[1])
    # A gap of a few pixels between the rows.
    gap = max(1, side // 8)
    blocks = [np.concatenate(list(row.reshape(-1, side, side)), axis=1) for row in rows]
    picture = np.concatenate([np.pad(block, ((0, gap), (0, 0)), constant_values=0.0) for block in blocks])
    images.imshow(picture, cmap="gray_r", vmin=0.0, vmax=1.0, interpolation="nearest", aspect="equal")
    left = arrays["images_left"]
    labels = [f"L = {L}\n{100 * share:.0f} % left" for L, share in zip((depths[0], depths[2]), left)]
    dress(images, title="(A) Noisy images, and outputs")
    images.grid(False)
    images.set_yticks((side + gap) * np.arange(3) + side / 2, ["noisy", *labels])
    images.set_xticks([])
    for axes, index, letter, depth in ((deep, 0, "B", depths[1]), (shallow, 1, "C", depths[2])):
        _arrows(axes, arrays, index, curve)
        share = 100 * float(arrays["curve_left"][index])
        dress(axes, title=f"({letter}) L = {depth}: {share:.0f} % of the distance left", x="$x_1$", y="$x_2$")
        axes.set_aspect("equal")
    low, high = (f(arrays["curve_noisy"][0], axis=0) for f in (np.min, np.max))
    for axes in (deep, shallow):
        axes.set_xlim(low[0] - 0.1, high[0] + 0.1)
        axes.set_ylim(low[1] - 0.1, high[1] + 0.25)
    deep.legend(frameon=False, fontsize=9, loc="upper left", ncols=3)


def _arrows(axes: Axes, arrays: Mapping[str, np.ndarray], index: int, curve: np.ndarray) -> None:
    data, noisy, sent = (arrays[f"curve_{name}"][index] for name in ("data", "noisy", "outputs"))
    noisy, sent = noisy[:ARROWS], sent[:ARROWS]
    axes.plot(*curve.T, "-", color="#B8BEC6", linewidth=1.2, zorder=1)
    axes.plot(*data.T, ".", color=PALETTE["blue"], markersize=4, label="data", zorder=2)
    step = sent - noisy
    axes.quiver(
        *noisy.T, *step.T, angles="xy", scale_units="xy", scale=1.0, width=0.003, color="#8A929C", headwidth=5, zorder=3
    )
    axes.plot(*noisy.T, ".", color=PALETTE["green"], markersize=5, label="inputs", zorder=4)
    axes.plot(*sent.T, ".", color=PALETTE["orange"], markersize=6, label="outputs", zorder=5)
