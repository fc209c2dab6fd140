"""A-kopt: certificates of layers, and Frank–Wolfe over covariance pairs."""

from __future__ import annotations

import math

import pytest
import torch

from isthmus import FullyConnected, IsthmusError
from isthmus.constructions import bipartite_data, bipartite_narrow, bipartite_optimum, one_hot_data, one_hot_optimum
from isthmus.measures import covariance_loss, covariances, parameter_norms, representations
from isthmus.objective import cost
from isthmus.reformulations import certify_layer, optimise_covariances
from tools import assert_close, gaussian, random_net


def loss_of(net, X, Y, ridge):
    return float(cost(net(X).detach(), Y)) + ridge * parameter_norms(net).total


def assert_falling(history):
    assert all(after <= before * (1 + 1e-12) for before, after in zip(history, history[1:]))


# ------------------------------------------------------------------------------------------------------ certificates


@pytest.mark.parametrize("N", [4, 6, 8])
def test_prop_14_is_accepted_and_remark_23_rejected(N):
    X, Y = bipartite_data(N)
    best = certify_layer(bipartite_optimum(N), X, 1)
    assert best.verdict == "certified" and best.move == "" and best.direction is None
    assert_close([best.value, best.lower_bound], [N * N] * 2, rtol=1e-9, reason="the tolerance of the certificate")
    assert best.complementarity < 1e-12
    worse = certify_layer(bipartite_narrow(N), X, 1)
    assert worse.verdict == "descent found"
    assert_close(worse.value, N * N + N)
    assert worse.lower_bound <= N * N  # right, if weak
    assert worse.lower_value < worse.value
    # The samples' common direction: each of them gains by it.
    assert_close(worse.ratio_found, 4.0, rtol=1e-6, reason="a search")
    assert worse.direction is not None and float(worse.direction.min()) > 0


@pytest.mark.parametrize("N", [4, 6])
@pytest.mark.parametrize("ridge", [1e-3, 0.05])
def test_prop_14_with_a_ridge(N, ridge):
    X, Y = bipartite_data(N)
    best = certify_layer(bipartite_optimum(N, ridge=ridge), X, 1, Y=Y, ridge=ridge)
    assert best.verdict == "certified"
    assert_close(best.value, loss_of(bipartite_optimum(N, ridge=ridge), X, Y, ridge))
    for net in (bipartite_optimum(N), bipartite_narrow(N)):
        other = certify_layer(net, X, 1, Y=Y, ridge=ridge)
        assert other.verdict == "descent found" and other.lower_value < other.value
        assert other.lower_bound <= best.value <= other.lower_value * (1 + 1e-9)


def test_one_hot_is_accepted_from_its_plateau_on():
    sizes, ridge = (3, 2, 2), 0.02
    X, Y = one_hot_data(sizes)
    verdicts = [
        certify_layer(one_hot_optimum(sizes, width=w, ridge=ridge), X, 1, Y=Y, ridge=ridge).verdict for w in (2, 3, 5)
    ]
    assert verdicts == ["descent found", "certified", "certified"]


@pytest.mark.parametrize(
    ("change", "move"),
    [
        (lambda W_1, W_2: (W_1, 1.2 * W_2), "outputs"),
        (lambda W_1, W_2: (1.2 * W_1, W_2 / 1.2), "reweighting"),
        (lambda W_1, W_2: (W_1[1:], W_2[:, 1:]), "a neuron"),
    ],
)
def test_each_move(change, move):
    """An optimum spoilt in its outputs, its weights or its neurons: the move that mends it has the lowest loss."""
    ridge = 0.05
    X, Y = one_hot_data((2, 2, 1))
    Ws = change(*(W.detach() for W in one_hot_optimum((2, 2, 1), ridge=ridge).Ws))
    found = certify_layer(FullyConnected.from_weights(Ws), X, 1, Y=Y, ridge=ridge)
    assert found.verdict == "descent found" and found.move == move
    assert found.lower_value < found.value


def test_a_bound_is_never_above_what_training_reaches():
    """Random networks, with biases and slopes: no other network is below the bound of a certificate."""
    X, Y, ridge = gaussian(5, 2), gaussian(5, 2, seed=1), 0.05
    for slope, bias in ((0.0, 1.0), (0.3, 0.0)):
        found = certify_layer(random_net([2, 9, 2], slope, bias), X, 1, Y=Y, ridge=ridge)
        assert found.verdict != "certified" and 0 <= found.lower_bound < found.value
        for seed in range(2):
            net = random_net([2, 9, 2], slope, bias, seed=seed)
            optimiser = torch.optim.LBFGS(net.parameters(), max_iter=60, line_search_fn="strong_wolfe")

            def closure(net=net, optimiser=optimiser):
                optimiser.zero_grad()
                value = cost(net(X), Y) + ridge * sum(p.square().sum() for p in net.parameters())
                value.backward()
                return value

            optimiser.step(closure)
            assert loss_of(net, X, Y, ridge) >= found.lower_bound


def test_deep_layers():
    """Each hidden layer by itself; a useless part of W is none of the pair's."""
    X = gaussian(4, 3)
    net = random_net([3, 6, 5, 2])
    for ell in (1, 2):
        found = certify_layer(net, X, ell)
        assert found.layer == ell and found.verdict == "descent found"
        assert found.lower_value < found.value <= parameter_norms(net).total * (1 + 1e-9)


def test_undetermined_is_said():
    """Without patterns norms prove nothing here, and near the optimum no search disproves it either."""
    X, Y = gaussian(5, 2, seed=3), gaussian(5, 1, seed=4)
    found = optimise_covariances(X, Y, ridge=0.05, bias=0.0)
    assert found.state == "certified"
    weak = certify_layer(found.network, X, 1, Y=Y, ridge=0.05, tolerance=1e-5, patterns=0)
    assert weak.verdict == "no descent found" and weak.lower_value == math.inf and weak.patterns == 0


@pytest.mark.parametrize(
    ("change", "match"),
    [({"Y": torch.eye(4)}, "together"), ({"ell": 2}, "ell"), ({"ell": 0}, "ell"), ({"tolerance": 0.0}, "tolerance")],
)
def test_bad_certificates(change, match):
    arguments = {"ell": 1, **change}
    with pytest.raises(IsthmusError, match=match):
        certify_layer(bipartite_optimum(4), torch.eye(4), arguments.pop("ell"), **arguments)


# ------------------------------------------------------------------------------------------------------ optimisation


@pytest.mark.parametrize("N", [4, pytest.param(6, marks=pytest.mark.slow)])
def test_finds_the_optimum_of_prop_14(N):
    ridge = 0.05
    X, Y = bipartite_data(N)
    found = optimise_covariances(X, Y, ridge=ridge, bias=0.0)
    assert found.state == "certified"
    assert_close(found.loss, loss_of(bipartite_optimum(N, ridge=ridge), X, Y, ridge), rtol=1e-5, reason="its tolerance")
    Z = found.atoms[0]
    K = (1 - 2 * ridge) * Y + ridge  # unique
    assert_close(Z.mT @ Z, K, rtol=1e-2, atol=2e-2, reason="the loss is flat at its minimum")


@pytest.mark.parametrize(
    ("bias", "slope"),
    [
        (0.0, 0.0),
        pytest.param(1.0, 0.0, marks=pytest.mark.slow),
        pytest.param(1.0, 0.3, marks=pytest.mark.slow),
        pytest.param(0.0, -0.5, marks=pytest.mark.slow),
    ],
)
def test_global_minimum_of_depth_2(bias, slope):
    X, Y, ridge = gaussian(5, 2, seed=5), gaussian(5, 1, seed=6), 0.05
    found = optimise_covariances(X, Y, ridge=ridge, bias=bias, slope=slope)
    assert found.state == "certified"
    assert_close(found.loss, loss_of(found.network, X, Y, ridge))
    assert_falling(found.history)
    assert found.certificates[0].lower_bound <= found.loss * (1 + 1e-12)
    # From covariances alone: the same number.
    Zs = representations(found.network, X)
    Ks = covariances(Zs, slope=slope, bias=bias)
    by_covariances = covariance_loss(Ks, Zs[-1], X, Y, ridge=ridge, bias=bias)
    assert_close(found.loss, by_covariances, rtol=1e-5, reason="a covariance knows √eps")


def test_start_and_no_rise():
    """At depth 3 no layer ends higher than it began."""
    X, Y, ridge = gaussian(4, 2), gaussian(4, 1, seed=1), 0.05
    net = random_net([2, 8, 8, 1])
    found = optimise_covariances(X, Y, ridge=ridge, depth=3, start=net, rounds=2)
    assert found.loss <= loss_of(net, X, Y, ridge)
    assert_falling(found.history)
    assert found.state in ("not converged", "no descent found", "certified")
    assert len(found.certificates) == 2 and len(found.atoms) == 2
    assert_close(found.loss, found.history[-1], rtol=1e-6, reason="through weights and through pairs")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"ridge": 0.0}, "ridge"),
        ({"depth": 1}, "depth"),
        ({"start": random_net([2, 3, 1], bias=0.0)}, "start"),
        ({"slope": 2.0}, "slope"),
    ],
)
def test_bad_input(change, match):
    with pytest.raises(IsthmusError, match=match):
        optimise_covariances(gaussian(4, 2), gaussian(4, 1), **{"ridge": 0.1, **change})


def test_too_many_samples():
    with pytest.raises(IsthmusError, match="as many rows"):
        optimise_covariances(gaussian(61, 2), gaussian(61, 1), ridge=0.1)


# ------------------------------------------------------------------------------------- layers in which nothing pays


@pytest.mark.parametrize(
    ("X", "Y", "options"),
    [
        (gaussian(4, 2), gaussian(4, 1, seed=1), {"ridge": 5.0, "bias": 0.0}),
        (gaussian(4, 2), gaussian(4, 1, seed=1), {"ridge": 50.0, "bias": 0.0, "depth": 3}),
        (gaussian(4, 2), torch.zeros(4, 1, dtype=torch.float64), {"ridge": 0.1}),
        (torch.zeros(4, 2, dtype=torch.float64), gaussian(4, 1, seed=1), {"ridge": 0.1, "bias": 0.0}),
    ],
    ids=["a large ridge", "deep", "no targets", "no inputs"],
)
def test_the_zero_network_is_found_and_certified(X, Y, options):
    found = optimise_covariances(X, Y, **options)
    assert found.state == "certified"
    assert_close(found.loss, float(Y.square().sum(1).mean()), reason=None)
    assert parameter_norms(found.network).total < 1e-12


def test_a_layer_that_is_fed_nothing_is_certified():
    net = random_net([2, 3, 1], bias=0.0)
    said = certify_layer(net, torch.zeros(4, 2, dtype=torch.float64), 1, Y=gaussian(4, 1), ridge=0.1)
    assert said.verdict == "certified"
    assert_close(said.lower_bound, said.value)
