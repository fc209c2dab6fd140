"""The whole network before and after: its outputs beside each other, and the time that it takes."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from isthmus.compression.certificate import UNCHANGED
from isthmus.compression.modules import find_stacks, put_back
from isthmus.compression.stack import Shrunk, deviation, probe_points

#: Rows and repetitions of a timed forward pass.
BATCH, PASSES = 256, 21


def points_for(module: nn.Module, columns: int | None, X: Tensor | None) -> list[Tensor]:
    """Where a network is evaluated: on the data, or at random points where the shape of inputs is known."""
    if X is not None:
        return [X]
    shift, scale = getattr(module, "shift", None), getattr(module, "scale", None)
    # What a network divides its inputs by tells how large they are.
    around = (shift, scale) if isinstance(shift, Tensor) and isinstance(scale, Tensor) else None
    return [] if columns is None else probe_points(columns, None, around)


class Whole:
    """A module in float64 and its outputs at some points, to compare others with.

    Parameters
    ----------
    module : nn.Module
        In evaluation mode.
    at : sequence of Tensor
        Inputs; none if nothing is known that the module takes.
    """

    def __init__(self, module: nn.Module, at: Sequence[Tensor]) -> None:
        device = next(module.parameters()).device
        self.module, self.at = module, [X.to(device) for X in at]
        self.outputs = _outputs(module, self.at)

    def deviation(self, done: Sequence[Shrunk]) -> float:
        """Of the module with these stacks in place of its own; ∞ where it cannot be evaluated."""
        if not self.at:
            return max((one.deviation for one in done), default=0.0)
        try:
            return self.deviation_of(rebuilt(self.module, done))
        except Exception:  # whatever a user's module raises when a layer inside it has another width
            return math.inf

    def deviation_of(self, other: nn.Module) -> float:
        """The largest max|Δ| / max|output| over all outputs; ∞ where they differ in shape."""
        after = _outputs(other, self.at)
        if [len(one) for one in self.outputs] != [len(one) for one in after]:
            return math.inf
        return max((deviation(a, b) for a, b in zip(self.outputs, after)), default=0.0)


def _outputs(module: nn.Module, at: Sequence[Tensor]) -> list[Tensor]:
    """Every tensor that the module gives at the points, flat."""
    found: list[Tensor] = []

    def gather(value: Any) -> None:
        if isinstance(value, Tensor):
            found.append(value.detach().double().flatten())
        elif isinstance(value, (tuple, list)):
            for item in value:
                gather(item)
        elif isinstance(value, dict):
            for item in value.values():
                gather(item)

    for X in at:
        gather(module(X))
    return found


def rebuilt(net: nn.Module, done: Sequence[Shrunk]) -> nn.Module:
    """A copy of ``net`` with its stacks replaced by those that were shrunk."""
    root = copy.deepcopy(net)
    stacks, _ = find_stacks(root)
    for stack, one in zip(stacks, done):
        if one.domain == UNCHANGED:
            continue
        made = one.chain.as_module(stack.module)
        if stack.module is root:
            return made
        put_back(root, stack, made)
    return root


@torch.no_grad()
def latency(net: nn.Module, other: nn.Module, X: Tensor | None) -> tuple[float, float, int]:
    """Median milliseconds of a forward pass of each, in turn, and the rows of a pass; NaN without inputs."""
    if X is None:
        return math.nan, math.nan, 0
    first = next(net.parameters())
    rows = X[:BATCH].to(first.device)
    rows = rows.to(first.dtype) if rows.dtype.is_floating_point else rows
    modules = (net, other)
    modes = [module.training for module in modules]
    times: list[list[float]] = [[], []]
    for module in modules:
        module.eval()(rows)
    for _ in range(PASSES):
        for spent, module in zip(times, modules):
            start = time.perf_counter()
            module(rows)
            spent.append(1e3 * (time.perf_counter() - start))
    for module, training in zip(modules, modes):
        module.train(training)
    return statistics.median(times[0]), statistics.median(times[1]), len(rows)
