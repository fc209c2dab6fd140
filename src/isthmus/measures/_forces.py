"""Q-forces: attraction and repulsion of the hidden representations, and when they may be expected to cancel.

The two terms of 𝓛^r that see Z_ℓ are ‖Z_ℓ(Z^σ_{ℓ-1})⁺‖² = Tr[Z_ℓ(K^σ_{ℓ-1})⁺Z_ℓᵀ] and ‖Z_{ℓ+1}(Z^σ_ℓ)⁺‖². The first
is quadratic in Z_ℓ. For the second write S = Z^σ_ℓ, M = Z_{ℓ+1}, and let M be admissible, MS⁺S = M. Of the three terms
of dS⁺ at constant rank, −S⁺dS S⁺ + (I − S⁺S)dSᵀ(S⁺)ᵀS⁺ + S⁺(S⁺)ᵀdSᵀ(I − SS⁺), the second is lost on M and the third is
orthogonal to MS⁺: d‖MS⁺‖² = −2⟨(S⁺)ᵀMᵀMS⁺(S⁺)ᵀ, dS⟩ = −2⟨SK⁺MᵀMK⁺, dS⟩, K = SᵀS. With K + γI for K the same formula
is the exact gradient of Tr[M(K + γI)⁻¹Mᵀ], for every M. All is computed from thin SVDs of S: no N × N matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus._checks import check_number, fail
from isthmus._cite import cites
from isthmus.measures._identity_cost import KernelNorm
from isthmus.objective import cost
from isthmus.trace import Trace, Traceable, activation_derivative

#: γ as a share of ‖K^σ‖_op, unless given.
GAMMA_SHARE = 1e-6

#: Residual up to which forces are called balanced, and size in units of the root mean square that is a kink.
BALANCED, AT_KINK = 1e-3, 1e-9


@dataclass(frozen=True, eq=False)
class Forces:
    """Attraction and repulsion at the hidden layers ℓ = 1 … L−1; entry ``i`` of each tuple belongs to ``layers[i]``.

    They are gradients: the arrows of the paper's Fig. 1 are their negatives.

    Attributes
    ----------
    layers : tuple of int
    attraction, repulsion : tuple of Tensor (n_ℓ, N)
        Gradients with respect to Z_ℓ of the two terms of Σ‖Z(Z^σ)⁺‖² that see it; the ridge is not multiplied in.
    gamma : tuple of (float, float)
        γ added to K^σ_{ℓ-1} and to K^σ_ℓ.
    residual : tuple of float
        ‖attraction + repulsion‖/max(‖attraction‖, ‖repulsion‖); NaN where both vanish.
    cosine : tuple of float
        Between attraction and repulsion: −1 where they are opposite; NaN where one vanishes.
    at_kink : tuple of float
        Share of the entries of Z_ℓ that sit at the kink of σ.
    invertible : tuple of (bool, bool)
        Whether K^σ_{ℓ-1} and K^σ_ℓ are.
    state : tuple of str
        ``"balanced"``, ``"not balanced"``, ``"no forces"``, or ``"not comparable: …"`` with the hypothesis of C-feat-2
        that does not hold, so that the forces of a minimum need not cancel.
    """

    layers: tuple[int, ...]
    attraction: tuple[Tensor, ...]
    repulsion: tuple[Tensor, ...]
    gamma: tuple[tuple[float, float], ...]
    residual: tuple[float, ...]
    cosine: tuple[float, ...]
    at_kink: tuple[float, ...]
    invertible: tuple[tuple[bool, bool], ...]
    state: tuple[str, ...]

    def by_sample(self, ell: int) -> tuple[Tensor, Tensor, Tensor]:
        """Norms of attraction, repulsion and their sum for each sample, (N,) each."""
        return self._sizes(ell, 0)

    def by_neuron(self, ell: int) -> tuple[Tensor, Tensor, Tensor]:
        """Norms of attraction, repulsion and their sum for each neuron, (n_ℓ,) each."""
        return self._sizes(ell, 1)

    def _sizes(self, ell: int, axis: int) -> tuple[Tensor, Tensor, Tensor]:
        if ell not in self.layers:
            fail("Forces", f"`ell` must be a hidden layer, one of {list(self.layers)}", ell, "Choose one of these.")
        index = self.layers.index(ell)
        att, rep = self.attraction[index], self.repulsion[index]
        return att.norm(dim=axis), rep.norm(dim=axis), (att + rep).norm(dim=axis)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, layer by layer, without the forces themselves; NaN as null."""
        rows = []
        for index, ell in enumerate(self.layers):
            rows.append(
                {
                    "layer": ell,
                    "state": self.state[index],
                    "residual": _number(self.residual[index]),
                    "cosine": _number(self.cosine[index]),
                    "attraction": float(self.attraction[index].norm()),
                    "repulsion": float(self.repulsion[index].norm()),
                    "gamma": list(self.gamma[index]),
                    "at_kink": self.at_kink[index],
                    "invertible": list(self.invertible[index]),
                }
            )
        return {"layers": rows}


@cites("features2022", "§3.1(4), Fig. 1", ids=("Q-forces",))
def attraction(Z: Tensor, before: KernelNorm, gamma: float = 0.0) -> Tensor:
    """2Z_ℓ(K^σ_{ℓ-1} + γI)⁻¹, (n_ℓ, N): the gradient of Tr[Z_ℓ(K^σ_{ℓ-1} + γI)⁻¹Z_ℓᵀ]; ``before`` is of Z^σ_{ℓ-1}."""
    return 2.0 * solve(before, Z, gamma)


@cites("features2022", "§3.1(4), Fig. 1", ids=("Q-forces",))
def repulsion(Z: Tensor, after: Tensor, kernel: KernelNorm, *, slope: float, gamma: float = 0.0) -> Tensor:
    """−2σ̇(Z_ℓ) ⊙ [σ(Z_ℓ)(K^σ_ℓ + γI)⁻¹K_{ℓ+1}(K^σ_ℓ + γI)⁻¹], (n_ℓ, N): the gradient of the next term at fixed Z_{ℓ+1}.

    Parameters
    ----------
    Z, after : Tensor (n_ℓ, N), (n_{ℓ+1}, N)
        Z_ℓ and Z_{ℓ+1}.
    kernel : KernelNorm
        Of Z^σ_ℓ.
    """
    # W = Z_{ℓ+1}(K + γI)⁻¹Sᵀ from the SVD: through (K + γI)⁻¹ itself it would lose the square of the condition number.
    C, s = after.double() @ kernel.Vh.mT, kernel.s
    r = len(s) if gamma > 0.0 else kernel.rank
    W = (C[:, :r] * (s[:r] / (s[:r] ** 2 + gamma))) @ kernel.U[: len(Z), :r].mT
    return -2.0 * activation_derivative(Z, slope) * (W.mT @ solve(kernel, after, gamma))


def solve(norm: KernelNorm, M: Tensor, gamma: float = 0.0) -> Tensor:
    """M(K + γI)⁻¹, (m, N), and MK⁺ for γ = 0, from the SVD of S, K = SᵀS."""
    if gamma > 0.0:
        C, rest = norm.split(M)
        return (C / (norm.s**2 + gamma)) @ norm.Vh + rest / gamma
    r = norm.rank
    return (M.double() @ norm.Vh[:r].mT / norm.s[:r] ** 2) @ norm.Vh[:r]


@cites("features2022", "§3.1(4), Fig. 1", ids=("Q-forces",))
def forces(
    net: Traceable | Trace,
    X: Any = None,
    *,
    gamma_share: float = GAMMA_SHARE,
) -> Forces:
    """Attraction 2Z_ℓ(K^σ_{ℓ-1})⁺ and repulsion −2σ̇(Z_ℓ) ⊙ [σ(Z_ℓ)(K^σ_ℓ)⁺K_{ℓ+1}(K^σ_ℓ)⁺] at the hidden layers.

    Parameters
    ----------
    net : network or Trace
    X : array (N, n_0)
        Not needed with a trace.
    gamma_share : float, default 1e-6
        γ = share·‖K^σ‖_op is added to each K^σ; 0 takes pseudo-inverses.
    """
    who = "forces"
    check_number(who, "gamma_share", gamma_share, low=0.0)
    trace = net if isinstance(net, Trace) else net.trace(X)
    norms = [KernelNorm(trace.Z_sigma(ell), eps=trace.source_eps) for ell in range(trace.depth)]
    rows = [_layer(trace, ell, norms, gamma_share) for ell in range(1, trace.depth)]
    columns = [tuple(column) for column in zip(*rows)] if rows else [()] * 8
    return Forces(tuple(range(1, trace.depth)), *columns)


def _layer(trace: Trace, ell: int, norms: Sequence[KernelNorm], share: float) -> tuple[Any, ...]:
    Z, before, own = trace.Z(ell).double(), norms[ell - 1], norms[ell]
    gamma = share * before.top, share * own.top
    att = attraction(Z, before, gamma[0])
    rep = repulsion(Z, trace.Z(ell + 1), own, slope=trace.slope, gamma=gamma[1])
    sizes = float(att.norm()), float(rep.norm())
    residual = float((att + rep).norm()) / max(sizes) if max(sizes) > 0.0 else math.nan
    cosine = float((att * rep).sum()) / (sizes[0] * sizes[1]) if min(sizes) > 0.0 else math.nan
    share_at = kink_share(Z, trace.slope)
    whole = before.rank == trace.samples, own.rank == trace.samples
    missing = [f"K^σ_{ell - 1 + i} deficient" for i in (0, 1) if not whole[i]]
    if share_at > 0.0:
        missing.append("entries at the kink")
    if math.isnan(residual):
        state = "no forces"
    elif missing:
        state = "not comparable: " + ", ".join(missing)
    else:
        state = "balanced" if residual <= BALANCED else "not balanced"
    return att, rep, gamma, residual, cosine, share_at, whole, state


def kink_share(Z: Tensor, slope: float, tolerance: float = AT_KINK) -> float:
    """Share of the entries of Z within ``tolerance`` times its root mean square of 0; 0 for a linear σ."""
    if slope == 1.0:
        return 0.0
    return float((Z.abs() <= tolerance * Z.square().mean().sqrt()).double().mean())


@cites("features2022", "§3.1(4)", ids=("Q-forces",))
def stationarity_of_representations(
    net: Traceable | Trace, X: Any, Y: Any, ridge: float, loss: str = "mse"
) -> tuple[float, ...]:
    """‖2λZ_ℓ(K^σ_{ℓ-1})⁺ + (∂C/∂Z_ℓ)P‖ for ℓ = 1 … L, in units of the larger term: 0 at stationary points.

    P is the projection onto Im(Z^σ_{ℓ-1})ᵀ and ∂C/∂Z_ℓ the derivative through the fixed later weights. At a stationary
    point 2λW_ℓ + (∂C/∂Z_ℓ)(Z^σ_{ℓ-1})ᵀ = 0, and this times ((Z^σ_{ℓ-1})⁺)ᵀ is the statement: no kernel has to be
    invertible.

    Parameters
    ----------
    net : network or Trace
    X, Y : arrays (N, n_0), (N, n_L) (or (N,) of labels)
        X is not looked at with a trace.
    ridge : float
        λ > 0.
    """
    check_number("stationarity_of_representations", "ridge", ridge, low=0.0, low_open=True)
    trace = net if isinstance(net, Trace) else net.trace(X)
    found = []
    for ell, G in enumerate(output_gradients(trace, Y, loss), start=1):
        norm = KernelNorm(trace.Z_sigma(ell - 1), eps=trace.source_eps)
        V = norm.Vh[: norm.rank]
        pull, push = 2.0 * ridge * solve(norm, trace.Z(ell)), (G @ V.mT) @ V
        size = max(float(pull.norm()), float(push.norm()))
        found.append(float((pull + push).norm()) / size if size > 0.0 else 0.0)
    return tuple(found)


def output_gradients(trace: Trace, Y: Any, loss: str = "mse") -> tuple[Tensor, ...]:
    """∂C/∂Z_ℓ through the fixed later weights, (n_ℓ, N), for ℓ = 1 … L."""
    targets = torch.as_tensor(Y)
    with torch.enable_grad():
        outputs = trace.outputs.detach().double().clone().requires_grad_(True)
        value = cost(outputs, targets.double() if targets.is_floating_point() else targets, loss)
        (G,) = torch.autograd.grad(value, outputs)
    gradients = [G.mT]
    for ell in range(trace.depth - 1, 0, -1):
        back = trace.Ws[ell].double().mT @ gradients[0]
        gradients.insert(0, activation_derivative(trace.Z(ell), trace.slope) * back)
    return tuple(gradients)


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
