"""Q-repcost where it is known exactly: linear and diagonal linear networks, and the expansion in 1/L."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from isthmus._checks import as_tensor, check_integer, fail
from isthmus._cite import cites
from isthmus.linalg import matrix, rank_tolerance, schatten


@cites("rank2023", "§1", ids=("Q-repcost",))
@cites("bottleneck2023", "§3", ids=("Q-repcost",))
def linear_cost(A: Any, depth: int) -> float:
    """R(A; L) = L · Σ sᵢ(A)^{2/L}: the least ‖θ‖² of a linear network W_L ⋯ W_1 = A."""
    L = check_integer("linear_cost", "depth", depth, low=1)
    return float(L * schatten(_one_matrix("linear_cost", A), 2.0 / L))


@cites("rank2023", "§1", ids=("Q-repcost",))
def diagonal_cost(w: Any, depth: int) -> float:
    """R(w; L) = L · Σ |wᵢ|^{2/L}: the least ‖θ‖² of a diagonal linear network w = w_L ⊙ ⋯ ⊙ w_1."""
    L = check_integer("diagonal_cost", "depth", depth, low=1)
    vector = _one_vector("diagonal_cost", w)
    return float(L * vector.abs().pow(2.0 / L).sum())


@dataclass(frozen=True)
class Expansion:
    """R(A; L) = L·R0 + R1 + R2/L + O(L⁻²)."""

    R0: int
    R1: float
    R2: float

    def at(self, depth: int, terms: int = 3) -> float:
        """The first ``terms`` terms at depth L."""
        check_integer("Expansion.at", "depth", depth, low=1)
        check_integer("Expansion.at", "terms", terms, low=1, high=3)
        return sum((depth * self.R0, self.R1, self.R2 / depth)[:terms])


@cites("bottleneck2023", "§3", ids=("Q-repcost",))
def linear_expansion(A: Any) -> Expansion:
    """R0 = Rank A, R1 = 2 log|A|₊, R2 = ½‖log₊ AᵀA‖²_F of a linear map (2Σlog²sᵢ for R2)."""
    M = _one_matrix("linear_expansion", A)
    s = torch.linalg.svdvals(M)
    return _expansion(s[s > rank_tolerance(s, (M.shape[0], M.shape[1]))])


@cites("rank2023", "§1", ids=("Q-repcost",))
def diagonal_expansion(w: Any) -> Expansion:
    """The same three terms for a diagonal network: R0 = ‖w‖₀, R1 = 2Σlog|wᵢ|, R2 = 2Σlog²|wᵢ|."""
    vector = _one_vector("diagonal_expansion", w).abs()
    return _expansion(vector[vector > 0])


def _one_matrix(who: str, A: Any) -> torch.Tensor:
    M = matrix(who, "A", A)
    if M.ndim != 2:
        fail(who, "`A` must be one matrix", f"shape {tuple(M.shape)}", "Pass a 2-D array.")
    return M


def _one_vector(who: str, w: Any) -> torch.Tensor:
    vector = as_tensor(who, "w", w)
    if vector.ndim != 1:
        fail(who, "`w` must be a vector", f"shape {tuple(vector.shape)}", "Flatten it.")
    return vector


def _expansion(s: torch.Tensor) -> Expansion:
    logs = s.log()
    return Expansion(len(s), float(2 * logs.sum()), float(2 * logs.square().sum()))
