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


# ---- What holds on the training samples only, and what is learned beyond the action


class Region(nn.Module):
    """|x₁| where x₂ < 0, x₁ elsewhere: the sign of x₁ is forgotten on one side only."""

    def __init__(self):
        super().__init__()
        self.seen = nn.Identity()

    def forward(self, x):
        x = self.seen(x)
        return torch.where(x[:, 1:] < 0, x[:, :1].abs(), x[:, :1])


MIRROR = [np.diag([-1.0, 1.0])]


def test_a_symmetry_of_the_training_samples_alone_is_spurious():
    X, others = gaussian(300, 2), gaussian(300, 2, seed=1)
    below, above = (torch.stack([Z[:, 0], sign * Z[:, 1].abs()], 1) for Z, sign in ((X, -1), (others, 1)))
    found = isthmus.symmetry(Region(), below, MIRROR, held_out=above)
    assert found.state == "spurious" and "held out" in found.reason
    assert found.held_out is not None and found.held_out.state == "not invariant"
    # The twin: samples held out of the same law. And without any, nothing is said about them.
    same = torch.stack([others[:, 0], -others[:, 1].abs()], 1)
    assert isthmus.symmetry(Region(), below, MIRROR, held_out=same).state == "invariant"
    alone = isthmus.symmetry(Region(), below, MIRROR)
    assert alone.state == "invariant" and alone.held_out is None and alone.levels is None
    # What does not hold on the samples cannot be overfitted.
    assert isthmus.symmetry(Region(), above, MIRROR, held_out=below).state == "not invariant"


def summing():
    """|x₁| and |x₂| in layer 2, their sum in layer 3, in two neurons: the outputs know the sum alone."""
    net = isthmus.FullyConnected([2, 4, 2, 2, 1], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        net.Ws[0].copy_(torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]]))
        net.Ws[1].copy_(torch.tensor([[1.0, 1, 0, 0], [0, 0, 1, 1]]))
        net.Ws[2].copy_(torch.tensor([[1.0, 1], [2, 2]]))
        net.Ws[3].copy_(torch.tensor([[1.0, 1]]))
    return net


def test_the_true_symmetry_is_learned_before_the_full_one():
    """x ~ x' under signs in layer 2, x ~ x' with the same |x₁| + |x₂| in layer 3: a half bottleneck."""
    X, net = gaussian(400, 2), summing()
    with torch.no_grad():
        Y = net(X)
    found = isthmus.symmetry(net, X, signs, Y=Y)
    assert (found.state, found.layer, found.learned_by) == ("invariant", "layer 2", 0.5)
    assert found.full is not None
    assert (found.full.state, found.full.layer, found.full.learned_by) == ("invariant", "layer 3", 0.75)
    assert found.full["layer 2"].state == "spread" and 100 <= found.full.samples <= 200
    # By hand: pairs sorted by y are neighbours, and so are their representations in layer 3.
    order = Y[:, 0].argsort()
    A = torch.stack([X.abs().sum(1), 2 * X.abs().sum(1)], 1)[order]
    near = float((A[1:] - A[:-1]).norm(dim=1).median() / torch.pdist(A).mean())
    assert near < 0.02 and found.full["layer 3"].ratio < 2 * near + 0.01
    # Without an action it is the full symmetry itself.
    alone = isthmus.symmetry(net, X, Y=Y)
    assert (alone.state, alone.layer, alone.full) == ("invariant", "layer 3", None)
    # A function that is finer than y: not learned.
    assert isthmus.symmetry(folding(), X, Y=Y).state == "not invariant"


def test_classes_are_level_sets():
    net, X = folding(), gaussian(300, 2)
    labels = (X[:, 0] > 0).long()
    assert isthmus.symmetry(net, X, Y=labels).state == "not invariant"
    first = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 0.0]]))
    sign = nn.Sequential(first, nn.Hardtanh(-1e-9, 1e-9)).double()
    found = isthmus.symmetry(sign, X, Y=labels)
    assert (found.state, found.layer) == ("invariant", "1")
    # Rows that stand class by class.
    order = labels.argsort()
    assert isthmus.symmetry(sign, X[order], Y=labels[order]).state == "invariant"


def test_targets_without_near_pairs_decide_nothing():
    X = gaussian(40, 8)
    found = isthmus.symmetry(nn.Linear(8, 8).double(), X, Y=X)
    assert found.state == "undetermined" and "nearest differ" in found.reason


def plane(count, seed):
    return torch.rand(count, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1


def test_a_rank_one_interpolator_learns_spurious_symmetries():
    """y = x in the plane through one coordinate: right at every sample, and constant along lines where y is not."""
    X, others = plane(80, 0), plane(200, 1)
    net = isthmus.constructions.rank_one(X, X, 6).network
    with torch.no_grad():
        assert float((net(X) - X).abs().max()) < 1e-6
    found = isthmus.symmetry(net, X, Y=X, held_out=(others, others))
    assert found.levels is not None and found.levels.state == "spurious" and found.state == "spurious"
    assert found.levels.training < 0.2 < 0.4 < found.levels.held_out
    assert found.to_dict()["levels"]["state"] == "spurious"
    # The twins: a network of rank 2, and one that fits nothing.
    identity = isthmus.FullyConnected.from_weights([torch.eye(2, dtype=torch.float64)] * 2, slope=1.0, bias=0.0)
    true = isthmus.symmetry(identity, X, Y=X, held_out=(others, others))
    assert true.levels is not None and true.levels.state == "true" and true.state != "spurious"
    random = isthmus.FullyConnected([2, 8, 1], dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    lost = isthmus.symmetry(random, X, Y=X, held_out=(others, others)).levels
    assert lost is not None and lost.state == "not fitted"


def test_level_sets_by_hand():
    """Ratios of the pairs with the nearest outputs, against a loop over all."""
    X, others = plane(60, 0), plane(90, 1)
    net = isthmus.constructions.rank_one(X, X, 4).network
    found = isthmus.symmetry(net, X, signs, Y=X, held_out=(others, others)).levels
    assert found is not None
    with torch.no_grad():
        F = net(others)
    partner = [min((float((F[i] - F[j]).norm()), j) for j in range(90) if j != i) for i in range(90)]
    once = [i for i in range(90) if partner[partner[i][1]][1] != i or partner[i][1] > i]
    closest = sorted(once, key=lambda i: partner[i][0])[: (len(once) + 1) // 2]
    within = sum(float((others[i] - others[partner[i][1]]).norm()) for i in closest) / len(closest)
    assert found.held_out == pytest.approx(
        within / float(torch.pdist(others[closest]).mean()), rel=0.1
    )  # which end of a pair is kept


def test_what_a_relation_needs():
    X = gaussian(20, 2)
    with pytest.raises(IsthmusError, match="action"):
        isthmus.symmetry(folding(), X)
    with pytest.raises(IsthmusError, match="row"):
        isthmus.symmetry(folding(), X, Y=X[:-1])
    with pytest.raises(IsthmusError, match="pair"):
        isthmus.symmetry(folding(), X, signs, held_out=(X, X, X))
    with pytest.raises(IsthmusError, match="row"):
        isthmus.symmetry(folding(), X, Y=X, held_out=(X, X[:-1]))
