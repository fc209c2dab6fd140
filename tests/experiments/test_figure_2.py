"""F-rank-2: tripoints in shallow classifiers, none in deep ones; its outcomes can fail."""

from __future__ import annotations

import numpy as np
import pytest

from isthmus.experiments.rank2023._tripoints import RankFigure2, _inside
from isthmus.plotting.style import new_figure, render
from isthmus.runs import worst
from quick_runs import quick_run


@pytest.fixture(scope="module")
def arrays():
    """What a run would leave, without training: two stripes pictures are enough to judge and draw."""
    experiment = RankFigure2.quick()
    data = experiment.problem()
    regions = np.tile(np.arange(200) // 50, (4, 200, 1))
    return {
        "tripoints": np.array([[2], [3], [0], [0]]),
        "inner": np.array([[[0, 1]], [[1, 2]], [[0, 0]], [[0, 0]]]),
        "unresolved": np.zeros((4, 1), dtype=np.int64),
        "accuracy": np.ones((4, 1)),
        "regions": regions,
        "points": np.array(data.X),
        "labels": np.array(data.labels),
        "box": experiment.box(data),
        "where": np.zeros((2, 2)),
        "whose": np.array([0, 1]),
    }


def test_outcomes(arrays):
    experiment = RankFigure2.quick()
    assert [outcome.status for outcome in experiment.outcomes(arrays)] == ["agrees"] * 4 + ["met"] * 2
    for row, value, status in [
        (0, 0, "differs"),
        (1, 0, "fails"),
        (2, 1, "differs"),
        (3, 1, "fails"),
        (3, -1, "fails"),
    ]:
        counts = np.array(arrays["tripoints"])
        counts[row] = value
        found = experiment.outcomes({**arrays, "tripoints": counts})
        assert found[row].status == status and "margin of 0.25" in found[row].reason
        # A classifier that errs on its own data shows nothing.
        found = experiment.outcomes({**arrays, "tripoints": counts, "accuracy": np.full((4, 1), 0.9)})
        assert (found[row].status, found[4].status) == ("undetermined", "not met")
    without = {name: values for name, values in arrays.items() if name != "inner"}
    assert worst(experiment.outcomes(without)) == "agrees"


def test_tripoints_are_counted_by_the_margin():
    X = np.array([[-1.0, -1.0], [1.0, 1.0]])
    points = np.array([[0.0, 1.2], [0.0, -1.8], [2.5, 0.0]])
    assert [_inside(points, X, margin) for margin in (0.0, 0.25, 0.5, 1.0)] == [0, 1, 2, 3]


def test_the_picture(arrays):
    figure = new_figure(6, 5, dpi=60)
    RankFigure2.quick().plot(arrays, figure)
    assert len(figure.axes) == 4
    assert figure.axes[0].get_title(loc="left") == "L = 2, without L2: 2 tripoints"
    assert len(render(figure)) > 5000


def test_the_quick_variant(tmp_path_factory):
    run = quick_run(tmp_path_factory, RankFigure2)
    assert run.status == "agrees"
    assert (run.arrays["tripoints"][:2] > 0).all() and (run.arrays["tripoints"][2:] == 0).all()


@pytest.mark.slow
def test_the_full_variant():
    run = RankFigure2().run()
    assert run.arrays["tripoints"].shape == (4, 3)
    assert (run.arrays["tripoints"][:2] > 0).all() and (run.arrays["tripoints"][2:] == 0).all()
    assert (run.arrays["unresolved"][3] == 0).all()
    assert (run.arrays["accuracy"] >= 0.99).all()
