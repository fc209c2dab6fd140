"""Claims about costs of linear maps, of two functions and of domains: samples, twins, and what the paper prints."""

from __future__ import annotations

import math

import pytest
import torch
from judged import part, status, verdict

from isthmus import FullyConnected, LeakyResNet
from isthmus.claims._base import CLAIMS, Subject
from isthmus.claims._evidence import leaky_random_net, random_subject, relu_random_net
from isthmus.claims.bottleneck2023 import _costs as least_norm
from isthmus.claims.bottleneck2023 import _costs as linear_costs
from isthmus.claims.bottleneck2023 import _costs as second_corrections
from isthmus.claims.bottleneck2023 import _costs as two_functions
from isthmus.claims.bottleneck2023 import _curvature as bn_families
from isthmus.claims.bottleneck2023 import _domains as domains
from isthmus.claims.bottleneck2023._costs import into_an_orthant
from isthmus.constructions import (
    Construction,
    compose,
    divergent,
    linear_network,
    pad,
    parallel,
    positive_linear_network,
)
from isthmus.measures import linear_cost, linear_expansion, parameter_norms
from tools import assert_close, gaussian, linear_net, orthogonal, random_net

MINE = tuple(f"C-bn-{n}" for n in (2, 3, 4, 5, 10, 12, 13, 14, 15))
assert all((bn_families, domains, least_norm, linear_costs, second_corrections, two_functions))


def linear(*Ws):
    return FullyConnected.from_weights(Ws, slope=1.0)


@pytest.fixture(scope="module")
def samples():
    """Each with its verdict: some are dear."""
    made = {identity: CLAIMS[identity].sample() for identity in MINE}
    return {identity: (subject, verdict(identity, subject)) for identity, subject in made.items()}


@pytest.mark.parametrize("identity", MINE)
def test_samples(samples, identity):
    found = samples[identity][1]
    assert found.status == "holds", found.reason
    assert CLAIMS[identity].paper == "bottleneck2023"
    assert math.isfinite(found.lhs) and math.isfinite(found.rhs)


PLAIN = {
    "ReLU": relu_random_net(),
    "leaky": leaky_random_net(),
    "one layer": random_subject([3, 2], seed=1),
    "linear": Subject(linear_net([2.0, 0.5], [4, 6, 6, 3]), gaussian(20, 4)),
    "loose linear": Subject(random_net([4, 6, 6, 3], slope=1.0, bias=0.0), gaussian(20, 4)),
    "linear of rank 1": Subject(linear_net([1.0], [3, 4, 3]), gaussian(20, 3)),
    "zero": Subject(linear(torch.zeros(3, 3).double(), torch.zeros(3, 3).double()), gaussian(5, 3)),
    "one sample": Subject(random_net([4, 6, 3]), gaussian(1, 4)),
}


@pytest.mark.parametrize("identity", MINE)
@pytest.mark.parametrize("plain", PLAIN)
def test_a_plain_network(identity, plain):
    found = verdict(identity, PLAIN[plain])
    assert found.status != "fails", found.reason
    judged = {"leaky": ("C-bn-5",), "ReLU": ("C-bn-2", "C-bn-5", "C-bn-14")}
    if plain in judged and identity not in judged[plain]:
        assert found.status == "not applicable" and found.reason


def test_a_relu_network_is_cut_in_two_and_made_deeper():
    """What can be made of the network itself need not be supplied; what is so by construction is not called a test."""
    found = verdict("C-bn-2", relu_random_net())
    assert found.status == "holds" and 0.1 < found.margin < 0.99
    made = part("C-bn-2", relu_random_net(), "the network put together")
    assert made.status == "holds trivially" and made.lhs == pytest.approx(made.rhs)
    assert status("C-bn-14", relu_random_net()) == "holds trivially"


def test_what_is_lacking_is_said():
    plain = random_subject([3, 6, 3], slope=0.3, seed=2)
    wanted = {2: "'f'", 4: "'f'", 10: "'fits'", 12: "'exponent'", 14: "'family'", 15: "'action'"}
    for number, word in wanted.items():
        found = verdict(f"C-bn-{number}", plain)
        assert found.cause == "supply" and word in found.supply, number
    # Without tangent spaces: of what is no identity the planes that it stretches.
    assert "planes" in verdict("C-bn-5", plain).where


def test_linear_networks_need_nothing_else():
    least = PLAIN["linear"]
    for number in (2, 3, 4, 13, 14):
        assert status(f"C-bn-{number}", least) == "holds"
    # A longer way to the same map: no minimiser, and parts that do not match.
    loose = PLAIN["loose linear"]
    assert part("C-bn-2", loose, "R1").status == "not applicable"  # ranks 4 and 3 in its parts
    assert part("C-bn-2", loose, "R, exactly").status == "holds"
    assert status("C-bn-13", loose) == "not applicable"
    assert status("C-bn-3", loose) == "holds"


# ------------------------------------------------------------------------------------------------- C-bn-2


def test_composition_needs_a_positive_inner_function(samples):
    subject = samples["C-bn-2"][0]
    g = subject.known["g"]
    low = FullyConnected.from_weights(g.Ws, [*g.bs[:-1], g.bs[-1] - 3.0])
    found = verdict("C-bn-2", subject.replace(known={**subject.known, "g": low}))
    assert found.status == "not applicable" and "f(σ(g)) differs" in found.reason


def test_the_sum_of_two_constants():
    """R(b) = ‖b‖², but ‖b + b‖² = 4‖b‖²: output biases must not point the same way."""
    b = torch.ones(2).double()

    def constant(c):
        return FullyConnected.from_weights([torch.zeros(1, 3).double(), torch.zeros(2, 1).double()], [0 * c[:1], c])

    def pair(f, g):
        return Subject(f, gaussian(10, 3), known={"f": f, "g": g, "join": "f+g"})

    found = verdict("C-bn-2", pair(constant(b), constant(b)))
    assert found.status == "not applicable" and "= 2" in found.reason
    joined = parallel(constant(b), constant(b)).network
    assert parameter_norms(joined).total > 2 * parameter_norms(constant(b)).total


def test_sums_of_networks_and_of_maps():
    V, U = orthogonal(4, 4, seed=1), orthogonal(5, 4, seed=2)
    parts = [U[:, i : i + 2] @ gaussian(2, 2, seed=i) @ V[:, i : i + 2].mT for i in (0, 2)]
    f, g = (linear_network(A, 3).network for A in parts)
    known = {"f": f, "g": g, "join": "f+g"}
    exact = verdict("C-bn-2", Subject(f, gaussian(20, 4), known=known))
    assert exact.status == "holds"
    assert_close(linear_cost(sum(parts), 3), sum(linear_cost(A, 3) for A in parts))
    # Not orthogonal: a strict inequality.
    f, g = (linear_network(gaussian(5, 1, seed=s) @ gaussian(1, 4, seed=s + 1), 3) for s in (5, 7))
    strict = verdict("C-bn-2", Subject(f.network, gaussian(20, 4), known={"f": f, "g": g, "join": "f+g"}))
    assert strict.status == "holds" and strict.slack > 1e-3
    # ReLU, through 1 + 2 dimensions.
    f, g = (random_net([4, 6, k, 6, 5], seed=k) for k in (1, 2))
    for net in (f, g):
        net.biases[1].data += 5.0  # the narrow layer, alive
    g.biases[-1].data = -f.biases[-1].data.clone()
    relu = verdict("C-bn-2", Subject(f, gaussian(40, 4), known={"f": f, "g": g, "join": "f+g"}))
    assert relu.status == "holds", relu.reason
    overlap = {"f": f, "g": f, "join": "f+g"}
    assert status("C-bn-2", Subject(f, gaussian(40, 4), known=overlap)) == "not applicable"
    assert status("C-bn-2", Subject(f, gaussian(40, 4), known={**overlap, "join": "f*g"})) == "not applicable"


def test_ranks_that_do_not_fit():
    f, g = linear_network(gaussian(3, 3), 2).network, linear_network(gaussian(3, 1) @ gaussian(1, 3), 2).network
    subject = Subject(f, gaussian(9, 3), known={"f": f, "g": g})
    found = part("C-bn-2", subject, "R1")
    assert found.status == "not applicable" and "ranks 3 and 1" in found.reason
    assert part("C-bn-2", subject, "R, exactly").status == "holds"


def test_only_fully_connected_layers_are_joined():
    class DoubledOutputs(FullyConnected):
        def forward(self, X):
            return 2 * super().forward(X)

    f = random_net([3, 4, 3])
    for other in (DoubledOutputs([3, 4, 3]), LeakyResNet(3, 3, width=4, layers=5), torch.nn.Linear(3, 3), None):
        found = verdict("C-bn-2", Subject(f, gaussian(9, 3), known={"f": f, "g": other}))
        assert found.status == "not applicable" and "needs two functions" in found.reason


def test_a_corrupted_norm_fails(samples, monkeypatch):
    honest = two_functions.parameter_norms

    class Small:
        def __init__(self, net):
            self.total = honest(net).total * (1.0 if net.depth == 6 else 0.3)

    monkeypatch.setattr(two_functions, "parameter_norms", Small)
    assert status("C-bn-2", samples["C-bn-2"][0]) == "fails"


def test_the_callers_networks_stay_as_they_are():
    f, g = random_net([2, 4, 3], dtype=torch.float32), random_net([3, 4, 2], dtype=torch.float32, seed=1)
    status("C-bn-2", Subject(compose(f, g).network.double(), gaussian(9, 3), known={"f": f, "g": g}))
    assert f.weights[0].dtype == g.weights[0].dtype == torch.float32


# ------------------------------------------------------------------------------------------------- C-bn-3


def test_a_domain_with_plus_and_minus_x(samples):
    subject = samples["C-bn-3"][0]
    both = torch.cat([subject.X, -subject.X])
    # The network is not even linear there; a network of pairs is, and there is no isometry into an orthant.
    assert status("C-bn-3", subject.replace(X=both)) == "not applicable"
    A = torch.tensor([[2.0, 0.3], [0.1, 0.8]], dtype=torch.float64)
    pairs = pad(FullyConnected.from_weights([A]), 4, signed=True).network
    found = verdict("C-bn-3", Subject(pairs, torch.cat([gaussian(9, 2), -gaussian(9, 2)])))
    assert found.status == "not applicable" and "90°" in found.reason
    # A linear network does not mind.
    assert status("C-bn-3", Subject(linear_network(A, 4).network, both[:, :2])) == "holds"


def test_a_rotated_orthant_is_found():
    """PΩ lies in a cone that an isometry, not the identity, takes into an orthant."""
    turn = torch.linalg.qr(gaussian(3, 3, seed=1)).Q
    # Inside the cone: at its border the search may give up, and says so.
    X = (gaussian(12, 3, seed=2).abs() + 0.5) @ turn.mT
    found = into_an_orthant(X)
    assert found.exists and found.O is not None
    assert_close(found.O.mT @ found.O, torch.eye(3).double(), atol=1e-10, reason="an isometry")
    assert float((X @ found.O.mT).min()) > -1e-6
    assert into_an_orthant(torch.cat([X, -X])).exists is False
    A = (gaussian(3, 3, seed=3).abs() + 3 * torch.eye(3).double()) @ turn.mT
    made = positive_linear_network(A, 5, O_in=turn.mT)
    assert status("C-bn-3", Subject(made.network, X)) == "holds"


def test_the_second_term_where_singular_vectors_have_signs():
    A = torch.diag(torch.tensor([2.0, 0.6, 1.5], dtype=torch.float64))
    subject = Subject(positive_linear_network(A, 5).network, gaussian(20, 3).abs())
    found = verdict("C-bn-3", subject)
    assert found.status == "holds" and found.where in ("R1, positive path", "R1, least network", "R2, least network")
    fit = linear_costs.estimate_costs(linear_costs.DEPTHS, [linear_cost(A, L) for L in linear_costs.DEPTHS])
    assert_close(fit.R2.value, linear_expansion(A).R2, rtol=1e-2, reason="a fit in 1/L")


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_fitted_intervals_cover_the_truth(scale):
    """What the fit leaves out is no noise; the interval must be wide enough for it, whatever the map."""
    for seed in range(3):
        A = scale * gaussian(4, 3, seed=seed).abs() + torch.eye(4, 3, dtype=torch.float64)
        found = verdict("C-bn-3", Subject(positive_linear_network(A, 4).network, gaussian(20, 3).abs()))
        assert found.status == "holds", (seed, found.reason)
        assert found.tolerance < 0.01


def test_maps_that_no_fit_can_judge():
    A = torch.diag(torch.tensor([100.0, 1.0], dtype=torch.float64))
    found = verdict("C-bn-3", Subject(positive_linear_network(A, 4).network, gaussian(20, 2).abs()))
    assert found.status == "not applicable" and "from 1 to 100" in found.reason


def test_singular_values_far_from_one_have_no_expansion():
    """At depths of hundreds the terms (log s/L)^j of a map of 1e-305 do not fall."""
    net = FullyConnected.from_weights([torch.full((1, 1), 1e-150).double(), torch.full((1, 1), 1e-155).double()])
    found = verdict("C-bn-3", Subject(net, gaussian(9, 1).abs()))
    assert (found.status, found.cause) == ("not applicable", "numerical")


def test_a_corrupted_cost_fails(samples, monkeypatch):
    monkeypatch.setattr(linear_costs, "diagonal_expansion", lambda s: linear_expansion(torch.diag(1.05 * s)))
    assert status("C-bn-3", samples["C-bn-3"][0]) == "fails"


def test_the_printed_path_fails(samples, monkeypatch):
    """Thm 3(3) as printed, (ℓ/L)P + (1−ℓ/L)AᵀA, computes x; ended in A, its excess does not tend to 2 log|A|."""

    def printed(last):
        def build(A, L, *, O_in, O_out):
            steps = [torch.cat([(p / L) ** 0.5 * O_in, (1 - p / L) ** 0.5 * O_out @ A]) for p in range(1, L)]
            B = [torch.eye(A.shape[1]).double(), *steps, last(A)]
            Ws = [new @ torch.linalg.pinv(old) for old, new in zip(B, B[1:])]
            return Construction(FullyConnected.from_weights(Ws), positive_linear_network(A, 2).known)

        return build

    subject = samples["C-bn-3"][0]
    monkeypatch.setattr(linear_costs, "DEPTHS", (50, 70, 100, 150, 200))
    assert status("C-bn-3", subject) == "holds"
    monkeypatch.setattr(linear_costs, "positive_linear_network", printed(lambda A: A))
    assert status("C-bn-3", subject) == "fails"
    monkeypatch.setattr(linear_costs, "positive_linear_network", printed(lambda A: torch.eye(len(A), 3).double()))
    assert "does not compute" in verdict("C-bn-3", subject).reason


# ---------------------------------------------------------------------------------------- C-bn-4, C-bn-14


def test_mismatched_spaces_are_not_judged():
    f, g = linear(gaussian(4, 2) @ gaussian(2, 5, seed=1)), linear(gaussian(5, 2, seed=2) @ gaussian(2, 4, seed=3))
    found = verdict("C-bn-4", Subject(f, gaussian(9, 5), known={"f": f, "g": g}))
    assert found.status == "not applicable" and "R1" in found.reason
    f, g = linear(gaussian(4, 2) @ gaussian(2, 5, seed=1)), linear(gaussian(4, 2, seed=2) @ gaussian(2, 5, seed=3))
    found = part("C-bn-14", Subject(linear(gaussian(4, 5)), gaussian(9, 5), known={"f": f, "g": g}), "R2 of the sum")
    assert found.status == "not applicable" and "R1" in found.reason


def test_the_triangle_is_strict_unless_singular_vectors_are_shared():
    for seed in range(20):
        M, N = gaussian(4, 4, seed=seed), gaussian(4, 4, seed=seed + 50)
        found = verdict("C-bn-4", Subject(linear(N, M), gaussian(9, 4)))
        assert found.status == "holds" and found.slack > 0
    shared = linear_net([3.0, 2.0], [2, 2, 2, 2])
    assert abs(verdict("C-bn-4", Subject(shared, gaussian(9, 2))).slack) < 1e-9
    isometries = linear_net([1.0, 1.0], [2, 2, 2])
    # Of isometries every R2 vanishes.
    assert status("C-bn-4", Subject(isometries, gaussian(9, 2))) == "holds trivially"


def test_nonlinear_pairs_have_no_known_second_term(samples):
    assert status("C-bn-4", samples["C-bn-2"][0]) == "not applicable"


def test_corrupted_second_terms_fail(samples, monkeypatch):
    honest = second_corrections.diagonal_expansion
    larger = {"C-bn-4": 0, "C-bn-14": 0}

    def corrupted(identity):
        def expansion(s):
            found = honest(s)
            larger[identity] += 1
            # The join is the first of three.
            return type(found)(found.R0, found.R1, found.R2 * (2.0 if larger[identity] % 3 == 1 else 1.0))

        return expansion

    for identity in larger:
        monkeypatch.setattr(second_corrections, "diagonal_expansion", corrupted(identity))
        assert status(identity, samples[identity][0]) == "fails"


def test_the_sign_of_the_second_term(monkeypatch):
    A = torch.diag(torch.tensor([2.0, 0.6], dtype=torch.float64))
    family = [linear_network(A, L) for L in (50, 70, 100, 140, 200)]
    subject = Subject(family[0].network, gaussian(9, 2), known={"family": family})
    found = verdict("C-bn-14", subject)
    assert found.status == "holds"
    value, low, high = found.details["R2 fitted, low, high"]
    assert low < linear_expansion(A).R2 < high and low > 0
    assert status("C-bn-14", subject.replace(known={"family": family[:4]})) == "not applicable"
    falling = {one.depth: 2 * one.depth + 1 - 50 / one.depth for one in family}
    monkeypatch.setattr(
        second_corrections, "parameter_norms", lambda net: type("N", (), {"total": falling[net.depth]})()
    )
    assert status("C-bn-14", subject) == "fails"


def test_representations_without_a_limit():
    family = [divergent(L) for L in (10, 30, 100, 300, 1000)]
    subject = Subject(family[0].network, gaussian(9, 3).abs(), known={"family": family})
    found = verdict("C-bn-14", subject)
    assert found.status == "not applicable" and "still moves" in found.reason
