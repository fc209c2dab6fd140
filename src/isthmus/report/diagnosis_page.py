"""A Diagnosis as a page: the answer, where the isthmus is, other counts, spectra through depth, the whole network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from isthmus._checks import check_choice, check_integer
from isthmus._html import plain
from isthmus.diagnosis import Diagnosis
from isthmus.measures import Stability
from isthmus.plotting import diagnosis as picture
from isthmus.plotting.figure import Layers
from isthmus.report import frequencies, mechanics_page
from isthmus.report.page import Block, Fact, Notes, Page, Section, Table, origin_section, page, tables_of

_MEANING = {
    "determined": "The representations show the rank, and weights, width or Jacobian agree.",
    "none": "No layer that everything passes through is narrower than inputs and outputs force.",
    "undetermined": "The evidence contradicts itself or is too weak: the first reason says what is in doubt.",
}
_KIND = {"full": "narrower than inputs and outputs", "half": "as wide as the outputs, which force it", None: ""}
#: Key in a layer's plain data: key, title and lead of its section.
_SPECTRA = {
    "dimensions": (
        "representations",
        "Representations through depth",
        "What each layer puts out for the samples: in how many directions does it vary?",
    ),
    "weights": (
        "weights",
        "Weights through depth",
        "The matrices themselves, whatever the samples; layers with several have a place for each.",
    ),
    "jacobian": (
        "jacobians",
        "Jacobians through depth",
        "How each layer moves when the inputs move a little: the median over the samples that were looked at.",
    ),
}
_WHOLE = {
    "parameters": "parameters",
    "depth": "depth L",
    "norm_squared": "squared norm ‖θ‖²",
    "norm_per_depth": "‖θ‖²/L",
    "layer_imbalance": "imbalance of the layers",
    "neuron_imbalance": "imbalance of the neurons",
    "cost": "cost",
    "unexplained": "unexplained share of the variance",
    "criticality": "distance from a minimum",
    "ntk_trace": "trace of the NTK",
    "ntk_top": "largest eigenvalue of the NTK",
    "ntk_top_state": "how that eigenvalue was found",
    "largest_stable_step": "largest stable step",
    "output_depth": "effective depth by the outputs",
}
_EFFECTIVE = "Where no bottleneck was found: in how many dimensions each layer varies, and a fresh copy beside it."
_LEAD = "How many directions each layer uses, counted in three ways."


_FORCES_TOLD = (
    "Of each hidden representation: towards the origin by the layer before, away from it by the layer after.",
    "At a minimum they cancel (cosine −1) where no hypothesis fails; the state names one that does.",
)


_NONNEGATIVITY_TOLD = (
    "Inside a bottleneck of rank k activations change little, and in a deep network a layer costs little more than k.",
)


def page_of(found: Diagnosis, *, document: Mapping[str, Any] | None = None) -> Page:
    """The page of a Diagnosis.

    Parameters
    ----------
    found : Diagnosis
    document : mapping, optional
        The JSON of its folder, which knows its ``origin`` too.
    """
    check_choice("report", "verdict", found.verdict, _MEANING)
    if found.rank is not None:
        check_integer("report", "rank", found.rank, low=0, high=10**9)
    layers, tables = picture.places(found), tables_of(found)
    content = found.to_dict() if document is None else document
    origin, quantities = content.get("origin"), content["quantities"]
    title = str((origin or {}).get("weights") or found.whole.get("type") or "Diagnosis")
    where = "Layer by layer" if found.rank is None else "Where the isthmus is"
    sections = [
        Section("layers", where, _layers(found, layers, tables), _LEAD),
        Section("effective", "In effect", [*tables["effective"], *tables["factors"]], _EFFECTIVE),
        Section("agreement", "Agreement", _agreement(found, tables), "Do other ways of counting say the same?"),
        *(_through(key, found, content["layers"]) for key in _SPECTRA),
        frequencies.section(found.layers, layers, found.whole),
        *_mechanics(found),
        Section("network", "The network as a whole", _whole(found, layers, quantities)),
        Section("notes", "How it was done", _notes(found, quantities, tables)),
        origin_section({"data": origin, "parameters": found.settings, "provenance": found.provenance}),
    ]
    return page("Diagnosis", found, _MEANING, _facts(found, len(found.layers)), sections, title=title)


def _facts(found: Diagnosis, count: int) -> list[Fact]:
    narrow = found.isthmus
    value = {"determined": str(found.rank), "none": "none", "undetermined": "?"}[found.verdict]
    doubt = {"none": "nothing is narrower than it must be", "undetermined": "the reasons are above"}
    facts = [Fact("bottleneck rank", value, doubt.get(found.verdict) or _KIND[narrow.kind])]
    if narrow.layers:
        first, last = plain(narrow.layers[0], 24), plain(narrow.layers[-1], 24)
        where = f"at {first}" if len(narrow.layers) == 1 else f"from {first} to {last}"
        facts.append(Fact("layers in the isthmus", f"{len(narrow.layers)} of {count}", where))
    else:
        facts.append(Fact("layers", str(count), "that were looked at"))
    facts.append(Fact("samples", f"{found.samples:,}", "that it ran on"))
    parameters = found.whole.get("parameters")
    if isinstance(parameters, int):
        facts.append(Fact("parameters", f"{parameters:,}", plain(found.whole.get("dtype", ""), 24)))
    return facts


def _layers(found: Diagnosis, layers: Layers, tables: Mapping[str, list[Block]]) -> list[Block]:
    if not found.layers:
        return []
    return [picture.counts(found.layers, layers, found.rank), *tables["layers"], *tables["methods"]]


def _agreement(found: Diagnosis, tables: Mapping[str, list[Block]]) -> list[Block]:
    figure = picture.agreement(found.agreement, found.rank)
    return [*([figure] if figure else []), *tables["agreement-numbers"]]


def _through(key: str, found: Diagnosis, content: Sequence[Mapping[str, Any]]) -> Section:
    section, title, lead = _SPECTRA[key]
    return Section(section, title, picture.through(key, found, content), lead)


def _mechanics(found: Diagnosis) -> list[Section]:
    if found.mechanics is None:
        return []
    one = mechanics_page.section(found.mechanics)
    return [one if one.blocks else replace(one, blocks=[Notes([found.mechanics.sentence])], lead="")]


def _whole(found: Diagnosis, layers: Layers, quantities: Mapping[str, Any]) -> list[Block]:
    rows = []
    for key, name in _WHOLE.items():
        if found.whole.get(key) is not None:
            told = quantities.get(f"whole.{key}") or {}
            rows.append([name, found.whole[key], str(told.get("formula") or ""), str(told.get("threshold") or "")])
    # A column of nothing says nothing.
    width = 4 if any(row[3] for row in rows) else 3
    heads = ["number", "value", "what it is", "threshold"][:width]
    table = Table("whole", "Numbers of the whole network", heads, [row[:width] for row in rows])
    deep = "depth" in found.whole
    figure = picture.sizes(found.layers, layers, found.rank if deep else None)
    blocks = [*([figure] if figure else []), *([table] if rows else []), *_forces(found.whole.get("forces"))]
    if found.minimum is not None:
        blocks.append(Notes([found.minimum.sentence]))
    return [*blocks, *_nonnegativity(found.whole.get("nonnegativity")), *_stability(found.stability)]


def _nonnegativity(layers: Any) -> list[Block]:
    """What σ does to each layer, and what each layer costs beyond the rank."""
    if not isinstance(layers, list) or not layers:
        return []
    keys = ("layer", "negative_count", "negative_share", "change", "excess", "R1", "R1_below")
    rows = [[one.get(key) for key in keys] for one in layers if isinstance(one, Mapping)]
    heads = [
        "layer",
        "negative entries",
        "their size",
        "‖σ(α̃) − α̃‖/‖α̃‖",
        "‖W_ℓ‖² + ‖b_ℓ‖² − k",
        "R1 up to here",
        "at least",
    ]
    title = "What each layer changes, and costs beyond the rank"
    return [Table("nonnegativity", title, heads, rows, _NONNEGATIVITY_TOLD, folded=len(rows) > 12)]


def _stability(found: Stability | None) -> list[Block]:
    """The answer, and the samples that are sharpest for steps of this size."""
    if found is None:
        return []
    numbers = {
        "largest step that stays": found.stable_step,
        "the same by the trace of H": found.trace_step,
        "least step that leaves": found.unstable_step,
        "‖H‖": found.sharpness,
        "Tr H": found.trace,
    }
    steps = Table("stability", "Steps at this minimum", ["number", "value"], [list(one) for one in numbers.items()])
    worst = [list(pair) for pair in zip(found.sample, found.sample_sharpness)]
    told = (f"{found.unstable_samples} samples are too sharp for steps of {found.learning_rate:g} by themselves.",)
    sharp = Table("sharpest", "The sharpest samples", ["row", "‖H_i‖"], worst, told, folded=True)
    return [Notes([found.sentence]), steps, sharp]


def _forces(layers: Any) -> list[Block]:
    """Attraction and repulsion, layer by layer."""
    if not isinstance(layers, list) or not layers:
        return []
    keys = ("layer", "state", "attraction", "repulsion", "residual", "cosine", "at_kink")
    rows = [[one.get(key) for key in keys] for one in layers if isinstance(one, Mapping)]
    heads = ["hidden layer", "state", "‖attraction‖", "‖repulsion‖", "residual", "cosine", "entries at a kink"]
    return [Table("forces", "Attraction and repulsion", heads, rows, _FORCES_TOLD, folded=len(rows) > 12)]


def _notes(found: Diagnosis, quantities: Mapping[str, Any], tables: Mapping[str, list[Block]]) -> list[Block]:
    rows = [
        [str(name), str(one["formula"]), str(one["threshold"] or ""), str(one["version"])]
        for name, one in quantities.items()
    ]
    heads = ["number in diagnosis.json", "what it is", "threshold", "since version"]
    definitions = Table("quantities", "What every number is", heads, rows, folded=True)
    notes = [Notes(found.notes)] if found.notes else []
    return [*notes, *tables["cost"], *([definitions] if rows else [])]
