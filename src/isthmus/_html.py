"""Small static HTML for notebooks: escaped, without scripts, readable on light and dark pages."""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Iterable, Sequence

from isthmus._result import Badge, Result, Table

#: Every word that a result may be summed up by, and its tone.
TONES = {
    "determined": "good",
    "trivial": "note",
    "given": "note",
    "undetermined": "doubt",
    "agrees": "good",
    "differs": "doubt",
    "counts something else": "note",
    "unexplained": "doubt",
    "fails": "bad",
    "met": "good",
    "not met": "doubt",
    "holds": "good",
    "holds trivially": "note",
    "not applicable": "note",
    "none": "note",
    "measured": "good",
    "empty": "note",
    "conserved": "good",
    "not yet critical": "doubt",
    "drifting": "doubt",
    "everywhere": "good",
    "the data": "good",
    "within a tolerance on the data": "note",
    "unchanged": "note",
    "complete": "good",
    "incomplete": "doubt",
    "failures": "bad",
    "done": "good",
    "failed": "bad",
    "diverged": "bad",
    "stale": "doubt",
    "interrupted": "doubt",
}
#: Okabe and Ito's colours, which the common forms of colour blindness leave apart.
_COLOURS = {"good": "#009E73", "note": "#0072B2", "doubt": "#E69F00", "bad": "#D55E00"}
#: Rows of a table in a notebook; the report shows all.
ROWS = 24
#: Characters of a name that are shown; the whole name is in its tooltip.
LONGEST = 60


def plain(text: object, limit: int | None = None) -> str:
    r"""``text`` in one line, control and bidirectional characters as escapes, shortened in the middle to ``limit``.

    Examples
    --------
    >>> plain("a\u202eb\nc")
    'a\\u202eb c'
    >>> plain("a_rather_long_name", 9)
    'a_ra…name'
    """
    shown = " ".join(str(text).split())
    hidden = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
    shown = "".join(c.encode("unicode_escape").decode() if unicodedata.category(c) in hidden else c for c in shown)
    if limit is not None and len(shown) > limit:
        tail = (limit - 1) // 2
        shown = f"{shown[: limit - 1 - tail]}…{shown[len(shown) - tail :]}"
    return shown


def number(value: object, digits: int = 3) -> str:
    """A short text for a number; a dash for one that is missing or not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "—" if value is None else plain(value)
    if not math.isfinite(value):
        return "—"
    return str(value) if isinstance(value, int) else f"{value:.{digits}g}"


def name(text: object) -> str:
    """A name as escaped HTML, isolated from the direction of its neighbours."""
    whole = plain(text, 2000)
    return f'<bdi title="{html.escape(whole)}">{html.escape(plain(text, LONGEST))}</bdi>'


def told(sentence: object) -> str:
    """A sentence as escaped HTML."""
    return html.escape(plain(sentence, 2000))


def badge(word: str) -> str:
    """The word that sums a result up, in the colour of its tone."""
    colour = _COLOURS[TONES.get(word, "note")]
    style = f"border:1.5px solid {colour};border-radius:1em;padding:.1em .7em;font-weight:600;white-space:nowrap"
    return f'<span style="{style}"><span style="color:{colour}">●</span> {name(word)}</span>'


def items(sentences: Iterable[str]) -> str:
    """A list of sentences."""
    listed = "".join(f"<li>{told(sentence)}</li>" for sentence in sentences)
    return f'<ul style="margin:.4em 0;padding-left:1.3em">{listed}</ul>' if listed else ""


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, strong: Sequence[int] = ()) -> str:
    """A table of cells that are HTML already; ``strong`` are the rows to set apart, and long tables are cut."""
    style = 'style="text-align:left;padding:.15em .9em .15em 0"'
    head = "".join(f"<th {style}>{html.escape(one)}</th>" for one in heads)
    body = ""
    for index, row in enumerate(rows[:ROWS]):
        weight = ' style="font-weight:700"' if index in strong else ""
        body += f"<tr{weight}>" + "".join(f"<td {style}>{cell}</td>" for cell in row) + "</tr>"
    more = f"<div>… and {len(rows) - ROWS} more rows</div>" if len(rows) > ROWS else ""
    return f'<table style="border-collapse:collapse;margin:.5em 0"><tr>{head}</tr>{body}</table>{more}'


def card(*parts: str) -> str:
    """What a notebook shows of one result."""
    style = "border-left:3px solid rgba(128,128,128,.4);padding:.2em 0 .2em 1em;max-width:60em;overflow-wrap:anywhere"
    return f'<div style="{style}">{"".join(parts)}</div>'


def heading(*parts: str) -> str:
    """A line above the rest; the parts are HTML already."""
    return f'<div style="font-size:1.1em;margin:.2em 0 .5em">{" ".join(parts)}</div>'


def rows(shown: Table) -> str:
    """The brief form of a table; of a long one the part around the rows that are set apart."""
    heads, cells = shown.briefly()
    if not heads or not cells:
        return ""
    start = max(0, min(min(shown.strong, default=0) - 2, len(cells) - ROWS))
    before = f"<div>{start} rows above are left out</div>" if start else ""
    body = [[_cell(cell) for cell in row] for row in cells[start:]]
    return before + table(heads, body, strong=[row - start for row in shown.strong])


def _cell(value: object) -> str:
    if isinstance(value, Badge):
        return badge(value.word)
    return number(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else told(value)


def result(shown: Result, *more: str) -> str:
    """What a notebook shows of a result: the answer, why, its tables, and ``more``, which is HTML already."""
    answer = heading(badge(shown.verdict), f"<b>{told(shown.sentence)}</b>")
    return card(answer, items(shown.reasons), *map(rows, shown.tables()), *more)
