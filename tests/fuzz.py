"""A fuzzer of everything that reads files: mutations that know the formats, kept where they reach new lines.

``make fuzz`` runs it for ten minutes, ``make fuzz SECONDS=36000`` longer. A reader may give a value or an IsthmusError:
another exception, more than ten seconds, a process started, a pickle looked into or a file opened for writing is a
finding, and the input is kept in ``.fuzz/``. Seeds are the files of ``tests/corpus`` and small ones made here.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gzip
import hashlib
import io
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pandas as pd

import isthmus
from isthmus import FullyConnected, IsthmusError, Run, files, tables
from isthmus._inside import Inside
from isthmus.cli.report import drawn_page
from isthmus.report.save import render
from isthmus.serving.record import Record
from isthmus.sweeps.index import read_index
from isthmus.sweeps.reading import problems

CORPUS, FOUND = Path(__file__).parent / "corpus", Path(".fuzz")
HOME = str(Path(isthmus.__file__).parent)
#: Seconds of the processor that one file may take, and of the clock: a reader that waits takes none of the first.
PATIENCE, WAITING = 10, 120
#: What text, numbers and shapes go wrong with.
NUMBERS = (0, 1, -1, 2, 7, 255, 2**31, 2**53 + 1, 2**63, 2**64, 10**38, 0.5, -0.0, 1e308, 1e-320)
TEXTS = (
    "",
    "nan",
    "-inf",
    "null",
    "\x00",
    "\u202e",
    "\ud800",
    "<script>",
    "=1+1",
    "../../x",
    "F64",
    "9" * 50,
    "x" * 2000,
)
VALUES = (*NUMBERS, *TEXTS, None, True, [], {}, [[]], {"a": 1}, [1, 2, 3])
_FORBIDDEN = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "pickle.find_class",
    "socket.connect",
    "os.remove",
    "os.rename",
)


class Forbidden(BaseException):
    """What no reader may do."""


# ---- mutations


def mutated_bytes(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """A few changes of bytes, whatever they mean."""
    content = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(content) + 1)
        how = rng.randrange(6)
        if how == 0 and content:
            content[at % len(content)] ^= 1 << rng.randrange(8)
        elif how == 1:
            content[at:at] = rng.choice(TEXTS).encode("utf-8", "surrogatepass")
        elif how == 2:
            del content[at : at + rng.choice((1, 2, 8, 100))]
        elif how == 3:
            content[at:at] = content[at : at + rng.choice((1, 8, 64))] * rng.choice((1, 2, 50))
        elif how == 4 and others:
            other = rng.choice(others)
            content[at:] = other[rng.randrange(len(other) + 1) :]
        else:
            content[at : at + 8] = rng.choice((0, 1, 2**31, 2**63, 2**64 - 1)).to_bytes(8, "little")
    return bytes(content[: 2**16])


def mutated_value(value: Any, rng: random.Random) -> Any:
    """Plain data with one node changed."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key, made = rng.choice(list(value)), dict(value)
        how = rng.randrange(8)
        if how == 0:
            del made[key]
        elif how == 1:
            made[rng.choice(TEXTS[:-1])] = made.pop(key)
        elif how == 2:
            made[f"{key}2"] = made[key]
        else:
            made[key] = mutated_value(value[key], rng)
        return made
    if isinstance(value, list) and value and rng.random() < 0.85:
        at, made = rng.randrange(len(value)), list(value)
        how = rng.randrange(6)
        if how == 0:
            del made[at]
        elif how == 1:
            made.insert(at, made[rng.randrange(len(made))])
        else:
            made[at] = mutated_value(value[at], rng)
        return made
    return rng.choice(VALUES)


def mutated_json(data: bytes, rng: random.Random) -> bytes:
    """JSON with one node changed; bytes that are none as they are."""
    try:
        return json.dumps(mutated_value(json.loads(data), rng)).encode()
    except (ValueError, RecursionError):
        return data


def mutated_tensors(data: bytes, rng: random.Random) -> bytes:
    """A safetensors file whose header has changed, with the right hash of what it says, or not."""
    length = int.from_bytes(data[:8], "little")
    try:
        header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
        metadata = header.get("__metadata__", {})
        if isinstance(metadata.get("config"), str) and rng.random() < 0.5:
            metadata["config"] = mutated_json(metadata["config"].encode(), rng).decode()
        else:
            header = mutated_value(header, rng)
            metadata = header.get("__metadata__", {})
        if rng.random() < 0.8:
            kept = {key: metadata[key] for key in sorted(metadata) if key != "sha256_metadata"}
            text = json.dumps(kept, separators=(",", ":"))
            metadata["sha256_metadata"] = hashlib.sha256(text.encode()).hexdigest()
        text = json.dumps(header).encode()
    except (ValueError, AttributeError, TypeError, RecursionError):
        return data
    return len(text).to_bytes(8, "little") + text + body


def mutated_text(data: bytes, rng: random.Random) -> bytes:
    """A table with a cell changed, a line repeated, or another separator."""
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    cells = lines[at].split(b",")
    cells[rng.randrange(len(cells))] = str(rng.choice(VALUES)).encode("utf-8", "surrogatepass")
    lines[at] = b",".join(cells) if rng.random() < 0.8 else rng.choice(lines)
    return b"\n".join(lines).replace(b",", rng.choice((b",", b",", b";", b"\t", b"|")))


def mutated_gzip(data: bytes, rng: random.Random) -> bytes:
    """A packed table that was changed before it was packed."""
    try:
        return gzip.compress(mutated_text(gzip.decompress(data), rng), 1, mtime=0)
    except (OSError, EOFError, ValueError, zlib.error):
        return data


def mutated_npz(data: bytes, rng: random.Random) -> bytes:
    """An archive with a member changed."""
    made = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
            names = old.namelist()
            chosen = rng.choice(names)
            for name in names:
                content = old.read(name)
                if name == chosen:
                    content = mutated_bytes(content, rng, [])
                new.writestr(rng.choice((name, name, name, "a.txt")), content)
    except Exception:
        return data
    return made.getvalue()


# ---- what reads


@dataclass
class Target:
    """A reader: the name its files have, what knows their format, and how to read one."""

    name: str
    suffix: str
    mutate: Callable[[bytes, random.Random], bytes]
    read: Callable[[Path], object]
    inputs: list[bytes]
    #: Whether it makes files of its own before it reads.
    makes: bool = False
    seen: set[tuple[str, int]] = field(default_factory=set)


def _page(path: Path) -> object:
    return render(drawn_page(path))


def _run(path: Path) -> object:
    """A Run whose files are those of one JSON document, with the right digests."""
    folder = path.with_suffix("")
    folder.mkdir(exist_ok=True)
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise IsthmusError("no parts")
    arrays = (CORPUS / "arrays.safetensors").read_bytes()
    parts = {"arrays.safetensors": arrays}
    parts |= {name: json.dumps(content.get(name)).encode() for name in ("config.json", "verdicts.json")}
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in parts.items()}
    source = content.get("provenance.json")
    if isinstance(source, dict):
        source = {"sha256": digests, **source}
    parts["provenance.json"] = json.dumps(source).encode()
    for name, data in parts.items():
        (folder / name).write_bytes(data)
    return repr(Run.read(folder)._repr_html_())


def _record(path: Path) -> object:
    record = Record()
    for line in path.read_bytes().split(b"\n"):
        record.take(line)
    return record


def _index(path: Path) -> object:
    """The index of a sweep, with the plan that it says it is of."""
    folder = path.with_suffix("")
    folder.mkdir(exist_ok=True)
    (folder / "sweep.json").write_bytes((CORPUS / "sweep.json").read_bytes())
    (folder / "index.jsonl").write_bytes(path.read_bytes())
    index = read_index(Inside(folder))
    return None if index is None else (index.rows(Inside(folder)), problems(folder, index, index.rows(Inside(folder))))


def targets() -> list[Target]:
    """All of them, each with its seeds."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=4), "city": list("xyxz"), "b": [1, 2, 3, 4]})
    buffer = io.BytesIO()
    np.savez_compressed(buffer, X=rng.normal(size=(4, 2)), y=np.arange(4))
    array = io.BytesIO()
    np.save(array, rng.normal(size=(4, 2)))
    text = frame.to_csv(index=False).encode()
    with tempfile.TemporaryDirectory() as folder:
        files.save(FullyConnected([3, 4, 2]), Path(folder) / "net")
        net = (Path(folder) / "net").read_bytes()
        frame.to_parquet(Path(folder) / "t.parquet")
        packed = (Path(folder) / "t.parquet").read_bytes()
    documents = [path.read_bytes() for path in sorted(CORPUS.glob("document-*.json"))]
    run = [path.read_bytes() for path in sorted(CORPUS.glob("run-*.json"))]
    return [
        Target("network", ".safetensors", mutated_tensors, files.load, [net]),
        Target("tensors", ".safetensors", mutated_tensors, files.read_tensors, [net]),
        Target("json", ".json", mutated_json, files.read_json, documents),
        Target("table", ".csv", mutated_text, tables.read_table, [text]),
        Target("packed table", ".csv.gz", mutated_gzip, tables.read_table, [gzip.compress(text)]),
        Target("array", ".npy", lambda data, _: data, tables.read_table, [array.getvalue()]),
        Target("archive", ".npz", mutated_npz, tables.read_table, [buffer.getvalue()]),
        Target("parquet", ".parquet", lambda data, _: data, tables.read_table, [packed]),
        Target("document", ".json", mutated_json, _page, documents),
        Target("run", ".json", mutated_json, _run, run, makes=True),
        Target("record", ".jsonl", _line_changed, _record, [(CORPUS / "live.jsonl").read_bytes()]),
        Target("index", ".jsonl", _line_changed, _index, [(CORPUS / "index.jsonl").read_bytes()], makes=True),
    ]


def _line_changed(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    lines[at] = mutated_json(lines[at], rng)
    return b"\n".join(lines)


# ---- the run


@dataclass
class Campaign:
    """What a campaign came to."""

    executions: int = 0
    refused: int = 0
    lines: int = 0
    findings: list[str] = field(default_factory=list)
    slowest: float = 0.0
    growth: int = 0


_watching = False


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watching:
        return
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if event in _FORBIDDEN or writes:
        raise Forbidden(f"{event} {arguments!r:.200}")


@functools.cache  # a hook cannot be taken away again
def _install() -> None:
    sys.addaudithook(_audit)


@contextlib.contextmanager
def _watched(seen: set[tuple[str, int]] | None) -> Iterator[None]:
    """Nothing but reading may happen; the lines of isthmus that are reached are added to ``seen``."""
    global _watching

    def local(frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG001
        seen.add((frame.f_code.co_filename, frame.f_lineno))  # type: ignore[union-attr]
        return local

    def trace(frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG001
        return local if frame.f_code.co_filename.startswith(HOME) else None

    def late(number: int, frame: Any) -> None:  # noqa: ARG001
        raise Forbidden(f"more than {PATIENCE} seconds of computing or {WAITING} of waiting")

    before = [(number, signal.signal(number, late)) for number in (signal.SIGALRM, signal.SIGPROF)]
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    signal.alarm(WAITING)
    if seen is not None:
        sys.settrace(trace)
    _watching = True
    try:
        yield
    finally:
        _watching = False
        sys.settrace(None)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        for number, handler in before:
            signal.signal(number, handler)


def fuzz(which: list[Target], *, seconds: float, seed: int, most: int = 10**9, guided: float = 0.25) -> Campaign:
    """Mutate and read until the time is over; ``guided`` is the share of executions whose lines are traced."""
    _install()
    rng, result = random.Random(seed), Campaign()
    ends, memory = time.monotonic() + seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        for target in which:
            for data in list(target.inputs):
                _one(target, data, Path(folder), result, guided=True)
        while time.monotonic() < ends and result.executions < most:
            target = rng.choice(which)
            data = rng.choice(target.inputs)
            data = target.mutate(data, rng) if rng.random() < 0.7 else mutated_bytes(data, rng, target.inputs)
            _one(target, data, Path(folder), result, guided=rng.random() < guided)
    result.lines = len(set().union(*(target.seen for target in which)))
    result.growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    return result


def _one(target: Target, data: bytes, folder: Path, result: Campaign, *, guided: bool) -> None:
    path = folder / f"input{target.suffix}"
    path.write_bytes(data)
    reached: set[tuple[str, int]] = set()
    began = time.process_time()
    try:
        # What makes files first may not be watched for it.
        watch = contextlib.nullcontext() if target.makes else _watched(reached if guided else None)
        with watch, contextlib.redirect_stdout(io.StringIO()):
            target.read(path)
    except IsthmusError:
        result.refused += 1
    except (Exception, Forbidden) as error:
        _found(target, data, result, error)
    result.executions += 1
    result.slowest = max(result.slowest, time.process_time() - began)
    if reached - target.seen:
        target.seen |= reached
        target.inputs.append(data)


def _found(target: Target, data: bytes, result: Campaign, error: BaseException) -> None:
    FOUND.mkdir(exist_ok=True)
    name = f"{target.name.replace(' ', '-')}-{hashlib.sha256(data).hexdigest()[:12]}{target.suffix}"
    (FOUND / name).write_bytes(data)
    place = traceback.extract_tb(error.__traceback__)[-1]
    result.findings.append(f"{name}: {type(error).__name__}: {error!s:.200} at {place.filename}:{place.lineno}")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", nargs="*", help="names of targets")
    chosen = parser.parse_args()
    which = [target for target in targets() if not chosen.only or target.name in chosen.only]
    result = fuzz(which, seconds=chosen.seconds, seed=chosen.seed)
    inputs = sum(len(target.inputs) for target in which)
    print(
        f"seed {chosen.seed}: {result.executions} executions, {result.refused} refused, {result.lines} lines reached,"
    )
    print(f"{inputs} inputs kept, slowest {result.slowest:.2f} s, memory grew by {result.growth // 1024} MB,")
    print(f"{len(result.findings)} findings")
    print("\n".join(result.findings[:50]))
    return bool(result.findings)


if __name__ == "__main__":
    sys.exit(main())
