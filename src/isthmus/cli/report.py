"""`isthmus report` and `isthmus open`: a result that was kept, as one HTML file, and in the browser."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isthmus._inside import Inside
from isthmus.cli.base import AsJson
from isthmus.cli.given import check_page, check_paths
from isthmus.cli.screen import console, print_json, text

if TYPE_CHECKING:
    from isthmus.report import Page

REPORT = "report.html"
#: Values of a document.
_MAX_VALUES = 2**22


def report(
    result: Annotated[
        Path,
        typer.Argument(metavar="RUN_OR_JSON", help="Folder of a discovery, diagnosis, Run or sweep, or a JSON file."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="By default report.html in the folder.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a result as one HTML file that needs no network. Nothing is computed anew."""
    from isthmus.report import save_page

    page = drawn_page(result)
    # The folder may be a stranger's: no link in it is written through.
    target = out or Inside(result if result.is_dir() else result.parent) / REPORT
    check_paths({"RUN_OR_JSON": result}, {"--out": Path(target)})
    check_page("--out", Path(target))
    save_page(page, target)
    size = Path(target).stat().st_size
    if as_json:
        print_json(
            {"report": os.fspath(target), "bytes": size, "subject": page.subject, "verdict": page.answer.verdict}
        )
    else:
        console().print(text(f"wrote {os.fspath(target)} ({size / 1e6:.1f} MB, one file, no network)"))


def open(  # noqa: A001 - the verb
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a result, or a report's file.")],
) -> None:
    """Show the report of a folder in the browser; it is written first where it is missing."""
    import webbrowser

    from isthmus._atomic import shown
    from isthmus._checks import fail
    from isthmus.report import save_page

    target = run / REPORT if run.is_dir() else run
    if run.is_dir() and not Inside(run).is_file(REPORT):
        save_page(drawn_page(run), Inside(run) / REPORT)
    if target.suffix.lower() not in (".html", ".htm") or not target.is_file():
        fail("open", f"{shown(run)} must be a folder or a report", "something else", "`isthmus report` writes one.")
    if not webbrowser.open(target.resolve().as_uri()):
        fail("open", "a browser must be there to be started", "none", f"Open {target} yourself.")
    console().print(text(f"opened {target}"))


def drawn_page(path: Path) -> Page:
    """The page of a path, or an error that names the path: a file with the right name may hold anything."""
    from isthmus._atomic import shown
    from isthmus._checks import fail
    from isthmus._errors import FileFormatError, IsthmusError

    try:
        return page_of_path(path)
    except IsthmusError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as problem:
        got, do = f"{type(problem).__name__}: {shown(str(problem))}", "It is damaged, or was not written by isthmus."
        must = f"{shown(path)} must hold a result of isthmus"
        try:
            fail("report", must, got, do, error=FileFormatError)
        except FileFormatError as named:
            raise named from problem


def page_of_path(path: Path) -> Page:
    """The page of what a path holds: a folder of a result, a JSON file, or a file of isthmus.save."""
    from isthmus import files, sweeps
    from isthmus._atomic import shown
    from isthmus._checks import fail
    from isthmus._errors import DataError
    from isthmus.cli import diagnosis_folder
    from isthmus.cli.discovery_folder import ANSWER
    from isthmus.report import page_of
    from isthmus.sweeps.places import SWEEP

    if path.is_dir():
        folder = Inside(path)
        if folder.is_file(ANSWER):
            return _page_of_discovery(folder)
        if folder.is_file(diagnosis_folder.ANSWER):
            return _page_of_json(folder / diagnosis_folder.ANSWER)
        if folder.is_file(SWEEP):
            return page_of(sweeps.read(path))
        from isthmus.runs import CONFIG, Run

        if not folder.is_file(CONFIG):
            must = f"{shown(path)} must be the folder of a discovery, a diagnosis, a Run or a sweep"
            missing = f"neither {ANSWER} nor {CONFIG} nor {diagnosis_folder.ANSWER} nor {SWEEP} in it"
            fail("report", must, missing, "Give such a folder.", error=DataError)
        return page_of(Run.read(path))
    if path.suffix.lower() == ".safetensors":
        return page_of(files.load(path))
    return _page_of_json(path)


def _page_of_json(path: Path | Inside) -> Page:
    from isthmus._atomic import open_checked, shown
    from isthmus._strict_json import loads
    from isthmus.cli.diagnosis_folder import MAX_BYTES
    from isthmus.report import page_of_document

    with open_checked("report", path, MAX_BYTES) as (handle, size):
        document = loads("report", handle.read(size), shown(path), max_values=_MAX_VALUES)
    return page_of_document(document, where=shown(path))


def _page_of_discovery(folder: Inside) -> Page:
    """All that the folder knows: the object, and beside it the truth, the samples and where it comes from."""
    from isthmus import files
    from isthmus.cli.discovery_folder import ANSWER, MODEL, read_samples
    from isthmus.discovery import Discovery
    from isthmus.report import page_of

    if not folder.is_file(MODEL):
        return _page_of_json(folder / ANSWER)
    document, found = files.read_json(folder / ANSWER), files.load(folder / MODEL)
    more: dict[str, Any] = {"document": document if isinstance(document, dict) else {}}
    if isinstance(found, Discovery):
        more["samples"] = read_samples(folder, found)
    return page_of(found, **more)


# ---- `isthmus serve`: follow running computations in the browser


def serve_command(
    runs: Annotated[Path, typer.Argument(metavar="RUNS_DIR", help="A folder of runs, or one run.")] = Path("runs"),
    port: Annotated[int, typer.Option(help="Port of 127.0.0.1; 0 takes any that is free.")] = 0,
    open_: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> None:
    """Show a live page of what is running, and of what is finished, until Ctrl-C.

    Only this machine can reach it, and only with the address that is printed. It changes nothing.
    """
    from isthmus.serving import Watcher
    from isthmus.serving import serve as serve_pages

    def ready(address: str) -> None:
        console().print(text(f"live page: {address}"))
        console(sys.stderr).print(text("Ctrl-C ends it; what is being computed goes on."), style="dim")
        sys.stdout.flush()
        if open_:
            show(address)

    serve_pages(Watcher(runs), port=port, ready=ready)


def show(address: str) -> None:
    """Open the address in the browser by way of a file that only this user can read.

    A browser is a process, and the command line of a process is there for everybody to see: the token must not be.
    """
    import tempfile
    import webbrowser

    from markupsafe import Markup

    page = Markup(
        '<!doctype html><meta name="referrer" content="no-referrer"><meta http-equiv="refresh" content="0; url={}">'
    )
    folder = Path(tempfile.mkdtemp(prefix="isthmus-serve-"))  # for this user alone
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / "open.html"
    file.write_text(page.format(address), encoding="utf-8")
    webbrowser.open(file.as_uri())
