"""What steep and bent functions cost, and sequences of networks that diverge (bottleneck2023 §4.1, App. D)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from isthmus.claims._base import Check, Hypothesis, Subject, claim, rounding
from isthmus.claims._evidence import (
    Exponent,
    Points,
    bare_network,
    fit_exponent,
    gaussian_inputs,
    points_of,
    random_subject,
    relu_random_net,
    seeded,
)
from isthmus.constructions import Construction, divergent, rank_one
from isthmus.measures import ntk_trace, parameter_norms, top_eigenvalue
from isthmus.networks import FullyConnected

#: Entries of a Jacobian above which norms are bounded and not computed: hours and gigabytes otherwise.
LARGE = 10**6

#: Steps of power iteration towards the steepest direction; any direction gives a valid bound.
STEEPEST = 60


def partial_jacobians(found: Points, row: int) -> tuple[list[Tensor], list[Tensor]]:
    """J(x → α_ℓ) for ℓ = 0 … L−1 and J(α̃_ℓ → f) for ℓ = 1 … L, at one point."""
    Ws, L = found.trace.Ws, found.trace.depth
    inward = [torch.eye(Ws[0].shape[1], dtype=torch.float64)]
    for ell in range(1, L):
        inward.append(found.trace.derivative(ell)[row][:, None] * (Ws[ell - 1] @ inward[-1]))
    outward = [torch.eye(Ws[-1].shape[0], dtype=torch.float64)]
    for ell in range(L - 1, 0, -1):
        outward.append((outward[-1] @ Ws[ell]) * found.trace.derivative(ell)[row])
    return inward, outward[::-1]


def _steepest(J: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors (u, z) near the leading right and left singular vectors, by power iteration."""
    u = torch.ones(J.shape[1], dtype=J.dtype) / J.shape[1] ** 0.5
    for _ in range(STEEPEST):
        image = J.mT @ (J @ u)
        if float(image.norm()) == 0.0:
            break
        u = image / image.norm()
    z = J @ u
    return u, z / z.norm().clamp_min(1e-300)


def _sharpness_from_below(found: Points, row: int) -> float:
    """Σ_ℓ‖J_{ℓ-1}u‖²‖G_ℓᵀz‖², the quotient of ∂²_{xy}Θ(x,x) at uzᵀ: at most its norm, by products with vectors only.

    At the leading singular vectors it is at least L‖Jf(x)‖_op^(2−2/L), which is how the paper proves Prop. 9.
    """
    Ws, L = found.trace.Ws, found.trace.depth
    u, z = _steepest(found.J[row])
    inward = [u]
    for ell in range(1, L):
        inward.append(found.trace.derivative(ell)[row] * (Ws[ell - 1] @ inward[-1]))
    outward = [z]
    for ell in range(L - 1, 0, -1):
        outward.append((Ws[ell].mT @ outward[-1]) * found.trace.derivative(ell)[row])
    return sum(float(a.square().sum() * g.square().sum()) for a, g in zip(inward, outward[::-1]))


def _relu(subject: Subject) -> Hypothesis:
    return Hypothesis.of("ReLU", subject.net.slope == 0.0, f"slope {subject.net.slope:g}")


def steep_relu_net() -> Subject:
    """A ReLU network of depth 4 with samples near each other, so that some share their activation pattern."""
    subject = random_subject([4, 10, 10, 10, 3], seed=4)
    near = subject.X[:1] + 0.01 * gaussian_inputs(len(subject.X), 4, 9)
    return subject.replace(X=torch.cat([near[:16], subject.X[:16]]))


@claim(
    "C-bn-9",
    "‖∂²_xy Θ(x,x)‖_op ≥ L‖Jf(x)‖_op^(2−2/L); along a segment of one pattern max‖Θ‖_op ≥ (L/4)‖x−y‖²‖Jf(x)u‖^(2−2/L)",
    paper="bottleneck2023",
    where="Prop. 9 and Prop. 18",
    hypotheses=("ReLU", "x off the kinks"),
    sample=steep_relu_net,
    relation="≥",
    erratum="Printed with the constant 2L (scan) and for any slope; L, and ReLU only. Part 2 has L/4.",
)
def sharp_kernels(check: Check, subject: Subject) -> None:
    """Both parts, at every point and between every two points that share their activation pattern.

    Within a linear region Θ(x,y) = Σ_ℓ (⟨α_{ℓ-1}(x), α_{ℓ-1}(y)⟩ + β²) G_ℓ(x)G_ℓ(y)ᵀ with G_ℓ = J(α̃_ℓ → f), hence
    ∂²_{xy}Θ(x,x) = Σ_ℓ J_{ℓ-1}ᵀJ_{ℓ-1} ⊗ G_ℓG_ℓᵀ, an operator on matrices Z ↦ Σ_ℓ J_{ℓ-1}ᵀJ_{ℓ-1} Z G_ℓG_ℓᵀ. For large
    Jacobians its norm is replaced by a lower bound, which is on the safe side.
    """
    found = points_of(subject, points=6)
    check.add(_relu(subject), found.kink_hypothesis)
    L = found.trace.depth
    check.require()
    places, pairs = [], []
    for row in range(len(found.index)):
        sharpness = _sharpness_from_below if found.J[row].numel() > LARGE else _sharpness
        places.append((sharpness(found, row), L * float(found.s[row, 0].pow(2 - 2 / L)), found.name(row)))
    for row, other in _same_pattern(found):
        gap = found.trace.inputs[row] - found.trace.inputs[other]
        if float(gap.norm()) == 0.0:
            continue
        along = found.J[row] @ (gap / gap.norm())
        least = L / 4 * float(gap.square().sum() * along.norm().pow(2 - 2 / L))
        norm = max(_kernel_norm(found, row), _kernel_norm(found, other))
        pairs.append((norm, least, f"between {found.name(row)} and {found.name(other)}"))
    overflow = next((name for *sides, name in (*places, *pairs) if not all(map(math.isfinite, sides))), None)
    if overflow is not None:
        check.not_applicable(f"the kernel or its bound overflows float64 at {overflow}", cause="numerical")
    # Lanczos gives a lower bound of the eigenvalue, to 1e-6 of it.
    tolerance = rounding(subject.net) + 1e-5
    check.each(places, "≥", tolerance=tolerance, part="‖∂²Θ‖")
    check.each(pairs, "≥", tolerance=tolerance, part="along a segment of one pattern", assuming=check.names)


def _sharpness(found: Points, row: int) -> float:
    """‖∂²_{xy}Θ(x,x)‖_op by Lanczos."""
    inward, outward = partial_jacobians(found, row)
    A, B = [J.mT @ J for J in inward], [G @ G.mT for G in outward]
    shape = (len(A[0]), len(B[-1]))

    def apply(v: Tensor) -> Tensor:
        Z = v.reshape(shape)
        return torch.stack([a @ Z @ b for a, b in zip(A, B)]).sum(0).reshape(-1)

    return top_eigenvalue(apply, shape[0] * shape[1]).value


def _kernel_norm(found: Points, row: int) -> float:
    _, outward = partial_jacobians(found, row)
    sizes = [a[row].square().sum() + found.trace.bias**2 for a in found.trace.activations]
    Theta = torch.stack([size * G @ G.mT for size, G in zip(sizes, outward)]).sum(0)
    return float(torch.linalg.matrix_norm(Theta, 2))


def _same_pattern(found: Points) -> list[tuple[int, int]]:
    """Pairs of points with the same activation pattern; it is then that of the whole segment (regions are convex)."""
    if found.trace.depth == 1:
        patterns = torch.zeros(len(found.index), 1)
    else:
        patterns = torch.cat([found.trace.derivative(ell) for ell in range(1, found.trace.depth)], 1)
    pairs = []
    for row in range(len(patterns)):
        for other in range(row):
            if torch.equal(patterns[row], patterns[other]):
                pairs.append((row, other))
    return pairs


@claim(
    "C-bn-11",
    "‖θ‖² ≥ (L/2)(‖Jf(x)‖_(2/L)^(2/L) + ‖Jf(y)‖_(2/L)^(2/L)) + C⁻²‖Jf(x) − Jf(y)‖_*",
    paper="bottleneck2023",
    where="Prop. 13",
    hypotheses=("ReLU", "x off the kinks", "C ≥ every partial Jacobian at x and y"),
    sample=relu_random_net,
    relation="≥",
)
def price_of_bending(check: Check, subject: Subject) -> None:
    """What it costs that the Jacobian is not the same everywhere.

    C is the largest operator norm of J(x → α_ℓ) and J(α_ℓ → f) at the two points, unless ``known["C"]`` gives one; for
    large Jacobians an upper bound of it, which the claim allows.
    """
    found = points_of(subject, points=6)
    norms = parameter_norms(subject.net)
    L = len(norms.weights)
    partial = [_largest_partial(found, row) for row in range(len(found.index))]
    given = subject.known.get("C")
    enough = given is None or given >= max(partial, default=0.0)
    said = f"C {given}, largest {max(partial, default=0.0):.3g}" if given is not None else "computed"
    check.add(_relu(subject), found.kink_hypothesis)
    check.assume("C ≥ every partial Jacobian at x and y", enough, said)
    powers = found.powers(2 / L).sum(1)
    places = []
    for row in range(len(found.index)):
        for other in range(row):
            C = max(partial[row], partial[other]) if given is None else given
            bend = float(torch.linalg.svdvals(found.J[row] - found.J[other]).sum())
            least = L / 2 * float(powers[row] + powers[other]) + bend / C / C
            places.append((norms.total, least, f"{found.name(row)} and {found.name(other)}"))
    check.each(places, "≥", tolerance=rounding(subject.net))


def _largest_partial(found: Points, row: int) -> float:
    """Largest ‖J(x → α_ℓ)‖_op and ‖J(α_ℓ → f)‖_op, one Jacobian in memory at a time."""
    Ws, L = found.trace.Ws, found.trace.depth
    J = torch.eye(Ws[0].shape[1], dtype=torch.float64)
    largest = 1.0
    for ell in range(1, L):
        J = found.trace.derivative(ell)[row][:, None] * (Ws[ell - 1] @ J)
        largest = max(largest, _norm_from_above(J))
    G = Ws[L - 1]
    for ell in range(L - 1, -1, -1):
        # G is J(α_ℓ → f).
        largest = max(largest, _norm_from_above(G))
        if ell > 0:
            G = (G * found.trace.derivative(ell)[row]) @ Ws[ell - 1]
    return largest


def _norm_from_above(J: Tensor) -> float:
    """‖J‖_op, or for a large J ‖(JᵀJ)²‖_F^(1/4) ≥ ‖J‖_op, its Schatten 8-norm."""
    if J.numel() <= LARGE:
        return float(torch.linalg.matrix_norm(J, 2))
    square = J.mT @ J if J.shape[0] >= J.shape[1] else J @ J.mT
    return float((square @ square).norm()) ** 0.25


# ---- Sequences of networks: narrow minima of rank 1, and representations that diverge (bottleneck2023 §4.1, App. D)


#: Numbers of samples of the rank-1 fits, each drawn so many times.
SIZES, DRAWS = (8, 16, 32, 64), 3

#: Depths of Example 20, and that up to which every partial Jacobian is looked at.
DEPTHS, LOOKED_AT = (10, 100, 1000, 10_000), 1000

#: Exponents up to this are 0 and rounding.
FLAT = 1e-6


_FITS, _DEEP, _RANK, _DRAWN = "interpolators of bottleneck rank 1", "deep networks", "k* > 1", "independent inputs"


def rank_one_fits() -> Subject:
    """Interpolators through one dimension of a linear map of two, for growing numbers of samples."""
    source = seeded(71)
    A = gaussian_inputs(2, 3, 72)
    fits = []
    for N in SIZES:
        for _ in range(DRAWS):
            X = torch.rand(N, 2, generator=source, dtype=torch.float64)
            fits.append(Subject(rank_one(X, X @ A, 100, tries=8, generator=source).network, X, X @ A))
    last = fits[-1]
    return last.replace(known={"fits": fits, "k_star": 2, "independent": True})


@claim(
    "C-bn-10",
    "Tr Θ(x,x) ≥ c·L·e^(−c₁)·N^(4−4/k*) at some x, for a fit of bottleneck rank 1 and norm L + c₁ to N samples of a "
    "function of Jacobian rank k*",
    paper="bottleneck2023",
    where="Thm 10 and Thm 19",
    hypotheses=(_FITS, _DEEP, _RANK, _DRAWN),
    sample=rank_one_fits,
    relation="≥",
    rate=True,
)
def narrow_minima(check: Check, subject: Subject) -> None:
    """The exponent of Tr Θ·e^{c_1}/L in N is at least 4 − 4/k*: fitted, one-sided, its constant being unknown.

    c_1 grows with N. Where Tr Θ/L alone grows that fast, which is more than the theorem asks, that exponent is shown;
    else e^{c_1} is counted. The largest Tr Θ is looked for at the samples only, which gives less than the maximum.

    ``known["fits"]`` is a list of subjects, network and samples, for at least three N; ``known["k_star"]`` is k*, and
    ``known["independent"]`` says whether the inputs were drawn independently.
    """
    fits: Sequence[Subject] | None = subject.known.get("fits")
    k_star = subject.known.get("k_star")
    if fits is None or k_star is None or len({len(fit.X) for fit in fits}) < 3:
        wanted = "known['fits'], known['k_star'], known['independent']"
        check.not_applicable("needs fits of rank 1 for three N or more, and k*", supply=wanted)
    errors = [_misfit(fit) for fit in fits]
    widths = [min(fit.net.dims) for fit in fits]
    shares = [sum(n == 1 for n in fit.net.dims) / len(fit.net.dims) for fit in fits]
    check.assume(
        _FITS,
        max(errors) <= 1e-6 and max(widths) == 1,
        f"misfit {max(errors):.2g}, narrowest layers {min(widths)} to {max(widths)}",
    )
    check.assume(_DEEP, min(shares) >= 0.5, f"{min(shares):.0%} of the layers in the bottleneck, or more")
    check.assume(_RANK, k_star > 1, f"k* = {k_star}")
    check.assume(_DRAWN, subject.known.get("independent"), "said by the maker")
    logs = np.array([math.log(float(ntk_trace(fit.net, fit.X).max()) / fit.net.depth) for fit in fits])
    excess = np.array([parameter_norms(fit.net).total - fit.net.depth for fit in fits])
    sizes = [len(fit.X) for fit in fits]
    alone, whole = _growth(sizes, logs), _growth(sizes, logs + excess)
    rate = 4 - 4 / k_star
    shown = alone if alone.high >= rate else whole
    check.compare(
        shown.value,
        "≥",
        rate,
        tolerance=(shown.high - shown.value) / max(abs(shown.value), rate),
        where="exponent of Tr Θ/L" if shown is alone else "exponent of Tr Θ·e^c₁/L",
        details={"Tr Θ/L alone: exponent, low, high": alone.numbers, "with e^c₁": whole.numbers},
    )


def _misfit(fit: Subject) -> float:
    if fit.Y is None:
        return math.inf
    return float((fit.trace().outputs - fit.Y).norm() / fit.Y.norm().clamp_min(1e-300))


def _growth(sizes: Sequence[int], logs: np.ndarray) -> Exponent:
    """The exponent of values given by their logarithms; e^{c_1} has no float64."""
    unit = max(1.0, float(np.abs(logs).max()) / 500.0)
    fit = fit_exponent(sizes, np.exp(logs / unit).tolist())
    return Exponent(*(unit * number for number in fit.numbers))


_FUNCTION, _EVEN, _EXPONENT = "f = (x₁, x₂, x₃ + σ(x₁ − x₂)) on [0,1]³", "L even", "γ ∈ (½, 1)"


def example_20() -> Subject:
    """The network of depth 100 at γ = ¾, on the cube."""
    X = torch.rand(20, 3, generator=seeded(81), dtype=torch.float64)
    return Subject(divergent(100).network, X, known={"exponent": 0.75})


@claim(
    "C-bn-12",
    "f = (x₁, x₂, x₃ + σ(x₁ − x₂)) on [0,1]³ has R0 = 3 and R1 = 0, and no uniformly Lipschitz sequence of networks "
    "attains it",
    paper="bottleneck2023",
    where="App. D.1, Example 20",
    hypotheses=(_FUNCTION, _EVEN, _EXPONENT),
    sample=example_20,
    relation="≤",
    rate=True,
)
def diverging_representations(check: Check, subject: Subject) -> None:
    """‖θ‖² − 3L → 0, while C_L²·(‖θ‖² − 3L) ≥ ‖Jf(x) − Jf(y)‖_* (C-bn-11) lets Lipschitz constants C_L diverge.

    Three things, shown where they have least slack: the exponent of the excess in L, its upper end, is below 0; that of
    log(1 + S), S the largest activation, its lower end, above 0, since S grows like e^{L^(1−γ)/2} and no power of L;
    and the inequality at each depth up to 1000. C_L is the largest partial Jacobian at two points on either side of the
    kink, which is all that C-bn-11 needs. With γ near ½ or 1, depths up to 10,000 do not show the limit, and nothing is
    said.

    ``known["exponent"]`` is γ. ``known["family"]`` puts other networks of f in the place of those of Example 20.
    """
    gamma, given = subject.known.get("exponent"), subject.family(Construction, type(subject.net))
    if gamma is None or subject.X.shape[1] != 3:
        about, cube = "is about the networks of Example 20, on [0,1]³", subject.net.dims[0] == subject.net.dims[-1] == 3
        check.not_applicable(about, cause="" if cube else "kind", supply="known['exponent']" if cube else "")
    inside = check.assume(_EXPONENT, 0.5 < gamma < 1.0, f"γ = {gamma:g}")
    if given is None:
        given = [divergent(L, gamma) for L in DEPTHS] if inside else []
    family: list[FullyConnected] = sorted((bare_network(one) for one in given), key=lambda net: net.depth)
    # The corner is where the representations are largest.
    X = torch.cat([subject.X.clamp(0.0, 1.0), torch.ones(1, 3).double()])
    error = max(_example_error(net, X) for net in (*family, subject.net))
    depths = [net.depth for net in family]
    check.assume(_FUNCTION, error <= 1e-9, f"largest error {error:.2g}")
    check.assume(_EVEN, all(L % 2 == 0 for L in depths), f"depths {depths}")
    pair = _across_the_kink(X)
    check.require()
    if len(set(depths)) < 3 or len(pair) < 2:
        check.not_applicable("needs three depths or more, and samples on both sides of the kink", cause="network")
    excess = [parameter_norms(net).total - 3 * net.depth for net in family]
    scales = [max(float(a.abs().max()) for a in net.trace(X[-1:]).activations) for net in family]
    bounds = [_lipschitz_bound(net, pair) for net in family if net.depth <= LOOKED_AT]
    if not all(map(math.isfinite, bounds)):
        check.not_applicable("a point of the pair is at a kink of some network", cause="numerical")
    if not _shows(*_trends(depths, *_example_20(np.array(depths, dtype=np.float64), gamma))):
        why = f"depths {depths} do not show it at γ = {gamma:g}, not even by the formula of Example 20"
        check.not_applicable(why, cause="numerical")
    falls, grows = _trends(depths, excess, scales)
    # Exponents are numbers of the order of 1.
    ends = [falls.high + FLAT, FLAT - grows.low]
    names = ["exponent of the excess", "exponent of the scale"]
    check.compare(ends, "≤", 0.0, tolerance=0.0, scale=1.0, part="norms fall, representations grow", where=names)
    check.compare(
        bounds,
        "≤",
        excess[: len(bounds)],
        tolerance=rounding(family[0]),
        part="‖Jf(x) − Jf(y)‖_*/C² ≤ ‖θ‖² − 3L",
        where=[f"depth {L}" for L in depths],
        details={
            "depth": depths,
            "‖θ‖² − 3L": excess,
            "largest activation": scales,
            "exponent of the excess, low, high": falls.numbers,
            "exponent of log(1 + scale), low, high": grows.numbers,
        },
    )


def _trends(depths: Sequence[int], excess: Sequence[float], scales: Sequence[float]) -> tuple[Exponent, Exponent]:
    """Exponents of the excess and of log(1 + S) in L."""
    return fit_exponent(depths, excess), fit_exponent(depths, np.log1p(scales).tolist())


def _shows(falls: Exponent, grows: Exponent) -> bool:
    return falls.high <= -FLAT and grows.low >= FLAT


def _example_20(L: np.ndarray, gamma: float) -> tuple[list[float], list[float]]:
    """‖θ‖² − 3L and S of the networks of Example 20."""
    eps = L**-gamma
    S = np.exp((L / 2 - 1) * eps)
    excess = (L - 2) * (4 * np.sinh(eps) ** 2 + 2 * np.sinh(2 * eps) ** 2) + 2 * S**-2 + S**-4
    return excess.tolist(), S.tolist()


def _across_the_kink(X: Tensor) -> Tensor:
    """Two points with x₁ < x₂ and x₁ > x₂, (2, 3), empty if there are none: samples, moved strictly inside the cube.

    On its faces where a coordinate is 0, the networks have kinks.
    """
    X = 0.5 + 0.9 * (X - 0.5)
    gap = X[:, 0] - X[:, 1]
    low, high = (X[side][:1] for side in (gap < -0.05, gap > 0.05))
    return torch.cat([low, high]) if len(low) and len(high) else X[:0]


@torch.no_grad()
def _example_error(net: FullyConnected, X: Tensor) -> float:
    if (net.dims[0], net.dims[-1]) != (3, 3):
        return math.inf
    wanted = torch.cat([X[:, :2], X[:, 2:] + torch.relu(X[:, :1] - X[:, 1:2])], 1)
    return float((net(X) - wanted).abs().max())


def _lipschitz_bound(net: FullyConnected, pair: Tensor) -> float:
    """‖Jf(x) − Jf(y)‖_*/C²; NaN where one of the two is at a kink."""
    found = points_of(Subject(net, pair))
    if len(found.index) < 2:
        return math.nan
    C = max(_largest_partial(found, row) for row in range(len(found.index)))
    return float(torch.linalg.svdvals(found.J[0] - found.J[1]).sum()) / C / C
