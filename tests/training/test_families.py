"""Families of networks in one trainer: with or without a way of their own, alone or side by side."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from isthmus import ConvolutionalNet, FullyConnected, LeakyResNet
from isthmus.networks import Network
from isthmus.networks._fully_connected import ChainMetric, DirectChain
from isthmus.training import Phase, train
from isthmus.training._objective import Stack
from small import network, objective_of, same_bits, task, weights
from test_stacks import by_hand
from test_together import RIDGES, alone, assert_same, together
from tools import assert_close, gaussian, generator

#: Every way of evaluating: all samples, mini-batches, double precision; with a metric and without.
PLAN = [
    Phase("scale", 1),
    Phase("adam", 6, 1e-2),
    Phase("adam", 6, 1e-2, batch_size=16),
    Phase("lbfgs", 5, ridge_start=2.0, ridge_end=2.0),
    Phase("lbfgs", 4, precision="double"),
    Phase("lbfgs", 4, metric=False),
]


class Waves(Network):
    """A family of one's own, with nothing but what must be there."""

    def __init__(self, d_in, d_out, width, *, dtype=None, device=None, generator=None):
        super().__init__()
        self.sizes = d_in, d_out, width
        shapes = (width, d_in), (d_out, width)
        parameters = [torch.randn(*shape, generator=generator, dtype=dtype, device=device) for shape in shapes]
        self.first, self.last = (nn.Parameter(0.5 * W) for W in parameters)

    def forward(self, X):
        return torch.sin(X @ self.first.mT) @ self.last.mT

    def trace(self, X, *, dtype=torch.float64):
        return X

    def to_torch(self):
        return copy.deepcopy(self)

    def config(self):
        return {"d_in": self.sizes[0], "d_out": self.sizes[1], "width": self.sizes[2]}


class Twice(FullyConnected):
    """A forward of its own: what FullyConnected can do better does not hold."""

    def forward(self, X):
        return 2.0 * super().forward(X)


def made(name, seed):
    options = {"dtype": torch.float64, "generator": generator(seed)}
    dims = (4, 8, 8, 8, 3)
    return {
        "leaky": lambda: LeakyResNet(4, 3, 6, 4, 2.0, **options),
        "leaky, learned, adaptive": lambda: LeakyResNet(
            4, 3, 6, 4, 2.0, embed="learned", steps="adaptive", adapt_every=2, **options
        ),
        "convolutional": lambda: ConvolutionalNet((1, 3, 3), 2, head="flatten", outputs=3, **options),
        "waves": lambda: Waves(4, 3, 8, **options),
        "subclass": lambda: Twice(dims, **options),
        "absolute values": lambda: FullyConnected(dims, -1.0, **options),
        "slopes": lambda: FullyConnected(dims, (0.2, 0.0, 1.0), 0.5, **options),
        "linear neurons": lambda: FullyConnected(dims, linear=(3, 0, 8), **options),
        "some biases": lambda: FullyConnected(dims, biased=(True, False, True, False), **options),
    }[name]()


NAMES = (
    "leaky",
    "leaky, learned, adaptive",
    "convolutional",
    "waves",
    "subclass",
    "absolute values",
    "slopes",
    "linear neurons",
    "some biases",
)
#: Of these nothing is computed together: only sums over θ, which depend on where it begins in memory.
ALONE = {"leaky", "leaky, learned, adaptive", "convolutional", "waves", "subclass", "linear neurons", "some biases"}


@pytest.mark.parametrize("name", NAMES)
def test_together_as_alone(name):
    X, Y = task(seed=28)
    nets = [made(name, seed) for seed in range(3)]
    starts = [weights(net) for net in nets]
    single = alone(copy.deepcopy(nets), X, Y, phases=PLAN)
    assert all(r.steps == sum(p.steps for p in PLAN) for r in single)
    rtol = 1e-11 if name in ALONE else 1e-7
    for ours, theirs, start in zip(together(nets, X, Y, phases=PLAN), single, starts):
        assert_same(ours, theirs, rtol=rtol)
        assert not same_bits(weights(ours.network), start)
        for one, other in zip(ours.network.buffers(), theirs.network.buffers()):
            if "adaptive" in name:
                assert_close(one, other, rtol=rtol, reason="steps follow from weights, with their rounding")
            else:
                assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["leaky", "convolutional", "waves", "slopes"])
def test_one_that_diverges_and_one_that_has_converged_do_not_disturb_the_others(name):
    X, Y = task(seed=28)
    nets = [made(name, seed) for seed in range(4)]
    plan = [Phase("gd", 3, 1e-3), Phase("lbfgs", 6, ridge_start=2.0, ridge_end=2.0), Phase("lbfgs", 30)]
    Ys = Y.repeat(4, 1, 1)
    with torch.no_grad():
        next(iter(nets[1].parameters())).fill_(math.nan)
        # Nothing to learn and nothing there: at its minimum, which it cannot leave.
        for p in nets[2].parameters():
            p.zero_()
        Ys[2] = nets[2](X)
    before = weights(nets[1])
    single = alone(copy.deepcopy(nets), X, Ys, phases=plan)
    results = together(nets, X, Ys, phases=plan)
    assert [r.state for r in results] == [r.state for r in single]
    assert (results[1].state, results[1].steps) == ("diverged", 0)
    assert results[2].steps < results[0].steps
    assert all(torch.equal(p.isnan(), q.isnan()) for p, q in zip(weights(nets[1]), before))
    for i in (0, 2, 3):
        assert_same(results[i], single[i], rtol=1e-6)


# ---------------------------------------------------------------- slopes by layer, linear neurons, amounts of bias

DIMS = (4, 8, 8, 8, 3)


@pytest.mark.parametrize("bias", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("slopes", [(0.0, 0.3, 1.0), (1.0, 0.0, 0.0), (0.7, 1.0, 0.2)])
@pytest.mark.parametrize("kind", ["mse", "labels", "own data"])
def test_direct_gradients_of_one_of_a_stack_and_of_some_of_it(slopes, bias, kind):
    nets = [FullyConnected(DIMS, slopes, bias, dtype=torch.float64, generator=generator(i)) for i in range(4)]
    with torch.no_grad():
        for i, b in enumerate(b for net in nets for b in net.biases):
            b.copy_(gaussian(len(b), seed=i))
    loss = "cross_entropy" if kind == "labels" else "mse"
    Xs = [gaussian(20, 4, seed=i) for i in range(4)] if kind == "own data" else [gaussian(20, 4)] * 4
    Ys = [torch.arange(20) % 3] * 4 if kind == "labels" else [gaussian(20, 3, seed=9)] * 4
    expected = []
    for net, X, Y, ridge in zip(nets, Xs, Ys, RIDGES):
        value = by_hand(net, X, Y, ridge, loss)
        gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(value, list(net.parameters()))])
        expected.append((float(value.detach()), gradient))
    stack = Stack(nets, Xs, Ys, loss)
    assert isinstance(stack.together[4], DirectChain)
    for rows in (20, 7):
        stack.rows = rows
        for chosen in ((0, 1, 2, 3), (1, 3), (2,), (0, 2, 3), (3, 1), (0, 1, 2, 3)):
            found = stack.evaluate([stack.objectives[i] for i in chosen], [RIDGES[i] for i in chosen])
            for i, value in zip(chosen, found):
                assert_close(value.loss, expected[i][0])
                assert_close(value.gradient, expected[i][1])
    for i, net in enumerate(nets):
        single = objective_of(net, Xs[i], Ys[i], loss)
        assert isinstance(single.direct, DirectChain)
        assert_close(single(RIDGES[i]).loss, expected[i][0])
        assert_close(single(RIDGES[i]).gradient, expected[i][1])


def test_the_way_of_some_shares_the_memory_of_all():
    nets = [network(seed=i) for i in range(3)]
    X, Y = task()
    stack = Stack(nets, [X] * 3, [Y] * 3, "mse")
    stack.evaluate(stack.objectives[1:], RIDGES[:2])
    whole, some = stack.together[3], stack.together[2]
    assert isinstance(whole, DirectChain) and isinstance(some, DirectChain)
    assert (whole.networks, some.networks) == (3, 2)
    assert [m.data_ptr() for m in some.memories] == [m.data_ptr() for m in whole.memories]
    # Evaluated again, the same way serves.
    stack.evaluate(stack.objectives[:2], RIDGES[:2])
    assert stack.together[2] is some


def test_slopes_by_layer_train_to_convergence():
    X, Y = task()
    net = FullyConnected(DIMS, (0.0, 0.3, 1.0), 0.5, dtype=torch.float64, generator=generator())
    assert isinstance(net.metric("mse"), ChainMetric)
    assert not net.can_narrow()
    result = train(net, X, Y, ridge=3e-2)
    assert result.at_rest
    assert result.criteria.balance < 1e-2
    assert result.loss < 0.5 * float((Y - Y.mean(0)).square().sum(1).mean())
    assert_close(result.loss, float(by_hand(net, X, Y, 3e-2, "mse").detach()))


def test_linear_neurons_train_by_autograd():
    X, Y = task()
    net = FullyConnected(DIMS, 0.0, 0.5, linear=(2, 0, 8), dtype=torch.float64, generator=generator())
    objective = objective_of(net, X, Y)
    assert objective.direct is None and net.metric("mse") is None
    expected = by_hand(net, X, Y, 0.1, "mse")
    with objective.attached():
        value = objective(0.1)
    assert_close(value.loss, float(expected.detach()))
    gradient = torch.autograd.grad(expected, list(net.parameters()))
    assert_close(value.gradient, torch.cat([g.reshape(-1) for g in gradient]))
    result = train(net, X, Y, ridge=1e-2)
    assert result.at_rest
    assert result.criteria.balance < 1e-2 and result.criteria.gradient < 0.5
    assert result.loss < 0.5 * float((Y - Y.mean(0)).square().sum(1).mean())
    assert net.linear == (2, 0, 8)
