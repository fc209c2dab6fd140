"""First-order steps of a stack of networks, each as :class:`~.optimisers.FirstOrder` takes it alone."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from isthmus.objective import constant_cost
from isthmus.training._optimisers import ScaleDown, adam_
from isthmus.training._phases import Phase
from isthmus.training._together_stack import Array, StackedMeanSquare, Values, column


class StackedOptimiser(Protocol):
    """What the loop needs of an optimiser; rows of ``theta`` are networks."""

    def finished(self) -> Array:
        """For each network, whether no further step is possible or wanted."""
        ...

    def step(self, theta: Tensor, step: int, ridges: Array) -> Values:
        """One step of each, in place; a row with a non-finite value need not move."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Go on with some of the networks."""
        ...


class StackedFirstOrder:
    """Adam, gradient descent with and without momentum, Nesterov's method, on all samples."""

    def __init__(self, phase: Phase, theta: Tensor, objective: StackedMeanSquare) -> None:
        self.phase, self.objective = phase, objective
        self.gradient = torch.empty_like(theta)
        names = {"adam": ("mean", "square"), "sgd": ("velocity",), "nesterov": ("velocity",)}.get(phase.method, ())
        self.tensors = {name: torch.zeros_like(theta) for name in names}
        count = len(theta)
        self.age, self.last, self.share = np.zeros(count), np.full(count, np.inf), np.zeros(count)

    def finished(self) -> Array:
        """Never: only the number of steps ends it."""
        return np.zeros(len(self.age), dtype=bool)

    def keep(self, rows: Tensor) -> None:
        """Go on with some of the networks."""
        self.tensors = {name: tensor[rows] for name, tensor in self.tensors.items()}
        self.gradient = self.gradient[: len(rows)]
        chosen = rows.numpy(force=True)
        self.age, self.last, self.share = self.age[chosen], self.last[chosen], self.share[chosen]

    @torch.no_grad()
    def step(self, theta: Tensor, step: int, ridges: Array) -> Values:
        """Evaluate at θ, then move θ; the values returned are those before the move."""
        values = self.objective(theta, ridges, into=self.gradient)
        g, rate = values.gradient, self.phase.rate(step)
        if self.phase.method == "adam":
            adam_(theta, g, self.tensors["mean"], self.tensors["square"], step, rate)
        elif self.phase.method == "gd":
            theta.add_(g, alpha=-rate)
        elif self.phase.method == "sgd":
            theta.add_(self.tensors["velocity"].mul_(self.phase.momentum).add_(g), alpha=-rate)
        else:
            self._nesterov(theta, values, rate)
        return values

    def _nesterov(self, theta: Tensor, values: Values, rate: float) -> None:
        """θ is the extrapolated point; a network whose loss rose undoes the extrapolation and starts its momentum anew.

        With share 0 and no gradient, the step of all others leaves it where it is.
        """
        velocity = self.tensors["velocity"]
        again = values.loss > self.last
        theta.addcmul_(velocity, column(np.where(again, -self.share, 0.0), theta))
        moving = column(np.where(again, 0.0, 1.0), theta)
        velocity.mul_(column(np.where(again, 0.0, self.share), theta)).addcmul_(values.gradient, moving, value=-rate)
        self.age = np.where(again, 0.0, self.age + 1.0)
        self.share = np.where(again, 0.0, (self.age - 1.0) / (self.age + 2.0))
        self.last = np.where(again, np.inf, values.loss)
        theta.addcmul_(values.gradient, moving, value=-rate).addcmul_(velocity, column(self.share, theta))


class StackedScaleDown:
    """One step: θ_i ← c_i·θ_i with the largest c_i ≤ 1 at which the cost is at most twice a constant's."""

    def __init__(self, objective: StackedMeanSquare) -> None:
        self.objective, self.done = objective, False

    def finished(self) -> Array:
        """After one step."""
        return np.full(len(self.objective.members), self.done)

    def keep(self, rows: Tensor) -> None:
        """Nothing is remembered."""

    @torch.no_grad()
    def step(self, theta: Tensor, step: int, ridges: Array) -> Values:  # noqa: ARG002
        """Scale, and return the values there."""
        self.done = True
        objective, origin = self.objective, theta.clone()
        zero = objective(torch.zeros_like(theta), ridges).cost
        limit = np.maximum(2.0 * self._constants(), zero)
        values = objective(theta, ridges)
        for factor in ScaleDown.GRID[1:]:
            high = np.flatnonzero(~(values.finite() & (values.cost <= limit)))
            if not len(high):
                break
            rows = torch.as_tensor(high)
            theta[rows] = origin[rows] * factor
            values.put(high, objective(theta[rows], ridges[high], high), np.arange(len(high)))
        return values

    def _constants(self) -> Array:
        """Least cost of a constant, of each network's targets."""
        Y = self.objective.Y
        if Y.ndim == 2:
            return np.full(len(self.objective.members), constant_cost(Y, "mse"))
        return np.array([constant_cost(Y[i], "mse") for i in self.objective.members])
