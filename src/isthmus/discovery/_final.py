"""The last fit, on all rows; coordinates with a fixed order and sign; what they mean."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from isthmus.discovery._fits import Fit, lean_fit, minibatch_fit, quasi_newton_fit, weigh
from isthmus.discovery._maps import ConstantMap, Sensitivity, finish, sensitivity
from isthmus.discovery._result import Discovery
from isthmus.discovery._task import RankTask, Scaling
from isthmus.discovery._walk import Context, Level
from isthmus.networks import FullyConnected, Standardized

Array = NDArray[np.float64]


#: Refits on other rows, for the intervals of the sensitivities, and the share of the rows each sees.
REFITS, REFIT_SHARE = 3, 0.8

#: Temperatures that are looked at; a fit that wants more has not enough held-out rows to say.
COLDEST, HOTTEST = 0.1, 10.0

#: Share of an autoencoder's ridge in its last fit: the search needs a coordinate's price, the maps need not shrink.
LIGHTER = 0.25

#: Rows that copies with noise may make up, and copies of a row at most.
COPIED_ROWS, COPIES = 2000, 4


@dataclass(frozen=True, eq=False)
class LastFit:
    """The maps in the user's units, and what the coordinates respond to."""

    encoder: Standardized
    decoder: nn.Module
    sensitivity: Sensitivity
    notes: tuple[str, ...]


def finish_fit(task: RankTask, inputs: Scaling, outputs: Scaling, context: Context, chosen: Level) -> LastFit:
    """Train the chosen network on all rows, in mini-batches if they are many, then put its coordinates in order.

    Logits of classes are divided by the temperature that suits the rows that were held out from the chosen network.
    """
    X, data, settings, stages = task.X, context.data, context.settings, context.stages
    ridge = LIGHTER * context.ridge if task.autoencoder else context.ridge
    max_samples, input_noise, each = settings.max_samples, settings.input_noise, settings.steps
    of = {"scale": data.variance, "loss": data.loss, "seed": context.seed}
    rows, B = torch.from_numpy(inputs(X)).float(), torch.from_numpy(outputs(task.Y)).float()
    rng = np.random.default_rng([context.seed, 2])
    A = rows
    if input_noise > 0:
        copies = max(1, min(COPIES, COPIED_ROWS // len(X)))
        A, B = rows.repeat(copies, 1), B.repeat(copies, 1)
        spread = input_noise * (data.variance / chosen.rank) ** 0.5
        A = A + spread * torch.from_numpy(rng.standard_normal(A.shape)).to(A)
    notes: tuple[str, ...] = ()
    few = len(X) <= 2 * max_samples

    def last() -> Fit:
        net = copy.deepcopy(chosen.fit.network)
        if few:
            fit = quasi_newton_fit(net, A, B, ridge, steps=each, **of)
        else:
            fit = minibatch_fit(net, A, B, ridge, settings.learning_rate, **of)
        # Logits that no longer move may still be far from those of other classes.
        lean = None if data.loss != "mse" else lean_fit(fit, A, B, ridge, scale=data.variance, seed=context.seed)
        # Of two descriptions of the same outputs the one that says less.
        return lean if lean is not None and lean.cost - fit.cost <= context.slack(fit.cost) else fit

    found = stages.get("final", last)
    if not few:
        notes = (
            f"the rank was found on {max_samples} training rows; all {len(X)} rows served for the last fit, in "
            f"mini-batches",
        )
    context.bar.advance(each)
    steps = max(1, each // 2)
    made: dict[str, Callable[[], Fit]] = {}
    for index in range(REFITS):
        count = min(max(2, round(REFIT_SHARE * len(A))), max_samples)
        part = torch.from_numpy(np.sort(rng.choice(len(A), min(count, len(A)), replace=False)))
        net = copy.deepcopy(found.network)
        made[f"refit-{index}"] = functools.partial(quasi_newton_fit, net, A[part], B[part], ridge, steps=steps, **of)
    refits = [fit.network.encoder().double() for fit in stages.get_all(made, context.n_jobs)]
    context.bar.advance(REFITS * steps)
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
    return LastFit(encoder, decoder, meaning, (*notes, *told))


def _behind(net: FullyConnected, axes: torch.Tensor) -> FullyConnected:
    return type(net).from_weights([net.Ws[0] @ axes, *net.Ws[1:]], net.bs, slope=net.slopes, bias=net.bias)


def _signs(found: Fit, coordinates: Any, A: torch.Tensor, B: torch.Tensor) -> Array:
    """+1 or −1 for each coordinate: positively correlated with the output it is most correlated with."""
    rows = slice(None, None, max(1, -(-len(A) // 2000)))
    with torch.no_grad():
        Z = found.network.encoder().double()(A[rows].double())
        U = (Z - coordinates.mean) @ coordinates.into.mT
    outputs = B[rows].double() - B[rows].double().mean(0)
    # By each column's deviation in these rows: the scaling is that of the training rows, or one for all columns.
    C = (U - U.mean(0)).mT @ (outputs / outputs.norm(dim=0).clamp_min(1e-300))
    strongest = C.abs().argmax(1)
    return np.where(C[torch.arange(len(C)), strongest].numpy() < 0, -1.0, 1.0)


def temperature(outputs: Tensor, Y: Tensor) -> float:
    """T > 0 at which softmax(f/T) has the least log loss on rows (M, K) that were held out.

    The share 1/(M + 2) of every label is spread over the classes (M rows cannot tell rarer events): where all of them
    are right, T would otherwise fall to 0.
    """
    M, K = Y.shape
    logits, share = outputs.double(), 1.0 / (M + 2)
    target = (1.0 - share) * Y.double() + share / K
    if not bool(torch.isfinite(logits).all()):
        return 1.0

    def loss(log_T: float) -> float:
        return float(-(target * torch.log_softmax(logits / float(np.exp(log_T)), -1)).sum(1).mean())

    found: Any = minimize_scalar(loss, bounds=(np.log(COLDEST), np.log(HOTTEST)), method="bounded")
    return float(np.exp(found.x)) if loss(float(found.x)) < loss(0.0) else 1.0


def accuracy(outputs: Tensor, Y: Tensor) -> float:
    """Share of rows whose largest output is their class."""
    return float((outputs.argmax(1) == Y.argmax(1)).double().mean())


def constant(X: Array, Y: Array, reason: str, **about: Any) -> Discovery:
    """Rank 0: a constant Y, or constant X; of classes, the logarithms of their shares. ``about`` are other fields."""
    mean = Y.mean(axis=0)
    value = np.log(mean) if about["settings"]["loss"] == "cross_entropy" else mean
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
        **about,
    )
