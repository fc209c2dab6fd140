"""Figures as plain data: what all of them share."""

from __future__ import annotations

import math
import unicodedata
from typing import Any

from isthmus._html import plain

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
