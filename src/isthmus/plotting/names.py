"""Names of columns as people write them, made fit for a figure."""

from __future__ import annotations

import unicodedata

from matplotlib.font_manager import FontProperties, findfont, get_font

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
