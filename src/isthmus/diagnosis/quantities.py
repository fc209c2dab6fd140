"""What every number of a Diagnosis is: formula, threshold, and the schema version that introduced or changed it."""

from __future__ import annotations

from typing import Any

from isthmus.measures import GapRule

#: Raised when a field of the JSON changes its meaning or goes; new fields alone do not.
SCHEMA_VERSION = 1

_RULE = GapRule()
_GAP = (
    f"s_k/s_(k+1) ≥ {_RULE.clear:g} with s_(k+1) ≤ {_RULE.tail:g}·s_1 and s_k ≥ {_RULE.level:g}·s_1 is clear; "
    f"≥ {_RULE.unclear:g} leaves it open (measures.GapRule)"
)


def _quantity(formula: str, threshold: str | None = None, version: int = 1) -> dict[str, Any]:
    return {"formula": formula, "threshold": threshold, "version": version}


#: Path in the JSON → what stands there.
QUANTITIES: dict[str, dict[str, Any]] = {
    "isthmus.rank": _quantity(
        "dimensions of the narrowest centred representation that everything passes through, if weights, width or "
        "Jacobian agree",
        _GAP,
    ),
    "isthmus.kind": _quantity("full: rank < min(d_in, d_out); half: rank = d_out < d_in"),
    "layers.weights.spectrum": _quantity("singular values s_i(W) in float64", _GAP),
    "layers.weights.norm": _quantity("‖W‖_F"),
    "layers.weights.frequencies": _quantity(
        "circular convolutions: s_(ω,i) of Ŵ(ω) for one of each pair ±ω; norms (Σ_i s²)^½; Σ s² over all ω is "
        "positions·filter_norm²"
    ),
    "layers.representation": _quantity(
        "singular values of the centred rows (samples, and positions where there are any) divided by √rows", _GAP
    ),
    "layers.whole": _quantity("the same with all positions of one sample in one row", _GAP),
    "layers.jacobian": _quantity("median over samples of s_i(J(x → layer)); sketched: of JΩ/√r, Ω Gaussian", _GAP),
    "layers.participation_ratio": _quantity("(Σs²)²/Σs⁴ of the representation"),
    "layers.bypass": _quantity(
        "Σ‖f(x; layer frozen at x_0) − f(x_0)‖² / Σ‖f(x) − f(x_0)‖²", "everything passes through if ≤ 1e-9"
    ),
    "whole.norm_squared": _quantity("‖θ‖² = Σ‖W_ℓ‖² + ‖b_ℓ‖², all parameters"),
    "whole.norm_per_depth": _quantity("‖θ‖²/L; fully connected networks only; tends to the rank from above with depth"),
    "whole.layer_imbalance": _quantity("max_ℓ |‖W_ℓ‖² + ‖b_ℓ‖² − ‖W_(ℓ+1)‖²| / mean‖W_ℓ‖²; 0 at every minimum"),
    "whole.neuron_imbalance": _quantity("max_ℓ Σ_i |‖W_ℓ,i·‖² + b_ℓ,i² − ‖W_(ℓ+1),·i‖²| / mean‖W_ℓ‖²"),
    "whole.ntk_trace": _quantity("mean over samples of Tr Θ(x, x) = Σ_ℓ (‖α_(ℓ−1)‖² + β²)·‖J(α̃_ℓ → f)‖²_F"),
    "whole.ntk_top": _quantity("largest eigenvalue of Θ(X, X)/N, at most 200 samples"),
    "whole.largest_stable_step": _quantity("2/‖H‖ with H = (2/N)Θ + 2·ridge: gradient descent is stable below it"),
    "whole.forces": _quantity(
        "gradients of ‖Z_ℓ(Z^σ_(ℓ−1))⁺‖² and ‖Z_(ℓ+1)(Z^σ_ℓ)⁺‖² by Z_ℓ, stabilised by γ = 1e-6·‖K^σ‖: attraction and "
        "repulsion; residual ‖sum‖/larger, 0 at a minimum with invertible kernels and no entry at a kink",
        "balanced if the residual ≤ 1e-3",
    ),
    "whole.kept_frequencies": _quantity(
        "ConvolutionalNet only: frequencies ω ≠ 0 that filters and centred pre-activations of its narrowest layers "
        "keep; mean: what they have at ω = 0",
        _GAP,
    ),
    "whole.cost": _quantity("mean over samples, sum over outputs; or cross-entropy"),
    "whole.unexplained": _quantity("cost / variance of Y (mse)"),
    "whole.criticality": _quantity("‖∇(cost + ridge·‖θ‖²)‖ / ‖2·ridge·θ‖; 0 at a minimum"),
    "mechanics": _quantity(
        "leaky ResNets with targets and ridge: energies, Hamiltonian 𝓗(A_(ℓ−1), B_ℓ), momenta and costs of identity, "
        "step by step (measures.MechanicsArrays)"
    ),
    "mechanics.state": _quantity(
        "conserved: W = L̃Bσ(A)ᵀ and 𝓗 constant; drifting: the first only; not yet critical: neither",
        "relative residual and relative spread of 𝓗 ≤ mechanics.tolerance",
    ),
}
