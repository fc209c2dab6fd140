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
from isthmus.training.packed import Packed, pays, room

# In place and in one pass, which no public function does; the derivative at 0 is that below 0, as in autograd.
_relu_backward = torch.ops.aten.threshold_backward.grad_input
_leaky_backward = torch.ops.aten.leaky_relu_backward.grad_input


def add_product(into: Tensor, left: Tensor, right: Tensor, *, first: bool, scale: float = 1.0) -> None:
    """Add scale·left·right; ``first`` writes over what is there."""
    if first and scale == 1.0:
        torch.mm(left, right, out=into)
    else:
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
        self.factors: dict[tuple[float, int], float] = {}

    def ones(self, count: int) -> Tensor:
        """A row of ones: with it the gradient of a bias is a product, which is faster than a sum over rows."""
        return self.all_ones[:, :count]

    @torch.inference_mode()
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
        self.Ws, self.biases = values[:depth], values[depth:]
        self.weight_gradients, self.bias_gradients = gradients[:depth], [g[None] for g in gradients[depth:]]
        self.pack, self.transposed = None, [W.mT for W in self.Ws]
        if self.biases and pays(max(self.dims), rows, self.like):
            self.pack = Packed(self.Ws, self.biases, self.weight_gradients, gradients[depth:])
            self.transposed, self.weight_gradients = [W.mT for W in self.pack.weights], self.pack.gradients
            # They are in the weights.
            self.biases, self.bias_gradients = [], []
            self.rooms = [room(rows, n, self.like) for n in self.dims[:-1]]
        else:
            self.rooms = [self.like.new_empty(rows, n) for n in self.dims[1:-1]]
        self.outputs = self.like.new_empty(rows, self.dims[-1])
        # Two are enough on the way back; so they stay in the cache.
        widest = max((memory.shape[1] for memory in self.rooms), default=0)
        self.cotangents = [self.like.new_zeros(rows * widest) for _ in range(2)]
        self.count = 0
        self.seen: Tensor | None = None
        # For the rows of a call: what products read and write; cotangents whole, their columns, and these transposed.
        self.inputs: list[Tensor] = []
        self.results: list[Tensor] = []
        self.pulled: list[tuple[Tensor, Tensor, Tensor]] = []

    def _shape(self, X: Tensor) -> None:
        """Matrices of as many rows, X in the first: in small networks making them takes as long as using them."""
        if len(X) != self.count:
            self.count, self.seen = len(X), None
            rooms = [memory[: self.count] for memory in self.rooms]
            self.inputs = rooms if self.pack else [X, *rooms]
            columns = [A[:, :n] for A, n in zip(self.inputs, self.dims)]
            self.results = [*columns[1:], self.outputs[: self.count]]
            wholes = [self.cotangents[i % 2][: A.numel()].view(A.shape) for i, A in enumerate(self.inputs[1:])]
            parts = [whole[:, :n] for whole, n in zip(wholes, self.dims[1:])]
            self.pulled = [(whole, part, part.mT) for whole, part in zip(wholes, parts)]
        # It is held until another comes: the same tensor, which nobody changes, has the same numbers.
        if X is not self.seen:
            self.seen = X
            if self.pack:
                self.inputs[0][:, : self.dims[0]] = X
            else:
                self.inputs[0] = X

    def forward(self, X: Tensor) -> Tensor:
        """The outputs."""
        self._shape(X)
        if self.pack:
            self.pack.read()
        for index, (A, W, Z) in enumerate(zip(self.inputs, self.transposed, self.results)):
            torch.mm(A, W, out=Z)
            if self.biases:
                Z.add_(self.biases[index])
            if index < len(self.slopes):
                activate_(self.inputs[index + 1], self.slopes[index])
        return self.results[-1]

    def backward(self, X: Tensor, G: Tensor, *, first: bool) -> None:  # noqa: ARG002
        """From the last layer to the first."""
        across, ones = G.mT, self.ones(len(G))
        for index in range(len(self.Ws) - 1, -1, -1):
            A = self.inputs[index]
            add_product(self.weight_gradients[index], across, A, first=first)
            if self.bias_gradients:
                add_product(self.bias_gradients[index], ones, G, first=first)
            if index:
                whole, part, across = self.pulled[index - 1]
                G = torch.mm(G, self.Ws[index], out=part)
                pull_back_(whole, A, self.slopes[index - 1])
        if self.pack:
            self.pack.write()


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
        own, each = 2 if self.learned else 0, 2 if net.bias else 1
        self.W_in, self.W_out = values[:own] or (net.W_in, net.W_out)
        self.map_gradients = gradients[:own]
        self.Vs, self.biases = values[own::each], values[own + 1 :: each] if net.bias else []
        rest = gradients[own:]
        self.weight_gradients, self.bias_gradients = rest[::each], [g[None] for g in rest[1::2]] if net.bias else []
        self.transposed = [V.mT for V in self.Vs]
        self.activations = [self.like.new_empty(rows, net.width) for _ in range(net.layers)]
        self.paths = [self.like.new_empty(rows, net.width) for _ in range(2)]
        self.outputs = self.like.new_empty(rows, net.d_out)
        self.lengths: list[tuple[float, float]] = []
        self.count = 0
        self.inputs: list[Tensor] = []
        self.rooms: list[Tensor] = []

    def _shape(self, count: int) -> None:
        if count != self.count:
            self.inputs, self.rooms = ([m[:count] for m in memories] for memories in (self.activations, self.paths))
            self.count = count

    def forward(self, X: Tensor) -> Tensor:
        """The outputs."""
        net = self.net
        self._shape(len(X))
        # Lengths can change between two calls.
        self.lengths = [(1.0 - rho * net.effective_depth, math.sqrt(rho)) for rho in net.rho.tolist()]
        A = torch.mm(X, self.W_in.mT, out=self.rooms[0])
        for index, (V, S, (keep, root)) in enumerate(zip(self.transposed, self.inputs, self.lengths)):
            if net.slope == 0.0:
                torch.clamp_min(A, 0.0, out=S)
            else:
                activate_(S.copy_(A), net.slope)
            A.addmm_(S, V, beta=keep, alpha=root)
            if self.biases:
                A.add_(self.biases[index], alpha=root)
        return torch.mm(A, self.W_out.mT, out=self.outputs[: len(X)])

    def backward(self, X: Tensor, G: Tensor, *, first: bool) -> None:
        """From the end of the path to its beginning."""
        here, other = self.rooms
        ones = self.ones(len(G))
        if self.learned:
            add_product(self.map_gradients[1], G.mT, here, first=first)
        # The end of the path is not needed any more, and is overwritten.
        G = torch.mm(G, self.W_out, out=here)
        for index in range(len(self.Vs) - 1, -1, -1):
            S, (keep, root) = self.inputs[index], self.lengths[index]
            add_product(self.weight_gradients[index], G.mT, S, first=first, scale=root)
            if self.bias_gradients:
                add_product(self.bias_gradients[index], ones, G, first=first, scale=root)
            H = other.addmm_(G, self.Vs[index], beta=0.0, alpha=root)
            pull_back_(H, S, self.net.slope)
            G, other = H.add_(G, alpha=keep), G
        if self.learned:
            add_product(self.map_gradients[0], G.mT, X, first=first)


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
