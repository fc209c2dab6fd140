"""sweep(experiment, grid): many configurations of one experiment, computed somewhere, kept in one folder."""

from __future__ import annotations

import collections
import math
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any

from isthmus._checks import check_choice, check_integer, fail
from isthmus._deprecations import renamed
from isthmus._live import LIVE, LiveRecord, forget
from isthmus._progress import ProgressFactory, shown
from isthmus.engines.base import PLACES, Failure, Finished, Task, computed
from isthmus.sweeps.places import FINISHED, PROGRESS
from isthmus.sweeps.plan import Configuration
from isthmus.sweeps.reading import read
from isthmus.sweeps.records import SweepFolder, refuse, rescue
from isthmus.sweeps.result import SweepResult
from isthmus.sweeps.subjects import Subject, subject_of

_WHO = "sweep"
ENGINES = ("local", "ray")
#: Networks of one shape that are trained together unless `together` says otherwise.
TOGETHER = 16


@renamed(show_progress="progress")
def sweep(
    experiment: Any,
    grid: Mapping[str, Any] | None = None,
    *,
    out: str | os.PathLike[str],
    seeds: int | Sequence[int] = 1,
    base: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    quick: bool = False,
    engine: str | Executor = "local",
    workers: int | None = None,
    threads: int = 1,
    address: str | None = None,
    together: int | None = None,
    retry_failed: bool = False,
    about: Mapping[str, Any] | None = None,
    progress: bool | ProgressFactory = False,
) -> SweepResult:
    """Run an experiment at every point of a grid and keep each as a Run in one folder.

    What is finished is never computed again: the same call continues after a crash, a kill or Ctrl-C, also where the
    folder was copied to, and another grid of the same experiment adds to what is there.

    Parameters
    ----------
    experiment : str, class or Experiment
        An id (``isthmus reproduce --list``), a class of your own in an importable module, or an Experiment, which is
        then the base. ``"discover"`` sweeps the arguments of :func:`isthmus.discover` on ``data``.
    grid : mapping of str to values
        Names to values: a sequence, or a text such as ``"4:30:2"`` (ends included), ``"1e-4:1e-1:log7"``,
        ``"0:1:lin5"``, ``"2,4,8"``. Of a parameter that is a list, ``"2,4"`` is one value and ``"2,4;8,16"`` are two.
    out : path
        Folder: absent, empty or a sweep.
    seeds : int or sequence of int
        How many seeds, or which.
    base : mapping, optional
        Parameters that differ from the experiment's and are not swept.
    data : mapping, optional
        For ``"discover"``: ``X``, ``Y`` and where wanted ``groups`` and ``time``.
    quick : bool
        Start from the quick variant.
    engine : {"local", "ray"} or Executor
        Processes of this machine, a Ray cluster, or any executor of :mod:`concurrent.futures`, which is left open:
        ``dask.distributed.Client(…).get_executor()``.
    workers : int, optional
        Processes; by default as many as cores and memory allow.
    threads : int
        Of each process.
    address : str, optional
        Of a Ray cluster; one on this machine, or the connection that this process has, unless given.
    together : int, optional
        How many networks of one shape may be trained in one computation, at most; by default 16 where the experiment
        can. 1 trains each for itself: only then are results bitwise those of a single run.
    retry_failed : bool
        Try those again that failed before.
    about : mapping, optional
        Plain data to keep with the plan of a new folder.
    progress : bool or callable
        A bar or lines on stderr, and errors as they come.

    Returns
    -------
    SweepResult

    Examples
    --------
    >>> import isthmus, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:  # doctest: +SKIP
    ...     found = isthmus.sweep("E-linear", {"width": "6,8"}, quick=True, out=folder)
    >>> found.counts  # doctest: +SKIP
    {'done': 2}
    """
    subject = subject_of(experiment, quick=quick, data=data, base=base or {})
    plan = subject.plan(grid or {}, seeds, about or {})
    limit = TOGETHER if together is None else check_integer(_WHO, "together", together, low=1, high=1024)
    if not isinstance(engine, Executor):
        check_choice(_WHO, "engine", engine, ENGINES)
    if address is not None and engine != "ray":
        fail(_WHO, "`address` belongs to engine 'ray'", repr(address), "Pass engine='ray', or leave it out.")
    with SweepFolder.of(out, plan, _teller(progress)) as folder:
        keys = folder.open_keys(retry_failed=retry_failed)
        if keys:
            every = folder.plan.configurations()
            executor = make_engine(engine, workers=workers, threads=threads, address=address)
            try:
                places = getattr(executor, "places", PLACES)
                tasks = make_tasks(subject, [every[key] for key in keys], limit, places)
                _work(folder, tasks, executor, shown(progress), _teller(progress))
            finally:
                if executor is not engine:
                    executor.shutdown(cancel_futures=True)
    return read(folder.path, experiment=subject.kind)


def make_engine(
    engine: str | Executor, *, workers: int | None = None, threads: int = 1, address: str | None = None
) -> Executor:
    """The executor of a name, or the one given."""
    if isinstance(engine, Executor):
        return engine
    if engine == "ray":
        from isthmus.engines.ray import RayExecutor

        return RayExecutor(address, workers=workers, threads=threads)
    from isthmus.engines.local import Processes

    return Processes(workers, threads=threads)


def make_tasks(subject: Subject, points: Sequence[Configuration], limit: int, places: int) -> list[Task]:
    """Configurations as tasks: those that take longest first, those of one shape together, up to ``limit``."""
    ordered = sorted(points, key=lambda one: -subject.lasting(one.parameters))
    groups: dict[Any, list[Configuration]] = collections.defaultdict(list)
    for one in ordered:
        shape = subject.shape(one.parameters) if limit > 1 else None
        groups[one.key if shape is None else ("shape", *shape)].append(one)
    tasks = []
    for group in groups.values():
        # Not all in one while other places are empty.
        size = max(1, min(limit, math.ceil(len(group) / places)))
        for first in range(0, len(group), size):
            part = group[first : first + size]
            parameters = tuple(dict(one.parameters) for one in part)
            keys = tuple(one.key for one in part)
            tasks.append(Task(subject.id, parameters, keys, data=subject.data, home=subject.home))
    return tasks


def _work(
    folder: SweepFolder, tasks: Sequence[Task], executor: Executor, show: ProgressFactory, tell: Callable[[str], None]
) -> None:
    """Compute the tasks and keep each result as it arrives."""
    running: dict[str, None] = {}
    counts: collections.Counter[str] = collections.Counter()

    def started(task: Task) -> None:
        folder.begin(task)
        running.update(dict.fromkeys(task.keys))

    told = f"Sweep of {folder.plan.experiment}: {folder.plan.title}."
    record = LiveRecord(Path(folder.path, PROGRESS, LIVE), sentence=told, command=sys.argv[1:])
    total = sum(len(task.keys) for task in tasks)
    with record, record.beside(show)(total, f"sweep {folder.plan.experiment}") as bar:
        results = computed(executor, tasks, started)
        try:
            for finished in results:
                state = _kept(folder, finished, results)
                running.pop(finished.key, None)
                counts[state] += 1
                if state == "failed" and finished.failure is not None:
                    tell(f"{finished.key} failed: {finished.failure.kind}: {finished.failure.message}")
                bar.advance(
                    1, **{word: counts[word] for word in (*FINISHED, "failed") if counts[word] or word == "done"}
                )
        finally:
            results.close()
            folder.interrupt(list(running))
    # Who follows it sees the sweep's own files from here on.
    forget(record.path)


def _kept(folder: SweepFolder, finished: Finished, results: Generator[Finished, None, None]) -> str:
    """Write what came; a Run that cannot be written as such has failed.

    If it is the file system that refuses, computing stops, and the Run is saved elsewhere if there is room.
    """
    try:
        return folder.keep(finished)
    except Exception as error:  # sorted out below
        problem = _of_the_system(error)
        if problem is None and finished.run is not None:
            return _kept(folder, replace(finished, run=None, failure=Failure.of(error)), results)
    results.close()
    where, gone = rescue([finished.run] if finished.run is not None else [])
    more = f"; computing has stopped, and all that was finished before is safe in {folder.path.name}"
    if gone:
        more += f"; the result of {', '.join(gone)} is lost and will be computed again"
    elif where is not None:
        more += f"; the last result, {finished.key}, was saved in {where}: move it into {folder.path.name}/runs"
    return refuse(folder.path, problem or OSError("what came could not be written"), more)


def _of_the_system(error: BaseException | None) -> OSError | None:
    """The error of the file system behind an error of ours."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error


def _teller(progress: bool | ProgressFactory) -> Callable[[str], None]:
    """Where errors are shown at once: on stderr, if anything is shown."""

    def tell(message: str) -> None:
        if progress:
            print(message, file=sys.stderr, flush=True)

    return tell
