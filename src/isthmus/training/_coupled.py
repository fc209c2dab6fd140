"""A metric that knows how layers act together, for networks with too many parameters for their Hessian.

Of the Hessian of a loss with rounded kinks three parts matter: the ridge; the Gauss–Newton matrix, large along few
directions, in which the layers act together; and the kinks, each of which stiffens mostly the weights of its own
neuron. A metric of these three leaves a condition number of about 3 but for a few directions, which L-BFGS learns.
Kronecker factors alone leave hundreds: they take a change that two layers cancel for one that matters. Measured in
docs/notes/stationarity.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from isthmus.networks._metric import SAMPLES, KroneckerMetric

#: Coordinates in which layers are coupled: those more curved than this many times the ridge, and at most so many.
CURVED, MOST_COORDINATES = 3.0, 3000

#: Kinks of one layer that count at most: the stiffest.
MOST_KINKS = 1000

#: Random cotangents for each coordinate, from which the Gauss–Newton matrix is estimated.
COTANGENTS = 4


class CoupledMetric:
    """H⁻¹ for H = N + Q·C·Qᵀ: N the ridge, kinks and weak curvature, C the Gauss–Newton matrix in the coordinates Q.

    All is in the eigenbasis of the Kronecker factors, u_p ⊗ v_q, of each matrix. There N = D + Σ w_k·b_k·b_kᵀ: D is
    diagonal, the ridge in Q and the Kronecker metric elsewhere, and b_k = e_i⊗ā_n for the kink of neuron i at sample n,
    ā_n what its layer is applied to.

    Parameters
    ----------
    metric : KroneckerMetric
        Its factors are estimated here, with a generator of their own: the same point gives the same metric.
    theta : Tensor (P,)
    X : Tensor (N, …)
    ridge : float > 0
    weights : sequence of Tensor (N, …)
        w of every entry of each activation, in the order of the forward pass; none: kinks are left out.
    curved : float
        Coordinates that are more curved than this many times the ridge are coupled, MOST_COORDINATES at most.
    """

    def __init__(
        self,
        metric: KroneckerMetric,
        theta: Tensor,
        X: Tensor,
        ridge: float,
        weights: Sequence[Tensor],
        *,
        curved: float = CURVED,
    ) -> None:
        self.metric, self.layout = metric, metric.layout()
        generator = torch.Generator().manual_seed(0)
        metric.refresh(theta, X, [generator])
        numbers = range(1, len(self.layout) + 1)
        self.outputs = [metric.tensors[f"G{i}.vectors"] for i in numbers]
        self.inputs = [metric.tensors[f"A{i}.vectors"] for i in numbers]
        curvature = [metric.tensors[f"G{i}.values"][:, None] * metric.tensors[f"A{i}.values"] for i in numbers]
        every = torch.cat([one.reshape(-1) for one in curvature])
        least = max(curved * 2.0 * ridge, float(every.topk(min(MOST_COORDINATES, len(every))).values[-1]))
        #: Of each matrix the coordinates in Q, as (outputs' eigenvectors, inputs' eigenvectors).
        self.chosen = [(one >= least).nonzero().unbind(1) for one in curvature]
        self.counts = [len(rows) for rows, _ in self.chosen]
        self.diagonals = [2.0 * ridge + torch.where(one >= least, 0.0, metric.coupling * one) for one in curvature]
        C = self._gauss_newton(theta, X, generator)
        self.kinks = self._kinks(theta, X, generator, weights)
        # C(1 + EC)⁻¹ for E = QᵀN⁻¹Q, by a factor of C.
        one = torch.eye(len(C), dtype=C.dtype, device=C.device)
        factor = torch.linalg.cholesky(C + 1e-3 * 2.0 * ridge * one)
        inner = torch.linalg.cholesky(one + factor.mT @ self._between(one / (2.0 * ridge)) @ factor)
        root = torch.linalg.solve_triangular(inner, factor.mT, upper=False)
        self.core = root.mT @ root

    def _gauss_newton(self, theta: Tensor, X: Tensor, generator: torch.Generator) -> Tensor:
        """C: the mean of ttᵀ over samples and random cotangents, t_(pq) = (g·u_p)(ā·v_q) of all matrices together."""
        rows = X if len(X) <= SAMPLES else X[:: -(-len(X) // SAMPLES)]
        size = sum(self.counts)
        draws = math.ceil(COTANGENTS * size / len(rows))
        C = theta.new_zeros(size, size)
        for _ in range(draws):
            parts = [theta[:0]] * len(self.layout)
            for number, a, g in self.metric.factors(theta, rows, [generator]):
                p, q = self.chosen[number - 1]
                parts[number - 1] = (g @ self.outputs[number - 1][p].mT) * (a @ self.inputs[number - 1][q].mT)
            t = torch.cat(parts, 1)
            C.addmm_(t.mT, t, alpha=1.0 / (len(rows) * draws))
        return C

    def _kinks(
        self, theta: Tensor, X: Tensor, generator: torch.Generator, weights: Sequence[Tensor]
    ) -> dict[int, tuple[Tensor, Tensor, Tensor]]:
        """Of each matrix (from 0) whose outputs have kinks: both parts of b_k, and a factor of W⁻¹ + BᵀD⁻¹B."""
        places = {number: weight for number, weight in zip(self.metric.kinked(), weights) if bool((weight > 0).any())}
        found: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        if not places:
            return found
        for number, a, _ in self.metric.factors(theta, X, [generator]):
            if number not in places:
                continue
            index, weight = number - 1, places[number]
            strongest = weight.reshape(-1).topk(min(MOST_KINKS, int((weight > 0).sum()))).indices
            n, i = strongest // weight.shape[1], strongest % weight.shape[1]
            left, right = self.outputs[index][:, i].mT.contiguous(), a[n] @ self.inputs[index].mT
            S = torch.diag(1.0 / weight[n, i])
            for p, row in enumerate((1.0 / self.diagonals[index]).unbind(0)):
                S.addmm_(left[:, p : p + 1] * right * row, (left[:, p : p + 1] * right).mT)
            found[index] = left, right, torch.linalg.cholesky(S)
        return found

    def _between(self, E: Tensor) -> Tensor:
        """E = QᵀN⁻¹Q from QᵀD⁻¹Q: matrices are orthogonal to each other, coordinates of one but for its kinks."""
        start = 0
        for index, ((p, q), count) in enumerate(zip(self.chosen, self.counts)):
            if index in self.kinks:
                left, right, factor = self.kinks[index]
                b = left[:, p] * right[:, q] / self.diagonals[index][p, q]
                b = torch.linalg.solve_triangular(factor, b, upper=False)
                E[start : start + count, start : start + count].addmm_(b.mT, b, alpha=-1.0)
            start += count
        return E

    def _without_coupling(self, Ms: Sequence[Tensor]) -> list[Tensor]:
        """N⁻¹ of vectors as matrices (k, outputs, inputs)."""
        found = [M / D for M, D in zip(Ms, self.diagonals)]
        for index, (left, right, factor) in self.kinks.items():
            along = ((left @ found[index]) * right).sum(-1)
            pulled = torch.cholesky_solve(along.mT, factor).mT
            found[index] -= (left.mT @ (pulled[:, :, None] * right)) / self.diagonals[index]
        return found

    @torch.no_grad()
    def solve(self, vectors: Tensor) -> Tensor:
        """H⁻¹·v = N⁻¹(v − Q·C(1 + EC)⁻¹·QᵀN⁻¹v) for vectors (k, P)."""
        Ms = [U @ M @ V.mT for U, M, V in zip(self.outputs, self.metric.matrices(vectors), self.inputs)]
        alone = self._without_coupling(Ms)
        coordinates = torch.cat([M[:, p, q] for M, (p, q) in zip(alone, self.chosen)], 1)
        for M, (p, q), part in zip(Ms, self.chosen, (coordinates @ self.core).split(self.counts, 1)):
            M[:, p, q] -= part
        found = torch.empty_like(vectors)
        for slot, U, M, V in zip(self.layout, self.outputs, self._without_coupling(Ms), self.inputs):
            whole = U.mT @ M @ V
            n, m = slot.outputs, slot.inputs
            found[:, slot.weight : slot.weight + n * m] = whole[..., :m].flatten(1)
            if slot.bias is not None:
                found[:, slot.bias : slot.bias + n] = whole[..., m]
        return found
