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
    """Those that have rows."""
    rows, done, inside = [], [], []
    for index, layer in enumerate(found.layers):
        name = layer.name or "(output)"
        if name in found.isthmus.layers:
            inside.append(index)
        state = Badge("isthmus") if name in found.isthmus.layers else "never called" if layer.order is None else ""
        ranks = [", ".join(filter(None, (counted(part.spectrum) for part in layer.weights)))]
        ranks += [counted(layer.dimensions), counted(layer.jacobian)]
        passes = {None: "", True: "yes", False: "no"}[layer.passes]
        last = [passes, layer.bypass, layer.negative_share, *layer.sizes, layer.participation_ratio]
        rows.append([name, state, layer.kind, layer.units, *ranks, *last])
        done.append([name, layer.type_name, layer.calls, layer.rows, *_methods(layer)])
    heads = ["layer", "where", "kind", "units", "rank of W", "dimensions", "rank of J", "all passes", "bypass"]
    heads += ["negative", "‖W‖", "largest s(W)", "stable rank", "participation ratio"]
    how = ["layer", "class", "calls", "rows", "weights", "representation", "Jacobian", "note"]
    cost = [[part.name, part.state, part.what, part.estimated, part.seconds] for part in found.cost]
    spent = ["part", "state", "on what", "seconds expected", "seconds taken"]
    brief = (0, 1, 2, 3, 4, 5, 6, 7, 9, 10)
    tables = [
        Table("layers", "Every layer", heads, rows, _LAYERS, strong=inside, folded=len(rows) > 12, brief=brief),
        evidence_table("agreement-numbers", found.agreement, found.rank),
        Table("methods", "How each layer was looked at", how, done, folded=True, brief=()),
        Table("cost", "What was measured, and what the budget left out", spent, cost, brief=()),
    ]
    return [one for one in tables if one.rows]


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
