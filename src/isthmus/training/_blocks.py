"""Samples in as many blocks as there are threads, so that each core works on what its own cache holds.

A matrix product on several threads divides its result among the cores, A·Wᵀ by rows and Gᵀ·A by neurons: what one core
has written another one reads, layer after layer. As a batch of products, one for each block of samples, every core
keeps its own samples all the way; at widths of 50 to 100 two threads can be slower than one without it, and are nearly
twice as fast with it (docs/notes/performance.md). Gradients are sums over blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

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
def one_thread() -> Iterator[None]:
    """Within, operations of this thread are not divided among several; afterwards as before."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def views(vector: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The parts of a flat vector that belong to each parameter, in its shape."""
    parts = vector.split([p.numel() for p in parameters])
    return [part.view(p.shape) for part, p in zip(parts, parameters)]


def multiply(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """left·right into ``out``: matrices, or blocks of them."""
    return torch.mm(left, right, out=out) if out.ndim == 2 else torch.bmm(left, right, out=out)


def multiply_add(bias: Tensor, left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """Bias + left·right into ``out``: faster than adding the bias to what the product has written."""
    form = torch.addmm if out.ndim == 2 else torch.baddbmm
    return form(bias, left, right, out=out)


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
            for start, stop in runs(kind):
                own = kind[start].new_zeros(stop - start, blocks, *kind[start].shape)
                made += own.unbind(0)
                self.sums.append((stacked(kind[start:stop]), own.unbind(1)))
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
        """Rows of all blocks (total, c), contiguous, as (blocks, total/blocks, c): a view. One block stays as it is."""
        return M if self.blocks == 1 else M.view(self.blocks, -1, M.shape[1])

    def repeat(self, W: Tensor) -> Tensor:
        """A weight for each block: a view."""
        return W if self.blocks == 1 else W.expand(self.blocks, *W.shape)

    def fill(self, X: Tensor) -> Tensor:
        """X (count, c) with its rows of zeros, divided; a copy where it has to be one."""
        if self.total > self.count:
            X = torch.cat([X, X.new_zeros(self.total - self.count, X.shape[1])])
        return X if self.blocks == 1 else self.divide(X.contiguous())


def runs(tensors: Sequence[Tensor]) -> list[tuple[int, int]]:
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


def stacked(parts: Sequence[Tensor]) -> Tensor:
    """Tensors at equal distances in one storage as one tensor."""
    first = parts[0]
    step = parts[1].storage_offset() - first.storage_offset() if len(parts) > 1 else 0
    return first.as_strided((len(parts), *first.shape), (step, *first.stride()), first.storage_offset())
