"""A connection to Ray that leaves no trace: to a private Ray of this process, or to a cluster shared with others."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from isthmus._checks import fail
from isthmus.engines.ray_folder import temporary_folder

#: A loopback address that Ray takes as given; it replaces 127.0.0.1 itself by the address of the network card, whose
#: change (another wireless network, a VPN) would end the private Ray, and through which others could reach it.
_LOOPBACK = "127.0.0.2"


def library() -> Any:
    """Ray itself, or an error that says how to install it."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        fail("RayEngine", "Ray must be installed", error, 'Run `pip install "isthmus[ray]"`.')


@contextlib.contextmanager
def session(
    address: str | None,
    *,
    cpus: int,
    store: int,
    retries: int,
    runtime_env: Mapping[str, Any] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Be connected to Ray; the value says to which: ``"private"``, ``"cluster"`` or ``"existing"``.

    Parameters
    ----------
    address : str or None
        ``"host:port"`` or ``"auto"`` of a cluster, which is left running; None: a private Ray on this machine, stopped
        and removed at the end. If this process is connected already, that connection is used and left as it was.
    cpus, store, retries : int
        Of a private Ray: processors, bytes for objects, and how often a task that exhausted the memory is repeated.
    runtime_env : mapping, optional
        Ray's description of what the processes of this job need: ``working_dir``, ``pip``, ``env_vars``, ….
    variables : mapping, optional
        Of the environment of the processes, unless the connection existed; ``runtime_env`` has the last word.
    """
    ray = library()
    if ray.is_initialized():
        _check_connection(ray, address, runtime_env)
        with _quiet():
            yield "existing"
        return
    settings: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "include_dashboard": None}
    needed = dict(runtime_env or {})
    settings["runtime_env"] = {**needed, "env_vars": {**(variables or {}), **needed.get("env_vars", {})}}
    with contextlib.ExitStack() as stack:
        stack.enter_context(_quiet())
        extra = {"RAY_USAGE_STATS_ENABLED": "0"}
        if address is None:
            folder = stack.enter_context(temporary_folder())
            # Ray would keep its token in the user's home; this one lives and dies with the private Ray.
            token = Path(folder) / "token"
            token.write_text(secrets.token_hex(32), encoding="ascii")
            token.chmod(0o600)
            extra |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
            settings |= {
                "address": "local",
                "num_cpus": cpus,
                "object_store_memory": store,
                "include_dashboard": False,
                "_temp_dir": folder,
                # Ray repeats such a task for ever by default.
                "_system_config": {"task_oom_retries": retries},
            }
            if sys.platform == "linux":
                settings["_node_ip_address"] = _LOOPBACK
        else:
            settings["address"] = _checked_address(address)
            settings.pop("include_dashboard")
        stack.callback(_forget_token)
        stack.callback(ray.shutdown)  # of a cluster this only ends the connection
        with _environment(extra), _signals():
            if address is None:
                _forget_token()
            try:
                ray.init(**settings)
            except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
                wanted = "a private Ray must start here" if address is None else "`address` must be a running cluster"
                do = "See `ray status`." if address else "Is there room in the temporary folder and in memory?"
                fail("RayEngine", wanted, f"{type(error).__name__}: {error}", do)
        yield "private" if address is None else "cluster"


def _checked_address(address: str) -> str:
    must = '`address` must be "host:port" of a running cluster, or "auto"'
    if "://" in address:
        do = "Start the sweep on a machine of the cluster, for example by `ray job submit`: it writes the results."
        fail("RayEngine", must, repr(address), do)
    if address == "auto":
        return address
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        fail("RayEngine", must, repr(address), "See `ray status`.")
    # Ray itself would try for minutes before it says that nobody is there.
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10.0).close()
    except (OSError, OverflowError) as error:
        fail("RayEngine", must, f"{address!r}: {error}", "Is the cluster running, and within reach?")
    return address


def _check_connection(ray: Any, address: str | None, runtime_env: Mapping[str, Any] | None) -> None:
    here = ray.get_runtime_context().gcs_address
    if address not in (None, "auto", here):
        do = f"Leave `address` away to use that connection, or close it: `ray.shutdown()`. Wanted: {address}."
        fail("RayEngine", "this process must not be connected to another Ray", here, do)
    if runtime_env:
        do = "Give it to your own `ray.init`."
        fail("RayEngine", "`runtime_env` can be set only by whoever connects", f"a connection to {here}", do)


@contextlib.contextmanager
def _environment(extra: Mapping[str, str]) -> Iterator[None]:
    """Set variables for Ray's processes, then put everything back, also what Ray has set."""
    before = dict(os.environ)
    os.environ.update(extra)
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if os.environ.get(name) != value})


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Put back the handler of SIGTERM, which `ray.init` replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Ray from writing: a lost worker is the sweep's to tell, and standard output may be JSON."""
    worker = importlib.import_module("ray._private.worker")
    log = logging.getLogger("ray")
    level, shown = log.level, getattr(worker, "_worker_logs_enabled", True)
    log.setLevel(logging.CRITICAL)
    # Ray prints messages of its node processes whatever `log_to_driver` says; this is its own switch for them.
    worker._worker_logs_enabled = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        worker._worker_logs_enabled = shown  # type: ignore[attr-defined]
        log.setLevel(level)


def _forget_token() -> None:
    """Let Ray read mode and token of its authentication anew: it keeps those of the last connection."""
    core = importlib.import_module("ray._raylet")
    loader, config = getattr(core, "AuthenticationTokenLoader", None), getattr(core, "Config", None)
    if loader is not None:
        loader.instance().reset_cache()
    if config is not None and hasattr(config, "initialize"):
        config.initialize("")
