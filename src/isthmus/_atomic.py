"""Whole files only: written atomically, opened for reading with their kind and size checked first."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from isthmus._checks import fail
from isthmus._errors import DataError, IsthmusError

_Buffer = bytes | bytearray | memoryview

#: What to do about the failures of a file system that a user can mend.
_REMEDIES = {
    errno.ENOSPC: ("the disk is full", "Free some space or write elsewhere."),
    errno.EDQUOT: ("the disk quota is used up", "Free some space or write elsewhere."),
    errno.EFBIG: ("the file would be too large for its file system", "Write elsewhere."),
    errno.EROFS: ("the file system is read-only", "Write elsewhere."),
    errno.EACCES: ("permission denied", "Change the permissions or choose another path."),
    errno.EPERM: ("operation not permitted", "Change the permissions or choose another path."),
    errno.ENOENT: ("no such file or folder", "Check the path; folders are not created."),
    errno.ENOTDIR: ("a part of the path is a file, not a folder", "Check the path."),
    errno.EISDIR: ("it is a folder", "Pass the path of a file."),
    errno.ENAMETOOLONG: ("the name is too long", "Shorten it."),
    errno.ELOOP: ("too many symbolic links", "Check the links."),
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


def as_path(who: str, path: str | os.PathLike[str]) -> Path:
    """``path`` as a ``Path``, or fail."""
    if not isinstance(path, (str, os.PathLike)) or not str(path) or "\0" in str(path):
        fail(who, "`path` must be the path of a file", shown(path), "Pass a str or a pathlib.Path.")
    return Path(path)


def _fail_os(who: str, path: Path, what: str, problem: OSError, error: type[IsthmusError]) -> None:
    reason, do = _REMEDIES.get(problem.errno or 0, (shown(problem.strerror or type(problem).__name__), "Try again."))
    fail(who, f"{shown(path)} must be {what}", reason, do, error=error)


def write_atomic(path: str | os.PathLike[str], data: _Buffer | Iterable[_Buffer], *, overwrite: bool = True) -> None:
    """Write a file so that a reader, or a crash at any instant, sees the old content or the new.

    A temporary file ``.isthmus-*.tmp`` in the same folder is written, flushed and fsynced, then renamed over
    ``path``, and the folder is fsynced. It is removed if anything fails; only a killed process leaves one.

    Parameters
    ----------
    path : path
        In an existing folder. A symbolic link is followed: the file it names is replaced, not the link.
    data : bytes, or iterable of bytes-like
        Pieces are written one after the other.
    overwrite : bool, default True
        If false, an existing file is an error (looked for before writing).
    """
    who = "write_atomic"
    target = as_path(who, path)
    temporary = None
    try:
        target = target.resolve()
        mode = target.stat().st_mode if target.exists() else None
        if mode is not None and not stat.S_ISREG(mode):
            fail(who, f"{shown(target)} must be a file", "a folder or a device", "Pass the path of a file.")
        if mode is not None and not overwrite:
            fail(
                who,
                f"{shown(target)} must not exist",
                "a file",
                "Choose another path or pass overwrite=True.",
            )
        # Not tempfile.mkstemp: its 0600 would make results private; here the kernel applies the umask.
        name = target.with_name(f".isthmus-{secrets.token_hex(8)}.tmp")
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        temporary = name
        with os.fdopen(descriptor, "wb") as handle:
            if mode is not None:
                temporary.chmod(stat.S_IMODE(mode))
            handle.writelines([data] if isinstance(data, (bytes, bytearray, memoryview)) else data)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(target)
        temporary = None
        _sync_folder(target.parent)
    except (
        OSError,
        RuntimeError,
    ) as problem:  # RuntimeError: pathlib's word for a loop of links (Python < 3.13)
        if not isinstance(problem, OSError):
            problem = OSError(errno.ELOOP, "symbolic links")
        _fail_os(who, target, "writable", problem, IsthmusError)
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()


def _sync_folder(folder: Path) -> None:
    # The rename is atomic without this; the sync makes it survive a power cut. Windows, folders that may be
    # written but not read, and some network file systems cannot do it: the write has not failed for that.
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError as problem:
        if problem.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def open_checked(who: str, path: str | os.PathLike[str], max_bytes: int) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file of at most ``max_bytes`` for reading; gives the handle and its size."""
    source = as_path(who, path)
    try:
        # O_NONBLOCK: opening a named pipe would otherwise wait for its writer, perhaps forever.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(source, flags)
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
