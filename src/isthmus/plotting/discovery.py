"""Pictures of a discovery: the rank profile, the coordinates of the samples, and what they respond to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure as MatplotlibFigure
from numpy.typing import NDArray

from isthmus._html import TONES, number
from isthmus.plotting.draw import sheet
from isthmus.plotting.figure import (
    SCALE,
    SHADES,
    Choice,
    Column,
    Figure,
    axis,
    label,
    layout,
    lines,
    remark,
    rule,
    short,
    thinned,
)

Array = NDArray[np.float64]

# ---- the rank profile

#: Errors below this share of a constant's are drawn at it: a logarithm has no zero.
FLOOR = 1e-9
#: Colour of a verdict's ring.
COLOURS = {"good": "@green", "note": "@blue", "doubt": "@vermilion", "bad": "@vermilion"}

_READING = (
    "Each point is the best network found whose information passes through only k numbers. Its height is the error on "
    "samples the network never saw: 1 means no better than a constant, 0.01 means that 1 % of the {unit} is missed.",
    "Look for the elbow: the error falls while a coordinate that matters is still missing, and stays level once all "
    "are there. The rank is the smallest k at or below the dashed line, the best error plus what counts as equal.",
    "Hollow points had not finished training. The one marked “wide” is a network without a narrow place.",
)
_OTHERS = "Grey lines are the same search from another seed, division of the samples and depth: they should bend alike."


def profile_figure(profile: Any, replicas: Sequence[Any], rank: int, verdict: str) -> Figure:
    """Held-out error against k; thin lines are the replicas, the ring is the rank."""
    narrow = [int(k) for one in (profile, *replicas) for i, k in enumerate(one.ranks) if not _is_wide(one, i)]
    right = max(narrow, default=0) + 1.5
    floor = FLOOR * (profile.baseline if _usable(profile.baseline) else 1.0)

    def place(one: Any, row: int) -> float:
        return right if _is_wide(one, row) else float(one.ranks[row])

    def height(error: float) -> float:
        return max(float(error), floor) if math.isfinite(error) else math.nan

    data: list[Any] = []
    for index, one in enumerate(replicas):
        x, y = _broken([(place(one, i), height(one.error[i]), _is_wide(one, i)) for i in range(len(one.ranks))])
        told = f"another walk, depth {one.depth}: %{{y:.3g}}"
        data.append(lines(x, y, "@faint", width=1.5, size=5, hovertemplate=told, name=f"walk {index + 2}"))
    points = [(place(profile, i), height(profile.error[i]), _is_wide(profile, i)) for i in range(len(profile.ranks))]
    x, y = _broken(points)
    data.append({"type": "scatter", "mode": "lines", "x": x, "y": y, "line": {"color": "@blue", "width": 2.5}})
    data[-1] |= {"hoverinfo": "skip"}
    data.append(_points(profile, points))
    row = profile.row(rank)
    notes = []
    if row is not None and math.isfinite(points[row][1]):
        colour = COLOURS[TONES.get(verdict, "note")]
        ring = {"symbol": "circle-open", "size": 24, "color": colour, "line": {"width": 3, "color": colour}}
        here = {"x": short([points[row][0]]), "y": short([points[row][1]]), "hoverinfo": "skip"}
        data.append({"type": "scatter", "mode": "markers", "marker": ring, **here})
        text = f"k = {rank}{'?' if verdict == 'undetermined' else ''}"
        # Below, since the line comes from above; beside, where it goes on downwards.
        falls = any(point[1] < 0.7 * points[row][1] for point in points[row + 1 : row + 2])
        shift = {"xshift": 54, "yshift": -12} if falls else {"yshift": -26}
        notes.append(
            remark(text, x=points[row][0], y=points[row][1], bold=True, **shift)
            | {"font": {"size": 15, "color": colour}}
        )
    shapes, words = _levels(profile)
    ticks = sorted(set(narrow))
    step = 1 if len(ticks) <= 12 else 2
    has_wide = any(_is_wide(one, i) for one in (profile, *replicas) for i in range(len(one.ranks)))
    values, texts = [*ticks[::step]], [str(k) for k in ticks[::step]]
    if has_wide:
        values.append(right)  # pyright: ignore[reportArgumentType]
        texts.append("wide")
    across = axis("number of coordinates k", tickvals=values, ticktext=texts, showgrid=False)
    marks = _marks([*y, profile.baseline])
    known = [value for part in (*data, {"y": [profile.baseline]}) for value in part["y"] if value is not None]
    known = [value for value in known if _usable(value)] or [1.0]
    # Room below for the word at the ring.
    ends = [math.log10(min(known)) - 0.25, math.log10(max(known)) + 0.1]
    texts_up = [f"{mark:g}" for mark in marks]
    up = axis(
        f"held-out error (share of the {profile.unit})", type="log", tickvals=marks, ticktext=texts_up, range=ends
    )
    reading = (_READING[0].format(unit=profile.unit), _READING[1], *([_OTHERS] if replicas else []), _READING[2])
    return Figure(
        "profile",
        "Held-out error through k coordinates",
        data,
        layout(across, up, shapes=shapes, annotations=[*words, *notes]),
        reading,
        f"Held-out error against the number of coordinates; the error is level from k = {profile.chosen} on.",
        height=480,
    )


def _points(profile: Any, points: list[tuple[float, float, bool]]) -> dict[str, Any]:
    hover = []
    for row, (_, _, wide) in enumerate(points):
        who = "no narrow place" if wide else f"k = {int(profile.ranks[row])}"
        error, spread = number(float(profile.error[row])), number(float(profile.standard_error[row]), 2)
        hover.append(f"{who}\nerror {error} ± {spread}\n{label(profile.states[row])}")
    y = [point[1] for point in points]
    spread = [s if math.isfinite(s) and math.isfinite(h) else 0.0 for s, h in zip(profile.standard_error.tolist(), y)]
    # On a logarithmic axis a bar that reaches zero has no lower end.
    below = [min(s, 0.9 * h) if math.isfinite(h) else 0.0 for s, h in zip(spread, y)]
    bars = {
        "array": short(spread),
        "arrayminus": short(below),
        "color": "@blue",
        "thickness": 1.6,
        "width": 0,
    }
    fill = ["@blue" if state == "at rest" else "@paper" for state in profile.states]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": short([point[0] for point in points]),
        "y": short(y),
        "error_y": bars,
        "marker": {"color": fill, "size": 10, "line": {"color": "@blue", "width": 2}},
        "text": hover,
        "hovertemplate": "%{text}",
    }


def _levels(profile: Any) -> tuple[list[Any], list[Any]]:
    """Lines for the error of a constant, and for what counts as equal to the best; with their words."""
    finite = [float(e) for e in profile.error if math.isfinite(e)]
    threshold = min(finite) + profile.slack if finite else math.nan
    shapes, words = [], []
    for value, told, dash, side in (
        (profile.baseline, "error of a constant", "dot", "right"),
        (threshold, f"best + slack = {threshold:.2g}", "dash", "left" if profile.chosen > 2 else "right"),
    ):
        if not _usable(value):
            continue
        shapes.append(rule(value, "@muted", along="y", dash=dash))
        spot = {"xref": "paper", "x": 0 if side == "left" else 1, "xanchor": side, "y": value}
        words.append(remark(told, **spot, yanchor="bottom" if dash == "dot" or side == "right" else "top"))
    return shapes, words


def _broken(points: Sequence[tuple[float, float, bool]]) -> tuple[list[Any], list[Any]]:
    """Places and heights with a gap before the wide network, which no line leads to."""
    narrow, wide = ([point for point in points if point[2] is apart] for apart in (False, True))
    gap = [(None, None, True)] if narrow and wide else []
    rows = [*narrow, *gap, *wide]
    return short([row[0] for row in rows]), short([row[1] for row in rows])


def _marks(values: Sequence[float | None]) -> list[float]:
    """Round numbers for a logarithmic axis: 1, 2 and 5 within two decades, powers of ten beyond."""
    usable = [value for value in values if value is not None and _usable(value)] or [1.0]
    low, high = math.log10(min(usable)), math.log10(max(usable))
    steps = (1, 2, 5) if high - low < 2.5 else (1,)
    decades = range(math.floor(low) - 1, math.ceil(high) + 1)
    return [float(f"{step}e{decade}") for decade in decades for step in steps]


def _is_wide(profile: Any, row: int) -> bool:
    return profile.starts[row] == "fresh"


def _usable(value: float) -> bool:
    return math.isfinite(value) and value > 0


# ---- the coordinates

#: Inputs and outputs that coordinates can be coloured by.
COLUMNS = 8
#: Coordinates that can be put on an axis.
AXES = 8

_READING = (
    "Each point is one sample, placed by the coordinates that were found. Choose which coordinates to look at, and "
    "what to colour by.",
    "Where a colour changes smoothly, the quantity it stands for depends on these coordinates; where colours are mixed "
    "at one place, it depends on others, or on none.",
    "Axes have no units: a coordinate may be stretched or bent without any loss, so shapes count and scales do not.",
)
_READING_OF_ONE = (
    "Each point is one sample: across, the one coordinate that was found; up, an output or an input.",
    "Predictions lie on a curve, because the one coordinate decides everything; measured values scatter around it.",
)
_READING_OF_TRUTH = (
    "Each point is a sample that was held out. Across, the true value of a hidden variable, which nobody told the "
    "network; up, what a smooth regression on the coordinates that were found says about it.",
    "On the diagonal the coordinates know the variable exactly. A cloud without direction would mean that it was lost.",
)


def cloud(coordinates: Array, colours: Sequence[tuple[str, Array]]) -> Figure:
    """The samples by two coordinates, coloured by one of several quantities; with one coordinate, against them.

    Parameters
    ----------
    coordinates : array (n, k), k ≥ 1
    colours : sequence of (name, array (n,))
    """
    n, k = coordinates.shape
    shown = min(k, AXES)
    columns = [short(coordinates[:, j]) for j in range(shown)] + [short(values) for _, values in colours]
    if k == 1:
        return _curve(columns, [name for name, _ in colours])
    marker: dict[str, Any] = {"size": 5 if n > 800 else 7, "opacity": 0.85, "line": {"width": 0.5, "color": "@paper"}}
    trace: dict[str, Any] = {"type": "scatter", "mode": "markers", "x": Column(0), "y": Column(1), "marker": marker}
    trace["hovertemplate"] = "(%{x:.3g}, %{y:.3g})"
    choices = [
        Choice(letter, [(f"coordinate {j}", _on_axis(letter, j)) for j in range(shown)], selected=at)
        for at, letter in enumerate("xy")
    ]
    if colours:
        options = [(name, _coloured(shown + i, name, values)) for i, (name, values) in enumerate(colours)]
        choices.append(Choice("colour", options))
        marker |= {"colorscale": SCALE, "colorbar": ""}
        trace["hovertemplate"] = "(%{x:.3g}, %{y:.3g})\ncolour %{color:.3g}"
    else:
        marker["color"] = "@blue"
    return Figure(
        "cloud",
        "Coordinates of the samples",
        [trace],
        layout(axis("coordinate 0"), axis("coordinate 1")),
        _READING,
        f"A cloud of {n} samples in {k} coordinates.",
        height=500,
        columns=columns,
        choices=choices,
    )


def _on_axis(letter: str, j: int) -> dict[str, Any]:
    return {f"data.0.{letter}": Column(j), f"layout.{letter}axis.title.text": f"coordinate {j}"}


def _coloured(column: int, name: str, values: Array) -> dict[str, Any]:
    finite = values[np.isfinite(values)]
    # A few outliers would leave one colour for all the others.
    low, high = (float(v) for v in np.percentile(finite, [1, 99])) if len(finite) else (0.0, 1.0)
    if not high > low:
        low, high = low - 0.5, low + 0.5
    place = "data.0.marker."
    limits = {f"{place}cmin": short(low)[0], f"{place}cmax": short(high)[0]}
    return {f"{place}color": Column(column), **limits, f"{place}colorbar": label(name)}


def _curve(columns: list[list[Any]], names: list[str]) -> Figure:
    marker = {"size": 5, "color": "@blue", "opacity": 0.8}
    trace = {"type": "scatter", "mode": "markers", "x": Column(0), "y": Column(min(1, len(names))), "marker": marker}
    trace["hovertemplate"] = "%{x:.3g}, %{y:.3g}"
    up = [(name, {"data.0.y": Column(1 + i), "layout.yaxis.title.text": label(name)}) for i, name in enumerate(names)]
    title, alternative = "The coordinate and what it determines", "An output against the one coordinate."
    figure = layout(axis("coordinate 0"), axis(label(names[0]) if names else "coordinate 0"))
    choices = [Choice("up", up)] if up else []
    return Figure("cloud", title, [trace], figure, _READING_OF_ONE, alternative, 440, columns, choices)


def truth(pairs: Sequence[tuple[str, Array, Array]]) -> Figure:
    """True hidden variables against what the coordinates say about them, one at a time.

    Parameters
    ----------
    pairs : sequence of (name, array (n,), array (n,))
        The true values, and the recovered ones.
    """
    columns = [short(values) for _, true, recovered in pairs for values in (true, recovered)]
    ends = [(float(np.nanmin([t, r])), float(np.nanmax([t, r]))) for _, t, r in pairs]
    marker = {"size": 6, "color": "@blue", "opacity": 0.75}
    diagonal = {"type": "scatter", "mode": "lines", "line": {"color": "@muted", "dash": "dash", "width": 1.3}}
    data = [
        {**diagonal, "x": short(ends[0]), "y": short(ends[0]), "hoverinfo": "skip"},
        {"type": "scatter", "mode": "markers", "x": Column(0), "y": Column(1), "marker": marker},
    ]
    data[1]["hovertemplate"] = "true %{x:.3g}, recovered %{y:.3g}"
    options = [
        (
            name,
            {
                "data.0.x": short(ends[i]),
                "data.0.y": short(ends[i]),
                "data.1.x": Column(2 * i),
                "data.1.y": Column(2 * i + 1),
            },
        )
        for i, (name, _, _) in enumerate(pairs)
    ]
    return Figure(
        "truth",
        "A hidden variable, and what the coordinates say of it",
        data,
        layout(axis("true value"), axis("recovered from the coordinates")),
        _READING_OF_TRUTH,
        "True hidden variables against the values recovered from the coordinates.",
        height=460,
        columns=columns,
        choices=[Choice("hidden variable", options)],
    )


# ---- what they respond to

#: Coordinates with bars of their own, and inputs in the overview.
COORDINATES, INPUTS = 20, 24

_BARS = (
    "The longer the bar, the more the coordinate moves when this input moves: 0.4 says that a change by one standard "
    "deviation of the input moves the coordinate by about 0.4 of its own.",
    "The thin line reaches from the least to the greatest of {fits} fits, on other samples: no confidence interval. "
    "A long line says: do not trust the order.",
)
_OVERVIEW = (
    "Every row is a coordinate, every column an input, the strongest at the left. The more a field stands "
    "out from the page, the stronger the response.",
    "Rows with few such fields have a simple meaning. Rows that are even all along mix everything.",
)


def bars(coordinates: Sequence[Sequence[dict[str, Any]]], fits: int) -> Figure:
    """The strongest inputs of one coordinate, with what refits found."""
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
    bars |= {"error_x": {"color": "@ink", "thickness": 1.4}}
    bars["hovertemplate"] = "%{text}"
    across = axis("sensitivity (in standard deviations)", rangemode="tozero")
    up = axis(autorange="reversed", showgrid=False)
    title = "Strongest inputs of a coordinate"
    told = "Bars: how strongly a coordinate responds to its inputs."
    choices = [Choice("coordinate", options)]
    return Figure(
        "meaning",
        title,
        [bars],
        layout(across, up, bargap=0.35),
        (_BARS[0], _BARS[1].format(fits=fits)),
        told,
        400,
        choices=choices,
    )


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
    across = axis(tickvals=list(range(len(order))), ticktext=inputs, showgrid=False)
    up = axis(tickvals=list(range(k)), ticktext=rows, autorange="reversed", showgrid=False)
    told = "A map of how strongly every coordinate responds to the strongest inputs."
    height = 190 + 34 * min(k, 15)
    return Figure("overview", "All coordinates at a glance", [heat], layout(across, up), _OVERVIEW, told, height)


def strongest_outputs(U: Array, Y: Array) -> list[int]:
    """For each coordinate in turn, the output most correlated with it that is not yet there."""
    centred = Y - Y.mean(axis=0)
    deviation = np.sqrt((centred**2).sum(axis=0))
    # A constant output is no scale for colours.
    ok = np.isfinite(deviation) & (deviation > 0)
    V = np.where(ok, centred, 0.0) / np.where(ok, deviation, 1.0)
    strength = np.abs((U - U.mean(axis=0)).T @ V)
    chosen: list[int] = []
    for j in range(min(COLUMNS, Y.shape[1])):
        order = np.argsort(-strength[j % len(strength)], kind="stable")
        chosen.append(next(int(i) for i in order if int(i) not in chosen))
    return chosen


def plot(found: Any, figure: MatplotlibFigure | None = None) -> MatplotlibFigure:
    """The rank profile, the samples by their first coordinates, and what the coordinates respond to, on one sheet."""
    panels: list[Any] = []
    if found.profile is not None and found.rank:
        U = np.asarray(found.coordinates, dtype=np.float64)
        U = U[thinned(len(U))]
        U = U[np.isfinite(U).all(axis=1)]
        Y = np.asarray(found.decode(U), dtype=np.float64) if len(U) else np.empty((0, len(found.target_names)))
        # One output is enough for a colour that cannot be changed.
        colours = (
            [(f"predicted {found.target_names[i]}", Y[:, i]) for i in strongest_outputs(U, Y)[:1]] if len(U) else []
        )
        panels = [(profile_figure(found.profile, found.replicas, found.rank, found.verdict), None)]
        panels += [(cloud(U, colours), None)] if len(U) else []
        told = found.sensitivity
        if told is not None:
            panels.append((overview(told.value, found.feature_names), None))
    return sheet(panels, found.sentence, found.verdict, why=found.reasons, columns=3, figure=figure)
