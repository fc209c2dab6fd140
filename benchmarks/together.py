"""Networks of one shape trained together, beside training them one after another.

    python benchmarks/together.py [--quick] [--json] [--threads 1] [--out benchmarks/results/together.json]

64 networks of depth 9 and width 50, 200 samples of the task of F-bn-1, Adam at a constant rate on all samples, the
ridge in the loss. The peers: (a) what people write, ``nn.Sequential`` and ``torch.optim.Adam`` one network after the
other; (b) ``isthmus.train`` one after the other; (c) all at once by ``torch.func.vmap`` with one Adam for the stack.
Every repeat runs all sides in turn, (a) and (b) on a part of the networks, since one does not know of the next.
Times are those of the process where there is one thread (others may use the machine), of the clock otherwise.

Accuracy: all networks for more steps by (a) and by ours from the same weights, in both precisions: losses, and ranks as
F-bn-1 reads them. At last both of ours to convergence with L-BFGS. With ``--out`` in benchmarks/results the page
together.md is written too.
"""

from __future__ import annotations

import copy
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from _bench import arguments, report, version
from torch import Tensor, nn

from isthmus import ConvergenceWarning, FullyConnected
from isthmus.files import write_atomic
from isthmus.problems import partially_seen_surface
from isthmus.training import Phase, TrainingResult, train, train_together

HERE = Path(__file__).resolve().parent
QUESTION = "How much faster are networks of one shape trained together than one after the other?"
COLUMNS = ("precision", "side", "networks·steps/s", "least, most", "times PyTorch", "loss apart, median", "same rank")
#: Singular values of the middle weight that count, as in F-bn-1.
THRESHOLD = 0.1


@dataclass(frozen=True)
class Setting:
    """Task, networks and how long each part is."""

    nets: int = 64
    depth: int = 9
    width: int = 50
    d: int = 20
    samples: int = 200
    ridge: float = 0.02
    learning_rate: float = 1e-3
    timed_steps: int = 50
    part: int = 8
    steps: int = 300
    compared: int = 64
    newton: int = 1500
    converged: int = 8
    repeats: int = 5
    at_once: tuple[int, ...] = (4, 8, 16, 32, 64)

    def data(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """X and Y."""
        task = partially_seen_surface(latent_dim=8, seen=2, d_in=self.d, d_out=self.d, samples=self.samples, seed=0)
        return torch.tensor(task.X, dtype=dtype), torch.tensor(task.Y, dtype=dtype)

    def networks(self, count: int, dtype: torch.dtype) -> list[FullyConnected]:
        """The first ``count`` networks; of one number, the same weights in every precision."""
        dims = [self.d, *[self.width] * (self.depth - 1), self.d]
        return [FullyConnected(dims, generator=torch.Generator().manual_seed(i)).to(dtype) for i in range(count)]

    def adam(self, steps: int) -> list[Phase]:
        """Adam alone."""
        return [Phase("adam", steps, self.learning_rate)]


def plain(setting: Setting, nets: list[FullyConnected], X: Tensor, Y: Tensor, steps: int) -> list[nn.Module]:
    """(a): one network after the other, as people write it."""
    modules = [net.to_torch() for net in nets]
    for module in modules:
        optimiser = torch.optim.Adam(module.parameters(), lr=setting.learning_rate)
        for _ in range(steps):
            optimiser.zero_grad()
            penalty = sum(p.square().sum() for p in module.parameters())
            loss = (module(X) - Y).square().sum(1).mean() + setting.ridge * penalty
            loss.backward()
            optimiser.step()
    return list(modules)


def single(
    setting: Setting, nets: list[FullyConnected], X: Tensor, Y: Tensor, plan: list[Phase]
) -> list[TrainingResult]:
    """(b): ``train``, one after the other."""
    return [train(net, X, Y, ridge=setting.ridge, phases=plan, tolerance=1e-3) for net in nets]


def vmapped(setting: Setting, nets: list[FullyConnected], X: Tensor, Y: Tensor, steps: int) -> None:
    """(c): all at once by ``torch.func``."""
    params, _ = torch.func.stack_module_state(list(nets))
    skeleton = copy.deepcopy(nets[0]).to("meta")

    def loss(own: dict[str, Tensor]) -> Tensor:
        outputs = torch.func.functional_call(skeleton, own, (X,))
        return (outputs - Y).square().sum(1).mean() + setting.ridge * sum(p.square().sum() for p in own.values())

    optimiser = torch.optim.Adam(list(params.values()), lr=setting.learning_rate)
    for _ in range(steps):
        optimiser.zero_grad()
        torch.func.vmap(loss)(params).sum().backward()
        optimiser.step()


def seconds(function: Callable[[], Any], threads: int) -> tuple[float, Any]:
    """Time and result."""
    clock = time.process_time if threads == 1 else time.perf_counter
    start = clock()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = function()
    return clock() - start, result


def throughput(setting: Setting, threads: int, dtype: torch.dtype) -> dict[str, Any]:
    """Networks times steps in a second, of every side."""
    X, Y = setting.data(dtype)
    steps, few, all_of = setting.timed_steps, setting.part, setting.nets
    sides: dict[str, tuple[int, Callable[[list[FullyConnected]], Any]]] = {
        "PyTorch, one by one": (few, lambda nets: plain(setting, nets, X, Y, steps)),
        "train, one by one": (few, lambda nets: single(setting, nets, X, Y, setting.adam(steps))),
        f"vmap, {all_of} at once": (all_of, lambda nets: vmapped(setting, nets, X, Y, steps)),
    }
    options = {"ridges": setting.ridge, "phases": setting.adam(steps)}
    for size in setting.at_once:
        sides[f"train_together, {size} at once"] = (
            all_of,
            lambda nets, size=size: train_together(nets, X, Y, at_once=size, **options),
        )
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _, run in sides.values():
        seconds(lambda run=run: run(setting.networks(2, dtype)), threads)  # loads what is loaded lazily
    for _ in range(setting.repeats):
        for name, (count, run) in sides.items():
            nets = setting.networks(count, dtype)
            rates[name].append(count * steps / seconds(lambda run=run, nets=nets: run(nets), threads)[0])
    peer = rates["PyTorch, one by one"]
    return {
        name: {
            "rate": statistics.median(found),
            "range": [min(found), max(found)],
            "times_pytorch": statistics.median(a / b for a, b in zip(found, peer)),
        }
        for name, found in rates.items()
    }


@torch.no_grad()
def account(
    setting: Setting, Ws: Sequence[Tensor], parameters: Sequence[Tensor], outputs: Tensor, Y: Tensor
) -> tuple[float, int]:
    """Loss in float64, and the rank."""
    penalty = sum(float(p.double().square().sum()) for p in parameters)
    loss = float((outputs.double() - Y.double()).square().sum(1).mean()) + setting.ridge * penalty
    s = torch.linalg.svdvals(Ws[len(Ws) // 2].double())
    return loss, int((s > THRESHOLD).sum())


def accuracy(setting: Setting, dtype: torch.dtype) -> dict[str, Any]:
    """Ends of the same training by (a), by (b) on a part, and by ours."""
    X, Y = setting.data(dtype)
    starts = [setting.networks(setting.compared, dtype) for _ in range(2)]
    ends: dict[str, list[tuple[float, int]]] = {"peer": [], "permuted": [], "ours": [], "train": []}
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))
    few = setting.networks(setting.part, dtype)
    # The control: the same mathematics by the peer itself, its sums in another order.
    modules = {
        "peer": plain(setting, starts[0], X, Y, setting.steps),
        "permuted": plain(setting, few, X[order], Y[order], setting.steps),
    }
    for name, made in modules.items():
        for module in made:
            Ws = [p for p in module.parameters() if p.ndim == 2]
            ends[name].append(account(setting, Ws, list(module.parameters()), module(X), Y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        plan = setting.adam(setting.steps)
        results = train_together(starts[1], X, Y, ridges=setting.ridge, phases=plan)
        alone = single(setting, setting.networks(setting.part, dtype), X, Y, plan)
    for name, trained in (("ours", results), ("train", alone)):
        for result in trained:
            net = result.network
            assert isinstance(net, FullyConnected)
            ends[name].append(account(setting, list(net.Ws), list(net.parameters()), net(X), Y))

    def apart(first: str, second: str) -> dict[str, Any]:
        pairs = list(zip(ends[first], ends[second]))
        gaps = [abs(a[0] / b[0] - 1.0) for a, b in pairs]
        same, beyond = sum(a[1] == b[1] for a, b in pairs), sum(gap > 1e-5 for gap in gaps)
        spread = {"median": statistics.median(gaps), "largest": max(gaps), "beyond_1e-5": beyond}
        return {"networks": len(pairs), **spread, "same_rank": same}

    found = {"ours from PyTorch": apart("ours", "peer")}
    ends["ours_few"] = ends["ours"][: setting.part]
    found["ours from PyTorch, the networks below"] = apart("ours_few", "peer")
    found["train from PyTorch"] = apart("train", "peer")
    found["PyTorch, samples in another order, from PyTorch"] = apart("permuted", "peer")
    return found | {"losses": [a[0] for a in ends["peer"]][:8]}


def to_convergence(setting: Setting, threads: int) -> dict[str, Any]:
    """Adam, then L-BFGS until it has converged: seconds for a network, by ``train`` and together."""
    X, Y = setting.data(torch.float32)
    plan = [*setting.adam(2 * setting.timed_steps), Phase("lbfgs", setting.newton)]
    count = setting.converged
    a, alone = seconds(lambda: single(setting, setting.networks(count, torch.float32), X, Y, plan), threads)
    nets = setting.networks(count, torch.float32)
    b, ours = seconds(lambda: train_together(nets, X, Y, ridges=setting.ridge, phases=plan, tolerance=1e-3), threads)

    def told(results: list[TrainingResult], taken: float) -> dict[str, Any]:
        spectra = [torch.linalg.svdvals(r.network.Ws[setting.depth // 2].detach().double()) for r in results]  # pyright: ignore[reportAttributeAccessIssue, reportIndexIssue]
        return {
            "seconds_each": taken / count,
            "steps": sum(r.steps for r in results),
            "converged": sum(r.at_rest for r in results),
            "losses": [r.loss for r in results],
            "ranks": [int((s > THRESHOLD).sum()) for s in spectra],
        }

    rows = {"train": told(alone, a), "train_together": told(ours, b)}
    per_step = [rows[name]["seconds_each"] / rows[name]["steps"] for name in ("train", "train_together")]
    gaps = [abs(r.loss / s.loss - 1.0) for r, s in zip(ours, alone)]
    summary = {"times_for_a_step": per_step[0] / per_step[1], "gap_median": statistics.median(gaps)}
    return {"networks": count, **rows, "times": a / b, **summary, "gap": max(gaps)}


def table(document: dict[str, Any]) -> str:
    """The Markdown page."""
    s = document["setting"]
    lines = [
        "# Networks trained together",
        "",
        f"Written by `python benchmarks/together.py --out benchmarks/results/together.json`; {document['threads']} "
        f"thread(s), torch {document['torch']}.",
        f"{s['nets']} networks of depth {s['depth']}, width {s['width']}, N = {s['samples']}; Adam at "
        f"{s['learning_rate']:g} on all samples, ridge {s['ridge']:g} in the loss.",
        f"Medians of {s['repeats']} interleaved repeats [least, most]; the ratio is the median of the paired ratios.",
        document["remark"],
        "",
        "| precision | side | networks·steps/s | times PyTorch |",
        "|---|---|---|---|",
    ]
    for precision, rows in document["throughput"].items():
        for name, row in rows.items():
            low, high = row["range"]
            rate = f"{row['rate']:.0f} [{low:.0f}, {high:.0f}]"
            lines.append(f"| {precision} | {name} | {rate} | {row['times_pytorch']:.2f} |")
    lines += [
        "",
        f"The same {s['steps']} steps from the same weights: relative difference of the losses, and equal ranks. In",
        "float32 rounding is amplified on the way. The control for that is PyTorch against itself with its samples in",
        "another order; compare it with ours on the same networks.",
        "After so few steps no rank has settled: equal ranks say that equal numbers of singular values are above the",
        "threshold, not that a structure was found twice; for that see the last paragraph.",
        "",
        "| precision | | median | largest | beyond 1e-5 | equal ranks |",
        "|---|---|---|---|---|---|",
    ]
    for precision, rows in document["accuracy"].items():
        for name, row in rows.items():
            if name != "losses":
                gaps = f"{row['median']:.1e} | {row['largest']:.1e} | {row.get('beyond_1e-5', '')}"
                lines.append(f"| {precision} | {name} | {gaps} | {row['same_rank']} of {row['networks']} |")
    c = document["convergence"]

    def told(name: str) -> str:
        r = c[name]
        return (
            f"`{name}` {r['seconds_each']:.1f} s each, {r['steps']} steps in all, {r['converged']} converged, "
            f"ranks {r['ranks']}"
        )

    lines += [
        "",
        f"At most {s['newton']} steps of L-BFGS after Adam, float32, {c['networks']} networks: {told('train')}; "
        f"{told('train_together')}. Together {c['times']:.2f} times as fast, for a step {c['times_for_a_step']:.2f}. "
        f"Losses apart by {c['gap_median']:.1e} in the median, {c['gap']:.1e} at most.",
    ]
    return "\n".join(lines) + "\n"


def result(document: dict[str, Any]) -> dict[str, Any]:
    """Question, answer and table: throughput, and how far apart the ends are from PyTorch's."""
    rows, told = [], []
    for precision, sides in document["throughput"].items():
        apart = document["accuracy"][precision]
        for name, side in sides.items():
            row = {"precision": precision, "side": name, "networks·steps/s": side["rate"], "least, most": side["range"]}
            row["times PyTorch"] = side["times_pytorch"]
            key = {"train_": "ours from PyTorch", "train,": "train from PyTorch"}.get(name[:6])
            if key:
                row["loss apart, median"] = apart[key]["median"]
                row["same rank"] = f"{apart[key]['same_rank']} of {apart[key]['networks']}"
            rows.append(row)
        own = [row for row in rows if row["precision"] == precision and row["side"].startswith("train_")]
        best = max(own, key=lambda row: row["times PyTorch"])
        told.append(f"in {precision} up to {best['times PyTorch']:.2f} times PyTorch one by one ({best['side']})")
    c = document["convergence"]
    answer = (
        f"In networks times steps a second: {'; '.join(told)}. After Adam and at most {document['setting']['newton']} "
        f"steps of L-BFGS, together is {c['times']:.2f} times as fast as `train`, and losses are apart by "
        f"{c['gap']:.1e} at most."
    )
    return {"question": QUESTION, "answer": answer, "columns": COLUMNS, "rows": rows, "details": document}


def main() -> None:
    """Run and show the table."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--short", action="store_true", help="the same networks, fewer steps: for a busy machine")
    parser.add_argument("--remark", default="", help="a sentence about the circumstances, for the page")
    # On shared cores, threads that wait for one another measure the neighbours.
    parser.set_defaults(threads=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    setting = Setting()
    if options.quick:
        few = {"part": 2, "steps": 20, "compared": 4, "newton": 30, "converged": 2, "repeats": 2, "at_once": (2, 4)}
        setting = Setting(nets=4, depth=4, width=10, samples=40, timed_steps=5, **few)
    elif options.short:
        setting = Setting(timed_steps=20, steps=200, compared=16, newton=400, converged=4, at_once=(8, 64))
    if options.repeats:
        setting = replace(setting, repeats=options.repeats)
    kinds = {"float32": torch.float32, "float64": torch.float64}
    document = {
        "benchmark": "together",
        "python": platform.python_version(),
        "torch": version("torch"),
        "machine": platform.machine(),
        "threads": options.threads,
        "clock": "process" if options.threads == 1 else "wall",
        "quick": options.quick,
        "remark": options.remark,
        "setting": {**vars(setting), "at_once": list(setting.at_once)},
        "throughput": {name: throughput(setting, options.threads, kind) for name, kind in kinds.items()},
        "accuracy": {name: accuracy(setting, kind) for name, kind in kinds.items()},
        "convergence": to_convergence(setting, options.threads),
    }
    report(options, name="together", **result(document))
    if options.out and not options.quick and options.out.resolve().parent == HERE / "results":
        write_atomic(HERE / "together.md", table(document).encode())


if __name__ == "__main__":
    main()
