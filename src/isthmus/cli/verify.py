"""`isthmus verify`: the theorems, on a network of yours or each on its own sample."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from isthmus.cli.screen import console, print_json, print_result, print_tables, table, text

if TYPE_CHECKING:
    from isthmus.claims import Claim, Verdicts

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
    na_values: NaValues = None,
    ridge: Annotated[
        float | None, typer.Option(metavar="λ", help="Weight decay of the training: for claims about minimisers.")
    ] = None,
    loss: Annotated[Loss, typer.Option(help="Of the targets.")] = Loss.mse,
    k: Annotated[int | None, typer.Option("--k", metavar="K", help="Rank at which bounds with k are judged.")] = None,
    known: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="What only you know, such as noise=0.1, tangents=T.npy or f=net.safetensors; may be repeated.",
        ),
    ] = None,
    claim: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Only these claims; an id or a glob, may be repeated.")
    ] = None,
    out: ReportFile = None,
    list_: Annotated[bool, typer.Option("--list", help="List the claims and what they assume.")] = False,
    as_json: AsJson = False,
) -> None:
    """Do the theorems hold? Both sides of each, its hypotheses checked, and the margin that is left.

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
    if model is None and (known or k is not None):
        raise typer.BadParameter("--known and --k are about MODEL; without it each claim runs on its own sample")
    read = {"MODEL": None if model is None else file_of(model), "--data": data, "--y": y}
    check_paths(read, {"--out": out})
    check_page("--out", out)
    reading = Reading(decimal, exclude, na_values)
    check_reading(reading, {"--data": data}, y)
    with contextlib.redirect_stdout(sys.stderr):
        if model is None or data is None:
            found = verify_samples(claim, progress=progress)
        else:
            saved = saved_object(_WHO, model)
            X, targets = inputs_of(_WHO, data, y, reading=reading, saved=saved)
            options = {"ridge": ridge, "loss": loss.value, "known": _known(known or []), "k": k}
            found = verify(layers_of(saved), X, targets, **options, claims=claim, progress=progress)
    give(_WHO, found, out, lambda: print_verdicts(found), as_json=as_json)
    if found.failed:
        raise typer.Exit(UNDETERMINED)


def _known(given: list[str]) -> dict[str, Any]:
    """NAME=VALUE as Python values: numbers, true and false, arrays of NPY files, networks of isthmus.save, or words."""
    import numpy as np
    import torch

    values: dict[str, Any] = {}
    for one in given:
        name, equals, text_ = one.partition("=")
        if not equals or not name or not text_:
            raise typer.BadParameter(f"--known must be NAME=VALUE, such as noise=0.1: {one!r}")
        path = Path(text_)
        if path.suffix == ".npy":
            try:
                values[name] = torch.from_numpy(np.load(path, allow_pickle=False))
            except (OSError, ValueError) as error:
                raise typer.BadParameter(f"--known {name}: {path} cannot be read as an array ({error})") from None
        elif path.suffix == ".safetensors":
            values[name] = saved_object(_WHO, path)
        elif text_ in ("true", "false"):
            values[name] = text_ == "true"
        else:
            values[name] = _number(text_)
    return values


def _number(text_: str) -> Any:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text_)
    return text_


def _print_claims(claims: list[Claim]) -> None:
    rows = table("claim", "in words", "statement", "assumes", "source")
    for one in claims:
        source = f"{one.paper} {one.where}"
        rows.add_row(*map(text, (one.id, one.title, one.statement, "; ".join(one.hypotheses), source)))
    console().print(rows)


def print_verdicts(found: Verdicts) -> None:
    """Show what the claims said: those that apply with both sides, the others by cause, and what it comes to."""
    from isthmus.claims._base import CAUSES
    from isthmus.claims._verify import shortened

    out = console()
    print_result(out, found)
    print_tables(out, found, reading=True)
    for cause, groups in found.silent.items():
        out.print()
        out.print(text(f"{CAUSES[cause]}:", "bold"))
        if cause == "kind":
            out.print(text(f"  {shortened([one for ids in groups.values() for one in ids])}"))
            continue
        for what, ids in groups.items():
            out.print(text(f"  {shortened(ids)}: {what}"))
    if found.closing:
        out.print()
        out.print(text(found.closing, "bold"))
