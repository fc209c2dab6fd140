"""Figures of a compression: widths before and after by layer, and what is left of each cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isthmus.compression import Certificate
from isthmus.plotting.compression import KEPT, LINEAR, NUMBERED, OTHER, costs, stacked
from isthmus.report.charts import axis, label, layout, remark, rule
from isthmus.report.layers import LAYERS, Layers
from isthmus.report.page import Figure

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


def figures(found: Certificate) -> list[Figure]:
    """Widths, if there is a hidden layer, and costs."""
    content = found.to_dict()
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
