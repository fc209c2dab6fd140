"""Pictures of losses against the width of a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator, ScalarFormatter

from isthmus.plotting.style import PALETTE, dress

Array = np.ndarray[Any, Any]

_COLOURS = (PALETTE["blue"], PALETTE["vermilion"], PALETTE["green"])
_GREY = "#6B7480"
#: Below this ratio of the ends of an axis powers of ten alone are too few marks.
DECADES = 300.0


@dataclass(frozen=True, eq=False)
class Curve:
    """Losses (trials, widths) of one setting, and where their plateau begins: start, interval and height."""

    label: str
    train: Array
    test: Array
    start: int
    low: int
    high: int
    level: float


def draw_widths(figure: Figure, widths: Array, panels: Sequence[tuple[str, Sequence[Curve], float | None]]) -> None:
    """Loss against width on logarithmic axes, a panel for each title.

    Full lines are the best training losses, dots the trials, dashed lines the test loss of the best trial. A diamond
    marks the start of the plateau, a bar the interval of it.

    Parameters
    ----------
    figure : Figure
    widths : array (widths,)
    panels : sequence of (title, curves, reference)
        ``reference`` is a known loss, drawn as a dotted line.
    """
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for one, (title, curves, reference) in zip(axes, panels):
        one.set_xscale("log")
        one.set_yscale("log")
        for colour, curve in zip(_COLOURS, curves):
            _draw_curve(one, widths, curve, colour)
        if reference is not None:
            one.axhline(reference, color=_GREY, linestyle=":", linewidth=1.4, label="the teacher's own loss", zorder=1)
        dress(one, title=title, x="width of the hidden layers", y="loss")
        shown = [float(n) for n in widths if n in (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 50, 80, 100, 200)]
        one.xaxis.set_major_locator(FixedLocator(shown))
        one.xaxis.set_major_formatter(ScalarFormatter())
        one.xaxis.set_minor_locator(NullLocator())
        one.yaxis.set_minor_formatter(NullFormatter())
        low, high = one.get_ylim()
        one.set_ylim(low * (low / high) ** 0.06, high)
        if high / low < DECADES:
            one.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            one.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        _legend(one)


def power(value: float) -> str:
    r"""A number as people write it in a figure.

    Examples
    --------
    >>> power(1e-6), power(0.003)
    ('$10^{-6}$', '$3\\cdot 10^{-3}$')
    """
    digits, _, exponent = f"{value:.3e}".partition("e")
    digits = digits.rstrip("0").rstrip(".")
    ten = f"10^{{{int(exponent)}}}"
    return f"${ten}$" if digits == "1" else rf"${digits}\cdot {ten}$"


def _draw_curve(axes: Axes, widths: Array, curve: Curve, colour: str) -> None:
    chosen = curve.train.argmin(axis=0)
    best, test = curve.train.min(axis=0), curve.test[chosen, np.arange(len(widths))]
    axes.plot(widths, best, "-", color=colour, linewidth=2.0, label=curve.label, zorder=3)
    axes.plot(widths, test, "--", color=colour, linewidth=1.5, zorder=2)
    for trial in curve.train:
        axes.plot(widths, trial, "o", color=colour, markersize=3.6, alpha=0.55, markeredgewidth=0.0, zorder=3)
    place = float(best[int(np.searchsorted(widths, curve.start))])
    axes.plot([curve.low, curve.high], [place, place], color=colour, linewidth=7.0, alpha=0.22, zorder=1)
    axes.plot(curve.start, place, "D", color=colour, markersize=8, markeredgecolor="white", zorder=5)
    text = f"{curve.start} ({curve.low}–{curve.high})" if curve.low < curve.high else str(curve.start)
    axes.annotate(
        text,
        (curve.start, place),
        textcoords="offset points",
        xytext=(0, -19),
        ha="center",
        fontsize=9.5,
        color=colour,
        zorder=6,
        bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
    )


def _legend(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    more = [
        Line2D([], [], color=_GREY, linestyle="-", label="training, best trial"),
        Line2D([], [], color=_GREY, linestyle="--", label="test"),
        Line2D([], [], color=_GREY, linestyle="", marker="o", markersize=4, label="trials"),
        Line2D([], [], color=_GREY, linestyle="", marker="D", markersize=7, label="start of the plateau (90 %)"),
    ]
    labels += [str(line.get_label()) for line in more]
    axes.legend([*handles, *more], labels, frameon=False, fontsize=9.5, loc="upper right")
