"""A-threepart's parts: f∘g, f + g, identity layers, ReLU by σ_a: same function, exact norm, and where not."""

from __future__ import annotations

import copy
import math
from typing import Any, cast

import pytest
import torch

from isthmus import FullyConnected, IsthmusError
from isthmus.constructions import compose, pad, parallel, relu_to_leaky, three_part
from isthmus.measures import parameter_norms
from isthmus.trace import activate
from tools import assert_close, gaussian, random_net


def positive(net):
    """The same network with a last bias that keeps its outputs positive on standard Gaussian inputs."""
    net = copy.deepcopy(net)
    with torch.no_grad():
        net.biases[-1].add_(50.0)
    return net


def straddling(net, X):
    """The same network with a last bias that makes each output negative on a fifth of ``X``."""
    net = copy.deepcopy(net)
    with torch.no_grad():
        net.biases[-1].sub_(net(X).quantile(0.2, dim=0) / net.bias)
    return net


def check_norm(construction):
    assert_close(construction.known.norm_squared, parameter_norms(construction.network).total)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("slope", [-0.5, 0.0, 0.3])
@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_compose_is_the_composition_where_it_says(slope, beta, dtype):
    g = positive(random_net([4, 7, 3], slope, beta, seed=1, dtype=dtype))
    f = random_net([3, 6, 5, 2], slope, beta, seed=2, dtype=dtype)
    X = gaussian(40, 4, seed=3, dtype=dtype)
    made = compose(f, g)
    assert bool(made.known.domain.contains(X).all())
    assert_close(made.network(X), f(g(X)))
    check_norm(made)
    assert made.known.norm_squared == parameter_norms(f).total + parameter_norms(g).total
    assert made.depth == 5 and made.known.rank == 2 and made.known.excess_limit is None


def test_a_wrong_weight_is_noticed():
    made = compose(random_net([3, 6, 2], seed=2), random_net([4, 7, 3], seed=1))
    with torch.no_grad():
        made.network.weights[1][0, 0] += 1e-3
    with pytest.raises(AssertionError):
        check_norm(made)


def test_compose_differs_outside_its_domain():
    X = gaussian(200, 4, seed=3)
    g, f = straddling(random_net([4, 7, 3], seed=1), X), random_net([3, 6, 2], seed=2)
    made = compose(f, g)
    inside = made.known.domain.contains(X)
    difference = (made.network(X) - f(g(X))).detach().abs().amax(1)
    assert torch.equal(inside, (g(X) >= 0).all(1)) and 0 < int(inside.sum()) < 200
    assert float(difference[inside].max()) < 1e-11 and float(difference[~inside].max()) > 1e-3


def test_a_linear_network_composes_everywhere():
    g, f = random_net([4, 7, 3], 1.0, seed=1), random_net([3, 2], 1.0, seed=2)
    made, X = compose(f, g), gaussian(30, 4, seed=3)
    assert made.known.domain.whole
    assert_close(made.network(X), f(g(X)))


def test_domains_pass_through():
    X = gaussian(400, 3, seed=3)
    X[200:] = X[200:].abs()
    inner = pad(straddling(random_net([3, 5, 3], seed=1), X[200:]), 4, where="input")
    outer = pad(random_net([3, 5, 2], seed=2), 4, where="input")
    made = compose(outer, inner)
    expected = (X >= 0).all(1) & (inner.network(X) >= 0).all(1)
    assert torch.equal(made.known.domain.contains(X), expected)
    assert 0 < int(expected.sum()) < 400
    both = parallel(random_net([3, 4, 4, 4, 3], seed=4), inner)
    assert torch.equal(both.known.domain.contains(X), (X >= 0).all(1))
    with torch.no_grad():
        inner.network.weights[0].neg_()
    assert torch.equal(made.known.domain.contains(X), expected), "training moved the domain"


@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("depth", [2, 3, 6])
def test_parallel_sums_functions_and_norms(depth, beta):
    f = random_net([4, *[5] * (depth - 1), 3], bias=beta, seed=1)
    g = random_net([4, *[6] * (depth - 1), 3], bias=beta, seed=2)
    made, X = parallel(f, g), gaussian(40, 4, seed=3)
    assert_close(made.network(X), f(X) + g(X))
    check_norm(made)
    parts = parameter_norms(f).total + parameter_norms(g).total
    overlap = 2 * float(f.bs[-1].detach() @ g.bs[-1].detach()) if beta else 0.0
    assert_close(made.known.norm_squared, parts + overlap)
    assert beta == 0.0 or abs(overlap) > 1e-3
    assert made.known.rank == 3


def test_parallel_of_one_biased_and_one_not():
    f, g = random_net([4, 5, 3], bias=0.5, seed=1), random_net([4, 6, 3], bias=0.0, seed=2)
    made, X = parallel(f, g), gaussian(40, 4, seed=3)
    assert made.network.bias == 0.5
    assert_close(made.network(X), f(X) + g(X))
    check_norm(made)


@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("where", ["output", "input"])
@pytest.mark.parametrize("extra", [0, 1, 2, 30])
def test_pad_in_the_orthant(where, extra, beta):
    net = random_net([3, 6, 4], bias=beta, seed=5)
    X = gaussian(300, 3, seed=6)
    made = pad(net, 2 + extra, where=where)
    k = 4 if where == "output" else 3
    inside = made.known.domain.contains(X)
    assert_close(made.network(X)[inside], net(X)[inside])
    check_norm(made)
    assert_close(made.known.norm_squared, parameter_norms(net).total + k * extra)
    if extra:
        condition = net(X) if where == "output" else X
        assert torch.equal(inside, (condition >= 0).all(1))
        outside = ~inside
        assert not torch.allclose(made.network(X)[outside], net(X)[outside])
        # Four outputs of a three-dimensional function: padding there costs more than its rank.
        assert made.known.excess_limit == (math.inf if k == 4 else made.excess)


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("where", ["output", "input"])
@pytest.mark.parametrize("extra", [1, 2, 30])
def test_pad_with_pairs_everywhere(where, extra, beta):
    net = random_net([3, 6, 4], bias=beta, seed=5)
    X = gaussian(50, 3, seed=6)
    made = pad(net, 2 + extra, where=where, signed=True)
    assert made.known.domain.whole
    assert_close(made.network(X), net(X))
    check_norm(made)
    assert made.known.norm_squared > parameter_norms(net).total + 2 * extra * (4 if where == "output" else 3)
    assert made.known.excess_limit == math.inf


@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize("slope", [-0.9, -0.3, 0.01, 0.5, 0.9])
@pytest.mark.parametrize("depth", [1, 2, 3, 6])
def test_relu_by_another_slope(depth, slope, beta):
    net = random_net([4, *[5] * (depth - 1), 3], bias=beta, seed=1)
    made, X = relu_to_leaky(net, slope), gaussian(40, 4, seed=2)
    assert made.network.slope == slope
    size = float(net(X).detach().abs().max())
    atol = 1e-12 * size / (1 - slope**2) ** (2 * depth)
    assert_close(made.network(X), net(X), atol=atol, reason="each pair cancels to 1 - a² of its terms")
    check_norm(made)
    assert made.network.dims[1:-1] == tuple(10 for _ in range(depth - 1))


def test_the_printed_sign_is_wrong():
    a, z = 0.4, torch.linspace(-2, 2, 41, dtype=torch.float64)

    def by(sign):
        return (activate(z, a) + sign * a * activate(-z, a)) / (1 - a**2)

    assert_close(by(+1), torch.relu(z))
    assert not torch.allclose(by(-1), torch.relu(z))
    # What the printed form gives below zero.
    assert_close(by(-1)[z < 0], 2 * a * z[z < 0] / (1 - a**2))
    net = random_net([3, 5, 2], seed=1)
    made = relu_to_leaky(net, a).network
    with torch.no_grad():
        made.weights[1][:, 5:].neg_()
    X = gaussian(20, 3, seed=2)
    assert not torch.allclose(made(X), net(X))


def test_leaky_parts_join_at_k_per_layer():
    g, h = (
        relu_to_leaky(positive(random_net([4, 6, 2], seed=1)), 0.3),
        relu_to_leaky(random_net([2, 5, 3], seed=2), 0.3),
    )
    X = gaussian(30, 4, seed=3)
    shallow, deep = three_part(g, h, 4, X=X), three_part(g, h, 54, X=X)
    assert_close(deep.known.norm_squared - shallow.known.norm_squared, 100.0)
    assert_close(deep.network(X), h.network(g.network(X)))
    converted = relu_to_leaky(
        three_part(positive(random_net([4, 6, 2], seed=1)), random_net([2, 5, 3], seed=2), 54), 0.3
    )
    assert converted.known.norm_squared > deep.known.norm_squared + 100.0
    assert converted.known.excess_limit == math.inf


def test_zero_slope_changes_nothing():
    net = random_net([3, 5, 2], seed=1)
    assert relu_to_leaky(net, 0.0).network.dims == net.dims


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda f: compose(f, f), "must take the 2 outputs"),
        (lambda f: compose(random_net([2, 4, 2], 0.3), f), "same slope"),
        (lambda f: compose(random_net([2, 4, 2], dtype=torch.float32), f), "same dtype"),
        (lambda f: compose(random_net([2, 4, 2], bias=0.5), f), "amount of bias"),
        (lambda f: compose(cast(Any, torch.nn.Linear(2, 2)), f), "must be a FullyConnected"),
        (lambda f: parallel(f, random_net([3, 4, 4, 2])), "depths must be equal"),
        (lambda f: parallel(FullyConnected([3, 2]), FullyConnected([3, 2])), "at least 2"),
        (lambda f: parallel(f, random_net([2, 4, 2])), "equal dimensions"),
        (lambda f: pad(f, 1), "must be an integer in"),
        (lambda f: pad(f, 4, where="middle"), "must be one of"),
        (lambda f: pad(random_net([3, 5, 2], 0.3), 4, signed=True), "needs a ReLU"),
        (lambda f: relu_to_leaky(f, 1.0), "must be in \\(-1, 1\\)"),
        (lambda f: relu_to_leaky(f, -1.0), "must be a finite number in \\(-1, 1\\]"),
        (lambda f: relu_to_leaky(random_net([3, 5, 2], 0.3), 0.1), "ReLU network"),
        (lambda f: pad(f, 4).known.domain.contains(torch.ones(3, 7)), "must have 3 columns"),
    ],
)
def test_refusals(call, match):
    with pytest.raises(IsthmusError, match=match):
        call(random_net([3, 4, 2]))
