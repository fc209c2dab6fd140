"""Pictures of circular convolutions by frequency: which waves every filter passes, through depth and one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isthmus.plotting.figure import LAYERS, SCALE, Choice, Figure, Layers, axis, layout, rule, short

Array = NDArray[np.float64]

#: Values drawn for each layer.
VALUES = 160

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


def turns(signed: Any) -> Array:
    """|ω| in turns over the image, (F,)."""
    return np.linalg.norm(np.asarray(signed, dtype=np.float64), axis=1)


def through_depth(
    values: Sequence[Any],
    signed: Sequence[Any],
    layers: Layers | None = None,
    multiplicity: Sequence[Any] | None = None,
) -> Figure:
    """Singular values s_{ω,i} of the filters of every layer, coloured by |ω|.

    Parameters
    ----------
    values : sequence of array (F, r)
        ``FrequencySpectrum.values``, one for each layer.
    signed : sequence of array (F, dims)
        ``FrequencySpectrum.signed``: frequencies in turns over the image.
    layers : Layers, optional
        Numbered from 1 by default.
    multiplicity : sequence of array (F,), optional
        2 where a frequency stands for ±ω.
    """
    layers = (Layers.numbered(1, len(values)) if layers is None else layers).cut()
    x, y, colour, text = [], [], [], []
    for index, (place, name) in enumerate(zip(layers.places, layers.labels())):
        block, speed = np.asarray(values[index], dtype=np.float64), turns(signed[index])
        # Small values first: the ones that matter lie above.
        flat = np.argsort(-block, axis=None, kind="stable")[:VALUES][::-1]
        for row, channel in zip(*(part.tolist() for part in np.unravel_index(flat, block.shape))):
            sign = "±" if multiplicity is not None and int(multiplicity[index][row]) == 2 else ""
            # Fast waves further to the right: equal values stand side by side.
            x.append(place + 0.6 * (speed[row] / max(float(speed.max()), 1.0) - 0.5))
            y.append(float(block[row, channel]))
            colour.append(float(speed[row]))
            wave = tuple(np.asarray(signed[index])[row].tolist())
            text.append(f"{name}, ω = {sign}{wave}, channel {channel + 1}")
    marker = {"size": 7, "color": short(colour), "colorscale": SCALE, "colorbar": "|ω|, turns over the image"}
    marker |= {"cmin": 0.0, "cmax": max([1.0, *colour])}
    points = {"type": "scatter", "mode": "markers", "x": short(x), "y": short(y), "text": text, "marker": marker}
    points["hovertemplate"] = "%{text}: %{y:.3g}"
    shapes = [*layers.shades(), rule(1.0, "@ink", along="y")]
    chart = layout(layers.axis(), axis("singular value s", rangemode="tozero"), shapes=shapes)
    missing = () if len(values) <= LAYERS else (f"Only the first {LAYERS} of {len(values)} are drawn.",)
    told = "Singular values of every filter, coloured by frequency."
    title = "Singular values coloured by frequency"
    return Figure("frequencies-depth", title, [points], chart, (*_DEPTH, *missing), told, 440)


def plane(spectrum: Any) -> tuple[list[list[int]], Array]:
    """Signed frequencies along each axis, and the largest value at each, both halves."""
    ticks = [list(range(-((n - 1) // 2), n // 2 + 1)) for n in spectrum.size]
    largest = np.zeros(spectrum.size)
    for indices in (spectrum.indices, spectrum.conjugates):
        largest[tuple(indices.numpy().T)] = spectrum.values[:, 0].numpy()
    # From 0 … n−1 to the order of the ticks.
    order = np.ix_(*([k % n for k in axis_] for axis_, n in zip(ticks, spectrum.size)))
    return ticks, largest[order]


def one_layer(spectra: Sequence[Any], names: Sequence[str]) -> list[Figure]:
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
        across, up = (axis(f"turns along the {which} axis", showgrid=False) for which in ("second", "first"))
        chart = layout(across, up)
    choice = Choice("layer", options, selected=len(options) // 2)
    told = "The largest singular value of one filter at every frequency."
    return [Figure("frequencies-layer", "One filter", [data], chart, _LAYER, told, 420, choices=[choice])]
