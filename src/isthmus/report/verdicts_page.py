"""Verdicts as a page: which theorems hold, with both sides, their hypotheses and the room that is left."""

from __future__ import annotations

import math

from isthmus.claims import CLAIMS, Verdict, Verdicts
from isthmus.plotting.figure import Figure, axis, layout
from isthmus.plotting.verdicts import margins
from isthmus.report.page import Answer, Block, Fact, Notes, Page, Section

_MEANING = {
    "holds": "No claim fails; those that are not applicable say why.",
    "holds trivially": "No claim fails, and none could well have: see the margins.",
    "fails": "At least one claim fails: either a weight or number is wrong, or the theorem is.",
    "not applicable": "No hypothesis was met: nothing was claimed.",
}


def page_of(found: Verdicts) -> Page:
    """The page of what claims said."""
    counts, status = found.counts, found.verdict
    tables: dict[str, list[Block]] = {one.key: [one] for one in found.tables()}
    facts = [Fact(word, str(count), f"of {len(found)} claims") for word, count in counts.items()]
    blocks: list[Block] = []
    judged = list(found.judged)
    if judged:
        blocks.append(margins(judged, {v.claim: CLAIMS[v.claim].title for v in judged}))
    sections = [
        Section("margin", "How much room is left", blocks),
        Section(
            "claims",
            "Claim by claim",
            tables.get("verdicts", []),
            "Both sides, at the place where they are nearest.",
        ),
        Section(
            "parts",
            "Part by part",
            tables.get("parts", []),
            "The statements of each claim, judged apart.",
        ),
        Section(
            "silent",
            "Not applicable",
            tables.get("silent", []),
            "Why, and what you can supply.",
        ),
        Section(
            "hypotheses",
            "Hypotheses",
            tables.get("assumed", []),
            "A claim says something only where all are met.",
        ),
        *_pictures(judged),
        Section(
            "statements",
            "Statements",
            tables.get("statements", []),
            "What each claim says, and where.",
        ),
        Section("about", "About", [Notes([found.about])]),
    ]
    answer = Answer(
        found.sentence, status, [*found.reasons, *([found.closing] if found.closing else [])], _MEANING[status]
    )
    return Page("Verdicts", "Theorems", answer, facts, [one for one in sections if one.blocks])


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
