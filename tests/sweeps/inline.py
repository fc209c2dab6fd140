"""An executor that computes in this process, and helpers that the tests of sweeps share."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from pathlib import Path

import numpy as np
from tiny import MARKERS

from isthmus.runs import Run
from isthmus.sweeps.places import RUNS


class Inline(Executor):
    """One task after the other, here; remembers them. ``stop_after`` results it acts as after Ctrl-C."""

    places = 1

    def __init__(self, *, stop_after: int | None = None) -> None:
        self.tasks, self._left = [], stop_after

    def submit(self, fn, task):  # pyright: ignore[reportIncompatibleMethodOverride]
        self.tasks.append(task)
        done = Future()
        done.set_result(fn(task))
        if self._left == 0:
            raise KeyboardInterrupt
        if self._left is not None:
            self._left -= len(task.keys)
        return done


def counts() -> dict[str, int]:
    """How often each key was computed, by the markers of Tiny."""
    found: dict[str, int] = {}
    for path in Path(os.environ[MARKERS]).iterdir():
        key = path.name.partition("-")[0]
        found[key] = found.get(key, 0) + 1
    return found


def contents(folder: Path) -> dict[str, dict[str, bytes]]:
    """Every Run of a sweep, read and checked, as the bytes of its arrays; what a killed process left is no Run."""
    found = {}
    for path in sorted(path for path in (folder / RUNS).iterdir() if not path.name.startswith(".")):
        run = Run.read(path)
        assert run.key == path.name
        found[run.key] = {name: np.ascontiguousarray(array).tobytes() for name, array in run.arrays.items()}
    return found


@contextlib.contextmanager
def small_disk(where: Path, size: str) -> Iterator[bool]:
    """A file system of ``size`` at ``where``; False where we may not make one."""
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(where)]
    try:
        made = os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        made = False
    try:
        yield made
    finally:
        if made:
            subprocess.run(["umount", "-l", str(where)], capture_output=True, check=True)
