"""A Run as a page: what was stated and what came out, its pictures, its arrays, where it is from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from isthmus._html import number
from isthmus.plotting import depth
from isthmus.plotting.figure import Layers
from isthmus.report.origin import origin_section
from isthmus.report.page import Answer, Badge, Block, Fact, Notes, Page, Picture, Section, Table
from isthmus.runs import STATUSES, Outcome, Run

_MEANING = {
    "agrees": "Everything that the paper states came out.",
    "differs": "Something came out otherwise, for a reason that is given.",
    "fails": "Something that was stated did not come out, and no reason is known.",
    "undetermined": "Something that was stated could not be tested, or nothing was judged.",
}
_STATEMENTS = (
    "Each row is one statement of the paper, in its words, with the number that came out beside the expected one.",
    "“Differs” is a difference with a known reason, “fails” one without; “undetermined” could not be tested.",
)
_CONDITIONS = (
    "What the judgement rests on, such as convergence, and further checks that no paper states.",
    "A condition does not count in the status; where one is not met, a statement may be undetermined.",
)
_PICTURE = ("The figure as the experiment drew it, for comparison with the paper's.",)
_SPECTRA = {
    "weight_spectra": ("weights", "Singular values of the weights", 1),
    "representation_spectra": ("representations", "Singular values of the centred representations", 0),
}
_MIME = {"figure.svg": "image/svg+xml", "figure.png": "image/png"}


def page_of(run: Run) -> Page:
    """The page of a Run."""
    counts = {status: sum(o.status == status for o in run.statements) for status in STATUSES}
    reasons = [f"{o.name}: {o.reason}" if o.reason else o.name for o in run.statements if o.status != "agrees"]
    answer = Answer(_sentence(run, counts), run.status, reasons, _MEANING[run.status])
    facts = [
        Fact("statements agree", f"{counts['agrees']} of {len(run.statements)}", "judged by numbers"),
        Fact("arrays", str(len(run.arrays)), "kept in the folder"),
        Fact("key", run.key, "of experiment and parameters"),
    ]
    seconds = run.provenance.get("seconds")
    if isinstance(seconds, (int, float)):
        facts.append(Fact("seconds", number(float(seconds)), "of computing"))
    about = {"parameters": dict(run.parameters), "provenance": dict(run.provenance)}
    sections = [
        Section("outcomes", "What was stated, and what came out", _outcomes(run)),
        Section("figure", "Figure", _pictures(run)),
        *_through_depth(run.arrays, _rank(run)),
        Section("arrays", "Arrays", _arrays(run), "What the folder keeps in arrays.safetensors."),
        origin_section(about),
    ]
    return Page("Run", run.experiment, answer, facts, [section for section in sections if section.blocks])


def _sentence(run: Run, counts: dict[str, int]) -> str:
    if not run.statements:
        return f"{run.experiment} was computed, and nothing about it was judged."
    if counts["agrees"] == len(run.statements):
        all_of = f"All {counts['agrees']} statements" if counts["agrees"] > 1 else "The one statement"
        return f"{all_of} of {run.experiment} came out as stated."
    parts = [f"{counts['agrees']} of {len(run.statements)} statements of {run.experiment} came out as stated"]
    for status, one, many in (
        ("undetermined", "could not be tested", "could not be tested"),
        ("differs", "differs for a known reason", "differ for known reasons"),
        ("fails", "fails", "fail"),
    ):
        if count := counts[status]:
            parts.append(f"{count} {one if count == 1 else many}")
    return f"{', '.join(parts)}."


def _outcomes(run: Run) -> list[Block]:
    blocks: list[Block] = []
    if run.statements:
        heads = ["outcome", "statement", "value", "expected", "the paper's words", "where", "reason"]
        rows = [[*_row(o), o.quote, o.where, o.reason] for o in run.statements]
        blocks.append(Table("outcomes", "Statements", heads, rows, _STATEMENTS))
    if run.conditions:
        rows = [[*_row(o), o.reason] for o in run.conditions]
        blocks.append(
            Table(
                "conditions", "Conditions", ["outcome", "condition", "value", "expected", "reason"], rows, _CONDITIONS
            )
        )
    return blocks


def _row(outcome: Outcome) -> list[Any]:
    return [Badge(outcome.status), outcome.name, _cell(outcome.value), _cell(outcome.expected)]


def _cell(value: Any) -> Any:
    return "" if value is None else str(value) if isinstance(value, bool) else value


def _pictures(run: Run) -> list[Block]:
    for name, mime in _MIME.items():
        if name in run.figures:
            told = f"The figure of {run.experiment}."
            return [Picture("figure", "As the experiment drew it", mime, run.figures[name], _PICTURE, told)]
    return [Notes(["The Run keeps no picture that a page can show."])] if run.figures else []


def _arrays(run: Run) -> list[Block]:
    rows = []
    for name, array in run.arrays.items():
        values = np.asarray(array, dtype=np.float64)
        finite = values[np.isfinite(values)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (np.nan, np.nan)
        shape = " × ".join(map(str, array.shape)) or "one number"
        rows.append([name, shape, str(array.dtype), low, high, int(values.size - finite.size)])
    heads = ["array", "shape", "type", "smallest", "largest", "not finite"]
    return [Table("arrays", "Names, shapes and ranges", heads, rows, folded=len(rows) > 12)] if rows else []


def _rank(run: Run) -> int | None:
    """The number of values to set apart, where the experiment states it."""
    rank = run.parameters.get("rank")
    return rank if isinstance(rank, int) and not isinstance(rank, bool) and 0 < rank < 10**6 else None


def _through_depth(arrays: Mapping[str, Any], rank: int | None) -> list[Section]:
    """Sections for the arrays that are there: ``weight_spectra``, ``representation_spectra``, ``jacobian_spectra``,
    ``weight_norms``, ``bias_norms``.

    Parameters
    ----------
    arrays : mapping of str to array
        Spectra (layers, r), NaN where a layer has fewer values; Jacobians (points, r); norms (layers,).
    rank : int or None
        How many values to set apart.
    """
    found = []
    for name, (key, title, first) in _SPECTRA.items():
        spectra = _matrix(arrays.get(name))
        if spectra is not None:
            figures = depth.through(key, title, spectra, Layers.numbered(first, len(spectra)), rank)
            found.append(Section(key, f"{key.capitalize()} through depth", figures))
    spectra = _matrix(arrays.get("jacobian_spectra"))
    if spectra is not None:
        found.append(Section("jacobians", "Jacobian", [depth.jacobians(spectra, rank)]))
    weights, biases = (np.asarray(arrays.get(key, np.nan), dtype=np.float64) for key in ("weight_norms", "bias_norms"))
    if weights.ndim == 1 and weights.shape == biases.shape and len(weights):
        found.append(Section("norms", "Norm of each layer", [depth.norms(weights, biases, rank)]))
    return found


def _matrix(value: Any) -> np.ndarray | None:
    """Rows to draw, or None where there is no table of numbers."""
    array = np.asarray(np.nan if value is None else value, dtype=np.float64)
    return array[:, : depth.VALUES] if array.ndim == 2 and array.size and np.isfinite(array).any() else None
