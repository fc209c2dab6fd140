"""Ray: the tasks of a sweep as Ray tasks, on this machine or on a cluster. Ray schedules, repeats and transports."""

from __future__ import annotations

import collections
import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from isthmus._checks import check_integer, check_number, fail
from isthmus.engines.base import LONGEST_MESSAGE, LONGEST_TRACE, Engine, Failure, Finished, Task, alone, lost
from isthmus.engines.machine import cores
from isthmus.engines.ray_session import library, session
from isthmus.engines.ray_worker import THREADS, computation, versions_here

#: The failure of a task that found no node with the versions of the driver.
MISMATCH = "VersionMismatch"
#: The failure of a task that no node of the cluster can hold.
NO_NODE = "NoNode"
#: Tasks handed to Ray at once, however large the cluster.
_MOST = 2_000
#: Tasks after which a process is replaced by a new one: experiments keep what they trained.
RENEWED_AFTER = 64
#: Seconds between two looks at the nodes.
_LOOK = 5.0


class RayEngine(Engine):
    """Computes the tasks of a sweep with Ray.

    A lost worker or node costs only what it held: Ray computes that again elsewhere, also a result that was finished
    and not yet fetched. Processes whose Python, isthmus, torch, NumPy or SciPy differ from the driver's compute
    nothing, since the result of a sweep must not depend on where it was computed.

    Parameters
    ----------
    address : str, optional
        ``"host:port"`` of a cluster, or ``"auto"`` on one of its machines; it is left running. Unless given, a
        private Ray on this machine, or the connection that this process has already.
    workers : int, optional
        Tasks at once, at most; unless given, as many as the nodes can hold.
    threads : int, optional
        Of each process, which then occupies as many processors; unless given, what the tasks say.
    retries : int
        How often a task is repeated whose worker or node was lost.
    runtime_env : mapping, optional
        Ray's description of what the processes need: ``working_dir``, ``pip``, ``env_vars``, ….
    patience : float
        Seconds to wait for a node that can hold a task, when the cluster has none; clusters can grow.
    """

    name: ClassVar[str] = "ray"

    def __init__(
        self,
        address: str | None = None,
        *,
        workers: int | None = None,
        threads: int | None = None,
        retries: int = 3,
        runtime_env: Mapping[str, Any] | None = None,
        patience: float = 600.0,
    ) -> None:
        self.address = address
        self.workers = None if workers is None else check_integer("RayEngine", "workers", workers, low=1)
        self.threads = None if threads is None else check_integer("RayEngine", "threads", threads, low=1, high=1024)
        self.retries = check_integer("RayEngine", "retries", retries, low=0, high=1000)
        self.runtime_env = runtime_env
        self.patience = check_number("RayEngine", "patience", patience, low=0.0)
        library()

    def places(self, tasks: Sequence[Task] = ()) -> int:
        """How many tasks can be computed at once, as the nodes are now; a cluster is asked."""
        if self.workers is not None:
            return self.workers
        cpus = max([float(self.threads or 1), *(task.cpus for task in tasks)])
        ray = library()
        if self.address is None and not ray.is_initialized():
            return max(1, int(cores() / cpus))
        with self._session(1):
            nodes = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
        return max(1, sum(int(each / cpus) for each in nodes))

    def run(self, tasks: Sequence[Task], started: Callable[[Task, str], None]) -> Iterator[Finished]:
        """Yield results as they come, in any order; closing the iterator cancels what still runs."""
        if not tasks:
            return
        if self.threads is not None:
            tasks = [replace(task, threads=self.threads, cpus=max(task.cpus, self.threads)) for task in tasks]
        largest, threads = max(math.ceil(task.cpus) for task in tasks), tasks[0].threads
        sizes = {id(task.data): sum(array.nbytes for array in task.data.values()) for task in tasks if task.data}
        cpus = self.workers * largest if self.workers else max(largest, cores())
        with self._session(cpus, 4 * sum(sizes.values()), _threads(threads)) as kind:
            flight = _Flight(self, library(), started)
            # A private Ray does not grow; on a connection of somebody else's the variables are not set.
            flight.patience = 0.0 if kind == "private" else self.patience
            flight.threads = None if kind == "existing" else threads
            flight.queue.extend(tasks)
            try:
                yield from flight.results()
            finally:
                flight.cancel()

    def _session(
        self, cpus: int, room: int = 0, variables: Mapping[str, str] | None = None
    ) -> AbstractContextManager[str]:
        return session(
            self.address,
            cpus=cpus,
            store=2**28 + room,
            retries=self.retries,
            runtime_env=self.runtime_env,
            variables=variables,
        )


@dataclass
class _Aboard:
    """A task that Ray has."""

    task: Task
    host: str = ""
    delivered: set[str] = field(default_factory=set)

    def rest(self) -> list[Task]:
        """What has not come yet, as tasks of their own."""
        return [one for one in alone(self.task) if one.keys[0] not in self.delivered]


class _Flight:
    """The tasks under way: what waits, what Ray has, and which nodes are avoided."""

    def __init__(self, engine: RayEngine, ray: Any, started: Callable[[Task, str], None]) -> None:
        self.engine, self.ray, self.started, self.patience = engine, ray, started, engine.patience
        self.threads: int | None = None  # of the processes unless told otherwise
        self.queue: collections.deque[Task] = collections.deque()
        self.aboard: dict[Any, _Aboard] = {}
        self.versions = versions_here()
        self.function = ray.remote(max_calls=RENEWED_AFTER)(computation())
        self.data: dict[int, tuple[Any, Any]] = {}
        self.avoided: dict[str, str] = {}  # node's id to what is wrong with it
        self.nodes: list[dict[str, Any]] = []
        self.looked, self.homeless_since = -math.inf, math.inf
        self.begun = False

    def results(self) -> Iterator[Finished]:
        """Everything that comes, until nothing waits and nothing is under way."""
        while self.queue or self.aboard:
            if not self.ray.is_initialized():
                fail(
                    "RayEngine", "the connection to Ray must last", "none any more", "Repeat the command: it continues."
                )
            if time.monotonic() - self.looked >= _LOOK:
                yield from self._look()
            while self.queue and len(self.aboard) < self._room():
                self._submit(self.queue.popleft())
            if self.aboard:
                ready, _ = self.ray.wait(list(self.aboard), num_returns=1, timeout=1.0)
                for stream in ready:
                    yield from self._next(stream)

    def cancel(self) -> None:
        """Stop what runs, now."""
        # Without a connection nothing runs any more, and a call to Ray would start another one.
        for stream in self.aboard if self.ray.is_initialized() else ():
            # A stream that ended meanwhile, or a connection that is gone, needs no stopping.
            with contextlib.suppress(self.ray.exceptions.RayError, ValueError, RuntimeError):
                self.ray.cancel(stream, force=True)
        self.aboard.clear()
        self.data.clear()

    def _submit(self, task: Task) -> None:
        options: dict[str, Any] = {
            "num_returns": "streaming",
            "max_retries": self.engine.retries,
            "retry_exceptions": False,
            "num_cpus": task.cpus,
            "num_gpus": task.gpus,
            "name": f"{task.experiment} {task.keys[0]}",
        }
        if task.threads != self.threads:
            options["runtime_env"] = {"env_vars": _threads(task.threads)}
        if task.memory:
            options["memory"] = task.memory
        if self.avoided:
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(self.avoided)})"}
        plain = {item.name: getattr(task, item.name) for item in fields(Task) if item.name != "data"}
        plain["configurations"] = tuple(dict(one) for one in task.configurations)
        paths = [path for path in sys.path if path]
        stream = self.function.options(**options).remote(self.versions, paths, plain, self._stored(task.data))
        self.aboard[stream] = _Aboard(task)

    def _stored(self, data: Any) -> Any:
        """The data in Ray's store, put there once however many tasks share them."""
        if data is None:
            return None
        if id(data) not in self.data:
            self.data[id(data)] = data, self.ray.put(dict(data))
        return self.data[id(data)][1]

    def _next(self, stream: Any) -> Iterator[Finished]:
        """What the next item of a stream means."""
        errors, aboard = self.ray.exceptions, self.aboard[stream]
        try:
            item = self.ray.get(next(stream))
        except StopIteration:
            del self.aboard[stream]
            return
        except errors.RuntimeEnvSetupError as error:
            fail("RayEngine", "`runtime_env` must be possible on every node", error, "Correct it, then continue.")
        except errors.RayTaskError as error:
            del self.aboard[stream]
            cause = error.cause if isinstance(error.cause, BaseException) else error
            failure = replace(Failure.of(cause), traceback=str(error)[-LONGEST_TRACE:])
            yield from (Finished(one.keys[0], None, failure, 0.0, aboard.host, 0) for one in aboard.rest())
            return
        except errors.RayError as error:
            del self.aboard[stream]
            yield from self._lost(aboard, error)
            return
        if isinstance(item, Finished):
            aboard.delivered.add(item.key)
            yield item
        elif item["versions"] == self.versions:
            aboard.host, self.begun = item["host"], True
            self.started(aboard.task, item["host"])
        else:
            del self.aboard[stream]
            self.avoided[item["node"]] = _difference(item, self.versions)
            # Also a result that was lost and was to be computed again can come to the wrong node.
            self.queue.extendleft(aboard.rest() if aboard.delivered else [aboard.task])
            self.looked = -math.inf

    def _lost(self, aboard: _Aboard, error: Exception) -> Iterator[Finished]:
        rest = aboard.rest()
        if len(aboard.task.keys) > 1:
            # One of them may be to blame, and only that one should fail.
            self.queue.extendleft(reversed(rest))
            return
        told = f"{type(error).__name__}: {str(error).strip() or 'Ray gives no details'}"[:LONGEST_MESSAGE]
        for one in rest:
            yield from lost(one, attempts=self.engine.retries + 1, host=aboard.host, told=told)

    def _look(self) -> Iterator[Finished]:
        """See which nodes there are; what none of them can hold fails, after some patience: clusters can grow."""
        self.looked = now = time.monotonic()
        alive = [node for node in self.ray.nodes() if node["Alive"]]
        self.nodes = [node["Resources"] for node in alive if node["NodeID"] not in self.avoided]
        every = [*self.queue, *(one.task for one in self.aboard.values())]
        homeless = {need for need in set(map(_need, every)) if not any(_holds(node, need) for node in self.nodes)}
        self.homeless_since = min(self.homeless_since, now) if homeless else math.inf
        # Where no process of the cluster had the right versions, waiting would not help.
        hopeless = self.avoided and not self.begun
        if not homeless or (now - self.homeless_since < self.patience and not hopeless):
            return
        gone = [task for task in self.queue if _need(task) in homeless]
        self.queue = collections.deque(task for task in self.queue if _need(task) not in homeless)
        for stream, aboard in list(self.aboard.items()):
            if _need(aboard.task) in homeless:
                self.ray.cancel(stream, force=True)
                gone += self.aboard.pop(stream).rest()
        for task in gone:
            kind, told = NO_NODE, "no node has the {:g} CPUs, {:g} GPUs and {:,} bytes of memory that it asks for"
            if self.avoided:
                kind, told = MISMATCH, f"no node is left with the driver's versions: {'; '.join(self.avoided.values())}"
            failure = Failure(kind, told.format(*_need(task))[:LONGEST_MESSAGE])
            yield from (Finished(key, None, failure, 0.0, "", 0) for key in task.keys)

    def _room(self) -> int:
        """How many tasks Ray is given: those that the nodes can hold, and as many again to follow without a pause."""
        if self.engine.workers is not None:
            return self.engine.workers
        cpus = max(self.queue[0].cpus, 0.01)
        return min(_MOST, max(4, 2 * sum(int(node.get("CPU", 0.0) / cpus) for node in self.nodes)))


def _need(task: Task) -> tuple[float, float, int]:
    return task.cpus, task.gpus, task.memory


def _holds(node: Mapping[str, float], need: tuple[float, float, int]) -> bool:
    return all(node.get(name, 0.0) >= value for name, value in zip(("CPU", "GPU", "memory"), need))


def _difference(item: Mapping[str, Any], wanted: Mapping[str, str]) -> str:
    found = item["versions"]
    other = [name for name in wanted if found.get(name) != wanted[name]]
    return f"{item['host']} has " + ", ".join(f"{name} {found.get(name)}, not {wanted[name]}" for name in other)


def _threads(threads: int) -> dict[str, str]:
    return {name: str(threads) for name in THREADS}
