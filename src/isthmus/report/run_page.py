"""A Run as a page: what was stated and what came out, its pictures, its arrays, where it is from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from isthmus._html import number
from isthmus.claims import CLAIMS, Verdict, Verdicts
from isthmus.compression import Certificate, Compressed
from isthmus.compression._certificate import EVERYWHERE, ON_DATA, UNCHANGED, WITHIN
from isthmus.plotting import depth
from isthmus.plotting.compression import figures
from isthmus.plotting.figure import Figure, Layers, axis, layout
from isthmus.plotting.verdicts import margins
from isthmus.report.page import Block, Fact, Notes, Page, Picture, Section, origin_section, page, tables_of
from isthmus.runs import Run

_MEANING = {
    "agrees": "Everything that the paper states came out.",
    "differs": "Something came out otherwise, for a reason that is given.",
    "fails": "Something that was stated did not come out, and no reason is known.",
    "undetermined": "Something that was stated could not be tested, or nothing was judged.",
}
_PICTURE = ("The figure as the experiment drew it, for comparison with the paper's.",)
_SPECTRA = {
    "weight_spectra": ("weights", "Singular values of the weights", 1),
    "representation_spectra": ("representations", "Singular values of the centred representations", 0),
}
_MIME = {"figure.svg": "image/svg+xml", "figure.png": "image/png"}


def page_of(run: Run) -> Page:
    """The page of a Run."""
    agrees = sum(o.status == "agrees" for o in run.statements)
    facts = [
        Fact("statements agree", f"{agrees} of {len(run.statements)}", "judged by numbers"),
        Fact("arrays", str(len(run.arrays)), "kept in the folder"),
        Fact("key", run.key, "of experiment and parameters"),
    ]
    seconds = run.provenance.get("seconds")
    if isinstance(seconds, (int, float)):
        facts.append(Fact("seconds", number(float(seconds)), "of computing"))
    tables = tables_of(run)
    about = {"parameters": dict(run.parameters), "provenance": dict(run.provenance)}
    sections = [
        Section("outcomes", "What was stated, and what came out", [*tables["outcomes"], *tables["conditions"]]),
        Section("figure", "Figure", _pictures(run)),
        *_through_depth(run.arrays, _rank(run)),
        Section("arrays", "Arrays", tables["arrays"], "What the folder keeps in arrays.safetensors."),
        origin_section(about),
    ]
    return page("Run", run, _MEANING, facts, sections, title=run.experiment)


def _pictures(run: Run) -> list[Block]:
    for name, mime in _MIME.items():
        if name in run.figures:
            told = f"The figure of {run.experiment}."
            return [Picture("figure", "As the experiment drew it", mime, run.figures[name], _PICTURE, told)]
    return [Notes(["The Run keeps no picture that a page can show."])] if run.figures else []


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


# ---- Verdicts as a page: which theorems hold, with both sides, their hypotheses and the room that is left


_VERDICTS_MEANING = {
    "holds": "No claim fails; those that are not applicable say why.",
    "holds trivially": "No claim fails, and none could well have: see the margins.",
    "fails": "At least one claim fails: either a weight or number is wrong, or the theorem is.",
    "not applicable": "No hypothesis was met: nothing was claimed.",
}


def verdicts_page(found: Verdicts) -> Page:
    """The page of what claims said."""
    tables, judged = tables_of(found), list(found.judged)
    facts = [Fact(word, str(count), f"of {len(found)} claims") for word, count in found.counts.items()]
    blocks: list[Block] = [margins(judged, {v.claim: CLAIMS[v.claim].title for v in judged})] if judged else []
    lead = "A claim says something only where all are met."
    sections = [
        Section("margin", "How much room is left", blocks),
        Section("claims", "Claim by claim", tables["verdicts"], "Both sides, at the place where they are nearest."),
        Section("parts", "Part by part", tables["parts"], "The statements of each claim, judged apart."),
        Section("silent", "Not applicable", tables["silent"], "Why, and what you can supply."),
        Section("hypotheses", "Hypotheses", tables["assumed"], lead),
        *_details(judged),
        Section("statements", "Statements", tables["statements"], "What each claim says, and where."),
        Section("about", "About", [Notes([found.about])]),
    ]
    made = page("Verdicts", found, _VERDICTS_MEANING, facts, sections, title="Theorems")
    more = [found.closing] if found.closing else []
    return replace(made, answer=replace(made.answer, reasons=[*found.reasons, *more]))


def _details(judged: list[Verdict]) -> list[Section]:
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


# ---- A compression as a page: what went, why and where the two networks are equal, with the evidence


#: What each domain of equality means in general.
COMPRESSION_MEANING = {
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


def compression_page(result: Compressed | Certificate) -> Page:
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
    return page("Compression", found, COMPRESSION_MEANING, _compression_facts(found), sections)


def _compression_facts(found: Certificate) -> list[Fact]:
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
