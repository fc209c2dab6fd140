"""The loss over weights, over representations and over covariances: three forms of one thing (features2022)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.claims._base import Check, Subject, claim
from isthmus.claims._evidence import gaussian_inputs, random_subject, seeded
from isthmus.constructions import minimal_network
from isthmus.measures import (
    KernelNorm,
    covariance_loss,
    covariances,
    inadmissibility,
    representation_cost_terms,
    representation_loss,
    representations,
    useless_part,
)
from isthmus.networks import FullyConnected
from isthmus.objective import cost
from isthmus.trace import Trace, activate, with_ones

#: Largest spread s_1/s_r of the Z^σ at which weights, and covariances (that know its square), are compared.
SPREAD, SPREAD_OF_COVARIANCES = 1e7, 1e4

#: Size of a representation below which its covariance is not known, and share of the largest singular value up to which
#: others are zero: clear of where the numerical rank of two nearly equal matrices would differ.
SMALLEST, ZERO = 1e-70, 1e-13

#: Samples of which N × N covariances are formed.
SAMPLES = 500

#: Distances at which the loss next to a violated inclusion is looked at.
DISTANCES = (1e-1, 1e-2, 1e-3, 1e-4)


def spread(trace: Trace, *, cut: float = 0.0) -> float:
    """The largest s_1/s_r of the Z^σ_0 … Z^σ_{L-1}, r their numerical ranks; ∞ where a square would underflow."""
    worst_one = 1.0
    for ell in range(trace.depth):
        norm = KernelNorm(trace.Z_sigma(ell), cut=cut)
        if norm.rank:
            worst_one = max(worst_one, float(norm.s[0] / norm.s[norm.rank - 1]))
    return math.inf if underflows(trace) else worst_one


def underflows(trace: Trace) -> bool:
    """Whether squares of a covariance's entries have no float64."""
    return any(0.0 < float(trace.Z(ell).abs().max()) < SMALLEST for ell in range(trace.depth + 1))


@dataclass(frozen=True)
class Cut:
    """A subject whose layers use only the singular directions of their inputs above a cut, and what that did.

    ``share`` is the cut: what is rounding where the network was well conditioned and is the subject's own.
    """

    subject: Subject
    share: float
    said: str


@torch.no_grad()
def well_conditioned(subject: Subject, most: float) -> Cut:
    """The subject itself if its spread is at most ``most``, else with W_ℓ made blind to singular values below 1/most.

    Front to back W_ℓ becomes W_ℓP, P onto the left singular vectors of Z^σ_{ℓ-1} above the cut; what the data do not
    see at all (below rounding) stays, as the useless part W̃_ℓ. The theorems are about any network, and judged of this.
    """
    trace, net = subject.trace(), subject.net
    if spread(trace, cut=ZERO) <= most:
        return Cut(subject, ZERO, f"s_1/s_r = {spread(trace, cut=ZERO):.2g}")
    Ws, bs, S = [], [], with_ones(subject.X.mT, net.bias)
    for ell in range(1, trace.depth + 1):
        W = trace.Ws[ell - 1]
        wide = W if net.bias == 0.0 else torch.cat([W, trace.bs[ell - 1][:, None]], 1)
        exact, coarse = KernelNorm(S), KernelNorm(S, cut=1.0 / most)
        U, seen = exact.U[:, : exact.rank], coarse.U[:, : coarse.rank]
        useless = wide - (wide @ U) @ U.mT
        wide = (wide @ seen) @ seen.mT
        Z = wide @ S
        wide = wide + useless
        Ws.append(wide if net.bias == 0.0 else wide[:, :-1].contiguous())
        if net.bias != 0.0:
            bs.append(wide[:, -1].contiguous())
        S = with_ones(activate(Z, net.slope), net.bias)
    made = FullyConnected.from_weights(Ws, bs or None, slope=net.slope, bias=net.bias).requires_grad_(False)
    moved = float((made.trace(subject.X).outputs - trace.outputs).norm() / trace.outputs.norm().clamp_min(1e-300))
    said = f"cut at 1/{most:.0e} of the largest singular value, which moves the outputs by {moved:.1g}"
    return Cut(subject.replace(net=made), 1.0 / most, said)


def conditioned_rows(subject: Subject, most: int) -> tuple[Subject, float, str]:
    """At most ``most`` rows, halved until covariances of them are known to enough digits; spread, and what was done."""
    while True:
        some, said = subject.drawn(most)
        # Between the two, no singular value: then none is near to what is taken for zero.
        wide, net = spread(some.trace(), cut=ZERO), some.net
        Zs = representations(net, some.X)
        terms = representation_cost_terms(Zs, some.X, slope=net.slope, bias=net.bias, cut=ZERO)
        # Those of a network are admissible: where they do not seem so, a value is too near to the cut.
        wide = wide if math.isfinite(sum(terms)) else math.inf
        if wide <= SPREAD_OF_COVARIANCES or len(some.X) <= 2:
            return some, wide, f"{said}, s_1/s_r = {wide:.2g}"
        most = len(some.X) // 2


def _targets(subject: Subject) -> tuple[Tensor, float, str]:
    """Y, ridge and loss; without them the outputs themselves and 1: the loss is then the representation cost."""
    if subject.Y is None or not subject.ridge:
        return subject.trace().outputs, 1.0, "mse"
    return subject.Y, subject.ridge, subject.loss


def loss_of(net: FullyConnected, X: Tensor, Y: Tensor, ridge: float, loss: str = "mse") -> float:
    """𝓛(W) = C + ridge·‖θ‖², in float64."""
    trace = net.trace(X)
    square = sum(float(p.square().sum()) for p in (*trace.Ws, *trace.bs))
    return float(cost(trace.outputs, Y, loss)) + ridge * square


def wide_net() -> Subject:
    """Depth 3, more neurons and inputs than samples: useless weights at every layer."""
    subject = random_subject([7, 9, 8, 3], samples=5, seed=61)
    return subject.replace(Y=gaussian_inputs(5, 3, 62), ridge=0.05)


@claim(
    "C-feat-1",
    "Φ(Ψ(Z)) = Z, 𝓛(Ψ(Z)) = 𝓛^r(Z), and 𝓛^r(Φ(W)) ≤ 𝓛(W), strictly where a part of W is useless to the data",
    paper="features2022",
    where="Prop. 1 and Prop. 16",
    hypotheses=("Im Z_ℓᵀ ⊂ Im(Z^σ_{ℓ-1})ᵀ", "well conditioned"),
    sample=wide_net,
)
def weights_and_representations(check: Check, subject: Subject) -> None:
    """Φ∘Ψ = id, 𝓛∘Ψ = 𝓛^r, 𝓛 − 𝓛^r∘Φ = λΣ‖W̃_ℓ‖² ≥ 0, each to rounding; without Y and ridge for the norm alone.

    The last equality, from ‖W‖² = ‖ΨΦW‖² + ‖W̃‖², says more than the paper's strictness: the gap, by another route.
    """
    judged = well_conditioned(subject, SPREAD)
    subject = judged.subject
    net, X = subject.net, subject.X
    trace = subject.trace()
    Y, ridge, loss = _targets(subject)
    Zs = representations(net, X)
    options = {"slope": net.slope, "bias": net.bias, "cut": judged.share}
    outside, wide = max(inadmissibility(Zs, X, **options)), spread(trace, cut=judged.share)
    over_Z = representation_loss(Zs, X, Y, ridge=ridge, loss=loss, **options)
    # Those of a network are: what is found outside is rounding.
    inside = outside <= 1e-8 and math.isfinite(over_Z)
    check.assume("Im Z_ℓᵀ ⊂ Im(Z^σ_{ℓ-1})ᵀ", inside or None, f"a share {outside:.2g} outside")
    check.assume("well conditioned", math.isfinite(wide) or None, judged.said)
    check.require()
    small = minimal_network(Zs, X, **options).requires_grad_(False)
    tolerance = max(1e-9, 1e-14 * wide)
    there, here = loss_of(small, X, Y, ridge, loss), loss_of(net, X, Y, ridge, loss)
    useless = useless_part(trace, cut=judged.share)
    places = [(there, over_Z, "𝓛(ΨZ) = 𝓛^r(Z)"), (over_Z + ridge * sum(useless), here, "𝓛 = 𝓛^r + λΣ‖W̃‖²")]
    for ell, (Z, back) in enumerate(zip(Zs, representations(small, X)), start=1):
        size = float(Z.norm())
        places.append((size + float((back - Z).norm()), size, f"Φ(Ψ(Z)) = Z at layer {ell}"))
    details = {"useless": list(useless), "loss": [here], "over representations": [over_Z]}
    check.each(places, "=", tolerance=tolerance, part="ΦΨ = id, 𝓛Ψ = 𝓛^r, the gap", details=details)
    # Strict by half of what is useless, where this is more than rounding.
    gap = 0.5 * ridge * sum(useless)
    strict = gap if gap > tolerance * here else 0.0
    check.compare(over_Z + strict, "≤", here, tolerance=tolerance, part="𝓛^r(ΦW) ≤ 𝓛(W)")


def homogeneity_defect(sigma: Callable[[Tensor], Tensor], Z: Tensor) -> float:
    """The larger of ‖σ(cZ) − cσ(Z)‖/‖cσ(Z)‖ at c = ½ and c = 3."""
    return max(
        float((sigma(c * Z) - c * sigma(Z)).norm() / (c * sigma(Z)).norm().clamp_min(1e-300)) for c in (0.5, 3.0)
    )


def leaky_wide_net() -> Subject:
    """Slope 0.2, depth 3."""
    subject = random_subject([6, 8, 8, 2], slope=0.2, samples=6, seed=63)
    return subject.replace(Y=gaussian_inputs(6, 2, 64), ridge=0.1)


@claim(
    "C-feat-3",
    "𝓛^k(K(Z), Z_L) = 𝓛^r(Z), and non-negative shares of the neurons give the covariances of a network of that loss",
    paper="features2022",
    where="Prop. 3 and Prop. 17",
    hypotheses=("positively homogeneous σ", "Im Z_ℓᵀ ⊂ Im(Z^σ_{ℓ-1})ᵀ", "well conditioned"),
    sample=leaky_wide_net,
)
def representations_and_covariances(check: Check, subject: Subject) -> None:
    """Tr[K_ℓ(K^σ_{ℓ-1})⁺] by eigenvalues against ‖Z_ℓ(Z^σ_{ℓ-1})⁺‖² by singular values; points of the cone realised.

    For shares m_i > 0 the pair Σm_i(z_iz_iᵀ, σ(z_i)σ(z_i)ᵀ) + (0, β²11ᵀ) has the same images, and rows √m_i·z_i realise
    it because σ is positively homogeneous: their network has these covariances, outputs Z_L and the loss 𝓛^k. The first
    half needs no homogeneity; ``known["activation"]`` names a σ to be judged in place of the network's own.
    """
    subject, wide, said = conditioned_rows(subject, SAMPLES)
    net, X = subject.net, subject.X
    Y, ridge, loss = _targets(subject)
    Zs = representations(net, X)
    options = {"slope": net.slope, "bias": net.bias}
    sigma = subject.known.get("activation") or (lambda Z: activate(Z, net.slope))
    defect = max((homogeneity_defect(sigma, Z) for Z in Zs[:-1]), default=0.0)
    outside = max(inadmissibility(Zs, X, **options, cut=ZERO))
    check.assume("positively homogeneous σ", defect <= 1e-12, f"σ(cz) off cσ(z) by {defect:.2g}")
    check.assume("Im Z_ℓᵀ ⊂ Im(Z^σ_{ℓ-1})ᵀ", outside <= 1e-8 or None, f"a share {outside:.2g} outside")
    check.assume("well conditioned", wide <= SPREAD_OF_COVARIANCES or None, said)
    check.require()
    options_of_loss = {"ridge": ridge, "loss": loss, "bias": net.bias}
    over_Z = representation_loss(Zs, X, Y, slope=net.slope, cut=ZERO, **options_of_loss)
    over_K = covariance_loss(covariances(Zs, **options), Zs[-1], X, Y, **options_of_loss)
    places = [(over_K, over_Z, "𝓛^k = 𝓛^r")]
    source = seeded(0)
    moved = list(Zs)
    for index, Z in enumerate(Zs[:-1]):
        shares = 0.5 + torch.rand(len(Z), dtype=torch.float64, generator=source)
        moved[index] = shares.sqrt()[:, None] * Z
        for name, mine, atoms in zip(("K", "K^σ"), covariances([moved[index], Z], **options)[0], (Z, sigma(Z))):
            cone = (shares * atoms.mT) @ atoms + (net.bias**2 if name == "K^σ" else 0.0)
            size, off = float(cone.norm()), float((mine - cone).norm())
            places.append((size + off, size, f"{name} of the shares at layer {index + 1}"))
    made = minimal_network(moved, X, **options, cut=ZERO).requires_grad_(False)
    there, over_K = loss_of(made, X, Y, ridge, loss), covariances(moved, **options)
    wanted = covariance_loss(over_K, Zs[-1], X, Y, **options_of_loss)
    places.append((there, wanted, "𝓛 of the network that realises the shares"))
    check.each(places, "=", tolerance=max(1e-9, 1e-14 * wide**2))


def deficient_layer() -> Subject:
    """Five neurons for nine samples: representations that their activations cannot give exist next to those they do."""
    subject = random_subject([4, 5, 2], samples=9, seed=65)
    return subject.replace(Y=gaussian_inputs(9, 2, 66), ridge=0.1)


@claim(
    "C-feat-14",
    "Next to a point where Im Z_{ℓ+1}ᵀ ⊄ Im(Z^σ_ℓ)ᵀ the loss 𝓛^r blows up: ‖Z̃_{ℓ+1}(Z̃^σ_ℓ)⁺‖ ≥ (‖Z_{ℓ+1}v‖ − ε)/ε",
    paper="features2022",
    where="App. B.1",
    hypotheses=("a violated inclusion at the limit point", "σ 1-Lipschitz"),
    sample=deficient_layer,
    relation="≥",
    erratum="Printed as (‖Z_{ℓ+1}v‖² − ε)/ε for the square; inserting vvᵀ does not lower a norm in general.",
)
def blow_up(check: Check, subject: Subject) -> None:
    """‖W̃_{ℓ+1}‖ ≥ (‖Z_{ℓ+1}v‖ − ε)/ε at admissible points at distance ε of one that is not, ε → 0.

    For W̃ = Z̃_{ℓ+1}(Z̃^σ_ℓ)⁺ and a unit v with Z^σ_ℓv = 0: W̃Z̃^σ_ℓv = Z̃_{ℓ+1}v, of norm at least ‖Z_{ℓ+1}v‖ − ε, while
    ‖Z̃^σ_ℓv‖ = ‖(Z̃^σ_ℓ − Z^σ_ℓ)v‖ ≤ ε. The limit points are those of the network with one more, dead, neuron at layer ℓ
    that keeps its share in Z_{ℓ+1}: incoming weights εw, outgoing u/ε; and such points disturbed at random.
    """
    net, trace = subject.net, subject.trace()
    check.assume("σ 1-Lipschitz", abs(net.slope) <= 1.0, f"slope {net.slope:g}")
    lhs, rhs, names = [], [], []
    source = seeded(0)
    found = []
    for ell in range(1, trace.depth):
        limit = _violation(trace, ell, source)
        if limit is None:
            continue
        z, v, u = limit
        found.append(ell)
        S, Z, after = trace.Z_sigma(ell), trace.Z(ell), trace.Z(ell + 1)
        target = after + u[:, None] * activate(z, net.slope)
        least = float((target @ v).norm())
        for epsilon in DISTANCES:
            for share in (0.0, 0.3):
                near = Z + share * epsilon * _unit(Z.shape, source)
                row = torch.cat([activate(near, net.slope), activate(epsilon * z, net.slope)[None], S[len(Z) :]])
                # Projected to what these activations give: admissible, and as near as can be.
                norm = KernelNorm(row)
                V = norm.Vh[: norm.rank]
                moved = (target @ V.mT) @ V
                distance = math.sqrt(
                    float((near - Z).square().sum() + (epsilon * z).square().sum() + (moved - target).square().sum())
                )
                lhs.append(float(norm.weights(moved).norm()))
                rhs.append((least - distance) / distance)
                names.append(f"layer {ell}, ε = {distance:.2g}")
    where = f"at layers {found}" if found else "every Z^σ_ℓ has rank N: all representations are admissible"
    check.assume("a violated inclusion at the limit point", bool(found), where)
    check.require()
    details = {"norm of W": lhs, "bound": rhs}
    made = "by construction: the points and their limit are made here, next to any layer of rank below N"
    check.compare(lhs, "≥", rhs, tolerance=1e-9, where=names, details=details, trivial=made)


def _violation(trace: Trace, ell: int, source: torch.Generator) -> tuple[Tensor, Tensor, Tensor] | None:
    """A unit z ∈ Im(Z^σ_{ℓ-1})ᵀ with σ(z) ∉ Im(Z^σ_ℓ)ᵀ, the unit v along the rest of σ(z), and a unit u."""
    norm, before = KernelNorm(trace.Z_sigma(ell)), trace.Z_sigma(ell - 1)
    V = norm.Vh[: norm.rank]
    if norm.rank == trace.samples:
        return None
    best: tuple[float, Tensor, Tensor] | None = None
    for w in torch.randn(20, len(before), dtype=torch.float64, generator=source):
        z = w @ before
        if float(z.norm()) == 0.0:
            continue
        z = z / z.norm()
        rest = activate(z, trace.slope)
        rest = rest - (rest @ V.mT) @ V
        # Again: v must be orthogonal to rounding, as it is divided by its length.
        rest = rest - (rest @ V.mT) @ V
        size = float(rest.norm())
        if best is None or size > best[0]:
            best = size, z, rest / max(size, 1e-300)
    if best is None or best[0] <= 1e-6:
        return None
    return best[1], best[2], _unit((trace.dims[ell + 1],), source)


def _unit(shape: tuple[int, ...], source: torch.Generator) -> Tensor:
    T = torch.randn(*shape, dtype=torch.float64, generator=source)
    return T / T.norm()
