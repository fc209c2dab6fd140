"""One moment of a training: norms, spectra and ranks of every layer, as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

#: Values of each spectrum that are kept.
TOP = 32
MEASURED, NOT_FINITE, FAILED = "measured", "not finite", "failed"
STATES = (MEASURED, NOT_FINITE, FAILED)
_STATUSES = ("clear", "full", "unclear", "zero", NOT_FINITE, "not computed")
#: Integers beyond are not exact as numbers of JSON.
_LARGEST = 2**53


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

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> SpectrumSnapshot:
        """Inverse of :meth:`to_dict`; a ValueError or its like where something is not as it must be."""
        values = [_float(value, low=0.0) for value in _listed(content["values"])]
        if len(values) > TOP or values != sorted(values, reverse=True):
            raise ValueError(f"`values` must be at most {TOP} falling numbers")
        rank = content["rank"]
        return SpectrumSnapshot(
            label=_text(content["label"]),
            values=torch.tensor(values, dtype=torch.float64),
            norm_squared=_known(content["norm_squared"], low=0.0),
            participation_ratio=_known(content["participation_ratio"], low=0.0),
            rank=None if rank is None else _integer(rank, low=0),
            status=_text(content["status"], _STATUSES),
        )


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

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> LayerSnapshot:
        """Inverse of :meth:`to_dict`."""
        inside = content["representation"]
        return LayerSnapshot(
            name=_text(content["name"]),
            kind=_text(content["kind"]),
            weights=tuple(SpectrumSnapshot.from_dict(part) for part in _listed(content["weights"])),
            representation=None if inside is None else SpectrumSnapshot.from_dict(inside),
        )


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

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> Snapshot:
        """Inverse of :meth:`to_dict`."""
        return Snapshot(
            step=_integer(content["step"], low=-_LARGEST),
            state=_text(content["state"], STATES),
            note=_text(content["note"]),
            layers=tuple(LayerSnapshot.from_dict(layer) for layer in _listed(content["layers"])),
            norm_squared=_known(content["norm_squared"], low=0.0),
            cost=_known(content["cost"]),
        )


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


# What a file holds is of its type and in its range, or is refused.


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"a list is needed, not a {type(value).__name__}")
    return value


def _text(value: Any, choices: Sequence[str] = ()) -> str:
    if not isinstance(value, str) or (choices and value not in choices):
        what = f"one of {', '.join(choices)}" if choices else "a text"
        raise ValueError(f"{value!r:.60} is not {what}")
    return value


def _integer(value: Any, *, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= _LARGEST:
        raise ValueError(f"{value!r:.60} is not an integer in [{low}, {_LARGEST}]")
    return value


def _float(value: Any, *, low: float = -math.inf) -> float:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not plain or not math.isfinite(value) or value < low:
        raise ValueError(f"{value!r:.60} is not a finite number" + (f" from {low:g} on" if low > -math.inf else ""))
    return float(value)


def _known(value: Any, *, low: float = -math.inf) -> float:
    """A number, or NaN for the null that :func:`_number` writes."""
    return math.nan if value is None else _float(value, low=low)
