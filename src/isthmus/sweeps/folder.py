"""The folder of a sweep while it is worked in: its driver is the only one who writes."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from isthmus._atomic import shown
from isthmus._checks import fail
from isthmus._errors import DataError, IsthmusError
from isthmus._folders import Folder, previous
from isthmus._inside import Inside, clear_remains
from isthmus.engines.base import Finished, Task
from isthmus.files import write_json
from isthmus.runs import Run
from isthmus.sweeps.index import Index, append
from isthmus.sweeps.lock import Lock
from isthmus.sweeps.pending import clear_pending, read_pending, write_pending
from isthmus.sweeps.places import DAMAGED, EVERYTHING, PENDING, RUNS, SWEEP, is_key
from isthmus.sweeps.plan import Plan
from isthmus.sweeps.records import inspect, make_index, read_plan, write_index

_WHO = "sweep"


class SweepFolder:
    """``with SweepFolder.of(out, plan) as folder:`` the folder is ours alone, up to date, and its damage is aside.

    Attributes
    ----------
    path : Inside
    plan : Plan
        What the folder was for before, and what is added now.
    index : Index
    """

    def __init__(self, path: Inside, plan: Plan, tell: Callable[[str], None], *, begun: bool) -> None:
        self.path, self.plan, self.index = path, plan, Index({})
        self._tell, self._begun = tell, begun

    @classmethod
    @contextlib.contextmanager
    def of(cls, out: str | os.PathLike[str], plan: Plan, tell: Callable[[str], None]) -> Iterator[SweepFolder]:
        """Make or continue the folder ``out``; nothing in it is changed before all is checked."""
        target = FOLDER.check(Path(out))
        with writing(target):
            target.mkdir(parents=True, exist_ok=True)
            path = Inside(target)
            lock = Lock(path)
            lock.__enter__()
        try:
            with writing(path), path.folder() as place:
                begun = place.stat(SWEEP) is not None
            if begun:
                before = read_plan(path)
                before.check_same(plan, shown(path.name))
                names = {field: plan.labels[field] for field in plan.labels}
                for grid in plan.grids:
                    before = before.with_grid(grid, names)
                plan = before
            made = cls(path, plan, tell, begun=begun)
            with writing(path):
                made._settle()
            yield made
        finally:
            lock.__exit__(None, None, None)

    def _settle(self) -> None:
        for name in (RUNS, PENDING):
            (self.path / name).make_folder()
        content = self.plan.to_dict()
        if not self._begun or read_plan(self.path).to_dict() != content:
            write_json(self.path / SWEEP, content)
        self._clean()
        self.index = make_index(self.path, self.plan)
        for key, problem in list(self.index.problems.items()):
            if key in self.index.planned:
                self._put_aside(key, problem)
        write_index(self.path, self.index)

    def _clean(self) -> None:
        """Remove what killed drivers left half written: nobody else writes here while we hold the lock."""
        with (self.path / RUNS).folder() as place:
            names = set(place.names())
            for name in names:
                if name.startswith(".") and name.endswith(".tmp"):
                    place.rmtree(name)
                key = name.removeprefix(".").removesuffix(".previous")
                if name == previous(key) and is_key(key) and key not in names:
                    place.rename(name, key)
        for folder in (self.path, self.path / PENDING):
            clear_remains(folder)

    def _put_aside(self, key: str, problem: str) -> None:
        (self.path / DAMAGED).make_folder()
        count, taken = 1, self.path.names(DAMAGED)
        while (target := self.path / DAMAGED / f"{key}-{count}").name in taken:
            count += 1
        (self.path / RUNS / key).rename(target)
        del self.index.problems[key]
        self._tell(f"{problem} It now lies in {DAMAGED}/{target.name}.")

    def open_keys(self, *, retry_failed: bool) -> list[str]:
        """Keys that must still be computed."""
        failed = {key for key, row in read_pending(self.path).items() if row["state"] == "failed"}
        leave = set(self.index.finished) | (set() if retry_failed else failed)
        return [key for key in self.index.planned if key not in leave]

    def begin(self, task: Task, where: str) -> None:
        """Say that a task has begun."""
        for key in task.keys:
            # If there is no room for this there will be none for the result, and that is when computing stops.
            with contextlib.suppress(IsthmusError, OSError):
                write_pending(self.path, key, "running", host=where, driver=os.getpid())

    def keep(self, finished: Finished) -> str:
        """Write what became of a configuration; its state."""
        if finished.run is None:
            failure = finished.failure
            kind, message, trace = (failure.kind, failure.message, failure.traceback) if failure else ("?", "?", "")
            facts = {"error": f"{kind}: {message}", "traceback": trace, "host": finished.host, "pid": finished.pid}
            write_pending(self.path, finished.key, "failed", **facts)
            return "failed"
        finished.run.write(self.path / RUNS / finished.key)
        row = inspect(self.path, finished.key, self.plan.experiment)
        self.index.finished[finished.key] = row
        append(self.path, finished.key, row)
        clear_pending(self.path, finished.key)
        return row["state"]

    def interrupt(self, keys: Sequence[str]) -> None:
        """Say that these were begun and not finished."""
        for key in keys:
            # What cannot be written now is seen as stale, and computed again all the same.
            with contextlib.suppress(IsthmusError, OSError):
                write_pending(self.path, key, "interrupted")


def _is_sweep(folder: Inside, names: set[str]) -> bool:  # noqa: ARG001
    # A driver that was killed at its very beginning has left less.
    return SWEEP in names or names <= set(EVERYTHING)


FOLDER = Folder(_WHO, "a sweep", EVERYTHING, _is_sweep, named=", with --out", continued=True)


@contextlib.contextmanager
def writing(path: Path | Inside) -> Iterator[None]:
    """What goes wrong on the file system, as one clear message."""
    try:
        yield
    except OSError as problem:
        refuse(path, problem)


def refuse(path: Path | Inside, problem: BaseException, more: str = "") -> NoReturn:
    """Fail because the folder cannot be written, saying what is safe and what to do."""
    code = getattr(problem, "errno", None)
    reason = str(getattr(problem, "strerror", None) or problem)
    do = {
        errno.ENOSPC: "Free some space; the same command then continues.",
        errno.EDQUOT: "Free some of your quota; the same command then continues.",
        errno.EROFS: "Copy the folder to where it can be written and continue there; `isthmus runs` reads it as it is.",
        errno.EACCES: "Change the permissions, or copy the folder; `isthmus runs` reads it as it is.",
    }.get(code or 0, "Make room or change the permissions; the same command then continues.")
    fail(_WHO, f"{shown(path)} must be writable", f"{reason}{more}", do, error=DataError)


def rescue(runs: Sequence[Run]) -> tuple[Path | None, list[str]]:
    """Write runs that found no place to a temporary folder: where, and the keys that were lost."""
    where, gone = None, []
    for run in runs:
        try:
            where = where or Path(tempfile.mkdtemp(prefix="isthmus-rescued-"))
            run.write(where / run.key)
        except (IsthmusError, OSError):
            gone.append(run.key)
    return where, gone
