"""Processes of this machine as an executor, one pipe each: a process that dies loses one call and no other."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from isthmus._checks import check_integer, fail

#: Bytes that a process with PyTorch takes before it computes anything.
AT_LEAST = 400 * 2**20
#: Calls after which a process is replaced by a new one: experiments keep what they trained.
RENEWED_AFTER = 64
#: What numerical libraries read when they are loaded.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
#: Processes that may end before they are ready until it is no accident.
_STILLBORN = 3
#: Of version 2, as containers see their own.
_GROUP = Path("/sys/fs/cgroup")


class Processes(Executor):
    """Processes of this machine. The call of a process that dies raises ``BrokenExecutor``.

    Parameters
    ----------
    workers : int, optional
        Processes; by default cores / threads, fewer where the memory does not suffice.
    threads : int
        Of each process.
    """

    def __init__(self, workers: int | None = None, *, threads: int = 1) -> None:
        self.threads = check_integer("sweep", "threads", threads, low=1, high=1024)
        if workers is not None:
            self.places = check_integer("sweep", "workers", workers, low=1, high=1024)
        else:
            free = free_memory()
            self.places = max(1, min(cores() // threads, cores() if free is None else free // AT_LEAST))
        # A thread of this process waits for each process.
        self._waiting = ThreadPoolExecutor(self.places)
        self._of_thread, self._lock = threading.local(), threading.Lock()
        self._workers: list[_Worker] = []
        self._over = False
        atexit.register(self._kill)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call in a process; function, arguments and result are pickled."""
        return self._waiting.submit(self._call, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End all processes when their calls have ended or, with ``cancel_futures``, at once."""
        self._over = cancel_futures
        if cancel_futures:
            self._waiting.shutdown(wait=False, cancel_futures=True)
            self._kill()
        self._waiting.shutdown(wait)
        if wait:
            self._kill()
            atexit.unregister(self._kill)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.shutdown(cancel_futures=kind is not None)

    def _call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for _ in range(_STILLBORN):
            worker: _Worker | None = getattr(self._of_thread, "worker", None)
            if worker is None or not worker.usable:
                with self._lock:
                    if self._over:
                        raise BrokenExecutor("shut down")
                    if worker is not None:
                        worker.stop()
                        self._workers.remove(worker)
                    worker = self._of_thread.worker = _Worker(self.threads)
                    self._workers.append(worker)
            if worker.ready() or self._over:
                return worker.call(fn, args, kwargs)
        must = "processes of the local engine must be able to start"
        do = (
            "In a script of your own call sweep below `if __name__ == '__main__':`, for every process reads the "
            "script again; otherwise look for its error above, or free some memory."
        )
        return fail("sweep", must, f"{_STILLBORN} that ended at once", do)

    def _kill(self) -> None:
        with self._lock:
            self._over = True
            for worker in self._workers:
                worker.stop()


class _Worker:
    """One process and the pipe to it."""

    def __init__(self, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        # Set for the child to inherit: what imports PyTorch may come before anything of ours runs there.
        with _environment(dict.fromkeys(THREADS, str(threads))):
            self._process = context.Process(target=_serve, args=(theirs, threads))
            self._process.start()
        theirs.close()
        self._greeted, self._calls = False, 0

    @property
    def usable(self) -> bool:
        return self._process.is_alive() and self._calls < RENEWED_AFTER

    def ready(self) -> bool:
        """Wait until the process could be given a call; False if it ended before that."""
        if not self._greeted:
            with contextlib.suppress(EOFError, OSError):
                self._greeted = self._pipe.recv()
        return self._greeted

    def call(self, *call: Any) -> Any:
        self._calls += 1
        try:
            self._pipe.send(call)
            answer, error = self._pipe.recv()
        except (EOFError, OSError) as problem:
            self.stop()
            raise BrokenExecutor("killed, or out of memory") from problem
        if error is not None:
            raise error
        return answer

    def stop(self) -> None:
        """Kill the process; it holds no result that is needed."""
        self._process.kill()
        self._process.join()


def _serve(pipe: Any, threads: int) -> None:
    """In the new process: end with the driver, leave Ctrl-C to it, use so many threads, and answer calls."""
    # A Ctrl-C on the terminal reaches every process; the driver decides, and kills.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()
    import torch

    torch.set_num_threads(threads)
    pipe.send(True)
    while True:
        try:
            fn, args, kwargs = pipe.recv()
            answer = fn(*args, **kwargs), None
        except EOFError:
            return
        except BaseException as error:  # whatever it is, the caller should know
            answer = None, error
        try:
            pipe.send(answer)
        except Exception as error:  # what cannot be pickled
            pipe.send((None, RuntimeError(f"the result cannot be sent: {type(error).__name__}: {error}")))


def _follow(sentinel: int) -> None:
    """End this process when the driver has ended, for whatever reason."""
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


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


def cores() -> int:
    """Cores that this process may use, at least 1."""
    available = getattr(os, "sched_getaffinity", None)
    return max(1, len(available(0)) if available else os.cpu_count() or 1)


def free_memory(*, meminfo: Path = Path("/proc/meminfo"), group: Path = _GROUP) -> int | None:
    """Bytes that may be used without swapping, by the system and by the container; None if neither says."""
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = (line.split() for line in meminfo.read_text(encoding="ascii").splitlines())
        found += [1024 * int(words[1]) for words in lines if words[0] == "MemAvailable:"]
    with contextlib.suppress(OSError, ValueError):
        # A limit of "max" is none.
        limit, used = (int((group / name).read_text(encoding="ascii")) for name in ("memory.max", "memory.current"))
        found.append(max(0, limit - used))
    return min(found, default=None)
