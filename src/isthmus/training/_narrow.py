"""Narrowing: give up the weakest dimension of the middle layer if the regularised loss is lower without it.

A dimension that costs more than it explains can still be part of a local minimum: while it is in use, no small change
removes it. Narrowing is the large change. It only ever keeps what lowers the loss.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isthmus.networks._metric import KroneckerMetric
from isthmus.networks._network import hooks_of
from isthmus.training._first_order import OptimiserState
from isthmus.training._lbfgs import LBFGS, Pairs
from isthmus.training._objective import Objective, Value
from isthmus.training._phases import Phase
from isthmus.training._requests import Evaluate, Steps


class Narrow:
    """Pinch, polish with L-BFGS, keep if the loss is lower; then once more. Stops at the first refusal."""

    def __init__(
        self,
        phase: Phase,
        theta: Tensor,
        metric: KroneckerMetric | None,
        generator: torch.Generator,
        pairs: Pairs | None = None,
    ) -> None:
        self.phase, self.metric, self.generator = phase, metric, generator
        self.pairs = Pairs(phase.memory, theta) if pairs is None else pairs
        self.state = OptimiserState(
            {"before": theta.clone()},
            {"done": 0.0, "loss": math.nan, "attempts": 0.0, "began": math.nan, "rank": math.nan},
        )
        self._start(theta)

    def _start(self, theta: Tensor) -> None:
        self.pairs.clear()
        self.inner = LBFGS(self.phase, theta, self.metric, self.generator, self.pairs)

    @property
    def finished(self) -> bool:
        """Whether narrowing is over."""
        return self.state.numbers["done"] > 0

    @property
    def under_way(self) -> bool:
        """Whether an attempt is not decided yet."""
        return not math.isnan(self.state.numbers["began"])

    def abandon(self, objective: Objective) -> None:
        """Undo an attempt that will not be decided, because the training stops here: its loss may be higher."""
        if self.under_way:
            objective.theta.copy_(self.state.tensors["before"])

    def forget(self) -> None:
        """Drop the curvature; the weights to go back to stay."""
        self.inner.forget()

    def get_state(self) -> OptimiserState:
        """The weights to go back to, and the polishing under way."""
        inner = self.inner.get_state()
        return OptimiserState(
            {**self.state.tensors, **{f"inner.{k}": v for k, v in inner.tensors.items()}},
            {**self.state.numbers, **{f"inner.{k}": v for k, v in inner.numbers.items()}},
        )

    def set_state(self, state: OptimiserState) -> None:
        """Continue from ``state``."""
        prefix = "inner."
        own, inner = OptimiserState(), OptimiserState()
        for name, tensor in state.tensors.items():
            (inner if name.startswith(prefix) else own).tensors[name.removeprefix(prefix)] = tensor
        for name, number in state.numbers.items():
            (inner if name.startswith(prefix) else own).numbers[name.removeprefix(prefix)] = number
        self.state = own
        self.inner.set_state(inner)

    def step(self, objective: Objective, step: int, ridge: float) -> Steps[Value]:
        """One polishing step; after ``phase.attempt`` of them, or when none helps, a decision; then the next pinch."""
        if not self.under_way:
            value = yield from self._attempt(objective, step, ridge)
            if self.finished:
                return value
        inside = step - int(self.state.numbers["began"])
        value = yield from self.inner.step(objective, inside, ridge)
        if inside + 1 == self.phase.attempt or self.inner.finished or not value.finite:
            value = yield from self._decide(objective, value, ridge)
        return value

    def _attempt(self, objective: Objective, step: int, ridge: float) -> Steps[Value]:
        value: Value = yield Evaluate(objective, ridge)
        net = hooks_of(objective.net)
        found = net.narrowest_layer(objective.X) if value.finite else None
        if found is None or found[0] < 2 or step + self.phase.attempt > self.phase.steps:
            self.state.numbers["done"] = 1.0
            return value
        self.state.tensors["before"].copy_(objective.theta)
        self.state.numbers.update(loss=value.loss, began=float(step), rank=float(found[0]))
        net.pinch_(objective.X, found[1], found[0] - 1)
        self._start(objective.theta)
        return value

    def _decide(self, objective: Objective, value: Value, ridge: float) -> Steps[Value]:
        self.state.numbers["attempts"] += 1
        if not value.finite or value.loss >= self.state.numbers["loss"]:
            objective.theta.copy_(self.state.tensors["before"])
            value = yield Evaluate(objective, ridge)
            self.state.numbers["done"] = 1.0
        else:
            # Lower, but perhaps only because polishing went on: if the dimension has grown back, it pays.
            found = hooks_of(objective.net).narrowest_layer(objective.X)
            if found is None or found[0] >= self.state.numbers["rank"]:
                self.state.numbers["done"] = 1.0
        # Last: an interrupt before this line still finds the attempt under way.
        self.state.numbers["began"] = math.nan
        return value
