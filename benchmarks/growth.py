"""How does our cost grow with samples, width, depth, rank and the number of runs?

    python benchmarks/growth.py [--quick] [--json] [--repeats N] [--threads N] [--out benchmarks/results/growth.json]

For each quantity one size varies and the others stay. In a round every size runs once; the exponent is the slope of
log(median seconds) over log(size) by least squares, its interval that of Student's t with two degrees of freedom fewer
than sizes, hence wide where sizes are few. The largest slope between neighbours shows growth that a fit averages away.
Sizes are a factor of 8 or more apart, in the range where arithmetic dominates. Seeds are fixed, data synthetic.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from _bench import Gate, arguments, interleaved, report, spread
from _growth import MAKERS, STEPS
from scipy import stats

from isthmus import ConvergenceWarning

QUESTION = "How does our cost grow with samples, width, depth, rank and the number of runs?"
COLUMNS = ("quantity", "variable", "sizes", "exponent", "±", "largest local slope", "expected", "seconds", "rounds")
FEWEST, MOST = 3, 25
#: What may not grow faster than linearly, by quantity and variable.
LINEAR = (("training step", "samples"), ("training step", "depth"))
LIMIT = 1.1
OTHERS = (("discover", "rank"), ("discover", "levels walked"), ("train_together", "runs"))


@dataclass(frozen=True)
class Row:
    """One quantity and the size that varies; ``expected`` is the exponent that counting operations gives."""

    quantity: str
    variable: str
    sizes: tuple[int, ...]
    quick: tuple[int, ...]
    expected: str

    def candidate(self, size: int) -> Callable[[], Any]:
        """What is timed at one size."""
        return MAKERS[self.quantity](**{self.variable: size})


_N, _DEPTHS, _WIDTHS = (500, 1000, 2000, 4000, 8000), (4, 8, 16, 32, 64), (100, 200, 400, 800)
_FEW = (100, 200, 400)
ROWS = (
    Row("training step", "samples", _N, _FEW, "1"),
    Row("training step", "width", _WIDTHS, (50, 100, 200), "2"),
    Row("training step", "depth", _DEPTHS, (2, 4, 8), "1"),
    Row("L-BFGS step", "samples", _N, _FEW, "≤ 1: the metric sees at most 2000"),
    Row("L-BFGS step", "width", (32, 64, 128, 256), (25, 50, 100), "2 to 3: the metric's eigenvectors"),
    Row("L-BFGS step", "depth", (4, 8, 16, 32), (2, 4, 8), "1"),
    Row("ntk_trace", "samples", _N, _FEW, "1"),
    Row("ntk_trace", "width", (50, 100, 200, 400), (25, 50, 100), "2"),
    Row("ntk_trace", "depth", _DEPTHS, (2, 4, 8), "1"),
    Row("weight_spectra", "width", _WIDTHS, (50, 100, 200), "3"),
    Row("weight_spectra", "depth", _DEPTHS, (2, 4, 8), "1"),
    Row("bottleneck_rank", "samples", _N, _FEW, "1"),
    Row("bottleneck_rank", "width", (50, 100, 200, 400), (25, 50, 100), "2 to 3"),
    Row("bottleneck_rank", "depth", (4, 8, 16, 32), (2, 4, 8), "1"),
    Row("compress", "samples", (250, 500, 1000, 2000), (50, 100), "1"),
    Row("compress", "width", (40, 80, 160, 320), (10, 20), "2 to 3"),
    Row("compress", "depth", (3, 6, 12, 24), (2, 4), "1"),
    Row("discover", "rank", (2, 4, 8, 16), (2, 4), "≤ 1: the first training is shared"),
    Row("train_together", "runs", (4, 8, 16, 32, 64), (2, 4, 8), "≤ 1"),
)


def fit(sizes: Sequence[int], seconds: Sequence[float]) -> dict[str, Any]:
    """Exponent, half its interval of 95 % (None for two sizes) and the largest slope between neighbours."""
    order = np.argsort(sizes, kind="stable")
    x, y = np.log(np.array(sizes, dtype=float)[order]), np.log(np.array(seconds)[order])
    if x[0] == x[-1]:
        return {"exponent": None, "±": None, "largest local slope": None}
    apart = np.diff(x) > 0
    found = stats.linregress(x, y)
    half = float(stats.t.ppf(0.975, len(x) - 2) * found.stderr) if len(x) > 2 else None  # pyright: ignore[reportAttributeAccessIssue]
    return {
        "exponent": float(found.slope),  # pyright: ignore[reportAttributeAccessIssue]
        "±": half,
        "largest local slope": float((np.diff(y)[apart] / np.diff(x)[apart]).max()),
    }


def measure(row: Row, seconds: float, options: argparse.Namespace) -> dict[str, Any]:
    """One row of the table, and the times of every size."""
    sizes = row.quick if options.quick else row.sizes
    with warnings.catch_warnings():
        # Stopped after a few steps on purpose.
        warnings.simplefilter("ignore", ConvergenceWarning)
        candidates = {str(size): row.candidate(size) for size in sizes}
        first, _ = interleaved(candidates, 1, warm=0)
        each = sum(taken[0] for taken in first.values())
        fewest = 1 if options.quick else FEWEST
        rounds = options.repeats or min(MOST, max(fewest, round(seconds / each)))
        # The round above was the warm one.
        taken, results = interleaved(candidates, rounds, warm=0)
    steps = STEPS.get(row.quantity, 1)
    spreads = {size: spread([value / steps for value in found]) for size, found in taken.items()}
    medians = [spreads[str(size)]["median"] for size in sizes]
    return {
        "quantity": row.quantity,
        "variable": row.variable,
        "sizes": list(sizes),
        **fit(sizes, medians),
        "expected": row.expected,
        "seconds": medians,
        "rounds": rounds,
        "spreads": spreads,
        "results": results,
    }


def by_levels(row: dict[str, Any]) -> dict[str, Any]:
    """The times of ``discover`` over the levels that it walked, from the same rounds."""
    levels = [row["results"][str(size)]["levels"] for size in row["sizes"]]
    return {**row, "variable": "levels walked", "sizes": levels, **fit(levels, row["seconds"])}


def judge(rows: list[dict[str, Any]]) -> tuple[str, list[Gate]]:
    """The answer in a sentence, and the gates."""

    def told(row: dict[str, Any]) -> str:
        if row["exponent"] is None:
            return "no exponent"
        return f"{row['exponent']:.2f}" + ("" if row["±"] is None else f" ± {row['±']:.2f}")

    by_name = {(row["quantity"], row["variable"]): row for row in rows}
    gates = []
    for name in LINEAR:
        row = by_name[name]
        what = f"exponent of a {name[0]} in {name[1]} ({told(row)})"
        gates.append(Gate(what, row["exponent"], f"≤ {LIMIT}", row["exponent"] <= LIMIT))
    steps = ", ".join(f"{told(by_name['training step', v])} in {v}" for v in ("samples", "depth", "width"))
    # Of the rest what grows fastest in each variable.
    worst = []
    for variable in ("samples", "depth", "width"):
        row = max((r for r in rows if r["variable"] == variable), key=lambda r: r["exponent"])
        worst.append(f"{row['quantity']} in {variable} ({told(row)})")
    others = [f"`{q}` {told(by_name[q, v])} in {v}" for q, v in OTHERS]
    answer = f"A training step has exponents {steps}; {', '.join(others)}. The largest of all: {', '.join(worst)}."
    return answer, gates


def main(options: argparse.Namespace) -> None:
    """Measure and report."""
    torch.set_num_threads(options.threads)
    seconds = 0.2 if options.quick else 6.0
    rows = [measure(row, seconds, options) for row in ROWS]
    rows += [by_levels(row) for row in rows if row["quantity"] == "discover"]
    answer, gates = judge(rows)
    kept = [{column: row[column] for column in COLUMNS} for row in rows]
    said = {"question": QUESTION, "answer": answer, "columns": COLUMNS, "gates": gates}
    report(options, name="growth", rows=kept, details=rows, **said)


if __name__ == "__main__":
    assert __doc__ is not None
    main(arguments(__doc__).parse_args())
