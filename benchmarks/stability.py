"""Is the rank a fact about the task? Learning rates × initial scales × seeds on two tasks of known rank.

    python benchmarks/stability.py [--task f-rank-1|rank-2|all] [--quick] [--json]
                                   [--out benchmarks/results/stability.json]

Every row is one training with the default plan; finished rows in the output file are not repeated. The summary says
how many found the true rank and how far apart the final losses of one task and data seed are.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from typing import Any

import numpy as np
import torch
from _bench import arguments, report

from isthmus._progress import silent
from isthmus.experiments.rank2023._bottleneck import KINDS, RankFigure1, measure
from isthmus.files import read_json, write_json

QUESTION = "Is the rank found a fact about the task, whatever the learning rate, the initial scale and the seed?"
COLUMNS = (
    "task",
    "learning_rate",
    "init_scale",
    "seed",
    "true_rank",
    "rank",
    "loss",
    "kept",
    "dropped",
    "state",
    "seconds",
)
LEARNING_RATES = (3e-4, 1e-3, 3e-3)
SCALES = (0.5, 1.0, 1.5)
SEEDS = (0, 1)
TASKS = {
    "f-rank-1": RankFigure1(),
    "rank-2": RankFigure1(d_in=20, d_out=20, rank=2, depth=8, width=50, samples=500, lam=1e-3),
}
QUICK = {"rank-2": RankFigure1(d_in=10, d_out=10, rank=2, depth=6, width=20, samples=200, lam=1e-2)}


def row(task: str, base: RankFigure1, rate: float, scale: float, seed: int) -> dict[str, object]:
    """One training, measured. The task stays that of seed 0; the seed is the network's."""
    experiment = base.replace(learning_rate=rate, init_scale=scale, network_seed=seed)
    start = time.perf_counter()
    net, X, result = experiment.solve(silent)
    arrays = measure(net, X, result, points=10)
    middle = arrays["representation_spectra"][len(arrays["representation_spectra"]) // 2]
    k = base.rank
    return {
        "task": task,
        "learning_rate": rate,
        "init_scale": scale,
        "seed": seed,
        "true_rank": k,
        "rank": int(arrays["rank"]),
        "ranks": dict(zip(KINDS, arrays["ranks"].tolist())),
        "loss": result.loss,
        "cost": result.cost,
        "norm_per_depth": result.norm_per_depth,
        "kept": float(middle[k - 1] / middle[0]),
        "dropped": float(middle[k] / middle[0]),
        "state": result.state,
        "evaluations": result.evaluations,
        "seconds": round(time.perf_counter() - start, 1),
    }


def summary(rows: list[dict]) -> list[dict]:
    """For each task: right answers, and the spread of the loss over everything that should not matter."""
    out = []
    for task in dict.fromkeys(r["task"] for r in rows):
        own = [r for r in rows if r["task"] == task]
        losses = np.array([r["loss"] for r in own])
        out.append(
            {
                "task": task,
                "runs": len(own),
                "right": sum(r["rank"] == r["true_rank"] for r in own),
                "representations_right": sum(r["ranks"]["representations"] == r["true_rank"] for r in own),
                "least_loss": float(losses.min()),
                "spread": float(losses.max() / losses.min() - 1),
                "median_seconds": float(np.median([r["seconds"] for r in own])),
            }
        )
    return out


def result(rows: list[dict]) -> dict[str, Any]:
    """Question, answer and table; ``kept`` and ``dropped`` are s_k/s₁ and s_{k+1}/s₁ of the middle layer."""
    told = [
        f"on {s['task']} the rank is right in {s['right']} of {s['runs']} and the losses lie within {s['spread']:.2%} "
        f"(median {s['median_seconds']:.0f} s)"
        for s in summary(rows)
    ]
    answer = "; ".join(told)
    answer = f"{answer[:1].upper()}{answer[1:]}."
    details = {"summary": summary(rows)}
    return {"question": QUESTION, "answer": answer, "columns": COLUMNS, "rows": rows, "details": details}


def main() -> None:
    """Run what is missing and show everything."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--task", choices=[*TASKS, "all"], default="all")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tasks = QUICK if options.quick else {k: v for k, v in TASKS.items() if options.task in (k, "all")}
    grid = list(itertools.product(LEARNING_RATES, SCALES, SEEDS))
    if options.quick:
        grid = [(3e-4, 0.5, 0), (3e-4, 1.5, 1), (3e-3, 0.5, 1), (3e-3, 1.5, 0)]
    rows: list[dict] = []
    if options.out and options.out.exists():
        rows = read_json(options.out)["rows"]
    before = len(rows)
    for task, base in tasks.items():
        for rate, scale, seed in grid:
            key = (task, rate, scale, seed)
            if any((r["task"], r["learning_rate"], r["init_scale"], r["seed"]) == key for r in rows):
                continue
            rows.append(row(task, base, rate, scale, seed))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
            if options.out:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                write_json(options.out, {"rows": rows})
    if before and before == len(rows):
        # Nothing was trained: what is kept is also kept as it was, provenance and all.
        options.out = None
    report(options, name="stability", **result(rows))


if __name__ == "__main__":
    main()
