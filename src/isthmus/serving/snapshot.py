"""What a live page shows of one run, as plain data: the sentence, how far it is, numbers, figures, lines."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from isthmus._html import TONES, number
from isthmus._progress import duration
from isthmus._settings import STRENGTH
from isthmus.discovery._profile import reference_of, unit_of
from isthmus.discovery._walk import TOLERANCE, slack
from isthmus.plotting.figure import axis, label, layout, lines, powers, short
from isthmus.serving.record import IN_USE, Record, Stage
from isthmus.serving.watcher import RunView

#: State → (the word shown, its tone, what it means).
STATES = {
    "running": ("running", "note", "It is being computed now; this page follows by itself."),
    "finished": ("finished", "good", ""),
    "interrupted": ("interrupted", "doubt", "Somebody stopped it."),
    "failed": ("failed", "bad", "It ended with an error."),
    "killed": ("killed?", "doubt", "Its process is gone without a word."),
    "silent": ("no sign of life", "doubt", "Nothing has been heard of it for more than 30 seconds."),
    "unreadable": ("unreadable", "bad", ""),
}
_GOES_ON = {
    "discovery": "The same command goes on from the trainings that are kept, and this page with it.",
    "run": "The same command begins it again, and this page follows.",
    "sweep": "The same command goes on with what is not finished, and this page with it.",
    "diagnosis": "",
}


def badge(view: RunView) -> dict[str, str]:
    """State of a run: its word and tone."""
    word, tone, _ = STATES[view.state]
    return {"word": word, "tone": tone}


def verdict(view: RunView) -> dict[str, str] | None:
    """The verdict of a finished run."""
    if view.answer is None or not view.answer.verdict:
        return None
    return {"word": view.answer.verdict, "tone": TONES.get(view.answer.verdict, "note")}


def sentence(view: RunView) -> str:
    """The answer, or what is being asked."""
    if view.answer is not None:
        return view.answer.sentence
    if view.record is not None and view.record.session is not None:
        return view.record.session.sentence
    return view.problem[:1].upper() + view.problem[1:] if view.problem else view.name


def snapshot(view: RunView) -> dict[str, Any]:
    """All that the page shows; equal for equal states."""
    record, walks = view.record or Record(), view.record.walks if view.record else {}
    session = record.session
    loss_kind = "mse" if session is None else session.loss_kind
    if view.answer is not None:
        walks, loss_kind = view.answer.walks, view.answer.loss_kind
    _, _, meaning = STATES[view.state]
    stopped = view.state in ("interrupted", "killed", "silent")
    # What is said in full by the sentence need not be said twice.
    told = "" if view.state == "unreadable" else view.problem
    parts = [meaning, told[:1].upper() + told[1:] + ("." if told and told[-1] not in ".!?…" else "")]
    return {
        "name": view.name,
        "kind": view.kind,
        "state": badge(view),
        "verdict": verdict(view),
        "sentence": sentence(view),
        "meaning": " ".join(part for part in (*parts, _GOES_ON[view.kind] if stopped else "") if part),
        "command": f"isthmus {session.command}" if session is not None and session.command else "",
        "started": None if session is None else session.started,
        "running": view.state == "running",
        "finished": view.state == "finished",
        "report": view.has_report,
        "progress": _progress(record, running=view.state == "running"),
        "facts": _facts(view, walks, loss_kind),
        "figures": figures_of(walks, view.stages, {} if view.kind == "discovery" else record.curves, loss_kind),
        "lines": [[round(at, 1), text] for at, text in record.lines],
    }


def revision(content: dict[str, Any]) -> str:
    """A short name of a snapshot: the same for the same content."""
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8).hexdigest()


def _progress(record: Record, *, running: bool) -> dict[str, Any] | None:
    if record.session is None or record.total is None or record.total <= 0:
        return None
    # The total is a guess: only an answer makes it whole.
    over = record.session.end == "done"
    share = 0.99 if over else min(record.done / record.total, 0.99)
    left = record.seconds_left() if running and not over else None
    told = "" if left is None else f"about {duration(left)} left"
    return {
        "share": round(share, 4),
        "left": told,
        "done": int(record.done),
        "total": int(max(record.total, record.done)),
    }


def rank_so_far(walks: Walks, resolution: float | None, tolerance: float = TOLERANCE) -> str:
    """The least number of coordinates that still does about as well as the best; "≤" while less may do.

    Examples
    --------
    >>> rank_so_far({(0, 0): 0.02, (0, 5): 0.021, (0, 4): 0.021}, None)
    '≤ 4'
    >>> rank_so_far({(0, 0): 0.02, (0, 5): 0.021, (0, 4): 0.3}, None)
    '5'
    """
    errors = {rank: error for (walk, rank), error in walks.items() if walk == 0}
    best = min(errors.values(), default=0.0)
    allowed = slack(best, STRENGTH if resolution is None else resolution, tolerance)
    ranks = [rank for rank in errors if rank > 0]
    enough = [rank for rank in ranks if errors[rank] - best <= allowed]
    if not enough:
        return "—"
    least = min(enough)
    return f"≤ {least}" if least == min(ranks) and least > 1 else str(least)


def _facts(view: RunView, walks: Walks, loss_kind: str) -> list[dict[str, str]]:
    def fact(label: str, value: str, note: str) -> dict[str, str]:
        return {"label": label, "value": value, "note": note}

    record = view.record
    if record is None:
        # The sentence of an answer says it all; the report has the rest.
        return []
    if view.kind in ("run", "sweep"):
        latest = {name: points[-1][1] for name, points in record.curves.items()}
        return [fact(name, number(value, 3), "now") for name, value in list(latest.items())[:5]]
    asked = None if record.session is None else record.session.resolution
    least, share = record.told.get("resolution", asked), record.told.get("tolerance", TOLERANCE)
    facts = [fact("rank so far", rank_so_far(walks, least, share), "of the first walk, before it is checked")]
    if errors := [error for (walk, _), error in walks.items() if walk == 0]:
        facts.append(fact("held-out error", number(min(errors)), f"the best so far, share of the {unit_of(loss_kind)}"))
    if "λ" in record.told:
        below = "" if least is None else f"what explains less than about {number(least)} of the {unit_of(loss_kind)} "
        facts.append(fact("λ", number(record.told["λ"]), f"{below}is below the resolution" if below else ""))
    if view.stages:
        newest = view.stages[-1]
        facts.append(fact("coordinates in use", f"{newest.in_use} of {len(newest.values)}", f"in {newest.name}"))
        facts.append(fact("‖θ‖²/L", number(newest.norm_per_depth), f"in {newest.name}"))
        facts.append(fact("trainings", str(len(view.stages)), "finished and kept"))
    return facts


# ---- The figures of a live page as plain data; colours are names that the page's theme resolves


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
