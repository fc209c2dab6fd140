"""The record of a running computation: every report of progress, appended to a file that others may follow.

One JSON object a line. ``kind`` is ``"start"`` (what is run), ``"step"`` (how far it is) or ``"end"`` (how it ended);
a computation that was killed and started again has several starts in one file. The time of the file is its sign of
life: it is touched every two seconds. Nothing here draws random numbers or changes what is computed.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from isthmus._atomic import shown, write_atomic
from isthmus._errors import IsthmusError
from isthmus._inside import Inside
from isthmus._progress import Progress, ProgressFactory

#: Name of the file.
LIVE = "live.jsonl"
#: Lines a second in the long run, and how many may come at once before that.
RATE, BURST = 4.0, 40.0
#: Seconds between two signs of life.
BEAT = 2.0
#: Bytes at which every second step is left out, and of later ones too.
MOST_BYTES = 2**21
#: Lines other than steps that survive this.
_MOST_OTHERS = 400
#: Characters of a text in a line.
_LONGEST = 2000


def progress_folder(folder: Path) -> Path:
    """Folder of the record of an unfinished Run: beside the Run's own folder, which is always complete."""
    return folder.parent / f".{folder.name}.progress"


def forget(path: Path) -> None:
    """Remove a record, and its folder if nothing else is in it."""
    with contextlib.suppress(OSError):
        _steps(path).remove()
        path.parent.rmdir()


def _steps(path: Path) -> Inside:
    """The record, through no link: neither it nor its folder may be one."""
    return Inside(path.parent.parent, path.parent.name, path.name)


class LiveRecord:
    """Writes the record: ``with LiveRecord(path, …) as record: compute(progress=record.beside(progress))``.

    The file is begun with the first progress, so that a computation refused at once leaves nothing. If it cannot be
    written, one warning says so and the computation goes on without it.

    Parameters
    ----------
    path : Path
        Its folder is made. What is there already is kept, and appended to.
    sentence : str
        What is being computed, for people.
    command : sequence of str
        Arguments of the program.
    facts : mapping, optional
        Further plain data for the first line.
    clock : callable
        Seconds since the epoch.
    most_bytes : int
    """

    def __init__(
        self,
        path: Path,
        *,
        sentence: str,
        command: Sequence[str] = (),
        facts: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.time,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.path, self._clock, self._most = Path(path), clock, most_bytes
        home = os.path.expanduser("~").rstrip("/\\")  # noqa: PTH111 - Path.home() raises where there is none
        arguments = [text.replace(home, "~") if home else text for text in map(str, command)]
        self._about = {"sentence": sentence[:_LONGEST], "command": " ".join(arguments)[:_LONGEST], **(facts or {})}
        self._file: int | None = None
        self._size, self._rate, self._allowed, self._last = 0, RATE, BURST, clock()
        #: Steps written since the last thinning, and when that was.
        self._steps, self._since = 0, self._last
        self._pending: dict[str, Any] | None = None
        self._problem, self._warned = "", False
        self._lock, self._over = threading.RLock(), threading.Event()
        self._pulse: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._pulse is not None:
            self._pulse.join()
        if self._file is None:
            return
        state = "done" if error is None else "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        reason = "" if state != "failed" else (str(error).strip() or type(error).__name__).splitlines()[0]
        self._flush()
        self._write({"kind": "end", "state": state, "error": reason[:_LONGEST]})
        self._close()

    def beside(self, factory: ProgressFactory) -> ProgressFactory:
        """A progress bar that writes to this record as well."""

        @contextlib.contextmanager
        def both(total: int | None, label: str) -> Iterator[Progress]:
            self._begin()
            with factory(total, label) as bar:
                recorded = _Recorded(self, bar, total, label)
                recorded.advance(0)
                yield recorded
            self._flush()

        return both

    def step(self, label: str, done: int, total: int | None, numbers: Mapping[str, float]) -> None:
        """Write a line, at most one in every interval: of several the last is written."""
        with self._lock:
            if self._file is None:
                self._warn()
                return
            before = self._pending
            if before is not None and before["label"] == label:
                # Not merged one by one: an error must not get the rank of another moment.
                numbers = numbers or before["numbers"]
            elif before is not None:
                self._flush()
            self._pending = {"kind": "step", "label": label, "done": done, "total": total, "numbers": dict(numbers)}
            self._flush_in_time()

    # ---------------------------------------------------------------- the file

    def _begin(self) -> None:
        if self._file is not None or self._problem:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            torn = self._open()
        except OSError as problem:
            self._give_up(problem)
            self._warn()
            return
        if torn:
            # The last line of a killed writer is closed, so that it spoils none but itself.
            self._put(b"\n")
        self._write({"kind": "start", "version": 1, "host": platform.node(), **self._about})
        self._pulse = threading.Thread(target=self._beat, name="isthmus-live", daemon=True)
        self._pulse.start()

    def _open(self) -> bool:
        """Open for appending; True if the last line is torn."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        self._file = _steps(self.path).open(flags)
        self._size = os.fstat(self._file).st_size
        if not self._size:
            return False
        os.lseek(self._file, -1, os.SEEK_END)
        return os.read(self._file, 1) != b"\n"

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def _flush_in_time(self) -> None:
        now = self._clock()
        self._allowed = min(BURST, self._allowed + self._rate * max(now - self._last, 0.0))
        self._last = now
        if self._pending is not None and self._allowed >= 1.0:
            self._allowed -= 1.0
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            line, self._pending = self._pending, None
            if line is not None:
                self._steps += 1
                self._write({**line, "numbers": {name: _finite(value) for name, value in line["numbers"].items()}})

    def _write(self, line: dict[str, Any]) -> None:
        head = {"kind": line["kind"], "time": round(self._clock(), 3), "pid": os.getpid()}
        self._put((json.dumps({**head, **line}, allow_nan=False) + "\n").encode())

    def _put(self, data: bytes) -> None:
        """Write a line in one system call, so that lines of two writers are not mixed."""
        with self._lock:
            if self._file is None:
                return
            try:
                if os.write(self._file, data) != len(data):
                    raise OSError("the disk is full")
                self._size += len(data)
                if self._size > self._most:
                    self._thin()
            except (OSError, IsthmusError) as problem:
                self._give_up(problem)

    def _thin(self) -> None:
        lines = _steps(self.path).read(limit=2 * self._most).splitlines(keepends=True)
        steps = [i for i, line in enumerate(lines) if line.startswith(b'{"kind": "step"')]
        others = sorted(set(range(len(lines))) - set(steps))
        # The newest step stays, whichever parity it has.
        kept = sorted({*steps[::-2], *others[-_MOST_OTHERS:]})
        write_atomic(_steps(self.path), b"".join(lines[i] for i in kept))
        self._close()
        self._open()
        # From here on as sparse as what is left, or the beginning would thin out again and again.
        now = self._clock()
        self._rate = 0.5 * min(self._rate, self._steps / max(now - self._since, 1e-3))
        self._steps, self._since, self._allowed = 0, now, 0.0

    def _beat(self) -> None:
        while not self._over.wait(BEAT):
            with self._lock:
                self._flush_in_time()
                # The folder may have been replaced by the answer; the open file is still ours.
                with contextlib.suppress(OSError):
                    if self._file is not None:
                        os.utime(self._file if os.utime in os.supports_fd else self.path)

    # ---------------------------------------------------------------- trouble

    def _give_up(self, problem: Exception) -> None:
        self._problem = str(getattr(problem, "strerror", None) or problem)
        with contextlib.suppress(OSError):
            self._close()
        self._file = None

    def _warn(self) -> None:
        # Here and not where it happened: that may be another thread.
        if self._problem and not self._warned:
            self._warned = True
            message = f"the live record {shown(self.path)} cannot be written ({self._problem}); all else goes on"
            warnings.warn(message, RuntimeWarning, stacklevel=2)


class _Recorded:
    """A progress bar and its record."""

    def __init__(self, record: LiveRecord, bar: Progress, total: int | None, label: str) -> None:
        self._record, self._bar, self._total, self._label, self._done = record, bar, total, label, 0

    def advance(self, steps: int = 1, **numbers: float) -> None:
        self._bar.advance(steps, **numbers)
        self._done += steps
        self._record.step(self._label, self._done, self._total, numbers)


def _finite(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
