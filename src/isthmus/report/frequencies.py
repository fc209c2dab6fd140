"""Circular convolutions by frequency: which waves every filter passes, through depth and one layer at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isthmus._html import plain
from isthmus.diagnosis import LayerDiagnosis
from isthmus.measures import FrequencySpectrum
from isthmus.report.charts import SCALE, axis, layout, rule
from isthmus.report.layers import LAYERS, WHOLE, Layers
from isthmus.report.page import Badge, Block, Choice, Figure, Section, Table, short

#: Values drawn for each layer.
VALUES = 160

_LEAD = "Convolutions that wrap around act on every frequency by itself: which waves do they pass, and which end here?"
_DEPTH = (
    "Each point is a singular value s of one filter at one frequency ω; its colour says how fast the wave is, in turns "
    "over the image. ±ω are one wave and its shift: a point stands for both.",
    "In a bottleneck only a few values stay near the dashed line, s = 1, while all others fall to 0: the frequencies "
    "that the network keeps. ω = 0 is the mean over the image, which lifts waves above the kink of a ReLU.",
)
_LAYER = (
    "One filter, frequency by frequency: how strongly it passes a wave with so many turns along each axis. The middle "
    "is the mean over the image; opposite places are ±ω, and equal.",
)
_VERDICT = ("Filters are counted from 1, heads and activations left out.",)
_TABLE = (
    "‖filter‖² is what weight decay sees; Σs² is that of the operator, positions · ‖filter‖². “Stand out” are the "
    "values before a clear drop, with how often a frequency occurs where several channels carry it.",
)


def section(found: Sequence[LayerDiagnosis], layers: Layers, whole: Mapping[str, Any]) -> Section:
    """The section of the layers that have spectra by frequency; without blocks where none has."""
    entries = [
        (name, layer.name, part.frequencies, part)
        for name, layer in zip(layers.names, found)
        for part in layer.weights
        if part.frequencies is not None
    ]
    if not entries:
        return Section("frequencies", "Frequencies", [])
    names = [plain(name, WHOLE) for name, *_ in entries]
    inside = {layers.names[layers.places.index(place)] for place in layers.shaded if place in layers.places}
    shaded = [index for index, (name, *_) in enumerate(entries, start=1) if name in inside]
    along = Layers(range(1, len(names) + 1), names, shaded)
    spectra = [spectrum for *_, spectrum, _ in entries if spectrum is not None]
    rows = []
    for (name, _, _, part), spectrum in zip(entries, spectra):
        reading = part.spectrum.reading
        status = "" if reading is None else reading.status
        kept = [] if reading is None or status != "clear" else [one.name for one in spectrum.largest(reading.count)]
        told = ", ".join(kept) if kept else {"full": "all", "zero": "none"}.get(status, "?")
        sizes = [spectrum.filter_norm**2, spectrum.norm**2]
        count = None if reading is None or status == "unclear" else reading.count
        rows.append([name, "×".join(map(str, spectrum.size)), told, count, *sizes])
    heads = ["layer", "positions", "frequencies that stand out", "dimensions", "‖filter‖²", "Σs²"]
    blocks: list[Block] = [
        *_verdict(whole.get("kept_frequencies")),
        _depth(spectra, along),
        *_one_layer(spectra, names),
        Table("frequencies-numbers", "What every filter passes", heads, rows, _TABLE, folded=len(rows) > 12),
    ]
    return Section("frequencies", "Frequencies", blocks, _LEAD)


def _verdict(found: Any) -> list[Block]:
    """What the whole network keeps, where it is known."""
    if not isinstance(found, Mapping):
        return []
    word = str(found.get("verdict"))
    reasons = [str(one) for one in found.get("reasons") or ()]
    rows = [[Badge(word), "; ".join(reasons)]]
    return [Table("frequencies-verdict", "The frequencies that are kept", ["verdict", "why"], rows, _VERDICT)]


def turns(spectrum: FrequencySpectrum) -> NDArray[np.float64]:
    """|ω| in turns over the image, (F,)."""
    return np.linalg.norm(spectrum.signed.double().numpy(), axis=1)


def _depth(spectra: Sequence[FrequencySpectrum], layers: Layers) -> Figure:
    x, y, colour, text = [], [], [], []
    names = layers.cut().labels()
    for place, name, spectrum in zip(layers.cut().places, names, spectra):
        values = spectrum.values.numpy()
        flat = np.argsort(-values, axis=None, kind="stable")[:VALUES]
        rows, channels = np.unravel_index(flat, values.shape)
        speed, signed = turns(spectrum), spectrum.signed.tolist()
        for row, channel in zip(rows.tolist(), channels.tolist()):
            sign = "±" if int(spectrum.multiplicity[row]) == 2 else ""
            # Fast waves further to the right: equal values stand side by side.
            x.append(place + 0.6 * (speed[row] / max(float(speed.max()), 1.0) - 0.5))
            y.append(float(values[row, channel]))
            colour.append(float(speed[row]))
            text.append(f"{name}, ω = {sign}{tuple(signed[row])}, channel {channel + 1}")
    marker = {"size": 7, "color": short(colour), "colorscale": SCALE, "colorbar": "|ω|, turns over the image"}
    marker |= {"cmin": 0.0, "cmax": max(colour, default=1.0)}
    points = {"type": "scatter", "mode": "markers", "x": short(x), "y": short(y), "text": text, "marker": marker}
    points["hovertemplate"] = "%{text}: %{y:.3g}"
    shapes = [*layers.shades(), rule(1.0, "@ink", along="y")]
    chart = layout(layers.cut().axis(), axis("singular value s", rangemode="tozero"), shapes=shapes)
    missing = () if len(spectra) <= LAYERS else (f"Only the first {LAYERS} of {len(spectra)} are drawn.",)
    told = "Singular values of every filter, coloured by frequency."
    title = "Singular values coloured by frequency"
    return Figure("frequencies-depth", title, [points], chart, (*_DEPTH, *missing), told, 440)


def plane(spectrum: FrequencySpectrum) -> tuple[list[list[int]], NDArray[np.float64]]:
    """Signed frequencies along each axis, and the largest value at each, both halves."""
    ticks = [list(range(-((n - 1) // 2), n // 2 + 1)) for n in spectrum.size]
    largest = np.zeros(spectrum.size)
    for indices in (spectrum.indices, spectrum.conjugates):
        largest[tuple(indices.numpy().T)] = spectrum.values[:, 0].numpy()
    # From 0 … n−1 to the order of the ticks.
    order = np.ix_(*([k % n for k in axis_] for axis_, n in zip(ticks, spectrum.size)))
    return ticks, largest[order]


def _one_layer(spectra: Sequence[FrequencySpectrum], names: Sequence[str]) -> list[Figure]:
    """The frequency plane of one layer of images, or the line of one of signals; none where there are both, or more."""
    dims = {len(spectrum.size) for spectrum in spectra}
    if len(dims) > 1 or not dims <= {1, 2}:
        return []
    options = []
    for name, spectrum in zip(names[:LAYERS], spectra):
        ticks, largest = plane(spectrum)
        if dims == {1}:
            options.append((name, {"data.0.x": ticks[0], "data.0.y": short(largest)}))
        else:
            options.append((name, {"data.0.x": ticks[1], "data.0.y": ticks[0], "data.0.z": short(largest)}))
    if dims == {1}:
        data: dict[str, Any] = {"type": "bar", "x": [], "y": [], "marker": {"color": "@blue"}}
        data["hovertemplate"] = "ω = %{x}: %{y:.3g}"
        chart = layout(axis("frequency, turns"), axis("largest singular value", rangemode="tozero"), bargap=0.3)
    else:
        data = {"type": "heatmap", "x": [], "y": [], "z": [], "colorscale": SCALE, "zmin": 0, "colorbar": ""}
        data["hovertemplate"] = "ω = (%{y}, %{x}): %{z:.3g}"
        flat = {"showgrid": False, "ticks": ""}
        chart = layout(axis("turns along the second axis", **flat), axis("turns along the first axis", **flat))
    choice = Choice("layer", options, selected=len(options) // 2)
    told = "The largest singular value of one filter at every frequency."
    return [Figure("frequencies-layer", "One filter", [data], chart, _LAYER, told, 420, choices=[choice])]
