"""Figures of a Mechanics: the path in its plane, spectra of the weights, energies and residual over the position."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.figure import Figure as MatplotlibFigure

from isthmus._result import Table
from isthmus.plotting.draw import sheet
from isthmus.plotting.figure import SCALE, Figure, axis, layout, lines, powers, rule, short

#: Singular values of each W that are drawn, and steps up to which each has a mark of its own.
VALUES, MARKS = 24, 120
#: Residuals below this are rounding and drawn at it.
FLOOR = 1e-16
#: Above this ratio of the largest to the smallest energy their axis is logarithmic.
WIDE = 30.0

_PATH = (
    "Each point is the whole data set at one position of the network, drawn in the two directions in which it moves "
    "most; each segment is one step. It begins, dark, at the inputs and ends, light, at the outputs.",
    "A network with a bottleneck hurries to the set of narrow representations, moves little there, and hurries to the "
    "outputs: points crowd in the middle. Equal distances on both axes are equal distances in the network.",
)
_SPECTRA = (
    "Each line is one singular value of the weights W, divided by the effective depth L̃. The grey lines are where "
    "steps begin and end.",
    "To keep a representation of rank k as it is takes k singular values at the dashed line, and nothing else: how "
    "many lines lie near it in the middle is the rank. Higher lines stretch, lower ones let go.",
)
_ENERGIES = (
    "All in the unit of a rank. −(2/L̃)𝓗 is constant along a solution, and nears the rank from below as L̃ grows. The "
    "cost of identity is what it takes to rebuild the representation where it stands: about the rank inside a "
    "bottleneck, more outside.",
    "Kinetic energy is what moving costs. The dashed line is 𝓗 from potential and kinetic energy alone, stabilised by "
    "γ; where it leaves −(2/L̃)𝓗, γ matters, or the network is not at a solution.",
)
_RESIDUAL = (
    "How far every step is from what minimises cost + ridge: W = L̃Bσ(A)ᵀ, with B the momenta. It is the gradient of "
    "the loss, relative to that of the ridge.",
    "Above the dashed line the network is not at a solution there, and energies mean little: train on. What is below "
    "10⁻¹⁶ is drawn at it.",
)
#: Name in :func:`energies` → name in the legend, colour, dashes.
_LINES = {
    "hamiltonian": ("−(2/L̃)𝓗", "@blue", "solid"),
    "stable": ("−(2/L̃)𝓗 of γ", "@sky", "dash"),
    "identity_cost": ("cost of identity", "@orange", "solid"),
    "kinetic": ("(2/L̃)·kinetic", "@green", "dashdot"),
}


def energies(arrays: dict[str, Any], effective_depth: float) -> dict[str, Any]:
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


def figures(found: Any) -> list[Figure]:
    """The four figures; none where mechanics are not applicable."""
    a = found.arrays
    if a is None:
        return []
    depth = found.effective_depth
    along = energies_along(a, depth, found.rank_estimate)
    return [path(a), spectra(a, depth), along, _residual(a, found.tolerance)]


def path(a: Any) -> Figure:
    """The representations in their two leading directions, from the inputs to the outputs."""
    count = len(a.path)
    marker = {"color": short(a.positions), "colorscale": SCALE, "cmin": 0.0, "cmax": float(a.positions[-1])}
    marker |= {"size": 10 if count <= MARKS else 5, "line": {"width": 1, "color": "@paper"}}
    line = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": short(a.path[:, 0]),
        "y": short(a.path[:, 1]),
        "line": {"color": "@faint", "width": 1.5},
        "marker": marker,
        "text": [f"after step {ell}, p = {p:.3g}" if ell else "inputs, p = 0" for ell, p in enumerate(a.positions)],
        "hovertemplate": "%{text}",
    }
    # One unit for both directions: lengths in the picture are lengths.
    up = axis("second direction", scaleanchor="x")
    chart = layout(axis("first direction"), up)
    told = f"The path of {count} representations in their two leading directions."
    return Figure("mechanics-path", "The path in its two leading directions", [line], chart, _PATH, told, 460)


def spectra(a: Any, effective_depth: float) -> Figure:
    """Singular values of W_p/L̃ along the path, steps as grey lines."""
    values = a.weight_spectra[:, :VALUES] / effective_depth
    # Every W holds for its whole step: the last value is drawn to the end.
    values = np.vstack([values, values[-1:]])
    data = []
    for index in reversed(range(values.shape[1])):
        hover = f"p = %{{x:.3g}}, value {index + 1}: %{{y:.3g}}"
        line = {"color": "@blue" if index < 8 else "@faint", "width": 1.8, "shape": "hv"}
        one = {"type": "scatter", "mode": "lines", "x": short(a.positions), "y": short(values[:, index])}
        data.append({**one, "line": line, "opacity": max(0.35, 1.0 - 0.06 * index), "hovertemplate": hover})
    shapes = [*_steps(a), rule(1.0, "@green", along="y")]
    chart = layout(_across(a), axis("singular value / L̃", rangemode="tozero"), shapes=shapes)
    missing = a.weight_spectra.shape[1] - VALUES
    more = (f"Only the {VALUES} largest of {VALUES + missing} are drawn.",) if missing > 0 else ()
    told = "Singular values of the weights over the position."
    return Figure("mechanics-spectra", "Singular values of W/L̃", data, chart, (*_SPECTRA, *more), told, 420)


def energies_along(a: Any, effective_depth: float, middle: float = math.nan) -> Figure:
    """Hamiltonian, cost of identity and kinetic energy along the path, in the unit of a rank."""
    arrays = {name: getattr(a, name) for name in ("hamiltonian", "kinetic", "potential", "identity_cost")}
    data = []
    for name, values in energies(arrays, effective_depth).items():
        label, colour, dash = _LINES[name]
        hover = f"p = %{{x:.3g}}, {label}: %{{y:.4g}}"
        one = lines(short(a.positions[:-1]), short(values), colour, size=5, name=label, hovertemplate=hover)
        mode = "lines+markers" if len(values) <= 60 else "lines"
        data.append({**one, "mode": mode, "line": {"color": colour, "width": 2, "dash": dash}})
    shapes = _steps(a) + ([rule(middle, "@muted", along="y", dash="dot")] if math.isfinite(middle) else [])
    seen = np.concatenate([-arrays["hamiltonian"], arrays["identity_cost"]])
    seen = seen[np.isfinite(seen)]
    up = axis("in the unit of a rank")
    if len(seen) and seen.min() > 0 and seen.max() > WIDE * seen.min():
        up |= {"type": "log"}
    chart = layout(_across(a), up, shapes=shapes, showlegend=True)
    reading = [*_ENERGIES]
    if math.isfinite(middle):
        reading.append(f"The dotted line is the median of −(2/L̃)𝓗, {middle:.3g}.")
    told = "Hamiltonian, cost of identity and kinetic energy over the position."
    return Figure("mechanics-energies", "Energies along the path", data, chart, reading, told, 440)


def _residual(a: Any, tolerance: float) -> Figure:
    values = np.append(a.residual, a.residual[-1:])
    values = np.where(np.isfinite(values), np.maximum(values, FLOOR), np.nan)
    known = values[np.isfinite(values)]
    ends = [*known, *([tolerance] if tolerance > 0 else [])] or [1.0]
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": short(a.positions),
            "y": short(values),
            "line": {"color": "@vermilion", "width": 2, "shape": "hv"},
            "hovertemplate": "p = %{x:.3g}: %{y:.3g}",
        }
    ]
    marks = powers(min(ends), max(ends))
    if len(marks["tickvals"]) > 9:
        every = -(-len(marks["tickvals"]) // 9)
        marks |= {key: marks[key][::every] for key in ("tickvals", "ticktext")}
    up = axis("relative residual", **marks, range=[math.log10(min(ends)) - 0.6, math.log10(max(ends)) + 0.6])
    shapes = _steps(a) + ([rule(tolerance, "@green", along="y")] if tolerance > 0 else [])
    told = "The residual of criticality over the position."
    title = "Is it a solution? ‖W − L̃Bσ(A)ᵀ‖/‖W‖"
    return Figure("mechanics-residual", title, data, layout(_across(a), up, shapes=shapes), _RESIDUAL, told, 360)


def _across(a: Any) -> dict[str, Any]:
    return axis("position p", range=[0.0, float(a.positions[-1])], showgrid=False)


def _steps(a: Any) -> list[dict[str, Any]]:
    """A grey line where each step begins and ends; of many steps none."""
    if len(a.positions) > MARKS:
        return []
    return [rule(float(p), "@line", dash="solid") for p in a.positions]


def plot(found: Any, figure: MatplotlibFigure | None = None) -> MatplotlibFigure:
    """All of them on one sheet."""
    # The bold font has no script letters.
    sentence = found.sentence.replace("𝓗", "H")
    return sheet([(one, None) for one in figures(found)], sentence, found.state, figure=figure)


_STEPS = (
    "One row for each step. Costs, ‖A‖ and ‖B‖ are at its beginning; 𝓗 and the residual pair the representation at its "
    "beginning with the momenta at its end.",
    "Without γ the cost of identity is infinite where the representation cannot be rebuilt exactly, as with more "
    "samples than neurons.",
)

#: Columns of the table of the steps.
_COLUMNS = {
    "positions": "p",
    "rho": "length ρ",
    "hamiltonian": "𝓗",
    "identity_cost": "cost of identity",
    "identity_cost_exact": "without γ",
    "effective_dimension": "effective dimension",
    "kinetic": "kinetic",
    "potential": "potential",
    "cross": "cross term",
    "speed": "speed",
    "weight_norm": "‖W‖",
    "bias_norm": "‖b‖",
    "residual": "residual",
    "residual_plain": "of the plain gradient",
    "step_length": "‖ΔA‖",
    "momentum_norm": "‖B‖",
    "size": "‖A‖",
    "negative_share": "negative share",
}


def steps(a: Any) -> Table:
    """Every step of MechanicsArrays in a table."""
    columns = [getattr(a, name) for name in _COLUMNS]
    # What is not finite is a word: a dash would say "not computed".
    cells = [["∞" if value == math.inf else value for value in column[: len(a.rho)].tolist()] for column in columns]
    rows = [[step, *values] for step, values in enumerate(zip(*cells), start=1)]
    heads = ["step", *_COLUMNS.values()]
    brief = [heads.index(name) for name in ("step", "p", "𝓗", "cost of identity", "kinetic", "‖W‖", "residual")]
    return Table("mechanics-steps", "Every step", heads, rows, _STEPS, folded=len(rows) > 60, brief=brief)
