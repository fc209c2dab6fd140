"""How small can a trained network get, and what does it cost in test error?

    python benchmarks/compress.py [--quick] [--json] [--out benchmarks/results/compress.json]

Two networks of width 100 and depth 10 on a task of rank 3, one from `discover` and one from `train`. `compress` at
several tolerances; beside it torch-pruning (groups by magnitude, at one ratio for all layers and by one threshold for
all) and the truncated SVD of every weight. The peers are shown as they come, and after all their weights were fitted to
the outputs of the original network on the training inputs by the same L-BFGS, of the same length, that `compress` uses.
Nothing but the training inputs is used by any of them. The latency is that of a pass of all training inputs through a
plain ``nn.Sequential`` of what a side made, in turn with the original's. With ``--out`` in benchmarks/results also
compress.md beside this file, and the curve as a PNG beside the JSON.
"""

from __future__ import annotations

import copy
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _bench import arguments, interleaved, report, version
from _compress_page import picture, result, summary, table
from torch import Tensor, nn

import isthmus
from isthmus.compression._within import STEPS, count_parameters, polish, run
from isthmus.files import write_atomic
from isthmus.networks import Hourglass
from isthmus.problems import teacher


@dataclass(frozen=True)
class Setting:
    """Sizes of the task, of the networks and of the search."""

    samples: int = 1000
    width: int = 100
    depth: int = 10
    tolerances: tuple[float, ...] = (0.0, 1e-3, 1e-2, 3e-2, 5e-2, 1e-1, 0.15)
    ratios: tuple[float, ...] = (0.5, 0.7, 0.8, 0.85, 0.9, 0.93)
    ranks: tuple[int, ...] = (3, 4, 6, 12, 25)
    steps: int = STEPS
    seconds: float = 300.0
    rounds: int = 50


HERE = Path(__file__).resolve().parent
#: Pairs of passes for a latency.
PASSES = 21
FULL = Setting()
QUICK = Setting(200, 24, 4, (1e-2,), (0.5,), (3,), 10, 1.0, 10)


@dataclass
class Stack:
    """Weights, what is added and slopes of a fully connected network: what every candidate is turned into."""

    Ws: list[Tensor]
    bs: list[Tensor | None]
    slopes: list[float]

    @property
    def masks(self) -> list[Tensor]:
        """No neuron is linear by itself."""
        return [torch.zeros(len(W), dtype=torch.bool) for W in self.Ws[:-1]]

    def __call__(self, X: Tensor) -> Tensor:
        """Outputs (N, d_out)."""
        return run(self.Ws, self.bs, self.slopes, self.masks, X.mT).mT

    @property
    def parameters(self) -> int:
        """Scalars."""
        return count_parameters(self.Ws, self.bs)

    @property
    def widths(self) -> list[int]:
        """Neurons in each hidden layer."""
        return [len(W) for W in self.Ws[:-1]]

    def module(self) -> nn.Sequential:
        """Linear and ReLU layers; Identity where the slope is 1."""
        layers: list[nn.Module] = []
        for i, (W, b) in enumerate(zip(self.Ws, self.bs)):
            linear = nn.Linear(W.shape[1], len(W), bias=b is not None, dtype=torch.float64)
            linear.weight.data = W.clone()
            if b is not None:
                linear.bias.data = b.clone()
            layers.append(linear)
            if i + 1 < len(self.Ws):
                layers.append(nn.Identity() if self.slopes[i] == 1.0 else nn.ReLU())
        return nn.Sequential(*layers)


def of_module(module: nn.Sequential, slopes: list[float]) -> Stack:
    """The weights of a Sequential that torch-pruning left."""
    linear = [layer for layer in module if isinstance(layer, nn.Linear)]
    return Stack([a.weight.detach().clone() for a in linear], [a.bias.detach().clone() for a in linear], slopes)


def networks(setting: Setting) -> Iterator[tuple[str, nn.Module, Stack, Tensor, Tensor, Tensor, float]]:
    """(Name, network, its stack, training inputs, test inputs, test outputs, seconds of training)."""
    N = setting.samples
    task = teacher(d_in=20, rank=3, d_out=20, samples=2 * N, seed=0)
    X, Y = torch.from_numpy(task.X.copy()), torch.from_numpy(task.Y.copy())
    start = time.perf_counter()
    found = isthmus.discover(X[:N], Y[:N], width=setting.width, depth=setting.depth, rank=3, steps=setting.rounds)
    encoder: Any = found.encoder
    decoder: Any = found.decoder
    net = Hourglass(encoder.network, decoder)
    scaled = (X - encoder.shift) / encoder.scale
    stack = Stack([W.detach() for W in net.Ws], [b.detach() for b in net.bs], list(net.slopes))
    yield "discover", net, stack, scaled[:N], scaled[N:], Y[N:], time.perf_counter() - start
    start = time.perf_counter()
    source = torch.Generator().manual_seed(0)
    plain = isthmus.FullyConnected([20, *[setting.width] * (setting.depth - 1), 20], generator=source)
    ridge = isthmus.ridge_from("rank2023", 0.05, depth=setting.depth)
    isthmus.train(plain, X[:N].float(), Y[:N].float(), ridge=ridge, max_seconds=setting.seconds)
    plain = plain.double()
    stack = Stack([W.detach() for W in plain.Ws], [b.detach() for b in plain.bs], list(plain.slopes))
    yield "train", plain, stack, X[:N], X[N:], Y[N:], time.perf_counter() - start


def truncated(stack: Stack, rank: int) -> Stack:
    """Every weight by its best approximation of this rank, as two factors where that is smaller."""
    made = Stack([], [], [])
    for i, (W, b) in enumerate(zip(stack.Ws, stack.bs)):
        U, s, Vh = torch.linalg.svd(W, full_matrices=False)
        r = min(rank, len(s))
        if r * sum(W.shape) < W.numel():
            made.Ws += [s[:r, None].sqrt() * Vh[:r], U[:, :r] * s[:r].sqrt()]
            made.bs += [None, b]
            made.slopes.append(1.0)
        else:
            made.Ws.append(W)
            made.bs.append(b)
        if i + 1 < len(stack.Ws):
            made.slopes.append(stack.slopes[i])
    return made


def pruned(stack: Stack, ratio: float, X: Tensor, *, one_threshold: bool) -> Stack:
    """torch-pruning's groups by magnitude; outputs and a narrow linear layer are left alone."""
    import torch_pruning as tp  # pyright: ignore[reportMissingImports]  (an extra)

    module = stack.module()
    linear = [layer for layer in module if isinstance(layer, nn.Linear)]
    kept = [layer for layer, slope in zip(linear, stack.slopes) if slope == 1.0]
    pruner = tp.pruner.BasePruner(
        module,
        X[:8],
        importance=tp.importance.GroupMagnitudeImportance(p=2),
        pruning_ratio=ratio,
        global_pruning=one_threshold,
        # By one threshold whole layers would vanish.
        max_pruning_ratio=0.97,
        ignored_layers=[*kept, linear[-1]],
    )
    pruner.step()
    return of_module(module, stack.slopes)


def faster(made: nn.Module, original: nn.Module, X: Tensor) -> dict[str, float]:
    """Milliseconds of a pass through what was made, and how many times as long the original takes: medians of pairs."""

    def through(net: nn.Module) -> Callable[[], Tensor]:
        def run() -> Tensor:
            with torch.no_grad():
                return net(X)

        return run

    seconds, _ = interleaved({"made": through(made), "original": through(original)}, PASSES, warm=3)
    ratios = [b / a for a, b in zip(seconds["made"], seconds["original"])]
    return {"milliseconds": 1e3 * statistics.median(seconds["made"]), "times_faster": statistics.median(ratios)}


def rows_of(
    name: str,
    net: nn.Module,
    stack: Stack,
    data: tuple[Tensor, Tensor, Tensor],
    setting: Setting,
    say: Callable[[dict[str, Any]], None],
) -> list[dict[str, Any]]:
    """One row for each method and size."""
    X, test, Y = data
    rows: list[dict[str, Any]] = []
    outputs = stack(X)
    variance = float((Y - Y.mean(0)).square().sum())

    def error(made: Callable[[Tensor], Tensor]) -> float:
        with torch.no_grad():
            return float((made(test) - Y).square().sum()) / variance

    first, original = error(stack), stack.module()

    def add(method: str, knob: float, fitted: bool, parameters: int, made: Any, **more: Any):
        # A network of ours and a stack become the same kind of module.
        plain = made.module() if isinstance(made, Stack) else made.to_torch() if hasattr(made, "to_torch") else made
        with torch.no_grad():
            deviation = float((made(X) - outputs).abs().max() / outputs.abs().max())
        row = {
            "network": name,
            "method": method,
            "knob": knob,
            "fitted": fitted,
            "parameters": parameters,
            "times_fewer": stack.parameters / parameters,
            "test_error": error(made),
            "relative_error": error(made) / first,
            "deviation": deviation,
            **faster(plain, original, X),
            **more,
        }
        rows.append(row)
        say(row)

    def both(method: str, knob: float, made: Stack) -> None:
        start = time.perf_counter()
        add(method, knob, False, made.parameters, made, widths=made.widths)
        Ws, bs, _ = polish(made.Ws, made.bs, made.slopes, made.masks, X.mT, outputs.mT, steps=setting.steps, stop=0.0)
        tuned = Stack(Ws, bs, made.slopes)
        seconds = time.perf_counter() - start
        add(method, knob, True, tuned.parameters, tuned, widths=tuned.widths, seconds=round(seconds, 1))

    add("original", 0.0, False, stack.parameters, stack, widths=stack.widths)
    for tolerance in setting.tolerances:
        start = time.perf_counter()
        found = isthmus.compress(copy.deepcopy(net), X, tolerance=tolerance)
        seconds = time.perf_counter() - start
        size = found.certificate.parameters_after
        widths = [layer.after for layer in found.certificate.layers]
        add("compress", tolerance, True, size, found.network, widths=widths, seconds=round(seconds, 1))
    # Without it the table says so.
    for ratio in setting.ratios if version("torch-pruning") != "absent" else ():
        both("torch-pruning, one ratio", ratio, pruned(stack, ratio, X, one_threshold=False))
        both("torch-pruning, one threshold", ratio, pruned(stack, ratio, X, one_threshold=True))
    for rank in setting.ranks:
        both("SVD truncation", float(rank), truncated(stack, rank))
    return rows


def main() -> None:
    """Train, compress, and show the table."""
    options = arguments(__doc__ or "").parse_args()
    torch.set_num_threads(options.threads)
    setting = QUICK if options.quick else FULL

    def say(r: dict[str, Any]) -> None:
        print(
            f"{r['network']:9} {r['method']:29} {r['knob']:<6g} {'fitted' if r['fitted'] else '':7} "
            f"{r['times_fewer']:6.1f} times fewer, {r['times_faster']:.1f} times faster, error × "
            f"{r['relative_error']:.3g}",
            file=sys.stderr,
            flush=True,
        )

    rows: list[dict[str, Any]] = []
    trained: dict[str, float] = {}
    for name, net, stack, X, test, Y, seconds in networks(setting):
        trained[name] = round(seconds, 1)
        rows += rows_of(name, net, stack, (X, test, Y), setting, say)
    document = {
        "samples": setting.samples,
        "width": setting.width,
        "depth": setting.depth,
        "steps": setting.steps,
        "seconds_of_training": trained,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "torch": version("torch"),
        "torch-pruning": version("torch-pruning"),
        "summary": summary(rows),
        "rows": rows,
    }
    report(options, name="compress", peers=("torch-pruning",), **result(document))
    if options.out and not options.quick and options.out.resolve().parent == HERE / "results":
        write_atomic(options.out.with_suffix(".png"), picture(rows))
        write_atomic(HERE / "compress.md", table(rows, document).encode())


if __name__ == "__main__":
    main()
