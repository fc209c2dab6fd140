"""The verdicts of claims as tables: claim by claim, part by part, what says nothing and why, hypotheses, statements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isthmus._html import number
from isthmus._result import Badge, Table
from isthmus.claims._base import CAUSES, CLAIMS

if TYPE_CHECKING:
    from isthmus.claims._base import Verdict
    from isthmus.claims._verify import Verdicts


def tables_of(found: Verdicts) -> list[Table]:
    """The tables of verdicts; those without rows are left out."""
    judged = list(found.judged)
    every = [_table(judged), _parts(judged), _silent(found), _hypotheses(found), _statements(found)]
    return [one for one in every if one.rows]


def _table(judged: list[Verdict]) -> Table:
    rows = []
    for v in judged:
        sides = f"{number(v.lhs, 4)} {v.relation} {number(v.rhs, 4)}"
        rows.append([v.claim, CLAIMS[v.claim].title, Badge(v.status), sides, number(v.margin), v.reason or v.where])
    heads = ["claim", "in words", "verdict", "both sides", "margin", "where, or what is wrong"]
    reading = ["Margin: how far the sides could still move until the claim fails, relative to the larger side."]
    return Table("verdicts", "What each claim says of this network", heads, rows, reading, brief=(0, 1, 2, 3, 4))


def _parts(judged: list[Verdict]) -> Table:
    rows = []
    for v in judged:
        for part in v.parts if len(v.parts) > 1 else ():
            silent = part.status == "not applicable"
            sides = "" if silent else f"{number(part.lhs, 4)} {part.relation} {number(part.rhs, 4)}"
            rows.append([v.claim, part.name, Badge(part.status), sides, number(part.margin), part.reason or part.where])
    heads = ["claim", "part", "verdict", "both sides", "margin", "where, or why not"]
    return Table("parts", "Parts of claims", heads, rows, brief=())


def _silent(found: Verdicts) -> Table:
    from isthmus.claims._verify import shortened

    rows = [
        [CAUSES[cause], shortened(ids), what] for cause, groups in found.silent.items() for what, ids in groups.items()
    ]
    return Table("silent", "Claims that say nothing", ["cause", "claims", "what is missing"], rows, brief=())


def _hypotheses(found: Verdicts) -> Table:
    rows = [[v.claim, h.name, h.status, h.found] for v in found for h in v.hypotheses]
    return Table(
        "assumed", "Hypotheses, looked at", ["claim", "hypothesis", "status", "found"], rows, folded=True, brief=()
    )


def _statements(found: Verdicts) -> Table:
    rows = [
        [one.id, one.statement, f"{one.paper}, {one.where}", one.erratum] for one in (CLAIMS[v.claim] for v in found)
    ]
    return Table("statements", "Statements", ["claim", "statement", "source", "erratum"], rows, folded=True, brief=())
