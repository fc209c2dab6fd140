"""Ray as an executor, on the connection of this process, or a new one. Ray places tasks and transports data."""

from __future__ import annotations

import contextlib
import importlib
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from isthmus._checks import check_integer, check_number, fail
from isthmus.engines.base import Task
from isthmus.engines.local import RENEWED_AFTER, THREADS

#: At most so many calls are handed to Ray at once.
_MOST = 1_000
#: Seconds between two looks at the nodes.
_LOOK = 5.0


class VersionMismatch(Exception):
    """No node is left whose Python, isthmus, torch, NumPy and SciPy are those of the driver."""


class RayExecutor(Executor):
    """Calls functions on the nodes of a Ray cluster.

    A lost worker or node costs the calls that it held, which raise ``BrokenExecutor``. Processes whose Python, isthmus,
    torch, NumPy or SciPy differ from the driver's compute nothing, since the result of a sweep must not depend on where
    it was computed.

    Parameters
    ----------
    address : str, optional
        ``"host:port"`` of a cluster, or ``"auto"`` on one of its machines, the default. A process
        that is connected already uses that connection, and leaves it as it was.
    workers : int, optional
        Calls at once, at most; unless given, twice as many as the nodes can hold, so that none waits.
    threads : int
        Of each process, which then occupies as many processors.
    runtime_env : mapping, optional
        Ray's description of what the processes need: ``working_dir``, ``pip``, ``env_vars``, ….
    patience : float
        Seconds to wait for a node that can hold a call, when the cluster has none; clusters can grow.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        workers: int | None = None,
        threads: int = 1,
        runtime_env: Mapping[str, Any] | None = None,
        patience: float = 600.0,
    ) -> None:
        self._workers = None if workers is None else check_integer("RayExecutor", "workers", workers, low=1)
        self.threads = check_integer("RayExecutor", "threads", threads, low=1, high=1024)
        patience = check_number("RayExecutor", "patience", patience, low=0.0)
        self._ray = ray = library()
        self._ours = not ray.is_initialized()
        if self._ours:
            _connect(ray, address or "auto", dict(runtime_env or {}))
        else:
            _check_connection(ray, address, runtime_env)
        variables = {"env_vars": dict.fromkeys(THREADS, str(threads))}
        self._function = ray.remote(max_calls=RENEWED_AFTER, max_retries=0, num_cpus=threads, runtime_env=variables)(
            _portable()[1]
        )
        self._versions = _portable()[0]()
        self._waiting = ThreadPoolExecutor(self._workers or _MOST)
        self._lock = threading.Lock()
        self._running: set[Any] = set()
        self._data: dict[int, tuple[Any, Any]] = {}
        self._avoided: dict[str, str] = {}
        self._seen, self._looked = 0, -float("inf")
        until = time.monotonic() + patience
        while not self._room():
            if time.monotonic() > until:
                self.shutdown()
                do = "Start such a node, or ask for fewer --threads."
                fail("RayExecutor", f"a node of the cluster must have {threads} processors", "none", do)
            time.sleep(min(_LOOK, patience))

    @property
    def places(self) -> int:
        """How many calls Ray is given at once, as the nodes are now."""
        return self._workers or min(_MOST, max(4, 2 * self._room()))

    def _room(self) -> int:
        if time.monotonic() - self._looked > _LOOK and self._ray.is_initialized():
            self._looked, nodes = time.monotonic(), self._ray.nodes()
            self._seen = sum(int(one["Resources"].get("CPU", 0.0) / self.threads) for one in nodes if self._usable(one))
        return self._seen

    def _usable(self, node: Mapping[str, Any]) -> bool:
        return node["Alive"] and node["NodeID"] not in self._avoided

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call ``fn`` on some node. Function, arguments and result are pickled; data that tasks share are sent once."""
        return self._waiting.submit(self._call, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for the calls, or with ``cancel_futures`` cancel them; close the connection if it was opened here."""
        self._waiting.shutdown(wait and not cancel_futures, cancel_futures=cancel_futures)
        if self._ray.is_initialized():
            for reference in list(self._running):
                # Calls that have ended meanwhile cannot be cancelled.
                with contextlib.suppress(self._ray.exceptions.RayError, ValueError, RuntimeError):
                    self._ray.cancel(reference, force=True)
        self._waiting.shutdown(wait)
        self._data.clear()
        if self._ours:
            self._ray.shutdown()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.shutdown(cancel_futures=kind is not None)

    def _call(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        errors = self._ray.exceptions
        data = [self._stored(one.data if isinstance(one, Task) else None) for one in args]
        bare = tuple(one if stored is None else replace(one, data=None) for one, stored in zip(args, data))
        payload = pickle.dumps((fn, bare, kwargs))
        while True:
            if not self._ray.is_initialized():
                # Any further call would start a Ray cluster of its own on this machine.
                do = "Repeat the command: it continues."
                fail("RayExecutor", "the connection to Ray must last", "none any more", do)
            options = {}
            if self._avoided:
                self._check_nodes()
                options["label_selector"] = {"ray.io/node-id": f"!in({','.join(self._avoided)})"}
            paths = [path for path in sys.path if path]
            reference = self._function.options(**options).remote(self._versions, paths, self.threads, payload, *data)
            self._running.add(reference)
            try:
                here, answer = self._ray.get(reference)
            except errors.RuntimeEnvSetupError as error:
                fail("RayExecutor", "`runtime_env` must be possible on every node", error, "Correct it, then continue.")
            except errors.RayTaskError as error:
                raise (error.cause if isinstance(error.cause, BaseException) else error) from error
            except errors.RayError as error:
                details = str(error).strip() or "Ray gives no details"
                raise BrokenExecutor(f"{type(error).__name__}: {details}") from error
            finally:
                self._running.discard(reference)
            if here is None:
                return answer
            self._avoid(here)

    def _stored(self, data: Any) -> Any:
        """Data in Ray's store, put there once however many tasks share them."""
        if data is None:
            return None
        with self._lock:
            if id(data) not in self._data:
                self._data[id(data)] = data, self._ray.put(dict(data))
            return self._data[id(data)][1]

    def _avoid(self, here: Mapping[str, Any]) -> None:
        wanted, found = self._versions, here["versions"]
        other = [f"{name} {found.get(name)}, not {wanted[name]}" for name in wanted if found.get(name) != wanted[name]]
        self._avoided[here["node"]] = f"{here['host']} has {', '.join(other)}"
        self._looked = -float("inf")

    def _check_nodes(self) -> None:
        if not any(self._usable(node) and node["Resources"].get("CPU") for node in self._ray.nodes()):
            reasons = "; ".join(self._avoided.values())
            raise VersionMismatch(f"no node is left with the driver's versions: {reasons}")


def library() -> Any:
    """Ray itself, or an error that says how to install it."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        fail("RayExecutor", "Ray must be installed", error, 'Run `pip install "isthmus[ray]"`.')


def _connect(ray: Any, address: str, runtime_env: dict[str, Any]) -> None:
    must = '`address` must be "host:port" of a running cluster, or "auto" on one of its machines'
    if "://" in address:
        do = "Start the sweep on a machine of the cluster, for example by `ray job submit`: it writes the results."
        fail("RayExecutor", must, repr(address), do)
    if address != "auto":
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            fail("RayExecutor", must, repr(address), "See `ray status`.")
        # Ray itself would retry for minutes before it reports that nothing answers.
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10.0).close()
        except (OSError, OverflowError) as error:
            fail("RayExecutor", must, f"{address!r}: {error}", "Is the cluster running, and within reach?")
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM) if main else None
    try:
        ray.init(address=address, runtime_env=runtime_env, log_to_driver=False, configure_logging=False)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        do = "Start one with `ray start --head`, or see `ray status`."
        fail("RayExecutor", must, f"{type(error).__name__}: {error}", do)
    finally:
        # `ray.init` replaces the handler.
        if main:
            signal.signal(signal.SIGTERM, before)


def _check_connection(ray: Any, address: str | None, runtime_env: Mapping[str, Any] | None) -> None:
    here = ray.get_runtime_context().gcs_address
    if address not in (None, "auto", here):
        do = f"Leave `address` away to use that connection, or close it: `ray.shutdown()`. Wanted: {address}."
        fail("RayExecutor", "this process must not be connected to another Ray", here, do)
    if runtime_env:
        do = "Give it to your own `ray.init`."
        fail("RayExecutor", "`runtime_env` can be set only by whoever connects", f"a connection to {here}", do)


def _portable() -> tuple[Callable[[], dict[str, str]], Callable[..., Any]]:
    """Two functions: the versions of everything that can change a result, and what Ray runs for a call.

    Functions inside a function travel as they are, not as a name to be imported: on a node with another isthmus, or
    none, they still run and can say so.
    """

    def versions() -> dict[str, str]:
        import hashlib
        import platform
        from importlib import metadata
        from pathlib import Path

        found = {"Python": platform.python_version()}
        for name in ("torch", "numpy", "scipy"):
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                found[name] = "(absent)"
        try:
            import isthmus
        except ImportError:
            return {**found, "isthmus": "(absent)"}
        # A checkout under development keeps its version while its source changes.
        digest, root = hashlib.sha256(), Path(str(isthmus.__file__)).parent
        for path in sorted(root.rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
        return {**found, "isthmus": f"{isthmus.__version__} (source {digest.hexdigest()[:12]})"}

    known: dict[str, str] = {}  # of this process: found once

    def compute(wanted: Mapping[str, str], paths: list[str], threads: int, payload: bytes, *data: Any) -> Any:
        import os
        import platform
        import sys

        import ray

        # What the driver can import should be found here too, where the folders are shared; ours come first.
        sys.path.extend(path for path in paths if path not in sys.path and os.path.isdir(path))  # noqa: PTH112
        if not known:
            known.update(versions())
        if known != wanted:
            node = ray.get_runtime_context().get_node_id()
            return {"versions": dict(known), "node": node, "host": platform.node()}, None
        import pickle
        from dataclasses import replace

        import torch

        # Ray keeps processes between calls: what one sets must not reach the next one.
        torch.set_num_threads(threads)
        fn, args, kwargs = pickle.loads(payload)  # noqa: S301 - from the driver, by way of Ray
        args = [one if more is None else replace(one, data=more) for one, more in zip(args, data)]
        return None, fn(*args, **kwargs)

    return versions, compute
