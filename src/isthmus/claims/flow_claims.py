"""What holds along the Hamiltonian flow of a leaky ResNet: conservation, its bounds, and the law of the biases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from isthmus.claims.base import Subject, Verdict, claim, compare, not_applicable, worst
from isthmus.claims.leaky_points import NAMES, Path, Place, Step, family_of, first_order, identities, path_of
from isthmus.claims.leaky_samples import flow_family, flow_sample

#: γ as shares of ‖K‖_op.
SHARES = (1e-3, 1e-1, 1.0)
#: Granted to rounding: exact identities are evaluated to this.
IDENTITY = 1e-8
#: ∂_p‖W_p‖² = FACTOR·L̃‖b_p‖².
FACTOR = 2.0


@claim(
    "C-ham-4",
    "𝓗 is constant along the flow (up to O(ρ) on steps), and exactly "
    "−(2/L̃)𝓗 = ‖A‖² − ‖∂_pA/L̃ + γB‖² + γ‖B‖_F² in the norm of K + γI",
    paper="hamiltonian2024",
    where="§1.5; proof of Thm 8",
    hypotheses=NAMES,
    sample=flow_family,
    erratum="On steps the identity needs the pairs (A_(ℓ−1), B_ℓ); equal indices leave a residual.",
    about="a leaky ResNet",
)
def conserved_hamiltonian(subject: Subject) -> Verdict:
    """−(2/L̃)𝓗 = ‖A‖²_{K+γI} − ‖∂_pA/L̃ + γB‖²_{K+γI} + γ‖B‖² at every step, and 𝓗 drifts by O(1/L) over a family.

    With W = L̃Bσ(A)ᵀ + D the difference of the sides is at most 2‖∂_pA/L̃ + γB‖‖D‖/L̃ + 3‖D‖²/L̃², because
    ‖Dσ(A)‖_{K+γI} ≤ ‖D‖: that is the step's tolerance beyond rounding. ``known["family"]`` has networks on more and
    more steps for one start; without it only the identity is judged, and the drift shown.
    """
    path, hypotheses = path_of(subject)
    if path is None:
        return not_applicable("C-ham-4", "=", hypotheses)
    places, L_tilde = [], path.L_tilde
    for ell, step in enumerate(path.steps(), start=1):
        for share in SHARES:
            gamma = share * step.norm.top or 1.0
            identity, moving, _ = step.squares(gamma, L_tilde)
            # The negative terms on the other side: no cancellation against what they are compared with.
            lhs = identity + gamma * float(step.B.square().sum())
            rhs = moving - 2.0 / L_tilde * step.hamiltonian
            name = f"step {ell}, γ = {share:g}‖K‖"
            places.append(Place(lhs, rhs, left_by(step, moving, L_tilde), IDENTITY * max(lhs, abs(rhs)), name))
    H = path.hamiltonians()
    verdict = identities("C-ham-4", places, hypotheses, {"𝓗 by step": H, "drift of 𝓗": [drift(H)]})
    if verdict.status == "not applicable":
        return verdict
    return _with_rate("C-ham-4", "drift of 𝓗", verdict, subject, lambda member: drift(member.hamiltonians()))


def left_by(step: Step, moving: float, L_tilde: float) -> float:
    """2‖∂_pA/L̃ + γB‖‖D‖/L̃ + 3‖D‖²/L̃², D = W − L̃Bσ(A)ᵀ: what it leaves of the identity; ``moving`` is the square."""
    D = float(step.off.norm()) / L_tilde
    return 2.0 * moving**0.5 * D + 3.0 * D**2


def drift(H: list[float]) -> float:
    """(max 𝓗 − min 𝓗)/|median 𝓗|."""
    values = torch.tensor(H, dtype=torch.float64)
    return float((values.max() - values.min()) / values.median().abs().clamp_min(1e-300))


def _with_rate(identity: str, what: str, verdict: Verdict, subject: Subject, error: Callable[[Path], float]) -> Verdict:
    """``verdict``, joined by whether ``error`` of the paths of the family vanishes like 1/L."""
    family, errors = family_of(subject), []
    for member in family:
        path, hypotheses = path_of(member)
        if path is None:
            return not_applicable(identity, "=", [*verdict.hypotheses[:-1], hypotheses[-1]])
        errors.append(error(path))
    rate = first_order(identity, what, family, errors)
    return verdict if rate is None else worst(verdict, replace(rate, hypotheses=verdict.hypotheses))


@claim(
    "C-ham-5",
    "−(ℓ_γ/L̃ + √γ c)² ≤ −(2/L̃)𝓗 − min_p‖A_p‖² ≤ γc² and −√γ c ≤ ‖∂_pA‖/L̃ − √[‖A‖² + 2𝓗/L̃]_+ ≤ 2√γ c "
    "in the norm of K + γI, c = max‖B_p‖; √γ c is sup_p √γ_p‖B_p‖ for γ that depends on p",
    paper="hamiltonian2024",
    where="Thm 4 and Thm 8",
    hypotheses=NAMES,
    sample=flow_sample,
    erratum="Printed with γc in place of √γ c, which fails on integrated flows, and with the root of a number that may "
    "be negative.",
    about="a leaky ResNet",
)
def stable_energies(subject: Subject) -> Verdict:
    """All four inequalities of Thm 4, for one γ and for γ_p = γ_0‖K_p‖_op, on a discrete path.

    At a critical point (2) is exact for every step with its own 𝓗_ℓ; (1) with the largest 𝓗_ℓ on its upper and the
    least on its lower side, which are equal in the limit. For W = L̃Bσ(A)ᵀ + D the triangle inequality adds ‖D‖/L̃ to
    each √γ c (docs/notes/mechanics.md).
    """
    path, hypotheses = path_of(subject)
    if path is None:
        return not_applicable("C-ham-5", "≤", hypotheses)
    steps = path.steps()
    lhs: list[float] = []
    rhs: list[float] = []
    names: list[str] = []
    for share in SHARES:
        own = [share * step.norm.top or 1.0 for step in steps]
        middle = float(torch.tensor(own, dtype=torch.float64).median())
        for gammas, kind in ((own, f"γ_p = {share:g}‖K_p‖"), ([middle] * len(steps), f"γ = {middle:.3g}")):
            for left, right, where in _inequalities(steps, gammas, path.L_tilde):
                lhs.append(left)
                rhs.append(right)
                names.append(f"{where}, {kind}")
    return compare(
        "C-ham-5",
        lhs,
        "≤",
        rhs,
        tolerance=IDENTITY,
        hypotheses=hypotheses,
        where=lambda i: names[i],
        details={"𝓗 by step": [step.hamiltonian for step in steps]},
    )


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
    about="a leaky ResNet",
)
def growth_by_biases(subject: Subject) -> Verdict:
    """Tr[B_ℓA_ℓᵀ] = Tr[B_{ℓ-1}A_{ℓ-1}ᵀ] + ρ_ℓ‖b_ℓ‖²/L̃, exactly; ‖W_ℓ‖² = ‖W_1‖² + 2L̃Σρ‖b‖² up to O(1/L) over a family.

    At any weights the left side grows by ρ_ℓ⟨B_ℓ1, b_ℓ⟩ (homogeneity of σ), and B_ℓ1 = b_ℓ/L̃ at critical points: what
    a residual D leaves is ρ_ℓ‖D_b‖‖b_ℓ‖/L̃, the step's tolerance beyond rounding.
    """
    path, hypotheses = path_of(subject)
    if path is None:
        return not_applicable("C-ham-7", "=", hypotheses)
    trace, width = path.trace, path.trace.width
    products = [float((B * trace.A(ell)).sum()) for ell, B in enumerate(path.Bs)]
    places = []
    # Both sides may pass through zero; rounding is relative to the largest of them.
    rounding = 1e-12 * max(abs(value) for value in products)
    for ell, W in enumerate(trace.Ws, start=1):
        b, rho = W[:, width:], float(trace.rho[ell - 1])
        grown = products[ell - 1] + 0.5 * FACTOR * rho * float(b.square().sum()) / path.L_tilde
        left = rho * float(path.off(ell)[:, width:].norm()) * float(b.norm()) / path.L_tilde
        places.append(Place(products[ell], grown, left, rounding, f"step {ell}"))
    details = {"Tr[BAᵀ] by position": products, "‖W‖² by step": [float(W.square().sum()) for W in trace.Ws]}
    verdict = identities("C-ham-7", places, hypotheses, details)
    if verdict.status == "not applicable" or trace.bias == 0.0:
        return verdict
    return _with_rate("C-ham-7", "error of ‖W_p‖²", verdict, subject, _growth_error)


def _growth_error(path: Path) -> float:
    """max_ℓ |‖W_ℓ‖² − ‖W_1‖² − 2L̃Σ_{m<ℓ}ρ_m‖b_m‖²| relative to max‖W‖²."""
    trace = path.trace
    sizes = torch.stack([W.square().sum() for W in trace.Ws])
    biases = torch.stack([W[:, trace.width :].square().sum() for W in trace.Ws])
    grown = FACTOR * path.L_tilde * (trace.rho * biases).cumsum(0)
    return float((sizes[1:] - sizes[0] - grown[:-1]).abs().max() / sizes.max())
