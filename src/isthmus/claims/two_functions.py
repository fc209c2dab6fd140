"""What two functions cost together: norms and R1 of compositions and sums (bottleneck2023 §3.1)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus.claims.base import Hypothesis, Subject, Verdict, claim, compare, rounding
from isthmus.claims.points import points_of
from isthmus.claims.samples import random_subject
from isthmus.constructions import Construction, compose, parallel
from isthmus.measures import diagonal_cost, diagonal_expansion, parameter_norms
from isthmus.networks import FullyConnected

JOINS = ("f∘g", "f+g")
#: Layers at which a linear network is cut in two, evenly spaced; one in networks wider than this.
CUTS, WIDE = 4, 256
#: Relative error up to which the singular values of a product are trusted, and equalities taken for met.
TRUSTED = 1e-8


@dataclass(frozen=True, eq=False)
class Pair:
    """Two functions as networks, and how they are joined: ``"f∘g"`` or ``"f+g"``."""

    f: FullyConnected
    g: FullyConnected
    join: str
    name: str

    @property
    def linear(self) -> bool:
        """Whether both are products of matrices."""
        return is_linear(self.f) and is_linear(self.g)

    @property
    def joined(self) -> Construction:
        """The two networks put together."""
        return compose(self.f, self.g) if self.join == "f∘g" else parallel(self.f, self.g)


def network_of(one: Any) -> Any:
    """The network of a construction; anything else as it is."""
    return one.network if isinstance(one, Construction) else one


def is_linear(net: FullyConnected) -> bool:
    """Whether the network is a product of matrices: slope 1, no biases."""
    return net.slope == 1.0 and not any(bool(b.any()) for b in net.bs)


@torch.no_grad()
def product(net: FullyConnected) -> tuple[Tensor, float]:
    """W_L ⋯ W_1 in float64, and a bound of its rounding: eps · n · L · Π‖W_ℓ‖_op."""
    Ws = [W.detach().double() for W in net.Ws]
    A, size = Ws[0], _operator_norm(Ws[0])
    for W in Ws[1:]:
        A = W @ A
        size *= _operator_norm(W)
    return A, torch.finfo(torch.float64).eps * max(net.dims) * net.depth * size


def _operator_norm(W: Tensor) -> float:
    """‖W‖_op, or of a wide matrix the cheaper bound √(‖W‖_1‖W‖_∞)."""
    if max(W.shape) <= WIDE:
        return float(torch.linalg.matrix_norm(W, 2))
    return float((W.abs().sum(0).max() * W.abs().sum(1).max()).sqrt())


def nonzero_values(A: Tensor, error: float) -> Tensor | None:
    """The singular values of A that are not rounding, or None where it cannot be told which those are."""
    if bool(A.any()) and float(A.norm()) * TRUSTED < error:
        return None
    s = torch.linalg.svdvals(A)
    kept = s[s > 10 * error]
    return None if len(kept) and float(kept[-1]) * TRUSTED < error else kept


def linear_values(pair: Pair) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Non-zero singular values of the join, of f and of g."""
    (A, a), (B, b) = product(pair.f), product(pair.g)
    if pair.join == "f+g":
        return nonzero_values(A + B, a + b), nonzero_values(A, a), nonzero_values(B, b)
    norms = [float(torch.linalg.matrix_norm(M, 2)) for M in (A, B)]
    return nonzero_values(A @ B, a * norms[1] + b * norms[0]), nonzero_values(A, a), nonzero_values(B, b)


def pairs_of(subject: Subject, joins: Sequence[str] = JOINS) -> tuple[list[Pair], Hypothesis]:
    """The two functions that are given; of a linear network its lower and upper part at some layers."""
    name = "two functions"
    f, g = (network_of(subject.known.get(one)) for one in ("f", "g"))
    if isinstance(f, FullyConnected) and isinstance(g, FullyConnected):
        join = subject.known.get("join", joins[0])
        met = join in joins
        # Copies: `.double()` would convert the networks of the caller.
        pair = Pair(copy.deepcopy(f).double(), copy.deepcopy(g).double(), join, join)
        return [pair] if met else [], Hypothesis.of(name, met, f"known['join'] is {join}")
    net = subject.net
    if is_linear(net) and net.depth > 1 and "f∘g" in joins:
        number = min(net.depth - 1, CUTS) if max(net.dims) <= WIDE else 1
        layers = torch.linspace(0, net.depth, number + 2).round().long().unique().tolist()[1:-1]
        cut = [
            Pair(
                FullyConnected.from_weights(net.Ws[ell:], slope=1.0),
                FullyConnected.from_weights(net.Ws[:ell], slope=1.0),
                "f∘g",
                f"cut after layer {ell}",
            )
            for ell in layers
        ]
        return cut, Hypothesis.of(name, True, "a linear network, cut in two")
    return [], Hypothesis.of(name, None, "needs two functions: known['f'], known['g']")


def composed_pair() -> Subject:
    """Two ReLU networks through two dimensions, the inner one shifted until it is positive on the samples."""
    inner = random_subject([4, 9, 9, 2], seed=11)
    low = inner.net(inner.X).detach().amin(0)
    inner.net.biases[-1].data += 0.1 - low
    outer = random_subject([2, 9, 9, 4], seed=12)
    joined = compose(outer.net, inner.net).network
    return Subject(joined, inner.X, known={"f": outer.net, "g": inner.net, "join": "f∘g"})


_JOINABLE = "σ(g) = g on Ω, or ⟨b_L^f, b_L^g⟩ ≤ 0"
_RANKS = "R0(f∘g) = R0(f) = R0(g), or R0 adds up"


@claim(
    "C-bn-2",
    "R(f∘g; L₁+L₂) ≤ R(f; L₁) + R(g; L₂) and R(f+g; L) ≤ R(f; L) + R(g; L); likewise R1 where R0 fits",
    paper="bottleneck2023",
    where="Thm 3(1), (2)",
    hypotheses=("two functions", _JOINABLE, _RANKS),
    sample=composed_pair,
)
def subadditivity(subject: Subject) -> Verdict:
    """R(join) ≤ ‖θ_f‖² + ‖θ_g‖², with a network that shows it and a lower bound that could break it.

    ``known["f"]``, ``known["g"]`` are networks or constructions, ``known["join"]`` is "f∘g" or "f+g". Linear networks
    are judged by their exact costs, R1 included, and a linear network alone is cut in two. For others R(join) lies
    between L·Σs_i(J)^{2/L} at the samples and the norm of the network put together, and both are compared.
    """
    pairs, given = pairs_of(subject)
    lhs, rhs, names = [], [], []
    joinable, ranks = [Hypothesis.of(_JOINABLE, None)], [Hypothesis.of(_RANKS, None)]
    for pair in pairs:
        joinable.append(_can_be_joined(pair, subject.X))
        if joinable[-1].status != "met":
            continue
        rank, sides = _linear_sides(pair) if pair.linear else _bounds(pair, subject.X)
        ranks.append(rank)
        for left, right in sides if rank.status == "met" else []:
            lhs.append(left)
            rhs.append(right)
            names.append(pair.name)
    return compare(
        "C-bn-2",
        lhs,
        "≤",
        rhs,
        tolerance=max([rounding(subject.net), *(rounding(net) for pair in pairs for net in (pair.f, pair.g))])
        + (TRUSTED if any(pair.linear for pair in pairs) else 0.0),
        hypotheses=[given, first_met(joinable), first_met(ranks)],
        where=lambda i: names[i],
    )


def first_met(found: Sequence[Hypothesis]) -> Hypothesis:
    """The first that is met, else the last that was looked at."""
    return next((h for h in found if h.status == "met"), found[-1])


@torch.no_grad()
def _can_be_joined(pair: Pair, X: Tensor) -> Hypothesis:
    """Do the two networks fit together, and is the result what it should be on the samples?"""
    f, g = pair.f, pair.g
    shapes = f"{g.dims[0]} → {g.dims[-1]} of depth {g.depth}, {f.dims[0]} → {f.dims[-1]} of depth {f.depth}"
    if pair.join == "f∘g":
        if f.dims[0] != g.dims[-1] or X.shape[1] != g.dims[0] or f.slope != g.slope:
            return Hypothesis.of(_JOINABLE, False, shapes)
        if pair.linear:
            return Hypothesis.of(_JOINABLE, True, "linear")
        wanted, found = f(g(X)), pair.joined.network(X)
        error = float((wanted - found).abs().max() / wanted.abs().max().clamp_min(1e-300))
        return Hypothesis.of(_JOINABLE, error <= TRUSTED, f"f(σ(g)) differs from f(g) by {error:.2g} on the samples")
    if (f.dims[0], f.dims[-1], f.depth, f.slope) != (g.dims[0], g.dims[-1], g.depth, g.slope) or f.depth < 2:
        return Hypothesis.of(_JOINABLE, False, shapes)
    overlap = float(f.bs[-1] @ g.bs[-1]) if f.bs and g.bs else 0.0
    return Hypothesis.of(_JOINABLE, overlap <= 0.0, f"⟨b_L^f, b_L^g⟩ = {overlap:.3g}")


def _linear_sides(pair: Pair) -> tuple[Hypothesis, list[tuple[float, float]]]:
    """Both sides of R and of kL + R1, exactly."""
    whole, f, g = linear_values(pair)
    if whole is None or f is None or g is None:
        return Hypothesis.of(_RANKS, None, "singular values at the level of rounding"), []
    met = len(whole) == len(f) == len(g) if pair.join == "f∘g" else len(whole) == len(f) + len(g)
    rank = Hypothesis.of(_RANKS, met, f"ranks {len(f)} and {len(g)}, joined {len(whole)}")
    L = pair.f.depth + pair.g.depth if pair.join == "f∘g" else pair.f.depth
    parts = ((f, pair.f.depth), (g, pair.g.depth))
    costs = diagonal_cost(whole, L), sum(diagonal_cost(s, depth) for s, depth in parts)
    terms = diagonal_expansion(whole).at(L, 2), sum(diagonal_expansion(s).at(depth, 2) for s, depth in parts)
    return rank, [costs, terms]


def _bounds(pair: Pair, X: Tensor) -> tuple[Hypothesis, list[tuple[float, float]]]:
    """The norm of the network put together, and the largest lower bound L·Σs^{2/L} of its function.

    R0 of the join is at least the rank of its Jacobians, R0 of f and g at most their narrowest layers.
    """
    joined = pair.joined.network
    found = points_of(Subject(joined, X))
    low = int(found.ranks.max()) if len(found.ranks) else 0
    r, s = min(pair.f.dims), min(pair.g.dims)
    met = r == s == low if pair.join == "f∘g" else r + s == low
    rank = Hypothesis.of(_RANKS, True if met else None, f"narrowest layers {r} and {s}, Jacobian of the join {low}")
    sums = found.s.pow(2 / joined.depth).where(found.s > 0, torch.zeros_like(found.s)).sum(1)
    both = parameter_norms(pair.f).total + parameter_norms(pair.g).total
    return rank, [(parameter_norms(joined).total, both), *((joined.depth * float(value), both) for value in sums)]
