"""A-threepart: h∘g at any depth, of norm ‖W_g‖² + k(L − L_g − L_h) + ‖W_h‖² to the last digit."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

from isthmus import FullyConnected, IsthmusError
from isthmus.constructions import compose, interpolant_1d, parallel, three_part
from isthmus.measures import balance, parameter_norms, weight_spectra
from tools import assert_close, gaussian, generator, random_net


def check(construction, expected, X):
    assert bool(construction.known.domain.contains(X).all())
    assert_close(construction.network(X), expected)
    assert_close(construction.known.norm_squared, parameter_norms(construction.network).total)


def straddling(net, X):
    """The same network with a last bias that makes each output negative on a fifth of ``X``."""
    net = copy.deepcopy(net)
    with torch.no_grad():
        net.biases[-1].sub_(net(X).quantile(0.2, dim=0) / net.bias)
    return net


@pytest.mark.parametrize("depth", [4, 5, 17, 200])
@pytest.mark.parametrize("k", range(1, 9))
def test_function_and_norm_with_the_least_shift(k, depth):
    g, h = random_net([8, 12, k], seed=k), random_net([k, 12, 9], seed=k + 20)
    X = gaussian(60, 8, seed=3)
    made = three_part(g, h, depth, shift="least", X=X)
    check(made, h(g(X)), X)
    assert made.network.dims == (8, 12, *[k] * (depth - 3), 12, 9)
    assert made.known.rank == k
    parts = parameter_norms(g).total + parameter_norms(h).total
    assert_close(made.known.norm_squared, parts + k * (depth - 4) + made.known.details["shift_cost"])
    assert_close(made.excess, made.known.excess_limit, rtol=1e-9, reason="a difference of norms of order kL")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_without_shift_no_bias_is_added(dtype):
    # Non-negative weights on non-negative inputs: g ≥ 0 with no bias at all.
    g = FullyConnected.from_weights([gaussian(6, 4, seed=1).abs(), gaussian(2, 6, seed=2).abs()]).to(dtype)
    h = random_net([2, 5, 3], bias=0.0, seed=3, dtype=dtype)
    X = gaussian(50, 4, seed=4, dtype=dtype).abs()
    made = three_part(g, h, 40, X=X)
    check(made, h(g(X)), X)
    assert made.network.bias == 0.0 and not made.network.bs
    assert made.known.details["shift_cost"] == 0.0
    assert made.known.norm_squared == parameter_norms(g).total + 2 * 36 + parameter_norms(h).total
    assert [round(float(s.square().sum()), 12) for s in weight_spectra(made.network)[2:-2]] == [2.0] * 36


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_what_the_shift_costs(beta):
    g, h = random_net([5, 7, 3], bias=beta, seed=1), random_net([3, 6, 2], bias=beta, seed=2)
    c, X = torch.tensor([1.0, 9.0, 4.0], dtype=torch.float64), gaussian(80, 5, seed=3)
    made = three_part(g, h, 9, shift=c)
    used = beta or 1.0
    b = g.bs[-1].detach() if beta else torch.zeros(3, dtype=torch.float64)
    b_prime = h.bs[0].detach() if beta else torch.zeros(6, dtype=torch.float64)
    cost = (b + c / used).square().sum() - b.square().sum()
    cost = cost + (b_prime - h.Ws[0].detach() @ c / used).square().sum() - b_prime.square().sum()
    assert_close(made.known.details["shift_cost"], cost)
    inside = made.known.domain.contains(X)
    assert torch.equal(inside, (g(X) + c >= 0).all(1)) and int(inside.sum()) > 0
    assert_close(made.network(X)[inside], h(g(X))[inside])
    assert_close(made.known.norm_squared, parameter_norms(made.network).total)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_least_shift_is_least(dtype):
    X = gaussian(100, 4, seed=3, dtype=dtype)
    g, h = straddling(random_net([4, 6, 2], seed=1, dtype=dtype), X), random_net([2, 5, 3], seed=2, dtype=dtype)
    made = three_part(g, h, 12, shift="least", X=X)
    assert bool(made.known.domain.contains(X).all())
    atol = {torch.float64: 1e-12, torch.float32: 1e-4}[dtype]
    assert_close(made.network(X), h(g(X)), atol=atol, reason="the shift comes and goes: rounding of its size")
    c = (-g(X).detach().amin(0)).clamp_min(0.0)
    with pytest.raises(IsthmusError, match="of 100 samples outside"):
        three_part(g, h, 12, shift=c - 1e-3, X=X)
    # No shift where none is needed.
    assert three_part(made.network, random_net([3, 4, 2], seed=5, dtype=dtype), 40, shift=0.0).network.bias == 1.0


def test_negative_values_without_shift_are_refused_and_differ():
    X = gaussian(100, 4, seed=3)
    g, h = straddling(random_net([4, 6, 2], seed=1), X), random_net([2, 5, 3], seed=2)
    with pytest.raises(IsthmusError, match="samples outside"):
        three_part(g, h, 12, X=X)
    made = three_part(g, h, 12)
    wrong = (made.network(X) - h(g(X))).abs().amax(1) > 1e-9
    assert bool(wrong.any())
    assert not bool((wrong & made.known.domain.contains(X)).any())


def test_the_norm_over_depth_tends_to_k():
    # Slope and intercept of ‖θ‖² in L, by a fit.
    depths = np.array([5, 10, 20, 50, 100, 200])
    X = gaussian(50, 6, seed=1)
    for k in (1, 3, 5):
        g, h = random_net([6, 9, k], seed=k), random_net([k, 9, 6], seed=k + 9)
        made = [three_part(g, h, int(L), shift="least", X=X) for L in depths]
        norms = [parameter_norms(m.network).total for m in made]
        slope, intercept = np.polyfit(depths, norms, 1)
        assert_close(slope, float(k), rtol=1e-9, reason="a fit through six points")
        limit = made[0].known.excess_limit
        assert_close(intercept, limit, rtol=1e-8, reason="a fit through six points")
        ratio = [n / L - k for n, L in zip(norms, depths)]
        assert_close(np.array(ratio) * depths, np.full(6, limit), rtol=1e-9, reason="differences of order kL")
        # C-rank-6's twin: the constant of another function.
        other = three_part(g, random_net([k, 9, 6], seed=k + 30), 4, shift="least", X=X).known.excess_limit
        with pytest.raises(AssertionError):
            assert_close(intercept, other, rtol=1e-3, reason="far from it")


def test_a_middle_wider_than_the_rank_is_said():
    g, h = random_net([1, 6, 3], seed=1), random_net([3, 6, 4], seed=2)
    made = three_part(g, h, 30, shift="least", X=gaussian(20, 1, seed=3))
    assert made.known.rank == 1 and made.known.excess_limit == math.inf


def test_first_corrections_add():
    # C-bn-2: excess norms of f∘g (equal ranks) and of f + g.
    X = gaussian(40, 4, seed=1).abs()

    def family(seed, depth, d_in=4, d_out=4):
        inner = FullyConnected.from_weights([gaussian(5, d_in, seed=seed).abs(), gaussian(2, 5, seed=seed + 1).abs()])
        outer = FullyConnected.from_weights(
            [gaussian(5, 2, seed=seed + 2).abs(), gaussian(d_out, 5, seed=seed + 3).abs()]
        )
        return three_part(inner, outer, depth)

    f, g = family(10, 20), family(20, 30)
    both = compose(f, g)
    assert both.known.rank == 2
    assert_close(both.known.excess_limit, f.excess + g.excess)
    assert_close(both.excess, f.excess + g.excess)
    check(both, f.network(g.network(X)), X)
    side = parallel(f, family(20, 20))
    assert side.known.rank == 4
    assert_close(side.excess, f.excess + g.excess)
    assert_close(side.known.excess_limit, f.excess + g.excess)
    # Beyond d_in the ranks do not add: the sum has rank 3, at the price of 4.
    narrow = parallel(family(10, 20, 3), family(20, 20, 3))
    assert narrow.known.rank == 3 and narrow.known.excess_limit == math.inf


@pytest.mark.parametrize("size", [1, 2, 3, 10, 40])
@pytest.mark.parametrize("dim", [1, 4])
def test_interpolant(size, dim):
    t = torch.linspace(-1.0, 2.0, size, dtype=torch.float64) ** 3 if size > 1 else torch.zeros(1)
    y = gaussian(size, dim, seed=size)
    shuffle = torch.randperm(size, generator=generator(1))
    made = interpolant_1d(t[shuffle], y[shuffle])
    points = torch.linspace(float(t[0]), float(t[-1]), 301, dtype=torch.float64)
    for column in range(dim):
        expected = np.interp(points.numpy(), t.numpy(), y[:, column].numpy())
        assert_close(made.network(points[:, None])[:, column], expected, atol=1e-10, rtol=1e-10, reason="slopes to 1e3")
    assert_close(made.known.norm_squared, parameter_norms(made.network).total)
    assert bool(made.known.domain.contains(points).all())
    assert made.known.domain.contains([-100.0, float(t[0]), 100.0]).tolist() == [False, True, False]
    assert_close(made.network(t[:1, None].double() - 5.0), y[:1])


def test_interpolant_neurons_are_balanced_and_needed():
    t = [0.0, 1.0, 2.0, 3.0]
    made = interpolant_1d(t, [0.0, 1.0, 2.0, 0.0])
    assert made.network.dims == (1, 2, 1), "no neuron where the slope does not change"
    assert balance(made.network).neuron_residual < 1e-14
    # Slopes 1 then −2: changes 1 at 0 and −3 at 2.
    assert_close(made.known.norm_squared, 2 * 1 + 2 * 3 * math.sqrt(5))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda g, h: three_part(g, h, 3), "must be an integer in \\[4"),
        (lambda g, h: three_part(h, h, 8), "must take the 3 outputs"),
        (lambda g, h: three_part(g, h, 8, shift="most"), "least"),
        (lambda g, h: three_part(g, h, 8, shift="least"), "needs `X`"),
        (lambda g, h: three_part(g, h, 8, shift=[1.0, 2.0, 3.0]), "one number or 2"),
        (lambda g, h: three_part(g, h, 8, X=torch.ones(3, 9)), "must have 4 columns"),
        (lambda g, h: three_part(g, h, 8, shift=float("nan")), "finite"),
        (lambda g, h: interpolant_1d([0.0, 0.0], [1.0, 2.0]), "distinct"),
        (lambda g, h: interpolant_1d([0.0, 1.0], [1.0]), "equal lengths"),
    ],
)
def test_refusals(call, match):
    with pytest.raises(IsthmusError, match=match):
        call(random_net([4, 6, 2]), random_net([2, 5, 3]))
