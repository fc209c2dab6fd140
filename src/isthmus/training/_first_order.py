"""First-order optimisers on a flat vector, with their whole state in named tensors so that it can be saved.

Their steps are generators of requests: see :mod:`isthmus.training._requests`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from isthmus.objective import constant_cost
from isthmus.training._objective import Objective, Value
from isthmus.training._phases import Phase
from isthmus.training._requests import Adam, Evaluate, Steps


@dataclass
class OptimiserState:
    """Everything an optimiser remembers between steps: tensors and numbers."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)


class Optimiser(Protocol):
    """What the loop needs of an optimiser."""

    @property
    def finished(self) -> bool:
        """Whether no further step is possible or wanted."""
        ...

    def step(self, objective: Objective, step: int, ridge: float) -> Steps[Value]:
        """Take one step from ``objective.theta``."""
        ...

    def forget(self) -> None:
        """The objective has changed: drop what would now mislead."""
        ...

    def get_state(self) -> OptimiserState:
        """All that :meth:`set_state` needs to continue to the same bits."""
        ...

    def set_state(self, state: OptimiserState) -> None:
        """Continue from ``state``."""
        ...


class FirstOrder:
    """Adam, gradient descent, SGD with momentum and Nesterov's method, one step at a time."""

    def __init__(self, phase: Phase, theta: Tensor, generator: torch.Generator) -> None:
        self.phase, self.generator = phase, generator
        self.state = OptimiserState()
        if phase.method == "adam":
            self.state.tensors = {"mean": torch.zeros_like(theta), "square": torch.zeros_like(theta)}
        elif phase.method in ("sgd", "nesterov"):
            self.state.tensors = {"velocity": torch.zeros_like(theta)}
        if phase.method == "nesterov":
            self.state.numbers = {"age": 0.0, "last": float("inf"), "share": 0.0}
        self.state.tensors["order"] = torch.zeros(0, dtype=torch.int64)

    @property
    def finished(self) -> bool:
        """False: only the number of steps ends it."""
        return False

    def forget(self) -> None:
        """Drop the loss that Nesterov's method compares with; Adam's averages fade by themselves."""
        if "last" in self.state.numbers:
            self.state.numbers["last"] = float("inf")

    def get_state(self) -> OptimiserState:
        """The state for a checkpoint."""
        return self.state

    def set_state(self, state: OptimiserState) -> None:
        """Continue from ``state``."""
        self.state = state

    def batch(self, samples: int) -> Tensor | None:
        """Rows of the next mini-batch: epochs in random order, a last incomplete batch is dropped."""
        size = self.phase.batch_size
        if size is None or size >= samples:
            return None
        order = self.state.tensors["order"]
        if len(order) < size:
            order = torch.randperm(samples, generator=self.generator)
        self.state.tensors["order"] = order[size:].clone()
        return order[:size]

    def step(self, objective: Objective, step: int, ridge: float) -> Steps[Value]:
        """Evaluate at θ, then move θ; the value returned is that before the move. No move from a non-finite value.

        Its gradients are overwritten by the next step.
        """
        value: Value = yield Evaluate(objective, ridge, self.batch(objective.X.shape[0]), fleeting=True)
        if not value.finite:
            return value
        theta, g, rate = objective.theta, value.gradient, self.phase.rate(step)
        tensors, numbers = self.state.tensors, self.state.numbers
        if self.phase.method == "adam":
            yield Adam(theta, g, tensors["mean"], tensors["square"], step, rate)
        elif self.phase.method == "gd":
            theta.add_(g, alpha=-rate)
        elif self.phase.method == "sgd":
            velocity = tensors["velocity"].mul_(self.phase.momentum).add_(g)
            theta.add_(velocity, alpha=-rate)
        else:
            self._nesterov(theta, value, rate, numbers)
        return value

    def _nesterov(self, theta: Tensor, value: Value, rate: float, numbers: dict[str, float]) -> None:
        """θ is the extrapolated point; momentum (age − 1)/(age + 2) from the last restart on."""
        velocity = self.state.tensors["velocity"]
        if value.loss > numbers["last"]:
            # Adaptive restart: undo the extrapolation that overshot.
            theta.sub_(velocity, alpha=numbers["share"])
            velocity.zero_()
            numbers.update(age=0.0, last=float("inf"), share=0.0)
            return
        numbers["last"] = value.loss
        # velocity = x_{t+1} − x_t with x the sequence before extrapolation.
        velocity.mul_(numbers["share"]).add_(value.gradient, alpha=-rate)
        age = numbers["age"] + 1.0
        new_share = (age - 1.0) / (age + 2.0)
        # θ = y_t = x_t + share·(x_t − x_{t-1});  x_{t+1} = y_t − rate·g;  y_{t+1} = x_{t+1} + new_share·velocity.
        theta.add_(value.gradient, alpha=-rate).add_(velocity, alpha=new_share)
        numbers.update(age=age, share=new_share)


class ScaleDown:
    """One step: θ ← c·θ with the largest c ≤ 1 of a geometric grid at which the cost is at most twice a constant's.

    (Or that of zero outputs, where it is larger: targets far from zero.)

    From weights whose outputs dwarf the targets, the first line-searched steps would only shrink the outputs, and can
    end at zero, which no descent leaves.
    """

    GRID = tuple(2.0 ** (-k / 4) for k in range(41))

    def __init__(self) -> None:
        self.state = OptimiserState({}, {"done": 0.0})

    @property
    def finished(self) -> bool:
        """True after one step."""
        return self.state.numbers["done"] > 0

    def forget(self) -> None:
        """Does nothing: no state depends on the objective."""

    def get_state(self) -> OptimiserState:
        """The state for a checkpoint."""
        return self.state

    def set_state(self, state: OptimiserState) -> None:
        """Continue from ``state``."""
        self.state = state

    def step(self, objective: Objective, step: int, ridge: float) -> Steps[Value]:  # noqa: ARG002
        """Take one step from ``objective.theta``."""
        self.state.numbers["done"] = 1.0
        origin = objective.theta.clone()
        # Small weights give zero, not the mean: where that costs more, no factor could do better than it.
        objective.theta.zero_()
        zero = (yield Evaluate(objective, ridge)).cost
        objective.theta.copy_(origin)
        limit = max(2.0 * constant_cost(objective.Y, objective.stack.loss), zero)
        value: Value = yield Evaluate(objective, ridge)
        for factor in self.GRID[1:]:
            if value.finite and value.cost <= limit:
                break
            torch.mul(origin, factor, out=objective.theta)
            value = yield Evaluate(objective, ridge)
        return value
