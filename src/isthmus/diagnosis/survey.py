"""Where each layer stands: when and how often it is called, and which axis of its output counts samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isthmus._checks import fail
from isthmus.diagnosis.capture import first_tensor, run

#: The arguments of a forward.
Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Place:
    """One layer as a forward meets it.

    Attributes
    ----------
    name : str
    order : int
        Position among the layers, by first call.
    calls : int
        Calls in one forward.
    shape : tuple of int
        Of the output for one sample.
    batch_axis : int or None
        The axis of the output that counts samples; None if none does.
    per_sample : int
        Entries along that axis for each sample: 1, or the tokens of a sequence that was folded into it.
    same_as : str or None
        The layer that gave this very tensor before: a container hands on the output of its last layer.
    """

    name: str
    order: int
    calls: int
    shape: tuple[int, ...]
    batch_axis: int | None
    per_sample: int
    same_as: str | None = None

    @property
    def size(self) -> int:
        """Numbers in the output for one sample."""
        return int(torch.Size(self.shape).numel())

    def by_sample(self, output: Tensor) -> Tensor:
        """The output as rows (samples, size)."""
        assert self.batch_axis is not None
        rows = output.movedim(self.batch_axis, 0)
        return rows.reshape(len(rows) // self.per_sample, -1)


def map_tensors(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """``value`` with every tensor in its tuples, lists and dicts changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(change, part) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(change, part) for part in value))
    if isinstance(value, (tuple, list)):
        return type(value)(map_tensors(change, part) for part in value)
    return value


def take(call: Call, rows: Tensor) -> Call:
    """The same arguments for these samples, by index; samples may repeat."""
    args, kwargs = call
    return map_tensors(lambda t: t[rows], args), map_tensors(lambda t: t[rows], kwargs)


def samples_of(call: Call) -> int:
    """How many samples the arguments hold."""
    tensor = first_tensor([*call[0], *call[1].values()])
    return 0 if tensor is None else len(tensor)


@torch.no_grad()
def survey(module: nn.Module, call: Call, names: Iterable[str]) -> dict[str, Place]:
    """The place of every layer among ``names`` that the forward calls.

    Two forwards, of two and of three copies of one sample: the axis that grows from one to the other is the one that
    counts samples.
    """
    names = list(names)
    seen: list[dict[str, list[Tensor]]] = []
    for copies in (2, 3):
        outputs: dict[str, list[Tensor]] = {}

        def visit(name: str, output: Tensor, number: int, outputs: dict[str, list[Tensor]] = outputs) -> None:
            # The tensors themselves, not their contents: they tell who hands on whose.
            outputs.setdefault(name, []).append(output)

        run(module, [take(call, torch.zeros(copies, dtype=torch.long))], names, visit)
        seen.append(outputs)
    two, three = seen
    for name, tensors in two.items():
        _check_output(name, tensors[0])
    places, givers = {}, dict[int, str]()
    for order, (name, tensors) in enumerate(two.items()):
        small, large = tensors[0].shape, three[name][0].shape
        giver = givers.setdefault(id(tensors[-1]), name)
        same_as = None if giver == name else giver
        places[name] = _place(name, order, len(tensors), tuple(small), tuple(large), same_as)
    return places


def _check_output(name: str, output: Tensor) -> None:
    who, which = "diagnose", f"outputs of layer {name!r}" if name else "outputs"
    if output.is_complex():
        do = "Wrap the module so that it gives real and imaginary parts side by side, as torch.view_as_real does."
        fail(who, f"{which} must be real", str(output.dtype).removeprefix("torch."), do)
    if not name and not output.ndim:
        fail(who, "outputs must have an axis of samples", "one number for all", "Return one row for each sample.")


def _place(
    name: str, order: int, calls: int, small: tuple[int, ...], large: tuple[int, ...], same_as: str | None
) -> Place:
    grown = [axis for axis, (a, b) in enumerate(zip(small, large)) if a != b]
    if len(small) != len(large) or len(grown) != 1 or 3 * small[grown[0]] != 2 * large[grown[0]]:
        return Place(name, order, calls, small, None, 1, same_as)
    axis = grown[0]
    each = small[axis] // 2
    rest = (*small[:axis], *small[axis + 1 :])
    return Place(name, order, calls, rest if each == 1 else (each, *rest), axis, each, same_as)
