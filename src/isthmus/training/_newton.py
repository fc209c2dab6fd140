"""Quasi-Newton steps that start from the Hessian itself, kinks included.

The loss with rounded kinks is continuously differentiable and piecewise smooth; within its parabola an entry z adds
δ·∇z∇zᵀ/2h to the Hessian, for the derivative δ of the loss by what its activation gives. L-BFGS that starts from this
matrix needs some ten steps where from the identity it needs thousands. Derivation in docs/notes/stationarity.md.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isthmus._kinks import Kinked
from isthmus.training._first_order import OptimiserState
from isthmus.training._lbfgs import LBFGS
from isthmus.training._objective import Objective, Value
from isthmus.training._requests import Steps

#: Parameters in effect up to which Hessians are computed.
MOST_PARAMETERS = 5000

#: Steps between two Hessians: at least the first, and one for so many parameters in effect, which they take longer for.
EVERY, EACH = 30, 10


class Newton(LBFGS):
    """L-BFGS from the Hessian of the rounded loss; with too many parameters in effect, from the network's metric."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.at: Tensor | None = None
        self.live = torch.zeros(0, dtype=torch.int64)
        self.factor: Tensor | None = None

    def get_state(self) -> OptimiserState:
        """As of L-BFGS, and where the Hessian was computed: it is computed again there."""
        state = super().get_state()
        return state if self.at is None else OptimiserState({**state.tensors, "at": self.at}, state.numbers)

    def set_state(self, state: OptimiserState) -> None:
        """Continue from ``state``."""
        super().set_state(state)
        self.at, self.factor = state.tensors.get("at"), None

    def forget(self) -> None:
        """The objective has changed."""
        super().forget()
        self.at = self.factor = None

    def step(self, objective: Objective, step: int, ridge: float) -> Steps[Value]:
        """One accepted step, or none; a new Hessian where it is time for one."""
        due = step % max(EVERY, len(self.live) // EACH) == 0 and len(self.live) <= MOST_PARAMETERS
        if due or (self.factor is None and len(self.live) <= MOST_PARAMETERS):
            if due or self.at is None:
                self.at = objective.theta.clone()
                self._forget()
            self._factorise(objective, self.at, ridge)
        return (yield from super().step(objective, step, ridge))

    def _first_guess(self, vectors: Tensor, ridge: float) -> Steps[Tensor]:
        if self.factor is None:
            return (yield from super()._first_guess(vectors, ridge))
        solved = vectors / (2.0 * ridge)
        solved[:, self.live] = torch.cholesky_solve(vectors[:, self.live].mT, self.factor).mT
        return solved

    def _factorise(self, objective: Objective, theta: Tensor, ridge: float) -> None:
        """Of the parameters that the cost depends on; along the others the ridge is all there is."""
        model = Kinked(objective.net, objective.X, objective.Y, objective.stack.loss, ridge, objective.stack.rows)
        rounded = objective.rounded
        zs = model.z(theta, lambda place, Z, a, part: rounded[place].of_rows(part).value(Z, a))
        shares = [one.share(z) for one, z in zip(rounded, zs)]
        slopes = [a + (1.0 - a) * D for a, D in zip(model.kinds, shares)]
        offsets = [one.value(z, a) - S * z for one, z, a, S in zip(rounded, zs, model.kinds, slopes)]
        gradient, _, pulled = model.first_order(theta, slopes, offsets)
        self.live = ((theta != 0.0) | (gradient - 2.0 * ridge * theta != 0.0)).nonzero()[:, 0]
        if len(self.live) > MOST_PARAMETERS:
            self.factor = None
            return
        weights = [(1.0 - a) * one / (2.0 * own.band) for a, one, own in zip(model.kinds, pulled, rounded)]
        active = [(D > 0.0) & (D < 1.0) & (weight > 0.0) for D, weight in zip(shares, weights)]
        H, G = model.second_order(theta, slopes, offsets, active, self.live)
        weight = torch.cat([theta[:0], *(one[mask] for one, mask in zip(weights, active))])
        H += G.mT @ (weight[:, None] * G)
        damping = 0.0
        while True:
            factor, failed = torch.linalg.cholesky_ex(H)
            if int(failed) == 0:
                self.factor = factor
                return
            more = max(2.0 * damping, 1e-3 * 2.0 * ridge)
            H.diagonal().add_(more - damping)
            damping = more
