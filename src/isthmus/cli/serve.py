"""`isthmus serve`: follow running computations in the browser."""

from __future__ import annotations

import atexit
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from isthmus.cli.screen import console, text


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
