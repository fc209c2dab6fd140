"""Pictures of symmetries and of coordinates under dynamics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from isthmus.plotting.style import PALETTE, dress, headline, new_figure

Array = np.ndarray[Any, Any]

_GREY = "#8A929C"
_INK = "#333333"
#: Names on an axis of layers; with more of them only every second, third, … is written.
_NAMES = 14


def draw_symmetry(found: Mapping[str, Any], figure: Figure | None = None) -> Figure:
    """Orbit distance through depth, and distance maps of the inputs, of the layer of the collapse, of the outputs.

    Parameters
    ----------
    found : mapping
        As :meth:`isthmus.diagnosis.Symmetry.to_dict` gives it.
    figure : Figure, optional
    """
    figure = new_figure(14.0, 4.4) if figure is None else figure
    layers = found["layers"]
    names = [layer["name"] for layer in layers]
    maps = list(dict.fromkeys(["inputs", found["layer"] or names[len(names) // 2], "outputs"]))
    panels = figure.subplots(1, 1 + len(maps), width_ratios=[1.6, *[1.0] * len(maps)])
    axes = panels[0]
    ratios = np.array([layer["ratio"] for layer in layers], dtype=float)
    errors = np.array([layer["error"] for layer in layers], dtype=float)
    axes.errorbar(range(len(names)), ratios, 2 * errors, fmt="o-", color=PALETTE["blue"], linewidth=1.6, capsize=3)
    axes.axhline(found["tolerance"], color=PALETTE["vermilion"], linewidth=1.2, linestyle="--", label="tolerance")
    # Logarithmic down to a thousandth of the range; an exact zero has a place too.
    axes.set_yscale("symlog", linthresh=1e-3)
    axes.set_ylim(0.0, 2.0)
    step = -(-len(names) // _NAMES)
    axes.set_xticks(range(0, len(names), step), names[::step], rotation=40, ha="right", fontsize=9)
    dress(axes, title="distance within orbits, relative to that between", y="orbit distance / range")
    axes.legend(frameon=False, fontsize=10)
    for axes, name in zip(panels[1:], maps):
        _map(axes, np.asarray(found["maps"][name]), name, found["shown"])
    headline(figure, str(found["sentence"]), _INK, size=13)
    return figure


def _map(axes: Axes, distances: Array, name: str, orbits: int) -> None:
    axes.imshow(distances, cmap="viridis", vmin=0.0, interpolation="nearest")
    size = len(distances) / max(orbits, 1)
    for edge in range(1, orbits):
        axes.axhline(edge * size - 0.5, color="white", linewidth=0.6)
        axes.axvline(edge * size - 0.5, color="white", linewidth=0.6)
    axes.set_title(f"{name}: points by orbit", loc="left", fontsize=11, color=_INK)
    axes.set_xticks([])
    axes.set_yticks([])


def draw_dynamics(found: Mapping[str, Any], figure: Figure | None = None) -> Figure:
    """Paths in the first two coordinates, and predicted beside measured velocities.

    Parameters
    ----------
    found : mapping
        As :meth:`isthmus.discovery.Dynamics.to_dict` gives it, with ``predicted``.
    figure : Figure, optional
    """
    figure = new_figure(10.0, 4.4) if figure is None else figure
    left, right = figure.subplots(1, 2)
    U, V, owner, G = (np.asarray(found[key]) for key in ("coordinates", "velocity", "groups", "predicted"))
    second = U[:, 1] if U.shape[1] > 1 else V[:, 0]
    for g in np.unique(owner):
        left.plot(U[owner == g, 0], second[owner == g], color=PALETTE["blue"], linewidth=0.9, alpha=0.6)
    dress(left, title="paths", x="$u_1$", y="$u_2$" if U.shape[1] > 1 else "$du_1/dt$")
    colours = list(PALETTE.values())[1:]
    for j in range(V.shape[1]):
        label = f"$du_{{{j + 1}}}/dt$"
        right.plot(V[:, j], G[:, j], ".", markersize=3, color=colours[j % len(colours)], label=label)
    ends = [float(V.min()), float(V.max())]
    right.plot(ends, ends, color=_GREY, linewidth=1.0, linestyle=":")
    dress(right, title=f"G(u): {found['method']}", x="measured", y="fitted")
    right.legend(frameon=False, markerscale=3)
    headline(figure, str(found["sentence"]), _INK, size=12)
    return figure


def draw_symmetry_learning(figure: Figure, arrays: Mapping[str, Array], *, layer: int) -> None:
    """F-bn-2: singular values through depth, paths in the plane of one layer, distances on a plane orthogonal to w."""
    first, second, third, fourth = figure.subplots(1, 4, width_ratios=[1.25, 1.1, 1.0, 1.0])
    spectra = arrays["weight_spectra"]
    depth = np.arange(1, len(spectra) + 1)
    for index in range(spectra.shape[1]):
        colour = PALETTE["blue"] if index < 2 else _GREY
        first.plot(depth, spectra[:, index], color=colour, linewidth=1.9 if index < 2 else 0.9)
    first.xaxis.set_major_locator(MaxNLocator(integer=True))
    first.set_ylim(bottom=0.0)
    dress(first, title="(a) singular values of $W_\\ell$", x="layer $\\ell$")
    draw_flow(second, arrays["paths"])
    dress(second, title=f"(b) paths of descent in layer {layer}", x="first principal axis", y="second")
    for axes, name, title in ((third, "map_first", "(c) distances in layer 1"), (fourth, "map_second", "in layer 2")):
        edge = float(arrays["map_axis"][-1])
        image = axes.imshow(arrays[name], extent=(-edge, edge, -edge, edge), origin="lower", cmap="viridis", vmin=0.0)
        axes.plot(*arrays["map_point"], "s", color="white", markersize=6)
        axes.set_title(title, loc="left", fontsize=12, color=_INK, pad=10)
        axes.tick_params(labelsize=9, colors=_INK)
        figure.colorbar(image, ax=axes, shrink=0.75)


def draw_flow(axes: Axes, paths: Array) -> None:
    """Paths (count, times, 2) with a dot where each begins."""
    colours = list(PALETTE.values())[1:]
    for number, path in enumerate(paths):
        colour = colours[number % len(colours)]
        axes.plot(path[:, 0], path[:, 1], color=colour, linewidth=0.9, alpha=0.8)
        axes.plot(path[0, 0], path[0, 1], ".", color=colour, markersize=5)


def draw_bijection(figure: Figure, arrays: Mapping[str, Array], *, layer: int) -> None:
    """F-talk-3: the true statistics and the learned coordinates, each coloured by the other side's u."""
    panels = figure.subplots(1, 3)
    u, c = np.sqrt(arrays["statistics"]), arrays["coordinates"]
    labels = (r"$|w^Tv|$", r"$\|(I-ww^T)v\|$")
    panels[0].scatter(u[:, 0], u[:, 1], c=_two_colours(u), s=9)
    dress(panels[0], title="(a) summary statistics", x=labels[0], y=labels[1])
    panels[1].scatter(c[:, 0], c[:, 1], c=_two_colours(u), s=9)
    dress(panels[1], title=f"(b) layer {layer}, the same colours", x="first principal axis", y="second")
    axes, scores = panels[2], arrays["scores"]
    places = np.arange(2, 2 + scores.shape[1])
    for row, colour, text in ((0, "blue", "u from the layer"), (1, "orange", "the layer from u")):
        axes.plot(places, scores[row], "o-", color=PALETTE[colour], linewidth=1.6, markersize=4, label=text)
    axes.axhline(0.95, color=_GREY, linewidth=1.0, linestyle="--")
    axes.set_ylim(min(0.8, float(np.nanmin(scores))) - 0.02, 1.01)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    dress(axes, title="(c) $R^2$ of either from the other", x="layer $\\ell$")
    axes.legend(frameon=False)


def _two_colours(u: Array) -> Array:
    """Red by the first column, blue by the second, (N, 3)."""
    span = np.ptp(u, axis=0)
    share = (u - u.min(axis=0)) / np.where(span > 0, span, 1.0)
    return np.column_stack([share[:, 0], 0.35 * np.ones(len(u)), share[:, 1]])
