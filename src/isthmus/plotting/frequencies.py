"""Singular values of filters coloured by frequency, layer by layer, as on the slides of talk2023."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from isthmus.plotting.names import readable
from isthmus.plotting.style import dress

#: Values drawn for each layer.
VALUES = 200


def draw_frequencies(
    axes: Axes, values: Sequence[Any], turns: Sequence[Any], names: Sequence[str] | None = None, *, title: str = ""
) -> Any:
    """Draw s_{ω,i} of every layer, coloured by |ω|; gives what a colour bar needs.

    Parameters
    ----------
    axes : Axes
    values : sequence of array (F, r)
        ``FrequencySpectrum.values``, one for each layer.
    turns : sequence of array (F, dims)
        ``FrequencySpectrum.signed``: frequencies in turns over the image.
    names : sequence of str, optional
        Of the layers; numbers from 1 by default.
    title : str
    """
    speeds = [np.linalg.norm(np.asarray(one, dtype=float), axis=1) for one in turns]
    fastest = max((float(one.max()) for one in speeds), default=1.0) or 1.0
    drawn = None
    for place, (block, speed) in enumerate(zip(values, speeds), start=1):
        s = np.asarray(block, dtype=float)
        rows, channels = np.unravel_index(np.argsort(-s, axis=None, kind="stable")[:VALUES], s.shape)
        # Small values first: the ones that matter lie above.
        order = slice(None, None, -1)
        across = place + 0.6 * (speed[rows] / fastest - 0.5)
        drawn = axes.scatter(
            across[order],
            s[rows, channels][order],
            c=speed[rows][order],
            s=26,
            cmap="viridis_r",
            vmin=0.0,
            vmax=fastest,
            linewidths=0.4,
            edgecolors="white",
            zorder=3,
        )
    axes.axhline(1.0, color="#333333", linewidth=1.0, linestyle="--", zorder=1)
    # Room below 0: half a point is easily taken for none.
    axes.set_ylim(bottom=-0.03 * max(1.0, axes.get_ylim()[1]))
    labels = [str(k) for k in range(1, len(speeds) + 1)] if names is None else [readable(name) for name in names]
    dress(axes, title=title, x="layer", y=r"$s_{\omega,i}(W_\ell)$")
    axes.set_xticks(range(1, len(speeds) + 1), labels, parse_math=False)
    axes.grid(False, axis="x")
    return drawn
