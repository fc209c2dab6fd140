"""A-saddle: a local minimum over weights whose covariances are not one over covariances; and Ψ as a network."""

from __future__ import annotations

import math

import pytest
import torch

from isthmus import FullyConnected, IsthmusError
from isthmus.constructions import minimal_network, saddle
from isthmus.measures import covariance_loss, covariances, representations
from isthmus.objective import cost
from tools import assert_close, gaussian, generator


def value(net, made, ridge=None):
    outputs = net.trace(made.X).outputs
    penalty = sum(float(W.detach().square().sum()) for W in net.Ws)
    return float(cost(outputs, made.Y)) + (made.ridge if ridge is None else ridge) * penalty


@pytest.mark.parametrize("lam", [0.01, 0.2, 0.45])
@pytest.mark.parametrize("angle", [0.3, math.pi / 4, 1.4])
def test_values_and_gradients(lam, angle):
    made = saddle(lam, angle=angle)
    assert value(made.network, made) == pytest.approx(made.value, rel=1e-14)
    assert value(made.end, made) == pytest.approx(made.value, rel=1e-14)
    net = FullyConnected.from_weights(made.network.Ws, bias=0.0)
    total = cost(net(made.X), made.Y) + lam * sum(p.square().sum() for p in net.parameters())
    assert max(float(g.abs().max()) for g in torch.autograd.grad(total, list(net.parameters()))) < 1e-14


def test_above_by_a_sum_of_squares():
    """The identity behind the local minimum, at random positive weights, near and far."""
    made, lam = saddle(0.15), 0.3
    for seed in range(50):
        a, b = torch.rand(2, 2, generator=generator(seed), dtype=torch.float64)
        net = FullyConnected.from_weights([a[:, None], b[None]], bias=0.0)
        t, d = float(a @ b), float((a - b).square().sum()) / 4
        expected = 0.5 * (t - 1 + lam) ** 2 + 2 * lam * d
        assert value(net, made) - made.value == pytest.approx(expected, abs=1e-14)


def test_the_way_out():
    made = saddle(0.2)
    for epsilon in (1e-3, 1e-2, 0.1, 0.5):
        out = made.escape(epsilon)
        assert value(out, made) == pytest.approx(made.value_along(epsilon), rel=1e-14)
        assert value(out, made) < made.value < value(made.escape(epsilon, printed=True), made)
    # Below for 0 < ε² < 2(1 − λ) of the plain sum, λ = 0.4, and not beyond.
    assert made.value_along(math.sqrt(2 * 0.6) - 1e-3) < made.value < made.value_along(math.sqrt(2 * 0.6) + 1e-3)


def test_covariances_of_the_segment_are_one_point():
    made = saddle(0.2, angle=0.5)
    first, last = (covariances(representations(net, made.X), bias=0.0) for net in (made.network, made.end))
    for K, other in zip(first[0], last[0]):
        assert_close(K, other)
    Z_2 = representations(made.end, made.X)[-1]
    here = covariance_loss(first, Z_2, made.X, made.Y, ridge=0.2, bias=0.0)
    assert here == pytest.approx(made.value)
    out = representations(made.escape(1e-2), made.X)
    near = covariances(out, bias=0.0)
    assert covariance_loss(near, out[-1], made.X, made.Y, ridge=0.2, bias=0.0) < here
    assert float((near[0][0] - first[0][0]).norm()) < 3e-4


def test_the_plain_sum():
    """λ of ‖Z_2 − Y‖² + λ‖W‖² is twice ours: a_1² + a_2² = 1 − λ."""
    made = saddle(0.6, convention="sum")
    assert made.ridge == 0.3 and float(made.network.Ws[0].square().sum()) == pytest.approx(0.4)
    total = float((made.network.trace(made.X).outputs - made.Y).square().sum()) + 0.6 * 2 * 0.4
    assert total == pytest.approx(2 * made.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lam": 0.5}, "below ½ for the mean"),
        ({"lam": 1.0, "convention": "sum"}, "below 1 for the sum"),
        ({"lam": 0.2, "angle": 0.0}, "inside"),
        ({"lam": 0.2, "convention": "total"}, "one of"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(IsthmusError, match=message):
        saddle(**arguments)


def test_the_smallest_network():
    """Any other weights with these representations are longer."""
    Zs, X = [gaussian(4, 3, seed=1), gaussian(2, 3, seed=2)], gaussian(3, 5)
    net = minimal_network(Zs, X, slope=0.1).requires_grad_(False)
    assert_close(net(X).mT, Zs[1])
    S = net.trace(X).Z_sigma(0)
    useless = gaussian(4, 6, seed=3) @ (torch.eye(6, dtype=torch.float64) - S @ torch.linalg.pinv(S))
    other = FullyConnected.from_weights(
        [net.Ws[0] + useless[:, :-1], net.Ws[1]], [net.bs[0] + useless[:, -1], net.bs[1]], slope=0.1
    ).requires_grad_(False)
    assert_close(other(X).mT, Zs[1])
    extra = sum(float(p.square().sum()) for p in other.parameters()) - sum(
        float(p.square().sum()) for p in net.parameters()
    )
    assert extra == pytest.approx(float(useless.square().sum()))
