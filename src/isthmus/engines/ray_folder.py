"""The folder of a private Ray: gone when it ends, and if its process was killed, when the next one begins."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from isthmus._errors import IsthmusError
from isthmus._processes import is_alive
from isthmus._strict_json import loads

try:
    import fcntl
except ImportError:  # Windows, where nothing is ever taken for a leftover
    fcntl = None

#: Room for Ray's own folders and sockets below a temporary folder: the path of a socket has at most 107 bytes (103 on
#: macOS), and Ray appends about 75.
_LONGEST_TEMPORARY = 30
_PREFIX = "isthmus-"
#: Says which process a folder belongs to, which holds a lock on it; a folder without it is never touched.
OWNER = "isthmus-owner.json"
_MOST_BYTES = 1000


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """A folder of this process alone, with those removed that killed processes of ours have left beside it."""
    usual = tempfile.gettempdir()
    parent = usual if len(os.fsencode(usual)) <= _LONGEST_TEMPORARY else "/tmp"  # noqa: S108 - a folder of ours in it
    remove_leftovers(Path(parent))
    # Logs may still be written while the processes end.
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent, ignore_cleanup_errors=True) as folder, _owned(folder):
        yield folder


@contextlib.contextmanager
def _owned(folder: str) -> Iterator[None]:
    """Say in ``folder`` whose it is, and hold the lock that ends with this process, however that ends."""
    new = Path(folder) / f"{OWNER}.new"
    with new.open("x", encoding="utf-8") as file:
        # On a file system without locks nothing is ever taken for a leftover.
        with contextlib.suppress(OSError):
            _lock(file.fileno())
        file.write(json.dumps({"host": platform.node(), "pid": os.getpid()}))
        file.flush()
        # Named last: whoever sees it finds it locked.
        new.rename(new.with_name(OWNER))
        yield


def remove_leftovers(parent: Path) -> None:
    """Remove folders in ``parent`` that are this user's and whose process, of this machine, no longer lives."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with contextlib.suppress(OSError, IsthmusError):
                    _remove_if_left(Path(entry.path))


def _remove_if_left(folder: Path) -> None:
    if fcntl is None or not _is_mine(folder.lstat(), stat.S_ISDIR):
        return
    # Not through a link, and without waiting for the writer of a pipe.
    handle = os.open(folder / OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        if not _is_mine(os.fstat(handle), stat.S_ISREG):
            return
        owner = loads("RayEngine", file.read(_MOST_BYTES), OWNER, max_values=10)
        pid = owner.get("pid") if isinstance(owner, dict) else None
        if not isinstance(pid, int) or isinstance(pid, bool) or owner.get("host") != platform.node() or is_alive(pid):
            return
        # Processes of another container have numbers of their own; a lock that is held says that one of them lives.
        _lock(handle)
        shutil.rmtree(folder, ignore_errors=True)


def _is_mine(status: os.stat_result, kind: Callable[[int], bool]) -> bool:
    return kind(status.st_mode) and status.st_uid == os.geteuid()


def _lock(handle: int) -> None:
    """Take the lock of an open file, or raise an OSError at once."""
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
