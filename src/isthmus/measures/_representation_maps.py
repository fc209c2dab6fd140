"""The maps Φ: W ↦ Z and Ψ: Z ↦ W between weights and representations, and the loss in terms of Z, or of covariances.

Representations are as in the paper: Z_ℓ is (n_ℓ, N), samples as columns. ``X`` and ``Y`` have samples as rows, as
everywhere in code. Z^σ_0 is X as columns, Z^σ_ℓ = σ(Z_ℓ), each with a last row β·1 when β ≠ 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from isthmus._checks import as_matrix, check_number, fail
from isthmus._cite import cites
from isthmus.linalg import matrix
from isthmus.measures._identity_cost import KernelNorm
from isthmus.objective import cost
from isthmus.trace import Trace, Traceable, activate, with_ones

#: Weights that give the representations back to this share are those of admissible ones.
ADMISSIBLE = 1e-8

#: σ of one's own, entry by entry.
Activation = Callable[[Tensor], Tensor]

#: Samples up to which N × N covariances are formed.
MAX_SAMPLES = 5000


@cites("features2022", "Prop. 1 and Prop. 16", ids=("A-zopt",))
def representations(net: Traceable, X: Any) -> tuple[Tensor, ...]:
    """Φ(W) = (Z_1 … Z_L), each (n_ℓ, N): the pre-activations of a network on ``X``, in float64."""
    trace = net.trace(X)
    return tuple(trace.Z(ell) for ell in range(1, trace.depth + 1))


@cites("features2022", "Prop. 1 and Prop. 16", ids=("A-zopt",))
def minimal_weights(
    Zs: Sequence[Any],
    X: Any,
    *,
    slope: float = 0.0,
    bias: float = 1.0,
    least_squares: bool = False,
    cut: float = 0.0,
) -> Trace:
    """Ψ(Z) = (Z_ℓ(Z^σ_{ℓ-1})⁺)_ℓ: the smallest weights with these representations, as a trace on ``X``.

    The last column of Z_ℓ(Z^σ_{ℓ-1})⁺ belongs to the row β·1 of Z^σ_{ℓ-1}: it is b_ℓ itself. The trace is that of the
    weights, propagated from X: Φ(Ψ(Z)) can be compared with Z. For a network see
    :func:`isthmus.constructions.minimal_network`.

    Parameters
    ----------
    Zs : sequence of arrays (n_ℓ, N)
        Z_1 … Z_L.
    X : array (N, n_0)
    slope, bias : float
        a of σ_a, and β.
    least_squares : bool, default False
        Take the projection P_ℓ of Z_ℓ to Im(Z^σ_{ℓ-1})ᵀ, front to back, where Z is not admissible. Without it such a Z
        fails.
    cut : float, default 0
        Singular values of Z^σ_{ℓ-1} up to this share of the largest count as zero, as in :class:`KernelNorm`.
    """
    who = "minimal_weights"
    inputs, given = _checked(who, Zs, X)
    check_number(who, "slope", slope, low=-1.0, high=1.0)
    Ws, bs, preactivations, activations = [], [], [], [inputs]
    for ell, Z in enumerate(given, start=1):
        S = with_ones(activations[-1].mT, bias)
        W = KernelNorm(S, cut=cut).weights(Z)
        made = W @ S
        missed = _share(made - Z, Z)
        if missed > ADMISSIBLE and not least_squares:
            fail(
                who,
                f"the rows of Z_{ell} must lie in the span of the rows of Z^σ_{ell - 1}",
                f"a share {missed:.3g} of Z_{ell} outside",
                "Project the representations front to back: pass least_squares=True.",
            )
        Ws.append(W if bias == 0.0 else W[:, :-1].contiguous())
        if bias != 0.0:
            bs.append(W[:, -1].contiguous())
        preactivations.append(made.mT)
        if ell < len(given):
            activations.append(activate(made.mT, slope))
    return Trace(tuple(Ws), tuple(bs), tuple(preactivations), tuple(activations), slope, bias)


@cites("features2022", "Prop. 1", ids=("A-zopt",))
def inadmissibility(
    Zs: Sequence[Any],
    X: Any,
    *,
    slope: float = 0.0,
    bias: float = 1.0,
    activation: Activation | None = None,
    cut: float = 0.0,
) -> tuple[float, ...]:
    """‖Z_ℓ(I − P)‖/‖Z_ℓ‖ for ℓ = 1 … L, P the projection onto Im(Z^σ_{ℓ-1})ᵀ: 0 where some W_ℓ gives Z_ℓ."""
    shares = []
    for S, Z in _neighbours("inadmissibility", Zs, X, slope, bias, activation):
        norm = KernelNorm(S, cut=cut)
        V = norm.Vh[: norm.rank]
        shares.append(_share(Z - (Z @ V.mT) @ V, Z))
    return tuple(shares)


@cites("features2022", "Prop. 1, §3.3", ids=("A-zopt",))
def representation_cost_terms(
    Zs: Sequence[Any],
    X: Any,
    *,
    slope: float = 0.0,
    bias: float = 1.0,
    gamma: float = 0.0,
    activation: Activation | None = None,
    cut: float = 0.0,
) -> tuple[float, ...]:
    """‖Z_ℓ(Z^σ_{ℓ-1})⁺‖² for ℓ = 1 … L; with γ > 0 its stable form Tr[Z_ℓ(K^σ_{ℓ-1} + γI)⁻¹Z_ℓᵀ].

    The stable form is min_W ‖W‖² + ‖WZ^σ_{ℓ-1} − Z_ℓ‖²/γ: finite for every Z, and below ‖W_ℓ‖² for admissible ones.
    For γ = 0 a term is ∞ where Z_ℓ is not admissible.
    """
    check_number("representation_cost_terms", "gamma", gamma, low=0.0)
    pairs = _neighbours("representation_cost_terms", Zs, X, slope, bias, activation)
    return tuple(KernelNorm(S, cut=cut).square(Z, gamma) for S, Z in pairs)


@cites("features2022", "Prop. 1, §3.3", ids=("A-zopt",))
def representation_loss(
    Zs: Sequence[Any],
    X: Any,
    Y: Any,
    *,
    ridge: float,
    loss: str = "mse",
    slope: float = 0.0,
    bias: float = 1.0,
    gamma: float = 0.0,
    activation: Activation | None = None,
    cut: float = 0.0,
) -> float:
    """𝓛^r(Z) = C(Z_L) + λΣ_ℓ‖Z_ℓ(Z^σ_{ℓ-1})⁺‖², the loss in terms of representations; λ = ``ridge``.

    Parameters
    ----------
    Zs : sequence of arrays (n_ℓ, N)
    X, Y : arrays (N, n_0), (N, n_L) (or (N,) of labels)
    gamma : float, default 0
        Absolute γ of the stable form; with 0 the loss is ∞ at representations that are not admissible.
    activation : callable, optional
        Any σ, entrywise, in the place of σ_a.
    cut : float, default 0
        Share of the largest singular value up to which those of Z^σ_{ℓ-1} count as zero in its pseudo-inverse.
    """
    check_number("representation_loss", "ridge", ridge, low=0.0)
    terms = representation_cost_terms(Zs, X, slope=slope, bias=bias, gamma=gamma, activation=activation, cut=cut)
    return _cost_of(Zs[-1], Y, loss) + (ridge * sum(terms) if ridge > 0.0 else 0.0)


@cites("features2022", "§3.2", ids=("A-kopt",))
def covariances(Zs: Sequence[Any], *, slope: float = 0.0, bias: float = 1.0) -> tuple[tuple[Tensor, Tensor], ...]:
    """(K_ℓ, K^σ_ℓ) = (Z_ℓᵀZ_ℓ, σ(Z_ℓ)ᵀσ(Z_ℓ) + β²11ᵀ), each (N, N), for the hidden layers ℓ = 1 … L−1; N ≤ 5,000."""
    _check_samples("covariances", matrix("covariances", "Zs[-1]", Zs[-1]).shape[1])
    hidden = [matrix("covariances", f"Zs[{i}]", Z) for i, Z in enumerate(Zs[:-1])]
    pairs = [(Z, with_ones(activate(Z, slope), bias)) for Z in hidden]
    return tuple((Z.mT @ Z, S.mT @ S) for Z, S in pairs)


@cites("features2022", "Prop. 3", ids=("A-kopt",))
def covariance_loss(
    Ks: Sequence[tuple[Tensor, Tensor]],
    Z_L: Any,
    X: Any,
    Y: Any,
    *,
    ridge: float,
    loss: str = "mse",
    bias: float = 1.0,
) -> float:
    """𝓛^k(K, Z_L) = C(Z_L) + λΣ_ℓTr[K_ℓ(K^σ_{ℓ-1})⁺], K^σ_0 = XXᵀ + β²11ᵀ, K_L = Z_LᵀZ_L, from covariances alone.

    By eigendecompositions: a covariance knows the singular values of its representation down to √eps of the largest
    only, where :func:`representation_loss` knows them down to eps. ∞ where Im K_ℓ ⊄ Im K^σ_{ℓ-1}.

    Parameters
    ----------
    Ks : sequence of pairs of Tensor (N, N)
        (K_ℓ, K^σ_ℓ) of the hidden layers.
    Z_L : array (n_L, N)
        Outputs, samples as columns.
    X, Y : arrays (N, n_0), (N, n_L) (or (N,) of labels)
    """
    who = "covariance_loss"
    check_number(who, "ridge", ridge, low=0.0)
    inputs, outputs = as_matrix(who, "X", X), matrix(who, "Z_L", Z_L)
    _check_samples(who, len(inputs))
    before = [inputs @ inputs.mT + bias**2, *(K_sigma for _, K_sigma in Ks)]
    after = [*(K for K, _ in Ks), outputs.mT @ outputs]
    N = len(inputs)
    for index, K in enumerate([*before[1:], *after]):
        if tuple(K.shape) != (N, N):
            fail(who, f"covariances must be {N} × {N}, as there are samples", tuple(K.shape), f"Check number {index}.")
    total = sum(_trace_product(K, K_sigma) for K, K_sigma in zip(after, before))
    return _cost_of(outputs, Y, loss) + (ridge * total if ridge > 0.0 else 0.0)


@cites("features2022", "§3.1", ids=("A-zopt",))
def useless_part(trace: Trace, *, cut: float = 0.0) -> tuple[float, ...]:
    """‖W̃_ℓ‖² for ℓ = 1 … L, W̃_ℓ = W_ℓ(I − P), P onto Im Z^σ_{ℓ-1}: what the data never see of W_ℓ (bias included).

    With ``cut`` P is onto the singular vectors of values above that share of the largest.
    """
    parts = []
    for ell in range(1, trace.depth + 1):
        norm = KernelNorm(trace.Z_sigma(ell - 1), cut=cut)
        W = trace.Ws[ell - 1].double()
        if trace.bias != 0.0:
            W = torch.cat([W, trace.bs[ell - 1].double()[:, None]], 1)
        U = norm.U[:, : norm.rank]
        parts.append(float((W - (W @ U) @ U.mT).square().sum()))
    return tuple(parts)


def _checked(who: str, Zs: Sequence[Any], X: Any) -> tuple[Tensor, list[Tensor]]:
    """X and Z_1 … Z_L in float64, all of one number of samples."""
    inputs = as_matrix(who, "X", X)
    given = [matrix(who, f"Zs[{i}]", Z) for i, Z in enumerate(Zs)]
    if not given:
        fail(who, "`Zs` must not be empty", "no representation", "Pass Z_1 … Z_L.")
    for ell, Z in enumerate(given, start=1):
        if Z.ndim != 2 or Z.shape[1] != len(inputs):
            must = f"Z_{ell} must have {len(inputs)} columns, one for each sample of `X`"
            fail(who, must, f"shape {tuple(Z.shape)}", "Pass neurons × samples: Trace.Z, not its transpose.")
    return inputs, given


def _neighbours(
    who: str, Zs: Sequence[Any], X: Any, slope: float, bias: float, activation: Activation | None
) -> list[tuple[Tensor, Tensor]]:
    """(Z^σ_{ℓ-1}, Z_ℓ) for ℓ = 1 … L."""
    inputs, given = _checked(who, Zs, X)
    check_number(who, "slope", slope, low=-1.0, high=1.0)
    before = [inputs.mT, *(activate(Z, slope) if activation is None else activation(Z) for Z in given[:-1])]
    return [(with_ones(S, bias), Z) for S, Z in zip(before, given)]


def _check_samples(who: str, samples: int) -> None:
    if samples > MAX_SAMPLES:
        must = f"there must be at most {MAX_SAMPLES} samples, as covariances are N × N"
        fail(who, must, samples, "Pass fewer samples, or take representation_loss, which forms no covariance.")


def _cost_of(Z_L: Any, Y: Any, loss: str) -> float:
    outputs = matrix("representation_loss", "Z_L", Z_L).mT
    targets = torch.as_tensor(Y)
    return float(cost(outputs, targets.double() if targets.is_floating_point() else targets, loss))


def _share(part: Tensor, whole: Tensor) -> float:
    size = float(whole.norm())
    return float(part.norm()) / size if size > 0.0 else 0.0


def _trace_product(K: Tensor, K_sigma: Tensor) -> float:
    """Tr[K(K^σ)⁺]; ∞ when the image of K is not within that of K^σ."""
    values, Q = torch.linalg.eigh(K_sigma.double())
    unit = len(K) * torch.finfo(torch.float64).eps
    top = float(values[-1].clamp_min(0.0))
    kept = values > unit * top
    seen = (Q.mT @ K.double() @ Q).diagonal()
    whole = float(K.diagonal().sum())
    if not bool(kept.any()):
        return 0.0 if whole == 0.0 else math.inf
    spread = top / float(values[kept][0])
    if float(seen[~kept].sum()) > min(1e-6, 10 * unit * spread) * whole:
        return math.inf
    return float((seen[kept] / values[kept]).sum())
