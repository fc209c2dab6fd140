"""Figures of a compression: widths before and after by layer, and what is left of each cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure as MatplotlibFigure

from isthmus.plotting.draw import sheet
from isthmus.plotting.figure import LAYERS, Figure, Layers, axis, label, layout, remark, rule

#: What the parts that are left are called; reasons for which neurons went that have a colour of their own.
KEPT, LINEAR, OTHER = "kept", "kept, linear", "for other reasons"
REASONS = 5
#: Layers up to which each has its numbers above it.
NUMBERED = 10

_WIDTHS = (
    "One bar for each hidden layer, as high as the layer was wide before. What is kept is at the bottom, in full "
    "colour; above it stands what went, by the reason for which it could.",
    "Linear neurons have no activation: σ did nothing to them, so that only the rank of what they pass on counts. A "
    "layer without a bar of full colour was joined with the next.",
)
_COSTS = (
    "What is left of each, as a share of what there was; left of the dashed line is a saving, and right of it, in "
    "another colour, is what grew.",
    "Latency is the median of forward passes of the two in turn, on the machine that compressed. For networks as small "
    "as these may have become, calling the layers takes longer than computing them: fewer parameters need not be "
    "faster.",
)
#: Colours of what went, in the order of how much.
_GONE = ("@orange", "@purple", "@green", "@vermilion", "#A89B00")


#: Name of the field, without "before" and "after" → what it is called, its unit and its digits.
_FIELDS = {
    "neurons": ("neurons", "", 0),
    "parameters": ("parameters", "", 0),
    "bytes": ("bytes", "", 0),
    "operations": ("operations", "", 3),
    "latency": ("latency", " ms", 3),
    "norm": ("‖θ‖²", "", 4),
}


@dataclass(frozen=True)
class Cost:
    """One thing that a network costs, before and after."""

    name: str
    before: float
    after: float
    told: str

    @property
    def share(self) -> float:
        """After as a share of before."""
        return self.after / self.before


def stacked(layers: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Parts of each layer's bar, from the bottom: neurons kept, kept linear ones, then those that went, by reason.

    The commonest reasons come first; those beyond ``REASONS`` are one. Where what was noted does not account for all
    that went, the rest is among the others too.
    """
    totals: dict[str, int] = {}
    for layer in layers:
        for reason, count in layer["removed"].items():
            totals[reason] = totals.get(reason, 0) + count
    order = sorted(totals, key=lambda reason: -totals[reason])[:REASONS]
    parts = {
        KEPT: [layer["after"] - layer["linear"] for layer in layers],
        LINEAR: [layer["linear"] for layer in layers],
        **{reason: [layer["removed"].get(reason, 0) for layer in layers] for reason in order},
    }
    rest = []
    for layer in layers:
        known = sum(layer["removed"].get(reason, 0) for reason in order)
        rest.append(max(layer["before"] - layer["after"], sum(layer["removed"].values())) - known)
    rest = [max(count, 0) for count in rest]
    return {name: counts for name, counts in {**parts, OTHER: rest}.items() if any(counts)}


def costs(content: Mapping[str, Any]) -> list[Cost]:
    """What it costs before and after; of that, what is known and was not 0 before."""
    found = []
    for key, (name, unit, digits) in _FIELDS.items():
        before, after = (float(content.get(f"{key}_{when}", math.nan)) for when in ("before", "after"))
        if math.isfinite(before) and math.isfinite(after) and before > 0 and math.isfinite(after / before):
            told = " → ".join(f"{value:.{digits}g}" if digits else f"{value:,.0f}" for value in (before, after))
            found.append(Cost(name, before, after, told + unit))
    return found


def figures(content: Mapping[str, Any]) -> list[Figure]:
    """Widths, if there is a hidden layer, and costs."""
    return [*_widths(content["layers"]), *_left(content)]


def _widths(layers: list[Mapping[str, Any]]) -> list[Figure]:
    if not layers:
        return []
    shown = layers[:LAYERS]
    along = Layers(range(1, len(shown) + 1), [str(layer["layer"]) for layer in shown])
    data: list[dict[str, Any]] = []
    gone = 0
    for name, counts in stacked(shown).items():
        if name in (KEPT, LINEAR):
            colour, opacity = "@blue" if name == KEPT else "@sky", 1.0
        else:
            colour, opacity = "@muted" if name == OTHER else _GONE[gone % len(_GONE)], 0.4
            gone += name != OTHER
        bar = {"type": "bar", "x": list(along.places), "y": counts, "name": label(name, 40)}
        bar |= {"marker": {"color": colour}, "opacity": opacity}
        hover = "%{customdata}: %{y} %{name}"
        data.append({**bar, "customdata": along.labels(), "hovertemplate": hover})
    heights = [sum(one["y"][i] for one in data) for i in range(len(shown))]
    notes = []
    if len(shown) <= NUMBERED:
        for place, height, layer in zip(along.places, heights, shown):
            words = f"{layer['before']} → {layer['after']}"
            notes.append(remark(words, x=place, y=height, yanchor="bottom", xanchor="center"))
    top = max(*heights, 1)
    # Half a neuron is none.
    up = axis("neurons", range=[0, 1.12 * top], **({"dtick": 1} if top <= 10 else {}))
    chart = layout(along.axis(), up, barmode="stack", bargap=0.3, annotations=notes)
    chart["showlegend"] = True
    more = (f"Only the first {LAYERS} of {len(layers)} layers are drawn.",) if len(layers) > LAYERS else ()
    told = f"Neurons of {len(shown)} layers before and after, stacked by why they went."
    return [Figure("widths", "Neurons of each layer", data, chart, (*_WIDTHS, *more), told, 440)]


def _left(content: Mapping[str, Any]) -> list[Figure]:
    found = costs(content)
    if not found:
        return []
    names = [cost.name for cost in found]
    shares = [cost.share for cost in found]
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": shares,
        "y": names,
        "text": [cost.told for cost in found],
        "textposition": "outside",
        "marker": {"color": ["@vermilion" if share > 1.0 else "@blue" for share in shares]},
        "hovertemplate": "%{y}: %{text}, %{x:.3g} of before",
    }
    # Room for the words beyond the longest bar.
    across = axis("after, as a share of before", rangemode="tozero", range=[0, 1.7 * max(1.0, *shares)])
    up = axis(type="category", autorange="reversed", showgrid=False)
    chart = layout(across, up, bargap=0.45, shapes=[rule(1.0, "@muted")])
    told = "; ".join(f"{cost.name} {cost.told}" for cost in found)
    reading = _COSTS if any(cost.name == "latency" for cost in found) else _COSTS[:1]
    return [Figure("left", "What is left of each cost", [bars], chart, reading, told, 110 + 46 * len(found))]


def plot(content: Mapping[str, Any], figure: MatplotlibFigure | None = None) -> MatplotlibFigure:
    """Both on one sheet; ``content`` is from ``Compressed.to_dict()``."""
    return sheet([(one, None) for one in figures(content)], content["sentence"], content["domain"], figure=figure)
