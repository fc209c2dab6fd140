"""FullyConnected with slopes by layer, linear neurons, and layers without a bias: each by a second route."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn

import isthmus
from isthmus import FullyConnected, IsthmusError
from isthmus.networks._network import from_parts, to_parts
from isthmus.trace import activate, activation_derivative
from tools import assert_close, gaussian, generator, random_net

DIMS = (3, 5, 4, 6, 2)

#: (slopes, linear neurons, biases): alone and together.
KINDS = [
    ([0.0, 0.3, -1.0], [0, 0, 0], [True] * 4),
    ([0.2] * 3, [2, 0, 5], [True] * 4),
    ([0.2] * 3, [0, 0, 0], [True, False, True, False]),
    ([0.0, 1.0, 0.5], [1, 0, 6], [False, True, False, True]),
    ([0.0, 0.3, 1.0], [4, 4, 2], [False] * 4),
]


def made(slopes, linear, biased, *, bias=1.0, dtype=torch.float64):
    Ws = [gaussian(n, m, seed=i) for i, (m, n) in enumerate(itertools.pairwise(DIMS))]
    bs = [gaussian(len(W), seed=10 + i) if has else None for i, (W, has) in enumerate(zip(Ws, biased))]
    net = FullyConnected.from_weights(Ws, bs if bias else None, slope=slopes, linear=linear, bias=bias)
    return net.to(dtype)


def by_hand(net, x):
    """f(x) and all pre-activations, neuron by neuron."""
    alpha, found = x.tolist(), []
    for i, W in enumerate(net.Ws):
        b = net.biases[i] if net.bias else None
        z = [sum(w * a for w, a in zip(row, alpha)) for row in W.tolist()]
        z = [v + (0.0 if b is None else net.bias * b[k].item()) for k, v in enumerate(z)]
        found.append(z)
        if i < net.depth - 1:
            alpha = [v if v > 0 or k < net.linear[i] else net.slopes[i] * v for k, v in enumerate(z)]
    return found


@pytest.mark.parametrize("bias", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("kind", KINDS)
def test_forward_and_trace_are_the_definition(kind, bias):
    net, X = made(*kind, bias=bias), gaussian(6, 3, seed=20)
    wanted = [by_hand(net, x) for x in X]
    assert_close(net(X), [one[-1] for one in wanted])
    assert_close(net(X.view(2, 3, 3)), net(X).view(2, 3, 2))
    trace = net.trace(X)
    for ell in range(1, 5):
        assert_close(trace.preactivations[ell - 1], [one[ell - 1] for one in wanted])
    assert trace.slopes == net.slopes and (trace.linear or (0, 0, 0)) == net.linear
    assert len(trace.bs) == (4 if bias else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_are_those_of_autograd(kind):
    net, X = made(*kind), gaussian(6, 3, seed=20)
    trace = net.trace(X)
    for ell in range(1, 4):
        Z = trace.preactivations[ell - 1].clone().requires_grad_()
        activate(Z, net.slopes[ell - 1], net.linear[ell - 1]).sum().backward()
        assert_close(trace.derivative(ell), Z.grad)
        assert bool((trace.derivative(ell)[:, : net.linear[ell - 1]] == 1).all())
    # The Jacobian as a product of weights and these diagonals.
    J = trace.Ws[0].expand(6, -1, -1)
    for ell in range(1, 4):
        J = trace.Ws[ell] @ (trace.derivative(ell)[:, :, None] * J)
    wanted = torch.stack([torch.autograd.functional.jacobian(net, x) for x in X])
    assert_close(J, wanted)


def test_the_derivative_at_zero_is_1_only_where_it_is_linear():
    Z = torch.zeros(2, 3, dtype=torch.float64)
    assert activation_derivative(Z, 0.0, 1).tolist() == [[1.0, 0.0, 0.0]] * 2
    assert activation_derivative(Z, 0.2, 2).tolist() == [[1.0, 1.0, 0.2]] * 2


@pytest.mark.parametrize("bias", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("kind", KINDS)
def test_as_pytorch_layers(kind, bias):
    net, X = made(*kind, bias=bias), gaussian(6, 3, seed=20)
    plain = net.to_torch()
    assert_close(plain(X), net(X))
    linears = [layer for layer in plain if isinstance(layer, nn.Linear)]
    assert [layer.bias is not None for layer in linears] == [has and bias != 0.0 for has in kind[2]]
    for layer, slope, count, width in zip(plain[1::2], net.slopes, net.linear, DIMS[1:-1]):
        if slope == 1.0 or count == width:
            assert type(layer) is nn.Identity
        elif count:
            assert type(layer) is nn.PReLU and not layer.weight.requires_grad
            assert layer.weight.tolist() == [1.0] * count + [slope] * (width - count)
        else:
            assert type(layer) is (nn.ReLU if slope == 0.0 else nn.LeakyReLU)
    assert not copy.deepcopy(net).eval().to_torch().training
    assert not any(p.requires_grad for p in copy.deepcopy(net).requires_grad_(False).to_torch().parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [0.5, 0.0])
@pytest.mark.parametrize("kind", KINDS)
def test_configuration_and_file(tmp_path, kind, bias, dtype):
    net = made(*kind, bias=bias, dtype=dtype)
    slopes, linear, biased = kind
    config = net.config()
    assert config["dims"] == list(DIMS) and config["bias"] == bias
    assert config["slope"] == (slopes[0] if len(set(slopes)) == 1 else slopes)
    assert config.get("linear", [0, 0, 0]) == linear and ("linear" in config) == any(linear)
    assert ("biased" in config) == (bias != 0.0 and not all(biased))
    again = FullyConnected(**config, dtype=dtype, init_scale=0.0)
    again.load_state_dict(net.state_dict())
    isthmus.save(net, tmp_path / "n")
    back = isthmus.load(tmp_path / "n")
    X = gaussian(6, 3, seed=20, dtype=dtype)
    for one in (again, back):
        assert one.config() == config and list(one.state_dict()) == list(net.state_dict()) and repr(one) == repr(net)
        assert torch.equal(one(X), net(X))
        assert [b is None for b in one.biases] == [b is None for b in net.biases]


def test_a_file_says_what_differs_and_nothing_twice():
    net = made([0.2] * 3, [2, 0, 5], [True, False, True, True])
    config, tensors = to_parts(net)
    for change in (
        {"slope": [0.2] * 3},
        {"linear": None},
        {"linear": [2, 0]},
        {"linear": [2, 0, 7]},
        {"linear": [True, 0, 5]},
        {"biased": [True] * 4},
        {"biased": [1, 0, 1, 1]},
        {"biased": None},
        {"slope": [0.2, 0.2, 3.0]},
        {"slope": []},
    ):
        with pytest.raises(IsthmusError):
            from_parts(FullyConnected, {**config, **change}, tensors)
    for name in ("biased", "slope", "bias"):
        with pytest.raises(IsthmusError):
            from_parts(FullyConnected, {key: value for key, value in config.items() if key != name}, tensors)
    plain, tensors = to_parts(random_net([3, 5, 2]))
    for change in ({"linear": [0]}, {"biased": [True, True]}, {"slope": [0.0]}):
        with pytest.raises(IsthmusError, match="must have the keys and values"):
            from_parts(FullyConnected, {**plain, **change}, tensors)


def test_one_slope_for_all_is_the_network_of_the_papers():
    net = FullyConnected([3, 5, 4, 2], [0.3, 0.3], dtype=torch.float64, generator=generator())
    same = FullyConnected([3, 5, 4, 2], 0.3, dtype=torch.float64, generator=generator())
    assert net.uniform and net.slope == 0.3 and net.config() == same.config() and net.trace(gaussian(2, 3)).slope == 0.3
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), same.parameters()))


@pytest.mark.parametrize("kind", KINDS)
def test_what_needs_one_slope_says_so(kind):
    net = made(*kind)
    assert not net.uniform
    if len(set(kind[0])) > 1 or any(kind[1]):
        for subject in (net, net.trace(gaussian(2, 3))):
            with pytest.raises(IsthmusError, match="all layers must have one slope"):
                subject.slope  # noqa: B018


def test_initial_weights_follow_the_slope_of_their_layer():
    net = FullyConnected([400, 400, 400, 400], [0.0, 1.0], 0.0, dtype=torch.float64, generator=generator(3))
    for W, a in zip(net.Ws, (0.0, 1.0, 1.0)):
        assert_close(W.std(), (2 / (1 + a**2) / 400) ** 0.5, rtol=0.02, reason="a sample of 160 000")


def test_biases_that_are_missing():
    net = made([0.2] * 3, [0, 0, 0], [True, False, True, False])
    assert [name for name, _ in net.named_parameters()] == [f"weights.{i}" for i in range(4)] + ["biases.0", "biases.2"]
    assert [bool(b.any()) for b in net.bs] == [True, False, True, False]
    assert sum(p.numel() for p in net.parameters()) == 15 + 20 + 24 + 12 + 5 + 6
    net.double()(gaussian(4, 3)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    assert net.to(torch.float32).bs[1].dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"slope": [0.0]}, "`slope` must be one number, or 2"),
        ({"slope": [0.0, 2.0]}, r"slope\[1\]"),
        ({"slope": [0.0, "1"]}, r"slope\[1\]"),
        ({"linear": [1]}, "`linear` must be 2 numbers"),
        ({"linear": 1}, "`linear` must be 2 numbers"),
        ({"linear": [6, 0]}, r"linear\[0\]"),
        ({"linear": [-1, 0]}, r"linear\[0\]"),
        ({"linear": [1.0, 0]}, r"linear\[0\]"),
        ({"biased": [True, True]}, "`biased` must be 3 times true or false"),
        ({"biased": [1, 1, 1]}, "`biased` must be 3 times true or false"),
        ({"biased": True}, "`biased` must be 3 times true or false"),
    ],
)
def test_refused_layers(arguments, message):
    with pytest.raises(IsthmusError, match=message):
        FullyConnected([3, 5, 4, 2], **arguments)


def test_shapes_of_biases_are_checked_where_there_are_any():
    Ws = [gaussian(5, 3), gaussian(2, 5)]
    assert FullyConnected.from_weights(Ws, [None, None]).bias == 1.0
    with pytest.raises(IsthmusError, match=r"`bs\[1\]` must have shape \(2,\)"):
        FullyConnected.from_weights(Ws, [None, gaussian(3)])
