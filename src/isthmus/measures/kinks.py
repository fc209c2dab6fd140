"""Momenta at a minimum that sits on kinks: which of the admissible derivatives of σ balance the weights best?

At a minimum of a ReLU network many entries of its representations sit at 0 exactly: the loss has a valley along a kink.
There PyTorch's derivative is one of many admissible ones, and the gradient it gives does not vanish although the point
is critical in the sense of Clarke: 0 lies between the one-sided gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus._checks import check_number
from isthmus._cite import cites
from isthmus.measures.energies import last_momentum
from isthmus.trace import LeakyTrace, activation_derivative

#: Steps of the accelerated projected gradient method, at every layer.
ITERATIONS = 60


def on_kinks(trace: LeakyTrace, ell: int, tolerance: float) -> Tensor:
    """Entries of A_ℓ within ``tolerance`` times its root mean square of 0, a mask (w, N)."""
    A = trace.A(ell)
    return A.abs() <= tolerance * A.square().mean().sqrt()


@cites("hamiltonian2024", "§1.5, at kinks", ids=("Q-energy",))
@torch.no_grad()
def resolved_momenta(
    trace: LeakyTrace, Y: Tensor, lam: float, *, loss: str = "mse", tolerance: float = 1e-3
) -> list[Tensor]:
    """Momenta B_0 … B_L with the derivatives σ̇ ∈ [a, 1] at kinks that bring W_ℓ and L̃B_ℓσ(A_{ℓ-1})ᵀ closest.

    Layer by layer from the outputs: σ̇(A_{ℓ-1}) at its kinks enters B_{ℓ-1} linearly, and is chosen by least squares in
    the box to bring L̃B_{ℓ-1}σ(A_{ℓ-2})ᵀ closest to W_{ℓ-1}. Elsewhere nothing is chosen. A greedy choice, not the best;
    and entries choose for themselves, which allows more than Clarke's subdifferential does: a small residual is
    evidence of criticality, no bound of a distance (docs/notes/criticality.md).

    Parameters
    ----------
    trace, Y, lam, loss
        As for :func:`~isthmus.measures.momenta`.
    tolerance : float, default 1e-3
        How near 0, in units of the root mean square of A_ℓ, an entry counts as on its kink.
    """
    check_number("resolved_momenta", "tolerance", tolerance, low=0.0)
    L_tilde, width = trace.effective_depth, trace.width
    B = last_momentum(trace, Y, lam, loss=loss)
    Bs = [B]
    for ell in range(trace.depth, 0, -1):
        rho = float(trace.rho[ell - 1])
        kept, pulled = (1.0 - rho * L_tilde) * B, rho * (trace.Ws[ell - 1][:, :width].mT @ B)
        derivative = activation_derivative(trace.A(ell - 1), trace.slope)
        free = on_kinks(trace, ell - 1, tolerance)
        if ell > 1 and bool(free.any()):
            S = trace.sigma_A(ell - 2)
            derivative = _choose(derivative, free, kept, pulled, trace.Ws[ell - 2] / L_tilde, S, trace.slope)
        B = kept + derivative * pulled
        Bs.append(B)
    return Bs[::-1]


def _choose(
    derivative: Tensor, free: Tensor, kept: Tensor, pulled: Tensor, W: Tensor, S: Tensor, slope: float
) -> Tensor:
    """T ∈ [a, 1] on ``free`` with ‖W − (kept + T⊙pulled)Sᵀ‖ least: rows are separate problems."""
    low, high = min(slope, 1.0), 1.0
    pull = torch.where(free, pulled, torch.zeros_like(pulled))
    # Largest curvature of each row's problem.
    bound = float(torch.linalg.matrix_norm(S, 2)) ** 2 * pull.square().amax(1, keepdim=True)
    rate = torch.where(bound > 0, 1.0 / bound.clamp_min(1e-300), torch.zeros_like(bound))
    T = torch.where(free, torch.full_like(derivative, 0.5 * (low + high)), derivative)
    ahead, age = T, 1.0
    for _ in range(ITERATIONS):
        off = W - (kept + ahead * pulled) @ S.mT
        moved = torch.where(free, (ahead + rate * pull * (off @ S)).clamp(low, high), derivative)
        older, age = age, 0.5 * (1.0 + (1.0 + 4.0 * age**2) ** 0.5)
        ahead, T = moved + (older - 1.0) / age * (moved - T), moved

    def distance(choice: Tensor) -> float:
        return float((W - (kept + choice * pulled) @ S.mT).norm())

    # Never worse than PyTorch's own choice.
    return T if distance(T) <= distance(derivative) else derivative
