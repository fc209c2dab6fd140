"""A certificate as tables: what it cost and saved, how nearly equal, layer by layer, why, and what was left alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from isthmus._html import number
from isthmus._result import Table

if TYPE_CHECKING:
    from isthmus.compression._certificate import Certificate

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
_LAYERS = (
    "“Joined” layers have no neurons left: they are part of the next. Layers that were not there before are the inner "
    "neurons of a weight that became two factors.",
)


def tables_of(found: Certificate) -> list[Table]:
    """The tables of a certificate; those without rows are left out."""
    every = [_layers(found), _sizes(found), _evidence(found), _reasons(found), _untouched(found)]
    return [one for one in every if one.rows]


def _layers(found: Certificate) -> Table:
    rows = []
    for layer in found.layers:
        nothing = "nothing" if layer.before else "new: inner neurons of two factors"
        done = "; ".join(f"{count} {why}" for why, count in layer.removed.items()) or nothing
        rows.append([layer.layer, layer.before, layer.after, layer.linear, layer.before - layer.after, done])
    heads = ["layer", "before", "after", "of these linear", "fewer", "what was done"]
    return Table("changes", "Every layer", heads, rows, _LAYERS, folded=len(rows) > 60, brief=(0, 1, 2, 3, 5))


def _sizes(found: Certificate) -> Table:
    rows = [
        ["parameters", f"{found.parameters_before:,}", f"{found.parameters_after:,}"],
        ["bytes", f"{found.bytes_before:,}", f"{found.bytes_after:,}"],
        ["‖θ‖²", number(found.norm_before, 5), number(found.norm_after, 5)],
        ["operations", number(found.operations_before), number(found.operations_after)],
        [f"ms for {found.batch} rows", number(found.latency_before), number(found.latency_after)],
    ]
    return Table("sizes", "Before and after", ["", "before", "after"], rows)


def _evidence(found: Certificate) -> Table:
    from isthmus.compression._certificate import EVERYWHERE, UNCHANGED, WITHIN

    allowed = {WITHIN: f"{found.tolerance:g}", UNCHANGED: "none"}.get(found.domain, "rounding")
    where = {EVERYWHERE: "random points, and the data if given", UNCHANGED: "–"}.get(found.domain, "the data")
    rows: list[list[Any]] = [
        ["the network returned", where, found.points, _cell(found.deviation), allowed],
        ["before its weights were rounded", where, found.points, _cell(found.before_rounding), allowed],
    ]
    if found.elsewhere is not None:
        rows.append(["the network returned", "samples to check on", "", _cell(found.elsewhere), "not limited"])
    heads = ["which", "where", "points", "largest deviation", "allowed"]
    return Table("evidence", "How nearly equal", heads, rows, _EVIDENCE, brief=())


def _cell(value: float) -> Any:
    # What is not finite is a word: a dash would say "not measured".
    return "∞" if math.isinf(value) else value


def _reasons(found: Certificate) -> Table:
    counts: dict[str, int] = {}
    for layer in found.layers:
        for why, count in layer.removed.items():
            counts[why] = counts.get(why, 0) + count
    rows = [[why, count, REASONS.get(why, "")] for why, count in sorted(counts.items(), key=lambda one: -one[1])]
    return Table("reasons", "Why neurons could go", ["reason", "neurons", "meaning"], rows, brief=())


def _untouched(found: Certificate) -> Table:
    rows = [list(one) for one in found.untouched]
    return Table("parts", "Parts with parameters that were not looked at", ["part", "why"], rows, brief=())
