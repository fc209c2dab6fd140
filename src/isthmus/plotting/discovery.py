"""The picture of a discovery: the rank profile, the coordinates, and what they respond to."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from isthmus.plotting.names import readable
from isthmus.plotting.style import PALETTE, dress, headline, new_figure

#: Points in the cloud of coordinates; more would only hide one another.
POINTS = 2000
#: Coordinates whose meaning is shown, and bars for each; fewer bars where there are many coordinates.
COORDINATES, INPUTS, BARS = 6, 6, 24

_INK, _GREY, _FAINT = "#333333", "#8A929C", "#C6CBD2"
_COLOURS = ("blue", "orange", "green", "purple", "sky", "vermilion")
_VERDICTS = {"determined": "green", "trivial": "blue", "given": "blue", "undetermined": "vermilion"}
#: From the palette, dark to light, and never so light that a point is lost on white.
_SHADES: Colormap = LinearSegmentedColormap.from_list("isthmus", ["#0B2545", "#0072B2", "#009E73", "#E69F00"])
#: Errors below this share of a constant's are drawn at it.
_FLOOR = 1e-9


def draw_discovery(found: Any, figure: Figure | None = None) -> Figure:
    """Draw a Discovery in three panels: held-out error against k, the coordinates, and their strongest inputs.

    Parameters
    ----------
    found : Discovery
    figure : Figure, optional
        An empty one to draw on; by default a new one.

    Returns
    -------
    Figure
    """
    if figure is None:
        figure = new_figure(15.0, 5.6)
    colour = PALETTE[_VERDICTS.get(found.verdict, "black")]
    per_line = headline(figure, found.sentence, colour, per_inch=7.6)
    if found.reasons:
        why = textwrap.shorten(f"Why: {found.reasons[0].strip()}.", int(2.8 * per_line), placeholder=" …")
        why = textwrap.fill(why, int(1.45 * per_line))
        figure.supxlabel(why, x=0.012, ha="left", fontsize=10.5, color=_INK, parse_math=False)
    if found.profile is None or found.rank == 0:
        _nothing(figure.subplots())
        return figure
    profile, cloud, meaning = figure.subplots(1, 3, width_ratios=(1.15, 1.1, 1.0))
    _profile(profile, found, colour)
    _cloud(cloud, found)
    _meaning(meaning, found)
    return figure


def _nothing(axes: Axes) -> None:
    axes.set_axis_off()
    said = "no coordinates: there is nothing to draw"
    axes.text(0.5, 0.5, said, ha="center", va="center", fontsize=13, color=_GREY, transform=axes.transAxes)


# --- the rank profile


def _profile(axes: Axes, found: Any, colour: str) -> None:
    profile = found.profile
    place = _places([profile, *found.replicas])
    floor = _FLOOR * (profile.baseline if _usable(profile.baseline) else 1.0)
    axes.set_yscale("log")
    for index, replica in enumerate(found.replicas):
        label = ("another walk" if len(found.replicas) == 1 else "other walks") if index == 0 else None
        for where in _parts(replica):
            x, y = [place(replica, i) for i in where], _clipped(replica.error[where], floor)
            axes.plot(x, y, "o-", color=_FAINT, linewidth=1.3, markersize=4, label=label, zorder=2)
            label = None
    error, spread = _clipped(profile.error, floor), np.array(profile.standard_error, dtype=float)
    spread = np.where(np.isfinite(spread) & np.isfinite(error), spread, np.nan)
    for where in _parts(profile):
        x, y, bar = np.array([place(profile, i) for i in where]), error[where], spread[where]
        # On a logarithmic axis a bar that reaches zero has no lower end.
        bars = np.stack([np.minimum(bar, 0.9 * y), bar])
        style = {"color": PALETTE["blue"], "linewidth": 2.0, "elinewidth": 1.3, "capsize": 3.5, "zorder": 4}
        axes.errorbar(x, y, yerr=np.nan_to_num(bars), fmt="-", **style)
    x = np.array([place(profile, i) for i in range(len(error))])
    rest = np.array([state == "at rest" for state in profile.states])
    axes.plot(x[rest], error[rest], "o", color=PALETTE["blue"], markersize=7, zorder=5)
    if (np.isfinite(error) & ~rest).any():
        marks = {"markerfacecolor": "white", "markeredgewidth": 1.8, "label": "not converged"}
        axes.plot(x[~rest], error[~rest], "o", color=PALETTE["blue"], markersize=7, zorder=5, **marks)
    row = profile.row(found.rank)
    if row is not None and np.isfinite(error[row]):
        axes.plot(x[row], error[row], "o", markersize=16, color=colour, fillstyle="none", markeredgewidth=2.4, zorder=6)
    _limits(axes, found, error, floor)
    _lines(axes, found)
    if row is not None and np.isfinite(error[row]):
        told = f"k = {found.rank}" + ("?" if found.verdict == "undetermined" else "")
        # Below: the line comes from above.
        put = {"textcoords": "offset points", "xytext": (0, -13), "ha": "center", "va": "top", "zorder": 7}
        axes.annotate(told, (x[row], error[row]), fontsize=13, fontweight="bold", color=colour, **put)
    lost = ~np.isfinite(error)
    if lost.any():
        marks = {"markersize": 9, "markeredgewidth": 2.2, "clip_on": False, "label": "no finite error"}
        axes.plot(x[lost], np.full(lost.sum(), axes.get_ylim()[1]), "x", color=PALETTE["vermilion"], **marks)
    _ticks(axes, [profile, *found.replicas], place)
    share = f"share of the {profile.unit}"
    dress(axes, title="Held-out error through k coordinates", x="number of coordinates k", y=share)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, fontsize=9.5, loc="upper right", bbox_to_anchor=(1.0, 1.02))


def _is_wide(profile: Any, row: int) -> bool:
    return profile.starts[row] == "fresh"


def _places(profiles: list[Any]) -> Any:
    """Where a row of a profile is drawn: at k, and the wide network apart at the right."""
    narrow = [int(k) for p in profiles for i, k in enumerate(p.ranks) if not _is_wide(p, i)]
    right = max(narrow, default=0) + 1.5

    def place(profile: Any, row: int) -> float:
        return right if _is_wide(profile, row) else float(profile.ranks[row])

    return place


def _parts(profile: Any) -> list[list[int]]:
    """Rows joined by a line: the narrow levels; the wide one stands alone."""
    rows = range(len(profile.ranks))
    return [part for part in ([i for i in rows if _is_wide(profile, i) == wide] for wide in (False, True)) if part]


def _usable(value: Any) -> bool:
    return bool(np.isfinite(value) and value > 0)


def _clipped(values: Any, floor: float) -> np.ndarray:
    values = np.asarray(values, dtype=float)
    return np.where(np.isfinite(values), np.maximum(values, floor), np.nan)


def _limits(axes: Axes, found: Any, error: np.ndarray, floor: float) -> None:
    profile = found.profile
    others = [_clipped(replica.error, floor) for replica in found.replicas]
    values = [error, [profile.baseline, _threshold(profile)], *others]
    shown = np.array([v for part in values for v in part if _usable(v)])
    if not len(shown):
        shown = np.array([1.0])
    low, high = float(shown.min()), float(shown.max())
    # Room for labels above and below, whatever the decades between.
    room = (high / low) ** 0.16 * 1.25
    axes.set_ylim(low / room, high * room)


def _threshold(profile: Any) -> float:
    finite = profile.error[np.isfinite(profile.error)]
    return float(finite.min() + profile.slack) if len(finite) else np.nan


def _lines(axes: Axes, found: Any) -> None:
    """The error of a constant, and what counts as equal to the best."""
    profile = found.profile

    def line(y: float, told: str, style: str, colour: str, left: bool, above: bool) -> None:
        axes.axhline(y, color=colour, linewidth=1.3, linestyle=style, zorder=1)
        put = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points"}
        put |= {"ha": "left" if left else "right", "va": "bottom" if above else "top"}
        spot = (0.0, y) if left else (1.0, y)
        shift = (4 if left else -4, 3 if above else -3)
        axes.annotate(told, spot, xytext=shift, fontsize=9.5, color=colour, zorder=3, **put)

    if _usable(profile.baseline):
        line(profile.baseline, "error of a constant", ":", _GREY, left=True, above=True)
    threshold = _threshold(profile)
    if _usable(threshold):
        # Left of the chosen k all errors are above the line, right of it below: the label goes where there are none.
        left = profile.chosen > 1
        line(threshold, f"best + slack = {threshold:.2g}", "--", _INK, left=left, above=not left)


def _ticks(axes: Axes, profiles: list[Any], place: Any) -> None:
    rows = [(p, i) for p in profiles for i in range(len(p.ranks))]
    narrow = sorted({int(p.ranks[i]) for p, i in rows if not _is_wide(p, i)})
    narrow = narrow[:: 1 if len(narrow) <= 9 else 2]
    wide = {place(p, i) for p, i in rows if _is_wide(p, i)}
    for x in wide:
        axes.axvspan(x - 0.5, x + 0.5, color="#F3F5F7", zorder=0)
    ticks = [*map(float, narrow), *wide]
    axes.set_xticks(ticks, [*map(str, narrow), *["wide" for _ in wide]])
    axes.set_xlim(min(ticks, default=0.0) - 0.5, max(ticks, default=1.0) + 0.5)
    low, high = axes.get_ylim()
    # Within two decades there are too few powers of ten to read a value from.
    steps = (1.0,) if high / low > 300 else (1.0, 2.0, 5.0)
    axes.yaxis.set_major_locator(LogLocator(subs=steps, numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


# --- the coordinates


def _cloud(axes: Axes, found: Any) -> None:
    U = np.asarray(found.coordinates, dtype=float)
    U = U[:: max(1, -(-len(U) // POINTS))]
    U = U[np.isfinite(U).all(axis=1)]
    Y = np.asarray(found.decode(U), dtype=float) if len(U) else np.empty((0, len(found.target_names)))
    strongest = _strongest_output(U, Y)
    name = readable(found.target_names[strongest])
    size = float(np.clip(9000 / max(len(U), 1), 9, 42))
    style = {"s": size, "alpha": 0.85, "linewidths": 0.3, "edgecolors": "white"}
    if found.rank == 1:
        axes.scatter(U[:, 0], Y[:, strongest], color=PALETTE["blue"], **style)
        dress(axes, title="The coordinate and what it determines", x="coordinate 0")
        axes.set_ylabel(f"{name}, predicted", fontsize=11, color=_INK, parse_math=False)
        return
    low, high, beyond = _range_of_colours(Y[:, strongest])
    drawn = axes.scatter(U[:, 0], U[:, 1], c=Y[:, strongest], cmap=_SHADES, vmin=low, vmax=high, **style)
    more = f" (the first two of {found.rank})" if found.rank > 2 else ""
    dress(axes, title=f"Coordinates of the samples{more}", x="coordinate 0", y="coordinate 1")
    axes.xaxis.set_major_locator(MaxNLocator(6))
    host = axes.get_figure()
    if host is not None:
        bar = host.colorbar(drawn, ax=axes, pad=0.02, aspect=32, extend="both" if beyond else "neither")
        bar.set_label(f"{name}, predicted", fontsize=10.5, color=_INK, parse_math=False)
        bar.ax.tick_params(labelsize=9.5, colors=_INK, length=3)
        bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]


def _finite(value: Any) -> float:
    return float(value) if np.isfinite(value) else 0.0


def _range_of_colours(values: np.ndarray) -> tuple[float | None, float | None, bool]:
    """Lowest and highest value with a colour of its own, and whether there are others beyond: a few outliers."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return None, None, False
    low, high = (float(v) for v in np.percentile(finite, [1, 99]))
    beyond = bool(np.ptp(finite) > 1.3 * (high - low) > 0)
    return (low, high, True) if beyond else (float(finite.min()), float(finite.max()), False)


def _strongest_output(U: np.ndarray, Y: np.ndarray) -> int:
    """The output most correlated with coordinate 0."""
    if len(U) < 2:
        return 0
    u, V = U[:, 0] - U[:, 0].mean(), Y - Y.mean(axis=0)
    deviation = np.sqrt((V**2).sum(axis=0))
    # A constant output, or one that left the range of numbers, is no scale for colours.
    ok = np.isfinite(deviation) & (deviation > 0)
    correlation = np.abs(u @ np.where(ok, V, 0.0)) / np.where(ok, deviation, 1.0)
    return int(np.argmax(np.nan_to_num(correlation)))


# --- what they respond to


def _meaning(axes: Axes, found: Any) -> None:
    told = found.sensitivity
    count = min(found.rank, COORDINATES)
    some = f" (the first {count})" if found.rank > count else ""
    dress(axes, title=f"What each coordinate responds to{some}", x="sensitivity (standard deviations)")
    if told is None:
        axes.text(0.5, 0.5, "not measured", ha="center", va="center", color=_GREY, transform=axes.transAxes)
        return
    each = max(2, min(INPUTS, BARS // count, len(found.feature_names)))
    axes.grid(False, axis="y")
    labels: list[str] = []
    places: list[float] = []
    y = 0.0
    for j in range(count):
        colour = PALETTE[_COLOURS[j % len(_COLOURS)]]
        axes.text(0.0, y, f"coordinate {j}", color=colour, fontsize=10, fontweight="bold", va="center", clip_on=False)
        y += 1.0
        for i in told.strongest(j, each):
            value, low, high = (_finite(part[j, i]) for part in (told.value, told.low, told.high))
            axes.barh(y, value, height=0.74, color=colour, alpha=0.9, zorder=2)
            axes.plot([low, high], [y, y], color=_INK, linewidth=1.3, marker="|", markersize=5, zorder=3)
            labels.append(readable(found.feature_names[i]))
            places.append(y)
            y += 1.0
        y += 0.4
    dense = len(places) > 16
    axes.set_yticks(places, labels, parse_math=False, fontsize=8.5 if dense else 10)
    axes.tick_params(axis="y", length=0)
    # Few bars do not swell to fill the panel.
    axes.set_ylim(max(y - 0.8, 9.0), -0.9)
    axes.set_xlim(0, None)
    axes.spines["left"].set_visible(False)
