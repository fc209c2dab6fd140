"""`isthmus mechanics`: the energies, Hamiltonian and criticality of a leaky ResNet on its data, step by step."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from isthmus.cli.base import UNDETERMINED, AsJson
from isthmus.cli.diagnose import Loss
from isthmus.cli.given import (
    Decimal,
    DecimalMark,
    ExcludeInput,
    NaValues,
    Reading,
    ReportFile,
    check_page,
    check_paths,
    check_reading,
    file_of,
    give,
    inputs_of,
    layers_of,
    saved_object,
)
from isthmus.cli.screen import console, print_result, print_tables, text

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
    out: ReportFile = None,
    as_json: AsJson = False,
) -> None:
    """Is a leaky ResNet at a solution? Its energies and Hamiltonian along the path, and the rank they tell.

    The state is conserved, not yet critical, drifting or not applicable; exit code 1 unless it is conserved. The JSON
    is what `isthmus report` takes.
    """
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

    def show() -> None:
        print_result(console(), found)
        print_tables(console(), found, limit=_ROWS)
        if found.arrays is not None:
            said = f"{found.samples} samples · L̃ {found.effective_depth:g} · path length {found.arrays.path_length:.4g}"
            console().print(text(f"{said} · spread of 𝓗 {found.spread:.2g} of its median"))

    give(_WHO, found, out, show, as_json=as_json)
    if found.state != "conserved":
        raise typer.Exit(UNDETERMINED)
