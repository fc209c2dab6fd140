"""M-resnet: a plain ResNet without biases is a leaky one with its outputs scaled down, exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import isthmus
from isthmus import IsthmusError, LeakyResNet
from isthmus.measures import as_leaky, mechanics, output_depth
from isthmus.objective import cost
from leaky_nets import critical, leaky
from tools import assert_close, gaussian, generator

STEPS = [{}, {"steps": "irregular"}, {"slope": 0.3}, {"slope": -0.2, "embed": "learned"}]


def network(reading):
    """The leaky network itself."""
    t = reading.trace
    options = {"effective_depth": t.effective_depth, "slope": t.slope, "bias": 0.0}
    return LeakyResNet.from_weights(t.Ws, t.rho, W_in=t.W_in, W_out=t.W_out, **options)


def residual(net, X, Y, ridge):
    """‖∇(cost + ridge·Σρ‖W‖²)‖ relative to the ridge's part, by autograd, over the steps of the path alone."""
    path = [step.weight for step in net.stages]
    gradients = torch.autograd.grad(cost(net(X), Y), path)
    off = sum(float((g + 2 * ridge * p.detach()).square().sum()) for g, p in zip(gradients, path))
    return math.sqrt(off / sum(float((2 * ridge * p.detach()).square().sum()) for p in path))


@pytest.mark.parametrize("options", STEPS)
@pytest.mark.parametrize("depth", [0.3, 2.0, 4.5])
def test_every_step_is_the_same_step(options, depth):
    net, X = leaky(effective_depth=0.0, bias=0, **options), gaussian(9, 4)
    trace = net.trace(X)
    reading = as_leaky(trace, depth)
    other = network(reading)
    again = other.trace(X)
    assert_close(other(X), net(X))
    scales = torch.cat([torch.ones(1).double(), (1 - depth * reading.trace.rho).cumprod(0)])
    for ell in range(6):
        assert_close(again.representations[ell], scales[ell] * trace.representations[ell])
    assert float(reading.trace.rho.sum()) == pytest.approx(1.0, abs=1e-12)
    assert reading.scale == pytest.approx(float(scales[-1]))
    # Penalties of all steps shrink by one factor.
    for W, V, rho, length in zip(trace.Ws, reading.trace.Ws, trace.rho, reading.trace.rho):
        assert float(length * V.square().sum()) * reading.ridge_factor == pytest.approx(float(rho * W.square().sum()))
    if options.get("steps") != "irregular":
        assert_close(reading.trace.rho, trace.rho)
        assert reading.ridge_factor == pytest.approx((1 - depth / 5) ** -2)


@pytest.mark.parametrize("options", STEPS)
def test_it_is_as_critical_as_the_other(options):
    net, X, Y = leaky(effective_depth=0.0, bias=0, **options), gaussian(9, 4), gaussian(9, 3, seed=1)
    reading = as_leaky(net.trace(X), 1.7)
    wanted = residual(net, X, Y, 0.03)
    assert residual(network(reading), X, Y, 0.03 * reading.ridge_factor) == pytest.approx(wanted, rel=1e-9)
    found = mechanics(net, X, Y, ridge=0.03, effective_depth=1.7)
    assert found.residual == pytest.approx(wanted, rel=1e-9)
    # The ridge as it was would not do.
    assert abs(residual(network(reading), X, Y, 0.03) / wanted - 1) > 0.05


def test_a_minimum_without_a_leak_has_the_mechanics_of_the_one_with():
    net, X, Y, ridge = critical(bias=0)
    keep, L = 1 - net.effective_depth / net.layers, net.layers
    plain = LeakyResNet.from_weights(
        [W / keep for W in net.Ws], net.rho, effective_depth=0.0, W_out=torch.eye(6).double() * keep**L, bias=0.0
    )
    assert_close(plain(X), net(X))
    wanted = mechanics(net, X, Y, ridge=ridge)
    found = mechanics(plain, X, Y, ridge=ridge * keep**2, effective_depth=net.effective_depth)
    assert wanted.state == found.state == "conserved"
    for name in ("hamiltonian", "kinetic", "identity_cost", "momentum_norm", "residual", "positions"):
        np.testing.assert_allclose(getattr(found.arrays, name), getattr(wanted.arrays, name), rtol=1e-6, atol=1e-9)
    assert found.rank_estimate == pytest.approx(wanted.rank_estimate) and "plain ResNet" in found.reason
    # Read with another depth it is as critical, with another Hamiltonian.
    deeper = mechanics(plain, X, Y, ridge=ridge * keep**2, effective_depth=5.0)
    assert deeper.residual == pytest.approx(found.residual, abs=1e-8)
    assert deeper.arrays.hamiltonian[0] != pytest.approx(found.arrays.hamiltonian[0], rel=0.1)


def test_the_same_weights_are_right_to_first_order_only():
    errors = []
    for layers in (20, 40, 80):
        rho = [1 / layers] * layers
        Ws = [(0.5 * torch.eye(6) + 0.2 * gaussian(6, 6, seed=1))] * layers  # one path, divided more finely
        net = LeakyResNet.from_weights(Ws, rho, effective_depth=0.0, bias=0.0)
        shifted = LeakyResNet.from_weights(Ws, rho, effective_depth=1.5, bias=0.0)
        inputs = gaussian(8, 6, seed=4)
        end, other = (n.trace(inputs).representations[-1] for n in (net, shifted))
        errors.append(float((other - math.exp(-1.5) * end).norm() / other.norm()))
        exact = network(as_leaky(net.trace(inputs), 1.5)).trace(inputs).representations[-1]
        assert_close(exact, (1 - 1.5 / layers) ** layers * end)
    assert errors[0] / errors[1] == pytest.approx(2.0, rel=0.2) and errors[1] / errors[2] == pytest.approx(2.0, rel=0.2)
    assert errors[2] > 1e-3


def test_the_depth_that_outputs_amount_to():
    net, X = leaky(effective_depth=0.0, bias=0, steps="irregular", layers=12), gaussian(9, 4)
    depth = output_depth(net, X)
    path = as_leaky(net.trace(X), depth).trace.representations
    assert depth > 0 and float(path[-1].norm()) == pytest.approx(float(path[0].norm()), rel=1e-9)
    trace = net.trace(X)
    grown = math.log(float(trace.representations[-1].norm() / trace.representations[0].norm()))
    assert depth < grown < 1.5 * depth  # (1 − L̃/L)^L is below e^(−L̃)
    found = mechanics(net, X, gaussian(9, 3), ridge=0.1)
    assert found.effective_depth == depth
    assert isthmus.diagnose(net, X).whole["output_depth"] == pytest.approx(depth)
    assert isthmus.diagnose(net, X, gaussian(9, 3), ridge=0.1).mechanics.effective_depth == pytest.approx(depth)
    assert "output_depth" not in isthmus.diagnose(leaky(), X).whole


def test_what_it_does_not_apply_to():
    X, Y = gaussian(9, 4), gaussian(9, 3, seed=1)
    biased = mechanics(leaky(effective_depth=0.0), X, Y, ridge=0.1)
    assert biased.state == "not applicable" and "with biases" in biased.reason
    shrinking = LeakyResNet.from_weights([-0.5 * torch.eye(4).double()] * 3, [1 / 3] * 3, effective_depth=0.0, bias=0.0)
    assert output_depth(shrinking, X.abs()) == 0.0
    found = mechanics(shrinking, X.abs(), gaussian(9, 4), ridge=0.1)
    assert found.state == "not applicable" and "no larger" in found.reason
    with pytest.raises(IsthmusError):
        mechanics(leaky(bias=0), X, Y, ridge=0.1, effective_depth=1.0)
    with pytest.raises(IsthmusError):
        as_leaky(leaky(effective_depth=0.0, bias=0).trace(X), 5.0)
    with pytest.raises(IsthmusError):
        as_leaky(leaky(effective_depth=0.0).trace(X), 1.0)


@pytest.mark.parametrize("biased", [False, True])
def test_an_ordinary_resnet(biased):
    Vs = [0.3 * gaussian(5, 5, seed=i) for i in range(4)]
    bs = [0.1 * gaussian(5, seed=10 + i) for i in range(4)] if biased else None
    W_in, W_out = gaussian(5, 3, seed=20), gaussian(2, 5, seed=21)
    net, X = LeakyResNet.from_resnet(Vs, bs, W_in=W_in, W_out=W_out), gaussian(7, 3)
    A = X @ W_in.mT
    for i, V in enumerate(Vs):
        A = A + A.relu() @ V.mT + (bs[i] if bs else 0.0)
    assert_close(net(X), A @ W_out.mT)
    # ‖√ρW‖² = L‖V‖², biases included.
    norm = sum(float(p.detach().square().sum()) for p in net.parameters())
    assert norm == pytest.approx(4 * sum(float(T.square().sum()) for T in [*Vs, *(bs or [])]))


def test_under_the_cross_entropy_the_effective_depth_grows():
    X = gaussian(40, 2, seed=2)
    labels = (X[:, 0] + 0.3 * X[:, 1] > 0).long()
    source = generator(0)
    net = LeakyResNet(2, 2, 6, 8, 0.0, bias=0, init="gaussian", init_scale=0.3, dtype=torch.float64, generator=source)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    depths = []
    for step in range(1201):
        if step % 300 == 0:
            depths.append(output_depth(net, X))
        optimizer.zero_grad()
        cost(net(X), labels, "cross_entropy").backward()
        optimizer.step()
    assert depths == sorted(depths) and depths[-1] > depths[1] + 0.2
    # More slowly as it goes.
    assert depths[-1] - depths[-2] < depths[2] - depths[1]
