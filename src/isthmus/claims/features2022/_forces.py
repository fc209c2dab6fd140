"""Forces at stationary points, and the covariances of linear minimisers (features2022 §3.1)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isthmus.claims._base import Check, Subject, claim, rounding
from isthmus.claims._evidence import CUT, at_a_minimum, gaussian_inputs, is_linear, pulls
from isthmus.constructions import linear_network, minimal_network
from isthmus.linalg import rank_tolerance, schatten, svd
from isthmus.measures import Forces, KernelNorm, forces, parameter_norms
from isthmus.measures._forces import solve
from isthmus.trace import Trace

#: What the residual of the certificate may leave of the statements, as a share of the larger term; directions of the
#: data in which it leaves more are not judged.
LEFT = 0.02

#: Excess of ‖θ‖² over the least, as a share, at which a linear network counts as a minimiser.
EXCESS = 1e-10


NEEDED, INVERTIBLE = ("ridge > 0 given", "stationary point"), "K^σ_{ℓ-1}, K^σ_ℓ invertible, off kinks at a hidden layer"


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
    hypotheses=(*NEEDED, INVERTIBLE),
    sample=balanced_forces,
    erratum="Printed for all minima; with more samples than n_0 + 1 the first kernel is never invertible.",
)
def forces_cancel(check: Check, subject: Subject) -> None:
    """‖attraction + repulsion‖ at each hidden layer that allows it, and the general form at every layer.

    With g_ℓ the gradient by W_ℓ (bias included, derivatives at kinks as in the certificate), Z^σ_{ℓ-1} = UsVᵀ and V_r
    its first r columns, 2λZ_ℓV_rs_r⁻²V_rᵀ + (∂C/∂Z_ℓ)V_rV_rᵀ = g_ℓU_rs_r⁻¹V_rᵀ exactly: a residual ε leaves at most
    2λ‖θ‖ε/s_r, which is the tolerance. It is judged in as many directions as keep that small. Likewise
    λ(attraction + repulsion) = r_ℓ − σ̇ ⊙ W_{ℓ+1}ᵀr_{ℓ+1} + σ̇ ⊙ 2λW̃_{ℓ+1}ᵀZ_{ℓ+1}(K^σ_ℓ)⁺ with
    r_ℓ = g_ℓ((Z^σ_{ℓ-1})⁺)ᵀ and the useless part W̃.
    """
    certificate = at_a_minimum(check, subject)
    check.require()
    assert certificate is not None and subject.ridge
    trace = subject.trace()
    found = forces(trace, gamma_share=0.0)
    judged = [i for i, state in enumerate(found.state) if state in ("balanced", "not balanced")]
    said = "; ".join(f"layer {e}: {s}" for e, s in zip(found.layers, found.state))
    check.assume(INVERTIBLE, bool(judged), said)
    norms = [KernelNorm(trace.Z_sigma(ell), eps=trace.source_eps) for ell in range(trace.depth)]
    left_over = 2.0 * subject.ridge * math.sqrt(parameter_norms(trace).total) * certificate.residual
    # Through the whole network and back; kernels know the square of the spread.
    unit = rounding(subject.net, condition=10.0)
    granted = [_granted(subject.ridge, trace, found, i, norms, left_over, unit) for i in judged]
    kept = [n for n, share in enumerate(granted) if share <= LEFT]
    check.vanish(
        [found.residual[judged[n]] for n in kept],
        tolerance=[granted[n] for n in kept],
        part="attraction + repulsion",
        where=lambda n: f"layer {found.layers[judged[kept[n]]]}",
        details={"‖attraction + repulsion‖ by hidden layer": list(found.residual)},
        assuming=(*NEEDED, INVERTIBLE),
    )
    back = pulls(subject, trace, certificate).Z
    layers = range(1, trace.depth + 1)
    rows = [_general(subject.ridge, trace.Z(ell), back[ell - 1], norms[ell - 1], left_over, unit) for ell in layers]
    places = [(ell, *row) for ell, row in zip(layers, rows) if row is not None]
    check.vanish(
        [place[1] for place in places],
        tolerance=[place[2] for place in places],
        part="2λZ(K^σ)⁺ + (∂C/∂Z)P",
        where=lambda n: f"layer {places[n][0]}, {places[n][3]} of {norms[places[n][0] - 1].rank} directions",
        details={"general form by layer": [place[1] for place in places]},
        assuming=NEEDED,
    )


def _general(
    ridge: float, Z: Tensor, pull: Tensor, norm: KernelNorm, left_over: float, unit: float
) -> tuple[float, float, int] | None:
    """‖2λZK_r⁺ + (∂C/∂Z)P_r‖/‖2λZK_r⁺‖, what is granted, and the largest r for which that is at most ``LEFT``."""
    C = 2.0 * ridge * (Z @ norm.Vh.mT) / norm.s.clamp_min(1e-300).square()
    D = pull @ norm.Vh.mT
    for r in range(norm.rank, 0, -1):
        size = float(C[:, :r].norm())
        spread = float(norm.s[0] / norm.s[r - 1])
        if spread > 1.0 / CUT or size == 0.0:
            continue
        granted = left_over / (float(norm.s[r - 1]) * size) + unit * spread**2
        if granted <= LEFT:
            return float((C[:, :r] + D[:, :r]).norm()) / size, granted, r
    return None


def _granted(
    ridge: float, trace: Trace, found: Forces, index: int, norms: list[KernelNorm], left_over: float, unit: float
) -> float:
    """What the residual may leave of attraction + repulsion at one layer, as a share of the larger of them."""
    ell = found.layers[index]
    rests = [left_over / float(norms[layer].s[norms[layer].rank - 1]) for layer in (ell - 1, ell)]
    W = trace.Ws[ell]
    wide = W if trace.bias == 0.0 else torch.cat([W, trace.bs[ell][:, None]], 1)
    U = norms[ell].U[:, : norms[ell].rank]
    useless = float((wide - (wide @ U) @ U.mT).norm())
    bound = (rests[0] + float(torch.linalg.matrix_norm(W, 2)) * rests[1]) / ridge
    bound += 2.0 * useless * float(solve(norms[ell], trace.Z(ell + 1)).norm())
    size = max(float(found.attraction[index].norm()), float(found.repulsion[index].norm()))
    spread = max(float(norms[layer].s[0] / norms[layer].s[norms[layer].rank - 1]) for layer in (ell - 1, ell))
    return bound / size + unit * spread**2


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
    alone = "one layer is its own map" if L == 1 else ""
    check.each(places, "=", tolerance=tolerance, trivial=alone)
