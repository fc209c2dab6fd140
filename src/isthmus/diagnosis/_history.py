"""One moment of a training: norms, spectra and ranks of every layer, as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from torch import Tensor

from isthmus import _html
from isthmus._checks import fail
from isthmus._codec import Count, Plain, Size, Within
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


@dataclass(frozen=True, eq=False)
class SpectrumSnapshot(Plain):
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

    derived: ClassVar = ("stable_rank",)

    label: str
    values: Annotated[Tensor, Within(0.0, most=TOP)]
    norm_squared: Size
    participation_ratio: Size
    rank: Count | None
    status: str

    def _check(self, content: Mapping[str, Any]) -> None:  # noqa: ARG002
        if self.status not in _STATUSES or bool((self.values.diff() > 0).any()):
            raise ValueError(f"`values` must fall, and {self.status!r:.60} be one of {', '.join(_STATUSES)}")

    @property
    def stable_rank(self) -> float:
        """‖A‖²_F/s₁²; NaN for a zero or missing spectrum."""
        top = float(self.values[0]) if len(self.values) else 0.0
        # Not top²: it may leave the range of numbers.
        return self.norm_squared / top / top if top > 0 else math.nan


@dataclass(frozen=True, eq=False)
class LayerSnapshot(Plain):
    """One layer: its weight matrices, and its representation (None if the forward never called it).

    ``negative_share`` is ‖[Z]₋‖²/‖Z‖² of its outputs: what a ReLU after it takes away.
    """

    later: ClassVar = ("negative_share",)

    name: str
    kind: str
    weights: tuple[SpectrumSnapshot, ...]
    representation: SpectrumSnapshot | None
    negative_share: Size = math.nan


@dataclass(frozen=True, eq=False)
class Snapshot(Plain):
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

    later: ClassVar = ("sharpness", "minimum")

    step: int
    state: str
    note: str
    layers: tuple[LayerSnapshot, ...]
    norm_squared: Size
    cost: float
    sharpness: Size = math.nan
    minimum: str = ""

    def _check(self, content: Mapping[str, Any]) -> None:  # noqa: ARG002
        if self.state not in STATES or self.minimum not in ("", *KINDS):
            raise ValueError(f"{self.state!r:.60} must be one of {', '.join(STATES)}, and `minimum` a kind of it")

    @property
    def whole(self) -> bool:
        """Whether everything was measured."""
        return self.state == MEASURED

    def __getitem__(self, name: str) -> LayerSnapshot:
        """The layer of this name."""
        return {layer.name: layer for layer in self.layers}[name]


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
class History(Plain):
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

    document: ClassVar = ("isthmus.history", SCHEMA_VERSION, "a history")
    derived: ClassVar = ("steps", "states", "quantities")

    snapshots: tuple[Snapshot, ...]
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def quantities(self) -> Mapping[str, str]:
        """What every number is, by its path in the JSON."""
        return QUANTITIES

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
