"""The tangent kernel of a network is at least of the order of its depth (bottleneck2023 §4)."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.claims._base import Check, Subject, claim, rounding
from isthmus.claims._evidence import random_subject, some_rows
from isthmus.measures import ntk_trace, parameter_norms
from isthmus.trace import Trace

#: Samples at which the kernel is evaluated, evenly spaced; fewer with biases, as each layer is carried to the end.
ROWS, ROWS_WITH_BIASES = 64, 16

UNBIASED = "no biases"


def positive_net() -> Subject:
    """ReLU, depth 5, no biases, positive weights and inputs: one direction dominates, and the bounds are near."""
    subject = random_subject([4, 6, 6, 6, 6, 2], bias=0.0, seed=7)
    for W in subject.net.weights:
        W.data = W.data.abs()
    return subject.replace(X=subject.X.abs())


@claim(
    "C-bn-16",
    "Tr Θ(x,x) ≥ Σ_ℓ ‖J(α̃_ℓ→f)α̃_ℓ(x)‖²/‖(W_ℓ, b_ℓ)‖²_op; without biases ‖f(x)‖²·Σ_ℓ 1/‖W_ℓ‖²_op ≥ "
    "L‖f(x)‖²/(‖θ‖²/L): the kernel grows with the depth",
    paper="bottleneck2023",
    where="§4, 'it is not possible to represent non-trivial functions with a smaller NTK'",
    hypotheses=(UNBIASED,),
    sample=positive_net,
    relation="≥",
    erratum="Stated without biases; with them f(x) less what the biases after ℓ add takes its place at each ℓ.",
)
def kernel_of_order_depth(check: Check, subject: Subject) -> None:
    """Both bounds at every sample; ``known["norm"]`` takes the place of ‖θ‖².

    With G_ℓ = J(α̃_ℓ → f) and α̃_ℓ = (W_ℓ, b_ℓ)(α_{ℓ-1}, β), ‖G_ℓα̃_ℓ‖ ≤ ‖G_ℓ‖‖(W_ℓ, b_ℓ)‖_op‖(α_{ℓ-1}, β)‖, and
    Tr Θ = Σ_ℓ(‖α_{ℓ-1}‖² + β²)‖G_ℓ‖² is at least the first bound, for any network. σ_a is positively homogeneous,
    σ_a(z) = D(z)z, kinks included, so that G_ℓα̃_ℓ is f(x) less what the biases after ℓ add: f(x) itself without
    biases. The second bound is that of harmonic and arithmetic means, with the least ‖G_ℓα̃_ℓ‖ over ℓ.
    """
    net = subject.net
    largest = max((net.bias * float(b.detach().abs().max()) for b in net.bs), default=0.0)
    plain = check.assume(UNBIASED, largest == 0.0, f"largest bias {largest:.3g}")
    rows = some_rows(subject.X, ROWS if plain else ROWS_WITH_BIASES)
    trace = subject.trace(rows)
    kernel = ntk_trace(net, subject.X[rows])
    L, norm = trace.depth, subject.known.get("norm", parameter_norms(net).total)
    reach = trace.outputs.square().sum(1).expand(L, -1) if plain else carried(trace).square().sum(2)
    # Where nothing reaches the outputs there is nothing to bound, and a matrix may vanish too.
    there = (reach.sum(0) > 0).nonzero()[:, 0]
    if len(there) == 0:
        check.not_applicable("f vanishes at every sample", cause="network")
    Ws = [torch.cat([W, b[:, None]], 1) for W, b in zip(trace.Ws, trace.bs)] if trace.bs else trace.Ws
    operator = torch.stack([torch.linalg.matrix_norm(W.double(), 2).square() for W in Ws])
    reach, kernel = reach[:, there], kernel[there]
    # A layer of zeros carries nothing.
    share = (reach / operator[:, None]).where(reach > 0, torch.zeros_like(reach)).sum(0)
    tolerance, names = rounding(net), [f"sample {int(row)}" for row in rows[there]]
    ways = [(L**2 * reach.amin(0) / norm, "by ‖θ‖²"), (share, "by each layer")]
    for bound, way in ways:
        check.compare(kernel, "≥", bound, tolerance=tolerance, part=way, where=names, assuming=())


def carried(trace: Trace) -> Tensor:
    """J(α̃_ℓ → f)α̃_ℓ, ℓ = 1 … L: what layer ℓ gives the outputs when no later bias does, (L, N, d_out)."""
    moved = trace.preactivations[0][None]
    for ell in range(1, trace.depth):
        moved = (trace.derivative(ell) * moved) @ trace.Ws[ell].mT
        moved = torch.cat([moved, trace.preactivations[ell][None]])
    return moved
