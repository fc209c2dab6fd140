"""The picture of filters by frequency: every value at its layer, in the colour of its frequency."""

import numpy as np
import pytest

from isthmus.measures import filter_spectra
from isthmus.plotting.frequencies import VALUES, draw_frequencies
from isthmus.plotting.style import new_figure, render
from tools import gaussian


@pytest.mark.parametrize("size", [(7,), (4, 4)])
def test_values_and_colours(size):
    spectra = [filter_spectra(gaussian(2, 3, *[2] * len(size), seed=seed), size) for seed in range(3)]
    figure = new_figure()
    axes = figure.add_subplot()
    drawn = draw_frequencies(axes, [one.values for one in spectra], [one.signed for one in spectra], title="Filters")
    clouds = [one for one in axes.collections if len(one.get_offsets())]
    assert drawn is clouds[-1] and len(clouds) == 3
    for place, (cloud, one) in enumerate(zip(clouds, spectra), start=1):
        x, y = np.asarray(cloud.get_offsets()).T
        np.testing.assert_allclose(np.sort(y), np.sort(one.values.numpy(), axis=None))
        assert (abs(x - place) <= 0.31).all()
        speed = np.linalg.norm(one.signed.numpy(), axis=1)
        np.testing.assert_allclose(np.sort(cloud.get_array()), np.sort(np.repeat(speed, one.values.shape[1])))
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "3"]
    assert len(render(figure)) > 10_000


def test_the_largest_of_many():
    s = np.linspace(0, 1, 40 * 10).reshape(40, 10)[:, ::-1]
    figure = new_figure()
    axes = figure.add_subplot()
    draw_frequencies(axes, [s], [np.arange(40)[:, None]], ["a $layer"])
    (cloud,) = (one for one in axes.collections if len(one.get_offsets()))
    np.testing.assert_allclose(np.sort(cloud.get_offsets()[:, 1]), np.sort(s, axis=None)[-VALUES:])
    render(figure)
