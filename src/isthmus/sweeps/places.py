"""The layout of a sweep's folder, and the states of a configuration. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import errno
import hashlib
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

#: What is swept; a complete Run for each finished configuration; a small file for each that is begun and not finished;
#: a table made from all these; runs that could not be read; who is at work.
SWEEP, RUNS, PENDING, INDEX, DAMAGED, LOCK = "sweep.json", "runs", "states", "index.jsonl", "damaged", ".lock"
PROGRESS, REPORT = ".progress", "report.html"
EVERYTHING = (SWEEP, RUNS, PENDING, INDEX, DAMAGED, LOCK, PROGRESS, REPORT)

#: What a configuration may be. Of ``diverged`` there is a Run too, whose training left every bound.
STATES = ("done", "diverged", "failed", "interrupted", "running", "stale", "waiting")
#: Those of which there is a Run.
FINISHED = ("done", "diverged")

#: Bytes of a small file.
_MOST_BYTES = 2**24


def digest_of(content: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def read_small(path: Inside) -> tuple[dict[str, Any] | None, bytes]:
    """A JSON object and its bytes; None for what is absent, too large, torn or something else."""
    try:
        content = path.read(limit=_MOST_BYTES)
        found = json.loads(content)
    except (OSError, ValueError, RecursionError):
        return None, b""
    return (found, content) if isinstance(found, dict) else (None, content)


def is_key(name: str) -> bool:
    """Whether a name is that of a Run's folder: twelve hexadecimal digits."""
    return len(name) == 12 and all(c in "0123456789abcdef" for c in name)


def number(value: Any) -> Any:
    """A measured value as it was: JSON has no NaN and no infinity, so they were written as texts."""
    return float(value) if value in ("nan", "inf", "-inf") else value


try:
    import fcntl
except ImportError:  # Windows: the sign of life alone decides
    fcntl = None

#: Seconds between two signs of life, and without one until a process counts as gone.
BEAT, LAPSE = 2.0, 30.0


@dataclass(frozen=True)
class Holder:
    """The process that works in a folder, as its lock file says; ``age`` is the time since its last heartbeat."""

    host: str
    pid: int
    since: float
    age: float

    @property
    def alive(self) -> bool:
        """Whether the process lives, as far as this machine can see."""
        if self.age > LAPSE:
            return False
        return self.host != platform.node() or is_alive(self.pid)

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host}, since {when}"


def holder(folder: str | os.PathLike[str]) -> Holder | None:
    """Who holds the lock of a folder; None if none is recorded."""
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
    """``with Lock(folder):`` one process at a time; another one fails at once, with the holder in its message.

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


#: What such a file may say; ``stale`` is never written, it is seen.
WRITTEN = ("running", "failed", "interrupted")


def write_pending(folder: Inside, key: str, state: str, **facts: Any) -> None:
    """Record the state of a configuration; its number of attempts is kept."""
    from isthmus.files import write_json

    path = folder / PENDING / f"{key}.json"
    before, _ = read_small(path)
    attempts = int((before or {}).get("attempts", 0)) + (state == "running")
    write_json(path, {"key": key, "state": state, "time": time.time(), "attempts": attempts, **facts})


def clear_pending(folder: Inside, key: str) -> None:
    """Remove the record of a configuration whose Run is written."""
    (folder / PENDING / f"{key}.json").remove()


def read_pending(folder: Inside) -> dict[str, dict[str, Any]]:
    """Records of unfinished configurations by key; ``running`` without a live driver becomes ``stale``."""
    found: dict[str, dict[str, Any]] = {}
    names = folder.names(PENDING)
    if not names:
        return found
    who = holder(folder)
    alive = who is not None and who.alive
    for name in names:
        key = name.removesuffix(".json")
        if not is_key(key):
            continue
        content, _ = read_small(folder / PENDING / name)
        # A torn file says at least that somebody began: such files are written in one step, so this is damage.
        row: dict[str, Any] = {"key": key, "state": "stale", "error": "unreadable state"}
        if content is not None and content.get("key") == key and content.get("state") in WRITTEN:
            row = content
        if row["state"] == "running" and not alive:
            row["state"] = "stale"
        found[key] = row
    return found
