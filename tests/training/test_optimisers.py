"""First-order methods, step for step against torch.optim or a reference written out; mini-batches."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from isthmus.training import Phase
from isthmus.training._first_order import FirstOrder, ScaleDown
from isthmus.training._objective import Value
from small import network, objective_of, take, task
from test_stacks import by_hand
from tools import assert_close, gaussian, generator


def ours(phase, net, X, Y, ridge=0.01, steps=12):
    """θ before each step and at the end."""
    objective = objective_of(net, X, Y, "mse")
    optimiser = FirstOrder(phase, objective.theta, generator(3))
    path = []
    with objective.attached():
        for step in range(steps):
            path.append(objective.theta.clone())
            take(optimiser.step(objective, step, ridge))
        path.append(objective.theta.clone())
    return path


def theirs(make, net, X, Y, ridge=0.01, steps=12, rate=None):
    optimiser = make(net.parameters())
    path = []
    for step in range(steps):
        path.append(torch.cat([p.detach().reshape(-1) for p in net.parameters()]))
        if rate is not None:
            optimiser.param_groups[0]["lr"] = rate(step)
        optimiser.zero_grad()
        by_hand(net, X, Y, ridge, "mse").backward()
        optimiser.step()
    path.append(torch.cat([p.detach().reshape(-1) for p in net.parameters()]))
    return path


@pytest.mark.parametrize(
    ("phase", "make"),
    [
        (Phase("adam", 12, 0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
        (Phase("gd", 12, 0.02), lambda p: torch.optim.SGD(p, lr=0.02)),
        (Phase("sgd", 12, 0.02, momentum=0.8), lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.8)),
        (Phase("sgd", 12, 0.02, momentum=0.0), lambda p: torch.optim.SGD(p, lr=0.02)),
    ],
    ids=["adam", "gd", "momentum", "sgd"],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_against_torch(phase, make, dtype):
    X, Y = task(dtype=dtype)
    net = network(dtype=dtype)
    expected = theirs(make, copy.deepcopy(net), X, Y)
    reason = "rounding of twelve steps, divided by small second moments"
    single = {"rtol": 1e-3, "atol": 1e-5, "reason": reason} if dtype == torch.float32 else {}
    for found, other in zip(ours(phase, net, X, Y), expected):
        assert_close(found, other, **single)


def test_annealed_adam_against_torch():
    X, Y = task()
    net, phase = network(), Phase("adam", 12, 0.01, anneal=True)
    expected = theirs(torch.optim.Adam, copy.deepcopy(net), X, Y, rate=phase.rate)
    assert_close(ours(phase, net, X, Y)[-1], expected[-1])


class Quadratic:
    """½ θᵀHθ − cᵀθ with the interface of an objective; the ridge adds to it."""

    def __init__(self, H, c, theta):
        self.H, self.c, self.theta, self.X, self.evaluations = H, c, theta.clone(), torch.zeros(1, 1), 0
        self.net = None

    def __call__(self, ridge, batch=None, *, fleeting=False):
        self.evaluations += 1
        own = self.H @ self.theta - self.c
        cost = float(0.5 * self.theta @ self.H @ self.theta - self.c @ self.theta)
        return Value(0.0, cost, float(self.theta @ self.theta), own, own).at_ridge(ridge, self.theta)


def test_nesterov_against_its_definition_with_restarts():
    """x_{t+1} = y_t − η∇F(y_t), y_{t+1} = x_{t+1} + (k−1)/(k+2)(x_{t+1} − x_t); back to x_t when F(y_t) rises."""
    H = torch.diag(torch.tensor([1.0, 0.01, 0.2], dtype=torch.float64))
    c, start, rate = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64), 0.9
    objective = Quadratic(H, c, start)
    optimiser: Any = FirstOrder(Phase("nesterov", 300, rate), objective.theta, generator())
    x = y = start.clone()
    k, last, restarts = 0, float("inf"), 0
    for step in range(300):
        assert_close(objective.theta, y)
        take(optimiser.step(objective, step, 0.0))
        value = float(0.5 * y @ H @ y)
        if value > last:
            y, k, last, restarts = x, 0, float("inf"), restarts + 1
            continue
        last, k = value, k + 1
        new = y - rate * (H @ y)
        y = new + (k - 1) / (k + 2) * (new - x)
        x = new
    assert restarts >= 2
    # Gradient descent would still be at (1 − 0.009)^300 = 0.07 in the second coordinate.
    assert float(objective.theta.abs().max()) < 1e-3


def test_batches_are_epochs_of_the_generator():
    phase = Phase("sgd", 10, 0.1, batch_size=4)
    optimiser: Any = FirstOrder(phase, torch.zeros(2), generator(1))
    epochs = [[optimiser.batch(10) for _ in range(2)] for _ in range(3)]
    reference = generator(1)
    for epoch in epochs:
        order = torch.randperm(10, generator=reference)
        assert torch.equal(torch.cat(epoch), order[:8])
    assert not torch.equal(epochs[0][0], epochs[1][0])
    exact: Any = FirstOrder(Phase("sgd", 10, 0.1, batch_size=5), torch.zeros(2), generator(1))
    for _ in range(2):
        assert sorted(torch.cat([exact.batch(10), exact.batch(10)]).tolist()) == list(range(10))
    for size in (10, 11, None):
        assert FirstOrder(Phase("sgd", 10, 0.1, batch_size=size), torch.zeros(2), generator()).batch(10) is None


def test_no_move_from_a_non_finite_value():
    for method in ("adam", "gd", "sgd", "nesterov"):
        objective = Quadratic(torch.full((2, 2), float("nan")), torch.zeros(2), torch.ones(2))
        optimiser: Any = FirstOrder(Phase(method, 1, 0.1), objective.theta, generator())
        assert not take(optimiser.step(objective, 0, 0.1)).finite
        assert objective.theta.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (0.0, 50.0), (30.0, 1.0), (0.0, 1e60)])
def test_scale_down_takes_the_largest_allowed_factor(shift, scale):
    X, Y = task()
    net = network()
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(scale)
    objective = objective_of(net, X, Y + shift, "mse")
    before = objective.theta.clone()
    scaler = ScaleDown()
    with objective.attached():
        value = take(scaler.step(objective, 0, 0.0))
        assert scaler.finished
        factor = float(objective.theta.norm() / before.norm())
        targets = Y + shift
        limit = max(
            2 * float((targets - targets.mean(0)).square().sum(1).mean()), float(targets.square().sum(1).mean())
        )
        if value.cost <= limit and factor < 1:
            objective.theta.mul_(2**0.25)
            assert not objective(0.0).cost <= limit
        elif scale < 1e50:
            assert factor == 1.0
    if shift:
        # Targets far from zero: shrinking to nothing would be a start that deep networks do not leave.
        assert factor > 0.1


def test_scale_down_leaves_a_fitted_network_alone():
    net = network()
    X = gaussian(30, 4)
    objective = objective_of(net, X, net(X).detach(), "mse")
    before = objective.theta.clone()
    with objective.attached():
        assert take(ScaleDown().step(objective, 0, 0.1)).cost == 0.0
    assert torch.equal(objective.theta, before)
