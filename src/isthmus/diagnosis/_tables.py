"""The numbers of a Diagnosis as tables: every layer, how it was looked at, and the other ways of counting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isthmus._result import Badge, Table
from isthmus.diagnosis._ranks import evidence_table

if TYPE_CHECKING:
    from isthmus.diagnosis._result import Diagnosis, LayerDiagnosis, Spectrum

_LAYERS = (
    "Ranks are counts of values that clearly stand out; “?” is an unclear drop, empty is not computed.",
    "Bypass is the share of the outputs' variation that survives when the layer is frozen: 0 if all passes through it.",
    "Negative is the size of the negative outputs, ‖[Z]₋‖²/‖Z‖²: near 0 inside a bottleneck, where ReLUs do nothing.",
)


def tables_of(found: Diagnosis) -> list[Table]:
    """The tables of a diagnosis; those without rows are left out."""
    rows, methods, inside = [], [], []
    for index, layer in enumerate(found.layers):
        name = layer.name or "(output)"
        if name in found.isthmus.layers:
            inside.append(index)
        state = Badge("isthmus") if name in found.isthmus.layers else "never called" if layer.order is None else ""
        ranks = [", ".join(filter(None, (counted(part.spectrum) for part in layer.weights)))]
        ranks += [counted(layer.dimensions), counted(layer.jacobian)]
        passes = {None: "", True: "yes", False: "no"}[layer.passes]
        sizes = [passes, layer.bypass, layer.negative_share, *layer.sizes, layer.participation_ratio]
        rows.append([name, state, layer.kind, layer.units, *ranks, *sizes])
        methods.append([name, layer.type_name, layer.calls, layer.rows, *_methods(layer)])
    heads = ["layer", "where", "kind", "units", "rank of W", "dimensions", "rank of J", "all passes", "bypass"]
    heads += ["negative", "‖W‖", "largest s(W)", "stable rank", "participation ratio"]
    how = ["layer", "class", "calls", "rows", "weights", "representation", "Jacobian", "note"]
    cost = [[part.name, part.state, part.what, part.estimated, part.seconds] for part in found.cost]
    spent = ["part", "state", "on what", "seconds expected", "seconds taken"]
    brief = (0, 1, 2, 3, 4, 5, 6, 7, 9, 10)
    tables = [
        _effective(found),
        _factors(found),
        Table("layers", "Every layer", heads, rows, _LAYERS, strong=inside, folded=len(rows) > 12, brief=brief),
        evidence_table("agreement-numbers", found.agreement, found.rank),
        Table("methods", "How each layer was looked at", how, methods, folded=True, brief=()),
        Table("cost", "What was measured, and what the budget left out", spent, cost, brief=()),
    ]
    return [one for one in tables if one.rows]


def _effective(found: Diagnosis) -> Table:
    """The effective dimensions of the layers, one row for each layer where they were measured."""
    rows, strong = [], []
    for layer in found.layers:
        effective = layer.effective
        if effective is None:
            continue
        narrowest = found.narrowest is not None and found.narrowest.layer == layer.name
        if narrowest:
            strong.append(len(rows))
        fresh = None if layer.fresh is None else layer.fresh.participation.shown
        estimates = [one.shown for one in (effective.participation, effective.stable, effective.intrinsic)]
        where = Badge("narrowest") if narrowest else ""
        rows.append(
            [layer.name or "(output)", where, layer.units, estimates[0], fresh, *estimates[1:], effective.points]
        )
    heads = ["layer", "where", "units", "effective dimension", "freshly initialised", "stable rank", "TwoNN", "points"]
    reading = (
        "Effective dimension: participation ratio (Tr Σ)²/Tr Σ² of the outputs, corrected for the bias of few samples.",
        "In brackets: intervals of 95 %. Positions of images and tokens are pooled, each a point; padding is left out.",
        "TwoNN: dimension of the surface that the points lie on, too low if it is high. Interval: choice of points.",
    )
    title = "In how many dimensions each layer varies"
    return Table("effective", title, heads, rows, reading, strong, len(rows) > 24, brief=(0, 1, 2, 3, 4, 6))


def _factors(found: Diagnosis) -> Table:
    """The layers that need fewer numbers as a product of two matrices."""
    known = [(layer, layer.factor) for layer in found.layers if layer.factor is not None]
    known.sort(key=lambda pair: pair[1].loss)
    rows = [
        [layer.name, "×".join(map(str, layer.weights[0].shape)), factor.rank, factor.kept, factor.loss]
        for layer, factor in known
    ]
    heads = ["layer", "weights", "rank", "share of its numbers", "loss"]
    reading = (
        "As a product of two of this rank a layer keeps 99 % of the variance of its outputs; the loss is the share of",
        "the variance of the network's outputs that changes, on samples that were not used to choose the directions.",
    )
    return Table("factors", "Layers that could be factored", heads, rows, reading, folded=len(rows) > 24)


def counted(spectrum: Spectrum | None) -> str:
    """The count that stands out as text: ``"?"`` where it is unclear, empty where there is no spectrum."""
    if spectrum is None or spectrum.reading is None:
        return ""
    return "?" if spectrum.rank is None else str(spectrum.rank)


def _methods(layer: LayerDiagnosis) -> list[str]:
    """How the spectra of weights, representation and Jacobian were obtained, and the note of the layer."""
    weights = [f"{part.label} {'×'.join(map(str, part.shape))}: {_method(part.spectrum)}" for part in layer.weights]
    others = [_method(one) for one in (layer.dimensions, layer.jacobian)]
    return ["; ".join(weights), *others, layer.note]


def _method(spectrum: Spectrum | None) -> str:
    if spectrum is None:
        return ""
    return f"{spectrum.method} ({spectrum.note})" if spectrum.note else spectrum.method
