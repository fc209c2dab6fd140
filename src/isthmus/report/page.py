"""What a page is made of, as plain data: an answer, then sections of figures, tables, pictures and facts.

A module of this package turns one kind of result into a :class:`Page`; :mod:`isthmus.report.write` turns any Page into
a file. Nothing here knows of HTML.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

#: Points of a cloud; more would only hide one another.
POINTS = 2000


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
class Choice:
    """A menu at a figure; each option is a name and what it sets, by path: ``{"data.0.x": Column(2)}``."""

    label: str
    options: Sequence[tuple[str, Mapping[str, Any]]]
    selected: int = 0


@dataclass(frozen=True)
class Column:
    """Stands for a column of a figure, so that several menus can share it."""

    index: int


@dataclass(frozen=True)
class Figure:
    """A figure as plain data, and how to read it.

    Attributes
    ----------
    key : str
        Unique in the page; names the downloaded file.
    title : str
    data, layout : list, dict
        Traces and axes in a few of Plotly's words: those that ``draw.js`` and :mod:`isthmus.plotting.draw` know. Colours
        are names such as ``"@blue"``, which the theme resolves; all texts are set as text.
    reading : sequence of str
        "How to read this", a paragraph each.
    alternative : str
        What the figure shows, for who does not see it.
    columns : sequence of lists
        Numbers that :class:`Column` refers to.
    choices : sequence of Choice
    drives : (str, sequence), optional
        Key of another figure and the values of its first menu: what is hovered at that x here is chosen there.
    """

    kind: ClassVar[str] = "figure"
    key: str
    title: str
    data: list[Any]
    layout: dict[str, Any]
    reading: Sequence[str]
    alternative: str
    height: int = 420
    columns: Sequence[list[Any]] = ()
    choices: Sequence[Choice] = ()
    drives: tuple[str, Sequence[float]] | None = None


@dataclass(frozen=True)
class Badge:
    """A word of judgement in a cell of a table. Other cells are numbers, or texts that are shortened for the eye."""

    word: str


@dataclass(frozen=True)
class Table:
    """Rows that can be sorted and taken away as CSV."""

    kind: ClassVar[str] = "table"
    key: str
    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Any]]
    reading: Sequence[str] = ()
    #: Index of the row to set apart.
    strong: int | None = None
    #: Long tables that few will want to see.
    folded: bool = False


@dataclass(frozen=True)
class Picture:
    """A finished image."""

    kind: ClassVar[str] = "picture"
    key: str
    title: str
    mime: str
    content: bytes
    reading: Sequence[str]
    alternative: str


@dataclass(frozen=True)
class Notes:
    """Sentences."""

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


def short(values: Any) -> list[Any]:
    """Numbers for a figure as nested lists of five digits; None where they are not finite."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, (list, tuple)):
        return [short(value) if isinstance(value, (list, tuple)) else _rounded(value) for value in values]
    return [_rounded(values)]


def _rounded(value: Any) -> float | int | None:
    if value is None or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.5g}")


def thinned(count: int, limit: int = POINTS) -> slice:
    """Every so-many-th of ``count`` rows, at most ``limit`` of them: the same rows each time."""
    return slice(None, None, max(1, -(-count // limit)))


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
