"""How long does a discovery take from end to end? F-rank-1's task: 2,000 rows, 50 inputs, 50 outputs, rank 5.

    python benchmarks/discover.py [--quick] [--json] [--repeats SEEDS] [--out benchmarks/results/discover.json]

`discover` at its default arguments, replica, refits and evidence included, one task after the other in one process that
has imported everything. Beside it, as what people would do instead, Adam in plain PyTorch for as long on a network of
F-rank-1's depth and width, and the rank that can be read off it then.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from _bench import Gate, arguments, report, spread

import isthmus
from isthmus.experiments.rank2023._bottleneck import RankFigure1
from isthmus.measures import bottleneck_rank
from isthmus.problems import Problem, teacher

#: Seconds that the issue allows on two cores.
LIMIT = 20.0


def adam_for(problem: Problem, setting: RankFigure1, seconds: float, seed: int) -> int | None:
    """The rank read off a plain network after so many seconds of Adam at 1e-3."""
    dims = [setting.d_in, *[setting.width] * (setting.depth - 1), setting.d_out]
    module = isthmus.FullyConnected(dims, generator=torch.Generator().manual_seed(seed)).to_torch()
    X, Y = (torch.tensor(a, dtype=torch.float32) for a in (problem.X, problem.Y))
    optimiser = torch.optim.Adam(module.parameters(), lr=1e-3)
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        optimiser.zero_grad()
        penalty = torch.stack([p.square().sum() for p in module.parameters()]).sum()
        ((module(X) - Y).square().sum(1).mean() + setting.ridge * penalty).backward()
        optimiser.step()
    return bottleneck_rank(isthmus.from_torch(module).trace(X)).rank


def one(setting: RankFigure1, seed: int) -> dict[str, Any]:
    """Both sides on one task."""
    shape = {"d_in": setting.d_in, "rank": setting.rank, "d_out": setting.d_out, "samples": setting.samples}
    problem = teacher(**shape, relu_latents=True, seed=seed)
    began = time.perf_counter()
    found = isthmus.discover(problem.X, problem.Y)
    seconds = time.perf_counter() - began
    return {
        "seed": seed,
        "seconds": seconds,
        "rank": found.rank,
        "verdict": found.verdict,
        "held-out error": found.error,
        "true rank": setting.rank,
        "rank by Adam in that time": adam_for(problem, setting, seconds, seed),
    }


def main() -> None:
    """Run and show."""
    options = arguments(__doc__ or "").parse_args()
    torch.set_num_threads(options.threads)
    setting = RankFigure1.quick() if options.quick else RankFigure1()
    rows = [one(setting, seed) for seed in range(options.repeats or (1 if options.quick else 3))]
    taken = spread([row["seconds"] for row in rows])
    right = sum(row["rank"] == row["true rank"] for row in rows)
    by_adam = sum(row["rank by Adam in that time"] == row["true rank"] for row in rows)
    median = taken["median"]
    gates = [
        Gate("discover on F-rank-1's task, seconds (median)", median, f"≤ {LIMIT:g}", median <= LIMIT),
        Gate("discover on F-rank-1's task, share of ranks right", right / len(rows), "1", right == len(rows)),
    ]
    report(
        options,
        name="discover",
        question="How long does a discovery take from end to end on F-rank-1's task?",
        answer=(
            f"{median:.1f} s in the median ({min(r['seconds'] for r in rows):.1f} to "
            f"{max(r['seconds'] for r in rows):.1f}), the rank right for {right} of {len(rows)}; off a network trained "
            f"by Adam for as long it can be read for {by_adam}."
        ),
        columns=["seed", "seconds", "rank", "verdict", "held-out error", "true rank", "rank by Adam in that time"],
        rows=rows,
        gates=gates if not options.quick else [],
        peers=["torch"],
    )


if __name__ == "__main__":
    main()
