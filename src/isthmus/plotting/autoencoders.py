"""Where autoencoders send noisy inputs: images above each other, arrows in the plane."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from isthmus.plotting.style import PALETTE, dress

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
    told = [f"L = {L}\n{100 * share:.0f} % left" for L, share in zip((depths[0], depths[2]), left)]
    dress(images, title="(A) Noisy images, and outputs")
    images.grid(False)
    images.set_yticks((side + gap) * np.arange(3) + side / 2, ["noisy", *told])
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
