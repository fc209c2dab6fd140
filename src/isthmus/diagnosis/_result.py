"""The Diagnosis: what was found at every layer and in the whole, as plain data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from isthmus import _html
from isthmus._codec import Plain
from isthmus._result import Table
from isthmus.diagnosis._effective import EffectiveDimension
from isthmus.diagnosis._effort import Part
from isthmus.diagnosis._estimates import Estimate
from isthmus.diagnosis._jacobians import NOTHING
from isthmus.diagnosis._projected import Factor, Narrowest
from isthmus.diagnosis._ranks import Evidence, Isthmus
from isthmus.measures import (
    FrequencySpectrum,
    GapRule,
    Mechanics,
    Minimum,
    Reading,
    Stability,
    participation_ratio,
    stable_rank,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

#: Raised when a field of the JSON changes its meaning or goes; new fields alone do not.
SCHEMA_VERSION = 1

#: Values of one spectrum that are written to JSON: the first half one by one, those after them thinned evenly.
MOST_VALUES = 1024


@dataclass(frozen=True, eq=False)
class Spectrum(Plain):
    """Singular values and how they were obtained.

    Attributes
    ----------
    values : Tensor (r,)
        Decreasing, float64; empty when not computed.
    method : str
        ``"exact"``, ``"by frequency"``, ``"unfolded filter"``, ``"randomised"``, ``"sketched"``, ``"not computed"``.
    error : float
        Estimated error of the values relative to the largest.
    reading : Reading or None
        The count that stands out.
    note : str
    """

    values: Tensor
    method: str
    error: float = 0.0
    reading: Reading | None = None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data; thinned if long."""
        count = len(self.values)
        thinned = replace(self, values=self.values[kept_numbers(count)])
        return {**Plain.to_dict(thinned), "count": count}

    @property
    def rank(self) -> int | None:
        """The count that clearly stands out (all of them, where nothing drops), None when unclear."""
        return None if self.reading is None or self.reading.status == "unclear" else self.reading.count


def kept_numbers(count: int) -> Tensor:
    """Which of ``count`` values are written to JSON, from 0."""
    if count <= MOST_VALUES:
        return torch.arange(count)
    half = MOST_VALUES // 2
    return torch.cat([torch.arange(half), torch.linspace(half, count - 1, MOST_VALUES - half).long()])


@dataclass(frozen=True, eq=False)
class WeightDiagnosis(Plain):
    """One weight matrix: ``label`` says which of the layer's, ``norm`` is ‖W‖_F, exact.

    Of a circular convolution the matrix is the operator; ``frequencies`` has its values frequency by frequency.
    """

    later: ClassVar = ("frequencies",)

    label: str
    shape: tuple[int, ...]
    norm: float
    spectrum: Spectrum
    frequencies: FrequencySpectrum | None = None

    @property
    def stable_rank(self) -> float:
        """‖W‖²_F/‖W‖²_op."""
        return float(stable_rank(self.spectrum.values)) if len(self.spectrum.values) else math.nan


@dataclass(frozen=True, eq=False)
class LayerDiagnosis(Plain):
    """One layer.

    Attributes
    ----------
    name : str
        As in ``module.named_modules()``; ``""`` is the output of the whole.
    kind, type_name : str
        ``"linear"``, ``"convolution"``, …, ``"norm"``, ``"block"`` (a module around others), ``"output"``; its class.
    order : int or None
        Position in the computation; None if the forward never called it.
    calls : int
        In one forward; representations of all calls count as samples.
    units, rows : int
        Columns and rows of the representation: features or channels; samples × positions.
    note : str
        What counted as samples, and what could not be computed.
    weights : tuple of WeightDiagnosis
    representation : Spectrum or None
        Of the centred representation, divided by √rows, positions counting as samples.
    whole : Spectrum or None
        The same with all positions of a sample together: its dimensions are those of the map. None where it equals
        ``representation``, cannot be had, or inputs are tokens, whose dimensions are counted position by position.
    jacobian : Spectrum or None
        Median over samples of the singular values of J(x → layer).
    bypass : float
        Share of the outputs' variation that survives when this layer is frozen: 0 if everything passes through it.
    bypass_range : Estimate or None
        The same with an interval of 95 % for all samples beside the same fixed one; None where it is 0 or not known.
    passes : bool or None
        Whether everything passes through it, by ``bypass`` or because the module around it is bypassed; None if that
        was not measured.
    jacobian_size : Estimate or None
        Mean over samples of ‖J(x → layer)‖²_F; where it is estimated, with an interval of 95 %.
    negative_count, negative_share : float
        Share of the entries of its outputs that are negative, and their size ‖[Z]₋‖²/‖Z‖²: both are small inside a
        bottleneck, where a ReLU has nothing to do.
    effective, fresh : EffectiveDimension or None
        In how many dimensions its outputs vary in effect, where no bottleneck was found; and those of the same layer
        of a freshly initialised copy.
    factor : Factor or None
        The layer as a product of two of fewer directions, if that is smaller.
    """

    keys: ClassVar = {"type_name": "type"}
    derived: ClassVar = ("participation_ratio",)
    later: ClassVar = (
        *("negative_count", "negative_share", "passes", "jacobian_size", "effective", "fresh", "factor"),
        "bypass_range",
    )

    name: str
    kind: str
    type_name: str
    order: int | None
    calls: int
    units: int
    rows: int
    note: str
    weights: tuple[WeightDiagnosis, ...]
    representation: Spectrum | None
    whole: Spectrum | None
    jacobian: Spectrum | None
    bypass: float
    negative_count: float = math.nan
    negative_share: float = math.nan
    passes: bool | None = None
    jacobian_size: Estimate | None = None
    effective: EffectiveDimension | None = None
    fresh: EffectiveDimension | None = None
    factor: Factor | None = None
    bypass_range: Estimate | None = None

    def __post_init__(self) -> None:
        if self.passes is None and not math.isnan(self.bypass):
            object.__setattr__(self, "passes", self.bypass <= NOTHING)

    @property
    def dimensions(self) -> Spectrum | None:
        """The spectrum whose count is the dimension of the map: ``whole``, or ``representation`` where they agree."""
        return self.whole if self.whole is not None else self.representation

    @property
    def sizes(self) -> tuple[float, float, float]:
        """‖W‖ of all matrices together, the largest singular value, the smallest stable rank; NaN without matrices."""
        if not self.weights:
            return math.nan, math.nan, math.nan
        largest = [float(part.spectrum.values[0]) for part in self.weights if len(part.spectrum.values)]
        stable = [part.stable_rank for part in self.weights if len(part.spectrum.values)]
        norm = math.sqrt(sum(part.norm**2 for part in self.weights))
        return norm, max(largest, default=math.nan), min(stable, default=math.nan)

    @property
    def participation_ratio(self) -> float:
        """(Σs²)²/Σs⁴ of the representation."""
        s = self.representation
        return math.nan if s is None or len(s.values) == 0 else float(participation_ratio(s.values))


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis(Plain):
    """What a network really uses.

    Attributes
    ----------
    isthmus : Isthmus
        The rank, where it is attained, the verdict and its reasons.
    agreement : tuple of Evidence
        Our rank beside other ways of counting.
    layers : tuple of LayerDiagnosis
        Every layer with parameters and every block, in the order of the computation; those never called last.
    whole : dict
        Numbers of the whole network: parameters, ‖θ‖², balancedness, NTK, fit; see ``quantities``.
    samples : int
    notes : tuple of str
        What was done and what could not be.
    settings, provenance : dict
        How it was computed.
    mechanics : Mechanics or None
        Of a leaky ResNet, where targets and ridge were given.
    stability : Stability or None
        Whether the training's steps stay at this minimum, where its learning rate was given.
    minimum : Minimum or None
        Which kind of minimum a fully connected network is at, where targets and ridge were given.
    cost : tuple of Part
        What each part was expected to take and took, and what the budget reduced or left out.
    narrowest : Narrowest or None
        Where the effective dimension is least among the layers that everything passes through, and how much of the
        outputs it carries; where no bottleneck was found.
    """

    document: ClassVar = ("isthmus.diagnosis", SCHEMA_VERSION, "a diagnosis")
    derived: ClassVar = ("quantities",)
    later: ClassVar = ("mechanics", "stability", "minimum", "cost", "narrowest")

    isthmus: Isthmus
    agreement: tuple[Evidence, ...]
    layers: tuple[LayerDiagnosis, ...]
    whole: Mapping[str, Any]
    samples: int
    notes: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    mechanics: Mechanics | None = None
    stability: Stability | None = None
    minimum: Minimum | None = None
    cost: tuple[Part, ...] = ()
    narrowest: Narrowest | None = None

    @property
    def quantities(self) -> Mapping[str, Any]:
        """What every number is: formula, threshold, and the version that brought it, by its path in the JSON."""
        return QUANTITIES

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain data."""
        mechanics = None if self.mechanics is None else json.loads(self.mechanics.to_json())
        return {**super().to_dict(), "mechanics": mechanics}

    @property
    def left_out(self) -> tuple[str, ...]:
        """What the budget reduced or left out, in words."""
        return tuple(f"{part.name} {part.state}: {part.what}" for part in self.cost if part.state != "complete")

    @property
    def rank(self) -> int | None:
        """The bottleneck rank when determined."""
        return self.isthmus.rank

    @property
    def verdict(self) -> str:
        """``"determined"``, ``"none"`` or ``"undetermined"``."""
        return self.isthmus.verdict

    def __getitem__(self, name: str) -> LayerDiagnosis:
        """The layer of this name."""
        return {layer.name: layer for layer in self.layers}[name]

    @property
    def reasons(self) -> tuple[str, ...]:
        """What speaks for the verdict; doubts first."""
        return self.isthmus.reasons

    def tables(self) -> list[Table]:
        """Every layer, and the other ways of counting."""
        from isthmus.diagnosis._tables import tables_of

        return tables_of(self)

    @property
    def sentence(self) -> str:
        """The answer in one sentence."""
        found = self.isthmus
        if found.verdict == "undetermined":
            what = f"Undetermined: whether the network has a bottleneck cannot be said; {found.reasons[0]}."
            return what + self._in_effect
        if found.verdict == "none":
            return f"The network has no bottleneck: {found.reasons[0]}.{self._in_effect}"
        dimensions = "1 dimension" if found.rank == 1 else f"{found.rank} dimensions"
        first, last = found.layers[0], found.layers[-1]
        where = f"at layer {first!r}" if first == last else f"from layer {first!r} to {last!r}"
        kind = {"full": "", "half": ", as many as its outputs (a half bottleneck)", None: ""}[found.kind]
        dimensions += " at each position" if found.per == "position" else ""
        return f"Everything the network computes passes through {dimensions}{kind}, {where} (determined)."

    @property
    def _in_effect(self) -> str:
        """Where it is narrowest in effect, as a second sentence."""
        narrow = self.narrowest
        if narrow is None:
            return ""
        units, fresh = self[narrow.layer].units, narrow.fresh
        beside = f" (freshly initialised: {fresh.shown})" if fresh is not None and math.isfinite(fresh.value) else ""
        last = "."
        if narrow.carried >= 0:
            ways = "direction carries" if narrow.directions == 1 else f"{narrow.directions} directions carry"
            last = f"; its leading {ways} {narrow.carried:.0%} of the outputs."
        where = f"at layer {narrow.layer!r}"
        return f" In effect it is narrowest {where}: {narrow.dimension.shown} of {units} dimensions{beside}{last}"

    def to_frame(self) -> pd.DataFrame:
        """One row for each layer; of several matrices the largest norm and the smallest stable rank."""
        import pandas as pd

        rows = []
        for layer in self.layers:
            alone = layer.weights[0] if len(layer.weights) == 1 else None
            tops = [float(w.spectrum.values[0]) for w in layer.weights if len(w.spectrum.values)]
            rows.append(
                {
                    "layer": layer.name or "(output)",
                    "kind": layer.kind,
                    "order": layer.order,
                    "units": layer.units,
                    "weights": "; ".join("×".join(map(str, w.shape)) for w in layer.weights),
                    "norm": math.sqrt(sum(w.norm**2 for w in layer.weights)) if layer.weights else math.nan,
                    "largest": max(tops, default=math.nan),
                    "stable_rank": min((w.stable_rank for w in layer.weights), default=math.nan),
                    "weight_rank": alone.spectrum.rank if alone else None,
                    "dimensions": layer.dimensions.rank if layer.dimensions else None,
                    "participation_ratio": layer.participation_ratio,
                    "jacobian_rank": layer.jacobian.rank if layer.jacobian else None,
                    "bypass": layer.bypass,
                    "passes": layer.passes,
                    "negative_count": layer.negative_count,
                    "negative_share": layer.negative_share,
                    "note": layer.note,
                }
            )
        frame = pd.DataFrame(rows)
        whole = ["order", "weight_rank", "dimensions", "jacobian_rank"]
        return frame.astype({**dict.fromkeys(whole, "Int64"), "passes": "boolean"})

    def plot(self, figure: Figure | None = None) -> Figure:
        """Ranks by layer, spectra through depth and other counts, as a matplotlib figure."""
        from isthmus.plotting.diagnosis import plot

        return plot(self, figure)

    def __repr__(self) -> str:
        return f"<Diagnosis of {self.whole.get('type', 'a network')}: {self.sentence}>"

    def _repr_html_(self) -> str:
        more = [one.sentence for one in (self.mechanics, self.minimum, self.stability) if one is not None]
        return _html.result(self, _html.items(more), _html.items([*self.left_out, *self.notes]))


# ---- What every number of a Diagnosis is: formula, threshold, and the schema version that introduced or changed it


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
    "layers.jacobian_size": _quantity(
        "mean over samples of ‖J(x → layer)‖²_F; sketched: Hutchinson's Σ‖Jω‖²/r with Gaussian ω, low and high by "
        "χ²_d/d of the same variance",
        "95 % of intervals hold the exact mean over these samples",
    ),
    "layers.passes": _quantity("bypass ≤ 1e-9; false inside a module that is bypassed; null where not measured"),
    "cost": _quantity("seconds expected and taken by each part, and what the budget reduced or left out"),
    "layers.participation_ratio": _quantity("(Σs²)²/Σs⁴ of the representation"),
    "layers.effective": _quantity(
        "of the covariance Σ of a layer's outputs, positions pooled: participation (Tr Σ)²/Tr Σ², Tr Σ² from pairs "
        "of different samples; stable Tr Σ/‖Σ‖; intrinsic: TwoNN",
        "95 % of intervals hold the number of all samples; of TwoNN the dimension where density is constant nearby",
    ),
    "layers.fresh": _quantity("the same of a freshly initialised copy; the notes say how it was made"),
    "layers.factor": _quantity(
        "rank: directions with 99 % of the variance of the layer's outputs, where r(m + n) < mn; loss: "
        "Σ‖f_r − f‖²/Σ‖f − f̄‖² on other samples than those that gave the directions"
    ),
    "narrowest": _quantity(
        "the layer of least participation that everything passes through; carried: 1 − Σ‖f_k − f̄_k − f + f̄‖²/Σ‖f − f̄‖² "
        "with its outputs on their k leading directions, on other samples"
    ),
    "layers.bypass": _quantity(
        "Σ‖f(x; layer frozen at x_0) − f(x_0)‖² / Σ‖f(x) − f(x_0)‖²", "everything passes through if ≤ 1e-9"
    ),
    "layers.bypass_range": _quantity(
        "the same as an estimate of E‖f(x; frozen) − f(x_0)‖² / E‖f(x) − f(x_0)‖²: Student's t for its logarithm",
        "95 % of intervals hold the number of all samples beside the same x_0",
    ),
    "layers.negative_share": _quantity("‖[Z]₋‖²/‖Z‖² of the layer's outputs: what a ReLU after it takes away"),
    "layers.negative_count": _quantity("share of the entries of the layer's outputs that are negative"),
    "whole.nonnegativity": _quantity(
        "fully connected networks, layer by layer: change = ‖σ(α̃) − α̃‖/‖α̃‖; with the rank k, excess = "
        "‖W_ℓ‖² + ‖b_ℓ‖² − k and R1 = ‖θ_(≤ℓ)‖² − kℓ ≥ R1_below = 2 log(s_1⋯s_k) of Jα̃_ℓ(x); change is near 0 "
        "inside a bottleneck, excess in every layer of a deep network of least norm"
    ),
    "whole.norm_squared": _quantity("‖θ‖² = Σ‖W_ℓ‖² + ‖b_ℓ‖², all parameters"),
    "whole.norm_per_depth": _quantity("‖θ‖²/L; fully connected networks only; tends to the rank from above with depth"),
    "whole.layer_imbalance": _quantity("max_ℓ |‖W_ℓ‖² + ‖b_ℓ‖² − ‖W_(ℓ+1)‖²| / mean‖W_ℓ‖²; 0 at every minimum"),
    "whole.neuron_imbalance": _quantity("max_ℓ Σ_i |‖W_ℓ,i·‖² + b_ℓ,i² − ‖W_(ℓ+1),·i‖²| / mean‖W_ℓ‖²"),
    "whole.ntk_trace": _quantity(
        "mean over samples of Tr Θ(x, x) = ‖J_θ f(x)‖²_F; fully connected networks: Σ_ℓ (‖α_(ℓ−1)‖² + β²)·"
        "‖J(α̃_ℓ → f)‖²_F over these samples; others: from random directions of the outputs at some of them"
    ),
    "whole.ntk_trace_range": _quantity(
        "others: interval of the same, Student's t for its logarithm", "95 % of intervals hold the mean of all samples"
    ),
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
    "whole.output_depth": _quantity(
        "LeakyResNet with L̃ = 0 only: the L̃ for which its path, read as a leaky one, ends as large as it begins; "
        "log(‖A_L‖/‖A_0‖) up to O(ρ)"
    ),
    "whole.cost": _quantity("mean over samples, sum over outputs; or cross-entropy"),
    "whole.unexplained": _quantity("cost / variance of Y (mse)"),
    "whole.criticality": _quantity("‖∇(cost + ridge·‖θ‖²)‖ / ‖2·ridge·θ‖; 0 at a minimum"),
    "stability": _quantity(
        "H_i = 2J_iᵀJ_i + 2·ridge of sample i, H their mean: gradient descent stays at the minimum iff ‖H‖ ≤ 2/η; with "
        "batches of B, c = (N−B)/(B(N−1)), it stays up to η = 2/((1−c)‖H‖ + c·max‖H_i‖)"
    ),
    "stability.unstable_samples": _quantity("samples that are too sharp alone", "(‖H_i‖ − 2·ridge)/B + 2·ridge > 2/η"),
    "minimum.kind": _quantity(
        "fully connected networks with targets and ridge: the rank against the true one, or that of the least "
        "cost + ridge·‖θ‖² = ridge·L·k + cost + ridge·R1",
        "fits if cost ≤ 0.1 of that of the best constant; undetermined where the other ranks are not known",
    ),
    "mechanics": _quantity(
        "leaky ResNets with targets and ridge: energies, Hamiltonian 𝓗(A_(ℓ−1), B_ℓ), momenta and costs of identity, "
        "step by step (measures.MechanicsArrays)"
    ),
    "mechanics.state": _quantity(
        "conserved: W = L̃Bσ(A)ᵀ and 𝓗 constant; drifting: the first only; not yet critical: neither",
        "relative residual and relative spread of 𝓗 ≤ mechanics.tolerance",
    ),
}
