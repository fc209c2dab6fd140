"""How often is the rank right on tasks from science, in what time, and is f learned as well as a plain net learns it?

    python benchmarks/science.py [--tasks a,b] [--seeds 0,1] [--peers] [--out benchmarks/results/science.json]

`discover` at its default arguments on the tasks of `_science_tasks.py`. Beside its held-out errors stand those of a
plain PyTorch net (160 wide, SiLU, AdamW) through k − 1, k and k + 1 numbers, the reference. With ``--peers`` come
TwoNN, MLE and the principal components with 99 % of the variance, of Y and of X, and a sweep of that plain net over the
width of its waist. ``--check`` trains the reference of the chosen tasks alone: can their truth be decided? It is kept
with the rows, and what is run later has it beside it.

Finished rows are kept beside ``--out`` in science_table.json and are not repeated unless ``--again`` asks for it; the
page is science_table.md.
"""

from __future__ import annotations

import math
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _bench import arguments, commit, processor_seconds, provenance, report
from _plain_nets import plain_error, plain_sweep
from _science_tasks import TASKS
from rank import learned, outcome, peers, told_learned

import isthmus
from isthmus.files import read_json, write_atomic, write_json

HERE = Path(__file__).resolve().parent
QUESTION = "How often is the rank right on tasks from science, in what time, and how well is f learned?"
DISTRIBUTIONS = ("scikit-dimension", "scikit-learn")
COLUMNS = ("task", "n", "noise", "true", "found", "outcome", "error", "reference", "seconds", "processor seconds")
#: Reference errors at k − 1, k, k + 1 that make a truth decidable: one less is this many times worse,
WORSE = 1.5
#: by this share of the variance at least, …
CLEAR = 0.004
#: … and one more is at most this many times better, unless the difference is below 0.002 of the variance.
BETTER = 1.5
NOTHING = 0.002


def row(name: str, seed: int, **small: Any) -> dict[str, Any]:
    """One task, discovered; ``small`` replaces defaults."""
    task = TASKS[name](seed)
    start, spent = time.perf_counter(), processor_seconds()
    answer: dict[str, Any]
    try:
        found = isthmus.discover(task.X, task.Y, groups=task.groups, **task.options, **small)
    except isthmus.IsthmusError as refused:
        answer = {"rank": None, "verdict": "refused", "error": None, "reasons": [str(refused)], "notes": []}
    else:
        errors = {} if found.profile is None else dict(zip(map(str, found.profile.ranks), found.profile.error.tolist()))
        answer = {"rank": found.rank, "verdict": found.verdict, "error": found.error, "errors": errors}
        answer |= {"reasons": list(found.reasons), "notes": list(found.notes)}
        answer["learners"] = found.settings.get("reference", {})
    seconds, processor = time.perf_counter() - start, processor_seconds() - spent
    row = {"problem": name, "seed": seed, "noise": task.noise, "samples": len(task.X), "dimension": task.dimension}
    row |= {"columns": [task.X.shape[1], task.Y.shape[1]], "true_rank": task.rank, **answer}
    return row | {"seconds": round(seconds, 1), "processor": round(processor, 1), "commit": commit()}


def decidable(errors: tuple[float, float, float]) -> bool:
    """Whether errors at k − 1, k, k + 1 show the truth: one less is clearly worse, one more about as good."""
    less, same, more = errors
    return less > max(WORSE * same, same + CLEAR) and (same < BETTER * more or same - more < NOTHING)


def check(name: str, seed: int) -> tuple[float, float, float]:
    """Errors of the plain net at k − 1, k and k + 1; of a second training too where the first decides nothing."""
    task = TASKS[name](seed)
    least = [math.inf] * 3
    for start in (0, 1):
        for j in range(3):
            # Through no number at all only a constant is left: 1. There is nothing below rank 0.
            k = task.rank + j - 1
            error = plain_error(task, k, seed=start) if k > 0 else (1.0 if k == 0 else math.nan)
            least[j] = error if k < 0 else min(least[j], error)
        if task.rank == 0 or decidable((least[0], least[1], least[2])):
            break
    return least[0], least[1], least[2]


def peer_row(name: str, seed: int) -> dict[str, Any]:
    """What the peers say on one task."""
    task = TASKS[name](seed)
    row = {"problem": name, "seed": seed, "true_rank": task.rank}
    for side, A in (("Y", task.Y), ("X", task.X)):
        row |= {f"{key} of {side}": value for key, value in peers(A).items()}
    start = time.perf_counter()
    answer = plain_sweep(task)
    row |= {"sweep": answer["rank"], "sweep_errors": answer["errors"]}
    return row | {"sweep_seconds": round(time.perf_counter() - start, 1)}


#: Keys of a row of the peers → what they are.
WAYS = {
    "two_nn of Y": "TwoNN of Y",
    "mle of Y": "MLE of Y",
    "pca of Y": "PCA of Y, 99 %",
    "two_nn of X": "TwoNN of X",
    "mle of X": "MLE of X",
    "pca of X": "PCA of X, 99 %",
    "sweep": "sweep of waists of a plain net",
}


def summary(rows: list[dict[str, Any]], beside: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts, times, and how often f is learned about as well as the reference does."""
    kinds = [outcome(r) for r in rows]
    pairs = [(r["error"], r["reference"][str(r["true_rank"])]) for r in rows if r["error"] and compared(r)]
    right = {}
    for key in WAYS:
        known = [r for r in beside if r.get(key) is not None and r["true_rank"] > 0]
        right[key] = (sum(round(r[key]) == r["true_rank"] for r in known), len(known))
    return {
        "tasks": len(rows),
        **{kind: kinds.count(kind) for kind in ("right", "undetermined", "wrong")},
        "guess_right": sum(r["rank"] == r["true_rank"] for r in rows if r["true_rank"] > 0),
        "with_a_rank": sum(r["true_rank"] > 0 for r in rows),
        "learned": sum(ours <= 1.5 * max(theirs, 1e-4) for ours, theirs in pairs),
        "compared": len(pairs),
        "beside_learners": learned(rows),
        "median_seconds": float(np.median([r["seconds"] for r in rows])),
        "median_processor": float(np.median([r["processor"] for r in rows])),
        "largest_seconds": max(r["seconds"] for r in rows),
        "peers": right,
    }


def compared(r: dict[str, Any]) -> bool:
    """Whether there is a reference at the true rank."""
    return r["true_rank"] > 0 and str(r["true_rank"]) in r["reference"]


def cell(value: float | None) -> str:
    """An error, or a dash."""
    return "–" if value is None or math.isnan(value) else f"{value:.2g}"


def page(rows: list[dict[str, Any]], beside: list[dict[str, Any]], document: dict[str, Any]) -> str:
    """The Markdown page."""
    s, about = summary(rows, beside), document["provenance"]
    lines = [
        "# Tasks from science: is the rank right?",
        "",
        "Written by `python benchmarks/science.py --out benchmarks/results/science.json`: default arguments, commit",
        f"{about['commit']}, {about['threads']} thread(s). A rank in brackets is the guess of an undetermined verdict.",
        "*Reference* are the held-out errors of a plain PyTorch net (160 wide, SiLU, AdamW, the better of two) through",
        "k − 1, k and k + 1 numbers, for the true rank k; *ours* those of `discover` there. Seconds are of the wall",
        "and of the processor. All tasks, with why their rank is what it is, stand in `_science_tasks.py`.",
        *([document["remark"]] if document.get("remark") else []),
        "",
        f"**{s['right']} of {s['tasks']} right, {s['undetermined']} undetermined, {s['wrong']} confidently wrong.** "
        f"Counting guesses: {s['guess_right']} of",
        f"{s['with_a_rank']} that have a rank. The answer's held-out error is at most 1.5 times the reference's on "
        f"{s['learned']} of {s['compared']}.",
        f"Median {s['median_seconds']:.0f} s ({s['median_processor']:.0f} s of processor), "
        f"largest {s['largest_seconds']:.0f} s.",
        "",
        "| task | seed | n | noise | true | dimension | discover | outcome | ours | reference | s | processor |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        kind, k = outcome(r), r["true_rank"]
        shown = f"**{kind}**" if kind == "wrong" else kind
        found = str(r["rank"]) if r["verdict"] == "determined" else f"({r['rank']})"
        ours, theirs = (
            " / ".join(cell(errors.get(str(k + j))) for j in (-1, 0, 1))
            for errors in (r.get("errors", {}), r["reference"])
        )
        lines.append(
            f"| {r['problem']} | {r['seed']} | {r['samples']} | {r['noise']:g} | {k} | {r['dimension']} | {found} | "
            f"{shown} | {ours} | {theirs} | {r['seconds']:.0f} | {r['processor']:.0f} |"
        )
    lines += told_learned(rows)
    if beside:
        lines += ["", "## Peers", ""]
        told = ", ".join(f"{way} {s['peers'][key][0]} of {s['peers'][key][1]}" for key, way in WAYS.items())
        lines += [f"Right when rounded, on tasks that have a rank: {told}.", ""]
        lines += [f"| task | seed | true | {' | '.join(WAYS.values())} | s |", "|---" * (len(WAYS) + 4) + "|"]
        for r in beside:
            cells = ["–" if r.get(key) is None else f"{r[key]:.1f}".removesuffix(".0") for key in WAYS]
            start = f"| {r['problem']} | {r['seed']} | {r['true_rank']} "
            lines.append(f"{start}| {' | '.join(cells)} | {r['sweep_seconds']:.0f} |")
    return "\n".join(lines) + "\n"


def table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the short table."""
    out = []
    for r in rows:
        one = {"task": f"{r['problem']} ({r['seed']})", "n": r["samples"], "noise": r["noise"], "true": r["true_rank"]}
        one |= {"found": r["rank"], "outcome": outcome(r), "error": r["error"], "seconds": r["seconds"]}
        out.append(one | {"reference": r["reference"].get(str(r["true_rank"])), "processor seconds": r["processor"]})
    return out


def chosen(text: str | None) -> list[str]:
    """Names of tasks, all by default."""
    names = list(TASKS) if text is None else text.split(",")
    if unknown := [name for name in names if name not in TASKS]:
        sys.exit(f"no task {', '.join(unknown)}: choose among {', '.join(TASKS)}")
    return names


def main() -> None:
    """Run what is missing and show the counts."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--tasks", metavar="A,B", help="names of tasks; all by default")
    parser.add_argument("--seeds", default="0,1", metavar="0,1", help="seeds of their samples")
    parser.add_argument("--peers", action="store_true", help="the peers too")
    parser.add_argument("--check", action="store_true", help="only the reference: can the truth be decided?")
    parser.add_argument("--again", action="store_true", help="repeat rows that are there")
    parser.add_argument("--remark", help="a sentence about the circumstances, for the page")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    names = ["gas-states"] if options.quick and options.tasks is None else chosen(options.tasks)
    seeds = [0] if options.quick else [int(seed) for seed in options.seeds.split(",")]
    wanted = [(name, seed) for name in names for seed in seeds]
    path = options.out.with_name("science_table.json") if options.out else None
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
    document = read_json(path) if path and path.exists() else {}
    references: dict[str, list[float | None]] = document.setdefault("references", {})
    document["remark"] = options.remark or document.get("remark", "")
    if options.check:
        for name, seed in wanted:
            errors = check(name, seed)
            references[f"{name} {seed}"] = [None if math.isnan(error) else error for error in errors]
            good = "decidable" if TASKS[name].rank == 0 or decidable(errors) else "NOT decidable"
            print(f"{name} ({seed}), k = {TASKS[name].rank}: {', '.join(map(cell, errors))}: {good}", flush=True)
            if path:
                write_json(path, document)
        return
    rows: list[dict[str, Any]] = document.get("rows", [])
    beside: list[dict[str, Any]] = document.get("peer_rows", [])
    order = [(name, seed) for name in TASKS for seed in seeds]
    small = {"depth": 4, "width": 16, "steps": 10, "replicas": 0} if options.quick else {}
    makers = (("rows", rows, partial(row, **small)), ("peer_rows", beside, peer_row))
    for kind, kept, make in makers[: 1 + options.peers]:
        for name, seed in wanted:
            old = [r for r in kept if (r["problem"], r["seed"]) == (name, seed)]
            if old and not options.again:
                continue
            for r in old:
                kept.remove(r)
            kept.append(make(name, seed))
            say(kept[-1])
            if kind == "rows":
                errors = references.get(f"{name} {seed}") or [None] * 3
                kept[-1]["reference"] = {
                    str(TASKS[name].rank + j): e for j, e in zip((-1, 0, 1), errors) if e is not None
                }
            kept.sort(
                key=lambda r: order.index((r["problem"], r["seed"])) if (r["problem"], r["seed"]) in order else -1
            )
            document |= {kind: kept, "provenance": provenance(DISTRIBUTIONS, quick=options.quick)}
            if path:
                keep(path, document, rows, beside)
    s = summary(rows, beside)
    answer = (
        f"`discover` is right on {s['right']} of {s['tasks']}, undetermined on {s['undetermined']}, confidently wrong "
        f"on {s['wrong']}, in {s['median_seconds']:.3g} s (median); its error is at most 1.5 times that of a plain net "
        f"through as many numbers on {s['learned']} of {s['compared']}."
    )
    details = {"rows of each task": "science_table.json", "page": "science_table.md", "summary": s}
    made = {"question": QUESTION, "answer": answer, "columns": COLUMNS, "rows": table(rows), "details": details}
    report(options, name="science", peers=DISTRIBUTIONS, **made)


def keep(path: Path, document: dict[str, Any], rows: list[dict[str, Any]], beside: list[dict[str, Any]]) -> None:
    """All rows into ``path``; the page too, unless it is a trial elsewhere."""
    write_json(path, document)
    if rows and path.resolve().parent == HERE / "results":
        write_atomic(HERE / "science_table.md", page(rows, beside, document).encode())


def say(r: dict[str, Any]) -> None:
    """One line while it runs."""
    if "verdict" in r:
        told = f"{outcome(r):13} found {r['rank']} ({r['verdict']}), error {cell(r['error'])}, "
        told += f"{r['seconds']:.1f} s, {r['processor']:.1f} s of processor"
        told += "".join(f"\n    {reason}" for reason in r["reasons"])
    else:
        told = ", ".join(f"{way} {cell(r.get(key))}" for key, way in WAYS.items())
    print(f"{r['problem']} ({r['seed']}), true {r['true_rank']}: {told}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
