"""Claims of rank2023 about families and fits: each holds on its sample, and has twins that silence or break it."""

from __future__ import annotations

import math

import pytest
import torch

from isthmus import FullyConnected, IsthmusError, train
from isthmus.claims._base import CLAIMS, Subject
from isthmus.claims._evidence import (
    fit_exponent,
    kinks_on_segment,
    largest_jump,
    random_subject,
    steepest_on_segment,
    uniform_inputs,
)
from isthmus.claims.rank2023 import _applications as rank_applications  # noqa: F401  they register
from isthmus.claims.rank2023 import _families as rank_families
from isthmus.claims.rank2023._families import family_of_rank
from isthmus.claims.rank2023._rank_one import path_growth
from isthmus.constructions import interpolant_1d, linear_network, pad, positive_linear_network, rank_one
from isthmus.measures import jacobian, jacobian_rank, parameter_norms
from isthmus.measures._representation_cost import estimate_costs
from isthmus.measures._tsp import diameter, shortest_path
from tools import assert_close, gaussian, random_net

MINE = ("C-rank-2", "C-rank-3", "C-rank-4", "C-rank-6", "C-rank-7", "C-rank-8", *(f"C-rank-{i}" for i in range(10, 15)))
#: About data alone, or true by the way it is put together.
TRIVIAL = ("C-rank-6", "C-rank-10", "C-rank-14")
DEPTHS = [6, 8, 12, 24, 48]


def evaluate(identity, subject=None, **known):
    claim = CLAIMS[identity]
    subject = claim.sample() if subject is None else subject
    return claim.evaluate(subject.replace(known={**subject.known, **known}))


def status(identity, subject=None, **known):
    return evaluate(identity, subject, **known).status


@pytest.mark.parametrize("identity", MINE)
def test_samples(identity):
    verdict = evaluate(identity)
    assert verdict.status == ("holds trivially" if identity in TRIVIAL else "holds"), verdict.reason
    assert tuple(h.name for h in verdict.hypotheses) == CLAIMS[identity].hypotheses
    assert math.isfinite(verdict.lhs) and math.isfinite(verdict.rhs)
    assert verdict.tolerance < 1e-4


def plain_subjects():
    labels = torch.arange(32) % 3
    for dims in ([6, 12, 12, 12, 12, 5], [2, 8, 1, 8, 3], [1, 6, 1], [3, 3], [2, 5, 5, 2]):
        subject = random_subject(dims, seed=3)
        Y = gaussian(32, dims[-1], seed=1)
        yield from (subject, subject.replace(Y=Y), subject.replace(Y=Y, ridge=0.01))
        yield subject.replace(Y=labels, loss="cross_entropy", ridge=0.01)
        yield subject.replace(X=subject.X[:1].expand(4, -1), Y=Y[:4], ridge=0.01)


@pytest.mark.parametrize("identity", MINE)
def test_plain_networks_never_fail(identity):
    for subject in plain_subjects():
        verdict = CLAIMS[identity].evaluate(subject)
        assert verdict.status != "fails", (identity, verdict.reason, subject.net.dims)
        assert tuple(h.name for h in verdict.hypotheses) == CLAIMS[identity].hypotheses
        assert verdict.reason or verdict.status == "holds"


@pytest.mark.parametrize(
    ("identity", "key"),
    [
        ("C-rank-3", "affine"),
        ("C-rank-6", "truth"),
        ("C-rank-10", "noise"),
        ("C-rank-13", "skeleton"),
        ("C-rank-14", "truth"),
    ],
)
def test_what_is_lacking_is_named(identity, key):
    found = CLAIMS[identity].evaluate(random_subject([2, 6, 2], seed=1))
    assert found.cause == "supply" and key in found.supply


def test_a_network_alone_is_made_deeper_by_identity_layers():
    """So that its norm grows by the width of its narrowest layer each: true by construction, and said to be."""
    for slope in (0.0, 1.0):
        subject = random_subject([6, 12, 3, 7, 5], slope=slope, bias=1.0 - slope, seed=1)
        found = CLAIMS["C-rank-2"].evaluate(subject)
        assert found.status == "holds trivially" and "by construction" in found.reason
        assert_close(found.details["slope and its interval"][0], 3.0)
        family = rank_families.deepened(subject.net)
        for one in family:
            assert_close(one.network(subject.X), subject.net(subject.X))
            assert_close(parameter_norms(one.network).total, one.known.norm_squared)
    leaky = CLAIMS["C-rank-2"].evaluate(random_subject([6, 12, 5], slope=0.3, seed=1))
    assert leaky.cause == "network"


@pytest.mark.parametrize("k", [1, 2, 3])
def test_norm_over_depth_tends_to_the_rank(k):
    """Fitted, and by the formula of the three parts."""
    family = family_of_rank(k, DEPTHS, seed=2)
    X = uniform_inputs(64, 4, 1)
    verdict = evaluate("C-rank-2", Subject(family[0].network, X, known={"family": family}))
    assert verdict.status == "holds", verdict.reason
    value, low, high = verdict.details["slope and its interval"]
    assert_close(value, k)
    assert low - 1e-9 <= k <= high + 1e-9
    parts = family[0].known.norm_squared - k * (DEPTHS[0] - 4)  # those of g and h, two layers each
    assert_close(verdict.details["‖θ‖²/L"], [(parts + k * (L - 4)) / L for L in DEPTHS])
    over_depth = verdict.details["‖θ‖²/L"]
    assert over_depth == sorted(over_depth, reverse=True) and over_depth[-1] - k < 1.5


def test_a_family_of_another_rank():
    three = family_of_rank(3, DEPTHS, seed=2)
    subject = Subject(three[0].network, uniform_inputs(64, 4, 1), known={"family": three})
    assert status("C-rank-2", subject) == "holds"
    assert status("C-rank-2", subject, rank=2) == "not applicable"
    # A maker who says 2 of layers that are 3 wide: the slope tells.
    lying = [one.with_known(rank=2) for one in three]
    verdict = evaluate("C-rank-2", subject, family=lying)
    assert verdict.status == "fails" and "Rank_BN" in verdict.where
    # Or whose norms are those of fewer layers: the Jacobian tells.
    assert status("C-rank-2", subject, family=three[:3]) == "not applicable"


def test_a_corrupted_norm_is_below_the_rank_of_the_jacobian(monkeypatch):
    real = estimate_costs
    monkeypatch.setattr(rank_families, "estimate_costs", lambda depths, norms: real(depths, [n / 2 for n in norms]))
    verdict = evaluate("C-rank-2")
    assert verdict.status == "fails" and "Rank_J" in verdict.where


def test_families_of_two_functions_or_of_wide_layers():
    subject = CLAIMS["C-rank-2"].sample()
    family = list(subject.known["family"])
    other = family_of_rank(2, [200], seed=9)
    assert "outputs differ" in evaluate("C-rank-2", subject, family=[*family, *other]).reason
    positive = [positive_linear_network(torch.eye(4), L) for L in DEPTHS]
    assert status("C-rank-2", subject, family=positive) == "holds"
    assert "outside the domain" in evaluate("C-rank-2", subject.replace(X=-subject.X), family=positive).reason
    wide = [pad(family[0], L) for L in DEPTHS]  # identities on 4 outputs, of a function of rank 2
    assert status("C-rank-2", subject, family=wide) == "not applicable"
    assert status("C-rank-2", subject, family=[one.with_known(excess_limit=None) for one in family]) == "not applicable"


def test_two_functions_of_full_rank():
    subject = CLAIMS["C-rank-3"].sample()
    full = family_of_rank(4, DEPTHS, seed=7)
    verdict = evaluate("C-rank-3", subject, f=full, g=full)
    assert verdict.status == "not applicable" and "Rank f + Rank g" in verdict.reason
    assert status("C-rank-3", subject, f=subject.known["f"][:3], g=subject.known["g"][:3]) == "not applicable"
    positive = torch.eye(4).double(), [positive_linear_network(torch.eye(4), L) for L in DEPTHS]
    assert status("C-rank-3", subject, affine=positive) == "holds"
    assert "bounded Ω" in evaluate("C-rank-3", subject.replace(X=-subject.X), affine=positive).reason


def test_properties_fail_for_another_matrix():
    subject = CLAIMS["C-rank-3"].sample()
    A, family = subject.known["affine"]
    for other, where in ((A[:, :1] @ A[:1], "affine ≤ Rank A"), (A + torch.eye(4), "Rank A ≤ affine")):
        verdict = evaluate("C-rank-3", subject, affine=(other, family))
        assert verdict.status == "fails" and where in verdict.where


def test_a_corrupted_slope_breaks_subadditivity(monkeypatch):
    real = rank_families.norm_slope

    def slope(family):
        found = real(family)
        wide = family[0].known.rank == 3
        return type(found)(found.value + 0.5 * wide, 0.0, found.low + 0.5 * wide, found.high + 0.5 * wide)

    monkeypatch.setattr(rank_families, "norm_slope", slope)
    verdict = evaluate("C-rank-3")
    assert verdict.status == "fails" and verdict.where == "R∞: f + g"


def test_the_printed_minimum_is_no_rank():
    """σ(x) + σ(−x) = |x|: min over x gives 1 > 0 + 0, max gives 1 ≤ 1 + 1."""
    x = torch.linspace(-1, 1, 20, dtype=torch.float64)[:, None]
    one = torch.ones(1, 1, dtype=torch.float64)
    right, left = (FullyConnected.from_weights([sign * one, one]) for sign in (1, -1))
    both = FullyConnected.from_weights([torch.cat([one, -one]), torch.cat([one, one], 1)])
    f, g, total = (jacobian_rank(net, x).ranks for net in (right, left, both))
    assert total.min() > f.min() + g.min()
    assert total.max() <= f.max() + g.max()
    assert "max" in CLAIMS["C-rank-2"].erratum and "min" in CLAIMS["C-rank-3"].erratum


def test_the_convention_of_the_ridge():
    """λ‖W‖² in place of (λ/L)‖W‖²: the loss of the same fit is L times as large, above the bound."""
    subject = CLAIMS["C-rank-4"].sample()
    L, ridge = subject.net.depth, subject.ridge
    verdict = evaluate("C-rank-4", subject)
    C_N = verdict.details["C_N"][0]
    assert ridge * L * parameter_norms(rank_one(subject.X, subject.Y, L).network).total > ridge * L * (1 + C_N / L)
    assert status("C-rank-4", subject, **{"lambda": ridge * L}) == "holds"
    assert status("C-rank-4", subject, **{"lambda": ridge}) == "not applicable"
    for other in (subject.replace(ridge=None), subject.replace(Y=None), subject.replace(loss="cross_entropy")):
        assert status("C-rank-4", other) == "not applicable"


def test_data_that_cannot_be_fitted_or_too_shallow():
    subject = CLAIMS["C-rank-4"].sample()
    torn = subject.replace(X=torch.cat([subject.X, subject.X[:1]]), Y=torch.cat([subject.Y, subject.Y[:1] + 1]))
    assert "distinct inputs" in evaluate("C-rank-4", torn).reason
    shallow = subject.replace(net=random_net([2, 5, 5, 2]))
    assert "⌈log₂(n_0+1)⌉" in evaluate("C-rank-4", shallow).reason


def test_the_loss_of_a_network_is_shown_and_a_smaller_constant_fails(monkeypatch):
    subject = CLAIMS["C-rank-4"].sample()
    verdict = evaluate("C-rank-4", subject.replace(net=random_net([2, 5, 5, 5, 2])))
    network, fit = verdict.parts
    # Below the bound the network itself shows it; the fit, whose norm C_N is, always does.
    assert verdict.status == network.status == "holds" and verdict.lhs == verdict.details["loss of the network"][0]
    assert fit.status == "holds trivially" and fit.margin < 1e-6
    large = FullyConnected.from_weights([100 * W.detach() for W in random_net([2, 5, 5, 5, 2]).Ws])
    verdict = evaluate("C-rank-4", subject.replace(net=large))
    assert verdict.status == "holds trivially" and "no global minimum" in verdict.parts[0].reason

    def lying(X, Y, depth, **options):
        fit = rank_one(X, Y, depth, **options)
        return fit.with_known(details={**fit.known.details, "norm_constant": 0.9 * fit.known.details["norm_constant"]})

    monkeypatch.setattr("isthmus.claims.rank2023._rank_one.rank_one", lying)
    assert status("C-rank-4", subject) == "fails"


def test_the_truth_of_another_task():
    subject = CLAIMS["C-rank-6"].sample()
    truth = subject.known["truth"]
    small = linear_network(0.1 * gaussian(3, 4, seed=8), truth.depth)
    assert "y_i = f*(x_i)" in evaluate("C-rank-6", subject, truth=small).reason
    assert status("C-rank-6", subject, C=small.excess) == "fails"
    assert status("C-rank-6", subject, truth=linear_network(gaussian(3, 4), 3)) == "not applicable"
    assert status("C-rank-6", subject.replace(ridge=None)) == "not applicable"
    worse = subject.replace(net=FullyConnected.from_weights([1.1 * W.detach() for W in subject.net.Ws], slope=1.0))
    assert "loss ≤" in evaluate("C-rank-6", worse).reason


def test_a_trained_network_costs_no_more_than_the_truth():
    truth = family_of_rank(1, [5], d=3, seed=4)[0]
    X = uniform_inputs(60, 3, 2)
    Y = truth.network.trace(X).outputs
    net = FullyConnected([3, *[12] * 4, 3], dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    train(net, X, Y, ridge=0.01)
    verdict = evaluate("C-rank-6", Subject(net, X, Y, 0.01, known={"truth": truth}))
    assert verdict.status == "holds trivially", verdict.reason
    assert verdict.slack > 0


def test_networks_of_rank_two_keep_two_dimensions():
    """‖W‖² ≤ L + C is then broken; with a C that is no constant of the family the exponent tells."""
    subject = CLAIMS["C-rank-7"].sample()
    two = [FullyConnected.from_weights([torch.eye(2, dtype=torch.float64)] * L) for L in (9, 16, 25, 36, 49)]
    assert "‖W‖² ≤ L + C" in evaluate("C-rank-7", subject, family=two).reason
    verdict = evaluate("C-rank-7", subject, family=two, C=49.0)
    assert verdict.status == "fails" and "exponent" in verdict.where
    assert evaluate("C-rank-7", subject.replace(known={"family": two})).supply == "known['C']"


def test_the_printed_ratio_grows():
    """rank2023 Prop. 9 prints s_1/s_2 = O(L^(−1/4)); its exponent is positive."""
    details = evaluate("C-rank-7").details
    depths, ratios = details["depth"], details["least s_2/s_1 up to layer √L"]
    ours = fit_exponent(depths, ratios)
    printed = fit_exponent(depths, [1 / r for r in ratios])
    assert ours.high <= -0.25 < printed.low
    assert ours.numbers == details["exponent and its interval"]


def test_a_layer_of_rank_one_in_one_network():
    subject = CLAIMS["C-rank-7"].sample()
    alone = subject.replace(known={})
    # With C = ‖W‖² − L of the network itself: true of any, and no test.
    assert status("C-rank-7", alone) == "holds trivially"
    assert status("C-rank-7", alone.replace(X=alone.X[:1].expand(5, -1))) == "not applicable"
    Ws = [W.detach().clone() for W in subject.net.Ws]
    Ws[0], Ws[1] = 5 * Ws[0], Ws[1] / 5
    unbalanced = alone.replace(net=FullyConnected.from_weights(Ws))
    assert "balanced" in evaluate("C-rank-7", unbalanced).reason
    rank_one_net = CLAIMS["C-rank-4"].sample()
    assert status("C-rank-7", rank_one_net.replace(net=random_net([2, 1]))) == "not applicable"


def test_outputs_that_are_constant_up_to_rounding_are_constant():
    """Biases and a first layer of 1e-15: rounding gives the outputs a variance of 1e-32, which was "not constant"."""
    variances = []
    for seed in range(25):
        subject = random_subject([3, 6, 6, 6, 2], samples=30, seed=seed)
        for W, b in zip(subject.net.weights, subject.net.biases):
            W.data *= 0.2
            b.data *= 5.0
        subject.net.weights[0].data *= 1e-15
        found = evaluate("C-rank-7", subject)
        assert found.status == "not applicable" and "outputs not constant: not met" in found.reason
        variances.append(float(subject.trace().outputs.var(0).sum()))
    # Which of them rounding leaves exactly constant depends on the processor.
    assert max(variances) > 0


def test_where_the_bound_of_the_ratio_says_something():
    """W_ℓ = diag(1, ε) at depth 100: Σ_(i≥2)λ_i is small beside the trace already from the bounds of the proof."""
    L, eps = 400, 1e-4
    net = FullyConnected.from_weights([torch.diag(torch.tensor([1.0, eps], dtype=torch.float64))] * L)
    X = torch.cat(
        [torch.linspace(-10, 10, 41, dtype=torch.float64)[:, None].abs(), 0.1 * torch.ones(41, 1).double()], 1
    )
    found = evaluate("C-rank-7", Subject(net, X))
    ratio = next(part for part in found.parts if part.name == "s_2/s_1")
    assert ratio.rhs < 1.0 and ratio.lhs <= ratio.rhs


def test_corrupted_representations_are_too_wide(monkeypatch):
    alone = CLAIMS["C-rank-7"].sample().replace(known={})
    real = torch.linalg.svdvals
    monkeypatch.setattr(torch.linalg, "svdvals", lambda a: torch.cat([real(a)[:1], 100 * real(a)[:1]]))
    verdict = evaluate("C-rank-7", alone)
    assert verdict.status == "fails"


def test_a_biased_network_satisfies_the_inequality_of_the_layers():
    """Σ_iλ_i(Z_ℓ) ≤ ‖W_ℓ‖²λ_1(Z_{ℓ-1}) + 2β⟨W_ℓm, b_ℓ⟩ + β²‖b_ℓ‖², without which nothing telescopes."""
    net = random_net([4, 9, 9, 9, 3], seed=5)
    trace = net.trace(gaussian(50, 4))
    for ell in range(1, 4):
        Z, before = trace.activations[ell], trace.activations[ell - 1]
        W, b = trace.Ws[ell - 1], trace.bs[ell - 1]
        top = torch.linalg.svdvals(before)[0] ** 2 / 50
        bound = W.square().sum() * top + 2 * b @ W @ before.mean(0) + b @ b
        assert float(Z.square().sum() / 50) <= float(bound)


def test_tight_on_a_line_and_broken_by_a_closed_tour(monkeypatch):
    line = Subject(FullyConnected.from_weights([torch.ones(1, 1).double()]), torch.rand(9, 1).double())
    verdict = evaluate("C-rank-8", line)
    assert verdict.status == "holds"
    assert_close(verdict.lhs, 1.0)
    assert_close(verdict.rhs, 1.0)

    def closed(Y):
        path = shortest_path(Y)
        assert path.order is not None
        back = float((torch.as_tensor(Y)[path.order[0]] - torch.as_tensor(Y)[path.order[-1]]).norm())
        return type(path)(path.value + back, path.order, path.state)

    monkeypatch.setattr("isthmus.claims.rank2023._rank_one.shortest_path", closed)
    assert status("C-rank-8", line) == "fails"


def test_an_interpolator_of_rank_two_is_not_judged():
    X = gaussian(12, 2)
    identity = FullyConnected.from_weights([torch.eye(2).double()] * 3, slope=1.0)
    assert float(torch.linalg.matrix_norm(jacobian(identity, X), 2).max()) < shortest_path(X).value / diameter(X)
    assert "width 1" in evaluate("C-rank-8", Subject(identity, X)).reason
    same = CLAIMS["C-rank-8"].sample()
    assert status("C-rank-8", same.replace(X=same.X[:1].expand(3, -1), known={})) == "not applicable"


def test_exponents_of_the_path():
    sample = CLAIMS["C-rank-8"].sample()
    details = evaluate("C-rank-8", sample).details
    for k in (2, 3):
        _, low, high = details[f"exponent and its interval, k = {k}"]
        assert low <= 1 - 1 / k <= high
        assert high - low < 0.2
    # Points of an image of dimension 2 that are said to be of dimension 3 grow too slowly.
    assert status("C-rank-8", sample, **{"path growth": {3: sample.known["path growth"][2]}}) == "fails"
    # On a line the path does not grow at all.
    ends = torch.tensor([[0.0], [1.0]]).double()
    lines = [torch.cat([ends, uniform_inputs(n, 1, n)]) for n in (20, 40, 80, 160)]
    assert_close(path_growth(lines).value, 0.0, atol=1e-6, reason="a line of length 1, by a lower bound")


def test_many_points_have_a_bound_of_their_path():
    X = gaussian(60, 2, seed=3)
    verdict = evaluate("C-rank-8", Subject(rank_one(X, X, 4).network, X))
    assert verdict.status == "holds" and "lower bound" in verdict.where


def test_far_below_the_threshold():
    subject = CLAIMS["C-rank-14"].sample()
    few = subject.replace(X=subject.X[:40], Y=subject.Y[:40])
    assert "threshold" in evaluate("C-rank-14", few).reason
    # A constant that is too good promises what does not hold.
    verdict = evaluate("C-rank-14", few, c=3.0)
    assert verdict.status == "fails" and "norms" in verdict.where
    assert status("C-rank-14", subject, independent=False) == "not applicable"
    assert status("C-rank-14", subject.replace(Y=subject.Y + 1)) == "not applicable"
    line = linear_network(torch.ones(1, 2).double(), 4)
    assert "k = 1" in evaluate("C-rank-14", subject.replace(Y=None), truth=line).reason


def test_regularity_of_rank_one_grows_with_the_samples():
    details = evaluate("C-rank-14").details
    expected, value, low, high = details["2(1−1/k) and twice the exponent of TSP/diam, with its interval"]
    assert expected == 1.0 and low <= expected <= high and abs(value - expected) < 0.2
    assert details["C_N of a fit of rank 1"] == sorted(details["C_N of a fit of rank 1"])


def test_kinks_of_an_interpolant():
    t = torch.tensor([0.0, 0.1, 0.25, 0.7, 1.0]).double()
    net = interpolant_1d(t, gaussian(5, 2)).network
    found = kinks_on_segment(net, torch.zeros(1).double() - 0.5, torch.ones(1).double())
    assert_close(found * 1.5 - 0.5, torch.cat([torch.tensor([-0.5]).double(), t]))


def test_kinks_against_a_fine_grid():
    """Between kinks the function is linear: values at their middles are means; and no point of a grid is steeper."""
    net = random_net([3, 10, 10, 10, 2], slope=0.2, seed=2)
    a, b = gaussian(3, seed=1), gaussian(3, seed=2) * 3
    t = kinks_on_segment(net, a, b)
    at = net.trace(a + t[:, None] * (b - a)).outputs
    between = net.trace(a + (t[1:] + t[:-1])[:, None] / 2 * (b - a)).outputs
    assert_close(between, (at[1:] + at[:-1]) / 2, atol=1e-11, reason="rounding through four layers")
    steepest, length = steepest_on_segment(net, a, b)
    grid = net.trace(a + torch.linspace(0, 1, 20001).double()[:, None] * (b - a)).outputs.diff(dim=0).norm(dim=1)
    assert_close(length, grid.sum(), rtol=1e-3, reason="a grid cuts corners")
    assert steepest >= float(grid.max()) * 20000 / float((b - a).norm()) - 1e-9


def test_jumps():
    A, B = uniform_inputs(30, 2, 1) - 1.5, uniform_inputs(30, 2, 2) + 0.5
    assert largest_jump(lambda X: X.abs(), A, B) < 1e-10
    assert_close(largest_jump(lambda X: X.sign(), A, B), 2.0)


def test_exponents_and_what_they_refuse():
    exact = fit_exponent([1, 2, 4, 8], [3 * n**-0.75 for n in (1, 2, 4, 8)])
    assert_close(exact.numbers, [-0.75] * 3, atol=1e-12, reason="an exact power")
    bent = fit_exponent(
        [10, 20, 40, 80, 160], [n**0.5 * math.exp(-3 / n) for n in (10, 20, 40, 80, 160)], finite_size=True
    )
    assert_close(bent.numbers, [0.5] * 3, atol=1e-10, reason="an exact law")
    noisy = fit_exponent([1, 2, 4, 8], [1.0, 2.5, 3.5, 9.0])
    assert noisy.low < 1.0 < noisy.high
    for sizes, values in (([1, 2], [1, 2]), ([1, 1, 2], [1, 1, 2]), ([1, 2, 3], [1, 0, 2]), ([1, 2, 3], [1, 2])):
        with pytest.raises(IsthmusError, match="at least 3 different sizes"):
            fit_exponent(sizes, values)
    with pytest.raises(IsthmusError, match="at least 4 different sizes"):
        fit_exponent([1, 2, 3], [1, 2, 3], finite_size=True)
