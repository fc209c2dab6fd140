"""Verdicts as a page: which theorems hold, with both sides, their hypotheses and the room that is left."""

from __future__ import annotations

import math

from isthmus._html import number
from isthmus.claims import CLAIMS, Verdict, Verdicts
from isthmus.claims._base import CAUSES, STATUSES
from isthmus.claims._verify import shortened
from isthmus.plotting.figure import Figure, axis, layout, powers
from isthmus.report.page import Answer, Badge, Block, Fact, Notes, Page, Section, Table

#: Slack below this is drawn at this place of the logarithmic axis: equality up to rounding.
LEAST = 1e-6
_MEANING = {
    "holds": "No claim fails; those that are not applicable say why.",
    "holds trivially": "No claim fails, and none could well have: see the margins.",
    "fails": "At least one claim fails: either a weight or number is wrong, or the theorem is.",
    "not applicable": "No hypothesis was met: nothing was claimed.",
}
_READING = (
    "How far the sides of each claim could still move until it fails, as a share of the larger side. A claim at the "
    "left edge is tight: equality up to rounding.",
    "A large margin is no virtue: above 0.99, and where it is so by construction, a claim holds trivially.",
)
_COLOURS = {"holds": "@green", "holds trivially": "@blue", "fails": "@orange"}


def page_of(found: Verdicts) -> Page:
    """The page of what claims said."""
    counts = found.counts
    status = next((one for one in ("fails", *STATUSES) if counts[one]), "not applicable")
    reasons = [f"{v.claim}: {v.reason}" for v in found if v.status == "fails"]
    facts = [Fact(word, str(count), f"of {len(found)} claims") for word, count in counts.items()]
    blocks: list[Block] = []
    judged = list(found.judged)
    if judged:
        blocks.append(_margins(judged))
    sections = [
        Section("margin", "How much room is left", blocks),
        Section("claims", "Claim by claim", [_table(judged)], "Both sides, at the place where they are nearest."),
        Section("parts", "Part by part", [_parts(judged)], "The statements of each claim, judged apart."),
        Section("silent", "Not applicable", [_silent(found)], "Why, and what you can supply."),
        Section("hypotheses", "Hypotheses", [_hypotheses(found)], "A claim says something only where all are met."),
        *_pictures(judged),
        Section("statements", "Statements", [_statements(found)], "What each claim says, and where."),
        Section("about", "About", [Notes([found.about])]),
    ]
    reasons += [found.closing] if found.closing else []
    answer = Answer(found.sentence, status, reasons, _MEANING[status])
    return Page("Verdicts", "Theorems", answer, facts, [one for one in sections if one.blocks and _filled(one)])


def _margins(judged: list[Verdict]) -> Figure:
    shown = sorted(judged, key=lambda v: v.margin, reverse=True)
    values = [max(abs(v.margin), LEAST) if math.isfinite(v.margin) else 1.0 for v in shown]
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": values,
        "y": [v.claim for v in shown],
        "text": [
            f"{v.claim}, {CLAIMS[v.claim].title}: {v.lhs:.4g} {v.relation} {v.rhs:.4g}, {v.status}" for v in shown
        ],
        "hovertemplate": "%{text}",
        "marker": {
            "size": 11,
            "color": [_COLOURS[v.status] for v in shown],
            "symbol": ["x" if v.status == "fails" else "circle" for v in shown],
        },
    }
    across = axis("margin, share of the larger side", **powers(LEAST))
    chart = layout(across, axis(type="category"))
    told = f"Margins of {len(shown)} claims."
    return Figure("margins", "Margin by claim", [points], chart, _READING, told, max(320, 60 + 22 * len(shown)))


def _table(judged: list[Verdict]) -> Table:
    rows = []
    for v in judged:
        sides = f"{number(v.lhs, 4)} {v.relation} {number(v.rhs, 4)}"
        rows.append([v.claim, CLAIMS[v.claim].title, Badge(v.status), sides, number(v.margin), v.reason or v.where])
    heads = ["claim", "in words", "verdict", "both sides", "margin", "where, or what is wrong"]
    return Table("verdicts", "What each claim says of this network", heads, rows)


def _parts(judged: list[Verdict]) -> Table:
    rows = []
    for v in judged:
        for part in v.parts if len(v.parts) > 1 else ():
            silent = part.status == "not applicable"
            sides = "" if silent else f"{number(part.lhs, 4)} {part.relation} {number(part.rhs, 4)}"
            rows.append([v.claim, part.name, Badge(part.status), sides, number(part.margin), part.reason or part.where])
    heads = ["claim", "part", "verdict", "both sides", "margin", "where, or why not"]
    return Table("parts", "Parts of claims", heads, rows)


def _silent(found: Verdicts) -> Table:
    rows = [
        [CAUSES[cause], shortened(ids), what] for cause, groups in found.silent.items() for what, ids in groups.items()
    ]
    return Table("silent", "Claims that say nothing", ["cause", "claims", "what is missing"], rows)


def _statements(found: Verdicts) -> Table:
    rows = [
        [one.id, one.statement, f"{one.paper}, {one.where}", one.erratum] for one in (CLAIMS[v.claim] for v in found)
    ]
    return Table("statements", "Statements", ["claim", "statement", "source", "erratum"], rows, folded=True)


def _hypotheses(found: Verdicts) -> Table:
    rows = [[v.claim, h.name, h.status, h.found] for v in found for h in v.hypotheses]
    return Table("assumed", "Hypotheses, looked at", ["claim", "hypothesis", "status", "found"], rows, folded=True)


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


def _filled(section: Section) -> bool:
    """Whether there is anything in it: tables without rows are left out."""
    return any(not isinstance(block, Table) or block.rows for block in section.blocks)
