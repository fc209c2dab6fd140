"""C-bn-5, C-bn-13 and C-bn-15: identities on bent domains, where minimisers are cut, symmetries."""

from __future__ import annotations

import math

import pytest
import torch
from judged import status, verdict

import isthmus
from isthmus import FullyConnected, IsthmusError
from isthmus.claims._base import CLAIMS, Subject
from isthmus.claims._evidence import random_subject
from isthmus.claims.bottleneck2023 import _domains as domains
from isthmus.claims.bottleneck2023._costs import into_an_orthant
from isthmus.claims.bottleneck2023._domains import bending_cost
from isthmus.constructions import (
    linear_network,
    pad,
)
from isthmus.measures import Stationarity, linear_cost, parameter_norms
from tools import assert_close, gaussian, orthogonal


@pytest.fixture(scope="module")
def samples():
    made = {identity: CLAIMS[identity].sample() for identity in ("C-bn-5", "C-bn-15")}
    return {identity: (subject, verdict(identity, subject)) for identity, subject in made.items()}


# ------------------------------------------------------------------------------------------------- C-bn-5


def plane(k=2, *, signed=False, slope=0.0):
    """Points of a k-plane in ℝ⁴, in an orthant or on both sides of 0, and a network of their identity."""
    V = torch.zeros(4, k, dtype=torch.float64)
    V[range(k), range(k)] = 1.0
    X = gaussian(30, k, seed=1) @ V.mT
    X = X if signed else X.abs()
    net = FullyConnected.from_weights([V.mT, V], slope=slope) if slope == 1.0 else None
    if net is None:
        net = pad(FullyConnected.from_weights([torch.eye(4).double()]), 3, signed=True).network
    return Subject(net, X, known={"tangents": torch.stack([V, V]), "rank": k})


def test_planes():
    found = verdict("C-bn-5", plane())
    # Networks that were made here: the one at hand does not enter.
    assert found.status == "holds trivially" and found.relation == "="
    assert_close(found.lhs, found.rhs)
    signed = verdict("C-bn-5", plane(signed=True))
    assert signed.status == "not applicable" and "90°" in signed.reason


def test_complete_positivity_is_not_implied():
    """Prop. 5 prints "only if completely positive". With slope 1, R1(id; {±x}) = 0 although no orthant holds ±x."""
    subject = plane(signed=True, slope=1.0)
    assert into_an_orthant(subject.X).exists is False
    found = verdict("C-bn-5", subject)
    assert found.status == "holds trivially" and found.relation == "="
    assert_close(parameter_norms(subject.net).total, 2 * 2.0)


def test_twins_of_the_l_shape(samples):
    subject = samples["C-bn-5"][0]
    known = subject.known
    assert status("C-bn-5", subject.replace(known={**known, "rank": 2})) == "not applicable"
    assert status("C-bn-5", subject.replace(known={"tangents": known["tangents"]})) == "not applicable"
    assert status("C-bn-5", subject.replace(X=subject.X + 1.0)) == "not applicable"
    # One tangent space only: the domain is no line, and nothing says what it costs.
    one = {**known, "tangents": known["tangents"][:1]}
    assert status("C-bn-5", subject.replace(known=one)) == "not applicable"
    with pytest.raises(IsthmusError, match=r"\(P, 2, k\)"):
        verdict("C-bn-5", subject.replace(known={**known, "tangents": torch.eye(2)}))


def test_an_identity_that_is_too_cheap_fails(samples, monkeypatch):
    monkeypatch.setattr(domains, "parameter_norms", lambda net: type("N", (), {"total": net.depth + 0.5})())
    assert status("C-bn-5", samples["C-bn-5"][0]) == "fails"  # log 2 is missing
    assert status("C-bn-5", plane()) == "fails"


def bent_line(share=1.0):
    """t ↦ (t, |t|) and a network that gives ``share`` of it: through one dimension, at depth 3."""
    t = torch.linspace(-1.0, 1.0, 60, dtype=torch.float64)
    read = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    signs = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    last = share * torch.tensor([[1.0, -1.0], [1.0, 1.0]], dtype=torch.float64)
    # Positive on its way: the second layer's neurons are [t]_+ and [-t]_+.
    net = FullyConnected.from_weights(
        [read, signs, last], [torch.full((1,), 2.0), torch.tensor([-2.0, 2.0]), torch.zeros(2)]
    )
    return Subject(net.double(), torch.stack([t, t.abs()], 1))


@pytest.mark.parametrize("share", [1.0, 0.98])
def test_tangents_of_samples_and_what_is_nearly_the_identity(share):
    subject = bent_line(share)
    found = verdict("C-bn-5", subject)
    assert found.status == "holds"
    # The two halves are at a right angle; of a share of the identity, lengths are that share.
    assert_close(found.rhs, 3.0 + math.log(2.0) + 2 * math.log(share))


def test_a_network_that_is_nearly_the_identity_and_too_cheap_fails(monkeypatch):
    monkeypatch.setattr(domains, "parameter_norms", lambda net: type("N", (), {"total": net.depth + 0.5})())
    assert status("C-bn-5", bent_line(0.98)) == "fails"


def test_a_plane_without_tangents_says_nothing():
    X = gaussian(60, 2, seed=1)
    net = pad(FullyConnected.from_weights([torch.eye(2).double()]), 3, signed=True).network
    assert "angle" in verdict("C-bn-5", Subject(net, X)).reason


def test_what_is_not_the_identity_is_judged_by_the_planes_that_it_stretches(monkeypatch):
    """Half of the identity of the bent line: its only direction is stretched by 1/√2, and turned by a right angle."""
    subject = bent_line(0.5)
    found = verdict("C-bn-5", subject)
    assert found.status == "holds" and "k = 1" in found.where
    assert next(h for h in found.hypotheses if "id on" in h.name).status == "not met"
    assert_close(found.rhs, 3.0 + math.log(2.0) + 2 * math.log(0.5 * 2**0.5))
    monkeypatch.setattr(domains, "parameter_norms", lambda net: type("N", (), {"total": net.depth - 0.1})())
    assert status("C-bn-5", subject) == "fails"


@pytest.mark.parametrize("slope", [0.0, 0.3, -0.6])
def test_planes_of_networks_of_any_shape(slope):
    subject = random_subject([5, 9, 9, 3], slope=slope, seed=4)
    assert status("C-bn-5", subject) == "holds"
    assert "k = 2" in verdict("C-bn-5", subject.replace(known={"k": 2})).where
    # All of the outputs, or a linear map: the planes are one.
    for other in (subject.replace(known={"k": 3}), random_subject([5, 9, 3], slope=1.0)):
        assert "angle" in verdict("C-bn-5", other).reason


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_of_two_points_holds_for_any_network_and_directions(seed):
    """‖θ‖² ≥ kL + Σ log(1 + sin φ) + 2 min log|Jf(x)T|_k, whether f is the identity or not."""
    subject = random_subject([4, 8, 8, 4], scale=0.5 + 0.3 * seed, seed=seed)
    J = isthmus.measures.jacobian(subject.net, subject.X[:8])
    total = parameter_norms(subject.net).total
    for k in (1, 2, 3):
        T = torch.stack([orthogonal(4, k, seed=10 * seed + i) for i in range(8)])
        U, s, _ = torch.linalg.svd(J @ T, full_matrices=False)
        volumes = 2 * s.log().sum(1)
        for i in range(1, 8):
            bound = 3 * k + bending_cost(U[0], U[i]) + float(torch.minimum(volumes[0], volumes[i]))
            assert total >= bound - 1e-9


@pytest.mark.parametrize(("d", "k"), [(2, 1), (4, 1), (4, 2), (5, 3)])
def test_the_cost_of_an_angle_by_minimisation(d, k):
    """min over ‖W‖² = k of max{2 log|W⁺P|, 2 log|W⁺Q|} is Σ log(1 + sin φ): gradient descent on W, softened maximum."""
    P, Q = orthogonal(d, k, seed=1), orthogonal(d, k, seed=2)
    S = torch.linalg.svd(torch.cat([P, Q], 1), full_matrices=False).U[:, : min(d, 2 * k)]
    p, q = S.mT @ P, S.mT @ Q
    M = torch.eye(len(p), dtype=torch.float64, requires_grad=True)
    best = math.inf
    optimiser = torch.optim.LBFGS([M], max_iter=200, line_search_fn="strong_wolfe", tolerance_grad=1e-10)

    def costs():
        W = M * (k / M.square().sum()).sqrt()
        inverse = torch.linalg.inv(W @ W.mT)
        return torch.stack([torch.logdet(B.mT @ inverse @ B) for B in (p, q)])

    for sharpness in (1.0, 10.0, 100.0, 1e4):

        def closure(sharpness=sharpness):
            optimiser.zero_grad()
            loss = torch.logsumexp(sharpness * costs(), 0) / sharpness
            loss.backward()
            return loss

        optimiser.step(closure)
        best = min(best, float(costs().max().detach()))
    assert_close(best, bending_cost(P, Q), atol=1e-3, rtol=1e-3, reason="a softened maximum")
    assert best > bending_cost(P, Q) - 1e-9
    assert abs(bending_cost(P, P)) < 1e-12
    assert_close(bending_cost(torch.eye(4, 2).double(), torch.eye(4).double()[:, 2:]), 2 * math.log(2.0))


# ------------------------------------------------------------------------------------ C-bn-13, C-bn-15


def test_where_a_minimiser_is_cut():
    A = gaussian(4, 3, seed=1)
    subject = Subject(linear_network(A, 6).network, gaussian(9, 3))
    found = verdict("C-bn-13", subject)
    assert found.status == "holds"
    assert_close(found.lhs, linear_cost(A, 6))
    # By the formula for linear maps, at each layer.
    half = linear_network(A, 6).network
    for ell in range(1, 6):
        below, above = half.Ws[0].detach(), half.Ws[-1].detach()
        for W in half.Ws[1:ell]:
            below = W.detach() @ below
        for W in reversed(half.Ws[ell:-1]):
            above = above @ W.detach()
        assert_close(linear_cost(below, ell) + linear_cost(above, 6 - ell), found.lhs)


def test_a_network_that_is_no_minimiser_is_not_judged():
    Ws = [W.detach() for W in linear_network(gaussian(3, 3), 4).network.Ws]
    moved = FullyConnected.from_weights([2.0 * Ws[0], Ws[1] / 2.0, *Ws[2:]], slope=1.0)
    assert status("C-bn-13", Subject(moved, gaussian(9, 3))) == "not applicable"


def test_a_shifted_layer_fails():
    net = linear_network(gaussian(3, 3), 4).network
    Ws = [W.detach() for W in net.Ws]
    shifted = (Ws[0], Ws[1] @ Ws[1], *Ws[2:])
    subject = Subject(net, gaussian(9, 3))
    assert status("C-bn-13", subject.replace(known={"Ws": tuple(Ws)})) == "holds"
    assert status("C-bn-13", subject.replace(known={"Ws": shifted})) == "fails"


@pytest.mark.parametrize("seed", range(4))
def test_directions_that_f_does_not_see_are_cut(seed):
    """A third direction of 3e-12 in the first layer: its inverse made of rounding a cost of 3e-3."""
    L, size = 4, 1e-9 ** (1 / 4)
    Qs = [orthogonal(5, 5, seed=10 * seed + ell) for ell in range(L + 1)]
    values = [torch.tensor([1.0, size, 3e-12 * (ell == 0), 0, 0], dtype=torch.float64) for ell in range(L)]
    net = FullyConnected.from_weights([Qs[ell + 1] * values[ell] @ Qs[ell].mT for ell in range(L)], slope=1.0)
    assert status("C-bn-13", Subject(net.requires_grad_(False), gaussian(9, 5))) == "holds"


def test_a_relu_network_that_attains_its_bound():
    s = torch.tensor([2.0, 0.5, 1.3], dtype=torch.float64)
    net = FullyConnected.from_weights([torch.diag(s ** (1 / 5))] * 5)
    assert status("C-bn-13", Subject(net, gaussian(9, 3).abs())) == "holds"
    assert status("C-bn-13", Subject(net, -gaussian(9, 3).abs())) == "not applicable"


def test_symmetries(samples):
    subject = samples["C-bn-15"][0]
    known = subject.known
    assert status("C-bn-15", subject.replace(known={**known, "quotient_dimension": 1})) == "fails"
    broken = {**known, "action": lambda X: X + 0.1}
    assert status("C-bn-15", subject.replace(known=broken)) == "not applicable"
    several = {**known, "action": [known["action"], lambda X: X]}
    assert status("C-bn-15", subject.replace(known=several)) == "holds"
    # Without a group the translations that W_1 does not see are taken; where it sees all, there are none.
    found = verdict("C-bn-15", subject.replace(known={}))
    assert found.status == "holds trivially" and found.rhs == 2.0
    assert verdict("C-bn-15", random_subject([3, 6, 2], seed=1)).cause == "supply"


def test_actions_are_given_as_symmetry_takes_them():
    """A matrix, a permutation, a function with or without a source of random numbers."""
    W = torch.tensor([[1.0, 1.0, 0.5], [-0.3, -0.3, 1.0]], dtype=torch.float64)
    net = FullyConnected.from_weights([W, torch.tensor([[1.0, -2.0]], dtype=torch.float64)])
    swap = torch.eye(3, dtype=torch.float64)[[1, 0, 2]]
    along = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)

    def drawn(X, generator):
        return X + torch.randn(len(X), 1, dtype=torch.float64, generator=generator) * along

    for action in (swap, [1, 0, 2], lambda X: X[:, [1, 0, 2]], drawn, [swap, drawn]):
        known = {"action": action, "quotient_dimension": 2}
        assert status("C-bn-15", Subject(net, gaussian(20, 3), known=known)) == "holds"
    turned = {"action": [2, 0, 1], "quotient_dimension": 2}
    assert status("C-bn-15", Subject(net, gaussian(20, 3), known=turned)) == "not applicable"


@pytest.fixture(scope="module")
def trained():
    """A network with biases at a stationary point: its layers have different norms."""
    X = gaussian(20, 2, seed=3)
    net = FullyConnected([2, 6, 6, 2], dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    Y = torch.cat([X[:, :1].abs(), X.sum(1, keepdim=True)], 1)
    result = isthmus.train(net, X, Y, ridge=0.02, finish="stationary")
    assert result.stationarity.stationary
    return Subject(net.requires_grad_(False), X, Y, 0.02)


def test_where_a_trained_network_is_cut(trained):
    found = verdict("C-bn-13", trained)
    assert found.status == "holds" and found.margin < 0.01
    assert_close(found.lhs, parameter_norms(trained.net).total)
    assert verdict("C-bn-13", trained.replace(ridge=None)).cause == "supply"
    assert verdict("C-bn-13", trained.replace(Y=trained.Y + 1.0)).cause == "network"


@pytest.mark.parametrize("layer", [0, 1])
def test_a_part_with_a_cheaper_rescaling_fails(trained, layer):
    """The same function with a neuron's weights shared otherwise: one of the two parts can be made cheaper."""
    Ws = [W.clone() for W in trained.net.Ws]
    loudest = int(Ws[layer].norm(dim=1).argmax())
    Ws[layer][loudest] *= 3.0
    Ws[layer + 1][:, loudest] /= 3.0
    assert status("C-bn-13", trained.replace(known={"Ws": tuple(Ws)})) == "fails"


@pytest.mark.parametrize("seed", range(6))
def test_what_rescaling_may_win_is_within_what_the_residual_leaves(trained, seed, monkeypatch):
    """Scales of a few per cent: as far from a minimum as the residual says."""
    monkeypatch.setattr(Stationarity, "stationary", True)
    net, scales = trained.net, [(0.01 * gaussian(6, 1, seed=10 * seed + i)).exp() for i in range(2)]
    Ws, bs = [W.clone() for W in net.Ws], [b.clone() for b in net.bs]
    for ell, scale in enumerate(scales):
        Ws[ell], bs[ell], Ws[ell + 1] = scale * Ws[ell], scale[:, 0] * bs[ell], Ws[ell + 1] / scale[:, 0]
    moved = FullyConnected.from_weights(Ws, bs).requires_grad_(False)
    found = verdict("C-bn-13", trained.replace(net=moved))
    assert found.status == "holds" or "residual leaves" in found.reason
