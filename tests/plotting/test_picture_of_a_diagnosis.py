"""The picture of a diagnosis: any number of layers, missing spectra, hostile names, numbers that are none."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from isthmus import diagnose
from isthmus.plotting import diagnosis as picture
from isthmus.plotting.style import new_figure, render
from tools import gaussian, three_part_net

NAMES = ["$\\frac{a$", "a_b_$c$", "price\n(€)", "温度", "long " * 30, "x\x1b[2J", "\U0001f600", "\\alpha"]


@pytest.fixture(scope="module")
def content():
    return diagnose(three_part_net(3, depth=6, noise=0.003).to_torch(), gaussian(100, 12)).to_dict()


def texts(figure):
    return [t.get_text() for t in figure.findobj(lambda artist: hasattr(artist, "get_text"))]


def layer(name="layer", count=3, width=8, *, bypass=0.0, weights=1, status="clear"):
    """What the picture reads of a layer."""
    values = [1.0] * count + [0.001] * (width - count)
    reading = {"status": status, "count": count, "gap": 1000.0, "kept": 1.0, "next": 0.001, "exact": False}
    spectrum = {"values": values, "reading": reading}
    return {
        "name": name,
        "units": width,
        "bypass": bypass,
        "weights": [{"spectrum": spectrum}] * weights,
        "representation": spectrum,
        "whole": None,
        "jacobian": spectrum,
    }


def made(layers, verdict="determined", rank=3, inside=()):
    isthmus = {"verdict": verdict, "rank": rank, "layers": list(inside), "kind": None, "reasons": ["because"]}
    evidence = [
        {"name": "bottleneck rank", "value": rank, "rank": rank, "meaning": "ours"},
        {"name": "TwoNN", "value": 2.7, "rank": 3, "meaning": "a cloud"},
        {"name": "AGOP gap", "value": None, "rank": None, "meaning": "gradients"},
    ]
    return {"sentence": "The answer.", "isthmus": isthmus, "layers": layers, "agreement": evidence}


def test_the_whole_picture(content):
    figure = picture.draw_diagnosis(content)
    assert render(figure).startswith(b"\x89PNG")
    said = texts(figure)
    assert content["sentence"] in "".join(said).replace("\n", " ")
    assert any(text.startswith("Why: ") for text in said)
    assert "bottleneck rank: 3" in said
    assert "Jacobian rank: 3  agrees" in said
    assert len(figure.axes) == 5  # the colours have an axis too


def test_a_given_figure_is_drawn_on_and_returned():
    figure = new_figure(8, 5)
    assert picture.draw_diagnosis(made([layer()]), figure) is figure


def test_counts_are_where_they_belong_and_bypassed_layers_are_hollow():
    layers = [layer("a", 2), layer("b", 5, bypass=0.4), layer("c", 4, status="unclear"), layer("d", 1, bypass=None)]
    axes = picture.draw_diagnosis(made(layers)).axes[0]
    drawn = {}
    for line in axes.lines:
        for x, y in zip(line.get_xdata(), line.get_ydata()):
            drawn[round(float(x)), float(y)] = line.get_markerfacecolor() == "white"
    assert drawn == {(0, 2.0): False, (1, 5.0): True, (3, 1.0): True}
    assert [round(bar.get_height()) for bar in axes.patches if bar.get_width() < 0.9] == [8] * 4


def test_the_isthmus_is_shaded_in_all_panels_of_depth():
    def shaded(inside):
        figure = picture.draw_diagnosis(made([layer("a"), layer("b"), layer("")], inside=inside))
        spans = [[p for p in axes.patches if abs(p.get_width() - 1.0) < 1e-9] for axes in figure.axes[:3]]
        return [[p.get_x() for p in part] for part in spans]

    assert shaded(["b", "(output)"]) == [[0.5, 1.5]] * 3
    assert shaded([]) == [[]] * 3


def test_spectra_have_their_values_and_a_line_at_a_clear_drop():
    figure = picture.draw_diagnosis(made([layer("a", 3, 8, weights=2)]))
    inside, weights = figure.axes[1], figure.axes[2]
    (mesh,) = inside.collections
    np.testing.assert_allclose(np.ravel(mesh.get_array()), [0, 0, 0, *[-3] * 5])
    assert [line.get_ydata()[0] for line in inside.lines if len(line.get_ydata())] == [3.5]
    assert len(weights.collections) == 2  # the parts of one layer side by side


@pytest.mark.parametrize("count", [1, 60])
def test_any_number_of_layers(count):
    figure = picture.draw_diagnosis(made([layer(f"stages.{i}.block.conv") for i in range(count)]))
    figure.draw_without_rendering()
    labels = [label.get_text() for label in figure.axes[2].get_xticklabels()]
    assert 1 <= len(labels) <= picture.LABELS
    assert labels[0] == "stages.0.block.conv"


@pytest.mark.parametrize("verdict", ["none", "undetermined"])
def test_no_rank(verdict):
    figure = picture.draw_diagnosis(made([layer()], verdict, None))
    figure.draw_without_rendering()
    said = texts(figure)
    assert "bottleneck rank: —" in said
    assert "TwoNN: 2.7" in said


def test_missing_and_zero_spectra():
    bare = {**layer(), "representation": None, "jacobian": None, "weights": [], "units": 0}
    empty = {"values": [], "reading": None}
    zero = {"values": [0.0, 0.0], "reading": {**layer()["representation"]["reading"], "status": "zero", "count": 0}}
    lost = {**layer(), "representation": empty, "weights": [{"spectrum": empty}], "jacobian": zero}
    for layers in ([bare], [lost], [bare, layer(), lost], []):
        picture.draw_diagnosis(made(layers))
    assert "none computed" in texts(picture.draw_diagnosis(made([bare])))


def test_names_are_not_mathematics(content):
    hostile = copy.deepcopy(content)
    for one, name in zip(hostile["layers"], NAMES):
        one["name"] = name
    hostile["sentence"] = " ".join(NAMES)
    hostile["isthmus"]["reasons"] = NAMES
    hostile["agreement"][0]["meaning"] = " ".join(NAMES)
    picture.draw_diagnosis(hostile).draw_without_rendering()  # warnings about missing glyphs are errors here


def test_values_far_apart():
    wide = made([layer()])
    wide["agreement"][1]["value"] = 50_000.0
    picture.draw_diagnosis(wide).draw_without_rendering()


def test_a_diagnosis_draws_itself():
    net = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2))
    found = diagnose(net, gaussian(20, 5, dtype=torch.float32), jacobian_samples=0)
    assert found.plot().axes
