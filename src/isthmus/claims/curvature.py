"""The tangent kernel must be sharp where the function is steep, and weights large where it bends (ReLU)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isthmus.claims.base import Hypothesis, Subject, Verdict, claim, compare, not_applicable, rounding
from isthmus.claims.points import Points, points_of
from isthmus.claims.samples import relu_random_net, steep_relu_net
from isthmus.measures import parameter_norms, top_eigenvalue

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


@claim(
    "C-bn-9",
    "‖∂²_xy Θ(x,x)‖_op ≥ L‖Jf(x)‖_op^(2−2/L); along a segment of one pattern max‖Θ‖_op ≥ (L/4)‖x−y‖²‖Jf(x)u‖^(2−2/L)",
    paper="bottleneck2023",
    where="Prop. 9 and Prop. 18",
    hypotheses=("ReLU", "x off the kinks"),
    sample=steep_relu_net,
    erratum="Printed with the constant 2L (scan) and for any slope; L, and ReLU only. Part 2 has L/4.",
)
def sharp_kernels(subject: Subject) -> Verdict:
    """Both parts, at every point and between every two points that share their activation pattern.

    Within a linear region Θ(x,y) = Σ_ℓ (⟨α_{ℓ-1}(x), α_{ℓ-1}(y)⟩ + β²) G_ℓ(x)G_ℓ(y)ᵀ with G_ℓ = J(α̃_ℓ → f), hence
    ∂²_{xy}Θ(x,x) = Σ_ℓ J_{ℓ-1}ᵀJ_{ℓ-1} ⊗ G_ℓG_ℓᵀ, an operator on matrices Z ↦ Σ_ℓ J_{ℓ-1}ᵀJ_{ℓ-1} Z G_ℓG_ℓᵀ. For large
    Jacobians its norm is replaced by a lower bound, which is on the safe side.
    """
    found = points_of(subject, points=6)
    hypotheses = [_relu(subject), found.kink_hypothesis]
    L = found.trace.depth
    lhs, rhs, names = [], [], []
    for row in range(len(found.index)):
        large = found.J[row].numel() > LARGE
        lhs.append(_sharpness_from_below(found, row) if large else _sharpness(found, row))
        rhs.append(L * float(found.s[row, 0].pow(2 - 2 / L)))
        names.append(found.name(row))
    for row, other in _same_pattern(found):
        gap = found.trace.inputs[row] - found.trace.inputs[other]
        if float(gap.norm()) == 0.0:
            continue
        along = found.J[row] @ (gap / gap.norm())
        lhs.append(max(_kernel_norm(found, row), _kernel_norm(found, other)))
        rhs.append(L / 4 * float(gap.square().sum() * along.norm().pow(2 - 2 / L)))
        names.append(f"between {found.name(row)} and {found.name(other)}")
    overflow = next((name for name, *sides in zip(names, lhs, rhs) if not all(map(math.isfinite, sides))), None)
    if overflow is not None:
        return not_applicable("C-bn-9", "≥", hypotheses, f"the kernel or its bound overflows float64 at {overflow}")
    return compare(
        "C-bn-9",
        lhs,
        "≥",
        rhs,
        # Lanczos gives a lower bound of the eigenvalue, to 1e-6 of it.
        tolerance=rounding(subject.net) + 1e-5,
        hypotheses=hypotheses,
        where=lambda i: names[i],
    )


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
)
def price_of_bending(subject: Subject) -> Verdict:
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
    hypotheses = [
        _relu(subject),
        found.kink_hypothesis,
        Hypothesis.of("C ≥ every partial Jacobian at x and y", enough, said),
    ]
    powers = found.s.pow(2 / L).where(found.s > 0, torch.zeros_like(found.s)).sum(1)
    rhs, names = [], []
    for row in range(len(found.index)):
        for other in range(row):
            C = max(partial[row], partial[other]) if given is None else given
            bend = float(torch.linalg.svdvals(found.J[row] - found.J[other]).sum())
            rhs.append(L / 2 * float(powers[row] + powers[other]) + bend / C / C)
            names.append(f"{found.name(row)} and {found.name(other)}")
    return compare(
        "C-bn-11",
        norms.total if rhs else [],
        "≥",
        rhs,
        tolerance=rounding(subject.net),
        hypotheses=hypotheses,
        where=lambda i: names[i],
    )


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
