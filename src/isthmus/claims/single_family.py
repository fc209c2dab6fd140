"""C-bn-6 with one family of isometries: W_ℓ ≈ V_ℓV_{ℓ-1}ᵀ (bottleneck2023, Thm 6 as printed)."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.claims.base import Hypothesis, Subject, Verdict, compare, rounding
from isthmus.claims.jacobian_bounds import log_products
from isthmus.claims.points import Points, points_of
from isthmus.measures import parameter_norms


def weights_near_one_family(subject: Subject) -> Verdict:
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
    hypotheses = [
        Hypothesis.of("slope in [0, 1)", 0.0 <= slope < 1.0, f"slope {slope:g}"),
        found.kink_hypothesis,
        Hypothesis.of("k ≤ Rank Jf(x)", 0 < (asked or 1) <= least, f"k {asked or 'the rank'}, least rank {least}"),
    ]
    lhs, pictures = [], []
    for row in range(len(found.index) if hypotheses[-1].status == "met" else 0):
        k = int(asked or found.ranks[row])
        pictures.append(one_family_distances(found, row, k))
        logs = float(log_products(found.s[row])[k - 1])
        lhs.append(float(pictures[-1].sum() + norms.biases.sum()) + k * L + 2 * logs)
    verdict = compare(
        "C-bn-6",
        lhs,
        "≤",
        total,
        tolerance=rounding(subject.net) + found.log_error / max(total, 1e-300),
        hypotheses=hypotheses,
        where=found.name,
    )
    if verdict.status == "not applicable":
        return verdict
    tightest = next(row for row in range(len(lhs)) if found.name(row) == verdict.where)
    return Verdict(**{**vars(verdict), "details": {"‖W_ℓ − V_ℓV_(ℓ−1)ᵀ‖² by layer": pictures[tightest].tolist()}})


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
