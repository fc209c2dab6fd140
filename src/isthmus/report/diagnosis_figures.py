"""Figures of a Diagnosis beside its spectra: counts by layer, other ways of counting, size of the weights."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from isthmus._html import number
from isthmus.diagnosis import Evidence, LayerDiagnosis, Spectrum
from isthmus.report.charts import axis, label, layout, rule
from isthmus.report.layers import LAYERS, Layers
from isthmus.report.page import Choice, Figure, short

#: Where a count of 0 is drawn on a logarithmic axis.
ZERO = 0.5
#: Counts above this need a logarithmic axis.
WIDE = 40

_COUNTS = (
    "Each mark says how many singular values stand out in a layer: of its weights, of its representation (what the "
    "layer puts out for your samples) and of its Jacobian (how it moves when the inputs move). The grey bar is its "
    "width, where there are positions or tokens that of one.",
    "The isthmus is shaded: the layers whose representation has the rank, however wide they are. Weights may count one "
    "more, for a direction that is the same for all samples.",
    "No mark: no clear drop in that spectrum, or it was not computed; the table says which. Hollow: some of the "
    "outputs' variation goes around the layer, as past a skip connection, so that it cannot be the isthmus alone.",
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
#: Above the figure, however many lines it takes.
_LEGEND = {"showlegend": True, "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}}
#: Name, colour and mark of each kind of count.
_KINDS = {
    "weights": ("weights", "@orange", "square"),
    "dimensions": ("representation", "@blue", "circle"),
    "jacobian": ("Jacobian", "@green", "triangle-up"),
}


def bypassed(layer: LayerDiagnosis) -> bool:
    """Whether some of what the network computes goes around the layer."""
    return layer.passes is False


def counted(spectrum: Spectrum | None) -> str:
    """The count that stands out as text: ``"?"`` where it is unclear, empty where there is no spectrum."""
    if spectrum is None or spectrum.reading is None:
        return ""
    return "?" if spectrum.rank is None else str(spectrum.rank)


def weight_sizes(layer: LayerDiagnosis) -> tuple[float, float, float]:
    """‖W‖ of all matrices together, the largest singular value and the smallest stable rank; NaN without matrices."""
    if not layer.weights:
        return math.nan, math.nan, math.nan
    largest = [float(part.spectrum.values[0]) for part in layer.weights if len(part.spectrum.values)]
    stable = [part.stable_rank for part in layer.weights if len(part.spectrum.values)]
    norm = math.sqrt(sum(part.norm**2 for part in layer.weights))
    return norm, max(largest, default=math.nan), min(stable, default=math.nan)


def counts(found: Sequence[LayerDiagnosis], layers: Layers, rank: int | None) -> Figure:
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
            "textposition": "none",
            # Its own place and width: it stands behind the marks, which stand side by side.
            "offset": -0.43,
            "width": 0.86,
            "marker": {"color": "@faint", "opacity": 0.35},
            "hovertemplate": "%{text}: %{y} units<extra></extra>",
        }
    ]
    highest = max([1, *(width for width in widths if width)])
    for key, (name, colour, symbol) in _KINDS.items():
        points = [(i, count) for i, layer in enumerate(shown) for count in _ranks(layer, key)]
        highest = max([highest, *(count for _, count in points)])
        both = [[one for one in points if bypassed(shown[one[0]]) is around] for around in (False, True)]
        for around, some in enumerate(both):
            if some:
                mark = f"{symbol}-open" if around else symbol
                # Without a full mark the hollow one stands in the legend.
                trace = _points(name, colour, mark, some, places, names)
                data.append({**trace, "offsetgroup": key, "legendgroup": key, "showlegend": not (around and both[0])})
    up = _count_axis(ZERO, highest)
    shapes = layers.shades() + ([] if rank is None else [rule(max(rank, ZERO), "@green", along="y") | _ABOVE])
    chart = layout(layers.axis(), up, shapes=shapes, scattermode="group", scattergap=0.45) | _LEGEND
    reading = [*_COUNTS, *([] if rank is None else [f"The dashed line is the rank, {rank}."])]
    if len(found) > LAYERS:
        reading.append(f"Only the first {LAYERS} of {len(found)} layers are drawn.")
    told = "Counts of outstanding singular values, layer by layer."
    drives = ("representations-layer", places)
    return Figure("counts", "How many values stand out", data, chart, reading, told, 440, drives=drives)


def _count_axis(low: float, high: float) -> dict[str, Any]:
    """A logarithmic axis of counts with a place for 0."""
    ticks = [t for t in (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, *(10**e for e in range(3, 10))) if t <= 1.6 * high]
    ticks = ticks if len(ticks) < 10 else [t for t in ticks if math.log10(t).is_integer()]
    marks = {"tickvals": [ZERO, *ticks], "ticktext": ["0", *map(str, ticks)]}
    return axis("count", type="log", **marks, range=[math.log10(0.8 * low), math.log10(1.6 * high)])


def _ranks(layer: LayerDiagnosis, key: str) -> list[int]:
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
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": colour, "symbol": symbol, "size": size, "line": {"width": 2, "color": colour}},
    }


def agreement(panel: Sequence[Evidence], rank: int | None) -> Figure | None:
    """A point for each way of counting that gave a number, with a line at the rank; None if none did."""
    known = [one for one in panel if math.isfinite(one.value)]
    if not known:
        return None
    places = list(range(len(known)))
    wide = max(one.value for one in known) > WIDE
    # What our own count says is the line; as a point it is set apart.
    colours = ["@green" if rank is not None and one.rank == rank else "@blue" for one in known]
    wrapped = ["<br>".join(label(part, 90) for part in textwrap.wrap(one.meaning, 56)[:6]) for one in known]
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
        "text": [f"<b>{label(one.name, 34)}: {number(one.value)}</b><br>{told}" for one, told in zip(known, wrapped)],
        "hovertemplate": "%{text}<extra></extra>",
    }
    values = points["x"]
    across = _count_axis(min(1.0, *values), max(values)) if wide else axis("count", rangemode="tozero")
    names = [label(one.name, 34) for one in known]
    up = axis(tickvals=places, ticktext=names, range=[len(known) - 0.5, -0.5], ticks="")
    chart = layout(across, up, shapes=[] if rank is None else [rule(max(rank, ZERO) if wide else rank, "@green")])
    reading = [*_AGREEMENT, *([] if rank is None else [f"The dashed line is the rank, {rank}; what agrees is green."])]
    told = "Other counts beside the rank." if rank is None else f"Other counts beside the rank {rank}."
    height = 130 + 34 * len(known)
    return Figure("agreement", "Other ways of counting", [points], chart, reading, told, height)


def sizes(found: Sequence[LayerDiagnosis], layers: Layers, rank: int | None) -> Figure | None:
    """Norm, largest singular value and stable rank of each layer's weights; None where no layer has any."""
    kept = [i for i, layer in enumerate(found) if layer.weights]
    if not kept:
        return None
    names = Layers(range(1, len(kept) + 1), [layers.names[i] for i in kept], _shaded(layers, kept)).cut()
    norms, largest, stable = zip(*(weight_sizes(found[i]) for i in kept))
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
    bars = {"type": "bar", "x": list(names.places), "y": [], "marker": {"color": "@sky"}, "textposition": "none"}
    bars |= {"text": names.labels(), "hovertemplate": "%{text}: %{y:.4g}<extra></extra>"}
    chart = layout(names.axis(), axis(rangemode="tozero"), bargap=0.3)
    reading = [*_SIZES, *([] if rank is None else [f"The dashed line is the rank, {rank}."])]
    if len(kept) > LAYERS:
        reading.append(f"Only the first {LAYERS} of {len(kept)} layers are drawn.")
    told = "The size of the weights, layer by layer."
    return Figure("sizes", "Size of the weights", [bars], chart, reading, told, 360, choices=[Choice("show", options)])


def _shaded(layers: Layers, kept: list[int]) -> list[int]:
    return [new for new, old in enumerate(kept, start=1) if layers.places[old] in layers.shaded]
