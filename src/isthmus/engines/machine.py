"""What this machine has for us: cores that may be used, and memory that is free."""

from __future__ import annotations

import os
from pathlib import Path

#: Of version 2, as containers see their own.
_GROUP = Path("/sys/fs/cgroup")


def cores() -> int:
    """Cores that this process may use, at least 1."""
    available = getattr(os, "sched_getaffinity", None)
    return max(1, len(available(0)) if available else os.cpu_count() or 1)


def free_memory(*, meminfo: Path = Path("/proc/meminfo"), group: Path = _GROUP) -> int | None:
    """Bytes that may be used without swapping, by the system and by the container; None if nobody says."""
    found = [value for value in (_system(meminfo), _container(group)) if value is not None]
    return min(found, default=None)


def _system(meminfo: Path) -> int | None:
    try:
        for line in meminfo.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return None


def _container(group: Path) -> int | None:
    try:
        limit, used = ((group / name).read_text(encoding="ascii").strip() for name in ("memory.max", "memory.current"))
        return None if limit == "max" else max(0, int(limit) - int(used))
    except (OSError, ValueError):
        return None
