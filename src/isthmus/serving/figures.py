"""The figures of a live page as plain data; colours are names that the page's theme resolves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from isthmus.discovery._profile import reference_of, unit_of
from isthmus.plotting.figure import axis, label, layout, lines, powers, short
from isthmus.serving.stages import IN_USE, Stage

#: Points of a curve that are sent, and spectra that are shown beside the newest.
POINTS, SPECTRA = 400, 6
#: The largest over the smallest value of a logarithmic axis, at least.
LEAST = 4.0
#: Below this share of the largest value a spectrum is round-off.
FLOOR = 1e-7

Walks = Mapping[tuple[int, int], float]


def figures_of(
    walks: Walks, stages: Sequence[Stage], curves: Mapping[str, list[tuple[float, float]]], loss_kind: str = "mse"
) -> list[Any]:
    """All figures for which there is something to show."""
    made = [_errors(walks, loss_kind), _spectra(stages), _losses(stages, loss_kind), _norms(stages)]
    return [one for one in (*made, *([] if stages or walks else _curves(curves))) if one is not None]


def _figure(key: str, title: str, reading: str, data: list[Any], x: Any, y: Any) -> dict[str, Any]:
    return {"key": key, "title": title, "reading": reading, "data": data, "layout": layout(x, y)}


def _log(title: str, values: Iterable[float | None]) -> dict[str, Any]:
    """A logarithmic axis around the values that are positive."""
    usable = [value for value in values if value is not None and value > 0 and math.isfinite(value)]
    low, high = (min(usable), max(usable)) if usable else (0.1, 1.0)
    # What hardly changes must not look like a cliff.
    more = 1.1 * max(1.0, math.sqrt(LEAST / (high / low)))
    marks = powers(low, high) if high / low >= 300 else {"type": "log"}
    return axis(title, **marks, range=[math.log10(low / more), math.log10(high * more)])


def _linear(title: str, values: Sequence[float]) -> dict[str, Any]:
    """An axis on which what hardly changes looks level: it spans at least a fifth of the largest value."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    more = max(0.05 * (high - low), (0.2 * max(abs(low), abs(high)) - (high - low)) / 2)
    return axis(title, range=[low - more, high + more]) if more else axis(title)


def _errors(walks: Walks, loss_kind: str) -> dict[str, Any] | None:
    """Held-out error against the number of coordinates: one line for each walk, the first one strong."""
    if not walks:
        return None
    ranks = sorted({rank for _, rank in walks if rank > 0})
    right = (ranks[-1] if ranks else 0) + 1.5
    data = []
    for index in sorted({walk for walk, _ in walks}, reverse=True):
        mine = sorted((right if rank == 0 else rank, error) for (walk, rank), error in walks.items() if walk == index)
        name = "the walk" if index == 0 else f"another walk ({index + 1})"
        hover = [f"{'wide' if k == right else f'k = {k}'}\nerror {error:.3g}" for k, error in mine]
        more = {"name": name, "text": hover, "hovertemplate": "%{text}"}
        style = {"width": 2.5, "size": 9} if index == 0 else {"width": 1.5, "size": 6}
        xs, ys = short([k for k, _ in mine]), short([max(error, 1e-12) for _, error in mine])
        data.append(lines(xs, ys, "@blue" if index == 0 else "@faint", **style, **more))
    step = 1 if len(ranks) <= 12 else 2
    marks, texts = [*ranks[::step], right], [*map(str, ranks[::step]), "wide"]
    reading = (
        "Networks through fewer and fewer coordinates, from right to left. While the error stays level they suffice; "
        "where it rises, one too many is gone. Thin lines repeat it from other starts."
    )
    x = axis("number of coordinates k", tickvals=marks, ticktext=texts, showgrid=False)
    y = _log(f"held-out error (share of the {unit_of(loss_kind)})", walks.values())
    return _figure("error", "Held-out error", reading, data, x, y)


def _spectra(stages: Sequence[Stage]) -> dict[str, Any] | None:
    """Singular values of the weights around the waist, the newest training last and strong."""
    shown = [stage for stage in stages if stage.values and stage.values[0] > 0][-SPECTRA:]
    if not shown:
        return None
    data = []
    for index, stage in enumerate(shown):
        newest = index == len(shown) - 1
        shares = [max(value / stage.values[0], FLOOR) for value in stage.values]
        places = list(range(1, len(shares) + 1))
        more = {"name": label(stage.name), "hovertemplate": "value %{x}: %{y:.3g}", "opacity": 1 if newest else 0.75}
        style = {"width": 2.5, "size": 8} if newest else {"width": 1.2, "size": 4}
        data.append(lines(places, short(shares), "@green" if newest else "@faint", **style, **more))
    longest = max(len(stage.values) for stage in shown)
    x = axis("singular value", range=[0.5, longest + 0.5], showgrid=False, dtick=1 if longest <= 16 else 4)
    y = _log("share of the largest", [max(FLOOR, min(min(s.values) / s.values[0] for s in shown)), 1.0])
    reading = (
        "How strongly each direction passes the waist, in the newest training (thin: those before it). "
        f"Directions below {IN_USE:.1%} of the first are not in use."
    )
    return _figure("spectrum", f"Spectrum of the waist: {label(shown[-1].name)}", reading, data, x, y)


def _by_stage(key: str, title: str, reading: str, points: list[tuple[Stage, float]], colour: str, y: Any) -> Any:
    if not points:
        return None
    names = [label(stage.name) for stage, _ in points]
    values = [value for _, value in points]
    more = {"text": names, "hovertemplate": "%{text}\n%{y:.4g}", "width": 1.5}
    data = [lines(list(range(1, len(points) + 1)), short(values), colour, **more)]
    x = axis("trainings, in the order they ended", showgrid=False, integer=True)
    return _figure(key, title, reading, data, x, y)


def _losses(stages: Sequence[Stage], loss_kind: str) -> Any:
    points = [(stage, stage.loss) for stage in stages if stage.loss is not None and stage.loss > 0]
    reading = (
        f"Cost plus ridge on the training rows, as a share of {reference_of(loss_kind)}, when each training ended."
    )
    up = _log("regularised loss", [value for _, value in points])
    return _by_stage("loss", "Loss of each training", reading, points, "@vermilion", up)


def _norms(stages: Sequence[Stage]) -> Any:
    points = [(stage, stage.norm_per_depth) for stage in stages if stage.norm_per_depth]
    reading = "The squared norm of all parameters, per layer: the deeper the network, the nearer it is to the rank."
    return _by_stage(
        "norm", "‖θ‖²/L of each training", reading, points, "@purple", _linear("‖θ‖²/L", [value for _, value in points])
    )


def _curves(curves: Mapping[str, list[tuple[float, float]]]) -> list[Any]:
    """One figure for loss and cost together, one for each other number."""
    together = [name for name in ("loss", "cost") if name in curves]
    groups = [together] if together else []
    groups += [[name] for name in curves if name not in together][:5]
    colours = {"loss": "@vermilion", "cost": "@orange", "‖θ‖²/L": "@purple", "rank": "@green"}
    made = []
    for index, names in enumerate(groups):
        data, values = [], []
        for name in names:
            points = thin(curves[name])
            values += [value for _, value in points]
            more = {"name": label(name), "mode": "lines", "hovertemplate": "step %{x}: %{y:.4g}"}
            data.append(lines(short([x for x, _ in points]), short([y for _, y in points]), "@blue", **more))
            data[-1]["line"]["color"] = colours.get(name, "@blue")
        title = " and ".join(map(label, names))
        # Only what is positive and changes by much is better seen by its powers of ten.
        wide = min(values) > 0 and max(values) > 10 * min(values)
        up = _log(title, values) if wide else _linear(title, values)
        reading = "So far, against the steps of the training."
        x = axis("step", showgrid=False)
        made.append(_figure(f"curve{index}", title[:1].upper() + title[1:], reading, data, x, up))
        made[-1]["layout"]["showlegend"] = len(names) > 1
    return made


def thin(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most POINTS of them, the newest among them."""
    step = -(-len(points) // POINTS)
    return points if step <= 1 else points[::-step][::-1]
