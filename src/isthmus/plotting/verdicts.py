"""The picture of verdicts: how much room each claim has left."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.plotting.figure import Figure, axis, layout, powers

#: Slack below this is drawn at this place of the logarithmic axis: equality up to rounding.
LEAST = 1e-6
_READING = (
    "How far the sides of each claim could still move until it fails, as a share of the larger side. A claim at the "
    "left edge is tight: equality up to rounding.",
    "A large margin is no virtue: above 0.99, and where it is so by construction, a claim holds trivially.",
)
_COLOURS = {"holds": "@green", "holds trivially": "@blue", "fails": "@vermilion"}


def margins(judged: Sequence[Any], titles: Mapping[str, str]) -> Figure:
    """Margins of verdicts, the tightest at the bottom; ``titles`` are the claims in words, by id."""
    shown = sorted(judged, key=lambda v: v.margin, reverse=True)
    values = [max(abs(v.margin), LEAST) if math.isfinite(v.margin) else 1.0 for v in shown]
    points = {
        "type": "scatter",
        "mode": "markers",
        "x": values,
        "y": [v.claim for v in shown],
        "text": [f"{v.claim}, {titles[v.claim]}: {v.lhs:.4g} {v.relation} {v.rhs:.4g}, {v.status}" for v in shown],
        "hovertemplate": "%{text}",
        "marker": {
            "size": 11,
            "color": [_COLOURS[v.status] for v in shown],
            "symbol": ["x" if v.status == "fails" else "circle" for v in shown],
        },
    }
    across = axis("margin, share of the larger side", **powers(LEAST))
    chart = layout(across, axis(type="category"))
    told = f"Margins of {len(shown)} claims."
    return Figure("margins", "Margin by claim", [points], chart, _READING, told, max(320, 60 + 22 * len(shown)))
