"""`isthmus reproduce`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from isthmus.cli.base import AsJson
from isthmus.cli.reproduce_all import described, exit_code, keep, reproduce_all, too_small
from isthmus.cli.screen import COLOURS, console, plain, print_json, print_tables, table, text


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
