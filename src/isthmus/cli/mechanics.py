"""`isthmus mechanics`: the energies, Hamiltonian and criticality of a leaky ResNet on its data, step by step."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isthmus.cli.base import UNDETERMINED, AsJson
from isthmus.cli.diagnose import Loss
from isthmus.cli.given import check_page, check_paths, check_reading, file_of, inputs_of, layers_of, saved_object
from isthmus.cli.screen import COLOURS, console, table, text
from isthmus.cli.table import Decimal, DecimalMark, ExcludeInput, NaValues, Reading

if TYPE_CHECKING:
    from isthmus.measures import Mechanics

_WHO = "mechanics"
#: Steps in the table on the terminal; of more, evenly spaced ones.
_ROWS = 40


def mechanics_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="File of isthmus.save that holds a LeakyResNet.")],
    data: Annotated[
        Path,
        typer.Option(metavar="X", help="Inputs: NPY, CSV, Parquet, or NPZ with X and Y.", show_default=False),
    ],
    ridge: Annotated[
        float, typer.Option(metavar="λ", help="Weight decay of the training; the paper's λ/2L̃.", show_default=False)
    ],
    y: Annotated[
        Path | None, typer.Option("--y", metavar="Y", help="Targets, row for row; needed but for an NPZ with both.")
    ] = None,
    exclude: ExcludeInput = None,
    decimal: Decimal = DecimalMark.point,
    na_values: NaValues = None,
    loss: Annotated[Loss, typer.Option(help="Of the targets.")] = Loss.mse,
    effective_depth: Annotated[
        float | None,
        typer.Option(metavar="L̃", help="That a plain ResNet is read with; by default what its outputs amount to."),
    ] = None,
    gamma_share: Annotated[
        float, typer.Option(metavar="γ₀", help="γ as a share of ‖K‖, of the stable energies.")
    ] = 1e-3,
    tolerance: Annotated[
        float, typer.Option(metavar="SHARE", help="Residual and spread of 𝓗 up to which it is conserved.")
    ] = 0.05,
    kinks: Annotated[
        float, typer.Option(metavar="SHARE", help="Above 0: neurons so near 0 may have any derivative from 0 to 1.")
    ] = 0.0,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Also write a report to look at.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Is a leaky ResNet at a solution? Its energies and Hamiltonian along the path, and the rank they tell.

    The state is conserved, not yet critical, drifting or not applicable; exit code 1 unless it is conserved. The JSON
    is what `isthmus report` takes.
    """
    from isthmus._strict_json import dumps
    from isthmus.measures import mechanics

    check_paths({"MODEL": file_of(model), "--data": data, "--y": y}, {"--out": out})
    check_page("--out", out)
    reading = Reading(decimal, exclude, na_values)
    check_reading(reading, {"--data": data}, y)
    with contextlib.redirect_stdout(sys.stderr):
        saved = saved_object(_WHO, model)
        X, Y = inputs_of(_WHO, data, y, reading=reading, saved=saved)
        if Y is None:
            raise typer.BadParameter("--y is needed: momenta are gradients of the cost")
        options = {"loss": loss.value, "gamma_share": gamma_share, "tolerance": tolerance, "kinks": kinks}
        options["effective_depth"] = effective_depth
        found = mechanics(layers_of(saved), X, Y, ridge=ridge, **options)
    if out is not None:
        from isthmus.report import save_report

        save_report(found, out)
    if as_json:
        print(dumps(_WHO, found.to_dict(), indent=2))
    else:
        print_mechanics(found)
        if out is not None:
            console().print(text(f"look at it: {out}"))
    if found.state != "conserved":
        raise typer.Exit(UNDETERMINED)


def print_mechanics(found: Mechanics) -> None:
    """Show a Mechanics: the sentence, then the steps."""
    out = console()
    out.print(text(found.sentence, f"bold {COLOURS.get(found.state, 'cyan')}"))
    if found.arrays is None:
        return
    a = found.arrays
    out.print()
    rows = table("step", "p", "−(2/L̃)𝓗", "cost of identity", "(2/L̃)·kinetic", "‖W‖", "residual")
    unit, count = 2.0 / found.effective_depth, len(a.rho)
    shown = min(count, _ROWS)
    for index in sorted({round(i * (count - 1) / max(shown - 1, 1)) for i in range(shown)}):
        numbers = (a.positions[index], -unit * a.hamiltonian[index], a.identity_cost[index], unit * a.kinetic[index])
        cells = [str(index + 1), *(f"{value:.4g}" for value in (*numbers, a.weight_norm[index], a.residual[index]))]
        rows.add_row(*map(text, cells))
    out.print(rows)
    if shown < count:
        out.print(text(f"{shown} of {count} steps; the report and the JSON have all"), style="dim")
    said = f"{found.samples} samples · L̃ {found.effective_depth:g} · spread of 𝓗 {found.spread:.2g} of its median"
    out.print(text(f"{said} · path length {a.path_length:.4g}"))
