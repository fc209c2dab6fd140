"""A History as a page: what became of ranks, norms and spectra over the steps of a training."""

from __future__ import annotations

import math
from typing import Any

from isthmus._checks import fail
from isthmus._errors import FileFormatError, IsthmusError
from isthmus._html import number, plain
from isthmus.diagnosis import History, LayerSnapshot
from isthmus.diagnosis._history import MEASURED
from isthmus.plotting import history as picture
from isthmus.report.origin import origin_section
from isthmus.report.page import Answer, Block, Fact, Notes, Page, Section, Table


def page_of(history: History) -> Page:
    """The page of a History."""
    whole = all(state == MEASURED for state in history.states)
    verdict = "measured" if whole and history.snapshots else "incomplete" if history.snapshots else "empty"
    meaning = {
        "measured": "Every snapshot is whole.",
        "incomplete": "Some snapshots could not be measured: the table says which and why.",
        "empty": "No snapshot was taken.",
    }
    reasons = [f"step {one.step}: {one.state}; {one.note}" for one in history.snapshots if one.state != MEASURED]
    facts = [Fact("snapshots", str(len(history.snapshots)), "that were taken")]
    if history.snapshots:
        first, last = history.snapshots[0], history.snapshots[-1]
        facts.append(Fact("steps", f"{first.step} … {last.step}", "from the first to the last"))
        facts.append(Fact("‖θ‖² at the end", number(last.norm_squared), f"{number(first.norm_squared)} at first"))
        if math.isfinite(last.cost):
            facts.append(Fact("cost at the end", number(last.cost), f"{number(first.cost)} at first"))
    some = picture.few(history.snapshots)
    thinned = [] if len(some) == len(history.snapshots) else [f"Drawn are {len(some)} snapshots, evenly spaced."]
    sections = [
        Section("layers", "Layer by layer", picture.by_layer(history, some, thinned)),
        Section("network", "The network as a whole", picture.of_the_whole(some, thinned)),
        Section("spectra", "Spectra over the steps", picture.spectra(history, some, thinned)),
        Section("snapshots", "Snapshots", [*_table(history), *([Notes(history.notes)] if history.notes else [])]),
        origin_section({"parameters": history.settings}),
    ]
    answer = Answer(plain(history.sentence, 400), verdict, reasons[:12], meaning[verdict])
    return Page("History", "History", answer, facts, [one for one in sections if one.blocks])


def page_of_document(document: Any) -> Page:
    """The page of what :meth:`History.to_json` wrote; the file may be a stranger's."""
    try:
        return page_of(History.from_dict(document))
    except IsthmusError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as problem:
        must, do = "the JSON must be that of a History", "`History.to_json` gives one."
        return fail("report", must, f"{type(problem).__name__}: {problem}", do, error=FileFormatError)


def _table(history: History) -> list[Block]:
    rows = [
        [one.step, one.state, one.norm_squared, one.cost, ", ".join(map(_dimensions, one.layers)), one.note]
        for one in history.snapshots
    ]
    heads = ["step", "state", "‖θ‖²", "cost", "dimensions, layer by layer", "note"]
    told = ["“?” is an unclear drop, a dash no spectrum."]
    return [Table("snapshots", "Every snapshot", heads, rows, told, folded=len(rows) > 12)] if rows else []


def _dimensions(layer: LayerSnapshot) -> str:
    inside = layer.representation
    return "—" if inside is None else "?" if inside.rank is None else str(inside.rank)
