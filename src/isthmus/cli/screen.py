"""Words and tables on the terminal: nothing in them is taken for markup or for a command to the terminal."""

from __future__ import annotations

import json
import sys
import textwrap
import unicodedata
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from isthmus._html import TONES, number
from isthmus._html import plain as shorten
from isthmus._result import Badge, Result
from isthmus._result import Table as Rows

_TONES = {"good": "green", "note": "cyan", "doubt": "yellow", "bad": "bold red"}
#: The colour of every word that a result may be summed up by.
COLOURS = {word: _TONES[tone] for word, tone in TONES.items()}

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


def print_table(out: Console, shown: Rows, mark: str = "", limit: int | None = None) -> None:
    """The brief form of a table, the rows that are set apart in bold and with ``mark`` behind them.

    Of more than ``limit`` rows that many, evenly spaced.
    """
    heads, rows = shown.briefly()
    made = table(*heads, *([""] if mark else []))
    count = min(len(rows), limit or len(rows))
    for index in sorted({round(i * (len(rows) - 1) / max(count - 1, 1)) for i in range(count)}):
        row, apart = rows[index], index in shown.strong
        # A long name would push the numbers off the screen.
        first = shorten(row[0], 40) if isinstance(row[0], str) else row[0]
        last = [text(mark if apart else "")] if mark else []
        made.add_row(_cell(first), *map(_cell, row[1:]), *last, style="bold" if apart else "")
    out.print(made)
    if count < len(rows):
        out.print(text(f"{count} of {len(rows)} {heads[0]}s; the report and the JSON have all"), style="dim")


def print_tables(out: Console, shown: Result, *, limit: int | None = None, reading: bool = False) -> None:
    """The tables that have a brief form, with how to read them if that is wanted."""
    for one in shown.tables():
        if one.brief != ():
            out.print()
            print_table(out, one, limit=limit)
            if reading and one.reading:
                out.print(text(" ".join(one.reading)), style="dim")


def _cell(value: object) -> Text:
    if isinstance(value, Badge):
        return text(value.word, COLOURS.get(value.word, ""))
    return text(number(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value)


def print_result(out: Console, shown: Result) -> None:
    """The answer, how sure it is, and why."""
    colour = COLOURS.get(shown.verdict, "cyan")
    out.print(text(shown.sentence, f"bold {colour}"))
    out.print(Text("verdict: ") + text(shown.verdict, colour))
    print_items(out, shown.reasons)


def print_items(out: Console, sentences: Iterable[str]) -> None:
    """A list of sentences."""
    for sentence in sentences:
        lines = [sentence]
        if out.is_terminal:
            # Further lines of one reason stand below its first word.
            lines = textwrap.wrap(sentence, max(out.width - 4, 20)) or [sentence]
        for index, line in enumerate(lines):
            out.print(text(f"{'  · ' if index == 0 else '    '}{line}"))


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
