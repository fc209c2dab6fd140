"""C-feat-2, 10: forces at stationary points, and the covariances of linear minimisers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from judged import part, verdict

import isthmus
from isthmus import FullyConnected
from isthmus.claims._base import CLAIMS, Subject
from isthmus.claims._evidence import gaussian_inputs, least_squares_minimum, random_subject
from isthmus.claims.features2022 import _forces as feature_forces
from isthmus.claims.features2022._forces import balanced_forces, linear_on_few
from isthmus.constructions import linear_network
from isthmus.measures import forces
from isthmus.objective import cost
from tools import gaussian, generator, orthogonal

MINE = ("C-feat-2", "C-feat-10")


def linear_minimum(depth, samples=4, ridge=0.05):
    """A deep linear network at its minimum on X = √N·I: its singular values solve s − m + ridge·s^{2/L−1} = 0."""
    M = gaussian_inputs(samples, samples, 67) + 2.0 * torch.eye(samples, dtype=torch.float64)
    U, m, Vh = torch.linalg.svd(M)
    s = m.clone()
    for _ in range(200):
        s = m - ridge * s ** (2.0 / depth - 1.0)
    X = samples**0.5 * torch.eye(samples, dtype=torch.float64)
    net = linear_network((U * s) @ Vh, depth).network.requires_grad_(False)
    return Subject(net, X, X @ M.mT, ridge)


@pytest.mark.parametrize("identity", MINE)
def test_samples(identity):
    found = verdict(identity, CLAIMS[identity].sample())
    assert found.status == "holds", found.reason
    assert CLAIMS[identity].paper == "features2022"


@pytest.mark.parametrize("identity", MINE)
@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0])
def test_no_random_network_fails(identity, slope):
    for seed in range(3):
        subject = random_subject([4, 6, 5, 2], slope=slope, samples=4, seed=seed)
        for one in (subject, subject.replace(Y=gaussian(4, 2), ridge=0.1)):
            found = verdict(identity, one)
            assert found.status == "not applicable" and found.reason


# --------------------------------------------------------------------------------------------------------- C-feat-2


@pytest.mark.parametrize("correlation", [0.05, 0.3, 0.45])
def test_the_closed_form(correlation):
    """Both signs of pre-activations, off kinks, the gradient 0 by autograd, every kernel invertible."""
    subject = balanced_forces(correlation)
    Z = subject.trace().Z(1)
    assert float(Z.min()) < 0 < float(Z.max()) and float(Z.abs().min()) > 0.01
    assert subject.stationarity.residual < 1e-12
    found = forces(subject.net, subject.X, gamma_share=0.0)
    assert found.state == ("balanced",) and found.residual[0] < 1e-12
    assert verdict("C-feat-2", subject).status == "holds"


def test_deep_linear_minima():
    for depth in (2, 3, 5):
        subject = linear_minimum(depth)
        assert subject.stationarity.residual < 1e-10
        assert verdict("C-feat-2", subject).status == "holds"


def test_more_samples_than_inputs():
    """The twin: the forces do not cancel, the general form does."""
    subject = least_squares_minimum()
    found = part("C-feat-2", subject, "attraction + repulsion")
    assert found.status == "not applicable" and "K^σ_0 deficient" in found.reason
    found = verdict("C-feat-2", subject)
    assert found.status == "holds" and max(found.details["general form by layer"]) < 1e-10


def test_a_point_that_is_not_stationary():
    subject = balanced_forces()
    found = verdict("C-feat-2", subject.replace(Y=subject.Y + 0.1))
    assert found.cause == "network" and "stationary point: not met" in found.reason
    found = verdict("C-feat-2", subject.replace(ridge=None))
    assert found.cause == "supply" and found.supply == "Y and ridge"


def test_nearly_stationary_points():
    """What a small residual may leave is granted, and no more than it leaves is needed."""
    subject = balanced_forces()
    for size in (1e-3, 1e-6):
        moved = [W.detach() + size * gaussian(*W.shape, seed=i) * 0.01 for i, W in enumerate(subject.net.Ws)]
        near = subject.replace(net=FullyConnected.from_weights(moved, bias=0.0).requires_grad_(False))
        found = verdict("C-feat-2", near)
        assert found.status == "holds" and 1e-10 < found.lhs < found.tolerance < 0.02


def test_a_minimum_on_kinks():
    """Entries at their kinks: the plain gradient is far from 0, the residual with derivatives between is not."""
    X = torch.tensor([[1.0], [-1.0], [0.0]], dtype=torch.float64)
    net = FullyConnected([1, 6, 1], dtype=torch.float64, generator=generator(3))
    isthmus.train(net, X, X.abs(), ridge=0.02, finish="stationary")
    subject = Subject(net.requires_grad_(False), X, X.abs(), 0.02)
    found = subject.stationarity
    assert found.stationary and len(found.multipliers) and found.gradient > 10 * found.residual
    assert verdict("C-feat-2", subject).status == "holds"
    assert verdict("C-rank-9", subject).status == "holds"
    moved = [1.1 * net.Ws[0].detach(), net.Ws[1].detach() / 1.1]
    other = FullyConnected.from_weights(moved, [1.1 * net.bs[0].detach(), net.bs[1].detach()]).requires_grad_(False)
    for identity in ("C-feat-2", "C-rank-9"):
        assert verdict(identity, subject.replace(net=other)).status == "not applicable"


@pytest.mark.parametrize("factor", [1.001, -1.0])
def test_wrong_forces_fail(monkeypatch, factor):
    true = feature_forces.forces

    def wrong(trace, **options):
        found = true(trace, **options)
        rep = tuple(factor * R for R in found.repulsion)
        residual = tuple(float((A + R).norm() / A.norm()) for A, R in zip(found.attraction, rep))
        return replace(found, repulsion=rep, residual=residual)

    monkeypatch.setattr(feature_forces, "forces", wrong)
    found = verdict("C-feat-2", balanced_forces())
    assert found.status == "fails" and found.where == "attraction + repulsion: layer 1"


def test_a_wrong_general_form_fails_even_where_the_forces_are_not_judged(monkeypatch):
    true = feature_forces.pulls

    def wrong(*args):
        found = true(*args)
        return replace(found, Z=[1.001 * one for one in found.Z])

    monkeypatch.setattr(feature_forces, "pulls", wrong)
    for subject in (balanced_forces(), least_squares_minimum()):
        found = verdict("C-feat-2", subject)
        assert found.status == "fails" and found.where.startswith("2λZ")


@pytest.mark.slow
def test_a_trained_network():
    """Widths (4, 8, 5), biases, no entry at a kink at the end: another route to a minimum than a closed form."""
    source = torch.Generator().manual_seed(1)
    net = FullyConnected([4, 8, 5], dtype=torch.float64, generator=source)
    X, Y = (torch.randn(4, n, dtype=torch.float64, generator=source) for n in (4, 5))
    parameters = list(net.parameters())
    optimiser = torch.optim.LBFGS(
        parameters,
        max_iter=4000,
        tolerance_grad=1e-13,
        tolerance_change=0.0,
        history_size=50,
        line_search_fn="strong_wolfe",
    )

    def closure():
        optimiser.zero_grad()
        value = cost(net(X), Y) + 0.01 * sum(p.square().sum() for p in parameters)
        value.backward()
        return value

    optimiser.step(closure)
    found = verdict("C-feat-2", Subject(net.requires_grad_(False), X, Y, 0.01))
    assert found.status == "holds" and max(found.details["‖attraction + repulsion‖ by hidden layer"]) < 1e-5


# -------------------------------------------------------------------------------------------------------- C-feat-10


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (9, 4)])
@pytest.mark.parametrize("depth", [2, 5])
def test_square_and_other_inputs(shape, depth):
    X = gaussian(*shape, seed=depth)
    A = gaussian(4, shape[0], seed=1) @ torch.linalg.pinv(X).mT
    subject = Subject(linear_network(A, depth).network.requires_grad_(False), X)
    found = verdict("C-feat-10", subject)
    assert found.status == "holds", found.reason
    if shape == (4, 4):
        # By the printed formula, with the inverse and a power by eigenvalues, which needs a Z_L of full rank.
        trace = subject.trace()
        inverse = torch.linalg.inv(X.mT)
        values, Q = torch.linalg.eigh(inverse.mT @ trace.outputs @ trace.outputs.mT @ inverse)
        power = (Q * values.clamp_min(0) ** (1 / depth)) @ Q.mT
        expected = X @ power @ X.mT
        K = trace.Z(1).mT @ trace.Z(1)
        assert float((K - expected).norm()) < 1e-5 * float(K.norm())


def test_minimisers_of_a_loss():
    for subject in (linear_minimum(4), least_squares_minimum()):
        assert verdict("C-feat-10", subject).status == "holds"


def unbalanced():
    subject = linear_on_few()
    Ws = [W.detach().clone() for W in subject.net.Ws]
    Ws[0], Ws[1] = 1.3 * Ws[0], Ws[1] / 1.3
    return subject.replace(net=FullyConnected.from_weights(Ws, slope=1.0).requires_grad_(False))


def test_an_unbalanced_network_of_the_same_function():
    found = verdict("C-feat-10", unbalanced())
    assert found.status == "not applicable" and "least norm for its outputs: not met" in found.reason


def test_granted_the_norm_it_fails(monkeypatch):
    monkeypatch.setattr(feature_forces, "EXCESS", 1.0)
    monkeypatch.setattr(feature_forces.math, "sqrt", lambda value: 0.0)
    found = verdict("C-feat-10", unbalanced())
    assert found.status == "fails" and found.where == "layer 1"


def test_rotations_between_layers_are_allowed():
    subject = linear_on_few()
    Ws = [W.detach() for W in subject.net.Ws]
    Q = orthogonal(3, 3, seed=4)
    Ws[0], Ws[1] = Q @ Ws[0], Ws[1] @ Q.mT
    net = FullyConnected.from_weights(Ws, slope=1.0).requires_grad_(False)
    assert verdict("C-feat-10", subject.replace(net=net)).status == "holds"


def test_weights_off_the_span_of_the_inputs_are_too_many():
    subject = linear_on_few()
    Ws = [W.detach().clone() for W in subject.net.Ws]
    Ws[0] += 0.1 * torch.randn(Ws[0].shape, dtype=torch.float64, generator=generator(1))
    net = FullyConnected.from_weights(Ws, slope=1.0).requires_grad_(False)
    assert verdict("C-feat-10", subject.replace(net=net)).status == "not applicable"
