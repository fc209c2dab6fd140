"""A Mechanics as a page: its state, the path, energies and residual along it, and every step in a table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from isthmus._checks import fail
from isthmus._errors import FileFormatError, IsthmusError
from isthmus._html import number, plain
from isthmus.measures import Mechanics
from isthmus.plotting.mechanics import figures
from isthmus.report.origin import origin_section
from isthmus.report.page import Answer, Block, Fact, Page, Section, Table

#: What each state means in general.
MEANING: dict[str, str] = {
    "conserved": "The weights are those that the momenta ask for, and 𝓗 is constant: energies and rank can be read.",
    "not yet critical": "No critical point of cost + ridge: train on, or check that ridge, loss and targets are right.",
    "drifting": "A critical point, but 𝓗 is not constant: the steps are too long for the theory. Take more layers.",
    "not applicable": "Nothing can be said, for the reason given.",
}
_LEAD = "The network as a path through representations, and the forces that keep it on its way."
_TABLE = (
    "One row for each step. Costs, ‖A‖ and ‖B‖ are at its beginning; 𝓗 and the residual pair the representation at its "
    "beginning with the momenta at its end.",
    "Without γ the cost of identity is infinite where the representation cannot be rebuilt exactly, as with more "
    "samples than neurons.",
)
#: Name in MechanicsArrays → head of the column.
_COLUMNS = {
    "rho": "length ρ",
    "hamiltonian": "𝓗",
    "identity_cost": "cost of identity",
    "identity_cost_exact": "without γ",
    "effective_dimension": "effective dimension",
    "kinetic": "kinetic",
    "potential": "potential",
    "cross": "cross term",
    "speed": "speed",
    "weight_norm": "‖W‖",
    "bias_norm": "‖b‖",
    "residual": "residual",
    "residual_plain": "of the plain gradient",
    "step_length": "‖ΔA‖",
}
_POSITIONS = {"momentum_norm": "‖B‖", "size": "‖A‖", "negative_share": "negative share"}


def page_of(found: Mechanics) -> Page:
    """The page of a Mechanics."""
    summary = found.summary()
    settings = {key: summary[key] for key in ("effective_depth", "ridge", "gamma_share", "tolerance", "samples")}
    answer = Answer(plain(found.sentence, 400), found.state, (), MEANING.get(found.state, ""))
    sections = [
        Section("path", "Along the path", figures(found), _LEAD),
        Section("steps", "Step by step", _steps(found)),
        origin_section({"parameters": settings}),
    ]
    return Page("Mechanics", "Mechanics", answer, _facts(found), [one for one in sections if one.blocks])


def page_of_document(document: Any) -> Page:
    """The page of what :meth:`Mechanics.to_json` wrote; the file may be a stranger's."""
    try:
        return page_of(Mechanics.from_dict(document))
    except IsthmusError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as problem:
        must, do = "the JSON must be that of a Mechanics", "`isthmus mechanics … --json` prints one."
        return fail("report", must, f"{type(problem).__name__}: {problem}", do, error=FileFormatError)


def section(found: Mechanics) -> Section:
    """The figures and the table as one section, for a page that shows more; its lead is the answer."""
    blocks: list[Block] = [*figures(found), *_steps(found)]
    return Section("mechanics", "Mechanics", blocks, plain(found.sentence, 400))


def _facts(found: Mechanics) -> list[Fact]:
    facts = [Fact("effective depth L̃", number(found.effective_depth), f"ridge {number(found.ridge)}")]
    if found.arrays is not None:
        estimate = Fact("−(2/L̃)𝓗", number(found.rank_estimate), "the rank, from below as L̃ grows")
        least = Fact("least cost of identity", number(found.least_identity_cost), "the rank, from above, up to γ")
        residual = Fact("residual", number(found.residual), f"critical up to {found.tolerance:g}")
        facts = [estimate, least, residual, *facts]
    return [*facts, Fact("samples", f"{found.samples:,}", "that it ran on")]


def _steps(found: Mechanics) -> list[Table]:
    a = found.arrays
    if a is None:
        return []
    columns: Mapping[str, Any] = {name: getattr(a, name) for name in (*_COLUMNS, *_POSITIONS)}
    rows = []
    for index in range(len(a.rho)):
        # What is not finite is a word: a dash would say "not computed".
        values = [float(columns[name][index]) for name in (*_COLUMNS, *_POSITIONS)]
        cells = ["∞" if value == math.inf else value for value in values]
        rows.append([index + 1, float(a.positions[index]), *cells])
    heads = ["step", "p", *_COLUMNS.values(), *_POSITIONS.values()]
    return [Table("mechanics-steps", "Every step", heads, rows, _TABLE, folded=len(rows) > 60)]
