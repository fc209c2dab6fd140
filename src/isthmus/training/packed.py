"""Weights and biases of layers side by side, so that a bias costs no pass over the activations.

With a column of ones among the activations, A·Wᵀ + 1·bᵀ is one product [A | 1]·[W | b]ᵀ, and the gradients of W and b
are one product too. It pays where rows had better be padded in any case, and where there are so many of them that
copying the weights does not count; see docs/notes/performance.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

#: A row has a multiple of so many bytes: a vector register of most processors.
ROW_BYTES = 32
#: Products are slower where rows do not fill whole lines of the cache; only there the padding is no loss.
LINE_BYTES = 64
#: With fewer rows for each neuron, copies of the weights take longer than the passes that they save.
ROWS_PER_NEURON = 6


def padded(width: int, like: Tensor) -> int:
    """Columns of a row that holds ``width`` numbers."""
    each = max(1, ROW_BYTES // like.element_size())
    return -(-width // each) * each


def pays(width: int, rows: int, like: Tensor) -> bool:
    """Whether rows of this width leave a line of the cache unfilled, and there are enough of them."""
    return width * like.element_size() % LINE_BYTES != 0 and rows >= ROWS_PER_NEURON * width


def room(rows: int, width: int, like: Tensor) -> Tensor:
    """Memory for activations: ``width`` columns, then one of ones, then zeros."""
    made = like.new_zeros(rows, padded(width + 1, like))
    made[:, width] = 1.0
    return made


class Packed:
    """Layers (W, b) as matrices [W | b | 0], and their gradients in the same form.

    Parameters
    ----------
    weights, biases : list of Tensor
        Views into a flat vector.
    weight_gradients, bias_gradients : list of Tensor
        Where :meth:`write` puts the gradients.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor],
        weight_gradients: Sequence[Tensor],
        bias_gradients: Sequence[Tensor],
    ) -> None:
        self.weights: list[Tensor] = []
        self.gradients: list[Tensor] = []
        # Parts of packs, and the same parts of the flat vector.
        self.values: list[tuple[Tensor, Tensor]] = []
        self.results: list[tuple[Tensor, Tensor]] = []
        sides = (
            (self.weights, self.values, weights, biases),
            (self.gradients, self.results, weight_gradients, bias_gradients),
        )
        for start, stop in _runs((weights, biases, weight_gradients, bias_gradients)):
            m, n = weights[start].shape
            for packs, places, Ws, bs in sides:
                pack = Ws[start].new_zeros(stop - start, m, padded(n + 1, Ws[start]))
                packs += list(pack)
                places.append((pack[:, :, :n], _stacked(Ws[start:stop])))
                places.append((pack[:, :, n], _stacked(bs[start:stop])))

    def read(self) -> None:
        """Take the parameters as they are now."""
        for pack, flat in self.values:
            pack.copy_(flat)

    def write(self) -> None:
        """Put the gradients into their places."""
        for pack, flat in self.results:
            flat.copy_(pack)


def _runs(kinds: Sequence[Sequence[Tensor]]) -> list[tuple[int, int]]:
    """Ranges of layers of which all tensors have equal shapes, and equal distances in memory."""
    steps = [[_distance(*pair) for pair in zip(kind, kind[1:])] for kind in kinds]
    runs = [(0, 1)]
    for index, apart in enumerate(zip(*steps), start=1):
        start, stop = runs[-1]
        alike = stop - start == 1 or all(step[index - 2] == here for step, here in zip(steps, apart))
        if alike and None not in apart:
            runs[-1] = (start, index + 1)
        else:
            runs.append((index, index + 1))
    return runs


def _distance(one: Tensor, other: Tensor) -> int | None:
    """Numbers from the beginning of one tensor to that of another, of the same shape in the same storage."""
    same = one.shape == other.shape and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    return int(other.storage_offset() - one.storage_offset()) if same else None


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    """Tensors at equal distances in one storage as one tensor."""
    first = parts[0]
    step = parts[1].storage_offset() - first.storage_offset() if len(parts) > 1 else 0
    return first.as_strided((len(parts), *first.shape), (step, *first.stride()), first.storage_offset())
