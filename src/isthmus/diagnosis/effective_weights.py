"""The tensors a module computes with: behind parametrisations, weight norm, spectral norm, pruning and step lengths.

Reading them changes nothing: no power iteration is made and no cached weight is trusted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from isthmus.networks import LeakyStep


def type_name(module: nn.Module) -> str:
    """Name of the class, without the ``Parametrized`` that PyTorch puts before it."""
    return parametrize.type_before_parametrizations(module).__name__


def tensors_of(module: nn.Module) -> dict[str, list[str]]:
    """Own tensors of a module and the parameters each is made of, by their names inside the module.

    ``{"weight": ["parametrizations.weight.original0", "parametrizations.weight.original1"], "bias": ["bias"]}``
    """
    stored = {}
    for hook in module._forward_pre_hooks.values():
        name = _hooked_name(hook)
        if name is not None:
            stored |= {f"{name}{ending}": name for ending in ("_g", "_v", "_orig")}
    found: dict[str, list[str]] = {}
    for parameter, _ in module.named_parameters(recurse=False, remove_duplicate=False):
        found.setdefault(stored.get(parameter, parameter), []).append(parameter)
    if parametrize.is_parametrized(module):
        inner = module.get_submodule("parametrizations")
        for parameter, _ in inner.named_parameters(remove_duplicate=False):
            found.setdefault(parameter.split(".")[0], []).append(f"parametrizations.{parameter}")
    return found


@torch.no_grad()
def effective(module: nn.Module, name: str) -> Tensor:
    """The tensor ``name`` as the next forward pass in evaluation mode will use it."""
    for hook in module._forward_pre_hooks.values():
        if _hooked_name(hook) != name:
            continue
        if isinstance(hook, WeightNorm):
            return hook.compute_weight(module).detach()
        if isinstance(hook, SpectralNorm):
            return hook.compute_weight(module, do_power_iteration=False).detach()
        if isinstance(hook, BasePruningMethod):
            return hook.apply_mask(module).detach()
    if parametrize.is_parametrized(module, name):
        with _in_evaluation_mode(module.get_submodule("parametrizations")):
            return getattr(module, name).detach()
    tensor = getattr(module, name)
    if isinstance(module, LeakyStep):
        # It keeps √ρ·W; the papers' W is what steps of other lengths can be compared by.
        return tensor.detach() / torch.sqrt(module.rho).to(tensor)
    return tensor if is_lazy(tensor) else tensor.detach()


def why_not(tensor: Tensor) -> str:
    """Why a tensor has no spectrum here, as ``"not computed: …"``; empty if it has."""
    if is_lazy(tensor):
        return "not computed: not initialised yet; run the module once"
    if tensor.is_meta:
        return "not computed: on the meta device, without values"
    if tensor.is_quantized:
        return f"not computed: quantised ({tensor.dtype}); dequantise it first"
    if tensor.layout != torch.strided:
        return f"not computed: sparse ({tensor.layout}); make it dense first"
    if not tensor.is_floating_point():
        return f"not computed: {tensor.dtype} is not a real floating dtype"
    return ""


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Shape; ``()`` where it is not known yet."""
    return () if is_lazy(tensor) else tuple(tensor.shape)


def _hooked_name(hook: object) -> str | None:
    """Name of the tensor that a pre-forward hook of PyTorch recomputes."""
    if isinstance(hook, WeightNorm | SpectralNorm):
        return hook.name
    return hook._tensor_name if isinstance(hook, BasePruningMethod) else None


@contextmanager
def _in_evaluation_mode(module: nn.Module) -> Iterator[None]:
    """In training mode spectral norm makes a power iteration, and keeps it, whenever its weight is read."""
    before = [(inner, inner.training) for inner in module.modules()]
    try:
        for inner, _ in before:
            inner.training = False
        yield
    finally:
        for inner, training in before:
            inner.training = training
