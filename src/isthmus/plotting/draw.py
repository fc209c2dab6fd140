"""A figure of plain data on matplotlib's axes; several of them on one sheet, under the answer that they belong to."""

from __future__ import annotations

import copy
import math
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib.figure
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from isthmus._html import TONES
from isthmus.plotting.figure import Column, Figure
from isthmus.plotting.style import PALETTE, dress, headline, new_figure, readable

#: Colours by name, as in the style sheet of the report's light theme.
COLOURS = {
    **PALETTE, "ink": "#333333", "muted": "#5F6872", "faint": "#C3C9D0", "line": "#D5DAE0", "paper": "#FFFFFF",
    "scale0": "#0B2545", "scale1": "#0072B2", "scale2": "#009E73", "scale3": "#E69F00",
    "shade0": "#F1F0EC", "shade1": "#7FB6D9", "shade2": "#0B3F6B",
}  # fmt: skip
_TONES = {"good": "green", "note": "blue", "doubt": "vermilion", "bad": "vermilion"}
_DASHES = {"dash": "--", "dot": ":", "dashdot": "-.", "solid": "-"}
_MARKS = {
    "circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "triangle-down": "v", "cross": "P", "x": "x",
    "star": "*",
}  # fmt: skip
#: Points of matplotlib in a pixel of the report.
_PIXEL = 0.62


def settled(figure: Figure, choices: Sequence[int] | None = None) -> tuple[list[Any], dict[str, Any]]:
    """Traces and layout with everything chosen and every column in its place.

    Parameters
    ----------
    figure : Figure
    choices : sequence of int, optional
        Number of the option of each menu; by default the one that the figure begins with.
    """
    whole = {"data": copy.deepcopy(list(figure.data)), "layout": copy.deepcopy(figure.layout)}
    for which, choice in enumerate(figure.choices):
        _, settings = choice.options[choice.selected if choices is None else choices[which]]
        for path, value in settings.items():
            *parts, last = path.split(".")
            target: Any = whole
            for part in parts:
                target = target[int(part)] if isinstance(target, list) else target.setdefault(part, {})
            target[last] = value
    whole = _filled(whole, figure.columns)
    return whole["data"], whole["layout"]


def _filled(value: Any, columns: Sequence[list[Any]]) -> Any:
    if isinstance(value, Column):
        return columns[value.index]
    if isinstance(value, dict):
        return {key: _filled(one, columns) for key, one in value.items()}
    return [_filled(one, columns) for one in value] if isinstance(value, (list, tuple)) else value


def draw(axes: Axes, figure: Figure, choices: Sequence[int] | None = None, *, title: str | None = None) -> None:
    """Draw a figure on given axes.

    Parameters
    ----------
    axes : Axes
    figure : Figure
    choices : sequence of int, optional
        As in :func:`settled`.
    title : str, optional
        In place of the figure's.
    """
    data, layout = settled(figure, choices)
    names = {letter: _names(layout[f"{letter}axis"], data, letter) for letter in "xy"}
    for letter in "xy":
        if layout[f"{letter}axis"].get("type") == "log":
            getattr(axes, f"set_{letter}scale")("log")
    handles: dict[str, Any] = {}
    tops: dict[Any, float] = {}
    for trace in data:
        kind = {"heatmap": _heat, "bar": _bars}.get(trace["type"], _scatter)
        trace = _placed(trace, names)
        if layout.get("barmode") == "stack" and trace["type"] == "bar":
            trace["base"] = [tops.get(x, 0.0) for x in trace["x"]]
            tops |= {x: base + (y or 0.0) for x, base, y in zip(trace["x"], trace["base"], trace["y"])}
        drawn = kind(axes, trace, layout)
        if trace.get("name") and trace.get("showlegend") is not False:
            handles.setdefault(trace.get("legendgroup", trace["name"]), _handle(trace))
        bar = trace.get("colorbar", trace.get("marker", {}).get("colorbar"))
        host = axes.get_figure()
        if bar is not None and drawn is not None and host is not None:
            scale = host.colorbar(drawn, ax=axes, pad=0.02, aspect=32)
            scale.set_label(readable(bar, 60) if bar else "", fontsize=10, parse_math=False)
            scale.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    for shape in layout.get("shapes", ()):
        _shape(axes, shape)
    for note in layout.get("annotations", ()):
        _words(axes, note)
    dress(axes)
    axes.set_title(
        readable(figure.title if title is None else title, 80), loc="left", fontsize=12, pad=10, parse_math=False
    )
    for letter in "xy":
        _axis(axes, letter, layout[f"{letter}axis"], names[letter], data)
    if layout.get("showlegend") and handles:
        for text in axes.legend(handles=list(handles.values()), frameon=False, fontsize=9, loc="best").get_texts():
            text.set_parse_math(False)


# ---- traces


def _colour(name: Any) -> Any:
    return COLOURS[name[1:]] if isinstance(name, str) and name.startswith("@") else name


def _scale(stops: Sequence[Any]) -> Colormap:
    return LinearSegmentedColormap.from_list("scale", [(share, _colour(name)) for share, name in stops])


def _numbers(values: Any) -> np.ndarray:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _names(axis: dict[str, Any], data: Sequence[Any], letter: str) -> list[str] | None:
    if axis.get("type") != "category":
        return None
    return list(dict.fromkeys(name for trace in data for name in trace[letter]))


def _placed(trace: dict[str, Any], names: dict[str, list[str] | None]) -> dict[str, Any]:
    """The trace with numbers in place of names."""
    found = {
        letter: [known.index(one) for one in trace[letter]] for letter, known in names.items() if known is not None
    }
    return {**trace, **found}


def _each(value: Any, count: int) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value] * count


def _line(trace: dict[str, Any]) -> dict[str, Any]:
    line = trace.get("line", {})
    style = {"color": _colour(line.get("color", "@blue")), "linewidth": 0.8 * line.get("width", 2)}
    return style | {"linestyle": _DASHES[line.get("dash") or "solid"], "alpha": trace.get("opacity")}


def _scatter(axes: Axes, trace: dict[str, Any], layout: dict[str, Any]) -> Any:  # noqa: ARG001 - as the others
    x, y = _numbers(trace["x"]) + trace.get("shift", 0.0), _numbers(trace["y"])
    mode = trace.get("mode", "lines+markers")
    if "lines" in mode:
        steps = "steps-post" if trace.get("line", {}).get("shape") == "hv" else "default"
        axes.plot(x, y, drawstyle=steps, zorder=3, **_line(trace))
    _errors(axes, trace, x, y)
    if "markers" not in mode:
        return None
    marker = trace.get("marker", {})
    symbols = _each(marker.get("symbol", "circle"), len(x))
    colours = _each(marker.get("color", trace.get("line", {}).get("color", "@blue")), len(x))
    edge = marker.get("line", {})
    sizes = _numbers(_each(marker.get("size", 7), len(x))) * _PIXEL
    drawn = None
    for symbol in dict.fromkeys(symbols):
        mine = np.array([one == symbol for one in symbols], dtype=bool)
        open_, mark = symbol.endswith("-open"), _MARKS[symbol.removesuffix("-open")]
        chosen = [one for one, is_mine in zip(colours, mine) if is_mine]
        style: dict[str, Any] = {"s": sizes[mine] ** 2, "marker": mark, "zorder": 4, "alpha": marker.get("opacity")}
        if "colorscale" in marker:
            limits = {"vmin": marker["cmin"], "vmax": marker["cmax"]}
            style |= {"c": _numbers(chosen), "cmap": _scale(marker["colorscale"]), **limits}
        elif open_ or mark == "x":
            style["linewidths"] = 1.5
            style |= {"color": [_colour(one) for one in chosen]} if mark == "x" else {
                "facecolors": "none", "edgecolors": [_colour(one) for one in chosen]
            }  # fmt: skip
        else:
            style["c"] = [_colour(one) for one in chosen]
        if edge.get("color") is not None and not open_ and mark != "x":
            edges = [one for one, is_mine in zip(_each(edge["color"], len(x)), mine) if is_mine]
            style |= {"edgecolors": [_colour(one) for one in edges], "linewidths": 0.8 * edge.get("width", 1)}
        if mine.any():
            drawn = axes.scatter(x[mine], y[mine], **style)
    return drawn


def _errors(axes: Axes, trace: dict[str, Any], x: np.ndarray, y: np.ndarray) -> None:
    for letter in "xy":
        error = trace.get(f"error_{letter}")
        if error:
            above = np.nan_to_num(_numbers(error["array"]))
            below = np.nan_to_num(_numbers(error.get("arrayminus", error["array"])))
            style = {"fmt": "none", "ecolor": _colour(error.get("color", "@ink")), "elinewidth": 1.2, "zorder": 3}
            axes.errorbar(x, y, **{f"{letter}err": np.stack([below, above])}, capsize=error.get("width", 0), **style)


def _bars(axes: Axes, trace: dict[str, Any], layout: dict[str, Any]) -> None:
    lying = trace.get("orientation") == "h"
    places, lengths = (_numbers(trace[letter]) for letter in ("yx" if lying else "xy"))
    thick = trace.get("width", 1.0 - layout.get("bargap", 0.2))
    marker = trace.get("marker", {})
    colours = [_colour(one) for one in _each(marker.get("color", "@blue"), len(places))]
    style = {"color": colours, "alpha": trace.get("opacity", marker.get("opacity")), "zorder": 2}
    base = _numbers(trace["base"]) if "base" in trace else np.zeros(len(places))
    if lying:
        axes.barh(places, lengths, height=thick, left=base, **style)
        _errors(axes, trace, lengths, places)
    else:
        axes.bar(places, lengths, width=thick, bottom=base, **style)
    if trace.get("textposition") == "outside":
        for place, length, text in zip(places, lengths, trace["text"]):
            put = {"xytext": (4, 0), "textcoords": "offset points", "va": "center", "fontsize": 10}
            axes.annotate(readable(text, 60), (float(length), float(place)), parse_math=False, **put)


def edges(values: Any) -> np.ndarray:
    """Where the fields of a map begin and end, whose middles are ``values``."""
    values = _numbers(values)
    if len(values) < 2:
        return np.array([values[0] - 0.5, values[0] + 0.5])
    middles = (values[1:] + values[:-1]) / 2
    return np.concatenate([[2 * values[0] - middles[0]], middles, [2 * values[-1] - middles[-1]]])


def _heat(axes: Axes, trace: dict[str, Any], layout: dict[str, Any]) -> Any:  # noqa: ARG001 - as the others
    Z = np.array([_numbers(row) for row in trace["z"]])
    if not np.isfinite(Z).any():
        return None
    limits = {"vmin": trace.get("zmin"), "vmax": trace.get("zmax")}
    gaps = {"edgecolors": "white", "linewidth": 0.6} if trace.get("xgap") else {}
    return axes.pcolormesh(
        edges(trace["x"]), edges(trace["y"]), Z, cmap=_scale(trace["colorscale"]), zorder=2, **limits, **gaps
    )


def _handle(trace: dict[str, Any]) -> Any:
    """The trace's entry in a legend."""
    name, marker = readable(trace["name"], 60), trace.get("marker", {})
    first = _colour(_each(marker.get("color", trace.get("line", {}).get("color", "@blue")), 1)[0])
    if trace["type"] == "bar":
        return Patch(color=first, alpha=trace.get("opacity", marker.get("opacity")), label=name)
    mode = trace.get("mode", "lines+markers")
    symbol = _each(marker.get("symbol", "circle"), 1)[0]
    style = {
        "marker": _MARKS[symbol.removesuffix("-open")] if "markers" in mode else "",
        "markersize": 6,
        "label": name,
    }
    edge = _colour(_each(marker.get("line", {}).get("color", first), 1)[0])
    style |= {"markerfacecolor": "white" if symbol.endswith("-open") else first, "markeredgecolor": edge}
    return Line2D([], [], **(_line(trace) if "lines" in mode else {"linestyle": ""}), **style)


# ---- what lies across the axes


def _shape(axes: Axes, shape: dict[str, Any]) -> None:
    zorder = 5 if shape.get("layer") == "above" else 1
    if shape["type"] == "rect":
        fill = {"color": _colour(shape["fillcolor"]), "alpha": shape.get("opacity"), "linewidth": 0}
        axes.axvspan(shape["x0"], shape["x1"], zorder=0, **fill)
        return
    line = shape["line"]
    style = {"color": _colour(line["color"]), "linewidth": line.get("width", 1.3), "zorder": zorder}
    style["linestyle"] = _DASHES[line.get("dash") or "solid"]
    if shape.get("yref") == "paper":
        axes.axvline(shape["x0"], **style)
    else:
        axes.axhline(shape["y0"], **style)


def _words(axes: Axes, note: dict[str, Any]) -> None:
    font = note.get("font", {})
    across = axes.get_yaxis_transform() if note.get("xref") == "paper" else "data"
    lift = {"bottom": 3, "top": -3}.get(note.get("yanchor", ""), 0)
    put = {
        "xytext": (_PIXEL * note.get("xshift", 0), _PIXEL * note.get("yshift", 0) + lift),
        "textcoords": "offset points",
    }
    put |= {
        "ha": note.get("xanchor", "center"),
        "va": {"bottom": "bottom", "top": "top"}.get(note.get("yanchor", ""), "center"),
    }
    put |= {"color": _colour(font.get("color", "@muted")), "fontsize": 0.78 * font.get("size", 12), "zorder": 7}
    weight = "bold" if note.get("bold") else "normal"
    axes.annotate(
        readable(note["text"], 80), (note["x"], note["y"]), xycoords=across, fontweight=weight, parse_math=False, **put
    )


# ---- axes


def _axis(axes: Axes, letter: str, axis: dict[str, Any], names: list[str] | None, data: Sequence[Any]) -> None:
    along = axes.xaxis if letter == "x" else axes.yaxis
    # Marks beyond what is drawn must not widen the view.
    view = getattr(axes, f"get_{letter}lim")()
    limits = getattr(axes, f"set_{letter}lim")
    along.set_label_text(readable(axis["title"]["text"], 60) if axis["title"]["text"] else "", parse_math=False)
    values = [*range(len(names))] if names is not None else axis.get("tickvals")
    texts = names if names is not None else axis.get("ticktext")
    if values is not None and texts is not None:
        along.set_minor_locator(NullLocator())
        turned = {"rotation": 45, "ha": "right"} if letter == "x" and sum(map(len, texts)) > 60 else {}
        along.set_ticks(list(values), [readable(text) for text in texts], parse_math=False, **turned)
    elif axis.get("type") == "log":
        along.set_minor_locator(NullLocator())
        low, high = along.get_view_interval()
        along.set_major_locator(LogLocator(subs=(1.0,) if high / low > 300 else (1.0, 2.0, 5.0), numticks=12))
        along.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        along.set_major_locator(MaxNLocator(7, integer=axis.get("integer") or "dtick" in axis))
    if values is not None and names is None:
        along.set_major_locator(FixedLocator(list(values)))
    limits(*view)
    if axis.get("showgrid") is False:
        axes.grid(False, axis="x" if letter == "x" else "y")
    if names is not None:
        limits(-0.6, len(names) - 0.4)
    if axis.get("range") is not None:
        ends = [10.0**end for end in axis["range"]] if axis.get("type") == "log" else axis["range"]
        limits(*ends)
    elif axis.get("rangemode") == "tozero":
        limits(min(0.0, getattr(axes, f"get_{letter}lim")()[0]) if _negative(data, letter) else 0.0, None)
    if axis.get("autorange") == "reversed":
        along.set_inverted(True)
    if axis.get("scaleanchor"):
        # One unit for both: lengths in the picture are lengths.
        axes.set_aspect("equal", adjustable="datalim")


def _negative(data: Sequence[Any], letter: str) -> bool:
    return any(value is not None and value < 0 for trace in data for value in trace[letter])


# ---- several on one sheet


def sheet(
    panels: Sequence[tuple[Figure, Sequence[int] | None]],
    sentence: str,
    verdict: str = "",
    *,
    why: Sequence[str] = (),
    columns: int = 2,
    figure: matplotlib.figure.Figure | None = None,
) -> matplotlib.figure.Figure:
    """Draw figures beside and below one another, the answer above them and the reasons below.

    Parameters
    ----------
    panels : sequence of (Figure, choices)
    sentence, verdict : str
        The verdict gives the colour.
    why : sequence of str
    columns : int
        Figures beside one another, at most.
    figure : matplotlib Figure, optional
        An empty one to draw on; by default a new one.
    """
    columns = max(1, min(columns, len(panels)))
    rows = -(-len(panels) // columns)
    if figure is None:
        figure = new_figure(5.4 * columns + 1.0, 4.2 * max(rows, 0.5) + 1.0)
    colour = PALETTE[_TONES[TONES[verdict]]] if verdict in TONES else COLOURS["ink"]
    per_line = headline(figure, readable(sentence, 4000), colour, per_inch=7.6)
    if why:
        told = textwrap.shorten(
            f"Why: {'; '.join(readable(one, 4000) for one in why)}.", 2 * per_line, placeholder=" …"
        )
        told = textwrap.fill(told, int(1.4 * per_line))
        figure.supxlabel(told, x=0.012, ha="left", fontsize=10.5, color=COLOURS["ink"], parse_math=False)
    if not panels:
        figure.text(0.5, 0.4, "there is nothing to draw", ha="center", fontsize=13, color=COLOURS["muted"])
    grid = figure.add_gridspec(rows, columns) if panels else None
    for place, (one, choices) in enumerate(panels):
        if grid is not None:
            draw(figure.add_subplot(grid[place // columns, place % columns]), one, choices)
    return figure
