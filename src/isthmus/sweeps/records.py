"""The folders of finished runs, read and checked; the index made from them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, NoReturn

from isthmus._atomic import open_checked, shown, write_atomic
from isthmus._checks import fail
from isthmus._errors import FileFormatError, IsthmusError
from isthmus._folders import identity
from isthmus._inside import Inside
from isthmus._strict_json import MAX_JSON_BYTES, loads
from isthmus._tensorfile import MAX_FILE_BYTES
from isthmus.experiments._experiment import find_experiments, plain_scalars
from isthmus.files import read_json
from isthmus.runs import ARRAYS, CONFIG, FIGURES, PROVENANCE, READABLE, VERDICTS, Run, configuration_key
from isthmus.sweeps.index import Index
from isthmus.sweeps.places import INDEX, RUNS, SWEEP, digest_of, is_key
from isthmus.sweeps.plan import Plan


def read_plan(folder: Inside) -> Plan:
    """The plan of a sweep's folder."""
    if not folder.is_file(SWEEP):
        do = "Give the folder of a sweep: `isthmus sweep … --out DIR` makes one."
        fail("sweep", f"{shown(folder)} must hold {SWEEP}", "none", do, error=FileFormatError)
    return Plan.from_dict(read_json(folder / SWEEP), shown(folder / SWEEP))


def inspect(folder: Inside, key: str, experiment: str) -> dict[str, Any]:
    """The line of the index for one Run, whose files are all read and checked against their digests.

    Raises
    ------
    FileFormatError
        Saying what is missing, damaged or changed.
    """
    path = folder / RUNS / key
    try:
        before = identity(path)
        content = path.read(PROVENANCE, limit=MAX_JSON_BYTES)
        source, config = loads("sweep", content, f"{RUNS}/{key}/{PROVENANCE}"), read_json(path / CONFIG)
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
        "stamp": before[1] if before is not None else 0,
        "version": f"{source.get('isthmus', '?')} {commit}".strip(),
    }


def _check(path: Inside, source: Any, config: Any, key: str, experiment: str) -> None:
    if not isinstance(source, dict) or not isinstance(config, dict) or config.get("schema") not in READABLE:
        _bad(path, f"it must be a Run of schema {' or '.join(map(str, READABLE))}", "something else")
    digests = source.get("sha256")
    there = [name for name in (CONFIG, ARRAYS, VERDICTS, *FIGURES) if path.is_file(name)]
    if not isinstance(digests, dict) or sorted(digests) != sorted(there) or len(there) < 3:
        _bad(path, f"the files must be those listed in {PROVENANCE}", ", ".join(there) or "none")
    for name, digest in digests.items():
        with open_checked("sweep", path / name, MAX_FILE_BYTES) as (stream, _):
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


def _measure(path: Inside) -> dict[str, Any]:
    """Of a Run that was not made by a sweep, by its experiment's own rule."""
    run = Run.read(path)
    kind = find_experiments().get(run.experiment)
    if kind is None:
        return plain_scalars({name: value for name, value in run.arrays.items() if value.size == 1})
    return plain_scalars(kind(**run.parameters).measured(run.arrays))


def make_index(folder: Inside, plan: Plan) -> Index:
    """The index, from the folders alone; runs that cannot be read stand among its problems."""
    index = Index(head(folder, plan))
    for key, one in plan.configurations().items():
        index.planned[key] = {"values": dict(one.values), "seed": one.seed}
    refresh(folder, plan, index, run_keys(folder))
    return index


def refresh(folder: Inside, plan: Plan, index: Index, keys: Iterable[str]) -> None:
    """Look at the folders of these keys again."""
    for key in keys:
        index.finished.pop(key, None)
        index.problems.pop(key, None)
        if not folder.is_folder(RUNS, key):
            continue
        try:
            index.finished[key] = inspect(folder, key, plan.experiment)
        except IsthmusError as problem:
            index.problems[key] = str(problem)


def head(folder: Inside, plan: Plan) -> dict[str, Any]:
    """The first line of the index."""
    content = folder.read(SWEEP, limit=MAX_JSON_BYTES)
    names = list(plan.names)
    return {"experiment": plan.experiment, "title": plan.title, "names": names, "plan": digest_of(content)}


def write_index(folder: Inside, index: Index) -> None:
    """Write it in one step."""
    write_atomic(folder / INDEX, b"".join(index.lines()))


def run_keys(folder: Inside) -> list[str]:
    """Keys of the folders that are there."""
    return [name for name in folder.names(RUNS) if is_key(name)]


def _bad(path: Inside, must: str, got: object) -> NoReturn:
    do = "The sweep puts it aside and computes it again."
    fail(f"{RUNS}/{path.name}", must, got, do, error=FileFormatError)
