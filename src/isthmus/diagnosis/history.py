"""The History: what became of ranks, norms and spectra over the steps of a training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from isthmus import _html
from isthmus._checks import fail
from isthmus._errors import FileFormatError
from isthmus.diagnosis.quantities import SCHEMA_VERSION
from isthmus.diagnosis.snapshot import MEASURED, TOP, Snapshot, frame_row

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

#: Path in the JSON → what stands there.
QUANTITIES = {
    "snapshots.norm_squared": "‖θ‖² of all parameters",
    "snapshots.cost": "mean over samples, sum over outputs; or cross-entropy",
    "snapshots.layers.weights.values": f"the {TOP} largest singular values s_i(W), in float64",
    "snapshots.layers.weights.norm_squared": "‖W‖²_F",
    "snapshots.layers.weights.stable_rank": "‖W‖²_F/s_1²",
    "snapshots.layers.weights.rank": "values that stand out (measures.GapRule); null where that is unclear",
    "snapshots.layers.representation.values": (
        f"the {TOP} largest singular values of the centred rows (samples, and positions where there are any) over √rows"
    ),
    "snapshots.layers.representation.rank": "as for the weights",
    "snapshots.layers.representation.participation_ratio": "(Σs²)²/Σs⁴",
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
    def sentence(self) -> str:
        """What happened, in one sentence."""
        if not self.snapshots:
            return "Nothing was recorded."
        count = f"{len(self.snapshots)} snapshot{'s' * (len(self.snapshots) != 1)}"
        spoiled = [one for one in self.snapshots if one.state != MEASURED]
        doubt = ""
        if spoiled:
            doubt = f"; {len(spoiled)} not whole, the first at step {spoiled[0].step} ({spoiled[0].state})"
        first, last = self.snapshots[0], self.snapshots[-1]
        norms = f"‖θ‖² went from {_html.number(first.norm_squared)} to {_html.number(last.norm_squared)}"
        return f"{count} from step {first.step} to {last.step}: {norms}{doubt}."

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
        """Inverse of :meth:`to_dict`, for files of strangers; what follows from the rest is computed again."""
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
        from isthmus.plotting.history import draw_history

        if layer is not None and layer not in self.layers:
            names = ", ".join(map(repr, self.layers))[:500]
            fail("History.plot", "`layer` must be one of the layers", repr(layer), f"Choose from {names}.")
        return draw_history(self.to_dict(), layer=layer)

    def __repr__(self) -> str:
        return f"<History: {self.sentence}>"

    def _repr_html_(self) -> str:
        rows = [
            [
                _html.number(one.step),
                _html.number(one.norm_squared, 4),
                _html.number(one.cost),
                _html.told(", ".join(_rank(layer.representation) for layer in one.layers)),
                _html.told(one.state if not one.note else f"{one.state}: {one.note}"),
            ]
            for one in _few(self.snapshots)
        ]
        heads = ("step", "‖θ‖²", "cost", "dimensions, layer by layer", "state")
        answer = _html.heading(f"<b>{_html.told(self.sentence)}</b>")
        return _html.card(answer, _html.table(heads, rows), _html.items(self.notes))


_COLUMNS = (
    *("step", "state", "layer", "kind", "weight_norm_squared", "largest", "stable_rank", "weight_rank", "rank"),
    *("participation_ratio", "norm_squared", "cost"),
)


def _rank(spectrum: Any) -> str:
    return "—" if spectrum is None else "?" if spectrum.rank is None else str(spectrum.rank)


def _few(snapshots: tuple[Snapshot, ...]) -> list[Snapshot]:
    """At most as many as a table in a notebook has rows, evenly spaced, the first and the last among them."""
    count = min(len(snapshots), _html.ROWS)
    return [snapshots[round(i * (len(snapshots) - 1) / max(count - 1, 1))] for i in range(count)]
