"""What balancedness bounds through depth: activations, and the rank of representations (bottleneck2023 §4)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isthmus.claims._base import Check, Part, Subject, claim, rounding, unmet
from isthmus.claims._evidence import Points, gaussian_inputs, points_of
from isthmus.compression import rebalance
from isthmus.constructions import positive_linear_network
from isthmus.measures import balance, ntk_trace, parameter_norms, representation_spectra

#: Widest layer up to which the Jacobians of all layers are decomposed.
WIDE = 256

POINT = ("|slope| ≤ 1", "x off the kinks", "k ≤ Rank Jf(x)")


def _ranks(check: Check, subject: Subject) -> tuple[Points, list[int]]:
    """The points, and every k that all of them have, or the one that is asked for."""
    found = points_of(subject)
    least = int(found.ranks.min()) if len(found.ranks) else 0
    asked = subject.known.get("k")
    ks = list(range(1, least + 1)) if asked is None else [int(asked)]
    check.add(found.slope_hypothesis, found.kink_hypothesis)
    check.assume(POINT[2], bool(ks) and 0 < max(ks) <= least, f"k {asked or 'every'}, least rank {least}")
    return found, ks


@torch.no_grad()
def growth_by_jacobians(found: Points, ks: list[int]) -> Tensor | None:
    """max_ℓ (2/k) log(s_1 … s_k of Jα̃_ℓ(x)), (len(ks), P); None for wide networks."""
    Ws = found.trace.Ws
    if max(max(W.shape) for W in Ws) > WIDE:
        return None
    J, logs = Ws[0].expand(len(found.index), *Ws[0].shape), []
    for ell, W in enumerate(Ws[1:], start=1):
        logs.append(torch.linalg.svdvals(J).log().cumsum(1))
        J = W @ (found.trace.derivative(ell)[:, :, None] * J)
    logs.append(torch.linalg.svdvals(J).log().cumsum(1))
    return torch.stack([2 / k * torch.stack([one[:, k - 1] for one in logs]).amax(0) for k in ks])


def growth_by_norms(subject: Subject, ks: list[int]) -> Tensor:
    """Largest Σ_{m≤ℓ}‖W_m‖²/k − ℓ, which bounds :func:`growth_by_jacobians` by C-bn-1 for ℓ layers, (len(ks), 1)."""
    sums = parameter_norms(subject.net).weights.cumsum(0)
    depth = torch.arange(1, len(sums) + 1, dtype=torch.float64)
    return torch.stack([(sums / k - depth).max() for k in ks])[:, None]


def _activation_bounds(subject: Subject, found: Points, ks: list[int], growth: Tensor) -> Tensor:
    """e^growth·Tr Θ(x,x)/(k·(s_1 … s_k)^{2/k}) for each k and point, (len(ks), P)."""
    traces = ntk_trace(subject.net, subject.X[found.index])
    logs = torch.stack([traces.log() - math.log(k) - 2 / k * found.log_products[:, k - 1] for k in ks])
    # In logarithms: e^{c_1/k} of an untrained network overflows.
    return (logs + growth).clamp_max(700.0).exp()


def balanced_net() -> Subject:
    """A deep ReLU network of a linear map of rank 2, of nearly the least norm: balanced, and its bounds are tight."""
    A = torch.zeros(5, 6, dtype=torch.float64)
    A[0, 0], A[1, 1] = 1.3, 0.8
    made = positive_linear_network(A, 16)
    return Subject(rebalance(made.network).network, gaussian_inputs(32, 6, 3).abs())


@claim(
    "C-bn-7",
    "Σ‖α_(ℓ−1)(x)‖² ≤ M·Tr Θ(x,x)/(k·(s_1 … s_k)^(2/k)) with M = max_ℓ (s_1 … s_k of Jα̃_ℓ(x))^(2/k) "
    "≤ max_ℓ e^(Σ_(m≤ℓ)‖W_m‖²/k − ℓ), and M ≤ max{1, e^(c₁/k)}, c₁ = ‖θ‖² − kL, if balanced",
    paper="bottleneck2023",
    where="Thm 7 and Thm 16",
    hypotheses=(*POINT, "balanced"),
    sample=balanced_net,
    relation="≤",
    erratum="The slides print e^(2c₁/k); the paper's max{1, e^(c₁/k)} is used. Only that needs balancedness.",
)
def bounded_activations(check: Check, subject: Subject) -> None:
    """Σ_ℓ‖α_{ℓ-1}(x)‖² against its bound, with the growth M of the first layers in three ways.

    For every k up to the rank of Jf(x), ‖J(α̃_ℓ → f)‖² ≥ k·(s_1 … s_k)(J(α̃_ℓ → f))^{2/k} ≥ k·(s_1 … s_k)(Jf)^{2/k}/M by
    (s_1 … s_k)(AB) ≤ (s_1 … s_k)(A)·(s_1 … s_k)(B), and Tr Θ = Σ(‖α_{ℓ-1}‖² + β²)‖J(α̃_ℓ → f)‖². By C-bn-1 for the first
    ℓ layers M is at most e^{Σ_{m≤ℓ}‖W_m‖²/k − ℓ} for some ℓ; of balanced weights that sum is at most (ℓ/L)‖θ‖².
    """
    found, ks = _ranks(check, subject)
    norms = parameter_norms(subject.net)
    L = len(norms.weights)
    share = norms.weights.cumsum(0) - torch.arange(1, L + 1, dtype=torch.float64) / L * norms.total
    met = bool((share <= rounding(subject.net) * norms.total).all())
    check.assume("balanced", met, f"largest imbalance {balance(subject.net).layer_residual:.2g} of a layer")
    if unmet(h for h in check.hypotheses if h.name in POINT):
        check.not_applicable()
    sizes = torch.stack([a.square().sum(1) for a in found.trace.activations]).sum(0)
    printed = torch.tensor([[max(0.0, norms.total / k - L)] for k in ks], dtype=torch.float64)
    by_jacobians = growth_by_jacobians(found, ks)
    ways = [
        ("M of the Jacobians", by_jacobians, POINT),
        ("M of prefix sums", growth_by_norms(subject, ks), POINT),
        ("max{1, e^(c₁/k)}", printed, (*POINT, "balanced")),
    ]
    P = len(found.index)
    for name, growth, assuming in ways:
        if growth is None:
            check.parts.append(Part(name, "not applicable", reason=f"wider than {WIDE}: not decomposed"))
            continue
        check.compare(
            sizes.expand(len(ks), P),
            "≤",
            _activation_bounds(subject, found, ks, growth),
            tolerance=rounding(subject.net, condition=100.0) + found.log_error,
            part=name,
            where=lambda i: f"{found.name(i % P)}, k = {ks[i // P]}",
            assuming=assuming,
        )


@claim(
    "C-bn-8",
    "Σ s_(k+1)(α̃_ℓ(X)/√N)²/(q_ℓ + β²) ≤ Δ = ‖θ‖² − kL − 2 log(s_1 … s_k), q_ℓ the mean of ‖α_(ℓ−1)‖²; so fewer than pL "
    "layers have s_(k+1) > √(Δ(q+β²)/L)/p, and fewer than 2pL have more than √Δ(√q+β√p)/(p√L)",
    paper="bottleneck2023",
    where="Cor. 8 and Cor. 17",
    hypotheses=POINT,
    sample=balanced_net,
    relation="≤",
    erratum="Printed with (1−p)L layers and c times the average; two sets of pL layers are exceptional.",
)
def low_rank_representations(check: Check, subject: Subject) -> None:
    """The (k+1)-st singular values of the representations, in sum and by how many layers may exceed a bound.

    α̃_ℓ = U_ℓV_ℓᵀα_{ℓ-1} + (W_ℓ − U_ℓV_ℓᵀ)α_{ℓ-1} + βb_ℓ with the k-dimensional U_ℓ, V_ℓ of C-bn-6, whose distances
    d_ℓ + ‖b_ℓ‖² sum to at most Δ: hence s_{k+1}² ≤ (d_ℓ + ‖b_ℓ‖²)(q_ℓ + β²). By Cauchy and Schwarz fewer than pL layers
    exceed √(Δ(q+β²)/L)/p if Σq_ℓ ≤ qL; and by Markov fewer than pL have q_ℓ > q/p, or a distance above Δ/(pL). q is the
    mean over the points of the bound of C-bn-7 over L. "Fewer than j layers" is said of the j-th largest value, at
    p = j/L and j/(2L).
    """
    found, ks = _ranks(check, subject)
    check.require()
    norms = parameter_norms(subject.net)
    L, beta = len(norms.weights), abs(float(found.trace.bias))
    growth = growth_by_jacobians(found, ks)
    growth = growth_by_norms(subject, ks) if growth is None else growth
    q = _activation_bounds(subject, found, ks, growth).mean(1) / L
    here = torch.stack([a.square().sum(1).mean() for a in found.trace.activations])
    # Where the bound is attained Δ is a difference of equal numbers; its root is far above what it is computed to.
    unit = rounding(subject.net)
    spectra = subject.known.get("spectra") or representation_spectra(found.trace, centered=False)
    noise = unit * torch.stack([s[0] for s in spectra])
    sums, counts, pictures = [], [], []
    for k, mean in zip(ks, q.tolist()):
        Delta = max(norms.total - k * L - 2 * float(found.log_products[:, k - 1].max()), 0.0)
        Delta += unit * (norms.total + k * L) + found.log_error
        beyond = torch.stack([s[k] if len(s) > k else s.new_zeros(()) for s in spectra])
        beyond = (beyond - noise).clamp_min(0.0)
        sums.append((float((beyond.square() / (here + beta**2).clamp_min(1e-300)).sum()), Delta, f"k = {k}"))
        pictures.append(beyond.tolist())
        largest = beyond.sort(descending=True).values.tolist()
        for j in range(1, L + 1):
            p = j / L
            bound = math.sqrt(Delta * (mean + beta**2) / L) / p
            counts.append((largest[j - 1], bound, f"k = {k}, layer {j} of the largest"))
            p = j / (2 * L)
            bound = math.sqrt(Delta / L) * (math.sqrt(mean) + beta * math.sqrt(p)) / p
            counts.append((largest[j - 1], bound, f"k = {k}, layer {j} of the largest, two sets"))
    check.each(sums, "≤", tolerance=unit, part="in sum", details=lambda i: {f"s_{ks[i] + 1} by layer": pictures[i]})
    check.each(counts, "≤", tolerance=unit, part="number of layers")
