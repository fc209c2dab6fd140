"""Whole files only: written atomically, opened for reading with their kind and size checked first."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from isthmus._checks import fail
from isthmus._errors import DataError, IsthmusError
from isthmus._inside import READ, Buffer, Inside, Refused, replace_file

#: What to do about the failures of a file system that a user can mend.
_REMEDIES = {
    errno.ENOSPC: ("the disk is full", "Free some space or write elsewhere."),
    errno.EDQUOT: ("the disk quota is used up", "Free some space or write elsewhere."),
    errno.EFBIG: ("the file would be too large for its file system", "Write elsewhere."),
    errno.EROFS: ("the file system is read-only", "Write elsewhere."),
    errno.EACCES: ("permission denied", "Change the permissions or choose another path."),
    errno.EPERM: ("operation not permitted", "Change the permissions or choose another path."),
    errno.ENOENT: ("no such file or folder", "Check the path; folders are not created."),
    errno.ENOTDIR: ("a part of the path is a file or a link, not a folder", "Check the path."),
    errno.EISDIR: ("it is a folder", "Pass the path of a file."),
    errno.ENAMETOOLONG: ("the name is too long", "Shorten it."),
    errno.ELOOP: ("too many symbolic links, or one where none is followed", "Check the links."),
    errno.EMFILE: ("too many open files", "Close some."),
}


def shown(value: object, limit: int = 120) -> str:
    r"""``value`` as harmless text of at most ``limit`` characters: what cannot be printed is escaped.

    Examples
    --------
    >>> print(shown("\x1b[2Jname"))
    '\x1b[2Jname'
    >>> print(shown("Temp [°C]\u202e"))
    'Temp [°C]\u202e'
    >>> len(shown("x" * 10_000))
    120
    """
    text = repr(os.fspath(value) if isinstance(value, os.PathLike) else value)
    half = (limit - 3) // 2
    return text if len(text) <= limit else f"{text[: limit - 3 - half]}...{text[-half:]}"


def as_path(who: str, path: str | os.PathLike[str]) -> Path | Inside:
    """``path`` as a ``Path``, or as it is if it says where it lies; or fail."""
    if not isinstance(path, (str, os.PathLike)) or not str(path) or "\0" in str(path):
        fail(who, "`path` must be the path of a file", shown(path), "Pass a str or a pathlib.Path.")
    return path if isinstance(path, Inside) else Path(path)


def _fail_os(who: str, path: Path | Inside, what: str, problem: OSError, error: type[IsthmusError]) -> None:
    reason, do = _REMEDIES.get(problem.errno or 0, (shown(problem.strerror or type(problem).__name__), "Try again."))
    fail(who, f"{shown(path)} must be {what}", reason, do, error=error)


def check_writable(who: str, folder: str | os.PathLike[str]) -> None:
    """Fail, before a long computation, if nothing can be written into ``folder`` or made where it will be."""
    place = Path(os.path.realpath(folder))
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    if not place.is_dir():
        _fail_os(who, place, "a folder", OSError(errno.ENOTDIR, "not a folder"), IsthmusError)
    if not os.access(place, os.W_OK | os.X_OK):
        code = errno.EROFS if hasattr(os, "statvfs") and os.statvfs(place).f_flag & os.ST_RDONLY else errno.EACCES
        _fail_os(who, place, "writable", OSError(code, os.strerror(code)), IsthmusError)


def write_atomic(path: str | os.PathLike[str], data: Buffer | Iterable[Buffer], *, overwrite: bool = True) -> None:
    """Write a file so that a reader, or a crash at any instant, sees the old content or the new.

    A temporary file ``.isthmus-*.tmp`` in the same folder is written, flushed and fsynced, then renamed over
    ``path``, and the folder is fsynced. It is removed if anything fails; only a killed process leaves one.

    Parameters
    ----------
    path : path or Inside
        In an existing folder. A symbolic link that a path names is followed: the file it names is replaced. One inside
        a folder of results is not: it is itself replaced.
    data : bytes, or iterable of bytes-like
        Pieces are written one after the other.
    overwrite : bool, default True
        If false, an existing file is an error (looked for before writing).
    """
    who = "write_atomic"
    target = as_path(who, path)
    try:
        if not isinstance(target, Inside):
            target = target.resolve()
            if target.is_symlink():  # a loop, which Python 3.13 gives back as it is
                raise OSError(errno.ELOOP, "symbolic links")
            if not target.name:
                raise IsADirectoryError(errno.EISDIR, "a folder")
            target = Inside(target.parent, target.name)
        with target.above() as place:
            status = place.stat(target.name)
            mode = None if status is None else status.st_mode
            if mode is not None and not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
                fail(who, f"{shown(target)} must be a file", "a folder or a device", "Pass the path of a file.")
            if mode is not None and not overwrite:
                fail(who, f"{shown(target)} must not exist", "a file", "Choose another path or pass overwrite=True.")
            replace_file(place, target.name, data, mode)
    except (OSError, RuntimeError) as problem:  # RuntimeError: a loop of links, before Python 3.13
        if not isinstance(problem, OSError):
            problem = OSError(errno.ELOOP, "symbolic links")
        _fail_os(who, target, "writable", problem, IsthmusError)


@contextlib.contextmanager
def open_checked(who: str, path: str | os.PathLike[str], max_bytes: int) -> Iterator[tuple[io.BufferedReader, int]]:
    """Open a regular file of at most ``max_bytes`` for reading; gives the handle and its size."""
    source = as_path(who, path)
    try:
        descriptor = source.open(READ) if isinstance(source, Inside) else os.open(source, READ)
    except Refused:
        fail(
            who,
            f"{shown(source)} must be a file",
            "a folder, device, pipe or socket",
            "Pass the path of a file.",
            error=DataError,
        )
    except OSError as problem:
        _fail_os(who, source, "a readable file", problem, DataError)
        raise  # never reached; for the type checker
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            got = "a folder" if stat.S_ISDIR(status.st_mode) else "a device, pipe or socket"
            fail(who, f"{shown(source)} must be a file", got, "Pass the path of a file.", error=DataError)
        if status.st_size > max_bytes:
            fail(
                who,
                f"{shown(source)} must have at most {max_bytes} bytes",
                f"{status.st_size} bytes",
                "If the file is meant to be that large, raise `max_bytes`.",
                error=DataError,
            )
    except BaseException:
        os.close(descriptor)
        raise
    with os.fdopen(descriptor, "rb") as handle:
        try:
            yield handle, status.st_size
        except OSError as problem:
            _fail_os(who, source, "readable to its end", problem, DataError)
