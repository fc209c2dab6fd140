"""A History as a page: what became of ranks, norms and spectra over the steps of a training."""

from __future__ import annotations

import math

from isthmus._html import number
from isthmus.diagnosis import History
from isthmus.plotting import history as picture
from isthmus.report.page import Fact, Notes, Page, Section, origin_section, page

_MEANING = {
    "measured": "Every snapshot is whole.",
    "incomplete": "Some snapshots could not be measured: the table says which and why.",
    "empty": "No snapshot was taken.",
}


def page_of(history: History) -> Page:
    """The page of a History."""
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
    return page("History", history, _MEANING, facts, sections)
