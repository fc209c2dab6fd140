"""How often is the rank right? Every problem of the catalogue and harder ones, beside what people use today.

    python benchmarks/rank_table.py [--set catalogue|hard|all] [--quick] [--out benchmarks/results/rank_table.json]

`discover` at its default arguments. Peers: TwoNN and MLE of scikit-dimension on Y, and the principal components of Y
with 99 % of its variance. Finished rows in the output file are not repeated; with ``--out`` the table is also written
beside this file as rank_table.md.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import math
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import isthmus
from isthmus.files import read_json, write_atomic, write_json
from isthmus.problems import CATALOGUE, Problem, linear, norms, pure_noise, teacher, with_nuisances

#: Seed → noise levels: none, and the ends of 3 to 10 %.
NOISES = {0: (0.0, 0.03), 1: (0.0, 0.1)}
#: Where "undetermined" is as right as the rank: theory.md §6 and the problems' own notes.
MAY_BE_UNDETERMINED = {"pure-noise", "product", "product-decoder", "pure-noise-wide", "teacher-8-few"}


def hostile(*, rank: int, samples: int, irrelevant: int, tails: float | None, seed: int, noise: float) -> Problem:
    """A teacher behind irrelevant correlated columns, other units, heavy tails of inputs and noise."""
    problem = teacher(d_in=12, rank=rank, d_out=15, samples=samples, seed=seed, noise=noise)
    return with_nuisances(
        problem, irrelevant=irrelevant, units=2.0, heavy_tails=0.5, noise_tails=tails, shuffle=True, seed=seed
    )


#: Harder than the catalogue: few samples, more noise, heavy tails. Makers of (seed) alone.
HARD: dict[str, Callable[..., Problem]] = {
    "teacher-8-few": partial(teacher, d_in=30, rank=8, d_out=30, samples=400, noise=0.1),
    "teacher-3-few": partial(teacher, d_in=10, rank=3, d_out=10, samples=200, noise=0.1),
    "teacher-2-noise-20": partial(teacher, d_in=20, rank=2, d_out=20, samples=1000, noise=0.2),
    "teacher-5-noise-20": partial(teacher, d_in=20, rank=5, d_out=20, samples=2000, noise=0.2),
    "teacher-4-noise-30": partial(teacher, d_in=20, rank=4, d_out=20, samples=2000, noise=0.3),
    "norms-2-noise-20": partial(norms, blocks=2, samples=2000, noise=0.2),
    "linear-5-noise-30": partial(linear, d_in=30, d_out=20, rank=5, samples=500, noise=0.3),
    "tails": partial(hostile, rank=3, samples=1500, irrelevant=10, tails=3.0, noise=0.1),
    "irrelevant": partial(hostile, rank=2, samples=1500, irrelevant=60, tails=None, noise=0.05),
    "pure-noise-wide": partial(pure_noise, d_in=40, d_out=20, samples=1000),
}


def problems(which: str) -> list[tuple[str, int, float, Callable[[], Problem]]]:
    """(Name, seed, noise, maker) of everything in the set."""
    out: list[tuple[str, int, float, Callable[[], Problem]]] = []
    if which in ("catalogue", "all"):
        for seed, noises in NOISES.items():
            for noise in noises:
                for name, make in CATALOGUE.items():
                    if name != "pure-noise" or noise == 0.0:
                        out.append((name, seed, noise, partial(make, seed=seed, noise=noise)))
    if which in ("hard", "all"):
        out += [(name, seed, math.nan, partial(make, seed=seed)) for seed in NOISES for name, make in HARD.items()]
    return out


def peers(Y: np.ndarray) -> dict[str, Any]:
    """Dimension of the cloud of outputs by unsupervised estimators, and the seconds each took."""
    out: dict[str, Any] = {}
    Y = (Y - Y.mean(axis=0)) / np.where(Y.std(axis=0) > 0, Y.std(axis=0), 1.0)
    try:
        from skdim.id import MLE, TwoNN  # pyright: ignore[reportMissingImports]  (an extra)
    except ImportError:
        out["two_nn"] = out["mle"] = None
    else:
        for name, estimator in (("two_nn", TwoNN()), ("mle", MLE())):
            start = time.perf_counter()
            try:
                out[name] = float(estimator.fit(Y).dimension_)
            except (ValueError, np.linalg.LinAlgError) as problem:
                out[name] = None
                print(f"{name}: {problem}", file=sys.stderr)
            out[f"{name}_seconds"] = round(time.perf_counter() - start, 2)
    start = time.perf_counter()
    variances = np.linalg.svd(Y, compute_uv=False) ** 2
    out["pca"] = int(np.searchsorted(np.cumsum(variances), 0.99 * variances.sum()) + 1)
    out["pca_seconds"] = round(time.perf_counter() - start, 2)
    return out


def row(name: str, seed: int, noise: float, make: Callable[[], Problem]) -> dict[str, Any]:
    """One problem, discovered."""
    problem = make()
    start = time.perf_counter()
    found = isthmus.discover(problem.X, problem.Y, groups=problem.groups)
    seconds = time.perf_counter() - start
    noise = problem.noise if math.isnan(noise) else noise
    return {
        "problem": name,
        "seed": seed,
        "noise": noise if math.isfinite(noise) else None,
        "samples": problem.samples,
        "true_rank": problem.rank,
        "rank": found.rank,
        "verdict": found.verdict,
        "error": found.error,
        "seconds": round(seconds, 1),
        "reasons": list(found.reasons),
        "errors": {}
        if found.profile is None
        else dict(zip(map(str, found.profile.ranks), found.profile.error.tolist())),
        **peers(problem.Y),
    }


def outcome(r: dict[str, Any]) -> str:
    """``"right"``, ``"undetermined"`` (the guess may be right) or ``"wrong"``: a determined rank that is not true."""
    if r["verdict"] == "determined":
        return "right" if r["rank"] == r["true_rank"] else "wrong"
    acceptable = r["true_rank"] == 0 or r["problem"] in MAY_BE_UNDETERMINED
    return "right" if r["verdict"] == "undetermined" and acceptable else "undetermined"


def summary(rows: list[dict]) -> dict[str, Any]:
    """Counts and times."""
    informative = [r for r in rows if r["true_rank"] > 0]
    near = {
        key: sum(r[key] is not None and round(r[key]) == r["true_rank"] for r in informative)
        for key in ("two_nn", "mle", "pca")
    }
    return {
        "problems": len(rows),
        **{kind: sum(outcome(r) == kind for r in rows) for kind in ("right", "undetermined", "wrong")},
        "guess_right": sum(r["rank"] == r["true_rank"] for r in informative),
        "with_a_rank": len(informative),
        "peers_right": near,
        "median_seconds": float(np.median([r["seconds"] for r in rows])),
        "largest_seconds": max(r["seconds"] for r in rows),
    }


def table(rows: list[dict], document: dict[str, Any]) -> str:
    """The Markdown page."""
    s = summary(rows)
    near = s["peers_right"]
    lines = [
        "# Is the rank right?",
        "",
        "Written by `python benchmarks/rank_table.py --out benchmarks/results/rank_table.json` with the options",
        f"`--set {document['set']}`: default arguments, {document['threads']} thread(s). {document['remark']}",
        f"Peers on Y: scikit-dimension {document['scikit-dimension']} (TwoNN, MLE),",
        "the principal components with 99 % of the variance. A rank in brackets is only the guess of an undetermined",
        "verdict. For pure noise and for problems whose notes say so, *undetermined* is a right answer.",
        "",
        f"**{s['right']} of {s['problems']} right, {s['undetermined']} undetermined where a rank was wanted, "
        f"{s['wrong']} confidently wrong.** Counting guesses: {s['guess_right']} of {s['with_a_rank']} problems that",
        f"have a rank; TwoNN {near['two_nn']}, MLE {near['mle']}, PCA {near['pca']}. "
        f"Median {s['median_seconds']:.0f} s, largest {s['largest_seconds']:.0f} s.",
        "",
        "| problem | noise | seed | n | true | discover | outcome | held-out error | s | TwoNN | MLE | PCA |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        found = str(r["rank"]) if r["verdict"] in ("determined", "trivial") else f"({r['rank']})"
        noise = "∞" if r["noise"] is None else f"{r['noise']:g}"
        kind = outcome(r)
        shown = f"**{kind}**" if kind == "wrong" else kind
        others = [("–" if r[key] is None else f"{r[key]:.1f}") for key in ("two_nn", "mle")]
        lines.append(
            f"| {r['problem']} | {noise} | {r['seed']} | {r['samples']} | {r['true_rank']} | {found} | {shown} | "
            f"{r['error']:.4f} | {r['seconds']:.0f} | {others[0]} | {others[1]} | {r['pca']} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is missing and show the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", dest="which", choices=["catalogue", "hard", "all"], default="all")
    parser.add_argument("--quick", action="store_true", help="three problems")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--remark", default="", help="a sentence about the circumstances, for the table")
    options = parser.parse_args()
    rows: list[dict] = []
    if options.out and options.out.exists():
        rows = read_json(options.out)["rows"]
    done = {(r["problem"], r["seed"], r["noise"]) for r in rows}
    todo = problems(options.which)
    if options.quick:
        todo = [item for item in todo if item[0] in ("teacher-1", "ball-vertical", "pure-noise")][:3]
    order = [(name, seed) for name, seed, *_ in problems("all")]
    for name, seed, noise, make in todo:
        known = make().noise if math.isnan(noise) or name == "pure-noise" else noise
        if (name, seed, known if math.isfinite(known) else None) in done:
            continue
        r = row(name, seed, known, make)
        rows.append(r)
        rows.sort(key=lambda one: order.index((one["problem"], one["seed"])))
        print(
            f"{outcome(r):13} {name} noise {noise:g} seed {seed}: true {r['true_rank']}, found {r['rank']} "
            f"({r['verdict']}), {r['seconds']:.1f} s",
            file=sys.stderr,
            flush=True,
        )
        if options.out:
            document = {
                "set": options.which,
                "remark": options.remark,
                "threads": torch.get_num_threads(),
                "machine": platform.machine(),
                "torch": torch.__version__.split("+")[0],
                "scikit-dimension": importlib.metadata.version("scikit-dimension"),
                "summary": summary(rows),
                "rows": rows,
            }
            write_json(options.out, document)
            write_atomic(Path(__file__).with_suffix(".md"), table(rows, document).encode())
    print(summary(rows))


if __name__ == "__main__":
    main()
