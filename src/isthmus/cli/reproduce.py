"""`isthmus reproduce`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from isthmus._inside import Inside
from isthmus.cli.base import BAD_DATA, UNDETERMINED, AsJson
from isthmus.cli.screen import COLOURS, console, plain, print_json, print_tables, table, text

if TYPE_CHECKING:
    from isthmus.experiments import Experiment
    from isthmus.runs import Run


def reproduce(
    experiment: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="Which experiment, or `all`; --list shows them.", show_default=False),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The variant that takes seconds.")] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Change a parameter; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the Run: absent, empty or a Run, which is replaced. "
            "By default runs/ID, with -quick or the key of changed parameters added. With `all`, their parent.",
            show_default=False,
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="With `all`: run those too that are kept already.")] = False,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="With `all`: how many at once; one for each core.", show_default=False),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the experiments; with ID, its parameters.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run the experiment behind a figure, judge it, and keep it as a folder.

    The folder holds report.html to look at, and config.json, arrays.safetensors, verdicts.json, provenance.json and
    the figure. `all` goes on where it stopped: what is kept already is shown, not run again. The exit code is 1 if a
    statement fails, or could not be tested by the whole figure; a quick variant may be too small to test it.
    """
    from isthmus.experiments import find_experiment, find_experiments, parse_overrides

    if list_:
        kinds = find_experiments().values() if experiment is None else [find_experiment(experiment)]
        described = [kind.describe() for kind in kinds]
        if as_json:
            print_json(described)
        else:
            _print_experiments(described, details=experiment is not None)
        return
    if experiment is None:
        raise typer.BadParameter("give the ID of an experiment or `all`; `isthmus reproduce --list` shows them")
    everything = experiment == "all"
    if everything and set_:
        raise typer.BadParameter("--set changes one experiment; give its ID instead of `all`")
    if not everything and (again or workers is not None):
        raise typer.BadParameter("--again and --workers belong to `all`; one experiment is always run again, alone")
    chosen = []
    for kind in find_experiments().values() if everything else [find_experiment(experiment)]:
        base = kind.quick() if quick else kind()
        one = base.replace(**parse_overrides(kind, set_ or []))
        # A Run of other parameters gets another folder: it must not replace the one of the paper's.
        suffix = ("-quick" if quick else "") + (f"-{one.key}" if one != base else "")
        chosen.append((one, (out or Path("runs")) / f"{kind.id}{suffix}" if everything or out is None else out))
    if everything:
        report, code = reproduce_all(chosen, quick=quick, again=again, workers=workers, as_json=as_json)
    else:
        report, code = _reproduce_one(*chosen[0], quick=quick, as_json=as_json)
    if as_json:
        print_json(report)
    if code:
        raise typer.Exit(code)


def _reproduce_one(chosen: Any, folder: Path, *, quick: bool, as_json: bool) -> tuple[dict[str, Any], int]:
    """Run, keep and show one experiment; what to say of it in JSON, and the exit code."""
    from isthmus._live import LIVE, LiveRecord, forget, progress_folder
    from isthmus._progress import progress
    from isthmus.runs import FOLDER

    # Before the computation, which may be long.
    unfinished = progress_folder(FOLDER.check(folder)) / LIVE
    answer = f"{chosen.id}: {chosen.title}."
    record = LiveRecord(unfinished, sentence=answer, command=sys.argv[1:])
    with contextlib.redirect_stdout(sys.stderr), record:
        run = chosen.run(progress=record.beside(progress))
        keep(run, folder)
    forget(unfinished)
    if not as_json:
        _print_outcomes(run, chosen.title, folder)
        too_small(run.status == "undetermined", quick=quick)
    return described(run, folder), exit_code(run, quick=quick)


def _print_experiments(described: Iterable[Mapping[str, Any]], *, details: bool) -> None:
    out = console()
    rows = table("id", "title", "paper", "quick", "full")
    for one in described:
        times = [f"{one[key]:g} s" for key in ("quick_seconds", "full_seconds")]
        if not details:
            rows.add_row(*map(text, (one["id"], one["title"], one["paper"], *times)))
            continue
        out.print(text(f"{one['id']}: {one['title']}"), style="bold")
        out.print(text(f"{one['paper']}, {one['where']}. Regularisation: {one['convention']}."))
        out.print(text(f"About {times[1]}; {times[0]} with --quick."))
        rows = table("parameter", "type", "default", "what")
        for item in one["parameters"]:
            default, brief = plain(item["default"]), plain(item["quick"])
            what = f"{item['help']} ({item['source']}" + (f"; quick: {brief})" if brief != default else ")")
            rows.add_row(*map(text, (item["name"], item["type"], default, what)))
    out.print(rows)


def _print_outcomes(run: Any, title: str, folder: Path) -> None:
    out = console()
    out.print(text(f"{run.experiment}: {title}"), style="bold")
    print_tables(out, run)
    ending = Text(run.status, COLOURS[run.status])
    out.print(
        ending + text(f" in {run.provenance['seconds']:.1f} s, kept in {folder}; look at it: isthmus open {folder}")
    )


# ---- `isthmus reproduce all`: every figure, two or more at once, going on from what is kept


def reproduce_all(
    chosen: Sequence[tuple[Experiment, Path]], *, quick: bool, again: bool, workers: int | None, as_json: bool
) -> tuple[list[dict[str, Any]], int]:
    """Run what is not kept yet, write and show everything; what to say of each in JSON, and the exit code."""
    from isthmus._live import LIVE, LiveRecord, forget
    from isthmus._progress import progress
    from isthmus.engines.base import run_several
    from isthmus.engines.local import Processes
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
