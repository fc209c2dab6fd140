"""The curvature that L-BFGS remembers: pairs of steps and changes of the gradient, and their inner products."""

from __future__ import annotations

import torch
from torch import Tensor

#: Rows begin at a multiple of so many bytes. Where they begin elsewhere some processors sum in another order: a
#: training that goes on from a file, with its rows at other places, would not come to the same bits.
ALIGNED = 64


class Window:
    """The last ``size`` vectors as the rows of one matrix, in memory taken once.

    There is room for a quarter more: rows are written one after the other, and moved to the front when the end is
    reached. With millions of parameters a new matrix at every step took as long as a gradient.
    """

    def __init__(self, size: int, like: Tensor) -> None:
        each = ALIGNED // like.element_size()
        self.size, self.length = size, len(like)
        self.memory = like.new_empty((0, -(-len(like) // each) * each))
        self.begin = self.end = 0

    @property
    def rows(self) -> Tensor:
        """A view, the newest last."""
        return self.memory[self.begin : self.end, : self.length]

    def append(self, vector: Tensor) -> None:
        """The newest row; the oldest is dropped where there are more than ``size``."""
        if self.end == len(self.memory):
            self._make_room()
        self.memory[self.end, : self.length] = vector
        self.end += 1
        self.begin = max(self.begin, self.end - self.size)

    def _make_room(self) -> None:
        last, full = self.rows[max(0, self.end - self.begin - self.size + 1) :], self.size + -(-self.size // 4)
        if len(self.memory) < full:
            # Little at first: short trainings never fill it.
            self.memory = self.memory.new_empty((min(full, max(4, 2 * len(self.memory))), self.memory.shape[1]))
        # One by one: new places and old ones overlap.
        for place, row in zip(self.memory, last):
            place[: self.length].copy_(row)
        self.begin, self.end = 0, len(last)

    def clear(self) -> None:
        """No rows."""
        self.begin = self.end = 0


class Pairs:
    """Steps s_i and changes t_i of the gradient, as rows of S and T, the newest last, with their products S·Tᵀ.

    The products are kept and not computed anew: for matrices so long and so few rows that takes longer than all else.
    Those of S with itself are needed only once the ridge moves.
    """

    def __init__(self, size: int, like: Tensor) -> None:
        self._S, self._T = Window(size, like), Window(size, like)
        self.size = size
        self.products = torch.zeros((0, 0), dtype=torch.float64, device=like.device)
        self.squares: Tensor | None = None

    def __len__(self) -> int:
        return self._S.end - self._S.begin

    @property
    def S(self) -> Tensor:
        """A view."""
        return self._S.rows

    @property
    def T(self) -> Tensor:
        """A view."""
        return self._T.rows

    def append(self, s: Tensor, t: Tensor) -> None:
        """The newest pair; the oldest is dropped where there are more than ``size``."""
        self._S.append(s)
        self._T.append(t)
        self.products = _bordered(self.products, len(self), self.S @ t, self.T @ s)
        if self.squares is not None:
            with_itself = self.S @ s
            self.squares = _bordered(self.squares, len(self), with_itself, with_itself)

    def move_ridge(self, change: float) -> None:
        """Another ridge: gradients change by 2·Δ·θ, hence their differences by 2·Δ·s, exactly."""
        if self.squares is None:
            self.squares = (self.S @ self.S.mT).double()
        self.T.add_(self.S, alpha=2.0 * change)
        self.products.add_(self.squares, alpha=2.0 * change)

    def clear(self) -> None:
        """No pairs."""
        self._S.clear()
        self._T.clear()
        self.products, self.squares = self.products[:0, :0], None

    def get_state(self) -> dict[str, Tensor]:
        """Everything, to continue to the same bits."""
        found = {"S": self.S, "T": self.T, "products": self.products}
        return found if self.squares is None else {**found, "squares": self.squares}

    def set_state(self, tensors: dict[str, Tensor]) -> None:
        """Continue from what :meth:`get_state` gave."""
        self.clear()
        for window, name in ((self._S, "S"), (self._T, "T")):
            for row in tensors[name]:
                window.append(row)
        products, squares = tensors.get("products"), tensors.get("squares")
        self.products = (self.S @ self.T.mT).double() if products is None else products.clone()
        self.squares = None if squares is None else squares.clone()


def _bordered(M: Tensor, count: int, column: Tensor, row: Tensor) -> Tensor:
    """The last rows and columns of M with a new last column and row, in all ``count`` × ``count``."""
    new = M.new_empty((count, count))
    kept = count - 1
    new[:kept, :kept] = M[len(M) - kept :, len(M) - kept :]
    new[:, kept] = column
    new[kept, :] = row
    return new
