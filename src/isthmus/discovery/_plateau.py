"""Q-plateau: the width from which on further neurons do not lower the regularised loss of a task."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from isthmus._checks import as_matrix, check_choice, check_integer, check_number, check_seed, fail
from isthmus._cite import cites
from isthmus._errors import DataError
from isthmus.measures import ray_groups
from isthmus.networks import FullyConnected
from isthmus.objective import LOSSES, class_indices
from isthmus.training import Phase, TrainingResult, minimise

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Widths that are tried, up to the largest allowed.
WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)

STATES = ("plateau", "undetermined")

#: A plateau is seen when it reaches to this many times the width at which it begins, or to N(N+1).
LONG = 2

#: Trainings on the plateau that must come to its loss, from different starts.
AGAIN = 2

#: Size of the weights of neurons that are added to a trained network, relative to its own.
ADDED = 0.03

#: Angle within which neurons count as one, and share of the largest below which one counts as dead.
ONE_RAY, DEAD = 1e-2, 1e-3


@dataclass(frozen=True, eq=False)
class Plateau:
    """The loss of a task against the width.

    Attributes
    ----------
    start : int
        Smallest width whose loss is within the tolerance of the least; with ``"undetermined"`` a guess. 0 where
        constants are the best that was found.
    state : {"plateau", "undetermined"}
    reasons : tuple of str
    widths : tuple of int
        Of every hidden layer.
    losses : tuple of float
        Least loss at each width or below: a wider network has it too, with neurons that are zero.
    trials : tuple of tuple of float
        What every training at each width ended with.
    loss : float
        Of the plateau.
    tolerance : float
    bound : int
        N(N+1): from there on there is a plateau by theorem.
    parameters, widest, outputs : int
        Parameters in effect, those of a network at the start; parameters at the largest width tried; and N·d_out, the
        numbers to be fitted.
    rays : tuple of int
        Different neurons in each hidden layer of the best network, as the data see them: those on one ray can be merged
        into one, so that about so many would do.
    network : FullyConnected
        The best one of the width ``start``, or of width 1 if that is 0.
    seconds : float
    """

    start: int
    state: str
    reasons: tuple[str, ...]
    widths: tuple[int, ...]
    losses: tuple[float, ...]
    trials: tuple[tuple[float, ...], ...]
    loss: float
    tolerance: float
    bound: int
    parameters: int
    widest: int
    outputs: int
    rays: tuple[int, ...]
    network: FullyConnected
    seconds: float

    @property
    def sentence(self) -> str:
        """What was found, in one sentence."""
        if self.state == "undetermined":
            return f"Undetermined: {self.reasons[0]}; the loss is {self.loss:.4g} at width {self.widths[-1]}."
        return (
            f"From width {self.start} on the loss does not fall any more ({self.loss:.4g}): {self.parameters} "
            f"parameters are in effect, for {self.outputs} numbers; by theorem it does not fall from {self.bound} on."
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything but the network, as plain data."""
        plain = {key: value for key, value in vars(self).items() if key != "network"}
        return {"sentence": self.sentence, **plain}

    def plot(self, figure: Figure | None = None) -> Figure:
        """What every training ended with against the width, and where the loss is flat, as a matplotlib figure."""
        from isthmus.plotting.ranges import draw_plateau

        return draw_plateau(self, figure)

    def __repr__(self) -> str:
        return self.sentence


@cites("features2022", "Prop. 6, Prop. 7, Remark 11, §4.2", ids=("Q-plateau",))
def loss_plateau(
    X: Any,
    Y: Any,
    *,
    ridge: float,
    depth: int = 3,
    widths: Sequence[int] | None = None,
    max_width: int = 64,
    starts: int = 3,
    loss: str = "mse",
    slope: float = 0.0,
    bias: float = 1.0,
    tolerance: float = 0.01,
    steps: int = 300,
    seed: int = 0,
) -> Plateau:
    """min_W 𝓛_n(W) against the width n, and the n from which on it is constant: the sparsity of the task.

    At every width the best of several trainings counts: from random weights, from the best narrower network with
    neurons added, and, once all widths are done, from the best wider one with its weakest neurons removed. Beyond
    N(N+1) neurons nothing can be gained (σ_a is positively homogeneous); the plateau mostly begins far below.

    Parameters
    ----------
    X : array (N, d_in)
    Y : array (N, d_out), or (N,) of labels for ``"cross_entropy"``
    ridge : float
        λ > 0 of cost + λ‖θ‖². Data are taken as they are: without a scale of their own λ means nothing.
    depth : int
        L ≥ 2.
    widths : sequence of int, optional
        Rising; by default 1, 2, 3, 4, 6, 8, 12, … to ``max_width`` or N(N+1).
    starts : int
        Random starts at each width.
    loss : {"mse", "cross_entropy"}
    slope, bias : float
        a of σ_a, and β.
    tolerance : float
        Share of the least loss by which that of the plateau may exceed it.
    steps : int
        L-BFGS steps of each training.
    seed : int

    Returns
    -------
    Plateau
        "undetermined" where the loss still falls at the largest widths, or where what was reached on the plateau came
        from one start alone: a training that ends in a poor minimum is no evidence about widths.

    Examples
    --------
    >>> import torch, isthmus
    >>> Y = torch.eye(3).repeat(2, 1)  # six samples of three classes
    >>> isthmus.loss_plateau(torch.eye(6), Y, ridge=0.01, depth=2, bias=0.0, max_width=8).start
    3
    """
    who = "loss_plateau"
    began = time.perf_counter()
    check_number(who, "ridge", ridge, low=0.0, low_open=True)
    check_choice(who, "loss", loss, LOSSES)
    L = check_integer(who, "depth", depth, low=2)
    check_integer(who, "starts", starts, low=1)
    check_integer(who, "steps", steps, low=1)
    check_number(who, "tolerance", tolerance, low=0.0, low_open=True)
    inputs, targets = as_matrix(who, "X", X), as_matrix(who, "Y", Y)
    if len(inputs) != len(targets):
        got = f"{len(inputs)} and {len(targets)}"
        fail(who, "`X` and `Y` must have as many rows", got, "Pass one for each sample.", error=DataError)
    if loss == "cross_entropy" and targets.shape[1] == 1:
        targets = class_indices(who, targets)
    N, d_out = len(inputs), targets.shape[1] if targets.ndim == 2 else int(targets.max()) + 1
    bound = N * (N + 1)
    sizes = _widths(who, widths, check_integer(who, "max_width", max_width, low=1), bound)
    trainer = _Trainer(inputs, targets, ridge, loss, steps)
    source = torch.Generator().manual_seed(check_seed(who, seed))

    def dims(n: int) -> list[int]:
        return [inputs.shape[1], *[n] * (L - 1), d_out]

    best: list[FullyConnected] = []
    trials: list[list[float]] = []
    for index, n in enumerate(sizes):
        nets = [FullyConnected(dims(n), slope, bias, dtype=torch.float64, generator=source) for _ in range(starts)]
        if index:
            nets.append(_resized(best[-1], n, source))
        values = [trainer(net) for net in nets]
        trials.append(values)
        best.append(nets[min(range(len(nets)), key=values.__getitem__)])
    for index in range(len(sizes) - 2, -1, -1):
        net = _resized(best[index + 1], sizes[index], source)
        trials[index].append(trainer(net))
        if trials[index][-1] <= min(trials[index]):
            best[index] = net
    losses = [min(min(row) for row in trials[: index + 1]) for index in range(len(sizes))]
    least = losses[-1]
    place = next(index for index, value in enumerate(losses) if value <= least * (1.0 + tolerance))
    start = 0 if trainer.constant(best[place]) else sizes[place]
    widest = min(zip(trials, best), key=lambda pair: min(pair[0]))[1]
    state, reasons = _judged(sizes, losses, trials, place, tolerance, bound, trainer.falling)
    return Plateau(
        start=start,
        state=state,
        reasons=reasons,
        widths=tuple(sizes),
        losses=tuple(losses),
        trials=tuple(tuple(row) for row in trials),
        loss=least,
        tolerance=tolerance,
        bound=bound,
        parameters=_parameters(dims(start), bias),
        widest=_parameters(dims(sizes[-1]), bias),
        outputs=N * d_out,
        rays=_rays(widest, inputs),
        network=best[place],
        seconds=time.perf_counter() - began,
    )


def _widths(who: str, widths: Sequence[int] | None, most: int, bound: int) -> list[int]:
    if widths is None:
        return [n for n in WIDTHS if n <= min(most, bound)] or [1]
    sizes = [check_integer(who, "widths", n, low=1) for n in widths]
    if not sizes or sizes != sorted(set(sizes)):
        fail(who, "`widths` must rise", list(widths), "Pass e.g. (1, 2, 4, 8).")
    return sizes


class _Trainer:
    """Trains in place and gives the regularised loss; counts the trainings that were still falling."""

    def __init__(self, X: Tensor, Y: Tensor, ridge: float, loss: str, steps: int) -> None:
        self.X, self.Y, self.ridge, self.loss = X, Y, ridge, loss
        # A ridge that rises leaves neurons time to find what they are for.
        rising = Phase("lbfgs", max(1, steps // 3), ridge_start=0.1, ridge_share=1.0)
        self.phases = [Phase("scale", 1), Phase("adam", 100, 1e-2, ridge_start=0.1, ridge_end=0.1), rising]
        self.last = Phase("lbfgs", steps)
        self.falling: dict[int, bool] = {}

    def __call__(self, net: FullyConnected) -> float:
        result = self._run(net, [*self.phases, self.last])
        self.falling[net.dims[1]] = self.falling.get(net.dims[1], True) and not result.at_rest
        return result.loss if math.isfinite(result.loss) else math.inf

    def _run(self, net: FullyConnected, phases: list[Phase]) -> TrainingResult:
        return minimise(net, self.X, self.Y, ridge=self.ridge, loss=self.loss, phases=phases, tolerance=1e-3)

    @torch.no_grad()
    def constant(self, net: FullyConnected) -> bool:
        """Whether its outputs do not depend on the inputs."""
        outputs = net(self.X)
        return float((outputs - outputs.mean(0)).norm()) <= 1e-4 * max(float(self.Y.double().norm()), 1e-300)


@torch.no_grad()
def _resized(net: FullyConnected, n: int, source: torch.Generator) -> FullyConnected:
    """The same network with its strongest n neurons in every hidden layer, or with small ones added."""
    Ws = [W.detach().clone() for W in net.Ws]
    bs = [b.detach().clone() for b in net.bs] if net.bias else None
    for ell in range(len(Ws) - 1):
        width = len(Ws[ell])
        if n < width:
            strength = Ws[ell].norm(dim=1) * Ws[ell + 1].norm(dim=0)
            kept = strength.argsort(descending=True)[:n]
            Ws[ell], Ws[ell + 1] = Ws[ell][kept], Ws[ell + 1][:, kept]
            if bs is not None:
                bs[ell] = bs[ell][kept]
        elif n > width:
            scale = ADDED * max(float(Ws[ell].square().mean().sqrt()), 1e-6)
            more = [torch.randn(n - width, m, dtype=torch.float64, generator=source) for m in (Ws[ell].shape[1], 1)]
            after = torch.randn(len(Ws[ell + 1]), n - width, dtype=torch.float64, generator=source)
            Ws[ell] = torch.cat([Ws[ell], scale * more[0]])
            Ws[ell + 1] = torch.cat([Ws[ell + 1], scale * after], 1)
            if bs is not None:
                bs[ell] = torch.cat([bs[ell], scale * more[1][:, 0]])
    return FullyConnected.from_weights(Ws, bs, slope=net.slope, bias=net.bias)


def _judged(
    widths: list[int],
    losses: list[float],
    trials: list[list[float]],
    place: int,
    tolerance: float,
    bound: int,
    falling: dict[int, bool],
) -> tuple[str, tuple[str, ...]]:
    """Whether a plateau was seen, and why not."""
    level = losses[-1] * (1.0 + tolerance)
    there = sum(value <= level for row in trials[place:] for value in row)
    if not math.isfinite(losses[-1]):
        return "undetermined", ("every training diverged",)
    reasons = []
    if widths[-1] < bound and widths[-1] < LONG * widths[place]:
        reasons.append(f"the loss may still fall beyond width {widths[-1]}: raise `max_width`")
    if there < AGAIN:
        reasons.append("only one training came to the least loss: raise `starts` or `steps`")
    if falling.get(widths[place]) and falling.get(widths[-1]):
        reasons.append("the trainings were not at rest when their steps were used up: raise `steps`")
    if reasons:
        return "undetermined", tuple(reasons)
    count = sum(map(len, trials[place:]))
    return "plateau", (f"{there} of {count} trainings at width {widths[place]} and beyond came to the same loss",)


def _parameters(dims: list[int], bias: float) -> int:
    if dims[1] == 0:
        return dims[-1] if bias else 0
    return sum(n * (m + bool(bias)) for m, n in zip(dims, dims[1:]))


def _rays(net: FullyConnected, X: Tensor) -> tuple[int, ...]:
    trace = net.trace(X)
    counts = []
    for ell in range(1, trace.depth):
        Z = trace.Z(ell)
        sizes = Z.norm(dim=1)
        counts.append(len(ray_groups(Z[sizes > DEAD * sizes.max()], tolerance=ONE_RAY)))
    return tuple(counts)
