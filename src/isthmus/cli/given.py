"""What verbs about a network are given: a file of weights or the user's own class, and files of inputs and targets."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from torch import nn

    from isthmus.discovery import Discovery

#: Of a verb that prints its answer and keeps no folder.
ReportFile = Annotated[
    Path | None, typer.Option(metavar="FILE.html", help="Also write a report to look at.", show_default=False)
]


def give(who: str, found: Any, page: Path | None, show: Callable[[], None], *, as_json: bool) -> None:
    """Write the report if it is wanted; then print the answer, as JSON or as ``show`` does."""
    from isthmus._strict_json import dumps
    from isthmus.cli.screen import console, text

    if page is not None:
        from isthmus.report import save_report

        with contextlib.redirect_stdout(sys.stderr):
            save_report(found, page)
    if as_json:
        print(dumps(who, found.to_dict(), indent=2))
        return
    show()
    if page is not None:
        console().print(text(f"look at it: {page}"))


def saved_object(who: str, path: Path) -> Any:
    """What a file of isthmus.save holds, or the folder of a discovery; of an estimator the Discovery in it."""
    from isthmus import files
    from isthmus._atomic import open_checked
    from isthmus._tensorfile import MAX_FILE_BYTES
    from isthmus.diagnosis._monitor import refuse_pickle

    path = file_of(path)
    with open_checked(who, path, MAX_FILE_BYTES) as (handle, _):
        refuse_pickle(who, path, handle.read(4))
    loaded: Any = files.load(path)
    return getattr(loaded, "discovery_", loaded)


def file_of(path: Path) -> Path:
    """The file of isthmus.save that a path names: itself, or that in the folder of a discovery."""
    from isthmus.cli.discovery_folder import MODEL

    return path / MODEL if path.is_dir() else path


def layers_of(saved: Any) -> nn.Module:
    """The network in what a file of isthmus.save held, as layers that can be looked into."""
    from collections import OrderedDict

    from torch import nn

    from isthmus.discovery import Discovery

    if isinstance(saved, Discovery):
        maps: Any = (("encoder", saved.encoder), ("decoder", saved.decoder))
        return nn.Sequential(OrderedDict((name, part.to_torch()) for name, part in maps))
    return saved


def own_network(who: str, module: str, weights: Path) -> nn.Module:
    """The user's network with its weights."""
    from isthmus.diagnosis._monitor import load_strictly, read_state

    net = _made(who, module)
    load_strictly(who, net, read_state(who, weights), str(weights))
    return net


def _made(who: str, module: str) -> nn.Module:
    """What ``package.module:factory`` makes when called without arguments."""
    import importlib

    from torch import nn

    from isthmus._checks import fail

    where, colon, what = module.partition(":")
    if not (where and colon and what):
        raise typer.BadParameter("--module must be PACKAGE.MODULE:FACTORY, as in networks.small:build")
    do = "Check the name; the current folder is searched first."
    with _current_folder_importable():
        try:
            factory: Any = importlib.import_module(where)
            for part in what.split("."):
                factory = getattr(factory, part)
            made = factory()
        except Exception as error:  # whatever the user's code raises
            got = f"{type(error).__name__}: {error}"
            try:
                fail(who, f"--module {module} must be importable and callable without arguments", got, do)
            except Exception as named:
                raise named from error
    if not isinstance(made, nn.Module):
        got = type(made).__name__
        fail(who, f"--module {module} must make a torch.nn.Module", got, "Name a class or a function that does.")
    return made


@contextlib.contextmanager
def _current_folder_importable() -> Iterator[None]:
    before = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    finally:
        sys.path[:] = before


def check_paths(read: Mapping[str, Path | None], written: Mapping[str, Path | None]) -> None:
    """Refuse, before anything is computed, to write where something is read, or twice, or where nothing can be."""
    taken = {name: path for name, path in read.items() if path is not None}
    for name, path in written.items():
        if path is None:
            continue
        for other, there in taken.items():
            same = path.exists() and there.exists() and path.samefile(there)
            if same or path.resolve() == there.resolve():
                raise typer.BadParameter(f"{name} must be another file than {other}")
        if path.is_dir() or not path.resolve().parent.is_dir():
            raise typer.BadParameter(f"{name} must be a file in a folder that exists; folders are not made")
        taken[name] = path


def check_page(name: str, path: Path | None) -> None:
    """Refuse, before anything is computed, to replace a file that is no report by one: it may be data."""
    if path is None or not path.is_file() or path.suffix.lower() in (".html", ".htm") or not path.stat().st_size:
        return
    with path.open("rb") as handle:
        if handle.read(15).lower() != b"<!doctype html>":
            raise typer.BadParameter(
                f"{name} must be a new file or a report, which is replaced: {path.name} is neither"
            )


def check_reading(reading: Reading, inputs: Mapping[str, Path | None], y: Path | None = None) -> None:
    """Refuse, before anything is computed, ways of reading that none of the files can be read in.

    Parameters
    ----------
    reading : Reading
    inputs : mapping of option to Path
        Files of inputs; None where an option was not given.
    y : Path, optional
        File of targets.
    """
    from isthmus._tablefile import is_text

    options, files = " or ".join(inputs), [path for path in inputs.values() if path is not None]
    if reading.decimal is not DecimalMark.point and not any(
        is_text(path) for path in (*files, *([] if y is None else [y]))
    ):
        also = options if y is None else f"{options} or --y"
        raise typer.BadParameter(f"--decimal needs a text file for {also}: other numbers are not written as text")
    if reading.exclude and all(_is_array(path) for path in files):
        raise typer.BadParameter(f"--exclude needs a table for {options}: columns of an array have no names")
    if reading.na_values and all(_is_array(path) for path in (*files, *([] if y is None else [y]))):
        raise typer.BadParameter(f"--na-values needs a table for {options}: an array is taken as it is")


def inputs_of(
    who: str,
    data: Path,
    y: Path | None = None,
    *,
    reading: Reading,
    saved: Any = None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Inputs and targets; those of one NPZ file are its arrays X and Y.

    Parameters
    ----------
    who : str
    data, y : Path
        The second is optional.
    reading : Reading
        Decimal marks are of text files, and columns are left out of ``data`` alone.
    saved : object, optional
        What the inputs are for, as :func:`saved_object` gave it: a Discovery takes the columns of a table by name.
    """
    import re

    if y is None and data.suffix.lower() == ".npz":
        from isthmus.tables import choose_columns

        frame = _table(data, reading)
        names = [str(name) for name in frame.columns]
        inputs = [name for name in names if re.fullmatch(r"[Xx]\d*", name)]
        outputs = [name for name in names if re.fullmatch(r"[Yy]\d*", name)]
        if inputs and outputs:
            chosen = choose_columns(frame, targets=outputs, features=inputs, marks=reading.marks)
            return chosen.X if (X := _matched(frame, data, saved)) is None else X, chosen.Y
    targets = None if y is None else _array(who, y, replace(reading, exclude=None))
    return _array(who, data, reading, saved), targets


def features_of(found: Discovery, frame: pd.DataFrame) -> tuple[np.ndarray, tuple[str, ...]]:
    """The inputs of a discovery in a table, by name and in its order, and what to know about them."""
    from isthmus.tables import match_columns

    fill = None if found.fill is None else dict(zip(found.feature_names, found.fill.tolist()))
    return match_columns(frame, found.feature_names, fill=fill, na_values=found.mending.na_values)


def _matched(frame: pd.DataFrame, path: Path, saved: Any) -> np.ndarray | None:
    """Inputs by name, or None where the columns of ``path`` or the inputs of ``saved`` have none."""
    from isthmus.cli.screen import print_notes
    from isthmus.discovery import Discovery

    # Columns of an array in an archive are numbered: they mean something only to a model of such an archive.
    numbered = path.suffix.lower() == ".npz"
    if not isinstance(saved, Discovery) or (numbered and not {*saved.feature_names} & {*map(str, frame.columns)}):
        return None
    X, notes = features_of(saved, frame)
    print_notes(notes)
    return X


def _is_array(path: Path) -> bool:
    return path.suffix.lower() == ".npy"


def _table(path: Path, reading: Reading) -> pd.DataFrame:
    from isthmus._tablefile import is_text

    # Of two files one may be text and the other not.
    return table_of(path, reading if is_text(path) else replace(reading, decimal=DecimalMark.point))


def _array(who: str, path: Path, reading: Reading, saved: Any = None) -> np.ndarray:
    """Numbers from a file: an NPY as it is, all columns of a table but those excluded as float64."""
    import numpy as np

    from isthmus._atomic import open_checked, shown
    from isthmus._checks import fail
    from isthmus._errors import FileFormatError, IsthmusError
    from isthmus.tables import choose_columns

    if not _is_array(path):
        frame = _table(path, reading)
        if (X := _matched(frame, path, saved)) is not None:
            return X
        return choose_columns(frame, targets=None, need_targets=False, marks=reading.marks).X
    try:
        with open_checked(who, path, 2**36) as (handle, _):
            # Images have four axes, tokens are integers: this is no table. Objects, which are pickles, are refused.
            return np.load(handle, allow_pickle=False)
    except IsthmusError:  # a ValueError too: what is wrong with the file has been said
        raise
    except (ValueError, EOFError, MemoryError) as error:
        do = "Write it with numpy.save; arrays of objects are pickles, which are never loaded."
        fail(who, f"{shown(path)} must be a NumPy array of numbers", error, do, error=FileFormatError)


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
