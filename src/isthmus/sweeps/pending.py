"""Configurations that were begun and have no Run: a small file for each, with the reason. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

from isthmus.sweeps.lock import holder
from isthmus.sweeps.places import PENDING, is_key, read_small

#: What such a file may say; ``stale`` is never written, it is seen.
WRITTEN = ("running", "failed", "interrupted")


def write_pending(folder: Path, key: str, state: str, **facts: Any) -> None:
    """Say what became of a configuration; what was known of its attempts stays."""
    from isthmus.files import write_json

    path = folder / PENDING / f"{key}.json"
    before, _ = read_small(path)
    attempts = int((before or {}).get("attempts", 0)) + (state == "running")
    write_json(path, {"key": key, "state": state, "time": time.time(), "attempts": attempts, **facts})


def clear_pending(folder: Path, key: str) -> None:
    """Forget it: there is a Run."""
    with contextlib.suppress(FileNotFoundError):
        (folder / PENDING / f"{key}.json").unlink()


def read_pending(folder: Path) -> dict[str, dict[str, Any]]:
    """What is pending, by key; ``running`` without a driver that gives a sign of life is ``stale``."""
    found: dict[str, dict[str, Any]] = {}
    names = []
    with contextlib.suppress(OSError), os.scandir(folder / PENDING) as entries:
        names = [entry.name for entry in entries]
    if not names:
        return found
    who = holder(folder)
    alive = who is not None and who.alive
    for name in names:
        key = name.removesuffix(".json")
        if not is_key(key):
            continue
        content, _ = read_small(folder / PENDING / name)
        # A torn file says at least that somebody began: such files are written in one step, so this is damage.
        row: dict[str, Any] = {"key": key, "state": "stale", "error": "unreadable state"}
        if content is not None and content.get("key") == key and content.get("state") in WRITTEN:
            row = content
        if row["state"] == "running" and not alive:
            row["state"] = "stale"
        found[key] = row
    return found
