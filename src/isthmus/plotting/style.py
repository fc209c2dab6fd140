"""One look for all figures. No pyplot and no ``rcParams``: nothing outside the given figure changes."""

from __future__ import annotations

import io
import textwrap
import unicodedata

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.layout_engine import ConstrainedLayoutEngine

#: Okabe and Ito's palette, distinguishable under the common forms of colour blindness.
PALETTE = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "purple": "#CC79A7",
}

_INK = "#333333"
_GRID = "#E4E4E4"


def new_figure(width: float = 10.0, height: float = 4.4, *, dpi: int = 160) -> Figure:
    """An empty figure of ``width`` × ``height`` inches with constrained layout, on the Agg canvas."""
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.06, wspace=0.04)
    figure = Figure(figsize=(width, height), dpi=dpi, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def dress(axes: Axes, *, title: str = "", x: str = "", y: str = "") -> None:
    """Labels, a light grid below the data, no box. Call it after the scales are set."""
    axes.set_title(title, loc="left", fontsize=12, color=_INK, pad=10)
    axes.set_xlabel(x, fontsize=11, color=_INK)
    axes.set_ylabel(y, fontsize=11, color=_INK)
    axes.tick_params(which="both", labelsize=10, colors=_INK, length=3)
    axes.grid(True, which="major", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color("#999999")


def headline(figure: Figure, text: str, colour: str, *, size: float = 15, per_inch: float = 7.4) -> int:
    """One sentence above everything, wrapped to the width of the figure; gives how many characters a line has.

    ``per_inch`` characters fit in an inch.
    """
    per_line = max(30, int(per_inch * figure.get_figwidth()))
    title = textwrap.fill(text, per_line)
    figure.suptitle(title, x=0.012, ha="left", fontsize=size, color=colour, fontweight="bold", parse_math=False)
    return per_line


def render(figure: Figure, kind: str = "png") -> bytes:
    """The figure as the content of a file, ``"png"``, ``"svg"`` or ``"pdf"``, without a date in it."""
    stream = io.BytesIO()
    # The date is in the provenance; here it would make equal figures differ.
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    figure.savefig(stream, format=kind, metadata=dates.get(kind))
    return stream.getvalue()


#: What the eye can take in beside an axis.
LONGEST = 24


def readable(name: object, limit: int = LONGEST) -> str:
    r"""``name`` in one line of at most ``limit`` characters that the font can draw.

    To be used with ``parse_math=False``: a dollar is a dollar.

    Examples
    --------
    >>> readable("price per\nunit ($)")
    'price per unit ($)'
    >>> readable("a_rather_long_name_of_a_column_2021")
    'a_rather_lon…column_2021'
    """
    glyphs = get_font(findfont(FontProperties())).get_charmap()
    text = " ".join("".join(" " if _breaks(c) else c for c in str(name)).split())
    if len(text) > limit:
        tail = (limit - 1) // 2
        text = f"{text[: limit - 1 - tail]}…{text[len(text) - tail :]}"
    # What the font lacks would be a warning for each character and an empty box; this is the box without the warning.
    return "".join(c if ord(c) in glyphs else "□" for c in text) or "(no name)"


def _breaks(character: str) -> bool:
    return character.isspace() or unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp")
