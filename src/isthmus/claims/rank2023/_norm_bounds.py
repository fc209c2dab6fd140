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
    relu_random_net,
)
from isthmus.measures import parameter_norms
from isthmus.measures._norms import Norms


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

    Along that rescaling, by v = (W_ℓ, b_ℓ, −W_{ℓ+1}), the loss changes only by its ridge: 2·ridge·(a − b) = ⟨∇, v⟩ with
    a, b the two sides. So a gradient of relative size r leaves |a − b| ≤ r·‖θ‖·√(a + b), whatever the network. That is
    the tolerance, and the point is stationary only where it is small beside a and b: else this would say nothing.
    """
    norms = parameter_norms(subject.net)
    sway = _sway(norms)
    residual = at_a_minimum(check, subject, sway)
    if len(norms.weights) < 2:
        check.not_applicable("one layer has no next one")
    before, after = norms.layers[:-1], norms.weights[1:]
    check.compare(
        before,
        "=",
        after,
        tolerance=rounding(subject.net) + residual * sway,
        where=lambda i: f"layers {i + 1} and {i + 2}",
        details={"‖W_ℓ‖² + ‖b_ℓ‖²": norms.layers.tolist(), "‖W_ℓ‖²": norms.weights.tolist()},
    )


def _sway(norms: Norms) -> float:
    """‖θ‖·√(a + b)/max(a, b), the largest over the pairs of layers."""
    a, b = norms.layers[:-1], norms.weights[1:]
    shares = (norms.total * (a + b)).sqrt() / torch.maximum(a, b).clamp_min(1e-300)
    return float(shares.max()) if len(shares) else 0.0
