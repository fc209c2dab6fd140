"""The picture of a compression: bars with the certificate's own numbers, for every size and domain."""

from __future__ import annotations

import math

import pytest
from matplotlib.figure import Figure

import isthmus
from isthmus.plotting.compression import (
    KEPT,
    LINEAR,
    NUMBERED,
    OTHER,
    REASONS,
    costs,
    plot,
    stacked,
)
from isthmus.plotting.style import new_figure, render
from tools import gaussian, random_net

COSTS = {"norm": (4.0, 2.0), "parameters": (100, 10), "bytes": (800, 80), "latency": (0.1, 0.2), "neurons": (20, 5)}


def layer(name="1", before=9, after=4, linear=1, **removed):
    gone = {why.replace("_", " "): count for why, count in removed.items()}
    return {"layer": name, "before": before, "after": after, "linear": linear, "removed": gone}


def content(*layers, domain="everywhere", **changes):
    numbers = {f"{key}_{when}": value for key, pair in COSTS.items() for when, value in zip(("before", "after"), pair)}
    return {"domain": domain, "sentence": "Smaller.", "layers": list(layers), **numbers, **changes}


def test_bars_are_as_high_as_layers_were_wide():
    parts = stacked([layer(dead=2, constant=3), layer("2", 8, 8, 0), layer("3", 5, 0, 0, constant=5)])
    assert parts == {KEPT: [3, 8, 0], LINEAR: [1, 0, 0], "constant": [3, 0, 5], "dead": [2, 0, 0]}
    # Two went without a reason that was noted; one layer is new.
    parts = stacked([layer(dead=3), layer("new", 0, 4, 4)])
    assert parts[OTHER] == [2, 0] and [sum(column) for column in zip(*parts.values())] == [9, 4]
    many = {f"reason {k}": 1 for k in range(REASONS + 3)}
    parts = stacked([{**layer(before=12, after=12 - REASONS - 3, linear=0), "removed": many}])
    assert len(parts) == REASONS + 2 and parts[OTHER] == [3]


def test_costs():
    found = {cost.name: cost for cost in costs(content())}
    assert found["parameters"].share == 0.1 and found["parameters"].told == "100 → 10"
    assert found["latency"].share == 2.0 and found["latency"].told == "0.1 → 0.2 ms" and found["‖θ‖²"].told == "4 → 2"
    unknown = content(latency_before=math.nan, latency_after=math.nan, norm_before=0.0, neurons_before=0)
    assert [cost.name for cost in costs(unknown)] == ["parameters", "bytes"]
    assert [cost.name for cost in costs(content(norm_after=math.inf, bytes_before=5e-324))][-1] == "latency"


def test_the_numbers_are_in_it():
    net = random_net([5, 9, 7, 3], seed=2)
    found = isthmus.compress(net, gaussian(40, 5), tolerance=0.2)
    figure = found.plot()
    widths, left = figure.axes
    assert figure.get_suptitle().replace("\n", " ") == found.sentence
    changes = found.certificate.layers
    kept = widths.containers[0]
    assert [bar.get_height() for bar in kept] == [change.after - change.linear for change in changes]
    tops = [max(bar.get_y() + bar.get_height() for bar in bars) for bars in zip(*widths.containers)]
    assert tops == [max(change.before, change.after) for change in changes]
    words = [text.get_text() for text in widths.texts]
    assert words == [f"{change.before} → {change.after}" for change in changes]
    says = found.certificate
    lengths = [bar.get_width() for bars in left.containers for bar in bars]
    assert lengths[1] == pytest.approx(says.parameters_after / says.parameters_before) and len(lengths) == 6
    # What grew is of another colour.
    colours = [bar.get_facecolor() for bars in left.containers for bar in bars]
    assert all((colour == colours[1]) == (length <= 1) for colour, length in zip(colours, lengths))


def test_on_a_figure_of_ones_own():
    mine = Figure(figsize=(9, 5))
    assert plot(content(layer(dead=5)), mine) is mine and len(mine.axes) == 2
    assert render(mine)[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    "layers",
    [
        [],
        [layer(before=0, after=0, linear=0)],
        [layer(f"encoder.body.{k}", dead=5) for k in range(NUMBERED + 4)],
        [layer(str(k), dead=5) for k in range(130)],
        [layer("$\\frac{$</b>\u202e" * 40, **{"$\\frac{$": 5})],
        [layer(before=10**15, after=1, linear=0, dead=10**15 - 1)],
    ],
)
def test_every_kind_is_drawn(layers):
    figure = plot(content(*layers, domain="unchanged"), new_figure(9.0, 4.0, dpi=30))
    assert len(figure.axes) == 1 + bool(layers) and render(figure)[:4] == b"\x89PNG"
