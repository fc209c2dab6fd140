"""The tangent kernel of a network without biases is at least of the order of its depth (bottleneck2023 §4)."""

from __future__ import annotations

import torch

from isthmus.claims._base import Check, Subject, claim, rounding
from isthmus.claims._evidence import random_subject, some_rows
from isthmus.measures import ntk_trace, parameter_norms

#: Samples at which the kernel is evaluated, evenly spaced.
ROWS = 64


def positive_net() -> Subject:
    """ReLU, depth 5, no biases, positive weights and inputs: one direction dominates, and the bounds are near."""
    subject = random_subject([4, 6, 6, 6, 6, 2], bias=0.0, seed=7)
    for W in subject.net.weights:
        W.data = W.data.abs()
    return subject.replace(X=subject.X.abs())


@claim(
    "C-bn-16",
    "Without biases Tr Θ(x,x) ≥ ‖f(x)‖²·Σ_ℓ 1/‖W_ℓ‖²_op ≥ L‖f(x)‖²/(‖θ‖²/L): the kernel grows with the depth",
    paper="bottleneck2023",
    where="§4, 'it is not possible to represent non-trivial functions with a smaller NTK'",
    hypotheses=("no biases",),
    sample=positive_net,
    relation="≥",
)
def kernel_of_order_depth(check: Check, subject: Subject) -> None:
    """Both bounds at every sample; ``known["norm"]`` takes the place of ‖θ‖².

    σ_a is positively homogeneous, σ_a(z) = D(z)z, so that f = G_ℓW_ℓα_{ℓ-1} for every ℓ, G_ℓ = J(α̃_ℓ → f), kinks
    included. Hence ‖f‖ ≤ ‖G_ℓ‖‖W_ℓ‖_op‖α_{ℓ-1}‖, and Tr Θ = Σ_ℓ(‖α_{ℓ-1}‖² + β²)‖G_ℓ‖² is at least the first bound; the
    second is that of harmonic and arithmetic means.
    """
    net = subject.net
    largest = max((net.bias * float(b.detach().abs().max()) for b in net.bs), default=0.0)
    check.assume("no biases", largest == 0.0, f"largest bias {largest:.3g}")
    check.require()
    rows = some_rows(subject.X, ROWS)
    trace = subject.trace(rows)
    size, kernel = trace.outputs.square().sum(1), ntk_trace(net, subject.X[rows])
    L, norm = trace.depth, subject.known.get("norm", parameter_norms(net).total)
    # Where f vanishes there is nothing to bound, and a matrix may vanish too.
    there = (size > 0).nonzero()[:, 0]
    if len(there) == 0:
        check.not_applicable("f vanishes at every sample")
    operator = torch.stack([torch.linalg.matrix_norm(W.double(), 2).square() for W in trace.Ws])
    tolerance, names = rounding(net), [f"sample {int(row)}" for row in rows[there]]
    check.compare(kernel[there], "≥", L**2 * size[there] / norm, tolerance=tolerance, where=names)
    sharper = size[there] * operator.reciprocal().sum()
    names = [f"{name}, with Σ 1/‖W_ℓ‖²_op" for name in names]
    check.compare(kernel[there], "≥", sharper, tolerance=tolerance, where=names)
