"""One hidden layer of the loss over covariances, the others fixed: a convex problem over a cone, and its dual bound."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.measures import KernelNorm
from isthmus.trace import activate, with_ones


@dataclass(frozen=True, eq=False)
class Block:
    """h(K, K^σ) = Tr[K(K^σ_{ℓ-1})⁺] + Tr[T(K^σ + γI)⁻¹Tᵀ] over pairs Σ(zzᵀ, σ(z)σ(z)ᵀ) + (0, β²11ᵀ).

    With γ = 0 and T = Z_{ℓ+1} these are the two terms of 𝓛^k/λ that contain the pair. With γ = λN and T = Y it is the
    least value of (1/λN)‖Z_L − Y‖² + Tr[K(K^σ_{L-2})⁺] + Tr[Z_L(K^σ_{L-1})⁺Z_Lᵀ] over Z_L, reached at
    Z_L = YK^σ(K^σ + λNI)⁻¹: pair and outputs together are one convex block.

    Neurons are z = Qc with |c|² = zᵀ(K^σ_{ℓ-1})⁺z: rows of C (n, r) are all of Im K^σ_{ℓ-1} and nothing else.

    Attributes
    ----------
    Q : Tensor (N, r)
        (K^σ_{ℓ-1})^½ in an orthonormal basis of its image.
    T : Tensor (d, N)
    gamma, slope, bias : float
    """

    Q: Tensor
    T: Tensor
    gamma: float
    slope: float
    bias: float

    @staticmethod
    def after(S: Tensor, T: Tensor, gamma: float, slope: float, bias: float) -> Block:
        """The block whose previous activations Z^σ_{ℓ-1} are ``S`` (bias row included)."""
        norm = KernelNorm(S)
        r = norm.rank
        return Block(norm.Vh[:r].mT * norm.s[:r], T, gamma, slope, bias)

    def coordinates(self, Z: Tensor) -> Tensor:
        """C with Z = CQᵀ, (n, r), for rows of Z in Im K^σ_{ℓ-1} (projected to it otherwise)."""
        return (Z @ self.Q) / self.Q.square().sum(0)

    def activations(self, C: Tensor) -> Tensor:
        """σ(CQᵀ), (n, N)."""
        return activate(C @ self.Q.mT, self.slope)

    def norm(self, C: Tensor) -> KernelNorm:
        """The norm of K^σ."""
        return KernelNorm(with_ones(self.activations(C), self.bias))

    def value(self, C: Tensor) -> float:
        """h; ∞ for γ = 0 when the rows of T do not lie in Im K^σ."""
        return float(C.square().sum()) + self.norm(C).square(self.T, self.gamma)

    def prices(self, C: Tensor) -> Tensor:
        """V = T(K^σ + γI)⁻¹ (d, N): −VᵀV is a gradient of the second term by K^σ (for γ = 0 a subgradient)."""
        norm = self.norm(C)
        if self.gamma > 0.0:
            inside, outside = norm.split(self.T)
            return (inside / (norm.s**2 + self.gamma)) @ norm.Vh + outside / self.gamma
        r = norm.rank
        return (self.T @ norm.Vh[:r].mT / norm.s[:r] ** 2) @ norm.Vh[:r]

    def lower_bound(self, V: Tensor, ratio: float) -> float:
        """max_t 2t⟨V, T⟩ − t²(β²|V1|² + γ‖V‖²), 0 ≤ t ≤ ratio^(−½): below h at every pair of the cone.

        If |Vσ(z)|² ≤ ratio·zᵀ(K^σ_{ℓ-1})⁺z for all z, then tV is feasible for the dual: the second term is the largest
        of 2⟨U, T⟩ − Tr[U(K^σ + γI)Uᵀ] over all U, and for U = tV the part −Tr[U(K^σ − β²11ᵀ)Uᵀ] is made good by the
        first term.
        """
        gain = float((V * self.T).sum())
        price = self.bias**2 * float(V.sum(1).square().sum()) + self.gamma * float(V.square().sum())
        most = ratio**-0.5 if ratio > 0.0 else float("inf")
        t = min(most, gain / price) if price > 0.0 else most
        return 2.0 * t * gain - t * t * price if gain > 0.0 else 0.0

    def reweighted(self, C: Tensor, V: Tensor) -> Tensor:
        """Rows scaled so that K and K^σ − β²11ᵀ get weights √(|Vσ(z_i)|²/|c_i|²): h never rises.

        The second term is min Σ|v_i|²/w_i over outgoing weights; at the present ones the best w_i is this.
        """
        gains = (V @ self.activations(C).mT).square().sum(0)
        sizes = C.square().sum(1)
        alive = sizes > 0.0
        scale = torch.where(alive, gains / sizes.clamp_min(torch.finfo(torch.float64).tiny), torch.zeros_like(sizes))
        return C * scale.pow(0.25)[:, None]
