"""Waists: weighed, changed, narrowed, unrolled; each against what can be computed by hand."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

from isthmus.discovery import _fits as fits
from isthmus.discovery._fits import Fit, minibatch_fit, narrow, quasi_newton_fit, rewaist, unroll, weigh
from isthmus.networks import FullyConnected
from isthmus.training import Phase
from made import hourglass
from tools import assert_close, gaussian, orthogonal, random_net


def linear_hourglass(B, *, d_in=5, seed=0):
    """A random linear encoder; the linear decoder z → Bz + 1."""
    encoder = random_net((d_in, B.shape[1]), 1.0, seed=seed)
    return FullyConnected.joined(
        encoder, FullyConnected.from_weights([B], [torch.ones(len(B), dtype=B.dtype)], slope=1.0)
    )


def test_weights_of_a_linear_decoder():
    """There the weights are the variances of the outputs along their principal axes: squared singular values."""
    net = linear_hourglass(gaussian(4, 3, seed=3))
    X = gaussian(60, 5, seed=4)
    F = net(X).detach()
    wanted = torch.linalg.svdvals((F - F.mean(0)) / 60**0.5) ** 2
    found = weigh(net, X)
    assert_close(found.weights, wanted[:3])
    assert_close(found.shares, (wanted[:3] / wanted[:3].sum()).numpy())


@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_coordinates_are_standard_and_lead_back(slope):
    net = hourglass(slope=slope)
    X = gaussian(80, 5, seed=4)
    found = weigh(net, X)
    Z = net.encoder()(X).detach()
    U = (Z - found.mean) @ found.into.mT
    assert_close(U.mean(0), torch.zeros(3))
    assert_close(U.mT @ U / 80, torch.eye(3))
    assert_close(found.mean + U @ found.out_of.mT, Z)
    # The mean squares of what a unit of each moves at the outputs, by finite differences.
    decoder = net.decoder()
    for j in range(3):
        step = 1e-6 * found.out_of[:, j]
        J = (decoder(Z + step) - decoder(Z - step)).detach() / 2e-6
        reason = "finite differences, across a kink now and then"
        assert_close(found.weights[j], (J**2).sum(1).mean(), rtol=1e-3, reason=reason)
    assert (found.weights.diff() <= 0).all()


def test_a_dead_coordinate_weighs_nothing():
    net = hourglass()
    with torch.no_grad():
        net.weights[2][:, 1] = 0.0
    found = weigh(net, gaussian(50, 5))
    assert found.shares[2] < 1e-15
    with torch.no_grad():
        for W in net.weights:
            W.zero_()
    assert weigh(net, gaussian(50, 5)).shares.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("dims", [((5, 8, 3), (3, 8, 4)), ((5, 8, 7), (7, 2, 4)), ((2, 6), (6, 3, 4))])
def test_another_waist_keeps_the_function(dims, balanced):
    net = hourglass(*dims)
    X = gaussian(60, dims[0][0], seed=4)
    k = net.dims[net.waist]
    into = gaussian(k, k, seed=5)
    other = rewaist(net, into, torch.linalg.inv(into), gaussian(k, seed=6), balanced=balanced)
    reason = "an inverse in between"
    assert_close(other(X), net(X), rtol=1e-7, atol=1e-8, reason=reason)
    assert other.dims == net.dims
    found = weigh(net, X)
    other = rewaist(net, found.into, found.out_of, found.mean, balanced=balanced)
    assert_close(other(X), net(X), rtol=1e-7, atol=1e-8, reason=reason)
    if not balanced:
        U = other.encoder()(X).detach()
        assert_close(U.mean(0), torch.zeros(k), rtol=0, atol=1e-6, reason=reason)


def test_balanced_weights_are_of_least_norm():
    net = hourglass()
    found = weigh(net, gaussian(60, 5, seed=4))
    other = rewaist(net, found.into, found.out_of, found.mean)
    A, B = other.Ws[1].detach(), other.Ws[2].detach()
    assert_close(A @ A.mT, B.mT @ B)
    # ‖A‖² + ‖B‖² = 2‖BA‖_* is the least there is.
    assert_close((A**2).sum() + (B**2).sum(), 2 * torch.linalg.svdvals(B @ A).sum())


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_narrowing_drops_the_least_important(rank):
    """For a linear decoder what is left is the best approximation of the outputs of that rank (Eckart–Young)."""
    net = linear_hourglass(gaussian(4, 3, seed=3))
    X = gaussian(60, 5, seed=4)
    F = net(X).detach()
    small = narrow(net, X, rank)
    assert small.dims[small.waist] == rank
    s = torch.linalg.svdvals(F - F.mean(0))
    assert_close(((small(X) - F) ** 2).sum(), (s[rank:] ** 2).sum())


def test_unrolling_an_arc_gives_the_angle():
    """Three quarters of a circle: no line through it orders its points, the angle does."""
    angle = torch.linspace(0.0, 1.5 * math.pi, 200, dtype=torch.float64)
    X = torch.stack([angle.cos(), angle.sin()], 1)
    assert torch.equal(hourglass_like_identity()(X), X)
    start = unroll(hourglass_like_identity(), X, X, 1e-5, 1, phases=[Phase("lbfgs", 60)], seed=0)
    z = start.encoder()(X).detach()[:, 0]
    assert abs(np.corrcoef(z, angle)[0, 1]) > 0.995
    assert ((start(X) - X) ** 2).sum(1).mean() < 0.02


def hourglass_like_identity():
    """x → x through two coordinates, with hidden ReLUs: x = relu(x) − relu(−x)."""
    double = lambda T: torch.tensor(T, dtype=torch.float64)  # noqa: E731
    wide = [[1, 0], [0, 1], [-1, 0], [0, -1], *([[0, 0]] * 12)]
    back = [[1, 0, -1, 0, *([0] * 12)], [0, 1, 0, -1, *([0] * 12)]]
    parts = (
        FullyConnected.from_weights([double(wide), double(back)], [torch.zeros(16).double(), torch.zeros(2).double()])
        for _ in range(2)
    )
    return FullyConnected.joined(*parts)


def test_a_cylinder_becomes_a_flat_ring():
    """The angle around the axis stays the angle, and the height becomes the logarithm of the radius."""
    rng = np.random.default_rng(0)
    angle, height = rng.uniform(0, 2 * np.pi, 400), rng.uniform(-1, 1, 400)
    X = torch.from_numpy(np.column_stack([np.cos(angle), height, np.sin(angle)]))
    net = linear_hourglass(gaussian(4, 3, seed=3), d_in=3)
    with torch.no_grad():
        ring = fits._flat_ring(net, X, 2, 0)
    assert ring is not None and ring.shape == (400, 2)
    around, radius = np.arctan2(ring[:, 1], ring[:, 0]), np.log(np.linalg.norm(ring, axis=1))
    assert abs(np.corrcoef(radius, height)[0, 1]) > 0.99
    # One way round or the other, up to where it begins.
    spreads = [abs(np.exp(1j * (around - sign * angle)).mean()) for sign in (1, -1)]
    assert max(spreads) > 0.99
    # One coordinate too many, and at least two left, or there is no such ring.
    assert fits._flat_ring(net, X, 1, 0) is None
    assert fits._flat_ring(net, X, 3, 0) is None
    assert fits._flat_ring(linear_hourglass(gaussian(4, 2, seed=3), d_in=3), X, 1, 0) is None


def test_unrolling_where_there_is_nothing_to_unroll():
    net = hourglass()
    X = gaussian(8, 5)
    assert unroll(net, X, net(X).detach(), 1e-3, 1, phases=[Phase("lbfgs", 2)], seed=0) is None
    same = gaussian(1, 5).repeat(40, 1)
    assert unroll(net, same, net(same).detach(), 1e-3, 1, phases=[Phase("lbfgs", 2)], seed=0) is None


def test_fit_says_how_it_ended():
    X = gaussian(50, 5)
    Y = X @ orthogonal(5, 4)
    assert quasi_newton_fit(hourglass(), X, Y, 1e-2, steps=1, scale=4.0).state == "falling"
    done = quasi_newton_fit(hourglass(), X, Y, 1e-2, steps=60, scale=4.0)
    assert done.state == "at rest"
    assert done.rest <= fits.REST
    net = done.network
    cost = float(((net(X) - Y) ** 2).sum(1).mean().detach())
    norm = sum(float((p.detach() ** 2).sum()) for p in net.parameters())
    assert_close([done.cost, done.norm], [cost / 4.0, norm])
    assert_close(done.loss, (cost + 1e-2 * norm) / 4.0)
    twin = quasi_newton_fit(hourglass(), X, Y, 1e-2, steps=60, scale=4.0)
    assert all(torch.equal(p, q) for p, q in zip(twin.network.parameters(), net.parameters()))


def test_minibatches_never_make_it_worse():
    X = gaussian(50, 5)
    Y = X @ orthogonal(5, 4)
    good = quasi_newton_fit(hourglass(), X, Y, 1e-2, steps=60, scale=1.0)
    before = copy.deepcopy(good.network)
    after = minibatch_fit(copy.deepcopy(good.network), X, Y, 1e-2, 1e3, scale=1.0, seed=0)
    assert isinstance(after, Fit)
    assert after.loss <= good.loss * (1 + 1e-12)
    assert all(torch.equal(p, q) for p, q in zip(after.network.parameters(), before.parameters()))
    poor = hourglass()
    better = minibatch_fit(copy.deepcopy(poor), X, Y, 1e-2, 1e-2, scale=1.0, seed=0)
    assert better.cost < float(((poor(X) - Y) ** 2).sum(1).mean().detach())


def half_blind():
    """z = x_0, of which the outputs see the positive part."""

    def chain(*Ws):
        Ws = [torch.tensor(W, dtype=torch.float64) for W in Ws]
        return FullyConnected.from_weights(Ws, [torch.zeros(len(W), dtype=torch.float64) for W in Ws], slope=0.0)

    encoder = chain([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]], [[1.0, -1.0]])
    return FullyConnected.joined(encoder, chain([[1.0]], [[1.0], [-2.0]])), gaussian(300, 3, seed=5)


def test_coordinates_of_least_size_say_no_more_than_the_outputs():
    """Outputs that do not respond to negative coordinates: those become one number, the others hardly change."""
    net, X = half_blind()
    _, U, least = fits.least_coordinates(net, X)
    seen = X[:, 0] > 0.1
    assert float(U[~seen].std()) > 0.5
    assert float(least[~seen].std()) < 0.1
    assert float(torch.corrcoef(torch.stack([U[seen, 0], least[seen, 0]]))[0, 1]) > 0.999


def test_a_lean_fit_gives_the_same_outputs():
    net, X = half_blind()
    Y = net(X).detach()
    whole = Fit(net, 0.0, 0.1, 1.0, 0.0, "at rest")
    lean = fits.lean_fit(whole, X, Y, 1e-6, scale=float(Y.square().sum() / len(Y)), seed=0)
    assert lean is not None and lean.cost < 1e-3
    with torch.no_grad():
        z = lean.network.encoder()(X)[:, 0]
    assert float(z[X[:, 0] < -0.1].std()) < 0.1 * float(z.std())
    assert lean.network.waist == len(lean.network.dims) - 3
    # Where the outputs respond to all that the coordinates say there is nothing to do.
    line = linear_hourglass(gaussian(4, 2, seed=3))
    same = Fit(line, 0.0, 0.1, 1.0, 0.0, "at rest")
    X = gaussian(60, 5, seed=4)
    assert fits.lean_fit(same, X, line(X).detach(), 1e-6, scale=1.0, seed=0) is None
