"""Files inside a folder, opened step by step so that no link can lead out of it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
# O_NONBLOCK: opening a named pipe would otherwise wait for its writer, perhaps forever.
_FILE = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class Stamp(NamedTuple):
    """What changes when a file does."""

    inode: int
    size: int
    changed: int


class Refused(OSError):
    """Not a regular file of the allowed size."""


class Inside:
    """Read-only access below ``root``; names are single steps, never paths."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.realpath(root))

    @contextlib.contextmanager
    def _folder(self, *names: str) -> Iterator[int]:
        descriptor = os.open(self.root, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            for name in names:
                below = os.open(_step(name), _FOLDER, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)

    def names(self, *folder: str, limit: int = 10_000) -> list[str]:
        """Names in a folder, at most ``limit`` of them; none where there is no folder."""
        try:
            with self._folder(*folder) as descriptor, os.scandir(descriptor) as entries:
                return [entry.name for _, entry in zip(range(limit), entries)]
        except OSError:
            return []

    def is_folder(self, *names: str) -> bool:
        """Whether it is a folder and not a link to one."""
        try:
            with self._folder(*names):
                return True
        except OSError:
            return False

    def stamp(self, *names: str) -> Stamp | None:
        """Of a regular file; None where there is none."""
        try:
            with self._folder(*names[:-1]) as descriptor:
                status = os.stat(_step(names[-1]), dir_fd=descriptor, follow_symlinks=False)
        except OSError:
            return None
        return Stamp(status.st_ino, status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None

    def read(self, *names: str, limit: int, start: int = 0) -> bytes:
        """The content from byte ``start`` on; more than ``limit`` bytes are refused."""
        with self._folder(*names[:-1]) as descriptor:
            handle = os.open(_step(names[-1]), _FILE, dir_fd=descriptor)
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size - start > limit:
                raise Refused("not a regular file of the allowed size")
            file.seek(start)
            return file.read(limit)


def _step(name: str) -> str:
    if name in ("", ".", "..") or "/" in name or "\0" in name or os.sep in name:
        raise Refused("a name must be a single step")
    return name
