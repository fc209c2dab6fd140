"""A network through its depth: spectra of every layer as lines and as a map, one layer at a time, Jacobians, norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isthmus._html import plain
from isthmus.plotting.figure import (
    LAYERS,
    SCALE,
    Choice,
    Figure,
    Layers,
    axis,
    layout,
    lines,
    powers,
    rule,
    short,
    step,
)

Array = NDArray[np.float64]

#: Values drawn for each layer, points whose Jacobians are drawn, layers up to which every value has a mark.
VALUES, INPUTS, MARKED = 24, 40, 60
#: Values below this share of the largest are drawn at it.
FLOOR = 1e-6

_READING = (
    "Follow the lines from the inputs at the left to the outputs at the right. Each is one singular value: how "
    "strongly one direction is present in that layer, as a share of the strongest there.",
    "A bottleneck shows as a few lines that stay high in the middle while all others fall away. How many stay is its "
    "rank.",
    "Move over a layer to see its values alone, further down. What is below 10⁻⁶ is drawn at the bottom.",
)
_MAP = (
    "The same numbers as shades: every column a layer, every row a singular value, the largest at the bottom. The "
    "colour is a power of ten, so that small values remain visible.",
    "A bottleneck is a band of bright rows that ends sharply.",
)
_DROPS = "The short lines are clear drops: as many values as stand below one stand out in that layer."
_LAYER = (
    "The values of one layer, falling. A rank shows as a cliff; a slope without a cliff says that there is none.",
    "Choose the layer here, or move over one in the figures above.",
)
_JACOBIANS = (
    "Each line is one input point: how strongly the function stretches its neighbourhood in its principal directions.",
    "The number of large values is how many directions matter near that point.",
)
_NORMS = (
    "The squared norm of the weights and biases of every layer. Weight decay spreads the norm evenly; in a long "
    "bottleneck of rank k every layer has about k.",
)


def _relative(spectra: Array) -> Array:
    """Shares of the largest value in each row, at least the floor."""
    finite = np.where(np.isfinite(spectra), spectra, -np.inf)
    top = finite.max(axis=1, keepdims=True)
    return np.where(np.isfinite(spectra), np.maximum(spectra / np.where(top > 0, top, 1.0), FLOOR), np.nan)


def _colour(index: int, rank: int | None) -> str:
    return "@blue" if rank is None or index < rank else "@vermilion" if index == rank else "@faint"


def through(
    key: str,
    title: str,
    spectra: Array,
    layers: Layers,
    rank: int | None,
    drops: Sequence[int | None] | None = None,
) -> list[Figure]:
    """Spectra as lines, as a map, and one layer at a time; moving over a layer in the first two chooses it there.

    Parameters
    ----------
    key, title : str
        Of the figures.
    spectra : array (layers, r)
        NaN where a layer has fewer values.
    layers : Layers
    rank : int or None
        How many lines to set apart.
    drops : sequence of int or None, optional
        How many values stand out in each layer; by default ``rank`` in all.
    """
    missing = () if len(spectra) <= LAYERS else (f"Only the first {LAYERS} of {len(spectra)} are drawn.",)
    share, layers = _relative(spectra[:LAYERS]), layers.cut()
    told, names, places = f"{title}, layer by layer.", layers.labels(), list(layers.places)
    drives, marks = (f"{key}-layer", places), _marks(places, drops)
    data = []
    # The ones that matter are drawn last, above the others.
    for index in reversed(range(share.shape[1])):
        hover = f"%{{text}}, value {index + 1}: %{{y:.3g}}"
        colour = _colour(index, rank)
        width = 1 if colour == "@faint" else 2
        one = lines(places, short(share[:, index]), colour, width=width, size=4 + width, hovertemplate=hover)
        data.append({**one, "text": names, "mode": "lines+markers" if len(places) <= MARKED else "lines"})
    # Two powers of ten at least: one mark alone is no axis.
    ends = [math.log10(min(0.08, 0.7 * float(np.nanmin(share)))), 0.1]
    chart = layout(layers.axis(), axis("share of the largest", **powers(FLOOR), range=ends), shapes=layers.shades())
    drawn = Figure(f"{key}-lines", title, data, chart, (*_READING, *missing), told, 420, drives=drives)
    shaded = Figure(
        f"{key}-map",
        "The same as a map",
        [_heat(share, places, names), *marks],
        layout(layers.axis(), axis("singular value number", showgrid=False, integer=True), shapes=_across(rank, drops)),
        (*_MAP, *([_DROPS] if marks else []), *missing),
        f"A map: {told}",
        380,
        drives=drives,
    )
    return [drawn, shaded, _one_layer(key, share, layers, [rank] * len(places) if drops is None else drops)]


def _heat(share: Array, places: list[int], names: list[str]) -> dict[str, Any]:
    return {
        "type": "heatmap",
        "x": places,
        "y": list(range(1, share.shape[1] + 1)),
        "z": short(np.log10(share).T),
        "customdata": short(share.T),
        "text": [names] * share.shape[1],
        "hovertemplate": "%{text}, value %{y}: %{customdata:.3g}",
        "colorscale": SCALE,
        "xgap": 1,
        "ygap": 1,
        "colorbar": "power of ten",
    }


def _across(rank: int | None, drops: Sequence[int | None] | None) -> list[dict[str, Any]]:
    """A line above the values that stand out everywhere; where each layer has its own drop, there is none."""
    return [] if rank is None or drops is not None else [_above(rule(rank + 0.5, "@vermilion", along="y", dash="dot"))]


def _above(shape: dict[str, Any]) -> dict[str, Any]:
    return {**shape, "layer": "above"}


def _marks(places: list[int], drops: Sequence[int | None] | None) -> list[dict[str, Any]]:
    """A short line at the drop of each layer that has one within the map."""
    seen = [(place, drop) for place, drop in zip(places, drops or ()) if drop is not None and 0 < drop < VALUES]
    if not seen:
        return []
    # Lines with gaps, as wide as a layer at every size of the figure.
    x = [end for place, _ in seen for end in (place - 0.5, place + 0.5, None)]
    y = [end for _, drop in seen for end in (drop + 0.5, drop + 0.5, None)]
    line = {"color": "@vermilion", "width": 2.5}
    return [{"type": "scatter", "mode": "lines", "x": x, "y": y, "line": line, "hoverinfo": "skip"}]


def _one_layer(key: str, share: Array, layers: Layers, counts: Sequence[int | None]) -> Figure:
    numbers = list(range(1, share.shape[1] + 1))
    options = [
        (
            plain(name, 60) or "(no name)",
            {"data.0.y": short(row), "data.0.marker.color": [_colour(index, count) for index in range(len(numbers))]},
        )
        for name, row, count in zip(layers.names, share, counts)
    ]
    bars = {"type": "bar", "x": numbers, "y": [], "hovertemplate": "value %{x}: %{y:.3g}"}
    # The floor of a logarithmic bar chart is ours to choose: the axis is fixed, so that layers can be compared.
    up = axis("share of the largest", **powers(FLOOR), range=[math.log10(FLOOR), 0.1])
    across = axis("singular value number", dtick=step(len(numbers)), showgrid=False)
    choice = Choice("layer", options, selected=len(options) // 2)
    told = "The singular values of one layer."
    return Figure(
        f"{key}-layer", "One layer", [bars], layout(across, up, bargap=0.3), _LAYER, told, 340, choices=[choice]
    )


def jacobians(spectra: Array, rank: int | None) -> Figure:
    """Spectra (points, r) of the Jacobian at several points."""
    share = _relative(spectra[:INPUTS])
    numbers = list(range(1, share.shape[1] + 1))
    colours = [_colour(index, rank) for index in range(len(numbers))]
    data = []
    for index, row in enumerate(share):
        told = f"point {index}, value %{{x}}: %{{y:.3g}}"
        one = lines(numbers, short(row), "@faint", width=1, size=7, hovertemplate=told)
        data.append({**one, "marker": {"color": colours, "size": 7}})
    across = axis("singular value number", dtick=step(len(numbers)), showgrid=False)
    up = axis("share of the largest", **powers(FLOOR))
    shapes = [] if rank is None else [rule(rank + 0.5, "@vermilion", dash="dot")]
    title = f"Singular values of the Jacobian at {len(share)} points"
    chart = layout(across, up, shapes=shapes)
    return Figure("jacobians", title, data, chart, _JACOBIANS, "Jacobian spectra at several points.")


def norms(weights: Array, biases: Array, rank: int | None) -> Figure:
    """Squared norms of weights and biases, (layers,) each."""
    layers = list(range(1, len(weights) + 1))[:LAYERS]
    data = [
        {"type": "bar", "name": name, "x": layers, "y": short(values[:LAYERS]), "marker": {"color": colour}}
        for name, values, colour in (("weights", weights, "@sky"), ("biases", biases, "@orange"))
    ]
    for bars in data:
        bars["hovertemplate"] = f"layer %{{x}}, {bars['name']}: %{{y:.3g}}"
    shapes = [] if rank is None else [_above(rule(rank, "@ink", along="y"))]
    across = axis("layer", dtick=step(len(layers)), showgrid=False)
    chart = layout(across, axis("squared norm"), barmode="stack", shapes=shapes) | {"showlegend": True}
    reading = (*_NORMS, *([] if rank is None else [f"The dashed line is k = {rank}."]))
    return Figure("norms", "Squared norm of each layer", data, chart, reading, "Norms of the layers.", 360)
