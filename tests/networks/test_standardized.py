"""Standardized: a network behind the scaling of its inputs; the function, its PyTorch form, and its file."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import isthmus
from isthmus import FileFormatError, FullyConnected, IsthmusError, Standardized, load, save
from isthmus.networks._network import from_parts, to_parts
from tools import assert_close, gaussian, random_net


def network(dtype=torch.float64):
    """Linear neurons, a linear layer, and one without a bias, behind a scaling."""
    Ws = [gaussian(5, 3, seed=1), gaussian(2, 5, seed=2), gaussian(4, 2, seed=3)]
    bs = [gaussian(5, seed=4), None, gaussian(4, seed=5)]
    inner = FullyConnected.from_weights(Ws, bs, slope=[0.0, 1.0], linear=[2, 2], bias=0.5)
    return Standardized(inner, gaussian(3, seed=6), gaussian(3, seed=7).abs() + 0.5).to(dtype)


def test_function_by_hand():
    net = network()
    X = gaussian(7, 3)
    Z = ((X - net.shift) / net.scale) @ net.network.weights[0].mT + 0.5 * net.network.biases[0]
    A = torch.cat([Z[:, :2], Z[:, 2:].clamp_min(0.0)], 1)
    assert_close(net(X), (A @ net.network.weights[1].mT) @ net.network.weights[2].mT + 0.5 * net.network.biases[2])
    assert (net.d_in, net.d_out) == (3, 4) and "linear=[2, 2]" in repr(net) and "inputs=3" in repr(net)
    assert net(gaussian(2, 7, 3)).shape == (2, 7, 4)


def test_without_a_scaling_it_is_the_network():
    inner = random_net([3, 5, 2])
    net, X = Standardized(inner), gaussian(7, 3)
    assert torch.equal(net(X), inner(X))
    assert not bool(net.shift.any()) and bool((net.scale == 1).all()) and net.shift.dtype == torch.float64
    shift = gaussian(3)
    net = Standardized(inner, shift)
    shift.zero_()
    assert bool(net.shift.any())


def test_the_trace_is_that_of_the_network():
    net, X = network(), gaussian(7, 3)
    trace = net.trace(X)
    assert_close(trace.outputs, net(X))
    assert_close(trace.inputs, (X - net.shift) / net.scale)
    assert net.float().trace(X, dtype=None).outputs.dtype == torch.float32
    with pytest.raises(IsthmusError, match="3 columns"):
        net.trace(gaussian(7, 2))


def test_as_pytorch_layers():
    net, X = network(), gaussian(7, 3)
    plain = net.to_torch()
    assert_close(plain(X), net(X))
    assert [type(layer) for layer in plain[:3]] == [nn.BatchNorm1d, nn.Linear, nn.PReLU] and not plain.training
    plain(100.0 * X)  # in evaluation mode nothing is learned from what it sees
    assert_close(plain(X), net(X))


def test_it_gives_its_layers_and_takes_others():
    net, X = network(), gaussian(7, 3)
    assert net.plain_layers() is net.network
    other = net.eval().with_plain_layers(random_net([3, 6, 2]))
    assert type(other) is Standardized and not other.training and torch.equal(other.scale, net.scale)
    assert_close(other(X), random_net([3, 6, 2])((X - net.shift) / net.scale))

    class Tripled(FullyConnected):
        def forward(self, X):
            return 3.0 * super().forward(X)

    assert Tripled([3, 2]).plain_layers() is None and Standardized(Tripled([3, 2])).plain_layers() is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_file(tmp_path, dtype):
    net = network(dtype)
    save(net, tmp_path / "net.safetensors")
    same = load(tmp_path / "net.safetensors")
    assert type(same) is Standardized and same.network.linear == (2, 2) and same.network.slopes == (0.0, 1.0)
    assert same.config() == net.config() and list(same.state_dict()) == list(net.state_dict())
    assert all(torch.equal(p, q) for p, q in zip(net.state_dict().values(), same.state_dict().values()))
    X = gaussian(5, 3, dtype=dtype)
    assert torch.equal(net(X), same(X))


INNER = {"dims": [3, 5, 2, 4], "slope": [0.0, 1.0], "bias": 0.5, "linear": [2, 2], "biased": [True, False, True]}


@pytest.mark.parametrize(
    "change",
    [
        {"dims": [3] * 10**6},
        {"dims": [3, 5, 4]},
        {"dims": None},
        {"linear": [9, 2]},
        {"linear": [2]},
        {"slope": [7.0, 1.0]},
        {"slope": None},
        {"biased": [True, True, True]},
        {"biased": "yes"},
        {"bias": None},
        {"bias": 0.0},
        {"more": 1},
        {"dtype": "float64"},
        {"init_scale": 1.0},
    ],
)
def test_hostile_configurations(change):
    config, tensors = to_parts(network())
    assert config == {"network": INNER, "dtype": "float64"}
    with pytest.raises(IsthmusError):
        from_parts(Standardized, {**config, "network": {**INNER, **change}}, tensors)


@pytest.mark.parametrize(
    "change",
    [{"dtype": "float32"}, {"dtype": "object"}, {"network": None}, {"network": {}}, {"network": [INNER]}, {"more": 1}],
)
def test_hostile_files(change):
    config, tensors = to_parts(network())
    with pytest.raises(IsthmusError):
        from_parts(Standardized, {**config, **change}, tensors)


def test_tensors_that_do_not_fit():
    config, tensors = to_parts(network())
    for name in ("shift", "network.weights.1"):
        with pytest.raises(IsthmusError, match=f"'{name}' missing"):
            from_parts(Standardized, config, {key: T for key, T in tensors.items() if key != name})
        with pytest.raises(IsthmusError, match=f"tensor '{name}' must have shape"):
            from_parts(Standardized, config, {**tensors, name: torch.ones(7, dtype=torch.float64)})


def test_a_damaged_file(tmp_path):
    path = tmp_path / "net.safetensors"
    save(network(), path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(FileFormatError):
        load(path)


@pytest.mark.parametrize(
    "change", [{"shift": torch.ones(3)}, {"scale": torch.ones(3)}, {"network": nn.Linear(2, 1)}, {"network": {"a": 1}}]
)
def test_shapes_are_checked(change):
    given = {"network": random_net([2, 2, 1]), "shift": torch.ones(2), "scale": torch.ones(2), **change}
    with pytest.raises(IsthmusError):
        Standardized(**given)


def test_public():
    assert isthmus.Standardized is Standardized
