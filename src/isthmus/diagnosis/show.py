"""A Diagnosis in a notebook: the answer, why, the layers and the other ways of counting, as small static HTML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isthmus import _html
from isthmus.diagnosis.passage import NOTHING

if TYPE_CHECKING:
    from isthmus.diagnosis.result import Diagnosis, LayerDiagnosis, Spectrum


def as_html(found: Diagnosis) -> str:
    """Sentence, verdict, reasons, a table of the layers and the agreement panel; everything escaped, no scripts."""
    answer = _html.heading(_html.badge(found.verdict), f"<b>{_html.told(found.sentence)}</b>")
    inside = set(found.isthmus.layers)
    heads = ("layer", "kind", "weights", "units", "‖W‖", "rank of W", "dimensions", "rank of J", "all passes through")
    rows = [_cells(layer, (layer.name or "(output)") in inside) for layer in found.layers]
    # The layers of the isthmus are marked in the table; of a long one, the part around them is shown.
    first = next((i for i, layer in enumerate(found.layers) if (layer.name or "(output)") in inside), 0)
    start = max(0, min(first - 2, len(rows) - _html.ROWS))
    before = f"<div>{start} rows above are left out</div>" if start else ""
    panel = [
        [
            _html.name(one.name),
            _html.number(one.value),
            _agrees(one.rank, found.rank) if i else "",
            _html.told(one.meaning),
        ]
        for i, one in enumerate(found.agreement)
    ]
    return _html.card(
        answer,
        _html.items(found.isthmus.reasons),
        before,
        _html.table(heads, rows[start:]),
        _html.table(("counted by", "says", "", "what it counts"), panel) if panel else "",
        "" if found.mechanics is None else _html.items([found.mechanics.sentence]),
        _html.items(found.notes),
    )


def _cells(layer: LayerDiagnosis, marked: bool) -> list[str]:
    main = layer.weights[0] if layer.weights else None
    name = _html.name(layer.name or "(output)")
    passes = "" if layer.bypass != layer.bypass else "yes" if layer.bypass <= NOTHING else "no"
    return [
        f"<b>{name}</b>" if marked else name,
        _html.name(layer.kind),
        _html.told("; ".join("×".join(map(str, part.shape)) for part in layer.weights[:4])),
        _html.number(layer.units),
        _html.number(main.norm) if main else "—",
        _rank(main.spectrum) if main else "—",
        f"<b>{_rank(layer.dimensions)}</b>" if marked else _rank(layer.dimensions),
        _rank(layer.jacobian),
        passes,
    ]


def _rank(spectrum: Spectrum | None) -> str:
    """The count; a question mark where it is unclear, a dash where there is no spectrum."""
    if spectrum is None or spectrum.reading is None:
        return "—"
    return "?" if spectrum.rank is None else _html.number(spectrum.rank)


def _agrees(rank: int | None, ours: int | None) -> str:
    if rank is None or ours is None:
        return ""
    return "agrees" if rank == ours else "differs"
