"""The arguments of a forward and what it returned, however nested: the tensors in them, and samples by index."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

#: Positional and keyword arguments.
Call = tuple[tuple[Any, ...], dict[str, Any]]


def first_tensor(output: Any) -> Tensor | None:
    """The first tensor in what a module returned, however nested; one with axes where there is one (not a loss)."""
    tensors = tensors_in(output)
    return next((tensor for tensor in tensors if tensor.is_nested or tensor.ndim), tensors[0] if tensors else None)


def is_record(value: Any) -> bool:
    """Whether it is an object with tensors that can all be changed at once, as PyTorch Geometric's ``Data`` is."""
    if isinstance(value, (type, nn.Module)) or hasattr(value, "__array__"):
        return False
    return callable(getattr(value, "apply", None)) and hasattr(value, "to_dict")


def _has_fields(value: Any) -> bool:
    """Whether it is a dataclass, not the class of one."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _parts(value: Any) -> Iterable[Any]:
    """What a container holds, in its order; nothing of what is no container."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (tuple, list)):
        return value
    if _has_fields(value):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    if is_record(value):
        return value.to_dict().values()
    return ()


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor in tuples, lists, dicts, dataclasses and records, however nested."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, PackedSequence):
        return [value.data]
    return [tensor for part in _parts(value) for tensor in tensors_in(part)]


def map_tensors(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """``value`` with every tensor in its tuples, lists, dicts, dataclasses and records changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        changed = {key: map_tensors(change, part) for key, part in value.items()}
        if type(value) is dict or not isinstance(value, MutableMapping):
            return changed
        # A kind of its own, such as a HuggingFace output, whose keys are attributes too.
        kept = copy.copy(value)
        for key, part in changed.items():
            kept[key] = part
        return kept
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(change, part) for part in value))
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(change, part) for part in value)
    if _has_fields(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return dataclasses.replace(value, **{name: map_tensors(change, part) for name, part in fields.items()})
    if not is_record(value):
        return value
    return copy.copy(value).apply(change)


def take(call: Call, rows: Tensor) -> Call:
    """The same arguments for these samples, by index; samples may repeat. What has no axis of samples stays."""
    samples = count_samples(call)

    def chosen(tensor: Tensor) -> Tensor:
        return tensor[rows.to(tensor.device)] if tensor.ndim and len(tensor) == samples else tensor

    return map_tensors(chosen, call[0]), map_tensors(chosen, call[1])


def shuffled(call: Call, seed: int = 0) -> Call:
    """The same arguments with the rows of the first array of numbers, as of the nodes of a graph, in another order."""
    first = next((t for t in tensors_in(call) if t.is_floating_point() and t.ndim), None)
    if first is None:
        return call
    order = torch.randperm(len(first), generator=torch.Generator().manual_seed(seed)).to(first.device)
    args, kwargs = (map_tensors(lambda t: t[order] if t is first else t, part) for part in call)
    return args, kwargs


def count_samples(call: Call) -> int:
    """How many samples the arguments hold."""
    tensor = first_tensor(call)
    return 0 if tensor is None or not tensor.ndim else len(tensor)
