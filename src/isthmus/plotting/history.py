"""Pictures of a history: ranks, norms and spectra over the steps of a training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure as MatplotlibFigure

from isthmus._html import plain
from isthmus.plotting.draw import sheet
from isthmus.plotting.figure import (
    LAYERS,
    SHADES,
    WHOLE,
    Choice,
    Column,
    Figure,
    axis,
    label,
    layout,
    lines,
    powers,
    rule,
    short,
)

#: At most so many steps are drawn, values of one spectrum, and layers in the menu of spectra.
STEPS, VALUES, SPECTRA = 150, 12, 100

_MAP = (
    "Every column is a snapshot, every row a layer, the inputs at the top. A bottleneck forms where the dimensions of "
    "the layers in the middle fall to one common number and stay there.",
    "Empty fields: no clear drop in the spectrum at that step, or nothing was computed.",
)
_WHOLE = (
    "The size of all parameters together. With weight decay it falls once the task is fitted; in a deep network ‖θ‖² "
    "divided by the number of layers then tends to the rank.",
)
_COST = ("How well the targets are fitted: mean over samples, sum over outputs; or cross-entropy.",)
_VALUES = (
    "The largest singular values of one layer's representation. Values that grow one after the other and stay apart "
    "from the rest are the directions it comes to use.",
)


def few(snapshots: Sequence[Any]) -> list[Any]:
    """At most ``STEPS`` snapshots, evenly spaced, with the first and the last."""
    count = min(len(snapshots), STEPS)
    return [snapshots[round(i * (len(snapshots) - 1) / max(count - 1, 1))] for i in range(count)]


def _measures(layer: Any) -> dict[str, float]:
    """The numbers of one layer at one step that the map can show; NaN where unknown."""
    inside = None if layer is None else layer.representation
    parts = () if layer is None else layer.weights
    ranks = [part.rank for part in parts if part.rank is not None]
    return {
        "dimensions of the representation": math.nan if inside is None or inside.rank is None else float(inside.rank),
        "participation ratio": math.nan if inside is None else inside.participation_ratio,
        "rank of the weights": float(min(ranks)) if ranks and len(ranks) == len(parts) else math.nan,
        "squared norm of the weights": sum(part.norm_squared for part in parts) if parts else math.nan,
        "stable rank of the weights": min((part.stable_rank for part in parts if len(part.values)), default=math.nan),
    }


def by_layer(history: Any, some: list[Any], thinned: list[str]) -> list[Figure]:
    """A map of every layer over the steps, of the snapshots ``some``; ``thinned`` says so if there are others."""
    names = history.layers[:LAYERS]
    if not names:
        return []
    cells = []
    for one in some:
        layers = {layer.name: layer for layer in one.layers}
        cells.append([_measures(layers.get(name)) for name in names])
    menu = {key: np.array([[cell[key] for cell in row] for row in cells]).T for key in cells[0][0]}
    rows = list(range(len(names)))
    labels = [label(name or "(output)", WHOLE) for name in names]
    options = [(key, {"data.0.z": short(values)}) for key, values in menu.items() if np.isfinite(values).any()]
    if not options:
        return []
    heat = {
        "type": "heatmap",
        "x": [one.step for one in some],
        "y": rows,
        "z": [],
        "text": [[name] * len(some) for name in labels],
        "hovertemplate": "%{text}, step %{x}: %{z:.4g}",
        "colorscale": SHADES,
        "colorbar": "",
    }
    every = max(1, -(-len(names) // 24))
    marks = {"tickvals": rows[::every], "ticktext": [label(name or "(output)", 18) for name in names[::every]]}
    up = axis(**marks, autorange="reversed", showgrid=False)
    chart = layout(axis("step", showgrid=False), up)
    reading = [*_MAP, *thinned]
    if len(history.layers) > LAYERS:
        reading.append(f"Only the first {LAYERS} of {len(history.layers)} layers are drawn.")
    alt, height = "A map of every layer over the steps.", 170 + 26 * min(len(names), 18)
    return [Figure("ranks", "Every layer", [heat], chart, reading, alt, height, choices=[Choice("show", options)])]


def of_the_whole(some: list[Any], thinned: list[str]) -> list[Figure]:
    """‖θ‖² and the cost, where there is one."""
    steps = [one.step for one in some]
    found: list[Figure] = []
    curves = {
        "norms": ("Squared norm of all parameters", "‖θ‖²", [one.norm_squared for one in some], _WHOLE),
        "cost": ("Cost", "cost", [one.cost for one in some], _COST),
    }
    for key, (title, name, values, reading) in curves.items():
        if not np.isfinite(values).any():
            continue
        hover = f"step %{{x}}: {name} = %{{y:.4g}}"
        data = [lines(steps, short(values), "@blue", size=5, hovertemplate=hover)]
        chart = layout(axis("step", showgrid=False), axis(name, **_scale(values)), shapes=_spoiled(some))
        alt = f"{title} over the steps."
        found.append(Figure(key, title, data, chart, [*reading, *_marked(some), *thinned], alt, 340))
    return found


def _scale(values: Sequence[float | None]) -> dict[str, object]:
    """Powers of ten where the values span more than one of them."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    wide = min(known) > 0 and max(known) > 20 * min(known)
    return powers(min(known), max(known)) if wide else {}


def _spoiled(some: list[Any]) -> list[dict[str, object]]:
    return [rule(one.step, "@vermilion", dash="dot") for one in some if not one.whole]


def _marked(some: list[Any]) -> list[str]:
    return ["Dotted lines: incomplete snapshots."] if _spoiled(some) else []


def spectra(history: Any, some: list[Any], thinned: list[str]) -> list[Figure]:
    """The largest singular values of one layer's representation."""
    columns, options = [], []
    for name in history.layers[:SPECTRA]:
        values = np.full((len(some), VALUES), np.nan)
        for row, one in zip(values, some):
            inside = next((layer.representation for layer in one.layers if layer.name == name), None)
            if inside is not None:
                top = inside.values[:VALUES].numpy()
                # Zero has no place among powers of ten.
                row[: len(top)] = np.where(top > 0, top, np.nan)
        if np.isfinite(values).any():
            setting = {f"data.{i}.y": Column(len(columns) + i) for i in range(VALUES)}
            columns += short(values.T)
            options.append((plain(name, 60) or "(output)", setting))
    if not options:
        return []
    steps = [one.step for one in some]
    hover = [f"step %{{x}}, value {i + 1}: %{{y:.3g}}" for i in range(VALUES)]
    data = [lines(steps, [], "@blue", width=1.6, size=4, hovertemplate=one) for one in hover]
    chart = layout(
        axis("step", showgrid=False), axis("singular value", **_scale([value for one in columns for value in one]))
    )
    reading = [*_VALUES, f"At most {VALUES} values are drawn.", *thinned]
    if len(history.layers) > SPECTRA:
        reading.append(f"The menu has the first {SPECTRA} of {len(history.layers)} layers.")
    choices = [Choice("layer", options, selected=len(options) // 2)]
    alt = "The singular values of one layer over the steps."
    return [Figure("spectra", "One layer", data, chart, reading, alt, 400, columns, choices)]


def plot(history: Any, layer: str | None = None, figure: MatplotlibFigure | None = None) -> MatplotlibFigure:
    """Dimensions of every layer, norm, cost, and the spectra of one layer over the steps, on one sheet.

    ``layer`` is the one whose spectra are drawn, by default that whose representation has the lowest rank at the end.
    """
    some = few(history.snapshots)
    panels: list[Any] = [(one, None) for one in (*by_layer(history, some, []), *of_the_whole(some, []))]
    for one in spectra(history, some, []):
        names = [name for name, _ in one.choices[0].options]
        wanted = plain(_narrowest(history) if layer is None else layer, 60) or "(output)"
        at = names.index(wanted) if wanted in names else one.choices[0].selected
        panels.append((replace(one, title=f"Singular values of the representation of layer {names[at]}"), [at]))
    return sheet(panels, history.sentence, figure=figure)


def _narrowest(history: Any) -> str:
    """The layer of the lowest last known rank; of several, the middle one."""
    last = {
        one.name: one.representation.rank
        for snapshot in history.snapshots
        for one in snapshot.layers
        if one.representation is not None and one.representation.rank is not None
    }
    lowest = [name for name, rank in last.items() if rank == min(last.values())]
    return lowest[len(lowest) // 2] if lowest else ""
