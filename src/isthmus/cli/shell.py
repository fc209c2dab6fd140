"""The boundary to the shell: every way a command can end becomes an exit code and at most one message."""

from __future__ import annotations

import io
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

import typer
from rich.text import Text

from isthmus._errors import DataError, IsthmusError
from isthmus.cli.base import BAD_DATA, BUG, INTERRUPTED, UNDETERMINED, USAGE, app
from isthmus.cli.screen import console, print_json, show_warning, text

# Typer's base class of all usage errors; typer < 0.20 takes it from click, later ones bring their own.
_UsageError = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; every error is one message without a traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # Commands may leave here what to say if they are interrupted.
    settings: dict[str, Any] = {"debug": False, "if_interrupted": ""}
    for stream in (sys.stdout, sys.stderr):
        # A terminal that knows no Greek shows an escape instead of failing.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    problem: BaseException | None = None
    with warnings.catch_warnings():
        warnings.showwarning = show_warning
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
        message = "interrupted" + settings["if_interrupted"]
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
    label = Text() if code == INTERRUPTED else Text("error: ", "bold red")
    console(sys.stderr).print(label + text(message))
    if as_json:
        print_json({"error": message, "exit_code": code})
