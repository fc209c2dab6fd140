"""A rank profile as a figure and a table, and as a page of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from isthmus._html import TONES, number
from isthmus.discovery import RankProfile
from isthmus.report.charts import axis, label, layout, lines, remark, rule
from isthmus.report.page import Answer, Fact, Figure, Page, Section, Table, short

#: Errors below this share of a constant's are drawn at it: a logarithm has no zero.
FLOOR = 1e-9
#: Colour of a verdict's ring.
COLOURS = {"good": "@green", "note": "@blue", "doubt": "@vermilion", "bad": "@vermilion"}

_READING = (
    "Each point is the best network found whose information passes through only k numbers. Its height is the error on "
    "samples the network never saw: 1 means no better than a constant, 0.01 means that 1 % of the {unit} is missed.",
    "Look for the elbow: the error falls while a coordinate that matters is still missing, and stays level once all "
    "are there. The rank is the smallest k at or below the dashed line, the best error plus what counts as equal.",
    "Hollow points had not finished training. The one marked “wide” is a network without a narrow place.",
)
_OTHERS = "Grey lines are the same search from another seed, division of the samples and depth: they should bend alike."
_STATES = "State: “at rest” has converged, “falling” ran out of steps, “diverged” has no usable number."


def page_of(profile: RankProfile) -> Page:
    """The page of a profile by itself: there are no verdict and no coordinates."""
    answer = Answer(
        f"The rule takes k = {profile.chosen}.",
        "given",
        [profile.rule],
        "A profile alone carries no verdict: how sure the rank is, a Discovery says.",
    )
    row = profile.row(profile.chosen)
    error = math.nan if row is None else float(profile.error[row])
    facts = [
        Fact("k", str(profile.chosen), "coordinates, by the rule"),
        Fact("held-out error", number(error), f"share of {profile.whole}"),
        Fact("a constant has", number(profile.baseline), "the error to beat"),
        Fact("networks", str(len(profile.ranks)), f"of {profile.depth} layers, {profile.width} wide"),
    ]
    section = Section("profile", "Rank profile", blocks(profile, (), profile.chosen, "given"))
    return Page("Rank profile", "Rank profile", answer, facts, [section])


def blocks(profile: RankProfile, replicas: Sequence[RankProfile], rank: int, verdict: str) -> list[Figure | Table]:
    """Figure and table."""
    return [_figure(profile, replicas, rank, verdict), _table(profile, rank)]


def _table(profile: RankProfile, rank: int) -> Table:
    heads = ["k", "held-out error", "± se", "above the best", "± se of that", "training cost", "‖θ‖²", "state"]
    columns = [profile.error, profile.standard_error, profile.excess, profile.excess_error, profile.cost, profile.norm]
    states = [f"{state}; wide" if _is_wide(profile, i) else state for i, state in enumerate(profile.states)]
    rows = [[int(k), *[float(column[i]) for column in columns], states[i]] for i, k in enumerate(profile.ranks)]
    title = "The numbers of the profile"
    reading = [f"Errors are shares of {profile.whole}; ‖θ‖² is the squared norm of all parameters.", _STATES]
    return Table("profile-numbers", title, heads, rows, reading, strong=profile.row(rank))


def _figure(profile: RankProfile, replicas: Sequence[RankProfile], rank: int, verdict: str) -> Figure:
    narrow = [int(k) for one in (profile, *replicas) for i, k in enumerate(one.ranks) if not _is_wide(one, i)]
    right = max(narrow, default=0) + 1.5
    floor = FLOOR * (profile.baseline if _usable(profile.baseline) else 1.0)

    def place(one: RankProfile, row: int) -> float:
        return right if _is_wide(one, row) else float(one.ranks[row])

    def height(error: float) -> float:
        return max(float(error), floor) if math.isfinite(error) else math.nan

    data: list[Any] = []
    for index, one in enumerate(replicas):
        x, y = _broken([(place(one, i), height(one.error[i]), _is_wide(one, i)) for i in range(len(one.ranks))])
        told = f"another walk, depth {one.depth}: %{{y:.3g}}"
        data.append(lines(x, y, "@faint", width=1.5, size=5, hovertemplate=told, name=f"walk {index + 2}"))
    points = [(place(profile, i), height(profile.error[i]), _is_wide(profile, i)) for i in range(len(profile.ranks))]
    x, y = _broken(points)
    data.append({"type": "scatter", "mode": "lines", "x": x, "y": y, "line": {"color": "@blue", "width": 2.5}})
    data[-1] |= {"hoverinfo": "skip"}
    data.append(_points(profile, points))
    row = profile.row(rank)
    notes = []
    if row is not None and math.isfinite(points[row][1]):
        colour = COLOURS[TONES.get(verdict, "note")]
        ring = {"symbol": "circle-open", "size": 24, "color": colour, "line": {"width": 3, "color": colour}}
        here = {"x": short([points[row][0]]), "y": short([points[row][1]]), "hoverinfo": "skip"}
        data.append({"type": "scatter", "mode": "markers", "marker": ring, **here})
        text = f"k = {rank}{'?' if verdict == 'undetermined' else ''}"
        # Below, since the line comes from above; beside, where it goes on downwards.
        falls = any(point[1] < 0.7 * points[row][1] for point in points[row + 1 : row + 2])
        shift = {"xshift": 54, "yshift": -12} if falls else {"yshift": -26}
        notes.append(
            remark(text, x=points[row][0], y=points[row][1], bold=True, **shift)
            | {"font": {"size": 15, "color": colour}}
        )
    shapes, words = _levels(profile)
    ticks = sorted(set(narrow))
    step = 1 if len(ticks) <= 12 else 2
    has_wide = any(_is_wide(one, i) for one in (profile, *replicas) for i in range(len(one.ranks)))
    values, texts = [*ticks[::step]], [str(k) for k in ticks[::step]]
    if has_wide:
        values.append(right)  # pyright: ignore[reportArgumentType]
        texts.append("wide")
    across = axis("number of coordinates k", tickvals=values, ticktext=texts, showgrid=False)
    marks = _marks([*y, profile.baseline])
    up = axis(
        f"held-out error (share of the {profile.unit})", type="log", tickvals=marks, ticktext=[f"{m:g}" for m in marks]
    )
    reading = (_READING[0].format(unit=profile.unit), _READING[1], *([_OTHERS] if replicas else []), _READING[2])
    return Figure(
        "profile",
        "Held-out error through k coordinates",
        data,
        layout(across, up, shapes=shapes, annotations=[*words, *notes]),
        reading,
        f"Held-out error against the number of coordinates; the error is level from k = {profile.chosen} on.",
        height=480,
    )


def _points(profile: RankProfile, points: list[tuple[float, float, bool]]) -> dict[str, Any]:
    hover = []
    for row, (_, _, wide) in enumerate(points):
        who = "no narrow place" if wide else f"k = {int(profile.ranks[row])}"
        error, spread = number(float(profile.error[row])), number(float(profile.standard_error[row]), 2)
        hover.append(f"{who}\nerror {error} ± {spread}\n{label(profile.states[row])}")
    y = [point[1] for point in points]
    spread = [s if math.isfinite(s) and math.isfinite(h) else 0.0 for s, h in zip(profile.standard_error.tolist(), y)]
    # On a logarithmic axis a bar that reaches zero has no lower end.
    below = [min(s, 0.9 * h) if math.isfinite(h) else 0.0 for s, h in zip(spread, y)]
    bars = {
        "array": short(spread),
        "arrayminus": short(below),
        "symmetric": False,
        "color": "@blue",
        "thickness": 1.6,
        "width": 0,
    }
    fill = ["@blue" if state == "at rest" else "@paper" for state in profile.states]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": short([point[0] for point in points]),
        "y": short(y),
        "error_y": bars,
        "marker": {"color": fill, "size": 10, "line": {"color": "@blue", "width": 2}},
        "text": hover,
        "hovertemplate": "%{text}",
    }


def _levels(profile: RankProfile) -> tuple[list[Any], list[Any]]:
    """Lines for the error of a constant, and for what counts as equal to the best; with their words."""
    finite = [float(e) for e in profile.error if math.isfinite(e)]
    threshold = min(finite) + profile.slack if finite else math.nan
    shapes, words = [], []
    for value, told, dash, side in (
        (profile.baseline, "error of a constant", "dot", "right"),
        (threshold, f"best + slack = {threshold:.2g}", "dash", "left" if profile.chosen > 2 else "right"),
    ):
        if not _usable(value):
            continue
        shapes.append(rule(value, "@muted", along="y", dash=dash))
        spot = {"xref": "paper", "x": 0 if side == "left" else 1, "xanchor": side, "y": value}
        words.append(remark(told, **spot, yanchor="bottom" if dash == "dot" or side == "right" else "top"))
    return shapes, words


def _broken(points: Sequence[tuple[float, float, bool]]) -> tuple[list[Any], list[Any]]:
    """Places and heights with a gap before the wide network, which no line leads to."""
    narrow, wide = ([point for point in points if point[2] is apart] for apart in (False, True))
    gap = [(None, None, True)] if narrow and wide else []
    rows = [*narrow, *gap, *wide]
    return short([row[0] for row in rows]), short([row[1] for row in rows])


def _marks(values: Sequence[float | None]) -> list[float]:
    """Round numbers for a logarithmic axis: 1, 2 and 5 within two decades, powers of ten beyond."""
    usable = [value for value in values if value is not None and _usable(value)] or [1.0]
    low, high = math.log10(min(usable)), math.log10(max(usable))
    steps = (1, 2, 5) if high - low < 2.5 else (1,)
    decades = range(math.floor(low) - 1, math.ceil(high) + 1)
    return [float(f"{step}e{decade}") for decade in decades for step in steps]


def _is_wide(profile: RankProfile, row: int) -> bool:
    return profile.starts[row] == "fresh"


def _usable(value: float) -> bool:
    return math.isfinite(value) and value > 0
