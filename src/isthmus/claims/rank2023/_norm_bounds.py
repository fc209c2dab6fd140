"""What the norm of a network says about its Jacobians, and a minimum about its layers (rank2023 §3)."""

from __future__ import annotations

import torch

from isthmus.claims._base import Check, Subject, claim, rounding
from isthmus.claims._evidence import (
    Points,
    at_a_minimum,
    leaky_random_net,
    least_squares_minimum,
    points_of,
    pulls,
    relu_random_net,
)
from isthmus.measures import parameter_norms


def _power_error(found: Points, power: float) -> float:
    """Largest relative error of Σ s^power that errors of the values can make."""
    kept = found.s > 0
    relative = torch.where(kept, found.error[:, None] / found.s.clamp_min(1e-300), torch.zeros_like(found.s))
    return float(power * relative.max()) if kept.any() else 0.0


def _squares(subject: Subject) -> tuple[float, int]:
    """Σ‖W_ℓ‖² without biases, and L."""
    norms = parameter_norms(subject.net)
    return float(norms.weights.sum()), len(norms.weights)


@claim(
    "C-rank-1",
    "Σ s_i(Jf(x))^(2/L) ≤ ‖W‖²/L at every differentiable point x of a network of depth L",
    paper="rank2023",
    where="Prop. 3 and Prop. 7",
    hypotheses=("|slope| ≤ 1", "x off the kinks"),
    sample=leaky_random_net,
    relation="≤",
)
def schatten_bound(check: Check, subject: Subject) -> None:
    """Σ s_i(Jf(x))^{2/L} ≤ ‖W‖²/L: the Schatten quasi-norm of the Jacobian is bounded by the norm of the weights."""
    found = points_of(subject)
    total, L = _squares(subject)
    check.add(found.slope_hypothesis, found.kink_hypothesis)
    sums = found.powers(2 / L).sum(1)
    tolerance = rounding(subject.net) + _power_error(found, 2 / L)
    check.compare(
        sums, "≤", total / L, tolerance=tolerance, where=found.name, details={"Σ s^(2/L) by sample": sums.tolist()}
    )


@claim(
    "C-rank-5",
    "s_k(Jf(x)) ≤ (‖W‖²/(kL))^(L/2) for every k",
    paper="rank2023",
    where="after Prop. 3",
    hypotheses=("|slope| ≤ 1", "x off the kinks"),
    sample=relu_random_net,
    relation="≤",
)
def singular_value_bound(check: Check, subject: Subject) -> None:
    """s_k(Jf(x))^{2/L} ≤ ‖W‖²/(kL): the same bound value by value, in this form so that powers do not overflow."""
    found = points_of(subject)
    total, L = _squares(subject)
    k = torch.arange(1, found.s.shape[1] + 1, dtype=torch.float64)
    lhs = found.powers(2 / L)
    rhs = (total / (L * k)).expand_as(lhs)
    width = lhs.shape[1]
    check.add(found.slope_hypothesis, found.kink_hypothesis)
    check.compare(
        lhs,
        "≤",
        rhs,
        tolerance=rounding(subject.net) + _power_error(found, 2 / L),
        where=lambda i: f"{found.name(i // width)}, k = {i % width + 1}",
    )


@claim(
    "C-rank-9",
    "‖W_ℓ‖² + ‖b_ℓ‖² = ‖W_(ℓ+1)‖² at a minimum of cost + ridge·‖θ‖²",
    paper="rank2023",
    where="Prop. 12",
    hypotheses=("ridge > 0 given", "stationary point"),
    sample=least_squares_minimum,
)
def weak_balancedness(check: Check, subject: Subject) -> None:
    """‖W_ℓ‖² + ‖b_ℓ‖² = ‖W_{ℓ+1}‖², because rescaling a layer against the next leaves the function as it is.

    Along that rescaling, by v = (W_ℓ, b_ℓ, −W_{ℓ+1}), the loss changes only by its ridge. With the slopes S at kinks of
    the certificate, 2·ridge·(a − b) = ⟨∇(S), v⟩ − Σ(∂C/∂α_ℓ)(Sz − σ(z)) for a, b the two sides: entries that are near a
    kink and not on it are not homogeneous. So a residual r leaves |a − b| ≤ r·‖θ‖·√(a + b) + κ_ℓ/(2·ridge), whatever
    the network, and that is the tolerance.
    """
    norms = parameter_norms(subject.net)
    found = at_a_minimum(check, subject)
    if len(norms.weights) < 2:
        check.not_applicable("one layer has no next one", cause="network")
    check.require()
    assert found is not None and subject.ridge
    before, after = norms.layers[:-1], norms.weights[1:]
    leak = torch.stack([kappa.sum() for kappa in pulls(subject, subject.trace(), found).leak])
    left = found.residual * (norms.total * (before + after)).sqrt() + leak / (2 * subject.ridge)
    granted = rounding(subject.net) + left / torch.maximum(before, after).clamp_min(1e-300)
    check.compare(
        before,
        "=",
        after,
        tolerance=granted.tolist(),
        where=lambda i: f"layers {i + 1} and {i + 2}",
        details={"‖W_ℓ‖² + ‖b_ℓ‖²": norms.layers.tolist(), "‖W_ℓ‖²": norms.weights.tolist()},
    )
