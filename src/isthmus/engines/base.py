"""Tasks for an executor of any kind, their results, and the computation itself, which is the same everywhere."""

from __future__ import annotations

import collections
import functools
import hashlib
import importlib
import os
import platform
import re
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from isthmus._checks import fail
from isthmus._errors import DataError, IsthmusError
from isthmus._progress import silent
from isthmus._settings import KINDS
from isthmus.discovery import Discovery, discover
from isthmus.experiments._experiment import Experiment, find_experiment, plain_scalars
from isthmus.runs import Outcome, Run, provenance

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
    figures : bool
        Whether to draw each.
    home : str
        ``"module:Class"`` of the experiment, for processes that must import it; looked for by its id if empty.
    """

    experiment: str
    configurations: tuple[Mapping[str, Any], ...]
    keys: tuple[str, ...]
    data: Mapping[str, np.ndarray] | None = None
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
        """The failure that describes an exception."""
        trace = _PATHS.sub('File "', "".join(traceback.format_exception(error)))
        message = str(error).strip() or type(error).__name__
        return cls(type(error).__name__, message[:LONGEST_MESSAGE], trace[-LONGEST_TRACE:])


@dataclass(frozen=True)
class Finished:
    """The result of one configuration: a Run in memory, which only the sweep writes, or a Failure.

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


#: Calls that an executor of somebody else's is given at once: how many it can hold it does not say.
PLACES = 64


def computed(
    executor: Executor, tasks: Sequence[Task], started: Callable[[Task], None] = lambda _: None, *, retries: int = 2
) -> Generator[Finished, None, None]:
    """Compute tasks on an executor of :mod:`concurrent.futures`; yield results as they arrive, in any order.

    Parameters
    ----------
    executor : Executor
        Ours, those of the standard library, ``dask.distributed.Client(…).get_executor()`` and others alike. Its
        ``places``, where it has some, says how many calls it is given at once. It is left open.
    tasks : sequence of Task
    started : callable
        Called before a task is handed over.
    retries : int
        How often a task is tried again whose worker was lost (``BrokenExecutor``): its configurations one by one, and
        from the second time on with nothing beside it. Then it comes as a Failure ``"WorkerLost"``.
    """
    waiting = collections.deque((task, 1) for task in tasks)
    suspects: collections.deque[tuple[Task, int]] = collections.deque()
    under_way: dict[Future[list[Finished]], tuple[Task, int]] = {}
    try:
        while waiting or suspects or under_way:
            places = getattr(executor, "places", PLACES)
            # A task that was there when a process died a second time gets the machine for itself.
            while len(under_way) < places and (queue := waiting or (() if under_way else suspects)):
                task, attempt = queue.popleft()
                started(task)
                try:
                    under_way[executor.submit(execute, task)] = task, attempt
                except BrokenExecutor as error:
                    do = "Pass one that survives the loss of a worker, as `isthmus.engines.Processes`, then continue."
                    fail("sweep", "the executor must work", f"{type(error).__name__}: {error}", do)
            done, _ = wait(under_way, return_when=FIRST_COMPLETED)
            for future in done:
                task, attempt = under_way.pop(future)
                try:
                    found = [replace(one, attempt=attempt) for one in future.result()]
                except IsthmusError:  # of the executor: what a task raises is a Failure
                    raise
                except (Exception, SystemExit, CancelledError) as error:
                    gone = isinstance(error, BrokenExecutor)
                    if len(task.keys) > 1 or (gone and attempt <= retries):
                        # Of several only one may be to blame.
                        again = suspects if gone and attempt > 1 else waiting
                        again.extend((one, attempt + gone) for one in alone(task))
                        continue
                    found = lost(task, attempts=attempt, why=error) if gone else failed(task, Failure.of(error))
                yield from found
    finally:
        for future in under_way:
            future.cancel()


def alone(task: Task) -> list[Task]:
    """The task's configurations as tasks of their own."""
    pairs = zip(task.configurations, task.keys)
    return [replace(task, configurations=(one,), keys=(key,)) for one, key in pairs]


def failed(task: Task, failure: Failure, attempt: int = 1) -> list[Finished]:
    """The result of a task that failed."""
    return [Finished(key, None, failure, 0.0, platform.node(), 0, attempt) for key in task.keys]


def lost(task: Task, *, attempts: int, why: object) -> list[Finished]:
    """The failure of a task whose worker was lost ``attempts`` times."""
    message = f"the process that computed it was lost {attempts} time{'s' * (attempts != 1)}: {why}"
    return failed(task, Failure(LOST, message[:LONGEST_MESSAGE]), attempts)


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


# ---- One configuration of a sweep over discover: the arguments as plain data, the answer as a Run


#: The arrays that a task of discover may have.
ROLES = ("X", "Y", "groups", "time", "na_values")


def digest(data: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of the arrays of a table: their names, types, shapes and contents."""
    found = hashlib.sha256()
    for name in sorted(data):
        array = np.ascontiguousarray(data[name])
        found.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def discover_run(parameters: Mapping[str, Any], data: Mapping[str, np.ndarray]) -> Run:
    """Discover with these arguments on these arrays.

    Parameters
    ----------
    parameters : mapping
        Every setting of discover, and ``data``, the :func:`digest` of the arrays.
    data : mapping of str to ndarray
        ``X``, ``Y`` (the same array as X asks for an autoencoder), and ``groups``, ``time`` and ``na_values`` if any.
    """
    if parameters.get("data") != digest(data):
        do = "Send the arrays that the configuration was made for."
        fail("sweep", "the data must have the SHA-256 of the configuration", digest(data), do, error=DataError)
    began, clock = time.time(), time.perf_counter()
    X, Y = data["X"], data["Y"]
    # What tells discover an autoencoder is identity, which is lost between processes.
    same = X if X.shape == Y.shape and X.dtype == Y.dtype and np.array_equal(X, Y, equal_nan=True) else Y
    options = {name: parameters[name] for name in KINDS}
    more = {name: data[name] for name in ROLES[2:] if name in data}
    found = discover(X, same, **more, **options)
    source = provenance(
        seed=parameters["seed"], dtype="float32", started=began, seconds=round(time.perf_counter() - clock, 3)
    )
    extra = {"measured": _measured(found), "sentence": found.sentence, "reasons": list(found.reasons)}
    return Run("discover", dict(parameters), _arrays(found), _outcomes(found), {**source, **extra})


def _measured(found: Discovery) -> dict[str, Any]:
    """Scalars for tables; what the network of the chosen rank has, where a profile was made."""
    scalars: dict[str, Any] = {"rank": found.rank, "verdict": found.verdict, "held_out": float(found.error)}
    profile = found.profile
    if profile is not None and found.rank in profile.ranks:
        at = int(np.flatnonzero(profile.ranks == found.rank)[0])
        scalars |= {name: float(getattr(profile, name)[at]) for name in ("norm", "loss", "cost")}
        state = profile.states[at]
        scalars["training"] = {"at rest": "flat", "falling": "budget"}.get(state, state)
        scalars["converged"] = state == "at rest"
    return plain_scalars(scalars)


def _arrays(found: Discovery) -> dict[str, np.ndarray]:
    arrays = {"rank": np.array(found.rank), "held_out": np.array(found.error), "coordinates": found.coordinates}
    if found.profile is not None:
        for name in ("ranks", "cost", "loss", "error", "standard_error", "norm", "regularity", "shares"):
            arrays[f"profile_{name}"] = getattr(found.profile, name)
    return arrays


def _outcomes(found: Discovery) -> list[Outcome]:
    known = found.verdict != "undetermined"
    reason = "" if known else (found.reasons[0] if found.reasons else "undetermined")
    return [
        Outcome("the rank is determined", "agrees" if known else "undetermined", found.verdict, "determined", reason)
    ]


# ---- Several experiments at once, each computed once: what ``isthmus reproduce all`` does


def run_several(experiments: Sequence[Experiment], executor: Executor) -> Iterator[tuple[Experiment, Run | Failure]]:
    """Yield every experiment with its Run, or the reason why there is none, as they finish.

    Figures of one computation (F-ham-1 and F-ham-3, F-bn-2 and F-talk-3) share it: experiments that inherit the same
    ``compute`` and have the same parameters.
    """
    groups: dict[str, list[Experiment]] = {}
    for one in experiments:
        same = next((key for key, group in groups.items() if _shared(group[0], one)), one.key)
        groups.setdefault(same, []).append(one)
    # The longest first: the last one to end decides how long all take.
    order = sorted(groups, key=lambda key: -_seconds(groups[key][0]))
    tasks = [Task(groups[key][0].id, (groups[key][0].parameters,), (key,), figures=True) for key in order]
    for finished in computed(executor, tasks):
        first, *others = groups[finished.key]
        outcome = finished.run if finished.run is not None else finished.failure or Failure("Lost", "no result")
        yield first, outcome
        for one in others:
            yield one, outcome if isinstance(outcome, Failure) else _second(one, outcome)


def _shared(one: Experiment, other: Experiment) -> bool:
    return type(one).compute is type(other).compute and one.parameters == other.parameters


def _seconds(one: Experiment) -> float:
    return one.quick_seconds if one == type(one).quick() else one.full_seconds


def _second(one: Experiment, run: Run) -> Run:
    """The Run of an experiment whose arrays are those of another."""
    extra = {"computed_with": run.experiment}
    seconds = float(run.provenance["seconds"])
    return one.recorded(run.arrays, started=time.time() - seconds, seconds=seconds, more=extra)
