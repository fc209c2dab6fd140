"""The Kronecker-factored metric against dense matrices."""

from __future__ import annotations

import pytest
import torch

from isthmus import FullyConnected
from isthmus.networks import _metric as metric_module
from isthmus.networks._fully_connected import ChainMetric
from isthmus.networks._metric import KroneckerMetric
from isthmus.networks._network import hooks_of
from small import network, objective_of, task
from tools import assert_close, gaussian, generator


def refreshed(net, X, loss="mse", seed=0):
    metric = ChainMetric(net, loss)
    theta = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    metric.refresh(theta, X, [generator(seed)])
    return metric


def solve(metric, vector, ridge):
    return metric.solve(vector[None], [ridge])[0]


def factor(metric, name):
    V = metric.tensors[f"{name}.vectors"]
    return V.mT @ torch.diag(metric.tensors[f"{name}.values"]) @ V


def dense(metric, net, ridge):
    """The model of the Hessian in the order of the flat vector, by Kronecker products of the metric's own factors."""
    n = sum(p.numel() for p in net.parameters())
    H = torch.zeros(n, n, dtype=torch.float64)
    position = torch.arange(n)
    offsets = torch.tensor([p.numel() for p in net.parameters()]).cumsum(0) - torch.tensor(
        [p.numel() for p in net.parameters()]
    )
    for ell in range(1, net.depth + 1):
        rows, columns = net.dims[ell], net.dims[ell - 1]
        index = position[int(offsets[ell - 1]) :][: rows * columns].view(rows, columns)
        if net.bias:
            b = position[int(offsets[net.depth + ell - 1]) :][:rows]
            index = torch.cat([index, b[:, None]], 1)
        # (W, b) flattened by rows: G ⊗ A.
        K = torch.kron(factor(metric, f"G{ell}"), factor(metric, f"A{ell}"))
        flat = index.reshape(-1)
        H[flat[:, None], flat[None, :]] = K
    return H + 2 * ridge * torch.eye(n, dtype=torch.float64)


@pytest.mark.parametrize("bias", [0.0, 1.0, 0.3])
@pytest.mark.parametrize("dims", [(4, 3), (4, 5, 3), (3, 6, 2, 4), (3, 5, 5, 5, 5, 2)])
def test_solve_is_the_dense_inverse(bias, dims):
    net = network(dims, bias=bias)
    metric = refreshed(net, gaussian(30, dims[0]))
    g = gaussian(sum(p.numel() for p in net.parameters()), seed=8)
    ridge = 0.05
    assert_close(solve(metric, g, ridge), torch.linalg.solve(dense(metric, net, ridge), g))


@pytest.mark.parametrize("bias", [0.0, 1.0, 0.3])
def test_input_factors_are_second_moments(bias):
    net = network(bias=bias)
    X = task()[0]
    metric = refreshed(net, X)
    a = net.trace(X).activations[1]
    if bias:
        a = torch.cat([a, torch.full_like(a[:, :1], bias)], 1)
    assert_close(factor(metric, "A2"), a.mT @ a / len(a))


def true_hessian(net, X, Y, loss, ridge):
    objective = objective_of(net, X, Y, loss)
    n = len(objective.theta)
    columns = []
    with objective.attached():
        for i in range(n):
            origin = float(objective.theta[i])
            sides = []
            for shift in (1e-4, -1e-4):
                objective.theta[i] = origin + shift
                sides.append(objective(ridge).gradient)
            objective.theta[i] = origin
            columns.append((sides[0] - sides[1]) / 2e-4)
    return torch.stack(columns, 1)


@pytest.mark.parametrize("bias", [0.0, 1.0, 0.3])
def test_one_linear_layer_gives_newtons_step(bias):
    """There Gauss–Newton is the Hessian and factors exactly: A ⊗ 2I, up to the random estimate of 2I."""
    X, Y = task(n=2000)
    net = network((4, 3), bias=bias)
    metric = refreshed(net, X)
    reason = "G is estimated from 2000 random signs: relative error about 1/√2000"
    assert_close(factor(metric, "G1"), 2 * torch.eye(3), rtol=0.1, atol=0.2, reason=reason)
    objective = objective_of(net, X, Y, "mse")
    with objective.attached():
        gradient = objective(0.05).gradient
    newton = torch.linalg.solve(true_hessian(net, X, Y, "mse", 0.05), gradient)
    found = solve(metric, gradient, 0.05)
    assert float((found - newton).norm() / newton.norm()) < 0.1
    # With the exact factor it is Newton's step, which ends at the minimum.
    metric.tensors["G1.values"] = torch.full((3,), 2.0, dtype=torch.float64)
    with objective.attached():
        objective.theta.sub_(solve(metric, gradient, 0.05))
        assert float(objective(0.05).gradient.norm()) < 1e-9


def test_cross_entropy_factor_is_the_mean_hessian_in_the_outputs():
    X = gaussian(2000, 4)
    net = network((4, 3))
    with torch.no_grad():
        p = torch.softmax(net(X), 1)
    expected = torch.diag(p.mean(0)) - p.mT @ p / len(p)
    found = torch.stack([factor(refreshed(net, X, "cross_entropy", seed), "G1") for seed in range(40)]).mean(0)
    assert_close(found, expected, rtol=0.0, atol=6e-3, reason="a mean of 80,000 draws: about 1/√80000 = 4e-3")


def test_hidden_factor_is_the_mean_of_squared_jacobians():
    X = gaussian(300, 4)
    net = network((4, 5, 3))
    pre = net.trace(X).preactivations[0]
    J = net.Ws[1].detach()[None] * (pre > 0)[:, None, :]
    expected = 2 * (J.mT @ J).mean(0)
    found = torch.stack([factor(refreshed(net, X, seed=s), "G1") for s in range(60)]).mean(0)
    error = float((found - expected).norm() / expected.norm())
    assert error < 0.03


@pytest.mark.parametrize("ridge", [0.0, 1e-9, 1e-2])
def test_symmetric_positive_definite(ridge):
    net = network((4, 6, 3))
    metric = refreshed(net, gaussian(3, 4))  # fewer samples than inputs: singular factors
    n = sum(p.numel() for p in net.parameters())
    inverse = torch.stack([solve(metric, e, ridge) for e in torch.eye(n, dtype=torch.float64)])
    scale = float(inverse.abs().max())
    assert_close(inverse / scale, inverse.mT / scale)
    assert float(torch.linalg.eigvalsh((inverse + inverse.mT) / 2)[0]) > 0
    assert bool(torch.isfinite(inverse).all())


def test_only_for_whole_fully_connected_networks(monkeypatch):
    assert hooks_of(torch.nn.Linear(3, 3)).metric("mse") is None
    net = network()
    assert isinstance(net.metric("mse"), KroneckerMetric)
    net.weights[0].requires_grad_(False)
    assert net.metric("mse") is None
    # Many samples are thinned, evenly.
    monkeypatch.setattr(metric_module, "SAMPLES", 10)
    X = gaussian(37, 4)
    assert_close(factor(refreshed(network(bias=0.0), X), "A1"), X[::4].mT @ X[::4] / 10)


def test_state_is_contiguous():
    """As a checkpoint gives it back: layouts can decide the last bits of a product."""
    for dtype in (torch.float32, torch.float64):
        metric = refreshed(network(dtype=dtype), gaussian(30, 4, dtype=dtype))
        assert all(T.is_contiguous() and T.dtype == dtype for T in metric.tensors.values())
    zero = FullyConnected([3, 4, 2], init_scale=0.0, dtype=torch.float64)
    assert bool(torch.isfinite(solve(refreshed(zero, gaussian(5, 3)), gaussian(16 + 6 + 4 - 0), 1e-3)).all())
