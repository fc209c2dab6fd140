"""Local minima over weights and over covariances: where they differ (features2022 Prop. 18 and Prop. 19)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isthmus.claims.base import Hypothesis, Subject, Verdict, claim, compare, not_applicable, worst
from isthmus.claims.feature_descent import STEPS, Descent, flat, moved_network, preimages, search
from isthmus.claims.feature_maps import SPREAD_OF_COVARIANCES, loss_of, spread
from isthmus.claims.feature_samples import saddle_point
from isthmus.constructions import Saddle, saddle
from isthmus.measures import covariance_loss, covariances, ray_groups, representations
from isthmus.networks import FullyConnected

#: Parameters and samples up to which descent is searched for.
PARAMETERS, SAMPLES = 300, 64
#: Gradient relative to that of the ridge up to which a point without descent counts as stationary.
STATIONARY = 1e-6
#: Distances ε along the way out in units of √(1 − 2λ): there is descent up to √2.
OUT = (1e-3, 1e-2, 1e-1)
#: Descent relative to the loss that is told from rounding.
SEEN = 1e-13
#: What has to be so before descent is searched for.
SEARCHED = ("ridge > 0 given", "small and well conditioned", "preimages with other lengths along a ray")
#: Random weights at which the local minimum is looked at.
NEAR = 40


def distance_of_covariances(net: FullyConnected, other: FullyConnected, X: Tensor) -> float:
    """‖(K, K^σ, Z_L) − (K', K'^σ, Z'_L)‖ over the hidden layers."""
    first, second = (representations(one, X) for one in (net, other))
    square = float((first[-1] - second[-1]).square().sum())
    options = {"slope": net.slope, "bias": net.bias}
    for pair, pair_of_other in zip(covariances(first, **options), covariances(second, **options)):
        square += sum(float((K - M).square().sum()) for K, M in zip(pair, pair_of_other))
    return math.sqrt(square)


def loss_of_covariances(net: FullyConnected, subject: Subject) -> float:
    """𝓛^k at the covariances and outputs of a network."""
    Zs = representations(net, subject.X)
    Ks = covariances(Zs, slope=net.slope, bias=net.bias)
    ridge = float(subject.ridge or 0.0)
    return covariance_loss(Ks, Zs[-1], subject.X, subject.Y, ridge=ridge, loss=subject.loss, bias=net.bias)


def _as_saddle(subject: Subject) -> tuple[Saddle | None, list[Hypothesis]]:
    """The construction that the subject is, up to rounding."""
    names = ("λ < ½ (mean over 2 samples)", "the network of A-saddle")
    ridge, net = subject.ridge or 0.0, subject.net
    small = Hypothesis.of(names[0], 0.0 < ridge < 0.5, f"ridge {ridge:g}")
    if small.status != "met" or net.dims != (1, 2, 1) or net.slope != 0.0 or net.bias != 0.0 or subject.loss != "mse":
        return None, [small, Hypothesis.of(names[1], False, f"widths {net.dims}, slope {net.slope:g}, β {net.bias:g}")]
    a = net.Ws[0].detach().double().flatten()
    if subject.Y is None or subject.X.shape != (2, 1) or subject.Y.shape != (2, 1) or float(a.min()) <= 0.0:
        return None, [small, Hypothesis.of(names[1], False, "other data, or weights that are not positive")]
    made = saddle(ridge, angle=math.atan2(float(a[1]), float(a[0])))
    pairs = [(W.detach().double(), V) for W, V in zip(net.Ws, made.network.Ws)]
    off = max(float((P - Q).abs().max()) for P, Q in [*pairs, (subject.X, made.X), (subject.Y, made.Y)])
    return made, [small, Hypothesis.of(names[1], off <= 1e-10, f"weights and data off by {off:.2g}")]


@claim(
    "C-feat-9",
    "The weights of A-saddle are a local minimum of 𝓛 while their covariances are not one of 𝓛^k: W_2^ε = (√(1−λ), +ε) "
    "leads down from the end of their segment",
    paper="features2022",
    where="Prop. 19",
    hypotheses=("λ < ½ (mean over 2 samples)", "the network of A-saddle"),
    sample=saddle_point,
    erratum="Printed for the mean with the constants of the sum, and with −ε in W_2.",
)
def saddle_of_covariances(subject: Subject) -> Verdict:
    """𝓛 − 𝓛* = ½(t − 1 + 2λ)² + 4λd near the weights, and 𝓛^k < 𝓛* next to their covariances.

    The identity, t = W_2W_1 and 4d = ‖W_1 − W_2ᵀ‖², holds for positive weights, hence in a neighbourhood: it is the
    proof of the local minimum. The end of the segment has the same covariances, and the way out from there changes
    them continuously: 𝓛^k is lower by ε²(1 − 2λ) − ε⁴/2 at any distance ε < √(2 − 4λ).
    """
    made, hypotheses = _as_saddle(subject)
    if made is None or any(h.status != "met" for h in hypotheses):
        return not_applicable("C-feat-9", "=", hypotheses)
    X, Y, lam = made.X, made.Y, made.ridge
    lhs, rhs, names = [loss_of(subject.net, X, Y, lam, "mse")], [made.value], ["𝓛 at the weights"]
    a = subject.net.Ws[0].detach().double().flatten()
    source = torch.Generator().manual_seed(0)
    for step in (1e-2, 1e-1, 0.5):
        # All weights stay positive.
        for E in step * float(a.min()) * (2 * torch.rand(NEAR, 2, 2, dtype=torch.float64, generator=source) - 1):
            first, second = a + E[0], a + E[1]
            net = FullyConnected.from_weights([first[:, None], second[None]], bias=0.0)
            t, d = float(first @ second), float((first - second).square().sum()) / 4
            lhs.append(loss_of(net, X, Y, lam, "mse"))
            rhs.append(made.value + 0.5 * (t - 1 + 2 * lam) ** 2 + 4 * lam * d)
            names.append(f"𝓛 − 𝓛* as a sum of squares, at {step:g}")
    there = made.end
    lhs += [loss_of(there, X, Y, lam, "mse"), 1.0 + distance_of_covariances(subject.net, there, X)]
    rhs += [made.value, 1.0]
    names += ["𝓛 at the end of the segment", "covariances at the end of the segment"]
    lower, granted, distances = [], [], []
    # Half of the descent ε²(1 − 2λ) − ½ε⁴, to leave room for the rounding of eigenvalues.
    ways = [(e, -0.5 * e**2 * (1.0 - 2.0 * lam) + 0.25 * e**4) for e in (s * math.sqrt(1.0 - 2.0 * lam) for s in OUT)]
    ways = [(epsilon, change) for epsilon, change in ways if change < -SEEN * made.value]
    if not ways:
        return not_applicable("C-feat-9", "=", hypotheses, f"1 − 2λ = {1 - 2 * lam:.2g}: descent is below rounding")
    for epsilon, change in ways:
        there = made.escape(epsilon)
        lhs.append(loss_of(there, X, Y, lam, "mse"))
        rhs.append(made.value_along(epsilon))
        names.append(f"𝓛 along the way out, ε = {epsilon:g}")
        lower.append(loss_of_covariances(there, subject) - made.value)
        granted.append(change)
        distances.append(distance_of_covariances(there, subject.net, X))
    same = compare("C-feat-9", lhs, "=", rhs, tolerance=1e-13, hypotheses=hypotheses, where=lambda i: names[i])
    out = [epsilon for epsilon, _ in ways]
    details = {"ε": out, "change of 𝓛^k": lower, "distance of covariances": distances}
    descent = compare(
        "C-feat-9",
        lower,
        "≤",
        granted,
        tolerance=0.0,
        hypotheses=hypotheses,
        where=lambda i: f"𝓛^k next to the covariances, ε = {out[i]:g}",
        details=details,
    )
    near = compare(
        "C-feat-9",
        distances,
        "≤",
        [4.0 * epsilon**2 for epsilon in out],
        tolerance=0.0,
        hypotheses=hypotheses,
        where="distance of covariances",
    )
    return worst(same, descent, near)


@claim(
    "C-feat-13",
    "(K, Z_L) is a local minimum of 𝓛^k if, and only if, every Z with these covariances and outputs is one of 𝓛^r",
    paper="features2022",
    where="Prop. 18",
    hypotheses=(*SEARCHED, "a descent found, or stationary"),
    sample=saddle_point,
    rate=True,
)
def minima_of_covariances(subject: Subject) -> Verdict:
    """Descent next to one preimage is descent of 𝓛^k next to (K, Z_L); without it, 𝓛^k is not seen to fall either.

    Evidence, not proof: preimages are those with the same rays, some of them; that a preimage is a local minimum means
    that a search found no descent. A descent that is found, at steps down to 1e-5, is real.
    """
    net, X = subject.net, subject.X
    names = SEARCHED
    size = sum(p.numel() for p in net.parameters())
    wide = spread(subject.trace())
    few = size <= PARAMETERS and len(X) <= SAMPLES and wide <= SPREAD_OF_COVARIANCES
    groups = [ray_groups(Z, tolerance=1e-9) for Z in representations(net, X)[:-1]]
    spare = sum(n - len(g) for n, g in zip(net.dims[1:-1], groups))
    hypotheses = [
        Hypothesis.of(names[0], bool(subject.ridge) and subject.Y is not None),
        Hypothesis.of(names[1], few or None, f"{size} parameters, {len(X)} samples, s_1/s_r = {wide:.2g}"),
        Hypothesis.of(names[2], spare > 0, f"{spare} neurons more than rays"),
    ]
    if any(h.status != "met" for h in hypotheses):
        return not_applicable("C-feat-13", "≤", [*hypotheses, Hypothesis.of("a descent found, or stationary", None)])
    others = preimages(subject)
    here = loss_of_covariances(net, subject)
    apart = [distance_of_covariances(net, other, X) for other in others]
    descents = [search(other, subject) for other in others]
    # Steps that are too long for a steep loss show neither, and covariances see no change below their rounding.
    steep, rounding = max(one.gradient for one in descents), max(1e-8, 1e-14 * wide**2)
    found = [(i, one) for i, one in enumerate(descents) if one.found]
    clear = any(min(one.change) < -rounding for _, one in found) if found else steep <= STATIONARY
    what = f"{len(found)} of {len(others)} preimages with descent, gradient {steep:.2g} of the ridge's"
    hypotheses.append(Hypothesis.of("a descent found, or stationary", clear or None, what))
    if not clear:
        return not_applicable("C-feat-13", "≤", hypotheses)
    details = {
        "least change next to each preimage": [one.change[-1] for one in descents],
        "distance of its covariances": apart,
    }
    scale = 1.0 + distance_of_covariances(net, moved_network(net, flat(net), -1.0), X)
    same = compare(
        "C-feat-13",
        [scale + value for value in apart],
        "=",
        scale,
        tolerance=1e-9,
        hypotheses=hypotheses,
        where="covariances of the preimages",
        details=details,
    )
    return worst(_consequence(subject, others, descents, here, rounding, hypotheses), same)


def _consequence(
    subject: Subject,
    others: list[FullyConnected],
    descents: list[Descent],
    here: float,
    rounding: float,
    hypotheses: list[Hypothesis],
) -> Verdict:
    """𝓛^k falls with the preimage of steepest descent; or else nowhere next to any of them."""
    index = min(range(len(others)), key=lambda i: min(descents[i].change) if descents[i].found else math.inf)
    best = descents[index]
    if best.found:
        steps = [i for i, change in enumerate(best.change) if change < -rounding]
        size = float(flat(others[index]).norm())
        points = [moved_network(others[index], best.direction, STEPS[i] * size) for i in steps]
        return compare(
            "C-feat-13",
            [loss_of_covariances(point, subject) - here for point in points],
            "≤",
            # 𝓛^k ≤ 𝓛 there: half of the descent leaves room for the rounding of eigenvalues.
            [0.5 * best.change[i] * here for i in steps],
            tolerance=0.0,
            hypotheses=hypotheses,
            where=lambda i: f"preimage {index}, step {STEPS[steps[i]]:g}: (K, Z_L) is no local minimum",
            details={"distance of (K, Z_L)": [distance_of_covariances(p, subject.net, subject.X) for p in points]},
        )
    # A step at which new eigenvalues of the covariances, of its square, are above their rounding.
    middle = 1
    near = [
        moved_network(other, one.direction, STEPS[middle] * float(flat(other).norm()))
        for other, one in zip(others, descents)
        if one.change[middle] >= 0.0
    ]
    return compare(
        "C-feat-13",
        [loss_of_covariances(point, subject) for point in near],
        "≥",
        here,
        tolerance=rounding,
        hypotheses=hypotheses,
        where="no descent found next to any preimage, nor of 𝓛^k",
    )
