"""Functions whose representation cost is known: linear maps (bottleneck2023 §3, Thm 3(3))."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.claims.base import Hypothesis, Subject, Verdict, claim, compare, not_applicable
from isthmus.claims.samples import gaussian_inputs
from isthmus.claims.second_corrections import CONFIDENCE, DEPTHS
from isthmus.claims.two_functions import TRUSTED, is_linear, nonzero_values, product
from isthmus.constructions import linear_network, positive_linear_network
from isthmus.linalg import rank_tolerance, svd
from isthmus.measures import diagonal_expansion, parameter_norms
from isthmus.measures.positivity import is_completely_positive
from isthmus.measures.representation_cost import Estimate, estimate_costs
from isthmus.networks import FullyConnected

#: Samples up to which an isometry into an orthant is searched for, and among which two at more than 90° are.
SEARCHED, PAIRED = 40, 2000
#: Width up to which networks of hundreds of layers are written down, and s_1/s_k up to which 1/L is small for them.
WIDEST, SPREAD = 200, 50.0


@torch.no_grad()
def linear_map(subject: Subject) -> tuple[Tensor | None, Hypothesis]:
    """The matrix of f on the span of the samples, if f is linear there."""
    name = "f linear on Ω"
    if is_linear(subject.net):
        return product(subject.net)[0], Hypothesis.of(name, True, "a linear network")
    X, outputs = subject.X, subject.trace().outputs
    U, s, Vh = svd(X)
    kept = s > rank_tolerance(s, (len(X), X.shape[1]))
    if len(X) <= int(kept.sum()):
        return None, Hypothesis.of(name, None, f"{len(X)} samples span {int(kept.sum())} dimensions: too few to tell")
    A = ((Vh[kept].mT / s[kept]) @ (U[:, kept].mT @ outputs)).mT
    left = float((X @ A.mT - outputs).norm() / outputs.norm().clamp_min(1e-300))
    return A if left <= 1e-9 else None, Hypothesis.of(name, left <= 1e-9, f"no matrix gives a share {left:.2g} of f")


@dataclass(frozen=True, eq=False)
class Embedding:
    """An isometry of the span of some points into an orthant: O (m, d), with Oz ≥ 0 for each of them.

    ``exists`` is None where none was found and none excluded.
    """

    O: Tensor | None
    exists: bool | None
    found: str


def into_an_orthant(Z: Tensor) -> Embedding:
    """Are the rows of Z (N, d) completely positive?"""
    _, s, Vh = svd(Z)
    Q = Vh[s > rank_tolerance(s, (len(Z), Z.shape[1]))]
    if float(Z.min()) >= -1e-12 * float(Z.abs().max()):
        return Embedding(Q.mT @ Q, True, "in the orthant as they are")
    K = Z[:PAIRED] @ Z[:PAIRED].mT
    if float(K.min()) < -1e-12 * float(K.diagonal().max()):
        return Embedding(None, False, "two of them at more than 90°")
    if len(Z) > SEARCHED:
        return Embedding(None, None, f"more than {SEARCHED} samples: not searched")
    answer = is_completely_positive(K, restarts=3)
    if answer.factor is None:
        return Embedding(None, False if answer.verdict == "no" else None, answer.reason)
    # The nearest exact isometry: the factor holds to 1e-9 only.
    left, _, right = torch.linalg.svd(answer.factor @ torch.linalg.pinv(Z.mT) @ Q.mT, full_matrices=False)
    return Embedding(left @ right @ Q, True, answer.reason)


def positive_map() -> Subject:
    """A ReLU network of a map with non-negative entries on the positive orthant."""
    A = torch.tensor([[1.6, 0.3, 0.0], [0.2, 0.7, 0.1], [0.0, 0.4, 1.2], [0.5, 0.0, 0.3]], dtype=torch.float64)
    return Subject(positive_linear_network(A, 6).network, gaussian_inputs(30, 3, 41).abs())


_POSITIVE = "PΩ and AΩ completely positive, k-dimensional"


@claim(
    "C-bn-3",
    "R1(x ↦ Ax; Ω) = 2 log|A|₊, and R2(x ↦ Ax; Ω) = ½‖log₊ AᵀA‖² where AᵖΩ is completely positive for every p",
    paper="bottleneck2023",
    where="§3, Thm 3(3), Prop. 4(3)",
    hypotheses=("f linear on Ω", _POSITIVE),
    sample=positive_map,
    erratum="Thm 3(3) prints the path of kernels reversed; it must start at the input, (1−ℓ/L)P + (ℓ/L)AᵀA.",
    rate=True,
)
def costs_of_linear_maps(subject: Subject) -> Verdict:
    """R1 = 2 log|A|_+ (and R2 = ½‖log_+AᵀA‖²), fitted over depths to the norms of networks that compute Ax on Ω.

    No network has less (C-bn-1). The networks are the completely positive path for R1, and for R2 the least linear
    network, which σ leaves alone where each right singular vector has one sign on Ω. Slope 1 has no hypothesis.
    """
    A, linear = linear_map(subject)
    if A is None:
        return not_applicable("C-bn-3", "≈", [linear, Hypothesis.of(_POSITIVE, None)])
    if max(A.shape) > WIDEST:
        wide = f"wider than {WIDEST}: networks of {DEPTHS[-1]} layers are not written down"
        return not_applicable("C-bn-3", "≈", [linear, Hypothesis.of(_POSITIVE, None)], wide)
    _, s, Vh = svd(A)
    values = nonzero_values(A, float(rank_tolerance(s, (len(A), A.shape[1]))))
    k = 0 if values is None else len(values)
    if values is None or k == 0:
        return not_applicable("C-bn-3", "≈", [linear, Hypothesis.of(_POSITIVE, None, "rank 0, or not clear")])
    positive, families = _families(subject, A, Vh[:k])
    spread = float(values[0] / values[-1])
    if positive.status != "met" or spread > SPREAD:
        far = f"singular values spread by {spread:.3g}: no fit at depths up to {DEPTHS[-1]}"
        return not_applicable("C-bn-3", "≈", [linear, positive], "" if positive.status != "met" else far)
    exact, verdicts = diagonal_expansion(values), []
    for name, build, with_R2 in families:
        if not _computes(build(DEPTHS[0]), A, subject.X):
            return not_applicable("C-bn-3", "≈", [linear, positive], f"the {name} does not compute Ax")
        norms = [parameter_norms(build(depth)).total for depth in DEPTHS]
        fit = estimate_costs(DEPTHS, norms, confidence=CONFIDENCE)
        terms = [("R1", fit.R1, exact.R1), ("R2", fit.R2, exact.R2)][: 2 if with_R2 else 1]
        for term, found, wanted in terms:
            verdicts.append(near("C-bn-3", found, wanted, [linear, positive], f"{term}, {name}"))
    return min(verdicts, key=lambda v: v.slack + v.tolerance)


def near(identity: str, found: Estimate, wanted: float, hypotheses: list[Hypothesis], where: str) -> Verdict:
    """Whether a fitted number has the wanted one in its interval."""
    scale = max(abs(found.value), abs(wanted), 1e-300)
    reach = (found.high - found.low) / 2 + TRUSTED
    details = {"fitted, low, high": [found.value, found.low, found.high]}
    return compare(
        identity,
        found.value,
        "≈",
        wanted,
        tolerance=reach / scale,
        hypotheses=hypotheses,
        where=where,
        details=details,
    )


def _families(
    subject: Subject, A: Tensor, Vh: Tensor
) -> tuple[Hypothesis, list[tuple[str, Callable[[int], FullyConnected], bool]]]:
    """Networks of Ax by depth: name, builder, whether they attain R2."""
    slope = subject.net.slope
    if slope == 1.0:
        build = [("linear", lambda depth: linear_network(A, depth).network, True)]
        return Hypothesis.of(_POSITIVE, True, "not needed in linear networks"), build
    inputs = subject.X @ Vh.mT @ Vh
    if int(torch.linalg.matrix_rank(inputs)) < len(Vh):
        return Hypothesis.of(_POSITIVE, False, f"samples do not span {len(Vh)} dimensions"), []
    before, after = into_an_orthant(inputs), into_an_orthant(subject.X @ A.mT)
    if before.O is None or after.O is None:
        known = False if False in (before.exists, after.exists) else None
        return Hypothesis.of(_POSITIVE, known, f"PΩ: {before.found}; AΩ: {after.found}"), []

    # The path goes straight in kernels, which suits singular values around 1; all layers share the rest.
    size = float(torch.linalg.svdvals(A)[: len(Vh)].log().mean().exp())

    def path(depth: int) -> FullyConnected:
        made = positive_linear_network(A / size, depth, O_in=before.O, O_out=after.O)
        return FullyConnected.from_weights([size ** (1 / depth) * W for W in made.network.Ws], slope=slope)

    families: list[tuple[str, Callable[[int], FullyConnected], bool]] = [("positive path", path, False)]
    coordinates = subject.X @ Vh.mT
    signs = coordinates.sum(0).sign()
    if float((coordinates * signs).min()) >= -1e-12 * float(coordinates.abs().max()):
        flip = signs.diag()

        def least(depth: int) -> FullyConnected:
            first, *middle, last = linear_network(A, depth).network.Ws
            return FullyConnected.from_weights([flip @ first, *middle, last @ flip], slope=slope)

        families.append(("least network", least, True))
    return Hypothesis.of(_POSITIVE, True, f"PΩ: {before.found}; AΩ: {after.found}"), families


@torch.no_grad()
def _computes(net: FullyConnected, A: Tensor, X: Tensor) -> bool:
    wanted = X @ A.mT
    return float((net(X) - wanted).norm()) <= 1e-6 * float(wanted.norm())
