"""Folders that change in one step: assembled beside their destination, then moved or exchanged."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import os
import shutil
import stat
import sys
import time
from pathlib import Path

#: Seconds after which an assembly folder can only be the remains of a killed process.
STALE = 3600.0

# The exchange of two paths: name of the C function, "relative to the working folder", flag.
_EXCHANGES = {"linux": ("renameat2", -100, 2), "darwin": ("renameatx_np", -2, 2)}


def previous(target: Path) -> Path:
    """Where the previous Run stands between the two renames of a system that cannot exchange folders."""
    return target.parent / f".{target.name}.previous"


def install(assembly: Path, target: Path) -> None:
    """Move ``assembly`` to ``target``; after an exchange the previous Run is what ``assembly`` names."""
    sync(assembly)
    old = previous(target)
    occupied = target.is_dir() and any(target.iterdir())
    if not occupied:
        # Over nothing or over an empty folder; one that was filled meanwhile is refused by the system.
        assembly.rename(target)
    elif not exchange(assembly, target):
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
        try:
            assembly.rename(target)
        except OSError:
            old.rename(target)
            raise
    sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def exchange(first: Path, second: Path) -> bool:
    """Exchange two folders in one step where the system can; False where it cannot."""
    # os.replace cannot replace a folder that is not empty; these calls of Linux and macOS can.
    if sys.platform not in _EXCHANGES:
        return False
    name, here, flag = _EXCHANGES[sys.platform]
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is None:
        return False
    if function(here, os.fsencode(first), here, os.fsencode(second), flag) == 0:
        return True
    code = ctypes.get_errno()
    # Old kernels and some network file systems lack the call; anything else is a real failure.
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code), str(second))


def identity(folder: Path) -> tuple[int, int] | None:
    """What changes when a folder is replaced by another one; None where there is none."""
    try:
        status = folder.stat()
    except OSError:
        return None
    # The time too: a system may use the number of a removed folder again.
    return (status.st_ino, status.st_mtime_ns) if stat.S_ISDIR(status.st_mode) else None


def sync(folder: Path) -> None:
    """Make the entries of a folder durable; systems that cannot open folders order them by themselves."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sweep(target: Path) -> None:
    """Remove what killed processes left beside ``target`` long ago."""
    for path in target.parent.glob(f".{glob.escape(target.name)}.*.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > STALE:
                shutil.rmtree(path, ignore_errors=True)
