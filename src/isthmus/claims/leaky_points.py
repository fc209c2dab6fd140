"""A leaky ResNet step by step: representations, momenta, and how far its weights are from a critical point."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.claims.base import Hypothesis, Subject, Verdict, compare
from isthmus.claims.evidence import fit_exponent
from isthmus.measures.energies import hamiltonian, momenta
from isthmus.measures.kernel_norms import KernelNorm, fewer_columns
from isthmus.measures.mechanics import TOLERANCE
from isthmus.trace import LeakyTrace

#: Relative residual of W = L̃Bσ(A)ᵀ up to which a network counts as critical; what is compared is widened by it.
CRITICAL = TOLERANCE
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
    residual : float
        √(Σρ‖W − L̃Bσᵀ‖²/Σρ‖W‖²).
    """

    trace: LeakyTrace
    Bs: list[Tensor]
    residual: float

    @property
    def L_tilde(self) -> float:
        """The effective depth."""
        return self.trace.effective_depth

    def off(self, ell: int) -> Tensor:
        """W_ℓ − L̃B_ℓσ(A_{ℓ-1})ᵀ."""
        return self.trace.Ws[ell - 1] - self.L_tilde * self.Bs[ell] @ self.trace.sigma_A(ell - 1).mT

    def hamiltonians(self) -> list[float]:
        """𝓗(A_{ℓ-1}, B_ℓ), ℓ = 1 … L."""
        options = {"slope": self.trace.slope, "bias": self.trace.bias}
        pairs = zip(range(self.trace.depth), self.Bs[1:])
        return [hamiltonian(self.trace.A(ell), B, self.L_tilde, **options) for ell, B in pairs]

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
    """The path with its momenta, and the hypotheses ``NAMES``; None unless all are met."""
    net, ridge = subject.net, subject.ridge
    L_tilde = net.effective_depth
    leak = Hypothesis.of(NAMES[0], L_tilde > 0, f"L̃ = {L_tilde:g}")
    given = Hypothesis.of(NAMES[1], bool(ridge), "" if ridge else "ridge not given")
    if subject.Y is None or not ridge or L_tilde <= 0:
        why = "targets not given" if subject.Y is None else "no momenta"
        return None, [leak, given, Hypothesis.of(NAMES[2], None, why)]
    trace = net.trace(subject.X)
    Bs = momenta(trace, subject.Y, 2.0 * L_tilde * ridge, loss=subject.loss)
    whole = Path(trace, Bs, math.nan)
    counted = enumerate(trace.Ws, start=1)
    squares = torch.stack([torch.stack([W.square().sum(), whole.off(ell).square().sum()]) for ell, W in counted])
    total = (trace.rho[:, None] * squares).sum(0)
    if float(total[0]) == 0.0:
        return None, [leak, given, Hypothesis.of(NAMES[2], False, "all weights vanish")]
    residual = math.sqrt(float(total[1] / total[0]))
    found = f"W differs from L̃Bσ(A)ᵀ by {residual:.2g} of its norm"
    critical = Hypothesis.of(NAMES[2], residual <= CRITICAL, found)
    # No path, and no decomposition of its kernels, where nothing is going to be said.
    return Path(trace, Bs, residual) if critical.status == "met" else None, [leak, given, critical]


@dataclass(frozen=True)
class Place:
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
    identity: str,
    places: Sequence[Place],
    hypotheses: Sequence[Hypothesis],
    details: Mapping[str, Sequence[float]],
) -> Verdict:
    """Both sides equal at every place, up to its own allowance; where this exceeds ``JUDGED`` the place is left out.

    Of a short step with any weights the residual of the whole path says nothing.
    """
    kept = [place for place in places if not place.residual > JUDGED * place.size]
    if len(kept) < len(places):
        missing = f"too far off at {len(places) - len(kept)} of {len(places)} places to be judged there"
        hypotheses = [
            Hypothesis.of(h.name, bool(kept) or None, f"{h.found}; {missing}") if h.name == NAMES[2] else h
            for h in hypotheses
        ]
    return compare(
        identity,
        [place.lhs for place in kept],
        "=",
        [place.rhs for place in kept],
        tolerance=[(place.rounding + place.residual) / place.size for place in kept],
        hypotheses=hypotheses,
        where=lambda i: kept[i].name,
        details=details,
    )


def first_order(identity: str, what: str, family: Sequence[Subject], errors: Sequence[float]) -> Verdict | None:
    """Whether ``errors`` vanish like 1/L over networks of L steps; None with fewer than three that are not rounding."""
    pairs = [(float(one.net.layers), error) for one, error in zip(family, errors) if error > 1e-12]
    if len({layers for layers, _ in pairs}) < 3:
        return None
    rate = fit_exponent(*zip(*pairs))
    details = {f"{what}, by L": [error for _, error in pairs], f"exponent of {what}": rate.numbers}
    met = [Hypothesis.of("family", True)]
    return compare(
        identity,
        rate.value,
        "≤",
        -1.0 + ORDER_ROOM,
        tolerance=0.0,
        hypotheses=met,
        where=f"exponent in L of {what}",
        details=details,
    )


def family_of(subject: Subject) -> list[Subject]:
    """``known["family"]``: the same task on more and more steps; empty if not given."""
    return list(subject.known.get("family", ()))
