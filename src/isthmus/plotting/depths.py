"""‖θ‖² against depth in the colours of the rank, and singular values through networks of several depths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from isthmus.plotting.style import PALETTE, dress

#: Colours of the ranks 0, 1, 2, …; all above the last share its colour.
COLOURS = ("black", "purple", "blue", "green", "orange", "vermilion")
#: Networks whose singular values are shown.
PANELS = 4


def draw_depths(
    figure: Figure,
    arrays: Mapping[str, np.ndarray],
    families: Sequence[tuple[int, np.ndarray, np.ndarray]],
    slopes: Mapping[int, float],
) -> None:
    """(a) ‖θ‖² against L, dots where the data are fitted and crosses where not, families as lines; (b) s(W_ℓ).

    Parameters
    ----------
    figure : Figure
    arrays : mapping
        ``depths``, ``norms``, ``ranks``, ``failed`` (networks,), ``spectra`` (networks, deepest, r) with NaN.
    families : sequence of (rank, depths, norms)
        Networks continued to greater depths.
    slopes : mapping
        Of each family, by its rank.
    """
    grid = figure.add_gridspec(1, 2, width_ratios=(1.0, 1.25))
    left, right = (figure.add_subfigure(grid[0, column]) for column in range(2))
    axes = left.subplots()
    depths, norms, ranks, failed = (arrays[name] for name in ("depths", "norms", "ranks", "failed"))
    for L, norm, rank, bad in zip(depths, norms, ranks, failed):
        marker = {"marker": "x", "markersize": 7, "markeredgewidth": 1.8} if bad else {"marker": "o", "markersize": 6}
        axes.plot([L], [norm], linestyle="", color=_colour(rank), zorder=3, **marker)
    for rank, L, values in families:
        order = np.argsort(L)
        axes.plot(L[order], values[order], "-", color=_colour(rank), linewidth=1.2, alpha=0.8)
        axes.plot(L, values, "o", color=_colour(rank), markerfacecolor="white", markersize=4, zorder=2)
    handles = []
    for rank in sorted({int(r) for r in ranks}, reverse=True):
        told = f"rank {rank}" + (f", continued with slope {slopes[rank]:.2f}" if rank in slopes else "")
        handles.append(Line2D([], [], marker="o", linestyle="", color=_colour(rank), label=told))
    if failed.any():
        handles.append(Line2D([], [], marker="x", linestyle="", color="#666666", label="does not fit"))
    if families:
        hollow = {"marker": "o", "color": "#666666", "markerfacecolor": "white", "markersize": 4}
        handles.append(Line2D([], [], label="continued from the best of its rank", linewidth=1.2, **hollow))
    top = max(float(values.max(initial=0.0)) for values in (norms, *(values for _, _, values in families)))
    axes.set_ylim(0.0, 1.12 * max(top, 1e-9))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    dress(axes, title="(a) Parameter norm and depth", x="depth $L$", y=r"$\|\theta\|^2$")
    axes.legend(handles=handles, frameon=False, fontsize=9, loc="best")
    _networks(right, arrays)


def _networks(figure: SubFigure, arrays: Mapping[str, np.ndarray]) -> None:
    """Singular values of every layer in four of the networks, spread over the depths that fitted."""
    fitted = np.flatnonzero(~arrays["failed"])
    chosen = fitted if len(fitted) else np.arange(len(arrays["depths"]))
    order = chosen[np.argsort(arrays["depths"][chosen], kind="stable")]
    picked = list(dict.fromkeys(order[np.linspace(0, len(order) - 1, min(PANELS, len(order))).astype(int)]))
    panels = figure.subplots(2, 2, sharey=True).reshape(-1)
    for axes, index in zip(panels, picked):
        _network(axes, arrays, int(index))
    for axes in panels[len(picked) :]:
        axes.set_visible(False)


def _network(axes: Axes, arrays: Mapping[str, np.ndarray], index: int) -> None:
    L, rank = int(arrays["depths"][index]), int(arrays["ranks"][index])
    spectra = arrays["spectra"][index, :L]
    layers = np.arange(1, L + 1)
    for number in range(spectra.shape[1] - 1, -1, -1):
        kept = number < rank
        colour = _colour(rank) if kept else "#B8BEC6"
        axes.plot(layers, spectra[:, number], ".-", color=colour, linewidth=1.5 if kept else 0.8, markersize=4)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    dress(axes, title=f"(b) L = {L}: rank {rank}", x="layer ℓ", y="$s_i(W_ℓ)$")


def _colour(rank: float) -> str:
    return PALETTE[COLOURS[min(int(rank), len(COLOURS) - 1)]]
