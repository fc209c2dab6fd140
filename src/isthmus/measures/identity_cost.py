"""Q-coi: the cost of identity ‖A‖²_K, the norm of the smallest weights that rebuild a representation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus._checks import check_number
from isthmus._cite import cites
from isthmus.linalg import matrix
from isthmus.measures.kernel_norms import KernelNorm, fewer_columns
from isthmus.trace import LeakyTrace, Trace, activate, with_ones

#: γ_p as a share of ‖K_p‖_op, unless told otherwise.
GAMMA_SHARE = 1e-3


@cites("hamiltonian2024", "§1.3 and §1.4", ids=("Q-coi",))
def cost_of_identity(A: Any, *, gamma: float = 0.0, bias: float = 1.0, slope: float = 0.0) -> float:
    """‖A‖²_{K+γI} = Tr[A(K+γI)⁻¹Aᵀ] for K = σ(A)ᵀσ(A): the squared norm of the smallest W with Wσ(A) = A.

    Parameters
    ----------
    A : array (w, N)
        Samples as columns.
    gamma : float, default 0
        γ ≥ 0, absolute. 0 gives the cost itself: ∞ when the rows of A do not lie in the image of K.
    bias : float, default 1
        Amount of bias: 0 is the cost without bias, ‖A‖²_{K̄}.
    slope : float, default 0
        a of σ_a.

    Examples
    --------
    >>> round(cost_of_identity([[1.0, 2.0, 0.5], [2.0, 1.0, 0.0]], bias=0.0), 9)  # non-negative: the rank
    2.0
    """
    who = "cost_of_identity"
    M = matrix(who, "A", A)
    check_number(who, "gamma", gamma, low=0.0)
    return KernelNorm(with_ones(activate(M, slope), bias)).square(M, gamma)


@cites("hamiltonian2024", "Prop. 1", ids=("Q-coi",))
def identity_cost_bounds(A: Any) -> tuple[float, float]:
    """(‖A‖_*²/‖A‖_F², ‖A‖_F²/‖A‖_op²): lower bounds of the cost of identity *without bias*, the first the larger.

    With bias, or with γ > 0, they are not bounds. Both are 0 for A = 0.
    """
    s = torch.linalg.svdvals(matrix("identity_cost_bounds", "A", A))
    square = float((s**2).sum())
    if square == 0.0:
        return 0.0, 0.0
    return float(s.sum()) ** 2 / square, square / float(s.max()) ** 2


@dataclass(frozen=True)
class IdentityCosts:
    """Costs of identity of every representation of a network.

    Attributes
    ----------
    layers : tuple of int
        ℓ; for leaky ResNets 0 … L, for fully connected ones 1 … L−1 (pre-activations).
    cost : tuple of float
        Stable, with bias: ‖A‖²_{K+γI}; ∞ where K vanishes and A does not.
    without_bias : tuple of float
        Stable, ‖A‖²_{K̄+γI}.
    exact : tuple of float
        γ = 0, with bias; ∞ where the representation cannot be rebuilt.
    effective_dimension : tuple of float
        ‖A‖_*²/‖A‖_F².
    gamma : tuple of float
        γ_ℓ = ``gamma_share``·‖K_ℓ‖_op.
    """

    layers: tuple[int, ...]
    cost: tuple[float, ...]
    without_bias: tuple[float, ...]
    exact: tuple[float, ...]
    effective_dimension: tuple[float, ...]
    gamma: tuple[float, ...]


@cites("hamiltonian2024", "§2.1, γ_p", ids=("Q-coi",))
def identity_costs(trace: Trace | LeakyTrace, *, gamma_share: float = GAMMA_SHARE) -> IdentityCosts:
    """Costs of identity through depth, of a leaky ResNet or of a fully connected network (its pre-activations).

    Departs from the paper: γ_ℓ = γ₀‖K_ℓ‖_op, not its square (erratum).
    """
    check_number("identity_costs", "gamma_share", gamma_share, low=0.0, low_open=True)
    leaky = isinstance(trace, LeakyTrace)
    layers = range(trace.depth + 1) if leaky else range(1, trace.depth)
    rows: list[tuple[float, ...]] = []
    for ell in layers:
        A = trace.A(ell) if isinstance(trace, LeakyTrace) else trace.Z(ell)
        rows.append(_costs(A, trace.slope, trace.bias, gamma_share, trace.source_eps))
    columns = list(zip(*rows)) if rows else [()] * 5
    cost, without, exact, dimension, gamma = (tuple(column) for column in columns)
    return IdentityCosts(tuple(layers), cost, without, exact, dimension, gamma)


def _costs(A: Tensor, slope: float, bias: float, share: float, eps: float) -> tuple[float, ...]:
    S = with_ones(activate(A, slope), bias)
    # Rotated columns keep every inner product: enough for any number of samples.
    both = fewer_columns([S, A])
    S, M = both[: len(S)], both[len(S) :]
    norm = KernelNorm(S, eps=eps)
    gamma = share * norm.top
    bare = norm if bias == 0.0 else KernelNorm(S[:-1], eps=eps)
    # One γ for both, so that they can be compared. A kernel that vanishes leaves no scale for it: 0 if A does, else ∞.
    stable = norm.square(M, gamma), bare.square(M, gamma)
    return (*stable, norm.square(M), identity_cost_bounds(M)[0], gamma)
