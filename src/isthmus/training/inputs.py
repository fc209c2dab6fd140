"""What goes into a training: checked data, and what callbacks are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from isthmus._checks import as_matrix, as_tensor, fail


@dataclass(frozen=True, eq=False)
class TrainingEvent:
    """What a callback is told after every step."""

    step: int
    phase: int
    loss: float
    cost: float
    norm: float
    ridge: float
    network: nn.Module


def checked_data(net: nn.Module, X: Any, Y: Any, loss: str) -> tuple[Tensor, Tensor]:
    """Inputs and targets in the network's dtype and on its device, checked against each other and its outputs."""
    own = next((p for p in net.parameters()), None)
    if own is None:
        fail("train", "`net` must have parameters", "none", "Pass a network with weights.")
    inputs = as_tensor("train", "X", X, dtype=own.dtype, device=own.device)
    if inputs.ndim == 1:
        inputs = inputs[:, None]
    labels = Y if isinstance(Y, Tensor) else torch.from_numpy(np.array(Y))
    if loss == "cross_entropy" and not labels.is_floating_point():
        targets = labels.to(own.device).long().reshape(-1)
    else:
        targets = as_matrix("train", "Y", Y, dtype=own.dtype, device=own.device)
    if len(inputs) != len(targets):
        fail("train", "`X` and `Y` must have as many rows", f"{len(inputs)} and {len(targets)}", "Align them.")
    with torch.no_grad():
        outputs = net(inputs[:1])
    if loss == "mse" and outputs.shape[1:] != targets.shape[1:]:
        fail(
            "train",
            f"`Y` must have the {outputs.shape[-1]} outputs of `net` as columns",
            f"shape {tuple(targets.shape)}",
            "Match the network's last dimension to Y.",
        )
    return inputs, targets
