"""Regions of classes in the plane, with the points that were classified and where three regions meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.lines import Line2D

from isthmus.plotting.style import PALETTE, dress, readable

#: Points along each axis at which the classes are asked for.
GRID = 240
#: Classes that the legend names.
NAMED = 10
_COLOURS = ("blue", "orange", "green", "purple", "sky", "vermilion", "yellow", "black")


def draw_boundary(
    axes: Axes,
    scores: Callable[[Any], Any],
    box: Any,
    names: Sequence[str],
    X: Any = None,
    labels: Any = None,
    axis_names: Sequence[str] = ("x0", "x1"),
    tripoints: Any = None,
) -> None:
    """Draw the regions in which each of K classes has the largest score.

    Parameters
    ----------
    axes : Axes
    scores : callable (n, 2) → (n, K)
    box : array (2, 2)
        Low and high of both axes.
    names : K texts
    X, labels : array (n, 2), array (n,) of class indices, optional
        Points to draw, in the colours of their classes.
    axis_names : two texts
    tripoints : array (T, 2), optional
        Where three classes meet: drawn as stars.
    """
    (x_low, x_high), (y_low, y_high) = np.asarray(box, dtype=float)
    x, y = np.linspace(x_low, x_high, GRID), np.linspace(y_low, y_high, GRID)
    points = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    classes = np.asarray(scores(points)).argmax(axis=1).reshape(GRID, GRID)
    colours = [PALETTE[_COLOURS[c % len(_COLOURS)]] for c in range(len(names))]
    # Mixed with white: points of the same class must stand out on their region.
    faint = ListedColormap([tuple(0.7 + 0.3 * part for part in to_rgb(colour)) for colour in colours])
    limits = {"cmap": faint, "vmin": -0.5, "vmax": len(names) - 0.5}
    axes.pcolormesh(x, y, classes, shading="nearest", rasterized=True, **limits)
    for c in np.unique(classes):
        if (classes == c).any() and not (classes == c).all():
            axes.contour(x, y, (classes == c).astype(float), levels=[0.5], colors="#444444", linewidths=0.9)
    handles = []
    for c, name in enumerate(names[:NAMED]):
        handles.append(Line2D([], [], marker="o", linestyle="", color=colours[c], label=readable(str(name))))
    if X is not None and labels is not None:
        P, index = np.asarray(X, dtype=float), np.asarray(labels)
        shades = np.array(colours, dtype=object)[index].tolist()
        axes.scatter(P[:, 0], P[:, 1], s=14, c=shades, edgecolors="white", linewidths=0.3, zorder=3)
    if tripoints is not None and len(tripoints):
        T = np.asarray(tripoints, dtype=float)
        axes.scatter(T[:, 0], T[:, 1], marker="*", s=150, c="white", edgecolors="black", linewidths=1.2, zorder=4)
        handles.append(
            Line2D([], [], marker="*", linestyle="", color="white", markeredgecolor="black", label="three classes meet")
        )
    dress(axes)
    axes.grid(False)
    axes.set_xlabel(readable(axis_names[0]), fontsize=11, parse_math=False)
    axes.set_ylabel(readable(axis_names[1]), fontsize=11, parse_math=False)
    axes.set_xlim(x_low, x_high)
    axes.set_ylim(y_low, y_high)
    axes.legend(handles=handles, frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
