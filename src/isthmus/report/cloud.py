"""Clouds: the coordinates of the samples, and what was learned against the truth where it is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isthmus.report.charts import SCALE, axis, label, layout
from isthmus.report.page import Choice, Column, Figure, short

Array = NDArray[np.float64]

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
