"""What outputs lose when a layer keeps only some directions: what these carry, and which layers could be factored."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isthmus._codec import Plain
from isthmus.diagnosis._calls import Call, first_tensor, map_tensors
from isthmus.diagnosis._effective import Points
from isthmus.diagnosis._estimates import Estimate
from isthmus.diagnosis._observe import tokens_present

#: Share of the variance of a layer's outputs that a factored layer keeps.
KEEPS = 0.99


@dataclass(frozen=True)
class Narrowest(Plain):
    """The layer through which everything passes that has the least effective dimension.

    Attributes
    ----------
    layer : str
    dimension : Estimate
        Its effective dimension, the participation ratio.
    fresh : Estimate or None
        The same of a freshly initialised copy.
    directions : int
        Leading directions of its outputs, the dimension rounded up.
    carried : float
        Share of the variance of the network's outputs that is left when the layer puts out these alone; NaN where it
        was not measured, and below 0 where the outputs are then worse than a constant.
    samples : int
        Samples that it was measured on; the directions come from others, where there were enough.
    """

    layer: str
    dimension: Estimate
    fresh: Estimate | None
    directions: int
    carried: float
    samples: int


@dataclass(frozen=True)
class Factor(Plain):
    """A layer as the product of two of fewer directions.

    Attributes
    ----------
    rank : int
        Directions that keep 99 % of the variance of the layer's outputs.
    kept : float
        Numbers of the two factors, as a share of those of the matrix.
    loss : float
        Share of the variance of the network's outputs that is lost with it.
    samples : int
        Samples that it was measured on.
    """

    rank: int
    kept: float
    loss: float
    samples: int


class Held:
    """Samples that are run again with a layer projected, and what the network makes of them as it is."""

    @torch.no_grad()
    def __init__(self, module: nn.Module, calls: Sequence[Call]) -> None:
        self._module, self._calls = module, calls
        self._outputs = [self._run(call) for call in calls]
        total = sum(len(part) for part in self._outputs)
        mean = sum(part.sum(0) for part in self._outputs) / total
        self.samples = total
        self._scale = sum(float((part - mean).square().sum()) for part in self._outputs)

    def _run(self, call: Call) -> Tensor:
        output = first_tensor(self._module(*call[0], **call[1]))
        assert output is not None
        present = tokens_present(call[1])
        if present is not None and output.ndim == 3 and output.shape[:2] == present.shape:
            # What comes out where there is padding is nobody's.
            output = output * present[:, :, None].to(output)
        return output.double() if output.dtype not in (torch.float32, torch.float64) else output

    @torch.no_grad()
    def loss(
        self, name: str, mean: Tensor, basis: Tensor, *, channels_first: bool = False, centred: bool = False
    ) -> float:
        """Σ‖f_k − f‖²/Σ‖f − f̄‖² with the outputs of a layer projected on ``basis`` (units, k) about ``mean``.

        ``centred``: of f_k − f̄_k and f − f̄, so that the same shift at all samples is no loss.
        """
        if not self._scale > 0:
            return math.nan

        def projected(output: Tensor) -> Tensor:
            if not output.is_floating_point() or output.ndim < 2:
                return output
            axis = 1 if channels_first and output.ndim > 2 else -1
            rows, V, m = output.movedim(axis, -1), basis.to(output), mean.to(output)
            return (((rows - m) @ V) @ V.mT + m).movedim(-1, axis)

        layer = self._module.get_submodule(name)
        first: list[bool] = []

        def once(tensor: Tensor) -> Tensor:
            # The first tensor of what the layer returns is its representation.
            first.append(True)
            return projected(tensor) if len(first) == 1 else tensor

        def hook(_module: nn.Module, _inputs: Any, output: Any) -> Any:
            first.clear()
            return map_tensors(once, output)

        handle = layer.register_forward_hook(hook)
        try:
            changed = [self._run(call) for call in self._calls]
        finally:
            handle.remove()
        differences = [a - b for a, b in zip(changed, self._outputs)]
        shift = sum(part.sum(0) for part in differences) / self.samples if centred else 0.0
        return sum(float((part - shift).square().sum()) for part in differences) / self._scale


def directions_of(points: Points, apart: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor] | None:
    """Mean, right singular vectors (units, r) and squared singular values of the points whose owners are ``apart``.

    None where they were embedded into fewer coordinates, or are not finite.
    """
    X = points.rows[apart(points.owners)].double()
    if points.columns is not None or len(X) < 2 or not bool(torch.isfinite(X).all()):
        return None
    mean = X.mean(0)
    _, s, Vt = torch.linalg.svd(X - mean, full_matrices=False)
    return mean, Vt.mT, s.square()


def rank_of(squares: Tensor, shape: tuple[int, ...], points: int) -> int | None:
    """Directions that keep ``KEEPS`` of the variance, if factors of that rank are smaller than the matrix (m, n).

    None too where there are fewer than two points for each direction: more would show more.
    """
    share = squares.cumsum(0) / squares.sum().clamp_min(1e-300)
    rank = int((share < KEEPS).sum()) + 1
    smaller = len(shape) == 2 and rank * (shape[0] + shape[1]) < shape[0] * shape[1]
    return rank if smaller and 2 * rank <= points else None
