"""Functions of bottleneck rank 1: through data, near them, and against the true rank (rank2023 Prop. 2, 4, 5)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isthmus._errors import DataError, IsthmusError
from isthmus.claims._base import ABSENT, Check, Hypothesis, Part, Subject, claim, rounding
from isthmus.claims._evidence import (
    ONE,
    TRAINING,
    Exponent,
    bare_network,
    fit_exponent,
    gaussian_inputs,
    one_dimension,
    ridge_given,
    some_rows,
    steepest_on_segment,
    uniform_inputs,
)
from isthmus.constructions import (
    Construction,
    linear_network,
    positive_linear_network,
    rank_one,
)
from isthmus.measures import parameter_norms
from isthmus.measures._tsp import diameter, path_lower_bound, shortest_path
from isthmus.networks import FullyConnected
from isthmus.objective import cost
from isthmus.trace import Trace

#: Samples at most that a fit of rank 1 goes through; a theorem about all data holds for some of it.
FITTED = 200

#: Outputs below this have distances whose squares have no float64.
SMALLEST = 1e-140

#: Samples at most whose shortest path is bounded, in O(n²) for each of many spanning trees.
PATH_POINTS = 300


def mean_squares(subject: Subject) -> Hypothesis:
    """Rows of numbers and mean squares: what these claims are about."""
    if subject.Y is None:
        return Hypothesis.of("mean squares", None, "targets not given", supply=TRAINING)
    return Hypothesis.of("mean squares", subject.loss == "mse" and subject.Y.ndim == 2, f"loss {subject.loss}")


def fitted_by_rank_one() -> Subject:
    """Twelve points of a map of the plane, fitted by a network of bottleneck rank 1 and depth 5."""
    X = gaussian_inputs(12, 2, 1)
    Y = torch.stack([X[:, 0], (X[:, 0] + X[:, 1]).abs()], 1)
    return Subject(rank_one(X, Y, 5).network, X, Y, 0.02)


@claim(
    "C-rank-4",
    "inf {cost + (λ/L)‖W‖²} ≤ λ(1 + C_N/L), C_N a constant of the data",
    paper="rank2023",
    where="Prop. 2 and Prop. 8",
    hypotheses=("ridge > 0 given", "mean squares", "ridge = λ/L", "L ≥ ⌈log₂(n_0+1)⌉ + 2", "distinct inputs"),
    sample=fitted_by_rank_one,
    relation="≤",
)
def rank_one_bounds_the_loss(check: Check, subject: Subject) -> None:
    """The loss of the network at hand, where it is below the bound, and of ``rank_one`` through the data at L, 2L, 4L.

    λ is ridge·L, or ``known["lambda"]`` in words of the paper, which must then agree. A network above the bound is no
    global minimum, and says nothing; that the fit of rank 1 has that loss is how C_N is made.
    """
    L, known = subject.net.depth, subject.known
    check.add(ridge_given(subject), mean_squares(subject))
    lam = None if not subject.ridge else subject.ridge * L
    said = known.get("lambda", lam)
    least = math.ceil(math.log2(subject.net.dims[0] + 1)) + 2
    agree = None if lam is None else math.isclose(lam, said)
    check.assume("ridge = λ/L", agree, f"ridge·L {lam}, λ {said}", supply="" if subject.ridge else TRAINING)
    check.assume("L ≥ ⌈log₂(n_0+1)⌉ + 2", least <= L, f"L = {L}, least {least}")
    check.require()
    assert subject.Y is not None and lam is not None
    rows = some_rows(subject.X, FITTED)
    X, Y = subject.X[rows], subject.Y[rows]
    depths = [L, 2 * L, 4 * L]
    try:
        fits = [rank_one(X, Y, L)]
    except DataError as error:
        check.assume("distinct inputs", False, error)
        check.not_applicable()
    C_N, u = fits[0].known.details["norm_constant"], fits[0].network.Ws[0][0]
    fits += [rank_one(X, Y, depth, direction=u) for depth in depths[1:]]
    losses = [whole_loss(fit.network, X, Y, lam / depth) for fit, depth in zip(fits, depths)]
    check.assume("distinct inputs", True, f"{len(X)} samples")
    # The fit is exact up to rounding of sums of steep pieces, whose squares count.
    tolerance = rounding(fits[-1].network, condition=100.0)
    bounds, own = [lam * (1 + C_N / depth) for depth in depths], whole_loss(subject.net, X, Y, lam / L)
    details = {"C_N": [C_N], "loss of the network": [own], "loss of the fit by depth": losses}
    if own <= bounds[0] * (1 + tolerance):
        check.compare(own, "≤", bounds[0], tolerance=tolerance, part="the network", where=f"{len(X)} samples")
    else:
        reason = f"its loss {own:.4g} is above the bound {bounds[0]:.4g}: no global minimum"
        check.parts.append(Part("the network", "not applicable", reason=reason))
    check.compare(
        losses,
        "≤",
        bounds,
        tolerance=tolerance,
        part="a fit of rank 1",
        where=lambda i: f"L = {depths[i]}, {len(X)} samples",
        details=details,
        trivial="by construction: C_N is the norm of that fit",
    )


def whole_loss(net: FullyConnected, X: Tensor, Y: Tensor, ridge: float) -> float:
    """Mean squares + ridge·‖θ‖², in float64."""
    return float(cost(net.trace(X).outputs, Y)) + ridge * parameter_norms(net).total


def paths_through_surfaces() -> Subject:
    """A rank-1 fit, and points drawn on closed surfaces of dimension 2 and 3, which have no border to feel."""
    sizes, growth = [n for n in (60, 120, 240, 480) for _ in range(3)], {}
    for k in (2, 3):
        drawn = gaussian_inputs(sum(sizes), k + 1, k)
        growth[k] = [points / points.norm(dim=1, keepdim=True) for points in drawn.split(sizes)]
    return fitted_by_rank_one().replace(known={"path growth": growth})


@claim(
    "C-rank-8",
    "A function of bottleneck rank 1 has max‖Jf‖_op ≥ TSP(y_1…y_N)/diam(x_1…x_N), so ‖W‖² ≥ L(TSP/diam)^(2/L)",
    paper="rank2023",
    where="Thm 2 and Prop. 10",
    hypotheses=("|slope| ≤ 1", ONE, "two different inputs"),
    sample=paths_through_surfaces,
    relation="≥",
)
def paths_are_steep(check: Check, subject: Subject) -> None:
    """With y_i = f(x_i), an open path: f on the segment between the extreme values of g passes every y_i.

    The segment's kinks are computed exactly, so that its steepest piece is seen however short. Networks are defined
    on all of ℝ^d, which contains the hull. Above 15 points TSP is a lower bound. ``known["path growth"]`` maps k to
    point sets of growing size drawn from an image of dimension k: their paths must grow at least like N^(1−1/k).
    """
    through = one_dimension(subject.net)
    rows = some_rows(subject.X, PATH_POINTS)
    X = subject.X[rows]
    across = diameter(X)
    check.assume("|slope| ≤ 1", abs(subject.net.slope) <= 1.0, f"slope {subject.net.slope:g}")
    check.assume(ONE, through is not None, through.said if through else f"narrowest {min(subject.net.dims)}")
    check.assume("two different inputs", across > 0, f"diameter {across:.3g}")
    if check.unmet or through is None:
        check.not_applicable()
    net = through.net
    trace = net.trace(X)
    g = through.g(trace)
    if 0.0 < float(trace.outputs.abs().max()) < SMALLEST:
        check.not_applicable("outputs so small that their distances underflow", cause="numerical")
    try:
        steepest, walked = steepest_on_segment(net, X[g.argmin()], X[g.argmax()])
    except IsthmusError as error:
        check.not_applicable(str(error), cause="numerical")
    path = shortest_path(trace.outputs)
    need, L = path.value / across, net.depth
    where = f"{path.state} path of {len(X)} points, {through.said}"
    size = float(parameter_norms(net).weights.sum()) / L
    # Outputs that hardly differ are known to rounding of what they sum.
    noise = rounding(net) * float(_terms_of_outputs(net, trace).norm(dim=1).max()) * len(X)
    tolerance = rounding(net, condition=100.0) + noise / max(path.value, 1e-300)
    details = {"TSP, diam, length of the segment's image": [path.value, across, walked]}
    check.compare(steepest, "≥", need, tolerance=tolerance, part="max‖Jf‖_op ≥ TSP/diam", where=where, details=details)
    check.compare(size, "≥", need ** (2 / L), tolerance=tolerance, part="‖W‖²/L ≥ (TSP/diam)^(2/L)", where=where)
    for k, sets in subject.known.get("path growth", {}).items():
        growth = path_growth(sets)
        check.compare(
            growth.high,
            "≥",
            1 - 1 / k,
            tolerance=tolerance,
            part=f"exponent of the path for k = {k}, upper end of its interval",
            details={f"exponent and its interval, k = {k}": growth.numbers},
            trivial=ABSENT,
        )


def path_growth(sets: list[Tensor]) -> Exponent:
    """Exponent e of TSP ∝ N^e over point sets of four sizes or more.

    By the lower bound: paths found by exchanges get worse as N grows, which lifts the exponent by about 0.01. Small
    sets lift it as much again; the term a/N takes that up.
    """
    lengths = [path_lower_bound(points, iterations=40).value for points in sets]
    return fit_exponent([len(points) for points in sets], lengths, finite_size=True)


# ---- The layer of rank 1 in networks whose norm is near L (rank2023 Prop. 4)


#: Rows whose representations are decomposed.
ROWS = 256

#: Ratios of singular values below this are rounding.
SMALLEST_RATIO = 1e-12


def nearly_rank_one_family() -> Subject:
    """W_ℓ = diag(1, √(C/L)) at depths 9 to 49, C = 6: balanced, ‖W‖² = L + C, and two dimensions that fade."""
    C, depths = 6.0, [9, 16, 25, 36, 49]
    family = [
        FullyConnected.from_weights([torch.diag(torch.tensor([1.0, math.sqrt(C / L)], dtype=torch.float64))] * L)
        for L in depths
    ]
    return Subject(family[-1], uniform_inputs(64, 2, 1), known={"family": family, "C": C})


@claim(
    "C-rank-7",
    "If ‖W‖² ≤ L + C at a minimum, some layer ℓ = O(√L) has s_2(Z_ℓ)/s_1(Z_ℓ) = O(L^(−1/4))",
    paper="rank2023",
    where="Prop. 4 and Prop. 9",
    hypotheses=("|slope| ≤ 1", "‖W‖² ≤ L + C", "balanced", "outputs not constant", "hidden layers"),
    sample=nearly_rank_one_family,
    relation="≤",
    erratum="Printed for s_1/s_2. The proof's bounds are used in a form that counts biases and every singular value.",
    rate=True,
)
def layer_of_rank_one(check: Check, subject: Subject) -> None:
    """min_ℓ Σ_{i≥2}λ_i(Z_ℓ) ≤ (1/m)[λ_1(X) + Σ_ℓ λ_1(Z_{ℓ-1})(C+ℓ−1)/(L−ℓ+1) + biases] over ℓ ≤ m, and Tr is not small.

    λ_i are the eigenvalues of ZᵀZ/N. Because Σ_iλ_i(Z_ℓ) ≤ ‖W_ℓ‖²λ_1(Z_{ℓ-1}) + 2β⟨W_ℓμ, b_ℓ⟩ + β²‖b_ℓ‖², μ the mean
    of the layer before, and ‖W_ℓ‖² ≤ (L+C)/(L−ℓ+1) if balanced, the sum over layers telescopes. At m = √L the bound
    is O(L^{−1/2}), while the trace is at least the variance of the outputs over what the other layers can magnify.
    Together they bound s_2/s_1 at that layer. ``known["family"]`` has networks of growing depth, with one
    ``known["C"]``: the exponent is fitted too. Without either C is ‖W‖² − L, and mostly too large to say anything.
    """
    family = [bare_network(one) for one in subject.family(Construction, type(subject.net)) or [subject.net]]
    rows = subject.X[some_rows(subject.X, ROWS)]
    norms = [parameter_norms(net) for net in family]
    excess = [one.total - len(one.weights) for one in norms]
    own = "C" not in subject.known
    if own and len(family) > 1:
        check.not_applicable("needs one C for all of the family", supply="known['C']")
    C = float(subject.known.get("C", excess[0]))
    spread = [_spread_of_outputs(net, rows) for net in family]
    check.assume("|slope| ≤ 1", all(abs(net.slope) <= 1 for net in family))
    within = max(excess) <= C + 1e-9 * abs(C)
    check.assume("‖W‖² ≤ L + C", within, f"‖W‖² − L from {min(excess):.4g} to {max(excess):.4g}, C {C:.4g}")
    check.assume("balanced", all(_balanced_start(one.weights, C) for one in norms), "‖W_ℓ‖² ≤ (L+C)/(L−ℓ+1)")
    known = all(variance > noise for variance, noise in spread)
    said = f"least variance {min(spread)[0]:.3g}, of which rounding {min(spread)[1]:.1g}"
    check.assume("outputs not constant", known, said)
    check.assume(
        "hidden layers", min(net.depth for net in family) > 1, f"least depth {min(net.depth for net in family)}"
    )
    check.require()
    lemmas, ratios, bounds = [], [], []
    for net, (variance, _) in zip(family, spread):
        tail, bound, least, trace, ratio = _narrowing(net, rows, C, variance)
        lemmas += [(tail, bound, f"L = {net.depth}: Σ_(i≥2)λ_i"), (least, trace, f"L = {net.depth}: trace")]
        ratios.append(ratio)
        bounds.append(math.sqrt(bound / (least - bound)) if bound < least else math.inf)
    details = {"depth": [float(net.depth) for net in family], "least s_2/s_1 up to layer √L": ratios}
    # A layer of rank 1 up to rounding says no more than that the bound holds.
    seen = [(float(net.depth), r) for net, r in zip(family, ratios) if r > SMALLEST_RATIO]
    if len(seen) >= 3:
        rate = fit_exponent(*zip(*seen))
        details["exponent and its interval"] = rate.numbers
        where = "lower end of its interval"
        check.compare(rate.low, "≤", -0.25, tolerance=0.0, part="exponent of s_2/s_1 in L", where=where)
    tolerance = rounding(max(family, key=lambda net: net.depth), condition=100.0)
    vacuous = "its bound is not below 1: C is too large for this depth" if min(bounds) >= 1.0 else ""
    names = [f"L = {net.depth}" for net in family]
    check.compare(
        ratios,
        "≤",
        [min(bound, 1.0) for bound in bounds],
        tolerance=tolerance,
        part="s_2/s_1",
        where=names,
        details=details,
        trivial=vacuous,
    )
    # Of any network its own C makes these true; one C for a family, or one that was named before, is a test.
    alone = "C is the network's own: so it is in every network" if own else ""
    check.each(lemmas, "≤", tolerance=tolerance, part="the bounds of the proof", trivial=alone)


@torch.no_grad()
def _spread_of_outputs(net: FullyConnected, X: Tensor) -> tuple[float, float]:
    """Variance of the outputs, and what rounding makes of it where they are constant."""
    trace = net.trace(X)
    noise = (rounding(net) * _terms_of_outputs(net, trace)).square().mean(0).sum()
    return float(trace.outputs.var(0, correction=0).sum()), float(noise)


def _terms_of_outputs(net: FullyConnected, trace: Trace) -> Tensor:
    """Σ|Wα| + |βb|, the sizes of what each output sums, (N, d_out)."""
    terms = trace.activations[-1].abs() @ trace.Ws[-1].abs().mT
    return terms + (net.bias * trace.bs[-1]).abs() if trace.bs else terms


def _balanced_start(weights: Tensor, C: float) -> bool:
    """‖W_ℓ‖² ≤ (L+C)/(L−ℓ+1): what the proof takes from ‖W_ℓ‖² being no larger than those after it."""
    L = len(weights)
    return bool((weights * torch.arange(L, 0, -1) <= (L + C) * (1 + 1e-9)).all())


@torch.no_grad()
def _narrowing(net: FullyConnected, X: Tensor, C: float, variance: float) -> tuple[float, float, float, float, float]:
    """Least tail up to layer m = ⌈√L⌉ and its bound; bound of the trace there and the trace; least s_2/s_1."""
    trace, L = net.trace(X), net.depth
    m = min(L - 1, math.ceil(math.sqrt(L)))
    values = [torch.linalg.svdvals(a).square() / len(X) for a in trace.activations[: m + 1]]
    top = [float(v[0]) for v in values]
    tails = [float(v[1:].sum()) for v in values[1:]]
    bound = top[0]
    for ell in range(1, m + 1):
        bound += top[ell - 1] * (C + ell - 1) / (L - ell + 1)
        if trace.bs:
            b = net.bias * trace.bs[ell - 1]
            bound += float(b @ (b + 2 * trace.Ws[ell - 1] @ trace.activations[ell - 1].mean(0)))
    best = min(range(m), key=tails.__getitem__)
    onward = torch.stack([W.square().sum() for W in trace.Ws[best + 1 :]])
    # In logarithms: the mean to the power of the depth overflows in untrained networks.
    least = math.exp(min(700.0, math.log(variance) - len(onward) * float(onward.mean().log())))
    ratios = [float((v[1] / v[0]).sqrt()) if len(v) > 1 and v[0] > 0 else 0.0 for v in values[1:]]
    return tails[best], bound / m, least, top[best + 1] + tails[best], min(ratios)


# ---- The true rank against rank 1: what f* costs, and from how many samples on it is cheaper (rank2023 Prop. 5)


#: Relative difference up to which outputs are the targets.
SAME = 1e-8


def linear_global_minimum() -> Subject:
    """A linear network of depth 6 at the global minimum of cost + ridge·‖θ‖², in closed form, and its truth.

    With XᵀX = N the loss over A is Σ(s_i − m_i)² + ridge·L·Σs_i^{2/L}, m_i the singular values of the true map: one
    equation for each, s + ridge·s^{2/L−1} = m, by iteration from s = m.
    """
    N, L, ridge = 40, 6, 0.01
    X = torch.linalg.qr(gaussian_inputs(N, 4, 5)).Q * N**0.5
    M = gaussian_inputs(3, 2, 6) @ gaussian_inputs(2, 4, 7)
    U, m, Vh = torch.linalg.svd(M, full_matrices=False)
    U, m, Vh = U[:, :2], m[:2], Vh[:2]
    s = m.clone()
    for _ in range(200):
        s = m - ridge * s.pow(2 / L - 1)
    least = linear_network((U * s) @ Vh, L).network
    return Subject(least, X, X @ M.mT, ridge, known={"truth": linear_network(M, L)})


@claim(
    "C-rank-6",
    "Minimisers of data y = f*(x) have ‖Ŵ‖²/L ≤ k + C/L, k = Rank_BN(f*) and C a constant of f* alone",
    paper="rank2023",
    where="Prop. 5 and Prop. 11",
    hypotheses=("ridge > 0 given", "mean squares", "f* written at depth L", "y_i = f*(x_i)", "loss ≤ that of f*"),
    sample=linear_global_minimum,
    relation="≤",
)
def no_more_than_the_truth(check: Check, subject: Subject) -> None:
    """‖Ŵ‖²/L ≤ k + C/L with C = ‖θ*‖² − kL of f* as a network of depth L, ``known["truth"]`` (a Construction).

    Of the global minimum the proof takes only that its loss is not above that of f*, which is what is checked.
    ``known["C"]`` replaces the constant.
    """
    truth, L = subject.known.get("truth"), subject.net.depth
    if truth is None:
        check.not_applicable("needs f* as a construction of this depth", supply="known['truth']")
    check.add(ridge_given(subject), mean_squares(subject))
    check.assume("f* written at depth L", truth.depth == L, f"depths {truth.depth} and {L}")
    check.require()
    assert subject.Y is not None and subject.ridge
    total = parameter_norms(subject.net).total
    own = whole_loss(subject.net, subject.X, subject.Y, subject.ridge)
    best = whole_loss(truth.network, subject.X, subject.Y, subject.ridge)
    check.add(_reproduces(truth, subject.X, subject.Y))
    check.assume("loss ≤ that of f*", own <= best * (1 + 1e-9), f"{own:.6g} and {best:.6g}")
    k, C = truth.known.rank, float(subject.known.get("C", truth.excess))
    check.compare(
        total / L,
        "≤",
        k + C / L,
        tolerance=rounding(subject.net) + 1e-9,
        where=f"k = {k}, C = {C:.4g}",
        trivial="follows from its hypotheses: a loss not above that of f* bounds the norm",
        details={"‖Ŵ‖²/L": [total / L], "‖θ*‖²/L": [parameter_norms(truth.network).per_depth]},
    )


def _reproduces(truth: Construction, X: Tensor, Y: Tensor) -> Hypothesis:
    gap = float((truth.network.trace(X).outputs - Y).abs().max()) / max(float(Y.abs().max()), 1e-300)
    return Hypothesis.of("y_i = f*(x_i)", gap <= SAME, f"relative difference {gap:.2g}")


def plane_to_learn() -> Subject:
    """300 points of the unit square and a linear map of rank 2 to ℝ³: depth 4, well above the threshold."""
    A = torch.tensor([[1.0, 0.2], [0.1, 1.0], [0.3, 0.3]], dtype=torch.float64)
    X = uniform_inputs(300, 2, 3)
    truth = positive_linear_network(A, 4)
    return Subject(truth.network, X, X @ A.mT, known={"truth": truth, "independent": True})


@claim(
    "C-rank-14",
    "For N > ((k+C/L)/c)^(kL/(2k−2)) the truth of rank k costs less than any fit of rank 1, whose R1 ≥ 2 log(TSP/diam)",
    paper="rank2023",
    where="After Prop. 5; bottleneck2023 §3.1",
    hypotheses=("f* of rank k > 1 as a network", "y_i = f*(x_i)", "independent inputs", "N above the threshold"),
    sample=plane_to_learn,
    relation="≤",
    rate=True,
)
def regime_of_recovery(check: Check, subject: Subject) -> None:
    """‖θ*‖²/L ≤ (TSP/diam)^{2/L}, the least ‖W‖²/L of rank 1; and C_N ≥ 2 log(TSP/diam) for actual fits, over N.

    C = ‖θ*‖² − kL is that of ``known["truth"]``; c is the largest with (TSP/diam)^{2/L} ≥ c·N^{(2/L)(1−1/k)} for the
    data and for an eighth, a quarter and half of it, or ``known["c"]``: estimated, so that the threshold marks a
    regime and no bound.
    """
    truth = subject.known.get("truth")
    if truth is None or subject.known.get("independent") is None:
        wanted = "known['truth'], known['independent']"
        check.not_applicable("needs f* as a construction, and whether inputs are i.i.d.", supply=wanted)
    k, L = truth.known.rank, truth.depth
    X = subject.X[some_rows(subject.X, PATH_POINTS)]
    Y = truth.network.trace(X).outputs
    sizes = [len(X) // 8, len(X) // 4, len(X) // 2, len(X)]
    check.assume("f* of rank k > 1 as a network", k > 1, f"k = {k}")
    check.add(
        Hypothesis.of("y_i = f*(x_i)", True, "computed")
        if subject.Y is None
        else _reproduces(truth, subject.X, subject.Y)
    )
    check.assume("independent inputs", bool(subject.known["independent"]))
    check.require()
    if sizes[0] < 2:
        check.assume("N above the threshold", None, f"{len(X)} samples")
        check.not_applicable()
    across = max(diameter(X), 1e-300)
    need = [shortest_path(Y[:n]).value / across for n in sizes]
    if min(need) <= 0:
        check.assume("N above the threshold", None, "outputs coincide")
        check.not_applicable()
    power = (2 / L) * (1 - 1 / k)
    c = float(subject.known.get("c", min(r ** (2 / L) / n**power for r, n in zip(need, sizes))))
    cost_of_truth = parameter_norms(truth.network).per_depth
    threshold = (cost_of_truth / c) ** (1 / power)
    check.assume("N above the threshold", len(X) > threshold, f"{len(X)} and {threshold:.4g}")
    check.require()
    constants = [rank_one(X[:n], Y[:n], max(L, 3)).known.details["norm_constant"] for n in sizes]
    growth = fit_exponent(sizes, need)
    check.compare(
        [cost_of_truth, *(2 * math.log(r) for r in need)],
        "≤",
        [need[-1] ** (2 / L), *constants],
        tolerance=rounding(truth.network),
        trivial=ABSENT,
        where=lambda i: f"norms over L, N = {len(X)}" if i == 0 else f"R1 of rank 1, N = {sizes[i - 1]}",
        details={
            "N": [float(n) for n in sizes],
            "C_N of a fit of rank 1": constants,
            "c and threshold": [c, threshold],
            "2(1−1/k) and twice the exponent of TSP/diam, with its interval": [
                2 * (1 - 1 / k),
                *(2 * e for e in growth.numbers),
            ],
        },
    )
