"""The folders of finished runs, read and checked; the index made from them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from isthmus._atomic import open_checked, shown, write_atomic
from isthmus._checks import fail
from isthmus._errors import DataError, FileFormatError, IsthmusError
from isthmus._folders import Folder, identity, previous
from isthmus._inside import Inside, clear_remains
from isthmus._strict_json import MAX_JSON_BYTES, loads
from isthmus._tensorfile import MAX_FILE_BYTES
from isthmus.engines.base import Finished, Task
from isthmus.experiments._experiment import find_experiments, plain_scalars
from isthmus.files import read_json, write_json
from isthmus.runs import ARRAYS, CONFIG, FIGURES, PROVENANCE, READABLE, VERDICTS, Run, configuration_key
from isthmus.sweeps.index import Index, append
from isthmus.sweeps.places import (
    DAMAGED,
    EVERYTHING,
    INDEX,
    PENDING,
    RUNS,
    SWEEP,
    Lock,
    clear_pending,
    digest_of,
    is_key,
    read_pending,
    write_pending,
)
from isthmus.sweeps.plan import Plan


def read_plan(folder: Inside) -> Plan:
    """The plan of a sweep's folder."""
    if not folder.is_file(SWEEP):
        do = "Give the folder of a sweep: `isthmus sweep … --out DIR` makes one."
        fail("sweep", f"{shown(folder)} must hold {SWEEP}", "none", do, error=FileFormatError)
    return Plan.from_dict(read_json(folder / SWEEP), shown(folder / SWEEP))


def inspect(folder: Inside, key: str, experiment: str) -> dict[str, Any]:
    """The line of the index for one Run, whose files are all read and checked against their digests.

    Raises
    ------
    FileFormatError
        Saying what is missing, damaged or changed.
    """
    path = folder / RUNS / key
    try:
        before = identity(path)
        content = path.read(PROVENANCE, limit=MAX_JSON_BYTES)
        source, config = loads("sweep", content, f"{RUNS}/{key}/{PROVENANCE}"), read_json(path / CONFIG)
        _check(path, source, config, key, experiment)
    except OSError as problem:
        _bad(path, "its files must be readable", problem.strerror or problem)
    measured: dict[str, Any] = source["measured"] if _plain(source.get("measured")) else _measure(path)
    state = "diverged" if measured.get("training") == "diverged" else "done"
    commit = str(source.get("commit") or "")[:12]
    return {
        "state": state,
        "measured": measured,
        "seconds": source.get("seconds"),
        "digest": digest_of(content),
        "stamp": before[1] if before is not None else 0,
        "version": f"{source.get('isthmus', '?')} {commit}".strip(),
    }


def _check(path: Inside, source: Any, config: Any, key: str, experiment: str) -> None:
    if not isinstance(source, dict) or not isinstance(config, dict) or config.get("schema") not in READABLE:
        _bad(path, f"it must be a Run of schema {' or '.join(map(str, READABLE))}", "something else")
    digests = source.get("sha256")
    there = [name for name in (CONFIG, ARRAYS, VERDICTS, *FIGURES) if path.is_file(name)]
    if not isinstance(digests, dict) or sorted(digests) != sorted(there) or len(there) < 3:
        _bad(path, f"the files must be those listed in {PROVENANCE}", ", ".join(there) or "none")
    for name, digest in digests.items():
        with open_checked("sweep", path / name, MAX_FILE_BYTES) as (stream, _):
            if hashlib.file_digest(stream, "sha256").hexdigest() != digest:
                _bad(path, f"{name} must have the SHA-256 in {PROVENANCE}", "another one")
    found = configuration_key(str(config.get("experiment")), config.get("parameters") or {})
    if config.get("experiment") != experiment or found != key or source.get("key") != key:
        got = f"{config.get('experiment')} with the key {found}"
        _bad(path, f"{CONFIG} must be that of {experiment} with the key {key}", got)


def _plain(measured: Any) -> bool:
    return isinstance(measured, dict) and all(
        value is None or isinstance(value, (bool, int, float, str)) for value in measured.values()
    )


def _measure(path: Inside) -> dict[str, Any]:
    """The scalars of a Run that no sweep made, by its experiment's rule."""
    run = Run.read(path)
    kind = find_experiments().get(run.experiment)
    if kind is None:
        return plain_scalars({name: value for name, value in run.arrays.items() if value.size == 1})
    return plain_scalars(kind(**run.parameters).measured(run.arrays))


def make_index(folder: Inside, plan: Plan) -> Index:
    """The index, from the folders alone; runs that cannot be read stand among its problems."""
    index = Index(head(folder, plan))
    for key, one in plan.configurations().items():
        index.planned[key] = {"values": dict(one.values), "seed": one.seed}
    refresh(folder, plan, index, run_keys(folder))
    return index


def refresh(folder: Inside, plan: Plan, index: Index, keys: Iterable[str]) -> None:
    """Read the folders of these keys again."""
    for key in keys:
        index.finished.pop(key, None)
        index.problems.pop(key, None)
        if not folder.is_folder(RUNS, key):
            continue
        try:
            index.finished[key] = inspect(folder, key, plan.experiment)
        except IsthmusError as problem:
            index.problems[key] = str(problem)


def head(folder: Inside, plan: Plan) -> dict[str, Any]:
    """The first line of the index."""
    content = folder.read(SWEEP, limit=MAX_JSON_BYTES)
    names = list(plan.names)
    return {"experiment": plan.experiment, "title": plan.title, "names": names, "plan": digest_of(content)}


def write_index(folder: Inside, index: Index) -> None:
    """Write the index atomically."""
    write_atomic(folder / INDEX, b"".join(index.lines()))


def run_keys(folder: Inside) -> list[str]:
    """Keys of the folders that are there."""
    return [name for name in folder.names(RUNS) if is_key(name)]


def _bad(path: Inside, must: str, got: object) -> NoReturn:
    do = "The sweep puts it aside and computes it again."
    fail(f"{RUNS}/{path.name}", must, got, do, error=FileFormatError)


_WHO = "sweep"


class SweepFolder:
    """``with SweepFolder.of(out, plan) as folder:`` the folder is locked, up to date, and damaged runs are moved aside.

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
        """Remove what killed drivers left half written: no other process writes here while we hold the lock."""
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

    def begin(self, task: Task) -> None:
        """Record that a task has begun."""
        for key in task.keys:
            # If there is no room for this there will be none for the result, and that is when computing stops.
            with contextlib.suppress(IsthmusError, OSError):
                write_pending(self.path, key, "running", host=platform.node(), driver=os.getpid())

    def keep(self, finished: Finished) -> str:
        """Write the result of a configuration; gives its state."""
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
        """Record that these were begun and not finished."""
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
    """Turn errors of the file system into one clear message."""
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
    """Write runs that could not be kept to a temporary folder; gives its path and the keys that were lost."""
    where, gone = None, []
    for run in runs:
        try:
            where = where or Path(tempfile.mkdtemp(prefix="isthmus-rescued-"))
            run.write(where / run.key)
        except (IsthmusError, OSError):
            gone.append(run.key)
    return where, gone
