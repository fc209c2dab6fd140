"""What each coordinate responds to, and what other ways of counting say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isthmus._html import number
from isthmus.report.charts import SHADES, axis, label, layout, rule
from isthmus.report.page import Choice, Figure, Section, Table, short

#: Coordinates with bars of their own, and inputs in the overview.
COORDINATES, INPUTS = 20, 24

_LEAD = "What moves each coordinate. A coordinate that answers to one input is that input in other words."
_BARS = (
    "The longer the bar, the more the coordinate moves when this input moves: 0.4 says that a change by one standard "
    "deviation of the input moves the coordinate by about 0.4 of its own.",
    "The thin line spans what refits from other seeds, on other samples, found. A long line says: do not trust "
    "the order.",
)
_OVERVIEW = (
    "Every row is a coordinate, every column an input, the strongest at the left. The more a field stands "
    "out from the page, the stronger the response.",
    "Rows with few such fields have a simple meaning. Rows that are even all along mix everything.",
)
_EVIDENCE = (
    "Each point is another way of counting; the dashed line is the rank that was found.",
    "They count different things, so some miss the line on purpose: linear methods need more directions for a curved "
    "relation, and estimates of the dimension of a cloud fall short where it is curved. The table says which is which.",
)


def section(coordinates: Sequence[Sequence[dict[str, Any]]], overview: Figure | None) -> Section:
    """Bars of the strongest inputs by coordinate, the overview, and the numbers.

    Parameters
    ----------
    coordinates : list of lists
        For each coordinate its strongest inputs: ``input``, ``sensitivity``, ``low``, ``high``.
    overview : Figure or None
    """
    blocks: list[Any] = []
    if any(coordinates):
        rows = [
            [f"coordinate {j}", str(one["input"]), *[float(one[key]) for key in ("sensitivity", "low", "high")]]
            for j, strongest in enumerate(coordinates)
            for one in strongest
        ]
        heads = ["coordinate", "input", "sensitivity", "lowest refit", "highest refit"]
        told = ["Standard deviations of the coordinate for one of the input; at most ten inputs for each coordinate."]
        blocks = [_bars(coordinates[:COORDINATES]), *([overview] if overview else [])]
        blocks.append(Table("meaning-numbers", "The strongest inputs", heads, rows, told, folded=len(rows) > 12))
    return Section("meaning", "What each coordinate means", blocks, _LEAD)


def _bars(coordinates: Sequence[Sequence[dict[str, Any]]]) -> Figure:
    options = []
    for j, strongest in enumerate(coordinates):
        value, low, high = ([float(one[key]) for one in strongest] for key in ("sensitivity", "low", "high"))
        names = [label(one["input"]) for one in strongest]
        places = list(range(len(names)))
        hover = [f"{name}: {number(v)} ({number(a)}–{number(b)})" for name, v, a, b in zip(names, value, low, high)]
        spread = {
            "array": short([max(b - v, 0.0) for v, b in zip(value, high)]),
            "arrayminus": short([max(v - a, 0.0) for v, a in zip(value, low)]),
        }
        setting = {
            "data.0.x": short(value),
            "data.0.y": places,
            "data.0.text": hover,
            "data.0.error_x.array": spread["array"],
            "data.0.error_x.arrayminus": spread["arrayminus"],
            "layout.yaxis.tickvals": places,
            "layout.yaxis.ticktext": names,
        }
        options.append((f"coordinate {j}", setting))
    bars = {"type": "bar", "orientation": "h", "x": [], "y": [], "marker": {"color": "@blue"}}
    bars |= {"error_x": {"symmetric": False, "color": "@ink", "thickness": 1.4, "width": 3}}
    bars["hovertemplate"] = "%{text}"
    across = axis("sensitivity (in standard deviations)", rangemode="tozero")
    up = axis(autorange="reversed", showgrid=False, ticks="")
    title = "Strongest inputs of a coordinate"
    told = "Bars: how strongly a coordinate responds to its inputs."
    choices = [Choice("coordinate", options)]
    return Figure("meaning", title, [bars], layout(across, up, bargap=0.35), _BARS, told, 400, choices=choices)


def overview(sensitivity: NDArray[np.float64], names: Sequence[str]) -> Figure:
    """All coordinates against the strongest inputs, as a map of shades.

    Parameters
    ----------
    sensitivity : array (k, d_in)
    names : sequence of str
    """
    order = np.argsort(-sensitivity.max(axis=0), kind="stable")[:INPUTS]
    k = len(sensitivity)
    inputs, rows = [label(names[i], 18) for i in order], [f"coordinate {j}" for j in range(k)]
    heat = {
        "type": "heatmap",
        "z": short(sensitivity[:, order]),
        "x": list(range(len(order))),
        "y": list(range(k)),
        "text": [[f"coordinate {j}, {name}" for name in inputs] for j in range(k)],
        "hovertemplate": "%{text}: %{z:.3g}",
        "colorscale": SHADES,
        "zmin": 0,
        "xgap": 2,
        "ygap": 2,
        "colorbar": "",
    }
    across = axis(tickvals=list(range(len(order))), ticktext=inputs, showgrid=False, tickangle=-45, ticks="")
    up = axis(tickvals=list(range(k)), ticktext=rows, autorange="reversed", showgrid=False, ticks="")
    told = "A map of how strongly every coordinate responds to the strongest inputs."
    height = 190 + 34 * min(k, 15)
    return Figure("overview", "All coordinates at a glance", [heat], layout(across, up), _OVERVIEW, told, height)


def evidence(rank: int, values: Sequence[tuple[str, float]]) -> Figure:
    """Points for other ways of counting, with a line at the rank."""
    names = [label(name, 34) for name, _ in values]
    places = list(range(len(values)))
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": short([value for _, value in values]),
        "y": places,
        "marker": {"color": "@blue", "size": 12},
        "text": names,
        "hovertemplate": "%{text}: %{x:.3g}",
    }
    across = axis("count", rangemode="tozero")
    up = axis(tickvals=places, ticktext=names, range=[len(values) - 0.5, -0.5], ticks="")
    shape = rule(float(rank), "@green", along="x")
    told = f"Other counts beside the rank {rank}."
    height = 130 + 32 * len(values)
    chart = layout(across, up, shapes=[shape])
    return Figure("evidence", "Other counts beside the rank", [points], chart, _EVIDENCE, told, height)
