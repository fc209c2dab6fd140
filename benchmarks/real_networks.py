"""What does a diagnosis of a real network take, with nothing but defaults?

    python benchmarks/real_networks.py [--only NAME ...] [--quick] [--json] [--threads N]
        [--out benchmarks/results/real_networks.json]

Each network is built from its configuration with random weights, in a process of its own. The seconds are those of
``isthmus.diagnose(module, X)``; the memory is the peak of the process above what it had with the network and its data
in it. `transformers` builds all but the U-Net. With ``--only`` the other networks of an ``--out`` that is there stay.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from _bench import Gate, arguments, report, version
from _real_models import NETWORKS

import isthmus

QUESTION = "What does a diagnosis of a real network take, with nothing but defaults?"
COLUMNS = (
    "network",
    "parameters",
    "seconds",
    "MB above the network",
    "MB in all",
    "verdict",
    "samples",
    "of",
    "reduced",
    "threads",
    "commit",
)


def megabytes() -> float:
    """Peak of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def run(name: str, threads: int, samples: int | None) -> dict[str, Any]:
    """One network, in this process."""
    torch.set_num_threads(threads)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module, X = NETWORKS[name][0]()
    X = {key: value[:samples] for key, value in X.items()} if isinstance(X, dict) else X[:samples]
    before = megabytes()
    started = time.perf_counter()
    found = isthmus.diagnose(module, X)
    seconds = time.perf_counter() - started
    return {
        "network": name,
        "parameters": found.whole["parameters"],
        "seconds": seconds,
        "MB above the network": megabytes() - before,
        "MB in all": megabytes(),
        "verdict": found.verdict,
        "sentence": found.sentence,
        "samples": found.samples,
        "of": len(next(iter(X.values())) if isinstance(X, dict) else X),
        "reduced": len(found.left_out),
        "threads": threads,
        "commit": (found.provenance.get("commit") or "")[:7] or None,
        "left out": list(found.left_out),
        "cost": [part.to_dict() for part in found.cost],
        "notes": list(found.notes),
    }


def alone(name: str, threads: int, samples: int | None) -> dict[str, Any]:
    """One network, in a process of its own."""
    command = [sys.executable, __file__, "--alone", name, "--threads", str(threads)]
    command += [] if samples is None else ["--samples", str(samples)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    if done.returncode != 0:
        raise RuntimeError(f"{name} ended with code {done.returncode}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def gates(rows: list[dict[str, Any]]) -> list[Gate]:
    """Seconds and memory of each network against what it may take."""
    found = []
    for row in rows:
        _, seconds, memory = NETWORKS[row["network"]]
        taken, above = row["seconds"], row["MB above the network"]
        found.append(Gate(f"{row['network']}, seconds", taken, f"≤ {seconds:g}", taken <= seconds))
        found.append(Gate(f"{row['network']}, MB", above, f"≤ {memory:g}", above <= memory))
    return found


def main() -> int:
    """Run, print, keep."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=None, metavar="NAME")
    parser.add_argument("--alone", choices=NETWORKS, help="this network in this process; prints JSON")
    parser.add_argument("--samples", type=int, default=None)
    options = parser.parse_args()
    if options.alone:
        print(json.dumps(run(options.alone, options.threads, options.samples)))
        return 0
    names = options.only or list(NETWORKS)
    if version("transformers") == "absent":
        names = [name for name in names if name == "U-Net"]
    rows = [alone(name, options.threads, 4 if options.quick else options.samples) for name in names]
    if options.only and options.out and options.out.exists():
        before = json.loads(options.out.read_text(encoding="utf-8"))["details"]
        rows += [row for row in before if row["network"] not in names]
        rows.sort(key=lambda row: [*NETWORKS].index(row["network"]))
    judged = [] if options.quick else gates(rows)
    met = sum(gate.met for gate in judged)
    report(
        options,
        name="real_networks",
        question=QUESTION,
        answer=f"{met} of {len(judged)} limits are kept; {sum(row['reduced'] == 0 for row in rows)} of {len(rows)} "
        "networks are measured in full within the default budget.",
        columns=COLUMNS,
        rows=[{key: row[key] for key in COLUMNS} for row in rows],
        gates=judged,
        peers=("transformers",),
        details=rows,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
