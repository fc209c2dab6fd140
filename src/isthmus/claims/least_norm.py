"""Networks known to be of least norm, because they attain its lower bound: their cost splits at every layer."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.claims.base import Hypothesis, Subject, Verdict, claim, compare, not_applicable, rounding
from isthmus.claims.evidence import lacking
from isthmus.claims.points import Points, points_of
from isthmus.claims.samples import gaussian_inputs
from isthmus.claims.two_functions import TRUSTED, is_linear
from isthmus.constructions import linear_network
from isthmus.measures import parameter_norms


def least_linear_network() -> Subject:
    """The least linear network of a map of rank 3, depth 7."""
    A = gaussian_inputs(5, 3, 51) @ gaussian_inputs(3, 6, 52)
    return Subject(linear_network(A, 7).network, gaussian_inputs(20, 6, 53))


_LEAST = "network of least norm"


@claim(
    "C-bn-13",
    "R(f; L) = R(α̃_ℓ; ℓ) + R(σ(α̃_ℓ) → f; L−ℓ) at every layer ℓ of a network of least norm",
    paper="bottleneck2023",
    where="§3.3",
    hypotheses=("x off the kinks", _LEAST),
    sample=least_linear_network,
)
def cost_splits_at_layers(subject: Subject) -> Verdict:
    """R(f;L) = R(α̃_ℓ;ℓ) + R(σ(α̃_ℓ) → f;L−ℓ), where ‖θ‖² attains L·Σs_i(Jf(x))^{2/L} and is thus known to be least.

    The cost of each part lies between its own bound at x and its part of ‖θ‖²: the bounds are summed here. The second
    map is needed on the image of the first only, so that its Jacobian is Jf(x)·(D_ℓJα̃_ℓ(x))⁺. Linear minimisers attain
    the bound, others where they act as one. ``known["Ws"]`` puts other weights in the place of the network's.
    """
    norms = parameter_norms(subject.net)
    L, total = len(norms.weights), norms.total
    if L < 2 or not torch.allclose(norms.layers, norms.weights[0].expand(L), rtol=1e-6):
        # Equal layers without biases are needed for the bound, and cheap to see.
        return lacking("C-bn-13", "=", "one layer, or layers of different norm: not known to be of least norm")
    found = points_of(subject, points=4)
    sums = found.s.pow(2 / L).where(found.s > 0, torch.zeros_like(found.s)).sum(1)
    if found.kink_hypothesis.status != "met":
        return not_applicable("C-bn-13", "=", [found.kink_hypothesis, Hypothesis.of(_LEAST, None)])
    row = int(sums.argmax())
    least = _least(subject, L * float(sums[row]), total)
    if least.status != "met":
        return not_applicable("C-bn-13", "=", [found.kink_hypothesis, least])
    rhs = _split_costs(found, row, subject.known.get("Ws", found.trace.Ws))
    return compare(
        "C-bn-13",
        total,
        "=",
        rhs,
        tolerance=rounding(subject.net) + TRUSTED,
        hypotheses=[found.kink_hypothesis, least],
        where=lambda i: f"layer {i + 1}",
    )


def _least(subject: Subject, bound: float, total: float) -> Hypothesis:
    """Whether ‖θ‖² attains its bound. Linear networks can; of others that do not, nothing is known."""
    met = abs(total - bound) <= TRUSTED * total
    status = met or (False if is_linear(subject.net) else None)
    return Hypothesis.of(_LEAST, status, f"‖θ‖² = {total:.6g}, bound {bound:.6g}")


def _split_costs(found: Points, row: int, Ws: tuple[Tensor, ...]) -> list[float]:
    """ℓ·Σs^{2/ℓ} of the lower part plus (L−ℓ)·Σs^{2/(L−ℓ)} of the upper one, for ℓ = 1 … L−1."""
    L, k, J = len(Ws), int(found.ranks[row]), found.J[row]
    inward = torch.eye(J.shape[1], dtype=torch.float64)
    costs = []
    for ell in range(1, L):
        below = Ws[ell - 1] @ inward
        inward = found.trace.derivative(ell)[row][:, None] * below
        onward = J @ torch.linalg.pinv(inward, rtol=1e-12)
        parts = ((torch.linalg.svdvals(M)[:k], n) for M, n in ((below, ell), (onward, L - ell)))
        costs.append(sum(n * float(s.pow(2 / n).sum()) for s, n in parts))
    return costs
