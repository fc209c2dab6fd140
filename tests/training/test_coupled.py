"""The metric that couples layers, against dense matrices; trainings of networks too large for their Hessian."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, jacrev

from isthmus import FullyConnected, LeakyResNet
from isthmus.networks._network import hooks_of
from isthmus.training import Phase, minimise
from isthmus.training._coupled import CoupledMetric
from isthmus.training._newton import Newton
from isthmus.training._objective import Stack
from isthmus.training._phases import MOST_PARAMETERS
from isthmus.training._requests import drive
from tools import assert_close, gaussian, generator

RIDGE = 0.02


def flat(net):
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


def gauss_newton(net, X):
    """Of the mean squared error of one output, by the Jacobian of all of them."""
    names, sizes = zip(*((name, p.numel()) for name, p in net.named_parameters()))
    shapes = [p.shape for p in net.parameters()]

    def outputs(theta):
        parts = (part.view(shape) for part, shape in zip(theta.split(sizes), shapes))
        return functional_call(net, dict(zip(names, parts)), (X,)).reshape(-1)

    J = jacrev(outputs)(flat(net))
    return 2.0 * J.mT @ J / len(X)


def kinks(net, X, weights):
    """Σ w·(e_i⊗ā_n)(e_i⊗ā_n)ᵀ, one outer product after the other."""
    parameters, starts, at = list(net.parameters()), [], 0
    for p in parameters:
        starts.append(at)
        at += p.numel()
    found = torch.zeros(at, at, dtype=torch.float64)
    inputs = X
    for ell, weight in enumerate(weights):
        for n, i in weight.nonzero().tolist():
            e = torch.zeros(at, dtype=torch.float64)
            width = inputs.shape[1]
            e[starts[ell] + i * width : starts[ell] + (i + 1) * width] = inputs[n]
            if net.bias:
                e[starts[net.depth + ell] + i] = net.bias
            found += weight[n, i] * torch.outer(e, e)
        b = net.bias * parameters[net.depth + ell] if net.bias else 0.0
        inputs = torch.relu(inputs @ parameters[ell].mT + b).detach()
    return found


@pytest.mark.parametrize("bias", [0.0, 0.5])
@pytest.mark.parametrize("kinked", [False, True])
def test_with_all_coordinates_it_is_ridge_and_gauss_newton_and_kinks(bias, kinked):
    net = FullyConnected([3, 6, 5, 1], bias=bias, generator=generator(1)).double()
    X = gaussian(40, 3)
    weights = [torch.zeros(40, n, dtype=torch.float64) for n in (6, 5)]
    if kinked:
        for place, (n, i) in zip((0, 0, 0, 1, 1), ((3, 2), (17, 2), (5, 4), (8, 0), (39, 3))):
            weights[place][n, i] = 0.1 * (n + 1)
    theta = flat(net)
    metric = CoupledMetric(hooks_of(net).metric("mse"), theta, X, RIDGE, weights, curved=0.0)
    one = torch.eye(len(theta), dtype=torch.float64)
    # A thousandth of the ridge more along coordinates, which here are all.
    expected = (2.0 + 2e-3) * RIDGE * one + gauss_newton(net, X) + kinks(net, X, weights)
    inverse = metric.solve(one)
    assert_close(inverse, inverse.mT)
    assert_close(torch.linalg.inv(inverse), expected, rtol=1e-6, reason="inverted twice")


def test_without_coordinates_it_is_the_kronecker_metric_and_kinks():
    net = FullyConnected([3, 6, 5, 2], generator=generator(1)).double()
    X, weight = gaussian(40, 3), torch.zeros(40, 6, dtype=torch.float64)
    weight[4, 1], weight[7, 1], weight[9, 3] = 2.0, 3.0, 0.5
    theta = flat(net)
    kronecker = hooks_of(net).metric("mse")
    metric = CoupledMetric(kronecker, theta, X, RIDGE, [weight], curved=1e6)
    assert sum(metric.counts) == 0
    alone = torch.linalg.inv(kronecker.solve(torch.eye(len(theta)).double(), [RIDGE]))
    v = gaussian(2, len(theta), seed=3)
    assert_close(metric.solve(v), torch.linalg.solve(alone + kinks(net, X, [weight]), v.mT).mT)


def large():
    return FullyConnected([4, 70, 70, 3], generator=generator(5)).double()


@pytest.mark.parametrize("pull", [0.0, 10.0], ids=["free", "held"])
def test_large_networks_go_on_to_the_same_bits(pull, tmp_path):
    X = gaussian(60, 4)
    Y = torch.relu(X[:, :3])
    plan = [Phase("lbfgs", 10), Phase("newton", 60, band=0.01, moved=True, precision="double", pull=pull)]
    whole = minimise(large(), X, Y, ridge=RIDGE, phases=plan)
    for step in (11, 17, 69):
        options = {"ridge": RIDGE, "phases": plan, "checkpoint": tmp_path / str(step)}
        stopped = minimise(large(), X, Y, callbacks=[lambda event, step=step: event.step == step], **options)
        assert stopped.state == "interrupted" and stopped.steps == step
        resumed = minimise(large(), X, Y, **options)
        assert resumed.steps == whole.steps
        for ours, theirs in zip(resumed.network.parameters(), whole.network.parameters()):
            assert torch.equal(ours, theirs)


def test_held_parameters_move_on_once_the_gradient_is_small_beside_what_holds_them():
    X, ridge, net = gaussian(60, 4), 1e-3, large()
    Y = torch.relu(X[:, :3])
    minimise(net, X, Y, ridge=ridge, phases=[Phase("lbfgs", 100)])
    phase = Phase("newton", 120, band=1e-3, moved=True, pull=10.0, memory=60, precision="double")
    objective = Stack([net], [X], [Y], "mse").objectives[0]
    moves = 0
    with objective.attached(), torch.no_grad():
        objective.set_rounding(objective.roundings(1e-3))
        before = float(objective(ridge).gradient.norm())
        optimiser = Newton(phase, objective.theta, net.metric("mse"), generator())
        for step in range(phase.steps):
            value = drive([optimiser.step(objective, step, ridge)])[0]
            numbers, centre = optimiser.numbers, optimiser.centre
            assert centre is not None
            if numbers["due"]:
                held = 2.0 * ridge * numbers["pull"] * float((objective.theta - centre).norm())
                assert float(value.gradient.norm()) <= 1.3 * held
                moves += 1
        # What is returned is the loss itself, and a stationary point of it is near.
        objective.hold(None)
        free = objective(ridge)
        assert_close(value.loss, free.loss)
        assert_close(value.gradient, free.gradient)
        assert moves >= 3 and float(free.gradient.norm()) < 0.1 * before


def test_what_holds_is_added_to_the_loss_and_taken_away_again():
    X, net = gaussian(20, 4), large()
    objective = Stack([net], [X], [torch.relu(X[:, :3])], "mse").objectives[0]
    with objective.attached(), torch.no_grad():
        free, centre = objective(RIDGE), objective.theta + gaussian(len(objective.theta))
        objective.hold(centre, 0.3)
        held, away = objective(RIDGE), objective.theta - centre
        assert_close(held.loss, free.loss + 0.15 * float(away @ away))
        assert_close(held.gradient, free.gradient + 0.3 * away)
        released = objective.released(held, RIDGE)
        assert_close(released.loss, free.loss)
        assert_close(released.gradient, free.gradient)
        assert_close(held.at_ridge(0.0, objective.theta).gradient, held.gradient - 2 * RIDGE * objective.theta)


@pytest.mark.parametrize("make", [large, lambda: LeakyResNet(4, 3, 40, 5, generator=generator(5)).double()])
def test_large_networks_come_down_faster_with_it(make):
    X = gaussian(60, 4)
    Y = torch.relu(X[:, :3])
    start = minimise(make(), X, Y, ridge=1e-3, phases=[Phase("lbfgs", 100)]).network.state_dict()
    losses = []
    for method in ("lbfgs", "newton"):
        net = make()
        net.load_state_dict(start)
        assert sum(p.numel() for p in net.parameters()) > MOST_PARAMETERS
        plan = [Phase(method, 60, band=1e-3, moved=True, precision="double")]
        losses.append(minimise(net, X, Y, ridge=1e-3, phases=plan).loss)
    assert losses[1] < losses[0]
