"""Inside the bottleneck representations are non-negative, as the effective depth grows (hamiltonian2024, Prop. 5)."""

from __future__ import annotations

import math

import torch

from isthmus.claims.base import Hypothesis, Subject, Verdict, claim, compare, not_applicable, unmet
from isthmus.claims.evidence import fit_exponent, lacking
from isthmus.claims.leaky_points import ORDER_ROOM, Path, path_of
from isthmus.claims.leaky_samples import deepening_family
from isthmus.claims.path_stability import least_curvature, neuron_curvature

HYPOTHESES = (
    "a family by L̃",
    "critical points",
    "local minima",
    "no descent by an added neuron found",
    "∂_pA bounded near p₀",
)
#: Half-width of the neighbourhood of p₀.
NEAR = 0.1
#: Errors and shares below this are rounding.
SMALLEST = 1e-13
#: Exponent in L̃ up to which a series falls; a constant one does not.
FALLS = -1e-3


@claim(
    "C-ham-6",
    "For local minima with L̃ → ∞ and ‖∂_pA‖ bounded near p₀ the representation at p₀ tends to a non-negative one, and "
    "−(2/L̃)𝓗 and min_p‖A_p‖²_K to one integer",
    paper="hamiltonian2024",
    where="Prop. 5 and Prop. 9",
    hypotheses=HYPOTHESES,
    sample=deepening_family,
    erratum="Prop. 5 also needs minima that are stable under adding a neuron.",
    rate=True,
    about="a leaky ResNet",
)
def non_negative_inside(subject: Subject) -> Verdict:
    """‖[A_{p₀}]₋‖²/‖A_{p₀}‖² falls with L̃, and so do the distances of −(2/L̃)𝓗 and min_p‖A_p‖²_K from an integer.

    ``known["family"]`` has Subjects of growing L̃, ``known["p0"]`` is p₀ (½ unless given). That a member is a minimum is
    read off its Hessian (up to 600 parameters), its stability searched for: :func:`~isthmus.claims.path_stability`.
    Derivatives count as bounded if the whole interval of their exponent in L̃ does. As the statement is about the
    limit, the distances are judged by their fitted exponents, not one by one.
    """
    family: list[Subject] = sorted(subject.known.get("family", ()), key=lambda one: one.net.effective_depth)
    if not family:
        return lacking("C-ham-6", "≤", "needs known['family']: subjects of growing L̃")
    p0 = float(subject.known.get("p0", 0.5))
    depths = [one.net.effective_depth for one in family]
    unknown = [Hypothesis.of(name, None) for name in HYPOTHESES]
    unknown[0] = Hypothesis.of(HYPOTHESES[0], len(set(depths)) >= 3, f"L̃ = {', '.join(f'{d:g}' for d in depths)}")
    paths: list[Path] = []
    for one in family:
        path, found = path_of(one)
        if path is None:
            unknown[1] = Hypothesis.of(HYPOTHESES[1], False, f"L̃ = {one.net.effective_depth:g}: {unmet(found)}")
            return not_applicable("C-ham-6", "≤", unknown)
        paths.append(path)
    unknown[1] = Hypothesis.of(HYPOTHESES[1], True, f"residuals up to {max(path.residual for path in paths):.2g}")
    if unknown[0].status != "met":
        return not_applicable("C-ham-6", "≤", unknown)
    curved = [least_curvature(one) for one in family]
    known = [value for value in curved if value is not None]
    least = min(known, default=math.nan)
    minima = None if len(known) < len(family) else least > 0
    unknown[2] = Hypothesis.of(HYPOTHESES[2], minima, f"least curvature {least:.3g} of the ridge's")
    neuron = min(neuron_curvature(path) for path in paths)
    unknown[3] = Hypothesis.of(HYPOTHESES[3], neuron >= -1e-9, f"least change {neuron:.3g}")
    speeds = [_speed(path, p0) for path in paths]
    rate = fit_exponent(depths, [max(speed, SMALLEST) for speed in speeds])
    # With few members the interval is wide, and says neither.
    bounded = True if rate.high <= ORDER_ROOM else False if rate.low > 0 else None
    found = f"‖∂_pA‖/‖A‖ from {speeds[0]:.3g} to {speeds[-1]:.3g}, exponent in L̃ from {rate.low:.2g} to {rate.high:.2g}"
    unknown[4] = Hypothesis.of(HYPOTHESES[4], bounded, found)
    return _falling(paths, depths, p0, unknown)


def _falling(paths: list[Path], depths: list[float], p0: float, hypotheses: list[Hypothesis]) -> Verdict:
    shares = [negative_share(path, p0) for path in paths]
    ranks = [
        -2.0 / path.L_tilde * float(torch.tensor(path.hamiltonians(), dtype=torch.float64).median()) for path in paths
    ]
    costs = [min(step.norm.square(step.A) for step in path.steps()) for path in paths]
    integer = round(ranks[-1])
    series = {
        "negative share at p₀": shares,
        f"distance of −(2/L̃)𝓗 from {integer}": [abs(value - integer) for value in ranks],
    }
    if all(math.isfinite(value) for value in costs):
        series[f"distance of min ‖A‖²_K from {integer}"] = [abs(value - integer) for value in costs]
    rates = {
        what: fit_exponent(depths, [max(value, SMALLEST) for value in values])
        for what, values in series.items()
        if max(values) > SMALLEST
    }
    names = [f"{what}: exponent in L̃" for what in series]
    return compare(
        "C-ham-6",
        # What is rounding from the start cannot fall further.
        [rates[what].value if what in rates else -math.inf for what in series],
        "≤",
        FALLS,
        tolerance=0.0,
        hypotheses=hypotheses,
        where=lambda i: names[i],
        details={"L̃": depths, **series, **{f"exponent of {what}": rate.numbers for what, rate in rates.items()}},
    )


def _nearest(path: Path, p0: float) -> int:
    return int((path.trace.positions - p0).abs().argmin())


def negative_share(path: Path, p0: float) -> float:
    """‖[A]₋‖²/‖A‖² at the position nearest to p₀."""
    A = path.trace.A(_nearest(path, p0))
    return float(A.clamp_max(0.0).square().sum() / A.square().sum().clamp_min(1e-300))


def _speed(path: Path, p0: float) -> float:
    """Largest ‖∂_pA‖/‖A‖ over the steps near p₀."""
    trace = path.trace
    near = [ell for ell in range(1, trace.depth + 1) if abs(float(trace.positions[ell]) - p0) <= NEAR]
    chosen = near or [max(1, _nearest(path, p0))]
    return max(float(trace.derivative(ell).norm() / trace.A(ell).norm().clamp_min(1e-300)) for ell in chosen)
