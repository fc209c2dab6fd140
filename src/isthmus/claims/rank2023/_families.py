"""The norm as a rank: what it costs to make a network deeper, and what else a rank must satisfy (rank2023 §3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from isthmus.claims._base import Check, Hypothesis, Subject, claim, rounding
from isthmus.claims._evidence import gaussian_inputs, seeded, uniform_inputs
from isthmus.constructions import (
    Construction,
    Known,
    compose,
    linear_network,
    parallel,
    three_part,
)
from isthmus.constructions._construction import everywhere
from isthmus.measures import jacobian_rank, parameter_norms
from isthmus.measures._representation_cost import Estimate, estimate_costs
from isthmus.networks import FullyConnected


def positive_net(dims: list[int], seed: int) -> FullyConnected:
    """A random ReLU network whose outputs are positive on positive inputs: the last layer's entries are."""
    net = FullyConnected(dims, dtype=torch.float64, generator=seeded(seed))
    net.weights[-1].data.abs_()
    return net


def family_of_rank(k: int, depths: list[int], *, d: int = 4, seed: int = 0) -> list[Construction]:
    """One function of ℝ^d through k dimensions, positive on positive inputs, at several depths."""
    g, h = positive_net([d, 8, k], seed), positive_net([k, 8, d], seed + 1)
    return [three_part(g, h, depth) for depth in depths]


#: Depths from which a slope is distinguished from R1 and R2/L.
LEAST_DEPTHS = 4

#: Half the interval of a slope, in ranks, above which it does not tell them apart.
APART = 0.25

#: Width up to which networks are made deeper.
WIDEST = 512

#: Identity layers that are put into a network to make a family of it.
EXTRA = (0, 2, 6, 14, 30)

#: Relative difference up to which outputs of two networks are those of one function.
SAME = 1e-8

NEEDED = f"{LEAST_DEPTHS} depths needed, and a slope to ±{APART}"


def norm_slope(family: Sequence[Construction]) -> Estimate:
    """R0 of ‖θ‖² = L·R0 + R1 + R2/L over the depths of a family.

    What the fit leaves is no noise but terms of higher order, which no interval of Student's covers. The ends are as
    far as R2/L and R3/L² move the slope, the latter twice, for what is beyond it.
    """
    depths = [float(one.depth) for one in family]
    norms = [parameter_norms(one.network).total for one in family]
    fit = estimate_costs(depths, norms).R0
    two, three, four = (_slope(np.array(depths), np.array(norms), terms) for terms in (2, 3, 4))
    reach = abs(three - two) + 2 * abs(four - three)
    return Estimate(fit.value, fit.standard_error, fit.value - reach, fit.value + reach)


def _slope(depths: np.ndarray, norms: np.ndarray, terms: int) -> float:
    """R0 of the first terms of L·R0 + R1 + R2/L + R3/L², by least squares."""
    columns = np.stack([depths ** (1 - power) for power in range(terms)], axis=1)
    size = np.linalg.norm(columns, axis=0)
    return float(np.linalg.lstsq(columns / size, norms)[0][0] / size[0])


def _enough(family: Sequence[Construction]) -> bool:
    """Are there depths enough, and deep enough, to tell ranks apart by the slope?"""
    if len({one.depth for one in family}) < LEAST_DEPTHS:
        return False
    slope = norm_slope(family)
    return slope.high - slope.value <= APART


def _at_k_per_layer(family: Sequence[Construction], k: int) -> Hypothesis:
    """Does each layer more cost k? Its maker says so."""
    limits = [one.known.excess_limit for one in family]
    ranks = sorted({one.known.rank for one in family})
    met = None if None in limits else ranks == [k] and all(math.isfinite(x or 0.0) for x in limits)
    return Hypothesis.of("‖θ‖² − kL bounded by construction", met, f"k {k}, ranks {ranks}, limits {limits[:2]}")


def _one_function(name: str, family: Sequence[Construction], X: Tensor) -> Hypothesis:
    outputs = [one.network.trace(X).outputs for one in family]
    gap = max(float((Y - outputs[0]).abs().max()) for Y in outputs) / max(float(outputs[0].abs().max()), 1e-300)
    inside = all(bool(one.known.domain.contains(X).all()) for one in family)
    found = f"outputs differ by {gap:.2g}, ‖x‖ ≤ {float(X.norm(dim=1).max()):.3g}"
    return Hypothesis.of(name, inside and gap <= SAME, found if inside else "samples outside the domain")


def rank_two_family() -> Subject:
    """ReLU, rank 2 in ℝ⁴, depths 6 to 96."""
    family = family_of_rank(2, [6, 8, 12, 16, 24, 48, 96], seed=2)
    return Subject(family[0].network, uniform_inputs(64, 4, 1), known={"family": family})


@claim(
    "C-rank-2",
    "Rank_J(f) ≤ lim R(f;L)/L ≤ Rank_BN(f): the slope of ‖θ‖² in L lies between the two ranks",
    paper="rank2023",
    where="Thm 1 and Thm 3",
    hypotheses=("a family by depth", "one piecewise linear f on bounded Ω", "‖θ‖² − kL bounded by construction"),
    sample=rank_two_family,
    relation="≤",
    erratum="The introduction prints Rank_J = min over x; Def. 1 has max, which is used.",
    rate=True,
)
def ranks_around_the_cost(check: Check, subject: Subject) -> None:
    """Rank_J ≤ R∞ ≤ Rank_BN, with R∞ the slope of ‖θ‖² in L, fitted over ``known["family"]``.

    A family is a sequence of constructions of one function, so its slope bounds R∞ from above; by C-rank-1 it is at
    least Rank_J. The k that the maker knows, or ``known["rank"]``, stands for Rank_BN. Without a family the network is
    made deeper by identity layers, and holds trivially.
    """
    family = subject.family(Construction)
    made = "by construction: identity layers were put behind the narrowest layer" if family is None else ""
    family = deepened(subject.net) if family is None else family
    if family is None:
        why = f"identity layers need ReLU or slope 1, a hidden layer, and widths up to {WIDEST}"
        check.not_applicable(why, cause="network")
    k = int(subject.known.get("rank", family[0].known.rank))
    check.assume("a family by depth", _enough(family), f"{len(family)} networks, {NEEDED}")
    check.add(_one_function("one piecewise linear f on bounded Ω", family, subject.X))
    check.add(_at_k_per_layer(family, k))
    if not _enough(family):
        check.not_applicable()
    slope = norm_slope(family)
    deepest = max(family, key=lambda one: one.depth).network
    rank = jacobian_rank(deepest, subject.X).rank
    check.compare(
        [float(rank), slope.value],
        "≤",
        [slope.value, float(k)],
        tolerance=_reach(family) + rounding(deepest),
        trivial=made,
        where=lambda i: ("Rank_J ≤ slope", "slope ≤ Rank_BN")[i],
        details={
            "depth": [float(one.depth) for one in family],
            "‖θ‖²/L": [parameter_norms(one.network).per_depth for one in family],
            "slope and its interval": [slope.value, slope.low, slope.high],
        },
    )


def deepened(net: FullyConnected) -> list[Construction] | None:
    """The function of a ReLU or linear network at growing depths, by identities behind its narrowest hidden layer."""
    if net.slope not in (0.0, 1.0) or net.depth < 2 or max(net.dims) > WIDEST:
        return None
    hidden = list(net.dims[1:-1])
    ell, n = hidden.index(min(hidden)) + 1, min(hidden)
    Ws, bs = [W.detach().double() for W in net.Ws], [b.detach().double() for b in net.bs]
    norm = parameter_norms(net).total
    family = []
    for extra in EXTRA:
        identity = [torch.eye(n, dtype=torch.float64)] * extra
        zeros = [torch.zeros(n, dtype=torch.float64)] * extra
        made = FullyConnected.from_weights(
            [*Ws[:ell], *identity, *Ws[ell:]],
            [*bs[:ell], *zeros, *bs[ell:]] if bs else None,
            slope=net.slope,
            bias=net.bias,
        ).requires_grad_(False)
        known = Known(norm + n * extra, n, norm - n * net.depth, everywhere(net.dims[0]))
        family.append(Construction(made, known))
    return family


NOTIONS = ("Rank_J", "R∞", "narrowest layer")


def _ranks(family: Sequence[Construction], X: Tensor) -> Tensor:
    """Rank_J on X, the slope of the norm, and the narrowest layer, which bounds Rank_BN, (3,)."""
    net = family[-1].network
    numbers = [jacobian_rank(net, X).rank, norm_slope(family).value, min(net.dims)]
    return torch.tensor(numbers, dtype=torch.float64)


def _reach(family: Sequence[Construction]) -> float:
    """Half the interval of the slope, relative to it."""
    slope = norm_slope(family)
    return (slope.high - slope.value) / max(slope.value, 1.0)


def two_families() -> Subject:
    """Functions of rank 1 and 2 in ℝ⁴, and a linear map of rank 2."""
    depths = [6, 8, 12, 24, 48]
    f, g = family_of_rank(1, depths, seed=4), family_of_rank(2, depths, seed=2)
    A = gaussian_inputs(4, 2, 3).abs() @ gaussian_inputs(2, 4, 4).abs()
    # Its frame need not be positive on the samples: linear networks are valid everywhere.
    affine = [linear_network(A, depth) for depth in (50, 100, 200, 400, 800)]
    return Subject(f[0].network, uniform_inputs(64, 4, 1), known={"f": f, "g": g, "affine": (A, affine)})


@claim(
    "C-rank-3",
    "Each notion of rank is ≤ min(d_in, d_out), ≤ both ranks for f∘g, subadditive for f + g, and Rank A for x ↦ Ax + b",
    paper="rank2023",
    where="§3, Prop. 1, Thm 4",
    hypotheses=("families by depth", "f∘g and f + g computed on bounded Ω", "Rank f + Rank g ≤ min(d_in, d_out)"),
    sample=two_families,
    relation="≤",
    erratum="With Rank_J = min over x, as the introduction prints it, the sum |x| = σ(x) + σ(−x) breaks (4).",
)
def properties_of_a_rank(check: Check, subject: Subject) -> None:
    """Properties 2 to 5, for Rank_J, for R∞ (the slope of ‖θ‖² in L) and for the width of a factorisation.

    ``known["f"]`` and ``known["g"]`` are families of functions of ℝ^d that can be composed and added, and
    ``known["affine"]`` is (A, a family of x ↦ Ax + b). Property 1 is no question for the two integers, and not proved
    for R∞; invariance under bijections follows from (3). A sum of more than d dimensions has no family as cheap as
    its rank, hence the last hypothesis.
    """
    known, X = subject.known, subject.X
    if not {"f", "g", "affine"} <= known.keys():
        wanted = "known['f'], known['g'], known['affine']"
        check.not_applicable("needs families of two functions and an affine one", supply=wanted)
    fs, gs, (A, affine) = known["f"], known["g"], known["affine"]
    sums = [parallel(f, g) for f, g in zip(fs, gs)]
    after, before = [compose(f, gs[0]) for f in fs], [compose(fs[0], g) for g in gs]
    inside = all(bool(one.known.domain.contains(X).all()) for one in (*sums, *after, *before, *affine))
    d, ranks = min(fs[0].network.dims[0], fs[0].network.dims[-1]), (fs[0].known.rank, gs[0].known.rank)
    check.assume("families by depth", all(map(_enough, (fs, gs, affine))), NEEDED)
    check.assume("f∘g and f + g computed on bounded Ω", inside, f"{len(X)} samples")
    check.assume("Rank f + Rank g ≤ min(d_in, d_out)", sum(ranks) <= d, f"{ranks[0]} + {ranks[1]}, d = {d}")
    check.require()
    image = gs[0].network.trace(X).outputs
    f, g, outer = _ranks(fs, X), _ranks(gs, X), _ranks(fs, image)
    total, straight = _ranks(sums, X), _ranks(affine, X)
    composed = torch.minimum(_ranks(after, X), _ranks(before, X))
    rank_A = torch.full((3,), float(torch.linalg.matrix_rank(A)), dtype=torch.float64)
    most = torch.full((3,), float(d), dtype=torch.float64)
    lhs = torch.cat([f, g, composed, composed, total, straight, rank_A])
    rhs = torch.cat([most, most, outer, g, f + g, rank_A, straight])
    reach = sum(map(_reach, (fs, gs, sums, after, before, affine)))
    names = ("f ≤ d", "g ≤ d", "f∘g ≤ f", "f∘g ≤ g", "f + g", "affine ≤ Rank A", "Rank A ≤ affine")
    check.compare(
        lhs,
        "≤",
        rhs,
        tolerance=reach + rounding(fs[-1].network),
        where=lambda i: f"{NOTIONS[i % 3]}: {names[i // 3]}",
        details={"f": f.tolist(), "g": g.tolist(), "f∘g": composed.tolist(), "f + g": total.tolist()},
    )
