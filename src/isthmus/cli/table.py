"""The table of a command: how its file is read, and which columns are left out before any has a role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import pandas as pd


class DecimalMark(StrEnum):
    """What stands before the fraction of a number."""

    point = "."
    comma = ","


Decimal = Annotated[DecimalMark, typer.Option(help="Decimal mark of the numbers in a text file.")]
Exclude = Annotated[
    list[str] | None, typer.Option(metavar="COL", help="Column to leave out, or a glob; may be repeated.")
]
#: Of a verb about a network, which also takes arrays.
ExcludeInput = Annotated[
    list[str] | None,
    typer.Option(metavar="COL", help="Column of a table of inputs to leave out, or a glob; may be repeated."),
]

NaValues = Annotated[
    list[str] | None,
    typer.Option(
        "--na-values",
        metavar="VALUE",
        help="What means missing, such as -9999; may be repeated. By default numbers far outside the rest of a column "
        "are looked for; '' for none.",
    ),
]


@dataclass(frozen=True)
class Reading:
    """How a table is read: options of every command that takes one."""

    decimal: DecimalMark = DecimalMark.point
    exclude: list[str] | None = None
    na_values: list[str] | None = None

    @property
    def marks(self) -> bool:
        """Whether marks of missing values are looked for."""
        return self.na_values is None

    @property
    def record(self) -> dict[str, Any]:
        """What was not as usual, for the record of where an answer comes from."""
        more: dict[str, Any] = {"exclude": self.exclude} if self.exclude else {}
        if self.decimal is not DecimalMark.point:
            more["decimal"] = self.decimal.value
        return more if self.na_values is None else {**more, "na_values": self.na_values}


#: By role of :func:`isthmus.tables.choose_columns`, and that of the labels.
_OPTIONS = {
    "targets": "--target",
    "features": "--features",
    "group": "--group",
    "time": "--time",
    "classes": "--classes",
}


def table_of(
    data: Path,
    reading: Reading,
    roles: Mapping[str, list[str] | str | None] = MappingProxyType({}),
) -> pd.DataFrame:
    """The table in a file without the columns excluded, none of which may be named by ``roles``.

    Parameters
    ----------
    data : Path
    reading : Reading
    roles : mapping, optional
        What the command line gave for each role: a column that a glob chose may be excluded, one by name may not.
    """
    from isthmus.tables import exclude_columns, read_table

    values = [value for value in reading.na_values or () if value.strip()]
    frame = read_table(data, decimal=reading.decimal.value, na_values=values)
    if not reading.exclude:
        return frame
    rest = exclude_columns(frame, reading.exclude)
    left, there = ({str(name).strip() for name in table.columns} for table in (rest, frame))
    for role, given in roles.items():
        for name in [given] if isinstance(given, str) else given or ():
            if name.strip() in there - left:
                both = f"{_OPTIONS[role]} and --exclude both name {name.strip()!r}"
                raise typer.BadParameter(f"{both}: leave it out of one of them")
    return rest
