"""The separation of time scales, and the cross term of linear networks (hamiltonian2024, §2.1 and §1.3)."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from isthmus.claims.base import Hypothesis, Subject, Verdict, claim, compare, not_applicable, worst
from isthmus.claims.flow_claims import IDENTITY, left_by
from isthmus.claims.leaky_points import NAMES, Path, Place, Step, identities, path_of
from isthmus.claims.leaky_samples import linear_flow
from isthmus.linalg import log_pseudo_determinant, numerical_rank
from isthmus.trace import LeakyTrace

INCLUSION = "Im Aᵀ ⊂ Im σ(A)ᵀ"
#: Largest condition number of σ(A) at which ‖·‖_K is judged.
CONDITION = 1e5


@claim(
    "C-ham-9",
    "‖∂_pA‖_K = L̃√(‖A‖²_K + 2𝓗/L̃) where Im Aᵀ ⊂ Im σ(A)ᵀ; in linear networks ∫⟨∂_pA, A⟩_K dp = log|A_1|_+ − log|A_0|_+",
    paper="hamiltonian2024",
    where="§2.1; §1.3, footnote 1",
    hypotheses=(*NAMES, INCLUSION),
    sample=linear_flow,
    about="a leaky ResNet",
)
def separated_time_scales(subject: Subject) -> Verdict:
    """‖A‖²_K = ‖∂_pA/L̃‖²_K − (2/L̃)𝓗 at every step where σ(A) can rebuild A, exactly at critical points.

    For linear networks without bias the sum Σρ⟨∂_pA, A⟩_K differs from the integral by a remainder that is bounded step
    by step, and vanishes like ρ: see :func:`cross_term`.
    """
    path, hypotheses = path_of(subject)
    if path is None:
        return not_applicable("C-ham-9", "=", [*hypotheses, Hypothesis.of(INCLUSION, None)])
    included = [(ell, step) for ell, step in enumerate(path.steps(), start=1) if _rebuilt(step)]
    found = f"at {len(included)} of {path.trace.depth} steps"
    hypotheses = [*hypotheses, Hypothesis.of(INCLUSION, bool(included), found)]
    places = []
    for ell, step in included:
        lhs = step.norm.square(step.A)
        moving = step.norm.square(step.dA) / path.L_tilde**2
        rhs = moving - 2.0 / path.L_tilde * step.hamiltonian
        places.append(
            Place(lhs, rhs, left_by(step, moving, path.L_tilde), IDENTITY * max(lhs, abs(rhs)), f"step {ell}")
        )
    verdict = identities("C-ham-9", places, hypotheses, {"‖A‖²_K by step": [place.lhs for place in places]})
    if verdict.status == "not applicable" or path.trace.slope != 1.0 or path.trace.bias != 0.0:
        return verdict
    linear = _linear_part(path, verdict)
    return verdict if linear is None else worst(verdict, linear)


def _rebuilt(step: Step) -> bool:
    r = step.norm.rank
    trusted = r > 0 and float(step.norm.s[0]) <= CONDITION * float(step.norm.s[r - 1])
    return trusted and math.isfinite(step.norm.square(step.A)) and math.isfinite(step.norm.square(step.dA))


def _linear_part(path: Path, verdict: Verdict) -> Verdict | None:
    """|Σρ⟨∂_pA, A⟩_K − log|A_L|_+ + log|A_0|_+| ≤ the remainder; None where steps are too long for one."""
    whole, change, remainder = cross_term(path.trace)
    if not math.isfinite(remainder):
        return None
    part = compare(
        "C-ham-9",
        abs(whole - change),
        "≤",
        remainder + IDENTITY * max(1.0, abs(whole), abs(change)),
        tolerance=0.0,
        hypotheses=verdict.hypotheses,
        where="cross term",
        details={"cross term, change of log|A|_+, bound of their difference": [whole, change, remainder]},
    )
    return replace(part, hypotheses=verdict.hypotheses)


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
