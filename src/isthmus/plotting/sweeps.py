"""Pictures of a sweep: rank over two parameters, ‖θ‖² against depth with affine pieces, loss against a number."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure as MatplotlibFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from isthmus._atomic import shown
from isthmus._checks import check_choice, fail
from isthmus._html import plain
from isthmus.plotting.draw import draw
from isthmus.plotting.figure import Choice, Figure, axis, label, layout, powers, short
from isthmus.plotting.style import PALETTE, dress, headline, new_figure, readable

if TYPE_CHECKING:
    import pandas as pd

#: Colours of the ranks 0, 1, 2, …; all above the last share its colour.
RANKS = ("black", "purple", "blue", "green", "orange", "vermilion", "sky", "yellow")
#: Marks along an axis, cells that carry their rank as a number.
MARKS, WRITTEN = 24, 600
#: The parameters that make an axis of their own where they are swept.
DEPTHS, WIDTHS = ("depth", "depths"), ("width", "widths")

_INK, _GREY = "#333333", "#8A929C"


def draw_sweep(
    frame: pd.DataFrame,
    names: Sequence[str],
    estimate: Callable[[Any, Any], Any] | None = None,
    figure: MatplotlibFigure | None = None,
    *,
    title: str = "",
    x: str | None = None,
    y: str | None = None,
    where: Mapping[str, Any] | None = None,
) -> MatplotlibFigure:
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
    known, lost = families(found, estimate), losses(found)[:1]
    count = 1 + bool(known) + len(lost)
    figure = figure or new_figure(5.6 * count + 0.8, 5.4)
    headline(figure, readable(title or "A sweep", 400), _INK, size=13, per_inch=9.0)
    panels = iter(figure.subplots(1, count, squeeze=False)[0])
    draw_phase(next(panels), found, across, up, where)
    if known:
        depth = next(name for name in DEPTHS if name in found.numeric())
        at = held(found, [depth], where)
        draw(
            next(panels),
            norms(found, known, at),
            title=f"‖θ‖² against {depth}{f' at {found.where(at)}' if found.where(at) else ''}",
        )
    for one in lost:
        draw(next(panels), one)
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
    dress(axes)
    axes.set_title(f"Rank{f' at {told}' if told else ''}", loc="left", fontsize=12, pad=10, parse_math=False)
    axes.set_xlabel(_axis_name(found, x), parse_math=False)
    axes.set_ylabel(_axis_name(found, y), parse_math=False)
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


#: Colours of the ranks, as in the cells.
COLOURS = tuple("@muted" if name == "black" else f"@{name}" for name in RANKS)
#: Settings in a menu, rows of fitted numbers, curves side by side, swept numbers with a figure of their own.
MENU, COSTS, LINES, NUMBERS = 200, 200, 8, 4
_PAINTS = ("@blue", "@vermilion", "@green", "@orange", "@purple", "@sky", "@muted", "@ink")
_SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star")

_NORMS = (
    "Each point is one network, in the colour of its rank; hollow ones had not converged. Networks of one function "
    "have ‖θ‖² ≈ L·R0 + R1: a straight line whose slope R0 is the rank.",
    "The slopes in the legend are fitted to all networks of a rank, with a 95 % interval. From random starts these may "
    "be several functions of one rank: then the line is dashed (“not affine”), or the interval is wide.",
    "“Too few depths” means fewer than three: nothing is fitted.",
)
_LOSS = (
    "Medians over the seeds; the bars reach from the least to the greatest. Runs that are not done are left out.",
    "A level that begins at some value says that more of this parameter does not help there.",
)


def families(found: Gathered, estimate: Callable[[Any, Any], Any] | None) -> list[tuple[tuple[int, ...], list[Piece]]]:
    """Networks by rank against depth, for every place of the other parameters; empty where there are none."""
    depth = next((name for name in DEPTHS if name in found.numeric()), None)
    if depth is None or not any(map(math.isfinite, found.numbers.get("norm", {}).values())):
        return []
    return pieces(found, depth, estimate or _nothing, MENU)


def norms(
    found: Gathered, known: list[tuple[tuple[int, ...], list[Piece]]], at: tuple[int, ...] | None = None
) -> Figure:
    """‖θ‖² against depth in the colours of the rank, and ‖θ‖² = L·R0 + R1 (+ R2/L) fitted to each rank.

    Hollow points had not converged. A fit that is no one function is dashed, and the legend says so.
    """
    depth = next(name for name in DEPTHS if name in found.numeric())
    options = [(plain(found.where(place), 60) or "all", {"data": _family(parts)}) for place, parts in known]
    places = [place for place, _ in known]
    first = places.index(at) if at in places else len(options) // 2
    across = axis(label(depth), showgrid=False, integer=True)
    chart = layout(across, axis("‖θ‖²", rangemode="tozero"), showlegend=True)
    reading: list[str] = [*_NORMS]
    if (left := len(found.along(depth)) - MENU) > 0:
        reading.append(f"The menu has the first {MENU} settings of the other parameters; {left} more are left out.")
    choices = [Choice("at", options, first)] if len(options) > 1 else []
    told = "Squared parameter norm against depth, by rank."
    title = "Squared parameter norm against depth"
    return Figure("norms", title, options[first][1]["data"], chart, reading, told, 480, choices=choices)


def _family(parts: list[Piece]) -> list[dict[str, Any]]:
    """Points of each rank, then the lines."""
    data = []
    for piece in parts:
        colour = COLOURS[min(piece.rank, len(COLOURS) - 1)]
        solid = piece.fit is None or piece.fit.state == "computed"
        if piece.drawn:
            L, values = piece.line(12)
            line = {"color": colour, "width": 1.8, "dash": "solid" if solid else "dash"}
            shape = {"type": "scatter", "mode": "lines", "x": short(L), "y": short(values), "line": line}
            data.append(shape | {"hoverinfo": "skip", "showlegend": False, "legendgroup": f"rank {piece.rank}"})
        fill = [colour if settled else "@paper" for settled in piece.converged]
        marker = {"size": 9, "color": fill, "line": {"color": colour, "width": 2}}
        points = {"type": "scatter", "mode": "markers", "x": short(piece.depths), "y": short(piece.norms)}
        points |= {"marker": marker, "name": piece.told, "legendgroup": f"rank {piece.rank}"}
        data.append(points | {"hovertemplate": f"rank {piece.rank}, L = %{{x}}: ‖θ‖² = %{{y:.4g}}"})
    return data


def losses(found: Gathered) -> list[Figure]:
    """The loss against each swept number, widths first; a menu where there are many curves."""
    column = next((c for c in ("loss", "cost") if any(map(math.isfinite, found.numbers.get(c, {}).values()))), None)
    if column is None:
        return []
    names = sorted(found.numeric(), key=lambda name: (name not in WIDTHS, name not in DEPTHS))[:NUMBERS]
    figures: list[Figure] = []
    for index, name in enumerate(names):
        every = list(curves(found, name, column))
        if any(len(curve.x) > 1 for curve in every):
            figures.append(_losses(found, f"{column}-{index}", found.swept[found.place(name)], column, every))
    return figures


def _losses(found: Gathered, key: str, across: Swept, column: str, every: list[Curve]) -> Figure:
    together = len(every) <= LINES
    options = [(plain(found.where(curve.at), 60) or "all", {"data": [_curve(curve, 0, "")]}) for curve in every[:MENU]]
    many = together and len(every) > 1
    data = [_curve(curve, i, label(found.where(curve.at), 40) if many else "") for i, curve in enumerate(every)]
    ends = min(float(curve.low.min()) for curve in every), max(float(curve.high.max()) for curve in every)
    up = axis(column, **_scale(*ends))
    scale: dict[str, Any] = {}
    if across.logarithmic:
        scale = {"type": "log", "tickvals": [float(value) for value in across.values], "ticktext": across.labels}
    chart = layout(axis(label(across.name), showgrid=False, **scale), up) | {"showlegend": many}
    reading: list[str] = [*_LOSS]
    if not together and len(every) > MENU:
        reading.append(f"The menu has the first {MENU} settings of the others; {len(every) - MENU} more are left out.")
    choices = [] if together else [Choice("at", options, len(options) // 2)]
    told = f"{column.capitalize()} against a swept parameter, median and range over seeds."
    title = f"{column.capitalize()} against {plain(across.name, 40)}"
    shown = data if together else options[len(options) // 2][1]["data"]
    return Figure(key, title, shown, chart, reading, told, 420, choices=choices)


def _scale(low: float, high: float) -> dict[str, Any]:
    """Powers of ten where numbers span more than one of them, 1-2-5 where they span little more than one."""
    if not 0 < low < high or high < 8 * low:
        return {}
    if high > 300 * low:
        return powers(low, high)
    ends = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [float(f"{step}e{power}") for power in ends for step in (1, 2, 5)]
    return {"type": "log", "tickvals": marks, "ticktext": [f"{mark:g}" for mark in marks]}


def _curve(curve: Curve, index: int, name: str) -> dict[str, Any]:
    colour = _PAINTS[index % len(_PAINTS)]
    bars = {"color": colour, "thickness": 1.4, "width": 3}
    bars |= {"array": short(curve.high - curve.middle), "arrayminus": short(curve.middle - curve.low)}
    told = f"{name}\n" if name else ""
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": short(curve.x),
        "y": short(curve.middle),
        "error_y": bars,
        "name": name,
        "line": {"color": colour, "width": 2},
        "marker": {"color": colour, "size": 7, "symbol": _SYMBOLS[index % len(_SYMBOLS)]},
        "hovertemplate": f"{told}%{{x}}: %{{y:.4g}}",
    }


def _axis_name(found: Gathered, name: str | None) -> str:
    if name is None:
        return ""
    return readable(f"{name} (logarithmic)" if found.swept[found.place(name)].logarithmic else name, 40)


def _nothing(depths: Any, norms: Any) -> None:  # noqa: ARG001 - in place of an estimate
    return None


# ---- A table of runs gathered into settings: the ranks of all seeds, how many agree, what is missing


#: The state of a run that was computed to its end.
DONE = "done"
#: Steps of an axis are equal within this share; values that spread over this factor are read by powers.
EVEN, SPREAD = 0.02, 30.0


@dataclass(frozen=True)
class Swept:
    """A parameter that was swept, and its values in their order."""

    name: str
    values: tuple[Any, ...]

    @property
    def labels(self) -> list[str]:
        """The values as people read them, with as few digits as keep them apart."""
        for digits in (3, 4, 6, 17):
            told = ["none" if v is None else f"{v:.{digits}g}" if isinstance(v, float) else str(v) for v in self.values]
            if len(set(told)) == len(told):
                break
        return told

    @property
    def numeric(self) -> bool:
        """Whether it can be an axis of numbers."""
        return len(self.values) > 1 and all(_is_number(value) for value in self.values)

    @property
    def logarithmic(self) -> bool:
        """Whether its values are geometric, or spread so unevenly that powers show them better."""
        if not self.numeric or min(self.values) <= 0 or len(self.values) < 3:
            return False
        steps = np.diff(np.asarray(self.values, dtype=np.float64))
        factors = np.diff(np.log(np.asarray(self.values, dtype=np.float64)))
        if np.ptp(steps) <= EVEN * steps.mean():
            return False
        return bool(np.ptp(factors) <= EVEN * factors.mean()) or self.values[-1] >= SPREAD * self.values[0]


@dataclass(frozen=True)
class Setting:
    """One value of every swept parameter, and what its seeds gave.

    Attributes
    ----------
    at : tuple of int
        Which value of each parameter.
    keys : tuple of str
        Its runs, whatever became of them.
    states : mapping of str to int
        How many runs are in which state.
    ranks : mapping of int to int
        How many of the finished runs have which rank.
    """

    at: tuple[int, ...]
    keys: tuple[str, ...]
    states: Mapping[str, int]
    ranks: Mapping[int, int]

    @property
    def measured(self) -> int:
        """Finished runs that have a rank."""
        return sum(self.ranks.values())

    @property
    def rank(self) -> int | None:
        """The most frequent rank, of equally frequent ones the smallest; None if nothing was measured."""
        return min(self.ranks, key=lambda rank: (-self.ranks[rank], rank)) if self.ranks else None

    @property
    def agreement(self) -> float:
        """The share of the measured runs that have :attr:`rank`."""
        return max(self.ranks.values()) / self.measured if self.ranks else math.nan

    @property
    def wanting(self) -> int:
        """Runs that have no rank: failed, diverged, not computed yet."""
        return len(self.keys) - self.measured

    @property
    def told(self) -> str:
        """What came out, in words."""
        others = [f"{count} {state}" for state, count in self.states.items() if state != DONE]
        if unread := self.states.get(DONE, 0) - self.measured:
            others.append(f"{unread} done without a rank")
        if self.rank is None:
            return "; ".join(others) or "nothing was computed"
        first = f"rank {self.rank} in {self.ranks[self.rank]} of {self.measured} run{'s' * (self.measured != 1)}"
        if len(self.ranks) > 1:
            rest = sorted(rank for rank in self.ranks if rank != self.rank)
            first += f", {', '.join(map(str, rest))} in the others"
        return "; ".join([first, *others])


@dataclass(frozen=True, eq=False)
class Gathered:
    """All settings of a sweep, and the numbers of its finished runs by name and key."""

    swept: tuple[Swept, ...]
    settings: tuple[Setting, ...]
    numbers: Mapping[str, Mapping[str, float]]

    def place(self, name: str) -> int:
        """The number of a swept parameter."""
        return [one.name for one in self.swept].index(name)

    def numeric(self) -> list[str]:
        """Swept parameters that can be an axis of numbers."""
        return [one.name for one in self.swept if one.numeric]

    def along(self, *names: str) -> dict[tuple[int, ...], list[Setting]]:
        """Settings that differ in ``names`` alone, by the place of all others (−1 at ``names``)."""
        free = {self.place(name) for name in names}
        found: dict[tuple[int, ...], list[Setting]] = {}
        for one in self.settings:
            found.setdefault(tuple(-1 if i in free else at for i, at in enumerate(one.at)), []).append(one)
        return dict(sorted(found.items()))

    def where(self, at: Sequence[int]) -> str:
        """A place in words: ``"ridge = 0.001, width = 50"``."""
        pairs = [(one.name, one.labels[i]) for one, i in zip(self.swept, at) if i >= 0 and len(one.values) > 1]
        return ", ".join(f"{name} = {value}" for name, value in pairs)

    def ranks(self) -> list[int]:
        """All ranks that were found."""
        return sorted({rank for one in self.settings for rank in one.ranks})


def gather(frame: pd.DataFrame, names: Sequence[str]) -> Gathered:
    """Settings from one row for each run: ``state``, a column for each of ``names``, and what was measured.

    Parameters
    ----------
    frame : DataFrame
        Indexed by key. Columns of numbers are kept for runs that are done.
    names : sequence of str
        Swept parameters, without the seed.
    """
    # A swept width and a measured width would be one column: the first of a name counts.
    frame = frame.loc[:, ~frame.columns.duplicated()]
    columns = [[_plain(value) for value in frame[name]] for name in names]
    swept = tuple(Swept(name, tuple(sorted(set(column), key=_order))) for name, column in zip(names, columns))
    places = [{value: i for i, value in enumerate(one.values)} for one in swept]
    keys, states = [str(key) for key in frame.index], [str(state) for state in frame["state"]]
    finished = [key for key, state in zip(keys, states) if state == DONE]
    done = frame[frame["state"] == DONE]
    numbers = {
        str(name): {key: _number(value) for key, value in zip(finished, done[name])}
        for name in frame.columns
        if name not in (*names, "state", "error", "seed")
    }
    rank = numbers.get("rank", {})
    members: dict[tuple[int, ...], list[int]] = {}
    for row in range(len(keys)):
        at = tuple(place[column[row]] for place, column in zip(places, columns))
        members.setdefault(at, []).append(row)
    settings = []
    for at, rows in sorted(members.items()):
        found = [rank[keys[row]] for row in rows if keys[row] in rank]
        ranks = Counter(int(value) for value in found if math.isfinite(value) and value >= 0 and value == int(value))
        counts = Counter(states[row] for row in rows)
        settings.append(Setting(at, tuple(keys[row] for row in rows), dict(counts), dict(ranks)))
    return Gathered(swept, tuple(settings), numbers)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    """A value as Python has it; None where there is none."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float):
        return None if math.isnan(value) else int(value) if value.is_integer() and abs(value) < 2**53 else value
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def _order(value: Any) -> tuple[int, Any]:
    """Numbers first, by size; then truths and texts; what is missing last."""
    return (2, "") if value is None else (0, value) if _is_number(value) else (1, str(value))


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


@dataclass(frozen=True, eq=False)
class Curve:
    """One number against a swept one, the others held at ``at``: median, least and greatest over the seeds."""

    at: tuple[int, ...]
    x: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray


def curves(found: Gathered, name: str, column: str) -> Iterator[Curve]:
    """Curves of ``column`` against the swept ``name``, one for every place of the others that has numbers."""
    axis, numbers = found.place(name), found.numbers.get(column, {})
    for at, members in found.along(name).items():
        rows = []
        for one in members:
            values = [numbers[key] for key in one.keys if math.isfinite(numbers.get(key, math.nan))]
            if values:
                x = float(found.swept[axis].values[one.at[axis]])
                rows.append((x, float(np.median(values)), min(values), max(values)))
        if rows:
            yield Curve(at, *np.array(rows, dtype=np.float64).T)


@dataclass(frozen=True, eq=False)
class Piece:
    """‖θ‖² of the networks of one rank over depths, and ‖θ‖² = L·R0 + R1 + R2/L fitted to them.

    ``fit`` is what ``estimate`` gave; None for rank 0, since where nothing is left there is no slope to read.
    """

    rank: int
    depths: np.ndarray
    norms: np.ndarray
    converged: np.ndarray
    keys: tuple[str, ...]
    fit: Any

    @property
    def drawn(self) -> bool:
        """Whether there is a line to draw."""
        return self.fit is not None and math.isfinite(self.fit.R0.value)

    @property
    def told(self) -> str:
        """The rank, and beside it the slope with its interval or why there is none."""
        if self.rank == 0:
            return "rank 0: nothing left"
        if not self.drawn:
            return f"rank {self.rank}" if self.fit is None else f"rank {self.rank}: {self.fit.state}"
        slope = f"rank {self.rank}: slope {self.fit.R0.value:.3g} ({self.fit.R0.low:.3g} … {self.fit.R0.high:.3g})"
        return slope if self.fit.state == "computed" else f"{slope}, {self.fit.state}"

    def line(self, count: int = 60) -> tuple[np.ndarray, np.ndarray]:
        """Depths and the fitted ‖θ‖² there."""
        L = np.linspace(self.depths.min(), self.depths.max(), count)
        rest = self.fit.R2.value if math.isfinite(self.fit.R2.value) else 0.0
        return L, L * self.fit.R0.value + self.fit.R1.value + rest / L


def pieces(
    found: Gathered, name: str, estimate: Callable[[Any, Any], Any], most: int | None = None
) -> list[tuple[tuple[int, ...], list[Piece]]]:
    """Finished networks by rank against the swept depth ``name``, for every place of the other parameters.

    Parameters
    ----------
    found : Gathered
    name : str
        The depth.
    estimate : callable
        :func:`isthmus.measures.estimate_costs`; what draws imports no measures.
    most : int, optional
        Places to fit, the first ones.
    """
    axis = found.place(name)
    norm, rank, settled = (found.numbers.get(key, {}) for key in ("norm", "rank", "converged"))
    result = []
    for at, members in list(found.along(name).items())[:most]:
        groups: dict[int, list[tuple[float, float, bool, str]]] = {}
        for one in members:
            L = float(found.swept[axis].values[one.at[axis]])
            for key in one.keys:
                k, size = rank.get(key, math.nan), norm.get(key, math.nan)
                if math.isfinite(k) and math.isfinite(size) and int(k) in one.ranks:
                    groups.setdefault(int(k), []).append((L, size, settled.get(key, 1.0) != 0.0, key))
        parts = []
        for k, rows in sorted(groups.items()):
            depths, norms, rest = (np.array([row[i] for row in rows]) for i in range(3))
            fit = estimate(depths, norms) if k else None
            parts.append(Piece(k, depths, norms, rest, tuple(row[3] for row in rows), fit))
        if parts:
            result.append((at, parts))
    return result
