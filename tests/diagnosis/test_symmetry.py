"""Symmetry: networks whose invariance is known, layer by layer, and cases that must stay undetermined."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import isthmus
from isthmus import IsthmusError
from isthmus.diagnosis._symmetry import LayerOrbits
from isthmus.plotting.style import render


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def folding():
    """|x₁|, |x₂| in layer 2, from max(±x, 0) in layer 1: invariant under signs from layer 2 on."""
    net = isthmus.FullyConnected([2, 4, 2, 3], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        net.Ws[0].copy_(torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]]))
        net.Ws[1].copy_(torch.tensor([[1.0, 1, 0, 0], [0, 0, 1, 1]]))
    return net


def signs(X, generator):
    return X * (1 - 2 * torch.randint(2, X.shape, generator=generator))


class Spectrum(nn.Module):
    """Power spectrum, then anything: invariant under circular shifts from there on."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Identity()
        self.power = Power()
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.power(self.mix(x)))


class Power(nn.Module):
    def forward(self, x):
        return torch.fft.rfft(x).abs().square()


def test_signs_collapse_from_the_layer_that_folds_them():
    found = isthmus.symmetry(folding(), gaussian(200, 2), signs)
    assert (found.state, found.layer) == ("invariant", "layer 2")
    assert [layer.name for layer in found.layers] == ["inputs", "layer 1", "layer 2", "outputs"]
    assert [layer.state for layer in found.layers] == ["spread", "spread", "collapsed", "collapsed"]
    assert found["layer 2"].within == 0.0 and "from layer 2 on" in found.sentence
    assert (found.samples, found.draws) == (200, 8)


def test_only_what_is_folded_is_invariant():
    """The twin: exchanging the two coordinates is no symmetry of it."""
    found = isthmus.symmetry(folding(), gaussian(200, 2), [1, 0])
    assert (found.state, found.layer) == ("not invariant", None)
    assert found.draws == 1


def test_a_random_network_is_not_invariant():
    net = isthmus.FullyConnected([4, 16, 16, 2], generator=torch.Generator().manual_seed(1))
    found = isthmus.symmetry(net, gaussian(100, 4), isthmus.measures.rotations_about([1.0, 0, 0, 0]))
    assert found.state == "not invariant"
    assert found["outputs"].ratio > 0.3


def test_any_module_by_hooks():
    torch.manual_seed(0)
    found = isthmus.symmetry(Spectrum(), gaussian(100, 8).float(), [np.roll(np.arange(8), s) for s in (1, 3)])
    assert (found.state, found.layer) == ("invariant", "power")
    assert found["mix"].state == "spread" and found["head"].ratio < 1e-12
    assert found.draws == 2


def test_matrices_callables_and_permutations_agree():
    shift = np.roll(np.arange(8), 3)
    X, net = gaussian(60, 8), Spectrum().double()
    net.power = nn.Identity()
    net.head = nn.Linear(8, 2).double()
    ways = [shift, np.eye(8)[shift], [lambda X: X[:, shift.tolist()]], lambda X, _: X[:, shift.tolist()]]
    ratios = [isthmus.symmetry(net, X, way, draws=1)["outputs"].ratio for way in ways]
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-12)
    assert ratios[0] > 0.2


def test_images_tokens_and_modules_of_ours_inside():
    torch.manual_seed(0)
    convolution = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular"), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    images = gaussian(80, 1, 6, 6)
    found = isthmus.symmetry(convolution, images, [lambda X: X.roll((1, 2), (2, 3))])
    assert (found.state, found.layer) == ("invariant", "2")
    bag = nn.EmbeddingBag(20, 6)
    tokens = torch.randint(20, (80, 5), generator=torch.Generator().manual_seed(0))
    found = isthmus.symmetry(bag, tokens, [[4, 0, 1, 2, 3], [1, 0, 3, 2, 4]])
    assert found.state == "invariant" and found["outputs"].ratio < 1e-6
    # FullyConnected inside another module is looked into as well.
    inside = nn.Sequential(folding(), nn.Linear(3, 2).double())
    found = isthmus.symmetry(inside, gaussian(100, 2), signs)
    assert found.state == "invariant" and found.layer not in ("inputs", "outputs", "0.0", "0.1")


def test_leaky_networks_by_their_trace():
    net = isthmus.LeakyResNet(3, 2, 8, 4, 2.0, generator=torch.Generator().manual_seed(0))
    found = isthmus.symmetry(net, gaussian(60, 3), [-np.eye(3)])
    assert [layer.name for layer in found.layers] == ["inputs", *(f"layer {i}" for i in range(5)), "outputs"]
    assert found.state == "not invariant"


def test_undetermined_when_the_outputs_are_constant():
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    nn.init.zeros_(net[2].weight)
    found = isthmus.symmetry(net, gaussian(50, 2), [-np.eye(2)])
    assert found.state == "undetermined" and "do not vary" in found.reason
    assert math.isnan(found["outputs"].ratio)


def test_undetermined_when_the_action_hardly_moves():
    found = isthmus.symmetry(nn.Linear(2, 2), gaussian(50, 2), [0.99 * np.eye(2)])
    assert found.state == "undetermined" and "moves the inputs" in found.reason


def test_undetermined_when_noise_is_in_the_way():
    """Orbit distances of about the tolerance: no sample of this size decides, and a tolerance elsewhere does."""
    net = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.0, 0.04]]))
    X = gaussian(40, 2)
    found = isthmus.symmetry(net, X, [np.diag([1.0, -1.0])])
    ratio = found["outputs"].ratio
    at = isthmus.symmetry(net, X, [np.diag([1.0, -1.0])], tolerance=ratio)
    assert at.state == "undetermined" and "standard errors" in at.reason
    assert isthmus.symmetry(net, X, [np.diag([1.0, -1.0])], tolerance=3 * ratio).state == "invariant"
    assert isthmus.symmetry(net, X, [np.diag([1.0, -1.0])], tolerance=ratio / 10).state == "not invariant"


def test_the_ratio_is_right_with_many_chunks():
    """Linear with |w|: E|2bx₂|/E|x₁ − y₁ …| of Gaussians is 2b√(2/π) / (√(1+b²)·2/√π)."""
    net = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.0, 0.5]]))
    found = isthmus.symmetry(net, gaussian(4000, 2), [np.diag([1.0, -1.0])], samples=4000)
    expected = 2 * 0.5 * math.sqrt(2 / math.pi) / (math.sqrt(1.25) * 2 / math.sqrt(math.pi))
    assert abs(found["outputs"].ratio - expected) < 4 * found["outputs"].error < 0.1


def test_maps_are_ordered_by_orbit():
    found = isthmus.symmetry(folding(), gaussian(30, 2), signs, draws=3)
    block = np.kron(np.eye(found.shown), np.ones((4, 4))) == 1
    assert found.maps["layer 2"].shape == (4 * found.shown,) * 2
    assert (found.maps["layer 2"][block] == 0).all() and (found.maps["layer 2"][~block] > 0).all()
    assert (found.maps["inputs"][block] > 0).any()


def test_the_network_is_left_as_it_was_and_seeds_matter():
    net = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1)).train()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    state = torch.get_rng_state()
    first = isthmus.symmetry(net, gaussian(40, 2), signs, seed=3)
    assert torch.equal(state, torch.get_rng_state()) and net.training
    assert all(torch.equal(value, net.state_dict()[key]) for key, value in before.items())
    again, other = (isthmus.symmetry(net, gaussian(40, 2), signs, seed=seed) for seed in (3, 4))
    assert first["outputs"] == again["outputs"] != other["outputs"]


def test_plain_data_and_pictures():
    found = isthmus.symmetry(folding(), gaussian(60, 2), signs)
    data = found.to_dict()
    assert data["layers"][2]["name"] == "layer 2" and data["state"] == "invariant"
    assert len(render(found.plot())) > 10_000
    assert list(found.to_frame().index) == ["inputs", "layer 1", "layer 2", "outputs"]
    assert "layer 2" in found._repr_html_()
    with pytest.raises(KeyError, match="none of"):
        found["layer 9"]
    assert isinstance(found["inputs"], LayerOrbits)


@pytest.mark.parametrize(
    ("X", "action", "message"),
    [
        (np.zeros((2, 2)), signs, "at least 4"),
        ((np.zeros((9, 2)),), signs, "one array"),
        (np.full((9, 2), np.nan), signs, "finite"),
        (np.ones((9, 2)), np.ones((2, 3)), "square matrix"),
        (np.ones((9, 2)), [0, 0], "square matrix"),
        (np.ones((9, 2)), np.eye(3), "3 entries"),
        (np.ones((9, 2)), lambda X, _: X[:3], "same shape"),
    ],
)
def test_errors(X, action, message):
    with pytest.raises(IsthmusError, match=message):
        isthmus.symmetry(folding(), X, action)
