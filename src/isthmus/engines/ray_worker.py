"""What Ray sends to its processes: functions that need nothing of ours until the versions are known to agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

#: Variables that set the threads of a process before its libraries are loaded.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def versions_here() -> dict[str, str]:
    """Versions of what decides a result, with a digest of the source of isthmus, in this process."""
    return _portable()[0]()


def computation() -> Callable[..., Iterator[Any]]:
    """The generator that Ray runs for a task: first where it is and its versions, then a Finished for each key."""
    return _portable()[1]


def _portable() -> tuple[Callable[[], dict[str, str]], Callable[..., Iterator[Any]]]:
    # Functions inside a function travel as they are, not as a name to be imported: on a node with another isthmus, or
    # none, they still run and can say so.
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

    def compute(wanted: Mapping[str, str], paths: list[str], plain: Mapping[str, Any], data: Any) -> Iterator[Any]:
        import os
        import platform
        import sys

        import ray

        # What the driver can import should be found here too, where the folders are shared; ours come first.
        sys.path.extend(path for path in paths if path not in sys.path and os.path.isdir(path))  # noqa: PTH112
        if not known:
            known.update(versions())
        context = ray.get_runtime_context()
        here = {"versions": dict(known), "node": context.get_node_id(), "host": platform.node()}
        yield here
        if known != wanted:
            # As many items as there would be results: Ray repeats lost ones wherever it likes, and counts.
            yield from [here] * len(plain["keys"])
            return
        from dataclasses import replace

        import torch

        from isthmus.engines.base import Task, execute

        core = ray._private.worker.global_worker.core_worker  # type: ignore[attr-defined]
        attempt = 1 + getattr(core, "get_current_task_attempt_number", int)()
        # Ray keeps processes between tasks: what a task sets must not reach the next one.
        torch.set_num_threads(plain["threads"])
        for one in execute(Task(**plain, data=data)):
            yield replace(one, attempt=attempt)

    return versions, compute
