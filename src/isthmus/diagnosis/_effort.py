"""What a diagnosis costs: estimated before, shown during, limited, and what was left out said by name."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from isthmus._codec import Plain
from isthmus._progress import Progress, ProgressFactory

#: Floating-point operations in a second that decompositions are expected to do: what one core of a laptop does.
RATE = 3e10


@dataclass(frozen=True)
class Part(Plain):
    """One part of a diagnosis.

    Attributes
    ----------
    name : str
        ``"representations"``, ``"passage"``, ``"weights"``, ``"jacobians"``, …
    state : {"complete", "reduced", "left out"}
        Reduced and left out are by the budget; what a module does not allow is a note and a state elsewhere.
    what : str
        What was measured on, or what is missing.
    estimated, seconds : float
        Expected before, and taken.
    """

    name: str
    state: str
    what: str
    estimated: float
    seconds: float


class Effort:
    """The time that is left, and the parts that were done with it.

    Parameters
    ----------
    budget : float or None
        Seconds in all; None for no limit.
    progress : callable
        As in ``diagnose``.
    clock : callable
        Seconds, monotonic.
    """

    def __init__(
        self, budget: float | None, progress: ProgressFactory, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.parts: list[Part] = []
        self._progress, self._clock = progress, clock
        self._end = math.inf if budget is None else clock() + budget

    @property
    def left(self) -> float:
        """Seconds that are left; infinite without a budget, never negative."""
        return max(self._end - self._clock(), 0.0)

    def fits(self, seconds: float, share: float) -> bool:
        """Whether so many seconds fit into this share of the time that is left."""
        return seconds <= share * self.left

    @contextmanager
    def part(self, name: str, total: int | None, estimated: float, what: str) -> Iterator[_Running]:
        """Do one part, with a bar of ``total`` steps; ``what`` may be set anew on what is yielded."""
        started = self._clock()
        about = f", about {estimated:.0f} s" if estimated >= 2 else ""
        running = _Running(self, what, started)
        with self._progress(total, f"diagnose: {name}{about}") as bar:
            running.bar = bar
            yield running
        seconds = self._clock() - started
        self.parts.append(Part(name, running.state, running.what, round(estimated, 3), round(seconds, 3)))

    def leave_out(self, name: str, estimated: float, what: str) -> None:
        """Say that a part was not done."""
        self.parts.append(Part(name, "left out", what, round(estimated, 3), 0.0))


class _Running:
    """A part while it is done."""

    bar: Progress

    def __init__(self, effort: Effort, what: str, started: float) -> None:
        self.state, self.what = "complete", what
        self._effort, self._started = effort, started

    def reduce(self, what: str) -> None:
        """Say that less was done than asked for."""
        self.state, self.what = "reduced", what

    def goes_on(self, share: float = 1.0) -> bool:
        """Whether there is time for more: ``share`` of what was left when this part began."""
        spent = self._effort._clock() - self._started
        return spent <= share * (self._effort.left + spent)
