"""The index: a line for each configuration and for each finished Run, made from the folders at will.

It is a convenience, never the record. Each line of a Run carries the time of its folder and the SHA-256 of its
``provenance.json``, which itself names those of the other files: a line that is no longer true is noticed. Imports
nothing heavy, so that ``isthmus runs`` answers at once.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from isthmus._inside import Inside
from isthmus.sweeps.places import FINISHED, INDEX, RUNS, SWEEP, digest_of, is_key, number, read_pending, read_small

FORMAT, SCHEMA = "isthmus sweep index", 1
_MOST_BYTES = 2**30
PROVENANCE = "provenance.json"


@dataclass
class Index:
    """The content of the index of a sweep.

    Attributes
    ----------
    head : dict
        ``experiment``, ``title``, ``names`` (all that were set), ``plan`` (SHA-256 of sweep.json).
    planned : dict
        ``{"values": …, "seed": …}`` by key.
    finished : dict
        ``{"state": …, "measured": …, "seconds": …, "digest": …, "stamp": …, …}`` by key.
    problems : dict
        What is wrong with the folder of a key.
    """

    head: dict[str, Any]
    planned: dict[str, dict[str, Any]] = field(default_factory=dict)
    finished: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def lines(self) -> Iterable[bytes]:
        """The lines of the file, parsed."""
        yield _line({"format": FORMAT, "schema": SCHEMA, **self.head})
        for key, plan in self.planned.items():
            yield _line({"key": key, **plan})
        for key, row in self.finished.items():
            yield _line({"key": key, **row})
        for key, problem in self.problems.items():
            yield _line({"key": key, "problem": problem})

    def rows(self, folder: Inside) -> list[dict[str, Any]]:
        """One flat row for each configuration as it is now, in the order of the plan.

        ``key``, ``state``, the values, ``seed``, the measured scalars, ``seconds``, ``error``; what was measured stands
        under its own name, a set parameter of that name under ``set_NAME``.
        """
        pending = read_pending(folder)
        found = []
        for key, plan in self.planned.items():
            run, waits = self.finished.get(key), pending.get(key, {})
            row = {"key": key, "state": run["state"] if run else waits.get("state", "waiting")}
            row |= plan["values"]
            row["seed"] = plan["seed"]
            if run:
                row |= {name: number(value) for name, value in run["measured"].items()}
            row["seconds"] = run["seconds"] if run else None
            row["error"] = "" if run else str(waits.get("error", self.problems.get(key, "")))
            found.append(row)
        return found


def read_index(folder: Inside) -> Index | None:
    """The index as it stands in the file; None if it is absent, of another plan, or damaged before its last line."""
    try:
        lines = folder.read(INDEX, limit=_MOST_BYTES).split(b"\n")
        head = json.loads(lines[0])
        # The last line of a killed writer may be torn; it is nobody's.
        rows = json.loads(b"[" + b",".join(line for line in lines[1:-1] if line) + b"]")
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(head, dict) or head.get("format") != FORMAT or head.get("schema") != SCHEMA:
        return None
    index = Index({name: value for name, value in head.items() if name not in ("format", "schema")})
    try:
        names = set(head["names"])
        if not all(isinstance(name, str) for name in (head["experiment"], head["title"], *names)):
            return None
        for row in rows:
            key = row.pop("key")
            if not is_key(key) or not _sound(row, names):
                return None
            if "values" in row:
                index.planned[key] = row
            elif "problem" in row:
                index.finished.pop(key, None)
                index.problems[key] = row["problem"]
            else:
                index.finished[key] = row
                index.problems.pop(key, None)
    except (AttributeError, KeyError, TypeError):
        return None
    _, content = read_small(folder / SWEEP)
    return index if index.head.get("plan") == digest_of(content) else None


def _sound(row: dict[str, Any], names: set[str]) -> bool:
    """Whether a line has the form that this library writes."""
    if "values" in row:
        return names <= set(row["values"]) and all(map(_is_value, row["values"].values())) and _is_value(row["seed"])
    if "problem" in row:
        return isinstance(row["problem"], str)
    texts, numbers = (row["digest"], row["version"]), (row["stamp"], row["seconds"])
    return (
        row["state"] in FINISHED
        and all(isinstance(text, str) for text in texts)
        and all(number is None or isinstance(number, (int, float)) for number in numbers)
        and all(isinstance(name, str) and _is_scalar(value) for name, value in row["measured"].items())
    )


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _is_value(value: Any) -> bool:
    return _is_scalar(value) or (isinstance(value, list) and all(map(_is_value, value)))


def changed(folder: Inside, index: Index) -> set[str]:
    """Keys whose folder is new, gone, or no longer what the index says."""
    there: dict[str, int] = {}
    with contextlib.suppress(OSError), folder.folder(RUNS) as place:
        stats = {name: place.stat(name) for name in place.names() if is_key(name)}
        there = {name: status.st_mtime_ns for name, status in stats.items() if status is not None}
    # A folder that is known to be damaged is no news until it changes.
    new = set(there) - set(index.finished) - set(index.problems)
    gone = (set(index.finished) | set(index.problems)) - set(there)
    suspect = {key for key, row in index.finished.items() if key in there and row.get("stamp") != there[key]}
    # A copy of the folder has other times; what it holds may be the same all the same.
    return new | gone | {key for key in suspect if _provenance_digest(folder, key) != index.finished[key]["digest"]}


def append(folder: Inside, key: str, row: Mapping[str, Any]) -> None:
    """Add one line to the index; a torn line before it is closed first."""
    descriptor = (folder / INDEX).open(os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        torn = b""
        if size := os.fstat(descriptor).st_size:
            os.lseek(descriptor, size - 1, os.SEEK_SET)
            torn = b"" if os.read(descriptor, 1) == b"\n" else b"\n"
        os.write(descriptor, torn + _line({"key": key, **row}))
    finally:
        os.close(descriptor)


def _provenance_digest(folder: Inside, key: str) -> str:
    _, content = read_small(folder / RUNS / key / PROVENANCE)
    return digest_of(content)


def _line(row: Mapping[str, Any]) -> bytes:
    return (json.dumps(row, allow_nan=False, separators=(",", ":")) + "\n").encode()
