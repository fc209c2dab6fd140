"""The picture of a mechanics: the path in its plane, the spectra of its weights, energies and residual along it."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from isthmus.plotting.names import readable
from isthmus.plotting.style import PALETTE, dress, headline, new_figure

Array = np.ndarray[Any, np.dtype[np.float64]]

#: Singular values of each W that are drawn, and steps up to which each has a mark of its own.
VALUES, MARKS = 24, 120
#: Residuals below this are rounding and drawn at it.
FLOOR = 1e-16
#: Above this ratio of the largest to the smallest energy their axis is logarithmic.
WIDE = 30.0

_INK, _GREY, _STEP = "#333333", "#8A929C", "#D5DAE0"
_STATES = {"conserved": "green", "drifting": "vermilion", "not yet critical": "vermilion", "not applicable": "blue"}
_ALONG: Colormap = LinearSegmentedColormap.from_list("along", ["#9CCBE6", "#0072B2", "#0B2545"])
#: Name in :func:`energies` → label, colour and dashes of its line.
_LINES = {
    "hamiltonian": (r"$-\frac{2}{\tilde{L}}\,\mathcal{H}$", PALETTE["blue"], "-"),
    "stable": (r"$-\frac{2}{\tilde{L}}\,\mathcal{H}_\gamma$", PALETTE["sky"], "--"),
    "identity_cost": (r"cost of identity $\|A\|^2_{K+\gamma}$", PALETTE["orange"], "-"),
    "kinetic": (r"$\frac{2}{\tilde{L}}\,$kinetic", PALETTE["green"], "-."),
}


def draw_mechanics(content: dict[str, Any], figure: Figure | None = None) -> Figure:
    """Draw a Mechanics: its path, the spectra of W_p, energies and residual over p, steps as grey lines.

    Parameters
    ----------
    content : dict
        From ``Mechanics.to_dict()``.
    figure : Figure, optional
        An empty one to draw on; by default a new one.

    Returns
    -------
    Figure
    """
    if figure is None:
        figure = new_figure(14.0, 9.4)
    colour = PALETTE[_STATES.get(content["state"], "black")]
    # The bold font has no script letters.
    headline(figure, readable(content["sentence"].replace("𝓗", "H"), 4000), colour)
    if content["arrays"] is None:
        return figure
    arrays = {name: np.asarray(values, dtype=np.float64) for name, values in content["arrays"].items()}
    depth = float(content["effective_depth"])
    grid = figure.add_gridspec(2, 2)
    axes = [figure.add_subplot(grid[i, j]) for i in range(2) for j in range(2)]
    draw_path(axes[0], arrays["path"])
    draw_spectra(axes[1], arrays, depth)
    draw_energies(axes[2], arrays, depth, float(content["rank_estimate"]))
    _residual(axes[3], arrays, float(content["tolerance"]))
    return figure


def energies(arrays: dict[str, Array], effective_depth: float) -> dict[str, Array]:
    """Energies in the unit of a rank, each (L,): −(2/L̃)𝓗, −(2/L̃)𝓗_γ, ‖A‖²_{K+γI} and (2/L̃)·kinetic."""
    unit = 2.0 / effective_depth
    # A representation that nothing rebuilds has infinite energies, whose sum is no number.
    with np.errstate(invalid="ignore", over="ignore"):
        return {
            "hamiltonian": -unit * arrays["hamiltonian"],
            "stable": -unit * (arrays["kinetic"] + arrays["potential"]),
            "identity_cost": arrays["identity_cost"],
            "kinetic": unit * arrays["kinetic"],
        }


def draw_path(axes: Axes, path: Array, *, colour: str | None = None, label: str = "") -> None:
    """The points A_p in their plane, from light (inputs) to dark (outputs); each step is one segment.

    With ``colour`` the points have that one, so that several paths can share the axes.
    """
    axes.plot(path[:, 0], path[:, 1], color=colour or _GREY, linewidth=1.2, zorder=2, label=label)
    along = np.linspace(0.0, 1.0, len(path))
    style: dict[str, Any] = {"c": along, "cmap": _ALONG} if colour is None else {"color": colour}
    size = 42 if len(path) <= MARKS else 12
    axes.scatter(path[:, 0], path[:, 1], s=size, zorder=3, edgecolors="white", linewidths=0.6, **style)
    for index, name in ((0, "inputs"), (-1, "outputs")) if colour is None else ():
        style = {"textcoords": "offset points", "xytext": (7, 7), "fontsize": 10.5, "color": _INK, "zorder": 4}
        axes.annotate(name, (float(path[index, 0]), float(path[index, 1])), **style)
    dress(axes, title="The path $A_p$ in its two leading directions", x="first direction", y="second direction")
    # One unit for both: lengths in the picture are lengths.
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.12)


def _steps(axes: Axes, positions: Array) -> None:
    """A grey line where each step begins and ends."""
    for p in positions if len(positions) <= MARKS else ():
        axes.axvline(float(p), color=_STEP, linewidth=0.8, zorder=0)
    axes.set_xlim(0.0, float(positions[-1]))


def draw_spectra(axes: Axes, arrays: dict[str, Array], depth: float) -> None:
    """Singular values of W_p/L̃ along the path, steps as grey lines."""
    values, p = arrays["weight_spectra"][:, :VALUES] / depth, arrays["positions"]
    for index in reversed(range(values.shape[1])):
        shade = PALETTE["blue"] if index < 8 else _GREY
        # Every W holds for its whole step.
        axes.stairs(values[:, index], p, color=shade, linewidth=1.5, alpha=max(0.25, 1.0 - 0.08 * index), baseline=None)
    axes.axhline(1.0, color=PALETTE["green"], linewidth=1.3, linestyle="--", zorder=1)
    _steps(axes, p)
    dress(axes, title=r"Singular values of $W_p/\tilde{L}$", x="position $p$", y=r"$s_i(W_p)/\tilde{L}$")
    axes.grid(False, axis="x")
    axes.set_ylim(bottom=0.0)


def draw_energies(axes: Axes, arrays: dict[str, Array], depth: float, rank: float) -> None:
    """Hamiltonian, cost of identity and kinetic energy along the path, in the unit of a rank."""
    p = arrays["positions"]
    found = energies(arrays, depth)
    shown = np.concatenate([found[name] for name in ("hamiltonian", "identity_cost")])
    shown = shown[np.isfinite(shown)]
    log = len(shown) > 0 and shown.min() > 0 and shown.max() > WIDE * shown.min()
    if log:
        axes.set_yscale("log")
        low = 0.3 * min(1.0, float(shown.min()))
        axes.set_ylim(low, 2.0 * float(shown.max()))
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    for name, (label, colour, dashes) in _LINES.items():
        values = np.where(np.isfinite(found[name]), found[name], np.nan)
        style = {"linewidth": 1.9, "marker": "o" if len(values) <= 40 else "", "markersize": 3.4}
        axes.plot(p[:-1], values, dashes, color=colour, label=label, zorder=3, **style)
    if np.isfinite(rank):
        axes.axhline(rank, color=_GREY, linewidth=1.0, linestyle=":", zorder=1)
    _steps(axes, p)
    dress(axes, title="Energies, in the unit of a rank", x="position $p$")
    axes.grid(False, axis="x")
    axes.legend(frameon=False, fontsize=10, ncols=2, loc="best", handlelength=2.6)


def _residual(axes: Axes, arrays: dict[str, Array], tolerance: float) -> None:
    p, residual = arrays["positions"], arrays["residual"]
    values = np.where(np.isfinite(residual), np.maximum(residual, FLOOR), np.nan)
    axes.set_yscale("log")
    axes.stairs(values, p, color=PALETTE["vermilion"], linewidth=1.9, baseline=None, zorder=3)
    known = values[np.isfinite(values)]
    ends = [*known, tolerance] if tolerance > 0 else list(known)
    if ends:
        axes.set_ylim(min(ends) / 5.0, max(ends) * 5.0)
    if tolerance > 0:
        axes.axhline(tolerance, color=PALETTE["green"], linewidth=1.3, linestyle="--", zorder=1)
        style = {"fontsize": 9.5, "color": PALETTE["green"], "transform": axes.get_yaxis_transform(), "ha": "right"}
        axes.text(0.99, tolerance * 1.15, "critical below", va="bottom", **style)
    _steps(axes, p)
    title = r"Is it critical? $\|W-\tilde{L}B\sigma(A)^{T}\|\,/\,\|W\|$"
    dress(axes, title=title, x="position $p$", y="relative residual")
    axes.grid(False, axis="x")
