"""What :func:`isthmus.symmetry` gives: orbit distances layer by layer, and a state."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from isthmus._html import badge, card, heading, number, table, told

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

STATES = ("invariant", "not invariant", "undetermined")


@dataclass(frozen=True)
class LayerOrbits:
    """Orbits as one layer sees them.

    Attributes
    ----------
    name : str
        "inputs", "layer 1" … of this library's networks, or the submodule's name; "outputs".
    within, between : float
        Mean distance within an orbit, and between orbits (the range).
    ratio, error : float
        ``within/between`` and its standard error over samples; NaN where the layer is constant.
    state : {"collapsed", "spread", "unclear", "constant"}
    """

    name: str
    within: float
    between: float
    ratio: float
    error: float
    state: str


@dataclass(frozen=True, eq=False)
class Symmetry:
    """Whether a network collapses the orbits of a group action, and from which layer on.

    Attributes
    ----------
    state : {"invariant", "not invariant", "undetermined"}
        Of the outputs.
    layer : str or None
        The first layer from which on all are collapsed; None unless invariant.
    reason : str
    layers : tuple of LayerOrbits
        The inputs first, the outputs last, in the order of the forward pass.
    maps : dict of str to array (P, P)
        Distances in each layer between points ordered by orbit: P = ``shown`` samples times (1 + draws).
    shown : int
    tolerance : float
    samples, draws : int
    notes : tuple of str
    """

    state: str
    layer: str | None
    reason: str
    layers: tuple[LayerOrbits, ...]
    maps: dict[str, np.ndarray]
    shown: int
    tolerance: float
    samples: int
    draws: int
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> LayerOrbits:
        """The layer of that name."""
        for layer in self.layers:
            if layer.name == name:
                return layer
        raise KeyError(f"{name!r} is none of {', '.join(layer.name for layer in self.layers)}")

    @property
    def sentence(self) -> str:
        """What was found, in one sentence."""
        if self.state == "invariant":
            where = "at the outputs" if self.layer == "outputs" else f"from {self.layer} on"
            return f"Invariant {where}: {self.reason}."
        return f"{self.state.capitalize()}: {self.reason}."

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data and arrays."""
        return {
            "format": "isthmus.symmetry",
            "version": 1,
            "sentence": self.sentence,
            "state": self.state,
            "layer": self.layer,
            "reason": self.reason,
            "layers": [asdict(layer) for layer in self.layers],
            "maps": dict(self.maps),
            "shown": self.shown,
            "tolerance": self.tolerance,
            "samples": self.samples,
            "draws": self.draws,
            "notes": list(self.notes),
        }

    def to_frame(self) -> pd.DataFrame:
        """One row for each layer, as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame([asdict(layer) for layer in self.layers]).set_index("name")

    def plot(self, figure: Figure | None = None) -> Figure:
        """Orbit distances through depth, and distance maps before and after the collapse."""
        from isthmus.plotting.orbits import draw_symmetry

        return draw_symmetry(self.to_dict(), figure)

    def __repr__(self) -> str:
        return self.sentence

    def _repr_html_(self) -> str:
        rows = [[told(one.name), number(one.ratio), number(one.error), told(one.state)] for one in self.layers]
        columns = ["layer", "orbit distance / range", "± error", "orbits"]
        return card(heading(badge(self.state), told(self.reason)), table(columns, rows))
