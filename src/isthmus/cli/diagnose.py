"""`isthmus diagnose`: from a file of weights and a file of data to the isthmus of a network and a folder about it."""

from __future__ import annotations

import contextlib
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isthmus._html import number
from isthmus.cli.base import UNDETERMINED, AsJson
from isthmus.cli.given import (
    Decimal,
    DecimalMark,
    ExcludeInput,
    NaValues,
    Reading,
    check_reading,
    inputs_of,
    layers_of,
    own_network,
    saved_object,
)
from isthmus.cli.screen import console, print_items, print_result, print_table, text

if TYPE_CHECKING:
    from isthmus.diagnosis import Diagnosis

_WHO = "diagnose"


class Loss(StrEnum):
    """What the network was trained on."""

    mse = "mse"
    cross_entropy = "cross_entropy"


def diagnose_command(
    data: Annotated[
        Path, typer.Option(metavar="X", help="Inputs: NPY of any axes (integers are tokens), CSV, Parquet or NPZ.")
    ],
    model: Annotated[
        Path | None,
        typer.Argument(metavar="MODEL", help="File of isthmus.save, or the folder of a discovery.", show_default=False),
    ] = None,
    module: Annotated[
        str | None,
        typer.Option(metavar="PACKAGE.MODULE:FACTORY", help="Your own class, or a function that makes the network."),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE.safetensors", help="Its state_dict; every tensor must match.")
    ] = None,
    y: Annotated[Path | None, typer.Option("--y", metavar="Y", help="Targets, row for row: adds the cost.")] = None,
    exclude: ExcludeInput = None,
    decimal: Decimal = DecimalMark.point,
    na_values: NaValues = None,
    ridge: Annotated[
        float | None, typer.Option(metavar="λ", help="Weight decay of the training: how near a minimum is it?")
    ] = None,
    loss: Annotated[Loss, typer.Option(help="Of the targets.")] = Loss.mse,
    learning_rate: Annotated[
        float | None, typer.Option(metavar="η", help="Of the training: do its steps stay at this minimum?")
    ] = None,
    training_batch: Annotated[
        int | None, typer.Option(metavar="B", help="Samples of one training step. By default all.")
    ] = None,
    true_rank: Annotated[
        int | None, typer.Option(metavar="K", help="Of the task, as `isthmus discover` finds it: is it recovered?")
    ] = None,
    layers: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Layers to look at; may be repeated. By default all.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of sketches and random directions.")] = 0,
    budget: Annotated[
        float, typer.Option(metavar="SECONDS", help="No new measurement begins after these; 0 for no limit.")
    ] = 90.0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for the answer: absent, empty or a diagnosis, which is replaced. "
            "By default runs/diagnose-NAME.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What does a trained network really use? Where its isthmus is, how narrow, and how sure that is.

    The folder holds diagnosis.json, layers.csv, figure.png and report.html. Weights are read as numbers only: a
    pickle is refused. With --module, only what you name is imported, from the current folder too, and called without
    arguments.
    """
    from isthmus._progress import progress
    from isthmus._strict_json import dumps
    from isthmus.cli.diagnose import print_diagnosis
    from isthmus.cli.diagnosis_folder import FOLDER, REPORT, write_diagnosis
    from isthmus.cli.screen import console, text
    from isthmus.diagnosis import diagnose

    if (model is None) == (module is None):
        raise typer.BadParameter("name either MODEL or --module PACKAGE.MODULE:FACTORY")
    if (module is None) != (weights is None):
        raise typer.BadParameter("--module and --weights go together")
    reading = Reading(decimal, exclude, na_values)
    check_reading(reading, {"--data": data}, y)
    name = Path(model.resolve() if model is not None else weights or "").stem
    shown = out or Path("runs") / f"diagnose-{name or 'network'}"
    folder = FOLDER.check(shown)
    # What a user's module prints must not end up in the JSON.
    with contextlib.redirect_stdout(sys.stderr):
        saved = None if model is None else saved_object(_WHO, model)
        net = own_network(_WHO, str(module), Path(weights or "")) if model is None else layers_of(saved)
        X, targets = inputs_of(_WHO, data, y, reading=reading, saved=saved)
        options = {"ridge": ridge, "loss": loss.value, "layers": layers or None, "seed": seed, "budget": budget or None}
        options |= {"learning_rate": learning_rate, "training_batch": training_batch, "true_rank": true_rank}
        found = diagnose(net, X, targets, **options, progress=progress)
        origin = {"data": data.name, "targets": None if y is None else y.name, "module": module}
        origin |= reading.record
        origin["weights"] = (model or weights or Path()).name
        document = {**found.to_dict(), "origin": origin}
        write_diagnosis(folder, found, document)
    if as_json:
        print(dumps(_WHO, document, indent=2))
    else:
        print_diagnosis(found, shown)
        console().print(text(f"look at it: isthmus open {shown} ({shown / REPORT}, one file to share)"))
    if found.verdict == "undetermined":
        raise typer.Exit(UNDETERMINED)


def print_diagnosis(found: Diagnosis, folder: Path) -> None:
    """Show a Diagnosis; ``folder`` is where it was written."""
    from isthmus.cli.diagnosis_folder import FILES

    out = console()
    print_result(out, found)
    tables = {one.key: one for one in found.tables()}
    if "layers" in tables:
        out.print()
        print_table(out, tables["layers"], "← the isthmus")
        legend = "?: unclear; dimensions: of centred representations; W: weights, J: Jacobian; negative: ‖[Z]₋‖²/‖Z‖²"
        out.print(text(legend), style="dim")
    for key in ("effective", "factors", "agreement-numbers"):
        if key in tables:
            out.print()
            print_table(out, tables[key])
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
    numbers, legend = found.whole, [f"{found.samples} samples", f"{found.whole['parameters']} parameters"]
    shown = {
        "norm_squared": "‖θ‖²",
        "norm_per_depth": "‖θ‖²/L",
        "cost": "cost",
        "unexplained": "unexplained share of the variance",
        "criticality": "‖∇‖/‖2λθ‖ (0 at a minimum)",
        "layer_imbalance": "imbalance of the layers",
        "output_depth": "effective depth by the outputs",
    }
    legend += [f"{label} {number(numbers[key])}" for key, label in shown.items() if numbers.get(key) is not None]
    return " · ".join(legend)
