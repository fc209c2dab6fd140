"""The folders of finished runs, read and checked; the index made from them."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from isthmus._atomic import shown, write_atomic
from isthmus._checks import fail
from isthmus._errors import FileFormatError, IsthmusError
from isthmus.experiments._experiment import find_experiments, plain_scalars
from isthmus.files import read_json
from isthmus.runs import ARRAYS, CONFIG, FIGURES, PROVENANCE, READABLE, VERDICTS, Run, configuration_key
from isthmus.sweeps.index import Index
from isthmus.sweeps.places import INDEX, RUNS, SWEEP, digest_of, is_key
from isthmus.sweeps.plan import Plan


def read_plan(folder: Path) -> Plan:
    """The plan of a sweep's folder."""
    if not (folder / SWEEP).is_file():
        do = "Give the folder of a sweep: `isthmus sweep … --out DIR` makes one."
        fail("sweep", f"{shown(folder)} must hold {SWEEP}", "none", do, error=FileFormatError)
    return Plan.from_dict(read_json(folder / SWEEP), shown(folder / SWEEP))


def inspect(folder: Path, key: str, experiment: str) -> dict[str, Any]:
    """The line of the index for one Run, whose files are all read and checked against their digests.

    Raises
    ------
    FileFormatError
        Saying what is missing, damaged or changed.
    """
    path = folder / RUNS / key
    try:
        stamp = path.stat().st_mtime_ns
        content = (path / PROVENANCE).read_bytes()
        source, config = read_json(path / PROVENANCE), read_json(path / CONFIG)
        _check(path, source, config, key, experiment)
    except OSError as problem:
        _bad(path, "its files must be readable", problem.strerror or problem)
    measured: dict[str, Any] = source["measured"] if _plain(source.get("measured")) else _measure(path)
    state = "diverged" if measured.get("training") == "diverged" else "done"
    commit = str(source.get("commit") or "")[:12]
    return {
        "state": state,
        "measured": measured,
        "seconds": source.get("seconds"),
        "digest": digest_of(content),
        "stamp": stamp,
        "version": f"{source.get('isthmus', '?')} {commit}".strip(),
    }


def _check(path: Path, source: Any, config: Any, key: str, experiment: str) -> None:
    if not isinstance(source, dict) or not isinstance(config, dict) or config.get("schema") not in READABLE:
        _bad(path, f"it must be a Run of schema {' or '.join(map(str, READABLE))}", "something else")
    digests = source.get("sha256")
    there = [name for name in (CONFIG, ARRAYS, VERDICTS, *FIGURES) if (path / name).is_file()]
    if not isinstance(digests, dict) or sorted(digests) != sorted(there) or len(there) < 3:
        _bad(path, f"the files must be those listed in {PROVENANCE}", ", ".join(there) or "none")
    for name, digest in digests.items():
        with (path / name).open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != digest:
                _bad(path, f"{name} must have the SHA-256 in {PROVENANCE}", "another one")
    found = configuration_key(str(config.get("experiment")), config.get("parameters") or {})
    if config.get("experiment") != experiment or found != key or source.get("key") != key:
        got = f"{config.get('experiment')} with the key {found}"
        _bad(path, f"{CONFIG} must be that of {experiment} with the key {key}", got)


def _plain(measured: Any) -> bool:
    return isinstance(measured, dict) and all(
        value is None or isinstance(value, (bool, int, float, str)) for value in measured.values()
    )


def _measure(path: Path) -> dict[str, Any]:
    """Of a Run that was not made by a sweep, by its experiment's own rule."""
    run = Run.read(path)
    kind = find_experiments().get(run.experiment)
    if kind is None:
        return plain_scalars({name: value for name, value in run.arrays.items() if value.size == 1})
    return plain_scalars(kind(**run.parameters).measured(run.arrays))


def make_index(folder: Path, plan: Plan) -> Index:
    """The index, from the folders alone; runs that cannot be read stand among its problems."""
    index = Index(head(folder, plan))
    for key, one in plan.configurations().items():
        index.planned[key] = {"values": dict(one.values), "seed": one.seed}
    refresh(folder, plan, index, run_keys(folder))
    return index


def refresh(folder: Path, plan: Plan, index: Index, keys: Iterable[str]) -> None:
    """Look at the folders of these keys again."""
    for key in keys:
        index.finished.pop(key, None)
        index.problems.pop(key, None)
        if not (folder / RUNS / key).is_dir():
            continue
        try:
            index.finished[key] = inspect(folder, key, plan.experiment)
        except IsthmusError as problem:
            index.problems[key] = str(problem)


def head(folder: Path, plan: Plan) -> dict[str, Any]:
    """The first line of the index."""
    content = (folder / SWEEP).read_bytes()
    names = list(plan.names)
    return {"experiment": plan.experiment, "title": plan.title, "names": names, "plan": digest_of(content)}


def write_index(folder: Path, index: Index) -> None:
    """Write it in one step."""
    write_atomic(folder / INDEX, b"".join(index.lines()))


def run_keys(folder: Path) -> list[str]:
    """Keys of the folders that are there."""
    found: list[str] = []
    with contextlib.suppress(OSError), os.scandir(folder / RUNS) as entries:
        found = sorted(entry.name for entry in entries if is_key(entry.name))
    return found


def _bad(path: Path, must: str, got: object) -> NoReturn:
    do = "The sweep puts it aside and computes it again."
    fail(f"{RUNS}/{path.name}", must, got, do, error=FileFormatError)
