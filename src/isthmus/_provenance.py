"""Where a result comes from: commit, versions, machine, seed, time."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import isthmus

_DEPENDENCIES = ("torch", "numpy", "scipy", "pandas", "scikit-learn", "safetensors", "matplotlib")


def provenance(
    *,
    seed: int | None = None,
    dtype: str = "float64",
    device: str = "cpu",
    started: float | None = None,
    seconds: float | None = None,
    command: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Where a result comes from: commit, versions, machine, seed, time. Never fails for want of git.

    Parameters
    ----------
    seed, dtype, device : optional
        What the computation used.
    started : float, optional
        Seconds since the epoch; now, unless given.
    seconds : float, optional
        How long it took.
    command : sequence of str, optional
        Arguments of the program, ``sys.argv[1:]`` unless given; the home folder is written ``~``.
    """
    moment = datetime.fromtimestamp(time.time() if started is None else started, UTC)
    arguments = sys.argv[1:] if command is None else command
    home = os.path.expanduser("~").rstrip("/\\")  # noqa: PTH111 - Path.home() raises where there is none
    commit, dirty = _commit()
    versions = {}
    for name in _DEPENDENCIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "isthmus": isthmus.__version__,
        "commit": commit,
        "dirty": dirty,
        "versions": versions,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "seed": seed,
        "dtype": dtype,
        "device": device,
        "threads": torch.get_num_threads(),
        "started": moment.isoformat(timespec="seconds"),
        "seconds": seconds,
        "command": [text.replace(home, "~") if home else text for text in arguments],
    }


@functools.cache  # once for a process: a sweep writes thousands of Runs with the code that it began with
def _commit() -> tuple[str | None, bool | None]:
    """Commit of the checkout that *tracks* this package, and whether the package differs from it."""
    # A virtual environment inside somebody's repository is not a checkout of isthmus: hence `ls-files`.
    here = str(Path(__file__).parent)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment["GIT_OPTIONAL_LOCKS"] = "0"

    def git(*arguments: str) -> str:
        command = ["git", "-C", here, "-c", "core.fsmonitor=false", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, timeout=20, check=True, text=True)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--", "."))
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None, None
