"""L-BFGS: known minima, the Wolfe conditions, moving ridge, kinks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from isthmus import FullyConnected
from isthmus.training import Phase
from isthmus.training import _lbfgs as lbfgs
from isthmus.training._lbfgs import LBFGS
from isthmus.training._objective import Value
from small import network, objective_of, take, task
from test_optimisers import Quadratic
from tools import assert_close, gaussian, generator, orthogonal


def make(theta, *, metric=None, memory=10) -> Any:
    return LBFGS(Phase("lbfgs", 1000, memory=memory), theta, metric, generator())


def quadratic(n, condition, seed=0):
    U = orthogonal(n, n, seed=seed)
    H = (U * torch.logspace(0, -torch.tensor(float(condition)).log10(), n, dtype=torch.float64)) @ U.mT
    return Quadratic(H, gaussian(n, seed=seed + 1), gaussian(n, seed=seed + 2))


@pytest.mark.parametrize(("n", "condition", "steps"), [(2, 3.0, 9), (2, 1e4, 20), (8, 100.0, 45)])
def test_exact_on_a_convex_quadratic(n, condition, steps):
    objective = quadratic(n, condition)
    ridge = 0.05
    optimiser = make(objective.theta)
    for step in range(steps):
        take(optimiser.step(objective, step, ridge))
    expected = torch.linalg.solve(objective.H + 2 * ridge * torch.eye(n, dtype=torch.float64), objective.c)
    assert_close(objective.theta, expected, rtol=1e-6, atol=1e-7, reason="an iteration stopped after few steps")


def test_wolfe_conditions_at_accepted_steps():
    objective = objective_of(network(slope=0.5), *task(), "mse")
    optimiser = make(objective.theta)
    seen = 0
    search = optimiser._search

    def checked(objective, origin, direction, slope, value, first, ridge):
        nonlocal seen
        found = yield from search(objective, origin, direction, slope, value, first, ridge)
        assert slope < 0
        assert found is not None
        length = float((objective.theta - origin) @ direction / (direction @ direction))
        assert found.loss <= value.loss + 1e-4 * length * slope + 1e-14
        assert float(found.gradient @ direction) >= 0.9 * slope
        # What is returned is what is there.
        assert objective(ridge).loss == found.loss
        seen += 1
        return found

    optimiser._search = checked
    with objective.attached():
        for step in range(60):
            take(optimiser.step(objective, step, 1e-2))
    assert seen == 60


def test_moving_ridge_is_exact():
    objective = quadratic(6, 10.0)
    optimiser = make(objective.theta, memory=4)
    for step in range(5):
        take(optimiser.step(objective, step, 0.02))
    S, T = optimiser.pairs.S, optimiser.pairs.T
    assert S.shape == (4, 6)
    assert_close(T, S @ (objective.H + 0.04 * torch.eye(6, dtype=torch.float64)))
    optimiser._move_ridge(0.7)
    assert_close(optimiser.pairs.T, S @ (objective.H + 1.4 * torch.eye(6, dtype=torch.float64)))
    # The value carried over to the new ridge is that of an evaluation.
    carried = optimiser.value.at_ridge(0.7, objective.theta)
    anew = objective(0.7)
    assert carried.loss == anew.loss
    assert torch.equal(carried.gradient, anew.gradient)


class Kinks(Quadratic):
    """1 + Σ aᵢ|θᵢ|: not differentiable at its minimum, 0."""

    def __init__(self, a, theta):
        super().__init__(torch.zeros(0), a, theta)

    def __call__(self, ridge, batch=None, *, fleeting=False):
        self.evaluations += 1
        cost = 1.0 + float((self.c * self.theta.abs()).sum())
        own = self.c * self.theta.sign()
        return Value(0.0, cost, float(self.theta @ self.theta), own, own).at_ridge(ridge, self.theta)


def test_kinks_end_finished_and_near_the_minimum():
    objective = Kinks(torch.tensor([1.0, 0.3, 2.0], dtype=torch.float64), gaussian(3))
    optimiser = make(objective.theta)
    losses = []
    for step in range(500):
        losses.append(take(optimiser.step(objective, step, 0.0)).loss)
        if optimiser.finished:
            break
    assert optimiser.finished
    assert all(b <= a for a, b in zip(losses, losses[1:]))
    assert losses[-1] - 1.0 < 1e-5 * (losses[0] - 1.0)


def test_finished_at_the_minimum_itself():
    objective = Quadratic(torch.eye(2), torch.zeros(2), torch.zeros(2))
    optimiser = make(objective.theta)
    value = take(optimiser.step(objective, 0, 0.1))
    assert optimiser.finished
    assert value.loss == 0.0
    assert objective.theta.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("with_metric", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_loss_never_rises_at_a_fixed_ridge(with_metric, dtype):
    X, Y = task(dtype=dtype)
    net = network(dtype=dtype)
    objective = objective_of(net, X, Y, "mse")
    metric = net.metric("mse") if with_metric else None
    optimiser = make(objective.theta, metric=metric)
    with objective.attached():
        losses = [take(optimiser.step(objective, step, 1e-2)).loss for step in range(80)]
    assert all(b <= a for a, b in zip(losses, losses[1:]))
    assert losses[-1] < 0.5 * losses[0]


def test_rebalancing_keeps_the_function_and_lowers_the_norm():
    X, Y = task()
    net = network()
    with torch.no_grad():
        net.weights[0].mul_(10.0)
        net.biases[0].mul_(10.0)
        net.weights[1].div_(10.0)
    f = net(X).detach()
    objective = objective_of(net, X, Y, "mse")
    optimiser = make(objective.theta, metric=net.metric("mse"))
    before = float(objective.theta.norm())
    with objective.attached(), torch.no_grad():
        optimiser._rebalance(objective)
        assert_close(net(X), f)
        assert float(objective.theta.norm()) < 0.5 * before
        # Balanced already: nothing moves, and the curvature pairs stay.
        theta = objective.theta.clone()
        optimiser.pairs.append(torch.ones_like(theta), torch.ones_like(theta))
        optimiser._rebalance(objective)
        assert torch.equal(objective.theta, theta)
        assert len(optimiser.pairs) == 1


def test_non_finite_weights_are_reported_not_raised():
    X, Y = task()
    net = FullyConnected.from_weights([torch.full((3, 4), float("nan"), dtype=torch.float64)])
    objective = objective_of(net, X, Y, "mse")
    optimiser = make(objective.theta, metric=net.metric("mse"))
    with objective.attached():
        assert not take(optimiser.step(objective, 0, 0.1)).finite


def test_memory_is_bounded():
    for memory in (1, 3):
        objective = quadratic(5, 10.0)
        optimiser = make(objective.theta, memory=memory)
        for step in range(6):
            take(optimiser.step(objective, step, 0.0))
        assert len(optimiser.pairs.S) == len(optimiser.pairs.T) == len(optimiser.pairs) == memory
    assert lbfgs.REFRESH < lbfgs.REBALANCE
