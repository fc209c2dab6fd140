"""The arguments of one call of a module, however nested: converted, cut to fewer samples, or drawn at random."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from isthmus._checks import as_tensor

_WHO = "compress"


@dataclass(frozen=True, eq=False)
class Call:
    """Positional and keyword arguments of one call; floats are float64."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @staticmethod
    def of(X: Any, name: str) -> Call:
        """An array is one argument, a tuple several, a mapping keyword arguments; integers and booleans stay."""
        if isinstance(X, tuple):
            return Call(tuple(_argument(part, f"{name}[{i}]") for i, part in enumerate(X)), {})
        if isinstance(X, Mapping):
            return Call((), {str(key): _argument(part, f"{name}[{key!r}]") for key, part in X.items()})
        if isinstance(X, Tensor) and X.is_floating_point():
            return Call((as_tensor(_WHO, name, X).cpu(),), {})
        return Call((_argument(X, name),), {})

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors among the arguments."""
        return [leaf for leaf in tree_leaves((self.args, self.kwargs)) if isinstance(leaf, Tensor)]

    @property
    def rows(self) -> int:
        """Samples: the length of the first tensor."""
        return next((len(tensor) for tensor in self.tensors if tensor.ndim), 0)

    def changed(self, change: Callable[[Tensor], Tensor]) -> Call:
        """The call with ``change`` applied to every tensor."""

        def changed(leaf: Any) -> Any:
            return change(leaf) if isinstance(leaf, Tensor) else leaf

        return Call(tree_map(changed, self.args), tree_map(changed, self.kwargs))

    def first(self, count: int) -> Call:
        """The first ``count`` samples: tensors as long as there are samples are cut, all others stay."""
        rows = self.rows
        return self.changed(lambda tensor: tensor[:count] if tensor.ndim and len(tensor) == rows else tensor)

    def to(self, module: nn.Module, dtype: torch.dtype | None = None) -> Call:
        """The call on the device of the module, floats in ``dtype`` or in the module's."""
        first = next((p for p in module.parameters() if p.is_floating_point()), None)
        device = None if first is None else first.device
        kind = dtype or (torch.float64 if first is None else first.dtype)
        return self.changed(lambda tensor: tensor.to(device, kind if tensor.is_floating_point() else tensor.dtype))

    def run(self, module: nn.Module) -> Any:
        """What the module returns. Arguments are copied: some modules write into them."""
        call = self.changed(torch.clone)
        return module(*call.args, **call.kwargs)

    def fresh(self, scale: float) -> Call:
        """Random inputs of these shapes: floats with the samples' mean and ``scale`` times their deviation.

        Integers are drawn from those that were given; booleans and scalars stay.
        """
        draw = torch.Generator().manual_seed(0)

        def one(tensor: Tensor) -> Tensor:
            if not tensor.ndim or not tensor.numel() or tensor.dtype == torch.bool:
                return tensor
            if not tensor.is_floating_point():
                return tensor.flatten()[torch.randint(tensor.numel(), tensor.shape, generator=draw)]
            centre, spread = tensor.mean(0), tensor.std(0, correction=0)
            spread = torch.where(spread > 0, spread, tensor.std(correction=0))
            noise = torch.randn(tensor.shape, dtype=torch.float64, generator=draw)
            return centre + scale * spread * noise

        return self.changed(one)


def _argument(value: Any, name: str) -> Any:
    """Arrays as tensors, also inside containers; None, numbers and texts as they are."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {key: _argument(part, f"{name}[{key!r}]") for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_argument(part, f"{name}[{i}]") for i, part in enumerate(value))
    if isinstance(value, Tensor) and not value.is_complex():
        # Masks may hold −∞: a value that is not finite is refused only if it is in the only input.
        value = value.detach().cpu()
        return value.double() if value.is_floating_point() else value
    if isinstance(value, np.ndarray) and value.dtype.kind in "iub":
        return torch.from_numpy(np.array(value, dtype=bool if value.dtype.kind == "b" else np.int64))
    return as_tensor(_WHO, name, value)


def outputs_in(value: Any, depth: int = 8) -> Iterator[Tensor]:
    """Every tensor in the value that a module returned: in containers and other objects, ``depth`` levels deep."""
    if isinstance(value, Tensor):
        yield value
        return
    if isinstance(value, Mapping):
        parts: Any = value.values()
    elif isinstance(value, (tuple, list)):
        parts = value
    else:
        parts = vars(value).values() if hasattr(value, "__dict__") and not isinstance(value, (type, nn.Module)) else ()
    for part in parts if depth else ():
        yield from outputs_in(part, depth - 1)
