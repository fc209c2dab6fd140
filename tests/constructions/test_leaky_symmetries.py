"""Symmetries of leaky ResNets, and the path of constant cost of identity."""

from __future__ import annotations

import math

import pytest
import torch

from isthmus import IsthmusError, LeakyResNet
from isthmus.claims._evidence import fit_exponent
from isthmus.constructions import constant_identity_path, refine_steps, rescale_range, shift_leak
from isthmus.measures import cost_of_identity
from tools import assert_close, gaussian, generator


def net(bias=0.0, layers=5, effective_depth=2.0, slope=0.0):
    made = LeakyResNet(
        4, 3, 7, layers, effective_depth, bias=bias, slope=slope, dtype=torch.float64, generator=generator(1)
    )
    if bias:
        with torch.no_grad():
            for step in made.stages:
                step.bias.normal_(0.0, 0.5, generator=generator(2))
    return made.requires_grad_(False)


def norm(one):
    return sum(float(rho * W.detach().square().sum()) for rho, W in zip(one.rho, one.Ws))


@pytest.mark.parametrize("bias", [0.0, 1.0])
@pytest.mark.parametrize("c", [0.25, 1.0, 7.0])
def test_range(bias, c):
    first, X = net(bias), gaussian(6, 4)
    second = rescale_range(first, c)
    assert_close(torch.stack(second.trace(X).representations), torch.stack(first.trace(X).representations))
    assert_close(second(X), first(X))
    assert_close(norm(second), norm(first) / c)
    assert second.effective_depth == pytest.approx(2.0 / c)
    assert float(second.rho.sum()) == pytest.approx(c)


@pytest.mark.parametrize("slope", [0.0, 0.3, 1.0])
def test_leak(slope):
    first, X, c = net(slope=slope), gaussian(6, 4), 0.7
    errors = []
    for times in (8, 16, 32):
        fine = refine_steps(first, times)
        path = fine.trace(X)
        wanted = [math.exp(-c * float(p)) * A for p, A in zip(path.positions, path.representations)]
        got = shift_leak(fine, c).trace(X).representations
        errors.append(max(float((a - b).norm()) for a, b in zip(got, wanted)))
    assert fit_exponent((8, 16, 32), errors).value == pytest.approx(-1.0, abs=0.05)
    back = shift_leak(shift_leak(first, c), -c)
    assert_close(back(X), first(X))


def test_a_bias_has_no_such_symmetry():
    with pytest.raises(IsthmusError, match="no bias"):
        shift_leak(net(1.0), 0.5)
    with pytest.raises(IsthmusError, match="shift"):
        shift_leak(net(), -2.5)
    with pytest.raises(IsthmusError, match="factor"):
        rescale_range(net(), 0.0)
    with pytest.raises(IsthmusError, match="times"):
        refine_steps(net(), 0)


def test_refining_is_the_ode_of_stepwise_weights():
    """One linear step without leak is the matrix exponential."""
    W = 0.5 * gaussian(3, 3)
    one = LeakyResNet.from_weights([W], [1.0], effective_depth=0.4, slope=1.0, bias=0.0)
    X = gaussian(5, 3, seed=1)
    exact = X @ torch.matrix_exp(W - 0.4 * torch.eye(3, dtype=torch.float64)).mT
    errors = [float((refine_steps(one, m).trace(X).outputs - exact).norm()) for m in (10, 20, 40)]
    assert fit_exponent((10, 20, 40), errors).value == pytest.approx(-1.0, abs=0.05)


@pytest.mark.parametrize("shape", [(9, 2), (20, 3), (60, 4), (5, 3), (13, 3)])
@pytest.mark.parametrize("slope", [0.0, 0.2])
def test_constant_cost(shape, slope):
    A = gaussian(*shape, seed=sum(shape)) * torch.logspace(-1, 1, shape[0], dtype=torch.float64)[:, None]
    path = constant_identity_path(A, slope=slope)
    w, N = shape
    assert path.kept <= min(w, N * (N + 1)) and bool((path.shares >= 0).all())
    if w <= N * (N + 1):
        assert path.kept == w  # generic neurons are independent: nothing to take away
    for t in (0.0, 0.3, 1.0):
        M = path.at(t)
        for act in (lambda Z: Z, lambda Z: torch.nn.functional.leaky_relu(Z, slope)):
            assert_close(act(M).mT @ act(M), act(A).mT @ act(A), rtol=1e-9, atol=1e-9, reason="many eliminations")
        for bias in (0.0, 1.0):
            costs = [cost_of_identity(Z, bias=bias, slope=slope) for Z in (M, A)]
            assert_close(*costs, rtol=1e-7, reason="the kernel's condition")
    assert_close(path.at(0.0), A)


def test_repeated_and_dead_neurons():
    row = gaussian(1, 2)
    A = torch.cat([row.expand(8, 2), torch.zeros(3, 2, dtype=torch.float64)])
    path = constant_identity_path(A)
    assert path.kept == 1
    assert_close(path.at(1.0).mT @ path.at(1.0), 8 * row.mT @ row)
    assert constant_identity_path(torch.zeros(3, 2)).kept == 0
