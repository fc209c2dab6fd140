"""Claims about sequences of networks, the single family of C-bn-6, and errata that concern averages and factors."""

from __future__ import annotations

import math

import pytest
import torch
from judged import status, verdict

from isthmus import FullyConnected
from isthmus.claims._base import CLAIMS, Subject
from isthmus.claims._evidence import leaky_random_net, points_of, random_subject, relu_random_net
from isthmus.claims.bottleneck2023 import _curvature as bn_families
from isthmus.claims.bottleneck2023._jacobian_bounds import one_family_distances, weights_near_one_family
from isthmus.constructions import divergent, pad
from isthmus.measures import (
    hessian_top_eigenvalue,
    jacobian,
    ntk_top_eigenvalue,
    ntk_trace,
    parameter_norms,
)
from tools import assert_close, gaussian, generator, linear_net, three_part_net

# ------------------------------------------------------------------------------------------------ C-bn-10


@pytest.fixture(scope="module")
def fits():
    return CLAIMS["C-bn-10"].sample()


def test_narrow_minima_are_narrow_beyond_their_norm(fits):
    """Of the interpolators by hand, Tr Θ/L alone grows faster than the theorem asks with e^{−c₁}."""
    found = verdict("C-bn-10", fits)
    assert found.status == "holds" and found.where == "exponent of Tr Θ/L"
    value, low, high = found.details["Tr Θ/L alone: exponent, low, high"]
    assert 2.0 < low < value < high
    assert found.details["with e^c₁"][0] > value


def test_twins_of_the_narrow_minima(fits):
    known = fits.known
    assert status("C-bn-10", fits.replace(known={**known, "k_star": 1})) == "not applicable"
    for said in (False, None):
        assert status("C-bn-10", fits.replace(known={**known, "independent": said})) == "not applicable"
    assert status("C-bn-10", fits.replace(known={**known, "fits": known["fits"][:3]})) == "not applicable"
    # Rank 2: the map itself.
    A = gaussian(3, 2)
    two = [Subject(FullyConnected.from_weights([A], slope=1.0), fit.X, fit.X @ A.mT) for fit in known["fits"]]
    found = verdict("C-bn-10", fits.replace(known={**known, "fits": two}))
    assert found.status == "not applicable" and "narrowest layers 2 to 2" in found.reason
    # Not interpolating, and not deep.
    wrong = [fit.replace(Y=fit.Y + 1.0) for fit in known["fits"]]
    assert status("C-bn-10", fits.replace(known={**known, "fits": wrong})) == "not applicable"


def test_one_fit_for_many_samples_fails(fits):
    """The same network under growing N, because its samples are repeated: nothing grows, whatever is said of them."""
    one = fits.known["fits"][0]
    repeated = [one.replace(X=one.X.repeat(n, 1), Y=one.Y.repeat(n, 1)) for n in (1, 2, 4, 8)]
    found = verdict("C-bn-10", fits.replace(known={**fits.known, "fits": repeated}))
    assert found.status == "fails" and found.where == "exponent of Tr Θ·e^c₁/L"


# ------------------------------------------------------------------------------------------------ C-bn-12


@pytest.fixture(scope="module")
def example():
    subject = CLAIMS["C-bn-12"].sample()
    return subject, verdict("C-bn-12", subject)


def test_the_stated_numbers(example):
    details = example[1].details
    assert example[1].status == "holds"
    assert details["depth"] == [10, 100, 1000, 10_000]
    assert [f"{v:.3g}" for v in details["‖θ‖² − 3L"]] == ["3.67", "1.27", "0.386", "0.12"]
    assert [f"{v:.3g}" for v in details["largest activation"]] == ["2.04", "4.71", "16.5", "148"]
    value, low, high = details["exponent of the excess, low, high"]
    assert low < 1 - 2 * 0.75 < high < 0  # 1 − 2γ
    assert details["exponent of log(1 + scale), low, high"][1] > 0


@pytest.mark.parametrize("gamma", [0.4, 0.5, 1.0])
def test_other_exponents_are_not_judged(example, gamma):
    assert status("C-bn-12", example[0].replace(known={"exponent": gamma})) == "not applicable"


@pytest.mark.parametrize(
    ("gamma", "said"), [(0.51, "not applicable"), (0.55, "holds"), (0.9, "holds"), (0.98, "not applicable")]
)
def test_exponents_near_the_ends(gamma, said):
    """Near ½ the third coordinate shrinks by S³ beside the others, and S grows faster than any power."""
    X = torch.rand(20, 3, generator=generator(1)).double()
    found = verdict("C-bn-12", Subject(divergent(100, gamma).network, X, known={"exponent": gamma}))
    assert found.status == said, found.reason
    assert said == "holds" or "do not show it" in found.reason


def test_the_formula_is_that_of_the_networks():
    nets = short()
    excess, scales = bn_families._example_20(torch.tensor([one.depth for one in nets]).double().numpy(), 0.75)
    assert_close(excess, [one.known.norm_squared - 3 * one.depth for one in nets])
    assert_close(scales, [one.known.details["scale"] for one in nets])


def test_samples_on_the_faces_of_the_cube():
    """Clamped to the cube they lie on kinks, and the price of bending was that of one point: nothing."""
    pair = bn_families._across_the_kink(torch.tensor([[0.9, 1.0, 0.0], [1.0, 0.8, 0.4]]).double())
    assert float(pair.min()) > 0 and len(pair) == 2
    for L in (10, 100):
        # ‖Jf(x) − Jf(y)‖_* = √2 over the square of the largest partial Jacobian.
        assert 0.0 < bn_families._lipschitz_bound(divergent(L).network, pair) < 2**0.5
    assert math.isnan(bn_families._lipschitz_bound(divergent(10).network, pair * torch.tensor([1.0, 1.0, 0.0])))


def short(exponent=0.75, depths=(10, 30, 100, 300)):
    return [divergent(L, exponent) for L in depths]


def test_other_functions_are_not_judged(example):
    subject = example[0]
    other = subject.replace(net=random_subject([3, 6, 3], seed=1).net, known={**subject.known, "family": short()})
    assert status("C-bn-12", other) == "not applicable"
    few = {**subject.known, "family": short()[:2]}
    assert status("C-bn-12", subject.replace(known=few)) == "not applicable"
    odd = [pad(one, one.depth + 1).network for one in short()]
    assert status("C-bn-12", subject.replace(known={**subject.known, "family": odd})) == "not applicable"
    one_side = subject.X[subject.X[:, 0] < subject.X[:, 1]]
    assert status("C-bn-12", subject.replace(X=one_side, known={**subject.known, "family": short()})) == (
        "not applicable"
    )


def test_a_uniformly_lipschitz_sequence_does_not_attain_it(example):
    """The kink between identity layers: representations stay bounded, and the excess stays at 3."""
    subject = example[0]
    middle = divergent(2).network
    flat = [pad(pad(middle, L // 2 + 1), L, where="input").network for L in (10, 30, 100, 300)]
    assert all(abs(parameter_norms(net).total - 3 * net.depth - 3) < 1e-9 for net in flat)
    family = {**subject.known, "family": flat}
    found = verdict("C-bn-12", subject.replace(known=family))
    assert found.status == "fails" and "exponent of the" in found.where
    good = {**subject.known, "family": short()}
    assert status("C-bn-12", subject.replace(known=good)) == "holds"


def test_too_small_an_excess_fails(example, monkeypatch):
    """C-bn-11 at work: a network of that function cannot have both bounded Jacobians and no excess."""

    def tiny(net):
        return type("Norms", (), {"total": 3 * net.depth + 1e-9 / net.depth})()

    monkeypatch.setattr(bn_families, "parameter_norms", tiny)
    found = verdict("C-bn-12", example[0].replace(known={**example[0].known, "family": short()}))
    assert found.status == "fails" and "depth" in found.where


# --------------------------------------------------------------------------------- C-bn-6, single family


@pytest.mark.parametrize("make", [relu_random_net, leaky_random_net])
def test_one_family_of_isometries(make):
    subject = make()
    found = weights_near_one_family.evaluate(subject)
    assert found.status == "holds", found.reason
    assert len(found.details["‖W_ℓ − V_ℓV_(ℓ−1)ᵀ‖² by layer"]) == subject.net.depth
    for k in (1, 2):
        assert weights_near_one_family.evaluate(subject.replace(known={"k": k})).status == "holds"


def test_the_distances_by_hand():
    subject = relu_random_net()
    found = points_of(subject)
    V = torch.linalg.svd(found.J[0]).Vh[:2].mT
    expected = []
    for ell, W in enumerate(found.trace.Ws, start=1):
        D = found.trace.derivative(ell)[0] if ell < found.trace.depth else torch.ones(len(W)).double()
        M = torch.diag(D) @ W @ V
        # The polar factor, by (MᵀM)^{−1/2}.
        values, vectors = torch.linalg.eigh(M.mT @ M)
        V_next = M @ (vectors / values.sqrt()) @ vectors.mT
        expected.append((W - V_next @ V.mT).square().sum())
        V = V_next
    assert_close(one_family_distances(found, 0, 2), torch.stack(expected))


def test_isometries_are_at_distance_zero():
    net = FullyConnected.from_weights([torch.eye(3).double()] * 4)
    found = weights_near_one_family.evaluate(Subject(net, gaussian(5, 3).abs()))
    assert found.status == "holds" and abs(found.slack) < 1e-12
    assert_close(found.details["‖W_ℓ − V_ℓV_(ℓ−1)ᵀ‖² by layer"], [0.0] * 4)


def test_twins_of_the_single_family(monkeypatch):
    subject = relu_random_net()
    assert weights_near_one_family.evaluate(subject.replace(known={"k": 6})).status == "not applicable"
    for slope in (-0.5, 1.0):
        other = random_subject([4, 6, 6, 3], slope=slope, seed=1)
        assert weights_near_one_family.evaluate(other).status == "not applicable"
    honest = parameter_norms(subject.net)
    small = type("Norms", (), {"weights": honest.weights, "biases": honest.biases, "total": 0.2 * honest.total})()
    monkeypatch.setattr("isthmus.claims.bottleneck2023._jacobian_bounds.parameter_norms", lambda net: small)
    assert weights_near_one_family.evaluate(subject).status == "fails"


def test_the_two_forms_agree_where_nothing_is_cut_off():
    """With every D = I on the image both families are the same up to a rotation within the k columns."""
    net = linear_net([2.0, 1.0, 0.5], [4, 5, 5, 4])
    relu = FullyConnected.from_weights([W.abs() for W in net.Ws])
    subject = Subject(relu, gaussian(6, 4).abs() + 0.1, known={"k": 1})
    two = CLAIMS["C-bn-6"].evaluate(subject)
    one = weights_near_one_family.evaluate(subject)
    assert two.status == one.status == "holds"
    assert_close(one.details["‖W_ℓ − V_ℓV_(ℓ−1)ᵀ‖² by layer"], two.details["‖W_ℓ − U_ℓV_ℓᵀ‖² by layer"])


def test_a_bottleneck_shows_in_one_family():
    subject = Subject(three_part_net(2, depth=12, seed=1), gaussian(20, 12), known={"k": 2})
    found = weights_near_one_family.evaluate(subject)
    assert found.status == "holds", found.reason
    assert max(found.details["‖W_ℓ − V_ℓV_(ℓ−1)ᵀ‖² by layer"][3:8]) < 1e-9


# ------------------------------------------------------------------------------------------------- errata


def test_the_printed_average_of_corollary_8_fails():
    """Cor. 8 prints c·(average of max{1,e^{c₁/k}}/(k|Jf(x_i)|^{2/k})) with c the average of Tr Θ/L.

    Its proof needs that this bounds the mean of ‖α_{ℓ-1}(x_i)‖². It does not where Tr Θ is large at the samples of
    small Jacobians; the average of the products, which C-bn-8 uses, does.
    """
    # x up to 0.2 and then at slope 0.05, after many identities: x − 0.95·σ(x − 0.2), by equal shares in and out.
    L, flat, kink = 2000, 0.05, 0.2
    share = math.sqrt(1 - flat)
    Ws = [torch.eye(1)] * (L - 2) + [torch.tensor([[1.0], [share]]), torch.tensor([[1.0, -share]])]
    bs = [torch.zeros(1)] * (L - 2) + [torch.tensor([0.0, -kink * share]), torch.zeros(1)]
    net = FullyConnected.from_weights([W.double() for W in Ws], [b.double() for b in bs])
    X = torch.cat([torch.linspace(0.05, 0.15, 99), torch.tensor([1000.0])])[:, None].double()
    J = jacobian(net, X)[:, 0, 0]
    assert_close(J[[0, -1]], [1.0, flat], rtol=1e-6, reason="shares in float32")
    total = parameter_norms(net).total
    factor = math.exp(total - L)
    c = ntk_trace(net, X) / L
    mean = float(torch.stack([a.square().sum(1) for a in net.trace(X).activations]).sum(0).mean()) / L
    ours = float((c * factor / J.square()).mean())
    printed = float(c.mean() * (factor / J.square()).mean())
    assert printed < mean <= ours


def test_the_printed_hessian_fails():
    """§4 prints Θ/N; with the cost (1/N)Σ‖f − y‖² the Hessian has twice that spectrum, where f = y."""
    net, X = random_subject([3, 8, 8, 2], seed=5).net, gaussian(6, 3)
    sharpness = hessian_top_eigenvalue(net, X, net(X).detach()).value
    kernel = ntk_top_eigenvalue(net, X).value
    assert_close(sharpness, 2 * kernel / 6, rtol=1e-4, reason="two Lanczos iterations")
    assert sharpness > 1.9 * kernel / 6
