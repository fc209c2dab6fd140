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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _bench import arguments, interleaved, report, version
from _compress_page import picture, result, summary, table
from torch import Tensor, nn

import isthmus
from isthmus import FullyConnected
from isthmus.compression._compress import plain
from isthmus.compression._draft import Draft
from isthmus.compression._within import STEPS, fit_together
from isthmus.files import write_atomic
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


def of_module(module: nn.Sequential, slopes: Sequence[float]) -> FullyConnected:
    """The weights of a Sequential that torch-pruning left."""
    linear = [layer for layer in module if isinstance(layer, nn.Linear)]
    return FullyConnected.from_weights([a.weight for a in linear], [a.bias for a in linear], slope=slopes)


def size(net: nn.Module) -> int:
    """Scalars, without slopes that only tell which neurons are linear."""
    parts = [part for part in net.modules() if type(part) is not nn.PReLU]
    return sum(p.numel() for part in parts for p in part.parameters(recurse=False))


def networks(setting: Setting) -> Iterator[tuple[str, FullyConnected, Tensor, Tensor, Tensor, float]]:
    """(Name, network, training inputs, test inputs, test outputs, seconds of training)."""
    N = setting.samples
    task = teacher(d_in=20, rank=3, d_out=20, samples=2 * N, seed=0)
    X, Y = torch.from_numpy(task.X.copy()), torch.from_numpy(task.Y.copy())
    start = time.perf_counter()
    found = isthmus.discover(X[:N], Y[:N], width=setting.width, depth=setting.depth, rank=3, steps=setting.rounds)
    encoder: Any = found.encoder
    decoder: Any = found.decoder
    net = FullyConnected.joined(encoder.network, decoder)
    scaled = (X - encoder.shift) / encoder.scale
    yield "discover", net, scaled[:N], scaled[N:], Y[N:], time.perf_counter() - start
    start = time.perf_counter()
    source = torch.Generator().manual_seed(0)
    plain = FullyConnected([20, *[setting.width] * (setting.depth - 1), 20], generator=source)
    ridge = isthmus.ridge_from("rank2023", 0.05, depth=setting.depth)
    isthmus.train(plain, X[:N].float(), Y[:N].float(), ridge=ridge, max_seconds=setting.seconds)
    yield "train", plain.double(), X[:N], X[N:], Y[N:], time.perf_counter() - start


def truncated(net: FullyConnected, rank: int) -> FullyConnected:
    """Every weight by its best approximation of this rank, as two factors where that is smaller."""
    Ws: list[Tensor] = []
    bs: list[Tensor | None] = []
    slopes: list[float] = []
    for W, b, slope in zip(net.Ws, net.bs, [*net.slopes, 1.0]):
        U, s, Vh = torch.linalg.svd(W.detach(), full_matrices=False)
        r = min(rank, len(s))
        if r * sum(W.shape) < W.numel():
            Ws += [s[:r, None].sqrt() * Vh[:r], U[:, :r] * s[:r].sqrt()]
            bs += [None, b]
            slopes += [1.0, slope]
        else:
            Ws.append(W)
            bs.append(b)
            slopes.append(slope)
    return FullyConnected.from_weights(Ws, bs, slope=slopes[:-1])


def pruned(net: FullyConnected, ratio: float, X: Tensor, *, one_threshold: bool) -> FullyConnected:
    """torch-pruning's groups by magnitude; outputs and a narrow linear layer are left alone."""
    import torch_pruning as tp  # pyright: ignore[reportMissingImports]  (an extra)

    module = net.to_torch()
    linear = [layer for layer in module if isinstance(layer, nn.Linear)]
    kept = [layer for layer, slope in zip(linear, net.slopes) if slope == 1.0]
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
    return of_module(module, net.slopes)


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
    net: FullyConnected,
    data: tuple[Tensor, Tensor, Tensor],
    setting: Setting,
    say: Callable[[dict[str, Any]], None],
) -> list[dict[str, Any]]:
    """One row for each method and size."""
    X, test, Y = data
    rows: list[dict[str, Any]] = []
    with torch.no_grad():
        outputs = net(X)
    variance = float((Y - Y.mean(0)).square().sum())

    def error(made: Callable[[Tensor], Tensor]) -> float:
        with torch.no_grad():
            return float((made(test) - Y).square().sum()) / variance

    first, original = error(net), net.to_torch()

    def add(method: str, knob: float, fitted: bool, made: Any, **more: Any):
        with torch.no_grad():
            deviation = float((made(X) - outputs).abs().max() / outputs.abs().max())
        row = {
            "network": name,
            "method": method,
            "knob": knob,
            "fitted": fitted,
            "parameters": size(made),
            "times_fewer": size(net) / size(made),
            "test_error": error(made),
            "relative_error": error(made) / first,
            "deviation": deviation,
            **faster(plain(made), original, X),
            **more,
        }
        rows.append(row)
        say(row)

    def both(method: str, knob: float, made: FullyConnected) -> None:
        start = time.perf_counter()
        add(method, knob, False, made, widths=list(made.dims[1:-1]))
        draft, _ = fit_together(Draft.of(made), X.mT, outputs.mT, steps=setting.steps, stop=0.0)
        seconds = time.perf_counter() - start
        add(method, knob, True, draft.network(made), widths=draft.widths, seconds=round(seconds, 1))

    add("original", 0.0, False, net, widths=list(net.dims[1:-1]))
    for tolerance in setting.tolerances:
        start = time.perf_counter()
        found = isthmus.compress(copy.deepcopy(net), X, tolerance=tolerance)
        seconds = time.perf_counter() - start
        widths = [layer.after for layer in found.certificate.layers]
        add("compress", tolerance, True, found.network, widths=widths, seconds=round(seconds, 1))
    # Without it the table says so.
    for ratio in setting.ratios if version("torch-pruning") != "absent" else ():
        both("torch-pruning, one ratio", ratio, pruned(net, ratio, X, one_threshold=False))
        both("torch-pruning, one threshold", ratio, pruned(net, ratio, X, one_threshold=True))
    for rank in setting.ranks:
        both("SVD truncation", float(rank), truncated(net, rank))
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
    for name, net, X, test, Y, seconds in networks(setting):
        trained[name] = round(seconds, 1)
        rows += rows_of(name, net, (X, test, Y), setting, say)
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
