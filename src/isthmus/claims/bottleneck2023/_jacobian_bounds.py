"""What the Jacobian at a point says about the norm, and about the distance of weights from isometries."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from isthmus.claims._base import Check, Subject, claim, rounding
from isthmus.claims._evidence import Points, leaky_random_net, points_of, relu_random_net
from isthmus.measures import parameter_norms


def ranks_to_try(found: Points) -> list[int]:
    """1, 2, 4, … and the full rank of the Jacobian at the points: the bounds hold for every k up to it."""
    most = int(found.ranks.max()) if len(found.ranks) else 0
    tries = {most} | {2**j for j in range(20) if 2**j <= most}
    return sorted(k for k in tries if k > 0)


@claim(
    "C-bn-1",
    "‖θ‖² ≥ kL + 2 log(s_1(Jf(x)) … s_k(Jf(x))) for every k up to the rank of the Jacobian",
    paper="bottleneck2023",
    where="Thm 3 and Thm 11, first bound",
    hypotheses=("|slope| ≤ 1", "x off the kinks", "k ≤ Rank Jf(x)"),
    sample=leaky_random_net,
    relation="≥",
)
def log_determinant_bound(check: Check, subject: Subject) -> None:
    """‖θ‖² − kL ≥ 2 log(s_1 … s_k): regularity is paid for on top of k per layer."""
    found = points_of(subject)
    norms = parameter_norms(subject.net)
    L, total = len(norms.weights), norms.total
    asked = subject.known.get("k")
    ranks = found.ranks
    check.add(found.slope_hypothesis, found.kink_hypothesis)
    check.assume("k ≤ Rank Jf(x)", _reaches(ranks, asked), f"ranks {_span(ranks)}, k {asked or 'every'}")
    logs = found.log_products
    k = torch.arange(1, logs.shape[1] + 1, dtype=torch.float64)
    rhs = k * L + 2 * logs
    kept = torch.isfinite(rhs) if asked is None else torch.isfinite(rhs) & (k == asked)
    rows, columns = kept.nonzero(as_tuple=True)
    check.compare(
        total,
        "≥",
        rhs[kept],
        tolerance=rounding(subject.net) + found.log_error / max(total, 1e-300),
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
    relation="≤",
)
def weights_near_isometries(check: Check, subject: Subject) -> None:
    """Most weight matrices are near matrices of k singular values 1, when ‖θ‖² is near its bound.

    With E_0 the span of the top k right singular vectors of Jf(x), E_ℓ = D_ℓW_ℓE_{ℓ-1}, and U_ℓS_ℓV_ℓᵀ the SVD of
    W_ℓP_{E_{ℓ-1}}. The verdict's details have the distance of every layer.
    """
    found = points_of(subject)
    norms = parameter_norms(subject.net)
    L, total = len(norms.weights), norms.total
    asked = subject.known.get("k")
    check.add(found.slope_hypothesis, found.kink_hypothesis)
    reached = check.assume("k ≤ Rank Jf(x)", _reaches(found.ranks, asked), f"ranks {_span(found.ranks)}")
    lhs, names, pictures = [], [], []
    for row in range(len(found.index) if reached else 0):
        for k in ranks_to_try(found) if asked is None else [asked]:
            if k > int(found.ranks[row]):
                continue
            distances = layer_distances(found, row, k, subject.known.get("Ws"))
            logs = float(found.log_products[row, k - 1])
            lhs.append(float(distances.sum() + norms.biases.sum()) + k * L + 2 * logs)
            names.append(f"{found.name(row)}, k = {k}")
            pictures.append(distances)
    if reached and not lhs:
        check.not_applicable("no point has a Jacobian of that rank")
    check.compare(
        lhs,
        "≤",
        total,
        tolerance=rounding(subject.net) + found.log_error / max(total, 1e-300),
        where=names,
        details=lambda i: {"‖W_ℓ − U_ℓV_ℓᵀ‖² by layer": pictures[i].tolist()},
    )


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


def _near_one_family(check: Check, subject: Subject) -> None:
    """Σ_ℓ(‖W_ℓ − V_ℓV_{ℓ-1}ᵀ‖² + ‖b_ℓ‖²) ≤ ‖θ‖² − kL − 2 log(s_1 … s_k), slope in [0, 1).

    V_0 has the top k right singular vectors of Jf(x), V_ℓ is the polar factor of D_ℓW_ℓV_{ℓ-1} = V_ℓH_ℓ. The product of
    the H_ℓ has determinant s_1 … s_k; and Tr V_ℓᵀW_ℓV_{ℓ-1} ≥ Tr H_ℓ ≥ k + log det H_ℓ, because D ≥ D² for entries in
    [0, 1]: for a negative slope the first step is wrong.

    ``known["k"]`` is k, the rank of the Jacobian at each point unless given. The details have the distance of every
    layer at the point shown.
    """
    found = points_of(subject)
    norms = parameter_norms(subject.net)
    L, total = len(norms.weights), norms.total
    least = int(found.ranks.min()) if len(found.ranks) else 0
    asked = subject.known.get("k")
    slope = subject.net.slope
    check.assume("slope in [0, 1)", 0.0 <= slope < 1.0, f"slope {slope:g}")
    check.add(found.kink_hypothesis)
    reached = check.assume("k ≤ Rank Jf(x)", 0 < (asked or 1) <= least, f"k {asked or 'the rank'}, least rank {least}")
    lhs, pictures = [], []
    for row in range(len(found.index) if reached else 0):
        k = int(asked or found.ranks[row])
        pictures.append(one_family_distances(found, row, k))
        logs = float(found.log_products[row, k - 1])
        lhs.append(float(pictures[-1].sum() + norms.biases.sum()) + k * L + 2 * logs)
    check.compare(
        lhs,
        "≤",
        total,
        tolerance=rounding(subject.net) + found.log_error / max(total, 1e-300),
        where=found.name,
        details=lambda i: {"‖W_ℓ − V_ℓV_(ℓ−1)ᵀ‖² by layer": pictures[i].tolist()},
    )


#: The same claim in its other form, which is not one of its own.
weights_near_one_family = replace(
    weights_near_isometries,
    hypotheses=("slope in [0, 1)", *weights_near_isometries.hypotheses[1:]),
    judge=_near_one_family,
)


@torch.no_grad()
def one_family_distances(found: Points, row: int, k: int) -> Tensor:
    """‖W_ℓ − V_ℓV_{ℓ-1}ᵀ‖² for ℓ = 1 … L at one point, (L,)."""
    Ws = found.trace.Ws
    V = torch.linalg.svd(found.J[row], full_matrices=False).Vh[:k].mT
    distances = []
    for ell, W in enumerate(Ws, start=1):
        image = W @ V
        passed = image if ell == len(Ws) else found.trace.derivative(ell)[row][:, None] * image
        U, _, Rh = torch.linalg.svd(passed, full_matrices=False)
        V_next = U @ Rh
        # ‖W − V_ℓV_{ℓ-1}ᵀ‖² = ‖W‖² − 2 Tr(V_ℓᵀWV_{ℓ-1}) + k.
        distances.append(W.square().sum() - 2 * (V_next * image).sum() + k)
        V = V_next
    return torch.stack(distances).clamp_min(0)
