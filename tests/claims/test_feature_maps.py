"""C-feat-1, 3, 14: weights, representations, covariances, and the blow-up where no weights are left."""

from __future__ import annotations

import pytest
import torch
from judged import verdict
from networks_of_all_kinds import drawn_subject

from isthmus import FullyConnected
from isthmus.claims._base import CLAIMS, Subject
from isthmus.claims._evidence import random_subject
from isthmus.claims.features2022 import _maps as feature_maps
from isthmus.claims.features2022._maps import deficient_layer, leaky_wide_net, wide_net
from isthmus.constructions import minimal_network
from isthmus.measures import representations, useless_part
from isthmus.trace import activate
from tools import assert_close, gaussian

MINE = ("C-feat-1", "C-feat-3", "C-feat-14")


@pytest.mark.parametrize("identity", MINE)
def test_samples(identity):
    found = verdict(identity, CLAIMS[identity].sample())
    # The points of C-feat-14 are made next to any layer of rank below N.
    assert found.status == ("holds trivially" if identity == "C-feat-14" else "holds"), found.reason
    assert CLAIMS[identity].paper == "features2022"


@pytest.mark.parametrize("identity", MINE)
@pytest.mark.parametrize("slope", [0.0, 0.3, 1.0, -1.0])
@pytest.mark.parametrize("bias", [0.0, 1.0, 2.0])
def test_no_random_network_fails(identity, slope, bias):
    statuses = set()
    for seed in range(4):
        dims, samples = ([3, 6, 5, 2], 8) if seed % 2 else ([8, 9, 7, 2], 5)
        subject = random_subject(dims, slope=slope, bias=bias, samples=samples, seed=seed)
        if seed < 2:
            subject = subject.replace(Y=gaussian(samples, 2, seed=seed), ridge=0.1)
        found = verdict(identity, subject)
        assert found.status.startswith("holds") or (found.status == "not applicable" and found.reason)
        statuses.add(found.status.split()[0])
    assert "holds" in statuses or (identity == "C-feat-14" and slope == 1.0)


def test_labels_and_single_precision():
    net = FullyConnected([4, 8, 3], generator=torch.Generator().manual_seed(0)).requires_grad_(False)
    subject = Subject(net, gaussian(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]), 0.01, "cross_entropy")
    for identity in MINE[:2]:
        assert verdict(identity, subject).status == "holds"


# --------------------------------------------------------------------------------------------------------- C-feat-1


def test_useless_weights_make_it_strict():
    subject = wide_net()
    found = verdict("C-feat-1", subject)
    gap = found.details["loss"][0] - found.details["over representations"][0]
    assert gap == pytest.approx(0.05 * sum(found.details["useless"]), rel=1e-9) and gap > 0.1
    small = minimal_network(representations(subject.net, subject.X), subject.X).requires_grad_(False)
    found = verdict("C-feat-1", subject.replace(net=small))
    assert found.status == "holds" and sum(found.details["useless"]) < 1e-20
    assert found.details["loss"][0] == pytest.approx(found.details["over representations"][0], rel=1e-12)


@pytest.mark.parametrize(
    ("name", "wrong", "where"),
    [
        ("useless_part", lambda trace, cut: (0.0, 0.0, 0.0), "λΣ‖W̃‖²"),
        ("representation_loss", lambda *args, **options: 7.0, "𝓛"),
    ],
)
def test_wrong_quantities_fail(monkeypatch, name, wrong, where):
    monkeypatch.setattr(feature_maps, name, wrong)
    found = verdict("C-feat-1", wide_net())
    assert found.status == "fails" and where in found.where


def test_other_weights_are_not_an_inverse(monkeypatch):
    """Ψ of representations that are a little off."""
    true = feature_maps.minimal_network

    def wrong(Zs, X, **options):
        return true([1.001 * Zs[0], *Zs[1:]], X, **options)

    monkeypatch.setattr(feature_maps, "minimal_network", wrong)
    found = verdict("C-feat-1", wide_net())
    assert found.status == "fails" and "layer 1" in found.where


def test_ill_conditioned_data_are_judged_above_a_cut():
    """What the layers do with singular values below 1e-7 of the largest is taken away, and the verdict says so."""
    X = gaussian(4, 5)
    X[1] = X[0] + 1e-11 * X[2]
    net = random_subject([5, 6, 2], samples=4, seed=3).net
    found = verdict("C-feat-1", Subject(net, X))
    (said,) = [h.found for h in found.hypotheses if h.name == "well conditioned"]
    assert found.status == "holds" and said.startswith("cut at 1/1e+07") and found.tolerance <= 1e-7
    judged = feature_maps.well_conditioned(Subject(net, X), 1e7)
    assert feature_maps.spread(judged.subject.trace(), cut=judged.share) < 1e7
    moved = judged.subject.trace().outputs - net.trace(X).outputs
    assert 0 < float(moved.norm()) < 1e-9
    # What no sample sees of the first layer stays as it was.
    assert_close(useless_part(judged.subject.trace())[0], useless_part(net.trace(X))[0])


def test_a_singular_value_at_the_edge_of_rounding_decides_nothing():
    """3.3e-15 beside a numerical rank that is cut at 3.3e-15: Ψ and the cost counted it differently."""
    assert verdict("C-feat-1", drawn_subject(11299)[1]).status == "holds"


# --------------------------------------------------------------------------------------------------------- C-feat-3


def test_tanh_is_not_homogeneous():
    subject = leaky_wide_net()
    found = verdict("C-feat-3", subject.replace(known={"activation": torch.tanh}))
    assert found.status == "not applicable" and "positively homogeneous σ: not met" in found.reason


def test_with_tanh_shares_leave_the_cone(monkeypatch):
    """With the hypothesis granted, rows √m·z do not give Σmσ(z)σ(z)ᵀ."""
    monkeypatch.setattr(feature_maps, "homogeneity_defect", lambda sigma, Z: 0.0)
    found = verdict("C-feat-3", leaky_wide_net().replace(known={"activation": torch.tanh}))
    assert found.status == "fails" and "K^σ of the shares" in found.where
    # Another slope is homogeneous, and is not the network's.
    other = leaky_wide_net().replace(known={"activation": lambda Z: activate(Z, 0.3)})
    assert verdict("C-feat-3", other).status == "fails"


def test_wrong_covariances_fail(monkeypatch):
    monkeypatch.setattr(feature_maps, "covariance_loss", lambda *args, **options: 1.0)
    assert verdict("C-feat-3", leaky_wide_net()).status == "fails"


def test_homogeneity_by_hand():
    Z = gaussian(3, 4)
    assert feature_maps.homogeneity_defect(torch.relu, Z) < 1e-15
    assert feature_maps.homogeneity_defect(torch.abs, Z) < 1e-15
    assert feature_maps.homogeneity_defect(torch.tanh, Z) > 0.1


# -------------------------------------------------------------------------------------------------------- C-feat-14


def test_the_norm_grows_as_one_over_the_distance():
    found = verdict("C-feat-14", deficient_layer())
    norms, bounds = found.details["norm of W"][::2], found.details["bound"][::2]
    for k in range(1, 4):
        assert norms[k] / norms[k - 1] == pytest.approx(10.0, rel=0.05)
        assert bounds[k] / bounds[k - 1] > 8.0


def test_no_room_for_a_violation():
    found = verdict("C-feat-14", wide_net())
    assert found.status == "not applicable" and "every Z^σ_ℓ has rank N" in found.reason


def test_smaller_weights_would_fail(monkeypatch):
    true = feature_maps.KernelNorm

    class Wrong(true):
        def weights(self, M):
            return 0.1 * super().weights(M)

    monkeypatch.setattr(feature_maps, "KernelNorm", Wrong)
    assert verdict("C-feat-14", deficient_layer()).status == "fails"
