"""Tr Θ(x, x) of every sample: ours beside per-sample Jacobians, nngeometry and curvlinops.

    python benchmarks/ntk.py [--quick] [--json] [--repeats N] [--threads N] [--out benchmarks/results/ntk.json]

The same network, dtype and threads on every side, in turn in one process; peak memory in processes of their own. Each
peer by the fastest call that it documents to the same quantity, the trace over samples and outputs of J_θJ_θᵀ:

- ``vmap(jacrev)`` over parameters by ``torch.func``, in chunks of samples whose Jacobian stays below 1 GB (larger ones
  do not fit, smaller ones are slower). It is timed on a tenth of the samples and multiplied by ten: it works chunk by
  chunk, in time linear in N.
- nngeometry has ``FIM(variant="regression")``, whose trace is that of JᵀJ over N. ``PMatImplicit`` has a call for the
  trace alone, one backward pass for each output (it sums in float32); ``PMatDiag`` sums the squares of all gradients
  over the samples by one matrix product for each layer and output. Which is faster depends on the size: both are shown.
- curvlinops has no exact trace of its Jacobian or Gauss–Newton operators. Exact is that of
  ``EKFACLinearOperator(fisher_type=TYPE2)``: correcting eigenvalues in a Kronecker basis keeps the trace of the block
  of each layer, and blocks off the diagonal have no part in it. The other way is ``hutchinson_trace`` of
  ``GGNLinearOperator``, an estimate: its error stands beside its time.

nngeometry and curvlinops give one number for all samples, ours and ``torch.func`` one for each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from _bench import Gate, report
from _measured import COLUMNS, Setting, Side, measured, parse
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from isthmus import FullyConnected
from isthmus.measures import ntk_trace

#: Largest parameter Jacobian of one chunk of the peer.
PEER_BYTES = 2**30
#: Products with the operator in the estimate.
PROBES = 16
OURS, FUNC = "isthmus, layer formula", "torch.func, vmap(jacrev)"
IMPLICIT, DIAGONAL = "nngeometry, PMatImplicit", "nngeometry, PMatDiag"
EXACT, ESTIMATE = "curvlinops, EKFAC", f"curvlinops, Hutchinson × {PROBES}"
QUESTION = "How fast is the trace of the neural tangent kernel, and how much memory does it take?"
FULL = (Setting(1000, 25, 200, 20), Setting(1000, 25, 200, 20, "float32"))
QUICK = (Setting(60, 6, 50, 5),)


def ours(net: FullyConnected, X: Tensor) -> Callable[[], Tensor]:
    """The layer formula, in the network's own dtype."""
    return lambda: ntk_trace(net, X, dtype=X.dtype)


def chunk(net: FullyConnected, X: Tensor) -> int:
    """Samples whose parameter Jacobian stays below ``PEER_BYTES``."""
    parameters = sum(p.numel() for p in net.parameters())
    return max(1, PEER_BYTES // (parameters * net.dims[-1] * X.element_size()))


def per_sample(net: FullyConnected, X: Tensor) -> Callable[[], Tensor]:
    """Per-sample parameter Jacobians, squared and summed."""
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    jacobians = vmap(jacrev(lambda p, x: functional_call(net, p, (x,))), in_dims=(None, 0))

    def run() -> Tensor:
        parts = []
        for some in X.split(chunk(net, X)):
            J = jacobians(parameters, some)
            parts.append(torch.stack([g.flatten(1).square().sum(1) for g in J.values()]).sum(0))
        return torch.cat(parts)

    return run


def nngeometry(representation: str) -> Callable[[FullyConnected, Tensor], Callable[[], Tensor]]:
    """Trace of the Fisher matrix of a regression, times N."""

    def prepare(net: FullyConnected, X: Tensor) -> Callable[[], Tensor]:
        import nngeometry.object as objects  # pyright: ignore[reportMissingImports]  (an extra)
        from nngeometry.metrics import FIM  # pyright: ignore[reportMissingImports]

        module, kind = net.to_torch(), getattr(objects, representation)
        # A copy: it asks for a gradient with respect to its inputs.
        return lambda: FIM(module, (X.clone(),), kind, variant="regression").trace() * len(X)

    return prepare


def curvlinops(net: FullyConnected, X: Tensor) -> tuple[Any, dict[str, Any]]:
    """The module and what its operators take. Its squared error has Hessian 2, so that traces are halved."""
    module = net.to_torch()
    data = [(X, torch.zeros(len(X), net.dims[-1], dtype=X.dtype))]
    given = {"model_func": module, "loss_func": nn.MSELoss(reduction="sum"), "params": list(module.parameters())}
    return module, {**given, "data": data, "num_data": len(X), "check_deterministic": False}


def exact(net: FullyConnected, X: Tensor) -> Callable[[], Tensor]:
    """Sum of the corrected eigenvalues."""
    from curvlinops import EKFACLinearOperator, FisherType  # pyright: ignore[reportMissingImports]  (an extra)

    _, given = curvlinops(net, X)
    more = {"fisher_type": FisherType.TYPE2, "num_per_example_loss_terms": 1}

    def run() -> Tensor:
        return EKFACLinearOperator(**given, **more).trace.detach() / 2

    return run


def estimate(net: FullyConnected, X: Tensor) -> Callable[[], Tensor]:
    """Random signs, of which the generator is the global one."""
    from curvlinops import GGNLinearOperator, hutchinson_trace  # pyright: ignore[reportMissingImports]  (an extra)

    _, given = curvlinops(net, X)

    def run() -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return hutchinson_trace(GGNLinearOperator(**given), PROBES) / 2

    return run


SIDES = {
    OURS: Side(ours),
    FUNC: Side(per_sample, lambda net, X: min(len(X), max(chunk(net, X), len(X) // 10))),
    IMPLICIT: Side(nngeometry("PMatImplicit"), distribution="nngeometry"),
    DIAGONAL: Side(nngeometry("PMatDiag"), distribution="nngeometry"),
    EXACT: Side(exact, distribution="curvlinops-for-pytorch"),
    ESTIMATE: Side(estimate, distribution="curvlinops-for-pytorch"),
}


def main() -> None:
    """Command line."""
    options = parse(__doc__ or "", SIDES)
    if options is None:
        return
    rows = []
    for setting in QUICK if options.quick else FULL:
        rows += measured(__file__, setting, SIDES, options, 3 if options.quick else 5)
    # Of float64, the first size.
    times = {row["side"]: row["times ours"] for row in rows[: len(SIDES)] if "times ours" in row}
    wanted = {FUNC: (100.0, "≥ 100"), IMPLICIT: (1.0, "> 1"), DIAGONAL: (1.0, "> 1"), EXACT: (1.0, "> 1")}
    gates = [
        Gate(f"Tr Θ: seconds of {name} over ours", times[name], told, times[name] > least)
        for name, (least, told) in wanted.items()
        if name in times and not options.quick
    ]
    told = ", ".join(f"{ratio:.3g} times as long by {name}" for name, ratio in times.items() if name != ESTIMATE)
    answer = f"At {rows[0]['size']}, float64, ours takes {rows[0]['seconds']:.3g} s; it takes {told}."
    by_name = {row["side"]: row for row in rows[: len(SIDES)]}
    if ESTIMATE in times:
        off = by_name[ESTIMATE]["difference"]
        answer += (
            f" The estimate by {PROBES} products takes {times[ESTIMATE]:.3g} times as long and is off by {off:.1%}."
        )
    peers = ("nngeometry", "curvlinops-for-pytorch")
    about: dict[str, Any] = {"name": "ntk", "question": QUESTION, "answer": answer, "peers": peers}
    report(options, columns=COLUMNS, rows=rows, gates=gates, **about)


if __name__ == "__main__":
    main()
