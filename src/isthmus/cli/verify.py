"""`isthmus verify`: the theorems, on a network of yours or each on its own sample."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from isthmus.cli.base import UNDETERMINED, AsJson
from isthmus.cli.diagnose import Loss
from isthmus.cli.given import check_page, check_paths, check_reading, file_of, inputs_of, layers_of, saved_object
from isthmus.cli.screen import COLOURS, console, print_json, table, text
from isthmus.cli.table import Decimal, DecimalMark, ExcludeInput

if TYPE_CHECKING:
    from isthmus.claims import Claim, Verdict, Verdicts

_WHO = "verify"


def verify_command(
    model: Annotated[
        Path | None,
        typer.Argument(metavar="MODEL", help="File of isthmus.save. Without it each claim runs on its own sample."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="X", help="Inputs of MODEL: NPY, CSV, Parquet or NPZ.", show_default=False)
    ] = None,
    y: Annotated[Path | None, typer.Option("--y", metavar="Y", help="Targets: for claims about minimisers.")] = None,
    exclude: ExcludeInput = None,
    decimal: Decimal = DecimalMark.point,
    ridge: Annotated[
        float | None, typer.Option(metavar="λ", help="Weight decay of the training: for claims about minimisers.")
    ] = None,
    loss: Annotated[Loss, typer.Option(help="Of the targets.")] = Loss.mse,
    claim: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Only these claims; an id or a glob, may be repeated.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Also write a report to look at.", show_default=False)
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the claims and what they assume.")] = False,
    as_json: AsJson = False,
) -> None:
    """Do the theorems hold? Both sides of each, its hypotheses checked, and how much room is left.

    A claim whose hypotheses are not met says nothing: "not applicable", and why. Exit code 1 if one fails.
    """
    from isthmus._progress import progress
    from isthmus.claims import verify, verify_samples
    from isthmus.claims._verify import chosen

    if list_:
        claims = chosen(_WHO, claim)
        if as_json:
            print_json([one.to_dict() for one in claims])
        else:
            _print_claims(claims)
        return
    if (model is None) != (data is None):
        raise typer.BadParameter("MODEL and --data go together; without both each claim runs on its own sample")
    read = {"MODEL": None if model is None else file_of(model), "--data": data, "--y": y}
    check_paths(read, {"--out": out})
    check_page("--out", out)
    check_reading(decimal, exclude, {"--data": data}, y)
    with contextlib.redirect_stdout(sys.stderr):
        if model is None or data is None:
            found = verify_samples(claim, progress=progress)
        else:
            saved = saved_object(_WHO, model)
            X, targets = inputs_of(_WHO, data, y, decimal=decimal, exclude=exclude, saved=saved)
            found = verify(layers_of(saved), X, targets, ridge=ridge, loss=loss.value, claims=claim, progress=progress)
    if out is not None:
        from isthmus.report import save_report

        save_report(found, out)
    if as_json:
        print_json(found.to_dict())
    else:
        print_verdicts(found)
        if out is not None:
            console().print(text(f"look at it: {out}"))
    if found.failed:
        raise typer.Exit(UNDETERMINED)


def _print_claims(claims: list[Claim]) -> None:
    rows = table("claim", "statement", "assumes", "source")
    for one in claims:
        rows.add_row(*map(text, (one.id, one.statement, "; ".join(one.hypotheses), f"{one.paper} {one.where}")))
    console().print(rows)


def print_verdicts(found: Verdicts) -> None:
    """Show what the claims said."""
    out = console()
    out.print(text(found.sentence, "bold"))
    out.print()
    rows = table("claim", "verdict", "both sides", "slack", "where, or why not")
    for verdict in found:
        colour = COLOURS.get(verdict.status, "dim")
        last = verdict.where if verdict.status == "holds" else verdict.reason
        sides = text(_sides(verdict))
        rows.add_row(text(verdict.claim), Text(verdict.status, colour), sides, text(_slack(verdict)), text(last))
    out.print(rows)
    said = "slack: room on the good side, relative to the larger side; below −tolerance a claim fails"
    out.print(text(said), style="dim")


def _sides(verdict: Verdict) -> str:
    return "" if verdict.status == "not applicable" else f"{verdict.lhs:.4g} {verdict.relation} {verdict.rhs:.4g}"


def _slack(verdict: Verdict) -> str:
    return "" if verdict.status == "not applicable" else f"{verdict.slack:.2g}"
