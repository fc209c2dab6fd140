"""Processes of this machine, by number: nothing heavy is imported, since listing a sweep needs it."""

from __future__ import annotations

import os


def is_alive(pid: int) -> bool:
    """Whether a process of that number runs on this machine."""
    if pid <= 0:
        return False
    if os.name != "posix":
        # Elsewhere this call would end the process; its silence must tell.
        return True
    try:
        # Signal 0 is none: only the permission and the process are looked at.
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OverflowError:
        return False
    except OSError:
        return True
    return True
