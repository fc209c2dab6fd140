"""The picture of a bottleneck: four views of one network through its depth."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from isthmus.plotting.style import PALETTE, dress

#: Values below this share of the largest are drawn at the floor.
FLOOR = 1e-5
_GREY = "#B8BEC6"
_KEPT = PALETTE["blue"]
_FIRST_OUT = PALETTE["vermilion"]


def draw_bottleneck(figure: Figure, arrays: Mapping[str, np.ndarray], *, rank: int, title: str = "") -> None:
    """Weight, representation and Jacobian spectra and the norm of each layer; ``rank`` values are highlighted.

    Parameters
    ----------
    figure : Figure
    arrays : mapping
        ``weight_spectra`` (L, r), ``representation_spectra`` (L + 1, r) from the inputs on, ``jacobian_spectra``
        (points, r), ``weight_norms`` (L,), ``bias_norms`` (L,); NaN where a layer has fewer values.
    rank : int
        How many values to highlight.
    title : str
        Above all four.
    """
    axes = figure.subplots(2, 2)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=14, color="#333333", fontweight="bold")
    _through_depth(axes[0, 0], arrays["weight_spectra"], rank, first=1)
    dress(axes[0, 0], title="Singular values of the weights", x="layer ℓ", y="$s_i(W_ℓ)$")
    axes[0, 0].set_ylim(0, None)
    relative = arrays["representation_spectra"] / arrays["representation_spectra"][:, :1]
    axes[0, 1].set_yscale("log")
    _through_depth(axes[0, 1], np.maximum(relative, FLOOR), rank, first=0)
    dress(axes[0, 1], title="Singular values of the centred representations", x="layer ℓ", y="$s_i\\,/\\,s_1$")
    axes[0, 1].set_ylim(FLOOR * 0.7, 1.6)
    _jacobians(axes[1, 0], arrays["jacobian_spectra"], rank)
    _norms(axes[1, 1], arrays["weight_norms"], arrays["bias_norms"], rank)


def _through_depth(axes: Axes, spectra: np.ndarray, rank: int, *, first: int) -> None:
    layers = np.arange(first, first + len(spectra))
    for index in range(spectra.shape[1] - 1, -1, -1):
        kept, next_ = index < rank, index == rank
        colour = _KEPT if kept else _FIRST_OUT if next_ else _GREY
        label = (
            f"first {rank}"
            if index == 0
            else f"number {rank + 1}"
            if next_
            else "the rest"
            if index == rank + 1
            else None
        )
        axes.plot(
            layers,
            spectra[:, index],
            "o-",
            color=colour,
            linewidth=1.8 if kept or next_ else 1.0,
            markersize=4 if kept or next_ else 2.5,
            label=label,
            zorder=3 if kept else 4 if next_ else 2,
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: ("first", "number", "the").index(labels[i].split()[0]))
    axes.legend([handles[i] for i in order], [labels[i] for i in order], frameon=False, fontsize=9, loc="best")


def _jacobians(axes: Axes, spectra: np.ndarray, rank: int) -> None:
    axes.set_yscale("log")
    shown = spectra[:, : min(spectra.shape[1], 2 * rank + 2)]
    number = np.arange(1, shown.shape[1] + 1)
    floor = FLOOR * np.nanmax(shown)
    for values in shown:
        axes.plot(number, np.maximum(values, floor), "-", color=_GREY, linewidth=0.9, zorder=2)
    for index in number - 1:
        colour = _KEPT if index < rank else _FIRST_OUT if index == rank else "#8A929C"
        column = np.maximum(shown[:, index], floor)
        axes.plot(np.full(len(column), index + 1), column, "o", color=colour, markersize=4, zorder=3)
    axes.axvline(rank + 0.5, color=_FIRST_OUT, linewidth=1.0, linestyle=":")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    dress(axes, title=f"Singular values of the Jacobian at {len(spectra)} points", x="number i", y="$s_i(Jf(x))$")


def _norms(axes: Axes, weights: np.ndarray, biases: np.ndarray, rank: int) -> None:
    layers = np.arange(1, len(weights) + 1)
    axes.bar(layers, weights, color=PALETTE["sky"], width=0.7, label=r"$\|W_ℓ\|^2$", zorder=2)
    axes.bar(layers, biases, bottom=weights, color=PALETTE["orange"], width=0.7, label=r"$\|b_ℓ\|^2$", zorder=2)
    mean = float((weights + biases).mean())
    axes.axhline(mean, color="#333333", linewidth=1.2, label=rf"$\|\theta\|^2/L = {mean:.2f}$", zorder=3)
    axes.axhline(rank, color=_KEPT, linewidth=1.2, linestyle="--", label=f"k = {rank}", zorder=3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, float((weights + biases).max()) * 1.35)
    dress(axes, title="Norm of each layer", x="layer ℓ", y="squared norm")
    axes.legend(frameon=False, fontsize=9, ncols=2, loc="upper center")
