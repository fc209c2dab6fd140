"""Cost and gradient of plain stacks of layers, written out: no graph, and no memory taken in a step.

Autograd takes and returns every activation, and the system clears the pages each time; here they are taken once. What
remains beside the matrix products are passes over the activations, and of these there are as few as PyTorch's functions
allow: see docs/notes/performance.md.

Samples are in as many blocks as there are threads, so that each core works on what its own cache holds. A matrix
product on several threads divides its result among the cores, A·Wᵀ by rows and Gᵀ·A by neurons: what one core has
written another one reads, layer after layer. As a batch of products, one for each block of samples, every core keeps
its own samples all the way; at widths of 50 to 100 two threads can be slower than one without it, and are nearly twice
as fast with it. Gradients are sums over blocks. Several networks of one shape are a batch of products in the same way,
with weights and gradients of their own.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import torch
from torch import Tensor

from isthmus._activations import Rounding
from isthmus.objective import cost

# In place and in one pass, which no public function does; the derivative at 0 is that below 0, as in autograd.
_relu_backward = torch.ops.aten.threshold_backward.grad_input
_leaky_backward = torch.ops.aten.leaky_relu_backward.grad_input

#: With fewer rows in a block its products are too small, and the sum over blocks is no longer small beside them.
ROWS_PER_BLOCK = 64

#: Activations of so few entries are worked on by one thread. PyTorch's passes over them are not divided below 2¹⁵, so
#: that two threads would hand them to each other between all passes and products, waiting for each other each time.
ONE_THREAD = 12_000


def block_count(rows: int, width: int, like: Tensor) -> int:
    """How many blocks activations (rows, width) are divided into: one for each thread, if there is enough for each.

    With as many rows in a block as neurons at least, gradients of all blocks take no more memory than the activations.
    Only MKL gives the products of a batch to a thread each; elsewhere one block is all samples.
    """
    threads = torch.get_num_threads()
    enough = rows >= threads * max(ROWS_PER_BLOCK, width) and rows * width > ONE_THREAD
    return threads if enough and like.device.type == "cpu" and torch.backends.mkl.is_available() else 1


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Use so many threads inside this context, and as many as before after it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def views(vector: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The parts of a flat vector, or of each row of several, that belong to each parameter, in its shape."""
    parts = vector.split([p.numel() for p in parameters], -1)
    return [part.view(*vector.shape[:-1], *p.shape) for part, p in zip(parts, parameters)]


def multiply(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """left·right into ``out``: matrices, or blocks of them."""
    return torch.mm(left, right, out=out) if out.ndim == 2 else torch.bmm(left, right, out=out)


def multiply_add(bias: Tensor, left: Tensor, right: Tensor, out: Tensor, *, beta: float = 1.0) -> Tensor:
    """beta·bias + left·right into ``out``: faster than adding the bias to what the product has written."""
    form = torch.addmm if out.ndim == 2 else torch.baddbmm
    return form(bias, left, right, beta=beta, out=out)


def add_product(into: Tensor, left: Tensor, right: Tensor, *, beta: float, alpha: float = 1.0) -> None:
    """beta·into + alpha·left·right in place; with beta = 0 what was there does not matter."""
    if beta == 0.0 and alpha == 1.0:
        multiply(left, right, into)
    elif into.ndim == 2:
        into.addmm_(left, right, beta=beta, alpha=alpha)
    else:
        into.baddbmm_(left, right, beta=beta, alpha=alpha)


class Shares:
    """Gradients of each block, and their sums.

    Parameters
    ----------
    kinds : sequence of lists of Tensor
        Where :meth:`sum` puts the gradients: views into a flat vector, those of equal layers side by side.
    blocks : int

    Attributes
    ----------
    kinds : list of lists of Tensor
        For one block ``kinds`` itself; else for each tensor the gradients of all blocks (blocks, …), contiguous: into
        anything else a batch of products is slow.
    """

    def __init__(self, kinds: Sequence[Sequence[Tensor]], blocks: int) -> None:
        self.kinds = [list(kind) for kind in kinds]
        # Where a sum goes, and its terms.
        self.sums: list[tuple[Tensor, tuple[Tensor, ...]]] = []
        if blocks == 1:
            return
        for number, kind in enumerate(self.kinds):
            made: list[Tensor] = []
            for start, stop in equal_runs(kind):
                own = kind[start].new_zeros(stop - start, blocks, *kind[start].shape)
                made += own.unbind(0)
                self.sums.append((as_one(kind[start:stop]), own.unbind(1)))
            self.kinds[number] = made

    def sum(self) -> None:
        """Over blocks, into the flat vector."""
        for flat, (one, other, *rest) in self.sums:
            torch.add(one, other, out=flat)
            for more in rest:
                flat.add_(more)


class Rows:
    """The rows of a call, divided into equal blocks; the last one is filled up with rows of zeros.

    Parameters
    ----------
    blocks : int
    count : int
        Rows of the call.
    """

    def __init__(self, blocks: int, count: int) -> None:
        self.blocks, self.count = blocks, count
        self.total = -(-count // blocks) * blocks

    def divide(self, M: Tensor) -> Tensor:
        """Contiguous rows (total, c) as a view (blocks, total/blocks, c); a single block stays as it is."""
        return M if self.blocks == 1 else M.view(self.blocks, -1, M.shape[1])

    def repeat(self, W: Tensor) -> Tensor:
        """A weight for each block: a view."""
        return W if self.blocks == 1 else W.expand(self.blocks, *W.shape)

    def fill(self, X: Tensor) -> Tensor:
        """X (count, c) in equal blocks, the last filled up with rows of zeros; copied only where necessary."""
        if self.total > self.count:
            X = torch.cat([X, X.new_zeros(self.total - self.count, X.shape[1])])
        return X if self.blocks == 1 else self.divide(X.contiguous())


def equal_runs(tensors: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Ranges of neighbours of one shape, at equal distances in memory."""
    apart = [_distance(*pair) for pair in zip(tensors, tensors[1:])]
    found = [(0, 1)] if tensors else []
    for index, here in enumerate(apart, start=1):
        start, stop = found[-1]
        if here is not None and (stop - start == 1 or apart[index - 2] == here):
            found[-1] = (start, index + 1)
        else:
            found.append((index, index + 1))
    return found


def _distance(one: Tensor, other: Tensor) -> int | None:
    """Numbers from the beginning of one tensor to that of another, of the same shape in the same storage."""
    same = one.shape == other.shape and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    return int(other.storage_offset() - one.storage_offset()) if same else None


def as_one(parts: Sequence[Tensor]) -> Tensor:
    """Tensors at equal distances in one storage as one tensor."""
    first = parts[0]
    step = parts[1].storage_offset() - first.storage_offset() if len(parts) > 1 else 0
    return first.as_strided((len(parts), *first.shape), (step, *first.stride()), first.storage_offset())


class Direct(ABC):
    """Cost of some rows and its gradient, for one network or for several of one shape at once.

    Parameters
    ----------
    loss : str
    values : sequence of Tensor
        The parameters; with a leading axis those of several networks.
    rows : int
        The largest number of rows of a call.
    width : int
        Number of outputs.
    networks : int, default 1
        How many; the leading axis is there from 2 on.
    """

    def __init__(self, loss: str, values: Sequence[Tensor], rows: int, width: int, networks: int = 1) -> None:
        self.loss, self.like, self.networks = loss, values[0], networks
        self.widest = max(max(p.shape[networks > 1 :]) for p in values)
        self.blocks = block_count(rows, self.widest, self.like) if networks == 1 else 1
        #: Rows of all memory.
        self.room = Rows(self.blocks, rows).total
        self.rows = Rows(self.blocks, 0)
        self.width = width
        self.all_ones = self.like.new_ones(1, self.room)
        # With such a row the gradient of a bias is a product, which is faster than a sum over rows.
        self.ones = self.all_ones
        # Memory for the outputs and for their squared errors; then these of the rows of a call, and all divided.
        self.memory = [self.take_memory(width) for _ in range(2)]
        self.outputs = self.squares = self.divided = self.like
        self.factors: dict[tuple[float, int], Tensor] = {}
        #: What stands in the place of the kinks of each activation; None where they are left.
        self.rounded: list[Rounding | None] = []
        self.seen: Tensor | None = None
        self.shares = Shares([], 1)

    @property
    def small(self) -> bool:
        """Whether one thread is faster than several."""
        return self.networks * self.room * self.widest <= ONE_THREAD

    @abstractmethod
    def bind(self, values: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Set the parameters, and the memory for their gradients: views into flat vectors."""

    def round_off(self, slopes: Sequence[float], rounded: Sequence[Rounding]) -> None:
        """Round off the kinks of the activations of these slopes, of which those that have kinks are given; or none."""
        given = iter(rounded)
        self.rounded = [self._filled(next(given)) if rounded and a != 1.0 else None for a in slopes]

    def _filled(self, rounding: Rounding) -> Rounding:
        """With rows for those of zeros that fill up the last block."""
        missing = 0 if rounding.centres is None else self.room - len(rounding.centres)
        if not missing or rounding.centres is None:
            return rounding
        return Rounding(rounding.band, torch.nn.functional.pad(rounding.centres, (0, 0, 0, missing), value=-1.0))

    @abstractmethod
    def set_rounding(self, rounded: Sequence[Rounding]) -> None:
        """Replace kinks by parabolas, in the order of the forward pass; none restores the kinks."""

    def of_first(self, networks: int, values: Sequence[Tensor], gradients: Sequence[Tensor]) -> Self:
        """The same for fewer networks, in the same memory."""
        fewer = copy.copy(self)
        fewer.networks, fewer.rows, fewer.seen = networks, Rows(1, 0), None
        fewer.bind(values, gradients)
        return fewer

    def take_memory(self, width: int) -> Tensor:
        """For as many rows as a call may have, of all networks: flat, so that any number of rows is contiguous."""
        return self.like.new_zeros(self.networks * self.room * width)

    def part(self, memory: Tensor, width: int, count: int) -> Tensor:
        """So many rows of it: (count, width), with a leading axis for several networks."""
        shape = (count, width) if self.networks == 1 else (self.networks, count, width)
        return memory[: self.networks * count * width].view(shape)

    @torch.inference_mode()
    def add(self, X: Tensor, Y: Tensor, share: float, *, first: bool = False) -> list[float]:
        """``share`` × the mean cost of these rows, of each network; the gradient is added, or written if ``first``.

        X and Y are (rows, columns), or one such matrix for each network.
        """
        # Not len(X): of a tensor it takes as long as a small product's call.
        count = X.shape[-2]
        if count != self.rows.count:
            self.rows, self.seen = Rows(self.blocks, count), None
            total = self.rows.total
            self.ones = self.rows.divide(self.all_ones[:, :total].mT).mT
            if self.networks > 1:
                self.ones = self.ones.expand(self.networks, 1, total)
            self.outputs, self.squares = (self.part(memory, self.width, count) for memory in self.memory)
            self.divided = self.rows.divide(self.part(self.memory[0], self.width, total))
            self.shape()
        # It is held until another comes: the same tensor, which nobody changes, has the same numbers.
        if X is not self.seen:
            self.seen = X
            self.take(X)
        self.forward()
        value = self._head(Y, share)
        if self.rows.total > count:
            # What the rows of zeros gave counts for nothing.
            self.divided.view(self.rows.total, -1)[count:] = 0.0
        self.backward(self.divided, beta=0.0 if first else 1.0)
        self.shares.sum()
        return value

    @abstractmethod
    def shape(self) -> None:
        """Make the views of memory for a new number of rows."""

    @abstractmethod
    def take(self, X: Tensor) -> None:
        """Set the inputs."""

    @abstractmethod
    def forward(self) -> None:
        """Compute the outputs into their memory; activations are kept for the backward pass."""

    @abstractmethod
    def backward(self, G: Tensor, *, beta: float) -> None:
        """The gradient, from that of the outputs (divided into blocks), added to ``beta`` × what is there."""

    def _head(self, Y: Tensor, share: float) -> list[float]:
        """The costs; their derivatives by the outputs are written over them."""
        G = self.outputs
        if self.loss != "mse":
            if self.networks > 1 and Y.ndim < (3 if Y.is_floating_point() else 2):
                Y = Y.expand(self.networks, *Y.shape)
            with torch.inference_mode(False), torch.enable_grad():
                leaf = G.clone().requires_grad_()
                values = cost(leaf, Y, self.loss) * share
                G.copy_(torch.autograd.grad(values.sum(), leaf)[0])
            return values.detach().reshape(-1).tolist()
        squares = torch.mul(G.sub_(Y), G, out=self.squares)
        sums = [float(squares.sum())] if self.networks == 1 else squares.flatten(1).sum(1).tolist()
        count = self.rows.count
        G.mul_(self._factor(share, count))
        return [share * value / count for value in sums]

    def _factor(self, share: float, count: int) -> Tensor:
        """2·share/N, rounded where autograd rounds: in the dtype of the cost, before it is doubled."""
        if (share, count) not in self.factors:
            self.factors[share, count] = 2.0 * (self.like.new_tensor(share) / count)
        return self.factors[share, count]


def activate_(Z: Tensor, slope: float, rounding: Rounding | None = None) -> None:
    """σ_a in place, or its rounded form."""
    if rounding is not None:
        h = rounding.band
        below = slope * Z if slope != 0.0 else None
        Z.add_(rounding.shift).add_(h).clamp_min_(0.0)
        inside = Z.clamp_max(2.0 * h)
        Z.sub_(inside).addcmul_(inside, inside, value=1.0 / (4.0 * h)).sub_(rounding.offset)
        if below is not None:
            Z.mul_(1.0 - slope).add_(below)
    elif slope == 0.0:
        Z.relu_()
    elif slope != 1.0:
        torch.nn.functional.leaky_relu_(Z, slope)


def pull_back_(G: Tensor, activations: Tensor, slope: float, rounding: Rounding | None = None) -> None:
    """G∘σ̇_a in place, read off the activations: for 0 ≤ a < 1 they tell what they come from.

    Where u = z + shift is within the band, with D = (u + h)/2h, activation + a·shift + (1 − a)·offset is
    (1 − a)hD² + 2ahD − ah, and ((1 − a)D + a)² = a² + (1 − a)(that/h + a): the slope squared. Beyond, the right side is
    above 1 or below a².
    """
    if rounding is not None:
        D = (activations + slope * rounding.shift + (1.0 - slope) * rounding.offset) / rounding.band
        if slope != 0.0:
            D.add_(slope).mul_(1.0 - slope).add_(slope**2)
        G.mul_(D.clamp_min_(slope**2).sqrt_().clamp_max_(1.0))
    elif slope == 0.0:
        _relu_backward(G, activations, 0.0, grad_input=G)
    elif slope != 1.0:
        _leaky_backward(G, activations, slope, True, grad_input=G)
