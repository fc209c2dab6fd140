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
from isthmus.discovery._fits import Fit, fit, minibatch_fit, weigh
from isthmus.discovery._maps import ConstantMap, Encoder, Sensitivity, finish, sensitivity
from isthmus.discovery._result import Discovery
from isthmus.discovery._task import Scaling, accuracy, temperature
from isthmus.discovery._walk import Data, Effort, Level, Stages, copy_of
from isthmus.networks import FullyConnected

Array = NDArray[np.float64]


#: Refits on other rows, for the intervals of the sensitivities, and the share of the rows each sees.
REFITS, REFIT_SHARE = 3, 0.8

#: Rows that copies with noise may make up, and copies of a row at most.
COPIED_ROWS, COPIES = 2000, 4


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
    data: Data,
    effort: Effort,
    *,
    max_samples: int,
    input_noise: float,
    seed: int,
    stages: Stages,
    bar: Progress,
) -> Finished:
    """Train the chosen network on all rows, in mini-batches if they are many, then put its coordinates in order.

    Logits of classes are divided by the temperature that suits the rows that were held out from the chosen network.
    """
    ridge = strength * data.variance / effort.depth
    of = {"scale": data.variance, "loss": data.loss, "seed": seed}
    rows, B = torch.from_numpy(inputs(X)).float(), torch.from_numpy(outputs(Y)).float()
    rng = np.random.default_rng([seed, 2])
    A = rows
    if input_noise > 0:
        copies = max(1, min(COPIES, COPIED_ROWS // len(X)))
        A, B = rows.repeat(copies, 1), B.repeat(copies, 1)
        spread = input_noise * (data.variance / chosen.rank) ** 0.5
        A = A + spread * torch.from_numpy(rng.standard_normal(A.shape)).to(A)
    notes: tuple[str, ...] = ()

    if len(X) <= 2 * max_samples:
        found = stages.get("final", lambda: fit(copy_of(chosen.fit.network), A, B, ridge, steps=effort.each, **of))
    else:
        found = stages.get(
            "final",
            lambda: minibatch_fit(copy_of(chosen.fit.network), A, B, ridge, effort.learning_rate, **of),
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
        part = torch.from_numpy(np.sort(rng.choice(len(A), min(count, len(A)), replace=False)))

        def make(part: torch.Tensor = part) -> Fit:
            return fit(copy_of(found.network), A[part], B[part], ridge, steps=steps, **of)

        refits.append(stages.get(f"refit-{index}", make).network.encoder().double())
        bar.advance(steps)
    coordinates = weigh(found.network, rows)
    signs = _signs(found, coordinates, rows, B[: len(rows)])
    T, told = 1.0, ()
    if data.loss == "cross_entropy":
        held = data.held_outputs(chosen.fit.network)
        T, right = temperature(held, data.Y_held), accuracy(held, data.Y_held)
        often = float(data.Y_held[:, int(data.Y.sum(0).argmax())].double().mean())
        told = (
            f"accuracy on the rows held out: {right:.3g}; the most frequent class alone: {often:.3g}",
            f"probabilities are calibrated: logits divided by {T:.2f}, the temperature that suits these rows best",
        )
    encoder, decoder = finish(found.network, inputs, outputs, coordinates, signs, 1.0 / T)
    # In rotated columns a derivative by one input would have no meaning: refits get the axes folded in. By a constant
    # column nothing can be said.
    axes = np.eye(X.shape[1]) if inputs.axes is None else inputs.axes
    refits = [_behind(net, torch.from_numpy(np.where(inputs.constant, 0.0, axes))) for net in refits]
    scaled = np.where(inputs.constant, 0.0, (X - inputs.shift) / inputs.scale)
    meaning = sensitivity(encoder.network, refits, scaled)
    return Finished(encoder, decoder, meaning, (*notes, *told))


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
    """Rank 0: a constant Y, or constant X; of classes, the logarithms of their shares."""
    mean = Y.mean(axis=0)
    value = np.log(mean) if settings.get("loss") == "cross_entropy" else mean
    return Discovery(
        rank=0,
        verdict="trivial",
        reasons=(reason,),
        profile=None,
        replicas=(),
        evidence=(),
        sensitivity=None,
        encoder=ConstantMap(torch.zeros(0, dtype=torch.float64)),
        decoder=ConstantMap(torch.from_numpy(value)),
        coordinates=np.empty((len(X), 0)),
        error=float("nan"),
        feature_names=names[0],
        target_names=names[1],
        notes=notes,
        fill=fill,
        settings=settings,
    )
