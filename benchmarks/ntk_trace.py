"""Tr Θ(x, x) by the layer formula against per-sample parameter Jacobians with ``torch.func``.

    python benchmarks/ntk_trace.py [--quick] [--json] [--out benchmarks/results/ntk_trace.json]

Both sides compute in the same dtype on the same threads, interleaved, in one process; the median and the
range of the repeats are shown beside the largest relative difference of their results. Peak memory is
measured in processes of their own. The peer is ``vmap(jacrev)`` over parameters in chunks of samples whose
Jacobian stays below 1 GB: larger ones do not fit, smaller ones are slower. At full size the peer runs on a
tenth of the samples and its time is multiplied by ten: it works chunk by chunk, in time linear in N. One
thread by default: on shared cores, threads that wait for one another measure the neighbours.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, jacrev, vmap

from isthmus import FullyConnected
from isthmus.measures import ntk_trace

#: Largest parameter Jacobian of one chunk of the peer.
PEER_BYTES = 2**30


@dataclass(frozen=True)
class Setting:
    """One size of the problem. The peer runs on ``peer_samples`` of the N samples."""

    samples: int
    depth: int
    width: int
    d: int
    dtype: str
    peer_samples: int
    repeats: int


FULL = (
    Setting(1000, 25, 200, 20, "float64", 100, 5),
    Setting(1000, 25, 200, 20, "float32", 100, 5),
)
QUICK = (Setting(100, 6, 50, 5, "float64", 100, 3),)


def problem(setting: Setting) -> tuple[FullyConnected, Tensor]:
    """A random network and data."""
    generator = torch.Generator().manual_seed(0)
    dtype = getattr(torch, setting.dtype)
    dims = [setting.d, *[setting.width] * (setting.depth - 1), setting.d]
    net = FullyConnected(dims, dtype=dtype, generator=generator)
    X = torch.randn(setting.samples, setting.d, generator=generator, dtype=torch.float64).to(dtype)
    return net, X


def ours(net: FullyConnected, X: Tensor) -> Tensor:
    """The layer formula, in the network's own dtype."""
    return ntk_trace(net, X, dtype=X.dtype)


def peer_chunk(net: FullyConnected, X: Tensor) -> int:
    """Samples whose parameter Jacobian stays below ``PEER_BYTES``."""
    parameters = sum(p.numel() for p in net.parameters())
    return max(1, PEER_BYTES // (parameters * net.dims[-1] * X.element_size()))


def peer(net: FullyConnected, X: Tensor) -> Tensor:
    """Per-sample parameter Jacobians, squared and summed."""
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    per_sample = vmap(jacrev(lambda p, x: functional_call(net, p, (x,))), in_dims=(None, 0))
    parts = []
    for chunk in X.split(peer_chunk(net, X)):
        J = per_sample(parameters, chunk)
        parts.append(torch.stack([g.flatten(1).square().sum(1) for g in J.values()]).sum(0))
    return torch.cat(parts)


def timed(function: Callable[[FullyConnected, Tensor], Tensor], net: FullyConnected, X: Tensor) -> tuple[float, Tensor]:
    """Seconds and result."""
    start = time.perf_counter()
    result = function(net, X)
    return time.perf_counter() - start, result


def peak_megabytes(setting: Setting, side: str, threads: int) -> float:
    """Peak resident memory of a fresh process that runs one side once."""
    arguments = [str(setting.samples), str(setting.depth), str(setting.width), str(setting.d), setting.dtype]
    if side == "peer":
        # One chunk shows its peak; the others repeat it.
        net, X = problem(setting)
        arguments[0] = str(min(setting.samples, peer_chunk(net, X)))
    command = [sys.executable, __file__, "--memory-of", side, "--threads", str(threads), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def run(setting: Setting, threads: int) -> dict[str, Any]:
    """Time both sides in turn; compare their results."""
    net, X = problem(setting)
    few = X[: setting.peer_samples]
    for function in (ours, peer):
        function(net, X[:2])  # loads what is loaded lazily
    seconds: dict[str, list[float]] = {"ours": [], "peer": []}
    difference = 0.0
    for _ in range(setting.repeats):
        taken, mine = timed(ours, net, X)
        seconds["ours"].append(taken)
        taken, theirs = timed(peer, net, few)
        seconds["peer"].append(taken * setting.samples / setting.peer_samples)
        error = (mine[: setting.peer_samples] - theirs).abs() / theirs.abs()
        difference = max(difference, float(error.max()))
    ratios = [b / a for a, b in zip(seconds["ours"], seconds["peer"])]
    return {
        "setting": vars(setting),
        "parameters": sum(p.numel() for p in net.parameters()),
        "peer_extrapolated": setting.peer_samples < setting.samples,
        "seconds": {side: _summary(values) for side, values in seconds.items()},
        "ratio": _summary(ratios),
        "relative_difference": difference,
        "peak_megabytes": {side: peak_megabytes(setting, side, threads) for side in ("ours", "peer")},
    }


def _summary(values: list[float]) -> dict[str, Any]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values), "all": values}


def table(results: list[dict[str, Any]]) -> str:
    """The results as text."""
    lines = []
    for r in results:
        s = r["setting"]
        note = f" (peer timed on {s['peer_samples']}, extrapolated linearly)" if r["peer_extrapolated"] else ""
        lines.append(f"N={s['samples']} L={s['depth']} w={s['width']} d={s['d']} {s['dtype']}{note}")
        for side, name in (("ours", "layer formula"), ("peer", "vmap(jacrev)")):
            t = r["seconds"][side]
            lines.append(
                f"  {name:<14} {t['median']:9.3f} s  [{t['least']:.3f}, {t['most']:.3f}]"
                f"  peak {r['peak_megabytes'][side]:7.0f} MB"
            )
        ratio = r["ratio"]
        lines.append(
            f"  ratio {ratio['median']:.0f} [{ratio['least']:.0f}, {ratio['most']:.0f}],"
            f" largest relative difference {r['relative_difference']:.1e}"
        )
    return "\n".join(lines)


def memory_of(side: str, arguments: list[str]) -> float:
    """Run one side once in this process; its peak resident memory in MB."""
    samples, depth, width, d = map(int, arguments[:4])
    net, X = problem(Setting(samples, depth, width, d, arguments[4], samples, 1))
    {"ours": ours, "peer": peer}[side](net, X)
    # Not ru_maxrss where it can be helped: a process started by a large one inherits its peak.
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small problem, for a smoke test")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--out", type=Path, help="write the JSON to this file too")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memory-of", choices=("ours", "peer"), help=argparse.SUPPRESS)
    parser.add_argument("sizes", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory_of:
        print(memory_of(options.memory_of, options.sizes))
        return
    report = {
        "benchmark": "ntk_trace",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "threads": options.threads,
        "quick": options.quick,
        "results": [run(setting, options.threads) for setting in (QUICK if options.quick else FULL)],
    }
    text = json.dumps(report, indent=2)
    print(text if options.json else table(report["results"]))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
