"""Does everything pass through a layer? A layer that others bypass is no isthmus, however narrow it is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from isthmus._checks import fail
from isthmus.diagnosis.capture import first_tensor
from isthmus.diagnosis.survey import Call, samples_of, take

#: What is left of the outputs' variation when all of it passes through the frozen layer: rounding.
NOTHING = 1e-9


@torch.no_grad()
def bypass(module: nn.Module, call: Call, names: list[str]) -> dict[str, float]:
    """The share of the outputs' variation that survives when a layer is frozen, for each layer.

    The layer's outputs are replaced by those for one fixed sample while the inputs differ. If everything the network
    computes passes through it, the outputs no longer vary: the share is 0 and the layer separates inputs from outputs.
    Skip connections around it leave some: the share is up to 1 (or more, where the frozen part had cancelled).
    NaN where the outputs do not vary at all.
    """
    samples = samples_of(call)
    same = take(call, torch.zeros(samples, dtype=torch.long))
    fixed, varied = _output(module, same), _output(module, call)
    total = float((varied - fixed).square().sum())
    # A network that is constant up to rounding shows nothing.
    floor = torch.finfo(varied.dtype).eps ** 2 * float(varied.square().sum())
    if not total > 100 * floor:
        return dict.fromkeys(names, float("nan"))
    shares = {}
    for name in names:
        layer = module.get_submodule(name)
        kept: list[Any] = []
        handle = layer.register_forward_hook(lambda *call, kept=kept: kept.append(call[-1]))
        try:
            module(*same[0], **same[1])
        finally:
            handle.remove()
        # A layer that is called several times gets back what it gave at each call.
        again = iter(kept)
        handle = layer.register_forward_hook(lambda *call, again=again: next(again))
        try:
            frozen = _output(module, call)
        except StopIteration:
            # It was called more often than for the fixed sample: the computation depends on the data.
            shares[name] = float("nan")
            continue
        finally:
            handle.remove()
        shares[name] = float((frozen - fixed).square().sum()) / total
    return shares


def _output(module: nn.Module, call: Call) -> Tensor:
    tensor = first_tensor(module(*call[0], **call[1]))
    if tensor is None:
        fail("diagnose", "`module` must return a tensor", "none in its output", "Wrap it so that it does.")
    return tensor.double()
