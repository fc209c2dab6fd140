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
from isthmus.training._blocks import ONE_THREAD, Rows, Shares, add_product, block_count, multiply, multiply_add

# In place and in one pass, which no public function does; the derivative at 0 is that below 0, as in autograd.
_relu_backward = torch.ops.aten.threshold_backward.grad_input

_leaky_backward = torch.ops.aten.leaky_relu_backward.grad_input


class Direct(ABC):
    """Cost of some rows and its gradient.

    Parameters
    ----------
    loss : str
    values : sequence of Tensor
        The parameters.
    kinds : sequence of lists of Tensor
        Where their gradients are put, those of equal layers side by side: views into a flat vector.
    rows : int
        The largest number of rows of a call.
    width : int
        Number of outputs.
    """

    def __init__(
        self, loss: str, values: Sequence[Tensor], kinds: Sequence[Sequence[Tensor]], rows: int, width: int
    ) -> None:
        self.loss, self.like = loss, values[0]
        widest = max(max(p.shape) for p in values)
        self.blocks, self.small = block_count(rows, widest, self.like), rows * widest <= ONE_THREAD
        self.shares = Shares(kinds, self.blocks)
        #: Rows of all memory.
        self.room = Rows(self.blocks, rows).total
        self.rows = Rows(self.blocks, 0)
        self.all_ones = self.like.new_ones(1, self.room)
        # With such a row the gradient of a bias is a product, which is faster than a sum over rows.
        self.ones = self.all_ones
        # Memory for the outputs and for their squared errors; then these of the rows of a call, and all divided.
        self.memory = [self.like.new_empty(self.room, width) for _ in range(2)]
        self.outputs, self.squares = self.memory
        self.divided = self.outputs
        self.factors: dict[tuple[float, int], Tensor] = {}
        self.seen: Tensor | None = None

    @torch.inference_mode()
    def add(self, X: Tensor, Y: Tensor, share: float, *, first: bool = False) -> float:
        """``share`` × the mean cost of these rows; its gradient is added, or written over if ``first``."""
        # Not len(X): of a tensor it takes as long as a small product's call.
        count = X.shape[0]
        if count != self.rows.count:
            self.rows, self.seen = Rows(self.blocks, count), None
            total = self.rows.total
            self.ones = self.rows.divide(self.all_ones[:, :total].mT).mT
            self.outputs, self.squares = (memory[:count] for memory in self.memory)
            self.divided = self.rows.divide(self.memory[0][:total])
            self.shape()
        # It is held until another comes: the same tensor, which nobody changes, has the same numbers.
        if X is not self.seen:
            self.seen = X
            self.take(X)
        self.forward()
        value = self._head(Y, share)
        if self.rows.total > count:
            # What the rows of zeros gave counts for nothing.
            self.memory[0][count : self.rows.total] = 0.0
        self.backward(self.divided, beta=0.0 if first else 1.0)
        self.shares.sum()
        return value

    @abstractmethod
    def shape(self) -> None:
        """The number of rows is another one: make the views of memory that a call needs."""

    @abstractmethod
    def take(self, X: Tensor) -> None:
        """These are the inputs from now on."""

    @abstractmethod
    def forward(self) -> None:
        """The outputs, into their memory; what the way back needs is kept."""

    @abstractmethod
    def backward(self, G: Tensor, *, beta: float) -> None:
        """The gradient, from that of the outputs (divided into blocks), added to ``beta`` × what is there."""

    def _head(self, Y: Tensor, share: float) -> float:
        """The cost; its derivative by the outputs is written over them."""
        G = self.outputs
        if self.loss != "mse":
            with torch.inference_mode(False), torch.enable_grad():
                leaf = G.clone().requires_grad_()
                value = cost(leaf, Y, self.loss) * share
                G.copy_(torch.autograd.grad(value, leaf)[0])
            return float(value.detach())
        value = float(torch.mul(G.sub_(Y), G, out=self.squares).sum())
        G.mul_(self._factor(share, self.rows.count))
        return share * value / self.rows.count

    def _factor(self, share: float, count: int) -> Tensor:
        """2·share/N, rounded where autograd rounds: in the dtype of the cost, before it is doubled."""
        if (share, count) not in self.factors:
            self.factors[share, count] = 2.0 * (self.like.new_tensor(share) / count)
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
        depth, self.dims, self.slopes = len(net.dims) - 1, net.dims, net.slopes
        into = gradients[:depth], gradients[depth:]
        super().__init__(loss, values, into, rows, self.dims[-1])
        Ws, self.biases = values[:depth], values[depth:]
        self.weight_gradients, biases = self.shares.kinds
        self.bias_gradients = [g[..., None, :] for g in biases]
        self.Ws = [self.rows.repeat(W) for W in Ws]
        self.transposed = [W.mT for W in self.Ws]
        self.memories = [self.like.new_empty(self.room, n) for n in self.dims[1:-1]]
        # Two are enough on the way back; so they stay in the cache.
        widest = max(self.dims[1:-1], default=0)
        self.cotangents = [self.like.new_zeros(self.room * widest) for _ in range(2)]
        # For the rows of a call: what products read and write, divided; activations whole; cotangents whole, divided,
        # and these transposed.
        self.inputs: list[Tensor] = []
        self.results: list[Tensor] = []
        self.activations: list[Tensor] = []
        self.pulled: list[tuple[Tensor, Tensor, Tensor]] = []

    def shape(self) -> None:
        """In small networks making views takes as long as using them."""
        total, divide = self.rows.total, self.rows.divide
        self.activations = [memory[:total] for memory in self.memories]
        hidden = [divide(A) for A in self.activations]
        self.inputs, self.results = [self.like, *hidden], [*hidden, self.divided]
        cotangents = [self.cotangents[i % 2][: A.numel()].view(A.shape) for i, A in enumerate(self.activations)]
        self.pulled = [(G, divide(G), divide(G).mT) for G in cotangents]

    def take(self, X: Tensor) -> None:
        """Divided."""
        self.inputs[0] = self.rows.fill(X)

    def forward(self) -> None:
        """From the first layer to the last."""
        for index, (A, W, Z) in enumerate(zip(self.inputs, self.transposed, self.results)):
            if self.biases:
                multiply_add(self.biases[index], A, W, Z)
            else:
                multiply(A, W, Z)
            if index < len(self.slopes):
                activate_(self.activations[index], self.slopes[index])

    def backward(self, G: Tensor, *, beta: float) -> None:
        """From the last layer to the first."""
        across = G.mT
        for index in range(len(self.Ws) - 1, -1, -1):
            add_product(self.weight_gradients[index], across, self.inputs[index], beta=beta)
            if self.bias_gradients:
                add_product(self.bias_gradients[index], self.ones, G, beta=beta)
            if index:
                whole, divided, across = self.pulled[index - 1]
                G = multiply(G, self.Ws[index], divided)
                pull_back_(whole, self.activations[index - 1], self.slopes[index - 1])


class DirectLeaky(Direct):
    """A leaky ResNet; parameters: the maps in and out where they are learned, then √ρW and √ρb of each step.

    (1 − ρL̃)α + √ρ(Vσ(α) + b) is one matrix product added to a multiple of α in place.
    """

    def __init__(
        self, net: LeakyResNet, loss: str, values: Sequence[Tensor], gradients: Sequence[Tensor], rows: int
    ) -> None:
        own, each = 2 if net.embed == "learned" else 0, 2 if net.bias else 1
        kinds = gradients[:own], gradients[own::each], gradients[own + 1 :: each] if net.bias else []
        super().__init__(loss, values, kinds, rows, net.d_out)
        self.net = net
        repeat = self.rows.repeat
        self.W_in, self.W_out = (repeat(W) for W in values[:own] or (net.W_in, net.W_out))
        self.Vs, self.biases = [repeat(V) for V in values[own::each]], values[own + 1 :: each] if net.bias else []
        self.map_gradients, self.weight_gradients, biases = self.shares.kinds
        self.bias_gradients = [g[..., None, :] for g in biases]
        self.transposed = [V.mT for V in self.Vs]
        self.memories = [self.like.new_empty(self.room, net.width) for _ in range(net.layers)]
        self.paths = [self.like.new_empty(self.room, net.width) for _ in range(2)]
        self.lengths: list[tuple[float, float]] = []
        # For the rows of a call: whole, and divided into blocks.
        self.X = self.like
        self.activations: list[tuple[Tensor, Tensor]] = []
        self.rooms: list[tuple[Tensor, Tensor]] = []

    def shape(self) -> None:
        """Activations and the two ends of a step."""
        whole = [[memory[: self.rows.total] for memory in kind] for kind in (self.memories, self.paths)]
        self.activations, self.rooms = ([(A, self.rows.divide(A)) for A in kind] for kind in whole)

    def take(self, X: Tensor) -> None:
        """Divided."""
        self.X = self.rows.fill(X)

    def forward(self) -> None:
        """From the beginning of the path to its end."""
        net = self.net
        # Lengths can change between two calls.
        self.lengths = [(1.0 - rho * net.effective_depth, math.sqrt(rho)) for rho in net.rho.tolist()]
        A, divided = self.rooms[0]
        multiply(self.X, self.W_in.mT, divided)
        for index, (V, (S, inputs), (keep, root)) in enumerate(zip(self.transposed, self.activations, self.lengths)):
            if net.slope == 0.0:
                torch.clamp_min(A, 0.0, out=S)
            else:
                activate_(S.copy_(A), net.slope)
            add_product(divided, inputs, V, beta=keep, alpha=root)
            if self.biases:
                A.add_(self.biases[index], alpha=root)
        multiply(divided, self.W_out.mT, self.divided)

    def backward(self, G: Tensor, *, beta: float) -> None:
        """From the end of the path to its beginning."""
        (whole, here), (other_whole, other) = self.rooms
        if self.map_gradients:
            add_product(self.map_gradients[1], G.mT, here, beta=beta)
        # The end of the path is not needed any more, and is overwritten.
        G = multiply(G, self.W_out, here)
        for index in range(len(self.Vs) - 1, -1, -1):
            (S, inputs), (keep, root) = self.activations[index], self.lengths[index]
            add_product(self.weight_gradients[index], G.mT, inputs, beta=beta, alpha=root)
            if self.bias_gradients:
                add_product(self.bias_gradients[index], self.ones, G, beta=beta, alpha=root)
            add_product(other, G, self.Vs[index], beta=0.0, alpha=root)
            pull_back_(other_whole, S, self.net.slope)
            other_whole.add_(whole, alpha=keep)
            (whole, G), (other_whole, other) = (other_whole, other), (whole, G)
        if self.map_gradients:
            add_product(self.map_gradients[0], G.mT, self.X, beta=beta)


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
