"""Claims about one network at its points: they hold everywhere, and each has twins that silence or break it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus import FullyConnected, rebalance, train
from isthmus.claims import _base
from isthmus.claims._base import CLAIMS, Subject
from isthmus.claims._evidence import least_squares_minimum, points_of, pulls, random_subject, relu_random_net
from isthmus.claims.bottleneck2023._balanced import balanced_net, growth_by_jacobians, growth_by_norms
from isthmus.claims.bottleneck2023._jacobian_bounds import layer_distances
from isthmus.claims.rank2023._rank_one import linear_global_minimum
from isthmus.measures import Stationarity, parameter_norms, representation_spectra
from isthmus.problems import teacher
from tools import SEED, assert_close, gaussian, generator, linear_net, three_part_net

ALWAYS = ("C-rank-1", "C-rank-5", "C-bn-1", "C-bn-6")
RELU = ("C-bn-9", "C-bn-11")
BALANCED = ("C-bn-7", "C-bn-8")


def status(identity, subject):
    return CLAIMS[identity].evaluate(subject).status


@pytest.mark.parametrize("identity", [*ALWAYS, *RELU, *BALANCED, "C-rank-9"])
def test_samples(identity):
    claim = CLAIMS[identity]
    verdict = claim.evaluate(claim.sample())
    assert verdict.status == "holds", verdict.reason
    assert {h.name for h in verdict.hypotheses} == set(claim.hypotheses)
    assert verdict.tolerance < 1e-4


def draw(data) -> Subject:
    depth = data.draw(st.integers(1, 30), "depth")
    dims = data.draw(st.lists(st.integers(1, 50), min_size=depth + 1, max_size=depth + 1), "dims")
    subject = random_subject(
        dims,
        slope=data.draw(st.sampled_from([-1.0, -0.4, 0.0, 0.2, 1.0]), "slope"),
        bias=data.draw(st.sampled_from([0.0, 1.0]), "bias"),
        scale=data.draw(st.sampled_from([0.2, 1.0, 3.0]), "scale"),
        samples=4,
        seed=data.draw(st.integers(0, 10**6), "seed"),
    )
    net = subject.net
    if data.draw(st.booleans(), "float32"):
        net = net.float()
    ell = data.draw(st.integers(0, depth - 1), "layer")
    if data.draw(st.booleans(), "dead"):
        net.weights[ell].data[0] = 0.0
    elif net.weights[ell].shape[0] > 1:
        net.weights[ell].data[1] = net.weights[ell].data[0]
    return subject.replace(net=net.double())


def never_fails(data):
    subject = draw(data)
    for identity in ALWAYS:
        verdict = CLAIMS[identity].evaluate(subject)
        assert verdict.status != "fails", (identity, verdict.reason, verdict.where)
    if subject.net.slope == 0.0 and max(subject.net.dims) <= 20:
        for identity in RELU:
            assert status(identity, subject) != "fails"


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_always_true(data):
    never_fails(data)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None)
@given(st.data())
def test_always_true_in_a_thousand_draws(data):
    never_fails(data)


def corrupted(subject: Subject, layer: int, factor: float) -> Subject:
    """Weights of which one layer was shrunk after the trace: the Jacobian of one network, the norm of another."""

    class Liar(FullyConnected):
        """Its trace is that of the larger network."""

        def trace(self, X, **options):
            return subject.net.trace(X, **options)

    net = Liar(subject.net.dims, subject.net.slope, subject.net.bias, dtype=torch.float64)
    for ell in range(len(net.weights)):
        net.weights[ell].data = subject.net.weights[ell].data * (factor if ell == layer or layer < 0 else 1.0)
        net.biases[ell].data = subject.net.biases[ell].data.clone()
    return subject.replace(net=net)


@pytest.mark.parametrize("identity", [*ALWAYS, "C-bn-11"])
def test_a_corrupted_norm_fails(identity):
    assert status(identity, corrupted(relu_random_net(), -1, 0.05)) == "fails"


@pytest.mark.parametrize("identity", [*ALWAYS, *RELU])
def test_points_at_kinks_are_not_used(identity):
    subject = relu_random_net()
    for b in subject.net.biases:
        b.data.zero_()
    subject.net.biases[0].data[0] = 1.0  # the others sit at their kinks
    assert status(identity, subject.replace(X=torch.zeros(2, 6).double())) == "not applicable"


def test_more_than_the_rank():
    subject = relu_random_net()
    for identity in ("C-bn-1", "C-bn-6", "C-bn-7", "C-bn-8"):
        base = balanced_net() if identity in BALANCED else subject
        assert status(identity, base.replace(known={"k": 6})) == "not applicable"


def test_slopes_that_break_a_hypothesis():
    leaky = random_subject([4, 8, 8, 3], slope=0.5, seed=2)
    for identity in RELU:
        assert status(identity, leaky) == "not applicable"


def test_the_printed_constant_of_the_kernel_fails():
    """bottleneck2023 Prop. 9 with 2L in place of L: a linear chain attains L."""
    net = FullyConnected.from_weights([torch.eye(1).double()] * 3, None)
    verdict = CLAIMS["C-bn-9"].evaluate(Subject(net, torch.rand(5, 1).double() + 0.5))
    assert verdict.status == "holds"
    assert_close(verdict.lhs, 3.0)
    assert_close(verdict.rhs, 3.0)
    assert verdict.lhs < 2 * verdict.rhs


def test_too_small_a_constant():
    subject = relu_random_net()
    assert status("C-bn-11", subject.replace(known={"C": 1e-3})) == "not applicable"
    assert status("C-bn-11", subject.replace(known={"C": 1e6})) == "holds"


def test_unbalanced_networks_are_judged_by_their_first_layers():
    """Only the printed bound needs balancedness: the growth of the first layers takes its place."""
    subject = balanced_net()
    subject.net.weights[0].data *= 2
    subject.net.weights[1].data /= 2
    found = CLAIMS["C-bn-7"].evaluate(subject)
    jacobians, prefixes, printed = found.parts
    assert found.status == jacobians.status == "holds"
    assert printed.status == "not applicable" and "balanced: not met" in printed.reason
    # The bound by norms is one of that by Jacobians.
    assert jacobians.rhs <= prefixes.rhs * (1 + 1e-12)
    assert status("C-bn-8", subject) == "holds"


def test_growth_by_prefix_sums_bounds_that_of_jacobians():
    """C-bn-1 for the first ℓ layers; on balanced weights it is at most what the paper prints."""
    for seed in range(30):
        subject = random_subject([5, 9, 7, 8, 4], slope=(0.0, 0.3)[seed % 2], seed=seed)
        found, ks = points_of(subject), [1, 2, 3]
        by_jacobians, by_norms = growth_by_jacobians(found, ks), growth_by_norms(subject, ks)
        assert bool((by_jacobians <= by_norms + 1e-9).all())
    net = rebalance(balanced_net().net).network
    norms = parameter_norms(net)
    printed = [max(0.0, norms.total / k - len(norms.weights)) for k in (1, 2)]
    assert bool(
        (growth_by_norms(Subject(net, balanced_net().X), [1, 2])[:, 0] <= torch.tensor(printed).double() + 1e-9).all()
    )


def test_corrupted_activations_fail():
    """A three-part network attains rank k; representations of another one do not."""
    net = rebalance(three_part_net(2, depth=12, seed=1)).network
    subject = Subject(net, gaussian(40, 12))
    honest = CLAIMS["C-bn-8"].evaluate(subject.replace(known={"k": 1}))
    assert honest.status == "holds", honest.reason
    # At the rank itself nothing is left to bound.
    assert status("C-bn-8", subject.replace(known={"k": 2})) == "holds trivially"
    spectra = [torch.cat([s[:2], torch.full((3,), 1e9).double()]) for s in representation_spectra(net.trace(subject.X))]
    assert status("C-bn-8", subject.replace(known={"k": 2, "spectra": spectra})) == "fails"


@pytest.mark.parametrize("depth", [4, 6, 10])
@pytest.mark.parametrize("angle", [0.3, 0.5, 0.6435, 0.9, 1.1])
def test_equality_is_not_decided_by_rounding(angle, depth):
    """W = uuᵀ at every layer: Δ = 0 and s_2 = 0, and what was left of them by rounding decided."""
    u = torch.tensor([angle]).double()
    W = torch.cat([u.cos(), u.sin()])[:, None] * torch.cat([u.cos(), u.sin()])
    X = torch.rand(10, 2, generator=generator()).double() + 0.1
    subject = Subject(FullyConnected.from_weights([W] * depth), X)
    assert status("C-bn-8", subject) == "holds trivially"
    # Beyond rounding it is decided.
    off = [torch.tensor([1.0, 1e-3]).double()] * depth
    assert status("C-bn-8", subject.replace(known={"spectra": off})) == "fails"


def test_a_corrupted_kernel_fails(monkeypatch):
    tight = Subject(rebalance(three_part_net(2, depth=12, seed=1)).network, gaussian(40, 12), known={"k": 2})
    assert status("C-bn-7", tight) == "holds"
    monkeypatch.setattr(
        "isthmus.claims.bottleneck2023._balanced.ntk_trace", lambda net, X: torch.full((len(X),), 1e-3).double()
    )
    assert status("C-bn-7", tight) == "fails"


def test_balance_needs_a_minimum():
    subject = least_squares_minimum()
    assert status("C-rank-9", subject.replace(ridge=None)) == "not applicable"
    assert status("C-rank-9", subject.replace(Y=None)) == "not applicable"
    assert status("C-rank-9", subject.replace(Y=subject.Y + 3.0)) == "not applicable"
    moved = FullyConnected.from_weights([2 * subject.net.Ws[0], subject.net.Ws[1] / 2], None, slope=1.0)
    # The same function, rescaled: no longer stationary.
    assert status("C-rank-9", subject.replace(net=moved)) == "not applicable"


@pytest.mark.parametrize("factor", [1.02, 1.1, 1.5])
def test_a_rescaled_layer_is_no_minimum(factor):
    """The function of the minimum, one layer against the next: the tolerance grew with the gradient, and all held."""
    subject = linear_global_minimum()
    assert status("C-rank-9", subject) == "holds"
    Ws = [W.clone() for W in subject.net.Ws]
    Ws[2], Ws[3] = factor * Ws[2], Ws[3] / factor
    moved = subject.replace(net=FullyConnected.from_weights(Ws, slope=1.0))
    assert "stationary point" in CLAIMS["C-rank-9"].evaluate(moved).reason


def test_imbalance_is_within_what_the_residual_leaves(monkeypatch):
    """|a − b| ≤ r·‖θ‖·√(a + b), whatever the network."""
    monkeypatch.setattr(Stationarity, "stationary", True)
    subject = linear_global_minimum()
    for seed in range(20):
        scales = (0.3 * gaussian(6, 1, seed=seed)).exp().flatten().tolist()
        noise = [0.02 * gaussian(*W.shape, seed=seed) for W in subject.net.Ws]
        net = FullyConnected.from_weights([c * W + N for c, W, N in zip(scales, subject.net.Ws, noise)], slope=1.0)
        assert status("C-rank-9", subject.replace(net=net)).startswith("holds")
    # Where the gradient is all in that direction, the bound is attained.
    two = least_squares_minimum()
    moved = FullyConnected.from_weights([1.001 * two.net.Ws[0], two.net.Ws[1] / 1.001], None, slope=1.0)
    verdict = CLAIMS["C-rank-9"].evaluate(two.replace(net=moved))
    assert verdict.status == "holds" and verdict.tolerance < 1.01 * -verdict.slack


def test_a_rescaled_layer_fails_when_its_gradient_is_not_looked_at(monkeypatch):
    subject = least_squares_minimum()
    moved = FullyConnected.from_weights([1.02 * subject.net.Ws[0], subject.net.Ws[1] / 1.02], None, slope=1.0)
    true = _base.stationarity
    monkeypatch.setattr(_base, "stationarity", lambda *args, **options: replace(true(*args, **options), residual=1e-9))
    assert status("C-rank-9", subject.replace(net=moved)) == "fails"


def test_entries_next_to_kinks_take_from_balancedness_what_is_granted():
    """With slopes between 0 and 1 at entries that are not on their kinks, the law is broken by as much as κ says."""
    subject = random_subject([3, 6, 6, 2], seed=5).replace(Y=gaussian(32, 2), ridge=0.1)
    net, trace = subject.net, subject.trace()
    halves = tuple(torch.full_like(Z, 0.5) for Z in trace.preactivations[:-1])
    certificate = replace(subject.stationarity, derivatives=halves)
    found, norms = pulls(subject, trace, certificate), parameter_norms(net)
    for ell in range(1, trace.depth):
        S, after = trace.Z_sigma(ell - 1), trace.Z_sigma(ell)
        W = torch.cat([trace.Ws[ell - 1], trace.bs[ell - 1][:, None]], 1)
        g = found.Z[ell - 1] @ S.mT + 0.2 * W
        h = found.Z[ell] @ after.mT[:, :-1] + 0.2 * trace.Ws[ell]
        along = float((g * W).sum() - (h * trace.Ws[ell]).sum())
        gap = 0.2 * float(norms.layers[ell - 1] - norms.weights[ell])
        assert abs(along - gap) <= float(found.leak[ell - 1].sum()) * (1 + 1e-9)
        assert bool((found.leak[ell - 1] >= 0).all()) and float(found.leak[ell - 1].sum()) > 0


def test_distances_of_the_layers():
    """A linear network of k unit singular values is at distance zero; the bound is then an equality."""
    net = linear_net(torch.ones(3, dtype=torch.float64), [6, 8, 8, 6], seed=1)
    found = points_of(Subject(net, gaussian(5, 6)))
    assert_close(layer_distances(found, 0, 3), torch.zeros(3, dtype=torch.float64), atol=1e-10, reason="zero")
    verdict = CLAIMS["C-bn-6"].evaluate(Subject(net, gaussian(5, 6), known={"k": 3}))
    assert verdict.status == "holds" and abs(verdict.slack) < 1e-10
    assert len(verdict.details["‖W_ℓ − U_ℓV_ℓᵀ‖² by layer"]) == 3


@pytest.fixture(scope="module")
def trained():
    problem = teacher(d_in=8, rank=2, d_out=8, samples=150, relu_latents=True, seed=SEED)
    net = FullyConnected([8, *[24] * 5, 8], dtype=torch.float64, generator=generator())
    train(net, problem.X, problem.Y, ridge=0.02)
    return Subject(net, torch.tensor(problem.X), torch.tensor(problem.Y), 0.02)


@pytest.mark.parametrize("identity", ["C-rank-1", "C-bn-1", "C-bn-6", "C-bn-7", "C-bn-8"])
def test_trained_networks(trained, identity):
    verdict = CLAIMS[identity].evaluate(trained)
    assert verdict.status == "holds", verdict.reason


def test_trained_networks_are_balanced(trained):
    """As far as the residual with the derivatives at kinks says."""
    norms = parameter_norms(trained.net)
    assert_close(norms.layers[:-1], norms.weights[1:], rtol=2e-2, reason="a training that ended")
    found = CLAIMS["C-rank-9"].evaluate(trained)
    stationary = trained.stationarity.stationary
    assert found.status == ("holds" if stationary else "not applicable")


def test_trained_networks_are_near_isometries(trained):
    """The slack of C-bn-6 is small where the norm is near its bound: that is what training brings about."""
    fresh = random_subject([8, *[24] * 5, 8], seed=1)
    learned = CLAIMS["C-bn-6"].evaluate(trained.replace(known={"k": 2}))
    assert learned.slack < 0.5
    picture = learned.details["‖W_ℓ − U_ℓV_ℓᵀ‖² by layer"]
    middle = picture[len(picture) // 2]
    wild = CLAIMS["C-bn-6"].evaluate(fresh.replace(known={"k": 2}))
    assert middle < 0.2 * wild.details["‖W_ℓ − U_ℓV_ℓᵀ‖² by layer"][len(picture) // 2]
