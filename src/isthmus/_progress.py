"""Progress on stderr: a bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TextIO


class Progress(Protocol):
    """A progress bar, as the computation sees it."""

    def advance(self, steps: int = 1, **numbers: float) -> None:
        """Say that ``steps`` more are done; ``numbers`` (loss, rank, …) are shown beside them."""
        ...


#: What makes one: ``with factory(total, label) as bar: bar.advance()``; a total of None is unknown.
ProgressFactory = Callable[[int | None, str], AbstractContextManager[Progress]]


@contextmanager
def progress(
    total: int | None,
    label: str,
    *,
    stream: TextIO | None = None,
    every: float = 5.0,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Progress]:
    """Show the progress of ``total`` steps (None: unknown) on ``stream``, stderr unless given.

    Parameters
    ----------
    total : int or None
        Number of steps.
    label : str
        What is being done.
    stream : text stream, optional
        A bar if it is a terminal; otherwise lines.
    every : float
        Seconds between lines off a terminal; a computation shorter than that prints nothing.
    clock : callable
        Seconds, monotonic.
    """
    out = sys.stderr if stream is None else stream
    if not out.isatty():
        lines = _Lines(total, label, out, every, clock)
        yield lines
        lines.close()
        return
    # Imported here: the command line's help must not wait for it.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    texts = [TextColumn(text, markup=False) for text in ("{task.description}", "{task.fields[numbers]}")]
    columns = [texts[0], BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), texts[1]]
    # What is printed meanwhile stands above the bar; standard output may be JSON, and is left alone.
    with Bars(*columns, console=Console(file=out), transient=True, redirect_stdout=False) as bars:
        bar = _Bar(bars, bars.add_task(label, total=total, numbers=""), clock)
        yield bar
        bar.show()


@contextmanager
def silent(total: int | None, label: str) -> Iterator[Progress]:  # noqa: ARG001
    """A progress bar that shows nothing, the default of the library."""
    yield Quiet()


def shown(wanted: bool | ProgressFactory) -> ProgressFactory:
    """What ``progress=`` of a public function means: True shows it on stderr, a callable is used in its place."""
    return wanted if callable(wanted) else (progress if wanted else silent)


class Quiet:
    """A progress bar that shows nothing."""

    def advance(self, steps: int = 1, **numbers: float) -> None:
        """Ignore the report."""


class _Bar:
    def __init__(self, bars: Any, task: Any, clock: Callable[[], float]) -> None:
        self._bars, self._task, self._clock, self._last = bars, task, clock, clock()
        self._done, self._numbers = 0, {}

    def advance(self, steps: int = 1, **numbers: float) -> None:
        self._done += steps
        self._numbers.update(numbers)
        # A training may make thousands of steps a second.
        if self._clock() - self._last >= 0.1:
            self.show()

    def show(self) -> None:
        self._last = self._clock()
        self._bars.update(self._task, completed=self._done, numbers=_numbers(self._numbers))


class _Lines:
    def __init__(self, total: int | None, label: str, out: TextIO, every: float, clock: Callable[[], float]) -> None:
        self._total, self._label, self._out, self._every, self._clock = total, label, out, every, clock
        self._start = self._last = clock()
        self._done, self._printed, self._numbers = 0, False, {}

    def advance(self, steps: int = 1, **numbers: float) -> None:
        self._done += steps
        self._numbers.update(numbers)
        now = self._clock()
        if now - self._last >= self._every:
            self._last, self._printed = now, True
            left = self._total and self._done <= self._total
            self._write(f"{duration(self._left(now))} left" if left else "", _numbers(self._numbers))

    def close(self) -> None:
        if self._printed:
            # The last numbers of a search are those of the rank tried last, which need not be the answer.
            numbers = "" if "rank" in self._numbers else _numbers(self._numbers)
            self._write(f"done in {duration(self._clock() - self._start)}", numbers)

    def _left(self, now: float) -> float:
        remaining = max((self._total or 0) - self._done, 0)
        return (now - self._start) * remaining / max(self._done, 1)

    def _write(self, end: str, numbers: str = "") -> None:
        # A total may be an estimate: once it is exceeded, only the count is shown.
        count = f"{self._done}/{self._total}" if self._total and self._done <= self._total else f"{self._done}"
        parts = [count, numbers, end]
        print(f"{self._label}: " + ", ".join(part for part in parts if part), file=self._out, flush=True)


def _numbers(numbers: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())


def duration(seconds: float) -> str:
    """Seconds as ``m:ss`` or ``h:mm:ss``.

    Examples
    --------
    >>> duration(75), duration(3700.2)
    ('1:15', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
