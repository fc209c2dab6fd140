"""One moment of a training: norms, spectra and ranks of every layer, as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

#: Values of each spectrum that are kept.
TOP = 32
MEASURED, NOT_FINITE, FAILED = "measured", "not finite", "failed"


@dataclass(frozen=True, eq=False)
class SpectrumSnapshot:
    """The largest singular values of one matrix.

    Attributes
    ----------
    label : str
        Which matrix of the layer; ``"representation"`` for its outputs.
    values : Tensor (≤ 32,)
        Decreasing, float64; empty unless computed.
    norm_squared : float
        ‖A‖²_F, over all values; NaN if not finite.
    participation_ratio : float
        (Σs²)²/Σs⁴ over the values computed.
    rank : int or None
        The count that clearly stands out (all of them, where nothing drops).
    status : {"clear", "full", "unclear", "zero", "not finite", "not computed"}
        How the spectrum reads, as in :class:`isthmus.measures.Reading`, or why there is none.
    """

    label: str
    values: Tensor
    norm_squared: float
    participation_ratio: float
    rank: int | None
    status: str

    @property
    def stable_rank(self) -> float:
        """‖A‖²_F/s₁²; NaN for a zero or missing spectrum."""
        top = float(self.values[0]) if len(self.values) else 0.0
        # Not top²: it may leave the range of numbers.
        return self.norm_squared / top / top if top > 0 else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "label": self.label,
            "values": self.values.tolist(),
            "norm_squared": _number(self.norm_squared),
            "stable_rank": _number(self.stable_rank),
            "participation_ratio": _number(self.participation_ratio),
            "rank": self.rank,
            "status": self.status,
        }


@dataclass(frozen=True, eq=False)
class LayerSnapshot:
    """One layer: its weight matrices, and its representation (None if the forward never called it)."""

    name: str
    kind: str
    weights: tuple[SpectrumSnapshot, ...]
    representation: SpectrumSnapshot | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "kind": self.kind,
            "weights": [part.to_dict() for part in self.weights],
            "representation": None if self.representation is None else self.representation.to_dict(),
        }


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A network at one step.

    Attributes
    ----------
    step : int
    state : {"measured", "not finite", "failed"}
        ``"not finite"``: some weights or representations are NaN or infinite; the others are measured.
    note : str
        Which, or what failed.
    layers : tuple of LayerSnapshot
    norm_squared : float
        ‖θ‖² of all parameters.
    cost : float
        Of the targets, if there are any; else NaN.
    """

    step: int
    state: str
    note: str
    layers: tuple[LayerSnapshot, ...]
    norm_squared: float
    cost: float

    def __getitem__(self, name: str) -> LayerSnapshot:
        """The layer of this name."""
        return {layer.name: layer for layer in self.layers}[name]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "step": self.step,
            "state": self.state,
            "note": self.note,
            "norm_squared": _number(self.norm_squared),
            "cost": _number(self.cost),
            "layers": [layer.to_dict() for layer in self.layers],
        }


def frame_row(snapshot: Snapshot, layer: LayerSnapshot | None) -> Mapping[str, Any]:
    """One line of a table: a step, and a layer of it (None where nothing was measured)."""
    main = layer.weights[0] if layer is not None and layer.weights else None
    inside = layer.representation if layer is not None else None
    norms = [part.norm_squared for part in layer.weights] if layer is not None else []
    return {
        "step": snapshot.step,
        "state": snapshot.state,
        "layer": None if layer is None else layer.name,
        "kind": None if layer is None else layer.kind,
        "weight_norm_squared": sum(norms) if norms else math.nan,
        "largest": float(main.values[0]) if main is not None and len(main.values) else math.nan,
        "stable_rank": main.stable_rank if main is not None else math.nan,
        "weight_rank": main.rank if main is not None else None,
        "rank": inside.rank if inside is not None else None,
        "participation_ratio": inside.participation_ratio if inside is not None else math.nan,
        "norm_squared": snapshot.norm_squared,
        "cost": snapshot.cost,
    }


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
