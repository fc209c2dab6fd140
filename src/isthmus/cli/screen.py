"""Words and tables on the terminal: nothing in them is taken for markup or for a command to the terminal."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

COLOURS = {
    "agrees": "green",
    "differs": "yellow",
    "fails": "bold red",
    "undetermined": "yellow",
    "met": "green",
    "not met": "yellow",
    "determined": "green",
    "trivial": "cyan",
    "given": "cyan",
    "holds": "green",
    "holds trivially": "cyan",
    "none": "cyan",
    "conserved": "green",
    "not yet critical": "yellow",
    "drifting": "yellow",
}

#: Columns of a pipe: a table has each row in one line.
_UNFOLDED = 1000


def console(stream: TextIO | None = None) -> Console:
    """A console on ``stream``, stdout unless given."""
    # Made when needed, because tests and pipes replace the streams; folded lines would break pipes.
    out = stream or sys.stdout
    width = None if out.isatty() else _UNFOLDED
    return Console(file=out, width=width, soft_wrap=not out.isatty(), highlight=False, markup=False, emoji=False)


def table(*names: str) -> Table:
    """An empty table without lines; its first column is not folded."""
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for index, name in enumerate(names):
        made.add_column(name, overflow="fold", no_wrap=index == 0)
    return made


def plain(value: object) -> str:
    """A short text for a number, a list of them, or None."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(plain, value))
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)


def print_notes(notes: Iterable[str]) -> None:
    """Say what to know about an answer, on stderr: stdout is the answer's."""
    for note in notes:
        console(sys.stderr).print(text(f"note: {note}"), style="dim")


def text(value: object, style: str = "") -> Text:
    """Text shown as it is: no markup, and control or bidirectional characters as escapes."""
    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return Text(
        "".join(
            c.encode("unicode_escape").decode() if unicodedata.category(c) in hidden and c != "\n" else c
            for c in str(value)
        ),
        style,
    )


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,  # noqa: ARG001
    lineno: int,  # noqa: ARG001
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> None:
    """A warning in one line on stderr, in place of :func:`warnings.showwarning`."""
    console(sys.stderr).print(Text("warning: ", "yellow") + text(f"{message} ({category.__name__})"))


def print_json(document: object) -> None:
    """One JSON document on stdout."""
    print(json.dumps(document, indent=2, allow_nan=False))
