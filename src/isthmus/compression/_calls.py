"""How a module is called: arguments however nested, in float64 or in the module's own dtype, and others like them."""

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
        """All of them."""
        return [leaf for leaf in tree_leaves((self.args, self.kwargs)) if isinstance(leaf, Tensor)]

    @property
    def rows(self) -> int:
        """Samples: the length of the first tensor."""
        return next((len(tensor) for tensor in self.tensors if tensor.ndim), 0)

    def changed(self, change: Callable[[Tensor], Tensor]) -> Call:
        """With every tensor changed."""

        def one(leaf: Any) -> Any:
            return change(leaf) if isinstance(leaf, Tensor) else leaf

        return Call(tree_map(one, self.args), tree_map(one, self.kwargs))

    def first(self, count: int) -> Call:
        """The first samples, of what has as many as there are."""
        rows = self.rows
        return self.changed(lambda tensor: tensor[:count] if tensor.ndim and len(tensor) == rows else tensor)

    def to(self, module: nn.Module, dtype: torch.dtype | None = None) -> Call:
        """On the device of the module, floats in ``dtype`` or its own."""
        own = next((p for p in module.parameters() if p.is_floating_point()), None)
        device = None if own is None else own.device
        kind = dtype or (torch.float64 if own is None else own.dtype)
        return self.changed(lambda tensor: tensor.to(device, kind if tensor.is_floating_point() else tensor.dtype))

    def run(self, module: nn.Module) -> Any:
        """What the module returns. Arguments are copied: some modules write into them."""
        call = self.changed(torch.clone)
        return module(*call.args, **call.kwargs)

    def fresh(self, scale: float) -> Call:
        """Other inputs of these shapes: floats around the mean and as far apart as the samples, times ``scale``.

        Integers are drawn from those that were given, sample by sample; booleans, and integers that only one value
        has, stay.
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
    """Arrays as tensors, in containers too; None, numbers and words as they are."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {key: _argument(part, f"{name}[{key!r}]") for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_argument(part, f"{name}[{i}]") for i, part in enumerate(value))
    if isinstance(value, Tensor) and not value.is_complex():
        # Masks may hold −∞: what is not finite is refused only where it is the one input.
        value = value.detach().cpu()
        return value.double() if value.is_floating_point() else value
    if isinstance(value, np.ndarray) and value.dtype.kind in "iub":
        return torch.from_numpy(np.array(value, dtype=bool if value.dtype.kind == "b" else np.int64))
    return as_tensor(_WHO, name, value)


def outputs_in(value: Any, depth: int = 8) -> Iterator[Tensor]:
    """Every tensor in what a module returned: in containers, dataclasses and records of attributes, so many deep."""
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
