"""How near is a training step to this machine's GEMM rate?

    python benchmarks/step.py [--quick] [--json] [--repeats N] [--threads N] [--out benchmarks/results/step.json]

The share is the time of the matrix products of one step alone over that of the step, at the same shapes. There are two
ways to compute them, one after the other on all threads, or as batches with a block of samples for each thread; the
faster one counts. Beside it plain PyTorch (autograd, ``torch.optim.Adam``) and jitted JAX with optax, its buffers
donated; full batches, the ridge in the loss. Every side takes many steps in a row, as training does, then the next
one; rounds are as many as fit into a time for each network. JAX gets as many threads as torch (``XLA_FLAGS``,
``NPROC``, set before its import); its calls are waited for at the end of each such row of steps, not at every step.

Accuracy: gradients at the start against autograd in float64, its samples in reverse order (in the same order both call
the same kernels, and nearly all bits agree), and the losses after the first ten steps.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from _bench import Gate, arguments, compare, interleaved, report, spread, version
from _steps import RIDGE, Case, gemms, jax_side, limit_jax, ours, plain, regularised

from isthmus.training._objective import Stack

QUESTION = "How near is a training step to this machine's GEMM rate?"
PEERS = ("torch", "jax", "jaxlib", "optax")
FC, LEAKY = "fully connected", "leaky"
LARGE = (
    *(Case(FC, 10, width, 2000, 50) for width in (64, 100, 200, 400)),
    Case(FC, 10, 100, 2000, 50, "float64"),
    Case(FC, 25, 200, 1000, 20),
    Case(LEAKY, 20, 200, 1000, 20),
)
SMALL = (Case(FC, 10, 50, 200, 20), Case(FC, 3, 50, 200, 20))
QUICK = (Case(FC, 4, 100, 500, 20), Case(FC, 4, 100, 500, 20, "float64"), Case(LEAKY, 4, 100, 500, 20))
COLUMNS = (
    "network",
    "dtype",
    "GEMM ms",
    "in blocks ms",
    "GFLOP/s",
    "gradient ms",
    "step ms",
    "share of gradient",
    "share of step",
    "interval",
    "PyTorch ms",
    "times PyTorch",
    "JAX ms",
    "times JAX",
    "gradient error",
    "loss apart",
)
#: Losses are compared after so many: later, in float32, the difference is rounding amplified by training.
STEPS_COMPARED = 10
FEWEST, MOST = 7, 300


def gradient_errors(case: Case, jax_gradient: Any) -> dict[str, float | None]:
    """Relative differences from autograd in float64: ours in float64, ours and JAX's in the case's dtype."""
    wide = Case(case.kind, case.depth, case.width, case.samples, case.d, "float64")
    narrow = case.network()
    module = wide.network()
    # The same weights, not the same draws: those of float32 are other numbers.
    module.load_state_dict(narrow.state_dict())
    X, Y = (T.double() for T in case.data())
    loss = regularised(module, X.flip(0), Y.flip(0))
    right = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(module.parameters()))])

    def apart(found: torch.Tensor) -> float:
        return float((found.double() - right).norm() / right.norm())

    found: dict[str, float | None] = {"jax": None}
    for name, net, data in (("float64", module, (X, Y)), ("own", narrow, case.data())):
        objective = Stack([net], [data[0]], [data[1]], "mse").objectives[0]
        with objective.attached():
            found[name] = apart(objective(RIDGE).gradient)
    if jax_gradient is not None:
        found["jax"] = apart(torch.cat([torch.tensor(g).reshape(-1) for g in jax_gradient()]))
    return found


def measure(case: Case, seconds: float, row_seconds: float, repeats: int | None, with_jax: bool) -> dict[str, Any]:
    """One row of the table, and all times."""
    jax_gradient = None
    with ExitStack() as stack:
        sides = {
            "gemm": gemms(case),
            "in blocks": gemms(case, torch.get_num_threads()),
            "gradient": stack.enter_context(ours(case, adam=False)),
            "step": stack.enter_context(ours(case, adam=True)),
            "torch": plain(case),
        }
        # In float64 JAX would need a switch for the whole process.
        if with_jax and case.dtype == "float32":
            sides["jax"], jax_gradient = jax_side(case)
        one = {name: partial(side, 1) for name, side in sides.items()}
        first, losses = interleaved(one, STEPS_COMPARED - 2, warm=2)
        inner = max(1, round(row_seconds / min(*first["in blocks"], *first["step"])))
        each = inner * sum(spread(taken)["median"] for taken in first.values())
        rounds = repeats or min(MOST, max(FEWEST, round(seconds / each)))
        rows = {name: partial(side, inner) for name, side in sides.items()}
        taken, _ = interleaved(rows, rounds)
    times = {name: [value / inner for value in found] for name, found in taken.items()}
    fastest = min(("gemm", "in blocks"), key=lambda name: spread(times[name])["median"])
    shares = {name: compare(times, name, fastest) for name in ("gradient", "step")}
    peers = {name: compare(times, "step", name) for name in ("torch", "jax") if name in times}
    ms = {name: 1e3 * spread(found)["median"] for name, found in times.items()}
    errors = gradient_errors(case, jax_gradient)
    apart = [abs(losses["step"] / losses[name] - 1.0) for name in peers]
    return {
        "network": case.name,
        "dtype": case.dtype,
        "GEMM ms": ms["gemm"],
        "in blocks ms": ms["in blocks"],
        "GFLOP/s": case.flops / (1e6 * ms[fastest]),
        "gradient ms": ms["gradient"],
        "step ms": ms["step"],
        "share of gradient": shares["gradient"].ratio,
        "share of step": shares["step"].ratio,
        "interval": f"[{shares['step'].low:.3f}, {shares['step'].high:.3f}]",
        "PyTorch ms": ms["torch"],
        "times PyTorch": peers["torch"].ratio,
        "JAX ms": ms.get("jax"),
        "times JAX": peers["jax"].ratio if "jax" in peers else None,
        "gradient error": errors["float64"],
        "loss apart": max(apart),
        "case": vars(case),
        "share by least times": min(times[fastest]) / min(times["step"]),
        "steps in a row": inner,
        "rounds": rounds,
        "errors": errors,
        "comparisons": [vars(c) for c in (*shares.values(), *peers.values())],
        "milliseconds": {name: spread([1e3 * t for t in found]) for name, found in times.items()},
    }


def judge(rows: list[dict[str, Any]]) -> tuple[str, list[Gate]]:
    """The answer in a sentence, and the gates."""
    wide = [row for row in rows if row["case"]["width"] >= 100]
    least = min(wide, key=lambda row: row["share of step"])
    most = max(wide, key=lambda row: row["share of step"])
    share = least["share of step"]
    gates = [Gate("least share of GEMM in a step, width ≥ 100", share, "≥ 0.85", share >= 0.85)]
    answer = (
        f"At width 100 and more the products alone take {share:.0%} ({least['network']}, {least['dtype']}) to "
        f"{most['share of step']:.0%} ({most['network']}, {most['dtype']}) of the time of our step; "
        f"plain PyTorch takes {min(r['times PyTorch'] for r in rows):.2f} to "
        f"{max(r['times PyTorch'] for r in rows):.2f} times as long as ours."
    )
    small = [row for row in rows if row["case"]["width"] <= 50 and row["times JAX"]]
    if small:
        worst = max(1.0 / row["times JAX"] for row in small)
        gates.append(Gate("ours over jitted JAX, small networks, the worst", worst, "≤ 1.5", worst <= 1.5))
        answer += f" On small networks our step takes at most {worst:.2f} times as long as that of JAX."
    return answer, gates


def main(options: argparse.Namespace) -> None:
    """Measure and report."""
    torch.set_num_threads(options.threads)
    limit_jax(options.threads)
    with_jax = "absent" not in (version("jax"), version("optax"))
    # A row of steps is so long that what the sides before it left in the caches does not count, as in training.
    large, seconds, row = (QUICK, 0.5, 0.005) if options.quick else (LARGE, 16.0, 0.15)
    rows = [measure(case, seconds, row, options.repeats, with_jax) for case in (*large, *SMALL)]
    answer, gates = judge(rows)
    said = {"question": QUESTION, "answer": answer, "columns": COLUMNS, "gates": gates, "peers": PEERS}
    kept = [{column: row[column] for column in COLUMNS} for row in rows]
    report(options, name="step", rows=kept, details=rows, **said)


if __name__ == "__main__":
    assert __doc__ is not None
    main(arguments(__doc__).parse_args())
