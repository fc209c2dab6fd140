"""R2, the second correction: of compositions and sums, and its sign (bottleneck2023 §3.2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isthmus.claims.base import Hypothesis, Subject, Verdict, claim, compare
from isthmus.claims.evidence import lacking
from isthmus.claims.samples import gaussian_inputs
from isthmus.claims.two_functions import (
    JOINS,
    TRUSTED,
    is_linear,
    linear_values,
    network_of,
    nonzero_values,
    pairs_of,
    product,
)
from isthmus.constructions import linear_network
from isthmus.measures import diagonal_cost, diagonal_expansion, parameter_norms
from isthmus.measures.representation_cost import CostEstimate, estimate_costs
from isthmus.networks import FullyConnected

#: Depths over which costs are fitted.
DEPTHS = (100, 150, 200, 300, 400, 600)
#: What a fit leaves is the next term of the expansion and no noise. At these depths it moves a coefficient by up to 13
#: standard errors, which this interval (Student's, with 3 degrees of freedom) covers.
CONFIDENCE = 0.9999


def matched_linear_maps() -> Subject:
    """Two linear maps of rank 3 that meet in the same three dimensions, without common singular vectors."""
    Q = torch.linalg.qr(gaussian_inputs(6, 3, 21)).Q
    f = FullyConnected.from_weights([gaussian_inputs(5, 3, 22) @ Q.mT], slope=1.0)
    g = FullyConnected.from_weights([Q @ gaussian_inputs(3, 4, 23)], slope=1.0)
    net = FullyConnected.from_weights([*g.Ws, *f.Ws], slope=1.0)
    return Subject(net, gaussian_inputs(20, 4, 24), known={"f": f, "g": g})


@claim(
    "C-bn-4",
    "√R2(f∘g) ≤ √R2(f) + √R2(g) where R0(f∘g) = R0(f) = R0(g) and R1(f∘g) = R1(f) + R1(g)",
    paper="bottleneck2023",
    where="Prop. 4(1) and Prop. 14(1)",
    hypotheses=("two functions", "linear networks", "R0 equal and R1 additive"),
    sample=matched_linear_maps,
)
def second_correction_of_compositions(subject: Subject) -> Verdict:
    """√R2(f∘g) ≤ √R2(f) + √R2(g), by R2 = ½‖log_+AᵀA‖²: for linear networks, of which alone R2 is known.

    Of ``known["f"]``, ``known["g"]``; of a linear network alone, cut in two.
    """
    pairs, given = pairs_of(subject, JOINS[:1])
    linear = [pair for pair in pairs if pair.linear and pair.f.dims[0] == pair.g.dims[-1]]
    lhs, rhs, names, said = [], [], [], "not looked at"
    for pair in linear:
        whole, f, g = (None if s is None else diagonal_expansion(s) for s in linear_values(pair))
        if whole is None or f is None or g is None:
            said = "singular values at the level of rounding"
            continue
        said = f"{pair.name}: R0 {whole.R0}, {f.R0}, {g.R0}; R1 {whole.R1:.6g} and {f.R1:.6g} + {g.R1:.6g}"
        if whole.R0 == f.R0 == g.R0 and _equal(whole.R1, f.R1 + g.R1):
            lhs.append(_root(whole.R2))
            rhs.append(_root(f.R2) + _root(g.R2))
            names.append(pair.name)
    return compare(
        "C-bn-4",
        lhs,
        "≤",
        rhs,
        tolerance=TRUSTED,
        hypotheses=[
            given,
            Hypothesis.of("linear networks", bool(linear) if pairs else None, "R2 of others has no formula"),
            Hypothesis.of("R0 equal and R1 additive", bool(lhs) if linear else None, said),
        ],
        where=lambda i: names[i],
    )


def _equal(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=10 * TRUSTED, abs_tol=10 * TRUSTED)


def _root(R2: float) -> float:
    """√R2; what rounding leaves of isometries is 0."""
    return math.sqrt(R2) if R2 > TRUSTED**2 else 0.0


def orthogonal_linear_maps() -> Subject:
    """Two linear maps with orthogonal row spaces and orthogonal images, and their sum as the least linear network."""
    V, U = torch.linalg.qr(gaussian_inputs(6, 4, 31)).Q, torch.linalg.qr(gaussian_inputs(5, 4, 32)).Q
    A = U[:, :2] @ gaussian_inputs(2, 2, 33) @ V[:, :2].mT
    B = U[:, 2:] @ gaussian_inputs(2, 2, 34) @ V[:, 2:].mT
    f, g, whole = (linear_network(M, 4).network for M in (A, B, A + B))
    return Subject(whole, gaussian_inputs(20, 6, 35), known={"f": f, "g": g, "join": "f+g"})


_FAMILY, _LIMIT, _ADDITIVE = "networks of growing depth", "a limiting representation", "R0 and R1 additive"


@claim(
    "C-bn-14",
    "R2(f) ≥ 0 where the representations converge; R2(f+g) ≤ R2(f) + R2(g) where R0 and R1 add up",
    paper="bottleneck2023",
    where="Prop. 4 and Prop. 14",
    hypotheses=(_FAMILY, _LIMIT, _ADDITIVE),
    sample=orthogonal_linear_maps,
    rate=True,
)
def second_correction_of_sums(subject: Subject) -> Verdict:
    """0 ≤ R2(f), fitted over depths, and R2(f+g) ≤ R2(f) + R2(g) of linear maps.

    ``known["family"]`` is a list of networks of one function and of least norm, at five depths or more, for the first
    part; for a linear network it is known. The second part takes linear ``known["f"]`` and ``known["g"]``.
    """
    family = _family(subject)
    if family is None:
        return lacking("C-bn-14", "≤", "needs networks of one function at five depths: known['family']")
    depths, fit, (shallow, deep) = family
    move = _movement(shallow, deep, subject.X)
    sums, additive = _sums(subject)
    return compare(
        "C-bn-14",
        [0.0, *sums[:1]],
        "≤",
        [fit.R2.high, *sums[1:]],
        tolerance=10 * TRUSTED,
        hypotheses=[
            Hypothesis.of(_FAMILY, True, f"depths {depths[0]} to {depths[-1]}"),
            Hypothesis.of(_LIMIT, move <= 0.05, f"the kernel at half depth still moves by {move:.2g} of itself"),
            additive,
        ],
        where=lambda i: ("R2 fitted over depths, upper end of its interval", "R2 of the sum")[i],
        details={"R2 fitted, low, high": [fit.R2.value, fit.R2.low, fit.R2.high]},
    )


def _family(subject: Subject) -> tuple[list[int], CostEstimate, tuple[FullyConnected, FullyConnected]] | None:
    """Depths, costs fitted over them, and two networks whose representations can be compared."""
    given = subject.known.get("family")
    if given is not None and len({one.depth for one in given}) >= 5:
        nets = sorted((network_of(one) for one in given), key=lambda net: net.depth)
        depths, norms = [net.depth for net in nets], [parameter_norms(net).total for net in nets]
        return depths, estimate_costs(depths, norms, confidence=CONFIDENCE), (nets[-2], nets[-1])
    if given is not None or not is_linear(subject.net):
        return None
    A, error = product(subject.net)
    s = nonzero_values(A, error)
    if s is None or len(s) == 0:
        return None
    # The norms of these networks have a closed form; a few layers show that half depth is the same in all of them.
    fit = estimate_costs(DEPTHS, [diagonal_cost(s, depth) for depth in DEPTHS], confidence=CONFIDENCE)
    return list(DEPTHS), fit, (linear_network(A, 8).network, linear_network(A, 16).network)


@torch.no_grad()
def _movement(shallow: FullyConnected, deep: FullyConnected, X: Tensor) -> float:
    """‖K − K'‖/‖K'‖ of the kernels at half depth of two networks, on at most 200 samples."""
    one, other = (net.trace(X[:200]).Z(net.depth // 2) for net in (shallow, deep))
    K = other.mT @ other
    return float((one.mT @ one - K).norm() / K.norm().clamp_min(1e-300))


def _sums(subject: Subject) -> tuple[list[float], Hypothesis]:
    """R2(f+g) and R2(f) + R2(g), or nothing when no sum is asked for."""
    if "f" not in subject.known or "g" not in subject.known:
        return [], Hypothesis.of(_ADDITIVE, True, "no sum asked for: known['f'], known['g'] not given")
    pairs, _ = pairs_of(subject.replace(known={**subject.known, "join": "f+g"}))
    if not pairs or not pairs[0].linear:
        return [], Hypothesis.of(_ADDITIVE, None, "R2 is known of linear networks only")
    whole, f, g = (None if s is None else diagonal_expansion(s) for s in linear_values(pairs[0]))
    if whole is None or f is None or g is None:
        return [], Hypothesis.of(_ADDITIVE, None, "singular values at the level of rounding")
    met = whole.R0 == f.R0 + g.R0 and _equal(whole.R1, f.R1 + g.R1)
    said = f"R0 {whole.R0} and {f.R0} + {g.R0}, R1 {whole.R1:.6g} and {f.R1:.6g} + {g.R1:.6g}"
    return [whole.R2, f.R2 + g.R2], Hypothesis.of(_ADDITIVE, met, said)
