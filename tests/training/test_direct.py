"""The gradient without a graph is autograd's, to rounding."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from isthmus import FullyConnected, LeakyResNet, SmoothNetwork
from isthmus.networks._fully_connected import DirectChain
from isthmus.networks._leaky_resnet import DirectLeaky
from isthmus.networks._network import hooks_of
from small import objective_of
from tools import assert_close, gaussian, generator, random_net

DIMS = [(5, 7, 3), (3, 1), (4, 9, 5, 3, 3, 1), (2, 3, 80, 3, 2), (5, 6, 6, 6, 3, 3, 3)]


def hourglass(slope=0.0, bias=1.0, *, dtype=torch.float64):
    parts = (((5, 7, 2), 0), ((2, 6, 3), 1))
    return FullyConnected.joined(*(random_net(dims, slope, bias, seed=seed, dtype=dtype) for dims, seed in parts))


def leaky(slope=0.0, bias=1.0, *, layers=5, embed="fixed", dtype=torch.float64, steps="irregular", width=12):
    options = {"embed": embed, "steps": steps, "init": "gaussian", "dtype": dtype, "generator": generator()}
    net = LeakyResNet(5, 3, width, layers, 0.9, slope=slope, bias=bias, **options)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.1 * gaussian(*p.shape, seed=9, dtype=dtype))
    return net


def chain():
    return random_net((5, 40, 40, 3))


def data(net: Any, rows=37, *, dtype=torch.float64):
    d_in, d_out = net.d_in, net.d_out
    return gaussian(rows, d_in, seed=2, dtype=dtype), gaussian(rows, d_out, seed=3, dtype=dtype)


def both_ways(net, X, Y, loss="mse", *, rows=None, batch=None):
    """Values by the direct route and by autograd, at the same parameters."""
    found = []
    for kind in (DirectChain if not isinstance(net, LeakyResNet) else DirectLeaky, type(None)):
        objective = objective_of(net, X, Y, loss)
        objective.stack.rows = rows or objective.stack.rows
        objective.direct = objective.direct if kind is not type(None) else None
        assert isinstance(objective.direct, kind)
        with objective.attached():
            # Twice: what the first evaluation left in the buffers must not matter.
            objective(0.5)
            found.append(objective(0.07, batch))
    return found


def agree(one, other, dtype=torch.float64):
    if dtype == torch.float64:
        assert_close(one.loss, other.loss)
        assert_close(one.gradient, other.gradient)
        return
    assert abs(one.loss - other.loss) <= 1e-5 * abs(other.loss)
    assert float((one.gradient - other.gradient).norm()) <= 1e-5 * float(other.gradient.norm())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("slope", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("bias", [0.0, 1.0])
@pytest.mark.parametrize("dims", DIMS)
def test_chains(dims, slope, bias, dtype):
    net = random_net(dims, slope, bias, dtype=dtype)
    X, Y = data(net, dtype=dtype)
    agree(*both_ways(net, X, Y), dtype=dtype)
    agree(*both_ways(net, X, torch.arange(len(X)) % dims[-1], "cross_entropy"), dtype=dtype)


def test_inputs_are_taken_anew_when_they_are_others():
    net = chain()
    X, Y = data(net)
    objective = objective_of(net, X, Y, "mse")
    with objective.attached():
        found = [objective.direct.add(A, Y, 1.0, first=True) for A in (X, 2.0 * X, X)]
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize("slope", [0.0, 1.0])
def test_an_hourglass(slope):
    net = hourglass(slope)
    agree(*both_ways(net, *data(net)))


@pytest.mark.parametrize(("layers", "width"), [(1, 12), (4, 12), (5, 40)])
@pytest.mark.parametrize("embed", ["fixed", "learned"])
@pytest.mark.parametrize(("slope", "bias"), [(0.0, 1.0), (0.0, 0.0), (0.3, 1.0), (1.0, 1.0)])
def test_leaky_resnets(slope, bias, embed, layers, width):
    options = {"embed": embed, "layers": layers, "width": width}
    net = leaky(slope, bias, **options)
    X, Y = data(net)
    agree(*both_ways(net, X, Y))
    agree(*both_ways(net, X, torch.softmax(Y, 1), "cross_entropy"))
    agree(*both_ways(leaky(slope, bias, dtype=torch.float32, **options), X.float(), Y.float()), dtype=torch.float32)


def test_leaky_resnets_follow_steps_that_change():
    net = leaky(steps="adaptive")
    X, Y = data(net)
    objective = objective_of(net, X, Y, "mse")
    with objective.attached():
        before = objective(0.0).gradient
        net.adapt(X)
        after = objective(0.0).gradient
        objective.direct = None
        assert_close(after, objective(0.0).gradient)
    assert float((after - before).norm()) > 1e-3 * float(before.norm())


@pytest.mark.parametrize("rows", [1, 6, 12, 36, 37])
@pytest.mark.parametrize("make", [hourglass, leaky, chain])
def test_in_several_chunks_and_for_a_batch(make, rows):
    net = make()
    X, Y = data(net)
    whole = both_ways(net, X, Y)[1]
    parts = both_ways(net, X, Y, rows=rows)[0]
    assert_close(parts.gradient, whole.gradient)
    assert_close(parts.loss, whole.loss)
    one, other = both_ways(net, X, Y, rows=rows, batch=torch.tensor([3, 3, 17, 36, 0]))
    assert_close(one.gradient, other.gradient)


@pytest.mark.parametrize("make", [hourglass, leaky, chain])
def test_twice_half_is_once(make):
    net = make()
    X, Y = data(net, 8)
    objective = objective_of(net, X, Y, "mse")
    with objective.attached():
        once = objective(0.0)
        halves = sum(objective.direct.add(X, Y, 0.5, first=first)[0] for first in (True, False))
        assert_close(halves, once.loss)
        assert_close(objective.buffer, once.gradient)


def test_the_derivative_of_a_relu_at_zero_is_zero():
    net = hourglass()
    with torch.no_grad():
        net.weights[0][0].zero_()
        net.biases[0][0] = 0.0
    one, other = both_ways(net, *data(net, 9))
    agree(one, other)
    assert not bool(one.cost_gradient[:5].any())


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
@pytest.mark.parametrize("bias", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("rows", [1, 37, 300])
def test_smooth_layers(loss, bias, rows):
    """SiLU with a linear waist, in float64: autograd's gradient, in one block of rows and in several."""
    slopes = (0.0, 1.0, 0.0, 0.0)
    net = SmoothNetwork([5, 9, 2, 7, 40, 3], slopes, bias, dtype=torch.float64, generator=generator())
    with torch.no_grad():
        for b in net.bs:
            b.normal_(generator=generator())
    X, Y = gaussian(rows, 5), gaussian(rows, 3, seed=1)
    Y = Y if loss == "mse" else Y.argmax(1)
    objective = objective_of(net, X, Y, loss)
    assert isinstance(objective.direct, DirectChain)
    with objective.attached():
        found = objective(0.0)
    twin = copy.deepcopy(net)
    outputs = twin(X)
    wanted = ((outputs - Y) ** 2).sum(1).mean() if loss == "mse" else nn.functional.cross_entropy(outputs, Y)
    wanted.backward()
    assert_close(found.cost, float(wanted.detach()))
    assert_close(found.gradient, torch.cat([p.grad.reshape(-1) for p in twin.parameters() if p.grad is not None]))


class Shifted(FullyConnected):
    def forward(self, X):
        return super().forward(X) + 1.0


def test_where_the_direct_way_must_not_be_taken():
    frozen = hourglass()
    frozen.weights[1].requires_grad_(False)
    shifted = Shifted.joined(random_net((5, 2)), random_net((2, 3)))
    some = FullyConnected((5, 7, 6, 3), linear=(3, 0), dtype=torch.float64, generator=generator())
    uneven = FullyConnected((5, 7, 6, 3), biased=(True, False, True), dtype=torch.float64, generator=generator())
    others = (frozen, shifted, hourglass(slope=-1.0), some, uneven, leaky(slope=-0.5), nn.Linear(5, 3))
    for net in others:
        views = [p.detach() for p in net.parameters()]
        assert hooks_of(net).direct("mse", views, views, 4) is None
    # And the gradients there are right.
    X, Y = gaussian(9, 5), gaussian(9, 3, seed=1)
    for net in (*others[:5], hourglass(bias=0.3)):
        objective = objective_of(net, X, Y, "mse")
        with objective.attached():
            found = objective(0.0).gradient
        twin = copy.deepcopy(net)
        ((twin(X) - Y) ** 2).sum(1).mean().backward()
        wanted = [p.grad.reshape(-1) for p in twin.parameters() if p.grad is not None]
        assert_close(found, torch.cat(wanted))
    # Any amount of bias goes the direct way.
    assert isinstance(objective_of(hourglass(bias=0.3), X, Y).direct, DirectChain)


def test_no_memory_is_taken_in_a_step():
    """The buffers of a second evaluation are those of the first."""
    net = chain()
    X, Y = data(net, 300)
    objective = objective_of(net, X, Y, "mse")
    places = []
    with objective.attached():
        for _ in range(2):
            objective(0.0)
            direct = objective.direct
            places.append([A.data_ptr() for A in (*direct.results, *(G for _, G, _ in direct.pulled))])
    assert places[0] == places[1]


def test_a_gradient_written_into_given_memory():
    net = chain()
    objective = objective_of(net, *data(net), "mse")
    room = objective.spare
    with objective.attached():
        whole, found = objective(0.3), objective(0.3, fleeting=True)
    assert found.gradient is room
    assert (found.loss, found.cost, found.norm) == (whole.loss, whole.cost, whole.norm)
    assert torch.equal(room, whole.gradient)
    assert torch.equal(found.cost_gradient, whole.cost_gradient)
    assert found.cost_gradient.data_ptr() != whole.cost_gradient.data_ptr()
    # The next one overwrites it, and leaves alone what was no such value.
    kept = whole.gradient.clone()
    with objective.attached():
        again = objective(0.2, fleeting=True)
    assert again.gradient is room
    assert not torch.equal(room, kept) and torch.equal(whole.gradient, kept)
