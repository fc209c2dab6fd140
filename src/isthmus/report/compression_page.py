"""A compression as a page: what went, why and where the two networks are equal, with the evidence."""

from __future__ import annotations

import math

from isthmus._html import number
from isthmus.compression import Certificate, Compressed
from isthmus.compression._certificate import EVERYWHERE, ON_DATA, UNCHANGED, WITHIN
from isthmus.plotting.compression import figures
from isthmus.report.page import Fact, Notes, Page, Section, page, tables_of

#: What each domain of equality means in general.
MEANING = {
    EVERYWHERE: "The two compute the same function of every input, up to rounding. Every step is an identity of "
    "functions; the outputs were compared at random points to see that it was done right.",
    ON_DATA: "The outputs are the same at every sample that was given, up to rounding. At other inputs the two may "
    "differ.",
    WITHIN: "At every sample that was given each output moved by at most the tolerance times the largest output. At "
    "other inputs it may move by more.",
    UNCHANGED: "The network was given back bit for bit. That is no proof that it needs all its neurons: only what is "
    "listed in the documentation was looked for.",
}
_MEASURED = "Measured on the network that was returned, beside the one that was given."


def page_of(result: Compressed | Certificate) -> Page:
    """The page of a compression, or of its certificate."""
    found = result.certificate if isinstance(result, Compressed) else result
    alone = "These are in the result as they were, and count in its size and norm."
    tables = tables_of(found)
    sections = [
        Section("removed", "What went, and what is left", [*figures(found.to_dict()), *tables["sizes"]]),
        Section("equality", "Is it the same?", tables["evidence"], _MEASURED),
        Section("layers", "Layer by layer", [*tables["changes"], *tables["reasons"]]),
        Section("untouched", "What was left alone", tables["parts"], alone),
        Section("notes", "Notes", [Notes(found.notes)] if found.notes else []),
    ]
    return page("Compression", found, MEANING, _facts(found), sections)


def _facts(found: Certificate) -> list[Fact]:
    fewer = found.parameters_before / max(found.parameters_after, 1)
    facts = [
        Fact("parameters", f"{found.parameters_after:,}", f"of {found.parameters_before:,}; {fewer:.3g} times fewer"),
        Fact("neurons", f"{found.neurons_after:,}", f"of {found.neurons_before:,}"),
        Fact("largest deviation", _deviation(found.deviation), f"of the largest output, at {found.points:,} points"),
    ]
    if found.elsewhere is not None:
        facts.append(Fact("deviation elsewhere", _deviation(found.elsewhere), "on samples that nothing was fitted to"))
    facts.append(Fact("‖θ‖²", number(found.norm_after, 4), f"before {number(found.norm_before, 4)}"))
    if math.isfinite(found.operations_before) and math.isfinite(found.operations_after):
        note = f"floating-point, of a pass of {found.batch} rows; before {number(found.operations_before, 3)}"
        facts.append(Fact("operations", number(found.operations_after, 3), note))
    if math.isfinite(found.latency_before) and math.isfinite(found.latency_after):
        note = f"before {number(found.latency_before)} ms; {found.batch} rows a pass"
        facts.append(Fact("latency", f"{number(found.latency_after)} ms", note))
    return facts


def _deviation(value: float) -> str:
    return "∞" if math.isinf(value) else "0" if value == 0 else f"{value:.1e}"
