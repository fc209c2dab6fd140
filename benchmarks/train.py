"""Seconds to the loss that Adam alone ends at: our default plan against a plain PyTorch loop.

    python benchmarks/train.py [--quick] [--json] [--out benchmarks/results/train.json]

The task is F-rank-1's. The peer is what people write: ``nn.Sequential``, ``torch.optim.Adam`` at 1e-3, the ridge in the
loss, all samples in each step, 4,000 steps. Ours is timed at the first step whose weights have the peer's final loss at
the same ridge, and goes on to its end for the rank. Same data, same initial weights, same threads, one after the other.
Evaluating the rank is not timed.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
import time
import warnings
from pathlib import Path

import torch

from isthmus import ConvergenceWarning, FullyConnected, from_torch
from isthmus.experiments.rank2023.figure_1 import RankFigure1
from isthmus.files import write_json
from isthmus.measures import bottleneck_rank
from isthmus.problems import teacher
from isthmus.training import TrainingEvent, train


def peer(
    net: FullyConnected, X: torch.Tensor, Y: torch.Tensor, ridge: float, steps: int
) -> tuple[float, float, object]:
    """Plain PyTorch: (seconds, final loss, module)."""
    module = copy.deepcopy(net).to_torch()
    optimiser = torch.optim.Adam(module.parameters(), lr=1e-3)
    start = time.perf_counter()
    loss = torch.tensor(torch.nan)
    for _ in range(steps):
        optimiser.zero_grad()
        penalty = sum(p.square().sum() for p in module.parameters())
        loss = (module(X) - Y).square().sum(1).mean() + ridge * penalty
        loss.backward()
        optimiser.step()
    return time.perf_counter() - start, float(loss.detach()), module


def ours(net: FullyConnected, X: torch.Tensor, Y: torch.Tensor, ridge: float, target: float) -> dict[str, float | None]:
    """Our plan to its end; when the target was reached, and what it ended with."""
    reached: list[tuple[float, int]] = []
    start = time.perf_counter()

    def watch(event: TrainingEvent) -> None:
        if not reached and event.cost + ridge * event.norm <= target:
            reached.append((time.perf_counter() - start, event.step))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = train(net, X, Y, ridge=ridge, callbacks=[watch])
    seconds, step = reached[0] if reached else (None, None)
    return {"seconds": seconds, "step": step, "end_seconds": result.seconds, "end_loss": result.loss}


def main() -> None:
    """Run and show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small task, 500 steps of the peer")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    setting = RankFigure1.quick() if options.quick else RankFigure1()
    steps = 500 if options.quick else 4000
    rows = []
    for seed in range(options.repeats):
        problem = teacher(
            d_in=setting.d_in,
            rank=setting.rank,
            d_out=setting.d_out,
            relu_latents=True,
            samples=setting.samples,
            seed=seed,
        )
        X, Y = (torch.tensor(a, dtype=torch.float32) for a in (problem.X, problem.Y))
        dims = [setting.d_in, *[setting.width] * (setting.depth - 1), setting.d_out]
        net = FullyConnected(dims, generator=torch.Generator().manual_seed(seed))
        peer_seconds, target, module = peer(net, X, Y, setting.ridge, steps)
        row = ours(net, X, Y, setting.ridge, target)
        found = [bottleneck_rank(n.trace(X)) for n in (net, from_torch(module))]  # pyright: ignore[reportArgumentType]
        row.update(
            seed=seed,
            true_rank=setting.rank,
            peer_seconds=peer_seconds,
            peer_loss=target,
            ratio=None if row["seconds"] is None else peer_seconds / row["seconds"],
            rank=found[0].rank,
            peer_rank=found[1].rank,
        )
        rows.append(row)
    document = {
        "question": f"seconds to the loss of plain PyTorch Adam 1e-3 after {steps} steps",
        "peer": f"torch {torch.__version__}, nn.Sequential + torch.optim.Adam",
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "ridge": setting.ridge,
        "rows": rows,
    }
    if options.out:
        write_json(options.out, document)
    if options.json:
        print(json.dumps(document, indent=2))
        return
    print(document["question"])
    for r in rows:
        print(
            f"seed {r['seed']}: Adam {r['peer_seconds']:.1f} s, loss {r['peer_loss']:.4f}, rank {r['peer_rank']}; ours "
            f"{r['seconds']:.1f} s to that loss (ratio {r['ratio']:.1f}), in the end loss {r['end_loss']:.4f}, "
            f"rank {r['rank']} of {r['true_rank']}, {r['end_seconds']:.1f} s"
        )


if __name__ == "__main__":
    main()
