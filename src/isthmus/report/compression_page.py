"""A compression as a page: what went, why and where the two networks are equal, with the evidence."""

from __future__ import annotations

import math
from typing import Any

from isthmus._html import number, plain
from isthmus.compression import Certificate, Compressed
from isthmus.compression._certificate import EVERYWHERE, ON_DATA, UNCHANGED, WITHIN
from isthmus.plotting.compression import figures
from isthmus.report.page import Answer, Block, Fact, Notes, Page, Section, Table

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
#: What was done → what it means; anything else is shown as it is.
REASONS = {
    "without output": "the next layer takes nothing from them",
    "dead": "they have no input, or never let anything through",
    "constant": "they have no input; their constant is now in the biases after them",
    "never active": "their inputs are never negative and their weights never positive",
    "on one ray": "their weights are positive multiples of another's, which now stands for them",
    "linear, beyond their rank": "no activation acts on them, and fewer pass on the same",
    "layer joined with the next": "all its neurons are linear: two weights became their product",
    "never active on the data": "below zero at every sample",
    "constant on the data": "the same value at every sample; it is now in the biases after them",
    "merged within one gap of the data": "in one dimension, kinks between the same two samples are one",
    "by relations on the data": "what they contribute at the samples, the others can (Carathéodory)",
    "at equal covariances": "all covariances of the layer at the samples stay as they were (Carathéodory)",
    "refitted within the tolerance": "the weights after the others were refitted to stand for them",
}
_EVIDENCE = (
    "Deviations are the largest difference of an output, over all samples and outputs, relative to the largest output, "
    "computed in float64. The first row is the network that was returned, with weights in its own dtype.",
    "“Allowed” is what was asked for; rounding alone is called equality.",
)
_MEASURED = "Measured on the network that was returned, beside the one that was given."
_LAYERS = (
    "“Joined” layers have no neurons left: they are part of the next. Layers that were not there before are the inner "
    "neurons of a weight that became two factors.",
)


def page_of(result: Compressed | Certificate) -> Page:
    """The page of a compression, or of its certificate."""
    found = result.certificate if isinstance(result, Compressed) else result
    sections = [
        Section("removed", "What went, and what is left", figures(found.to_dict())),
        Section("equality", "Is it the same?", [_evidence(found)], _MEASURED),
        Section("layers", "Layer by layer", _layers(found)),
        Section("untouched", "What was left alone", _untouched(found), _lead(found)),
        Section("notes", "Notes", [Notes(list(found.notes))] if found.notes else []),
    ]
    answer = Answer(plain(found.sentence, 400), found.domain, (), MEANING[found.domain])
    return Page("Compression", "Compression", answer, _facts(found), [one for one in sections if one.blocks])


def page_of_document(document: Any) -> Page:
    """The page of what ``isthmus compress --json`` printed; the file may be a stranger's."""
    return page_of(Certificate.from_dict(document))


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


def _cell(value: float) -> Any:
    # What is not finite is a word: a dash would say "not measured".
    return "∞" if math.isinf(value) else value


def _evidence(found: Certificate) -> Table:
    allowed = f"{found.tolerance:g}" if found.domain == WITHIN else "none" if found.domain == UNCHANGED else "rounding"
    where = {EVERYWHERE: "random points, and the data if given", UNCHANGED: "–"}.get(found.domain, "the data")
    rows: list[list[Any]] = [
        ["the network returned", where, found.points, _cell(found.deviation), allowed],
        ["before its weights were rounded", where, found.points, _cell(found.before_rounding), allowed],
    ]
    if found.elsewhere is not None:
        rows.append(["the network returned", "samples to check on", "", _cell(found.elsewhere), "not limited"])
    heads = ["which", "where", "points", "largest deviation", "allowed"]
    return Table("evidence", "How nearly equal", heads, rows, _EVIDENCE)


def _layers(found: Certificate) -> list[Block]:
    if not found.layers:
        return []
    rows = []
    for layer in found.layers:
        done = "; ".join(f"{count} {why}" for why, count in layer.removed.items()) or _nothing(layer.before)
        rows.append([layer.layer, layer.before, layer.after, layer.linear, layer.before - layer.after, done])
    heads = ["layer", "before", "after", "of these linear", "fewer", "what was done"]
    blocks: list[Block] = [Table("changes", "Every layer", heads, rows, _LAYERS, folded=len(rows) > 60)]
    counts: dict[str, int] = {}
    for layer in found.layers:
        for why, count in layer.removed.items():
            counts[why] = counts.get(why, 0) + count
    told = [[why, count, REASONS.get(why, "")] for why, count in sorted(counts.items(), key=lambda one: -one[1])]
    if told:
        blocks.append(Table("reasons", "Why neurons could go", ["reason", "neurons", "meaning"], told))
    return blocks


def _nothing(before: int) -> str:
    return "nothing" if before else "new: inner neurons of two factors"


def _untouched(found: Certificate) -> list[Block]:
    if not found.untouched:
        return []
    rows = [[part, reason] for part, reason in found.untouched]
    return [Table("parts", "Parts with parameters that were not looked at", ["part", "why"], rows)]


def _lead(found: Certificate) -> str:
    return "" if not found.untouched else "These are in the result as they were, and count in its size and norm."
