"""A module's regularised loss as a function of one flat vector, value and gradient, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from isthmus._checks import fail
from isthmus.linalg import CHUNK_BYTES, chunk_rows
from isthmus.objective import cost
from isthmus.training._blocks import one_thread, views
from isthmus.training._direct import direct_for


@dataclass(frozen=True)
class Value:
    """Loss = cost + ridge·‖θ‖² at a point, with its gradient and that of the cost alone."""

    loss: float
    cost: float
    norm: float
    gradient: Tensor
    cost_gradient: Tensor

    def at_ridge(self, ridge: float, theta: Tensor) -> Value:
        """The value at the same point ``theta`` for another ridge, bit for bit as if evaluated."""
        gradient = self.cost_gradient.add(theta, alpha=2.0 * ridge)
        return Value(self.cost + ridge * self.norm, self.cost, self.norm, gradient, self.cost_gradient)

    @cached_property
    def finite(self) -> bool:
        """Whether loss and gradient are finite."""
        # A sum is finite only if its terms are; one pass, where asking each of them takes three.
        return math.isfinite(self.loss) and math.isfinite(float(self.gradient.sum()))


class FlatObjective:
    """cost(net(X), Y) + ridge·‖θ‖² over the trainable parameters of ``net``, seen as one vector ``theta``.

    The parameters are views into ``theta`` and their gradients views into one buffer, so that a step is a single
    vector operation and any ``nn.Module`` works.
    """

    def __init__(self, net: nn.Module, X: Tensor, Y: Tensor, loss: str, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.net, self.X, self.Y, self.loss = net, X, Y, loss
        self.parameters = [p for p in net.parameters() if p.requires_grad]
        if not self.parameters:
            fail("train", "`net` must have trainable parameters", "none", "Set requires_grad on its parameters.")
        kinds = {(p.dtype, p.device) for p in self.parameters}
        if len(kinds) > 1:
            shown = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            fail("train", "the parameters of `net` must share dtype and device", shown, "Convert with net.to(…).")
        self.theta = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        self.buffer = torch.zeros_like(self.theta)
        self.values, self.gradients = (views(vector, self.parameters) for vector in (self.theta, self.buffer))
        self.evaluations = 0
        # Activations and their gradients of every layer are alive at once; the widths bound their number.
        width = sum(max(p.shape) for p in self.parameters if p.ndim > 0) + X[0].numel()
        self.rows = chunk_rows(len(X), 4.0 * width * self.theta.element_size(), 4 * chunk_bytes)
        self.direct = direct_for(net, loss, self.values, self.gradients, min(self.rows, len(X)))

    def threads(self) -> AbstractContextManager[None]:
        """Within, as many threads as this objective is worth: one where its activations are few."""
        return one_thread() if self.direct is not None and self.direct.small else nullcontext()

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Within, the module's parameters live in ``theta``; afterwards in their own storage, with its values."""
        saved = [(p.data, p.grad) for p in self.parameters]
        for p, value, gradient in zip(self.parameters, self.values, self.gradients):
            p.data, p.grad = value, gradient
        try:
            yield
        finally:
            for p, (data, grad) in zip(self.parameters, saved):
                data.copy_(p.data)
                p.data, p.grad = data, grad

    def __call__(self, ridge: float, batch: Tensor | None = None, *, into: Tensor | None = None) -> Value:
        """Value and gradient at ``theta`` over all samples, or over the rows ``batch``.

        The gradients are new tensors. With ``into`` the gradient is written there, and that of the cost alone is the
        objective's own memory, which the next call overwrites.
        """
        with self.threads():
            return self._evaluate(ridge, batch, into)

    def _evaluate(self, ridge: float, batch: Tensor | None, into: Tensor | None) -> Value:
        X, Y = (self.X, self.Y) if batch is None else (self.X[batch], self.Y[batch])
        count = X.shape[0]
        parts = zip(X.split(self.rows), Y.split(self.rows)) if count > self.rows else [(X, Y)]
        if self.direct is not None:
            shares = [self.direct.add(A, B, A.shape[0] / count, first=i == 0) for i, (A, B) in enumerate(parts)]
        else:
            self.buffer.zero_()
            shares = [self._by_autograd(A, B, A.shape[0] / count) for A, B in parts]
        total = sum(shares)
        self.evaluations += 1
        norm = float(self.theta @ self.theta)
        own = self.buffer.clone() if into is None else self.buffer
        gradient = torch.add(own, self.theta, alpha=2.0 * ridge, out=into)
        return Value(total + ridge * norm, total, norm, gradient, own)

    def _by_autograd(self, X: Tensor, Y: Tensor, share: float) -> float:
        with torch.enable_grad():
            part = cost(self.net(X), Y, self.loss) * share
            part.backward()
        return float(part.detach())
