"""The layer of rank 1 in networks whose norm is near L (rank2023 Prop. 4)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isthmus.claims.base import Hypothesis, Subject, Verdict, claim, compare, not_applicable, rounding
from isthmus.claims.evidence import fit_exponent, some_rows
from isthmus.claims.rank_samples import nearly_rank_one_family
from isthmus.measures import parameter_norms
from isthmus.networks import FullyConnected

#: Rows whose representations are decomposed.
ROWS = 256
#: Ratios of singular values below this are rounding.
SMALLEST_RATIO = 1e-12


@claim(
    "C-rank-7",
    "If ‖W‖² ≤ L + C at a minimum, some layer ℓ = O(√L) has s_2(Z_ℓ)/s_1(Z_ℓ) = O(L^(−1/4))",
    paper="rank2023",
    where="Prop. 4 and Prop. 9",
    hypotheses=("|slope| ≤ 1", "‖W‖² ≤ L + C", "balanced", "outputs not constant"),
    sample=nearly_rank_one_family,
    erratum="Printed for s_1/s_2. The proof's bounds are used in a form that counts biases and every singular value.",
    rate=True,
)
def layer_of_rank_one(subject: Subject) -> Verdict:
    """min_ℓ Σ_{i≥2}λ_i(Z_ℓ) ≤ (1/m)[λ_1(X) + Σ_ℓ λ_1(Z_{ℓ-1})(C+ℓ−1)/(L−ℓ+1) + biases] over ℓ ≤ m, and Tr is not small.

    λ_i are the eigenvalues of ZᵀZ/N. Because Σ_iλ_i(Z_ℓ) ≤ ‖W_ℓ‖²λ_1(Z_{ℓ-1}) + 2β⟨W_ℓμ, b_ℓ⟩ + β²‖b_ℓ‖², μ the mean
    of the layer before, and ‖W_ℓ‖² ≤ (L+C)/(L−ℓ+1) if balanced, the sum over layers telescopes. At m = √L the bound
    is O(L^{−1/2}), while the trace is at least the variance of the outputs over what the other layers can magnify.
    Where ``known["family"]`` has networks of growing depth, with one ``known["C"]``, the exponent is fitted too.
    """
    family = [getattr(one, "network", one) for one in subject.known.get("family", [subject.net])]
    rows = subject.X[some_rows(subject.X, ROWS)]
    norms = [parameter_norms(net) for net in family]
    excess = [one.total - len(one.weights) for one in norms]
    alone = len(family) == 1
    C = subject.known.get("C", excess[0] if alone else None)
    spread = [float(net.trace(rows).outputs.var(0, correction=0).sum()) for net in family]
    within = None if C is None else max(excess) <= C + 1e-9 * abs(C)
    increasing = None if C is None else all(_balanced_start(one.weights, C) for one in norms)
    hypotheses = [
        Hypothesis.of("|slope| ≤ 1", all(abs(net.slope) <= 1 for net in family)),
        Hypothesis.of("‖W‖² ≤ L + C", within, f"‖W‖² − L from {min(excess):.4g} to {max(excess):.4g}, C {C}"),
        Hypothesis.of("balanced", increasing, "‖W_ℓ‖² ≤ (L+C)/(L−ℓ+1)"),
        Hypothesis.of("outputs not constant", min(spread) > 0, f"least variance {min(spread):.3g}"),
    ]
    if any(h.status != "met" for h in hypotheses) or C is None:
        return not_applicable("C-rank-7", "≤", hypotheses)
    lhs, rhs, names, ratios = [], [], [], []
    for net, variance in zip(family, spread):
        if net.depth < 2:
            return not_applicable("C-rank-7", "≤", hypotheses, "there is no hidden layer")
        tail, bound, least, trace, ratio = _narrowing(net, rows, float(C), variance)
        lhs += [tail, least]
        rhs += [bound, trace]
        names += [f"L = {net.depth}: Σ_(i≥2)λ_i", f"L = {net.depth}: trace"]
        ratios.append(ratio)
    details = {"depth": [float(net.depth) for net in family], "least s_2/s_1 up to layer √L": ratios}
    # A layer of rank 1 up to rounding says no more than that the bound holds.
    seen = [(float(net.depth), r) for net, r in zip(family, ratios) if r > SMALLEST_RATIO]
    if len(seen) >= 3:
        rate = fit_exponent(*zip(*seen))
        lhs.append(rate.low)
        rhs.append(-0.25)
        names.append("exponent of s_2/s_1 in L, lower end of its interval")
        details["exponent and its interval"] = rate.numbers
    tolerance = rounding(max(family, key=lambda net: net.depth), condition=100.0)
    return compare(
        "C-rank-7",
        lhs,
        "≤",
        rhs,
        tolerance=tolerance,
        hypotheses=hypotheses,
        where=lambda i: names[i],
        details=details,
    )


def _balanced_start(weights: Tensor, C: float) -> bool:
    """‖W_ℓ‖² ≤ (L+C)/(L−ℓ+1): what the proof takes from ‖W_ℓ‖² being no larger than those after it."""
    L = len(weights)
    return bool((weights * torch.arange(L, 0, -1) <= (L + C) * (1 + 1e-9)).all())


@torch.no_grad()
def _narrowing(net: FullyConnected, X: Tensor, C: float, variance: float) -> tuple[float, float, float, float, float]:
    """Least tail up to layer m = ⌈√L⌉ and its bound; bound of the trace there and the trace; least s_2/s_1."""
    trace, L = net.trace(X), net.depth
    m = min(L - 1, math.ceil(math.sqrt(L)))
    values = [torch.linalg.svdvals(a).square() / len(X) for a in trace.activations[: m + 1]]
    top = [float(v[0]) for v in values]
    tails = [float(v[1:].sum()) for v in values[1:]]
    bound = top[0]
    for ell in range(1, m + 1):
        bound += top[ell - 1] * (C + ell - 1) / (L - ell + 1)
        if trace.bs:
            b = net.bias * trace.bs[ell - 1]
            bound += float(b @ (b + 2 * trace.Ws[ell - 1] @ trace.activations[ell - 1].mean(0)))
    best = min(range(m), key=tails.__getitem__)
    onward = torch.stack([W.square().sum() for W in trace.Ws[best + 1 :]])
    # In logarithms: the mean to the power of the depth overflows in untrained networks.
    least = math.exp(min(700.0, math.log(variance) - len(onward) * float(onward.mean().log())))
    ratios = [float((v[1] / v[0]).sqrt()) if len(v) > 1 and v[0] > 0 else 0.0 for v in values[1:]]
    return tails[best], bound / m, least, top[best + 1] + tails[best], min(ratios)
