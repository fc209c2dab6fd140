"""A figure as plain data, in a few of Plotly's words, and what all figures share.

It is drawn by :mod:`isthmus.plotting.draw` with matplotlib, and by ``draw.js`` of the report as SVG.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from isthmus._html import plain

#: Points of a cloud; more would only hide one another.
POINTS = 2000


@dataclass(frozen=True)
class Choice:
    """A menu at a figure; each option is a name and what it sets, by path: ``{"data.0.x": Column(2)}``."""

    label: str
    options: Sequence[tuple[str, Mapping[str, Any]]]
    selected: int = 0


@dataclass(frozen=True)
class Column:
    """Stands for a column of a figure, so that several menus can share it."""

    index: int


@dataclass(frozen=True)
class Figure:
    """A figure as plain data, and how to read it.

    Attributes
    ----------
    key : str
        Unique in the page; names the downloaded file.
    title : str
    data, layout : list, dict
        Traces and axes in a few of Plotly's words: those that ``draw.js`` and :mod:`isthmus.plotting.draw` know.
        Colours are names such as ``"@blue"``, which the theme resolves; all texts are set as text.
    reading : sequence of str
        "How to read this", a paragraph each.
    alternative : str
        What the figure shows, for who does not see it.
    columns : sequence of lists
        Numbers that :class:`Column` refers to.
    choices : sequence of Choice
    drives : (str, sequence), optional
        Key of another figure and the values of its first menu: what is hovered at that x here is chosen there.
    """

    kind: ClassVar[str] = "figure"
    key: str
    title: str
    data: list[Any]
    layout: dict[str, Any]
    reading: Sequence[str]
    alternative: str
    height: int = 420
    columns: Sequence[list[Any]] = ()
    choices: Sequence[Choice] = ()
    drives: tuple[str, Sequence[float]] | None = None


#: Characters of a name beside an axis; the tables have the whole.
LONGEST = 26

#: From dark to light; the page's theme says which colours these are.
SCALE = [[0.0, "@scale0"], [0.33, "@scale1"], [0.67, "@scale2"], [1.0, "@scale3"]]
#: From nothing to much.
SHADES = [[0.0, "@shade0"], [0.5, "@shade1"], [1.0, "@shade2"]]


def label(name: object, limit: int = LONGEST) -> str:
    """A name in a figure, which is set as text everywhere: shortened, isolated from its neighbours' direction."""
    text = plain(name, limit) or "(no name)"
    # Isolates only where they matter: some fonts draw them as boxes.
    turns = any(unicodedata.bidirectional(character) in ("R", "AL", "AN") for character in text)
    return f"\u2068{text}\u2069" if turns else text


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """An axis with a title and the house's lines."""
    return {"title": {"text": title}, **more}


def layout(x: dict[str, Any], y: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A layout with these axes."""
    return {"xaxis": x, "yaxis": y, "showlegend": False, **more}


def powers(low: float, high: float = 1.0) -> dict[str, Any]:
    """Settings of a logarithmic axis with a mark at every power of ten between two numbers."""
    above, below = "⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789"
    # Beyond these powers there is no number.
    exponents = range(max(math.floor(math.log10(low)), -307), min(math.ceil(math.log10(high)), 308) + 1)
    names = [f"10{str(e).replace('-', '⁻').translate(str.maketrans(below, above))}" for e in exponents]
    named = {"0": "1", "1": "10"}
    texts = [named.get(str(e), name) for e, name in zip(exponents, names)]
    return {"type": "log", "tickvals": [float(f"1e{e}") for e in exponents], "ticktext": texts}


def lines(x: Any, y: Any, colour: str, **more: Any) -> dict[str, Any]:
    """Points joined by a line."""
    width = more.pop("width", 2)
    size = more.pop("size", 7)
    base = {"type": "scatter", "mode": "lines+markers", "x": x, "y": y}
    return base | {"line": {"color": colour, "width": width}, "marker": {"color": colour, "size": size}} | more


def rule(position: float, colour: str, *, along: str = "x", dash: str = "dash") -> dict[str, Any]:
    """A straight line across the figure at one value of the axis ``along``."""
    other = "y" if along == "x" else "x"
    ends = {f"{along}0": position, f"{along}1": position, f"{other}0": 0, f"{other}1": 1}
    line = {"color": colour, "width": 1.3, "dash": dash}
    return {"type": "line", f"{other}ref": "paper", f"{along}ref": along, "line": line, "layer": "below", **ends}


def remark(text: str, **place: Any) -> dict[str, Any]:
    """Words in the figure, without an arrow."""
    return {"text": text, "showarrow": False, "font": {"size": 12, "color": "@muted"}, **place}


def short(values: Any) -> list[Any]:
    """Numbers for a figure as nested lists of five digits; None where they are not finite."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, (list, tuple)):
        return [short(value) if isinstance(value, (list, tuple)) else _rounded(value) for value in values]
    return [_rounded(values)]


def _rounded(value: Any) -> float | int | None:
    if value is None or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.5g}")


def thinned(count: int, limit: int = POINTS) -> slice:
    """Every so-many-th of ``count`` rows, at most ``limit`` of them: the same rows each time."""
    return slice(None, None, max(1, -(-count // limit)))


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
        """Layer names, shortened as in all figures."""
        return [label(name, WHOLE) for name in self.names]

    def axis(self) -> dict[str, Any]:
        """The axis of a figure, with names or numbers."""
        if not self.named:
            return axis("layer", dtick=step(len(self.places)), showgrid=False)
        every = max(1, -(-len(self.places) // NAMES))
        names = [label(_end(name), BELOW) for name in self.names[::every]]
        ends = [self.places[0] - 0.6, self.places[-1] + 0.6]
        marks = {"tickvals": list(self.places[::every]), "ticktext": names}
        return axis("layer", **marks, range=ends, showgrid=False)

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
