"""The cost of identity of representations: its bounds, its stable minima, and the path on which it stays the same."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from isthmus.claims._base import UNMET, Check, Hypothesis, Subject, claim
from isthmus.claims._evidence import gaussian_inputs
from isthmus.constructions._paths import constant_identity_path
from isthmus.linalg import numerical_rank
from isthmus.measures._identity_cost import KernelNorm, cost_of_identity, fewer_columns, identity_cost_bounds
from isthmus.networks import LeakyResNet
from isthmus.trace import activate, with_ones


def standing_still(A: Tensor) -> Subject:
    """A network of one step without leak or weights: both its representations are A, (w, N)."""
    W = torch.zeros(len(A), len(A) + 1, dtype=torch.float64)
    return Subject(LeakyResNet.from_weights([W], [1.0], effective_depth=0.0), A.mT.contiguous())


#: Largest condition number of σ̄(A) at which the cost is judged.
CONDITION = 1e6

#: Relative derivative of the cost by scale below which a representation is critical.
CRITICAL_SCALE = 1e-8

#: Largest w and N of the searches for descent.
LARGEST = 64

#: Positions of a path that are looked at.
POSITIONS = 5


def _representations(subject: Subject) -> list[tuple[int, Tensor]]:
    trace = subject.net.trace(subject.X)
    return [(ell, trace.A(ell)) for ell in range(trace.depth + 1)]


def _bare_cost(norm: KernelNorm, A: Tensor) -> float:
    """‖A‖²_K̄, without bias and without γ."""
    return norm.square(A)


def signed_representation() -> Subject:
    """A representation of 12 neurons on 3 samples, of both signs, that its activations can rebuild."""
    return standing_still(gaussian_inputs(12, 3, 1))


@claim(
    "C-ham-1",
    "‖A‖²_K̄ ≥ ‖A‖_*²/‖A‖² ≥ ‖A‖²/‖A‖_op² for the cost of identity without bias, and ‖A‖²_K̄ = Rank A if A ≥ 0",
    paper="hamiltonian2024",
    where="Prop. 1",
    hypotheses=("|slope| ≤ 1", "Im Aᵀ ⊂ Im σ̄(A)ᵀ"),
    sample=signed_representation,
    relation="≥",
    erratum="Printed next to costs with bias and with γ, for which the bounds are wrong.",
    about=LeakyResNet.kind,
)
def identity_cost_and_dimension(check: Check, subject: Subject) -> None:
    """‖A‖²_K̄ ≥ ‖A‖_*²/‖A‖² ≥ ‖A‖²/‖A‖_op² at every representation of the path that its activations can rebuild.

    From A = (Aσ̄(A)⁺)σ̄(A): ‖A‖_* ≤ ‖Aσ̄(A)⁺‖‖σ̄(A)‖, and ‖σ̄(A)‖ ≤ ‖A‖ for |slope| ≤ 1.
    """
    slope, some, said = subject.net.slope, subject, f"all {len(subject.X)} rows"
    found = _costs(some)
    # The theorem is about any samples, and fewer of them are rebuilt at more positions.
    while not found.costs and len(some.X) > 2:
        some, said = subject.drawn(len(some.X) // 2)
        found = _costs(some)
    check.assume("|slope| ≤ 1", abs(slope) <= 1, f"slope {slope:g}")
    check.assume("Im Aᵀ ⊂ Im σ̄(A)ᵀ", bool(found.costs), f"at {len(found.names)} positions, {said}")
    check.compare(found.costs, "≥", found.dimensions, tolerance=1e-9, part="‖A‖²_K̄ ≥ ‖A‖_*²/‖A‖²", where=found.names)
    if found.ranks:
        check.each(found.ranks, "=", tolerance=1e-9, part="the rank, where A ≥ 0")
    part = "‖A‖_*²/‖A‖² ≥ ‖A‖²/‖A‖_op²"
    check.compare(found.dimensions, "≥", found.least, tolerance=1e-9, part=part, where=found.names)


@dataclass(frozen=True)
class _Costs:
    """The cost of identity without bias and its two bounds where it is finite, and (cost, rank, name) where A ≥ 0."""

    names: list[str] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    dimensions: list[float] = field(default_factory=list)
    least: list[float] = field(default_factory=list)
    ranks: list[tuple[float, float, str]] = field(default_factory=list)


def _costs(subject: Subject) -> _Costs:
    found = _Costs()
    for ell, A in _representations(subject):
        S, R = fewer_columns([activate(A, subject.net.slope), A]).split([len(A), len(A)])
        norm = KernelNorm(S)
        r = norm.rank
        trusted = r > 0 and float(norm.s[0]) <= CONDITION * float(norm.s[r - 1])
        cost = _bare_cost(norm, R) if trusted else math.inf
        if not math.isfinite(cost):
            continue
        dimension, least = identity_cost_bounds(R)
        found.names.append(f"position {ell}")
        found.costs.append(cost)
        found.dimensions.append(dimension)
        found.least.append(least)
        if float(A.min()) >= 0.0:
            found.ranks.append((cost, float(numerical_rank(A)), f"position {ell}"))
    return found


STABLE = ("critical in scale", "no descent by deformation found", "no descent by an added neuron found")


def stable_minimum() -> Subject:
    """A non-negative representation of rank 2 whose activations do not span the constants: a stable minimum."""
    A = torch.tensor([[1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 1.0, 3.0], [0.5, 1.0, 0.5, 1.5]], dtype=torch.float64)
    return standing_still(A)


@claim(
    "C-ham-2",
    "Local minima of ‖A‖²_K (with bias) that stay so with a zero neuron appended are non-negative, and there "
    "‖A‖²_K = ‖A‖²_K̄ = Rank A",
    paper="hamiltonian2024",
    where="Prop. 2 and Prop. 6",
    hypotheses=STABLE,
    sample=stable_minimum,
    about=LeakyResNet.kind,
)
def stable_minima(check: Check, subject: Subject) -> None:
    """A ≥ 0 and ‖A‖²_K = ‖A‖²_K̄ = Rank A at representations that are stable minima, as far as a search can tell.

    That a representation is a minimum is evidence and no proof: nothing lower was found among deformations of A and
    neurons z appended to it. For ReLU, up to 64 neurons and samples.
    """
    if subject.net.slope != 0.0:
        check.not_applicable("needs ReLU (slope 0)", cause="network")
    places = []
    shown: list[Hypothesis] | None = None
    nearest, best = [Hypothesis.of(name, None) for name in STABLE], (-2, 0.0)
    for ell, A in _representations(subject):
        hypotheses, order = _stability(A)
        if all(h.status == "met" for h in hypotheses):
            with_bias, rank = cost_of_identity(A), float(numerical_rank(A))
            positive, whole = float(A.clamp_min(0.0).square().sum()), float(A.square().sum())
            places.append((with_bias, rank, f"position {ell}: with bias"))
            places.append((cost_of_identity(A, bias=0.0), rank, f"position {ell}: without bias"))
            places.append((positive, whole, f"position {ell}: ‖σ̄(A)‖² = ‖A‖²"))
            shown = shown or hypotheses
        elif order > best:
            best = order
            nearest = [Hypothesis(h.name, h.status, h.found and f"{h.found} at position {ell}") for h in hypotheses]
    check.add(*(shown or nearest))
    if not shown:
        check.not_applicable(cause="network" if any(h.status == UNMET for h in nearest) else "numerical")
    check.each(places, "=", tolerance=1e-8)


def _stability(A: Tensor) -> tuple[list[Hypothesis], tuple[int, float]]:
    """The hypotheses, the cheap ones first, and how far down the list they are met."""
    unknown = [Hypothesis.of(name, None) for name in STABLE]
    if max(A.shape) > LARGEST:
        unknown[0] = Hypothesis.of(STABLE[0], None, f"larger than {LARGEST} × {LARGEST}")
        return unknown, (-1, 0.0)
    slope = scale_derivative(A)
    unknown[0] = Hypothesis.of(STABLE[0], slope <= CRITICAL_SCALE, f"∂log‖A‖²_K/∂log s = {slope:.2g}")
    if slope > CRITICAL_SCALE:
        return unknown, (0, -slope)
    before = cost_of_identity(A)
    after = deformed(A)
    # Rounding of a cost after a deformation of 1e-3: its kernel may be that ill conditioned.
    unknown[1] = Hypothesis.of(STABLE[1], after >= before * (1 - 1e-7), f"least {after:.8g}, here {before:.8g}")
    if unknown[1].status != "met":
        return unknown, (1, 0.0)
    gain, _ = neuron_descent(A)
    unknown[2] = Hypothesis.of(STABLE[2], gain >= -1e-9, f"least second-order change {gain:.2g}")
    return unknown, (2, gain)


def many_neurons() -> Subject:
    """20 neurons on 3 samples, more than N(N+1) = 12, of both signs."""
    return standing_still(gaussian_inputs(20, 3, 7))


@claim(
    "C-ham-3",
    "For w > N(N+1) and A with a negative entry, rows √((1−t) + t·a_i)·A_i keep the cost of identity, and at t = 1, "
    "with at most N(N+1) neurons left, there is descent",
    paper="hamiltonian2024",
    where="Prop. 3 and Prop. 7",
    hypotheses=("w > N(N+1)", "a negative entry"),
    sample=many_neurons,
    erratum="Printed for local minima, whose end is then a saddle; the path and the descent need no minimum.",
    about=LeakyResNet.kind,
)
def constant_cost_path(check: Check, subject: Subject) -> None:
    """‖A_t‖²_K = ‖Â‖²_K for t ∈ [0, 1], with and without bias, and a lower cost next to A_1: it is no local minimum.

    Where the cost without bias is infinite only that with bias is judged.
    """
    if subject.net.slope != 0.0:
        check.not_applicable("needs ReLU (slope 0)", cause="network")
    # As many samples as the width allows: it is about any.
    fewer = (math.isqrt(4 * subject.net.width - 3) - 1) // 2
    subject, rows = subject.drawn(max(1, fewer))
    found = _representations(subject)
    w, N = found[0][1].shape
    check.assume("w > N(N+1)", w > N * (N + 1), f"w = {w}, N(N+1) = {N * (N + 1)}, {rows}")
    signed = [(ell, A) for ell, A in found if float(A.min()) < 0.0]
    check.assume("a negative entry", bool(signed), f"at {len(signed)} of {len(found)} positions")
    check.require()
    negative = [(ell, A) for ell, A in signed if math.isfinite(cost_of_identity(A))]
    if not negative:
        check.not_applicable("the cost of identity is infinite", cause="network")
    places, lower, start = [], [], []
    for ell, A in negative[:: -(-len(negative) // POSITIONS)]:
        path = constant_identity_path(A)
        places.append((float(max(path.kept - N * (N + 1), 0)), 0.0, f"position {ell}: neurons beyond N(N+1)"))
        for bias in (1.0, 0.0):
            cost = cost_of_identity(A, bias=bias)
            if math.isinf(cost):
                continue
            for t in (0.25, 0.5, 0.75, 1.0):
                there = cost_of_identity(path.at(t), bias=bias)
                places.append((there, cost, f"position {ell}: t = {t}, bias {bias:g}"))
        start.append(cost_of_identity(A))
        lower.append(lower_neighbour(path.at(1.0)))
    check.each(places, "=", tolerance=1e-8, part="the path of constant cost")
    check.compare(
        lower,
        "≤",
        [first * (1 - 1e-9) for first in start],
        tolerance=0.0,
        part="descent from its end",
        details={"cost at the start": start, "cost next to the end": lower},
    )


def lower_neighbour(A: Tensor) -> float:
    """The least cost of identity near A that has a zero row: a shorter A, or with the row εz, z = K̄_i."""
    size, dead = float(A.norm()), int((A != 0).any(1).logical_not().nonzero()[0])
    S = activate(A, 0.0)
    costs = [cost_of_identity((1.0 - step) * A) for step in (1e-3, 1e-2, 1e-1)]
    for z in S.mT @ S:
        for step in (1e-3, 1e-2, 1e-1):
            for shrink in (0.0, step):
                other = (1.0 - shrink) * A
                other[dead] = step * size * z / z.norm().clamp_min(1e-300)
                costs.append(cost_of_identity(other))
    return min(costs)


# ---- Looking for representations of lower cost of identity: by scale, by deformation, by one more neuron


#: Random directions tried.
DRAWS = 64


def _inverse(A: Tensor) -> tuple[Tensor, Tensor]:
    """K⁺ and the projection to Im K, (N, N), for K with bias."""
    norm = KernelNorm(with_ones(activate(A, 0.0), 1.0))
    V = norm.Vh[: norm.rank].mT
    return (V / norm.s[: norm.rank] ** 2) @ V.mT, V @ V.mT


def scale_derivative(A: Tensor) -> float:
    """∂ log‖sA‖²_K/∂ log s at s = 1: 2‖AK⁺1‖²/‖A‖²_K; ∞ where the cost is."""
    cost = cost_of_identity(A)
    if cost == 0.0:
        return 0.0
    inverse, _ = _inverse(A)
    return 2.0 * float((A @ inverse.sum(1)).square().sum()) / cost if cost < float("inf") else float("inf")


def neuron_descent(A: Tensor) -> tuple[float, Tensor]:
    """The least zᵀK⁺z − σ̄(z)ᵀK⁺AᵀAK⁺σ̄(z) over tried z ∈ Im K of zᵀK⁺z = 1, and that z: ε² times it is the change.

    Where σ̄(z) leaves the image of K a new direction opens and only the first term is left. Tried are the columns of K̄
    (by which the paper proves non-negativity) with both signs, those of the projection to Im K, and random ones.
    """
    inverse, image = _inverse(A)
    S = activate(A, 0.0)
    bare = S.mT @ S
    tried = torch.cat([bare, -bare, image, -image, gaussian_inputs(DRAWS, A.shape[1], 5) @ image])
    tried = tried @ image
    sizes = (tried @ inverse * tried).sum(1)
    tried = tried[sizes > 1e-20] / sizes[sizes > 1e-20].sqrt()[:, None]
    active = activate(tried, 0.0)
    outside = (active - active @ image).norm(dim=1) > 1e-9 * active.norm(dim=1).clamp_min(1e-300)
    gained = (A @ inverse @ active.mT).square().sum(0)
    change = 1.0 - torch.where(outside, torch.zeros_like(gained), gained)
    best = int(change.argmin())
    return float(change[best]), tried[best]


def deformed(A: Tensor) -> float:
    """The least cost of identity among deformations A + εE of two sizes.

    E: each entry alone, random matrices with rows in Im K and without, and the negative part of A.
    """
    _, image = _inverse(A)
    w, N = A.shape
    size = float(A.norm())
    draws = gaussian_inputs(DRAWS * w, N, 6).reshape(DRAWS, w, N)
    alone = torch.eye(w * N, dtype=torch.float64).reshape(w * N, w, N)[:: max(1, w * N // DRAWS)]
    directions = [*draws, *(draws @ image), *alone, *(-alone), *(alone @ image), -A.clamp_max(0.0), -A]
    least = float("inf")
    for E in directions:
        length = float(E.norm())
        if length == 0.0:
            continue
        for step in (1e-2, 1e-3):
            least = min(least, cost_of_identity(A + step * size / length * E))
    return least
