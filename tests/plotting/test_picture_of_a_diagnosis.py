"""The picture of a diagnosis: any number of layers, missing spectra, hostile names."""

import pytest

from isthmus.diagnosis import diagnose
from isthmus.plotting.style import new_figure, render
from reported import diagnosis, hostile_diagnosis, layer, spectrum, without
from tools import gaussian, three_part_net


def texts(figure):
    return [t.get_text() for t in figure.findobj(lambda artist: hasattr(artist, "get_text"))]


def coarse(found):
    figure = found.plot(new_figure(9, 6, dpi=30))
    figure.draw_without_rendering()
    return figure


def test_the_whole_picture():
    found = diagnose(three_part_net(3, depth=6, noise=0.003).to_torch(), gaussian(100, 12))
    figure = found.plot()
    assert render(figure).startswith(b"\x89PNG")
    said = texts(figure)
    assert found.sentence in figure.get_suptitle().replace("\n", " ")
    assert any(text.startswith("Why: ") for text in said)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles[:2] == ["How many values stand out", "Other ways of counting"]
    assert "Singular values of the centred representations" in titles


def test_counts_are_where_they_belong_and_bypassed_layers_are_hollow():
    axes = coarse(diagnosis()).axes[0]
    drawn = {
        (round(float(x)), float(y), len(part.get_facecolor()) == 0)
        for part in axes.collections
        for x, y in part.get_offsets()
    }
    assert drawn == {(2, 2.0, False), (3, 2.0, False), (4, 2.0, True), (2, 3.0, False), (3, 3.0, False), (4, 3.0, True),
                     (5, 3.0, False)}  # fmt: skip
    shades = [patch for patch in axes.patches if abs(patch.get_width() - 2.0) < 1e-9]
    assert [patch.get_x() for patch in shades] == [1.5]


@pytest.mark.parametrize("count", [1, 60])
def test_any_number_of_layers(count):
    figure = coarse(diagnosis([layer(f"stages.{i}.block.conv") for i in range(count)], inside=("stages.0.block.conv",)))
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert 1 <= len(labels) <= 32 and labels[0] == "stages.0.block.conv"


def test_no_rank_missing_spectra_and_hostile_names():
    bare = layer("bare", weights=0, representation=None, jacobian=None, units=0)
    zero = layer("zero", representation=spectrum(0.0, 0.0, status="zero", count=0))
    for found in (
        without("none", "wide"), without("undetermined", "no samples"), diagnosis([bare]), diagnosis([zero, bare]),
        without("none", "no layers", layers=(), agreement=()), hostile_diagnosis(),
    ):  # fmt: skip
        coarse(found)
