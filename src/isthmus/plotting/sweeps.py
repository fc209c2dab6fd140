"""The picture of a sweep: rank over two parameters, ‖θ‖² against depth with affine pieces, loss against a number."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator, NullFormatter

from isthmus._atomic import shown
from isthmus._checks import check_choice, fail
from isthmus.plotting.names import readable
from isthmus.plotting.style import PALETTE, dress, headline, new_figure
from isthmus.plotting.sweeps_cells import Gathered, Setting, gather
from isthmus.plotting.sweeps_curves import curves, pieces

if TYPE_CHECKING:
    import pandas as pd

#: Colours of the ranks 0, 1, 2, …; all above the last share its colour.
RANKS = ("black", "purple", "blue", "green", "orange", "vermilion", "sky", "yellow")
#: Marks along an axis, curves in one panel, cells that carry their rank as a number.
MARKS, LINES, WRITTEN = 24, 8, 600
#: The parameters that make an axis of their own where they are swept.
DEPTHS, WIDTHS = ("depth", "depths"), ("width", "widths")

_INK, _GREY = "#333333", "#8A929C"
_DOTS = ("o", "s", "^", "D", "v", "P", "X", "*")


def draw_sweep(
    frame: pd.DataFrame,
    names: Sequence[str],
    estimate: Callable[[Any, Any], Any] | None = None,
    figure: Figure | None = None,
    *,
    title: str = "",
    x: str | None = None,
    y: str | None = None,
    where: Mapping[str, Any] | None = None,
) -> Figure:
    """Draw a sweep: a phase diagram of the rank; beside it ‖θ‖² against depth and the loss, where there are such.

    Parameters
    ----------
    frame : DataFrame
        ``SweepResult.frame``.
    names : sequence of str
        ``SweepResult.names``.
    estimate : callable, optional
        :func:`isthmus.measures.estimate_costs`, which fits the pieces; without it there are points alone.
    figure : Figure, optional
        An empty one to draw on; by default a new one.
    title : str
        Above all.
    x, y : str, optional
        Swept parameters across and up; by default depth, or the first, and then the next.
    where : mapping, optional
        Values at which the others are held; by default those with most finished runs.

    Returns
    -------
    Figure
    """
    found = gather(frame, names)
    across, up = axes_of(found, x, y)
    depth = next((name for name in DEPTHS if name in found.numeric() and found.numbers.get("norm")), None)
    number = loss_axis(found)
    count = 1 + (depth is not None) + (number is not None)
    figure = figure or new_figure(5.6 * count + 0.8, 5.4)
    headline(figure, readable(title or "A sweep", 400), _INK, size=13, per_inch=9.0)
    panels = iter(figure.subplots(1, count, squeeze=False)[0])
    draw_phase(next(panels), found, across, up, where)
    if depth is not None:
        draw_norms(next(panels), found, depth, estimate, where)
    if number is not None:
        draw_losses(next(panels), found, *number)
    return figure


def axes_of(found: Gathered, x: str | None = None, y: str | None = None) -> tuple[str | None, str | None]:
    """The parameters across and up: as given, else depth or the first, then the next."""
    names = [one.name for one in found.swept]
    for which, name in (("x", x), ("y", y)):
        if name is not None:
            check_choice("draw_sweep", which, name, names)
    left = [name for name in sorted(names, key=lambda name: name not in DEPTHS) if name not in (x, y)]
    x = x if x is not None else left.pop(0) if left else None
    return x, y if y is not None else left.pop(0) if left else None


def loss_axis(found: Gathered) -> tuple[str, str] | None:
    """A swept number and the column of losses to draw against it; width first, if it was swept."""
    column = next((c for c in ("loss", "cost") if any(map(math.isfinite, found.numbers.get(c, {}).values()))), None)
    names = sorted(found.numeric(), key=lambda name: (name not in WIDTHS, name not in DEPTHS))
    return (names[0], column) if names and column else None


def colour_of(rank: int) -> str:
    """The colour of a rank."""
    return PALETTE[RANKS[min(rank, len(RANKS) - 1)]]


def held(found: Gathered, free: Sequence[str], where: Mapping[str, Any] | None) -> tuple[int, ...]:
    """Where the other parameters are held: as given, else the place with most finished runs, the middle one of such."""
    given: dict[int, int] = {}
    for name, value in (where or {}).items():
        check_choice("draw_sweep", "where", name, [one.name for one in found.swept])
        axis = found.place(name)
        values = found.swept[axis].values
        if value not in values:
            do = f"Take one of {', '.join(found.swept[axis].labels[:20])}."
            fail("draw_sweep", f"`where` must hold {shown(name, 60)} at a value that was swept", repr(value)[:60], do)
        given[axis] = values.index(value)
    groups = found.along(*free)
    right = [at for at in groups if all(at[axis] in (-1, place) for axis, place in given.items())]
    if not right:
        return tuple(-1 if one.name in free else given.get(axis, 0) for axis, one in enumerate(found.swept))
    best = max(sum(one.measured for one in groups[at]) for at in right)
    equal = [at for at in right if sum(one.measured for one in groups[at]) == best]
    return equal[len(equal) // 2]


def draw_phase(
    axes: Axes, found: Gathered, x: str | None, y: str | None, where: Mapping[str, Any] | None = None
) -> None:
    """The most frequent rank as colour, the share of seeds that have it as opacity; a cell for each setting.

    Cells are equally large: a geometric range is a logarithmic axis. Crosses mark cells some of whose runs have no
    rank; a cell without any has no colour.
    """
    free = [name for name in (x, y) if name is not None]
    at = held(found, free, where)
    members = found.along(*free).get(at, [])
    sizes = []
    for name, along in ((x, axes.xaxis), (y, axes.yaxis)):
        labels = [""] if name is None else found.swept[found.place(name)].labels
        every = max(1, -(-len(labels) // MARKS))
        along.set_ticks(list(range(len(labels)))[::every])
        along.set_ticklabels([readable(text, 12) for text in labels[::every]], parse_math=False)
        sizes.append(len(labels))
    for one in members:
        spot = [0 if name is None else one.at[found.place(name)] for name in (x, y)]
        _cell(axes, one, spot[0], spot[1], math.prod(sizes))
    axes.set_xlim(-0.5, max(sizes[0], 1) - 0.5)
    axes.set_ylim(-0.5, max(sizes[1], 1) - 0.5)
    told = readable(found.where(at), 60) if any(i >= 0 for i in at) else ""
    _dressed(axes, f"Rank{f' at {told}' if told else ''}", _axis_name(found, x), _axis_name(found, y))
    axes.grid(False)
    if sum(len(label.get_text()) for label in axes.get_xticklabels()) > 44:
        axes.tick_params(axis="x", labelrotation=60)
    _phase_legend(axes, found.ranks(), members)


def _cell(axes: Axes, one: Setting, x: int, y: int, cells: int) -> None:
    box = {"xy": (x - 0.5, y - 0.5), "width": 1.0, "height": 1.0, "edgecolor": "white", "linewidth": 1.0}
    if one.rank is None:
        axes.add_patch(Rectangle(**{**box, "edgecolor": "#C3C9D0", "linewidth": 0.0}, facecolor="none", hatch="///"))
    else:
        axes.add_patch(Rectangle(**box, facecolor=colour_of(one.rank), alpha=one.agreement))
        if cells <= WRITTEN:
            size = 10 if cells <= 150 else 7
            ink = _ink(colour_of(one.rank), one.agreement)
            axes.text(x, y, str(one.rank), ha="center", va="center", fontsize=size, color=ink)
    if one.wanting:
        bad = one.states.get("failed", 0) + one.states.get("diverged", 0)
        spot = (x, y) if one.rank is None else (x + 0.33, y + 0.33)
        mark = {"marker": "x" if bad else ".", "markersize": 5, "markeredgewidth": 1.4}
        axes.plot(*spot, linestyle="", color=PALETTE["vermilion"] if bad else _INK, zorder=4, **mark)


def _ink(colour: str, opacity: float) -> str:
    """White or ink, whichever is read more easily on the colour over white."""
    red, green, blue = (opacity * part + 1.0 - opacity for part in to_rgb(colour))
    return "white" if 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 < 0.25 else _INK


def _phase_legend(axes: Axes, ranks: Sequence[int], members: Sequence[Setting]) -> None:
    top = len(RANKS) - 1
    handles: list[Any] = []
    for rank in ranks:
        if rank <= top or rank == min(r for r in ranks if r >= top):
            beyond = " and more" if rank >= top and max(ranks) > rank else ""
            handles.append(Patch(color=colour_of(rank), label="0: nothing left" if rank == 0 else f"{rank}{beyond}"))
    cross = {"marker": "x", "linestyle": "", "markersize": 5, "markeredgewidth": 1.4, "color": PALETTE["vermilion"]}
    if any(one.states.get("failed", 0) + one.states.get("diverged", 0) for one in members):
        handles.append(Line2D([], [], label="a run failed or diverged", **cross))
    if any(one.wanting > one.states.get("failed", 0) + one.states.get("diverged", 0) for one in members):
        handles.append(Line2D([], [], marker=".", linestyle="", color=_INK, label="a run is missing"))
    if any(one.measured and one.agreement < 1.0 for one in members):
        handles.append(Patch(color=_GREY, alpha=0.35, label="paler: fewer seeds agree"))
    if handles:
        place = {"loc": "upper left", "bbox_to_anchor": (0.0, -0.2)}
        axes.legend(handles=handles, frameon=False, fontsize=9, ncols=3, title="rank", alignment="left", **place)


def draw_norms(
    axes: Axes,
    found: Gathered,
    name: str,
    estimate: Callable[[Any, Any], Any] | None = None,
    where: Mapping[str, Any] | None = None,
) -> None:
    """‖θ‖² against depth in the colours of the rank, and ‖θ‖² = L·R0 + R1 (+ R2/L) fitted to each rank.

    Hollow points had not converged. A fit that is no one function is dashed, and the legend says so.
    """
    at = held(found, [name], where)
    here = dict(pieces(found, name, estimate or _nothing)).get(at, [])
    for piece in here:
        colour = colour_of(piece.rank)
        for settled, fill in ((True, colour), (False, "white")):
            mine = piece.converged == settled
            axes.plot(piece.depths[mine], piece.norms[mine], "o", color=colour, markerfacecolor=fill, markersize=6)
        dashes = "-"
        if piece.drawn:
            dashes = "-" if piece.fit.state == "computed" else "--"
            axes.plot(*piece.line(), dashes, color=colour, linewidth=1.4, alpha=0.85)
        axes.plot([], [], f"o{dashes if piece.drawn else ''}", color=colour, label=piece.told)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0.0, 1.15 * max([float(piece.norms.max()) for piece in here] + [1e-9]))
    told = readable(found.where(at), 60)
    _dressed(axes, f"Parameter norm{f' at {told}' if told else ''}", name, "", formula=r"$\|\theta\|^2$")
    if here:
        axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(0.0, -0.2))


def draw_losses(axes: Axes, found: Gathered, name: str, column: str = "loss") -> None:
    """Median over seeds against a swept number; the bars reach from the least to the greatest."""
    lines = list(curves(found, name, column))
    shown = [lines[i] for i in np.linspace(0, len(lines) - 1, min(len(lines), LINES)).astype(int)]
    positive = all((curve.low > 0).all() for curve in shown)
    axes.set_yscale("log" if positive and shown else "linear")
    axes.set_xscale("log" if found.swept[found.place(name)].logarithmic else "linear")
    paints = [value for key, value in PALETTE.items() if key != "yellow"]
    paints = paints[5:] + paints[:5]
    for index, curve in enumerate(shown):
        bars = np.stack([curve.middle - curve.low, curve.high - curve.middle])
        style = {"color": paints[index % len(paints)], "marker": _DOTS[index], "markersize": 5, "linewidth": 1.5}
        axes.errorbar(curve.x, curve.middle, bars, capsize=2, label=readable(found.where(curve.at), 40), **style)
    more = f" ({len(shown)} of {len(lines)} curves)" if len(shown) < len(lines) else ""
    _dressed(axes, f"{column.capitalize()}, range over seeds{more}", _axis_name(found, name), column)
    if axes.get_xscale() == "linear" and all(isinstance(v, int) for v in found.swept[found.place(name)].values):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if axes.get_yscale() == "log":
        axes.yaxis.set_minor_formatter(NullFormatter())
    if len(shown) > 1:
        place = {"loc": "upper left", "bbox_to_anchor": (0.0, -0.2)}
        for text in axes.legend(frameon=False, fontsize=9, ncols=2, **place).get_texts():
            text.set_parse_math(False)


def _dressed(axes: Axes, title: str, x: str, y: str, formula: str = "") -> None:
    """As everywhere; names of people's own are no mathematics, ``formula`` is."""
    dress(axes, x=readable(x, 40) if x else "", y=formula or (readable(y, 40) if y else ""))
    axes.xaxis.label.set_parse_math(False)
    axes.yaxis.label.set_parse_math(bool(formula))
    axes.set_title(title, loc="left", fontsize=12, color=_INK, pad=10, parse_math=False)


def _axis_name(found: Gathered, name: str | None) -> str:
    if name is None:
        return ""
    return f"{name} (logarithmic)" if found.swept[found.place(name)].logarithmic else name


def _nothing(depths: Any, norms: Any) -> None:  # noqa: ARG001 - in place of an estimate
    return None
