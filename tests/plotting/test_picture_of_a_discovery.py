"""The picture of a discovery: every verdict and rank, numbers that are none."""

import dataclasses

import numpy as np
import pytest
from matplotlib.collections import PathCollection

from isthmus.plotting.figure import POINTS
from isthmus.plotting.style import new_figure, readable, render
from reported import constant, discovery, hostile, profile


def texts(figure):
    return [t.get_text() for t in figure.findobj(lambda artist: hasattr(artist, "get_text"))]


def test_three_panels_and_the_sentence():
    found = discovery()
    figure = found.plot()
    assert render(figure).startswith(b"\x89PNG")
    said = texts(figure)
    assert found.sentence in said and "k = 2" in said and "wide" in said
    assert "Why: one coordinate less is clearly worse." in said
    assert any(text.startswith("best + slack = ") for text in said)
    assert len(figure.axes) == 5  # colours have axes too
    line = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 5][-1]
    np.testing.assert_allclose(np.asarray(line.get_ydata())[:3], [0.9, 0.031, 0.034])


def test_a_given_figure_is_drawn_on_and_returned():
    figure = new_figure(8, 4)
    assert discovery().plot(figure) is figure
    assert figure.axes


@pytest.mark.parametrize(("rank", "samples"), [(1, 1), (1, 5000), (2, 1), (15, 5000)])
def test_every_rank_and_size(rank, samples):
    errors = {k: 10.0 ** -min(k, rank) for k in [*range(1, rank + 2), 40]}
    found = discovery(rank, samples=samples, inputs=20, profile=profile(errors), replicas=())
    figure = found.plot(new_figure(8, 4, dpi=30))
    figure.draw_without_rendering()
    drawn = [c.get_offsets() for c in figure.axes[1].collections if isinstance(c, PathCollection)]
    assert 1 <= len(drawn[0]) <= POINTS
    assert f"k = {rank}" in texts(figure)


def test_undetermined_is_seen():
    figure = discovery(verdict="undetermined", reasons=("one is not clearly worse " * 30,)).plot()
    figure.draw_without_rendering()
    assert "k = 2?" in texts(figure)
    assert max(len(line) for text in texts(figure) for line in text.split("\n")) < 200


def test_rank_zero_has_nothing_to_draw():
    figure = constant().plot()
    figure.draw_without_rendering()
    assert any("nothing to draw" in text for text in texts(figure))


def test_hostile_names_are_drawn():
    # Warnings about missing glyphs are errors here.
    hostile().plot(new_figure(8, 4, dpi=30)).draw_without_rendering()


@pytest.mark.parametrize(
    "changes",
    [
        {"profile": profile({1: float("nan"), 2: 0.1, 16: float("nan")})},
        {"profile": profile({1: 1e-30, 2: 0.0, 16: 1e-30}, baseline=float("nan"))},
        {"sensitivity": None, "replicas": ()},
        {"coordinates": np.full((40, 2), np.nan)},
    ],
    ids=lambda one: next(iter(one)),
)
def test_what_is_no_number_is_left_out(changes):
    dataclasses.replace(discovery(), **changes).plot(new_figure(8, 4, dpi=30)).draw_without_rendering()


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("price per\nunit ($)", "price per unit ($)"),
        ("", "(no name)"),
        ("温度", "□□"),
        ("x" * 50, "x" * 12 + "…" + "x" * 11),
    ],
)
def test_readable(name, shown):
    assert readable(name) == shown
