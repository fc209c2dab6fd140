"""Graphs whose matrices EᵀE need many non-negative terms, and data on which a network needs as many neurons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from isthmus._checks import check_integer, check_number, fail
from isthmus._cite import cites
from isthmus.networks import FullyConnected

#: Vertices of a graph: its matrices are held whole.
MAX_VERTICES = 200


@cites("features2022", "Prop. 13", ids=("A-cpdata",))
def incidence(edges: Iterable[tuple[int, int]], vertices: int) -> Tensor:
    """E with E_ev = 1 where the vertex v is an end of the edge e, (edges, vertices): EᵀE is completely positive.

    Parameters
    ----------
    edges : iterable of pairs of int
        Between two different vertices, each at most once.
    vertices : int
        N, numbered from 0.
    """
    who = "incidence"
    check_integer(who, "vertices", vertices, low=1, high=MAX_VERTICES)
    pairs = _checked(who, edges, vertices)
    E = torch.zeros(len(pairs), vertices, dtype=torch.float64)
    for row, (u, v) in enumerate(pairs):
        E[row, u] = E[row, v] = 1.0
    return E


@cites("features2022", "Prop. 13", ids=("A-cpdata",))
def is_triangle_free(edges: Iterable[tuple[int, int]], vertices: int) -> bool:
    """Whether no three vertices are pairwise joined: Tr[A³] = 0 for the adjacency matrix A."""
    E = incidence(edges, vertices)
    A = E.mT @ E
    A.fill_diagonal_(0.0)
    return not bool(((A @ A) * A > 0.5).any())


@cites("features2022", "§4.2", ids=("A-cpdata",))
def complete_bipartite(N: int) -> list[tuple[int, int]]:
    """The N²/4 edges between the vertices 0 … N/2−1 and N/2 … N−1; N even."""
    check_integer("complete_bipartite", "N", N, low=2, high=MAX_VERTICES)
    if N % 2:
        fail("complete_bipartite", "`N` must be even", N, "Give both sides as many vertices.")
    half = N // 2
    return [(u, v) for u in range(half) for v in range(half, N)]


@cites("features2022", "Prop. 14", ids=("A-cpdata",))
def bipartite_data(N: int) -> tuple[Tensor, Tensor]:
    """X = I_N and Y = B_N = EᵀE = [(N/2)I, 11ᵀ; 11ᵀ, (N/2)I], on which depth 2 without bias needs N²/4 neurons."""
    E = incidence(complete_bipartite(N), N)
    Y = E.mT @ E
    half = N // 2
    eye, ones = half * torch.eye(half, dtype=torch.float64), torch.ones(half, half, dtype=torch.float64)
    if not bool(torch.equal(Y, torch.cat([torch.cat([eye, ones], 1), torch.cat([ones, eye], 1)]))):
        fail("bipartite_data", "EᵀE must be B_N", "another matrix", "Report this.")
    return torch.eye(N, dtype=torch.float64), Y


@cites("features2022", "Prop. 14 and Prop. 22", ids=("A-cpdata",))
def bipartite_optimum(N: int, *, ridge: float = 0.0) -> FullyConnected:
    """W_1 = Z, W_2 = Zᵀ with ZᵀZ = (1−2λ)B_N + λ11ᵀ: the least loss of depth 2 on X = I, Y = B_N, λ = ``ridge`` ≤ ½.

    For λ = 0 it is the paper's Z = E, with N²/4 neurons and ‖θ‖² = N² = 2‖B_N‖_*, the least among all networks with
    these outputs. With a ridge one neuron that is active on all samples comes in: (1/N)‖Z_2 − Y‖² + λ‖θ‖² is at least
    (1/N)‖Z_2 − Y‖² + 2λ‖Z_2‖_*, whose minimum takes λN from each singular value of B_N, and that matrix is
    (1−2λ)B_N + λ11ᵀ: completely positive, so that the bound is reached.

    Departs from the paper: it says of λ > 0 only that N²/4 neurons are needed.
    """
    who = "bipartite_optimum"
    check_number(who, "ridge", ridge, low=0.0, high=0.5)
    _, Y = bipartite_data(N)
    Z = (1.0 - 2.0 * ridge) ** 0.5 * incidence(complete_bipartite(N), N)
    if ridge > 0.0:
        Z = torch.cat([Z, torch.full((1, N), ridge**0.5, dtype=torch.float64)])
        Z = Z[Z.abs().sum(1) > 0]
    values, vectors = torch.linalg.eigh(Y)
    shrunk = (vectors * (values - ridge * N).clamp_min(0.0)) @ vectors.mT
    return _checked_network(who, Z, Z.mT.contiguous(), shrunk)


@cites("features2022", "Remark 23", ids=("A-cpdata",))
def bipartite_narrow(N: int) -> FullyConnected:
    """W_1 = √(N/2)I, W_2 = √(2/N)B_N: the same outputs with N neurons, at ‖θ‖² = N² + N instead of N²."""
    X, Y = bipartite_data(N)
    return _checked_network("bipartite_narrow", (N / 2) ** 0.5 * X, (2 / N) ** 0.5 * Y, Y)


@cites("features2022", "§4.2, App. D.1", ids=("A-cpdata",))
def one_hot_data(sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """X = I_N and Y the one-hot labels of classes of m_1, m_2, … samples, in order: (YYᵀ)^½ has blocks 1/√m_i."""
    counts = _sizes("one_hot_data", sizes)
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    Y = torch.nn.functional.one_hot(labels, len(counts)).double()
    return torch.eye(len(labels), dtype=torch.float64), Y


@cites("features2022", "§4.2, App. D.1", ids=("A-cpdata",))
def one_hot_optimum(sizes: Sequence[int], *, width: int | None = None, ridge: float = 0.0) -> FullyConnected:
    """The least loss of depth 2 with ``width`` neurons on one-hot data, one neuron for each class.

    Z has a row t_i on the samples of class i, with t_i²√m_i = (√m_i − λN)_+ for the ``width`` largest classes. The loss
    of any W of that width is at least (1/N)‖Z_2 − Y‖² + 2λ‖Z_2‖_* with Rank Z_2 ≤ width, whose minimum keeps the
    largest singular values √m_i of Y, each smaller by λN; these networks reach it. For λ = 0 and as many neurons as
    classes the outputs are Y at ‖θ‖² = 2‖Y‖_* = 2Σ√m_i.

    Departs from the paper: block value 1/√m_i (printed 1/m_i); the widths below the plateau and λ > 0 are ours.

    Parameters
    ----------
    sizes : sequence of int
        m_1, m_2, …: samples of each class.
    width : int, optional
        Hidden neurons; those beyond the classes stay zero. By default one for each class.
    ridge : float
    """
    who = "one_hot_optimum"
    counts = torch.tensor(_sizes(who, sizes), dtype=torch.float64)
    check_number(who, "ridge", ridge, low=0.0)
    width = check_integer(who, "width", len(counts) if width is None else width, low=1)
    X, Y = one_hot_data(sizes)
    order = torch.argsort(counts, descending=True, stable=True)[:width]
    shrunk = (counts.sqrt() - ridge * len(X)).clamp_min(0.0)
    W_1 = torch.zeros(width, len(X), dtype=torch.float64)
    W_2 = torch.zeros(len(counts), width, dtype=torch.float64)
    for row, i in enumerate(order.tolist()):
        W_1[row] = (shrunk[i] / counts[i].sqrt()).sqrt() * Y[:, i] / counts[i] ** 0.25
        W_2[i, row] = shrunk[i].sqrt()
    target = Y.clone()
    target *= torch.where(torch.isin(torch.arange(len(counts)), order), shrunk / counts.sqrt(), torch.zeros(()))
    return _checked_network(who, W_1, W_2, target)


def _checked_network(who: str, W_1: Tensor, W_2: Tensor, outputs: Tensor) -> FullyConnected:
    """The ReLU network without bias, if on X = I its outputs (samples as rows) are those the theory has."""
    net = FullyConnected.from_weights([W_1, W_2]).requires_grad_(False)
    off = float((net(torch.eye(len(outputs), dtype=torch.float64)) - outputs).abs().max())
    if off > 1e-12 * float(outputs.abs().max().clamp_min(1.0)):
        fail(who, "the outputs must be those of the theory", f"a deviation of {off:.3g}", "Report this.")
    return net


def _checked(who: str, edges: Iterable[tuple[int, int]], vertices: int) -> list[tuple[int, int]]:
    pairs = []
    for edge in edges:
        try:
            u, v = edge
        except (TypeError, ValueError):
            fail(who, "`edges` must be pairs of vertices", repr(edge), "Pass e.g. [(0, 1), (1, 2)].")
        ends = sorted(check_integer(who, "a vertex", end, low=0, high=vertices - 1) for end in (u, v))
        if ends[0] == ends[1] or tuple(ends) in pairs:
            fail(who, "`edges` must join different vertices, each pair once", repr(edge), "Drop loops and repeats.")
        pairs.append((ends[0], ends[1]))
    return pairs


def _sizes(who: str, sizes: Sequence[int]) -> list[int]:
    counts = [check_integer(who, "a size", m, low=1, high=MAX_VERTICES) for m in sizes]
    if not counts or sum(counts) > MAX_VERTICES:
        fail(who, f"`sizes` must be at least one class, {MAX_VERTICES} samples in all", sizes, "Name smaller classes.")
    return counts
