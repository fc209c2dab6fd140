"""The picture of a history: ranks and norms of all layers, and the spectra of one, over the steps of a training."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from isthmus.plotting.names import readable
from isthmus.plotting.style import PALETTE, dress, headline, new_figure

#: Layers that a legend names; of more, a colour bar tells the depth.
NAMED = 8
#: Lines of a spectrum.
LINES = 16
#: Values below this share of the largest of all are drawn at it.
FLOOR = 1e-7

_INK, _GREY = "#333333", "#8A929C"
#: From the first layer to the last, and never so light that a line is lost on white.
_DEPTH: Colormap = LinearSegmentedColormap.from_list("depth", ["#0B2545", "#0072B2", "#009E73", "#E69F00", "#D55E00"])


def draw_history(content: dict[str, Any], figure: Figure | None = None, *, layer: str | None = None) -> Figure:
    """Draw a History: dimensions of the representations, the spectra of one layer, and norms, over the steps.

    Parameters
    ----------
    content : dict
        From ``History.to_dict()``.
    figure : Figure, optional
        An empty one to draw on; by default a new one.
    layer : str, optional
        Whose spectra; by default the one whose representation has the lowest rank at the end.

    Returns
    -------
    Figure
    """
    if figure is None:
        figure = new_figure(15.0, 8.6)
    headline(figure, readable(content["sentence"], 4000), _INK, size=14, per_inch=7.6)
    snapshots = content["snapshots"]
    names = list(dict.fromkeys(one["name"] for snapshot in snapshots for one in snapshot["layers"]))
    if not names:
        axes = figure.subplots()
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no layer was measured", ha="center", va="center", fontsize=13, color=_GREY)
        return figure
    steps = [snapshot["step"] for snapshot in snapshots]
    tables = [{one["name"]: one for one in snapshot["layers"]} for snapshot in snapshots]
    chosen = _narrowest(tables, names) if layer is None else layer
    panels = figure.subplots(2, 2)
    _ranks(panels[0, 0], steps, tables, names)
    _norms(panels[0, 1], steps, tables, names, snapshots)
    for axes, what, told in (
        (panels[1, 0], "representation", "representation"),
        (panels[1, 1], "weights", "weights"),
    ):
        _spectrum(axes, steps, [_spectrum_of(table.get(chosen), what) for table in tables])
        dress(axes, title=" ", x="step", y="$s_i$")
        told = f"Singular values of the {told} of layer {readable(chosen or '(itself)')}"
        axes.set_title(told, loc="left", fontsize=12, color=_INK, pad=10, parse_math=False)
    spoiled = [snapshot["step"] for snapshot in snapshots if snapshot["state"] != "measured"]
    for axes in panels.flat:
        for step in spoiled:
            axes.axvline(step, color=PALETTE["vermilion"], linewidth=1.0, linestyle=":", zorder=1)
        axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    if len(names) > NAMED:
        shades = ScalarMappable(Normalize(1, len(names)), _DEPTH)
        bar = figure.colorbar(shades, ax=panels[0, :], pad=0.01, aspect=28)
        bar.set_label("layer, from the input", fontsize=10.5, color=_INK)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    return figure


def _colour(index: int, count: int) -> Any:
    return _DEPTH(index / max(count - 1, 1))


def _spectrum_of(layer: dict[str, Any] | None, what: str) -> dict[str, Any] | None:
    if layer is None:
        return None
    if what == "representation":
        return layer["representation"]
    return layer["weights"][0] if layer["weights"] else None


def _series(tables: list[dict[str, Any]], name: str, what: str, key: str) -> np.ndarray:
    """One number of one layer over the steps, NaN where there is none."""
    spectra = [_spectrum_of(table.get(name), what) for table in tables]
    values = [None if spectrum is None else spectrum[key] for spectrum in spectra]
    return np.array([math.nan if value is None else float(value) for value in values])


def _narrowest(tables: list[dict[str, Any]], names: list[str]) -> str:
    """The layer of the lowest rank at the last step where it has one; of several, the middle one."""
    last = {}
    for name in names:
        ranks = _series(tables, name, "representation", "rank")
        last[name] = next((rank for rank in ranks[::-1] if math.isfinite(rank)), math.inf)
    lowest = [name for name in names if last[name] == min(last.values())]
    return lowest[len(lowest) // 2]


def _ranks(axes: Axes, steps: list[int], tables: list[dict[str, Any]], names: list[str]) -> None:
    axes.set_yscale("symlog", linthresh=1.0, linscale=0.5)
    highest = 1.0
    for index, name in enumerate(names):
        ranks = _series(tables, name, "representation", "rank")
        if not np.isfinite(ranks).any():
            continue
        highest = max(highest, float(np.nanmax(ranks)))
        # Equal counts of several layers lie beside one another, not over one another.
        shift = 1.0 + 0.05 * (index / max(len(names) - 1, 1) - 0.5)
        style = {"color": _colour(index, len(names)), "markersize": 4, "linewidth": 1.6}
        axes.plot(steps, ranks * shift, "o-", label=readable(name or "(itself)"), **style)
    ticks = [t for t in (0, 1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000) if t <= 1.6 * highest]
    axes.set_ylim(0, 1.6 * highest)
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    dress(axes, title="Dimensions of the representations (gaps: unclear)", x="step", y="count")
    if len(names) <= NAMED and axes.get_legend_handles_labels()[1]:
        _legend(axes)


def _norms(
    axes: Axes, steps: list[int], tables: list[dict[str, Any]], names: list[str], snapshots: list[dict[str, Any]]
) -> None:
    axes.set_yscale("log")
    for index, name in enumerate(names):
        norms = _series(tables, name, "weights", "norm_squared")
        if (norms > 0).any():
            shown = np.where(norms > 0, norms, math.nan)
            label = readable(name or "(itself)")
            axes.plot(steps, shown, "-", color=_colour(index, len(names)), linewidth=1.6, label=label)
    for key, label, style in (("norm_squared", "‖θ‖², everything", "-"), ("cost", "cost", "--")):
        values = [snapshot[key] for snapshot in snapshots]
        shown = [value if value is not None and value > 0 else math.nan for value in values]
        if any(map(math.isfinite, shown)):
            axes.plot(steps, shown, style, color="black", linewidth=2.0, label=label)
    dress(axes, title="Squared norms of the weights, and the cost", x="step", y="‖W‖²")
    if axes.get_legend_handles_labels()[1]:
        _legend(axes, 2 if len(names) > NAMED else None)


def _legend(axes: Axes, last: int | None = None) -> None:
    """Beside the panel; only the ``last`` entries where the others are told by a colour bar."""
    handles, labels = axes.get_legend_handles_labels()
    if last is not None:
        kept = [i for i, label in enumerate(labels) if label in ("‖θ‖², everything", "cost")][-last:]
        handles, labels = [handles[i] for i in kept], [labels[i] for i in kept]
    told = axes.legend(
        handles, labels, frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.3
    )
    for one in told.get_texts():
        one.set_parse_math(False)


def _spectrum(axes: Axes, steps: list[int], spectra: list[dict[str, Any] | None]) -> None:
    lists = [[] if spectrum is None else spectrum["values"] for spectrum in spectra]
    count = min(max(map(len, lists), default=0), LINES)
    top = max((values[0] for values in lists if values), default=0.0)
    if not top > 0:
        axes.text(0.5, 0.5, "none computed", ha="center", va="center", color=_GREY, transform=axes.transAxes)
        return
    axes.set_yscale("log")
    for index in range(count):
        values = [max(v[index], FLOOR * top) if index < len(v) else math.nan for v in lists]
        style = {"color": _colour(index, count), "linewidth": 1.5, "markersize": 3}
        axes.plot(steps, values, "o-" if len(steps) < 40 else "-", **style)
    lowest = min(max(v, FLOOR * top) for values in lists for v in values[:count])
    axes.set_ylim(lowest / 2, 2 * top)
