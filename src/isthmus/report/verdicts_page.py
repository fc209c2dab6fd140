"""Verdicts as a page: which theorems hold, with both sides, their hypotheses and the room that is left."""

from __future__ import annotations

import math

from isthmus._html import number
from isthmus.claims import CLAIMS, Verdict, Verdicts
from isthmus.report.charts import axis, layout, powers
from isthmus.report.page import Answer, Badge, Block, Fact, Figure, Notes, Page, Section, Table

#: Slack below this is drawn at this place of the logarithmic axis: equality up to rounding.
LEAST = 1e-6
_MEANING = {
    "holds": "No claim fails; those that are not applicable say why.",
    "fails": "At least one claim fails: either a weight or number is wrong, or the theorem is.",
    "not applicable": "No hypothesis was met: nothing was claimed.",
}
_READING = (
    "How far each claim is from failing, as a share of its larger side. A claim at the left edge is tight: equality up "
    "to rounding.",
    "A large slack is no virtue: the bound says little about this network.",
)
_COLOURS = {"holds": "@green", "fails": "@orange"}


def page_of(found: Verdicts) -> Page:
    """The page of what claims said."""
    counts = {status: sum(v.status == status for v in found) for status in _MEANING}
    status = "fails" if counts["fails"] else "holds" if counts["holds"] else "not applicable"
    reasons = [f"{v.claim}: {v.reason}" for v in found if v.status == "fails"]
    facts = [Fact(word, str(count), f"of {len(found)} claims") for word, count in counts.items()]
    blocks: list[Block] = []
    judged = [v for v in found if v.status != "not applicable"]
    if judged:
        blocks.append(_slacks(judged))
    sections = [
        Section("slack", "How much room is left", blocks),
        Section("claims", "Claim by claim", [_table(found)], "Both sides, at the place where they are nearest."),
        Section("hypotheses", "Hypotheses", [_hypotheses(found)], "A claim says something only where all are met."),
        *_pictures(judged),
        Section("about", "About", [Notes([found.about])]),
    ]
    answer = Answer(found.sentence, status, reasons, _MEANING[status])
    return Page("Verdicts", "Theorems", answer, facts, [one for one in sections if one.blocks])


def _slacks(judged: list[Verdict]) -> Figure:
    shown = sorted(judged, key=lambda v: v.slack, reverse=True)
    values = [max(abs(v.slack), LEAST) if math.isfinite(v.slack) else 1.0 for v in shown]
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": values,
        "y": [v.claim for v in shown],
        "text": [f"{v.claim}: {v.lhs:.4g} {v.relation} {v.rhs:.4g}, {v.status}" for v in shown],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {
            "size": 11,
            "color": [_COLOURS[v.status] for v in shown],
            "symbol": ["circle" if v.status == "holds" else "x" for v in shown],
        },
    }
    across = axis("slack, share of the larger side", **powers(LEAST))
    chart = layout(across, axis(type="category"))
    told = f"Slack of {len(shown)} claims."
    return Figure("slacks", "Slack by claim", [points], chart, _READING, told, max(320, 60 + 22 * len(shown)))


def _table(found: Verdicts) -> Table:
    rows = []
    for v in found:
        sides = "" if v.status == "not applicable" else f"{number(v.lhs, 5)} {v.relation} {number(v.rhs, 5)}"
        one = CLAIMS[v.claim]
        rows.append(
            [v.claim, Badge(v.status), sides, number(v.slack), number(v.tolerance), v.where or v.reason]
            + [one.statement, f"{one.paper}, {one.where}", one.erratum]
        )
    heads = ["claim", "verdict", "both sides", "slack", "tolerance", "where, or why not"]
    return Table("verdicts", "What each claim says", [*heads, "statement", "source", "erratum"], rows)


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
