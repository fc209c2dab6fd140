"""A diagnosis on the terminal: the answer first, then why, then the layers and the other ways of counting."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from isthmus._html import number
from isthmus.cli.diagnosis_folder import FILES
from isthmus.cli.screen import console, print_items, print_result, print_table, text

if TYPE_CHECKING:
    from isthmus.diagnosis import Diagnosis


def print_diagnosis(found: Diagnosis, folder: Path) -> None:
    """Show a Diagnosis; ``folder`` is where it was written."""
    out = console()
    print_result(out, found)
    tables = {one.key: one for one in found.tables()}
    if "layers" in tables:
        out.print()
        print_table(out, tables["layers"], "← the isthmus")
        told = "?: unclear; dimensions: of the centred representation; W: weights, J: Jacobian; negative: ‖[Z]₋‖²/‖Z‖²"
        out.print(text(told), style="dim")
    for key in ("effective", "factors"):
        if key in tables:
            out.print()
            print_table(out, tables[key])
    if "agreement-numbers" in tables:
        out.print()
        print_table(out, tables["agreement-numbers"])
    out.print()
    out.print(text(_whole(found)))
    for one in (found.minimum, found.stability):
        if one is not None:
            out.print(text(one.sentence))
    if found.left_out:
        out.print()
        out.print(text("within the budget:"), style="dim")
        print_items(out, found.left_out)
    if found.notes:
        out.print()
        out.print(text("how it was done:"), style="dim")
        print_items(out, found.notes)
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
    told += [f"{label} {number(numbers[key])}" for key, label in shown.items() if numbers.get(key) is not None]
    return " · ".join(told)
