"""Small static HTML for notebooks: without scripts, readable on light and dark pages.

What is HTML already is a ``Markup``; every other text is escaped where it meets HTML.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

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
        return "—" if value is None else plain(value, LONGEST)
    if not math.isfinite(value):
        return "—"
    return str(value) if isinstance(value, int) else f"{value:.{digits}g}"


def name(text: object) -> Markup:
    """A name, isolated from the direction of its neighbours."""
    return Markup('<bdi title="{}">{}</bdi>').format(plain(text, 2000), plain(text, LONGEST))


def prose(sentence: object) -> Markup:
    """Plain text, escaped, at most 2,000 characters."""
    return escape(plain(sentence, 2000))


def strong(text: object) -> Markup:
    """Emphasised text."""
    return Markup("<b>{}</b>").format(text if isinstance(text, Markup) else prose(text))


def badge(word: str) -> Markup:
    """The verdict, coloured by how good it is."""
    colour = _COLOURS[TONES.get(word, "note")]
    style = f"border:1.5px solid {colour};border-radius:1em;padding:.1em .7em;font-weight:600;white-space:nowrap"
    dot = Markup('<span style="color:{}">●</span>').format(colour)
    return Markup('<span style="{}">{} {}</span>').format(style, dot, name(word))


def items(sentences: Iterable[str]) -> Markup:
    """A list of sentences."""
    listed = _joined(Markup("<li>{}</li>").format(prose(sentence)) for sentence in sentences)
    return Markup('<ul style="margin:.4em 0;padding-left:1.3em">{}</ul>').format(listed) if listed else listed


def _joined(parts: Iterable[str], between: str = "") -> Markup:
    return escape(between).join(parts)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, strong: Sequence[int] = ()) -> Markup:
    """A table of cells; ``strong`` are the rows to set apart, and long tables are cut."""
    body = _row("th", heads)
    for index, row in enumerate(rows[:ROWS]):
        weight = Markup(' style="font-weight:700"') if index in strong else ""
        body += _row("td", row, weight)
    more = Markup("<div>… and {} more rows</div>").format(len(rows) - ROWS) if len(rows) > ROWS else ""
    return Markup('<table style="border-collapse:collapse;margin:.5em 0">{}</table>{}').format(body, more)


def _row(tag: str, values: Iterable[object], weight: str = "") -> Markup:
    cell = Markup('<{0} style="text-align:left;padding:.15em .9em .15em 0">{1}</{0}>')
    return Markup("<tr{}>{}</tr>").format(weight, _joined(cell.format(tag, value) for value in values))


def card(*parts: str) -> Markup:
    """The HTML of one result in a notebook."""
    style = "border-left:3px solid rgba(128,128,128,.4);padding:.2em 0 .2em 1em;max-width:60em;overflow-wrap:anywhere"
    return Markup('<div style="{}">{}</div>').format(style, _joined(parts))


def heading(*parts: str) -> Markup:
    """The first line of a card."""
    return Markup('<div style="font-size:1.1em;margin:.2em 0 .5em">{}</div>').format(_joined(parts, " "))


def rows(shown: Table) -> Markup:
    """The brief form of a table; of a long one the part around the rows that are set apart."""
    heads, cells = shown.briefly()
    if not heads or not cells:
        return Markup()
    start = max(0, min(min(shown.strong, default=0) - 2, len(cells) - ROWS))
    before = Markup("<div>{} rows above are left out</div>").format(start) if start else Markup()
    body = [[_cell(cell) for cell in row] for row in cells[start:]]
    return before + table(heads, body, strong=[row - start for row in shown.strong])


def _cell(value: object) -> Markup:
    if isinstance(value, Badge):
        return badge(value.word)
    return prose(number(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value)


def result(shown: Result, *more: str) -> Markup:
    """What a notebook shows of a result: the answer, why, its tables, and ``more``; what is no Markup is escaped."""
    answer = heading(badge(shown.verdict), strong(shown.sentence))
    return card(answer, items(shown.reasons), *map(rows, shown.tables()), *more)
