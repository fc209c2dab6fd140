"""How often is the rank right, and in what time? Beside what people use today.

    python benchmarks/rank.py [--set catalogue hard peers] [--problems A,B] [--out benchmarks/results/rank.json]

`discover` at its default arguments on problems of known rank. Sets: *catalogue*, every problem at two seeds and two
levels of noise; *hard*, few samples, more noise, heavy tails; *peers*, ten problems of the catalogue, seed 0. On the
first two the peers are unsupervised: TwoNN and MLE of scikit-dimension on Y, and the principal components of Y with
99 % of its variance. On the third come the supervised ones (`_rank_peers.py`): PLS with components by five folds,
networks with an explicit bottleneck of 1, 2, … neurons (as deep and wide as ours, Adam, 1,500 steps each), and the
largest gap of the AGOP of xRFM; all sides are timed in turn, problem by problem.

Finished rows are kept beside ``--out`` in rank_table.json and are not repeated (``--again`` repeats those of the set
*peers*); the page rank_table.md has those of the first two sets.
"""

from __future__ import annotations

import itertools
import math
import platform
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _bench import arguments, commit, processor_seconds, provenance, report, version
from _rank_peers import PEERS, timed

import isthmus
from isthmus.files import read_json, write_atomic, write_json
from isthmus.problems import CATALOGUE, Problem, linear, norms, pure_noise, teacher, with_nuisances

HERE = Path(__file__).resolve().parent
QUESTION = "How often is the rank right on problems of known rank, and in what time?"
DISTRIBUTIONS = ("scikit-dimension", "scikit-learn", "xrfm")
COLUMNS = ("set", "way", "right", "of", "undetermined", "wrong", "median seconds", "largest seconds")
WAYS = {
    "two_nn": "TwoNN of Y",
    "mle": "MLE of Y",
    "pca": "PCA of Y, 99 %",
    "pls": "PLS, cross-validated",
    "sweep": "sweep of explicit bottlenecks",
    "agop": "gap of xRFM's AGOP",
}
#: Of the catalogue, for the costly peers: every kind of problem, and ranks 1 to 5.
FEW = (
    "teacher-1",
    "teacher-3",
    "teacher-5-narrow",
    "surface",
    "norm",
    "norms-2",
    "linear-3",
    "angle-embedded",
    "ball-vertical",
    "frequencies",
)
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


KINDS = {"catalogue": CATALOGUE, "hard": HARD}


def problems(which: Sequence[str]) -> list[tuple[str, int, float, Callable[[], Problem]]]:
    """(Name, seed, noise, maker) of everything in the set."""
    out: list[tuple[str, int, float, Callable[[], Problem]]] = []
    if "catalogue" in which:
        for seed, noises in NOISES.items():
            for noise in noises:
                for name, make in CATALOGUE.items():
                    if name != "pure-noise" or noise == 0.0:
                        out.append((name, seed, noise, partial(make, seed=seed, noise=noise)))
    if "hard" in which:
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


def row(name: str, seed: int, noise: float, make: Callable[[], Problem], jobs: int | None = None) -> dict[str, Any]:
    """One problem, discovered."""
    problem = make()
    start, spent = time.perf_counter(), processor_seconds()
    found = isthmus.discover(problem.X, problem.Y, groups=problem.groups, n_jobs=jobs)
    seconds, processor = time.perf_counter() - start, processor_seconds() - spent
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
        "processor": round(processor, 1),
        "commit": commit(),
        "reasons": list(found.reasons),
        "errors": {}
        if found.profile is None
        else dict(zip(map(str, found.profile.ranks), found.profile.error.tolist())),
        "learners": found.settings.get("reference", {}),
        **peers(problem.Y),
    }


def outcome(r: dict[str, Any]) -> str:
    """``"right"``, ``"undetermined"`` (the guess may be right) or ``"wrong"``: a determined rank that is not true."""
    if r["verdict"] == "determined":
        return "right" if r["rank"] == r["true_rank"] else "wrong"
    acceptable = r["true_rank"] == 0 or r["problem"] in MAY_BE_UNDETERMINED
    return "right" if r["verdict"] == "undetermined" and acceptable else "undetermined"


def learned(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How often f was learned: the least held-out error at any rank beside that of the best quick learner.

    ``within`` counts rows where it is at most 1.5 times as large; the others are named, with both errors and the
    verdict. Errors of 0.0001 and less count as equal.
    """
    known = [r for r in rows if r.get("learners") and r["errors"]]
    beyond = []
    for r in known:
        ours, theirs = min(r["errors"].values()), min(r["learners"].values())
        if ours > 1.5 * max(theirs, 1e-4):
            beyond.append({"problem": r["problem"], "seed": r["seed"], "noise": r["noise"], "ours": ours})
            beyond[-1] |= {"reference": theirs, "verdict": r["verdict"]}
    return {"compared": len(known), "within": len(known) - len(beyond), "beyond": beyond}


def told_learned(rows: list[dict[str, Any]]) -> list[str]:
    """The same as lines of a page; none where nothing was compared."""
    found = learned(rows)
    if not found["compared"]:
        return []
    lines = [
        "",
        "## Is f learned?",
        "",
        "The least held-out error at any rank, beside that of the best of kernel ridge regression, a forest and a",
        f"plain network on the same rows: at most 1.5 times as large (or 0.0001) on {found['within']} of "
        f"{found['compared']}.",
    ]
    if found["beyond"]:
        lines += [
            "The others:",
            "",
            "| problem | seed | noise | ours | reference | verdict |",
            "|---|---|---|---|---|---|",
        ]
    for r in found["beyond"]:
        noise = "–" if r["noise"] is None else f"{r['noise']:g}"
        lines.append(
            f"| {r['problem']} | {r['seed']} | {noise} | {r['ours']:.2g} | {r['reference']:.2g} | {r['verdict']} |"
        )
    return lines


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
        "learned": learned(rows),
        "median_seconds": float(np.median([spent(r) for r in rows])),
        "largest_seconds": max(spent(r) for r in rows),
    }


def spent(r: dict[str, Any]) -> float:
    """Seconds of processor time, which other jobs lengthen less; of the clock where that was not kept."""
    return r.get("processor", r["seconds"])


def table(rows: list[dict], document: dict[str, Any]) -> str:
    """The Markdown page."""
    s = summary(rows)
    near = s["peers_right"]
    lines = [
        "# Is the rank right?",
        "",
        "Written by `python benchmarks/rank.py --out benchmarks/results/rank.json` with the options",
        f"`--set {document['set']}`: default arguments, {document['threads']} thread(s). {document['remark']}",
        f"Peers on Y: scikit-dimension {document['scikit-dimension']} (TwoNN, MLE),",
        "the principal components with 99 % of the variance. A rank in brackets is only the guess of an undetermined",
        "verdict. For pure noise and for problems whose notes say so, *undetermined* is a right answer.",
        "",
        f"**{s['right']} of {s['problems']} right, {s['undetermined']} undetermined where a rank was wanted, "
        f"{s['wrong']} confidently wrong.** Counting guesses: {s['guess_right']} of {s['with_a_rank']} problems that",
        f"have a rank; TwoNN {near['two_nn']}, MLE {near['mle']}, PCA {near['pca']}. "
        f"Seconds are of processor time: median {s['median_seconds']:.0f}, largest {s['largest_seconds']:.0f}.",
        *versions(rows),
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
            f"{r['error']:.4f} | {spent(r):.0f} | {others[0]} | {others[1]} | {r['pca']} |"
        )
    return "\n".join([*lines, *told_learned(rows)]) + "\n"


def versions(rows: list[dict[str, Any]]) -> list[str]:
    """A sentence about the versions by which the rows were made."""
    made: dict[str, list[str]] = {}
    for r in rows:
        made.setdefault(r.get("commit", "not recorded"), []).append(f"{r['problem']} ({r['seed']}, {r['noise']})")
    # The most rows first, which then need no list.
    most, *others = sorted(made, key=lambda commit: -len(made[commit]))
    listed = "".join(f"; {commit}: {', '.join(made[commit])}" for commit in others)
    return [f"Commit {most}: {len(made[most])} of {len(rows)}{listed}."]


def peer_row(name: str, seed: int, noise: float, problem: Problem, **small: Any) -> dict[str, Any]:
    """One problem by ``discover`` and every peer, one after the other; ``small`` replaces defaults of ours."""
    start = time.perf_counter()
    found = isthmus.discover(problem.X, problem.Y, groups=problem.groups, **small)
    taken = round(time.perf_counter() - start, 1)
    row: dict[str, Any] = {"problem": name, "seed": seed, "noise": noise, "true_rank": problem.rank}
    row |= {"rank": found.rank, "verdict": found.verdict, "seconds": taken, **peers(problem.Y)}
    steps = {"sweep": {"steps": 100, "depth": small["depth"], "width": small["width"]}} if small else {}
    for key, (distribution, function) in PEERS.items():
        if version(distribution) == "absent":
            row[key] = None
            continue
        answer = timed(function, problem.X, problem.Y, problem.groups, **steps.get(key, {}))
        row |= {key: answer.pop("rank"), f"{key}_seconds": answer.pop("seconds"), f"{key}_details": answer}
    return row


def ways(name: str, rows: list[dict], keys: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of the short table: ours and each peer on one set."""
    if not rows:
        return []
    counts = {kind: sum(outcome(r) == kind for r in rows) for kind in ("right", "undetermined", "wrong")}
    told = f"{name}, {len(rows)} problems"
    out = [{"set": told, "way": "discover", **counts, "of": len(rows), **_seconds([spent(r) for r in rows])}]
    for key in keys:
        # Theirs is right when it rounds to the rank; pure noise has none that they could say.
        known = [r for r in rows if r.get(key) is not None and r["true_rank"] > 0]
        if not known:
            out.append({"set": told, "way": f"{WAYS[key]}: not installed, skipped"})
            continue
        right = sum(round(r[key]) == r["true_rank"] for r in known)
        count = {"right": right, "of": len(known), "wrong": len(known) - right}
        taken = _seconds([r[f"{key}_seconds"] for r in known])
        out.append({"set": told, "way": WAYS[key], **count, **taken})
    return out


def _seconds(taken: list[float]) -> dict[str, float]:
    return {"median seconds": float(np.median(taken)), "largest seconds": max(taken)}


def result(rows: list[dict], beside: list[dict]) -> dict[str, Any]:
    """Question, answer and the short table from all rows of the three sets."""
    catalogue = [r for r in rows if r["problem"] in CATALOGUE]
    hard = [r for r in rows if r["problem"] in HARD]
    table_rows = ways("catalogue", catalogue, ("two_nn", "mle", "pca")) + ways("hard", hard, ("two_nn", "mle", "pca"))
    table_rows += ways("peers", beside, tuple(WAYS))
    told = [
        f"`discover` is right on {r['right']} of the {r['of']} of the {r['set'].split(',')[0]} set, confidently wrong "
        f"on {r['wrong']}, in {r['median seconds']:.3g} s (median)"
        for r in table_rows
        if r["way"] == "discover"
    ]
    others = [r for r in table_rows if r["set"].startswith("peers") and r["way"] != "discover" and "right" in r]
    if others:
        best = max(others, key=lambda r: r["right"])
        told.append(
            f"beside it the best of {len(others)} peers, {best['way']}, is right on {best['right']} of {best['of']} "
            f"in {best['median seconds']:.3g} s"
        )
    answer = "; ".join(told) + "."
    details = {"rows of each problem": "rank_table.json", "page": "rank_table.md"}
    return {"question": QUESTION, "answer": answer, "columns": COLUMNS, "rows": table_rows, "details": details}


def keep(path: Path, document: dict[str, Any], rows: list[dict], beside: list[dict]) -> None:
    """All rows into ``path``; the page too."""
    document |= {"summary": summary(rows), "rows": rows, "peer_rows": beside} if rows else {"peer_rows": beside}
    write_json(path, document)
    # Elsewhere it is a trial.
    if rows and path.parent == HERE / "results":
        write_atomic(HERE / "rank_table.md", table(rows, document).encode())


def main() -> None:
    """Run what is missing and show the counts."""
    parser = arguments(__doc__ or "")
    sets = ("catalogue", "hard", "peers")
    parser.add_argument("--set", dest="which", nargs="+", choices=sets, default=["catalogue", "peers"])
    parser.add_argument("--problems", metavar="A,B", help="only these of the sets; all by default")
    parser.add_argument("--again", action="store_true", help="the rows of the set `peers` anew")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes of each discovery; as by default if not given")
    parser.add_argument("--remark", help="a sentence about the circumstances, for the page")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.quick:
        problem = teacher(d_in=8, rank=1, d_out=8, samples=200, seed=0)
        beside = [peer_row("teacher", 0, 0.0, problem, depth=4, width=16, steps=10, replicas=0)]
        report(options, name="rank", peers=DISTRIBUTIONS, **result([], beside))
        return
    path = options.out.with_name("rank_table.json") if options.out else None
    document = read_json(path) if path and path.exists() else {}
    rows, beside = document.get("rows", []), [] if options.again else document.get("peer_rows", [])
    done = {(r["problem"], r["seed"], r["noise"]) for r in rows}
    order = [(name, seed) for name, seed, *_ in problems(("catalogue", "hard"))]
    for name, seed, noise, make in problems(options.which):
        if options.problems and name not in options.problems.split(","):
            continue
        known = make().noise if math.isnan(noise) or name == "pure-noise" else noise
        if (name, seed, known if math.isfinite(known) else None) in done:
            continue
        r = row(name, seed, known, make, options.jobs)
        rows.append(r)
        rows.sort(key=lambda one: order.index((one["problem"], one["seed"])))
        say(r)
        present = [kind for kind in sets[:2] if any(one["problem"] in KINDS[kind] for one in rows)]
        about = {"set": " ".join(present), "remark": options.remark or document.get("remark", "")}
        about |= {"threads": torch.get_num_threads(), "machine": platform.machine()}
        about |= {"torch": version("torch"), "scikit-dimension": version("scikit-dimension")}
        document |= about
        if path:
            keep(path, document, rows, beside)
    if "peers" in options.which:
        for name, noise in itertools.product(FEW, NOISES[0]):
            if any((r["problem"], r["noise"]) == (name, noise) for r in beside):
                continue
            beside.append(peer_row(name, 0, noise, CATALOGUE[name](seed=0, noise=noise)))
            say(beside[-1])
            document["peer_rows_provenance"] = provenance(DISTRIBUTIONS, quick=False)
            if path:
                keep(path, document, rows, beside)
    report(options, name="rank", peers=DISTRIBUTIONS, **result(rows, beside))


def say(r: dict[str, Any]) -> None:
    """One line while it runs."""
    others = ", ".join(f"{key} {r[key]} in {r[f'{key}_seconds']:.1f} s" for key in PEERS if r.get(key) is not None)
    print(
        f"{outcome(r):13} {r['problem']} noise {r['noise']} seed {r['seed']}: true {r['true_rank']}, found {r['rank']} "
        f"({r['verdict']}), {r['seconds']:.1f} s{f'; {others}' if others else ''}",
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    main()
