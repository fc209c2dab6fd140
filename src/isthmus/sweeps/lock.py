"""One sweep at a time in a folder: a lock of the operating system, with a sign of life for who looks on."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from isthmus._inside import NO_LOCKS, Inside
from isthmus._processes import is_alive
from isthmus.sweeps.places import LOCK, read_small

try:
    import fcntl
except ImportError:  # Windows: the sign of life alone decides
    fcntl = None

#: Seconds between two signs of life, and without one until a process counts as gone.
BEAT, LAPSE = 2.0, 30.0


@dataclass(frozen=True)
class Holder:
    """The process that works in a folder, by its own account; ``age`` is how long ago it gave a sign of life."""

    host: str
    pid: int
    since: float
    age: float

    @property
    def alive(self) -> bool:
        """Whether it is at work, as far as can be seen from here."""
        if self.age > LAPSE:
            return False
        return self.host != platform.node() or is_alive(self.pid)

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host}, since {when}"


def holder(folder: str | os.PathLike[str]) -> Holder | None:
    """Who holds the lock of a folder; None if nobody says so."""
    path = Inside(folder) / LOCK
    (found, _), stamp = read_small(path), path.stamp()
    try:
        if found is None or stamp is None:
            return None
        seen = stamp.changed / 1e9
        since = float(found["since"])
        # A time that is none would have no date to show.
        since = since if 0.0 <= since <= time.time() else seen
        return Holder(str(found["host"]), int(found["pid"]), since, time.time() - seen)
    except (OSError, KeyError, TypeError, ValueError, OverflowError):
        return None


class Lock:
    """``with Lock(folder):`` one process at a time; another one fails at once and is told who it is.

    The lock is the operating system's and ends with the process, however that ends. On file systems and systems
    without such locks the sign of life decides: a folder is free ``LAPSE`` seconds after the last.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Inside(folder)
        self._file: int | None = None
        self._over = threading.Event()
        self._pulse: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._file = (self._folder / LOCK).open(os.O_RDWR | os.O_CREAT)
        try:
            self._take()
            self._say({"host": platform.node(), "pid": os.getpid(), "since": time.time()})
        except BaseException:
            os.close(self._file)
            self._file = None
            raise
        self._pulse = threading.Thread(target=self._beat, name="isthmus-sweep", daemon=True)
        self._pulse.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._pulse is not None:
            self._pulse.join()
        # Emptied, not removed: another process may already wait on this very file.
        with contextlib.suppress(OSError):
            self._say(None)
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def _take(self) -> None:
        before = holder(self._folder)
        if fcntl is not None and self._file is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as problem:
                if problem.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    self._refuse(before)
                if problem.errno not in NO_LOCKS:
                    raise
            else:
                # Ours: whoever is named there died without a word. On another machine it may only seem so.
                if before is None or before.host == platform.node() or not before.alive:
                    return
        if before is not None and before.alive:
            self._refuse(before)

    def _refuse(self, other: Holder | None) -> None:
        from isthmus._checks import fail

        do = "Wait for it (`isthmus runs DIR --watch` follows it), or choose another folder."
        got = "another one" if other is None else f"another one: {other}"
        fail("sweep", f"one sweep at a time may work in {self._folder.name!r}", got, do)

    def _say(self, content: dict[str, Any] | None) -> None:
        if self._file is not None:
            os.ftruncate(self._file, 0)
            if content is not None:
                # Not os.pwrite, which Windows has not.
                os.lseek(self._file, 0, os.SEEK_SET)
                os.write(self._file, json.dumps(content).encode())

    def _beat(self) -> None:
        while not self._over.wait(BEAT):
            with contextlib.suppress(OSError):
                os.utime(self._file if os.utime in os.supports_fd and self._file is not None else self._folder / LOCK)
