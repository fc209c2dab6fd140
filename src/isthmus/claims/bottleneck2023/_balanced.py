"""What balancedness bounds through depth: activations, and the rank of representations (bottleneck2023 §4)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isthmus.claims._base import Check, Subject, claim, rounding
from isthmus.claims._evidence import Points, gaussian_inputs, points_of
from isthmus.compression import rebalance
from isthmus.constructions import positive_linear_network
from isthmus.measures import balance, ntk_trace, parameter_norms, representation_spectra


def _balanced_points(check: Check, subject: Subject) -> tuple[Points, int]:
    """The hypotheses of both claims: points of a balanced network, and the k of the claim.

    k is as given, else the largest that every point has. Balanced is Σ_{m ≤ ℓ}‖W_m‖² ≤ (ℓ/L)‖θ‖² for every ℓ, which is
    what the proofs take from balancedness. It comes before any Jacobian: those of wide networks take minutes.
    """
    norms = parameter_norms(subject.net)
    L = len(norms.weights)
    share = norms.weights.cumsum(0) - torch.arange(1, L + 1, dtype=torch.float64) / L * norms.total
    met = bool((share <= rounding(subject.net) * norms.total).all())
    if not check.assume("balanced", met, f"largest imbalance {balance(subject.net).layer_residual:.2g} of a layer"):
        check.not_applicable(check.unmet)
    found = points_of(subject)
    least = int(found.ranks.min()) if len(found.ranks) else 0
    k = int(subject.known.get("k", least))
    check.add(found.slope_hypothesis, found.kink_hypothesis)
    if not check.assume("k ≤ Rank Jf(x)", 0 < k <= least, f"k = {k}, least rank {least}"):
        check.not_applicable()
    return found, k


def _activation_bounds(subject: Subject, found: Points, k: int) -> Tensor:
    """cL·max{1, e^{c_1/k}}/(k·(s_1 … s_k)^{2/k}) at each point, with cL = Tr Θ(x, x)."""
    norms = parameter_norms(subject.net)
    L = len(norms.weights)
    excess = norms.total - k * L
    traces = ntk_trace(subject.net, subject.X[found.index])
    logs = found.log_products[:, k - 1]
    # In logarithms: e^{c_1/k} of an untrained network overflows.
    exponent = max(0.0, excess / k) - 2 * logs / k
    return traces * exponent.clamp_max(700).exp() / k


def balanced_net() -> Subject:
    """A deep ReLU network of a linear map of rank 2, of nearly the least norm: balanced, and its bounds are tight."""
    A = torch.zeros(5, 6, dtype=torch.float64)
    A[0, 0], A[1, 1] = 1.3, 0.8
    made = positive_linear_network(A, 16)
    return Subject(rebalance(made.network).network, gaussian_inputs(32, 6, 3).abs(), known={"k": 2})


@claim(
    "C-bn-7",
    "Σ‖α_(ℓ−1)(x)‖² ≤ Tr Θ(x,x)·max{1, e^(c₁/k)}/(k·(s_1 … s_k)^(2/k)) with c₁ = ‖θ‖² − kL",
    paper="bottleneck2023",
    where="Thm 7 and Thm 16",
    hypotheses=("|slope| ≤ 1", "x off the kinks", "balanced", "k ≤ Rank Jf(x)"),
    sample=balanced_net,
    relation="≤",
    erratum="The slides print e^(2c₁/k); the paper's max{1, e^(c₁/k)} is used.",
)
def bounded_activations(check: Check, subject: Subject) -> None:
    """Σ_ℓ‖α_{ℓ-1}(x)‖² ≤ Tr Θ(x,x) · max{1, e^{c_1/k}} / (k·(s_1 … s_k)^{2/k}).

    For every k up to the rank of Jf(x): the proof needs only (s_1 … s_k)(AB) ≤ (s_1 … s_k)(A)·(s_1 … s_k)(B).
    """
    found, k = _balanced_points(check, subject)
    sizes = torch.stack([a.square().sum(1) for a in found.trace.activations]).sum(0)
    # The NTK counts β² with each layer's inputs: Σ(‖α‖² + β²)‖J‖² ≥ Σ‖α‖²‖J‖².
    check.compare(
        sizes,
        "≤",
        _activation_bounds(subject, found, k),
        tolerance=rounding(subject.net, condition=100.0),
        where=found.name,
    )


@claim(
    "C-bn-8",
    "(1−p)L layers have s_(k+1)(α̃_ℓ(X)/√N) ≤ √(Δ(q+1)/L)/p, and (1−2p)L layers ≤ √Δ(√q+√p)/(p√L)",
    paper="bottleneck2023",
    where="Cor. 8 and Cor. 17",
    hypotheses=("|slope| ≤ 1", "x off the kinks", "balanced", "k ≤ Rank Jf(x)"),
    sample=balanced_net,
    relation="≤",
    erratum="Printed with (1−p)L layers and c times the average; two sets of pL layers are exceptional.",
)
def low_rank_representations(check: Check, subject: Subject) -> None:
    """At most pL (or 2pL) layers have a (k+1)-st singular value of their representation above the bound.

    With q the mean over samples of the bound of C-bn-7 over L, and Δ = ‖θ‖² − kL − 2 log(s_1 … s_k) at one of them. The
    sides are numbers of layers: those above the bound, and those that may be; over several p.
    """
    found, k = _balanced_points(check, subject)
    norms = parameter_norms(subject.net)
    L = len(norms.weights)
    q = float(_activation_bounds(subject, found, k).mean()) / L
    Delta = norms.total - k * L - 2 * float(found.log_products[:, k - 1].max())
    # Where the bound is attained Δ is a difference of equal numbers; its root is far above what it is computed to.
    unit = rounding(subject.net)
    Delta = max(Delta, 0.0) + unit * (norms.total + k * L) + found.log_error
    spectra = subject.known.get("spectra") or representation_spectra(found.trace, centered=False)
    beyond = torch.stack([s[k] if len(s) > k else s.new_zeros(()) for s in spectra])
    noise = unit * torch.stack([s[0] for s in spectra])
    places = []
    for p in (0.05, 0.1, 0.2, 0.3, 0.45):
        for share, bound in (
            (p, math.sqrt(Delta * (q + 1) / L) / p),
            (2 * p, math.sqrt(Delta) * (math.sqrt(q) + math.sqrt(p)) / (p * math.sqrt(L))),
        ):
            above = float((beyond > bound * (1 + 1e-9) + noise).sum())
            places.append((above, share * L, f"p = {p}, bound {bound:.3g}"))
    check.each(places, "≤", tolerance=1e-12, details={f"s_{k + 1} by layer": beyond.tolist()})
