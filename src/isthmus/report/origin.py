"""Where a result comes from: data, settings, versions, machine and command, as tables that stay folded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isthmus.report.page import Block, Section, Table, flat

_TITLES = {
    "data": "Data",
    "parameters": "Parameters",
    "settings": "Settings of the search",
    "provenance": "Versions, machine and command",
}
_LEAD = "Enough to make it again. This page was drawn from the kept result; nothing was computed anew."


def origin_section(parts: Mapping[str, Any]) -> Section:
    """One folded table for each part that is there."""
    blocks: list[Block] = []
    for key, content in parts.items():
        if content and isinstance(content, Mapping):
            rows = [list(pair) for pair in flat(dict(content))]
            blocks.append(Table(f"origin-{key}", _TITLES[key], ["name", "value"], rows, folded=True))
    return Section("origin", "Where this comes from", blocks, _LEAD)
