"""A-path: the linearised two-point problem against a dense Hessian, known critical points, training, the identity."""

from __future__ import annotations

import math

import pytest
import torch

from isthmus import IsthmusError, LeakyResNet, mechanics
from isthmus.constructions import flow_network
from isthmus.measures import KernelNorm, momenta
from isthmus.objective import cost
from isthmus.reformulations import optimise_path
from isthmus.reformulations._over_paths import CONVEX, FULL, NONE, _TwoPoint
from leaky_nets import leaky
from tools import assert_close, gaussian, generator


def start(slope=0.0, width=4, layers=6, effective_depth=2.0, bias=1, seed=0):
    source = generator(seed)
    return LeakyResNet(
        4, 3, width, layers, effective_depth, slope=slope, bias=bias, dtype=torch.float64, generator=source
    )


@pytest.fixture(scope="module")
def data():
    X = gaussian(12, 4, seed=1)
    return X, torch.stack([X[:, 0].abs(), X[:, 1], X[:, 0] - X[:, 2].relu()], 1)


def loss_of(net, X, Y, ridge):
    return cost(net(X), Y) + ridge * sum(p.square().sum() for p in net.parameters())


def whole_gradient(net, X, Y, ridge):
    """‖∇‖ relative to that of the ridge term, by autograd."""
    parameters = list(net.parameters())
    gradients = torch.autograd.grad(loss_of(net, X, Y, ridge), parameters)
    size = math.sqrt(sum(float(p.detach().square().sum()) for p in parameters))
    return math.sqrt(sum(float(g.square().sum()) for g in gradients)) / (2 * ridge * size)


@pytest.mark.parametrize("slope", [1.0, 0.3])
@pytest.mark.parametrize("bias", [0, 1])
def test_the_sweep_solves_the_newton_equations(slope, bias):
    """δW of the sweep is −H⁻¹∇ with the Hessian by autograd over all weights."""
    net = leaky(2, 2, 2, 3, 1.5, slope=slope, bias=bias, seed=4)
    X, Y, ridge = gaussian(5, 2), gaussian(5, 2, seed=1), 0.5
    problem = _TwoPoint(net, X, Y, ridge)
    Ws = [W.detach().double() for W in net.Ws]
    shape = Ws[0].shape

    def function(flat):
        weights = flat.reshape(3, *shape)
        A = problem.start
        for W, rho in zip(weights, problem.rho):
            A = problem.step(A, problem.sigma(A, 0), W, rho)
        penalty = sum(rho * W.square().sum() for W, rho in zip(weights, problem.rho))
        return (problem.W_out @ A - problem.Y).square().sum() / 5 + ridge * penalty

    flat = torch.cat([W.reshape(-1) for W in Ws]).requires_grad_()
    H = torch.autograd.functional.hessian(function, flat)
    (gradient,) = torch.autograd.grad(function(flat), flat)
    As, loss = problem.follow(Ws)
    assert_close(loss, function(flat))
    Bs = problem.momenta(As, Ws)
    swept = problem.sweep(As, Bs, Ws, FULL)
    assert swept is not None
    found = torch.cat([dW.reshape(-1) for dW in problem.directions(As, Bs, Ws, swept, FULL)])
    assert_close(found, -torch.linalg.solve(H, gradient), rtol=1e-8, reason="two solves")
    for terms in (NONE, CONVEX):
        other = problem.sweep(As, Bs, Ws, terms)
        assert other is not None
        step = torch.cat([dW.reshape(-1) for dW in problem.directions(As, Bs, Ws, other, terms)])
        assert float((step - found).norm()) > 1e-3 * float(found.norm()) or terms == CONVEX
        assert float(step @ gradient) < 0  # downhill, whatever the Hessian is


def test_a_known_critical_point_is_found_again():
    """That of an integrated flow, from weights that are off by a hundredth."""
    A = 0.5 + gaussian(3, 10).abs()
    B = A @ torch.linalg.inv(A.mT @ A + 0.1 * torch.eye(10, dtype=torch.float64))
    made = flow_network(A, B, 2.0, 8, lam=0.05, slope=1.0, bias=0.0)
    off = [W + 0.01 * gaussian(*W.shape, seed=7 + i) for i, W in enumerate(made.network.Ws)]
    begun = LeakyResNet.from_weights(off, made.network.rho, effective_depth=2.0, slope=1.0, bias=0.0)
    found = optimise_path(begun, made.X, made.Y, ridge=made.ridge)
    assert found.state == "converged" and found.kinks == 0
    for W, known in zip(found.network.Ws, made.network.Ws):
        assert_close(W, known, rtol=1e-6, atol=1e-7, reason="a residual of 1e-8")
    # Newton's method: the last residual is about the square of the one before.
    assert found.residuals[-1] < 100 * found.residuals[-2] ** 2 + 1e-12


@pytest.mark.parametrize("bias", [0, 1])
def test_a_linear_path_is_critical_by_autograd(data, bias):
    X, Y = data
    net = start(1.0, bias=bias)
    kept = [W.detach().clone() for W in net.Ws]
    found = optimise_path(net, X, Y, ridge=1e-2)
    assert found.state == "converged" and found.residual <= 1e-8
    assert whole_gradient(found.network, X, Y, 1e-2) < 1e-7 < 1e-2 < whole_gradient(net, X, Y, 1e-2)
    assert_close(found.loss, loss_of(found.network, X, Y, 1e-2))
    for before, after in zip(kept, net.Ws):
        assert torch.equal(before, after.detach())


def descended(net, X, Y, ridge, iterations):
    """L-BFGS over the weights, by PyTorch."""
    optimiser = torch.optim.LBFGS(
        net.parameters(), max_iter=iterations, max_eval=2 * iterations, history_size=30, line_search_fn="strong_wolfe"
    )

    def closure():
        optimiser.zero_grad()
        value = loss_of(net, X, Y, ridge)
        value.backward()
        return value

    optimiser.step(closure)
    return float(loss_of(net, X, Y, ridge).detach())


def test_a_path_of_relus_ends_at_kinks_below_what_training_reaches(data):
    X, Y = data
    net = start()
    found = optimise_path(net, X, Y, ridge=1e-2)
    assert found.state == "at kinks" and found.kinks > 0
    assert found.resolved <= 1e-8 < 1e-2 < found.residual
    # By another route: derivatives at kinks by least squares, all at once.
    by_measure = mechanics(found.network, X, Y, ridge=1e-2, kinks=1e-6)
    assert by_measure.residual < 1e-6
    assert mechanics(found.network, X, Y, ridge=1e-2).residual == pytest.approx(found.residual, rel=1e-6)
    trained = start()
    value = descended(trained, X, Y, 1e-2, 2000)
    assert found.loss <= value
    # From there on: the same valley, now critical.
    from_there = optimise_path(trained, X, Y, ridge=1e-2)
    assert from_there.state == "at kinks" and from_there.loss <= value
    assert from_there.loss > 0.9 * value


def identity_residual(net, X, Y, ridge, gamma=0.1):
    """Largest relative error of −(2/L̃)𝓗 = ‖A‖² − ‖∂A/L̃ + γB‖² + γ‖B‖² over the steps, norms of K + γI."""
    trace = net.trace(X)
    L_tilde = trace.effective_depth
    Bs, worst = momenta(trace, Y, 2 * L_tilde * ridge), 0.0
    for ell in range(1, trace.depth + 1):
        A, B, S = trace.A(ell - 1), Bs[ell], trace.sigma_A(ell - 1)
        norm = KernelNorm(S)
        left = 2 * float((A * B).sum()) - float((B @ S.mT).square().sum())
        moving = trace.derivative(ell) / L_tilde + gamma * B
        right = norm.square(A, gamma) - norm.square(moving, gamma) + gamma * float(B.square().sum())
        worst = max(worst, abs(left - right) / (abs(left) + abs(right)))
    return worst


def test_the_exact_identity_holds_on_the_solution_and_not_before(data):
    X, Y = data
    net = start(1.0)
    found = optimise_path(net, X, Y, ridge=1e-2)
    # Relative to two sides that nearly cancel: some hundred times the residual.
    assert identity_residual(found.network, X, Y, 1e-2) < 1e3 * max(found.resolved, 1e-10)
    assert identity_residual(net, X, Y, 1e-2) > 0.1


def test_what_does_not_converge_says_so(data):
    X, Y = data
    short = optimise_path(start(), X, Y, ridge=1e-2, iterations=5)
    assert short.state == "not converged" and short.resolved > 1e-3
    assert short.losses[-1] < short.losses[0]
    broken = start()
    with torch.no_grad():
        broken.stages[0].weight.mul_(1e200)
    assert optimise_path(broken, X, Y, ridge=1e-2).state == "diverged"


def test_a_strong_ridge_leaves_the_leak_alone():
    """Without weights a path decays as (1 − ρL̃)^L, whatever the targets are."""
    X = gaussian(10, 4)
    net = start(1.0, bias=0)
    found = optimise_path(net, X, 0.01 * X[:, :3], ridge=1e4)
    assert found.state == "converged"
    decayed = (1 - 2 / 6) ** 6 * X @ (net.W_out @ net.W_in).mT
    with torch.no_grad():
        assert_close(found.network(X), decayed, rtol=1e-3, atol=1e-4, reason="the ridge is not infinite")


@pytest.mark.parametrize(
    ("change", "match"),
    [({"ridge": 0.0}, "ridge"), ({"iterations": 0}, "iterations"), ({"net": start(effective_depth=0.0)}, "leak")],
)
def test_bad_input(data, change, match):
    X, Y = data
    given = {"net": start(), "ridge": 1e-2, **change}
    with pytest.raises(IsthmusError, match=match):
        optimise_path(given.pop("net"), X, Y, **given)


def test_too_many_samples_are_refused(data):
    X = gaussian(600, 4)
    with pytest.raises(IsthmusError, match="2000"):
        optimise_path(start(), X, X[:, :3], ridge=1e-2)
    with pytest.raises(IsthmusError, match="rows"):
        optimise_path(start(), X[:10], X[:9, :3], ridge=1e-2)
