"""The residual at kinks by a second route, what it implies, and that it can fail."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear, minimize_scalar
from torch import nn

import isthmus
from isthmus import ConvolutionalNet, FullyConnected, IsthmusError, LeakyResNet
from isthmus._kinks import Kinked
from isthmus.measures import stationarity
from isthmus.measures._stationarity import ENOUGH, certify
from isthmus.objective import cost

RIDGE = 1e-2


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def data(samples: int = 30, d_in: int = 4, d_out: int = 3, seed: int = 0):
    X = torch.randn(samples, d_in, generator=generator(seed), dtype=torch.float64)
    W = torch.randn(d_in, d_out, generator=generator(seed + 1), dtype=torch.float64)
    return X, torch.tanh(X @ W)


def with_kinks(slope: float = 0.0, layer: int = 1, seed: int = 0):
    """A random network of which every neuron of one layer has a kink at a sample of its own."""
    X, Y = data()
    net = FullyConnected([4, 6, 6, 3], slope, generator=generator(seed)).double()
    with torch.no_grad():
        Z = net.trace(X).preactivations[layer - 1]
        for neuron in range(6):
            net.biases[layer - 1][neuron] -= Z[neuron, neuron]
    return net, X, Y


def loss_of(net, X, Y, ridge=RIDGE) -> float:
    with torch.no_grad():
        return float(cost(net(X), Y)) + ridge * sum(float(p.square().sum()) for p in net.parameters())


def gradient_by_hand(net: FullyConnected, X: np.ndarray, Y: np.ndarray, slopes: list[np.ndarray]) -> np.ndarray:
    """Backpropagation in NumPy with given derivatives of the hidden layers."""
    Ws, bs = ([p.detach().numpy() for p in ps] for ps in (net.weights, net.biases))
    A = [X]
    for index, (W, b) in enumerate(zip(Ws, bs)):
        Z = A[-1] @ W.T + b
        A.append(np.where(Z > 0, Z, net.slopes[index] * Z) if index + 1 < len(Ws) else Z)
    G = 2 * (A[-1] - Y) / len(X)
    weights, biases = [], []
    for index in range(len(Ws) - 1, -1, -1):
        weights.insert(0, G.T @ A[index] + 2 * RIDGE * Ws[index])
        biases.insert(0, G.sum(0) + 2 * RIDGE * bs[index])
        if index:
            G = (G @ Ws[index]) * slopes[index - 1]
    return np.concatenate([part.ravel() for part in (*weights, *biases)])


@pytest.mark.parametrize("slope", [0.0, 0.2, -0.5])
@pytest.mark.parametrize("layer", [1, 2])
def test_the_residual_is_that_of_bounded_least_squares(slope, layer):
    net, X, Y = with_kinks(slope, layer)
    found = stationarity(net, X, Y, ridge=RIDGE, kink_tolerance=1e-10)
    trace = net.trace(X)
    plain = [np.where(Z.numpy() > 0, 1.0, slope) for Z in trace.preactivations[:2]]
    kinks = [(i, i) for i in range(6)]

    def gradient(D: np.ndarray) -> np.ndarray:
        slopes = [S.copy() for S in plain]
        for value, place in zip(D, kinks):
            slopes[layer - 1][place] = slope + (1 - slope) * value
        return gradient_by_hand(net, X.numpy(), Y.numpy(), slopes)

    # Linear in the derivatives of one layer: columns by differences are exact.
    origin = gradient(np.zeros(6))
    columns = np.stack([gradient(row) - origin for row in np.eye(6)], 1)
    best = lsq_linear(columns, -origin, bounds=(0, 1), tol=1e-14)
    force = 2 * RIDGE * np.sqrt(sum(float(p.detach().square().sum()) for p in net.parameters()))
    assert len(found.multipliers) == 6
    assert found.residual == pytest.approx(np.linalg.norm(origin + columns @ best.x) / force, rel=1e-6)
    autograd = [p.grad for p in net.parameters()]
    assert all(g is None for g in autograd)
    assert found.gradient >= found.residual


def test_without_kinks_it_is_the_gradient():
    X, Y = data()
    net = FullyConnected([4, 6, 6, 3], generator=generator(3)).double()
    found = stationarity(net, X, Y, ridge=RIDGE, kink_tolerance=0.0)
    (cost(net(X), Y) + RIDGE * sum(p.square().sum() for p in net.parameters())).backward()
    gradient = torch.cat([p.grad.reshape(-1) for p in net.parameters()]).norm()
    theta = torch.cat([p.detach().reshape(-1) for p in net.parameters()]).norm()
    assert len(found.multipliers) == 0
    assert found.residual == pytest.approx(float(gradient / (2 * RIDGE * theta)), rel=1e-10)
    assert found.residual == found.gradient > 0.5
    assert not found.stationary and found.kind == "not known" and "Not stationary" in repr(found)


def trained(dims=(4, 8, 8, 3), **options):
    X, Y = data(40)
    net = FullyConnected(dims, generator=generator(1), **options).double()
    result = isthmus.train(net, X, Y, ridge=RIDGE, finish="stationary")
    return net, X, Y, result


@pytest.fixture(scope="module")
def minimum():
    return trained()


def test_no_direction_descends_from_a_stationary_point(minimum):
    net, X, Y, result = minimum
    assert result.state == "stationary" and result.stationarity.kind == "local minimum"
    # The plain gradient says nothing: the point is on kinks.
    assert result.stationarity.gradient > 30 * result.stationarity.residual
    parameters = list(net.parameters())
    theta = torch.cat([p.detach().reshape(-1) for p in parameters])
    force = 2 * RIDGE * float(theta.norm())

    def slope(origin: torch.Tensor, d: torch.Tensor, length: float = 1e-3) -> float:
        # Long beside what is left between z and its kink, short beside the curvature.
        found = []
        for point in (origin, origin + length * d / d.norm()):
            nn.utils.vector_to_parameters(point, parameters)
            found.append(loss_of(net, X, Y))
        return (found[1] - found[0]) / length

    try:
        drawn = (torch.randn(len(theta), generator=generator(seed), dtype=torch.float64) for seed in range(200))
        slopes = [slope(theta, d) for d in drawn]
        assert min(slopes) > -2 * result.stationarity.residual * force - 2e-5
        assert max(slopes) > 1e-3
        # From elsewhere there is a direction that does.
        assert slope(1.05 * theta, -theta) < -0.02 * force
    finally:
        nn.utils.vector_to_parameters(theta, parameters)


def test_a_step_away_is_no_longer_stationary(minimum):
    net, X, Y, result = minimum
    moved = FullyConnected.from_weights(net.Ws, net.bs)
    with torch.no_grad():
        for p in moved.parameters():
            p *= 1.02
    found = stationarity(moved, X, Y, ridge=RIDGE)
    assert found.residual > 0.02 > result.stationarity.residual and not found.stationary
    # Nor is it with another ridge, or for other data.
    assert stationarity(net, X, Y, ridge=1.05 * RIDGE).residual > 0.01
    assert stationarity(net, X, Y.roll(1, 0), ridge=RIDGE).residual > 0.5


def test_the_curve_falls_with_the_tolerance(minimum):
    net, X, Y, _ = minimum
    found = stationarity(net, X, Y, ridge=RIDGE, curve=(1e-12, 1e-6, 1e-3))
    taus, residuals = zip(*found.curve)
    assert taus == (1e-12, 1e-6, 1e-4, 1e-3)
    assert residuals[0] > 0.1 > residuals[2] and residuals[2] == found.residual
    assert all(b <= a * 1.01 for a, b in zip(residuals, residuals[1:]))


def test_other_modules_are_treated_alike(minimum):
    net, X, Y, result = minimum
    own = stationarity(net, X, Y, ridge=RIDGE)
    module = net.to_torch()
    assert isinstance(module, nn.Sequential)
    found = stationarity(module, X.numpy(), Y.numpy(), ridge=RIDGE)
    assert found.residual == pytest.approx(own.residual, rel=0.05, abs=1e-6) and found.kind == own.kind
    single = stationarity(FullyConnected.from_weights(net.Ws, net.bs).float(), X, Y, ridge=RIDGE)
    assert single.residual <= max(10 * own.residual, 1e-3)
    # The search for slopes ends once the residual is below ENOUGH, at different places.
    assert own.residual == pytest.approx(result.stationarity.residual, rel=0.2, abs=ENOUGH)


@pytest.mark.parametrize(
    "net",
    [
        FullyConnected([4, 6, 6, 3], 0.1, generator=generator(0)),
        LeakyResNet(4, 3, 6, 5, generator=generator(0)),
        ConvolutionalNet([1, 3, 1], (4,), 3, head="mean", outputs=3, generator=generator(0)),
    ],
    ids=["leaky slope", "leaky ResNet", "convolutional"],
)
def test_parts_of_the_samples_give_the_same(net):
    X, Y = data()
    net = net.double()
    whole, parts = (Kinked(net, X, Y, "mse", RIDGE, rows) for rows in (None, 7))
    theta = whole.theta()
    zs = whole.z(theta, lambda _, Z, a, __: torch.where(Z > 0, Z, a * Z))
    slopes = [torch.where(z > 0, torch.ones_like(z), a + 0 * z) for z, a in zip(zs, whole.kinds)]
    offsets = [torch.zeros_like(z) for z in zs]
    masks = [z.abs() < z.abs().quantile(0.1) for z in zs]
    live = torch.arange(len(theta))
    for one, other in zip(
        (*whole.first_order(theta, slopes, offsets)[:1], *whole.second_order(theta, slopes, offsets, masks, live)),
        (*parts.first_order(theta, slopes, offsets)[:1], *parts.second_order(theta, slopes, offsets, masks, live)),
    ):
        torch.testing.assert_close(one, other)
    # The Hessian by differences of gradients.
    H = whole.second_order(theta, slopes, offsets, masks, live)[0]
    d = torch.randn(len(theta), generator=generator(5), dtype=torch.float64)
    ahead, behind = (whole.first_order(theta + t * d, slopes, offsets)[0] for t in (1e-5, -1e-5))
    torch.testing.assert_close(H @ d, (ahead - behind) / 2e-5, rtol=1e-6, atol=1e-8)


def test_a_saddle_is_named():
    """Two modes of a linear network, of which one is left out though it would pay."""
    X = torch.linalg.qr(torch.randn(40, 2, generator=generator(0), dtype=torch.float64))[0] * math.sqrt(40)
    Y = X * torch.tensor([3.0, 2.0], dtype=torch.float64)
    best = minimize_scalar(lambda s: (3 - s * s) ** 2 + 2 * RIDGE * s * s, bounds=(1, 2), options={"xatol": 1e-14}).x
    mix = torch.linalg.qr(torch.randn(2, 2, generator=generator(1), dtype=torch.float64))[0]
    mode = torch.diag(torch.tensor([float(best), 0.0], dtype=torch.float64))
    net = FullyConnected.from_weights([mix @ mode, mode @ mix.mT], slope=1.0)
    found = stationarity(net, X, Y, ridge=RIDGE)
    assert found.residual < 1e-6 and found.kind == "saddle" and found.least_eigenvalue < -1.0
    # With both modes it is a minimum.
    both = [minimize_scalar(lambda s, a=a: (a - s * s) ** 2 + 2 * RIDGE * s * s, bounds=(1, 2)).x for a in (3, 2)]
    mode = torch.diag(torch.tensor(both, dtype=torch.float64))
    net = FullyConnected.from_weights([mix @ mode, mode @ mix.mT], slope=1.0)
    assert stationarity(net, X, Y, ridge=RIDGE).kind == "local minimum"


def test_zeros_have_no_residual():
    X, Y = data()
    net = FullyConnected([4, 3, 3], init_scale=0.0).double()
    with torch.no_grad():
        net.biases[-1].copy_(torch.zeros(3))
    found = stationarity(net, X, Y - Y.mean(0), ridge=RIDGE)
    assert math.isnan(found.residual) or found.residual == 0.0


def test_arguments_are_checked():
    X, Y = data()
    net = FullyConnected([4, 6, 3]).double()
    for options in ({"ridge": 0.0}, {"ridge": RIDGE, "loss": "l1"}, {"ridge": RIDGE, "kink_tolerance": -1.0}):
        with pytest.raises(IsthmusError, match="stationarity"):
            stationarity(net, X, Y, **options)
    with pytest.raises(IsthmusError, match="as many rows"):
        stationarity(net, X, Y[1:], ridge=RIDGE)
    with pytest.raises(IsthmusError, match="trainable"):
        stationarity(nn.ReLU(), X, Y, ridge=RIDGE)


def test_plain_data(minimum):
    found = minimum[3].stationarity
    plain = found.to_dict()
    assert plain["residual"] == found.residual and plain["kinks"] == len(found.multipliers)
    assert plain["kind"] == "local minimum" and plain["least_multiplier"] <= float(found.multipliers[:, 0].max())
    assert minimum[3].to_dict()["stationarity"] == plain
    again = certify(minimum[0], *minimum[1:3], ridge=RIDGE, loss="mse", hessian=False)
    assert math.isnan(again.least_eigenvalue) and again.kind == "not known"
