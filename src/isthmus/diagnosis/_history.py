"""One moment of a training: norms, spectra and ranks of every layer, as plain data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from isthmus import _html
from isthmus._checks import fail
from isthmus._errors import FileFormatError
from isthmus._result import Table
from isthmus.diagnosis._result import SCHEMA_VERSION
from isthmus.measures._minima import KINDS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


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
    """One layer: its weight matrices, and its representation (None if the forward never called it).

    ``negative_share`` is ‖[Z]₋‖²/‖Z‖² of its outputs: what a ReLU after it takes away.
    """

    name: str
    kind: str
    weights: tuple[SpectrumSnapshot, ...]
    representation: SpectrumSnapshot | None
    negative_share: float = math.nan

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "kind": self.kind,
            "weights": [part.to_dict() for part in self.weights],
            "representation": None if self.representation is None else self.representation.to_dict(),
            "negative_share": _number(self.negative_share),
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
            # Files of earlier releases do not have it.
            negative_share=_known(content.get("negative_share"), low=0.0),
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
    sharpness : float
        ‖H‖ of the Gauss–Newton matrix, ridge included, if a learning rate was given; else NaN.
    minimum : str
        Which kind of minimum it is, of a fully connected network with targets and ridge; else empty.
    """

    step: int
    state: str
    note: str
    layers: tuple[LayerSnapshot, ...]
    norm_squared: float
    cost: float
    sharpness: float = math.nan
    minimum: str = ""

    @property
    def whole(self) -> bool:
        """Whether everything was measured."""
        return self.state == MEASURED

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
            "sharpness": _number(self.sharpness),
            "minimum": self.minimum,
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
            # Files of earlier releases do not have these.
            sharpness=_known(content.get("sharpness"), low=0.0),
            minimum=_text(content.get("minimum", ""), ("", *KINDS)),
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
        "negative_share": layer.negative_share if layer is not None else math.nan,
        "norm_squared": snapshot.norm_squared,
        "cost": snapshot.cost,
        "sharpness": snapshot.sharpness,
        "minimum": snapshot.minimum,
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


# ---- The History: what became of ranks, norms and spectra over the steps of a training


#: Path in the JSON → what stands there.
QUANTITIES = {
    "snapshots.norm_squared": "‖θ‖² of all parameters",
    "snapshots.cost": "mean over samples, sum over outputs; or cross-entropy",
    "snapshots.sharpness": "‖H‖ of the Gauss–Newton matrix on some samples, 2·ridge included: steps up to 2/‖H‖ stay",
    "snapshots.minimum": "kind of minimum: rank-recovering, over- or underestimating, fitting or not; undetermined",
    "snapshots.layers.weights.values": f"the {TOP} largest singular values s_i(W), in float64",
    "snapshots.layers.weights.norm_squared": "‖W‖²_F",
    "snapshots.layers.weights.stable_rank": "‖W‖²_F/s_1²",
    "snapshots.layers.weights.rank": "values that stand out (measures.GapRule); null where that is unclear",
    "snapshots.layers.representation.values": (
        f"the {TOP} largest singular values of the centred rows (samples, and positions where there are any) over √rows"
    ),
    "snapshots.layers.representation.rank": "as for the weights",
    "snapshots.layers.representation.participation_ratio": "(Σs²)²/Σs⁴",
    "snapshots.layers.negative_share": "‖[Z]₋‖²/‖Z‖² of the layer's outputs",
}


@dataclass(frozen=True, eq=False, repr=False)
class History:
    """A network over time.

    Attributes
    ----------
    snapshots : tuple of Snapshot
        In the order they were taken.
    notes : tuple of str
        What was decided about the inputs.
    settings : dict
        How it was recorded.
    """

    snapshots: tuple[Snapshot, ...]
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> tuple[int, ...]:
        """Step of each snapshot."""
        return tuple(one.step for one in self.snapshots)

    @property
    def states(self) -> tuple[str, ...]:
        """``"measured"``, ``"not finite"`` or ``"failed"`` for each snapshot."""
        return tuple(one.state for one in self.snapshots)

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of all layers, in the order of the module."""
        return tuple(dict.fromkeys(layer.name for one in self.snapshots for layer in one.layers))

    @property
    def verdict(self) -> str:
        """``"measured"``, ``"incomplete"`` where a snapshot could not be measured, or ``"empty"``."""
        return (
            "empty" if not self.snapshots else "measured" if all(one.whole for one in self.snapshots) else "incomplete"
        )

    @property
    def reasons(self) -> tuple[str, ...]:
        """What is wrong with the snapshots that are not whole."""
        return tuple(f"step {one.step}: {one.state}; {one.note}" for one in self.snapshots if not one.whole)

    def tables(self) -> list[Table]:
        """Every snapshot."""
        rows = [
            [
                one.step,
                one.state,
                one.norm_squared,
                one.cost,
                ", ".join(map(_dimensions, one.layers)),
                one.note,
            ]
            for one in self.snapshots
        ]
        heads = ["step", "state", "‖θ‖²", "cost", "dimensions, layer by layer", "note"]
        told = ["“?” is an unclear drop, a dash no spectrum."]
        return [Table("snapshots", "Every snapshot", heads, rows, told, folded=len(rows) > 12)] if rows else []

    @property
    def sentence(self) -> str:
        """What happened, in one sentence."""
        if not self.snapshots:
            return "Nothing was recorded."
        count = f"{len(self.snapshots)} snapshot{'s' * (len(self.snapshots) != 1)}"
        spoiled = [one for one in self.snapshots if not one.whole]
        doubt = ""
        if spoiled:
            doubt = f"; {len(spoiled)} not whole, the first at step {spoiled[0].step} ({spoiled[0].state})"
        first, last = self.snapshots[0], self.snapshots[-1]
        norms = f"‖θ‖² went from {_html.number(first.norm_squared)} to {_html.number(last.norm_squared)}"
        return f"{count} from step {first.step} to {last.step}: {norms}{doubt}{self._steps()}{self._kind()}."

    def _kind(self) -> str:
        """What kind of minimum it ends at, if that can be said."""
        kind = self.snapshots[-1].minimum
        return f"; it ends {kind}" if kind not in ("", "undetermined") else ""

    def _steps(self) -> str:
        """Whether the steps of the training are too long for where it is, if they are known."""
        rate, sharp = self.settings.get("learning_rate"), self.snapshots[-1].sharpness
        if not isinstance(rate, (int, float)) or not sharp > 0:
            return ""
        too = "too long" if rate > 2.0 / sharp else "short enough"
        return f"; at the end full-batch steps of {rate:g} are {too} to stay (2/‖H‖ = {_html.number(2.0 / sharp)})"

    def to_frame(self) -> pd.DataFrame:
        """One row for each step and layer; a step without a measured layer has one row."""
        import pandas as pd

        rows = [frame_row(one, layer) for one in self.snapshots for layer in (one.layers or (None,))]
        frame = pd.DataFrame(rows, columns=pd.Index(_COLUMNS))
        return frame.astype({"step": "int64", "weight_rank": "Int64", "rank": "Int64"})

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {
            "format": "isthmus.history",
            "version": SCHEMA_VERSION,
            "sentence": self.sentence,
            "steps": list(self.steps),
            "states": list(self.states),
            "snapshots": [one.to_dict() for one in self.snapshots],
            "notes": list(self.notes),
            "settings": dict(self.settings),
            "quantities": QUANTITIES,
        }

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> History:
        """Inverse of :meth:`to_dict`, for untrusted files; what follows from the rest is computed again."""
        who, do = "History.from_dict", "Pass what `History.to_dict` or `to_json` gave."
        found = (content.get("format"), content.get("version")) if isinstance(content, Mapping) else type(content)
        if found != ("isthmus.history", SCHEMA_VERSION):
            fail(who, f"`content` must be a history of version {SCHEMA_VERSION}", found, do, error=FileFormatError)
        try:
            snapshots, notes, settings = (content[key] for key in ("snapshots", "notes", "settings"))
            if not isinstance(snapshots, list) or not isinstance(notes, list) or not isinstance(settings, dict):
                raise TypeError("`snapshots` and `notes` must be lists, `settings` a mapping")
            if not all(isinstance(note, str) for note in notes):
                raise TypeError("`notes` must be texts")
            return History(tuple(map(Snapshot.from_dict, snapshots)), tuple(notes), dict(settings))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            got = f"{type(error).__name__}: {error}"
            fail(who, "every field must be there and of its type", got, do, error=FileFormatError)

    def to_json(self) -> str:
        """The same as text; no number in it is NaN or infinite (those are null)."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)

    def plot(self, layer: str | None = None) -> Figure:
        """Ranks and norms of all layers, and the spectra of one, over the steps.

        Parameters
        ----------
        layer : str, optional
            Whose spectra; by default the one whose representation has the lowest rank at the end.
        """
        from isthmus.plotting.history import plot

        if layer is not None and layer not in self.layers:
            names = ", ".join(map(repr, self.layers))[:500]
            fail("History.plot", "`layer` must be one of the layers", repr(layer), f"Choose from {names}.")
        return plot(self, layer)

    def __repr__(self) -> str:
        return f"<History: {self.sentence}>"

    def _repr_html_(self) -> str:
        return _html.result(self, _html.items(self.notes))


_COLUMNS = (
    *("step", "state", "layer", "kind", "weight_norm_squared", "largest", "stable_rank", "weight_rank", "rank"),
    *("participation_ratio", "negative_share", "norm_squared", "cost", "sharpness", "minimum"),
)


def _dimensions(layer: LayerSnapshot) -> str:
    inside = layer.representation
    return "—" if inside is None else "?" if inside.rank is None else str(inside.rank)
