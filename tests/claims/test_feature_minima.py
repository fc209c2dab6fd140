"""C-feat-9, 13: local minima over weights that are none over covariances."""

from __future__ import annotations

import math

import pytest
import torch
from judged import verdict

from isthmus import FullyConnected
from isthmus.claims._base import CLAIMS, Subject
from isthmus.claims._evidence import random_subject
from isthmus.claims.features2022 import _minima as feature_descent
from isthmus.claims.features2022 import _minima as feature_minima
from isthmus.claims.features2022._minima import (
    DECREASE,
    distance_of_covariances,
    flattened,
    losses_at,
    preimages,
    saddle_point,
    search_descent,
)
from isthmus.constructions import Saddle, saddle
from tools import assert_close, gaussian

MINE = ("C-feat-9", "C-feat-13")


def diagonal_minimum(ridge=0.05):
    """A ReLU network at its global minimum, with one neuron split in two and one dead.

    On X = I without bias the loss is at least ‖Z_2 − Y‖²/N + 2λ‖Z_2‖_*; for a diagonal Y its minimum, the
    soft-thresholding of Y by λN, is attained by diagonal weights.
    """
    X = torch.eye(3, dtype=torch.float64)
    Y = torch.diag(torch.tensor([1.5, 1.0, 0.7], dtype=torch.float64))
    root = (Y.diagonal() - 3 * ridge).sqrt()
    split = torch.zeros(5, 3, dtype=torch.float64)
    split[0, 0], split[1, 0] = 0.6 * root[0], 0.8 * root[0]
    split[2, 1], split[3, 2] = root[1], root[2]
    net = FullyConnected.from_weights([split, split.mT], bias=0.0).requires_grad_(False)
    return Subject(net, X, Y, ridge)


@pytest.mark.parametrize("identity", MINE)
def test_samples(identity):
    found = verdict(identity, CLAIMS[identity].sample())
    assert found.status == "holds", found.reason
    assert CLAIMS[identity].paper == "features2022"


def with_spare_neurons(seed, slope=0.0, bias=1.0):
    """A random network with two neurons on one ray and a dead one."""
    subject = random_subject([4, 6, 3], slope=slope, bias=bias, samples=5, seed=seed)
    W, V = subject.net.weights
    with torch.no_grad():
        W[1] = 2.0 * W[0]
        W[4], V[:, 4] = 0.0, 0.0
        for b in subject.net.bs[:1]:
            b[1], b[4] = 2.0 * b[0], 0.0
    subject.net.requires_grad_(False)
    return subject.replace(Y=gaussian(5, 3, seed=seed), ridge=0.05)


@pytest.mark.parametrize("identity", MINE)
@pytest.mark.parametrize("slope", [0.0, 0.3])
@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_no_random_network_fails(identity, slope, bias):
    for seed in range(3):
        found = verdict(identity, with_spare_neurons(seed, slope, bias))
        assert found.status == ("holds" if identity == "C-feat-13" else "not applicable")
        plain = random_subject([3, 5, 2], slope=slope, bias=bias, samples=6, seed=seed)
        assert verdict(identity, plain).status == "not applicable"


# --------------------------------------------------------------------------------------------------------- C-feat-9


@pytest.mark.parametrize("lam", [1e-3, 0.2, 0.49, 0.499, 0.49999])
@pytest.mark.parametrize("angle", [0.2, 1.0])
def test_the_whole_segment(lam, angle):
    made = saddle(lam, angle=angle)
    found = verdict("C-feat-9", Subject(made.network, made.X, made.Y, made.ridge))
    assert found.status == "holds", found.reason
    assert max(found.details["change of 𝓛^k"]) < 0


@pytest.mark.parametrize("lam", [0.4999999, 0.49999999])
def test_descent_below_rounding_is_not_judged(lam):
    """ε²(1 − 2λ) ≤ (1 − 2λ)²: 4e-14 and less, which a loss of ½ does not show."""
    made = saddle(lam)
    found = verdict("C-feat-9", Subject(made.network, made.X, made.Y, made.ridge))
    assert found.status == "not applicable" and "below rounding" in found.reason


def test_flat_along_the_circle_only():
    """The Hessian at the weights: one 0, along the circle, and three positive eigenvalues."""
    subject = saddle_point()
    H = torch.autograd.functional.hessian(lambda v: losses_at(subject.net, subject, v), flattened(subject.net))
    values, Q = torch.linalg.eigh(H)
    assert abs(float(values[0])) < 1e-12 and float(values[1]) > 0.1
    tangent = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64) / 2
    assert abs(float(tangent @ Q[:, 0])) == pytest.approx(1.0)


def test_the_printed_sign_fails(monkeypatch):
    true = Saddle.escape
    monkeypatch.setattr(Saddle, "escape", lambda self, epsilon: true(self, epsilon, printed=True))
    found = verdict("C-feat-9", saddle_point())
    assert found.status == "fails" and "way out" in found.where


def test_where_it_says_nothing():
    made = saddle(0.2)
    there = Subject(made.network, made.X, made.Y, 0.2)
    assert verdict("C-feat-9", there).status == "holds"
    # The constants of the plain sum with the mean: a_1² + a_2² = 1 − λ is not on the segment.
    other = saddle(0.2, convention="sum")
    for changed, reason in (
        (there.replace(ridge=0.6), "λ < ½"),
        (there.replace(ridge=0.21), "off by"),
        (there.replace(net=other.network), "off by"),
        (there.replace(net=made.end), "not positive"),
        (there.replace(X=-2 * made.X), "off by"),
        (there.replace(loss="cross_entropy"), "A-saddle"),
        (there.replace(Y=None), "other data"),
    ):
        found = verdict("C-feat-9", changed)
        assert found.status == "not applicable" and reason in found.reason


# -------------------------------------------------------------------------------------------------------- C-feat-13


def test_one_preimage_is_not_enough():
    """The saddle itself shows no descent, the end of its segment does: (K, Z_L) is no local minimum."""
    subject = saddle_point()
    found = verdict("C-feat-13", subject)
    assert found.status == "holds" and "preimage 1" in found.where and "no local minimum" in found.where
    least = found.details["least change next to each preimage"]
    assert least[0] > -DECREASE and least[1] < -1e-11
    distances = found.details["distance of (K, Z_L)"]
    assert distances[0] > 10 * distances[1] and distances[1] < 1e-5


def test_all_preimages_of_a_global_minimum():
    found = verdict("C-feat-13", diagonal_minimum())
    assert found.status == "holds" and "no descent found" in found.where
    assert min(found.details["least change next to each preimage"]) > -DECREASE


@pytest.mark.parametrize("make", [saddle_point, diagonal_minimum, lambda: with_spare_neurons(3)])
def test_preimages(make):
    """Other weights, the same covariances, outputs and loss 𝓛^k."""
    subject = make()
    found = preimages(subject, 5)
    values = [float(losses_at(net, subject, flattened(net))) for net in found]
    assert values == pytest.approx([values[0]] * 5, rel=1e-12)
    for net in found[1:]:
        assert distance_of_covariances(net, subject.net, subject.X) < 1e-12
        assert float((flattened(net) - flattened(found[0])).norm()) > 1e-3
    if make is saddle_point:
        end = saddle(0.2).end
        order = [0, 1] if float(found[1].Ws[0][0].abs().max()) > 0 else [1, 0]
        assert_close(found[1].Ws[0][order], end.Ws[0])


def test_losses_of_a_stack():
    subject = with_spare_neurons(1)
    vectors = flattened(subject.net) + 0.1 * gaussian(7, len(flattened(subject.net)))
    one_by_one = [float(losses_at(subject.net, subject, v)) for v in vectors]
    assert losses_at(subject.net, subject, vectors).tolist() == pytest.approx(one_by_one, rel=1e-13)
    labels = subject.replace(Y=torch.tensor([0, 1, 2, 1, 0]), loss="cross_entropy")
    one_by_one = [float(losses_at(subject.net, labels, v)) for v in vectors]
    assert losses_at(subject.net, labels, vectors).tolist() == pytest.approx(one_by_one, rel=1e-13)


def test_an_awakened_neuron_by_its_formula():
    """The change of the loss is ε²(2λ − ‖Gσ(ŵX)‖): 2·0.2 − 1 at the end of the segment."""
    made = saddle(0.2)
    subject = Subject(made.end, made.X, made.Y, made.ridge)
    (direction,) = feature_descent.awakenings(made.end, subject, torch.Generator().manual_seed(0))
    for epsilon in (1e-2, 1e-3):
        value = float(losses_at(made.end, subject, flattened(made.end) + epsilon * direction[0])) - made.value
        assert value / epsilon**2 == pytest.approx(2 * 0.2 - 1, rel=1e-3)
    assert search_descent(made.end, subject).found and not search_descent(made.network, subject).found


def test_a_wrong_loss_of_covariances_fails(monkeypatch):
    true = feature_minima.loss_of_covariances
    monkeypatch.setattr(
        feature_minima, "loss_of_covariances", lambda net, subject: 2 * saddle(0.2).value - true(net, subject)
    )
    assert verdict("C-feat-13", saddle_point()).status == "fails"


def test_wrong_preimages_fail(monkeypatch):
    subject = diagonal_minimum()
    true = feature_minima.preimages

    def wrong(one):
        made = true(one)
        made[1].weights[1].data *= 1.01
        return made

    monkeypatch.setattr(feature_minima, "preimages", wrong)
    assert verdict("C-feat-13", subject).status == "fails"


def test_too_large_or_not_given():
    found = verdict("C-feat-13", random_subject([10, 30, 5], samples=10))
    assert found.status == "not applicable" and "small and well conditioned: not known" in found.reason
    found = verdict("C-feat-13", saddle_point().replace(ridge=None))
    assert found.status == "not applicable" and "ridge > 0 given" in found.reason
    assert math.isnan(found.slack)
