"""Graphs of high CP-rank, and the data of Prop. 14 on which a network needs as many neurons."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.claims._base import Hypothesis, Subject, Verdict, claim, compare, not_applicable, worst
from isthmus.constructions import bipartite_data, bipartite_optimum, complete_bipartite, incidence, is_triangle_free
from isthmus.measures import cp_rank_bound, is_completely_positive, parameter_norms
from isthmus.objective import cost
from isthmus.trace import with_ones

#: Vertices up to which a graph is looked at, and samples up to which a square root is factored.
LARGEST = 40

TRIANGLE_FREE = "triangle-free graph"

SHALLOW, RELU, UNBIASED = "L = 2", "ReLU", "β = 0"

UNIT, ROOT = "X = I", "(YᵀY)^½ completely positive"


def bipartite_subject() -> Subject:
    """The optimum of B_6, with its graph."""
    X, Y = bipartite_data(6)
    return Subject(bipartite_optimum(6), X, Y, known={"edges": complete_bipartite(6), "vertices": 6})


@claim(
    "C-feat-6",
    "EᵀE is completely positive for the incidence matrix E of a graph, and of CP-rank the number of edges if the graph "
    "is triangle-free; N²/4 for the complete bipartite graph",
    paper="features2022",
    where="Prop. 13 and Prop. 21",
    hypotheses=(TRIANGLE_FREE,),
    sample=bipartite_subject,
)
def graph_rank(subject: Subject) -> Verdict:
    """Lower bound = number of edges: no two edges can lie in one non-negative term, and E itself has one for each.

    The graph is ``known["edges"]`` on ``known["vertices"]``.
    """
    unknown = [Hypothesis.of(TRIANGLE_FREE, None)]
    edges, vertices = subject.known.get("edges"), subject.known.get("vertices")
    if edges is None or vertices is None or vertices > LARGEST:
        return not_applicable("C-feat-6", "=", unknown, f"needs a graph of at most {LARGEST} vertices")
    free = is_triangle_free(edges, vertices)
    hypotheses = [Hypothesis.of(TRIANGLE_FREE, free, f"{len(edges)} edges on {vertices} vertices")]
    if not free:
        return not_applicable("C-feat-6", "=", hypotheses)
    E = incidence(edges, vertices)
    lower, upper = float(cp_rank_bound(E.mT @ E)), float(len(E))
    lhs, rhs, names = [lower], [upper], ["the bound from below and the edges"]
    if vertices % 2 == 0 and set(map(tuple, edges)) == set(complete_bipartite(vertices)):
        lhs, rhs, names = [*lhs, upper], [*rhs, vertices**2 / 4], [*names, "N²/4"]
    return compare("C-feat-6", lhs, "=", rhs, tolerance=0.0, hypotheses=hypotheses, where=lambda i: names[i])


@claim(
    "C-feat-7",
    "On X = I the least norm of depth 2 is 2‖Y‖_*, at K_1 = K_1^σ = (YᵀY)^½, and needs Rank_cp((YᵀY)^½) neurons; with "
    "a ridge the least loss is that of singular values smaller by λN, where that matrix too is completely positive",
    paper="features2022",
    where="Prop. 14 and Prop. 22, Remark 23",
    hypotheses=(SHALLOW, RELU, UNBIASED, UNIT, ROOT),
    sample=bipartite_subject,
    erratum="One-hot blocks are 1/√m_i (printed 1/m_i); the proof's YYᵀ is YᵀY.",
)
def square_root_covariance(subject: Subject) -> Verdict:
    """A factor B of the root makes a network of norm 2‖Y‖_*; no network with these outputs has less.

    Y is the subject's, or else what its network puts out. The network itself is held to the bounds: its norm (or loss)
    is not below the least, and where it reaches it, K_1 = K_1^σ is the root and neurons are at least as many as the
    CP-rank is known to be.
    """
    net, X = subject.net, subject.X
    N = len(X)
    hypotheses = [
        Hypothesis.of(SHALLOW, net.depth == 2, f"L = {net.depth}"),
        Hypothesis.of(RELU, net.slope == 0.0, f"slope {net.slope:g}"),
        Hypothesis.of(UNBIASED, net.bias == 0.0, f"β = {net.bias:g}"),
        Hypothesis.of(UNIT, X.shape == (N, N) and bool(torch.equal(X, torch.eye(N, dtype=X.dtype))), tuple(X.shape)),
        Hypothesis.of(ROOT, None),
    ]
    if any(h.status == "not met" for h in hypotheses) or N > LARGEST:
        why = "" if N <= LARGEST else f"needs N ≤ {LARGEST}"
        return not_applicable("C-feat-7", "≥", hypotheses, why)
    if subject.loss != "mse" and subject.ridge is not None:
        return not_applicable("C-feat-7", "≥", hypotheses, "needs mse")
    trace = subject.trace()
    Y = (trace.outputs if subject.Y is None else subject.Y.double()).mT
    ridge = subject.ridge or 0.0
    U, s, Vh = torch.linalg.svd(Y, full_matrices=False)
    shrunk = (s - ridge * N).clamp_min(0.0)
    root = Vh.mT @ (shrunk[:, None] * Vh)
    positive = is_completely_positive(root)
    found = {"yes": True, "no": False}.get(positive.verdict)
    hypotheses[-1] = Hypothesis.of(ROOT, found if positive.factor is not None or not found else None, positive.reason)
    if hypotheses[-1].status != "met" or positive.factor is None:
        return not_applicable("C-feat-7", "≥", hypotheses)
    best = (U * shrunk) @ Vh
    least = 2.0 * float(shrunk.sum())
    floor = float(cost(best.mT, Y.mT)) + ridge * least
    W_1, W_2 = weights_of(positive.factor, U @ Vh)
    made = float(W_1.square().sum() + W_2.square().sum())
    attained = worst(
        compare(
            "C-feat-7", made, "=", least, tolerance=1e-6, hypotheses=hypotheses, where="‖θ‖² of a factor's network"
        ),
        compare(
            "C-feat-7",
            float((W_2 @ torch.relu(W_1) - best).abs().max()),
            "≤",
            1e-6 * float(s.max()),
            tolerance=0.0,
            hypotheses=hypotheses,
            where="outputs of a factor's network",
        ),
    )
    norm = parameter_norms(net).total
    off = float((trace.outputs.mT - Y).abs().max()) / max(float(Y.abs().max()), 1e-300)
    parts = [attained]
    if ridge > 0.0:
        here, name = float(cost(trace.outputs, Y.mT)) + ridge * norm, "loss of the network and the least"
    else:
        here, floor, name = norm, least, "‖θ‖² of the network and the least"
    if ridge > 0.0 or off <= 1e-9:
        parts.append(compare("C-feat-7", here, "≥", floor, tolerance=1e-9, hypotheses=hypotheses, where=name))
        if here <= floor * (1 + 1e-12):
            parts.append(_at_the_optimum(trace.Z(1), root, float(s.max()), hypotheses))
    return worst(*reversed(parts))


def weights_of(B: Tensor, polar: Tensor) -> tuple[Tensor, Tensor]:
    """W_1 = B and W_2 = PBᵀ, for BᵀB the root and Z_2 = P(Z_2ᵀZ_2)^½: outputs Z_2 on X = I at ‖θ‖² = 2Tr[BᵀB]."""
    return B, polar @ B.mT


def _at_the_optimum(Z: Tensor, root: Tensor, size: float, hypotheses: list[Hypothesis]) -> Verdict:
    # A ridge may shrink all of Y to a root of zero, next to which only Y itself, of this size, is a measure.
    scale = float(root.abs().max()) or size or 1.0
    S = with_ones(torch.relu(Z), 0.0)
    off = max(float((M.mT @ M - root).abs().max()) / scale for M in (Z, S))
    # The cost is flat to second order at its minimum.
    same = compare("C-feat-7", off, "≤", 1e-5, tolerance=0.0, hypotheses=hypotheses, where="K_1 = K_1^σ = (YᵀY)^½")
    alive = float((Z.abs().amax(1) > 0).sum())
    need = float(cp_rank_bound(root, tolerance=1e-9))
    enough = compare("C-feat-7", alive, "≥", need, tolerance=0.0, hypotheses=hypotheses, where="neurons and CP-rank")
    return worst(enough, same)
