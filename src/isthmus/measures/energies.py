"""Q-energy: momenta, energies and Hamiltonian of a path of representations; discretely A_{ℓ-1} pairs with B_ℓ."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus._checks import check_number
from isthmus._cite import cites
from isthmus.measures.kernel_norms import KernelNorm
from isthmus.objective import cost
from isthmus.trace import LeakyTrace, activate, activation_derivative, with_ones


def last_momentum(trace: LeakyTrace, Y: Tensor, lam: float, *, loss: str = "mse", samples: int | None = None) -> Tensor:
    """B_L = −(1/λ)∂C/∂A_L, (w, N); arguments as for :func:`momenta`."""
    check_number("momenta", "lam", lam, low=0.0, low_open=True)
    outputs = trace.outputs.detach().requires_grad_()
    with torch.enable_grad():
        share = trace.samples / (trace.samples if samples is None else samples)
        (gradient,) = torch.autograd.grad(share * cost(outputs, Y, loss), outputs)
    return -(gradient @ trace.W_out).mT / lam


@cites("hamiltonian2024", "§1.5, B_p", ids=("Q-energy",))
def momenta(trace: LeakyTrace, Y: Tensor, lam: float, *, loss: str = "mse", samples: int | None = None) -> list[Tensor]:
    """B_ℓ = −(1/λ)∂C/∂A_ℓ, ℓ = 0 … L, each (w, N): one backward pass along the path.

    B_{ℓ-1} = (1 − ρ_ℓL̃)B_ℓ + ρ_ℓ σ̇(A_{ℓ-1}) ⊙ (W_ℓᵀB_ℓ), the last row of W_ℓᵀ (the bias) left out.

    Parameters
    ----------
    trace : LeakyTrace
    Y : Tensor (N, d_out), or class indices (N,)
    lam : float
        λ > 0 of the paper: 2L̃ times our ridge.
    samples : int, optional
        N in the cost, when ``trace`` holds only part of the samples.
    """
    B = last_momentum(trace, Y, lam, loss=loss, samples=samples)
    Bs = [B]
    L_tilde, width = trace.effective_depth, trace.width
    for ell in range(trace.depth, 0, -1):
        rho = float(trace.rho[ell - 1])
        pulled = trace.Ws[ell - 1][:, :width].mT @ B
        B = (1.0 - rho * L_tilde) * B + rho * activation_derivative(trace.A(ell - 1), trace.slope) * pulled
        Bs.append(B)
    return Bs[::-1]


@cites("hamiltonian2024", "§1.5", ids=("Q-energy",))
def hamiltonian(A: Tensor, B: Tensor, effective_depth: float, *, slope: float = 0.0, bias: float = 1.0) -> float:
    """𝓗(A, B) = (L̃/2)‖Bσ(A)ᵀ‖² − L̃Tr[BAᵀ], for A and B of shape (w, N)."""
    S = with_ones(activate(A, slope), bias)
    return effective_depth * (0.5 * float((B @ S.mT).square().sum()) - float((A * B).sum()))


def flow(
    A: Tensor, B: Tensor, effective_depth: float, *, slope: float = 0.0, bias: float = 1.0
) -> tuple[Tensor, Tensor]:
    """(∂_pA, ∂_pB) of the Hamiltonian dynamics: L̃(Bσ(A)ᵀσ(A) − A) and −L̃(σ̇(A)⊙[σ̄(A)BᵀB] − B).

    Departs from the paper in notation only: σ(A)BᵀB has a last row, that of the ones, which drops out of ∂_pB.
    """
    S = with_ones(activate(A, slope), bias)
    inner = activate(A, slope) @ B.mT @ B
    return (
        effective_depth * (B @ S.mT @ S - A),
        -effective_depth * (activation_derivative(A, slope) * inner - B),
    )


@dataclass(frozen=True)
class StepEnergies:
    """Energies of one step, in the norm of K + γI.

    Attributes
    ----------
    kinetic : float
        (1/2L̃)‖∂_pA‖².
    potential : float
        −(L̃/2)‖A‖².
    cross : float
        ⟨∂_pA, A⟩.
    speed : float
        ‖∂_pA‖.
    identity_cost : float
        ‖A‖².
    gamma : float
    """

    kinetic: float
    potential: float
    cross: float
    speed: float
    identity_cost: float
    gamma: float

    @property
    def hamiltonian(self) -> float:
        """𝓗_γ = kinetic + potential."""
        return self.kinetic + self.potential


@cites("hamiltonian2024", "§1.3 and Thm. 4", ids=("Q-energy",))
def step_energies(
    S: Tensor, A: Tensor, dA: Tensor, effective_depth: float, gamma: float, norm: KernelNorm | None = None
) -> StepEnergies:
    """Kinetic and potential energy and their cross term at A moving by ∂_pA, in the norm of K + γI, K = SᵀS.

    Their combination potential⁻ + cross + kinetic, (L̃/2)‖A‖² + ⟨∂_pA, A⟩ + (1/2L̃)‖∂_pA‖², is (1/2L̃)‖L̃A + ∂_pA‖².

    Parameters
    ----------
    S : Tensor (w + 1, N)
        σ(A).
    A, dA : Tensor (w, N)
    gamma : float
        0 for the unstabilised energies, ∞ where A or ∂_pA leave the image of K.
    norm : KernelNorm, optional
        That of ``S``, if there already is one.
    """
    own = KernelNorm(S) if norm is None else norm
    coi, moving = own.square(A, gamma), own.square(dA, gamma)
    return StepEnergies(
        kinetic=moving / (2.0 * effective_depth),
        potential=-0.5 * effective_depth * coi,
        cross=own.product(dA, A, gamma),
        speed=moving**0.5,
        identity_cost=coi,
        gamma=gamma,
    )


@cites("hamiltonian2024", "§1.3", ids=("Q-energy",))
def lagrangian_weights(trace: LeakyTrace, ell: int) -> Tensor:
    """W = (L̃A + ∂_pA)σ(A)⁺ of step ℓ, (w, w + 1): the smallest weights that take A_{ℓ-1} to A_ℓ."""
    moved = trace.effective_depth * trace.A(ell - 1) + trace.derivative(ell)
    return KernelNorm(trace.sigma_A(ell - 1), eps=trace.source_eps).weights(moved)
