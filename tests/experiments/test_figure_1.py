"""F-rank-1: its quick variant finds the rank; its outcomes can fail."""

import numpy as np
import pytest

from isthmus._progress import silent
from isthmus.experiments.rank2023 import _bottleneck as figure_1
from isthmus.experiments.rank2023._bottleneck import PAPER_NORM_PER_DEPTH, RankFigure1
from isthmus.plotting.style import new_figure, render
from isthmus.runs import worst
from isthmus.training import minimise
from quick_runs import quick_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return quick_run(tmp_path_factory, RankFigure1)


def outcomes(arrays, experiment=None):
    experiment = RankFigure1.quick() if experiment is None else experiment
    return {o.name: o for o in experiment.outcomes(arrays)}


def test_the_quick_variant_agrees(run):
    assert run.status == "agrees"
    assert int(run.arrays["rank"]) == RankFigure1.quick().rank == 3
    by_name = {o.name: o for o in run.statements}
    assert by_name["rank by representations"].value == by_name["rank by Jacobians"].value == 3
    assert all(o.quote and o.where for o in run.statements)
    # At other settings than the paper's nothing is compared with its number.
    assert "‖W‖²/L" not in by_name and "5" not in RankFigure1.title


@pytest.mark.parametrize(
    ("corrupt", "name"),
    [
        (lambda a: a["representation_spectra"][:, 3].__setitem__(slice(None), 0.9), "s_4/s_1"),
        (lambda a: a["representation_spectra"][:, 2].__setitem__(slice(None), 1e-3), "s_3/s_1"),
        (lambda a: a["ranks"].__setitem__(1, 5), "rank by representations"),
        (lambda a: a["ranks"].__setitem__(2, 4), "rank by Jacobians"),
    ],
)
def test_corrupted_arrays_fail(run, corrupt, name):
    arrays = {k: np.array(v) for k, v in run.arrays.items()}
    corrupt(arrays)
    # So short a training may end either way.
    arrays["converged"] = np.array(True)
    assert [o.status for n, o in outcomes(arrays).items() if name in n] == ["fails"]
    # While the training has not converged nothing is refuted.
    arrays["converged"] = np.array(False)
    assert [o.status for n, o in outcomes(arrays).items() if name in n] == ["undetermined"]


def test_the_rank_of_the_weights_does_not_count(run):
    arrays = {k: np.array(v) for k, v in run.arrays.items()}
    for rank, status in ((3, "met"), (4, "not met"), (7, "not met")):
        arrays["ranks"][0] = rank
        assert outcomes(arrays)["rank by weights"].status == status
        assert worst(RankFigure1.quick().outcomes(arrays)) == "agrees"


def test_the_norm_is_judged_at_the_papers_settings_only(run):
    arrays = {k: np.array(v) for k, v in run.arrays.items()}
    arrays["converged"] = np.array(True)
    arrays["weight_norms"] = np.full(10, PAPER_NORM_PER_DEPTH * 1.05)
    name = "‖W‖²/L"
    assert outcomes(arrays, RankFigure1())[name].status == "agrees"
    arrays["weight_norms"] *= 2
    assert outcomes(arrays, RankFigure1())[name].status == "differs"


def test_unconverged_training_is_said(run):
    arrays = dict(run.arrays, converged=np.array(False))
    assert outcomes(arrays)["training converged"].status == "not met"


def test_convention():
    assert RankFigure1().ridge == pytest.approx(50 * 2e-4 / 10)
    assert RankFigure1(average_outputs=False).ridge == pytest.approx(2e-4 / 10)


def test_plot_draws_four_panels(run):
    figure = new_figure()
    RankFigure1.quick().plot(run.arrays, figure)
    assert len(figure.axes) == 4
    assert render(figure).startswith(b"\x89PNG")


def test_an_interrupted_training_is_no_figure(monkeypatch):
    def interrupted(net, X, Y, **options):
        def stop(event):
            if event.step >= 3:
                raise KeyboardInterrupt

        options.pop("progress")
        return minimise(net, X, Y, callbacks=[stop], **options)

    monkeypatch.setattr(figure_1, "minimise", interrupted)
    with pytest.raises(KeyboardInterrupt):
        RankFigure1.quick().solve(silent)
