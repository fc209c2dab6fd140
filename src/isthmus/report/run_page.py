"""A Run as a page: what was stated and what came out, its pictures, its arrays, where it is from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from isthmus._html import number
from isthmus.plotting import depth
from isthmus.plotting.figure import Layers
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
