"""A-linear: the least-norm linear network of a matrix, and a ReLU network that nearly attains its norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from isthmus._checks import as_matrix, check_integer, check_number, fail
from isthmus._cite import cites
from isthmus.constructions._construction import Construction, Domain, Known, everywhere, nonnegative
from isthmus.linalg import rank_tolerance, svd
from isthmus.measures import minimal_weights
from isthmus.networks import FullyConnected


@cites("bottleneck2023", "§3", ids=("A-linear",))
def linear_network(A: Any, depth: int) -> Construction:
    """A = USVᵀ as a linear network W_ℓ = S^{1/L} between W_L = US^{1/L} and W_1 = S^{1/L}Vᵀ: ‖θ‖² = LΣs_i^{2/L}.

    No linear network of that depth computes A with less. All layers have the same singular values, so it is
    balanced; ‖θ‖² − kL tends to 2 log|A|_+, k = Rank A.

    Parameters
    ----------
    A : array (d_out, d_in)
    depth : int
        L ≥ 1.

    Returns
    -------
    Construction
        A network of slope 1, width k (1 for A = 0), without biases.
    """
    L = check_integer("linear_network", "depth", depth, low=1)
    M = as_matrix("linear_network", "A", A, device="cpu")
    U, s, Vh = _thin(M)
    k = len(s)
    if k == 0:
        Ws = [torch.zeros(m, n).double() for m, n in zip([*[1] * (L - 1), len(M)], [M.shape[1], *[1] * (L - 1)])]
    else:
        root = s ** (1.0 / L)
        frames = [Vh.mT, *[torch.eye(k, dtype=torch.float64)] * (L - 1), U]
        Ws = [(frames[ell + 1] * root) @ frames[ell].mT for ell in range(L)]
    net = FullyConnected.from_weights(Ws, slope=1.0)
    known = Known(float(L * (s ** (2.0 / L)).sum()), k, float(2.0 * s.log().sum()), everywhere(M.shape[1]))
    return Construction(net, known)


@cites("bottleneck2023", "Thm 3(3), Thm 11(3)", ids=("A-linear",))
def positive_linear_network(A: Any, depth: int, *, O_in: Any = None, O_out: Any = None) -> Construction:
    """ReLU network of Ax: W_ℓ = B_ℓB_{ℓ-1}⁺, B_ℓ = [√(1−ℓ/L)·O_in; √(ℓ/L)·O_out A], B_0 = I, B_L = A.

    The representations B_ℓx are non-negative wherever O_in x and O_out Ax are, and B_ℓᵀB_ℓ goes straight from P
    to AᵀA, P the projection to Im Aᵀ. In the basis of right singular vectors all B_ℓᵀB_ℓ are diagonal, so that

        ‖θ‖² = Σ_i Σ_ℓ κ_{ℓ,i}/κ_{ℓ-1,i},   κ_{ℓ,i} = 1 + (ℓ/L)(s_i² − 1),

    which is kL + 2 log|A|_+ + (1/2L)Σ_i(s_i − 1/s_i)² + O(L⁻²): the least possible limit of ‖θ‖² − kL.

    Departs from the paper: Thm 3(3) prints the path reversed (see docs/notes/constructions.md).

    Parameters
    ----------
    A : array (d_out, d_in)
    depth : int
        L ≥ 1.
    O_in : array (m, d_in), default P
        With O_inᵀO_in = P: an isometry of Im Aᵀ that takes PΩ to non-negative vectors.
    O_out : array (m', d_out), default the identity
        An isometry of Im A that takes AΩ to non-negative vectors.

    Returns
    -------
    Construction
        Valid where O_in x ≥ 0 and O_out A x ≥ 0.
    """
    who = "positive_linear_network"
    L = check_integer(who, "depth", depth, low=1)
    M = as_matrix(who, "A", A, device="cpu")
    _, s, Vh = _thin(M)
    P = Vh.mT @ Vh
    embed = P if O_in is None else as_matrix(who, "O_in", O_in, columns=M.shape[1], device="cpu")
    image = M if O_out is None else as_matrix(who, "O_out", O_out, columns=len(M), device="cpu") @ M
    _check_isometry(who, "O_in", "O_inᵀO_in = P, the projection to Im Aᵀ", embed, P)
    _check_isometry(who, "O_out", "AᵀO_outᵀO_out A = AᵀA", image, M.mT @ M)

    def B(ell: int) -> Tensor:
        return torch.cat([(1.0 - ell / L) ** 0.5 * embed, (ell / L) ** 0.5 * image])

    kappa = [1.0 + (ell / L) * (s.square() - 1.0) for ell in range(L + 1)]
    Ws = [B(1) if L > 1 else M]
    for ell in range(2, L + 1):
        # B⁺ = (BᵀB)⁺Bᵀ, and BᵀB = V·diag(κ)·Vᵀ is known: no SVD, and κ stays between 1 and s².
        inverse = (Vh.mT / kappa[ell - 1]) @ Vh @ B(ell - 1).mT
        Ws.append((M if ell == L else B(ell)) @ inverse)
    norm = sum(float((kappa[ell] / kappa[ell - 1]).sum()) for ell in range(1, L + 1))
    eps = torch.finfo(torch.float64).eps
    domain = Domain(
        "O_in x >= 0 and O_out A x >= 0",
        M.shape[1],
        lambda X: nonnegative(X, torch.cat([embed, image]), 0.0, eps),
    )
    return Construction(FullyConnected.from_weights(Ws), Known(norm, len(s), float(2.0 * s.log().sum()), domain))


def _thin(A: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The SVD without its rounding-level singular values."""
    U, s, Vh = svd(A)
    k = int((s > rank_tolerance(s, (len(A), A.shape[1]))).sum())
    return U[:, :k], s[:k], Vh[:k]


def _check_isometry(who: str, name: str, must: str, O: Tensor, gram: Tensor) -> None:
    error = float((O.mT @ O - gram).norm())
    if error > 1e-10 * float(gram.norm()):
        fail(
            who, f"`{name}` must keep inner products: {must}", f"a difference of norm {error:.3g}", "Orthonormalise it."
        )


# ---- A-divergent: networks of nearly least norm whose representations grow without bound (Example 20)


@cites("bottleneck2023", "App. D.1, Example 20", ids=("A-divergent",))
def divergent(depth: int, exponent: float = 0.75) -> Construction:
    """f(x) = (x_1, x_2, x_3 + σ(x_1 − x_2)) on ℝ³_+, with ‖θ‖² − 3L → 0 and representations of size e^{(L−2)ε/2}.

    ε = L^−γ. The first L/2 − 1 layers are diag(e^ε, e^ε, e^−2ε), two layers in the middle add the kinked
    neuron, the last L/2 − 1 undo the scaling. With S = e^{(L−2)ε/2},

        ‖θ‖² − 3L = (L − 2)(4 sinh²ε + 2 sinh²2ε) + 2S⁻² + S⁻⁴.

    The first term is about 12·L^{1−2γ} and needs γ > ½; the kink's share vanishes only if S grows, γ < 1.

    Parameters
    ----------
    depth : int
        L, even.
    exponent : float, default 0.75
        γ in (½, 1).

    Returns
    -------
    Construction
        ``details["scale"]`` is S, ``details["epsilon"]`` is ε.
    """
    who = "divergent"
    L = check_integer(who, "depth", depth, low=2)
    if L % 2:
        fail(who, "`depth` must be even", L, "Half of the layers scale up, half of them down.")
    gamma = check_number(who, "exponent", exponent)
    if gamma <= 0.5:
        must = "`exponent` must be in (1/2, 1)"
        fail(who, must, gamma, "The excess is about 12·L^(1 - 2·exponent), which vanishes only above 1/2.")
    if gamma >= 1.0:
        must = "`exponent` must be in (1/2, 1)"
        fail(who, must, gamma, "The scale e^((L-2)·ε/2) stays bounded from 1 on, and the kink keeps its norm.")
    eps = L**-gamma
    n = L // 2 - 1
    S = math.exp(n * eps)
    stretch = torch.tensor([eps, eps, -2.0 * eps], dtype=torch.float64).exp()
    kinked = torch.eye(4, 3, dtype=torch.float64)
    kinked[3, 0], kinked[3, 1] = 1.0 / S, -1.0 / S
    joined = torch.eye(3, 4, dtype=torch.float64)
    joined[2, 3] = S**-2
    Ws = [*[stretch.diag()] * n, kinked, joined, *[(1.0 / stretch).diag()] * n]
    # Squares of sinh, where sums of exponentials around 1 would cancel to order ε².
    excess = (L - 2) * (4.0 * math.sinh(eps) ** 2 + 2.0 * math.sinh(2.0 * eps) ** 2) + 2.0 * S**-2 + S**-4
    domain = Domain("x >= 0 (of R^3)", 3, lambda X: (X >= 0).all(-1))
    known = Known(3.0 * L + excess, 3, 0.0, domain, {"scale": S, "epsilon": eps})
    return Construction(FullyConnected.from_weights(Ws), known)


# ---- Ψ as a network: the smallest weights that have given representations


@cites("features2022", "Prop. 1 and Prop. 16", ids=("A-zopt",))
def minimal_network(
    Zs: Sequence[Any],
    X: Any,
    *,
    slope: float = 0.0,
    bias: float = 1.0,
    least_squares: bool = False,
    cut: float = 0.0,
) -> FullyConnected:
    """Ψ(Z): the network of weights Z_ℓ(Z^σ_{ℓ-1})⁺, with representations Z on ``X`` and the least norm among those.

    Parameters
    ----------
    Zs : sequence of arrays (n_ℓ, N)
        Z_1 … Z_L, samples as columns.
    X : array (N, n_0)
    least_squares : bool, default False
        As in :func:`isthmus.measures.minimal_weights`: project representations that are not admissible.
    cut : float, default 0
        As there: singular values up to this share of the largest count as zero.
    """
    made = minimal_weights(Zs, X, slope=slope, bias=bias, least_squares=least_squares, cut=cut)
    return FullyConnected.from_weights(made.Ws, made.bs or None, slope=slope, bias=bias)
