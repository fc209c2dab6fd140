"""Singular values coloured by frequency: the largest of each layer, at their places, fast waves further right."""

import numpy as np

from isthmus.plotting.draw import draw
from isthmus.plotting.frequencies import VALUES, through_depth, turns
from isthmus.plotting.style import new_figure, render


def test_values_are_where_they_belong():
    values = [np.array([[2.0, 0.5], [1.0, 0.1]]), np.array([[1.5], [0.2]])]
    signed = [np.array([[0], [3]])] * 2
    figure = through_depth(values, signed)
    (points,) = figure.data
    assert sorted(zip(points["x"], points["y"], points["marker"]["color"])) == sorted(
        [(0.7, 2, 0), (0.7, 0.5, 0), (1.3, 1, 3), (1.3, 0.1, 3), (1.7, 1.5, 0), (2.3, 0.2, 3)]
    )
    assert points["text"][-1] == "layer 2, ω = (0,), channel 1"
    assert turns([[3, 4]]).tolist() == [5]
    sheet = new_figure(5, 3, dpi=30)
    draw(sheet.subplots(), figure)
    assert render(sheet).startswith(b"\x89PNG")


def test_of_many_values_the_largest():
    values = np.random.default_rng(0).random((3 * VALUES, 1))
    figure = through_depth([values], [np.arange(3 * VALUES)[:, None]])
    shown = figure.data[0]["y"]
    assert len(shown) == VALUES and min(shown) > np.sort(values[:, 0])[-VALUES] - 1e-4
