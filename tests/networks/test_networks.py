"""M-fc as an ordinary module, and its traces."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev, stack_module_state, vmap

import isthmus
from isthmus import DataError, FullyConnected, IsthmusError
from isthmus.networks._fully_connected import propagate
from isthmus.trace import with_ones
from tools import assert_close, gaussian, generator, random_net

SLOPES = (-1.0, -0.4, 0.0, 0.2, 1.0)


def by_hand(net: FullyConnected, x: np.ndarray) -> np.ndarray:
    """f(x) for one sample, in NumPy, neuron by neuron."""
    alpha = x
    for ell, W in enumerate(net.Ws):
        z = np.array(
            [
                sum(W[i, j].item() * alpha[j] for j in range(W.shape[1]))
                + (net.bias * net.bs[ell][i].item() if net.bs else 0.0)
                for i in range(W.shape[0])
            ]
        )
        alpha = np.array([v if v >= 0 else net.slope * v for v in z])
    return z


@pytest.mark.parametrize("slope", SLOPES)
@pytest.mark.parametrize("bias", [0.0, 0.5, 1.0])
def test_forward_is_the_definition(slope, bias):
    net = random_net([3, 5, 4, 2], slope, bias, seed=1)
    X = gaussian(6, 3, seed=2)
    assert_close(net(X), np.stack([by_hand(net, x.numpy()) for x in X]))
    assert (len(net.bs) == 0) == (bias == 0.0)


def test_linear_net_is_the_product():
    net = random_net([4, 6, 5, 3], 1.0, 0.0)
    X = gaussian(7, 4)
    assert_close(net(X), X @ (net.Ws[2] @ net.Ws[1] @ net.Ws[0]).mT)


def test_leading_axes_and_single_vectors():
    net = random_net([3, 5, 2])
    X = gaussian(2, 4, 3)
    assert net(X).shape == (2, 4, 2)
    assert_close(net(X)[1, 2], net(X[1, 2]))


def test_inside_sequential_and_training():
    model = nn.Sequential(nn.Linear(3, 4), FullyConnected([4, 6, 2], generator=generator()))
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(gaussian(8, 3, dtype=torch.float32)).square().mean()
    loss.backward()
    optimizer.step()
    assert all(p.grad is not None for p in model.parameters())
    assert any(not torch.equal(p, q) for p, q in zip(model.parameters(), before))


def test_torch_func():
    net = random_net([3, 5, 2])
    parameters = dict(net.named_parameters())
    X = gaussian(4, 3)
    assert_close(functional_call(net, parameters, (X,)), net(X))
    doubled = {k: 2 * p for k, p in parameters.items()}
    assert not torch.allclose(functional_call(net, doubled, (X,)), net(X))
    J = vmap(jacrev(lambda p, x: functional_call(net, p, (x,))), in_dims=(None, 0))(parameters, X)
    assert J["weights.0"].shape == (4, 2, 5, 3)
    assert J["biases.1"].shape == (4, 2, 2)


def test_vmap_over_a_stack_of_networks_equals_propagate_and_a_loop():
    nets = [random_net([3, 5, 4, 2], 0.1, 0.7, seed=i) for i in range(4)]
    X = gaussian(6, 3)
    expected = torch.stack([net(X) for net in nets])
    parameters, buffers = stack_module_state(nets)  # pyright: ignore[reportArgumentType]
    got = vmap(lambda p, b: functional_call(nets[0], (p, b), (X,)))(parameters, buffers)
    assert_close(got, expected)
    Ws = [torch.stack([net.Ws[i] for net in nets]) for i in range(3)]
    bs = [torch.stack([net.bs[i] for net in nets]) for i in range(3)]
    preactivations, activations = propagate(Ws, bs, X, slopes=[0.1] * (len(Ws) - 1), bias=0.7)
    assert_close(preactivations[-1], expected)
    assert_close(activations[1][2], nets[2].trace(X).activations[1])


def test_to_state_dict_and_copies():
    net = random_net([3, 5, 2], dtype=torch.float32)
    wide = copy.deepcopy(net).to(torch.float64)
    assert {p.dtype for p in wide.parameters()} == {torch.float64}
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    assert list(net.state_dict()) == ["weights.0", "weights.1", "biases.0", "biases.1"]
    other = FullyConnected([3, 5, 2])
    other.load_state_dict(net.state_dict())
    X = gaussian(4, 3, dtype=torch.float32)
    assert torch.equal(other(X), net(X))
    clone = copy.deepcopy(net)
    with torch.no_grad():
        clone.weights[0].zero_()
    assert not torch.equal(clone(X), net(X))


def test_flat_buffer_order():
    net = random_net([3, 5, 2])
    flat = nn.utils.parameters_to_vector(net.parameters())
    assert_close(flat, torch.cat([p.reshape(-1) for p in (*net.Ws, *net.bs)]))


def test_generator_decides_alone():
    state = torch.get_rng_state()
    one = FullyConnected([4, 8, 3], generator=generator(5))
    two = FullyConnected([4, 8, 3], generator=generator(5))
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), two.parameters()))
    assert torch.equal(torch.get_rng_state(), state)


def test_from_weights_draws_nothing():
    state = torch.get_rng_state()
    FullyConnected.from_weights([torch.eye(3)])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("slope", SLOPES)
def test_initial_variance_keeps_the_second_moment(slope):
    net = FullyConnected([400, 400, 400], slope, 0.0, dtype=torch.float64, generator=generator(3))
    trace = net.trace(gaussian(50, 400, seed=4))
    # E[σ_a(z)²]·2/(1+a²) = E[z²] for Gaussian z; the mean activation is one direction, of relative spread
    # √(2/400).
    ratio = trace.preactivations[1].square().mean() / trace.preactivations[0].square().mean()
    assert_close(ratio, 1.0, rtol=0.3, reason="a statistical estimate")


def test_a_row_of_ones_for_no_neurons():
    assert torch.equal(with_ones(torch.zeros(0, 4), 0.5), torch.full((1, 4), 0.5))
    assert with_ones(torch.zeros(0, 4), 0.0).shape == (0, 4)


def test_trace_holds_what_it_says():
    net = random_net([3, 5, 4, 2], 0.3, 0.5)
    X = gaussian(6, 3)
    trace = net.trace(X)
    assert (trace.depth, trace.samples, trace.dims) == (3, 6, (3, 5, 4, 2))
    assert_close(trace.outputs, net(X))
    for ell in range(1, 4):
        assert_close(
            trace.preactivations[ell - 1],
            trace.activations[ell - 1] @ net.Ws[ell - 1].mT + 0.5 * net.bs[ell - 1],
        )
        # The same in the papers' orientation, with the bias as a last row: Z_ℓ = [W_ℓ, b_ℓ] Z^σ_{ℓ-1}.
        assert_close(trace.Z(ell), torch.cat([net.Ws[ell - 1], net.bs[ell - 1][:, None]], 1) @ trace.Z_sigma(ell - 1))
    assert torch.equal(trace.Z(0), X.mT)
    slopes = np.where(trace.preactivations[0] > 0, 1.0, 0.3)
    assert_close(trace.derivative(1), slopes)


def test_trace_is_frozen():
    net = random_net([3, 5, 2])
    X = gaussian(6, 3)
    trace = net.trace(X)
    inputs, outputs = trace.inputs.clone(), trace.outputs.clone()
    X.zero_()
    with torch.no_grad():
        net.weights[0].zero_()
    assert torch.equal(trace.inputs, inputs)
    assert torch.equal(trace.outputs, outputs)
    assert_close(trace.inputs @ trace.Ws[0].mT + trace.bs[0], trace.preactivations[0])
    assert not trace.outputs.requires_grad


def test_trace_dtypes():
    net = random_net([3, 5, 2], dtype=torch.float32)
    X = gaussian(4, 3)
    assert net.trace(X).outputs.dtype == torch.float64
    assert net.trace(X, dtype=None).outputs.dtype == torch.float32
    assert net.trace(X).source_eps == torch.finfo(torch.float32).eps


def _inputs():
    base = np.arange(12.0).reshape(4, 3) - 5
    readonly = base.copy()
    readonly.flags.writeable = False
    return {
        "lists": base.tolist(),
        "float32": base.astype(np.float32),
        "int": base.astype(int),
        "pandas": pd.DataFrame(base, columns=list("abc")),
        "pandas of objects": pd.DataFrame(base, columns=list("abc")).astype(object),
        "read-only": readonly,
        "fortran": np.asfortranarray(base),
        "negative strides": base[::-1, ::-1].copy()[::-1, ::-1],
        "non-contiguous": np.repeat(base, 2, axis=1)[:, ::2],
        "big-endian": base.astype(">f8"),
        "torch float32": torch.from_numpy(base).float(),
        "torch int": torch.from_numpy(base).long(),
        "torch with grad": torch.from_numpy(base.copy()).requires_grad_(),
        "torch transposed": torch.from_numpy(base.T.copy()).mT,
    }


@pytest.mark.parametrize("kind", list(_inputs()))
def test_accepted_inputs(kind):
    net = random_net([3, 5, 2])
    reference = net(torch.arange(12.0, dtype=torch.float64).reshape(4, 3) - 5)
    assert_close(net.trace(_inputs()[kind]).outputs, reference)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([[1.0, 2.0, float("nan")]], "1 NaN or infinite of 3"),
        (np.full((2, 3), np.inf), "6 NaN or infinite of 6"),
        ([["a", "b", "c"]], "numeric"),
        (pd.DataFrame({"x": ["u"], "y": [1.0], "z": [2.0]}), "numeric"),
        (pd.DataFrame({"x": [None], "y": [1.0], "z": [2.0]}), "NaN"),
        ([[1.0, 2.0, 3.0], [1.0]], "unequal length"),
        (np.zeros((0, 3)), "empty"),
        (np.zeros((2, 3), dtype=complex), "real"),
        (torch.zeros(2, 3, dtype=torch.complex64), "real"),
        (np.zeros((2, 3), dtype="datetime64[s]"), "real numbers"),
        ({"x": 1}, "numeric"),
        (None, "NaN"),
    ],
)
def test_refused_data(bad, message):
    with pytest.raises(IsthmusError, match=message):
        random_net([3, 5, 2]).trace(bad)


def test_refused_shapes():
    net = random_net([3, 5, 2])
    with pytest.raises(IsthmusError, match="3 columns"):
        net.trace(np.zeros((4, 2)))
    with pytest.raises(IsthmusError, match="2-D"):
        net.trace(np.zeros((4, 3, 1)))
    with pytest.raises(IsthmusError, match="2-D"):
        net.trace(1.0)


def test_one_column_may_be_a_vector():
    net = random_net([1, 4, 2])
    assert_close(net.trace([1.0, 2.0]).outputs, net(torch.tensor([[1.0], [2.0]], dtype=torch.float64)))


def test_non_finite_network_is_named_by_layer():
    net = random_net([3, 5, 4, 2])
    with torch.no_grad():
        net.weights[1][0, 0] = float("nan")
    with pytest.raises(DataError, match="layer 2"):
        net.trace(gaussian(3, 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dims": [3]}, "2 to"),
        ({"dims": 3}, "sequence of integers"),
        ({"dims": [3, 0, 2]}, r"dims\[1\]"),
        ({"dims": [3, 2.0]}, r"dims\[1\]"),
        ({"dims": [3, True]}, r"dims\[1\]"),
        ({"dims": "32"}, r"dims\[0\]"),
        ({"dims": [3, 2**40]}, r"dims\[1\]"),
        ({"slope": 1.5}, "slope"),
        ({"slope": float("nan")}, "slope"),
        ({"slope": "0"}, "slope"),
        ({"bias": float("inf")}, "bias"),
        ({"init_scale": -1.0}, "init_scale"),
        ({"dtype": torch.int64}, "dtype"),
    ],
)
def test_refused_architectures(arguments, message):
    with pytest.raises(IsthmusError, match=message):
        FullyConnected(**{"dims": [3, 2], **arguments})


def test_from_weights():
    Ws, bs = [np.ones((4, 3)), np.ones((2, 4))], [np.ones(4), np.zeros(2)]
    net = FullyConnected.from_weights(Ws, bs, slope=0.1, bias=0.5)
    assert (net.dims, net.bias, net.slope) == ((3, 4, 2), 0.5, 0.1)
    Ws[0][:] = 7
    assert net.Ws[0].max() == 1.0
    assert FullyConnected.from_weights(Ws).bias == 0.0
    assert FullyConnected.from_weights([torch.ones(2, 3, dtype=torch.int64)]).Ws[0].dtype == torch.float32


@pytest.mark.parametrize(
    ("Ws", "bs", "bias", "message"),
    [
        ([], None, None, "empty"),
        ([torch.zeros(3)], None, None, r"Ws\[0\]"),
        ([torch.zeros(4, 3), torch.zeros(2, 5)], None, None, r"Ws\[1\]"),
        ([torch.zeros(4, 3)], None, 1.0, "bs"),
        ([torch.zeros(4, 3)], [torch.zeros(3)], None, r"bs\[0\]"),
        ([torch.zeros(4, 3)], [], 1.0, "bs"),
    ],
)
def test_refused_weights(Ws, bs, bias, message):
    with pytest.raises(IsthmusError, match=message):
        FullyConnected.from_weights(Ws, bs, bias=bias)


def test_trace_index_errors():
    trace = random_net([3, 5, 2]).trace(gaussian(4, 3))
    for call in (
        lambda: trace.Z(3),
        lambda: trace.Z_sigma(2),
        lambda: trace.derivative(2),
        lambda: trace.derivative(0),
    ):
        with pytest.raises(IsthmusError, match="integer in"):
            call()


def test_repr_and_public_names():
    assert "dims=[3, 5, 2], slope=0, bias=1" in repr(random_net([3, 5, 2]))
    assert isthmus.FullyConnected is FullyConnected
    with pytest.raises(AttributeError, match="nonsense"):
        isthmus.nonsense  # noqa: B018
