"""A sweep's folder as it is now, read without computing or changing anything."""

from __future__ import annotations

import collections
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus._inside import Inside
from isthmus.sweeps.index import Index, changed, read_index
from isthmus.sweeps.places import DAMAGED, FINISHED, RUNS

if TYPE_CHECKING:
    import numpy as np

    from isthmus.experiments._experiment import Experiment
    from isthmus.sweeps.result import SweepResult

#: Failures that are listed one by one.
_LISTED = 5


def look(folder: str | os.PathLike[str], *, rebuild: bool = False) -> Index:
    """The index, brought up to date with the folders; written where that is possible.

    Parameters
    ----------
    folder : path
        Of a sweep.
    rebuild : bool
        Read and check every Run again. Otherwise only those whose folder has changed.
    """
    folder = Inside(folder)
    index = None if rebuild else read_index(folder)
    stale = set() if index is None else changed(folder, index)
    if index is not None and not stale:
        return index
    from isthmus._errors import IsthmusError
    from isthmus.sweeps.places import holder
    from isthmus.sweeps.records import make_index, read_plan, refresh, write_index

    plan = read_plan(folder)
    if index is None:
        index = make_index(folder, plan)
    else:
        refresh(folder, plan, index, stale)
    who = holder(folder)
    if who is None or not who.alive:
        # A driver at work writes its own; and a folder that cannot be written can still be read.
        with contextlib.suppress(IsthmusError, OSError):
            write_index(folder, index)
    return index


def read(folder: str | os.PathLike[str], *, experiment: type[Experiment] | None = None) -> SweepResult:
    """What a sweep has found so far, from its folder; nothing is computed.

    Parameters
    ----------
    folder : path
        Given to :func:`isthmus.sweep` as ``out``.
    experiment : class, optional
        That of the experiment, where it is one of your own: it says which arrays are spectra.
    """
    import pandas as pd

    from isthmus.sweeps.result import SweepResult

    path = Inside(folder)
    index = look(path)
    rows = index.rows(path)
    names = index.head["names"]
    measured = list(dict.fromkeys(name for row in index.finished.values() for name in row["measured"]))
    columns = ["state", *names, "seed", *(name for name in measured if name not in names), "seconds", "error"]
    frame = pd.DataFrame(rows, columns=pd.Index(["key", *columns])).set_index("key")
    varied = tuple(name for name in names if len({row[name] for row in rows}) > 1)
    finished = [row["key"] for row in rows if row["state"] in FINISHED]
    return SweepResult(
        index.head["experiment"],
        index.head["title"],
        varied or tuple(names),
        frame,
        Path(path),
        _spectra(path, experiment or index.head["experiment"], finished),
        tuple(problems(path, index, rows)),
    )


def problems(folder: str | os.PathLike[str], index: Index, rows: Sequence[dict[str, Any]]) -> list[str]:
    """What is wrong or unfinished in a sweep, in sentences."""
    counts = collections.Counter(row["state"] for row in rows)
    found = []
    if counts["failed"]:
        found.append(f"{counts['failed']} failed; --retry-failed tries them again")
        failed = [row for row in rows if row["state"] == "failed"]
        found += [f"{row['key']} failed: {row['error'][:300]}" for row in failed[:_LISTED]]
    if counts["diverged"]:
        found.append(f"{counts['diverged']} diverged: their numbers are those of a training that left every bound")
    if unsettled := sum(row.get("training") == "budget" for row in rows):
        found.append(f"{unsettled} trainings used up their steps before they converged")
    for state, why in (("stale", "begun by a process that is gone"), ("interrupted", "not finished")):
        if counts[state]:
            found.append(f"{counts[state]} {state} ({why}); the same command continues")
    if counts["waiting"]:
        found.append(f"{counts['waiting']} not begun; the same command continues")
    known = set(index.planned)
    found += [f"{key} is unreadable: {problem}" for key, problem in index.problems.items() if key in known]
    others = (set(index.finished) | set(index.problems)) - known
    if others:
        found.append(f"{len(others)} runs in {RUNS}/ belong to no grid of this sweep and are left alone")
    if aside := Inside(folder).names(DAMAGED):
        found.append(f"{len(aside)} damaged runs lie in {DAMAGED}/: {', '.join(aside[:_LISTED])}")
    versions = sorted({row["version"] for key, row in index.finished.items() if key in known})
    if len(versions) > 1:
        found.append(f"computed by {len(versions)} versions of isthmus: {', '.join(versions[:_LISTED])}")
    return found


def _spectra(folder: Inside, experiment: str | type[Experiment], keys: Sequence[str]) -> Any:
    from isthmus.experiments._experiment import Experiment, find_experiments
    from isthmus.runs import Run
    from isthmus.sweeps.result import Spectra

    kind = find_experiments().get(experiment) if isinstance(experiment, str) else experiment
    if kind is None or kind.spectrum_table.__func__ is Experiment.spectrum_table.__func__:
        return {}

    def table(key: str) -> np.ndarray | None:
        return kind.spectrum_table(Run.read(folder / RUNS / key).arrays)

    return Spectra(keys, table)
