"""Bounds that every network satisfies: what its norm says about its Jacobians (rank2023 §3, bottleneck2023 §3)."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.claims.base import Hypothesis, Subject, Verdict, claim, compare, not_applicable, rounding
from isthmus.claims.points import Points, points_of
from isthmus.claims.samples import leaky_random_net, relu_random_net
from isthmus.measures import parameter_norms


def _power_error(found: Points, power: float) -> float:
    """Largest relative error of Σ s^power that errors of the values can make."""
    kept = found.s > 0
    relative = torch.where(kept, found.error[:, None] / found.s.clamp_min(1e-300), torch.zeros_like(found.s))
    return float(power * relative.max()) if kept.any() else 0.0


def _squares(subject: Subject) -> tuple[float, int]:
    """Σ‖W_ℓ‖² without biases, and L."""
    norms = parameter_norms(subject.net)
    return float(norms.weights.sum()), len(norms.weights)


@claim(
    "C-rank-1",
    "Σ s_i(Jf(x))^(2/L) ≤ ‖W‖²/L at every differentiable point x of a network of depth L",
    paper="rank2023",
    where="Prop. 3 and Prop. 7",
    hypotheses=("|slope| ≤ 1", "x off the kinks"),
    sample=leaky_random_net,
)
def schatten_bound(subject: Subject) -> Verdict:
    """Σ s_i(Jf(x))^{2/L} ≤ ‖W‖²/L: the Schatten quasi-norm of the Jacobian is bounded by the norm of the weights."""
    found = points_of(subject)
    total, L = _squares(subject)
    hypotheses = [found.slope_hypothesis, found.kink_hypothesis]
    sums = found.s.pow(2 / L).where(found.s > 0, torch.zeros_like(found.s)).sum(1)
    tolerance = rounding(subject.net) + _power_error(found, 2 / L)
    return compare(
        "C-rank-1",
        sums,
        "≤",
        total / L,
        tolerance=tolerance,
        hypotheses=hypotheses,
        where=found.name,
        details={"Σ s^(2/L) by sample": sums.tolist()},
    )


@claim(
    "C-rank-5",
    "s_k(Jf(x)) ≤ (‖W‖²/(kL))^(L/2) for every k",
    paper="rank2023",
    where="after Prop. 3",
    hypotheses=("|slope| ≤ 1", "x off the kinks"),
    sample=relu_random_net,
)
def singular_value_bound(subject: Subject) -> Verdict:
    """s_k(Jf(x))^{2/L} ≤ ‖W‖²/(kL): the same bound value by value, in this form so that powers do not overflow."""
    found = points_of(subject)
    total, L = _squares(subject)
    k = torch.arange(1, found.s.shape[1] + 1, dtype=torch.float64)
    lhs = found.s.pow(2 / L).where(found.s > 0, torch.zeros_like(found.s))
    rhs = (total / (L * k)).expand_as(lhs)
    width = lhs.shape[1]
    return compare(
        "C-rank-5",
        lhs,
        "≤",
        rhs,
        tolerance=rounding(subject.net) + _power_error(found, 2 / L),
        hypotheses=[found.slope_hypothesis, found.kink_hypothesis],
        where=lambda i: f"{found.name(i // width)}, k = {i % width + 1}",
    )


def _ranks_to_try(found: Points) -> list[int]:
    """1, 2, 4, … and the full rank of the Jacobian at the points: the bounds hold for every k up to it."""
    most = int(found.ranks.max()) if len(found.ranks) else 0
    tries = {most} | {2**j for j in range(20) if 2**j <= most}
    return sorted(k for k in tries if k > 0)


def log_products(s: Tensor) -> Tensor:
    """log(s_1 … s_k) for k = 1, 2, …, cumulated along the last axis; −∞ beyond the rank."""
    return s.log().cumsum(-1)


@claim(
    "C-bn-1",
    "‖θ‖² ≥ kL + 2 log(s_1(Jf(x)) … s_k(Jf(x))) for every k up to the rank of the Jacobian",
    paper="bottleneck2023",
    where="Thm 3 and Thm 11, first bound",
    hypotheses=("|slope| ≤ 1", "x off the kinks", "k ≤ Rank Jf(x)"),
    sample=leaky_random_net,
)
def log_determinant_bound(subject: Subject) -> Verdict:
    """‖θ‖² − kL ≥ 2 log(s_1 … s_k): regularity is paid for on top of k per layer."""
    found = points_of(subject)
    norms = parameter_norms(subject.net)
    L, total = len(norms.weights), norms.total
    asked = subject.known.get("k")
    ranks = found.ranks
    enough = Hypothesis.of("k ≤ Rank Jf(x)", _reaches(ranks, asked), f"ranks {_span(ranks)}, k {asked or 'every'}")
    hypotheses = [found.slope_hypothesis, found.kink_hypothesis, enough]
    logs = log_products(found.s)
    k = torch.arange(1, logs.shape[1] + 1, dtype=torch.float64)
    rhs = k * L + 2 * logs
    kept = torch.isfinite(rhs) if asked is None else torch.isfinite(rhs) & (k == asked)
    rows, columns = kept.nonzero(as_tuple=True)
    return compare(
        "C-bn-1",
        total,
        "≥",
        rhs[kept],
        tolerance=rounding(subject.net) + found.log_error / max(total, 1e-300),
        hypotheses=hypotheses,
        where=lambda i: f"{found.name(int(rows[i]))}, k = {int(columns[i]) + 1}",
    )


def _reaches(ranks: Tensor, k: int | None) -> bool:
    least = 1 if k is None else k
    return bool(len(ranks)) and bool((ranks >= least).any())


def _span(ranks: Tensor) -> str:
    return f"{int(ranks.min())} to {int(ranks.max())}" if len(ranks) else "none"


@claim(
    "C-bn-6",
    "Σ(‖W_ℓ − U_ℓV_ℓᵀ‖² + ‖b_ℓ‖²) ≤ ‖θ‖² − kL − 2 log(s_1 … s_k) with U_ℓ, V_ℓ of k orthonormal columns",
    paper="bottleneck2023",
    where="Thm 6 and Thm 15",
    hypotheses=("|slope| ≤ 1", "x off the kinks", "k ≤ Rank Jf(x)"),
    sample=relu_random_net,
)
def weights_near_isometries(subject: Subject) -> Verdict:
    """Most weight matrices are near matrices of k singular values 1, when ‖θ‖² is near its bound.

    With E_0 the span of the top k right singular vectors of Jf(x), E_ℓ = D_ℓW_ℓE_{ℓ-1}, and U_ℓS_ℓV_ℓᵀ the SVD of
    W_ℓP_{E_{ℓ-1}}. The verdict's details have the distance of every layer.
    """
    found = points_of(subject)
    norms = parameter_norms(subject.net)
    L, total = len(norms.weights), norms.total
    asked = subject.known.get("k")
    reach = Hypothesis.of("k ≤ Rank Jf(x)", _reaches(found.ranks, asked), f"ranks {_span(found.ranks)}")
    hypotheses = [found.slope_hypothesis, found.kink_hypothesis, reach]
    lhs, names, pictures = [], [], []
    for row in range(len(found.index) if reach.status == "met" else 0):
        for k in _ranks_to_try(found) if asked is None else [asked]:
            if k > int(found.ranks[row]):
                continue
            distances = layer_distances(found, row, k, subject.known.get("Ws"))
            logs = float(log_products(found.s[row])[k - 1])
            lhs.append(float(distances.sum() + norms.biases.sum()) + k * L + 2 * logs)
            names.append(f"{found.name(row)}, k = {k}")
            pictures.append(distances)
    if reach.status == "met" and not lhs:
        return not_applicable("C-bn-6", "≤", hypotheses, "no point has a Jacobian of that rank")
    verdict = compare(
        "C-bn-6",
        lhs,
        "≤",
        total,
        tolerance=rounding(subject.net) + found.log_error / max(total, 1e-300),
        hypotheses=hypotheses,
        where=lambda i: names[i],
    )
    if verdict.status == "not applicable":
        return verdict
    tightest = names.index(verdict.where)
    return Verdict(**{**vars(verdict), "details": {"‖W_ℓ − U_ℓV_ℓᵀ‖² by layer": pictures[tightest].tolist()}})


@torch.no_grad()
def layer_distances(found: Points, row: int, k: int, Ws: tuple[Tensor, ...] | None = None) -> Tensor:
    """‖W_ℓ − U_ℓV_ℓᵀ‖² for ℓ = 1 … L at one point, (L,)."""
    weights = found.trace.Ws if Ws is None else Ws
    Q = torch.linalg.svd(found.J[row], full_matrices=False).Vh[:k].mT
    distances = []
    for ell, W in enumerate(weights, start=1):
        U, S, Rh = torch.linalg.svd(W @ Q, full_matrices=False)
        # ‖W − UVᵀ‖² = ‖W‖² − 2 Tr(UᵀWV) + k with V = QR, and UᵀWQR = S.
        distances.append(W.square().sum() - 2 * S.sum() + k)
        if ell < len(weights):
            Q = torch.linalg.qr(found.trace.derivative(ell)[row][:, None] * U).Q
    return torch.stack(distances).clamp_min(0)
