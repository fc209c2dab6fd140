"""The protocol of all results, from which terminal, notebook and report are drawn: answer, reasons, tables, plot.

Report, notebook and terminal are renderers of this one protocol: none of them repeats a threshold or a rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable


@dataclass(frozen=True)
class Badge:
    """A word of judgement in a cell of a table. Other cells are numbers, or texts that are shortened for the eye."""

    word: str


@dataclass(frozen=True)
class Table:
    """A table that a report can sort and save as CSV.

    Attributes
    ----------
    key, title : str
    heads : sequence of str
    rows : sequence of sequences
        Numbers, texts and :class:`Badge`.
    reading : sequence of str
        How to read it.
    strong : sequence of int
        Rows to set apart.
    folded : bool
        Long tables that few will want to see: closed in a report, left out of a notebook and a terminal.
    brief : sequence of int, optional
        Columns that a notebook and a terminal have room for; all by default. Of none they leave the table out.
    """

    kind: ClassVar[str] = "table"
    key: str
    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Any]]
    reading: Sequence[str] = ()
    strong: Sequence[int] = ()
    folded: bool = False
    brief: Sequence[int] | None = None

    def briefly(self) -> tuple[list[str], list[list[Any]]]:
        """Heads and rows of the columns in ``brief``."""
        columns = range(len(self.heads)) if self.brief is None else self.brief
        return [self.heads[i] for i in columns], [[row[i] for i in columns] for row in self.rows]


@runtime_checkable
class Result(Protocol):
    """The answer in one sentence, the word that says how sure it is, why, the numbers as tables, and a picture."""

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        ...

    @property
    def verdict(self) -> str:
        """One word of :data:`isthmus._html.TONES`."""
        ...

    @property
    def reasons(self) -> Sequence[str]:
        """Why; doubts come first."""
        ...

    def tables(self) -> list[Table]:
        """The numbers, the most telling table first."""
        ...

    def plot(self) -> Any:
        """The result as a matplotlib figure."""
        ...
