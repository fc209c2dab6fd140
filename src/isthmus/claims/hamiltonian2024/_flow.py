"""What holds along the Hamiltonian flow of a leaky ResNet at a critical point (hamiltonian2024 §1.5, §2.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.claims._base import Check, Hypothesis, Part, Subject, claim
from isthmus.claims._evidence import TRAINING, fit_exponent, gaussian_inputs
from isthmus.constructions import FlowNetwork, flow_network
from isthmus.linalg import log_pseudo_determinant, numerical_rank
from isthmus.measures._identity_cost import KernelNorm, fewer_columns
from isthmus.measures._mechanics import hamiltonian, momenta
from isthmus.measures._stationarity import STATIONARY
from isthmus.networks import LeakyResNet
from isthmus.trace import LeakyTrace, activate, activation_derivative, with_ones


def as_subject(made: FlowNetwork, **known: object) -> Subject:
    """The network on its inputs and targets."""
    return Subject(made.network, made.X, made.Y, made.ridge, known=known)


def signed_start(width: int = 4, samples: int = 3, seed: int = 77, bias: float = 1.0) -> tuple[Tensor, Tensor]:
    """A start (A, B) of a flow with entries of both signs that keep them: |A| ≥ 1, and B near A(K + γI)⁻¹."""
    G = gaussian_inputs(2 * width, samples, seed)
    A = G[:width] + G[:width].sign()
    S = with_ones(activate(A, 0.0), bias)
    B = torch.linalg.solve(S.mT @ S + 0.3 * torch.eye(samples, dtype=torch.float64), A, left=False)
    B = B + 0.05 * G[width:]
    # Momenta of entries below zero grow as e^(L̃p): small ones do not turn them.
    return A, torch.where(A > 0, B, 0.1 * B)


NAMES = ("L̃ > 0", "ridge > 0 given", "critical point")

#: Relative allowance for the residual of a step beyond which no identity is judged there: it could hardly fail.
JUDGED = 0.1

#: How far a fitted exponent may be from its theoretical value −1.
ORDER_ROOM = 0.1


@dataclass(frozen=True, eq=False)
class Step:
    """Step ℓ of a path. Matrices have samples as columns, up to a rotation of the samples.

    Attributes
    ----------
    A, dA, B : Tensor (w, n)
        A_{ℓ-1}, (A_ℓ − A_{ℓ-1})/ρ_ℓ and B_ℓ.
    norm : KernelNorm
        Of σ(A_{ℓ-1}).
    rho, hamiltonian : float
        ρ_ℓ, and 𝓗(A_{ℓ-1}, B_ℓ).
    W : Tensor (w, w + 1)
    off : Tensor (w, w + 1)
        W_ℓ − L̃B_ℓσ(A_{ℓ-1})ᵀ: zero at a critical point.
    """

    A: Tensor
    dA: Tensor
    B: Tensor
    norm: KernelNorm
    rho: float
    hamiltonian: float
    W: Tensor
    off: Tensor

    def squares(self, gamma: float, L_tilde: float) -> tuple[float, float, float]:
        """‖A‖², ‖∂_pA/L̃ + γB‖² and ‖∂_pA‖² in the norm of K + γI."""
        moving = self.dA / L_tilde + gamma * self.B
        return tuple(self.norm.square(M, gamma) for M in (self.A, moving, self.dA))  # pyright: ignore[reportReturnType]


@dataclass(frozen=True, eq=False)
class Path:
    """All steps of a network on data.

    Attributes
    ----------
    trace : LeakyTrace
    Bs : list of Tensor (w, N)
        B_0 … B_L.
    slopes : list of Tensor (w, N)
        σ̇ at A_0 … A_{L-1}; at kinks that of the certificate.
    """

    trace: LeakyTrace
    Bs: list[Tensor]
    slopes: list[Tensor]

    @property
    def L_tilde(self) -> float:
        """The effective depth."""
        return self.trace.effective_depth

    @property
    def residual(self) -> float:
        """√(Σρ‖W − L̃Bσᵀ‖²/Σρ‖W‖²), the residual of a certificate; ∞ where all weights vanish."""
        squares = [(W.square().sum(), self.off(ell).square().sum()) for ell, W in enumerate(self.trace.Ws, start=1)]
        total = (self.trace.rho[:, None] * torch.tensor(squares, dtype=torch.float64)).sum(0)
        return math.sqrt(float(total[1] / total[0])) if float(total[0]) > 0.0 else math.inf

    def off(self, ell: int) -> Tensor:
        """W_ℓ − L̃B_ℓσ(A_{ℓ-1})ᵀ."""
        return self.trace.Ws[ell - 1] - self.L_tilde * self.Bs[ell] @ self.trace.sigma_A(ell - 1).mT

    def leak(self, ell: int) -> float:
        """ρ_ℓΣ|W̄_ℓᵀB_ℓ|·|σ̇ ⊙ A_{ℓ-1} − σ̄(A_{ℓ-1})|: what slopes at entries next to kinks take from homogeneity."""
        A, width = self.trace.A(ell - 1), self.trace.width
        pulled = self.trace.Ws[ell - 1][:, :width].mT @ self.Bs[ell]
        missed = self.slopes[ell - 1] * A - activate(A, self.trace.slope)
        return float(self.trace.rho[ell - 1]) * float((pulled * missed).abs().sum())

    def hamiltonians(self) -> list[float]:
        """𝓗(A_{ℓ-1}, B_ℓ), ℓ = 1 … L."""
        options = {"slope": self.trace.slope, "bias": self.trace.bias}
        pairs = zip(range(self.trace.depth), self.Bs[1:])
        return [hamiltonian(self.trace.A(ell), B, self.L_tilde, **options) for ell, B in pairs]

    def variation(self) -> float:
        """By how much the terms of 𝓗 = (L̃/2)‖Bσ(A)ᵀ‖² − L̃Tr[BAᵀ] vary along the path, the larger of the two."""
        pairs = [(self.Bs[ell + 1], self.trace.sigma_A(ell), self.trace.A(ell)) for ell in range(self.trace.depth)]
        terms = [(0.5 * float((B @ S.mT).square().sum()), float((B * A).sum())) for B, S, A in pairs]
        return self.L_tilde * max(max(values) - min(values) for values in zip(*terms))

    def steps(self) -> list[Step]:
        """The steps, with their norms: one decomposition each."""
        trace, found = self.trace, []
        for ell, H in enumerate(self.hamiltonians(), start=1):
            S, A, dA, B = trace.sigma_A(ell - 1), trace.A(ell - 1), trace.derivative(ell), self.Bs[ell]
            # Norms need inner products over samples only.
            S, A, dA, B = fewer_columns([S, A, dA, B]).split([len(S), len(A), len(dA), len(B)])
            norm, rho = KernelNorm(S), float(trace.rho[ell - 1])
            found.append(Step(A, dA, B, norm, rho, H, trace.Ws[ell - 1], self.off(ell)))
        return found


def path_of(subject: Subject) -> tuple[Path | None, list[Hypothesis]]:
    """The path with its momenta, and the hypotheses ``NAMES``; None unless all are met.

    Where the plain gradient does not vanish, the momenta are those of the derivatives at kinks that make it least.
    """
    net, ridge = subject.net, subject.ridge
    L_tilde = net.effective_depth
    leak = Hypothesis.of(NAMES[0], L_tilde > 0, f"L̃ = {L_tilde:g}")
    given = bool(ridge) and subject.Y is not None
    training = Hypothesis.of(NAMES[1], given or None, "", supply="" if given else TRAINING)
    if subject.Y is None or not ridge or L_tilde <= 0:
        return None, [leak, training, Hypothesis.of(NAMES[2], None, "no momenta", supply="" if given else TRAINING)]
    trace = net.trace(subject.X)
    lam = 2.0 * L_tilde * ridge
    plain = [activation_derivative(trace.A(ell), trace.slope) for ell in range(trace.depth)]
    path = Path(trace, momenta(trace, subject.Y, lam, loss=subject.loss), plain)
    if not path.residual <= STATIONARY and trace.slope != 1.0 and math.isfinite(path.residual):
        assert subject.stationarity is not None
        derivatives = subject.stationarity.derivatives
        slopes = [trace.slope + (1.0 - trace.slope) * D.mT for D in derivatives]
        path = Path(trace, momenta(trace, subject.Y, lam, loss=subject.loss, derivatives=derivatives), slopes)
    residual = path.residual
    found = f"W differs from L̃Bσ(A)ᵀ by {residual:.2g} of its norm" if math.isfinite(residual) else "weights vanish"
    critical = Hypothesis.of(NAMES[2], residual <= STATIONARY, found)
    # No path, and no decomposition of its kernels, where nothing is going to be said.
    return path if critical.status == "met" else None, [leak, training, critical]


def critical_path(check: Check, subject: Subject) -> Path:
    """The path of a critical point; of other networks nothing is said."""
    path, hypotheses = path_of(subject)
    check.add(*hypotheses)
    if path is None:
        check.not_applicable()
    return path


@dataclass(frozen=True)
class StepIdentity:
    """An identity at one step: both sides, and by how much the step's own residual and rounding may part them."""

    lhs: float
    rhs: float
    residual: float
    rounding: float
    name: str

    @property
    def size(self) -> float:
        """The larger side."""
        return max(abs(self.lhs), abs(self.rhs), 1e-300)


def identities(
    check: Check, places: Sequence[StepIdentity], details: Mapping[str, Sequence[float]], *, part: str
) -> Part:
    """Both sides equal at every place, up to its own allowance; where this exceeds ``JUDGED`` the place is left out.

    Of a short step with any weights the residual of the whole path says nothing.
    """
    kept = [place for place in places if not place.residual > JUDGED * place.size]
    if len(kept) < len(places):
        missing = f"too far off at {len(places) - len(kept)} of {len(places)} places to be judged there"
        critical = next(h for h in check.hypotheses if h.name == NAMES[2])
        check.assume(critical.name, bool(kept) or None, f"{critical.found}; {missing}")
    return check.compare(
        [place.lhs for place in kept],
        "=",
        [place.rhs for place in kept],
        tolerance=[(place.rounding + place.residual) / place.size for place in kept],
        part=part,
        where=[place.name for place in kept],
        details=details,
    )


def first_order(check: Check, what: str, family: Sequence[Subject], errors: Sequence[float]) -> Part | None:
    """Whether ``errors`` vanish like 1/L over networks of L steps; None with fewer than three that are not rounding."""
    pairs = [(float(one.net.layers), error) for one, error in zip(family, errors) if error > 1e-12]
    if len({layers for layers, _ in pairs}) < 3:
        return None
    rate = fit_exponent(*zip(*pairs))
    details = {f"{what}, by L": [error for _, error in pairs], f"exponent of {what}": rate.numbers}
    part = f"exponent in L of {what}"
    return check.compare(rate.value, "≤", -1.0 + ORDER_ROOM, tolerance=0.0, part=part, details=details)


def family_of(subject: Subject) -> list[Subject]:
    """``known["family"]``: the same task on more and more steps; empty if not given."""
    return subject.family(Subject) or []


# ---- What holds along the Hamiltonian flow of a leaky ResNet: conservation, its bounds, and the law of the biases


#: γ as shares of ‖K‖_op.
SHARES = (1e-3, 1e-1, 1.0)

#: Granted to rounding: exact identities are evaluated to this.
IDENTITY = 1e-8

#: ∂_p‖W_p‖² = FACTOR·L̃‖b_p‖².
FACTOR = 2.0


def flow_family() -> Subject:
    """The same start on 20 to 160 steps."""
    members = [as_subject(flow_network(*signed_start(), 2.0, layers)) for layers in (20, 40, 80, 160)]
    return members[1].replace(known={"family": members})


@claim(
    "C-ham-4",
    "𝓗 is constant along the flow (up to O(ρ) on steps), and exactly "
    "−(2/L̃)𝓗 = ‖A‖² − ‖∂_pA/L̃ + γB‖² + γ‖B‖_F² in the norm of K + γI",
    paper="hamiltonian2024",
    where="§1.5; proof of Thm 8",
    hypotheses=NAMES,
    sample=flow_family,
    erratum="On steps the identity needs the pairs (A_(ℓ−1), B_ℓ); equal indices leave a residual.",
    about=LeakyResNet.kind,
)
def conserved_hamiltonian(check: Check, subject: Subject) -> None:
    """Spread max 𝓗 − min 𝓗 within what the steps let it move; −(2/L̃)𝓗 = ‖A‖² − ‖∂_pA/L̃ + γB‖² + γ‖B‖² at every step.

    How far 𝓗 may move is computed from the steps, and is O(ρ): :func:`most_drift`. That 𝓗 is constant says something
    where its two terms are not: where O(ρ) is not less than what they vary by, the steps are too long.

    With W = L̃Bσ(A)ᵀ + D the difference of the sides of the identity is at most
    2‖∂_pA/L̃ + γB‖‖D‖/L̃ + 3‖D‖²/L̃², because ‖Dσ(A)‖_{K+γI} ≤ ‖D‖: that is the step's tolerance beyond rounding.
    ``known["family"]`` has networks on more and more steps for one start, over which the drift must fall like 1/L.
    """
    path = critical_path(check, subject)
    H = path.hamiltonians()
    low, high = H.index(min(H)), H.index(max(H))
    most = float(most_drift(path)[low, high])
    middle, varied = abs(float(torch.tensor(H, dtype=torch.float64).median())), path.variation()
    scale, between = max(varied, middle, 1e-300), f"steps {min(low, high) + 1} and {max(low, high) + 1}"
    check.compare(
        max(H) - min(H),
        "≤",
        most,
        tolerance=IDENTITY,
        # A sum that is constant is a test beside terms that are not: where it may move as much as they do, it is none.
        scale=scale,
        part="constant up to O(ρ)",
        where=f"{between}, |𝓗| = {middle:.3g}, its terms vary by {varied:.3g}",
        details={"𝓗 by step": H, "drift of 𝓗 and O(ρ), shares of |𝓗|": [drift(H), most / max(middle, 1e-300)]},
        trivial="" if most < scale else "the steps are too long: O(ρ) is not less than what its terms vary by",
    )
    places, L_tilde = [], path.L_tilde
    for ell, step in enumerate(path.steps(), start=1):
        for share in SHARES:
            gamma = share * step.norm.top or 1.0
            identity, moving, _ = step.squares(gamma, L_tilde)
            # The negative terms on the other side: no cancellation against what they are compared with.
            lhs = identity + gamma * float(step.B.square().sum())
            rhs = moving - 2.0 / L_tilde * step.hamiltonian
            name = f"step {ell}, γ = {share:g}‖K‖"
            places.append(StepIdentity(lhs, rhs, left_by(step, moving, L_tilde), IDENTITY * max(lhs, abs(rhs)), name))
    identities(check, places, {}, part="the identity")
    _rate(check, "drift of 𝓗", subject, lambda member: drift(member.hamiltonians()))


@torch.no_grad()
def most_drift(path: Path) -> Tensor:
    """How far 𝓗(A_{ℓ-1}, B_ℓ) may be from 𝓗(A_{m-1}, B_m), for every two steps, (L, L): O(ρ).

    With V_ℓ = (A_ℓ − A_{ℓ-1})/ρ_ℓ, G_ℓ = (B_{ℓ-1} − B_ℓ)/ρ_ℓ, Δσ_ℓ = σ(A_ℓ) − σ(A_{ℓ-1}), D_ℓ = W_ℓ − L̃B_ℓσ(A_{ℓ-1})ᵀ,

    𝓗_{ℓ+1} − 𝓗_ℓ = ρ_ℓ⟨G_ℓ, V_ℓ⟩ − ρ_{ℓ+1}⟨G_{ℓ+1}, V_{ℓ+1}⟩ + (L̃/2)‖B_ℓΔσ_ℓᵀ‖² − (L̃/2)ρ²_{ℓ+1}‖G_{ℓ+1}σ(A_ℓ)ᵀ‖²
    + L̃⟨B_ℓσ(A_{ℓ-1})ᵀ, B_ℓ(Δσ_ℓ − ρ_ℓσ̇ ⊙ V_ℓ)ᵀ⟩ + ρ_{ℓ+1}⟨D_{ℓ+1}, G_{ℓ+1}σ(A_ℓ)ᵀ⟩ − ρ_ℓ⟨D̄_ℓ, B_ℓ(σ̇ ⊙ V_ℓ)ᵀ⟩

    exactly (docs/notes/mechanics.md). The first two telescope to what the ends leave; the squares, O(ρ²) each, are
    summed; of what kinks and residuals leave the sizes are.
    """
    trace, L_tilde = path.trace, path.L_tilde
    ends, squares, rests = [], [], []
    for ell in range(1, trace.depth + 1):
        rho, B, S = float(trace.rho[ell - 1]), path.Bs[ell], trace.sigma_A(ell - 1)
        V, G, D = trace.derivative(ell), (path.Bs[ell - 1] - B) / rho, float(path.off(ell).norm())
        moved, turned = B @ (rho * path.slopes[ell - 1] * V).mT, G @ S.mT
        jumped = B @ (activate(trace.A(ell), trace.slope) - activate(trace.A(ell - 1), trace.slope)).mT
        bent = float(((B @ S[: trace.width].mT) * (jumped - moved)).sum())
        ends.append(rho * abs(float((G * V).sum())))
        squares.append(
            (-0.5 * L_tilde * rho**2 * float(turned.square().sum()), 0.5 * L_tilde * float(jumped.square().sum()))
        )
        rests.append((rho * D * float(turned.norm()), D * float(moved.norm()) + L_tilde * abs(bent)))
    reach = torch.tensor(ends, dtype=torch.float64)
    reach = reach[:, None] + reach
    for terms in (squares, rests):
        # Between steps n < m: of the first kind those at n + 1 … m, of the second those at n … m − 1.
        first, second = torch.tensor(terms, dtype=torch.float64).unbind(1)
        whole = torch.zeros(len(terms), dtype=torch.float64)
        whole[1:] = (first[1:] + second[:-1]).cumsum(0)
        reach = reach + (whole[:, None] - whole).abs()
    return reach


def left_by(step: Step, moving: float, L_tilde: float) -> float:
    """2‖∂_pA/L̃ + γB‖‖D‖/L̃ + 3‖D‖²/L̃², D = W − L̃Bσ(A)ᵀ: what it leaves of the identity; ``moving`` is the square."""
    D = float(step.off.norm()) / L_tilde
    return 2.0 * moving**0.5 * D + 3.0 * D**2


def drift(H: list[float]) -> float:
    """(max 𝓗 − min 𝓗)/|median 𝓗|."""
    values = torch.tensor(H, dtype=torch.float64)
    return float((values.max() - values.min()) / values.median().abs().clamp_min(1e-300))


def _rate(check: Check, what: str, subject: Subject, error: Callable[[Path], float]) -> None:
    """Whether ``error`` of the paths of the family vanishes like 1/L."""
    family, errors = family_of(subject), []
    for member in family:
        path, hypotheses = path_of(member)
        if path is None:
            check.add(hypotheses[-1])
            check.not_applicable()
        errors.append(error(path))
    first_order(check, what, family, errors)


def flow_sample() -> Subject:
    """An exact critical point of 40 steps with biases, off the kinks."""
    return as_subject(flow_network(*signed_start(), 2.0, 40))


@claim(
    "C-ham-5",
    "−(ℓ_γ/L̃ + √γ c)² ≤ −(2/L̃)𝓗 − min_p‖A_p‖² ≤ γc² and −√γ c ≤ ‖∂_pA‖/L̃ − √[‖A‖² + 2𝓗/L̃]_+ ≤ 2√γ c "
    "in the norm of K + γI, c = max‖B_p‖; √γ c is sup_p √γ_p‖B_p‖ for γ that depends on p",
    paper="hamiltonian2024",
    where="Thm 4 and Thm 8",
    hypotheses=NAMES,
    sample=flow_sample,
    relation="≤",
    erratum="Printed with γc in place of √γ c, which fails on integrated flows, and with the root of a number that may "
    "be negative.",
    about=LeakyResNet.kind,
)
def stable_energies(check: Check, subject: Subject) -> None:
    """All four inequalities of Thm 4, for one γ and for γ_p = γ_0‖K_p‖_op, on a discrete path.

    At a critical point (2) is exact for every step with its own 𝓗_ℓ; (1) with the largest 𝓗_ℓ on its upper and the
    least on its lower side, which are equal in the limit. For W = L̃Bσ(A)ᵀ + D the triangle inequality adds ‖D‖/L̃ to
    each √γ c (docs/notes/mechanics.md).
    """
    path = critical_path(check, subject)
    steps = path.steps()
    places = []
    for share in SHARES:
        own = [share * step.norm.top or 1.0 for step in steps]
        middle = float(torch.tensor(own, dtype=torch.float64).median())
        for gammas, kind in ((own, f"γ_p = {share:g}‖K_p‖"), ([middle] * len(steps), f"γ = {middle:.3g}")):
            sides = _inequalities(steps, gammas, path.L_tilde)
            places += [(left, right, f"{where}, {kind}") for left, right, where in sides]
    check.each(places, "≤", tolerance=IDENTITY, details={"𝓗 by step": [step.hamiltonian for step in steps]})


def reach(gamma: float, size: float) -> float:
    """√γ‖B‖, which bounds ‖γB‖_{K+γI}."""
    return gamma**0.5 * size


def _inequalities(steps: list[Step], gammas: list[float], L_tilde: float) -> list[tuple[float, float, str]]:
    """(lhs, rhs, where) with lhs ≤ rhs."""
    momenta = [float(step.B.norm()) for step in steps]
    c = max(reach(g, b) for g, b in zip(gammas, momenta))
    top = max(g * b**2 for g, b in zip(gammas, momenta))
    found, costs, length, off = [], [], 0.0, 0.0
    for ell, (step, gamma) in enumerate(zip(steps, gammas), start=1):
        cost, _, moving = step.squares(gamma, L_tilde)
        speed, D = moving**0.5 / L_tilde, float(step.off.norm()) / L_tilde
        extra = max(cost + 2.0 / L_tilde * step.hamiltonian, 0.0) ** 0.5
        # All sides are kept positive, so that tolerances are relative to what is compared.
        found.append((extra, speed + c + D, f"(2) lower, step {ell}"))
        found.append((speed, extra + 2.0 * c + D, f"(2) upper, step {ell}"))
        costs.append(cost)
        length += step.rho * speed
        off += step.rho * D
    whole = sum(step.rho for step in steps)
    energies = [-2.0 / L_tilde * step.hamiltonian for step in steps]
    found.append((min(energies), min(costs) + top, "(1) upper"))
    found.append((min(costs), max(energies) + ((length + off) / whole + c) ** 2, "(1) lower"))
    return found


@claim(
    "C-ham-7",
    "Tr[B_ℓA_ℓᵀ] − Tr[B_(ℓ−1)A_(ℓ−1)ᵀ] = ρ_ℓ‖b_ℓ‖²/L̃ at critical points, and ‖W_p‖² = ‖W_0‖² + 2L̃∫‖b‖² as ρ → 0",
    paper="hamiltonian2024",
    where="Prop. 10",
    hypotheses=NAMES,
    sample=flow_family,
    erratum="Printed with the factor L̃: the proof forgets that W_(r(q)) moves with r. The bias is part of ‖W‖².",
    about=LeakyResNet.kind,
)
def growth_by_biases(check: Check, subject: Subject) -> None:
    """Tr[B_ℓA_ℓᵀ] = Tr[B_{ℓ-1}A_{ℓ-1}ᵀ] + ρ_ℓ‖b_ℓ‖²/L̃, exactly; ‖W_ℓ‖² = ‖W_1‖² + 2L̃Σρ‖b‖² within what the steps leave.

    At any weights the left side grows by ρ_ℓ⟨B_ℓ1, b_ℓ⟩ (homogeneity of σ), and B_ℓ1 = b_ℓ/L̃ at critical points: what
    a residual D leaves is ρ_ℓ‖D_b‖‖b_ℓ‖/L̃, and what entries next to kinks leave is added: the step's tolerance beyond
    rounding. Because ‖W_ℓ‖² = 2L̃(𝓗_ℓ + L̃Tr[B_ℓA_{ℓ-1}ᵀ]), the second law holds up to 2L̃ times the drift of 𝓗 and
    2L̃²ρ|⟨B, ∂_pA⟩| at both ends, which is O(ρ).
    """
    path = critical_path(check, subject)
    trace, width = path.trace, path.trace.width
    products = [float((B * trace.A(ell)).sum()) for ell, B in enumerate(path.Bs)]
    places = []
    # Both sides may pass through zero; rounding is relative to the largest of them.
    rounding = 1e-12 * max(abs(value) for value in products)
    for ell, W in enumerate(trace.Ws, start=1):
        b, rho = W[:, width:], float(trace.rho[ell - 1])
        grown = products[ell - 1] + 0.5 * FACTOR * rho * float(b.square().sum()) / path.L_tilde
        left = rho * float(path.off(ell)[:, width:].norm()) * float(b.norm()) / path.L_tilde + path.leak(ell)
        places.append(StepIdentity(products[ell], grown, left, rounding, f"step {ell}"))
    sizes = torch.stack([W.square().sum() for W in trace.Ws])
    details = {"Tr[BAᵀ] by position": products, "‖W‖² by step": sizes.tolist()}
    errors, most = growth_of_weights(path)
    worst = int(errors.argmax())
    size = float(sizes.max())
    check.compare(
        float(errors[worst]) / size,
        "≤",
        float(most[worst]) / size,
        tolerance=IDENTITY,
        scale=1.0,
        part="‖W_p‖² = ‖W_0‖² + 2L̃∫‖b‖² up to O(ρ), shares of max ‖W‖²",
        where=f"step {worst + 1}",
        details=details,
        trivial="" if float(most[worst]) < size else "the steps are too long: O(ρ) is not less than ‖W‖²",
    )
    identities(check, places, {}, part="Tr[BAᵀ] step by step")
    if trace.bias != 0.0:
        _rate(check, "error of ‖W_p‖²", subject, _growth_error)


@torch.no_grad()
def growth_of_weights(path: Path) -> tuple[Tensor, Tensor]:
    """|‖W_m‖² − ‖W_1‖² − 2L̃Σ_{1<ℓ≤m}ρ_ℓ‖b_ℓ‖²| and what the steps may leave of it, for each step m, (L,)."""
    trace, L_tilde = path.trace, path.L_tilde
    sizes = torch.stack([W.square().sum() for W in trace.Ws])
    biases = trace.rho * torch.stack([W[:, trace.width :].square().sum() for W in trace.Ws])
    grown = FACTOR * L_tilde * (biases.cumsum(0) - biases[0])
    layers = range(1, trace.depth + 1)
    off = torch.tensor([float(path.off(ell).norm()) for ell in layers], dtype=torch.float64)
    pulled = [float(trace.rho[ell - 1] * (path.Bs[ell] * trace.derivative(ell)).sum().abs()) for ell in layers]
    # What D leaves of ‖W‖² = L̃²‖Bσᵀ‖², and of Tr[BAᵀ] from step to step.
    square = 2.0 * sizes.sqrt() * off + off.square() + 2.0 * L_tilde**2 * torch.tensor(pulled, dtype=torch.float64)
    traces = [path.leak(ell) for ell in layers]
    steps = (
        2.0 * L_tilde * (biases.sqrt() * trace.rho.sqrt() * off + L_tilde * torch.tensor(traces, dtype=torch.float64))
    )
    most = 2.0 * L_tilde * most_drift(path)[0] + square + square[0] + steps.cumsum(0) - steps[0]
    return (sizes - sizes[0] - grown).abs(), most


def _growth_error(path: Path) -> float:
    """max_m |‖W_m‖² − ‖W_1‖² − 2L̃Σ_{1<ℓ≤m}ρ_ℓ‖b_ℓ‖²| relative to max‖W‖²."""
    errors, _ = growth_of_weights(path)
    return float(errors.max() / max(float(W.square().sum()) for W in path.trace.Ws))


# ---- The separation of time scales, and the cross term of linear networks (hamiltonian2024, §2.1 and §1.3)


INCLUSION = "Im Aᵀ ⊂ Im σ(A)ᵀ"

#: Largest condition number of σ(A) at which ‖·‖_K is judged.
CONDITION = 1e5


def linear_flow() -> Subject:
    """A linear network of 40 steps without bias at an exact critical point whose weights move along the path."""
    A, B = gaussian_inputs(3, 3, 1), gaussian_inputs(3, 3, 2)
    A = torch.eye(3, dtype=torch.float64) + 0.3 * A
    return as_subject(flow_network(A, torch.linalg.inv(A).mT + 0.1 * B, 2.0, 40, slope=1.0, bias=0.0))


@claim(
    "C-ham-9",
    "‖∂_pA‖_K = L̃√(‖A‖²_K + 2𝓗/L̃) where Im Aᵀ ⊂ Im σ(A)ᵀ; in linear networks ∫⟨∂_pA, A⟩_K dp = log|A_1|_+ − log|A_0|_+",
    paper="hamiltonian2024",
    where="§2.1; §1.3, footnote 1",
    hypotheses=(*NAMES, INCLUSION),
    sample=linear_flow,
    about=LeakyResNet.kind,
)
def separated_time_scales(check: Check, subject: Subject) -> None:
    """‖A‖²_K = ‖∂_pA/L̃‖²_K − (2/L̃)𝓗 at every step where σ(A) can rebuild A, exactly at critical points.

    For linear networks without bias the sum Σρ⟨∂_pA, A⟩_K differs from the integral by a remainder that is bounded step
    by step, and vanishes like ρ: see :func:`cross_term`.
    """
    path = critical_path(check, subject)
    included = [(ell, step) for ell, step in enumerate(path.steps(), start=1) if _rebuilt(step)]
    check.assume(INCLUSION, bool(included), f"at {len(included)} of {path.trace.depth} steps")
    places = []
    for ell, step in included:
        lhs = step.norm.square(step.A)
        moving = step.norm.square(step.dA) / path.L_tilde**2
        rhs = moving - 2.0 / path.L_tilde * step.hamiltonian
        places.append(
            StepIdentity(lhs, rhs, left_by(step, moving, path.L_tilde), IDENTITY * max(lhs, abs(rhs)), f"step {ell}")
        )
    identities(check, places, {"‖A‖²_K by step": [place.lhs for place in places]}, part="time scales")
    if path.trace.slope == 1.0 and path.trace.bias == 0.0:
        _linear_part(check, path)


def _rebuilt(step: Step) -> bool:
    r = step.norm.rank
    trusted = r > 0 and float(step.norm.s[0]) <= CONDITION * float(step.norm.s[r - 1])
    return trusted and math.isfinite(step.norm.square(step.A)) and math.isfinite(step.norm.square(step.dA))


def _linear_part(check: Check, path: Path) -> None:
    """|Σρ⟨∂_pA, A⟩_K − log|A_L|_+ + log|A_0|_+| ≤ the remainder; nothing where steps are too long for one."""
    whole, change, remainder = cross_term(path.trace)
    if not math.isfinite(remainder):
        return
    check.compare(
        abs(whole - change),
        "≤",
        remainder + IDENTITY * max(1.0, abs(whole), abs(change)),
        tolerance=0.0,
        part="cross term",
        details={"cross term, change of log|A|_+, bound of their difference": [whole, change, remainder]},
    )


def cross_term(trace: LeakyTrace) -> tuple[float, float, float]:
    """Σρ⟨∂_pA, A⟩_K, log|A_L|_+ − log|A_0|_+ and a bound of their difference, for a linear network without bias.

    With A_{ℓ-1} = UsVᵀ and A_ℓ = (I + E)A_{ℓ-1} a step adds Tr[UᵀEU] to the first and ½ log det(I + F) to the second,
    I + F = Uᵀ(I + E)ᵀ(I + E)U, hence F = UᵀEU + UᵀEᵀU + UᵀEᵀEU. Because |log det(I + F) − Tr F| ≤ ‖F‖²/(2(1 − ‖F‖_op)),
    they differ by at most ½‖EU‖² + ‖F‖²/(4(1 − ‖F‖_op)); ∞ where ‖F‖_op ≥ 1 or the rank changes.
    """
    whole, remainder = 0.0, 0.0
    rank = int(numerical_rank(trace.A(0)))
    for ell in range(1, trace.depth + 1):
        before, after = trace.A(ell - 1), trace.A(ell)
        _, s, Vh = torch.linalg.svd(before, full_matrices=False)
        frame = Vh[:rank].mT / s[:rank]
        moved = (after - before) @ frame
        image = after @ frame
        F = image.mT @ image - torch.eye(rank, dtype=torch.float64)
        size = float(torch.linalg.matrix_norm(F, 2)) if rank else 0.0
        # Tr[ΔA·A⁺], A⁺ = Vs⁻¹Uᵀ.
        whole += float((moved * (before @ frame)).sum())
        remainder += 0.5 * float(moved.square().sum())
        remainder += float(F.square().sum()) / (4.0 * (1.0 - size)) if size < 1.0 else math.inf
    if int(numerical_rank(trace.A(trace.depth))) != rank:
        remainder = math.inf
    ends = [float(log_pseudo_determinant(trace.A(ell), rank=rank)) for ell in (0, trace.depth)]
    return whole, ends[1] - ends[0], remainder
