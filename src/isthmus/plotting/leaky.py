"""Pictures of leaky ResNets trained at several effective depths or discretisations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from isthmus.plotting.mechanics import draw_energies, draw_path, draw_spectra
from isthmus.plotting.style import PALETTE, dress

Array = np.ndarray[Any, Any]

_COLOURS = (PALETTE["blue"], PALETTE["orange"], PALETTE["green"])
_GREY = "#8A929C"


def draw_estimates(figure: Figure, arrays: Mapping[str, Array], *, rank: int) -> None:
    """Estimates of the rank against L̃, and beside them spectra and energies along up to three of the paths.

    Parameters
    ----------
    figure : Figure
    arrays : mapping
        Of F-ham-1: first axis over ``effective_depths``.
    rank : int
        The true one, as a line.
    """
    depths = arrays["effective_depths"]
    shown = list(range(len(depths)))[-3:]
    grid = figure.add_gridspec(2, 1 + len(shown), width_ratios=[1.15, *[1.0] * len(shown)])
    axes = figure.add_subplot(grid[:, 0])
    H = -2.0 / depths[:, None] * arrays["hamiltonian"]
    stable = -2.0 / depths[:, None] * (arrays["kinetic"] + arrays["potential"])
    middle = np.median(H, axis=1)
    bars = np.abs(np.stack([middle - H.min(axis=1), H.max(axis=1) - middle]))
    style = {"linewidth": 1.9, "markersize": 6, "capsize": 4}
    axes.errorbar(
        depths, middle, bars, fmt="o-", color=PALETTE["blue"], label=r"$-\frac{2}{\tilde L}\mathcal{H}$", **style
    )
    label = r"$-\frac{2}{\tilde L}\mathcal{H}_\gamma$"
    axes.plot(depths, np.median(stable, axis=1), "s--", color=PALETTE["sky"], label=label, linewidth=1.6)
    least = arrays["identity_cost"].min(axis=1)
    axes.plot(depths, least, "^-", color=PALETTE["orange"], label=r"$\min_p\|A_p\|^2_{K+\gamma}$", linewidth=1.9)
    axes.axhline(rank, color=_GREY, linewidth=1.2, linestyle=":", label="rank of the task")
    # The first layers of a net that is not critical would hide everything else.
    axes.set_ylim(max(float(H.min()), -1.5 * rank) - 0.5, max(float(least.max()), float(middle.max()), rank) * 1.2)
    dress(axes, title="(a) estimates of the rank", x=r"effective depth $\tilde L$")
    axes.legend(frameon=False, fontsize=10)
    for column, index in enumerate(shown, start=1):
        one = {name: np.asarray(values[index]) for name, values in arrays.items() if np.ndim(values) >= 2}
        depth, letter = float(depths[index]), "abcd"[column]
        top, bottom = figure.add_subplot(grid[0, column]), figure.add_subplot(grid[1, column])
        draw_spectra(top, one, depth)
        top.set_title(rf"({letter}) $\tilde L$ = {depth:g}: $s_i(W_p)/\tilde L$", loc="left", fontsize=11.5)
        draw_energies(bottom, one, depth, float("nan"))
        # Both energies blow up in the first layers, where only their difference says something.
        low, high = min(0.0, float(H[index].min())), max(3.0 * rank, 2.0 * float(np.abs(H[index]).max()))
        bottom.set_yscale("linear")
        bottom.set_ylim(low - 0.05 * (high - low), high)
        bottom.axhline(rank, color=_GREY, linewidth=1.2, linestyle=":", zorder=1)
        residual = float(arrays["total_residual"][index])
        bottom.set_title(f"energies; residual {residual:.2g}", loc="left", fontsize=11.5)
        if column > 1:
            top.set_ylabel("")
        legend = bottom.get_legend()
        if column > 1 and legend is not None:
            legend.remove()


def draw_paths(figure: Figure, arrays: Mapping[str, Array]) -> None:
    """Path length and largest momenta against L̃, in three panels."""
    depths = arrays["effective_depths"]
    panels = (
        (r"path length $\int\|\partial_pA_p\|\,dp$", arrays["length"], None),
        (r"$\|B_p\|$", np.median(arrays["momentum_norm"], axis=1), arrays["momentum_norm"]),
        (r"$\|B_p\sigma(A_p)^T\|$", np.median(arrays["force_norm"], axis=1), arrays["force_norm"]),
    )
    for axes, colour, (title, values, spread) in zip(figure.subplots(1, 3), _COLOURS, panels):
        if spread is not None:
            axes.fill_between(depths, spread.min(axis=1), spread.max(axis=1), color=colour, alpha=0.15, linewidth=0)
        axes.plot(depths, values, "o-", color=colour, linewidth=1.9)
        dress(axes, title=title, x=r"effective depth $\tilde L$")
        axes.set_ylim(bottom=0.0)


def draw_discretisations(figure: Figure, arrays: Mapping[str, Array], *, rules: Sequence[str]) -> None:
    """Test error against the number of steps for each rule; spectra and paths of the rules at one number."""
    first, second, third = figure.subplots(1, 3)
    layers = arrays["layers"]
    for rule, colour, errors in zip(rules, _COLOURS, arrays["errors"]):
        first.plot(layers, errors.mean(axis=1), "o-", color=colour, label=rule, linewidth=1.9)
        # Each seed is another task: its own line, not a band over all of them.
        first.plot(layers, errors, color=colour, linewidth=0.8, alpha=0.35, zorder=1)
    dress(first, title="(a) test error", x="number of steps $L$", y="mean square per output")
    first.xaxis.set_major_locator(FixedLocator([float(n) for n in layers]))
    first.legend(frameon=False, title="mean over seeds; thin: each seed", title_fontsize=9)
    last = rules[-1]
    spectra = {"weight_spectra": arrays[f"{last}_spectra"], "positions": arrays[f"{last}_positions"]}
    draw_spectra(second, spectra, 1.0)
    second.set_title(f"(b) {last}, L = {int(arrays['shown'])}: $s_i(W_p)/\\tilde L$", loc="left", fontsize=11.5)
    for rule, colour in zip(rules, _COLOURS):
        draw_path(third, arrays[f"{rule}_path"], colour=colour, label=rule)
    for index, name in ((0, "inputs"), (-1, "outputs")):
        ends = np.stack([arrays[f"{rule}_path"][index] for rule in rules])
        place = (float(ends[:, 0].mean()), float(ends[:, 1].max()))
        third.annotate(name, place, textcoords="offset points", xytext=(0, 9), ha="center", fontsize=10.5)
    third.set_title(f"(c) the paths, L = {int(arrays['shown'])}", loc="left", fontsize=11.5)
    third.legend(frameon=False)
