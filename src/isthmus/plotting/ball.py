"""A ball in flight, the frequencies that a network keeps of it, and where its position and velocity are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from isthmus.plotting.frequencies import draw_frequencies
from isthmus.plotting.style import PALETTE, dress


def draw_ball(figure: Figure, arrays: Mapping[str, np.ndarray], *, layer: int) -> None:
    """(a) Frames seen, predicted and true; (b) s_{ω,i} of every filter by frequency; (c) R² of the state through depth.

    Parameters
    ----------
    figure : Figure
    arrays : mapping
        ``seen`` (flights, past, n), ``came`` and ``predicted`` (flights, future, n), ``values`` (L, F, r), NaN where a
        filter has fewer, ``turns`` (F, 1), ``two_pairs`` and ``one_pair`` (L, 2): R² of position and velocity.
    layer : int
        The one that is judged, from 1: marked.
    """
    flights, spectra, state = figure.subplots(1, 3, width_ratios=(1.0, 1.35, 1.0))
    seen, came, predicted = (arrays[name] for name in ("seen", "came", "predicted"))
    n, gap = seen.shape[2], 1
    columns, marks = [], []
    for past, true, guess in zip(seen, came, predicted):
        start = sum(len(c) for c in columns)
        for block in (past, guess, true):
            columns += [block, np.full((gap, n), np.nan)]
        edges = np.cumsum([start, len(past) + gap, len(guess) + gap])
        marks += list(zip(edges, (len(past), len(guess), len(true)), ("seen", "net", "true")))
        columns.append(np.full((gap, n), np.nan))
    shown = np.concatenate(columns).T
    flights.imshow(shown, origin="lower", aspect="auto", cmap="magma", interpolation="nearest")
    dress(flights, title="(a) Frames: seen, predicted, true", x="", y="height on the periodic line")
    flights.grid(False)
    flights.set_xticks([a + (b - 1) / 2 for a, b, _ in marks], [name for _, _, name in marks], rotation=90, fontsize=8)
    layers = len(arrays["values"])
    blocks = [np.where(np.isfinite(block), block, 0.0) for block in arrays["values"]]
    blocks = [block[:, np.isfinite(raw).all(axis=0)] for block, raw in zip(blocks, arrays["values"])]
    title = "(b) Singular values of the filters, by frequency"
    drawn = draw_frequencies(spectra, blocks, [arrays["turns"]] * layers, title=title)
    spectra.axvspan(layer - 0.5, layer + 0.5, color="#EEF3F8", zorder=0)
    figure.colorbar(drawn, ax=spectra, label="frequency ω, in turns", ticks=np.unique(np.abs(arrays["turns"])))
    number = np.arange(1, layers + 1)
    for name, column, style, colour, label in (
        ("two_pairs", 0, "o-", "blue", "position, two pairs"),
        ("two_pairs", 1, "s-", "vermilion", "velocity, two pairs"),
        ("one_pair", 0, "o:", "sky", "position, the stronger"),
        ("one_pair", 1, "s:", "orange", "velocity, the stronger"),
        ("constant", 1, "D:", "green", "velocity, a constant"),
    ):
        row = np.clip(arrays[name][:, column], -0.05, 1.0)
        state.plot(number, row, style, color=PALETTE[colour], label=label, markersize=5)
    state.axvspan(layer - 0.5, layer + 0.5, color="#EEF3F8", zorder=0)
    state.set_ylim(-0.08, 1.42)
    state.set_yticks(np.linspace(0.0, 1.0, 6))
    state.xaxis.set_major_locator(MaxNLocator(integer=True))
    dress(state, title="(c) The state in waves of frequency 1 and 0", x="layer ℓ", y="$R^2$ on new flights")
    state.legend(frameon=False, fontsize=9, loc="upper center", ncols=2)
