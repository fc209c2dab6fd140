"""Folders that verbs leave their answers in: written in one step, never over foreign files."""

from __future__ import annotations

import fnmatch
import io
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus import _folders
from isthmus._atomic import shown
from isthmus._checks import fail

if TYPE_CHECKING:
    import pandas as pd

#: What a killed process may leave of an atomic write.
REMAINS = ".isthmus-*.tmp"


def check_folder(
    who: str,
    folder: str | os.PathLike[str],
    what: str,
    known: Collection[str],
    ours: Callable[[Path, set[str]], bool],
    inside: Callable[[Path], list[str]] = lambda _: [],
) -> Path:
    """Return the real path of ``folder`` if an answer may be written there, or fail; nothing is changed.

    Parameters
    ----------
    folder : path
        Must be absent, empty, or an answer of the same verb, which will be replaced.
    what : str
        "a discovery", for messages.
    known : collection of str
        Names that may stand in it.
    ours : callable
        Folder and the names in it → whether it is such an answer.
    inside : callable, optional
        Folder → further names that do not belong there.
    """
    # The real path: a symbolic link keeps pointing where it did, and the folder it points to is replaced.
    target = Path(os.path.realpath(folder))
    must, do = f"the folder must be absent, empty or {what}", "Choose another folder with --out, or move what is in it."
    if not target.name:
        fail(who, must, shown(target), do)
    if not target.exists():
        return target
    if not target.is_dir():
        fail(who, must, f"{shown(target)}, a file", do)
    names = sorted(entry.name for entry in target.iterdir() if not fnmatch.fnmatchcase(entry.name, REMAINS))
    strange = [name for name in names if name not in known] + inside(target)
    if strange:
        others = ", ".join(shown(name, 60) for name in strange[:5]) + (", …" if len(strange) > 5 else "")
        fail(who, must, f"{shown(target)}, which also holds {others}", do)
    if names and not ours(target, set(names)):
        fail(who, must, f"{shown(target)}, a damaged or foreign folder", do)
    return target


@contextmanager
def assembled(who: str, folder: Path, check: Callable[[Path], object]) -> Iterator[Path]:
    """A new folder to write into, put in the place of ``folder`` in one step; what was there goes with the same step.

    ``check`` is asked again before that: somebody may have put a file of their own there meanwhile.
    """
    assembly = folder.parent / f".{folder.name}.{secrets.token_hex(6)}.tmp"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _folders.sweep(folder)
        assembly.mkdir()
        yield assembly
        check(folder)
        _folders.install(assembly, folder)
    except OSError as problem:
        fail(who, f"{shown(folder)} must be writable", problem.strerror, "Write elsewhere, with --out.")
    finally:
        # What is left here is the unfinished new folder, or the previous one after the exchange.
        shutil.rmtree(assembly, ignore_errors=True)


def csv_bytes(frame: pd.DataFrame) -> bytes:
    """A table as CSV: UTF-8, all digits of every number, what cannot be encoded as an escape."""
    stream = io.StringIO()
    frame.to_csv(stream, index=False, lineterminator="\n")
    return stream.getvalue().encode("utf-8", errors="backslashreplace")
