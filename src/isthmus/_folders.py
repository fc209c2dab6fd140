"""Folders of results: checked, assembled beside their destination, and installed in one step."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import stat
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, overload

from isthmus._atomic import check_writable, shown
from isthmus._checks import fail
from isthmus._inside import Inside, Place, in_use, is_left, is_remains

if TYPE_CHECKING:
    import pandas as pd

# The exchange of two paths: name of the C function, flag.
_EXCHANGES = {"linux": ("renameat2", 2), "darwin": ("renameatx_np", 2)}
#: What a spreadsheet takes for the beginning of a formula, or cuts off before one.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
#: What systems say of a folder that cannot be replaced because there is something in it.
_OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST, errno.EACCES) if os.name == "nt" else (errno.ENOTEMPTY, errno.EEXIST)
#: The folder that the names of a system without descriptors are relative to: none, they are whole paths.
_HERE = -100 if sys.platform == "linux" else -2


def _nothing(folder: Inside) -> list[str]:  # noqa: ARG001
    return []


@dataclass(frozen=True)
class Folder:
    """One kind of folder that a verb keeps its result in.

    Attributes
    ----------
    who : str
        The verb, for messages.
    what : str
        "a discovery", likewise.
    known : collection of str
        Names that may stand in it.
    ours : callable
        The folder and the names in it → whether it holds such a result.
    strange : callable
        The folder → further names that do not belong there.
    named : str
        How the user says which folder: ", with --out".
    continued : bool
        Not replaced but added to: other files may lie in it once it is ours.
    """

    who: str
    what: str
    known: Collection[str]
    ours: Callable[[Inside, set[str]], bool]
    strange: Callable[[Inside], list[str]] = _nothing
    named: str = ""
    continued: bool = False

    @overload
    def check(self, folder: Inside) -> Inside: ...
    @overload
    def check(self, folder: str | Path) -> Path: ...
    def check(self, folder: str | Path | Inside) -> Path | Inside:
        """The real path of ``folder`` if a result may be written there, or fail; nothing is changed.

        Call it before a long computation. The folder must be absent, empty, or hold such a result and nothing else.
        """
        # The real path: a symbolic link that the user names keeps pointing where it did, and the folder it points to
        # is replaced. A link inside a folder of results is not followed.
        target = folder if isinstance(folder, Inside) else Path(os.path.realpath(folder))
        here, do = Inside(target), f"Choose another folder{self.named}, or move what is in it."
        must = f"`folder` must be absent, empty or {self.what}"
        if not here.name:
            fail(self.who, "`folder` must be a folder that can be replaced", shown(target), do)
        if not isinstance(target, Inside) and not self.continued:
            check_writable(self.who, target.parent)
        if not os.path.lexists(target):
            return target
        try:
            with here.folder() as place:
                names = [name for name in place.names() if not is_remains(name)]
        except OSError as problem:
            # A folder that cannot be looked into is not an empty one.
            got = f"{shown(target)}, {_kind(target)} ({problem.strerror})"
            fail(self.who, "`folder` must be a folder that can be read", got, do)
        ours = not names or self.ours(here, set(names))
        strange = [name for name in names if name not in self.known] + self.strange(here)
        if strange and not (ours and self.continued):
            others = ", ".join(shown(name, 60) for name in strange[:5]) + (", …" if len(strange) > 5 else "")
            fail(self.who, must, f"{shown(target)}, which also holds {others}", do)
        if not ours:
            fail(self.who, must, f"{shown(target)}, a damaged or foreign folder", do)
        return target

    @contextlib.contextmanager
    def replaced(self, folder: Path | Inside) -> Iterator[Inside]:
        """A new folder to write into, which replaces ``folder`` in one step at the end.

        ``folder`` is one that :meth:`check` has given, and it is checked again before the step: somebody may have put
        a file of their own there meanwhile.
        """
        target = folder if isinstance(folder, Inside) else Inside(folder.parent, folder.name)
        try:
            if not isinstance(folder, Inside):
                folder.parent.mkdir(parents=True, exist_ok=True)
            with target.above() as place:
                sweep(place, target.name)
                with _assembly(place, target.name) as assembly:
                    yield Inside(target.root, *target.parts[:-1], assembly)
                    self.check(folder)
                    install(place, assembly, target.name)
        except OSError as problem:
            fail(self.who, f"{shown(target)} must be writable", problem.strerror, f"Write elsewhere{self.named}.")


def _kind(path: Path | Inside) -> str:
    status = os.lstat(path)
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISREG, "a file"), (stat.S_ISLNK, "a link"))
    return next((kind for test, kind in kinds if test(status.st_mode)), "a device, pipe or socket")


@contextlib.contextmanager
def _assembly(place: Place, name: str) -> Iterator[str]:
    """A new temporary folder beside ``name``, locked while in use and removed at the end."""
    with contextlib.ExitStack() as stack:
        while True:
            assembly = f".{name}.{secrets.token_hex(6)}.tmp"
            place.mkdir(assembly)
            # What is left here in the end is the unfinished new folder, or the previous one after an exchange.
            stack.callback(place.rmtree, assembly)
            descriptor = place.open(assembly, os.O_RDONLY) if os.name == "posix" else None
            if descriptor is None:
                break
            stack.callback(os.close, descriptor)
            if in_use(descriptor):
                break
        yield assembly


def previous(name: str) -> str:
    """Name of the previous folder between the two renames, on systems that cannot exchange folders."""
    return f".{name}.previous"


def install(place: Place, assembly: str, target: str) -> None:
    """Move ``assembly`` to ``target``; after an exchange the previous folder is what ``assembly`` names."""
    with Inside(place.path, assembly).folder() as made:
        made.sync()
    old = previous(target)
    try:
        # Over nothing or over an empty folder; the system refuses any other, one that was filled meanwhile too.
        place.rename(assembly, target)
    except OSError as problem:
        if problem.errno not in _OCCUPIED:
            raise
        if exchange(place, assembly, target):
            place.sync()
            return
        place.rmtree(old)
        place.rename(target, old)
        try:
            place.rename(assembly, target)
        except OSError:
            place.rename(old, target)
            raise
    place.sync()
    place.rmtree(old)


def exchange(place: Place, first: str, second: str) -> bool:
    """Exchange two folders in one step where the system can; False where it cannot."""
    # os.replace cannot replace a folder that is not empty; these calls of Linux and macOS can.
    if sys.platform not in _EXCHANGES:
        return False
    name, flag = _EXCHANGES[sys.platform]
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is None:
        return False
    here = _HERE if place.descriptor is None else place.descriptor
    if function(here, os.fsencode(first), here, os.fsencode(second), flag) == 0:
        return True
    code = ctypes.get_errno()
    # Old kernels and some network file systems lack the call; anything else is a real failure.
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code), second)


def identity(folder: Inside) -> tuple[int, int] | None:
    """Device and inode, which change when a folder is replaced; None where there is no folder."""
    try:
        with folder.folder() as place, place.reading() as descriptor:
            status = os.fstat(descriptor)
    except OSError:
        return None
    # The time too: a system may use the number of a removed folder again.
    return status.st_ino, status.st_mtime_ns


def sweep(place: Place, name: str) -> None:
    """Remove what killed processes left beside ``name``."""
    for entry in place.names():
        if entry.startswith(f".{name}.") and entry.endswith(".tmp") and is_left(place, entry):
            place.rmtree(entry)


def csv_bytes(frame: pd.DataFrame) -> bytes:
    """A table as CSV: UTF-8, all digits of every number, what cannot be encoded as an escape.

    A text that a spreadsheet would take for a formula (it begins with ``= + - @``, a tab or a line break) gets an
    apostrophe before it, which makes it text there; numbers are left as they are.
    """
    frame = frame.rename(columns=_harmless)
    for name, column in frame.items():
        if column.dtype.kind not in "biufmM":
            frame[name] = column.map(_harmless)
    return frame.to_csv(index=False, lineterminator="\n").encode("utf-8", errors="backslashreplace")


def as_written(name: str) -> str:
    """A text that :func:`csv_bytes` wrote, without the apostrophe against spreadsheets' formulas."""
    return name[1:] if name.startswith("'") and name[1:].startswith(_FORMULA) else name


def _harmless(cell: object) -> object:
    if not isinstance(cell, str) or not cell.startswith(_FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell
