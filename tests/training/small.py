"""Shared by the tests of training: small tasks, plans that are quick, comparison of weights to the bit."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from isthmus import ConvergenceWarning
from isthmus.training import Phase, TrainingResult, train
from isthmus.training._objective import Stack
from isthmus.training._requests import drive
from tools import gaussian, random_net


def task(n=40, d_in=4, d_out=3, *, seed=0, dtype=torch.float64):
    """Inputs and a smooth function of two of their combinations."""
    X = gaussian(n, d_in, seed=seed, dtype=dtype)
    hidden = torch.tanh(X @ gaussian(d_in, 2, seed=seed + 1, dtype=dtype))
    return X, hidden @ gaussian(2, d_out, seed=seed + 2, dtype=dtype)


def network(dims=(4, 8, 8, 3), **options):
    return random_net(dims, **{"seed": 5, **options})


def quiet(net, X, Y, **options) -> TrainingResult:
    """Train where the state, and not convergence, is the subject."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return train(net, X, Y, **{"ridge": 1e-3, **options})


def objective_of(net, X, Y, loss="mse", **options) -> Any:
    """The regularised loss of one network: a stack of one."""
    return Stack([net], [X], [Y], loss, **options).objectives[0]


def take(steps):
    """One step of an optimiser, for one network alone."""
    with torch.no_grad():
        return drive([steps])[0]


def weights(net):
    return [p.detach().clone() for p in net.parameters()]


def same_bits(first, second):
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second))


#: A plan for each kind of phase: what a resume has to continue.
PLANS = {
    "scale": [Phase("scale", 1), Phase("gd", 5, 1e-2)],
    "adam": [Phase("adam", 12, 1e-2, batch_size=16, anneal=True), Phase("lbfgs", 6)],
    "gd": [Phase("gd", 12, 1e-2)],
    "sgd": [Phase("sgd", 12, 1e-3, batch_size=7)],
    "nesterov": [Phase("nesterov", 25, 5e-2)],
    "lbfgs": [Phase("lbfgs", 15, metric=False, memory=4)],
    "metric": [Phase("lbfgs", 45, ridge_start=10.0, ridge_share=0.5, memory=6)],
    "narrow": [Phase("lbfgs", 60), Phase("narrow", 24, attempt=6), Phase("lbfgs", 5)],
    "double": [Phase("adam", 5, 1e-2), Phase("lbfgs", 12, precision="double"), Phase("adam", 4, 1e-3)],
    "settled": [
        Phase("lbfgs", 400, ridge_start=30.0, ridge_end=30.0),
        Phase("lbfgs", 60, ridge_start=30.0, ridge_share=1.0),
        Phase("lbfgs", 1000),
    ],
}


def long_training(checkpoint):
    """A training through every kind of phase, of about two seconds; the weights at its end."""
    net = network((4, 12, 12, 12, 3))
    phases = [
        Phase("scale", 1),
        Phase("adam", 150, 1e-2, batch_size=16, ridge_start=0.01, anneal=True),
        Phase("nesterov", 60, 1e-2),
        Phase("lbfgs", 150, ridge_start=5.0, ridge_share=0.7),
        Phase("narrow", 80, attempt=20),
        Phase("lbfgs", 60, precision="double"),
        Phase("lbfgs", 250, metric=False),
    ]
    quiet(net, *task(n=60), phases=phases, seed=2, checkpoint=checkpoint, checkpoint_seconds=0.02)
    return weights(net)
