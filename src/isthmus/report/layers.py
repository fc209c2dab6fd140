"""The layers along the axis of a figure: their places, their names, and which of them to shade."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from isthmus._html import plain
from isthmus.report.charts import axis, label

#: Layers of a figure, and names below its axis: of more layers every so-many-th is named.
LAYERS, NAMES = 400, 32
#: Characters of a name below the axis, and where the mouse is.
BELOW, WHOLE = 24, 60

_SHADE = {"fillcolor": "@orange", "opacity": 0.14, "line": {"width": 0}}


@dataclass(frozen=True)
class Layers:
    """The layers along an axis: their places there, their names, and the places to shade.

    Without ``named`` the axis shows the places as numbers.
    """

    places: Sequence[int]
    names: Sequence[str]
    shaded: Sequence[int] = ()
    named: bool = True

    @staticmethod
    def numbered(first: int, count: int) -> Layers:
        """Layers that are known by their number."""
        places = range(first, first + count)
        return Layers(places, [f"layer {place}" for place in places], named=False)

    def cut(self) -> Layers:
        """As many as a figure has room for."""
        return Layers(self.places[:LAYERS], self.names[:LAYERS], self.shaded, self.named)

    def labels(self) -> list[str]:
        """Names as figures have them."""
        return [label(name, WHOLE) for name in self.names]

    def axis(self) -> dict[str, Any]:
        """The axis of a figure, with names or numbers."""
        if not self.named:
            return axis("layer", dtick=step(len(self.places)), showgrid=False)
        every = max(1, -(-len(self.places) // NAMES))
        names = [label(_end(name), BELOW) for name in self.names[::every]]
        turned = {"tickangle": -45} if sum(map(len, names)) > 90 else {}
        ends = [self.places[0] - 0.6, self.places[-1] + 0.6]
        marks = {"tickvals": list(self.places[::every]), "ticktext": names}
        return axis("layer", **marks, range=ends, showgrid=False, **turned)

    def shades(self) -> list[dict[str, Any]]:
        """Shapes behind the layers that are set apart, one for each row of neighbours."""
        found: list[dict[str, Any]] = []
        for place in sorted(set(self.shaded) & set(self.places)):
            if found and found[-1]["x1"] == place - 0.5:
                found[-1]["x1"] = place + 0.5
            else:
                ends = {"x0": place - 0.5, "x1": place + 0.5, "y0": 0, "y1": 1, "yref": "paper"}
                found.append({"type": "rect", "layer": "below", **ends, **_SHADE})
        return found


def _end(name: str) -> str:
    """The end of a long name: paths of layers differ there."""
    text = plain(name)
    return text if len(text) <= BELOW else f"…{text[1 - BELOW :]}"


def step(count: int) -> int:
    """From one mark to the next on an axis of so many numbers."""
    return next(one for one in (1, 2, 5, 10, 20, 50) if count <= 16 * one or one == 50)
