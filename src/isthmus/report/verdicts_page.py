"""Verdicts as a page: which theorems hold, with both sides, their hypotheses and the room that is left."""

from __future__ import annotations

import math
from dataclasses import replace

from isthmus.claims import CLAIMS, Verdict, Verdicts
from isthmus.plotting.figure import Figure, axis, layout
from isthmus.plotting.verdicts import margins
from isthmus.report.page import Block, Fact, Notes, Page, Section, page, tables_of

_MEANING = {
    "holds": "No claim fails; those that are not applicable say why.",
    "holds trivially": "No claim fails, and none could well have: see the margins.",
    "fails": "At least one claim fails: either a weight or number is wrong, or the theorem is.",
    "not applicable": "No hypothesis was met: nothing was claimed.",
}


def page_of(found: Verdicts) -> Page:
    """The page of what claims said."""
    tables, judged = tables_of(found), list(found.judged)
    facts = [Fact(word, str(count), f"of {len(found)} claims") for word, count in found.counts.items()]
    blocks: list[Block] = [margins(judged, {v.claim: CLAIMS[v.claim].title for v in judged})] if judged else []
    lead = "A claim says something only where all are met."
    sections = [
        Section("margin", "How much room is left", blocks),
        Section("claims", "Claim by claim", tables["verdicts"], "Both sides, at the place where they are nearest."),
        Section("parts", "Part by part", tables["parts"], "The statements of each claim, judged apart."),
        Section("silent", "Not applicable", tables["silent"], "Why, and what you can supply."),
        Section("hypotheses", "Hypotheses", tables["assumed"], lead),
        *_pictures(judged),
        Section("statements", "Statements", tables["statements"], "What each claim says, and where."),
        Section("about", "About", [Notes([found.about])]),
    ]
    made = page("Verdicts", found, _MEANING, facts, sections, title="Theorems")
    more = [found.closing] if found.closing else []
    return replace(made, answer=replace(made.answer, reasons=[*found.reasons, *more]))


def _pictures(judged: list[Verdict]) -> list[Section]:
    """Numbers behind a verdict, by layer, sample or depth: C-bn-6's distance of every layer from an isometry."""
    blocks: list[Block] = []
    for v in judged:
        for index, (name, values) in enumerate(v.details.items()):
            finite = [value if value is not None and math.isfinite(value) else None for value in values]
            if len(finite) < 2 or all(value is None for value in finite):
                continue
            line = {"type": "scatter", "mode": "lines+markers", "x": list(range(1, len(finite) + 1)), "y": finite}
            chart = layout(axis("number"), axis())
            reading = (f"{CLAIMS[v.claim].statement}.", f"The numbers behind {v.claim}, at {v.where or 'its sample'}.")
            key = f"{v.claim.lower()}-{index}"
            blocks.append(Figure(key, f"{v.claim}: {name}", [line], chart, reading, f"{name}, {len(finite)} values."))
    return [Section("details", "Behind the verdicts", blocks)] if blocks else []
