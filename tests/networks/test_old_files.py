"""Networks in files of earlier versions: other names of tensors and arguments, a kind of network that is gone."""

from __future__ import annotations

import pytest
import torch
from conv_nets import OPTIONS as CONVOLUTIONAL
from conv_nets import conv
from old_files import compact_parts, old_parts, write_old

import isthmus
from isthmus import FileFormatError, FullyConnected, IsthmusError, Standardized
from leaky_nets import OPTIONS as LEAKY
from leaky_nets import leaky
from tools import gaussian, random_net


def layered(slope=(0.0, 1.0), linear=(2, 2), bias=0.5, biased=(True, False, True)):
    """What only a CompactNetwork could be."""
    Ws = [gaussian(5, 3, seed=1), gaussian(2, 5, seed=2), gaussian(4, 2, seed=3)]
    bs = [gaussian(len(W), seed=4 + i) if has else None for i, (W, has) in enumerate(zip(Ws, biased))]
    return FullyConnected.from_weights(Ws, bs, slope=list(slope), linear=list(linear), bias=bias)


def scaled(net):
    return Standardized(net, gaussian(net.d_in, seed=6), gaussian(net.d_in, seed=7).abs() + 0.5)


NETWORKS = {
    **{f"leaky {i}": lambda o=o: leaky(**o) for i, o in enumerate(LEAKY)},
    **{f"convolutional {i}": lambda o=o: conv(**o) for i, o in enumerate(CONVOLUTIONAL)},
    **{
        f"fully connected {a} {b}": lambda a=a, b=b: random_net([3, 5, 2], a, b) for a in (0.0, 0.3) for b in (0.0, 0.5)
    },
    "one layer": lambda: random_net([3, 2], 0.3),
    "compact": layered,
    "compact, no bias": lambda: layered(biased=(False,) * 3),
    "compact, all biases": lambda: layered(biased=(True,) * 3),
    "compact, nothing linear": lambda: layered((0.1, 0.4), (0, 0)),
    "compact, one slope": lambda: layered((0.1, 0.1), (1, 0)),
    "scaled": lambda: scaled(layered()),
    "scaled, plain": lambda: scaled(random_net([3, 5, 2], 0.3)),
    "scaled, one layer": lambda: scaled(random_net([3, 2])),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_network_comes_back(tmp_path, name, dtype):
    net = NETWORKS[name]().to(dtype)
    path, again = tmp_path / "old.safetensors", tmp_path / "new.safetensors"
    write_old(path, *old_parts(net))
    back = isthmus.load(path)
    assert type(back) is type(net) and back.config() == net.config() and repr(back) == repr(net)
    assert list(back.state_dict()) == list(net.state_dict())
    assert all(torch.equal(p, q) for p, q in zip(back.state_dict().values(), net.state_dict().values()))
    X = gaussian(5, net.d_in, dtype=dtype)
    assert torch.equal(back(X), net(X)) and all(p.requires_grad for p in back.parameters() if p.ndim != 2)
    # It is saved as networks are today.
    isthmus.save(back, again)
    assert torch.equal(isthmus.load(again)(X), net(X))


@pytest.mark.parametrize(
    "change",
    [
        {"depth": 10**9},
        {"depth": 2},
        {"linear": [9, 2]},
        {"linear": [2]},
        {"linear": None},
        {"slopes": [7.0, 1.0]},
        {"slopes": [0.0]},
        {"slopes": None},
        {"slopes": 0.0},
        {"biased": [True, True, True]},
        {"biased": "yes"},
        {"biased": None},
        {"biased": [1, 0, 1]},
        {"dtype": "float32"},
        {"dtype": "object"},
        {"bias": None},
        {"scaled": False},
        {"scaled": 1},
        {"more": 1},
    ],
)
def test_hostile_compact_networks(tmp_path, change):
    kind, config, tensors = compact_parts(scaled(layered()))
    write_old(tmp_path / "n", kind, {**config, **change}, tensors)
    with pytest.raises(IsthmusError):
        isthmus.load(tmp_path / "n")


@pytest.mark.parametrize(
    "change",
    [
        {"weights.1": torch.ones(2, 4, dtype=torch.float64)},
        {"weights.1": torch.ones(2, dtype=torch.float64)},
        {"weights.0": torch.ones(5, 3)},
        {"biases.1": torch.ones(2, dtype=torch.float64)},
        {"biases.0": None},
        {"weights.0": None},
        {"weights.2": None},
        {"shift": None},
        {"scale": torch.ones(2, dtype=torch.float64)},
        {"weights.9": torch.ones(4, 4, dtype=torch.float64)},
    ],
)
def test_tensors_of_compact_networks_that_do_not_fit(tmp_path, change):
    kind, config, tensors = compact_parts(scaled(layered()))
    kept = {name: T for name, T in {**tensors, **change}.items() if T is not None}
    write_old(tmp_path / "n", kind, config, kept)
    with pytest.raises(FileFormatError):
        isthmus.load(tmp_path / "n")


def test_no_tensor_at_all(tmp_path):
    kind, config, _ = compact_parts(layered())
    write_old(tmp_path / "n", kind, config, {})
    with pytest.raises(FileFormatError):
        isthmus.load(tmp_path / "n")
    write_old(tmp_path / "n", kind, [], {})
    with pytest.raises(FileFormatError, match="must have the keys"):
        isthmus.load(tmp_path / "n")
