"""Reading networks built from PyTorch's own layers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from isthmus._checks import fail
from isthmus.networks.fully_connected import FullyConnected


def _flatten(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    if type(module) is nn.Sequential:
        # Not named_children(), which leaves out a module that appears twice: a shared ReLU, or a shared
        # Linear.
        for name, child in module._modules.items():
            assert child is not None
            yield from _flatten(child, f"{prefix}.{name}" if prefix else name)
    else:
        yield prefix or "module", module


def from_torch(module: nn.Module) -> FullyConnected:
    """Read an ``nn.Sequential`` of Linear, ReLU, LeakyReLU and Identity into a :class:`FullyConnected` (a
    copy).

    Nested ``nn.Sequential`` are flattened; a Linear without bias gets a zero bias if another one has a bias.
    Two Linear with nothing between them are the linear network ``slope=1``. Anything else is refused by name:
    other modules, mixed activations, an activation before the first or after the last Linear, shared Linear.
    """
    who = "from_torch"
    fix = "Use nn.Linear with one kind of nn.ReLU / nn.LeakyReLU / nn.Identity between them."
    if isinstance(module, FullyConnected):
        return FullyConnected.from_weights(module.Ws, module.bs or None, slope=module.slope, bias=module.bias)
    linears: list[tuple[str, nn.Linear]] = []
    slopes: list[tuple[str, float]] = []
    pending: tuple[str, float] | None = None
    for name, layer in _flatten(module):
        if layer._forward_hooks or layer._forward_pre_hooks:
            # Old-style weight_norm and spectral_norm, or anything a user attached: not what the weights say.
            fail(who, "layers must have no forward hooks", f"layer {name!r}: {layer}", "Remove them first.")
        if type(layer) is nn.Linear:
            if any(layer is other for _, other in linears):
                fail(who, "each Linear must appear once", f"layer {name!r} again", "Copy the shared layer.")
            if linears:
                slopes.append(pending or (name, 1.0))
            elif pending is not None and pending[1] != 1.0:
                fail(who, "the first layer must be an nn.Linear", f"layer {pending[0]!r} before it", fix)
            linears.append((name, layer))
            pending = None
        elif type(layer) is nn.ReLU or type(layer) is nn.LeakyReLU:
            if pending is not None and pending[1] != 1.0:
                fail(who, "one activation may stand between two Linear", f"a second one, layer {name!r}", fix)
            pending = (name, float(layer.negative_slope) if type(layer) is nn.LeakyReLU else 0.0)
        elif type(layer) is not nn.Identity:
            fail(who, "layers must be Linear, ReLU, LeakyReLU or Identity", f"layer {name!r}: {layer}", fix)
    if not linears:
        fail(who, "the module must contain an nn.Linear", f"{type(module).__name__} without one", fix)
    if pending is not None and pending[1] != 1.0:
        fail(who, "the last layer must be an nn.Linear", f"activation {pending[0]!r} after it", fix)
    for name, slope in slopes:
        if slope != slopes[0][1]:
            fail(
                who,
                f"all activations must have the same slope, {slopes[0][1]:g} as at {slopes[0][0]!r}",
                f"slope {slope:g} at layer {name!r}",
                fix,
            )
        if not -1.0 <= slope <= 1.0:
            fail(
                who,
                "slopes must be in [-1, 1]",
                f"slope {slope:g} at layer {name!r}",
                "Rescale the activation.",
            )
    for (before, first), (name, second) in zip(linears, linears[1:]):
        if first.out_features != second.in_features:
            fail(
                who,
                f"layer {name!r} must take the {first.out_features} outputs of layer {before!r}",
                f"in_features={second.in_features}",
                "Match the sizes.",
            )
    has_bias = any(layer.bias is not None for _, layer in linears)
    bs = [torch.zeros_like(layer.weight[:, 0]) if layer.bias is None else layer.bias.detach() for _, layer in linears]
    return FullyConnected.from_weights(
        [layer.weight.detach() for _, layer in linears],
        bs if has_bias else None,
        slope=slopes[0][1] if slopes else 0.0,
    )
