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
from isthmus.training._coupled import CoupledMetric
from isthmus.training._first_order import OptimiserState
from isthmus.training._lbfgs import LBFGS
from isthmus.training._objective import Objective
from isthmus.training._phases import MOST_PARAMETERS
from isthmus.training._requests import Steps

#: Steps between two Hessians: at least the first, and one for so many parameters in effect, which they take longer for.
EVERY, EACH = 30, 10


class Newton(LBFGS):
    """L-BFGS from the Hessian of the rounded loss, from the coupled metric, or, where there is none, from the identity.

    What it starts from is a function of the point where it was computed: from there it is computed again after a pause.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.at: Tensor | None = None
        self.live = torch.zeros(0, dtype=torch.int64)
        self.factor: Tensor | None = None
        self.coupled: CoupledMetric | None = None
        #: Whether these are those of the point ``at``.
        self.known = False

    def get_state(self) -> OptimiserState:
        """Of L-BFGS, and where the Hessian was computed."""
        tensors = {**self.pairs.get_state(), **({} if self.at is None else {"at": self.at})}
        return OptimiserState(tensors, self.numbers)

    def set_state(self, state: OptimiserState) -> None:
        """Continue from ``state``."""
        self.numbers, self.value = state.numbers, None
        self.pairs.set_state(state.tensors)
        self.at, self.known = state.tensors.get("at"), False

    def forget(self) -> None:
        """Drop what was computed from the former objective."""
        super().forget()
        self.at, self.known = None, False

    @property
    def scaled(self) -> bool:
        """Whether there is a Hessian or a metric."""
        return self.factor is not None or self.coupled is not None

    def _prepare(self, objective: Objective, step: int, ridge: float) -> Steps[None]:
        """A Hessian where it is time for one; the coupled metric once in a phase."""
        if self.at is not None and not self.known:
            self._compute(objective, self.at, ridge)
        few = len(self.live) <= MOST_PARAMETERS
        if self.at is None or (few and step % max(EVERY, len(self.live) // EACH) == 0):
            self.at = objective.theta.clone()
            self._forget()
            self._compute(objective, self.at, ridge)
        yield from ()

    def _first_guess(self, vectors: Tensor, ridge: float) -> Steps[Tensor]:
        yield from ()
        if self.coupled is not None:
            return self.coupled.solve(vectors)
        if self.factor is None:
            return vectors
        solved = vectors / (2.0 * ridge)
        solved[:, self.live] = torch.cholesky_solve(vectors[:, self.live].mT, self.factor).mT
        return solved

    def _compute(self, objective: Objective, theta: Tensor, ridge: float) -> None:
        """The Hessian in the parameters that the cost depends on; along all others it is 2·ridge."""
        self.factor, self.coupled, self.known = None, None, True
        model = Kinked(objective.net, objective.X, objective.Y, objective.stack.loss, ridge, objective.stack.rows)
        rounded = objective.rounded
        zs = model.z(theta, lambda place, Z, a, part: rounded[place].of_rows(part).value(Z, a))
        shares = [one.share(z) for one, z in zip(rounded, zs)]
        slopes = [a + (1.0 - a) * D for a, D in zip(model.kinds, shares)]
        offsets = [one.value(z, a) - S * z for one, z, a, S in zip(rounded, zs, model.kinds, slopes)]
        gradient, _, pulled = model.first_order(theta, slopes, offsets)
        self.live = ((theta != 0.0) | (gradient - 2.0 * ridge * theta != 0.0)).nonzero()[:, 0]
        weights = [(1.0 - a) * one / (2.0 * own.band) for a, one, own in zip(model.kinds, pulled, rounded)]
        active = [(D > 0.0) & (D < 1.0) & (weight > 0.0) for D, weight in zip(shares, weights)]
        if len(self.live) > MOST_PARAMETERS:
            if self.metric is not None:
                seen = len(objective.X) <= objective.stack.rows
                weights = [torch.where(mask, one, 0.0) for one, mask in zip(weights, active)] if seen else []
                self.coupled = CoupledMetric(self.metric, theta, objective.X, ridge, weights)
            return
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
