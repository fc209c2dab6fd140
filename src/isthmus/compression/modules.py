"""Stacks of layers inside any module: which can be taken out safely, and which are left alone and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isthmus.compression.chain import Chain, chain_of
from isthmus.networks import CompactNetwork, FullyConnected, Hourglass, PartlyLinear

OWN = (FullyConnected, Hourglass, CompactNetwork)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(eq=False)
class Stack:
    """Layers that only feed one another.

    Attributes
    ----------
    name : str
        Of the module that holds them.
    module : nn.Module
        One of our networks, or the layers as an ``nn.Sequential`` of their own.
    chain : Chain
    holder : nn.Module or None
        The ``nn.Sequential`` they stand in; None for a network of ours.
    first, last : str
        Names of the first and last layer within the holder.
    """

    name: str
    module: nn.Module
    chain: Chain
    holder: nn.Module | None = None
    first: str = ""
    last: str = ""


def find_stacks(module: nn.Module) -> tuple[list[Stack], list[tuple[str, str]]]:
    """Stacks of linear layers with homogeneous activations, and the other parts with parameters, with the reason."""
    places = Counter(id(child) for _, child in module.named_modules(remove_duplicate=False))
    owners = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))
    stacks: list[Stack] = []
    untouched: list[tuple[str, str]] = []
    _visit(module, "", places, owners, stacks, untouched)
    return stacks, untouched


def _visit(
    module: nn.Module,
    name: str,
    places: Counter[int],
    owners: Counter[int],
    stacks: list[Stack],
    untouched: list[tuple[str, str]],
) -> None:
    if type(module) in OWN:
        problem = _problem(module, places, owners)
        chain = chain_of(module)
        if problem or chain is None:
            untouched.append((name or "module", problem))
        else:
            stacks.append(Stack(name, module, chain))
    elif type(module) is nn.Sequential:
        for run in _runs(module):
            if isinstance(run, tuple):
                child_name, child = run
                _visit(child, f"{name}.{child_name}" if name else child_name, places, owners, stacks, untouched)
                continue
            label = f"{name}.{run[0][0]}" if name else run[0][0]
            problem = next((p for _, layer in run if (p := _problem(layer, places, owners))), "")
            if not problem and _hooked(module):
                problem = "its container has hooks"
            if not problem and name and places[id(module)] > 1:
                problem = "its container is used in several places"
            if problem:
                untouched.append((label, problem))
            else:
                layers = nn.Sequential(*(layer for _, layer in run))
                stacks.append(Stack(label, layers, _chain(run), module, run[0][0], run[-1][0]))
    else:
        own = list(module.parameters(recurse=False))
        if own:
            untouched.append((name or "module", f"{type(module).__name__} is not a linear layer of a plain stack"))
        for child_name, child in module.named_children():
            if child_name == "parametrizations":
                continue  # what a layer's weight is made of is no layer
            _visit(child, f"{name}.{child_name}" if name else child_name, places, owners, stacks, untouched)


def _hooked(module: nn.Module) -> bool:
    return any(getattr(module, hooks, None) for hooks in _HOOKS)


def _problem(layer: nn.Module, places: Counter[int], owners: Counter[int]) -> str:
    """Why a layer cannot be replaced, or nothing."""
    parts = list(layer.modules())
    if any(_hooked(part) for part in parts):
        return "it has hooks"
    if list(layer.parameters()) and any(places[id(part)] > 1 for part in parts if list(part.parameters())):
        return "it is used in several places"
    if any(owners[id(p)] > 1 for p in layer.parameters()):
        return "its parameters are shared"
    kinds = {(p.dtype, p.device) for p in layer.parameters()}
    if any(not dtype.is_floating_point for dtype, _ in kinds) or len(kinds) > 1:
        return "its parameters differ in dtype or device, or are not real"
    if not all(bool(torch.isfinite(p).all()) for p in layer.parameters()):
        return "it has weights that are not finite"
    return ""


Run = list[tuple[str, nn.Module]]


def _runs(sequence: nn.Sequential) -> Iterator[Run | tuple[str, nn.Module]]:
    """Maximal runs Linear (activation) Linear … within a Sequential; anything else on its own."""
    run: Run = []
    pending: Run = []
    for name, child in sequence._modules.items():
        assert child is not None
        if type(child) is nn.Linear and (not run or _fits(run, pending, child)):
            run += [*pending, (name, child)]
            pending = []
        elif run and type(child) in (nn.ReLU, nn.LeakyReLU, nn.Identity, PartlyLinear) and _slope(child) is not None:
            pending.append((name, child))
        else:
            if run:
                yield run
            run, pending = ([(name, child)], []) if type(child) is nn.Linear else ([], [])
            if not run:
                yield name, child
    if run:
        yield run


def _fits(run: Run, pending: Run, linear: nn.Linear) -> bool:
    last = run[-1][1]
    same = isinstance(last, nn.Linear) and last.out_features == linear.in_features
    same = same and last.weight.dtype == linear.weight.dtype and last.weight.device == linear.weight.device
    return same and sum(type(layer) is not nn.Identity for _, layer in pending) <= 1


def _slope(layer: nn.Module) -> float | None:
    if isinstance(layer, nn.ReLU):
        return 0.0
    if isinstance(layer, nn.LeakyReLU):
        return float(layer.negative_slope) if -1.0 <= layer.negative_slope <= 1.0 else None
    return layer.slope if isinstance(layer, PartlyLinear) else 1.0


def _chain(run: Run) -> Chain:
    linears = [(name, layer) for name, layer in run if isinstance(layer, nn.Linear)]
    slopes, counts, between = [], [], (1.0, 0)
    for _, layer in run[1:]:
        if isinstance(layer, nn.Linear):
            slopes.append(between[0])
            counts.append(between[1])
            between = (1.0, 0)
        elif type(layer) is not nn.Identity:
            between = (_slope(layer) or 0.0, layer.linear if isinstance(layer, PartlyLinear) else 0)
    bs: list[Tensor | None] = [layer.bias for _, layer in linears]
    return Chain.of(
        [layer.weight for _, layer in linears],
        bs,
        slopes,
        linear=counts,
        names=[name for name, _ in linears[:-1]],
    )


def put_back(root: nn.Module, stack: Stack, made: nn.Module) -> None:
    """Set ``made`` in the place of the stack within ``root``, which holds it."""
    if stack.holder is None:
        parent_name, _, child = stack.name.rpartition(".")
        parent = root.get_submodule(parent_name) if parent_name else root
        setattr(parent, child, made)
        return
    names = list(stack.holder._modules)
    start, end = names.index(stack.first), names.index(stack.last)
    layers = list(stack.holder._modules.values())
    # Names are kept outside the stack and begin with that of its first layer inside it.
    entries: list[tuple[str, nn.Module | None]] = list(zip(names[:start], layers[:start]))
    inside = list(made.children())
    free = names[start : end + 1] + [f"{stack.last}_{k}" for k in range(1, len(inside) + 1)]
    entries += list(zip(free, inside)) + list(zip(names[end + 1 :], layers[end + 1 :]))
    stack.holder._modules.clear()
    for name, layer in entries:
        stack.holder._modules[name] = layer
