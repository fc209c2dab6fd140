"""`isthmus sweep`."""

from __future__ import annotations

import contextlib
import sys
import time as clock
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus.cli.base import UNDETERMINED, AsJson
from isthmus.cli.discover import Missing, TextColumns, columns_of
from isthmus.cli.given import Decimal, DecimalMark, NaValues, Reading
from isthmus.cli.screen import console, print_json, print_tables, text

if TYPE_CHECKING:
    from isthmus.sweeps import SweepResult

#: Cells that are printed.
_SHOWN = 60


class EngineName(StrEnum):
    """Where it is computed."""

    local = "local"
    ray = "ray"


def sweep_command(
    context: typer.Context,
    experiment: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", help="Which experiment; `isthmus reproduce --list` shows them.", show_default=False
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUES",
            help="2,4,8 or 4:30:2 (ends included) or 1e-4:1e-1:log7 or 0:1:lin5; of a parameter that is a list "
            "'2,4;8,16' are two. May be repeated.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="N", help="Seeds of each configuration.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Start from the variant that takes seconds.")] = False,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Instead of ID: sweep discover over this table.", show_default=False),
    ] = None,
    target: Annotated[
        list[str] | None, typer.Option(metavar="COL", help="With --data: output column or glob; may be repeated.")
    ] = None,
    classes: Annotated[str | None, typer.Option(metavar="COL", help="With --data: the column of classes.")] = None,
    autoencode: Annotated[bool, typer.Option("--autoencode", help="With --data: the inputs themselves.")] = False,
    features: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="With --data: input columns; may be repeated.")
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="COL", help="With --data: Column to leave out, or a glob; may be repeated."),
    ] = None,
    group: Annotated[str | None, typer.Option(metavar="COL", help="With --data: rows that belong together.")] = None,
    time: Annotated[str | None, typer.Option(metavar="COL", help="With --data: orders the rows in time.")] = None,
    missing: Annotated[Missing, typer.Option(help="With --data: what to do about gaps.")] = Missing.error,
    text_columns: Annotated[
        TextColumns, typer.Option("--text", help="With --data: what to do about columns of text.")
    ] = TextColumns.error,
    decimal: Decimal = DecimalMark.point,
    na_values: NaValues = None,
    engine: Annotated[EngineName, typer.Option(help="Processes of this machine, or a Ray cluster.")] = EngineName.local,
    address: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Of the Ray cluster.")] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Processes; by default as cores and memory allow.")
    ] = None,
    threads: Annotated[int, typer.Option(metavar="N", help="Of each process.")] = 1,
    together: Annotated[
        int | None,
        typer.Option(metavar="N", help="Networks of one shape trained in one computation, at most; 1: each alone."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder: absent, empty or a sweep, which is continued. By default runs/sweep-ID.",
            show_default=False,
        ),
    ] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try again what failed before.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run an experiment at every point of a grid: which rank for which depth, ridge, width, seed?

    Killed or interrupted, the same command goes on where it was; so does it with the folder copied to another machine.
    Another grid of the same experiment adds to what is there. `isthmus runs DIR` lists what the folder holds.
    """
    if (experiment is None) == (data is None):
        raise typer.BadParameter("give the ID of an experiment, or --data FILE for a sweep over discover")
    grid = _grid(set_ or [])
    options: dict[str, Any] = {"quick": quick}
    what: Any = experiment
    if data is not None:
        if quick:
            raise typer.BadParameter("--quick belongs to an experiment")
        roles = {"targets": target, "features": features, "group": group, "time": time}
        what = "discover"
        reading = Reading(decimal, exclude, na_values)
        options = _table_options(data, roles, classes, autoencode, missing, text_columns, reading)
    folder = out or Path("runs") / f"sweep-{data.stem if data is not None else experiment}{'-quick' * quick}"
    settings = context.ensure_object(dict)
    settings["if_interrupted"] = f"; the same command goes on from what is kept in {folder}"
    options |= {"workers": workers, "threads": threads, "engine": engine.value, "address": address}
    began = clock.monotonic()
    from isthmus.sweeps import sweep as run_sweep

    with contextlib.redirect_stdout(sys.stderr):
        found = run_sweep(
            what,
            grid,
            out=folder,
            seeds=seeds,
            together=together,
            retry_failed=retry_failed,
            progress=True,
            **options,
        )
        report = _report(found, folder)
    settings["if_interrupted"] = ""
    seconds = clock.monotonic() - began
    if as_json:
        print_json(_document(found, folder, report, seconds))
    else:
        _print(found, folder, report, seconds)
    if set(found.counts) - {"done", "diverged"}:
        raise typer.Exit(UNDETERMINED)


def _grid(texts: Sequence[str]) -> dict[str, str]:
    grid: dict[str, str] = {}
    for one in texts:
        name, equals, values = one.partition("=")
        name = name.strip()
        if not equals or not name or not values.strip():
            raise typer.BadParameter(f"--set must be NAME=VALUES, as in depth=4:30:2. Got {one!r}")
        if name in grid:
            raise typer.BadParameter(f"--set may name each parameter once. Got {name!r} twice")
        grid[name] = values.strip()
    return grid


def _table_options(
    data: Path,
    roles: dict[str, Any],
    classes: str | None,
    autoencode: bool,
    missing: Missing,
    text_columns: TextColumns,
    reading: Reading,
) -> dict[str, Any]:
    """The arrays of a table, what discover must know of them, and where they came from."""
    import numpy as np

    what: dict[str, Any] = {"classes": classes, "autoencode": autoencode}
    _, chosen, labels = columns_of(data, reading, roles, **what, missing=missing.value, text=text_columns.value)
    base: dict[str, Any] = {"missing": "median" if missing is Missing.median else "error"}
    if labels is not None:
        base["loss"] = "cross_entropy"
    Y = labels if labels is not None else chosen.X if autoencode else chosen.Y
    arrays = {"X": chosen.X, "Y": Y, "groups": chosen.groups, "time": chosen.time}
    if not reading.marks:
        # What the user says are measured values discover must not take for marks again.
        arrays["na_values"] = np.empty(0)
    about = {"file": data.name, **roles, **what, "inputs": chosen.feature_names}
    about |= reading.record
    return {"data": {k: v for k, v in arrays.items() if v is not None}, "base": base, "about": about}


def _report(found: SweepResult, folder: Path) -> Path | None:
    """The report beside the sweep; a folder without room for it still has its runs."""
    from isthmus._errors import IsthmusError
    from isthmus.report import save_report
    from isthmus.sweeps.places import REPORT

    try:
        save_report(found, folder / REPORT)
    except (IsthmusError, OSError) as problem:
        console(sys.stderr).print(text(f"no report: {problem}"))
        return None
    return folder / REPORT


def _cells(found: SweepResult) -> list[dict[str, Any]]:
    """The summary as plain rows: cells by their values, numbers that are not there as None."""
    rows = found.summary().reset_index() if found.names else found.summary()
    return [{str(k): _bare(v) for k, v in row.items()} for row in rows.to_dict("records")]


def _bare(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, float):
        return None if value != value or value in (float("inf"), -float("inf")) else value
    return value


def _document(found: SweepResult, folder: Path, report: Path | None, seconds: float) -> dict[str, Any]:
    return {
        "experiment": found.experiment,
        "title": found.title,
        "folder": str(folder),
        "report": None if report is None else str(report),
        "names": list(found.names),
        "counts": found.counts,
        "cells": _cells(found),
        "problems": list(found.problems),
        "seconds": round(seconds, 3),
    }


def _print(found: SweepResult, folder: Path, report: Path | None, seconds: float) -> None:
    out = console()
    out.print(text(f"{found.experiment}: {found.title}"), style="bold")
    print_tables(out, found, limit=_SHOWN)
    for problem in found.problems:
        out.print(text(f"note: {problem}", "yellow"))
    states = ", ".join(f"{number} {state}" for state, number in found.counts.items())
    out.print(text(f"{states} in {seconds:.1f} s, kept in {folder}; list them: isthmus runs {folder}"))
    if report is not None:
        out.print(text(f"look at it: {report}"))
