"""Circular convolutions by frequency: which waves every filter passes, through depth and one layer at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isthmus._html import plain
from isthmus.diagnosis import LayerDiagnosis
from isthmus.plotting import frequencies as picture
from isthmus.plotting.figure import WHOLE, Layers
from isthmus.report.page import Badge, Block, Section, Table

_LEAD = "Convolutions that wrap around act on every frequency by itself: which waves do they pass, and which end here?"
_VERDICT = ("Filters are counted from 1, heads and activations left out.",)
_TABLE = (
    "‖filter‖² is what weight decay sees; Σs² is that of the operator, positions · ‖filter‖². “Stand out” are the "
    "values before a clear drop, with how often a frequency occurs where several channels carry it.",
)


def section(found: Sequence[LayerDiagnosis], layers: Layers, whole: Mapping[str, Any]) -> Section:
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
        picture.through_depth(
            [one.values for one in spectra],
            [one.signed for one in spectra],
            along,
            [one.multiplicity for one in spectra],
        ),
        *picture.one_layer(spectra, names),
        Table("frequencies-numbers", "What every filter passes", heads, rows, _TABLE, folded=len(rows) > 12),
    ]
    return Section("frequencies", "Frequencies", blocks, _LEAD)


def _verdict(found: Any) -> list[Block]:
    """What the whole network keeps, where it is known."""
    if not isinstance(found, Mapping):
        return []
    word = str(found.get("verdict"))
    reasons = [str(one) for one in found.get("reasons") or ()]
    rows = [[Badge(word), "; ".join(reasons)]]
    return [Table("frequencies-verdict", "The frequencies that are kept", ["verdict", "why"], rows, _VERDICT)]
