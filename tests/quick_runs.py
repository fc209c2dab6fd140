"""The quick variants of the figures, computed once for all test processes."""

import fcntl
from concurrent.futures import Executor, Future
from pathlib import Path

from isthmus import IsthmusError, Run


def folder(tmp_path_factory) -> Path:
    """Where they are: one folder for all processes of a test session."""
    base = tmp_path_factory.getbasetemp()
    # With xdist every process has a folder of its own in the one of the session.
    return (base.parent if base.name.startswith("popen-") else base) / "quick-figures"


def quick_run(tmp_path_factory, kind) -> Run:
    """The Run of ``kind.quick()``: read if some test has made it already."""
    path = folder(tmp_path_factory) / f"{kind.id}-quick"
    path.parent.mkdir(exist_ok=True)
    with (path.parent / f"{kind.id}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return Run.read(path)
        except IsthmusError:
            kind.quick().run().write(path)
            return Run.read(path)


class Here(Executor):
    """Computes in this process, and remembers what."""

    places = 1

    def __init__(self):
        self.computed = []

    def submit(self, fn, task):  # pyright: ignore[reportIncompatibleMethodOverride]
        self.computed.append(task.experiment)
        done = Future()
        done.set_result(fn(task))
        return done
