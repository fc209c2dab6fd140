"""What a page is made of, as plain data: an answer, then sections of figures, tables, pictures and facts.

A module of this package turns one kind of result into a :class:`Page`; :mod:`isthmus.report.save` turns any Page into
a file. Nothing here knows of HTML.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from isthmus._html import plain
from isthmus._result import Badge, Result, Table
from isthmus.plotting.figure import Figure


@dataclass(frozen=True)
class Answer:
    """The answer in one sentence, the word that says how sure it is, and why."""

    sentence: str
    verdict: str
    reasons: Sequence[str] = ()
    #: What the verdict means in general.
    meaning: str = ""


@dataclass(frozen=True)
class Fact:
    """One number that everybody should see, with a few words about it."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Picture:
    """An image as it was drawn elsewhere, embedded in the page."""

    kind: ClassVar[str] = "picture"
    key: str
    title: str
    mime: str
    content: bytes
    reading: Sequence[str]
    alternative: str


@dataclass(frozen=True)
class Notes:
    """A list of sentences."""

    kind: ClassVar[str] = "notes"
    sentences: Sequence[str]


@dataclass(frozen=True)
class Phase:
    """A diagram of cells, one for each setting of a sweep, that can be looked into; readable without a script.

    Attributes
    ----------
    key, title : str
    content : dict
        Plain data that ``sweep.js`` arranges: ``names``, their ``titles``, ``labels`` of the values of each, ``across``
        and ``up`` (numbers of names, or None), ``held`` (the value of each other), ``cells``, ``heads``, ``runs``.
    rows : sequence of (label, sequence of int or None)
        The first view, from the top: numbers of cells, None where there is none.
    marks : sequence of (text, class, text)
        The legend: what stands in the cell, its class, what it means.
    reading : sequence of str
    figure : str
        Key of the figure that shows the spectra of a cell; empty if there is none.
    """

    kind: ClassVar[str] = "phase"
    key: str
    title: str
    content: dict[str, Any]
    rows: Sequence[tuple[str, Sequence[int | None]]]
    marks: Sequence[tuple[str, str, str]]
    reading: Sequence[str]
    figure: str = ""


__all__ = [
    "Answer", "Badge", "Block", "Fact", "Figure", "Notes", "Page", "Phase", "Picture", "Section", "Table", "flat",
    "page", "tables_of",
]  # fmt: skip

Block = Figure | Table | Picture | Notes | Phase


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it; sections without blocks are left out."""

    key: str
    title: str
    blocks: Sequence[Block]
    lead: str = ""


@dataclass(frozen=True)
class Page:
    """Everything a report shows."""

    subject: str
    title: str
    answer: Answer
    facts: Sequence[Fact] = ()
    sections: Sequence[Section] = field(default_factory=tuple)

    def figures(self) -> list[Figure]:
        """All figures in their order."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, Figure)]

    def phases(self) -> list[Phase]:
        """All diagrams of cells in their order."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, Phase)]


def page(
    subject: str,
    result: Result,
    meaning: Mapping[str, str],
    facts: Sequence[Fact],
    sections: Iterable[Section],
    *,
    title: str = "",
) -> Page:
    """The page of a result: its answer, what its verdict means in general, and the sections that have blocks."""
    # A name of ten thousand characters is in a table; in the sentence it would be the page.
    answer = Answer(plain(result.sentence, 600), result.verdict, result.reasons, meaning.get(result.verdict, ""))
    return Page(subject, title or subject, answer, facts, [one for one in sections if one.blocks])


def tables_of(result: Result) -> dict[str, list[Block]]:
    """The tables of a result by their keys; an empty list for what it has not."""
    return collections.defaultdict(list, {one.key: [one] for one in result.tables()})


def flat(content: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested plain data as (name, text) pairs."""
    pairs: list[tuple[str, str]] = []
    for key, value in content.items():
        if isinstance(value, Mapping):
            pairs += flat(value, f"{prefix}{key}.")
        elif isinstance(value, (list, tuple)):
            pairs.append((f"{prefix}{key}", ", ".join(str(one) for one in value)))
        elif value is not None:
            pairs.append((f"{prefix}{key}", f"{value:.6g}" if isinstance(value, float) else str(value)))
    return pairs


_TITLES = {
    "data": "Data",
    "parameters": "Parameters",
    "settings": "Settings of the search",
    "provenance": "Versions, machine and command",
}
_LEAD = "Enough to make it again. This page was drawn from the kept result; nothing was computed anew."


def origin_section(parts: Mapping[str, Any]) -> Section:
    """One folded table for each part that is there."""
    blocks: list[Block] = []
    for key, content in parts.items():
        if content and isinstance(content, Mapping):
            rows = [list(pair) for pair in flat(dict(content))]
            blocks.append(Table(f"origin-{key}", _TITLES[key], ["name", "value"], rows, folded=True))
    return Section("origin", "Where this comes from", blocks, _LEAD)
