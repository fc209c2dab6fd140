"""What a live page shows of one run, as plain data: the sentence, how far it is, numbers, figures, lines."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from isthmus._html import TONES, number
from isthmus._progress import duration
from isthmus._settings import STRENGTH
from isthmus.discovery._profile import unit_of
from isthmus.discovery._walk import TOLERANCE, slack
from isthmus.serving.figures import Walks, figures_of
from isthmus.serving.record import Record
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
