"""PyTorch's own nn.Sequential in files: what comes back, what other readers find, what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import isthmus
from isthmus import IsthmusError
from isthmus._errors import FileFormatError
from isthmus.files import read_tensors
from isthmus.networks import _plain
from tools import gaussian


def many():
    """A container with a layer of nearly every kind."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 4, 3, padding="same"), nn.BatchNorm2d(4), nn.LeakyReLU(0.2), nn.MaxPool2d(2)),
        nn.ConstantPad3d((0, 0, 0, 0, 0, 1), 1.0),
        nn.Conv2d(5, 4, (1, 3), (2, 1), bias=False, padding_mode="circular", padding=(0, 1)),
        nn.ConvTranspose2d(4, 3, 2, 2),
        nn.AdaptiveAvgPool2d((2, None)),
        nn.Flatten(),
        nn.Linear(48, 6),
        nn.PReLU(6).requires_grad_(False),
        nn.Dropout(0.3),
        nn.Linear(6, 2, bias=False),
        nn.GELU("tanh"),
        nn.Softmax(-1),
    ).double()


def test_there_and_back(tmp_path):
    net, X = many().eval(), gaussian(3, 1, 8, 8)
    isthmus.save(net, tmp_path / "net.safetensors")
    back = isthmus.load(tmp_path / "net.safetensors").eval()
    assert type(back) is nn.Sequential and repr(back) == repr(net) and torch.equal(back(X), net(X))
    assert [p.requires_grad for p in back.parameters()] == [p.requires_grad for p in net.parameters()]
    tensors = read_tensors(tmp_path / "net.safetensors")
    tensors = tensors[0] if isinstance(tensors, tuple) else tensors
    fresh = many().eval()
    fresh.load_state_dict(dict(tensors))
    assert torch.equal(fresh(X), net(X))


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Linear(2, 2), nn.LSTM(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()),
        nn.Sequential(nn.ReLU()),
        nn.ModuleList([nn.Linear(2, 2)]),
    ],
)
def test_refused(net, tmp_path):
    with pytest.raises(IsthmusError, match=r"(?s)^save: .* must be"):
        isthmus.save(net, tmp_path / "net.safetensors")
    assert not list(tmp_path.iterdir())


def test_hooks_are_refused(tmp_path):
    net = nn.Sequential(nn.Linear(2, 2))
    net[0].register_forward_hook(lambda *_: None)
    with pytest.raises(IsthmusError, match="no hooks"):
        isthmus.save(net, tmp_path / "net.safetensors")


def altered():
    """Configurations that nobody wrote, beside the tensors of a network."""
    config, tensors = _plain._to_parts(many())
    for change in (
        lambda c: c.update(dtype="complex64"),
        lambda c: c.update(more=1),
        lambda c: c.update(layers=3),
        lambda c: c["layers"].pop(6),
        lambda c: c["layers"].append(["x", "Linear", {"in_features": 10**9, "out_features": 10**9, "bias": True}]),
        lambda c: c["layers"].append(["x", "Linear", {"in_features": "a", "out_features": 1, "bias": True}]),
        lambda c: c["layers"].append(["x", "Module", {}]),
        lambda c: c["layers"].append(["x", "eval", {}]),
        lambda c: c["layers"].append(["x.y", "ReLU", {}]),
        lambda c: c["layers"].append(["", "ReLU", {}]),
        lambda c: c["layers"].append(["x", "ReLU", {"inplace": True}]),
        lambda c: c["layers"].append(["x", "Dropout", {"p": 7.0}]),
        lambda c: c["layers"].append(["0", "ReLU", {}]),
        lambda c: c["layers"].append([1, "ReLU", {}]),
        lambda c: c["layers"].append("ReLU"),
        lambda c: c["layers"][6].__setitem__(2, {"in_features": 48, "out_features": 6, "bias": 1}),
        lambda c: c["layers"][6].__setitem__(2, {"in_features": 48, "out_features": 7, "bias": True}),
        lambda c: c["layers"][6].__setitem__(2, {"in_features": 48, "out_features": -6, "bias": True}),
        lambda c: c["layers"][7].__setitem__(2, {"num_parameters": 6, "frozen": 1}),
    ):
        other = json.loads(json.dumps(config))
        change(other)
        yield other, tensors
    deep: list = []
    for _ in range(50):
        deep = [["0", "Sequential", deep]]
    yield {"layers": deep, "dtype": "float64"}, {}


@pytest.mark.parametrize("case", range(20))
def test_altered_files(case):
    config, tensors = list(altered())[case]
    with pytest.raises((FileFormatError, IsthmusError)):
        _plain._from_parts(config, tensors)
