"""Cost and gradient of plain stacks of layers, written out: no graph, and no memory taken in a step.

For small networks the time of a step goes into memory: autograd takes and returns every activation, and the system
clears the pages each time. Here they are taken once. What is computed, and in which order, is what autograd does: for
fully connected networks on one chunk of samples value and gradient are the same bits.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from isthmus.networks import FullyConnected, Hourglass, LeakyResNet
from isthmus.objective import cost

# In place and in one pass, which no public function does; the derivative at 0 is that below 0, as in autograd.
_relu_backward = torch.ops.aten.threshold_backward.grad_input
_leaky_backward = torch.ops.aten.leaky_relu_backward.grad_input


class Direct(ABC):
    """Cost of some rows and its gradient, for parameters that are ``values`` and gradients that are ``gradients``.

    Parameters
    ----------
    net : nn.Module
    loss : str
    values, gradients : list of Tensor
        Views, in the order of ``net.parameters()``: read, and written, at every call.
    rows : int
        The largest number of rows of a call.
    """

    def __init__(
        self, net: nn.Module, loss: str, values: Sequence[Tensor], gradients: Sequence[Tensor], rows: int
    ) -> None:
        self.loss, self.rows = loss, rows
        self.values, self.gradients = values, gradients
        self.like = values[0].detach()

    def memory(self, count: int, widths: Sequence[int]) -> list[Tensor]:
        """Room for ``count`` × width numbers, for each width."""
        return [self.like.new_empty(count * width) for width in widths]

    @torch.no_grad()
    def add(self, X: Tensor, Y: Tensor, share: float, *, first: bool = False) -> float:
        """``share`` × the mean cost of these rows; its gradient is added, or written over if ``first``."""
        outputs = self.forward(X)
        value, G = self._head(outputs, Y, share)
        self.backward(X, G, first=first)
        return value

    @abstractmethod
    def forward(self, X: Tensor) -> Tensor:
        """The outputs; what the way back needs is kept."""

    @abstractmethod
    def backward(self, X: Tensor, G: Tensor, *, first: bool) -> None:
        """The gradient, from that of the outputs, which may be overwritten."""

    def _head(self, outputs: Tensor, Y: Tensor, share: float) -> tuple[float, Tensor]:
        """Cost and its derivative by the outputs."""
        if self.loss != "mse":
            with torch.enable_grad():
                leaf = outputs.detach().requires_grad_()
                value = cost(leaf, Y, self.loss) * share
                return float(value.detach()), torch.autograd.grad(value, leaf)[0]
        value = float(cost(outputs, Y) * share)
        # Rounded where autograd rounds: the share in the dtype of the cost, then divided by the number of rows.
        factor = 2.0 * float(outputs.new_tensor(share) / len(outputs))
        return value, outputs.sub_(Y).mul_(factor)

    @staticmethod
    def _outer(into: Tensor, G: Tensor, inputs: Tensor, *, first: bool, scale: float = 1.0) -> None:
        """GᵀA, the gradient of a weight."""
        if first and scale == 1.0:
            torch.mm(G.mT, inputs, out=into)
        else:
            into.addmm_(G.mT, inputs, beta=0.0 if first else 1.0, alpha=scale)

    @staticmethod
    def _total(into: Tensor, G: Tensor, *, first: bool, scale: float = 1.0) -> None:
        """The sum over rows, the gradient of a bias."""
        if first:
            torch.sum(G, 0, out=into)
            if scale != 1.0:
                into.mul_(scale)
        else:
            into.add_(G.sum(0), alpha=scale)


def activate_(Z: Tensor, slope: float) -> None:
    """σ_a in place."""
    if slope == 0.0:
        Z.relu_()
    elif slope != 1.0:
        torch.nn.functional.leaky_relu_(Z, slope)


def pull_back_(G: Tensor, activations: Tensor, slope: float) -> None:
    """G∘σ̇_a in place, read off the activations: for 0 ≤ a their sign tells that of what they come from."""
    if slope == 0.0:
        _relu_backward(G, activations, 0.0, grad_input=G)
    elif slope != 1.0:
        _leaky_backward(G, activations, slope, True, grad_input=G)


class DirectChain(Direct):
    """A chain of fully connected layers, parameters laid out W_1 … W_L, b_1 … b_L."""

    def __init__(
        self,
        net: FullyConnected | Hourglass,
        loss: str,
        values: Sequence[Tensor],
        gradients: Sequence[Tensor],
        rows: int,
    ) -> None:
        super().__init__(net, loss, values, gradients, rows)
        depth, self.dims, self.slopes = len(net.dims) - 1, net.dims, net.slopes
        self.Ws, self.bs = values[:depth], values[depth:]
        self.transposed = [W.mT for W in self.Ws]
        self.activations = self.memory(rows, net.dims[1:])
        # Two are enough on the way back; so they stay in the cache.
        self.cotangents = self.memory(rows, [max(net.dims)] * 2)
        self.kept: list[Tensor] = []

    def forward(self, X: Tensor) -> Tensor:
        """The outputs."""
        count, A = len(X), X
        self.kept = [X]
        for index, W in enumerate(self.transposed):
            width = self.dims[index + 1]
            A = torch.mm(A, W, out=self.activations[index][: count * width].view(count, width))
            if self.bs:
                A.add_(self.bs[index])
            if index < len(self.slopes):
                activate_(A, self.slopes[index])
            self.kept.append(A)
        return A

    def backward(self, X: Tensor, G: Tensor, *, first: bool) -> None:
        """From the last layer to the first."""
        depth = len(self.Ws)
        for index in range(depth - 1, -1, -1):
            inputs = self.kept[index]
            self._outer(self.gradients[index], G, inputs, first=first)
            if self.bs:
                self._total(self.gradients[depth + index], G, first=first)
            if index:
                room = self.cotangents[index % 2][: inputs.numel()].view(inputs.shape)
                G = torch.mm(G, self.Ws[index], out=room)
                pull_back_(G, inputs, self.slopes[index - 1])


class DirectLeaky(Direct):
    """A leaky ResNet; parameters: the maps in and out where they are learned, then √ρW and √ρb of each step.

    (1 − ρL̃)α + √ρ(Vσ(α) + b) is one matrix product with an addend, and so is its way back; rounded once where
    autograd rounds three times.
    """

    def __init__(
        self, net: LeakyResNet, loss: str, values: Sequence[Tensor], gradients: Sequence[Tensor], rows: int
    ) -> None:
        super().__init__(net, loss, values, gradients, rows)
        self.net = net
        self.learned = net.embed == "learned"
        own = 2 if self.learned else 0
        stride = 2 if net.bias else 1
        self.W_in, self.W_out = values[:2] if self.learned else (net.W_in, net.W_out)
        self.Vs, self.bs = values[own::stride], values[own + 1 :: 2] if net.bias else []
        self.gVs, self.gbs = gradients[own::stride], gradients[own + 1 :: 2] if net.bias else []
        self.activations = self.memory(rows, [net.width] * net.layers)
        self.paths = self.memory(rows, [net.width] * 2)
        self.outputs = self.memory(rows, [net.d_out])[0]
        self.factors: list[tuple[float, float]] = []
        self.end = self.like

    def forward(self, X: Tensor) -> Tensor:
        """The outputs."""
        count, width, net = len(X), self.net.width, self.net
        # Lengths can change between two calls.
        self.factors = [(1.0 - rho * net.effective_depth, math.sqrt(rho)) for rho in net.rho.tolist()]
        room = [memory[: count * width].view(count, width) for memory in self.paths]
        A = torch.mm(X, self.W_in.mT, out=room[0])
        for index, (V, (keep, root)) in enumerate(zip(self.Vs, self.factors)):
            S = self.activations[index][: count * width].view(count, width).copy_(A)
            activate_(S, net.slope)
            A = torch.addmm(A, S, V.mT, beta=keep, alpha=root, out=room[(index + 1) % 2])
            if self.bs:
                A.add_(self.bs[index], alpha=root)
        self.end = A
        return torch.mm(A, self.W_out.mT, out=self.outputs[: count * net.d_out].view(count, net.d_out))

    def backward(self, X: Tensor, G: Tensor, *, first: bool) -> None:
        """From the end of the path to its beginning."""
        count, width = len(X), self.net.width
        if self.learned:
            self._outer(self.gradients[1], G, self.end, first=first)
        # The path itself is not needed any more, and is overwritten.
        room = [memory[: count * width].view(count, width) for memory in self.paths]
        G = torch.mm(G, self.W_out, out=room[0])
        for index in range(self.net.layers - 1, -1, -1):
            keep, root = self.factors[index]
            S = self.activations[index][: count * width].view(count, width)
            self._outer(self.gVs[index], G, S, first=first, scale=root)
            if self.bs:
                self._total(self.gbs[index], G, first=first, scale=root)
            room.reverse()
            H = torch.mm(G, self.Vs[index] * root, out=room[0])
            pull_back_(H, S, self.net.slope)
            G = H.add_(G, alpha=keep)
        if self.learned:
            self._outer(self.gradients[0], G, X, first=first)


def direct_for(
    net: nn.Module, loss: str, values: Sequence[Tensor], gradients: Sequence[Tensor], rows: int
) -> Direct | None:
    """The direct way where there is one: layers without an amount of bias of their own, all of them trained."""
    # Not isinstance: a subclass may have a forward of its own.
    kinds = {FullyConnected: DirectChain, Hourglass: DirectChain, LeakyResNet: DirectLeaky}
    kind = kinds.get(type(net))
    if kind is None or net.bias not in (0.0, 1.0) or not 0.0 <= float(net.slope) <= 1.0:  # pyright: ignore
        return None
    return kind(net, loss, values, gradients, rows) if all(p.requires_grad for p in net.parameters()) else None
