"""Figures of a Diagnosis beside its spectra: counts by layer, other ways of counting, size of the weights."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure as MatplotlibFigure

from isthmus._checks import check_integer
from isthmus._html import number
from isthmus.plotting import depth
from isthmus.plotting.draw import sheet
from isthmus.plotting.figure import LAYERS, Choice, Figure, Layers, axis, label, layout, rule, short

#: Where a count of 0 is drawn on a logarithmic axis.
ZERO = 0.5
#: Counts above this need a logarithmic axis.
WIDE = 40

#: Key in a layer's plain data: key and title of the first figure of its spectra through depth.
_SPECTRA = {
    "dimensions": ("representations", "Singular values of the centred representations"),
    "weights": ("weights", "Singular values of the weights"),
    "jacobian": ("jacobians", "Singular values of the Jacobian from the inputs to each layer"),
}

_COUNTS = (
    "Each mark says how many singular values stand out in a layer: of its weights, of its representation (what the "
    "layer puts out for your samples) and of its Jacobian (how it moves when the inputs move). The grey bar is its "
    "width, where there are positions or tokens that of one.",
    "The isthmus is shaded: the layers whose representation has the rank, however wide they are. Weights may count one "
    "more, for a direction that is the same for all samples.",
    "No mark: no clear drop in that spectrum, or it was not computed; the table says which. Hollow: some of the "
    "outputs' variation goes around the layer, as past a skip connection, so that it cannot be the isthmus alone.",
)
_EFFECTIVE = (
    "Each mark is in how many dimensions the outputs of a layer vary in effect, (Tr Σ)²/Tr Σ² of their covariance: "
    "directions count by the variance that they carry. The line is its interval of 95 %, the bar the layer's width.",
    "Beside it stands the same of a freshly initialised copy: only against that is a number large or small.",
    "Hollow: information goes around the layer, as past a skip connection.",
)
_AGREEMENT = (
    "Each point is another way of counting. Full points amount to a count, hollow ones are soft measures that need not "
    "be whole numbers.",
    "They count different things, so some miss the rank on purpose: the table says what each counts and when it "
    "differs.",
)
_SIZES = (
    "The size of every layer's weights, all its matrices together for the norm; of several matrices the largest value "
    "and the smallest stable rank.",
    "Training with weight decay spreads ‖W‖² evenly over the layers of a fully connected network; far from even means "
    "far from a minimum. In a long bottleneck of rank k every layer inside has about k.",
)
#: Over the bars, not behind them.
_ABOVE = {"layer": "above"}
#: Name, colour, mark and shift of each kind of count: they stand side by side.
_KINDS = {
    "weights": ("weights", "@orange", "square", -0.2),
    "dimensions": ("representation", "@blue", "circle", 0.0),
    "jacobian": ("Jacobian", "@green", "triangle-up", 0.2),
}


def counts(found: Sequence[Any], layers: Layers, rank: int | None) -> Figure:
    """Counts by layer over the width of each; moving over a layer chooses it among the representations."""
    shown, layers = found[:LAYERS], layers.cut()
    names, places = layers.labels(), list(layers.places)
    widths = [layer.units or None for layer in shown]
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": "units",
            "x": places,
            "y": widths,
            "text": names,
            "width": 0.86,
            "marker": {"color": "@faint", "opacity": 0.35},
            "hovertemplate": "%{text}: %{y} units",
        }
    ]
    highest = max([1, *(width for width in widths if width)])
    for key, (name, colour, symbol, shift) in _KINDS.items():
        points = [(i, count) for i, layer in enumerate(shown) for count in _ranks(layer, key)]
        highest = max([highest, *(count for _, count in points)])
        both = [[one for one in points if (shown[one[0]].passes is False) is around] for around in (False, True)]
        for around, some in enumerate(both):
            if some:
                mark = f"{symbol}-open" if around else symbol
                # Without a full mark the hollow one stands in the legend.
                trace = _points(name, colour, mark, some, places, names)
                data.append({**trace, "shift": shift, "legendgroup": key, "showlegend": not (around and both[0])})
    up = _count_axis(ZERO, highest)
    shapes = layers.shades() + ([] if rank is None else [rule(max(rank, ZERO), "@green", along="y") | _ABOVE])
    chart = layout(layers.axis(), up, shapes=shapes, showlegend=True)
    reading = [*_COUNTS, *([] if rank is None else [f"The dashed line is the rank, {rank}."])]
    if len(found) > LAYERS:
        reading.append(f"Only the first {LAYERS} of {len(found)} layers are drawn.")
    told = "Counts of outstanding singular values, layer by layer."
    drives = ("representations-layer", places)
    return Figure("counts", "How many values stand out", data, chart, reading, told, 440, drives=drives)


def effective(found: Any, layers: Layers) -> Figure | None:
    """Effective dimension of each layer with its interval, over its width and beside a fresh copy; None without any."""
    kept = [i for i, layer in enumerate(found.layers) if layer.effective is not None]
    if not kept:
        return None
    names = Layers(range(1, len(kept) + 1), [layers.names[i] for i in kept], []).cut()
    shown = [found.layers[i] for i in kept][:LAYERS]
    places, labels = list(names.places), names.labels()
    units = {"type": "bar", "name": "units", "x": places, "y": [layer.units or None for layer in shown], "width": 0.86}
    units |= {"text": labels, "hovertemplate": "%{text}: %{y} units", "marker": {"color": "@faint", "opacity": 0.35}}
    data: list[dict[str, Any]] = [units]
    kinds = (
        ("freshly initialised", "fresh", "@orange", "square", 0.2),
        ("this network", "effective", "@blue", "circle", 0.0),
    )
    for name, key, colour, symbol, shift in kinds:
        estimates = [(i, getattr(layer, key).participation) for i, layer in enumerate(shown) if getattr(layer, key)]
        estimates = [(i, one) for i, one in estimates if math.isfinite(one.value)]
        if not estimates:
            continue
        ends = [(i, one) for i, one in estimates if math.isfinite(one.low + one.high)]
        bars = {"type": "scatter", "mode": "lines", "showlegend": False, "line": {"color": colour, "width": 2}}
        bars |= {"x": [x for i, _ in ends for x in (places[i], places[i], None)], "shift": shift}
        data.append(bars | {"y": short([y for _, one in ends for y in (one.low, one.high, math.nan)])})
        both = [[pair for pair in estimates if (shown[pair[0]].passes is False) is around] for around in (False, True)]
        for around, some in enumerate(both):
            if some:
                mark = {"color": colour, "symbol": f"{symbol}-open" if around else symbol, "size": 8}
                points = {
                    "type": "scatter",
                    "mode": "markers",
                    "name": name,
                    "marker": mark | {"line": {"width": 2, "color": colour}},
                }
                points |= {
                    "x": [places[i] for i, _ in some],
                    "y": short([one.value for _, one in some]),
                    "shift": shift,
                }
                points |= {"text": [f"{labels[i]}, {name}: {one.shown}" for i, one in some], "hovertemplate": "%{text}"}
                data.append(points | {"legendgroup": key, "showlegend": not (around and both[0])})
    highest = max([1, *(layer.units for layer in shown)])
    chart = layout(names.axis(), _count_axis(1.0, highest) | {"title": {"text": "dimensions"}}, showlegend=True)
    told = "Effective dimension of each layer beside that of a freshly initialised copy."
    return Figure("effective", "In how many dimensions each layer varies", data, chart, list(_EFFECTIVE), told, 440)


def _count_axis(low: float, high: float) -> dict[str, Any]:
    """A logarithmic axis of counts with a place for 0."""
    ticks = [t for t in (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, *(10**e for e in range(3, 10))) if t <= 1.6 * high]
    ticks = ticks if len(ticks) < 10 else [t for t in ticks if math.log10(t).is_integer()]
    marks = {"tickvals": [ZERO, *ticks], "ticktext": ["0", *map(str, ticks)]}
    return axis("count", type="log", **marks, range=[math.log10(0.8 * low), math.log10(1.6 * high)])


def _ranks(layer: Any, key: str) -> list[int]:
    """The counts that clearly stand out, each once."""
    spectra = [part.spectrum for part in layer.weights] if key == "weights" else [getattr(layer, key)]
    return sorted({spectrum.rank for spectrum in spectra if spectrum is not None and spectrum.rank is not None})


def _points(
    name: str, colour: str, symbol: str, points: list[tuple[int, int]], places: list[int], names: list[str]
) -> dict[str, Any]:
    size = 9 if len(places) <= 16 else 7 if len(places) <= 32 else 4
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [places[i] for i, _ in points],
        "y": [max(count, ZERO) for _, count in points],
        "text": [f"{names[i]}, {name}: {count}" for i, count in points],
        "hovertemplate": "%{text}",
        "marker": {"color": colour, "symbol": symbol, "size": size, "line": {"width": 2, "color": colour}},
    }


def agreement(
    panel: Sequence[Any], rank: int | None, key: str = "agreement", title: str = "Other ways of counting"
) -> Figure | None:
    """A point for each way of counting that gave a number, with a line at the rank; None if none did."""
    known = [one for one in panel if math.isfinite(one.value)]
    if not known:
        return None
    places = list(range(len(known)))
    wide = max(one.value for one in known) > WIDE
    # What our own count says is the line; as a point it is set apart.
    colours = ["@green" if rank is not None and one.agrees(rank) else "@blue" for one in known]
    wrapped = ["\n".join(label(part, 90) for part in textwrap.wrap(one.meaning, 56)[:6]) for one in known]
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": short([max(one.value, ZERO) if wide else one.value for one in known]),
        "y": places,
        "marker": {
            "color": colours,
            "size": 13,
            "symbol": ["circle-open" if one.rank is None else "circle" for one in known],
            "line": {"width": 2, "color": colours},
        },
        "text": [f"{label(one.name, 34)}: {number(one.value)}\n{told}" for one, told in zip(known, wrapped)],
        "hovertemplate": "%{text}",
    }
    values = points["x"]
    across = _count_axis(min(1.0, *values), max(values)) if wide else axis("count", rangemode="tozero")
    names = [label(one.name, 34) for one in known]
    up = axis(tickvals=places, ticktext=names, range=[len(known) - 0.5, -0.5])
    chart = layout(across, up, shapes=[] if rank is None else [rule(max(rank, ZERO) if wide else rank, "@green")])
    reading = [*_AGREEMENT, *([] if rank is None else [f"The dashed line is the rank, {rank}; what agrees is green."])]
    told = "Other counts beside the rank." if rank is None else f"Other counts beside the rank {rank}."
    height = 130 + 34 * len(known)
    return Figure(key, title, [points], chart, reading, told, height)


def sizes(found: Sequence[Any], layers: Layers, rank: int | None) -> Figure | None:
    """Norm, largest singular value and stable rank of each layer's weights; None where no layer has any."""
    kept = [i for i, layer in enumerate(found) if layer.weights]
    if not kept:
        return None
    names = Layers(range(1, len(kept) + 1), [layers.names[i] for i in kept], _shaded(layers, kept)).cut()
    norms, largest, stable = zip(*(found[i].sizes for i in kept))
    menu = {
        "squared norm ‖W‖²": [norm**2 for norm in norms],
        "largest singular value": list(largest),
        "stable rank ‖W‖²/s₁²": list(stable),
    }
    # The line at the rank means something beside the norm only.
    line = [] if rank is None else [rule(rank, "@ink", along="y") | _ABOVE]
    options = [
        (
            name,
            {
                "data.0.y": short(values[:LAYERS]),
                "layout.yaxis.title.text": name,
                "layout.shapes": names.shades() + ([] if index == 1 else line),
            },
        )
        for index, (name, values) in enumerate(menu.items())
    ]
    bars = {"type": "bar", "x": list(names.places), "y": [], "marker": {"color": "@sky"}}
    bars |= {"text": names.labels(), "hovertemplate": "%{text}: %{y:.4g}"}
    chart = layout(names.axis(), axis(rangemode="tozero"), bargap=0.3)
    reading = [*_SIZES, *([] if rank is None else [f"The dashed line is the rank, {rank}."])]
    if len(kept) > LAYERS:
        reading.append(f"Only the first {LAYERS} of {len(kept)} layers are drawn.")
    told = "The size of the weights, layer by layer."
    return Figure("sizes", "Size of the weights", [bars], chart, reading, told, 360, choices=[Choice("show", options)])


def _shaded(layers: Layers, kept: list[int]) -> list[int]:
    return [new for new, old in enumerate(kept, start=1) if layers.places[old] in layers.shaded]


def places(found: Any) -> Layers:
    """The layers of a Diagnosis along an axis, those of the isthmus shaded."""
    names = [layer.name or "(output)" for layer in found.layers]
    numbers = range(1, len(names) + 1)
    return Layers(numbers, names, [at for at, name in zip(numbers, names) if name in found.isthmus.layers])


def through(key: str, found: Any, content: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Figures of the spectra of one kind through depth; none where there are no numbers.

    Parameters
    ----------
    key : {"dimensions", "weights", "jacobian"}
    found : Diagnosis
    content : sequence of mappings
        The plain data of its layers.
    """
    first, title = _SPECTRA[key]
    rows, names, drops, shaded = [], [], [], []
    for layer, plain_layer in zip(found.layers, content):
        for name, spectrum in _spectra(key, layer, plain_layer):
            rows.append(_row(spectrum))
            names.append(name)
            reading = spectrum["reading"]
            drops.append(reading["count"] if reading is not None and reading["status"] == "clear" else None)
            if (layer.name or "(output)") in found.isthmus.layers:
                shaded.append(len(names))
    known = np.flatnonzero(np.isfinite(rows).any(axis=0)) if rows else np.zeros(0)
    if not len(known):
        return []
    layers = Layers(range(1, len(names) + 1), names, shaded)
    return depth.through(first, title, np.stack(rows)[:, : known[-1] + 1], layers, found.rank, drops)


def _spectra(key: str, layer: Any, content: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Names and plain data of a layer's spectra of one kind."""
    name = layer.name or "(output)"
    if key == "weights":
        alone = len(layer.weights) == 1
        return [(name if alone else f"{name} · {one['label']}", one["spectrum"]) for one in content["weights"]]
    if key == "dimensions":
        key = "representation" if content["whole"] is None else "whole"
    return [] if content[key] is None else [(name, content[key])]


def _row(spectrum: Mapping[str, Any]) -> np.ndarray:
    """The first values (VALUES,), which JSON has one by one; NaN where there is none."""
    values = np.asarray(spectrum["values"], dtype=np.float64)
    if values.ndim != 1:
        raise ValueError("a spectrum is no list of numbers")
    check_integer("report", "count", spectrum["count"], low=len(values))
    row = np.full(depth.VALUES, np.nan)
    row[: len(values)] = values[: depth.VALUES]
    return row


def plot(found: Any, figure: MatplotlibFigure | None = None) -> MatplotlibFigure:
    """Counts by layer, other ways of counting, and spectra of representations and weights through depth."""
    layers, content = places(found), found.to_dict()["layers"]
    shown = [counts(found.layers, layers, found.rank)] if found.layers else []
    shown += [one for one in [agreement(found.agreement, found.rank)] if one is not None]
    titles = {key: title for key, (_, title) in _SPECTRA.items()}
    maps = [
        replace(one[1], title=titles[key]) for key in ("dimensions", "weights") if (one := through(key, found, content))
    ]
    return sheet(
        [(one, None) for one in (*shown, *maps)],
        found.sentence,
        found.verdict,
        why=found.isthmus.reasons,
        figure=figure,
    )
