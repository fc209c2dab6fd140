"""C-ham-1, 2, 3, 6, 8: costs of identity, stable minima, the constant path, non-negativity, symmetries."""

from __future__ import annotations

import math

import pytest
import torch
from judged import part, verdict

from isthmus import LeakyResNet
from isthmus.claims._base import CLAIMS, Subject
from isthmus.claims._evidence import gaussian_inputs
from isthmus.claims.hamiltonian2024 import _identity as identity_claims
from isthmus.claims.hamiltonian2024 import _inside as inside_bottleneck
from isthmus.claims.hamiltonian2024 import _inside as path_stability
from isthmus.claims.hamiltonian2024 import _symmetries as symmetry_claims
from isthmus.claims.hamiltonian2024._flow import as_subject, path_of
from isthmus.claims.hamiltonian2024._identity import (
    deformed,
    many_neurons,
    neuron_descent,
    scale_derivative,
    signed_representation,
    stable_minimum,
    standing_still,
)
from isthmus.claims.hamiltonian2024._inside import deepening_family
from isthmus.claims.hamiltonian2024._symmetries import unbiased_net
from isthmus.constructions import flow_network, refine_steps, shift_leak, steady_path
from isthmus.measures import cost_of_identity
from isthmus.objective import cost
from tools import assert_close, gaussian, generator

MINE = ("C-ham-1", "C-ham-2", "C-ham-3", "C-ham-8")


def matrix(*rows):
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("identity", MINE)
def test_samples(identity):
    found = verdict(identity, CLAIMS[identity].sample())
    assert found.status == "holds", found.reason
    assert CLAIMS[identity].paper == "hamiltonian2024"


@pytest.mark.parametrize("identity", MINE)
def test_a_random_network_never_fails(identity):
    net = LeakyResNet(4, 3, 6, 5, 2.0, dtype=torch.float64, generator=generator(1)).requires_grad_(False)
    found = verdict(identity, Subject(net, gaussian(9, 4), gaussian(9, 3, seed=1), 0.1))
    assert found.status != "fails" and (found.status == "holds" or found.reason)


# ---------------------------------------------------------------------------------------------------------- C-ham-1


@pytest.mark.parametrize("shape", [(12, 3), (5, 4), (30, 8)])
@pytest.mark.parametrize("sign", [False, True])
def test_costs_bound_dimensions(shape, sign):
    A = gaussian(*shape)
    found = verdict("C-ham-1", standing_still(A.abs() if sign else A))
    if found.status == "not applicable":
        assert "Im Aᵀ" in found.reason and shape == (5, 4)
    else:
        assert found.status == "holds", found.reason
    if sign:
        rank = part("C-ham-1", standing_still(A.abs()), "the rank, where A ≥ 0")
        assert rank.status == "holds" and rank.lhs == pytest.approx(min(shape))


def test_fewer_samples_are_rebuilt_where_all_are_not():
    """Four neurons cannot rebuild ten samples of both signs; of the few that are drawn they can."""
    A = gaussian(4, 10)
    assert math.isinf(cost_of_identity(A, bias=0.0))
    found = verdict("C-ham-1", standing_still(A))
    assert found.status == "holds" and "rows drawn" in found.hypotheses[1].found


def test_with_bias_the_bounds_are_wrong(monkeypatch):
    """A = I: three dimensions, and with bias Tr (I + 11ᵀ)⁻¹ = 9/4."""
    subject = standing_still(torch.eye(3, dtype=torch.float64))
    assert verdict("C-ham-1", subject).status == "holds"
    monkeypatch.setattr(identity_claims, "_bare_cost", lambda norm, A: cost_of_identity(A))
    found = verdict("C-ham-1", subject)
    assert found.status == "fails" and found.lhs == pytest.approx(2.25)


def test_with_gamma_the_bounds_are_wrong(monkeypatch):
    monkeypatch.setattr(identity_claims, "_bare_cost", lambda norm, A: norm.square(A, norm.top))
    assert verdict("C-ham-1", signed_representation()).status == "fails"


def test_what_cannot_be_rebuilt_is_not_judged():
    found = verdict("C-ham-1", standing_still(-gaussian(3, 4).abs()))
    assert found.status == "not applicable" and "Im Aᵀ ⊂ Im σ̄(A)ᵀ: not met" in found.reason


# ---------------------------------------------------------------------------------------------------------- C-ham-2


def test_stable_minima_of_other_ranks():
    one = standing_still(matrix([1.0, 2.0]))
    assert verdict("C-ham-2", one).status == "holds"
    three = torch.block_diag(matrix([1.0, 2.0]), matrix([1.0, 3.0]), matrix([2.0, 1.0]))
    found = verdict("C-ham-2", standing_still(three))
    assert found.status == "holds" and found.rhs == pytest.approx(3.0)


def test_constants_in_the_image_are_not_critical():
    """1 = u + v ∈ Im K̄: the bias helps, and a smaller A costs less."""
    A = matrix([1.0, 1.0, 0.0], [0.0, 0.0, 1.0])
    found = verdict("C-ham-2", standing_still(A))
    assert found.status == "not applicable" and "critical in scale: not met" in found.reason
    assert cost_of_identity(0.9 * A) < cost_of_identity(A) < 2.0


def test_a_negative_critical_point_shows_descent():
    """Row u − cv next to row v: critical in scale, cost 2 + c², and lower for a smaller c."""
    u, v = [1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 1.0, 3.0]
    A = matrix([a - 0.5 * b for a, b in zip(u, v)], v)
    assert scale_derivative(A) < 1e-20
    assert cost_of_identity(A) == pytest.approx(2.25)
    assert deformed(A) < 2.25 - 1e-4
    found = verdict("C-ham-2", standing_still(A))
    assert found.status == "not applicable" and "no descent by deformation found: not met" in found.reason


def test_an_added_neuron_lowers_what_is_negative():
    """The paper's z = K̄_i, and that the second-order change is what the cost does."""
    u, v = [1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 1.0, 3.0]
    A = matrix([a - 0.5 * b for a, b in zip(u, v)], v)
    gain, z = neuron_descent(A)
    assert gain < -1e-3
    before = cost_of_identity(A)
    for step in (1e-2, 1e-3):
        after = cost_of_identity(torch.cat([A, step * z[None]]))
        assert after < before
        assert (after - before) / step**2 == pytest.approx(gain, rel=0.02)


def test_a_stability_search_that_is_fooled_fails(monkeypatch):
    """With every hypothesis granted, a negative representation contradicts the theorem."""
    monkeypatch.setattr(identity_claims, "scale_derivative", lambda A: 0.0)
    monkeypatch.setattr(identity_claims, "deformed", lambda A: math.inf)
    monkeypatch.setattr(identity_claims, "neuron_descent", lambda A: (1.0, A[0]))
    assert verdict("C-ham-2", signed_representation()).status == "fails"


def test_large_or_leaky_representations_are_not_searched():
    found = verdict("C-ham-2", standing_still(gaussian(3, 100).abs()))
    assert found.status == "not applicable" and "larger than" in found.reason
    net = LeakyResNet(3, 3, 4, 2, 0.5, slope=0.3, dtype=torch.float64)
    for identity in ("C-ham-2", "C-ham-3"):
        assert "ReLU" in verdict(identity, Subject(net, gaussian(5, 3))).reason


# ---------------------------------------------------------------------------------------------------------- C-ham-3


def test_too_few_neurons_and_no_sign():
    # Of three samples two are drawn, for which 12 neurons are enough; two neurons are too few for one.
    found = verdict("C-ham-3", standing_still(gaussian(12, 3)))
    assert found.status == "holds" and "2 of 3 rows drawn" in found.hypotheses[0].found
    found = verdict("C-ham-3", standing_still(gaussian(2, 3)))
    assert found.cause == "network" and "w > N(N+1): not met" in found.reason
    found = verdict("C-ham-3", standing_still(gaussian(20, 3).abs()))
    assert "a negative entry: not met" in found.reason


def test_an_infinite_cost_without_bias_is_left_out():
    """All rows are multiples of (1, −1), whose activations cannot rebuild it; with bias they can."""
    A = torch.arange(1.0, 8.0, dtype=torch.float64)[:, None] * matrix([1.0, -1.0])
    assert math.isinf(cost_of_identity(A, bias=0.0)) and math.isfinite(cost_of_identity(A))
    found = verdict("C-ham-3", standing_still(A))
    assert found.status == "holds" and "bias 0" not in found.where


def test_wrong_shares_fail(monkeypatch):
    true = identity_claims.constant_identity_path

    def wrong(A):
        path = true(A)
        return type(path)(path.A, 1.1 * path.shares)

    monkeypatch.setattr(identity_claims, "constant_identity_path", wrong)
    assert verdict("C-ham-3", many_neurons()).status == "fails"


def test_without_descent_it_fails(monkeypatch):
    monkeypatch.setattr(identity_claims, "lower_neighbour", lambda A: math.inf)
    found = verdict("C-ham-3", many_neurons())
    assert found.status == "fails" and found.where == "descent from its end"


# ---------------------------------------------------------------------------------------------------------- C-ham-6


@pytest.fixture(scope="module")
def deepening():
    subject = deepening_family()
    return subject, verdict("C-ham-6", subject)


def test_non_negative_inside(deepening):
    _, found = deepening
    assert found.status == "holds", found.reason
    shares = found.details["negative share at p₀"]
    assert shares[0] > 1e-2 and shares[-1] < 1e-5
    assert found.details["distance of −(2/L̃)𝓗 from 2"][-1] < 1e-3
    assert found.details["distance of min ‖A‖²_K from 2"][-1] < 1e-6


def test_shares_that_grow_fail(deepening, monkeypatch):
    true = inside_bottleneck.negative_share
    monkeypatch.setattr(inside_bottleneck, "negative_share", lambda path, p0: 1.0 - true(path, p0))
    monkeypatch.setattr(inside_bottleneck, "least_curvature", lambda one: 1.0)
    monkeypatch.setattr(inside_bottleneck, "neuron_curvature", lambda path: 1.0)
    assert verdict("C-ham-6", deepening[0]).status == "fails"


def steady_family(multiples, depths, leaking=None):
    """W = L̃I + mD: ‖∂_pA‖ grows with m, and −(2/L̃)𝓗 is off 2 by m²‖D‖²/L̃²."""
    A, D = matrix([1.0, 0.4], [0.3, 1.2]), matrix([0.2, 0.1], [0.1, -0.1])
    eye = torch.eye(2, dtype=torch.float64)
    members = [
        as_subject(steady_path(A, eye + m * D / L_tilde, L_tilde, 18, leaking=leaking))
        for m, L_tilde in zip(multiples, depths)
    ]
    return members[-1].replace(known={"family": members})


@pytest.mark.parametrize(
    ("multiples", "bounded"),
    [((1.0, 1.9, 2.6), "not known"), ((1.0, 1.1, 1.0), "not known"), ((1.0, 1.95, 3.6), "not met")],
)
def test_bounded_only_if_the_interval_says_so(multiples, bounded):
    """Speeds that grow by 1.9 and 1.4 are not bounded because three members leave a wide interval."""
    found = verdict("C-ham-6", steady_family(multiples, (2.0, 4.0, 8.0)))
    assert found.status == "not applicable" and f"∂_pA bounded near p₀: {bounded}" in found.reason


def test_one_member_out_of_order_does_not_refute_a_limit():
    """−(2/L̃)𝓗 is further off at L̃ = 4.2 than at 4, on its way from 0.0175 to 5e-4."""
    found = verdict("C-ham-6", steady_family((1.0, 1.0, 1.08, 1.0, 1.0), (2.0, 4.0, 4.2, 8.0, 12.0)))
    distances = found.details["distance of −(2/L̃)𝓗 from 2"]
    assert distances[2] > distances[1] > distances[-1]
    assert found.status == "holds", found.reason


def test_distances_that_are_rounding_from_the_start_hold(monkeypatch):
    """G = I: nothing moves. Speeds of rounding are bounded."""
    monkeypatch.setattr(inside_bottleneck, "least_curvature", lambda one: 1.0)
    found = verdict("C-ham-6", steady_family((0.0, 0.0, 0.0), (2.0, 4.0, 8.0)))
    assert found.status == "holds trivially", found.reason


def test_distances_that_stay_fail(monkeypatch, deepening):
    monkeypatch.setattr(inside_bottleneck, "negative_share", lambda path, p0: 0.3)
    monkeypatch.setattr(inside_bottleneck, "least_curvature", lambda one: 1.0)
    monkeypatch.setattr(inside_bottleneck, "neuron_curvature", lambda path: 1.0)
    found = verdict("C-ham-6", deepening[0])
    assert found.status == "fails" and "negative share" in found.where


def test_what_a_family_must_be(deepening, monkeypatch):
    subject, _ = deepening
    assert verdict("C-ham-6", subject.replace(known={})).supply == "known['family']"
    members = subject.known["family"]
    assert "a family by L̃: not met" in verdict("C-ham-6", subject.replace(known={"family": members[:2]})).reason
    wrong = [members[0].replace(ridge=2 * members[0].ridge), *members[1:]]
    assert "critical points: not met" in verdict("C-ham-6", subject.replace(known={"family": wrong})).reason
    monkeypatch.setattr(inside_bottleneck, "neuron_curvature", lambda path: 1.0)
    monkeypatch.setattr(inside_bottleneck, "least_curvature", lambda one: None)
    assert "local minima: not known" in verdict("C-ham-6", subject).reason
    monkeypatch.setattr(inside_bottleneck, "least_curvature", lambda one: -0.1)
    assert "local minima: not met" in verdict("C-ham-6", subject).reason
    monkeypatch.setattr(inside_bottleneck, "least_curvature", lambda one: 0.5)
    near_the_inputs = {"family": members, "p0": 0.02}
    found = verdict("C-ham-6", subject.replace(known=near_the_inputs))
    assert "bounded near p₀: not met" in found.reason  # the leaking neuron moves like L̃ there


def test_curvature_by_differences():
    """The least eigenvalue against second differences of the loss along random directions and its own."""
    made = steady_path(matrix([1.0, 0.4], [0.3, 1.2]), torch.eye(2).double() * 1.05, 2.0, 4)
    subject = as_subject(made)
    least = path_stability.least_curvature(subject)

    def loss(shift):
        net = LeakyResNet.from_weights(
            [W.detach() + s for W, s in zip(made.network.Ws, shift)], made.network.rho, effective_depth=2.0, bias=0.0
        )
        return float(cost(net.trace(made.X).outputs, made.Y)) + made.ridge * sum(
            float(rho * W.detach().square().sum()) for rho, W in zip(net.rho, net.Ws)
        )

    for seed in range(20):
        E = gaussian(4, 2, 2, seed=seed)
        size = 0.25 * float(E.square().sum())
        second = (loss(1e-3 * E) + loss(-1e-3 * E) - 2 * loss(0 * E)) / 1e-6
        assert second / (2 * made.ridge * size) >= least - 1e-4
    assert 0 < least < 1


def test_a_neuron_by_differences():
    """The quadratic form of a new neuron is the second-order change of the loss of the wider network."""
    made = flow_network(gaussian(3, 2, seed=1), 0.3 * gaussian(3, 2, seed=2), 1.0, 6)
    path, _ = path_of(as_subject(made))
    r = gaussian(6, 4, seed=3)
    trace, rho = path.trace, path.trace.rho
    a, form, out = torch.zeros(2).double(), 0.0, []
    for ell in range(6):
        column = path.L_tilde * path.Bs[ell + 1] @ torch.relu(a)
        out.append(column)
        form += float(rho[ell] * (r[ell].square().sum() - column.square().sum()))
        a = (1 - rho[ell] * path.L_tilde) * a + rho[ell] * r[ell] @ trace.sigma_A(ell)

    def loss(step):
        Ws = []
        for W, row, column in zip(trace.Ws, r, out):
            top = torch.cat([W[:, :3], step * column[:, None], W[:, 3:]], 1)
            Ws.append(torch.cat([top, step * torch.cat([row[:3], torch.zeros(1).double(), row[3:]])[None]]))
        eye = torch.eye(4, 3, dtype=torch.float64)
        net = LeakyResNet.from_weights(Ws, rho, effective_depth=1.0, W_in=eye, W_out=eye.mT)
        ridge = made.ridge * sum(float(h * W.square().sum()) for h, W in zip(rho, Ws))
        return float(cost(net.trace(made.X).outputs, made.Y)) + ridge

    change = (loss(1e-3) - loss(0.0)) / 1e-6
    assert_close(change, made.ridge * form, rtol=1e-3, reason="a second difference")


def test_a_negative_minimum_that_is_not_stable(deepening):
    """A strict local minimum whose inside is mostly negative: what Prop. 5 as printed does not exclude.

    One more neuron lowers its loss, so that the hypothesis that the erratum adds is not met.
    """
    A, B = gaussian_inputs(2, 1, 4), gaussian_inputs(2, 1, 1004)
    A = torch.cat([A[:1].abs() + 0.5, -A[1:].abs() - 0.1])
    subject = as_subject(flow_network(A, B, 2.0, 40, bias=0.0))
    path, _ = path_of(subject)
    assert path.residual < 1e-12
    assert inside_bottleneck.negative_share(path, 0.5) > 0.5
    assert path_stability.least_curvature(subject) > 0.5
    assert path_stability.neuron_curvature(path) < -5
    members = deepening[0].known["family"]
    found = verdict("C-ham-6", subject.replace(known={"family": [subject, *members[1:]]}))
    assert found.status == "not applicable" and "no descent by an added neuron found: not met" in found.reason


# ---------------------------------------------------------------------------------------------------------- C-ham-8


def test_a_bias_in_the_second_symmetry():
    net = LeakyResNet(4, 3, 8, 6, 2.0, dtype=torch.float64, generator=generator(3)).requires_grad_(False)
    subject = Subject(net, gaussian(20, 4))
    for shift in ("0.5", "1"):
        found = part("C-ham-8", subject, f"leak + {shift}: exponent of the error")
        assert found.status == "not applicable" and "no bias (second): not met" in found.reason
    # The first symmetry has no such hypothesis.
    assert part("C-ham-8", subject, "range rescaled").status == verdict("C-ham-8", subject).status == "holds"


def test_wrong_symmetries_fail(monkeypatch):
    true = symmetry_claims.rescale_range
    monkeypatch.setattr(symmetry_claims, "rescale_range", lambda net, c: true(net, 1.01 * c))
    assert "∫‖W‖²" in verdict("C-ham-8", unbiased_net()).where
    monkeypatch.undo()
    monkeypatch.setattr(symmetry_claims, "leaked", lambda net, c: 0.9 * math.exp(-c))
    found = verdict("C-ham-8", unbiased_net())
    assert found.status == "fails" and "leak" in found.where


def test_two_ways_to_the_end_of_a_refined_path():
    subject = unbiased_net()
    fine = refine_steps(subject.net, 4)
    for shift in (0.0, 0.7):
        end = symmetry_claims.end_of_path(subject.net, subject.X, 4, subject.net.effective_depth + shift)
        assert_close(end, shift_leak(fine, shift).trace(subject.X).representations[-1])


@pytest.mark.parametrize("layers", [300, 600])
def test_short_steps_are_cut_too(layers):
    """ρ(L̃ + ‖W‖) is below 1/64 from the start: cuts would coincide."""
    source = generator(3)
    net = LeakyResNet(4, 3, 8, layers, 2.0, bias=0.0, dtype=torch.float64, generator=source).requires_grad_(False)
    cuts = symmetry_claims.cuts_of_steps(net)
    assert cuts == [cuts[0] * n for n in (1, 2, 4, 8)]
    found = verdict("C-ham-8", Subject(net, gaussian(6, 4)))
    assert found.status == "holds", found.reason


def test_a_path_that_leaks_away_on_cut_steps():
    """ρL̃ = 3: steps double and turn what is there, while cut ones leave e^(−102) of it, whose square is zero."""
    zeros = [torch.zeros(2, 2, dtype=torch.float64)] * 34
    net = LeakyResNet.from_weights(zeros, [1 / 34] * 34, effective_depth=102.0, bias=0.0).requires_grad_(False)
    found = part("C-ham-8", Subject(net, 1e-120 * gaussian(3, 2)), "leak + 1: exponent of the error")
    assert found.status == "not applicable" and "nothing left" in found.reason


def test_no_error_at_all(monkeypatch):
    monkeypatch.setattr(symmetry_claims, "shift_errors", lambda net, X, shift: [0.0] * 4)
    found = part("C-ham-8", unbiased_net(), "leak + 1: exponent of the error")
    assert found.status == "not applicable" and "no error" in found.reason


def test_vanishing_outputs():
    net = LeakyResNet(3, 3, 4, 2, 1.0, bias=0.0, init_scale=0.0, dtype=torch.float64).requires_grad_(False)
    found = verdict("C-ham-8", Subject(net, torch.zeros(5, 3).double()))
    assert found.status == "not applicable" and "vanish" in found.reason


def test_every_sample_is_small():
    assert stable_minimum().X.shape == (4, 3) and many_neurons().net.width == 20
