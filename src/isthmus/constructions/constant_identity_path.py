"""The path of constant cost of identity along which superfluous neurons vanish (hamiltonian2024, Prop. 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus._cite import cites
from isthmus._cone import eliminate
from isthmus.linalg import matrix
from isthmus.trace import activate


@dataclass(frozen=True, eq=False)
class IdentityPath:
    """A_t with rows √((1−t) + t·a_i)·Â_i: the covariances AᵀA and σ̄(A)ᵀσ̄(A) do not change with t.

    Attributes
    ----------
    A : Tensor (w, N)
        Â, where it starts.
    shares : Tensor (w,)
        a_i ≥ 0, at most N(N+1) of them positive.
    """

    A: Tensor
    shares: Tensor

    def at(self, t: float) -> Tensor:
        """A_t, (w, N), for t ∈ [0, 1]."""
        return ((1.0 - t) + t * self.shares).clamp_min(0.0).sqrt()[:, None] * self.A

    @property
    def kept(self) -> int:
        """Neurons that are left at t = 1."""
        return int((self.shares > 0).sum())


@cites("hamiltonian2024", "Prop. 3 and Prop. 7", ids=("C-ham-3",))
def constant_identity_path(A: Any, *, slope: float = 0.0) -> IdentityPath:
    """Σa_i(A_iA_iᵀ, σ(A_i)σ(A_i)ᵀ) = Σ(A_iA_iᵀ, σ(A_i)σ(A_i)ᵀ) with a_i ≥ 0, at most N(N+1) of them positive.

    The pairs lie in a space of N(N+1) dimensions: among more of them there is a linear relation, and subtracting the
    right multiple of it takes a weight to 0 and leaves the others non-negative. Repeated until the pairs that are left
    are independent. The cost of identity, with and without bias, depends on A through these covariances only.

    Parameters
    ----------
    A : array (w, N)
        Samples as columns, neurons as rows. For small N: the pairs are held as a matrix N(N+1) × w.
    """
    M = matrix("constant_identity_path", "A", A)
    N = M.shape[1]
    i, j = torch.triu_indices(N, N)
    pairs = torch.cat([row[:, i] * row[:, j] for row in (M, activate(M, slope))], 1)
    # Any independent set will do: the covariances, and with them the cost, are the same.
    return IdentityPath(M, eliminate(pairs, relation=1e-12))
