"""Hourglass networks and the quasi-Newton direction, each by a second route."""

from __future__ import annotations

import warnings

import pytest
import torch

import isthmus
from isthmus import IsthmusError
from isthmus.networks import Hourglass
from isthmus.training import Phase
from isthmus.training._flat import FlatObjective
from isthmus.training._lbfgs import LBFGS
from isthmus.training._metric import metric_for
from tools import assert_close, gaussian, generator, random_net

DIMS = [([5, 7, 2], [2, 6, 3]), ([3, 1], [1, 4]), ([4, 9, 5, 3], [3, 1]), ([2, 3, 8], [8, 3, 2])]


def hourglass(dims_in=(5, 7, 2), dims_out=(2, 6, 3), slope=0.0, bias=1.0, *, seed=0, dtype=torch.float64):
    return Hourglass(
        random_net(dims_in, slope, bias, seed=seed, dtype=dtype),
        random_net(dims_out, slope, bias, seed=seed + 1, dtype=dtype),
    )


# --- the network


@pytest.mark.parametrize("bias", [0.0, 1.0, 0.3])
@pytest.mark.parametrize("slope", [0.0, 0.3, 1.0, -1.0])
@pytest.mark.parametrize("dims", DIMS)
def test_it_is_decoder_after_encoder(dims, slope, bias):
    first, second = (random_net(d, slope, bias, seed=i) for i, d in enumerate(dims))
    net = Hourglass(first, second)
    X = gaussian(11, dims[0][0], seed=4)
    assert torch.equal(net(X), second(first(X)))
    assert_close(net.decoder()(net.encoder()(X)), net(X))
    assert_close(net.merged()(X), net(X))
    assert net.merged().depth == net.depth - 1 == len(net.dims) - 2
    assert net.rank == dims[0][-1] == net.dims[net.waist]
    assert net.slopes[net.waist - 1] == 1.0
    assert len(net.slopes) == net.depth - 1


def test_leading_axes_pass_through():
    net, X = hourglass(), gaussian(2, 3, 5)
    assert_close(net(X)[1], net(X[1]))


def test_parameters_are_its_own_and_in_the_order_of_the_metric():
    first, second = random_net((5, 7, 2)), random_net((2, 6, 3), seed=1)
    net = Hourglass(first, second)
    wanted = [*first.Ws, *second.Ws, *first.bs, *second.bs]
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), wanted, strict=True))
    names = [name for name, _ in net.named_parameters()]
    assert names == [f"weights.{i}" for i in range(4)] + [f"biases.{i}" for i in range(4)]
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
    assert all(bool(p.any()) for p in wanted)
    # Copies, too: what is done to a part does not reach the whole.
    net.encoder().weights[0].data.fill_(1.0)
    assert not bool(net.weights[0].any())


def test_state_is_given_back_or_refused():
    net, other = hourglass(), hourglass(seed=5)
    other.load_state_dict(net.state_dict())
    X = gaussian(4, 5)
    assert torch.equal(net(X), other(X))
    with pytest.raises(RuntimeError, match="size mismatch"):
        hourglass((5, 7, 3), (3, 6, 3)).load_state_dict(net.state_dict())
    with pytest.raises(RuntimeError, match="Missing key"):
        hourglass((5, 7, 7, 2)).load_state_dict(net.state_dict())


def test_parts_that_do_not_fit():
    for parts, words in [
        ((random_net((5, 7, 2)), random_net((3, 6, 3))), "must have 2 inputs.*Got 3"),
        ((random_net((5, 2)), random_net((2, 3), 0.5)), "one slope, bias and dtype"),
        ((random_net((5, 2)), random_net((2, 3), bias=0.0)), "one slope, bias and dtype"),
        ((random_net((5, 2)), random_net((2, 3), dtype=torch.float32)), "one slope, bias and dtype"),
    ]:
        with pytest.raises(IsthmusError, match=words):
            Hourglass(*parts)


def test_fresh_is_two_fresh_networks_from_one_generator():
    net = Hourglass.fresh([4, 6, 2], [2, 6, 3], dtype=torch.float64, generator=generator(3))
    source = generator(3)
    first = isthmus.FullyConnected([4, 6, 2], dtype=torch.float64, generator=source)
    second = isthmus.FullyConnected([2, 6, 3], dtype=torch.float64, generator=source)
    wanted = [*first.Ws, *second.Ws]
    assert all(torch.equal(W, V) for W, V in zip(net.Ws, wanted, strict=True))


@pytest.mark.parametrize("phase", [Phase("adam", 800, 3e-2, anneal=True), Phase("lbfgs", 100)])
def test_it_is_trained_to_the_known_minimum_of_a_linear_network(phase):
    """‖M − M*‖² + 2·ridge·‖M‖_* (nuclear norm) is least where each singular value has fallen by the ridge."""
    X = torch.linalg.qr(gaussian(200, 4) - gaussian(200, 4).mean(0)).Q * 200**0.5
    Y = X[:, :3] * torch.tensor([3.0, 1.0, 0.0], dtype=torch.float64)
    net = hourglass((4, 2), (2, 3), slope=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", isthmus.ConvergenceWarning)
        isthmus.train(net, X, Y, ridge=0.1, phases=[phase])
    s = torch.linalg.svdvals((net.Ws[1] @ net.Ws[0]).detach())
    assert_close(s[:2], [2.9, 0.9], rtol=1e-3, atol=0.0, reason="an iteration stopped after few steps")


# --- the direction


def two_loops(S, T, gradient, solve):
    """The recursion of Nocedal as every book has it, one pair at a time, newest first and back."""
    q, alphas = gradient.clone(), []
    for s, t in reversed(list(zip(S, T))):
        alpha = torch.dot(s, q) / torch.dot(t, s)
        alphas.append(alpha)
        q -= alpha * t
    r = solve(q)
    if len(S):
        r = r * torch.dot(S[-1], T[-1]) / torch.dot(T[-1], solve(T[-1]))
    for (s, t), alpha in zip(zip(S, T), reversed(alphas)):
        r = r + s * (alpha - torch.dot(t, r) / torch.dot(t, s))
    return -r


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("with_metric", [False, True])
@pytest.mark.parametrize("pairs", [0, 1, 2, 5, 20])
def test_direction_is_the_two_loop_recursion(pairs, with_metric, dtype):
    net = hourglass(dtype=dtype)
    X = gaussian(30, 5, seed=2, dtype=dtype)
    objective = FlatObjective(net, X, gaussian(30, 3, seed=3, dtype=dtype), "mse")
    n = len(objective.theta)
    metric = metric_for(net, "mse") if with_metric else None
    if metric is not None:
        metric.refresh(objective.theta, X, generator())
    optimiser = LBFGS(Phase("lbfgs", 10, memory=20), objective.theta, metric, generator())
    # Pairs of a quadratic: t = Hs with H positive, as the line search would give them.
    root = gaussian(n, n, seed=6, dtype=dtype) / n**0.5
    S = gaussian(pairs, n, seed=7, dtype=dtype)
    T = S @ (root @ root.mT + 0.1 * torch.eye(n, dtype=dtype))
    for s, t in zip(S, T):
        optimiser.pairs.append(s, t)
    gradient = gaussian(n, seed=8, dtype=dtype)
    found = optimiser._direction(gradient, 0.05)
    solve = (lambda v: v) if metric is None else (lambda v: metric.solve(v, 0.05))
    wanted = two_loops(S, T, gradient, solve)
    scale = float(wanted.norm())
    assert float((found - wanted).norm()) < (1e-3 if dtype == torch.float32 else 1e-10) * scale
    assert float(found @ gradient) < 0


@pytest.mark.parametrize("bias", [0.0, 1.0, 0.3])
@pytest.mark.parametrize("make", [hourglass, lambda **o: random_net((5, 7, 6, 3), **o)])
def test_metric_solves_many_rows_as_it_solves_each(make, bias):
    net = make(bias=bias)
    X = gaussian(30, 5, seed=2)
    metric = metric_for(net, "mse")
    theta = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    metric.refresh(theta, X, generator())
    rows = gaussian(4, len(theta), seed=3)
    many = metric.solve(rows, 0.05)
    assert many.shape == rows.shape
    assert_close(many, torch.stack([metric.solve(row, 0.05) for row in rows]))
    assert_close(metric.solve(rows[0] * 2.0 + rows[1], 0.05), 2.0 * many[0] + many[1])


def test_the_metric_knows_that_the_waist_is_linear():
    """Its factors are those of the merged network where both have the layer."""
    net = hourglass()
    X = gaussian(40, 5, seed=2)
    factors = []
    for one in (net, net.merged()):
        metric = metric_for(one, "mse")
        theta = torch.cat([p.detach().reshape(-1) for p in one.parameters()])
        metric.refresh(theta, X, generator(1))
        factors.append(metric.tensors)
    for name in ("A1", "G1"):
        assert_close(factors[0][f"{name}.values"], factors[1][f"{name}.values"])
    assert_close(factors[0]["A4.values"], factors[1]["A3.values"])
