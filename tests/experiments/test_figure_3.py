"""F-rank-3: that it runs, and that its outcomes follow from the arrays, in both directions."""

from __future__ import annotations

import numpy as np
import pytest

from isthmus import IsthmusError
from isthmus.experiments.rank2023._denoising import RankFigure3
from isthmus.plotting.style import new_figure
from quick_runs import quick_run

FIGURE = RankFigure3()


@pytest.fixture(scope="module")
def tiny():
    """A run in seconds: the code, not the phenomenon."""
    small = {"samples": 50, "test_samples": 20, "image_width": 6, "points": 20, "curve_width": 6}
    return RankFigure3.quick().replace(**small, image_steps=2, curve_steps=2).run()


def test_runs_and_says_what_it_found(tiny):
    arrays = tiny.arrays
    assert arrays["curve_outputs"].shape == (2, 300, 2) and arrays["images_outputs"].shape == (2, 8, 64)
    # The same inputs for the deep and the shallow one.
    assert np.array_equal(*arrays["curve_noisy"]) and np.array_equal(*arrays["images_noisy"])
    # Two steps learn nothing, and the run says so.
    assert next(o for o in tiny.outcomes if "missed" in o.name).status == "not met" and tiny.status == "undetermined"
    assert len(tiny.outcomes) == 7 and set(tiny.figures) == {"figure.png", "figure.svg"}


def ideal():
    """Arrays as the paper states them."""
    rng = np.random.default_rng(0)
    curve = FIGURE.curve(np.linspace(-1, 1, 80))
    noisy = curve + 0.1 * rng.standard_normal(curve.shape)
    images = rng.random((8, 784))
    return {
        "curve_data": np.stack([curve, curve]),
        "curve_noisy": np.stack([noisy, noisy]),
        "curve_outputs": np.stack([curve, noisy]),
        "curve_left": np.array([0.05, 0.8]),
        "curve_defect": np.array([0.02, 0.2]),
        "curve_missed": np.array([1e-4, 1e-5]),
        "images_noisy": np.stack([images, images]),
        "images_outputs": np.stack([images, images]),
        "images_left": np.array([0.2, 0.4]),
        "images_passed": np.array([0.05, 0.1]),
        "images_values": np.array([[1.0, 0.5, 0.01], [1.0, 0.5, 0.4]]),
        "images_missed": np.array([0.1, 0.05]),
    }


def statuses(arrays):
    return [o.status for o in FIGURE.outcomes(arrays)]


def test_what_the_paper_states_agrees():
    assert statuses(ideal()) == ["agrees"] * 4 + ["met"] * 3


@pytest.mark.parametrize(
    ("name", "value", "index", "status"),
    [
        ("curve_left", [0.4, 0.8], 0, "fails"),
        ("curve_left", [0.05, 0.1], 1, "fails"),
        ("curve_defect", [0.3, 0.2], 2, "fails"),
        ("images_passed", [0.6, 0.9], 3, "fails"),
        ("curve_missed", [1e-4, 0.3], 4, "not met"),
        ("images_passed", [0.1, 0.05], 5, "not met"),
        ("images_left", [0.4, 0.2], 6, "not met"),
    ],
)
def test_what_is_not_so_does_not_agree(name, value, index, status):
    found = statuses({**ideal(), name: np.array(value)})
    assert found[index] == status and found.count("agrees") + found.count("met") == 6


def test_plots_from_arrays_alone():
    figure = new_figure(*RankFigure3.figure_size)
    FIGURE.plot(ideal(), figure)
    assert len(figure.axes) == 3


def test_there_are_only_so_many_digits():
    with pytest.raises(IsthmusError, match="at most 1797"):
        RankFigure3.quick().replace(samples=1700, test_samples=100)._pixels()


def test_the_quick_variant_shows_the_same(tmp_path_factory):
    assert quick_run(tmp_path_factory, RankFigure3).status == "agrees"
