"""The last fit, on all rows; coordinates with a fixed order and sign; what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from isthmus._progress import Progress
from isthmus.discovery.fits import Fit, fit, minibatch_fit, weigh
from isthmus.discovery.maps import ConstantMap, Encoder, finish
from isthmus.discovery.meaning import Sensitivity, sensitivity
from isthmus.discovery.result import Discovery
from isthmus.discovery.scaling import Scaling
from isthmus.discovery.stages import Stages
from isthmus.discovery.walk import Effort, Level, copy_of
from isthmus.networks import FullyConnected

Array = NDArray[np.float64]

#: Refits on other rows, for the intervals of the sensitivities, and the share of the rows each sees.
REFITS, REFIT_SHARE = 3, 0.8


@dataclass(frozen=True, eq=False)
class Finished:
    """The maps in the user's units, and what the coordinates respond to."""

    encoder: Encoder
    decoder: nn.Module
    sensitivity: Sensitivity
    notes: tuple[str, ...]


def finish_fit(
    X: Array,
    Y: Array,
    inputs: Scaling,
    outputs: Scaling,
    chosen: Level,
    strength: float,
    variance: float,
    effort: Effort,
    *,
    max_samples: int,
    seed: int,
    stages: Stages,
    bar: Progress,
) -> Finished:
    """Train the chosen network on all rows, in mini-batches if they are many, then put its coordinates in order."""
    ridge = strength * variance / effort.depth
    A, B = torch.from_numpy(inputs(X)).float(), torch.from_numpy(outputs(Y)).float()
    rng = np.random.default_rng([seed, 2])
    notes: tuple[str, ...] = ()

    if len(X) <= 2 * max_samples:
        found = stages.get(
            "final", lambda: fit(copy_of(chosen.fit.network), A, B, ridge, steps=effort.each, scale=variance, seed=seed)
        )
    else:
        found = stages.get(
            "final",
            lambda: minibatch_fit(
                copy_of(chosen.fit.network), A, B, ridge, effort.learning_rate, scale=variance, seed=seed
            ),
        )
        notes = (
            f"the rank was found on {max_samples} training rows; all {len(X)} rows served for the last fit, in "
            f"mini-batches",
        )
    bar.advance(effort.each)
    refits: list[FullyConnected] = []
    steps = max(1, effort.each // 2)
    for index in range(REFITS):
        count = min(max(2, round(REFIT_SHARE * len(A))), max_samples)
        rows = torch.from_numpy(np.sort(rng.choice(len(A), min(count, len(A)), replace=False)))

        def make(rows: torch.Tensor = rows) -> Fit:
            return fit(copy_of(found.network), A[rows], B[rows], ridge, steps=steps, scale=variance, seed=seed)

        refits.append(stages.get(f"refit-{index}", make).network.encoder().double())
        bar.advance(steps)
    coordinates = weigh(found.network, A)
    signs = _signs(found, coordinates, A, B)
    encoder, decoder = finish(found.network, inputs, outputs, coordinates, signs)
    # In rotated columns a derivative by one input would have no meaning: refits get the axes folded in. By a constant
    # column nothing can be said.
    axes = np.eye(X.shape[1]) if inputs.axes is None else inputs.axes
    refits = [_behind(net, torch.from_numpy(np.where(inputs.constant, 0.0, axes))) for net in refits]
    scaled = np.where(inputs.constant, 0.0, (X - inputs.shift) / inputs.scale)
    meaning = sensitivity(encoder.network, refits, scaled)
    return Finished(encoder, decoder, meaning, notes)


def _behind(net: FullyConnected, axes: torch.Tensor) -> FullyConnected:
    return FullyConnected.from_weights([net.Ws[0] @ axes, *net.Ws[1:]], net.bs, slope=net.slope, bias=net.bias)


def _signs(found: Fit, coordinates: Any, A: torch.Tensor, B: torch.Tensor) -> Array:
    """+1 or −1 for each coordinate: positively correlated with the output it is most correlated with."""
    rows = slice(None, None, max(1, -(-len(A) // 2000)))
    with torch.no_grad():
        Z = found.network.encoder().double()(A[rows].double())
        U = (Z - coordinates.mean) @ coordinates.into.mT
    C = (U - U.mean(0)).mT @ (B[rows].double() - B[rows].double().mean(0))
    strongest = C.abs().argmax(1)
    return np.where(C[torch.arange(len(C)), strongest].numpy() < 0, -1.0, 1.0)


def constant(
    X: Array,
    Y: Array,
    names: Sequence[tuple[str, ...]],
    notes: tuple[str, ...],
    settings: dict[str, Any],
    fill: Array | None,
    reason: str,
) -> Discovery:
    """Rank 0: a constant Y, or constant X."""
    return Discovery(
        rank=0,
        verdict="trivial",
        reasons=(reason,),
        profile=None,
        replicas=(),
        evidence=(),
        sensitivity=None,
        encoder=ConstantMap(torch.zeros(0, dtype=torch.float64)),
        decoder=ConstantMap(torch.from_numpy(Y.mean(axis=0))),
        coordinates=np.empty((len(X), 0)),
        error=float("nan"),
        feature_names=names[0],
        target_names=names[1],
        notes=notes,
        fill=fill,
        settings=settings,
    )
