"""Steps of a leaky ResNet that follow its path while it is trained."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isthmus.networks import LeakyResNet
from isthmus.training._flat import FlatObjective

#: Quasi-Newton steps between two updates: each forgets the curvature that was learned.
NEWTON_EVERY = 50


def due(net: nn.Module, step: int, *, newton: bool) -> bool:
    """Whether the steps of ``net`` are updated before its training step number ``step`` of a phase."""
    if not isinstance(net, LeakyResNet) or net.steps != "adaptive":
        return False
    return step % (NEWTON_EVERY if newton else net.adapt_every) == 0


@torch.no_grad()
def adapt(objective: FlatObjective, vectors: list[Tensor]) -> None:
    """Update the steps at the same W; ``vectors`` of parameters kept for later are carried over.

    The parameters are √ρW, and change with ρ.
    """
    net = objective.net
    assert isinstance(net, LeakyResNet)
    factors = {}
    for step, factor in zip(net.stages, net.adapt(objective.X)):
        factors |= {id(parameter): factor for parameter in step.parameters()}
    offset = 0
    for parameter in objective.parameters:
        size = parameter.numel()
        for vector in vectors:
            vector[offset : offset + size] *= factors.get(id(parameter), 1.0)
        offset += size
