"""C-feat-4, 5, 6, 7, 11, 12: widths, ranks of pairs, graphs, Prop. 14, convexity; each with its twin."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from judged import status, verdict
from networks_of_all_kinds import drawn_subject

from isthmus import FullyConnected
from isthmus.claims import CLAIMS
from isthmus.claims._base import Subject
from isthmus.claims.features2022 import _graphs as feature_bipartite
from isthmus.claims.features2022 import _widths as feature_cones
from isthmus.claims.features2022 import _widths as feature_widths
from isthmus.claims.features2022._maps import conditioned_rows
from isthmus.claims.features2022._widths import (
    crowded_net,
    doubled_bipartite,
    least_loss,
    loss_on,
    narrowed,
    other_end,
    plateau_family,
    segment,
    widened,
)
from isthmus.constructions import (
    bipartite_data,
    bipartite_narrow,
    bipartite_optimum,
    complete_bipartite,
    one_hot_data,
    one_hot_optimum,
)
from isthmus.measures import covariance_loss, covariances, representations
from tools import assert_close, gaussian, random_net

MINE = ("C-feat-4", "C-feat-5", "C-feat-6", "C-feat-7", "C-feat-11", "C-feat-12")


@pytest.mark.parametrize("identity", MINE)
def test_samples(identity):
    found = verdict(identity, CLAIMS[identity].sample())
    # The graph of C-feat-6 is no network's.
    assert found.status == ("holds trivially" if identity == "C-feat-6" else "holds"), found.reason
    assert CLAIMS[identity].paper == "features2022"


@pytest.mark.parametrize("identity", MINE)
@pytest.mark.parametrize(("slope", "bias"), [(0.0, 1.0), (0.0, 0.0), (0.4, 1.0), (1.0, 0.0)])
def test_a_random_network_never_fails(identity, slope, bias):
    net = random_net([3, 7, 5, 2], slope, bias, seed=1)
    found = verdict(identity, Subject(net, gaussian(6, 3), gaussian(6, 2, seed=1), 0.1))
    assert found.status != "fails" and (found.status == "holds" or found.reason)
    assert found.status == "holds" or identity in ("C-feat-4", "C-feat-6", "C-feat-7")


@pytest.mark.parametrize("identity", MINE)
def test_many_samples_and_no_hidden_layer(identity):
    """Of many samples some are drawn, where the theorem is about any."""
    found = verdict(identity, Subject(random_net([2, 4, 1]), gaussian(50, 2)))
    drawn = identity in ("C-feat-5", "C-feat-11", "C-feat-12")
    assert found.status == ("holds" if drawn else "not applicable")
    assert not drawn or any("rows drawn (seed 0)" in h.found for h in found.hypotheses)
    found = verdict(identity, Subject(random_net([2, 1]), gaussian(4, 2)))
    assert found.status != "fails"


@pytest.mark.parametrize("identity", MINE)
@pytest.mark.parametrize("bias", [0.0, 1.0])
@pytest.mark.parametrize("zero", ["weights", "inputs"])
@pytest.mark.parametrize("ridge", [None, 0.0, 2.0])
def test_zero_networks_and_zero_inputs(identity, bias, zero, ridge):
    """No scale to divide by, no neuron, and a row of ones all the same."""
    net = random_net([3, 4, 3], bias=bias).requires_grad_(False)
    if zero == "weights":
        for p in net.parameters():
            p.mul_(0.0)
    X = torch.eye(3, dtype=torch.float64) if zero == "weights" else torch.zeros(4, 3, dtype=torch.float64)
    Y = None if ridge is None else gaussian(len(X), 3) if ridge else net.trace(X).outputs
    assert verdict(identity, Subject(net, X, Y, ridge)).status != "fails"


# --------------------------------------------------------------------------------------------------------- C-feat-4


def test_a_family_on_inputs_of_zero():
    """Nothing but zero weights: the least loss is that of the outputs 0."""
    X, Y = torch.zeros(3, 2, dtype=torch.float64), torch.ones(3, 1, dtype=torch.float64)
    family = [
        Subject(FullyConnected.from_weights([torch.zeros(n, 2), torch.zeros(1, n)]).double(), X, Y, 0.1) for n in (2, 3)
    ]
    assert least_loss(family[0]) == pytest.approx(1.0) == loss_on(family[0])
    assert status("C-feat-4", family[0].replace(known={"family": family})) == "holds"


def test_a_poor_optimiser():
    """A wide member left at a random start, worse than a narrow one, or merely not at its bound."""
    subject = plateau_family()
    members = list(subject.known["family"])
    poor = members[3].replace(net=random_net([3, 12, 2], bias=0.0))
    found = verdict("C-feat-4", subject.replace(known={"family": [*members[:3], poor]}))
    assert found.status == "not applicable" and "narrower member" in found.reason
    near = [1.01 * W.detach() for W in members[0].net.Ws]
    first = members[0].replace(net=FullyConnected.from_weights(near))
    found = verdict("C-feat-4", subject.replace(known={"family": [first, *members[1:]]}))
    assert found.status == "not applicable" and "global minima: not known" in found.reason


def test_families_that_are_none():
    subject = plateau_family()
    members = subject.known["family"]
    for family in ([], members[:1], members[::-1], [one.replace(ridge=None) for one in members]):
        assert status("C-feat-4", subject.replace(known={"family": family})) == "not applicable"


def test_wrong_moves_fail(monkeypatch):
    monkeypatch.setattr(feature_widths, "widened", lambda net: random_net([3, 9, 2], bias=0.0))
    assert "dead" in verdict("C-feat-4", plateau_family()).where
    monkeypatch.undo()
    monkeypatch.setattr(feature_widths, "narrowed", lambda one: random_net([3, 9, 2], bias=0.0))
    found = verdict("C-feat-4", plateau_family())
    assert found.status == "fails" and "reduced" in found.where
    monkeypatch.undo()
    # A bound that lets poor minima through: the fall itself is then judged.
    monkeypatch.setattr(
        feature_widths,
        "_global_minima",
        lambda family, losses: feature_widths.Hypothesis.of(feature_widths.GLOBAL, True),
    )
    members = list(plateau_family().known["family"])
    poor = members[3].replace(net=random_net([3, 12, 2], bias=0.0))
    assert status("C-feat-4", plateau_family().replace(known={"family": [*members[:3], poor]})) == "fails"


def test_moves_on_deep_networks():
    """Props 6 and 7 need no minimum: dead neurons change nothing, and a layer of 30 goes to ≤ N(N+1) = 12."""
    net = random_net([2, 30, 20, 2], slope=0.2)
    subject = Subject(net, gaussian(3, 2), gaussian(3, 2, seed=1), 0.1)
    assert_close(loss_on(subject, widened(net)), loss_on(subject))
    small = narrowed(subject)
    assert max(small.dims[1:-1]) <= 12
    assert loss_on(subject, small) <= loss_on(subject)
    assert_close(small.trace(subject.X).outputs, net.trace(subject.X).outputs, rtol=1e-8, reason="a pseudo-inverse")


@pytest.mark.parametrize("width", [1, 2, 6])
def test_the_bound_for_widths_holds(width):
    for seed in range(20):
        X, Y = gaussian(5, 3, seed=seed), gaussian(5, 2, seed=seed + 50)
        net = random_net([3, width, 2], bias=0.0, seed=seed, slope=0.1)
        subject = Subject(net, X, Y, 0.05)
        floor = least_loss(subject)
        assert floor is not None and floor <= loss_on(subject)
    assert least_loss(Subject(random_net([3, width, 2]), gaussian(5, 3), gaussian(5, 2), 0.05)) is None


# --------------------------------------------------------------------------------------------------------- C-feat-5


def test_the_unqualified_bound_fails(monkeypatch):
    """β = 1, one neuron: Rank_cp(K^σ) = 2 is no bound of Rank_σ = 1."""
    net = FullyConnected.from_weights([[[1.0, -1.0]], [[1.0]]], [[0.0], [0.0]])
    subject = Subject(net.double(), torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.5]]).double())
    assert status("C-feat-5", subject) == "holds"
    true = feature_cones.lower_bound
    monkeypatch.setattr(
        feature_cones, "lower_bound", lambda K, K_sigma, *, bias, slope: true(K, K_sigma, bias=0.0, slope=slope)
    )
    found = verdict("C-feat-5", subject)
    assert found.status == "fails" and (found.lhs, found.rhs) == (2.0, 1.0)


def test_another_pair_fails(monkeypatch):
    true = feature_cones.reduced
    monkeypatch.setattr(feature_cones, "reduced", lambda Z, slope: 1.001 * true(Z, slope))
    assert verdict("C-feat-5", crowded_net()).where.startswith("the same pair")
    monkeypatch.setattr(feature_cones, "reduced", lambda Z, slope: Z)
    assert "N(N+1)" in verdict("C-feat-5", crowded_net()).where


# --------------------------------------------------------------------------------------------------------- C-feat-6


def graph(edges, vertices):
    return Subject(bipartite_optimum(2), torch.eye(2).double(), known={"edges": edges, "vertices": vertices})


def test_graphs(monkeypatch):
    cycle = [(i, (i + 1) % 7) for i in range(7)]
    assert status("C-feat-6", graph(cycle, 7)) == "holds trivially"
    found = verdict("C-feat-6", graph([(0, 1), (1, 2), (0, 2)], 3))
    assert found.status == "not applicable" and "triangle-free graph: not met" in found.reason
    monkeypatch.setattr(feature_bipartite, "is_triangle_free", lambda edges, vertices: True)
    complete = [(i, j) for i in range(4) for j in range(i)]
    assert status("C-feat-6", graph(complete, 4)) == "fails"  # 6 edges, CP-rank 4
    monkeypatch.undo()
    monkeypatch.setattr(feature_bipartite, "cp_rank_bound", lambda M: 8)
    assert status("C-feat-6", graph(complete_bipartite(6), 6)) == "fails"


# --------------------------------------------------------------------------------------------------------- C-feat-7


@pytest.mark.parametrize("N", [4, 6])
def test_prop_14(N):
    X, Y = bipartite_data(N)
    at = verdict("C-feat-7", Subject(bipartite_optimum(N), X, Y))
    assert at.status == "holds" and (at.lhs, at.rhs) == (N * N / 4, N * N / 4)
    off = verdict("C-feat-7", Subject(bipartite_narrow(N), X, Y))
    assert off.status == "holds"
    assert_close([off.lhs, off.rhs], [N * N + N, N * N])
    ridge = verdict("C-feat-7", Subject(bipartite_optimum(N, ridge=1e-4), X, Y, 1e-4))
    assert ridge.status == "holds" and ridge.rhs >= N * N / 4  # proved for this λ


def test_one_hot_plateau():
    sizes = (3, 2, 2)
    X, Y = one_hot_data(sizes)
    for ridge in (None, 0.02):
        net = one_hot_optimum(sizes, ridge=ridge or 0.0)
        found = verdict("C-feat-7", Subject(net, X, Y, ridge))
        assert found.status == "holds" and (found.lhs, found.rhs) == (3.0, 3.0)


@pytest.mark.parametrize("ridge", [None, 1.0])
def test_a_root_of_zero(ridge):
    """Outputs of zero, or a ridge above all singular values of Y: the optimum is the zero network, or a small one."""
    for size in (0.0, 1e-9):
        net = FullyConnected.from_weights([size * torch.ones(4, 3), size * torch.ones(2, 4)]).double()
        Y = None if ridge is None else torch.eye(3, 2, dtype=torch.float64)
        found = verdict("C-feat-7", Subject(net.requires_grad_(False), torch.eye(3, dtype=torch.float64), Y, ridge))
        assert found.status.startswith("holds"), found.reason


def test_another_target():
    """A rotation mixed in: the root has a negative entry."""
    X = torch.eye(3).double()
    Y = torch.tensor([[1.0, -0.8, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]).double()
    found = verdict("C-feat-7", Subject(random_net([3, 12, 3], bias=0.0), X, Y))
    assert found.status == "not applicable" and "completely positive: not met" in found.reason


@pytest.mark.parametrize(
    ("net", "X", "unmet"),
    [
        (random_net([4, 6, 4], bias=1.0), torch.eye(4).double(), "β = 0"),
        (random_net([4, 6, 4], slope=0.1, bias=0.0), torch.eye(4).double(), "ReLU"),
        (random_net([4, 6, 6, 4], bias=0.0), torch.eye(4).double(), "L = 2"),
        (random_net([4, 6, 4], bias=0.0), 2 * torch.eye(4).double(), "X = I"),
    ],
)
def test_each_hypothesis_of_prop_14(net, X, unmet):
    found = verdict("C-feat-7", Subject(net, X, bipartite_data(4)[1]))
    assert found.status == "not applicable" and f"{unmet}: not met" in found.reason


def test_a_norm_below_the_least_fails(monkeypatch):
    X, Y = bipartite_data(4)
    true = feature_bipartite.parameter_norms
    monkeypatch.setattr(
        feature_bipartite, "parameter_norms", lambda net: type("N", (), {"total": 0.99 * true(net).total})
    )
    assert status("C-feat-7", Subject(bipartite_optimum(4), X, Y)) == "fails"
    monkeypatch.undo()
    monkeypatch.setattr(feature_bipartite, "cp_rank_bound", lambda M, tolerance: 5)
    found = verdict("C-feat-7", Subject(bipartite_optimum(4), X, Y))
    assert found.status == "fails" and found.where == "neurons and CP-rank"


# -------------------------------------------------------------------------------------------------------- C-feat-11


def scalar_chain():
    """f = x + y/x + c²/y for K_1 = x, K_2 = y on one sample: at x = y = 4, c = 0.01."""
    return Subject(FullyConnected.from_weights([[[2.0]], [[1.0]], [[0.005]]]).double(), torch.ones(1, 1).double())


def test_two_blocks_are_not_convex():
    subject = scalar_chain()
    end = [torch.tensor([[1.0]]).double(), torch.tensor([[0.1]]).double()]
    middle, ends = segment(subject, [1, 2], end)
    assert middle[2] > 0.5 * (ends[0] + ends[1]) + 0.2
    assert_close(ends[0], 4 + 1 + 1e-4 / 4)
    assert_close(middle[2], 2.5 + 2.005 / 2.5 + 1e-4 / 2.005)
    for block, neuron in zip((1, 2), end):
        here, both = segment(subject, [block], [neuron])
        assert here[2] <= 0.5 * (both[0] + both[1])
    found = verdict("C-feat-11", subject.replace(known={"free": 2}))
    assert found.status == "not applicable" and "one block free: not met" in found.reason


def test_a_concave_loss_fails(monkeypatch):
    true = feature_cones.representation_loss
    monkeypatch.setattr(feature_cones, "representation_loss", lambda *a, **k: -true(*a, **k))
    assert status("C-feat-11", crowded_net()) == "fails"


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_segments_from_covariances_alone(loss):
    """The neurons of a point of a segment against the combination of matrices."""
    net = random_net([3, 6, 6, 2])
    Y = torch.tensor([0, 1, 1, 0]) if loss == "cross_entropy" else gaussian(4, 2, seed=1)
    subject = Subject(net, gaussian(4, 3), Y, 0.1, loss)
    end = other_end(subject, [1], 0)
    here, _ = segment(subject, [1], end)
    Zs = representations(net, subject.X)
    Ks = list(covariances(Zs, bias=1.0))
    (K, K_sigma), t = Ks[0], feature_cones.PLACES[1]
    new, new_sigma = covariances([*end, Zs[-1]], bias=1.0)[0]
    Ks[0] = ((1 - t) * K + t * new, (1 - t) * K_sigma + t * new_sigma)
    value = covariance_loss(Ks, Zs[-1], subject.X, Y, ridge=0.1, loss=loss)
    assert_close(here[1], value, rtol=1e-6, reason="a covariance knows √eps")
    assert status("C-feat-11", subject) == "holds"


# -------------------------------------------------------------------------------------------------------- C-feat-12


def test_one_neuron_fewer():
    subject = doubled_bipartite()
    for widths, expected in (([8], "not applicable"), ([9], "holds"), ([11], "holds")):
        found = verdict("C-feat-12", subject.replace(known={"widths": widths}))
        assert found.status == expected
    assert "n_ℓ ≥ Rank_σ: not met" in verdict("C-feat-12", subject.replace(known={"widths": [8]})).reason


def test_three_neurons_do_not_make_the_pair():
    """By a search, beside the bound: with 3 neurons the pair of B_4 is never near, with 4 it is found."""
    K = bipartite_data(4)[1]
    left = {}
    for n in (3, 4):
        ends = []
        for seed in range(4):
            Z = gaussian(n, 4, seed=seed).abs().requires_grad_(True)
            optimiser = torch.optim.LBFGS([Z], max_iter=50, line_search_fn="strong_wolfe")

            def misfit(Z=Z):
                S = torch.relu(Z)
                return (Z.mT @ Z - K).square().sum() + (S.mT @ S - K).square().sum()

            def closure(misfit=misfit, optimiser=optimiser):
                optimiser.zero_grad()
                value = misfit()
                value.backward()
                return value

            optimiser.step(closure)
            ends.append(float(misfit().detach()))
        left[n] = min(ends)
    assert left[3] > 0.1 and left[4] < 1e-3


def test_unknown_between_the_bounds():
    found = verdict("C-feat-12", crowded_net().replace(known={"widths": [8, 8]}))
    assert found.status == "not applicable" and "n_ℓ ≥ Rank_σ: not known" in found.reason


def test_a_wrong_realisation_fails(monkeypatch):
    true = feature_widths.realised
    monkeypatch.setattr(feature_widths, "realised", lambda Zs, X, like: true([1.01 * Z for Z in Zs], X, like))
    assert status("C-feat-12", crowded_net()) == "fails"
    monkeypatch.undo()
    monkeypatch.setattr(feature_widths, "parameter_norms", lambda net: type("N", (), {"total": 1.0}))
    assert status("C-feat-12", crowded_net()) == "fails"


@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_how_far_off_the_border_a_gap_allows(bias):
    """The pair times m alone: the gap to a better m allows |a − b|/a, and without bias no more."""
    ones = bias**2 * torch.ones(4, 4, dtype=torch.float64)
    for seed in range(20):
        S, T = gaussian(5, 4, seed=seed), gaussian(2, 4, seed=seed + 50)
        V = torch.linalg.solve(S.mT @ S + ones, T.mT).mT
        b = float((V @ S.mT).square().sum())
        for a in (0.5 * b, 0.99 * b, 1.1 * b, 3.0 * b):
            m = (b / a) ** 0.5
            after = float((torch.linalg.solve(m * S.mT @ S + ones, T.mT).mT * T).sum())
            most = feature_widths.off_the_border(a + float((V * T).sum()) - m * a - after, a)
            assert abs(a - b) / a <= most * (1 + 1e-6)
            assert bias or b < a or abs(a - b) / a == pytest.approx(most, rel=1e-6)


@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-4, 6e-4])
def test_nearly_optimal_pairs_are_not_refuted(delta):
    """Layers out of balance by δ cost 2δ² of the value and 4δ in the gradient: certified up to δ ≈ 7e-4."""
    subject = doubled_bipartite()
    W_1, W_2 = subject.net.Ws
    net = FullyConnected.from_weights([(1 + delta) * W_1, W_2 / (1 + delta)]).requires_grad_(False)
    proof = feature_widths.certify_layer(net, subject.X, 1, patterns=0)
    assert proof.verdict == "certified" and proof.complementarity == pytest.approx(4 * delta, rel=1e-2, abs=1e-9)
    assert status("C-feat-12", subject.replace(net=net)) == "holds"


def test_ill_conditioned_pairs_are_not_judged():
    """Two neurons nearly on one ray, 1e-9 apart where both are active: Z^σ has a singular value of that size.

    Of fewer samples the covariances are known.
    """
    X = gaussian(3, 3).abs()
    W = torch.eye(3, dtype=torch.float64)
    W[2] = W[1] + 1e-9 * W[2]
    net = FullyConnected.from_weights([W, gaussian(2, 3, seed=1)]).requires_grad_(False)
    rows, wide, _ = conditioned_rows(Subject(net, X), 3)
    assert len(rows.X) < 3 and wide < 1e4
    assert status("C-feat-12", Subject(net, X)) == "holds"
    near = torch.cat([X[:1], X[:1] + 1e-9])
    found = verdict("C-feat-12", Subject(net, near))
    assert (found.status, found.cause) == ("not applicable", "numerical")


def test_the_border(monkeypatch):
    """At a proved optimum gradient and pair are orthogonal; a certificate that says otherwise is caught."""
    true = feature_widths.certify_layer
    assert true(doubled_bipartite().net, doubled_bipartite().X, 1, patterns=0).verdict == "certified"
    monkeypatch.setattr(
        feature_widths, "certify_layer", lambda *a, **k: dataclasses.replace(true(*a, **k), complementarity=0.1)
    )
    found = verdict("C-feat-12", doubled_bipartite())
    assert found.status == "fails" and "∇" in found.where


@pytest.mark.parametrize("seed", [194, 559, 589])
def test_segments_between_ill_conditioned_pairs(seed):
    """Linear and low-rank networks: ∞ ≤ 1.02, or a convexity that rounding of small eigenvalues broke."""
    subject = drawn_subject(seed)[1]
    assert status("C-feat-11", subject.replace(X=subject.X[:8], Y=subject.Y[:8])) != "fails"
