"""What goes into a training: checked data, and what callbacks are told."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from isthmus._checks import as_matrix, as_tensor, fail
from isthmus._errors import DataError


@dataclass(frozen=True, eq=False)
class TrainingEvent:
    """What a callback is told after every step.

    ``network`` has the weights after the step (a copy in float64 during phases of double precision). The numbers are
    those of the same weights for quasi-Newton steps, and of the weights before the move for all others, on the
    mini-batch if there is one.
    """

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
    if any(isinstance(m, _DropoutNd) and m.training and m.p > 0 for m in net.modules()):
        fail("train", "`net` must be deterministic", "active dropout", "Call net.eval() first, or remove it.")
    inputs = as_tensor("train", "X", X, dtype=own.dtype, device=own.device)
    if inputs.ndim == 1:
        inputs = inputs[:, None]
    if inputs.ndim == 0 or inputs.numel() == 0:
        fail("train", "`X` must have samples", f"shape {tuple(inputs.shape)}", "Pass (N, d_in).", error=DataError)
    targets = _labels(Y, own) if loss == "cross_entropy" else None
    if targets is None:
        targets = as_matrix("train", "Y", Y, dtype=own.dtype, device=own.device)
    if len(inputs) != len(targets):
        fail("train", "`X` and `Y` must have as many rows", f"{len(inputs)} and {len(targets)}", "Align them.")
    outputs = _first_outputs(net, inputs)
    if targets.ndim == 2 and outputs.shape[1:] != targets.shape[1:]:
        fail(
            "train",
            f"`Y` must have the outputs of `net` as columns, {tuple(outputs.shape[1:])}",
            f"shape {tuple(targets.shape)}",
            "Match the network's last dimension to Y; class labels must be integers.",
        )
    classes = outputs.shape[-1]
    if targets.ndim == 1 and not 0 <= int(targets.min()) <= int(targets.max()) < classes:
        got = f"{int(targets.min())} to {int(targets.max())}"
        fail(
            "train", f"class indices must be in [0, {classes - 1}]", got, "Number the classes from 0.", error=DataError
        )
    return inputs, targets


def _labels(Y: Any, own: Tensor) -> Tensor | None:
    """Class indices (N,), or None if ``Y`` is not of integers."""
    labels = Y if isinstance(Y, Tensor) else np.asarray(Y)
    if isinstance(labels, np.ndarray):
        if labels.dtype.kind not in "iub":
            return None
        labels = torch.from_numpy(labels.astype(np.int64))
    if labels.is_floating_point() or labels.is_complex():
        return None
    if labels.ndim == 0 or labels.numel() != len(labels) or len(labels) == 0:
        must = "class indices must be one integer for each sample"
        fail("train", must, f"shape {tuple(labels.shape)}", "Convert one-hot rows to floating point, or by argmax(1).")
    return labels.detach().to(own.device).long().reshape(-1)


@torch.no_grad()
def _first_outputs(net: nn.Module, inputs: Tensor) -> Tensor:
    """The outputs at the first sample, from a copy: looking must not move statistics or generators."""
    try:
        outputs = copy.deepcopy(net).eval()(inputs[:1])
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        fail("train", "`net` must accept `X`", f"shape {tuple(inputs.shape)}: {error}", "Match d_in to its inputs.")
    if not isinstance(outputs, Tensor) or outputs.ndim < 2 or len(outputs) != 1:
        got = f"shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
        fail("train", "`net` must give one row of outputs for each sample", got, "Return a tensor (N, d_out).")
    return outputs
