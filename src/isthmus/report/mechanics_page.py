"""A Mechanics as a page: its state, the path, energies and residual along it, and every step in a table."""

from __future__ import annotations

from isthmus._html import number, plain
from isthmus.measures import Mechanics
from isthmus.plotting.mechanics import figures
from isthmus.report.page import Block, Fact, Page, Section, origin_section, page

#: What each state means in general.
MEANING: dict[str, str] = {
    "conserved": "The weights are those that the momenta ask for, and 𝓗 is constant: energies and rank can be read.",
    "not yet critical": "No critical point of cost + ridge: train on, or check that ridge, loss and targets are right.",
    "drifting": "A critical point, but 𝓗 is not constant: the steps are too long for the theory. Take more layers.",
    "not applicable": "Nothing can be said, for the reason given.",
}
_LEAD = "The network as a path through representations, and the forces that keep it on its way."


def page_of(found: Mechanics) -> Page:
    """The page of a Mechanics."""
    summary = found.summary()
    settings = {key: summary[key] for key in ("effective_depth", "ridge", "gamma_share", "tolerance", "samples")}
    sections = [
        Section("path", "Along the path", figures(found), _LEAD),
        Section("steps", "Step by step", found.tables()),
        origin_section({"parameters": settings}),
    ]
    return page("Mechanics", found, MEANING, _facts(found), sections)


def section(found: Mechanics) -> Section:
    """The figures and the table as one section, for a page that shows more; its lead is the answer."""
    blocks: list[Block] = [*figures(found), *found.tables()]
    return Section("mechanics", "Mechanics", blocks, plain(found.sentence, 400))


def _facts(found: Mechanics) -> list[Fact]:
    facts = [Fact("effective depth L̃", number(found.effective_depth), f"ridge {number(found.ridge)}")]
    if found.arrays is not None:
        estimate = Fact("−(2/L̃)𝓗", number(found.rank_estimate), "the rank, from below as L̃ grows")
        least = Fact("least cost of identity", number(found.least_identity_cost), "the rank, from above, up to γ")
        residual = Fact("residual", number(found.residual), f"critical up to {found.tolerance:g}")
        facts = [estimate, least, residual, *facts]
    return [*facts, Fact("samples", f"{found.samples:,}", "that it ran on")]
