"""Pictures of hidden representations and the forces on them, by samples and by neurons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from isthmus.plotting.style import PALETTE, dress, headline

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
