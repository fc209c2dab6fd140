"""The command line: thin, one short function per verb.

Nothing heavy is imported before a command needs it, so that ``--help`` answers at once.

Exit codes: 0 answer; 1 undetermined, or a claim or outcome fails; 2 usage; 3 bad data; 130 interrupted;
70 a bug of ours.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import traceback
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isthmus import __version__
from isthmus._errors import DataError, IsthmusError

UNDETERMINED, USAGE, BAD_DATA, BUG, INTERRUPTED = 1, 2, 3, 70, 130

# Typer's base class of all usage errors; typer < 0.20 takes it from click, later ones bring their own.
_UsageError = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

_COLOURS = {"agrees": "green", "differs": "yellow", "fails": "bold red", "undetermined": "yellow"}
_CODES = "Exit codes: 0 answer · 1 undetermined or fails · 2 usage · 3 bad data · 130 interrupted · 70 a bug."

_SUMMARY = "The bottleneck rank of deep networks: discover, diagnose, compress, verify, reproduce."

app = typer.Typer(
    name="isthmus",
    help=_SUMMARY,
    epilog=f"Example:  isthmus demo\n\n{_CODES}",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"isthmus {__version__}")
        raise typer.Exit


@app.callback(help=_SUMMARY)
def isthmus(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options of all commands."""
    # `main` made this dictionary and reads it if something goes wrong.
    context.ensure_object(dict)["debug"] = debug


@app.command(epilog="Example:  isthmus demo --out runs/demo")
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the Run.")] = Path("runs/demo"),
    as_json: AsJson = False,
) -> None:
    """Watch a bottleneck appear: a 10-layer network on a task of five hidden variables, about a minute.

    A variant of F-rank-1 with a smaller network. Writes the numbers and the figure to a folder.
    """
    from isthmus._progress import progress
    from isthmus.experiments.rank2023.figure_1 import KINDS, RankFigure1
    from isthmus.runs import check_destination

    experiment = RankFigure1.demo()
    check_destination(out)
    if not as_json:
        hidden = f"{experiment.rank} hidden variables"
        task = f"{experiment.d_in} inputs → {hidden} → {experiment.d_out} outputs"
        network = f"{experiment.depth} layers, width {experiment.width}, L2 regularised"
        _console().print(_text(f"Task: {task}.\nNetwork: {network}. It is not told the {experiment.rank}."))
    with contextlib.redirect_stdout(sys.stderr):
        run = experiment.run(progress=progress)
        run.write(out)
    found = int(run.arrays["rank"])
    summary = {
        "rank": found if found >= 0 else None,
        "true_rank": experiment.rank,
        "evidence": {
            kind: {"rank": int(rank) if rank >= 0 else None, "gap": float(gap)}
            for kind, rank, gap in zip(KINDS, run.arrays["ranks"], run.arrays["gaps"])
        },
        "norm_per_depth": float(run.arrays["norm_per_depth"]),
        "converged": bool(run.arrays["converged"]),
        "seconds": run.provenance["seconds"],
        "folder": str(out),
    }
    if as_json:
        _print_json(summary)
    else:
        _print_demo(summary, run)
    if found < 0:
        raise typer.Exit(UNDETERMINED)


@app.command(
    epilog="Examples:  isthmus reproduce --list\n\n"
    "isthmus reproduce E-linear --list\n\n"
    "isthmus reproduce E-linear --set depths=2,4,8,16,32 --out runs/mine"
)
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
    list_: Annotated[bool, typer.Option("--list", help="List the experiments; with ID, its parameters.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run the experiment behind a figure, judge it, and keep it as a folder.

    The folder holds config.json, arrays.safetensors, verdicts.json, provenance.json and the figure.
    """
    from isthmus.experiments import find_experiment, find_experiments, parse_overrides

    if list_:
        kinds = find_experiments().values() if experiment is None else [find_experiment(experiment)]
        described = [kind.describe() for kind in kinds]
        if as_json:
            _print_json(described)
        else:
            _print_experiments(described, details=experiment is not None)
        return
    if experiment is None:
        raise typer.BadParameter("give the ID of an experiment or `all`; `isthmus reproduce --list` shows them")
    everything = experiment == "all"
    if everything and set_:
        raise typer.BadParameter("--set changes one experiment; give its ID instead of `all`")
    reports, worst = [], 0
    for kind in find_experiments().values() if everything else [find_experiment(experiment)]:
        base = kind.quick() if quick else kind()
        chosen = base.replace(**parse_overrides(kind, set_ or []))
        # A Run of other parameters gets another folder: it must not replace the one of the paper's.
        suffix = ("-quick" if quick else "") + (f"-{chosen.key}" if chosen != base else "")
        folder = (out or Path("runs")) / f"{kind.id}{suffix}" if everything or out is None else out
        report, code = _reproduce_one(chosen, folder, as_json=as_json)
        reports.append(report)
        worst = max(worst, code)
    if as_json:
        _print_json(reports if everything else reports[0])
    if worst:
        raise typer.Exit(worst)


def _reproduce_one(chosen: Any, folder: Path, *, as_json: bool) -> tuple[dict[str, Any], int]:
    """Run, keep and show one experiment; what to say of it in JSON, and the exit code."""
    from isthmus._progress import progress
    from isthmus.runs import check_destination

    # Before the computation, which may be long.
    check_destination(folder)
    with contextlib.redirect_stdout(sys.stderr):
        run = chosen.run(progress=progress)
        run.write(folder)
    if not as_json:
        _print_outcomes(run, chosen.title, folder)
    report = {
        "experiment": run.experiment,
        "key": run.key,
        "status": run.status,
        "folder": str(folder),
        "seconds": run.provenance["seconds"],
        "parameters": dict(run.parameters),
        "outcomes": [vars(outcome) for outcome in run.outcomes],
    }
    return report, UNDETERMINED if run.status in ("fails", "undetermined") else 0


@app.command(epilog="Example:  isthmus convert weights.pt network.safetensors --slope 0.1")
def convert(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A state_dict saved with torch.save.")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The safetensors file to write.")],
    slope: Annotated[float, typer.Option(help="Slope of the activation below 0: 0 ReLU, 1 linear.")] = 0.0,
    raw: Annotated[bool, typer.Option("--raw", help="Only the tensors, whatever they are.")] = False,
    as_json: AsJson = False,
) -> None:
    """Convert a PyTorch state_dict into a safetensors file that isthmus.load reads."""
    from isthmus.networks.convert import convert_state_dict

    done = convert_state_dict(source, target, slope=slope, raw=raw)
    if as_json:
        _print_json(
            {
                "source": str(done.source),
                "target": str(done.target),
                "kind": done.kind,
                "layers": list(done.layers),
                "dims": done.dims,
                "parameters": done.parameters,
            }
        )
        return
    what = done.kind if done.dims is None else f"{done.kind} {' → '.join(map(str, done.dims))}"
    _console().print(_text(f"wrote {done.target}: {what}, {done.parameters} parameters"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; every error is one message without a traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    settings: dict[str, Any] = {"debug": False}
    for stream in (sys.stdout, sys.stderr):
        # A terminal that knows no Greek shows an escape instead of failing.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    problem: BaseException | None = None
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            result = app(given or ["--help"], prog_name="isthmus", standalone_mode=False, obj=settings)
            sys.stdout.flush()
            code, message = result if isinstance(result, int) else 0, ""
        except KeyboardInterrupt:
            code, message = INTERRUPTED, ""
        except Exception as error:  # the boundary to the shell
            problem = error
            code, message = _explain(error)
    if problem is not None and settings["debug"]:
        traceback.print_exception(problem)
    # Typer turns most Ctrl-C into the plain exit code.
    if code == INTERRUPTED:
        message = "interrupted"
    if message:
        _report(message, code, as_json="--json" in given)
    return code


def _explain(error: Exception) -> tuple[int, str]:
    """Exit code and message of whatever ended a command."""
    if isinstance(error, typer.Abort):
        return INTERRUPTED, "interrupted"
    if isinstance(error, _UsageError):
        return USAGE, getattr(error, "format_message", lambda: str(error))()
    if isinstance(error, DataError):
        return BAD_DATA, str(error)
    if isinstance(error, IsthmusError):
        return USAGE, str(error)
    if isinstance(error, BrokenPipeError):
        # The reader (`| head`) went away; Python would complain again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNDETERMINED, ""
    if isinstance(error, (OSError, MemoryError)):
        return BAD_DATA, f"{type(error).__name__}: {error}"
    hint = "This is a bug of isthmus: `isthmus --debug …` shows where."
    return BUG, f"unexpected {type(error).__name__}: {error}. {hint}"


def _report(message: str, code: int, *, as_json: bool) -> None:
    console = _console(sys.stderr)
    label = Text() if code == INTERRUPTED else Text("error: ", "bold red")
    console.print(label + _text(message))
    if as_json:
        _print_json({"error": message, "exit_code": code})


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,  # noqa: ARG001
    lineno: int,  # noqa: ARG001
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> None:
    _console(sys.stderr).print(Text("warning: ", "yellow") + _text(f"{message} ({category.__name__})"))


def _print_json(document: object) -> None:
    print(json.dumps(document, indent=2, allow_nan=False))


def _print_experiments(described: Iterable[Mapping[str, Any]], *, details: bool) -> None:
    console = _console()
    table = _table("id", "title", "paper", "quick", "full")
    for one in described:
        times = [f"{one[key]:g} s" for key in ("quick_seconds", "full_seconds")]
        if not details:
            table.add_row(*map(_text, (one["id"], one["title"], one["paper"], *times)))
            continue
        console.print(_text(f"{one['id']}: {one['title']}"), style="bold")
        console.print(_text(f"{one['paper']}, {one['where']}. Regularisation: {one['convention']}."))
        console.print(_text(f"About {times[1]}; {times[0]} with --quick."))
        table = _table("parameter", "type", "default", "what")
        for item in one["parameters"]:
            default, brief = _plain(item["default"]), _plain(item["quick"])
            what = f"{item['help']} ({item['source']}" + (f"; quick: {brief})" if brief != default else ")")
            table.add_row(*map(_text, (item["name"], item["type"], default, what)))
    console.print(table)


def _print_outcomes(run: Any, title: str, folder: Path) -> None:
    console = _console()
    console.print(_text(f"{run.experiment}: {title}"), style="bold")
    table = _table("outcome", "value", "expected", "statement")
    for outcome in run.outcomes:
        statement = outcome.name + (f"; {outcome.reason}" if outcome.reason else "")
        row = (_plain(outcome.value), _plain(outcome.expected), statement)
        table.add_row(Text(outcome.status, _COLOURS[outcome.status]), *map(_text, row))
    console.print(table)
    ending = Text(run.status, _COLOURS[run.status])
    console.print(ending + _text(f" in {run.provenance['seconds']:.1f} s, kept in {folder}"))


def _print_demo(summary: Mapping[str, Any], run: Any) -> None:
    console = _console()
    table = _table("evidence", "rank", "gap")
    meaning = {
        "weights": "singular values of W_ℓ that stand out",
        "representations": "dimensions of the centred representations",
        "jacobian": "directions that f(x) responds to",
    }
    for kind, one in summary["evidence"].items():
        rank = "unclear" if one["rank"] is None else str(one["rank"])
        table.add_row(_text(f"{kind}: {meaning[kind]}"), _text(rank), _text(f"{one['gap']:.3g}×"))
    console.print(table)
    if summary["evidence"]["weights"]["rank"] == summary["true_rank"] + 1:
        console.print(
            _text("One weight direction more: it is constant over the data and stands in for a bias."), style="dim"
        )
    console.print(
        _text(f"‖θ‖²/L = {summary['norm_per_depth']:.2f}: rank plus regularity, tends to the rank with depth.")
    )
    answer = "undetermined" if summary["rank"] is None else str(summary["rank"])
    console.print(_text(f"rank {answer}"), style="bold green" if summary["rank"] is not None else "bold yellow")
    state = "converged" if summary["converged"] else "not fully converged"
    console.print(_text(f"{state} in {summary['seconds']:.0f} s; figure: {summary['folder']}/figure.png"))


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for index, name in enumerate(names):
        table.add_column(name, overflow="fold", no_wrap=index == 0)
    return table


def _console(stream: TextIO | None = None) -> Console:
    # Made when needed, because tests and pipes replace the streams; folded lines would break pipes.
    return Console(file=stream or sys.stdout, soft_wrap=True, highlight=False, markup=False, emoji=False)


def _plain(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(_plain, value))
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)


def _text(value: str) -> Text:
    """Text shown as it is: no markup, and control or bidirectional characters as escapes."""
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return Text(
        "".join(
            c.encode("unicode_escape").decode() if unicodedata.category(c) in hidden and c != "\n" else c
            for c in str(value)
        )
    )
