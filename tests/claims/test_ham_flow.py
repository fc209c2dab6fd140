"""C-ham-4, 5, 7, 9 on integrated flows: samples, what the paper prints, corrupted networks."""

from __future__ import annotations

import math

import pytest
import torch
from judged import part, verdict

from isthmus import DataError, LeakyResNet
from isthmus.claims._base import Check, Subject
from isthmus.claims.hamiltonian2024 import _flow as flow_claims
from isthmus.claims.hamiltonian2024 import _flow as leaky_points
from isthmus.claims.hamiltonian2024 import _flow as time_scales
from isthmus.claims.hamiltonian2024._flow import as_subject, flow_family, linear_flow, signed_start
from isthmus.constructions import flow_network, hamiltonian_flow, steady_path
from isthmus.measures._identity_cost import KernelNorm
from isthmus.measures._mechanics import flow, hamiltonian, momenta
from isthmus.trace import activate, activation_derivative, with_ones
from tools import assert_close, gaussian, generator

MINE = ("C-ham-4", "C-ham-5", "C-ham-7", "C-ham-9")


@pytest.fixture(scope="module")
def family():
    return flow_family()


@pytest.fixture(scope="module")
def one(family):
    return family.replace(known={})


def changed(subject, change):
    """The same task on weights W ↦ change(ℓ, W)."""
    net = subject.net
    Ws = [change(ell, W.detach().clone()) for ell, W in enumerate(net.Ws, start=1)]
    options = {"effective_depth": net.effective_depth, "slope": net.slope, "bias": net.bias}
    return subject.replace(net=LeakyResNet.from_weights(Ws, net.rho, **options))


def test_the_family_holds_and_shows_its_rates(family):
    for identity, what in (("C-ham-4", "drift of 𝓗"), ("C-ham-7", "error of ‖W_p‖²")):
        found = verdict(identity, family)
        assert found.status == "holds", found.reason
        value, low, high = found.details[f"exponent of {what}"]
        assert low <= value <= high and value == pytest.approx(-1.05, abs=0.15)
    assert verdict("C-ham-4", family).tolerance < 1.1e-8


@pytest.mark.parametrize("identity", MINE)
def test_one_network(identity, one):
    found = verdict(identity, one)
    assert found.status == "holds", found.reason
    assert math.isfinite(found.lhs) and math.isfinite(found.rhs)


@pytest.mark.parametrize("identity", MINE)
@pytest.mark.parametrize("start", [(4, 3, 1, 1.0), (4, 3, 2, 0.0), (6, 4, 4, 1.0), (3, 9, 5, 1.0)])
def test_other_flows_kinks_included(identity, start):
    """Wide and narrow, with and without bias: exact at every critical point, whatever crosses zero on the way."""
    w, N, seed, bias = start
    A, B = signed_start(w, N, seed, bias)
    # More samples than neurons: momenta of the size of K⁻¹ would be too large for these steps.
    found = verdict(identity, as_subject(flow_network(A, B if w > N else 0.2 * B, 1.0, 30, bias=bias)))
    if identity == "C-ham-9" and found.status == "not applicable":
        assert "Im Aᵀ" in found.reason
    else:
        assert found.status.startswith("holds"), found.reason


@pytest.mark.parametrize("identity", MINE)
def test_a_corrupted_weight_is_no_critical_point(identity, one):
    noise = gaussian(4, 5, seed=3)
    found = verdict(identity, changed(one, lambda ell, W: W + noise * (ell == 20)))
    assert found.status == "not applicable" and "critical point: not met" in found.reason
    found = verdict(identity, changed(one, lambda ell, W: 1.2 * W))
    assert found.status == "not applicable" and "differs" in found.reason


@pytest.mark.parametrize("identity", MINE)
def test_nearly_critical_networks_are_granted_their_residual(identity, one):
    """A little off: still judged, exactly, with what the residual can do to each side."""
    found = verdict(identity, changed(one, lambda ell, W: W + 2e-5 * gaussian(4, 5, seed=ell)))
    assert found.status == "holds", found.reason
    residual = next(h for h in found.hypotheses if h.name == "critical point")
    assert residual.status == "met" and "e-15" not in residual.found


@pytest.mark.parametrize("identity", MINE)
def test_what_is_lacking(identity, one):
    for missing in (one.replace(Y=None), one.replace(ridge=None), one.replace(ridge=0.0)):
        assert verdict(identity, missing).status == "not applicable"
    bare = Subject(LeakyResNet(3, 3, 4, 5, 0.0, dtype=torch.float64), gaussian(6, 3), gaussian(6, 3, seed=1), 0.1)
    assert "L̃ > 0: not met" in verdict(identity, bare).reason
    dead = Subject(
        LeakyResNet.from_weights([torch.zeros(3, 4)] * 4, [0.25] * 4, effective_depth=1.0).double(),
        gaussian(6, 3),
        gaussian(6, 3, seed=1),
        0.1,
    )
    assert "vanish" in verdict(identity, dead).reason


def with_a_short_step(subject, length):
    """A step of this length with any weights, where the residual of the whole path does not see it."""
    net = subject.net
    Ws, rho = [W.detach() for W in net.Ws], net.rho.tolist()
    noise = gaussian(*Ws[10].shape, seed=3)
    Ws.insert(10, Ws[10] + 10.0 * Ws[10].norm() * noise / noise.norm())
    rho.insert(10, length)
    lengths = torch.tensor(rho, dtype=torch.float64) / sum(rho)
    return subject.replace(net=LeakyResNet.from_weights(Ws, lengths, effective_depth=net.effective_depth))


@pytest.mark.parametrize("identity", ["C-ham-4", "C-ham-9"])
def test_a_short_step_opens_no_tolerance(identity, one, monkeypatch):
    """What its residual grants is its own: elsewhere an 𝓗 three times too large is still caught."""
    subject, name = with_a_short_step(one, 1e-9), {"C-ham-4": "the identity", "C-ham-9": "time scales"}[identity]
    found = part(identity, subject, name)
    assert found.status == "holds" and found.tolerance < 1e-4
    critical = next(h for h in verdict(identity, subject).hypotheses if h.name == "critical point")
    assert "too far off at" in critical.found
    true = leaky_points.Path.hamiltonians
    monkeypatch.setattr(
        leaky_points.Path, "hamiltonians", lambda path: [H * (3 if i == 5 else 1) for i, H in enumerate(true(path))]
    )
    found = part(identity, subject, name)
    assert found.status == "fails" and "step 6" in found.where


def critical(subject):
    """A check whose hypotheses are those of a critical point."""
    check = Check("C-ham-7", leaky_points.NAMES)
    leaky_points.critical_path(check, subject)
    return check


def test_sides_that_pass_zero_open_no_tolerance(one):
    """As Tr[BAᵀ] may: rounding is of the largest side there, and of its own elsewhere."""
    near = leaky_points.StepIdentity(1e-13, -1e-13, 0.0, 1e-12, "near zero")
    assert leaky_points.identities(critical(one), [near], {}, part="").status == "holds trivially"
    far = leaky_points.StepIdentity(1.0, 1.0 + 1e-9, 0.0, 1e-12, "far")
    found = leaky_points.identities(critical(one), [near, far], {}, part="")
    assert found.status == "fails" and found.where == "far"


@pytest.mark.parametrize("identity", ["C-ham-4", "C-ham-9"])
def test_nothing_is_said_where_no_step_can_be_judged(identity, one, monkeypatch):
    monkeypatch.setattr(leaky_points, "JUDGED", -1.0)
    found = verdict(identity, one)
    # What was judged before, how constant 𝓗 is, stands.
    rest = found.parts[-1].reason if identity == "C-ham-4" else found.reason
    assert "critical point: not known" in rest and len(found.parts) == 2 * (identity == "C-ham-4")


# ------------------------------------------------------------------------------------------------- what is printed


def test_the_printed_gamma_fails(monkeypatch, one):
    monkeypatch.setattr(flow_claims, "reach", lambda gamma, size: gamma * size)
    found = verdict("C-ham-5", one)
    assert found.status == "fails" and "(2)" in found.where


def test_the_printed_root_is_not_a_number(one):
    """‖A‖² + 2𝓗/L̃ ≥ −γ‖B‖² can be negative."""
    path, _ = leaky_points.path_of(one)
    values = []
    for step in path.steps():
        gamma = step.norm.top
        values.append(step.norm.square(step.A, gamma) + 2 / path.L_tilde * step.hamiltonian)
        assert values[-1] >= -gamma * float(step.B.square().sum()) * (1 + 1e-12)
    assert min(values) < 0


def test_the_printed_factor_fails(monkeypatch, family, one):
    monkeypatch.setattr(flow_claims, "FACTOR", 1.0)
    assert verdict("C-ham-7", one).status == "fails"
    errors = [flow_claims._growth_error(leaky_points.path_of(member)[0]) for member in family.known["family"]]
    assert min(errors) > 0.05  # it does not go away with more steps


def test_both_laws_on_the_flow_itself():
    """Integrated by RK4, continuous quantities: factor 2L̃ to the integrator's precision, and not L̃."""
    L_tilde, layers = 2.0, 200
    found = hamiltonian_flow(*signed_start(), L_tilde, layers)
    S = torch.stack([with_ones(torch.relu(A), 1.0) for A in found.A])
    W = L_tilde * found.B @ S.mT
    sizes, b = W.square().sum((1, 2)), W[:, :, -1].square().sum(1)
    # Simpson's rule over pairs of steps.
    whole = float((b[0] + b[-1] + 4 * b[1:-1:2].sum() + 2 * b[2:-1:2].sum()) / (3 * layers))
    assert_close(float(sizes[-1] - sizes[0]), 2 * L_tilde * whole, rtol=1e-6, reason="Simpson's rule")
    assert abs(float(sizes[-1] - sizes[0]) - L_tilde * whole) > 0.3 * L_tilde * whole
    # All of Thm 4 in its continuous form, with one 𝓗.
    H = float(found.hamiltonian.mean())
    printed = 0
    for gamma in (1e-3, 1e-2, 1e-1):
        c = float(found.B.flatten(1).norm(dim=1).max())
        costs, speeds = [], []
        for A, B, s in zip(found.A, found.B, S):
            norm = KernelNorm(s)
            costs.append(norm.square(A, gamma))
            speeds.append(norm.square(flow(A, B, L_tilde)[0], gamma) ** 0.5)
        extra = [L_tilde * max(cost + 2 * H / L_tilde, 0.0) ** 0.5 for cost in costs]
        gaps = [speed - more for speed, more in zip(speeds, extra)]
        reach = gamma**0.5 * c
        assert -L_tilde * reach - 1e-6 <= min(gaps) and max(gaps) <= 2 * L_tilde * reach + 1e-6
        printed += min(gaps) < -L_tilde * gamma * c - 1e-6 or max(gaps) > 2 * L_tilde * gamma * c + 1e-6
        length = sum(speeds) / len(speeds)
        middle = -2 / L_tilde * H - min(costs)
        assert -((length / L_tilde + reach) ** 2) <= middle <= gamma * c**2
    assert printed


def test_equal_indices_leave_a_residual(monkeypatch, one):
    """𝓗 of (A_ℓ, B_ℓ) in place of (A_{ℓ-1}, B_ℓ)."""

    def unpaired(path):
        return [hamiltonian(path.trace.A(ell), path.Bs[ell], path.L_tilde) for ell in range(1, path.trace.depth + 1)]

    monkeypatch.setattr(leaky_points.Path, "hamiltonians", unpaired)
    assert verdict("C-ham-4", one).status == "fails"
    assert verdict("C-ham-9", one).status == "fails"


def test_a_hamiltonian_that_does_not_settle_fails(monkeypatch, family):
    """Members in the wrong order: the drift of the coarsest is called that of the finest."""
    members = family.known["family"]
    drifts = [flow_claims.drift(leaky_points.path_of(member)[0].hamiltonians()) for member in members]
    assert leaky_points.first_order(critical(members[0]), "drift", members, drifts).status == "holds"
    assert leaky_points.first_order(critical(members[0]), "drift", members, drifts[::-1]).status == "fails"
    # All rounding, or too few: nothing to fit.
    assert leaky_points.first_order(critical(members[0]), "drift", members, [0.0] * 4) is None
    monkeypatch.setattr(flow_claims, "drift", lambda H: 0.1 + 0.01 * len(H) ** -0.5)
    found = verdict("C-ham-4", family)
    assert found.status == "fails" and "exponent" in found.where


def test_a_member_that_is_not_critical_silences_the_rate(family):
    members = family.known["family"]
    off = changed(members[0], lambda ell, W: 1.3 * W)
    found = verdict("C-ham-4", family.replace(known={"family": [off, *members[1:]]}))
    assert found.status == "holds" and found.parts[-1].name == "the rest"
    assert found.parts[-1].status == "not applicable" and "critical point" in found.parts[-1].reason


# ----------------------------------------------------------------------------------------- how far 𝓗 may move


def signed_drift(path):
    """𝓗_{ℓ+1} − 𝓗_ℓ by the identity of docs/notes/mechanics.md, term by term, ℓ = 1 … L−1."""
    trace, L_tilde = path.trace, path.L_tilde
    terms = []
    for ell in range(1, trace.depth + 1):
        rho, B, S = float(trace.rho[ell - 1]), path.Bs[ell], trace.sigma_A(ell - 1)
        V, G, D = trace.derivative(ell), (path.Bs[ell - 1] - B) / rho, path.off(ell)
        bar, dot = S[: trace.width], path.slopes[ell - 1]
        jump = activate(trace.A(ell), trace.slope) - bar
        end = rho * (G * V).sum()
        here = 0.5 * L_tilde * (B @ jump.mT).square().sum() - rho * (D[:, : trace.width] * (B @ (dot * V).mT)).sum()
        here += L_tilde * ((B @ bar.mT) * (B @ (jump - rho * dot * V).mT)).sum()
        after = -0.5 * L_tilde * rho**2 * (G @ S.mT).square().sum() + rho * (D * (G @ S.mT)).sum()
        terms.append((float(end + here), float(after - end)))
    return torch.tensor([a[0] + b[1] for a, b in zip(terms, terms[1:])], dtype=torch.float64)


@pytest.mark.parametrize("off", [0.0, 0.3])
@pytest.mark.parametrize("slope", [0.0, 0.3, 1.0])
def test_the_drift_is_what_the_steps_leave_of_it(slope, off):
    """The identity behind the bound is exact: at critical points and at any other weights, kinks crossed."""
    net = LeakyResNet(
        4, 3, width=5, layers=7, effective_depth=1.5, slope=slope, dtype=torch.float64, generator=generator(2)
    )
    X, Y = gaussian(6, 4), gaussian(6, 3, seed=1)
    trace = net.trace(X)
    slopes = [activation_derivative(trace.A(ell), slope) for ell in range(trace.depth)]
    path = leaky_points.Path(trace, momenta(trace, Y, 0.1 + off), slopes)
    H = torch.tensor(path.hamiltonians(), dtype=torch.float64)
    assert_close(
        H.diff(), signed_drift(path), rtol=1e-9, atol=1e-9 * float(H.abs().max()), reason="sums of large terms"
    )
    reach = leaky_points.most_drift(path)
    assert bool(((H[:, None] - H).abs() <= reach * (1 + 1e-9)).all())


def test_the_drift_is_judged_by_the_length_of_the_steps(family):
    """O(ρ): half the length, half the reach; 𝓗 that moves by more than the steps allow fails."""
    reaches = []
    for member in family.known["family"]:
        found = part("C-ham-4", member, "constant up to O(ρ)")
        assert found.status == "holds"
        reaches.append(found.rhs)
    assert all(1.7 < a / b < 2.4 for a, b in zip(reaches, reaches[1:]))


@pytest.mark.parametrize("identity", ["C-ham-4", "C-ham-7"])
def test_a_drift_beyond_the_steps_fails(identity, one, monkeypatch):
    """The corrupted twin: 𝓗 that grows along the path, or weights that do."""
    path = leaky_points.path_of(one)[0]
    if identity == "C-ham-4":
        true = leaky_points.Path.hamiltonians
        monkeypatch.setattr(
            leaky_points.Path, "hamiltonians", lambda p: [H * (1 + 0.01 * i) for i, H in enumerate(true(p))]
        )
    else:
        true_growth = flow_claims.growth_of_weights
        size = max(float(W.square().sum()) for W in path.trace.Ws)
        monkeypatch.setattr(
            flow_claims, "growth_of_weights", lambda p: (true_growth(p)[0] + 0.3 * size, true_growth(p)[1])
        )
    found = verdict(identity, one)
    assert found.status == "fails" and "O(ρ)" in found.where


def test_long_steps_are_no_test_of_constancy():
    """Where the steps let 𝓗 move by as much as it is, the claim is true and trivial, whatever the identity says."""
    A, B = signed_start(4, 3, 4)
    subject = as_subject(flow_network(A, 2.2 * B, 1.0, 8))
    found = part("C-ham-4", subject, "constant up to O(ρ)")
    assert found.status == "holds trivially" and "too long" in found.reason
    assert part("C-ham-4", subject, "the identity").status == "holds"
    assert verdict("C-ham-4", subject).status == "holds trivially"


# ---------------------------------------------------------------------------------------------------------- C-ham-9


def test_the_cross_term_of_linear_networks():
    subject = linear_flow()
    found = verdict("C-ham-9", subject)
    assert found.status == "holds"
    whole, change, bound = found.details["cross term, change of log|A|_+, bound of their difference"]
    assert abs(whole - change) <= bound < 0.1 * abs(whole)
    errors, bounds = [], []
    A, B = subject.X.mT, leaky_points.path_of(subject)[0].Bs[0]
    for layers in (20, 40, 80):
        trace = as_subject(flow_network(A, B, 2.0, layers, slope=1.0, bias=0.0)).trace()
        whole, change, bound = time_scales.cross_term(trace)
        errors.append(abs(whole - change))
        bounds.append(bound)
    assert all(error <= bound for error, bound in zip(errors, bounds))
    assert bounds[0] > 1.8 * bounds[1] > 3.4 * bounds[2]


def test_the_cross_term_in_closed_form():
    """A_p = e^{pD}A of rank 2 among 3 neurons: log|A_1|_+ − log|A_0|_+ = Tr D."""
    A = gaussian(2, 4)
    D = torch.diag(torch.tensor([0.3, -0.1], dtype=torch.float64))
    G = torch.eye(2, dtype=torch.float64) + D / 2.0
    made = steady_path(A, G, 2.0, 100, slope=1.0)
    whole, change, bound = time_scales.cross_term(made.network.trace(made.X))
    assert whole == pytest.approx(0.2, abs=1e-10)  # Σ Tr[M − I] exactly
    assert change == pytest.approx(0.2, abs=2e-3) and abs(whole - change) <= bound < 5e-3


def test_a_corrupted_cross_term_fails(monkeypatch):
    true = time_scales.cross_term

    def wrong(trace):
        whole, change, bound = true(trace)
        return whole, -change, bound

    monkeypatch.setattr(time_scales, "cross_term", wrong)
    found = verdict("C-ham-9", linear_flow())
    assert found.status == "fails" and found.where == "cross term"


def test_violated_inclusion():
    """More samples than activations can span: ‖A‖_K is infinite."""
    A, B = signed_start(3, 9, 5)
    found = verdict("C-ham-9", as_subject(flow_network(A, 0.2 * B, 1.0, 20)))
    assert found.status == "not applicable" and "Im Aᵀ ⊂ Im σ(A)ᵀ: not met" in found.reason


def test_steps_too_long_for_a_remainder():
    """One step that triples the representation: no bound, and the linear part is left out."""
    made = steady_path(gaussian(2, 4), 3 * torch.eye(2, dtype=torch.float64), 1.0, 1, slope=1.0)
    assert math.isinf(time_scales.cross_term(made.network.trace(made.X))[2])
    found = verdict("C-ham-9", as_subject(made))
    assert found.status == "holds" and list(found.details) == ["‖A‖²_K by step"]


# ---------------------------------------------------------------------------------------------------- many random ones


@pytest.mark.slow
def test_no_claim_fails_at_two_hundred_random_critical_points():
    """Any width, number of samples, leak, slope and bias; kinks crossed as they come."""
    seen = dict.fromkeys((f"C-ham-{n}" for n in (1, 2, 3, 4, 5, 7, 8, 9)), 0)
    for seed in range(200):
        source = generator(seed)
        w, N = (int(torch.randint(1, 8, (), generator=source)) for _ in range(2))
        L_tilde = 0.1 + 3 * float(torch.rand((), generator=source))
        A, B = gaussian(2 * w, N, seed=seed).split(w)
        options = {"bias": float(seed % 2), "slope": (0.0, 0.3, 1.0)[seed % 3]}
        try:
            subject = as_subject(flow_network(A, 0.3 * B, L_tilde, 25, **options))
        except DataError:
            continue  # momenta too large for 25 steps
        for identity in seen:
            found = verdict(identity, subject)
            assert found.status != "fails", (seed, identity, found.where, found.reason)
            seen[identity] += found.status.startswith("holds")
    for identity in ("C-ham-4", "C-ham-5", "C-ham-7"):
        assert seen[identity] > 150, seen
    assert min(seen.values()) > 0, seen
