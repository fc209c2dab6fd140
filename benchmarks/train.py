"""Seconds to the loss at which the papers' recipe ends: our default plan, plain PyTorch, jitted JAX + optax.

    python benchmarks/train.py [--quick] [--json] [--repeats SEEDS] [--out benchmarks/results/train.json]

F-rank-1's task at the paper's size, smaller and larger. The recipe is the papers': Adam at 1e-3, then plain gradient
descent (at the largest rate of a list at which the loss falls; choosing it is not timed), all samples in each step, the
ridge in the loss. In PyTorch: ``nn.Sequential``, autograd, ``torch.optim``. In JAX the whole loop is compiled
(``lax.scan``, donated buffers); compiling is not timed. Ours is timed at the first step whose weights have the lower
of the two final losses at the same ridge, and goes on to its end for the rank. Same data, same initial weights, one
after the other in float32; the order changes with the seed. PyTorch has ``--threads``; XLA takes the cores it finds.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from _bench import Gate, arguments, compare, report
from _jax_recipe import jax_there, jitted_jax
from _recipes import Trained, followed, plain_pytorch

from isthmus import FullyConnected, from_torch
from isthmus.experiments.rank2023._bottleneck import RankFigure1
from isthmus.measures import bottleneck_rank
from isthmus.problems import teacher
from isthmus.training import TrainingResult


@dataclass(frozen=True)
class Setting:
    """A size of F-rank-1's task, and the steps of the recipe."""

    name: str
    setting: RankFigure1
    adam: int
    descent: int
    seeds: int


PAPER = Setting("F-rank-1", RankFigure1(), 4000, 1000, 3)
FULL = (
    Setting("smaller", RankFigure1(d_in=20, d_out=20, rank=3, depth=8, width=50, samples=500), 4000, 1000, 3),
    PAPER,
    Setting("wider", RankFigure1(width=200), 800, 200, 1),
)
QUICK = (Setting("quick", RankFigure1.quick(), 400, 100, 2),)


def one(case: Setting, seed: int) -> dict[str, Any]:
    """All sides on one task."""
    s = case.setting
    shape = {"d_in": s.d_in, "rank": s.rank, "d_out": s.d_out, "samples": s.samples}
    problem = teacher(**shape, relu_latents=True, seed=seed)
    X, Y = (torch.tensor(a, dtype=torch.float32) for a in (problem.X, problem.Y))
    dims = [s.d_in, *[s.width] * (s.depth - 1), s.d_out]
    start = FullyConnected(dims, generator=torch.Generator().manual_seed(seed))
    steps: dict[str, Any] = {"adam": case.adam, "descent": case.descent}
    found: dict[str, Any] = {}
    net = copy.deepcopy(start)

    def pytorch() -> Trained:
        return plain_pytorch(copy.deepcopy(start), X, Y, s.ridge, **steps, every=case.adam + case.descent)

    def isthmus() -> tuple[TrainingResult, list[tuple[float, float]]]:
        return followed(net, X, Y, s.ridge)

    for side in (("pytorch", pytorch), ("isthmus", isthmus))[:: 1 if seed % 2 == 0 else -1]:
        found[side[0]] = side[1]()
    # After PyTorch, whose rate it takes.
    rate = found["pytorch"].rate
    found["jax"] = jitted_jax(start, X, Y, s.ridge, **steps, rate=rate) if jax_there() else None
    recipe, jax = found["pytorch"], found["jax"]
    target = min([recipe.loss] + ([jax["loss"]] if jax else []))
    result, curve = found["isthmus"]
    reached = next((t for t, loss in curve if loss <= target), None)
    ranks = [bottleneck_rank(n.trace(X)).rank for n in (net, from_torch(recipe.module))]
    return {
        "task": case.name,
        "seed": seed,
        "target": target,
        "PyTorch s": recipe.seconds,
        "JAX s": jax["seconds"] if jax else None,
        "ours s": reached,
        "× PyTorch": recipe.seconds / reached if reached else None,
        "× JAX": jax["seconds"] / reached if reached and jax else None,
        "ours end s": result.seconds,
        "ours end loss": result.loss,
        "rank": ranks[0],
        "recipe's rank": ranks[1],
        "true rank": s.rank,
        "steps": [case.adam, case.descent],
        "rate": rate,
        "compiling s": jax["compiling"] if jax else None,
        "state": result.state,
    }


def main() -> None:
    """Run and show."""
    options = arguments(__doc__ or "").parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    for case in QUICK if options.quick else FULL:
        for seed in range(min(options.repeats or case.seeds, case.seeds)):
            rows.append(one(case, seed))
            print(f"{case.name}, seed {seed}: done", flush=True) if not options.json else None
    main_case = "quick" if options.quick else PAPER.name
    chosen = [row for row in rows if row["task"] == main_case]
    missed = [row for row in chosen if row["ours s"] is None]
    gates, answer = [], f"ours did not reach the recipe's loss for {len(missed)} of {len(chosen)} seeds"
    if not missed:
        seconds = {key: [row[f"{key} s"] for row in chosen] for key in ("ours", "PyTorch", "JAX")}
        torch_side = compare(seconds, "ours", "PyTorch")
        right = sum(row["rank"] == row["true rank"] for row in chosen)
        gates.append(
            Gate("train: times plain PyTorch's recipe on F-rank-1", torch_side.ratio, "≥ 5", torch_side.ratio >= 5)
        )
        gates.append(Gate("train: share of ranks that are right", right / len(chosen), "1", right == len(chosen)))
        answer = (
            f"On {main_case} ours has the recipe's final loss after {torch_side.ratio:.1f} times less time than plain "
            f"PyTorch ({torch_side.low:.1f} to {torch_side.high:.1f} over {torch_side.pairs} seeds)"
        )
        if None not in seconds["JAX"]:
            jax_side = compare(seconds, "ours", "JAX")
            gates.append(Gate("train: times jitted JAX + optax", jax_side.ratio, "> 1", jax_side.ratio > 1))
            answer += f", {jax_side.ratio:.1f} times less than jitted JAX ({jax_side.low:.1f} to {jax_side.high:.1f})"
        answer += (
            f"; it ends at a loss of {min(r['ours end loss'] for r in chosen):.3g} where the recipe ends at "
            f"{min(r['target'] for r in chosen):.3g}, with the right rank for {right} of {len(chosen)}."
        )
    report(
        options,
        name="train",
        question="How many seconds to the regularised loss at which the papers' recipe ends?",
        answer=answer,
        columns=[
            *("task", "seed", "target", "PyTorch s", "JAX s", "ours s", "× PyTorch", "× JAX", "ours end s"),
            *("ours end loss", "rank", "recipe's rank", "true rank"),
        ],
        rows=rows,
        gates=gates if not options.quick else [],
        peers=["torch", "jax", "jaxlib", "optax"],
    )


if __name__ == "__main__":
    main()
