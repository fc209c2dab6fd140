"""Diagnosing convolutional networks: spectra by frequency in the result and its JSON, the verdict, images and rows."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from isthmus import ConvolutionalNet, FileFormatError, diagnose
from isthmus.diagnosis import Diagnosis
from isthmus.measures import filter_spectra
from tools import assert_close, gaussian, generator


def waves(net: ConvolutionalNet, ell: int, turns: list[tuple[int, ...]]) -> None:
    """Let layer ℓ pass these frequencies alone, in its first channels."""
    blocks = torch.zeros(*net.size, net.channels[ell], net.channels[ell - 1], dtype=torch.complex128)
    for one in turns:
        for place in (one, tuple(-k % n for k, n in zip(one, net.size))):
            blocks[(*place, 0, 0)] = 1.0
    axes = tuple(range(len(net.size)))
    with torch.no_grad():
        net.filters[ell - 1].copy_(torch.fft.ifftn(blocks, dim=axes).real.movedim((-2, -1), (0, 1)))


@pytest.fixture(scope="module")
def net():
    made = ConvolutionalNet([1, 3, 3, 1], 6, slope=1.0, dtype=torch.float64, generator=generator())
    waves(made, 2, [(1, 0), (2, 1)])
    return made


@pytest.fixture(scope="module")
def found(net):
    return diagnose(net, gaussian(60, 36), gaussian(60, 36, seed=1), ridge=1e-3, jacobian_samples=4)


def test_every_filter_by_frequency(net, found):
    assert found.verdict == "determined" and found.rank == 4
    layers = [layer for layer in found.layers if layer.kind == "convolution"]
    assert len(layers) == 3
    for layer, W in zip(layers, net.filters):
        (part,) = layer.weights
        truth = filter_spectra(W, 6)
        assert_close(part.frequencies.values, truth.values)
        assert_close(part.frequencies.filter_norm, W.norm())
        assert_close(part.norm, 6 * W.norm())
        assert part.spectrum.method == "by frequency"
    kept = layers[1].weights[0].frequencies.largest(layers[1].weights[0].spectrum.rank)
    assert sorted(one.name for one in kept) == ["±(1, 0)", "±(2, 1)"]
    assert_close(found.whole["norm_squared"], sum(p.detach().square().sum() for p in net.parameters()))


def test_the_verdict_on_frequencies(found):
    told = found.whole["kept_frequencies"]
    assert told["verdict"] == "determined" and told["frequencies"] == [[1, 0], [2, 1]] and told["dimensions"] == 4
    assert told["layers"] == [2]  # the last filter passes what does not come


def test_through_json(found):
    back = Diagnosis.from_dict(json.loads(found.to_json()))
    assert back.to_json() == found.to_json()
    part = back.layers[1].weights[0]
    assert_close(part.frequencies.values, found.layers[1].weights[0].frequencies.values)
    old = json.loads(found.to_json())
    for layer in old["layers"]:
        for one in layer["weights"]:
            del one["frequencies"]
    assert Diagnosis.from_dict(old).layers[1].weights[0].frequencies is None
    for bad in ({"size": [10**9, 10**9]}, {"values": []}, {"size": "66"}, {"norms": None}, {"filter_norm": []}):
        broken = json.loads(found.to_json())
        broken["layers"][1]["weights"][0]["frequencies"] |= bad
        with pytest.raises(FileFormatError):
            Diagnosis.from_dict(broken)


def test_images_rows_and_parts(net):
    X = gaussian(40, 36)
    rows = diagnose(net, X, jacobian_samples=0)
    images = diagnose(net, X.reshape(-1, 1, 6, 6), jacobian_samples=0)
    assert images.rank == rows.rank == 4
    assert images.whole["kept_frequencies"] == rows.whole["kept_frequencies"]
    # Inside another module it is looked at layer by layer all the same.
    inside = diagnose(nn.Sequential(net, nn.Linear(36, 2, dtype=torch.float64)), X, jacobian_samples=0)
    assert sum(part.frequencies is not None for layer in inside.layers for part in layer.weights) == 3
    assert "kept_frequencies" not in inside.whole


@pytest.mark.parametrize("head", ["mean", "flatten"])
def test_heads(head):
    net = ConvolutionalNet([2, 3, 3], (5,), 3, head=head, outputs=2, generator=generator())
    found = diagnose(net, gaussian(30, 10))
    kinds = [layer.kind for layer in found.layers]
    assert kinds.count("convolution") == 2 and kinds.count("linear") == 1
    assert found.whole["kept_frequencies"]["verdict"] in ("none", "undetermined")
