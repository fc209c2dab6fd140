"""A-rebalance: same function, least norm over rescalings, by a second route and at every edge."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from isthmus import ConvergenceWarning, FullyConnected, IsthmusError, rebalance
from isthmus.compression import rebalance as _function  # the module of the same name is shadowed by it
from isthmus.measures import balance, linear_cost, parameter_norms
from isthmus.networks import _rescaling
from tools import assert_close, gaussian, generator, linear_net, random_net

KINDS = ("neuron", "layer")


def unbalanced(dims, slope=0.0, bias=1.0, *, seed=0, spread=1.5, sparse=False, dtype=torch.float64):
    """A network with scales over several orders of magnitude, optionally with half of its weights zero."""
    source = generator(seed)
    net = random_net(dims, slope, bias, seed=seed)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(10.0 ** (spread * float(torch.randn(1, generator=source))))
            if sparse:
                p.mul_(torch.rand(p.shape, generator=source, dtype=torch.float64) < 0.5)
    return net.to(dtype)


def check_function(net, result, seed=0):
    X = gaussian(25, net.dims[0], seed=seed)
    before, after = net.double()(X), result.network.double()(X)
    scale = float(before.detach().abs().max())
    assert_close(after, before, rtol=1e-12, atol=1e-12 * scale, reason="relative to the largest output")


@pytest.mark.parametrize("by", KINDS)
@pytest.mark.parametrize("bias", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("slope", [-1.0, 0.0, 0.3, 1.0])
@pytest.mark.parametrize("dims", [[3, 2], [3, 6, 2], [4, 7, 5, 6, 3], [2, *[5] * 11, 3]])
def test_function_norm_and_balance(by, bias, slope, dims):
    net = unbalanced(dims, slope, bias, seed=len(dims))
    copy = [p.detach().clone() for p in net.parameters()]
    result = rebalance(net, by=by)
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), copy))
    check_function(net, result)
    assert result.state == "converged"
    assert result.norm_after <= result.norm_before * (1 + 1e-13)
    assert_close(result.norm_after, parameter_norms(result.network).total)
    measured = balance(result.network)
    residual = measured.neuron_residual if by == "neuron" else measured.layer_residual
    assert residual < 1e-10
    assert residual == result.residual
    again = rebalance(result.network, by=by)
    assert_close(again.norm_after, result.norm_after)
    for p, q in zip(again.network.parameters(), result.network.parameters()):
        assert_close(p, q, rtol=1e-8, atol=1e-8, reason="scales are determined to the root of the norm's rounding")


@given(
    st.integers(0, 10**6),
    st.integers(1, 9),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.booleans(),
    st.sampled_from(KINDS),
)
def test_fuzz(seed, depth, bias, sparse, by):
    sizes = torch.randint(1, 9, (depth + 1,), generator=generator(seed)).tolist()
    net = unbalanced(sizes, 0.1, bias, seed=seed, spread=2.0, sparse=sparse)
    result = rebalance(net, by=by)
    check_function(net, result)
    assert result.state == "converged"
    assert result.norm_after <= result.norm_before * (1 + 1e-13)


@pytest.mark.parametrize("bias", [0.0, 1.0])
@pytest.mark.parametrize("by", KINDS)
def test_against_a_general_minimiser(by, bias):
    """The same minimum by BFGS on the logarithms of the scales, from the network's own arithmetic."""
    net = unbalanced([3, 5, 4, 2], bias=bias, spread=0.5, seed=3)
    sizes = [5, 4] if by == "neuron" else [1, 1]

    def scaled(logs: torch.Tensor):
        u = [torch.zeros(1, dtype=torch.float64), *logs.split(sizes), torch.zeros(1, dtype=torch.float64)]
        Ws = [W.detach() * torch.exp(u[i + 1][:, None] - u[i][None, :]) for i, W in enumerate(net.Ws)]
        return Ws, [b.detach() * torch.exp(u[i + 1]) for i, b in enumerate(net.bs)]

    def norm(flat: np.ndarray) -> tuple[float, np.ndarray]:
        logs = torch.from_numpy(flat).requires_grad_()
        Ws, bs = scaled(logs)
        value = sum(p.square().sum() for p in (*Ws, *bs))
        assert isinstance(value, torch.Tensor)
        (gradient,) = torch.autograd.grad(value, logs)
        return float(value.detach()), gradient.numpy()

    found = minimize(norm, np.zeros(sum(sizes)), jac=True, method="BFGS", options={"gtol": 1e-10})
    result = rebalance(net, by=by)
    assert_close(result.norm_after, found.fun)
    Ws, _ = scaled(torch.from_numpy(found.x))
    for W, V in zip(result.network.Ws, Ws):
        assert_close(W, V, rtol=1e-5, atol=1e-6, reason="a quasi-Newton minimiser's scales")


def test_neuron_is_never_above_layer():
    net = unbalanced([4, 7, 5, 6, 3], seed=8)
    assert rebalance(net).norm_after <= rebalance(net, by="layer").norm_after


def test_layer_has_a_closed_form_without_bias():
    # Minimise Σ c_ℓ² n_ℓ with Π c_ℓ = 1: all parts become the geometric mean.
    net = unbalanced([4, 7, 5, 6, 3], bias=0.0, seed=9)
    parts = parameter_norms(net).weights
    assert_close(rebalance(net, by="layer").norm_after, 4 * float(parts.log().mean().exp()))


def test_undoes_a_random_rescaling():
    net = linear_net([2.0, 0.7, 0.1], [4, 6, 5, 4])
    result = rebalance(net)
    # Neuron-wise the optimal linear network is already balanced, WᵀW = WWᵀ across layers.
    assert_close(result.norm_after, linear_cost(net.Ws[2] @ net.Ws[1] @ net.Ws[0], 3))
    Ws = [W.detach().clone() for W in net.Ws]
    c = (3 * gaussian(6, seed=4)).exp()
    Ws[0], Ws[1] = c[:, None] * Ws[0], Ws[1] / c
    other = rebalance(FullyConnected.from_weights(Ws, slope=1.0))
    for W, V in zip(other.network.Ws, result.network.Ws):
        assert_close(W, V, rtol=1e-8, atol=1e-8, reason="scales are determined to the root of the norm's rounding")


def test_dead_neurons():
    net = random_net([3, 4, 4, 4, 2], seed=5)
    with torch.no_grad():
        net.weights[1][:, 0] = 0.0  # neuron 0 of layer 1 is not heard
        net.weights[2][1] = 0.0  # neuron 1 of layer 3 hears nothing …
        net.biases[2][1] = 0.0  # … and has no bias: silent
    result = rebalance(net)
    assert result.dead_neurons == (1, 0, 1)
    check_function(net, result)
    assert not result.network.Ws[0][0].any()
    assert float(result.network.bs[0][0].detach()) == 0.0
    assert not result.network.Ws[3][:, 1].any()
    assert result.state == "converged"


def test_a_neuron_with_only_a_bias_is_not_silent():
    net = random_net([3, 4, 2], seed=5)
    with torch.no_grad():
        net.weights[0][2] = 0.0
    result = rebalance(net)
    assert result.dead_neurons == (0,)
    check_function(net, result)


def test_dead_neurons_cascade():
    # Layer 3 is heard by nobody, hence nor is layer 2, nor layer 1: only the last bias is left.
    net = random_net([3, 4, 4, 4, 2], seed=6)
    with torch.no_grad():
        net.weights[3].zero_()
    for by in KINDS:
        result = rebalance(net, by=by)
        assert result.dead_neurons == (4, 4, 4)
        check_function(net, result)
        assert_close(result.norm_after, net.bs[3].detach().square().sum())
    # Forward: a layer without input and bias silences what follows as far as biases allow.
    net = random_net([3, 4, 4, 2], bias=0.0, seed=6)
    with torch.no_grad():
        net.weights[0].zero_()
    for by in KINDS:
        result = rebalance(net, by=by)
        assert result.dead_neurons == (4, 4)
        assert result.norm_after == 0.0


def test_zero_network():
    result = rebalance(FullyConnected([3, 4, 2], init_scale=0.0))
    assert (result.norm_after, result.state) == (0.0, "converged")


@pytest.mark.parametrize("by", KINDS)
def test_float32(by):
    net = unbalanced([4, 7, 6, 3], spread=0.5, seed=7, dtype=torch.float32).eval()
    result = rebalance(net, by=by)
    assert result.network.Ws[0].dtype == torch.float32
    assert not result.network.training
    X = gaussian(20, 4, dtype=torch.float32)
    assert_close(result.network(X), net(X), rtol=1e-5, atol=1e-4, reason="outputs of size 10 to 100 in float32")


def test_not_converged_is_said(monkeypatch):
    monkeypatch.setattr(_rescaling, "_MAX_NEWTON_STEPS", 0)
    net = unbalanced([4, *[6] * 60, 3], spread=0.3, seed=10)
    with pytest.warns(ConvergenceWarning, match="relative unbalanced norm"):
        result = rebalance(net)
    assert result.state == "not converged"
    assert result.residual > 1e-10
    check_function(net, result)
    assert result.norm_after <= result.norm_before


def test_extreme_scales():
    net = random_net([3, 5, 5, 2], bias=0.0, seed=11)
    with torch.no_grad():
        net.weights[0].mul_(1e60)
        net.weights[2].mul_(1e-60)
    result = rebalance(net)
    assert result.state == "converged"
    check_function(net, result)


def test_refused():
    net = random_net([3, 4, 2])
    with pytest.raises(IsthmusError, match="'neuron', 'layer'"):
        rebalance(net, by="weight")
    for name, value in (("weights", float("nan")), ("biases", float("inf"))):
        broken = random_net([3, 4, 2])
        with torch.no_grad():
            getattr(broken, name)[0].view(-1)[0] = value
        with pytest.raises(IsthmusError, match="finite"):
            rebalance(broken)
    assert _function is rebalance
