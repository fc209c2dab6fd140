"""The local engine: processes of this machine, each with its own pool of one, so that a death costs one task."""

from __future__ import annotations

import collections
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import platform
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing.process import BaseProcess
from typing import ClassVar

from isthmus._checks import check_integer, fail
from isthmus.engines.base import Engine, Failure, Finished, Task, alone, execute, lost
from isthmus.engines.machine import cores, free_memory

#: Bytes that a process with PyTorch takes before it computes anything.
AT_LEAST = 400 * 2**20
#: Tasks after which a process is replaced by a new one: experiments keep what they trained.
RENEWED_AFTER = 64
#: What numerical libraries read when they are loaded.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
#: Processes that may end before they are ready until it is no accident.
_STILLBORN = 3


class LocalEngine(Engine):
    """Processes of this machine.

    Parameters
    ----------
    workers : int, optional
        Processes; by default cores / threads, fewer where the memory does not suffice.
    threads : int
        Of each process.
    retries : int
        How often a task whose process died is tried again. From the second time on it runs alone.
    """

    name: ClassVar[str] = "local"

    def __init__(self, workers: int | None = None, *, threads: int = 1, retries: int = 2) -> None:
        self.threads = check_integer("sweep", "threads", threads, low=1, high=1024)
        self.retries = check_integer("sweep", "retries", retries, low=0, high=100)
        self.workers = None if workers is None else check_integer("sweep", "workers", workers, low=1, high=1024)

    def places(self, tasks: Sequence[Task] = ()) -> int:
        """How many processes there will be."""
        if self.workers is not None:
            return self.workers
        most = max(1, cores() // self.threads)
        free = free_memory()
        if free is not None:
            each = max([AT_LEAST, *(task.memory for task in tasks)])
            most = min(most, max(1, free // each))
        return most

    def run(self, tasks: Sequence[Task], started: Callable[[Task, str], None]) -> Iterator[Finished]:
        """Yield results as they come. A process that dies costs the one task that it held."""
        waiting = collections.deque((replace(task, threads=self.threads), 1) for task in tasks)
        suspects: collections.deque[tuple[Task, int]] = collections.deque()
        workers = [_Worker(self.threads) for _ in range(min(self.places(tasks), len(waiting)))]
        busy: dict[Future[list[Finished]], tuple[_Worker, Task, int]] = {}
        results: list[Finished] = []
        stillborn = 0
        try:
            while waiting or suspects or busy or results:
                for worker in [one for one in workers if one not in {held[0] for held in busy.values()}]:
                    # A task that was there when a process died a second time gets the machine for itself.
                    queue = waiting or (suspects if not busy else None)
                    if not queue:
                        break
                    task, attempt = queue.popleft()
                    busy[worker.submit(task)] = worker, task, attempt
                    started(task, platform.node())
                yield from results
                results.clear()
                done, _ = wait(busy, return_when=FIRST_COMPLETED) if busy else (set(), set())
                for future in done:
                    worker, task, attempt = busy.pop(future)
                    try:
                        results += [replace(one, attempt=attempt) for one in future.result()]
                        stillborn = 0
                    except BrokenProcessPool:
                        stillborn = 0 if worker.ready else stillborn + 1
                        _check_alive(stillborn)
                        worker.stop()
                        # Of several only one may be to blame: each gets a process of its own first.
                        if worker.was_ready and attempt > self.retries and len(task.keys) == 1:
                            told = "killed, or out of memory"
                            results += lost(task, attempts=attempt, host=platform.node(), told=told)
                            continue
                        again = attempt + worker.was_ready
                        (suspects if again > 2 else waiting).extend((one, again) for one in alone(task))
                    except Exception as error:  # what cannot be sent to a process or back
                        found = Failure.of(error)
                        results += [Finished(key, None, found, 0.0, platform.node(), 0, attempt) for key in task.keys]
        finally:
            for worker in workers:
                worker.stop()


class _Worker:
    """A pool of one process, made when needed and made again when it died or is used up."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool: ProcessPoolExecutor | None = None
        self._processes: list[BaseProcess] = []
        self._hello: Future[int] | None = None
        self._given = 0
        self.was_ready = False

    @property
    def ready(self) -> bool:
        """Whether the process came so far that it could be given a task."""
        self.was_ready = self._hello is not None and self._hello.done() and self._hello.exception() is None
        return self.was_ready

    def submit(self, task: Task) -> Future[list[Finished]]:
        """Begin a task."""
        if self._given >= RENEWED_AFTER:
            self.stop()
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, context, initializer=_prepare, initargs=(self._threads,))
            before = set(multiprocessing.active_children())
            # Set for the child to inherit: what imports PyTorch may come before anything of ours runs there.
            with _environment(dict.fromkeys(_THREADS, str(self._threads))):
                self._hello = self._pool.submit(os.getpid)
            self._processes = [one for one in multiprocessing.active_children() if one not in before]
        self._given += 1
        return self._pool.submit(_compute, task)

    def stop(self) -> None:
        """End the process, whatever it does."""
        _ = self.ready
        if self._pool is None:
            return
        # Killed, not asked: a training does not listen, and nothing of value is in the process.
        for process in self._processes:
            process.kill()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool, self._processes, self._hello, self._given = None, [], None, 0


def _check_alive(stillborn: int) -> None:
    if stillborn >= _STILLBORN:
        must = "processes of the local engine must be able to start"
        do = (
            "In a script of your own call sweep below `if __name__ == '__main__':`, for every process reads the "
            "script again; otherwise look for its error above, or free some memory."
        )
        fail("sweep", must, f"{stillborn} that ended at once", do)


def _prepare(threads: int) -> None:
    """In the new process: end with the driver, leave Ctrl-C to it, and use so many threads."""
    # A Ctrl-C on the terminal reaches every process; the driver decides, and kills.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()
    import torch

    torch.set_num_threads(threads)


def _follow(sentinel: int) -> None:
    """End this process when the driver has ended, however that came."""
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def _compute(task: Task) -> list[Finished]:
    return execute(task)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
