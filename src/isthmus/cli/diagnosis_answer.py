"""A diagnosis on the terminal: the answer first, then why, then the layers and the other ways of counting."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from isthmus.cli.answer import _items, _number, _short
from isthmus.cli.diagnosis_folder import FILES
from isthmus.cli.screen import COLOURS, console, table, text

if TYPE_CHECKING:
    from isthmus.diagnosis import Diagnosis, LayerDiagnosis, Spectrum

#: Columns of a terminal that the whole table needs; narrower ones get its most telling columns.
_WHOLE_TABLE = 100


def print_diagnosis(found: Diagnosis, folder: Path) -> None:
    """Show a Diagnosis; ``folder`` is where it was written."""
    out = console()
    colour = COLOURS.get(found.verdict, "cyan")
    out.print(text(found.sentence, f"bold {colour}"))
    out.print(Text("verdict: ") + Text(found.verdict, colour))
    _items(out, found.isthmus.reasons)
    out.print()
    _print_layers(out, found)
    out.print()
    _print_agreement(out, found)
    out.print()
    out.print(text(_whole(found)))
    for one in (found.minimum, found.stability):
        if one is not None:
            out.print(text(one.sentence))
    if found.left_out:
        out.print()
        out.print(text("within the budget:"), style="dim")
        _items(out, found.left_out)
    if found.notes:
        out.print()
        out.print(text("how it was done:"), style="dim")
        _items(out, found.notes)
    out.print()
    out.print(text(f"kept in {folder}: {', '.join(FILES)}"))


def _whole(found: Diagnosis) -> str:
    """Numbers of the whole network in one line."""
    numbers, told = found.whole, [f"{found.samples} samples", f"{found.whole['parameters']} parameters"]
    shown = {
        "norm_squared": "‖θ‖²",
        "norm_per_depth": "‖θ‖²/L",
        "cost": "cost",
        "unexplained": "unexplained share of the variance",
        "criticality": "‖∇‖/‖2λθ‖ (0 at a minimum)",
        "layer_imbalance": "imbalance of the layers",
        "output_depth": "effective depth by the outputs",
    }
    told += [f"{label} {_number(numbers[key])}" for key, label in shown.items() if numbers.get(key) is not None]
    return " · ".join(told)


def _print_layers(out: Console, found: Diagnosis) -> None:
    wide = not out.is_terminal or out.width >= _WHOLE_TABLE
    more = ("kind", "weights", "units", "‖W‖", "stable rank") if wide else ()
    rows = table("layer", *more, "rank of W", "dimensions", "rank of J", "negative", "all passes", "")
    inside = set(found.isthmus.layers)
    for layer in found.layers:
        name = layer.name or "(output)"
        marked = name in inside
        cells = [_short(name), *(_numbers(layer) if wide else ()), *_counts(layer)]
        rows.add_row(*map(text, cells), text("← the isthmus" if marked else ""), style="bold" if marked else "")
    out.print(rows)
    out.print(
        text("?: unclear; dimensions: of the centred representation; W: weights, J: Jacobian; negative: ‖[Z]₋‖²/‖Z‖²"),
        style="dim",
    )


def _numbers(layer: LayerDiagnosis) -> list[str]:
    main = layer.weights[0] if layer.weights else None
    shapes = ["×".join(map(str, part.shape)) for part in layer.weights]
    shown = "; ".join(shapes[:4]) + ("; …" if len(shapes) > 4 else "")
    norm = math.sqrt(sum(part.norm**2 for part in layer.weights)) if main else math.nan
    return [layer.kind, shown, str(layer.units), _number(norm), _number(main.stable_rank if main else math.nan)]


def _counts(layer: LayerDiagnosis) -> list[str]:
    weights = layer.weights[0].spectrum if layer.weights else None
    passes = {True: "yes", False: "no", None: "—"}[layer.passes]
    negative = "—" if math.isnan(layer.negative_share) else f"{layer.negative_share:.1%}"
    return [_count(weights), _count(layer.dimensions), _count(layer.jacobian), negative, passes]


def _count(spectrum: Spectrum | None) -> str:
    if spectrum is None or spectrum.reading is None:
        return "—"
    return "?" if spectrum.rank is None else str(spectrum.rank)


def _print_agreement(out: Console, found: Diagnosis) -> None:
    rows = table("counted by", "says", "", "what it counts")
    for index, one in enumerate(found.agreement):
        judged = Text("")
        if index and one.rank is not None and found.rank is not None:
            judged = Text("agrees", "green") if one.rank == found.rank else Text("differs")
        rows.add_row(text(one.name), text(_number(one.value)), judged, text(one.meaning))
    out.print(rows)
