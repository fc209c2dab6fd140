"""The loss against the depth, rank by rank, and against the width: `DepthRange.plot` and `Plateau.plot`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from isthmus.plotting.style import PALETTE, dress, headline, new_figure

#: Depths that are drawn, and how far beyond the ends of the range.
DEPTHS, BEYOND = 200, 4.0

_GREY = "#8A929C"
_COLOURS = ("blue", "orange", "green", "purple", "sky", "vermilion", "yellow")
_STATES = {"determined": "green", "plateau": "green", "empty": "blue", "undetermined": "vermilion"}


def draw_depths(found: Any, figure: Figure | None = None) -> Figure:
    """Draw a DepthRange: the regularised loss of every rank against the depth; where the rank is the best, shaded.

    Parameters
    ----------
    found : DepthRange
    figure : Figure, optional
        An empty one to draw on; by default a new one.
    """
    figure = new_figure(9.0, 5.0) if figure is None else figure
    colour = PALETTE[_STATES[found.state]]
    headline(figure, found.sentence, colour)
    axes = figure.subplots()
    ends = [row[end] for row in found.rows for end in ("low", "high") if row[end] is not None and row[end] < math.inf]
    depths = np.geomspace(1.0, BEYOND * max([8.0, *ends]), DEPTHS)
    for index, row in enumerate(found.rows):
        label = "a constant" if row["rank"] == 0 else f"rank {row['rank']}"
        own = row["rank"] == found.rank
        style: dict[str, Any] = {"color": PALETTE[_COLOURS[index % len(_COLOURS)]], "linewidth": 2.6 if own else 1.4}
        axes.plot(depths, [found.loss(row, depth) for depth in depths], label=label, zorder=4 if own else 3, **style)
    if found.low <= found.high:
        label = f"rank {found.rank} is the best"
        axes.axvspan(found.low, min(found.high, depths[-1]), color=colour, alpha=0.12, linewidth=0, label=label)
    if math.isfinite(found.interpolator):
        label = "rank 1 through all samples"
        axes.axvline(found.interpolator, color=_GREY, linestyle="--", linewidth=1.3, label=label)
    axes.set_xscale("log")
    # What is worse than a constant at every depth would squeeze the rest.
    axes.set_ylim(0.0, 1.3 * max(1.0, float(np.min([found.loss(row, 1.0) for row in found.rows]))))
    axes.set_xlim(depths[0], depths[-1])
    dress(axes, title="Least loss of each rank, the best constant being 1", x="depth L", y="cost + ridge·‖θ‖²")
    axes.legend(frameon=False, fontsize=10, loc="best")
    return figure


def draw_plateau(found: Any, figure: Figure | None = None) -> Figure:
    """Draw a Plateau: what every training ended with against the width, the least so far, and where it is flat.

    Parameters
    ----------
    found : Plateau
    figure : Figure, optional
        An empty one to draw on; by default a new one.
    """
    figure = new_figure(9.0, 5.0) if figure is None else figure
    colour = PALETTE[_STATES[found.state]]
    headline(figure, found.sentence, colour)
    axes = figure.subplots()
    trials = [(width, loss) for width, losses in zip(found.widths, found.trials) for loss in losses]
    if trials:
        axes.plot(*zip(*trials), "o", color=PALETTE["sky"], markersize=4, label="one training", zorder=2)
    axes.plot(found.widths, found.losses, "o-", color=PALETTE["blue"], label="least up to this width", zorder=3)
    axes.axhline(found.loss, color=_GREY, linestyle="--", linewidth=1.3, zorder=1)
    if found.start:
        label = f"from width {found.start} on" if found.state == "plateau" else f"width {found.start}, a guess"
        axes.axvline(found.start, color=colour, linewidth=1.6, label=label, zorder=1)
    axes.set_xscale("log")
    axes.set_xticks(found.widths, [str(width) for width in found.widths], minor=False)
    axes.xaxis.set_minor_locator(NullLocator())
    if min(found.losses) > 0.0:
        axes.set_yscale("log")
    dress(axes, title="Loss against the width", x="width of every hidden layer", y="cost + ridge·‖θ‖²")
    axes.legend(frameon=False, fontsize=10, loc="best")
    return figure
