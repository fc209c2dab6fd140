"""What every benchmark shares: options, paired timing, its statistics, provenance and the report.

A benchmark answers one question. Its sides run in turn in every round, so that what else the machine does falls on all
of them; sides are compared by the ratios within a round. Accuracy stands beside every time.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import gc
import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from isthmus.files import dumps, write_json

ROOT = Path(__file__).resolve().parents[1]
#: Resamples of the bootstrap, and the fewest pairs that a test is made on.
RESAMPLES = 4000
FEWEST = 5
#: What runs of benchmarks write themselves: not a change of what is measured.
WRITTEN = ("benchmarks/results", "benchmarks/results.json", "benchmarks/*.md", "benchmarks/*.png")
# Before the benchmark itself is part of the load.
_LOAD = [round(value, 2) for value in os.getloadavg()] if hasattr(os, "getloadavg") else None


def _processor_time() -> tuple[int, int] | None:
    """Ticks of all cores since the machine started, and those that its host gave to others meanwhile."""
    counters = Path("/proc/stat")
    if not counters.exists():
        return None
    ticks = [int(word) for word in counters.read_text(encoding="utf-8").split("\n", 1)[0].split()[1:9]]
    return sum(ticks), ticks[-1]


_TIME = _processor_time()


def stolen() -> float | None:
    """Share of the cores' time since the start that the host of a virtual machine gave to others; None if unknown.

    From a few per cent on, times on several threads say little: all wait for the one that was stopped.
    """
    now = _processor_time()
    if now is None or _TIME is None:
        return None
    return (now[1] - _TIME[1]) / max(now[0] - _TIME[0], 1)


#: Starts a command from a small process: what is started by a large one inherits its peak.
_LAUNCHER = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(done.returncode)
"""


def arguments(description: str) -> argparse.ArgumentParser:
    """The options that every benchmark has; ``repeats`` is None where the benchmark is to choose."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small problems: a check that it works")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--repeats", type=int, metavar="N", help="rounds in which every side runs once")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON to this file too")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of every side")
    return parser


def interleaved(
    candidates: Mapping[str, Callable[[], Any]], repeats: int, *, warm: int = 1
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Seconds of each candidate in each round, and its last result.

    Parameters
    ----------
    candidates : mapping of str to callable
        Each is called once in every round; who comes first rotates from round to round.
    repeats : int
        Rounds that count.
    warm : int
        Rounds before them: what is loaded, compiled or allocated at first use.
    """
    names = list(candidates)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    results: dict[str, Any] = {}
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    since = time.perf_counter()
    try:
        for index in range(warm + repeats):
            shift = index % len(names)
            for name in names[shift:] + names[:shift]:
                start = time.perf_counter()
                result = candidates[name]()
                taken = time.perf_counter() - start
                # Here, and not at the next call, the result before it is freed: outside the time.
                results[name] = result
                if index >= warm:
                    seconds[name].append(taken)
            if time.perf_counter() - since > 1.0:
                gc.collect()
                since = time.perf_counter()
    finally:
        if collecting:
            gc.enable()
    return seconds, results


@dataclass(frozen=True)
class Comparison:
    """How many times as fast ours is as a peer, from paired rounds."""

    ours: str
    peer: str
    ratio: float
    """Median of peer/ours over the rounds."""
    low: float
    high: float
    """Ends of its bootstrap interval of 95 %."""
    p: float | None
    """One-sided, against "ours is not faster", by the signed ranks of log(peer/ours); None for fewer than 5 pairs."""
    pairs: int


def compare(seconds: Mapping[str, list[float]], ours: str, peer: str) -> Comparison:
    """Compare two candidates of :func:`interleaved` round by round."""
    ratios = np.array(seconds[peer]) / np.array(seconds[ours])
    draws = np.random.default_rng(0).integers(len(ratios), size=(RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(ratios[draws], axis=1), [0.025, 0.975])
    p = None
    if len(ratios) >= FEWEST:
        logs = np.log(ratios)
        p = float(stats.wilcoxon(logs, alternative="greater").pvalue) if logs.any() else 1.0  # pyright: ignore[reportAttributeAccessIssue]
    return Comparison(ours, peer, float(np.median(ratios)), float(low), float(high), p, len(ratios))


def spread(seconds: list[float]) -> dict[str, float]:
    """Median, lower and upper quartile, and the least."""
    low, high = (float(q) for q in np.quantile(seconds, [0.25, 0.75]))
    return {"median": statistics.median(seconds), "low": low, "high": high, "least": min(seconds)}


def peak_megabytes(command: Sequence[str]) -> float:
    """Largest resident memory of a fresh process that runs ``command``, in MB; its output is dropped."""
    launched = [sys.executable, "-c", _LAUNCHER, *command]
    done = subprocess.run(launched, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        shown = " ".join(command)
        raise RuntimeError(f"{shown} ended with code {done.returncode}: {done.stderr.strip()[-2000:]}")
    # Linux counts in kilobytes, macOS in bytes.
    return int(done.stdout) / (2**20 if sys.platform == "darwin" else 2**10)


def processor_seconds() -> float:
    """Of this process and all below it, living or not, where that can be read; else of this one."""
    if not Path("/proc/self/stat").exists():
        return time.process_time()
    parents, ticks = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        parents[int(entry.name)] = int(words[1])
        ticks[int(entry.name)] = sum(map(int, words[11:15]))
    inside = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in inside} - inside:
        inside |= more
    return sum(ticks[pid] for pid in inside if pid in ticks) / os.sysconf("SC_CLK_TCK")


def _git(*options: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *options], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def commit() -> str:
    """The version that runs, and whether anything was changed since."""
    found = _git("rev-parse", "--short=10", "HEAD")
    if found is None:
        return "not recorded"
    changed = _git("status", "--porcelain", "--", ".", *(f":(exclude){path}" for path in WRITTEN))
    return f"{found}, changed" if changed else found


def _processor() -> str:
    listed = Path("/proc/cpuinfo")
    if listed.exists():
        for line in listed.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def version(distribution: str) -> str:
    """The installed version of a distribution, or ``"absent"``."""
    try:
        # The build's own part, such as +cpu, says nothing that the machine does not.
        return importlib.metadata.version(distribution).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def provenance(peers: Sequence[str], *, quick: bool) -> dict[str, Any]:
    """Where, when and with what this was measured; ``peers`` are names of distributions."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": _LOAD,
        "stolen": stolen(),
        "quick": quick,
        "versions": {name: version(name) for name in ("torch", "numpy", "isthmus")},
        "peers": {name: version(name) for name in peers},
    }


@dataclass(frozen=True)
class Gate:
    """A number, what is wanted of it, and whether that is met."""

    what: str
    value: float
    wanted: str
    met: bool


def shown(value: Any) -> str:
    """A cell as text."""
    if value is None:
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating):
        return f"{value:.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:.3g}"
    if isinstance(value, list | tuple):
        return ", ".join(shown(part) for part in value)
    return str(value)


def plain_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Columns side by side; what a row lacks is a dash."""
    cells = [list(columns), *([shown(row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in cells)


def report(
    options: argparse.Namespace,
    *,
    name: str,
    question: str,
    answer: str,
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    gates: Sequence[Gate] = (),
    peers: Sequence[str] = (),
    details: Any = None,
) -> None:
    """Write the JSON to ``--out``; print it with ``--json``, else question, table, answer and gates.

    Parameters
    ----------
    question, answer : str
        One sentence each; the answer is made from the numbers.
    columns : sequence of str
        Those of the table, keys of the rows.
    peers : sequence of str
        Names of distributions.
    details : any
        Whatever else a reader may want; left out of the page.
    """
    document = {
        "benchmark": name,
        "question": question,
        "answer": answer,
        "gates": [dataclasses.asdict(gate) for gate in gates],
        "columns": list(columns),
        "rows": [dict(row) for row in rows],
        "details": details,
        "provenance": provenance(peers, quick=options.quick),
    }
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(options.out, document)
    if options.json:
        print(dumps(name, document, indent=2))
        return
    print(question, "", plain_table(columns, rows), "", answer, sep="\n")
    for gate in gates:
        told = "met" if gate.met else "NOT met"
        print(f"gate: {gate.what}: {shown(gate.value)}, wanted {gate.wanted}: {told}")
    for peer, found in document["provenance"]["peers"].items():
        if found == "absent":
            print(f"{peer} is not installed: skipped")
