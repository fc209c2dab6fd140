"""A History as a page: what became of ranks, norms and spectra over the steps of a training."""

from __future__ import annotations

import math
from typing import Any

from isthmus._checks import fail
from isthmus._errors import FileFormatError, IsthmusError
from isthmus._html import number, plain
from isthmus.diagnosis import History
from isthmus.plotting import history as picture
from isthmus.report.origin import origin_section
from isthmus.report.page import Answer, Fact, Notes, Page, Section


def page_of(history: History) -> Page:
    """The page of a History."""
    verdict, reasons = history.verdict, history.reasons
    meaning = {
        "measured": "Every snapshot is whole.",
        "incomplete": "Some snapshots could not be measured: the table says which and why.",
        "empty": "No snapshot was taken.",
    }
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
        Section("snapshots", "Snapshots", [*history.tables(), *([Notes(history.notes)] if history.notes else [])]),
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
