"""A module's regularised loss as a function of one flat vector, value and gradient, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isthmus._checks import fail
from isthmus.linalg import CHUNK_BYTES, chunk_rows
from isthmus.objective import cost
from isthmus.training.direct import DirectMeanSquare


@dataclass(frozen=True)
class Value:
    """Loss = cost + ridge·‖θ‖² at a point, with its gradient and that of the cost alone (new tensors)."""

    loss: float
    cost: float
    norm: float
    gradient: Tensor
    cost_gradient: Tensor

    def at_ridge(self, ridge: float, theta: Tensor) -> Value:
        """The value at the same point ``theta`` for another ridge, bit for bit as if evaluated."""
        gradient = self.cost_gradient.add(theta, alpha=2.0 * ridge)
        return Value(self.cost + ridge * self.norm, self.cost, self.norm, gradient, self.cost_gradient)

    @property
    def finite(self) -> bool:
        """Whether loss and gradient are finite."""
        return math.isfinite(self.loss) and bool(torch.isfinite(self.gradient).all())


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
        self.evaluations = 0
        # Activations and their gradients of every layer are alive at once; the widths bound their number.
        width = sum(max(p.shape) for p in self.parameters if p.ndim > 0) + X[0].numel()
        self.rows = chunk_rows(len(X), 4.0 * width * self.theta.element_size(), 4 * chunk_bytes)
        self.direct = DirectMeanSquare.for_network(net, loss, min(self.rows, len(X)))

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Within, the module's parameters live in ``theta``; afterwards in their own storage, with its values."""
        saved = [(p.data, p.grad) for p in self.parameters]
        offset = 0
        for p in self.parameters:
            part = slice(offset, offset + p.numel())
            p.data = self.theta[part].view(p.shape)
            p.grad = self.buffer[part].view(p.shape)
            offset += p.numel()
        try:
            yield
        finally:
            for p, (data, grad) in zip(self.parameters, saved):
                data.copy_(p.data)
                p.data, p.grad = data, grad

    def __call__(self, ridge: float, batch: Tensor | None = None) -> Value:
        """Value and gradient at ``theta`` over all samples, or over the rows ``batch``."""
        X, Y = (self.X, self.Y) if batch is None else (self.X[batch], self.Y[batch])
        self.buffer.zero_()
        total = 0.0
        with torch.enable_grad():
            for part_X, part_Y in zip(X.split(self.rows), Y.split(self.rows)):
                if self.direct is not None:
                    total += self.direct.add(part_X, part_Y, len(part_X) / len(X))
                    continue
                part = cost(self.net(part_X), part_Y, self.loss) * (len(part_X) / len(X))
                part.backward()
                total += float(part.detach())
        self.evaluations += 1
        norm = float(self.theta @ self.theta)
        own = self.buffer.clone()
        return Value(total, total, norm, own, own).at_ridge(ridge, self.theta)
