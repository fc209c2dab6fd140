"""The regularised loss as a function of one flat vector."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from isthmus import IsthmusError
from small import network, objective_of, task, weights
from tools import assert_close, gaussian


def by_hand(net, X, Y, ridge, loss):
    """The same number written out, for autograd."""
    f = net(X)
    if loss == "mse":
        total = ((f - Y) ** 2).sum() / len(X)
    elif Y.is_floating_point():
        total = -(Y * (f - f.logsumexp(1, keepdim=True))).sum() / len(X)
    else:
        total = nn.functional.cross_entropy(f, Y)
    return total + ridge * sum((p**2).sum() for p in net.parameters() if p.requires_grad)


def targets(kind, n=40, k=3):
    if kind == "mse":
        return task(n, d_out=k)[1], "mse"
    if kind == "indices":
        return torch.arange(n) % k, "cross_entropy"
    return torch.softmax(gaussian(n, k, seed=9), 1), "cross_entropy"


@pytest.mark.parametrize("kind", ["mse", "indices", "soft"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_value_and_gradient_against_autograd(kind, dtype):
    X = task(dtype=dtype)[0]
    Y, loss = targets(kind)
    Y = Y.to(dtype) if Y.is_floating_point() else Y
    net = network(dtype=dtype)
    expected = by_hand(net, X, Y, 0.07, loss)
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(expected, list(net.parameters()))])
    objective = objective_of(net, X, Y, loss)
    with objective.attached():
        value = objective(0.07)
    assert value.finite
    assert_close(value.loss, float(expected.detach()), rtol=1e-5 if dtype == torch.float32 else None, reason="a float")
    assert_close(value.gradient, gradient)
    assert_close(value.cost_gradient, gradient - 0.14 * objective.theta)
    assert value.loss == value.cost + 0.07 * value.norm
    assert value.gradient.data_ptr() != objective.buffer.data_ptr()


@pytest.mark.parametrize("kind", ["mse", "indices"])
def test_chunks_and_batches(kind):
    X, (Y, loss) = task()[0], targets(kind)
    net = network()
    whole, chunked = objective_of(net, X, Y, loss), objective_of(net, X, Y, loss, chunk_bytes=1500)
    assert whole.stack.rows >= 40
    assert 1 <= chunked.stack.rows < 20
    with whole.attached():
        expected = whole(0.1)
        rows = torch.tensor([3, 17, 5, 5])
        batch = whole(0.1, rows)
    with chunked.attached():
        found = chunked(0.1)
    assert_close(found.loss, expected.loss)
    assert_close(found.gradient, expected.gradient)
    part = objective_of(net, X[rows], Y[rows], loss)
    with part.attached():
        alone = part(0.1)
    assert_close(batch.loss, alone.loss)
    assert_close(batch.gradient, alone.gradient)
    assert whole.evaluations == 2


def test_at_ridge_is_bitwise_an_evaluation():
    X, Y = task()
    for dtype in (torch.float32, torch.float64):
        objective = objective_of(network(dtype=dtype), X.to(dtype), Y.to(dtype), "mse")
        with objective.attached():
            first = objective(1e-3)
            for ridge in (0.0, 3.7e-5, 12.0):
                moved, anew = first.at_ridge(ridge, objective.theta), objective(ridge)
                assert (moved.loss, moved.cost, moved.norm) == (anew.loss, anew.cost, anew.norm)
                assert torch.equal(moved.gradient, anew.gradient)
                assert torch.equal(moved.cost_gradient, anew.cost_gradient)


def test_parameters_get_their_own_storage_back():
    X, Y = task()
    net = network()
    net.weights[0].grad = torch.full_like(net.weights[0], 7.0)
    storages, gradients = [p.data_ptr() for p in net.parameters()], [p.grad for p in net.parameters()]
    objective = objective_of(net, X, Y, "mse")
    with objective.attached():
        objective(0.1)
        objective.theta.mul_(2.0)
        expected = objective.theta.clone()
        assert all(p.data_ptr() != s for p, s in zip(net.parameters(), storages))
    assert [p.data_ptr() for p in net.parameters()] == storages
    assert all(p.grad is g for p, g in zip(net.parameters(), gradients))
    assert bool((net.weights[0].grad == 7.0).all())
    assert torch.equal(torch.cat([p.detach().reshape(-1) for p in net.parameters()]), expected)
    objective.theta.zero_()
    assert float(net.weights[0].detach().abs().sum()) > 0


def test_storage_comes_back_after_an_error():
    X, Y = task()
    net = network()
    storages, before = [p.data_ptr() for p in net.parameters()], weights(net)
    with pytest.raises(RuntimeError, match="stop"), objective_of(net, X, Y, "mse").attached():
        raise RuntimeError("stop")
    assert [p.data_ptr() for p in net.parameters()] == storages
    assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before))


def test_frozen_parameters_are_outside():
    X, Y = task()
    net = network()
    net.weights[1].requires_grad_(False)
    objective = objective_of(net, X, Y, "mse")
    assert len(objective.theta) == sum(p.numel() for p in net.parameters()) - net.weights[1].numel()
    expected = by_hand(net, X, Y, 0.3, "mse")
    with objective.attached():
        value = objective(0.3)
    assert_close(value.loss, float(expected.detach()))
    assert net.weights[1].grad is None


def test_non_contiguous_and_tied_parameters():
    X = gaussian(10, 4)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).double()
    net[2].weight = net[0].weight
    net[0].bias.data = torch.arange(8.0, dtype=torch.float64)[::2]
    objective = objective_of(net, X, X, "mse")
    assert len(objective.theta) == 16 + 8
    expected = by_hand(net, X, X, 0.1, "mse")
    with objective.attached():
        assert_close(objective(0.1).loss, float(expected.detach()))
        objective.theta.add_(1.0)
    assert_close(net[0].bias, [1.0, 3.0, 5.0, 7.0])


def test_what_cannot_be_trained_is_refused():
    X, Y = task()
    net = network()
    for p in net.parameters():
        p.requires_grad_(False)
    with pytest.raises(IsthmusError, match="requires_grad"):
        objective_of(net, X, Y, "mse")
    mixed = nn.Sequential(nn.Linear(4, 5).double(), nn.Linear(5, 3))
    with pytest.raises(IsthmusError, match="share dtype"):
        objective_of(mixed, X, Y, "mse")
