"""F-rank-2: tripoints in shallow classifiers, none in deep ones; its outcomes can fail."""

from __future__ import annotations

import numpy as np
import pytest

from isthmus.experiments.rank2023._tripoints import RankFigure2
from isthmus.plotting.style import new_figure, render
from quick_runs import quick_run


@pytest.fixture(scope="module")
def arrays():
    """What a run would leave, without training: two stripes pictures are enough to judge and draw."""
    experiment = RankFigure2.quick()
    data = experiment.problem()
    regions = np.tile(np.arange(200) // 50, (4, 200, 1))
    return {
        "tripoints": np.array([[2], [3], [0], [0]]),
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
    assert {outcome.status for outcome in experiment.outcomes(arrays)} == {"agrees"}
    for row, value, status in [
        (0, 0, "differs"),
        (1, 0, "fails"),
        (2, 1, "differs"),
        (3, 1, "fails"),
        (3, -1, "fails"),
    ]:
        counts = np.array(arrays["tripoints"])
        counts[row] = value
        assert experiment.outcomes({**arrays, "tripoints": counts})[row].status == status
    assert experiment.outcomes({**arrays, "accuracy": np.full((4, 1), 0.9)})[-1].status == "differs"


def test_the_picture(arrays):
    figure = new_figure(6, 5, dpi=60)
    RankFigure2.quick().plot(arrays, figure)
    assert len(figure.axes) == 4
    assert figure.axes[0].get_title(loc="left") == "L = 2, without L2: 2 tripoints"
    assert len(render(figure)) > 5000


def test_the_quick_variant(tmp_path_factory):
    run = quick_run(tmp_path_factory, RankFigure2)
    assert run.status != "fails"
    assert (run.arrays["tripoints"][1] > 0).all()
    assert (run.arrays["tripoints"][2:] == 0).all()


@pytest.mark.slow
def test_the_full_variant():
    """Gate: three seeds at each depth, with L2."""
    run = RankFigure2().run()
    assert run.arrays["tripoints"].shape == (4, 3)
    assert (run.arrays["tripoints"][1] > 0).all()
    assert (run.arrays["tripoints"][3] == 0).all()
    assert (run.arrays["unresolved"][3] == 0).all()
    assert (run.arrays["accuracy"] >= 0.99).all()
