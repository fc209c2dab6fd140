"""The picture of a diagnosis: counts and spectra through depth, and what other ways of counting say."""

from __future__ import annotations

import math
import textwrap
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from isthmus.plotting.names import readable
from isthmus.plotting.style import PALETTE, dress, headline, new_figure

#: Values of each spectrum in the picture.
VALUES = 32
#: Values below 10^FLOOR of the largest have the lightest colour.
FLOOR = -4.0
#: Labels below the layers; of more layers, every second, third, … is named.
LABELS = 32
#: Everything passes through a layer if no more than this of the outputs' variation survives freezing it.
PASSES = 1e-9

_INK, _GREY, _FAINT, _SHADE = "#333333", "#8A929C", "#DDE2E8", "#FFF3D6"
_VERDICTS = {"determined": "green", "none": "blue", "undetermined": "vermilion"}
_SHADES: Colormap = LinearSegmentedColormap.from_list("isthmus", ["#F1F5F9", "#9CCBE6", "#0072B2", "#0B2545"])
#: Key in a layer → (label, colour, marker, shift to the right).
_COUNTS = {
    "weights": ("weights", PALETTE["orange"], "s", -0.2),
    "dimensions": ("representation", PALETTE["blue"], "o", 0.0),
    "jacobian": ("Jacobian", PALETTE["green"], "^", 0.2),
}


def draw_diagnosis(content: dict[str, Any], figure: Figure | None = None) -> Figure:
    """Draw a Diagnosis: counts by layer over its spectra through depth, and the agreement panel beside them.

    Parameters
    ----------
    content : dict
        From ``Diagnosis.to_dict()``.
    figure : Figure, optional
        An empty one to draw on; by default a new one.

    Returns
    -------
    Figure
    """
    if figure is None:
        figure = new_figure(15.0, 9.6)
    isthmus, layers = content["isthmus"], content["layers"]
    colour = PALETTE[_VERDICTS.get(isthmus["verdict"], "black")]
    per_line = headline(figure, _clean(content["sentence"]), colour)
    if isthmus["reasons"]:
        why = textwrap.shorten(f"Why: {'; '.join(map(_clean, isthmus['reasons']))}.", 2 * per_line, placeholder=" …")
        figure.supxlabel(
            textwrap.fill(why, int(1.4 * per_line)), x=0.012, ha="left", fontsize=10.5, color=_INK, parse_math=False
        )
    grid = figure.add_gridspec(3, 2, width_ratios=(1.75, 1.0), height_ratios=(1.15, 1.0, 1.0))
    counts = figure.add_subplot(grid[0, 0])
    inside = figure.add_subplot(grid[1, 0], sharex=counts)
    weights = figure.add_subplot(grid[2, 0], sharex=counts)
    _counts(counts, layers)
    spectra = [[_dimensions(layer)] for layer in layers]
    drawn = _heat(inside, spectra, "Singular values of the centred representations")
    parts = [[part["spectrum"] for part in layer["weights"]] for layer in layers]
    drawn = _heat(weights, parts, "Singular values of the weights") or drawn
    for axes in (counts, inside, weights):
        _shade(axes, layers, isthmus)
    _name_layers(counts, inside, weights, layers)
    if drawn is not None:
        bar = figure.colorbar(drawn, ax=[inside, weights], pad=0.01, aspect=36, shrink=0.9, extend="min")
        bar.set_label(r"$\log_{10}(s_i\,/\,s_1)$", fontsize=10.5, color=_INK)
        bar.ax.tick_params(labelsize=9.5, colors=_INK, length=3)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    _agreement(figure.add_subplot(grid[:, 1]), content)
    return figure


def _clean(text: Any) -> str:
    """Any text in one line that the font can draw."""
    return readable(text, 4000)


def _dimensions(layer: dict[str, Any]) -> dict[str, Any] | None:
    return layer["whole"] if layer["whole"] is not None else layer["representation"]


def _passes(layer: dict[str, Any]) -> bool:
    return layer["name"] == "" or (layer["bypass"] is not None and layer["bypass"] <= PASSES)


# --- counts


def _counts(axes: Axes, layers: list[dict[str, Any]]) -> None:
    axes.set_yscale("symlog", linthresh=1.0, linscale=0.5)
    units = [layer["units"] or math.nan for layer in layers]
    axes.bar(range(len(layers)), units, width=0.86, color=_FAINT, zorder=1)
    size = float(np.clip(150 / max(len(layers), 1), 4.0, 8.5))
    highest = 1.0
    for key, (_, colour, marker, shift) in _COUNTS.items():
        for filled in (True, False):
            points = [
                (index + shift, count)
                for index, layer in enumerate(layers)
                for count in _ranks(layer, key)
                if _passes(layer) is filled
            ]
            if points:
                x, y = zip(*points)
                highest = max(highest, *y)
                face = colour if filled else "white"
                style = {"markersize": size, "markerfacecolor": face, "markeredgewidth": 1.6}
                axes.plot(x, y, marker, color=colour, zorder=4, clip_on=False, **style)
    top = max([highest, *(u for u in units if math.isfinite(u))])
    axes.set_ylim(0, 1.6 * top)
    ticks = [t for t in (0, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500, *(10**e for e in range(3, 9))) if t <= 1.6 * top]
    axes.yaxis.set_major_locator(FixedLocator(ticks if len(ticks) < 12 else [0, 1, *(10**e for e in range(1, 9))]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    dress(axes, title="Values that stand out", y="count (no mark: unclear)")
    axes.grid(False, axis="x")
    handles = [Line2D([], [], color=c, marker=m, linestyle="", label=name) for name, c, m, _ in _COUNTS.values()]
    handles.append(Line2D([], [], color=_FAINT, marker="s", markersize=9, linestyle="", label="units"))
    open_ = {"markerfacecolor": "white", "markeredgewidth": 1.6, "color": _GREY}
    handles.append(Line2D([], [], marker="o", linestyle="", label="hollow: bypassed", **open_))
    place = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.2}
    axes.legend(handles=handles, ncols=5, frameon=False, fontsize=9.5, handletextpad=0.2, columnspacing=1.1, **place)


def _ranks(layer: dict[str, Any], key: str) -> list[int]:
    """The counts that clearly stand out, each once."""
    if key == "weights":
        spectra = [part["spectrum"] for part in layer["weights"]]
    else:
        spectra = [_dimensions(layer) if key == "dimensions" else layer["jacobian"]]
    readings = [s["reading"] for s in spectra if s is not None and s["reading"] is not None]
    return sorted({reading["count"] for reading in readings if reading["status"] != "unclear"})


# --- spectra


def _heat(axes: Axes, spectra: list[list[dict[str, Any] | None]], title: str) -> Any:
    """A column for each layer, side by side the matrices of one; returns what a colour bar needs, None if empty."""
    drawn, most, drops = None, 1, 0
    for index, parts in enumerate(spectra):
        for place, spectrum in enumerate(parts):
            values = np.array([] if spectrum is None else spectrum["values"][:VALUES], dtype=float)
            if not len(values) or not values[0] > 0 or spectrum is None:
                continue
            most = max(most, len(values))
            with np.errstate(divide="ignore"):
                levels = np.maximum(np.log10(values / values[0]), FLOOR)
            left, width = index - 0.43 + 0.86 * place / len(parts), 0.86 / len(parts)
            edges = np.arange(len(values) + 1) + 0.5
            drawn = axes.pcolormesh(
                [left, left + width], edges, levels[:, None], cmap=_SHADES, vmin=FLOOR, vmax=0.0, zorder=2
            )
            reading = spectrum["reading"]
            if reading is not None and reading["status"] == "clear" and reading["count"] < len(values):
                y, drops = reading["count"] + 0.5, drops + 1
                axes.plot([left, left + width], [y, y], color=PALETTE["vermilion"], linewidth=2.2, zorder=3)
    dress(axes, title=title, y="number i")
    axes.grid(False)
    axes.set_ylim(most + 0.5, 0.5)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    if drawn is None:
        axes.text(0.5, 0.5, "none computed", ha="center", va="center", color=_GREY, transform=axes.transAxes)
    if drops:
        axes.plot([], [], color=PALETTE["vermilion"], linewidth=2.2, label="a clear drop")
        place = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.2}
        axes.legend(frameon=False, fontsize=9.5, **place)
    return drawn


def _shade(axes: Axes, layers: list[dict[str, Any]], isthmus: dict[str, Any]) -> None:
    """Shade the layers where the rank is attained."""
    inside = {"" if name == "(output)" else name for name in isthmus["layers"]}
    for index, layer in enumerate(layers):
        if layer["name"] in inside:
            axes.axvspan(index - 0.5, index + 0.5, color=_SHADE, zorder=0, linewidth=0)


def _name_layers(counts: Axes, inside: Axes, weights: Axes, layers: list[dict[str, Any]]) -> None:
    every = max(1, -(-len(layers) // LABELS))
    shown = range(0, len(layers), every)
    long = len(layers) > 6 or max((len(layer["name"]) for layer in layers), default=0) > 9
    names = [readable(layers[i]["name"] or "(output)") for i in shown]
    counts.set_xticks(list(shown))
    # A single layer does not swell to fill the panel.
    spare = max(0.0, 4 - len(layers)) / 2
    counts.set_xlim(-0.6 - spare, max(len(layers), 1) - 0.4 + spare)
    for axes in (counts, inside):
        axes.tick_params(axis="x", labelbottom=False)
    size = 9.5 if len(names) <= 16 else 8.0
    style = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if long else {}
    weights.set_xticks(list(shown), names, parse_math=False, fontsize=size, **style)


# --- agreement


def _agreement(axes: Axes, content: dict[str, Any]) -> None:
    """A dot for each way of counting, its name above it and what it counts below."""
    panel, ours = content["agreement"], content["isthmus"]["rank"]
    values = [one["value"] for one in panel if one["value"] is not None]
    low, high = min([1.0, *values]), max([1.0, *values])
    wide = high > 40
    axes.set_xscale("symlog" if wide else "linear", **({"linthresh": 1.0} if wide else {}))
    axes.set_xlim(min(0.0, low), 1.15 * high if not wide else 2 * high)
    axes.set_ylim(len(panel) - 0.38, -0.62)
    dress(axes, title="Other ways of counting", x="count")
    axes.set_yticks([])
    axes.grid(False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if not wide:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if ours is not None:
        axes.axvline(ours, color=PALETTE["green"], linewidth=1.5, linestyle="--", zorder=1)
    where = axes.get_yaxis_transform()
    for y, one in enumerate(panel):
        value, same = one["value"], ours is not None and one["rank"] == ours
        axes.plot([0, 1], [y, y], color=_FAINT, linewidth=1.0, transform=where, zorder=0)
        told = "—" if value is None else f"{value:.3g}"
        verdict = "" if ours is None or one["rank"] is None or y == 0 else "  agrees" if same else "  differs"
        colour = PALETTE["green"] if same else PALETTE["blue"] if one["rank"] is not None else _GREY
        axes.text(
            *(0.0, y - 0.1), f"{_clean(one['name'])}: {told}{verdict}", transform=where, fontsize=10.5,
            fontweight="bold", color=colour if value is not None else _GREY, va="bottom", parse_math=False, **_HALO,
        )  # fmt: skip
        below = "\n".join(textwrap.wrap(_clean(one["meaning"]), 64)[:3])
        style = {"fontsize": 8.8, "color": _INK, "va": "top", "linespacing": 1.25, "parse_math": False}
        axes.text(0.0, y + 0.11, below, transform=where, **style, **_HALO)
        if value is not None:
            face = colour if one["rank"] is not None else "white"
            style = {"markersize": 10, "markerfacecolor": face, "markeredgewidth": 2.0, "clip_on": False, "zorder": 4}
            axes.plot(value, y, "o", color=colour, **style)


#: Lines behind a text stop at it.
_HALO = {"bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85}, "zorder": 2}
