"""A Diagnosis as a page: the answer, where the isthmus is, other counts, spectra through depth, the whole network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from isthmus._checks import check_choice, check_integer
from isthmus._html import number, plain
from isthmus.diagnosis import Diagnosis, History, LayerDiagnosis
from isthmus.measures import Mechanics, Stability
from isthmus.plotting import diagnosis as picture
from isthmus.plotting import frequencies as by_frequency
from isthmus.plotting import history as over_time
from isthmus.plotting.figure import WHOLE, Layers
from isthmus.plotting.mechanics import figures
from isthmus.report.page import Badge, Block, Fact, Notes, Page, Section, Table, origin_section, page, tables_of

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
    ways = picture.effective(found, layers)
    soft = [*([ways] if ways else []), *tables["effective"], *tables["factors"]]
    sections = [
        Section("effective", "In effect", soft, _EFFECTIVE),
        Section("layers", where, _layers(found, layers, tables), _LEAD),
        Section("agreement", "Agreement", _agreement(found, tables), "Do other ways of counting say the same?"),
        *(_through(key, found, content["layers"]) for key in _SPECTRA),
        frequency_section(found.layers, layers, found.whole),
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
    elif found.narrowest is not None:
        soft = found.narrowest
        where = f"in effect, at {plain(soft.layer, 24)}, where it is least"
        facts.append(Fact("dimensions", f"{soft.dimension.value:.3g} of {found[soft.layer].units}", where))
        if soft.fresh is not None and math.isfinite(soft.fresh.value):
            facts.append(Fact("freshly initialised", f"{soft.fresh.value:.3g}", "dimensions of the same layer"))
        if soft.carried >= 0:
            facts.append(Fact("carried", f"{soft.carried:.0%}", f"of the outputs by its leading {soft.directions}"))
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
    one = mechanics_section(found.mechanics)
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


# ---- Circular convolutions by frequency: which waves every filter passes, through depth and one layer at a time


_FREQUENCIES = (
    "Convolutions that wrap around act on every frequency by itself: which waves do they pass, and which end here?"
)
_KEPT = ("Filters are counted from 1, heads and activations left out.",)
_PASSED = (
    "‖filter‖² is what weight decay sees; Σs² is that of the operator, positions · ‖filter‖². “Stand out” are the "
    "values before a clear drop, with how often a frequency occurs where several channels carry it.",
)


def frequency_section(found: Sequence[LayerDiagnosis], layers: Layers, whole: Mapping[str, Any]) -> Section:
    """The section of the layers that have spectra by frequency; without blocks where none has."""
    entries = [
        (name, layer.name, part.frequencies, part)
        for name, layer in zip(layers.names, found)
        for part in layer.weights
        if part.frequencies is not None
    ]
    if not entries:
        return Section("frequencies", "Frequencies", [])
    names = [plain(name, WHOLE) for name, *_ in entries]
    inside = {layers.names[layers.places.index(place)] for place in layers.shaded if place in layers.places}
    shaded = [index for index, (name, *_) in enumerate(entries, start=1) if name in inside]
    along = Layers(range(1, len(names) + 1), names, shaded)
    spectra = [spectrum for *_, spectrum, _ in entries if spectrum is not None]
    rows = []
    for (name, _, _, part), spectrum in zip(entries, spectra):
        reading = part.spectrum.reading
        status = "" if reading is None else reading.status
        kept = [] if reading is None or status != "clear" else [one.name for one in spectrum.largest(reading.count)]
        told = ", ".join(kept) if kept else {"full": "all", "zero": "none"}.get(status, "?")
        sizes = [spectrum.filter_norm**2, spectrum.norm**2]
        count = None if reading is None or status == "unclear" else reading.count
        rows.append([name, "×".join(map(str, spectrum.size)), told, count, *sizes])
    heads = ["layer", "positions", "frequencies that stand out", "dimensions", "‖filter‖²", "Σs²"]
    blocks: list[Block] = [
        *_verdict(whole.get("kept_frequencies")),
        by_frequency.through_depth(
            [one.values for one in spectra],
            [one.signed for one in spectra],
            along,
            [one.multiplicity for one in spectra],
        ),
        *by_frequency.one_layer(spectra, names),
        Table("frequencies-numbers", "What every filter passes", heads, rows, _PASSED, folded=len(rows) > 12),
    ]
    return Section("frequencies", "Frequencies", blocks, _FREQUENCIES)


def _verdict(found: Any) -> list[Block]:
    """What the whole network keeps, where it is known."""
    if not isinstance(found, Mapping):
        return []
    word = str(found.get("verdict"))
    reasons = [str(one) for one in found.get("reasons") or ()]
    rows = [[Badge(word), "; ".join(reasons)]]
    return [Table("frequencies-verdict", "The frequencies that are kept", ["verdict", "why"], rows, _KEPT)]


# ---- A Mechanics as a page: its state, the path, energies and residual along it, and every step in a table


#: What each state means in general.
MECHANICS_MEANING: dict[str, str] = {
    "conserved": "The weights are those that the momenta ask for, and 𝓗 is constant: energies and rank can be read.",
    "not yet critical": "No critical point of cost + ridge: train on, or check that ridge, loss and targets are right.",
    "drifting": "A critical point, but 𝓗 is not constant: the steps are too long for the theory. Take more layers.",
    "not applicable": "Nothing can be said, for the reason given.",
}
_MECHANICS = "The network as a path through representations, and the forces that keep it on its way."


def mechanics_page(found: Mechanics) -> Page:
    """The page of a Mechanics."""
    summary = found.summary()
    settings = {key: summary[key] for key in ("effective_depth", "ridge", "gamma_share", "tolerance", "samples")}
    sections = [
        Section("path", "Along the path", figures(found), _MECHANICS),
        Section("steps", "Step by step", found.tables()),
        origin_section({"parameters": settings}),
    ]
    return page("Mechanics", found, MECHANICS_MEANING, _mechanics_facts(found), sections)


def mechanics_section(found: Mechanics) -> Section:
    """The figures and the table as one section, for a page that shows more; its lead is the answer."""
    blocks: list[Block] = [*figures(found), *found.tables()]
    return Section("mechanics", "Mechanics", blocks, plain(found.sentence, 400))


def _mechanics_facts(found: Mechanics) -> list[Fact]:
    facts = [Fact("effective depth L̃", number(found.effective_depth), f"ridge {number(found.ridge)}")]
    if found.arrays is not None:
        estimate = Fact("−(2/L̃)𝓗", number(found.rank_estimate), "the rank, from below as L̃ grows")
        least = Fact("least cost of identity", number(found.least_identity_cost), "the rank, from above, up to γ")
        residual = Fact("residual", number(found.residual), f"critical up to {found.tolerance:g}")
        facts = [estimate, least, residual, *facts]
    return [*facts, Fact("samples", f"{found.samples:,}", "that it ran on")]


# ---- A History as a page: what became of ranks, norms and spectra over the steps of a training


_HISTORY_MEANING = {
    "measured": "Every snapshot is whole.",
    "incomplete": "Some snapshots could not be measured: the table says which and why.",
    "empty": "No snapshot was taken.",
}


def history_page(history: History) -> Page:
    """The page of a History."""
    facts = [Fact("snapshots", str(len(history.snapshots)), "that were taken")]
    if history.snapshots:
        first, last = history.snapshots[0], history.snapshots[-1]
        facts.append(Fact("steps", f"{first.step} … {last.step}", "from the first to the last"))
        facts.append(Fact("‖θ‖² at the end", number(last.norm_squared), f"{number(first.norm_squared)} at first"))
        if math.isfinite(last.cost):
            facts.append(Fact("cost at the end", number(last.cost), f"{number(first.cost)} at first"))
    some = over_time.few(history.snapshots)
    thinned = [] if len(some) == len(history.snapshots) else [f"Drawn are {len(some)} snapshots, evenly spaced."]
    sections = [
        Section("layers", "Layer by layer", over_time.by_layer(history, some, thinned)),
        Section("network", "The network as a whole", over_time.of_the_whole(some, thinned)),
        Section("spectra", "Spectra over the steps", over_time.spectra(history, some, thinned)),
        Section("snapshots", "Snapshots", [*history.tables(), *([Notes(history.notes)] if history.notes else [])]),
        origin_section({"parameters": history.settings}),
    ]
    return page("History", history, _HISTORY_MEANING, facts, sections)
