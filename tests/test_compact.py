"""CompactNetwork: the function, its PyTorch form, and its file."""

from __future__ import annotations

import pytest
import torch

from isthmus import CompactNetwork, FileFormatError, IsthmusError, files, load, save
from isthmus.networks import Hourglass
from tools import assert_close, gaussian, random_net


def network(scaled=True, dtype=torch.float64):
    Ws = [gaussian(5, 3, seed=1), gaussian(2, 5, seed=2), gaussian(4, 2, seed=3)]
    bs = [gaussian(5, seed=4), None, gaussian(4, seed=5)]
    scaling = {"shift": gaussian(3, seed=6), "scale": gaussian(3, seed=7).abs() + 0.5} if scaled else {}
    return CompactNetwork(Ws, bs, slopes=[0.0, 1.0], linear=[2, 2], bias=0.5, **scaling).to(dtype)


def test_function_by_hand():
    net = network()
    X = gaussian(7, 3)
    Z = ((X - net.shift) / net.scale) @ net.weights[0].mT + 0.5 * net.b(1)
    A = torch.cat([Z[:, :2], Z[:, 2:].clamp_min(0.0)], 1)
    assert_close(net(X), (A @ net.weights[1].mT) @ net.weights[2].mT + 0.5 * net.b(3))
    assert net.b(2) is None and net.depth == 3 and "linear=[2, 2]" in repr(net)


@pytest.mark.parametrize("scaled", [True, False])
def test_as_pytorch_layers(scaled):
    net = network(scaled)
    X = gaussian(7, 3)
    assert_close(net.to_torch()(X), net(X))


def test_an_hourglass_is_one():
    glass = Hourglass(random_net([4, 6, 2]), random_net([2, 5, 3], seed=1))
    same = CompactNetwork(glass.Ws, glass.bs, slopes=glass.slopes, linear=[0] * 3)
    assert_close(same(gaussian(5, 4)), glass(gaussian(5, 4)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scaled", [True, False])
def test_file(tmp_path, scaled, dtype):
    net = network(scaled, dtype)
    save(net, tmp_path / "net.safetensors")
    same = load(tmp_path / "net.safetensors")
    assert type(same) is CompactNetwork and same.linear == (2, 2) and same.slopes == (0.0, 1.0)
    assert all(torch.equal(p, q) for p, q in zip(net.state_dict().values(), same.state_dict().values()))


@pytest.mark.parametrize(
    "change",
    [
        {"depth": 10**9},
        {"depth": 2},
        {"linear": [9, 2]},
        {"linear": [2]},
        {"slopes": [7.0, 1.0]},
        {"biased": [True, True, True]},
        {"biased": "yes"},
        {"dtype": "float32"},
        {"dtype": "object"},
        {"bias": None},
        {"scaled": False},
        {"more": 1},
    ],
)
def test_hostile_files(tmp_path, change):
    path = tmp_path / "net.safetensors"
    save(network(), path)
    config, tensors = files._kind("CompactNetwork").to_parts(network())
    with pytest.raises(IsthmusError):
        files._kind("CompactNetwork").from_parts({**config, **change}, tensors)


def test_a_damaged_file(tmp_path):
    path = tmp_path / "net.safetensors"
    save(network(), path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(FileFormatError):
        load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"Ws": [torch.ones(2, 2), torch.ones(2, 3)]},
        {"bs": [torch.ones(3), None]},
        {"slopes": []},
        {"linear": [3]},
        {"shift": torch.ones(2)},
        {"shift": torch.ones(3), "scale": torch.ones(3)},
    ],
)
def test_shapes_are_checked(change):
    given = {"Ws": [torch.ones(2, 2), torch.ones(1, 2)], "bs": [None, None], "slopes": [0.0], "linear": [1], **change}
    with pytest.raises(IsthmusError):
        CompactNetwork(given.pop("Ws"), given.pop("bs"), **given)
