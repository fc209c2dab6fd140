"""Curves of a sweep: ‖θ‖² against depth with a fitted piece for each rank, and the loss against every swept number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from isthmus._html import plain
from isthmus.measures import estimate_costs
from isthmus.plotting.sweeps import DEPTHS, RANKS, WIDTHS
from isthmus.plotting.sweeps_cells import Gathered, Swept
from isthmus.plotting.sweeps_curves import Curve, Piece, curves, pieces
from isthmus.report.charts import axis, label, layout, powers
from isthmus.report.page import Block, Choice, Figure, Table, short

#: Colours of the ranks, as in the cells.
COLOURS = tuple("@muted" if name == "black" else f"@{name}" for name in RANKS)
#: Settings in a menu, rows of fitted numbers, curves side by side, swept numbers with a figure of their own.
MENU, COSTS, LINES, NUMBERS = 200, 200, 8, 4
_PAINTS = ("@blue", "@vermilion", "@green", "@orange", "@purple", "@sky", "@muted", "@ink")
_SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star")

_NORMS = (
    "Each point is one network, in the colour of its rank; hollow ones had not converged. Networks of one function "
    "have ‖θ‖² ≈ L·R0 + R1: a straight line whose slope R0 is the rank.",
    "The slopes in the legend are fitted to all networks of a rank, with a 95 % interval. From random starts these may "
    "be several functions of one rank: then the line is dashed (“not affine”), or the interval is wide.",
    "“Too few depths” means fewer than three: nothing is fitted.",
)
_COSTS = (
    "‖θ‖² = L·R0 + R1 + R2/L by least squares over the depths at which the rank was found, with 95 % intervals; R2 "
    "needs four depths. “Not affine”: the norms break, and the numbers describe no one function."
)
_LOSS = (
    "Medians over the seeds; the bars reach from the least to the greatest. Runs that are not done are left out.",
    "A level that begins at some value says that more of this parameter does not help there.",
)


def norm_panels(found: Gathered) -> list[Block]:
    """‖θ‖² against depth, where both are there, and the table of what was fitted."""
    depth = next((name for name in DEPTHS if name in found.numeric()), None)
    if depth is None or not any(map(math.isfinite, found.numbers.get("norm", {}).values())):
        return []
    families = pieces(found, depth, estimate_costs, MENU)
    if not families:
        return []
    options = [(plain(found.where(at), 60) or "all", {"data": _family(parts)}) for at, parts in families]
    chart = layout(axis(label(depth), showgrid=False), axis("‖θ‖²", rangemode="tozero")) | {"showlegend": True}
    reading: list[str] = [*_NORMS]
    if (left := len(found.along(depth)) - MENU) > 0:
        reading.append(f"The menu has the first {MENU} settings of the other parameters; {left} more are left out.")
    middle = len(options) // 2
    choices = [Choice("at", options, middle)] if len(options) > 1 else []
    told = "Squared parameter norm against depth, by rank."
    title = "Squared parameter norm against depth"
    figure = Figure("norms", title, options[middle][1]["data"], chart, reading, told, 480, choices=choices)
    return [figure, _costs(found, families)]


def _family(parts: list[Piece]) -> list[dict[str, Any]]:
    """Points of each rank, then the lines."""
    data = []
    for piece in parts:
        colour = COLOURS[min(piece.rank, len(COLOURS) - 1)]
        solid = piece.fit is None or piece.fit.state == "computed"
        if piece.drawn:
            L, values = piece.line(12)
            line = {"color": colour, "width": 1.8, "dash": "solid" if solid else "dash"}
            shape = {"type": "scatter", "mode": "lines", "x": short(L), "y": short(values), "line": line}
            data.append(shape | {"hoverinfo": "skip", "showlegend": False, "legendgroup": f"rank {piece.rank}"})
        fill = [colour if settled else "@paper" for settled in piece.converged]
        marker = {"size": 9, "color": fill, "line": {"color": colour, "width": 2}}
        points = {"type": "scatter", "mode": "markers", "x": short(piece.depths), "y": short(piece.norms)}
        points |= {"marker": marker, "name": piece.told, "legendgroup": f"rank {piece.rank}"}
        data.append(points | {"hovertemplate": f"rank {piece.rank}, L = %{{x}}: ‖θ‖² = %{{y:.4g}}"})
    return data


def _costs(found: Gathered, families: list[tuple[tuple[int, ...], list[Piece]]]) -> Table:
    rows = []
    for at, parts in families:
        for piece in parts:
            if piece.fit is None:
                continue
            fit, depths = piece.fit, len(np.unique(piece.depths))
            numbers = [_interval(one) for one in (fit.R0, fit.R1)]
            rows.append([found.where(at) or "all", piece.rank, depths, len(piece.keys), *numbers, fit.state])
    left = f"The first {COSTS} of {len(rows):,} rows." if len(rows) > COSTS else ""
    heads = ["at", "rank", "depths", "networks", "R0, the slope", "R1", "state"]
    return Table("costs", "R0 and R1 of each rank", heads, rows[:COSTS], [_COSTS, left], folded=len(rows) > 12)


def _interval(one: Any) -> str:
    return f"{one.value:.4g} ({one.low:.4g} … {one.high:.4g})" if math.isfinite(one.value) else "—"


def losses(found: Gathered) -> list[Block]:
    """The loss against each swept number, widths first; a menu where there are many curves."""
    column = next((c for c in ("loss", "cost") if any(map(math.isfinite, found.numbers.get(c, {}).values()))), None)
    if column is None:
        return []
    names = sorted(found.numeric(), key=lambda name: (name not in WIDTHS, name not in DEPTHS))[:NUMBERS]
    figures: list[Block] = []
    for index, name in enumerate(names):
        every = list(curves(found, name, column))
        if any(len(curve.x) > 1 for curve in every):
            figures.append(_losses(found, f"{column}-{index}", found.swept[found.place(name)], column, every))
    return figures


def _losses(found: Gathered, key: str, across: Swept, column: str, every: list[Curve]) -> Figure:
    together = len(every) <= LINES
    options = [(plain(found.where(curve.at), 60) or "all", {"data": [_curve(curve, 0, "")]}) for curve in every[:MENU]]
    many = together and len(every) > 1
    data = [_curve(curve, i, label(found.where(curve.at), 40) if many else "") for i, curve in enumerate(every)]
    ends = min(float(curve.low.min()) for curve in every), max(float(curve.high.max()) for curve in every)
    up = axis(column, **_scale(*ends))
    scale = _scale(float(across.values[0]), float(across.values[-1])) if across.logarithmic else {}
    chart = layout(axis(label(across.name), showgrid=False, **scale), up) | {"showlegend": many}
    reading: list[str] = [*_LOSS]
    if not together and len(every) > MENU:
        reading.append(f"The menu has the first {MENU} settings of the others; {len(every) - MENU} more are left out.")
    choices = [] if together else [Choice("at", options, len(options) // 2)]
    told = f"{column.capitalize()} against a swept parameter, median and range over seeds."
    title = f"{column.capitalize()} against {plain(across.name, 40)}"
    shown = data if together else options[len(options) // 2][1]["data"]
    return Figure(key, title, shown, chart, reading, told, 420, choices=choices)


def _scale(low: float, high: float) -> dict[str, Any]:
    """Powers of ten where numbers span more than one of them, 1-2-5 where they span little more than one."""
    if not 0 < low < high or high < 8 * low:
        return {}
    if high > 300 * low:
        return powers(low, high)
    ends = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [float(f"{step}e{power}") for power in ends for step in (1, 2, 5)]
    return {"type": "log", "tickvals": marks, "ticktext": [f"{mark:g}" for mark in marks]}


def _curve(curve: Curve, index: int, name: str) -> dict[str, Any]:
    colour = _PAINTS[index % len(_PAINTS)]
    bars = {"type": "data", "symmetric": False, "color": colour, "thickness": 1.4, "width": 3}
    bars |= {"array": short(curve.high - curve.middle), "arrayminus": short(curve.middle - curve.low)}
    told = f"{name}\n" if name else ""
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": short(curve.x),
        "y": short(curve.middle),
        "error_y": bars,
        "name": name,
        "line": {"color": colour, "width": 2},
        "marker": {"color": colour, "size": 7, "symbol": _SYMBOLS[index % len(_SYMBOLS)]},
        "hovertemplate": f"{told}%{{x}}: %{{y:.4g}}",
    }
