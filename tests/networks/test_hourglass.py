"""Hourglasses f = h∘g, and the quasi-Newton direction, each by a second route."""

from __future__ import annotations

import warnings

import pytest
import torch

import isthmus
from isthmus import FullyConnected, IsthmusError
from isthmus.training import Phase
from isthmus.training._lbfgs import LBFGS
from isthmus.training._requests import drive
from tools import assert_close, gaussian, generator, random_net

DIMS = [([5, 7, 2], [2, 6, 3]), ([3, 1], [1, 4]), ([4, 9, 5, 3], [3, 1]), ([2, 3, 8], [8, 3, 2])]


def hourglass(dims_in=(5, 7, 2), dims_out=(2, 6, 3), slope=0.0, bias=1.0, *, seed=0, dtype=torch.float64):
    return FullyConnected.joined(
        random_net(dims_in, slope, bias, seed=seed, dtype=dtype),
        random_net(dims_out, slope, bias, seed=seed + 1, dtype=dtype),
    )


# --- the network


@pytest.mark.parametrize("bias", [0.0, 1.0, 0.3])
@pytest.mark.parametrize("slope", [0.0, 0.3, 1.0, -1.0])
@pytest.mark.parametrize("dims", DIMS)
def test_it_is_decoder_after_encoder(dims, slope, bias):
    first, second = (random_net(d, slope, bias, seed=i) for i, d in enumerate(dims))
    net = FullyConnected.joined(first, second)
    X = gaussian(11, dims[0][0], seed=4)
    assert torch.equal(net(X), second(first(X)))
    assert_close(net.decoder()(net.encoder()(X)), net(X))
    assert_close(net.merged()(X), net(X))
    assert net.merged().depth == net.depth - 1 == len(net.dims) - 2
    assert net.slopes[first.depth - 1] == 1.0
    assert len(net.slopes) == net.depth - 1
    assert net.slopes[net.waist - 1] == 1.0
    if slope != 1.0:  # of a linear network any layer is a waist, and the narrowest is it
        assert net.waist == first.depth and net.dims[net.waist] == dims[0][-1]
        if net.depth > 2:  # otherwise no layer is left to have the slope of the parts
            assert net.encoder().config() == first.config() and net.decoder().config() == second.config()
    else:
        assert net.dims[net.waist] == min(net.dims[1:-1])


def test_the_waist_is_the_narrowest_linear_layer():
    assert FullyConnected([5, 4, 3, 2, 5], [0.0, 1.0, 1.0]).waist == 3
    assert FullyConnected([5, 3, 2, 3, 5], [1.0, 0.0, 1.0]).waist == 1
    assert FullyConnected([5, 3, 2, 3, 5], linear=[3, 1, 0]).waist == 1
    with pytest.raises(IsthmusError, match="a hidden layer must be linear"):
        FullyConnected([5, 3, 2, 3, 5]).encoder()


def test_parts_keep_slopes_linear_neurons_and_missing_biases():
    Ws = [gaussian(n, m, seed=n) for m, n in zip([4, 6, 2, 5, 3], [6, 2, 5, 3])]
    bs = [gaussian(6, seed=1), None, gaussian(5, seed=2), None]
    net = FullyConnected.from_weights(Ws, bs, slope=[0.1, 1.0, 0.3], linear=[3, 0, 1], bias=0.5)
    first, second, X = net.encoder(), net.decoder(), gaussian(9, 4)
    assert_close(second(first(X)), net(X))
    assert (first.linear, second.linear, first.slopes, second.slopes) == ((3,), (1,), (0.1,), (0.3,))
    assert first.biases[1] is None and second.biases[1] is None
    again = FullyConnected.joined(first, second)
    assert again.config() == net.config() and torch.equal(again(X), net(X))
    assert net.part(0, net.depth).config() == net.config()
    merged = net.merged()
    assert_close(merged(X), net(X))
    assert (merged.dims, merged.slopes, merged.linear) == ((4, 6, 5, 3), (0.1, 0.3), (3, 1))


def test_leading_axes_pass_through():
    net, X = hourglass(), gaussian(2, 3, 5)
    assert_close(net(X)[1], net(X[1]))


def test_parameters_are_its_own_and_in_the_order_of_the_metric():
    first, second = random_net((5, 7, 2)), random_net((2, 6, 3), seed=1)
    net = FullyConnected.joined(first, second)
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
        ((random_net((5, 2)), random_net((2, 3), dtype=torch.float32)), "one dtype"),
    ]:
        with pytest.raises(IsthmusError, match=words):
            FullyConnected.joined(*parts)
    # Slopes may differ: layers have their own.
    net = FullyConnected.joined(random_net((5, 4, 2), 0.1), random_net((2, 4, 3), 0.5))
    assert net.slopes == (0.1, 1.0, 0.5)


@pytest.mark.parametrize("amounts", [(1.0, 1.0), (0.5, 1.0), (1.0, 0.0), (0.0, 2.0), (0.0, 0.0)])
def test_parts_of_other_amounts_of_bias(amounts):
    g, h = (random_net(dims, 0.1, bias=bias) for dims, bias in zip(((5, 4, 2), (2, 4, 3)), amounts))
    net, X = FullyConnected.joined(g, h), gaussian(6, 5)
    assert net.bias == (amounts[0] or amounts[1])
    assert_close(net(X), h(g(X)))


def test_an_hourglass_is_two_fresh_networks_from_one_generator():
    net = FullyConnected.hourglass([4, 6, 2], [2, 6, 3], dtype=torch.float64, generator=generator(3))
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
    theta = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    n = len(theta)
    metric = net.metric("mse") if with_metric else None
    if metric is not None:
        metric.refresh(theta, X, [generator()])
    optimiser = LBFGS(Phase("lbfgs", 10, memory=20), theta, metric, generator())
    # Pairs of a quadratic: t = Hs with H positive, as the line search would give them.
    root = gaussian(n, n, seed=6, dtype=dtype) / n**0.5
    S = gaussian(pairs, n, seed=7, dtype=dtype)
    T = S @ (root @ root.mT + 0.1 * torch.eye(n, dtype=dtype))
    for s, t in zip(S, T):
        optimiser.pairs.append(s, t)
    gradient = gaussian(n, seed=8, dtype=dtype)
    (found,) = drive([optimiser._direction(gradient, 0.05)])
    solve = (lambda v: v) if metric is None else (lambda v: metric.solve(v[None], [0.05])[0])
    wanted = two_loops(S, T, gradient, solve)
    scale = float(wanted.norm())
    assert float((found - wanted).norm()) < (1e-3 if dtype == torch.float32 else 1e-10) * scale
    assert float(found @ gradient) < 0


@pytest.mark.parametrize("bias", [0.0, 1.0, 0.3])
@pytest.mark.parametrize("make", [hourglass, lambda **o: random_net((5, 7, 6, 3), **o)])
def test_metric_solves_many_rows_as_it_solves_each(make, bias):
    net = make(bias=bias)
    X = gaussian(30, 5, seed=2)
    metric = net.metric("mse")
    theta = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    metric.refresh(theta, X, [generator()])
    rows = gaussian(4, len(theta), seed=3)
    many = metric.solve(rows, [0.05])
    assert many.shape == rows.shape
    assert_close(many, torch.cat([metric.solve(row[None], [0.05]) for row in rows]))
    assert_close(metric.solve((rows[0] * 2.0 + rows[1])[None], [0.05])[0], 2.0 * many[0] + many[1])


def test_the_metric_knows_that_the_waist_is_linear():
    """Its factors are those of the merged network where both have the layer."""
    net = hourglass()
    X = gaussian(40, 5, seed=2)
    factors = []
    for one in (net, net.merged()):
        metric = one.metric("mse")
        theta = torch.cat([p.detach().reshape(-1) for p in one.parameters()])
        metric.refresh(theta, X, [generator(1)])
        factors.append(metric.tensors)
    for name in ("A1", "G1"):
        assert_close(factors[0][f"{name}.values"], factors[1][f"{name}.values"])
    assert_close(factors[0]["A4.values"], factors[1]["A3.values"])
