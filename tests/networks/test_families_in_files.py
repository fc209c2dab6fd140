"""Families of networks that a program defines itself: saved and loaded by their names, as far as these are theirs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import isthmus
from isthmus import FileFormatError, FullyConnected, IsthmusError, Network, files
from tools import assert_close, gaussian, generator


class Affine(Network):
    """x ↦ scale·Ax + b with an argument that has a default, and one that JSON writes in another way."""

    def __init__(self, sizes, factor=1.0, *, dtype=None, device=None):
        super().__init__()
        self.sizes, self.factor = tuple(sizes), float(factor)
        self.A = nn.Parameter(torch.zeros(*self.sizes[::-1], dtype=dtype, device=device))
        self.register_buffer("b", torch.zeros(self.sizes[1], dtype=dtype, device=device))

    def forward(self, X):
        return self.factor * (X @ self.A.mT) + self.b

    def trace(self, X, *, dtype=torch.float64):
        raise NotImplementedError

    def to_torch(self):
        raise NotImplementedError

    def config(self):
        return {"sizes": self.sizes, "factor": self.factor}


class Doubled(FullyConnected):
    """A family of its own that inherits another's constructor."""

    def forward(self, X):
        return 2.0 * super().forward(X)


def affine(factor=3.0, dtype=torch.float64):
    net = Affine((4, 2), factor, dtype=dtype)
    with torch.no_grad():
        net.A.copy_(gaussian(2, 4, dtype=dtype))
        net.b.copy_(gaussian(2, seed=1, dtype=dtype))
    return net


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_round_trip(tmp_path, dtype):
    net = affine(dtype=dtype)
    isthmus.save(net, tmp_path / "n")
    back = isthmus.load(tmp_path / "n")
    X = gaussian(5, 4, dtype=dtype)
    assert type(back) is Affine and back.config() == net.config() and torch.equal(back(X), net(X))
    assert torch.equal(back.b, net.b) and not back.b.requires_grad and back.A.requires_grad


def test_a_subclass_is_a_family_of_its_own(tmp_path):
    net = Doubled([3, 5, 2], [0.1], 0.5, linear=[2], dtype=torch.float64, generator=generator())
    isthmus.save(net, tmp_path / "n")
    back = isthmus.load(tmp_path / "n")
    X = gaussian(5, 3)
    assert type(back) is Doubled and torch.equal(back(X), net(X))
    assert_close(net(X), 2.0 * FullyConnected.from_weights(net.Ws, net.bs, slope=0.1, bias=0.5, linear=[2])(X))
    # What another one computes with the same weights is not asked of it.
    assert net.plain_layers() is None


@pytest.mark.parametrize("change", [{"sizes": [2, 4]}, {"other": 1}, {"factor": None}, {"device": "cpu"}])
def test_what_does_not_fit_is_refused(tmp_path, change):
    isthmus.save(affine(), tmp_path / "n")
    config, tensors = files._kind("Affine").to_parts(affine())
    assert config == {"sizes": (4, 2), "factor": 3.0, "dtype": "float64"}
    given = {**config, **change}
    if given["factor"] is None:
        del given["factor"]  # a default is no answer to what a file has lost
    with pytest.raises(IsthmusError):
        files._kind("Affine").from_parts(given, tensors)


def test_a_file_of_a_family_that_is_not_there(tmp_path, monkeypatch):
    isthmus.save(affine(), tmp_path / "n")
    monkeypatch.delitem(files._KINDS, "Affine")
    with pytest.raises(FileFormatError, match="import the module that defines this network"):
        isthmus.load(tmp_path / "n")
    with pytest.raises(IsthmusError, match="`obj` must be one of"):
        isthmus.save(affine(), tmp_path / "m")


def test_one_that_was_defined_again_takes_the_name(tmp_path, monkeypatch):
    monkeypatch.setitem(files._KINDS, "Affine", files._KINDS["Affine"])
    old = affine()
    isthmus.save(old, tmp_path / "n")
    again = type("Affine", (Affine,), {"__module__": __name__})
    assert type(isthmus.load(tmp_path / "n")) is again
    with pytest.raises(IsthmusError, match="`obj` must be one of"):
        isthmus.save(old, tmp_path / "m")
