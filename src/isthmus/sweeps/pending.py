"""Configurations that were begun and have no Run: a small file for each, with the reason. Imports nothing heavy."""

from __future__ import annotations

import time
from typing import Any

from isthmus._inside import Inside
from isthmus.sweeps.lock import holder
from isthmus.sweeps.places import PENDING, is_key, read_small

#: What such a file may say; ``stale`` is never written, it is seen.
WRITTEN = ("running", "failed", "interrupted")


def write_pending(folder: Inside, key: str, state: str, **facts: Any) -> None:
    """Say what became of a configuration; what was known of its attempts stays."""
    from isthmus.files import write_json

    path = folder / PENDING / f"{key}.json"
    before, _ = read_small(path)
    attempts = int((before or {}).get("attempts", 0)) + (state == "running")
    write_json(path, {"key": key, "state": state, "time": time.time(), "attempts": attempts, **facts})


def clear_pending(folder: Inside, key: str) -> None:
    """Forget it: there is a Run."""
    (folder / PENDING / f"{key}.json").remove()


def read_pending(folder: Inside) -> dict[str, dict[str, Any]]:
    """What is pending, by key; ``running`` without a driver that gives a sign of life is ``stale``."""
    found: dict[str, dict[str, Any]] = {}
    names = folder.names(PENDING)
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
