"""Learning curves in several dimensions, and their exponents against 1/d."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from isthmus.plotting.style import PALETTE, dress


def draw_learning_curves(
    figure: Figure, arrays: Mapping[str, np.ndarray], exponents: np.ndarray, *, alpha: float
) -> None:
    """Left: error against N in each dimension, with slope −α/d and Σ_{k>N} β_k². Right: exponents against 1/d.

    Parameters
    ----------
    figure : Figure
    arrays : mapping
        ``dims`` (D,), ``counts`` (n,), ``errors`` (D, trials, n), ``tails`` (D, n).
    exponents : array (D, 3)
        Of the errors, with the ends of their intervals.
    alpha : float
    """
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1.0))
    dims, counts = arrays["dims"], arrays["counts"]
    colours = colormaps["viridis_r"](np.linspace(0.15, 1.0, len(dims)))
    left.set_xscale("log", base=2)
    left.set_yscale("log")
    for d, colour, rows, beyond, (value, _, _) in zip(dims, colours, arrays["errors"], arrays["tails"], exponents):
        mean = np.exp(np.log(rows).mean(axis=0))
        left.plot(np.tile(counts, (len(rows), 1)).T, rows.T, ".", color=colour, markersize=3, alpha=0.6)
        left.plot(counts, mean, "o", color=colour, markersize=5, label=f"d = {d}:  $N^{{-{value:.2f}}}$", zorder=3)
        centre = np.exp(np.log(counts).mean())
        law = np.exp(np.log(mean).mean()) * (counts / centre) ** (-alpha / d)
        left.plot(counts, law, "-", color=colour, linewidth=1.4)
        left.plot(counts, beyond, ":", color=colour, linewidth=1.4)
    dress(left, title="Test error, as a share of the function's variance", x="samples $N$", y="error")
    told = left.legend(frameon=False, fontsize=9, loc="lower left", title="fitted", alignment="left")
    lines = [
        Line2D([], [], color="#666666", linewidth=1.4, label=r"slope $-\alpha/d$"),
        Line2D([], [], color="#666666", linewidth=1.4, linestyle=":", label=r"$\Sigma_{k>N}\,\beta_k^2$"),
    ]
    left.legend(handles=lines, frameon=False, fontsize=9, loc="upper right")
    left.add_artist(told)
    inverse = np.linspace(0.0, 1.08 * float(1.0 / dims.min()), 2)
    right.plot(inverse, alpha * inverse, "-", color="#666666", linewidth=1.4, label=rf"$\alpha/d$, $\alpha={alpha:g}$")
    value, low, high = exponents.T
    reach = np.stack([value - low, high - value])
    right.errorbar(1.0 / dims, value, reach, fmt="o", color=PALETTE["blue"], capsize=4, label="fitted, 95 %")
    # Beside the points: along the axis those of large d lie too close together.
    for d, y in zip(dims, value):
        right.annotate(f"d = {d}", (1.0 / d, y), (7, -9), textcoords="offset points", fontsize=9)
    right.set_xlim(0.0, None)
    right.set_ylim(0.0, None)
    dress(right, title="The exponent is inverse to the dimension", x="$1/d$", y="exponent of the error")
    right.legend(frameon=False, fontsize=10, loc="upper left")
