"""What growth.py times, each as a function of the sizes; the data and the weights are made before the time begins.

A candidate returns a small number or none: what is worth a look beside its time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from isthmus import FullyConnected, compress, discover
from isthmus.measures import bottleneck_rank, ntk_trace, weight_spectra
from isthmus.problems import teacher
from isthmus.training import Phase, train_together
from isthmus.training._first_order import FirstOrder, Optimiser
from isthmus.training._lbfgs import LBFGS
from isthmus.training._objective import Objective, Stack
from isthmus.training._requests import Steps, drive

RIDGE = 1e-4
#: Steps in one call: of Adam, so that the clock does not count; of L-BFGS, between two estimates of its metric.
ADAM_STEPS, NEWTON_STEPS = 3, 20


def task(samples: int, d: int, dtype: torch.dtype, rank: int = 3) -> tuple[Tensor, Tensor]:
    """A teacher of known rank."""
    made = teacher(d_in=d, rank=rank, d_out=d, samples=samples, seed=0)
    return torch.tensor(made.X, dtype=dtype), torch.tensor(made.Y, dtype=dtype)


def network(d: int, width: int, depth: int, dtype: torch.dtype, seed: int = 0) -> FullyConnected:
    """Gaussian weights."""
    dims = [d, *[width] * (depth - 1), d]
    return FullyConnected(dims, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def objective_of(net: FullyConnected, samples: int, dtype: torch.dtype) -> Objective:
    """Of one network, whose inputs are as many as its outputs."""
    X, Y = task(samples, net.dims[0], dtype)
    return Stack([net], [X], [Y], "mse").objectives[0]


def several(optimiser: Optimiser, objective: Objective, first: int, steps: int) -> Steps[None]:
    """Steps in a row, as training takes them."""
    for step in range(first, first + steps):
        yield from optimiser.step(objective, step, RIDGE)


def training_step(samples: int = 1000, width: int = 100, depth: int = 10) -> Callable[[], Any]:
    """Adam, float32. Inputs and outputs are as wide as the layers: then every layer costs the same."""
    objective = objective_of(network(width, width, depth, torch.float32), samples, torch.float32)
    optimiser = FirstOrder(Phase("adam", 10**6, 1e-3), objective.theta, torch.Generator().manual_seed(0))
    taken = 0

    def run() -> None:
        nonlocal taken
        with torch.no_grad(), objective.attached(), objective.stack.threads():
            drive([several(optimiser, objective, taken, ADAM_STEPS)])
        taken += ADAM_STEPS

    return run


def newton_step(samples: int = 1000, width: int = 50, depth: int = 6) -> Callable[[], Any]:
    """L-BFGS with its metric, float64; evaluations of the line searches over steps are returned."""
    net = network(width, width, depth, torch.float64)
    objective = objective_of(net, samples, torch.float64)
    optimiser = LBFGS(Phase("lbfgs", 10**6), objective.theta, net.metric("mse"), torch.Generator().manual_seed(0))
    taken = 0

    def run() -> float:
        nonlocal taken
        before = objective.evaluations
        with torch.no_grad(), objective.attached(), objective.stack.threads():
            drive([several(optimiser, objective, taken, NEWTON_STEPS)])
        taken += NEWTON_STEPS
        if optimiser.finished:
            raise RuntimeError(f"L-BFGS ended after {taken} steps: no time of a step. Use fewer rounds.")
        return (objective.evaluations - before) / NEWTON_STEPS

    return run


def kernel_trace(samples: int = 500, width: int = 100, depth: int = 6) -> Callable[[], Any]:
    """``ntk_trace``, float64, 10 outputs."""
    net, X = network(10, width, depth, torch.float64), task(samples, 10, torch.float64)[0]

    def run() -> None:
        ntk_trace(net, X)

    return run


def spectra(width: int = 200, depth: int = 6) -> Callable[[], Any]:
    """``weight_spectra``."""
    net = network(width, width, depth, torch.float64)

    def run() -> None:
        weight_spectra(net)

    return run


def rank(samples: int = 500, width: int = 100, depth: int = 6) -> Callable[[], Any]:
    """``bottleneck_rank`` with the trace that it reads."""
    net, X = network(20, width, depth, torch.float64), task(samples, 20, torch.float64)[0]

    def run() -> None:
        bottleneck_rank(net.trace(X))

    return run


def compression(samples: int = 500, width: int = 80, depth: int = 5) -> Callable[[], Any]:
    """``compress`` of a network half of whose neurons are multiples of others; parameters left over before."""
    net, X = network(20, width, depth, torch.float64), task(samples, 20, torch.float64)[0]
    half = width // 2
    with torch.no_grad():
        for W in net.Ws[:-1]:
            W[half : 2 * half] = 2.0 * W[:half]
    parameters = sum(p.numel() for p in net.parameters())

    def run() -> float:
        return sum(p.numel() for p in compress(net, X).network.parameters()) / parameters

    return run


def discovery(rank: int = 4) -> Callable[[], Any]:
    """``discover`` on a task of that rank; what it found, and the levels walked by all its profiles.

    Not ``max_rank``: narrowing goes from there straight to what training has left, whatever ``max_rank`` is.
    """
    X, Y = task(300, 24, torch.float64, rank=rank)

    def run() -> dict[str, Any]:
        found = discover(X, Y, depth=4, width=48, steps=10)
        profiles = [profile for profile in (found.profile, *found.replicas) if profile is not None]
        walked = sum(len(profile.ranks) for profile in profiles)
        return {"rank": found.rank, "verdict": found.verdict, "levels": walked}

    return run


def together(runs: int = 16) -> Callable[[], Any]:
    """``train_together``: ten steps of Adam, float32, as in F-bn-1 but less deep."""
    X, Y = task(200, 20, torch.float32)
    nets = [network(20, 50, 6, torch.float32, seed) for seed in range(runs)]

    def run() -> None:
        train_together(nets, X, Y, ridges=RIDGE, phases=[Phase("adam", 10, 1e-3)])

    return run


MAKERS: dict[str, Callable[..., Callable[[], Any]]] = {
    "training step": training_step,
    "L-BFGS step": newton_step,
    "ntk_trace": kernel_trace,
    "weight_spectra": spectra,
    "bottleneck_rank": rank,
    "compress": compression,
    "discover": discovery,
    "train_together": together,
}

#: Steps in one call, by which its time is divided.
STEPS = {"training step": ADAM_STEPS, "L-BFGS step": NEWTON_STEPS}
