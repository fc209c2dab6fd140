"""Files and folders inside a folder, reached step by step so that no link can lead out of it.

A folder that holds a result may come from a stranger. Imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

try:
    import fcntl
except ImportError:  # Windows: the age alone says what is left over
    fcntl = None

Buffer = bytes | bytearray | memoryview

#: What a killed process may leave of a file that it was writing.
REMAINS = ".isthmus-{}.tmp"
#: Names of one folder that are looked at.
MOST_NAMES = 10**6
#: Seconds after which what may be left over surely is, where locks cannot tell.
STALE = 3600.0
#: What file systems answer that know no locks.
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)

# O_PATH: what is below a folder that may be searched and not read can be reached all the same.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0)
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
# O_NONBLOCK: opening a named pipe would otherwise wait for its writer, perhaps forever.
READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_CREATE = os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | _NOFOLLOW
#: Whether the system can say "this name in that open folder"; else names are joined, and links looked for.
_DESCRIPTORS = os.open in os.supports_dir_fd


class Stamp(NamedTuple):
    """What changes when a file does."""

    inode: int
    size: int
    changed: int


class Refused(OSError):
    """Not a regular file of the allowed size, or no name."""


class Place:
    """An open folder, and what can be done to the names in it; a name is a single step and no link is followed."""

    def __init__(self, path: str, descriptor: int | None) -> None:
        self.path, self.descriptor = path, descriptor

    def _at(self, name: str) -> str:
        if name in ("", ".", "..") or "/" in name or "\0" in name or os.sep in name:
            raise Refused(errno.EINVAL, "a name must be a single step")
        return name if self.descriptor is not None else os.path.join(self.path, name)  # noqa: PTH118

    def open(self, name: str, flags: int, mode: int = 0o666) -> int:
        """Open a file of this folder; gives its descriptor."""
        path = self._at(name)
        if self.descriptor is None and os.path.islink(path):  # noqa: PTH114
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return os.open(path, flags | _NOFOLLOW, mode, dir_fd=self.descriptor)

    def stat(self, name: str) -> os.stat_result | None:
        """Status of the name itself, links not followed; None where there is none."""
        try:
            return os.stat(self._at(name), dir_fd=self.descriptor, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def mkdir(self, name: str) -> None:
        """Make a new folder in this one."""
        os.mkdir(self._at(name), dir_fd=self.descriptor)

    def unlink(self, name: str) -> None:
        """Remove a file or a link."""
        os.unlink(self._at(name), dir_fd=self.descriptor)

    def rmtree(self, name: str) -> None:
        """Remove a folder with all that is in it, as far as possible."""
        shutil.rmtree(self._at(name), ignore_errors=True, dir_fd=self.descriptor)

    def rename(self, name: str, new: str, there: Place | None = None) -> None:
        """Rename, over a file or an empty folder if there is one."""
        there = there or self
        os.replace(self._at(name), there._at(new), src_dir_fd=self.descriptor, dst_dir_fd=there.descriptor)

    def names(self, limit: int = MOST_NAMES) -> list[str]:
        """The names in order; with ``limit``, at most so many of them."""
        # The descriptor may be one that only leads on.
        where = contextlib.nullcontext(self.path) if self.descriptor is None else self.reading()
        with where as opened, os.scandir(opened) as entries:
            return sorted(entry.name for entry in islice(entries, limit))

    @contextlib.contextmanager
    def reading(self) -> Iterator[int]:
        """A descriptor of the folder itself that can be read, locked and synced."""
        path = self.path if self.descriptor is None else "."
        descriptor = os.open(path, os.O_RDONLY, dir_fd=self.descriptor)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def sync(self) -> None:
        """Flush the folder, so that its names survive a crash."""
        # A rename is atomic without this; the sync makes it survive a power cut. Windows, folders that may be
        # written but not read, and some network file systems cannot do it: the write has not failed for that.
        with contextlib.ExitStack() as stack:
            try:
                descriptor = stack.enter_context(self.reading())
            except OSError:
                return
            try:
                os.fsync(descriptor)
            except OSError as problem:
                if problem.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
                    raise


class Inside(os.PathLike[str]):
    """A name below ``root``, reached step by step so that no link in ``root`` is followed, for reading or writing.

    The root itself is what the user named, and its own links are followed. Names are single steps, never paths; every
    method takes further ones.
    """

    def __init__(self, root: str | os.PathLike[str], *names: str) -> None:
        known = (root.root, root.parts) if isinstance(root, Inside) else (Path(os.path.realpath(root)), ())
        self.root, self.parts = known[0], (*known[1], *names)

    def __truediv__(self, name: str) -> Inside:
        return Inside(self, name)

    def __fspath__(self) -> str:
        return os.path.join(self.root, *self.parts)  # noqa: PTH118

    def __repr__(self) -> str:
        return f"Inside({os.fspath(self)!r})"

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.parts[-1] if self.parts else self.root.name

    @contextlib.contextmanager
    def folder(self, *names: str) -> Iterator[Place]:
        """Open the path as a folder, one name at a time."""
        path, descriptor = os.fspath(self.root), None
        try:
            if _DESCRIPTORS:
                descriptor = os.open(path, _FOLDER)
            for name in (*self.parts, *names):
                place = Place(path, descriptor)
                if descriptor is not None:
                    below = place.open(name, _FOLDER)
                    os.close(descriptor)
                    descriptor = below
                else:
                    there = place.stat(name)
                    if there is None or not stat.S_ISDIR(there.st_mode):
                        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
                path = os.path.join(path, name)  # noqa: PTH118
            yield Place(path, descriptor)
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def above(self, *names: str) -> contextlib.AbstractContextManager[Place]:
        """The folder that contains it, opened."""
        steps = (*self.parts, *names)
        return Inside(self.root, *steps[:-1]).folder() if steps else Inside(self.root.parent).folder()

    def names(self, *folder: str) -> list[str]:
        """Names in a folder, in order; none where there is no folder that can be read."""
        try:
            with self.folder(*folder) as place:
                return place.names()
        except OSError:
            return []

    def is_folder(self, *names: str) -> bool:
        """Whether it is a folder and not a link to one."""
        try:
            with self.folder(*names) as place, place.reading():
                return True
        except OSError:
            return False

    def stamp(self, *names: str) -> Stamp | None:
        """Size, time and inode of a regular file; None where there is none."""
        steps = (*self.parts, *names)
        try:
            with self.above(*names) as place:
                status = place.stat(steps[-1])
        except OSError:
            return None
        if status is None or not stat.S_ISREG(status.st_mode):
            return None
        return Stamp(status.st_ino, status.st_size, status.st_mtime_ns)

    def is_file(self, *names: str) -> bool:
        """Whether it is a regular file."""
        return self.stamp(*names) is not None

    def open(self, flags: int, *names: str) -> int:
        """Open a file of this folder; gives its descriptor."""
        with self.above(*names) as place:
            descriptor = place.open((*self.parts, *names)[-1], flags | getattr(os, "O_NONBLOCK", 0))
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise Refused(errno.EINVAL, "not a regular file")
        return descriptor

    def read(self, *names: str, limit: int, start: int = 0) -> bytes:
        """The content from byte ``start`` on; more than ``limit`` bytes are refused."""
        with os.fdopen(self.open(READ, *names), "rb") as file:
            if os.fstat(file.fileno()).st_size - start > limit:
                raise Refused(errno.EFBIG, "not of the allowed size")
            file.seek(start)
            return file.read(limit)

    def make_folder(self) -> None:
        """Make the folder unless it exists; anything else of that name is refused."""
        with self.above() as place, contextlib.suppress(FileExistsError):
            place.mkdir(self.name)
        with self.folder():
            pass

    def remove(self) -> None:
        """Remove a file or a link, if there is one."""
        with contextlib.suppress(FileNotFoundError), self.above() as place:
            place.unlink(self.name)

    def rename(self, new: Inside) -> None:
        """Rename it to a name that does not exist."""
        with self.above() as here, new.above() as there:
            here.rename(self.name, new.name, there)


def replace_file(place: Place, name: str, data: Buffer | Iterable[Buffer], mode: int | None) -> None:
    """Write a file aside and rename it; ``mode`` is that of the file before."""
    temporary, descriptor = _temporary(place)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            if mode is not None and stat.S_ISREG(mode) and hasattr(os, "fchmod"):
                os.fchmod(handle.fileno(), stat.S_IMODE(mode))
            handle.writelines([data] if isinstance(data, (bytes, bytearray, memoryview)) else data)
            handle.flush()
            os.fsync(handle.fileno())
            if fcntl is not None:
                # While it is open it is in use, and nobody clears it away.
                place.rename(temporary, name)
        if fcntl is None:
            place.rename(temporary, name)
    except BaseException:
        with contextlib.suppress(OSError):
            place.unlink(temporary)
        raise
    place.sync()


def _temporary(place: Place) -> tuple[str, int]:
    """A new temporary file, locked while in use."""
    while True:
        # Not tempfile.mkstemp: its 0600 would make results private; here the kernel applies the umask.
        name = REMAINS.format(secrets.token_hex(8))
        descriptor = place.open(name, os.O_WRONLY | _CREATE)
        if in_use(descriptor):
            return name, descriptor
        os.close(descriptor)
        with contextlib.suppress(OSError):
            place.unlink(name)


def in_use(descriptor: int) -> bool:
    """Lock an open file or folder until it is closed; False if it has been removed meanwhile.

    A lock of the system, which ends with the process: a process that finds it free may clear up.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        return problem.errno in NO_LOCKS
    return os.fstat(descriptor).st_nlink > 0


def is_left(place: Place, name: str) -> bool:
    """Whether a temporary file or folder belongs to no living process."""
    status = place.stat(name)
    if status is None:
        return False
    aged = time.time() - status.st_mtime > STALE
    if fcntl is None or not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return aged
    try:
        descriptor = place.open(name, READ)
    except OSError:
        return aged
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        return aged and problem.errno in NO_LOCKS
    finally:
        os.close(descriptor)
    return True


def is_remains(name: str) -> bool:
    """Whether a name is that of a temporary file of this library."""
    before, after = REMAINS.split("{}")
    return name.startswith(before) and name.endswith(after)


def clear_remains(folder: Inside) -> None:
    """Remove what killed processes left half written in a folder; what is being written now stays."""
    with contextlib.suppress(OSError), folder.folder() as place:
        for name in place.names():
            if is_remains(name) and is_left(place, name):
                with contextlib.suppress(OSError):
                    place.unlink(name)
