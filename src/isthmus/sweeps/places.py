"""The layout of a sweep's folder, and the words for what a configuration may be. Imports nothing heavy."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from isthmus._inside import Inside

#: What is swept; a complete Run for each finished configuration; a small file for each that is begun and not finished;
#: a table made from all these; runs that could not be read; who is at work.
SWEEP, RUNS, PENDING, INDEX, DAMAGED, LOCK = "sweep.json", "runs", "states", "index.jsonl", "damaged", ".lock"
PROGRESS, REPORT = ".progress", "report.html"
EVERYTHING = (SWEEP, RUNS, PENDING, INDEX, DAMAGED, LOCK, PROGRESS, REPORT)

#: What a configuration may be. Of ``diverged`` there is a Run too, whose training left every bound.
STATES = ("done", "diverged", "failed", "interrupted", "running", "stale", "waiting")
#: Those of which there is a Run.
FINISHED = ("done", "diverged")

#: Bytes of a small file.
_MOST_BYTES = 2**24


def digest_of(content: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def read_small(path: Inside) -> tuple[dict[str, Any] | None, bytes]:
    """A JSON object and its bytes; None for what is absent, too large, torn or something else."""
    try:
        content = path.read(limit=_MOST_BYTES)
        found = json.loads(content)
    except (OSError, ValueError, RecursionError):
        return None, b""
    return (found, content) if isinstance(found, dict) else (None, content)


def is_key(name: str) -> bool:
    """Whether a name is that of a Run's folder: twelve hexadecimal digits."""
    return len(name) == 12 and all(c in "0123456789abcdef" for c in name)


def number(value: Any) -> Any:
    """A measured value as it was: JSON has no NaN and no infinity, so they were written as texts."""
    return float(value) if value in ("nan", "inf", "-inf") else value
