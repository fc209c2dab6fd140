"""`isthmus reproduce all`: every figure, two or more at once, going on from what is kept."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus._inside import Inside
from isthmus.cli.base import BAD_DATA, UNDETERMINED
from isthmus.cli.screen import COLOURS, console, table, text

if TYPE_CHECKING:
    from isthmus.experiments import Experiment
    from isthmus.runs import Run


def reproduce_all(
    chosen: Sequence[tuple[Experiment, Path]], *, quick: bool, again: bool, workers: int | None, as_json: bool
) -> tuple[list[dict[str, Any]], int]:
    """Run what is not kept yet, write and show everything; what to say of each in JSON, and the exit code."""
    from isthmus._live import LIVE, LiveRecord, forget
    from isthmus._progress import progress
    from isthmus.engines.local import Processes
    from isthmus.engines.several import run_several
    from isthmus.report import save_report
    from isthmus.runs import FOLDER, REPORT, Run

    folders = {one.key: FOLDER.check(folder) for one, folder in chosen}
    rows = {} if again else {one.id: (kept, "kept") for one, folder in chosen if (kept := read_kept(one, folder))}
    for run, _ in rows.values():
        if not Inside(folders[run.key]).is_file(REPORT):
            save_report(run, Inside(folders[run.key]) / REPORT)
    left = [one for one, _ in chosen if one.id not in rows]
    failures: dict[str, Any] = {}
    parent = chosen[0][1].parent / ".all.progress"
    record = LiveRecord(parent / LIVE, sentence=f"{len(left)} figures.", command=sys.argv[1:])
    redirected = contextlib.redirect_stdout(sys.stderr)
    with redirected, record, Processes(workers) as executor, record.beside(progress)(len(left), "figures") as bar:
        for one, outcome in run_several(left, executor):
            if isinstance(outcome, Run):
                run = outcome
                keep(run, folders[one.key])
                rows[one.id] = run, f"{run.provenance['seconds']:.0f} s"
                print(f"{one.id}: {run.status}, {rows[one.id][1]}", file=sys.stderr)
            else:
                failures[one.id] = outcome
                print(f"{one.id}: {outcome.kind}: {outcome.message}", file=sys.stderr)
            bar.advance()
    forget(parent / LIVE)
    reports, codes = [], [0]
    for one, folder in chosen:
        if one.id in rows:
            reports.append(described(rows[one.id][0], folder))
            codes.append(exit_code(rows[one.id][0], quick=quick))
        else:
            failure = failures[one.id]
            reports.append({"experiment": one.id, "key": one.key, "status": "failed", "error": failure.message})
            codes.append(BAD_DATA if failure.kind == "DataError" else UNDETERMINED)
    if not as_json:
        _print_all(chosen, rows, failures)
        too_small(any(run.status == "undetermined" for run, _ in rows.values()), quick=quick)
    return reports, max(codes)


def exit_code(run: Run, *, quick: bool) -> int:
    """1 if a statement fails, or could not be tested; quick variants may be too small to test it."""
    return UNDETERMINED if run.status == "fails" or (run.status == "undetermined" and not quick) else 0


def too_small(undetermined: bool, *, quick: bool) -> None:
    """Say of quick variants what "undetermined" means."""
    if quick and undetermined:
        console().print(text("undetermined: the quick variant is too small to test it; run the figure without --quick"))


def read_kept(one: Experiment, folder: Path) -> Run | None:
    """The Run in ``folder`` if it is of this configuration and undamaged."""
    from isthmus._errors import IsthmusError
    from isthmus.runs import Run

    with contextlib.suppress(IsthmusError):
        run = Run.read(folder)
        return run if run.key == one.key and run.figures else None
    return None


def keep(run: Run, folder: Path) -> None:
    """Write a Run with its report."""
    from isthmus.report import save_report
    from isthmus.runs import REPORT

    run.write(folder)
    save_report(run, Inside(folder) / REPORT)


def described(run: Run, folder: Path) -> dict[str, Any]:
    """What `--json` says of a Run."""
    from isthmus.runs import REPORT

    return {
        "experiment": run.experiment,
        "key": run.key,
        "status": run.status,
        "folder": str(folder),
        "report": str(folder / REPORT),
        "seconds": run.provenance["seconds"],
        "parameters": dict(run.parameters),
        "outcomes": [vars(outcome) for outcome in run.outcomes],
    }


def _print_all(
    chosen: Sequence[tuple[Experiment, Path]], rows: dict[str, tuple[Run, str]], failures: dict[str, Any]
) -> None:
    out = console()
    shown = table("figure", "status", "statements", "time", "kept in")
    for one, folder in chosen:
        if one.id not in rows:
            shown.add_row(text(one.id), text("failed"), text(failures[one.id].message), text(""), text(""))
            continue
        run, took = rows[one.id]
        good = sum(outcome.status == "agrees" for outcome in run.statements)
        status = text(run.status)
        status.stylize(COLOURS[run.status])
        shown.add_row(
            text(one.id), status, text(f"{good} of {len(run.statements)} agree"), text(took), text(str(folder))
        )
    out.print(shown)
