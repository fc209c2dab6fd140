"""Graphs of high CP-rank, and the data of Prop. 14 on which a network needs as many neurons."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.claims._base import ABSENT, Check, Subject, claim
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
def graph_rank(check: Check, subject: Subject) -> None:
    """Lower bound = number of edges: no two edges can lie in one non-negative term, and E itself has one for each.

    The graph is ``known["edges"]`` on ``known["vertices"]``.
    """
    edges, vertices = subject.known.get("edges"), subject.known.get("vertices")
    if edges is None or vertices is None or vertices > LARGEST:
        wanted = "known['edges'], known['vertices']"
        check.not_applicable(f"needs a graph of at most {LARGEST} vertices", supply=wanted)
    check.assume(TRIANGLE_FREE, is_triangle_free(edges, vertices), f"{len(edges)} edges on {vertices} vertices")
    check.require()
    E = incidence(edges, vertices)
    lower, upper = float(cp_rank_bound(E.mT @ E)), float(len(E))
    places = [(lower, upper, "the bound from below and the edges")]
    if vertices % 2 == 0 and set(map(tuple, edges)) == set(complete_bipartite(vertices)):
        places.append((upper, vertices**2 / 4, "N²/4"))
    check.each(places, "=", tolerance=0.0, trivial=ABSENT)


@claim(
    "C-feat-7",
    "On X = I the least norm of depth 2 is 2‖Y‖_*, at K_1 = K_1^σ = (YᵀY)^½, and needs Rank_cp((YᵀY)^½) neurons; with "
    "a ridge the least loss is that of singular values smaller by λN, where that matrix too is completely positive",
    paper="features2022",
    where="Prop. 14 and Prop. 22, Remark 23",
    hypotheses=(SHALLOW, RELU, UNBIASED, UNIT, ROOT),
    sample=bipartite_subject,
    relation="≥",
    erratum="One-hot blocks are 1/√m_i (printed 1/m_i); the proof's YYᵀ is YᵀY.",
)
def square_root_covariance(check: Check, subject: Subject) -> None:
    """A factor B of the root makes a network of norm 2‖Y‖_*; no network with these outputs has less.

    Y is the subject's, or else what its network puts out. The network itself is held to the bounds: its norm (or loss)
    is not below the least, and where it reaches it, K_1 = K_1^σ is the root and neurons are at least as many as the
    CP-rank is known to be.
    """
    net, X = subject.net, subject.X
    N = len(X)
    check.assume(SHALLOW, net.depth == 2, f"L = {net.depth}")
    check.assume(RELU, net.slope == 0.0, f"slope {net.slope:g}")
    check.assume(UNBIASED, net.bias == 0.0, f"β = {net.bias:g}")
    check.assume(UNIT, X.shape == (N, N) and bool(torch.equal(X, torch.eye(N, dtype=X.dtype))), tuple(X.shape))
    check.require()
    if N > LARGEST:
        check.not_applicable(f"needs N ≤ {LARGEST}", cause="numerical")
    if subject.loss != "mse" and subject.ridge is not None:
        check.not_applicable("needs mse", cause="network")
    trace = subject.trace()
    Y = (trace.outputs if subject.Y is None else subject.Y.double()).mT
    ridge = subject.ridge or 0.0
    U, s, Vh = torch.linalg.svd(Y, full_matrices=False)
    shrunk = (s - ridge * N).clamp_min(0.0)
    root = Vh.mT @ (shrunk[:, None] * Vh)
    positive = is_completely_positive(root)
    found = {"yes": True, "no": False}.get(positive.verdict)
    check.assume(ROOT, found if positive.factor is not None or not found else None, positive.reason)
    if check.unmet or positive.factor is None:
        check.not_applicable()
    best = (U * shrunk) @ Vh
    least = 2.0 * float(shrunk.sum())
    floor = float(cost(best.mT, Y.mT)) + ridge * least
    norm = parameter_norms(net).total
    off = float((trace.outputs.mT - Y).abs().max()) / max(float(Y.abs().max()), 1e-300)
    if ridge > 0.0:
        here, name = float(cost(trace.outputs, Y.mT)) + ridge * norm, "loss of the network and the least"
    else:
        here, floor, name = norm, least, "‖θ‖² of the network and the least"
    if ridge > 0.0 or off <= 1e-9:
        if here <= floor * (1 + 1e-12):
            _at_the_optimum(check, trace.Z(1), root, float(s.max()))
        check.compare(here, "≥", floor, tolerance=1e-9, part=name)
    W_1, W_2 = weights_of(positive.factor, U @ Vh)
    made = float(W_1.square().sum() + W_2.square().sum())
    check.compare(made, "=", least, tolerance=1e-6, part="‖θ‖² of a factor's network")
    gap = float((W_2 @ torch.relu(W_1) - best).abs().max()) / max(float(s.max()), 1e-300)
    check.vanish(gap, tolerance=1e-6, part="outputs of a factor's network")


def weights_of(B: Tensor, polar: Tensor) -> tuple[Tensor, Tensor]:
    """W_1 = B and W_2 = PBᵀ, for BᵀB the root and Z_2 = P(Z_2ᵀZ_2)^½: outputs Z_2 on X = I at ‖θ‖² = 2Tr[BᵀB]."""
    return B, polar @ B.mT


def _at_the_optimum(check: Check, Z: Tensor, root: Tensor, size: float) -> None:
    # A ridge may shrink all of Y to a root of zero, next to which only Y itself, of this size, is a measure.
    scale = float(root.abs().max()) or size or 1.0
    S = with_ones(torch.relu(Z), 0.0)
    off = max(float((M.mT @ M - root).abs().max()) / scale for M in (Z, S))
    alive = float((Z.abs().amax(1) > 0).sum())
    need = float(cp_rank_bound(root, tolerance=1e-9))
    check.compare(alive, "≥", need, tolerance=0.0, part="neurons and CP-rank")
    # The cost is flat to second order at its minimum.
    check.vanish(off, tolerance=1e-5, part="K_1 = K_1^σ = (YᵀY)^½")
