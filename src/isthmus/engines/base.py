"""What an engine is given, what it gives back, and the computation itself, which is the same on all of them."""

from __future__ import annotations

import functools
import importlib
import os
import platform
import re
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from isthmus._checks import fail
from isthmus._progress import silent
from isthmus.experiments._experiment import Experiment, find_experiment
from isthmus.runs import Run

#: In place of an experiment's id: the configurations are those of :func:`isthmus.discover` on the task's data.
DISCOVER = "discover"
#: The failure of a task whose worker was lost too often.
LOST = "WorkerLost"
#: Characters kept of a message and, from its end, of a traceback.
LONGEST_MESSAGE, LONGEST_TRACE = 2_000, 20_000
#: Where a file of a traceback lies on this machine is nobody's business elsewhere; from the package on it is.
_PATHS = re.compile(r'File "[^"\n]*?[/\\](?=(?:isthmus|torch|numpy|scipy|sklearn)[/\\]|[^/\\"\n]*")')


@dataclass(frozen=True)
class Task:
    """Configurations that one process computes: one, or several of one shape that are trained together.

    Attributes
    ----------
    experiment : str
        Id of an Experiment, or ``"discover"``.
    configurations : tuple of mapping
        Complete parameters, plain data.
    keys : tuple of str
        Key of each: :func:`isthmus.runs.configuration_key`.
    data : mapping of str to ndarray, optional
        For ``"discover"``: the arrays of the table, whose SHA-256 is among the parameters.
    threads : int
        Of the process while it computes this.
    cpus, gpus : float
        What the task occupies.
    memory : int
        Bytes, an estimate; 0 if unknown.
    figures : bool
        Whether to draw each.
    home : str
        ``"module:Class"`` of the experiment, for processes that must import it; looked for by its id if empty.
    """

    experiment: str
    configurations: tuple[Mapping[str, Any], ...]
    keys: tuple[str, ...]
    data: Mapping[str, np.ndarray] | None = None
    threads: int = 1
    cpus: float = 1.0
    gpus: float = 0.0
    memory: int = 0
    figures: bool = False
    home: str = ""

    def __post_init__(self) -> None:
        if not self.keys or len(self.keys) != len(self.configurations):
            got = f"{len(self.keys)} keys, {len(self.configurations)} configurations"
            fail("Task", "there must be one key for each configuration", got, "Pass as many of both.")


@dataclass(frozen=True)
class Failure:
    """Why a configuration gave no Run.

    Attributes
    ----------
    kind : str
        Name of the exception's class, or ``"WorkerLost"``.
    message, traceback : str
        Both cut to a length that a file or a line can bear.
    """

    kind: str
    message: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure that an exception is."""
        trace = _PATHS.sub('File "', "".join(traceback.format_exception(error)))
        message = str(error).strip() or type(error).__name__
        return cls(type(error).__name__, message[:LONGEST_MESSAGE], trace[-LONGEST_TRACE:])


@dataclass(frozen=True)
class Finished:
    """What became of one configuration: a Run in memory, which the sweep alone writes, or a Failure.

    Attributes
    ----------
    key : str
    run : Run or None
    failure : Failure or None
        Exactly one of the two is None.
    seconds : float
        Its share of the computation.
    host : str
    pid : int
        The process that computed it; 0 where it is not known.
    attempt : int
        1 unless workers were lost on the way.
    """

    key: str
    run: Run | None
    failure: Failure | None
    seconds: float
    host: str
    pid: int
    attempt: int = 1

    def __reduce__(self) -> tuple[Any, ...]:
        # The mappings of a Run are read-only views, which cannot be sent from process to process.
        run = None
        if self.run is not None:
            r = self.run
            run = r.experiment, dict(r.parameters), dict(r.arrays), r.outcomes, dict(r.provenance), dict(r.figures)
        rest = self.key, self.failure, self.seconds, self.host, self.pid, self.attempt
        return _received, (run, rest)


def _received(run: tuple[Any, ...] | None, rest: tuple[Any, ...]) -> Finished:
    key, failure, seconds, host, pid, attempt = rest
    return Finished(key, None if run is None else Run(*run), failure, seconds, host, pid, attempt)


class Engine(ABC):
    """Computes tasks somewhere. To add an engine, write :meth:`run` with :func:`execute` in it."""

    name: ClassVar[str]

    def places(self, tasks: Sequence[Task] = ()) -> int:  # noqa: ARG002
        """How many tasks may run at once, as far as is known: more would wait, fewer leave places empty."""
        return os.cpu_count() or 1

    @abstractmethod
    def run(self, tasks: Sequence[Task], started: Callable[[Task, str], None]) -> Iterator[Finished]:
        """Yield results as they come, in any order.

        ``started(task, where)`` is called when a task begins, as far as that is known. A worker that dies costs only
        what it held: its task is tried again, its configurations one by one, and then comes as a Failure
        ``"WorkerLost"``. Closing the iterator stops the workers. Nothing is written into the sweep's folder.
        """


def alone(task: Task) -> list[Task]:
    """The task's configurations as tasks of their own."""
    pairs = zip(task.configurations, task.keys)
    return [replace(task, configurations=(one,), keys=(key,)) for one, key in pairs]


def lost(task: Task, *, attempts: int, host: str, told: str) -> list[Finished]:
    """What became of a task whose worker was lost ``attempts`` times."""
    message = f"the process that computed it was lost {attempts} time{'s' * (attempts != 1)}: {told}"
    return [Finished(key, None, Failure(LOST, message), 0.0, host, 0, attempts) for key in task.keys]


def execute(task: Task) -> list[Finished]:
    """Compute a task here and now; every exception becomes a Failure (KeyboardInterrupt and SystemExit pass).

    Several configurations are computed together where their experiment can do that. If that fails they are computed
    one by one: one of them may be to blame, and only that one should fail.
    """
    aside = {}
    if len(task.keys) > 1 and task.experiment != DISCOVER:
        try:
            return _together(task)
        except Exception as error:  # it comes again from whoever is to blame
            aside = {"together": 1, "not_together": f"{type(error).__name__}: {error}"[:LONGEST_MESSAGE]}
    return [_one(task, parameters, key, aside) for parameters, key in zip(task.configurations, task.keys)]


def experiment_of(task: Task) -> type[Experiment]:
    """The class of a task's experiment."""
    return _class_of(task.experiment, task.home)


@functools.cache
def _class_of(name: str, home: str) -> type[Experiment]:
    if not home:
        return find_experiment(name)
    module, _, path = home.partition(":")
    found: Any = functools.reduce(getattr, path.split("."), importlib.import_module(module))
    if not (isinstance(found, type) and issubclass(found, Experiment) and found.id == name):
        fail("sweep", f"{home} must be the Experiment {name}", repr(found), "Keep the class in an importable module.")
    return found


def _one(task: Task, parameters: Mapping[str, Any], key: str, aside: Mapping[str, Any]) -> Finished:
    clock = time.perf_counter()
    run, failure = None, None
    try:
        if task.experiment == DISCOVER:
            from isthmus.engines.discovering import discover_run

            run = discover_run(parameters, task.data or {})
        else:
            run = experiment_of(task)(**parameters).run(figures=task.figures)
        run = replace(run, provenance={**run.provenance, **aside}) if aside else run
        _check_key(run, key)
    except Exception as error:  # whatever it is, the sweep goes on
        run, failure = None, Failure.of(error)
    return Finished(key, run, failure, time.perf_counter() - clock, platform.node(), os.getpid())


def _together(task: Task) -> list[Finished]:
    started, clock = time.time(), time.perf_counter()
    kind, n = experiment_of(task), len(task.keys)
    experiments = [kind(**parameters) for parameters in task.configurations]
    tables = kind.compute_together(experiments, silent)
    if len(tables) != n:
        do = "Return the arrays of each, in order."
        fail(kind.id, f"`compute_together` must give {n} results", len(tables), do)
    share = (time.perf_counter() - clock) / n
    found = []
    for one, arrays, key in zip(experiments, tables, task.keys):
        run = one.recorded(arrays, started=started, seconds=share, figures=task.figures, more={"together": n})
        _check_key(run, key)
        found.append(Finished(key, run, None, share, platform.node(), os.getpid()))
    return found


def _check_key(run: Run, key: str) -> None:
    if run.key != key:
        do = "Use the same version of isthmus, and of the experiment, everywhere."
        fail("sweep", f"the Run must have the key {key}", run.key, do)
