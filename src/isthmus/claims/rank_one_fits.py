"""Functions of bottleneck rank 1 through data: always to be had, and steep (rank2023 Prop. 2 and Thm 2)."""

from __future__ import annotations

import math

from torch import Tensor

from isthmus._errors import DataError, IsthmusError
from isthmus.claims.base import Hypothesis, Subject, Verdict, claim, compare, not_applicable, rounding
from isthmus.claims.evidence import Exponent, fit_exponent, some_rows
from isthmus.claims.rank_samples import fitted_by_rank_one, paths_through_surfaces
from isthmus.claims.segments import steepest_on_segment
from isthmus.constructions import rank_one
from isthmus.measures import parameter_norms
from isthmus.measures.tsp import diameter, path_lower_bound, shortest_path
from isthmus.networks import FullyConnected
from isthmus.objective import cost

#: Samples at most that a fit of rank 1 goes through; a theorem about all data holds for some of it.
FITTED = 200
#: Samples at most whose shortest path is bounded, in O(n²) for each of many spanning trees.
PATH_POINTS = 300


def mean_squares(subject: Subject) -> Hypothesis:
    """Rows of numbers and mean squares: what these claims are about."""
    if subject.Y is None:
        return Hypothesis.of("mean squares", None, "targets not given")
    return Hypothesis.of("mean squares", subject.loss == "mse" and subject.Y.ndim == 2, f"loss {subject.loss}")


def ridge_given(subject: Subject) -> Hypothesis:
    """Its λ, without which there is no loss to bound."""
    return Hypothesis.of("ridge > 0 given", bool(subject.ridge), "" if subject.ridge else "ridge not given")


@claim(
    "C-rank-4",
    "inf {cost + (λ/L)‖W‖²} ≤ λ(1 + C_N/L), C_N a constant of the data",
    paper="rank2023",
    where="Prop. 2 and Prop. 8",
    hypotheses=("ridge > 0 given", "mean squares", "ridge = λ/L", "L ≥ ⌈log₂(n_0+1)⌉ + 2", "distinct inputs"),
    sample=fitted_by_rank_one,
)
def rank_one_bounds_the_loss(subject: Subject) -> Verdict:
    """The whole loss of the network of ``rank_one`` through the data, at depths L, 2L and 4L with one C_N.

    λ is ridge·L, or ``known["lambda"]`` in words of the paper, which must then agree. The loss of the network at hand
    is in the details: above the bound it is no global minimum.
    """
    L, known = subject.net.depth, subject.known
    hypotheses = [ridge_given(subject), mean_squares(subject)]
    lam = None if not subject.ridge else subject.ridge * L
    said = known.get("lambda", lam)
    least = math.ceil(math.log2(subject.net.dims[0] + 1)) + 2
    hypotheses += [
        Hypothesis.of("ridge = λ/L", None if lam is None else math.isclose(lam, said), f"ridge·L {lam}, λ {said}"),
        Hypothesis.of("L ≥ ⌈log₂(n_0+1)⌉ + 2", least <= L, f"L = {L}, least {least}"),
    ]
    if any(h.status != "met" for h in hypotheses) or subject.Y is None or lam is None:
        return not_applicable("C-rank-4", "≤", [*hypotheses, Hypothesis.of("distinct inputs", None, "not looked at")])
    rows = some_rows(subject.X, FITTED)
    X, Y = subject.X[rows], subject.Y[rows]
    depths = [L, 2 * L, 4 * L]
    try:
        fits = [rank_one(X, Y, L)]
    except DataError as error:
        return not_applicable("C-rank-4", "≤", [*hypotheses, Hypothesis.of("distinct inputs", False, error)])
    C_N, u = fits[0].known.details["norm_constant"], fits[0].network.Ws[0][0]
    fits += [rank_one(X, Y, depth, direction=u) for depth in depths[1:]]
    losses = [whole_loss(fit.network, X, Y, lam / depth) for fit, depth in zip(fits, depths)]
    return compare(
        "C-rank-4",
        losses,
        "≤",
        [lam * (1 + C_N / depth) for depth in depths],
        # The fit is exact up to rounding of sums of steep pieces, whose squares count.
        tolerance=rounding(fits[-1].network, condition=100.0),
        hypotheses=[*hypotheses, Hypothesis.of("distinct inputs", True, f"{len(X)} samples")],
        where=lambda i: f"L = {depths[i]}, {len(X)} samples",
        details={
            "C_N": [C_N],
            "loss of the network": [whole_loss(subject.net, X, Y, lam / L)],
            "loss of the fit by depth": losses,
        },
    )


def whole_loss(net: FullyConnected, X: Tensor, Y: Tensor, ridge: float) -> float:
    """Mean squares + ridge·‖θ‖², in float64."""
    return float(cost(net.trace(X).outputs, Y)) + ridge * parameter_norms(net).total


def _narrow_layer(subject: Subject) -> int | None:
    """The first layer of width 1, the input counted as 0."""
    return next((ell for ell, width in enumerate(subject.net.dims) if width == 1), None)


@claim(
    "C-rank-8",
    "A function of bottleneck rank 1 has max‖Jf‖_op ≥ TSP(y_1…y_N)/diam(x_1…x_N), so ‖W‖² ≥ L(TSP/diam)^(2/L)",
    paper="rank2023",
    where="Thm 2 and Prop. 10",
    hypotheses=("|slope| ≤ 1", "a layer of width 1", "two different inputs"),
    sample=paths_through_surfaces,
)
def paths_are_steep(subject: Subject) -> Verdict:
    """With y_i = f(x_i), an open path: f on the segment between the extreme values of g passes every y_i.

    The segment's kinks are computed exactly, so that its steepest piece is seen however short. Networks are defined
    on all of ℝ^d, which contains the hull. Above 15 points TSP is a lower bound. ``known["path growth"]`` maps k to
    point sets of growing size drawn from an image of dimension k: their paths must grow at least like N^(1−1/k).
    """
    ell, net = _narrow_layer(subject), subject.net
    rows = some_rows(subject.X, PATH_POINTS)
    X = subject.X[rows]
    across = diameter(X)
    hypotheses = [
        Hypothesis.of("|slope| ≤ 1", abs(net.slope) <= 1.0, f"slope {net.slope:g}"),
        Hypothesis.of("a layer of width 1", ell is not None, f"narrowest {min(net.dims)}"),
        Hypothesis.of("two different inputs", across > 0, f"diameter {across:.3g}"),
    ]
    if any(h.status != "met" for h in hypotheses) or ell is None:
        return not_applicable("C-rank-8", "≥", hypotheses)
    trace = net.trace(X)
    g = X[:, 0] if ell == 0 else trace.preactivations[ell - 1][:, 0]
    try:
        steepest, walked = steepest_on_segment(net, X[g.argmin()], X[g.argmax()])
    except IsthmusError as error:
        return not_applicable("C-rank-8", "≥", hypotheses, str(error))
    path = shortest_path(trace.outputs)
    need, L = path.value / across, net.depth
    lhs = [steepest, float(parameter_norms(net).weights.sum()) / L]
    rhs = [need, need ** (2 / L)]
    names = ["max‖Jf‖_op", "‖W‖²/L"]
    details = {"TSP, diam, length of the segment's image": [path.value, across, walked]}
    for k, sets in subject.known.get("path growth", {}).items():
        growth = path_growth(sets)
        lhs.append(growth.high)
        rhs.append(1 - 1 / k)
        names.append(f"exponent of the path for k = {k}, upper end of its interval")
        details[f"exponent and its interval, k = {k}"] = growth.numbers
    return compare(
        "C-rank-8",
        lhs,
        "≥",
        rhs,
        tolerance=rounding(net, condition=100.0),
        hypotheses=hypotheses,
        where=lambda i: f"{names[i]} ({path.state} path of {len(X)} points)" if i < 2 else names[i],
        details=details,
    )


def path_growth(sets: list[Tensor]) -> Exponent:
    """Exponent e of TSP ∝ N^e over point sets of four sizes or more.

    By the lower bound: paths found by exchanges get worse as N grows, which lifts the exponent by about 0.01. Small
    sets lift it as much again; the term a/N takes that up.
    """
    lengths = [path_lower_bound(points, iterations=40).value for points in sets]
    return fit_exponent([len(points) for points in sets], lengths, finite_size=True)
