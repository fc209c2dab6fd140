"""Cost and gradient of plain stacks of layers, written out: no graph, and no memory taken in a step.

Autograd takes and returns every activation, and the system clears the pages each time; here they are taken once. What
remains beside the matrix products are passes over the activations, and of these there are as few as PyTorch's functions
allow: see docs/notes/performance.md.
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


class Layer:
    """A weight, its bias and their gradients, all views into flat vectors."""

    def __init__(self, W: Tensor, b: Tensor | None, gW: Tensor, gb: Tensor | None) -> None:
        self.W, self.b, self.gW = W, b, gW
        self.transposed = W.mT
        self.gb = None if gb is None else gb[None]

    def add_gradient(self, G: Tensor, A: Tensor, ones: Tensor, *, first: bool, scale: float = 1.0) -> None:
        """Add scale·GᵀA, the gradient of the weight, and that of the bias; ``first`` writes over what is there."""
        # The gradient of a bias is a product with ones: row after row that is faster than a sum.
        for into, left, right in ((self.gW, G.mT, A), (self.gb, ones, G)):
            if into is not None and first and scale == 1.0:
                torch.mm(left, right, out=into)
            elif into is not None:
                into.addmm_(left, right, beta=0.0 if first else 1.0, alpha=scale)


class Direct(ABC):
    """Cost of some rows and its gradient, for parameters that are ``values`` and gradients that are ``gradients``.

    Parameters
    ----------
    loss : str
    like : Tensor
        Of the dtype and device of the parameters.
    rows : int
        The largest number of rows of a call.
    """

    def __init__(self, loss: str, like: Tensor, rows: int) -> None:
        self.loss, self.rows, self.like = loss, rows, like
        self.all_ones = like.new_ones(1, rows)
        self.ones = self.all_ones
        self.factors: dict[tuple[float, int], float] = {}

    def memory(self, widths: Sequence[int]) -> list[Tensor]:
        """Room for all rows, for each width."""
        return [self.like.new_empty(self.rows * width) for width in widths]

    @torch.inference_mode()
    def add(self, X: Tensor, Y: Tensor, share: float, *, first: bool = False) -> float:
        """``share`` × the mean cost of these rows; its gradient is added, or written over if ``first``."""
        if len(X) != self.ones.shape[1]:
            self.ones = self.all_ones[:, : len(X)]
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
            with torch.inference_mode(False), torch.enable_grad():
                leaf = outputs.clone().requires_grad_()
                value = cost(leaf, Y, self.loss) * share
                return float(value.detach()), torch.autograd.grad(value, leaf)[0]
        G = outputs.sub_(Y)
        value = float(G.square().sum())
        return share * value / len(G), G.mul_(self._factor(share, len(G)))

    def _factor(self, share: float, count: int) -> float:
        """2·share/N, rounded where autograd rounds: in the dtype of the cost, before it is doubled."""
        if (share, count) not in self.factors:
            self.factors[share, count] = 2.0 * float(self.like.new_tensor(share) / count)
        return self.factors[share, count]


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
        super().__init__(loss, values[0], rows)
        depth, self.dims, self.slopes = len(net.dims) - 1, net.dims, net.slopes
        bs, gbs = (v[depth:] if net.bias else [None] * depth for v in (values, gradients))
        self.layers = [Layer(*parts) for parts in zip(values, bs, gradients, gbs)]
        self.activations = self.memory(net.dims[1:])
        # Two are enough on the way back; so they stay in the cache.
        self.cotangents = self.memory([max(net.dims)] * 2)
        self.count = 0
        self.results: list[Tensor] = []
        self.pulled: list[Tensor] = []

    def _shape(self, count: int) -> None:
        """The memory as matrices of ``count`` rows: in small networks making them takes as long as using them."""
        if count != self.count:
            back = [self.cotangents[i % 2] for i in range(len(self.layers))]
            self.results, self.pulled = (
                [memory[: count * n].view(count, n) for memory, n in zip(memories, widths)]
                for memories, widths in ((self.activations, self.dims[1:]), (back, self.dims))
            )
            self.count = count

    def forward(self, X: Tensor) -> Tensor:
        """The outputs."""
        self._shape(len(X))
        A = X
        for index, (layer, Z) in enumerate(zip(self.layers, self.results)):
            A = torch.mm(A, layer.transposed, out=Z)
            if layer.b is not None:
                A.add_(layer.b)
            if index < len(self.slopes):
                activate_(A, self.slopes[index])
        return A

    def backward(self, X: Tensor, G: Tensor, *, first: bool) -> None:
        """From the last layer to the first."""
        for index in range(len(self.layers) - 1, 0, -1):
            layer, A = self.layers[index], self.results[index - 1]
            layer.add_gradient(G, A, self.ones, first=first)
            G = torch.mm(G, layer.W, out=self.pulled[index])
            pull_back_(G, A, self.slopes[index - 1])
        self.layers[0].add_gradient(G, X, self.ones, first=first)


class DirectLeaky(Direct):
    """A leaky ResNet; parameters: the maps in and out where they are learned, then √ρW and √ρb of each step.

    (1 − ρL̃)α + √ρ(Vσ(α) + b) is one matrix product added to a multiple of α in place.
    """

    def __init__(
        self, net: LeakyResNet, loss: str, values: Sequence[Tensor], gradients: Sequence[Tensor], rows: int
    ) -> None:
        super().__init__(loss, values[0], rows)
        self.net = net
        self.learned = net.embed == "learned"
        own = 2 if self.learned else 0
        maps = [Layer(W, None, gW, None) for W, gW in zip(values[:own], gradients[:own])]
        self.maps = maps or [Layer(W, None, W, None) for W in (net.W_in, net.W_out)]
        rest = values[own:], gradients[own:]
        if net.bias:
            self.layers = [Layer(V, b, gV, gb) for V, b, gV, gb in zip(*(v[i::2] for v in rest for i in (0, 1)))]
        else:
            self.layers = [Layer(V, None, gV, None) for V, gV in zip(*rest)]
        self.activations = self.memory([net.width] * net.layers)
        self.paths = self.memory([net.width] * 2)
        self.outputs = self.memory([net.d_out])[0]
        self.scaled = torch.empty_like(self.layers[0].W)
        self.lengths: list[tuple[float, float]] = []
        self.count = 0
        self.inputs: list[Tensor] = []
        self.rooms: list[Tensor] = []

    def _shape(self, count: int) -> None:
        if count != self.count:
            self.inputs, self.rooms = (
                [memory[: count * self.net.width].view(count, self.net.width) for memory in memories]
                for memories in (self.activations, self.paths)
            )
            self.count = count

    def forward(self, X: Tensor) -> Tensor:
        """The outputs."""
        net, count = self.net, len(X)
        self._shape(count)
        # Lengths can change between two calls.
        self.lengths = [(1.0 - rho * net.effective_depth, math.sqrt(rho)) for rho in net.rho.tolist()]
        A = torch.mm(X, self.maps[0].transposed, out=self.rooms[0])
        for layer, S, (keep, root) in zip(self.layers, self.inputs, self.lengths):
            if net.slope == 0.0:
                torch.clamp_min(A, 0.0, out=S)
            else:
                activate_(S.copy_(A), net.slope)
            A.addmm_(S, layer.transposed, beta=keep, alpha=root)
            if layer.b is not None:
                A.add_(layer.b, alpha=root)
        return torch.mm(A, self.maps[1].transposed, out=self.outputs[: count * net.d_out].view(count, net.d_out))

    def backward(self, X: Tensor, G: Tensor, *, first: bool) -> None:
        """From the end of the path to its beginning."""
        here, other = self.rooms
        if self.learned:
            self.maps[1].add_gradient(G, here, self.ones, first=first)
        # The end of the path is not needed any more, and is overwritten.
        G = torch.mm(G, self.maps[1].W, out=here)
        for layer, S, (keep, root) in zip(self.layers[::-1], self.inputs[::-1], self.lengths[::-1]):
            layer.add_gradient(G, S, self.ones, first=first, scale=root)
            H = torch.mm(G, torch.mul(layer.W, root, out=self.scaled), out=other)
            pull_back_(H, S, self.net.slope)
            G, other = H.add_(G, alpha=keep), G
        if self.learned:
            self.maps[0].add_gradient(G, X, self.ones, first=first)


def direct_for(
    net: nn.Module, loss: str, values: Sequence[Tensor], gradients: Sequence[Tensor], rows: int
) -> Direct | None:
    """The direct way where there is one: layers without an amount of bias of their own, all of them trained.

    ``values`` and ``gradients`` are views of the parameters, in their order: read, and written, at every call.
    """
    # Not isinstance: a subclass may have a forward of its own.
    kinds = {FullyConnected: DirectChain, Hourglass: DirectChain, LeakyResNet: DirectLeaky}
    kind = kinds.get(type(net))
    if kind is None or net.bias not in (0.0, 1.0) or not 0.0 <= float(net.slope) <= 1.0:  # pyright: ignore
        return None
    return kind(net, loss, values, gradients, rows) if all(p.requires_grad for p in net.parameters()) else None
