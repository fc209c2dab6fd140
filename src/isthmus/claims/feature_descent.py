"""Is a network a local minimum of the loss? Preimages of its covariances, and a search for descent next to each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.claims.base import Subject
from isthmus.constructions import minimal_network
from isthmus.measures import KernelNorm, ray_groups, representations
from isthmus.measures.forces import output_gradients
from isthmus.networks import FullyConnected
from isthmus.networks.fully_connected import propagate
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
    gradient : float
        ‖∇𝓛‖/‖2λθ‖.
    """

    change: tuple[float, ...]
    direction: Tensor
    found: bool
    gradient: float


def preimages(subject: Subject, count: int = 4) -> list[FullyConnected]:
    """Networks with the covariances and outputs of this one: lengths along each ray shared otherwise, by Ψ.

    The first has the subject's own representations; in the second every ray is one neuron and the others are dead; the
    others share at random, dead neurons included. Not all preimages: those with the same rays.
    """
    source = torch.Generator().manual_seed(0)
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
    moved = _split(net, flat(net) + step * shift)
    L = len(net.Ws)
    made = FullyConnected.from_weights(moved[:L], moved[L:] or None, slope=net.slope, bias=net.bias)
    return made.requires_grad_(False)


def flat(net: FullyConnected) -> Tensor:
    """All parameters as one float64 vector, (P,)."""
    return torch.cat([p.detach().double().flatten() for p in net.parameters()])


def losses(net: FullyConnected, subject: Subject, vectors: Tensor) -> Tensor:
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


def search(net: FullyConnected, subject: Subject) -> Descent:
    """The steepest of: the gradient, the most negative curvature, an awakened neuron, random directions."""
    theta = flat(net)
    size = max(float(theta.norm()), 1e-12)
    gradient = gradients(net, subject, theta)
    directions = _candidates(net, subject, theta, gradient, size)
    lengths = directions.norm(dim=1)
    directions = directions[lengths > 0.0] / lengths[lengths > 0.0][:, None]
    here = losses(net, subject, theta)
    changes = torch.stack([losses(net, subject, theta + step * size * directions) / here - 1.0 for step in STEPS])
    index = int(changes[-SHORTEST:].amax(0).argmin())
    change = tuple(float(c) for c in changes[:, index])
    steep = float(gradient.norm()) / (2.0 * float(subject.ridge or 0.0) * size)
    return Descent(change, directions[index], max(change[-SHORTEST:]) < -DECREASE, steep)


def gradients(net: FullyConnected, subject: Subject, vectors: Tensor) -> Tensor:
    """∇𝓛 at parameters (..., P)."""
    with torch.enable_grad():
        live = vectors.detach().clone().requires_grad_(True)
        return torch.autograd.grad(losses(net, subject, live).sum(), live)[0]


def _candidates(net: FullyConnected, subject: Subject, theta: Tensor, gradient: Tensor, size: float) -> Tensor:
    """Directions of descent worth trying, (D, P)."""
    # Differences of gradients, all in one batch: near kinks they see both sides, where a second derivative sees one.
    step = 1e-6 * size * torch.eye(len(theta), dtype=torch.float64)
    H = gradients(net, subject, theta + step) - gradients(net, subject, theta - step)
    lowest = torch.linalg.eigh(H + H.mT).eigenvectors[:, 0]
    source = torch.Generator().manual_seed(1)
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
