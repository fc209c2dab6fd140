"""Local minima over weights and over covariances: where they differ, by a search for descent next to each."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.claims._base import Check, Subject, claim
from isthmus.claims._evidence import ridge_given, seeded
from isthmus.claims.features2022._maps import SPREAD_OF_COVARIANCES, loss_of, spread
from isthmus.constructions import Saddle, minimal_network, saddle
from isthmus.measures import KernelNorm, covariance_loss, covariances, ray_groups, representations
from isthmus.measures._forces import output_gradients
from isthmus.networks import FullyConnected
from isthmus.networks._fully_connected import propagate
from isthmus.objective import cost
from isthmus.trace import Trace, activate, activation_derivative

#: Lengths of the steps, as shares of ‖θ‖, and how many of the shortest a descent must show at: next to the point.
STEPS, SHORTEST = (1e-2, 1e-3, 1e-4, 1e-5), 2

#: Decrease of the loss, as a share, that is not rounding.
DECREASE = 1e-12

#: Random directions, starts of the search for a neuron, and its steps.
DIRECTIONS, STARTS, ASCENT = 60, 12, 40


@dataclass(frozen=True, eq=False)
class Descent:
    """The best that was found next to one network.

    Attributes
    ----------
    change : tuple of float
        Relative change of the loss at each of ``STEPS`` along the direction with the lowest at the shortest.
    direction : Tensor (P,)
        Of unit length, in the order of the parameters.
    found : bool
        Whether the loss falls at the shortest steps.
    """

    change: tuple[float, ...]
    direction: Tensor
    found: bool


def preimages(subject: Subject, count: int = 4) -> list[FullyConnected]:
    """Networks with the covariances and outputs of this one: lengths along each ray shared otherwise, by Ψ.

    The first has the subject's own representations; in the second every ray is one neuron and the others are dead; the
    others share at random, dead neurons included. Not all preimages: those with the same rays.
    """
    source = seeded(0)
    Zs = representations(subject.net, subject.X)
    made = []
    for number in range(count):
        moved = [Z if number == 0 else _shared(Z, number, source) for Z in Zs[:-1]]
        net = minimal_network([*moved, Zs[-1]], subject.X, slope=subject.net.slope, bias=subject.net.bias)
        made.append(net.requires_grad_(False))
    return made


def _shared(Z: Tensor, number: int, source: torch.Generator) -> Tensor:
    groups = ray_groups(Z, tolerance=1e-9)
    taken = {int(k) for group in groups for k in group}
    dead = [k for k in range(len(Z)) if k not in taken]
    moved = torch.zeros_like(Z)
    for index, group in enumerate(groups):
        slots = [int(k) for k in group]
        # Each dead neuron goes to one ray, in turn.
        slots += dead[index :: len(groups)] if number > 1 else []
        length = Z[group].norm()
        shares = torch.rand(len(slots), dtype=torch.float64, generator=source)
        if number == 1:
            shares = torch.eye(len(slots), dtype=torch.float64)[0]
        direction = Z[slots[0]] / Z[slots[0]].norm()
        moved[slots] = length * (shares / shares.sum()).sqrt()[:, None] * direction
    return moved


def moved_network(net: FullyConnected, shift: Tensor, step: float) -> FullyConnected:
    """The network with parameters θ + step·shift, both as one vector."""
    moved = _split(net, flattened(net) + step * shift)
    L = len(net.Ws)
    made = FullyConnected.from_weights(moved[:L], moved[L:] or None, slope=net.slope, bias=net.bias)
    return made.requires_grad_(False)


def flattened(net: FullyConnected) -> Tensor:
    """All parameters as one float64 vector, (P,)."""
    return torch.cat([p.detach().double().flatten() for p in net.parameters()])


def losses_at(net: FullyConnected, subject: Subject, vectors: Tensor) -> Tensor:
    """𝓛 at parameters (..., P) of networks like ``net``, (...)."""
    assert subject.Y is not None and subject.ridge is not None
    parts, L = _split(net, vectors), len(net.Ws)
    preactivations, _ = propagate(parts[:L], parts[L:], subject.X, slopes=net.slopes, bias=net.bias)
    outputs = preactivations[-1]
    targets = subject.Y.expand(*outputs.shape[:-2], *subject.Y.shape)
    return cost(outputs, targets, subject.loss) + subject.ridge * vectors.square().sum(-1)


def _split(net: FullyConnected, vectors: Tensor) -> list[Tensor]:
    parts = vectors.split([p.numel() for p in net.parameters()], dim=-1)
    return [part.reshape(*vectors.shape[:-1], *p.shape) for part, p in zip(parts, net.parameters())]


def search_descent(net: FullyConnected, subject: Subject) -> Descent:
    """The steepest of: the gradient, the most negative curvature, an awakened neuron, random directions."""
    theta = flattened(net)
    size = max(float(theta.norm()), 1e-12)
    gradient = gradients_at(net, subject, theta)
    directions = _candidates(net, subject, theta, gradient, size)
    lengths = directions.norm(dim=1)
    directions = directions[lengths > 0.0] / lengths[lengths > 0.0][:, None]
    here = losses_at(net, subject, theta)
    changes = torch.stack([losses_at(net, subject, theta + step * size * directions) / here - 1.0 for step in STEPS])
    index = int(changes[-SHORTEST:].amax(0).argmin())
    change = tuple(float(c) for c in changes[:, index])
    return Descent(change, directions[index], max(change[-SHORTEST:]) < -DECREASE)


def gradients_at(net: FullyConnected, subject: Subject, vectors: Tensor) -> Tensor:
    """∇𝓛 at parameters (..., P)."""
    with torch.enable_grad():
        live = vectors.detach().clone().requires_grad_(True)
        return torch.autograd.grad(losses_at(net, subject, live).sum(), live)[0]


def _candidates(net: FullyConnected, subject: Subject, theta: Tensor, gradient: Tensor, size: float) -> Tensor:
    """Directions of descent worth trying, (D, P)."""
    # Differences of gradients, all in one batch: near kinks they see both sides, where a second derivative sees one.
    step = 1e-6 * size * torch.eye(len(theta), dtype=torch.float64)
    H = gradients_at(net, subject, theta + step) - gradients_at(net, subject, theta - step)
    lowest = torch.linalg.eigh(H + H.mT).eigenvectors[:, 0]
    source = seeded(1)
    random = torch.randn(DIRECTIONS, len(gradient), dtype=torch.float64, generator=source)
    return torch.cat([torch.stack([-gradient, lowest, -lowest]), random, *awakenings(net, subject, source)])


def awakenings(net: FullyConnected, subject: Subject, source: torch.Generator) -> list[Tensor]:
    """For each dead neuron of no weights, weights (w, v) with the largest −⟨∂C/∂Z_{ℓ+1}, vσ(wZ^σ_{ℓ-1})⟩.

    At ‖v‖ = ‖w‖ = ε, v along −(∂C/∂Z_{ℓ+1})σ(wZ^σ_{ℓ-1})ᵀ, the loss changes by ε²(2λ − ‖(∂C/∂Z_{ℓ+1})σ(ŵZ^σ_{ℓ-1})ᵀ‖),
    ŵ = w/‖w‖: no other parameter has to move, and no gradient shows it. Each is (1, P).
    """
    trace = net.trace(subject.X)
    gradients = output_gradients(trace, subject.Y, subject.loss)
    found = []
    for ell in range(1, trace.depth):
        dead = [
            k for k in range(trace.dims[ell]) if float(trace.Ws[ell - 1][k].norm() + trace.Ws[ell][:, k].norm()) == 0.0
        ]
        if not dead:
            continue
        w = _loudest(trace, ell, gradients[ell], source)
        v = -gradients[ell] @ activate(w @ trace.Z_sigma(ell - 1), net.slope)
        if float(v.norm()) == 0.0:
            continue
        direction = [torch.zeros_like(p) for p in (*trace.Ws, *trace.bs)]
        width = trace.dims[ell - 1]
        direction[ell - 1][dead[0]] = w[:width]
        direction[ell][:, dead[0]] = v / v.norm()
        if net.bias != 0.0:
            direction[trace.depth + ell - 1][dead[0]] = w[width]
        found.append(torch.cat([d.flatten() for d in direction])[None])
    return found


def _loudest(trace: Trace, ell: int, G: Tensor, source: torch.Generator) -> Tensor:
    """A unit w with a large ‖Gσ(wZ^σ_{ℓ-1})ᵀ‖, by ascent on the sphere from random starts and single samples."""
    S = trace.Z_sigma(ell - 1)
    starts = torch.randn(STARTS, len(S), dtype=torch.float64, generator=source)
    w = torch.cat([starts, KernelNorm(S).weights(torch.eye(S.shape[1], dtype=torch.float64)), S.mT, -S.mT])
    w = w / w.norm(dim=1, keepdim=True).clamp_min(1e-300)
    best, value = w[0], -1.0
    for _ in range(ASCENT):
        Z = w @ S
        out = activate(Z, trace.slope) @ G.mT
        sizes = out.norm(dim=1)
        index = int(sizes.argmax())
        if float(sizes[index]) > value:
            best, value = w[index], float(sizes[index])
        # σ is homogeneous: the gradient of ½‖Gσ(wS)ᵀ‖² is a power step, without a length to choose.
        w = (activation_derivative(Z, trace.slope) * (out @ G)) @ S.mT + 1e-3 * w
        w = w / w.norm(dim=1, keepdim=True).clamp_min(1e-300)
    return best


# ---- Local minima over weights and over covariances: where they differ (features2022 Prop. 18 and Prop. 19)


#: Parameters and samples up to which descent is searched for.
PARAMETERS, SAMPLES = 300, 64

#: Distances ε along the way out in units of √(1 − 2λ): there is descent up to √2.
OUT = (1e-3, 1e-2, 1e-1)

#: Descent relative to the loss that counts as more than rounding.
SEEN = 1e-13

#: What has to be so before descent is searched for.
SEARCHED = ("ridge > 0 given", "small and well conditioned", "preimages with other lengths along a ray")

#: Random weights at which the local minimum is looked at.
NEAR = 40

SMALL_RIDGE, A_SADDLE = "λ < ½ (mean over 2 samples)", "the network of A-saddle"


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


def _as_saddle(check: Check, subject: Subject) -> Saddle:
    """The construction that the subject is, up to rounding; of others nothing is said."""
    ridge, net = subject.ridge or 0.0, subject.net
    small = check.assume(SMALL_RIDGE, 0.0 < ridge < 0.5, f"ridge {ridge:g}")
    if not small or net.dims != (1, 2, 1) or net.slope != 0.0 or net.bias != 0.0 or subject.loss != "mse":
        check.assume(A_SADDLE, False, f"widths {net.dims}, slope {net.slope:g}, β {net.bias:g}")
        check.not_applicable()
    a = net.Ws[0].detach().double().flatten()
    if subject.Y is None or subject.X.shape != (2, 1) or subject.Y.shape != (2, 1) or float(a.min()) <= 0.0:
        check.assume(A_SADDLE, False, "other data, or weights that are not positive")
        check.not_applicable()
    made = saddle(ridge, angle=math.atan2(float(a[1]), float(a[0])))
    pairs = [(W.detach().double(), V) for W, V in zip(net.Ws, made.network.Ws)]
    off = max(float((P - Q).abs().max()) for P, Q in [*pairs, (subject.X, made.X), (subject.Y, made.Y)])
    check.assume(A_SADDLE, off <= 1e-10, f"weights and data off by {off:.2g}")
    check.require()
    return made


def saddle_point() -> Subject:
    """Prop. 19's weights, in the middle of their segment of local minima."""
    made = saddle(0.2)
    return Subject(made.network, made.X, made.Y, made.ridge)


@claim(
    "C-feat-9",
    "The weights of A-saddle are a local minimum of 𝓛 while their covariances are not one of 𝓛^k: W_2^ε = (√(1−λ), +ε) "
    "leads down from the end of their segment",
    paper="features2022",
    where="Prop. 19",
    hypotheses=(SMALL_RIDGE, A_SADDLE),
    sample=saddle_point,
    erratum="Printed for the mean with the constants of the sum, and with −ε in W_2.",
)
def saddle_of_covariances(check: Check, subject: Subject) -> None:
    """𝓛 − 𝓛* = ½(t − 1 + 2λ)² + 4λd near the weights, and 𝓛^k < 𝓛* next to their covariances.

    The identity, t = W_2W_1 and 4d = ‖W_1 − W_2ᵀ‖², holds for positive weights, hence in a neighbourhood: it is the
    proof of the local minimum. The end of the segment has the same covariances, and the way out from there changes
    them continuously: 𝓛^k is lower by ε²(1 − 2λ) − ε⁴/2 at any distance ε < √(2 − 4λ).
    """
    made = _as_saddle(check, subject)
    X, Y, lam = made.X, made.Y, made.ridge
    places = [(loss_of(subject.net, X, Y, lam), made.value, "𝓛 at the weights")]
    a = subject.net.Ws[0].detach().double().flatten()
    source = seeded(0)
    for step in (1e-2, 1e-1, 0.5):
        # All weights stay positive.
        for E in step * float(a.min()) * (2 * torch.rand(NEAR, 2, 2, dtype=torch.float64, generator=source) - 1):
            first, second = a + E[0], a + E[1]
            net = FullyConnected.from_weights([first[:, None], second[None]], bias=0.0)
            t, d = float(first @ second), float((first - second).square().sum()) / 4
            squares = made.value + 0.5 * (t - 1 + 2 * lam) ** 2 + 4 * lam * d
            places.append((loss_of(net, X, Y, lam), squares, f"𝓛 − 𝓛* as a sum of squares, at {step:g}"))
    there = made.end
    places.append((loss_of(there, X, Y, lam), made.value, "𝓛 at the end of the segment"))
    apart = distance_of_covariances(subject.net, there, X)
    places.append((1.0 + apart, 1.0, "covariances at the end of the segment"))
    lower, granted, distances = [], [], []
    # Half of the descent ε²(1 − 2λ) − ½ε⁴, to leave room for the rounding of eigenvalues.
    ways = [(e, -0.5 * e**2 * (1.0 - 2.0 * lam) + 0.25 * e**4) for e in (s * math.sqrt(1.0 - 2.0 * lam) for s in OUT)]
    ways = [(epsilon, change) for epsilon, change in ways if change < -SEEN * made.value]
    if not ways:
        check.not_applicable(f"1 − 2λ = {1 - 2 * lam:.2g}: descent is below rounding", cause="numerical")
    for epsilon, change in ways:
        there = made.escape(epsilon)
        name = f"𝓛 along the way out, ε = {epsilon:g}"
        places.append((loss_of(there, X, Y, lam), made.value_along(epsilon), name))
        lower.append(loss_of_covariances(there, subject) - made.value)
        granted.append(change)
        distances.append(distance_of_covariances(there, subject.net, X))
    check.each(places, "=", tolerance=1e-13, part="a local minimum of 𝓛")
    out = [epsilon for epsilon, _ in ways]
    details = {"ε": out, "change of 𝓛^k": lower, "distance of covariances": distances}
    check.compare(
        lower,
        "≤",
        granted,
        tolerance=0.0,
        part="𝓛^k falls next to the covariances",
        where=lambda i: f"ε = {out[i]:g}",
        details=details,
    )
    near = [4.0 * epsilon**2 for epsilon in out]
    check.compare(distances, "≤", near, tolerance=0.0, part="distance of covariances")


@claim(
    "C-feat-13",
    "(K, Z_L) is a local minimum of 𝓛^k if, and only if, every Z with these covariances and outputs is one of 𝓛^r",
    paper="features2022",
    where="Prop. 18",
    hypotheses=(*SEARCHED, "a descent found, or stationary"),
    sample=saddle_point,
    relation="≤",
    rate=True,
)
def minima_of_covariances(check: Check, subject: Subject) -> None:
    """Descent next to one preimage is descent of 𝓛^k next to (K, Z_L); without it, 𝓛^k is not seen to fall either.

    Evidence, not proof: preimages are those with the same rays, some of them; that a preimage is a local minimum means
    that a search found no descent. A descent that is found, at steps down to 1e-5, is real.
    """
    net, X = subject.net, subject.X
    size = sum(p.numel() for p in net.parameters())
    wide = spread(subject.trace())
    few = size <= PARAMETERS and len(X) <= SAMPLES and wide <= SPREAD_OF_COVARIANCES
    groups = [ray_groups(Z, tolerance=1e-9) for Z in representations(net, X)[:-1]]
    spare = sum(n - len(g) for n, g in zip(net.dims[1:-1], groups))
    check.add(ridge_given(subject))
    check.assume(SEARCHED[1], few or None, f"{size} parameters, {len(X)} samples, s_1/s_r = {wide:.2g}")
    check.assume(SEARCHED[2], spare > 0, f"{spare} neurons more than rays")
    check.require()
    others = preimages(subject)
    here = loss_of_covariances(net, subject)
    apart = [distance_of_covariances(net, other, X) for other in others]
    descents = [search_descent(other, subject) for other in others]
    # Steps that are too long for a steep loss show neither, and covariances see no change below their rounding.
    rounding = max(1e-8, 1e-14 * wide**2)
    found = [(i, one) for i, one in enumerate(descents) if one.found]
    certificates = [] if found else [subject.replace(net=other).stationarity for other in others]
    still = all(one is not None and one.stationary for one in certificates)
    clear = any(min(one.change) < -rounding for _, one in found) if found else still
    what = f"{len(found)} of {len(others)} preimages with descent"
    if certificates:
        what += f", residual {max(one.residual for one in certificates if one is not None):.2g} of the ridge's force"
    check.assume("a descent found, or stationary", clear or None, what)
    check.require()
    _consequence(check, subject, others, descents, here, rounding)
    details = {
        "least change next to each preimage": [one.change[-1] for one in descents],
        "distance of its covariances": apart,
    }
    scale = 1.0 + distance_of_covariances(net, moved_network(net, flattened(net), -1.0), X)
    errors = [value / scale for value in apart]
    check.vanish(errors, tolerance=1e-9, part="covariances of the preimages", details=details)


def _consequence(
    check: Check,
    subject: Subject,
    others: list[FullyConnected],
    descents: list[Descent],
    here: float,
    rounding: float,
) -> None:
    """𝓛^k falls with the preimage of steepest descent; or else nowhere next to any of them."""
    index = min(range(len(others)), key=lambda i: min(descents[i].change) if descents[i].found else math.inf)
    best = descents[index]
    if best.found:
        size = float(flattened(others[index]).norm())
        near = [moved_network(others[index], best.direction, step * size) for step in STEPS]
        # New directions of the covariances may be too weak to be known.
        wide = [spread(point.trace(subject.X)) for point in near]
        steps = [i for i, change in enumerate(best.change) if change < -rounding and wide[i] <= SPREAD_OF_COVARIANCES]
        points = [near[i] for i in steps]
        check.compare(
            [loss_of_covariances(point, subject) - here for point in points],
            "≤",
            # 𝓛^k ≤ 𝓛 there: half of the descent leaves room for the rounding of eigenvalues.
            [0.5 * best.change[i] * here for i in steps],
            tolerance=0.0,
            part="descent of 𝓛^k",
            where=lambda i: f"preimage {index}, step {STEPS[steps[i]]:g}: (K, Z_L) is no local minimum",
            details={"distance of (K, Z_L)": [distance_of_covariances(p, subject.net, subject.X) for p in points]},
        )
        return
    # A step at which new eigenvalues of the covariances, of its square, are above their rounding.
    middle = 1
    near = [
        moved_network(other, one.direction, STEPS[middle] * float(flattened(other).norm()))
        for other, one in zip(others, descents)
        if one.change[middle] >= 0.0
    ]
    near = [point for point in near if spread(point.trace(subject.X)) <= SPREAD_OF_COVARIANCES]
    check.compare(
        [loss_of_covariances(point, subject) for point in near],
        "≥",
        here,
        tolerance=rounding,
        part="no descent found next to any preimage, nor of 𝓛^k",
    )
