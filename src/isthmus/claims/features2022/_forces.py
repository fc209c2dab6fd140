"""Forces at stationary points, and the covariances of linear minimisers (features2022 §3.1)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isthmus.claims._base import Check, Subject, claim
from isthmus.claims._evidence import cost_gradients, gaussian_inputs, is_linear
from isthmus.constructions import linear_network, minimal_network
from isthmus.linalg import rank_tolerance, schatten, svd
from isthmus.measures import Forces, KernelNorm, forces, parameter_norms, stationarity_of_representations
from isthmus.measures._forces import solve
from isthmus.trace import Trace

#: What the gradient may leave of the statements, as a share of the larger term: above it nothing is judged.
LEFT = 0.02

#: Rounding of a force, in units of the spread of its kernel.
ROUNDING = 1e-13

#: Excess of ‖θ‖² over the least, as a share, at which a linear network counts as a minimiser.
EXCESS = 1e-10


def weight_gradients(subject: Subject) -> list[Tensor]:
    """∂(C + ridge·‖θ‖²)/∂W_ℓ with the bias as last column, ℓ = 1 … L, by autograd in float64."""
    assert subject.ridge is not None
    net, gradients = cost_gradients(subject)
    gradients = [g + 2 * subject.ridge * p.detach() for g, p in zip(gradients, net.parameters())]
    L = len(net.Ws)
    return [torch.cat([g, gradients[L + i][:, None]], 1) if net.bs else g for i, g in enumerate(gradients[:L])]


def balanced_forces(correlation: float = 0.3, ridge: float = 0.05) -> Subject:
    """A ReLU network (3, 6, 3) at an exact stationary point, off kinks, all kernels invertible.

    Inputs with K_0 = (1+c)I − c11ᵀ, and a neuron z = r·K_0·1_A for every A of one or two samples: positive on A and
    negative off it. Then Z_1K_0⁻¹ = r·1_A vanishes where σ̇ does, and on A it is σ(z)H for
    H = (1−η)I + η11ᵀ with η = c/(1−c), because (1+η)(1−c) = 1: attraction and repulsion cancel for K_2 = K^σ_1HK^σ_1,
    whatever the lengths r. Targets Z_2 + λNZ_2(K^σ_1)⁻¹ make the outputs stationary too.
    """
    eye, ones = torch.eye(3, dtype=torch.float64), torch.ones(3, 3, dtype=torch.float64)
    K_0 = (1.0 + correlation) * eye - correlation * ones
    sets = torch.cat([eye, 1.0 - eye])
    Z_1 = torch.tensor([1.0, 0.8, 1.2, 0.7, 0.9, 0.5], dtype=torch.float64)[:, None] * (sets @ K_0)
    S = torch.relu(Z_1)
    K_sigma = S.mT @ S
    eta = correlation / (1.0 - correlation)
    values, Q = torch.linalg.eigh((1.0 - eta) * eye + eta * ones)
    Z_2 = (Q * values.sqrt()) @ Q.mT @ K_sigma
    values, Q = torch.linalg.eigh(K_0)
    X = (Q * values.sqrt()) @ Q.mT
    Y = (Z_2 + 3 * ridge * torch.linalg.solve(K_sigma, Z_2.mT).mT).mT
    net = minimal_network([Z_1, Z_2], X, bias=0.0).requires_grad_(False)
    return Subject(net, X, Y, ridge)


@claim(
    "C-feat-2",
    "At stationary points 2λZ_ℓ(K^σ_{ℓ-1})⁺ + (∂C/∂Z_ℓ)P = 0, and attraction + repulsion = 0 where K^σ_{ℓ-1} and "
    "K^σ_ℓ are invertible and no entry sits at a kink",
    paper="features2022",
    where="§3.1(4)",
    hypotheses=("ridge > 0 given", "stationary point", "K^σ_{ℓ-1}, K^σ_ℓ invertible, off kinks at a hidden layer"),
    sample=balanced_forces,
    relation="≤",
    erratum="Printed for all minima; with more samples than n_0 + 1 the first kernel is never invertible.",
)
def forces_cancel(check: Check, subject: Subject) -> None:
    """‖attraction + repulsion‖ at each hidden layer that allows it, and the general form at every layer.

    With g_ℓ the gradient by W_ℓ (bias included) and r_ℓ = g_ℓ((Z^σ_{ℓ-1})⁺)ᵀ the general form is r_ℓ exactly, and
    λ(attraction + repulsion) = r_ℓ − σ̇ ⊙ W_{ℓ+1}ᵀr_{ℓ+1} + σ̇ ⊙ 2λW̃_{ℓ+1}ᵀZ_{ℓ+1}(K^σ_ℓ)⁺, W̃ the useless part: what a
    gradient that is small but not 0 may leave is known, and granted. Where the general form alone can be judged the
    verdict is not applicable and says how well it holds.
    """
    third = "K^σ_{ℓ-1}, K^σ_ℓ invertible, off kinks at a hidden layer"
    check.assume("ridge > 0 given", bool(subject.ridge) and subject.Y is not None, "" if subject.ridge else "not")
    check.require()
    trace = subject.trace()
    found = forces(trace, gamma_share=0.0)
    general = stationarity_of_representations(trace, subject.X, subject.Y, float(subject.ridge or 0.0), subject.loss)
    allowed, judged, left = _granted(subject, trace, found)
    settled = max((left[index] for index in judged), default=0.0)
    check.assume("stationary point", max(settled, *allowed) <= LEFT, f"leaves a share {max(settled, *allowed):.2g}")
    check.assume(third, bool(judged), "; ".join(f"layer {e}: {s}" for e, s in zip(found.layers, found.state)))
    details = {"general form": list(general), "forces": list(found.residual), "granted": list(allowed)}
    whole = check.compare(
        general,
        "≤",
        allowed,
        tolerance=0.0,
        where=lambda i: f"general form, layer {i + 1}",
        details=details,
        assuming=("ridge > 0 given", "stationary point"),
    )
    if whole.status == "fails":
        return
    if not judged:
        check.not_applicable(f"{third}: not met; the general form holds to {max(general):.2g}", details=details)
    check.compare(
        [found.residual[index] for index in judged],
        "≤",
        [left[index] for index in judged],
        tolerance=0.0,
        where=lambda i: f"forces, layer {found.layers[judged[i]]}",
        details=details,
    )
    # The forces are what is shown where both hold.
    check.parts.reverse()


def _granted(subject: Subject, trace: Trace, found: Forces) -> tuple[list[float], list[int], dict[int, float]]:
    """What the gradient may leave of the general form, the layers whose forces are judged, and of those."""
    lam = float(subject.ridge or 0.0)
    norms = [KernelNorm(trace.Z_sigma(ell), eps=trace.source_eps) for ell in range(trace.depth)]
    spreads = [float(n.s[0] / n.s[n.rank - 1]) if n.rank else 1.0 for n in norms]
    gradients = weight_gradients(subject)
    rests, allowed = [], []
    for index, (g, norm) in enumerate(zip(gradients, norms)):
        r = norm.rank
        rest = float(((g @ norm.U[:, :r]) / norm.s[:r]).norm())
        size = float(solve(norm, trace.Z(index + 1)).norm()) * 2.0 * lam
        rests.append(rest)
        # A vanishing layer has no force to compare with: nothing is judged then.
        allowed.append(1.01 * rest / size + ROUNDING * spreads[index] ** 2 if size > 0.0 else 1.0)
    judged = [i for i, state in enumerate(found.state) if state in ("balanced", "not balanced")]
    left = {}
    for i in judged:
        ell = found.layers[i]
        W = trace.Ws[ell]
        wide = W if trace.bias == 0.0 else torch.cat([W, trace.bs[ell][:, None]], 1)
        U = norms[ell].U[:, : norms[ell].rank]
        useless = float((wide - (wide @ U) @ U.mT).norm())
        bound = (rests[ell - 1] + float(torch.linalg.matrix_norm(W, 2)) * rests[ell]) / lam
        bound += 2.0 * useless * float(solve(norms[ell], trace.Z(ell + 1)).norm())
        size = max(float(found.attraction[i].norm()), float(found.repulsion[i].norm()))
        left[i] = 1.01 * bound / size + ROUNDING * max(spreads[ell - 1], spreads[ell]) ** 2
    return allowed, judged, left


def linear_on_few() -> Subject:
    """The least linear network of depth 4 of a map that vanishes off the span of three inputs in five dimensions."""
    X = gaussian_inputs(3, 5, 68)
    A = gaussian_inputs(4, 3, 69) @ torch.linalg.pinv(X).mT
    return Subject(linear_network(A, 4).network.requires_grad_(False), X)


@claim(
    "C-feat-10",
    "At a global minimiser of a linear network Z_ℓᵀZ_ℓ = Xᵀ((X⁺)ᵀZ_LᵀZ_LX⁺)^{ℓ/L}X, for every ℓ",
    paper="features2022",
    where="§3.1(2)",
    hypotheses=("σ = id, β = 0", "least norm for its outputs"),
    sample=linear_on_few,
    erratum="Printed with X⁻¹; with X⁺ it needs no square X.",
)
def linear_covariances(check: Check, subject: Subject) -> None:
    """Z_ℓᵀZ_ℓ against Xᵀ(AᵀA)^{ℓ/L}X with A = Z_LX⁺, at linear networks of the norm LΣs_i(A)^{2/L}.

    Among maps with the outputs Z_L on X the one that vanishes off the span of X has the smallest singular values, and a
    global minimiser of any cost + λ‖θ‖² has the least norm for its outputs: the hypothesis is what being a minimiser
    comes to, and can be measured. An excess δ of the norm leaves the covariances √δ to move.
    """
    net, X = subject.net, subject.X
    check.assume("σ = id, β = 0", is_linear(net) and net.bias == 0.0, f"slope {net.slope:g}, β = {net.bias:g}")
    check.require()
    trace = subject.trace()
    L = trace.depth
    A = trace.outputs.mT @ torch.linalg.pinv(X.mT)
    least = L * float(schatten(A, 2.0 / L))
    norm = parameter_norms(trace).total
    excess = (norm - least) / max(norm, 1e-300)
    check.assume("least norm for its outputs", abs(excess) <= EXCESS, f"‖θ‖² = {norm:.8g}, least {least:.8g}")
    _, s, Vh = svd(A)
    kept = s > rank_tolerance(s, (len(A), A.shape[1]))
    places = []
    for ell in range(L + 1):
        K = trace.Z(ell).mT @ trace.Z(ell)
        B = (s[kept] ** (ell / L))[:, None] * (Vh[kept] @ X.mT) if ell else X.mT
        size = float((B.mT @ B).norm())
        places.append((size + float((K - B.mT @ B).norm()), size, f"layer {ell}"))
    tolerance = 1e-8 + 10 * L * math.sqrt(max(excess, torch.finfo(torch.float64).eps))
    check.each(places, "=", tolerance=tolerance)
