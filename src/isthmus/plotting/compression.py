"""The picture of a compression: the width of every layer before and after, why neurons went, and what it saved."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from isthmus.plotting.names import readable
from isthmus.plotting.style import PALETTE, dress, headline, new_figure

#: What the parts that are left are called; reasons for which neurons went that have a colour of their own.
KEPT, LINEAR, OTHER = "kept", "kept, linear", "for other reasons"
REASONS = 5
#: Layers that are drawn, those up to which each has its numbers above it, and names below the axis.
DRAWN, NUMBERED, NAMED = 120, 10, 16
#: Characters of a layer's name.
LONGEST = 20

_INK, _GREY = "#333333", "#8A929C"
_GONE = ("orange", "purple", "green", "vermilion", "yellow")
_DOMAINS = {"everywhere": "green", "the data": "green"}
#: Name of the field, without "before" and "after" → what it is called, its unit and its digits.
_COSTS = {
    "neurons": ("neurons", "", 0),
    "parameters": ("parameters", "", 0),
    "bytes": ("bytes", "", 0),
    "latency": ("latency", " ms", 3),
    "norm": ("‖θ‖²", "", 4),
}


@dataclass(frozen=True)
class Cost:
    """One thing that a network costs, before and after."""

    name: str
    before: float
    after: float
    told: str

    @property
    def share(self) -> float:
        """After as a share of before."""
        return self.after / self.before


def stacked(layers: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Parts of each layer's bar, from the bottom: neurons kept, kept linear ones, then those that went, by reason.

    The commonest reasons come first; those beyond ``REASONS`` are one. Where what was noted does not account for all
    that went, the rest is among the others too.
    """
    totals: dict[str, int] = {}
    for layer in layers:
        for reason, count in layer["removed"].items():
            totals[reason] = totals.get(reason, 0) + count
    order = sorted(totals, key=lambda reason: -totals[reason])[:REASONS]
    parts = {
        KEPT: [layer["after"] - layer["linear"] for layer in layers],
        LINEAR: [layer["linear"] for layer in layers],
        **{reason: [layer["removed"].get(reason, 0) for layer in layers] for reason in order},
    }
    rest = []
    for layer in layers:
        known = sum(layer["removed"].get(reason, 0) for reason in order)
        rest.append(max(layer["before"] - layer["after"], sum(layer["removed"].values())) - known)
    rest = [max(count, 0) for count in rest]
    return {name: counts for name, counts in {**parts, OTHER: rest}.items() if any(counts)}


def costs(content: Mapping[str, Any]) -> list[Cost]:
    """Neurons, parameters, bytes, latency and ‖θ‖² before and after; those that are known and not 0 before."""
    found = []
    for key, (name, unit, digits) in _COSTS.items():
        before, after = float(content[f"{key}_before"]), float(content[f"{key}_after"])
        if math.isfinite(before) and math.isfinite(after) and before > 0 and math.isfinite(after / before):
            told = " → ".join(f"{value:.{digits}g}" if digits else f"{value:,.0f}" for value in (before, after))
            found.append(Cost(name, before, after, told + unit))
    return found


def draw_compression(content: Mapping[str, Any], figure: Figure | None = None) -> Figure:
    """Draw a compression: widths by layer, stacked by why neurons went, and what is left of each cost.

    Parameters
    ----------
    content : mapping
        From ``Compressed.to_dict()``.
    figure : Figure, optional
        An empty one to draw on; by default a new one.

    Returns
    -------
    Figure
    """
    if figure is None:
        figure = new_figure(13.0, 5.4)
    colour = PALETTE[_DOMAINS.get(content["domain"], "blue")]
    headline(figure, readable(content["sentence"], 4000), colour)
    hidden = len(content["layers"]) > 0
    grid = figure.add_gridspec(1, 1 + hidden, width_ratios=(1.7, 1.0) if hidden else (1.0,))
    if hidden:
        draw_widths(figure.add_subplot(grid[0, 0]), content["layers"])
    draw_costs(figure.add_subplot(grid[0, -1]), costs(content))
    return figure


def draw_widths(axes: Axes, layers: Sequence[Mapping[str, Any]]) -> None:
    """One bar for each layer, as high as it was wide before: what is kept at the bottom, above it what went."""
    shown = list(layers)[:DRAWN]
    places = np.arange(len(shown))
    bottom = np.zeros(len(shown))
    gone = 0
    for name, counts in stacked(shown).items():
        heights = np.asarray(counts, dtype=np.float64)
        if name in (KEPT, LINEAR):
            style: dict[str, Any] = {"color": PALETTE["blue" if name == KEPT else "sky"]}
        else:
            style = {"color": _GREY if name == OTHER else PALETTE[_GONE[gone % len(_GONE)]], "alpha": 0.35}
            gone += name != OTHER
        axes.bar(places, heights, bottom=bottom, width=0.72, label=readable(name, 40), zorder=3, **style)
        bottom += heights
    if len(shown) <= NUMBERED:
        for place, top, layer in zip(places, bottom, shown):
            style = {"ha": "center", "va": "bottom", "fontsize": 10, "color": _INK}
            axes.annotate(
                f"{layer['before']} → {layer['after']}", (float(place), float(top)), xytext=(0, 3),
                textcoords="offset points", **style,
            )  # fmt: skip
    lowest = _names(axes, [layer["layer"] for layer in shown])
    title = "Neurons of each hidden layer"
    more = f", the first {DRAWN} of {len(layers)}" if len(layers) > DRAWN else ""
    dress(axes, title=title + more, x="layer", y="neurons")
    axes.grid(False, axis="x")
    axes.set_ylim(0.0, 1.12 * max([1.0, *bottom]))
    if any(bottom):
        # Below the axes: bars may fill them.
        legend = axes.legend(frameon=False, fontsize=10, ncols=3, loc="upper left", bbox_to_anchor=(0.0, lowest))
        for words in legend.get_texts():
            words.set_parse_math(False)


def _names(axes: Axes, names: Sequence[str]) -> float:
    """Name the layers below the axis; gives how far down, in heights of the axes, the names and the title reach."""
    every = max(1, -(-len(names) // NAMED))
    shown = [readable(name, LONGEST) for name in names[::every]]
    longest = max(map(len, shown), default=0)
    turned = longest > 3 and len(shown) > 6
    folded = [name if turned else "\n".join(textwrap.wrap(name, 12)) for name in shown]
    style = {"rotation": 30, "ha": "right"} if turned else {}
    axes.set_xticks(np.arange(0, len(names), every), folded, parse_math=False, **style)
    lines = 0.25 * longest if turned else max((name.count("\n") for name in folded), default=0)
    return -0.14 - 0.05 * lines


def draw_costs(axes: Axes, found: Sequence[Cost]) -> None:
    """What is left of each cost as a share of what it was; those that grew stand out."""
    places = np.arange(len(found))[::-1]
    for place, cost in zip(places, found):
        colour = PALETTE["vermilion" if cost.share > 1.0 else "blue"]
        axes.barh(place, cost.share, height=0.5, color=colour, zorder=3)
        style = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 10.5, "color": _INK}
        # On white, so that it can be read where it meets the line.
        box = {"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none"}
        axes.annotate(cost.told, (cost.share, float(place)), zorder=4, bbox=box, **style)
    axes.axvline(1.0, color=_GREY, linewidth=1.3, linestyle="--", zorder=1)
    axes.set_yticks(places, [cost.name for cost in found])
    dress(axes, title="What is left", x="after, as a share of before")
    axes.grid(False, axis="y")
    axes.set_xlim(0.0, 1.55 * max([1.0, *(cost.share for cost in found)]))
    axes.set_ylim(-0.6, max(len(found), 1) - 0.4)
