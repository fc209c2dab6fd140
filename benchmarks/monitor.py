"""What does a Monitor cost a training loop?

    python benchmarks/monitor.py [--quick] [--json] [--threads N] [--out benchmarks/results/monitor.json]

The same training with and without ``isthmus.Monitor(module, X, every=…, budget=None)``, in turn: seconds of the
processor (those of the clock depend on who else is there), their difference in pairs with a sign test, the share that
the Monitor itself reports, what one snapshot takes of 100 steps, and whether the weights are the same bit for bit.
With ``--out`` in benchmarks/results the page ``monitor.md`` is written beside this file.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import math
import statistics
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from _bench import Gate, arguments, report, version
from _real_models import images, resnet18
from torch import Tensor, nn

import isthmus
from isthmus.files import write_atomic

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests"), str(HERE.parent / "tests" / "diagnosis")]

QUESTION = "What does a Monitor cost a training loop?"
COLUMNS = (
    "name",
    "batch",
    "steps",
    "snapshots",
    "seconds without",
    "seconds with",
    "extra",
    "p_value",
    "own_share",
    "milliseconds_per_snapshot",
    "snapshot_over_100_steps",
    "same_weights",
)

#: Share of 100 steps that a snapshot of a residual network may take.
MOST = 0.05


@dataclass(frozen=True)
class Setting:
    """One network and how it is trained."""

    name: str
    batch: int
    steps: int
    every: int
    repeats: int


FULL = (
    Setting("MLP 6×256", 256, 300, 100, 11),
    Setting("small ResNet", 64, 300, 100, 11),
    # As `transformers` builds it, on images of 32²; fewer steps, as each takes a second or so.
    Setting("ResNet-18", 64, 20, 20, 3),
)
QUICK = (Setting("MLP 6×256", 32, 4, 2, 1), Setting("small ResNet", 8, 4, 2, 1))


def problem(setting: Setting) -> tuple[nn.Module, Tensor, Tensor]:
    """A network, and batch after batch of data and targets."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if setting.name.startswith("MLP"):
            parts = [part for _ in range(5) for part in (nn.Linear(256, 256), nn.ReLU())]
            net: nn.Module = nn.Sequential(*parts, nn.Linear(256, 256))
            shape, outputs = (256,), 256
        elif setting.name == "ResNet-18":
            net = resnet18()[0]
            return net, images(128, 3, 32), torch.randn(128, 1000, generator=generator)
        else:
            # That of the tests, which are no package.
            net, shape, outputs = importlib.import_module("architectures").ResNet(), (3, 8, 8), 5
    X = torch.randn(max(512, setting.batch), *shape, generator=generator)
    return net, X, torch.randn(len(X), outputs, generator=generator)


def train(setting: Setting, monitored: bool) -> tuple[float, float, dict[str, Tensor]]:
    """Seconds of the processor, the Monitor's own share of those of the clock, and the weights at the end."""
    net, X, Y = problem(setting)
    net = copy.deepcopy(net)
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    order = torch.Generator().manual_seed(1)
    watching = isthmus.Monitor(net, X, every=setting.every, budget=None)
    around: Any = watching if monitored else contextlib.nullcontext()
    started = time.process_time()
    with around:
        for _ in range(setting.steps):
            rows = torch.randint(len(X), (setting.batch,), generator=order)
            optimiser.zero_grad()
            output = net(X[rows])
            (getattr(output, "logits", output) - Y[rows]).square().mean().backward()
            optimiser.step()
    seconds = time.process_time() - started
    return seconds, around.overhead if monitored else 0.0, dict(net.state_dict())


def sign_test(differences: list[float]) -> float:
    """Two-sided p-value of as many positive differences, were both signs equally likely."""
    n, k = len(differences), sum(d > 0 for d in differences)
    tail = sum(math.comb(n, i) for i in range(max(k, n - k), n + 1)) / 2**n
    return min(1.0, 2 * tail)


def run(setting: Setting) -> dict[str, Any]:
    """Pairs of trainings, the first of a pair in turn."""
    train(Setting(setting.name, setting.batch, 2, 1, 1), monitored=True)  # loads what is loaded lazily
    plain, with_it, shares, same = [], [], [], True
    for repeat in range(setting.repeats):
        done = {monitored: train(setting, monitored) for monitored in sorted((False, True), reverse=bool(repeat % 2))}
        plain.append(done[False][0])
        with_it.append(done[True][0])
        shares.append(done[True][1])
        same &= all(torch.equal(value, done[True][2][name]) for name, value in done[False][2].items())
    differences = [b - a for a, b in zip(plain, with_it)]
    # One on entering, and one on leaving unless it is due anyway.
    snapshots = 1 + -(-setting.steps // setting.every)
    each = statistics.median(s * b for s, b in zip(shares, with_it)) / snapshots
    return {
        **asdict(setting),
        "snapshots": snapshots,
        "seconds_without": plain,
        "seconds_with": with_it,
        "extra": statistics.median(d / a for d, a in zip(differences, plain)),
        "own_share": statistics.median(shares),
        "milliseconds_per_snapshot": 1e3 * each,
        "snapshot_over_100_steps": each / (100.0 * statistics.median(plain) / setting.steps),
        "p_value": sign_test(differences),
        "same_weights": same,
    }


def table(results: list[dict[str, Any]], about: dict[str, Any]) -> str:
    """The page that is kept."""
    lines = [
        "# What a Monitor costs",
        "",
        "The same training (Adam) with and without `isthmus.Monitor(module, X, budget=None)`, in pairs.",
        "Seconds are the processor's; the extra is the median over the pairs, p that of a sign test, the own share",
        "`monitor.overhead`. One snapshot is that of entering: a longer training has relatively fewer, and a share",
        "like that of one snapshot in 100 steps. With the default `budget=0.05` a long training spends at most 5 % on",
        "snapshots, whatever they cost.",
        "",
        "| network | batch | steps | snapshots | seconds without | with | extra time | p | own share | "
        "ms per snapshot | of 100 steps | weights the same |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in results:
        without, with_it = (statistics.median(one[key]) for key in ("seconds_without", "seconds_with"))
        lines.append(
            f"| {one['name']} | {one['batch']} | {one['steps']} | {one['snapshots']} | {without:.2f} | {with_it:.2f} | "
            f"{one['extra']:+.1%} | {one['p_value']:.2g} | {one['own_share']:.1%} | "
            f"{one['milliseconds_per_snapshot']:.0f} | {one['snapshot_over_100_steps']:.1%} | "
            f"{'bit for bit' if one['same_weights'] else 'NO'} |"
        )
    return "\n".join(
        [
            *lines,
            "",
            f"PyTorch {about['torch']}, {about['threads']} thread, {about['repeats']} pairs (ResNet-18: 3). Written by "
            "`benchmarks/monitor.py`.",
            "",
        ]
    )


def result(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Question, answer and table; the seconds of every pair are in the details."""
    rows = []
    for one in results:
        without, with_it = (statistics.median(one[key]) for key in ("seconds_without", "seconds_with"))
        rows.append({**one, "seconds without": without, "seconds with": with_it})
        for key in ("seconds_without", "seconds_with"):
            del rows[-1][key]
    told = "; ".join(
        f"{one['extra']:+.1%} of the time of {one['name']} (p = {one['p_value']:.2g}), "
        f"{one['milliseconds_per_snapshot']:.0f} ms a snapshot ({one['snapshot_over_100_steps']:.1%} of 100 steps), "
        f"weights {'' if one['same_weights'] else 'NOT '}the same"
        for one in results
    )
    return {
        "question": QUESTION,
        "answer": f"A Monitor costs {told}.",
        "columns": COLUMNS,
        "rows": rows,
        "details": {"results": results},
    }


def main() -> int:
    """Run, print, keep."""
    parser = arguments(__doc__ or "")
    # On shared cores, threads that wait for one another measure the neighbours.
    parser.set_defaults(threads=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    settings = QUICK if options.quick else FULL
    if options.repeats:
        settings = tuple(replace(setting, repeats=options.repeats) for setting in settings)
    results = [run(setting) for setting in settings]
    nets = [] if options.quick else [one for one in results if "ResNet" in one["name"]]
    told = "{}, share of 100 steps that a snapshot takes"
    shares = [(told.format(one["name"]), one["snapshot_over_100_steps"]) for one in nets]
    gates = [Gate(what, share, f"≤ {MOST:g}", share <= MOST) for what, share in shares]
    report(options, name="monitor", gates=gates, **result(results))
    if options.out and not options.quick and options.out.resolve().parent == HERE / "results":
        about = {"torch": version("torch"), "threads": options.threads, "repeats": settings[0].repeats}
        write_atomic(HERE / "monitor.md", table(results, about).encode())
    return 0 if all(one["same_weights"] for one in results) else 1


if __name__ == "__main__":
    sys.exit(main())
