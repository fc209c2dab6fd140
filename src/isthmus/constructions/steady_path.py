"""Critical points of leaky ResNets in closed form: the same symmetric weights at every step."""

from __future__ import annotations

from typing import Any

import torch

from isthmus._checks import check_integer, check_number, fail
from isthmus._cite import cites
from isthmus.constructions.hamiltonian_flow import FlowNetwork, HamiltonianFlow, as_network
from isthmus.linalg import matrix, numerical_rank
from isthmus.networks.leaky_steps import equidistant


@cites("hamiltonian2024", "§1.5 and §2.1", ids=("C-ham-6", "C-ham-9"))
def steady_path(
    A: Any,
    G: Any,
    effective_depth: float,
    layers: int,
    *,
    leaking: Any = None,
    lam: float = 0.1,
    slope: float = 0.0,
) -> FlowNetwork:
    """W_ℓ = L̃G for all ℓ, G symmetric: A_ℓ = M^ℓA, B_ℓ = M^{1−ℓ}G(Aᵀ)⁺ with M = (1−ρL̃)I + ρL̃G, where σ(A_ℓ) = A_ℓ.

    An exact critical point of the discrete loss, for the targets f(X) + (λN/2)B_L: B_ℓA_{ℓ-1}ᵀ = G at every step, so
    that −(2/L̃)𝓗 = Tr[2G − G²] is conserved exactly. For G = I + D/L̃ it is k − ‖D‖²/L̃² and A_1 → e^D A.

    Parameters
    ----------
    A : array (k, N)
        Of rank k; positive, and to stay so, unless ``slope`` is 1: at zero σ̇ is that of the other side.
    G : array (k, k)
        Symmetric.
    leaking : array (m, N), optional
        Further neurons, all entries negative, that are never rebuilt: they leak as (1−ρL̃)^ℓ. For slope 0.
    """
    who = "steady_path"
    start, weights = matrix(who, "A", A), matrix(who, "G", G)
    L_tilde = check_number(who, "effective_depth", effective_depth, low=0.0, low_open=True)
    L = check_integer(who, "layers", layers, low=1)
    check_number(who, "lam", lam, low=0.0, low_open=True)
    k = len(start)
    if int(numerical_rank(start)) < k:
        fail(who, "`A` must have independent rows", f"rank {int(numerical_rank(start))} of {k}", "Leave some out.")
    if weights.shape != (k, k) or float((weights - weights.mT).norm()) > 1e-12 * float(weights.norm()):
        fail(who, f"`G` must be symmetric, ({k}, {k})", tuple(weights.shape), "Pass (G + Gᵀ)/2.")
    rho = 1.0 / L
    M = (1.0 - rho * L_tilde) * torch.eye(k, dtype=torch.float64) + rho * L_tilde * weights
    values, vectors = torch.linalg.eigh(M)
    if float(values.min()) <= 0.0:
        fail(who, "(1−ρL̃)I + ρL̃G must be positive", f"eigenvalue {float(values.min()):.3g}", "Take more layers.")
    dual = weights @ torch.linalg.pinv(start.mT)

    def power(n: int) -> torch.Tensor:
        return (vectors * values**n) @ vectors.mT

    As = torch.stack([power(ell) @ start for ell in range(L + 1)])
    Bs = torch.stack([power(1 - ell) @ dual for ell in range(L + 1)])
    if slope != 1.0 and float(As.min()) <= 0.0:
        fail(who, "the path must stay positive", f"an entry {float(As.min()):.3g}", "Pass slope=1 or another A.")
    if leaking is not None:
        rest = matrix(who, "leaking", leaking)
        if rest.shape[1] != start.shape[1] or float(rest.max()) >= 0.0 or slope != 0.0 or rho * L_tilde >= 1.0:
            must = "`leaking` must be negative, (m, N), with slope 0 and ρL̃ < 1"
            fail(who, must, f"shape {tuple(rest.shape)}, largest {float(rest.max()):.3g}", "Take more layers.")
        gone = torch.stack([(1.0 - rho * L_tilde) ** ell * rest for ell in range(L + 1)])
        As, Bs = torch.cat([As, gone], 1), torch.cat([Bs, torch.zeros_like(gone)], 1)
    return as_network(HamiltonianFlow(As, Bs, equidistant(L), L_tilde, slope, 0.0), lam)
