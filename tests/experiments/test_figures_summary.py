"""F-bn-2 and F-talk-3: that they run, and that their outcomes follow from the arrays, in both directions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from isthmus import IsthmusError
from isthmus.experiments.bottleneck2023 import _summary_statistics as summary_trained
from isthmus.experiments.bottleneck2023._summary_statistics import LearnedStatistics, SymmetryLearning
from isthmus.networks import FullyConnected
from isthmus.plotting.style import new_figure
from isthmus.problems import gradient_descent_losses, summary_statistics
from quick_runs import quick_run

TINY = {"d": 3, "horizon": 5, "samples": 60, "width": 10, "depth": 8, "layer": 3, "start_depth": 5, "steps": 3}
FIGURES = Path(__file__).resolve().parents[2] / "docs" / "figures"


@pytest.fixture(scope="module")
def tiny():
    """A run in seconds: the code, not the phenomenon."""
    return SymmetryLearning(**TINY).run()


def test_runs_and_says_what_it_found(tiny):
    arrays = tiny.arrays
    assert arrays["orbits"].shape == arrays["orbits_mirrored"].shape == (2, 9)
    assert arrays["paths"].shape == (30, 6, 2) and arrays["scores"].shape == (2, 6)
    assert len(tiny.outcomes) == 5 and set(tiny.figures) == {"figure.png", "figure.svg"}
    # A few steps do not learn the symmetry, and the run says so.
    assert next(o for o in tiny.outcomes if "rotations" in o.name).status == "undetermined"
    assert next(o for o in tiny.conditions if "converged" in o.name).status == "not met"


def test_the_second_figure_uses_the_same_training(tiny, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("trained twice")

    monkeypatch.setattr(summary_trained, "fit_deep", never)
    again = LearnedStatistics(**TINY).run()
    assert np.array_equal(again.arrays["scores"], tiny.arrays["scores"])
    with pytest.raises(AssertionError, match="trained twice"):
        LearnedStatistics(**{**TINY, "samples": 61}).run()


def test_the_axis_is_found_from_the_statistics():
    problem = gradient_descent_losses(d=5, samples=200, seed=3)
    w = summary_trained.axis_of(problem.X, problem.latents)
    np.testing.assert_allclose(summary_statistics(problem.X, w), problem.latents, atol=1e-10)
    V = summary_trained.fresh(w, 4000, 0)
    u = np.sqrt(summary_statistics(V, w))
    # The law of the task: both uniform on [0, 1.2].
    np.testing.assert_allclose(np.quantile(u, [0.25, 0.5, 0.75], axis=0), [[0.3] * 2, [0.6] * 2, [0.9] * 2], atol=0.04)
    np.testing.assert_allclose(V.mean(axis=0), 0, atol=0.04)


def test_deepening_keeps_a_function_through_a_narrow_layer():
    """Layer 2 of width 6 has two directions: identity layers go behind it, and cost two each."""
    source = torch.Generator().manual_seed(0)
    net = FullyConnected([4, 6, 6, 6, 3], generator=source, dtype=torch.float64)
    with torch.no_grad():
        left = torch.rand(6, 2, generator=source, dtype=torch.float64)
        net.Ws[1].copy_(left @ torch.rand(2, 6, generator=source, dtype=torch.float64))
        for b in net.bs:
            b.normal_(generator=source)
        net.bs[1].zero_()
    X = torch.randn(50, 4, generator=source, dtype=torch.float64)
    deep = summary_trained.deepen(net, X, 9)
    assert deep.depth == 9 and deep.dims == (4, 6, 6, 6, 6, 6, 6, 6, 6, 3)
    torch.testing.assert_close(deep(X.float()).double(), net(X), rtol=1e-4, atol=1e-4)
    added = sum(float(W.detach().square().sum()) for W in deep.Ws)
    added -= sum(float(W.detach().square().sum()) for W in net.Ws)
    assert added == pytest.approx(2 * 5, rel=1e-4)


def ideal(depth=25):
    """Arrays as the paper states them."""
    spectra = np.where(np.arange(12) < 2, 1.2, 1e-3) * np.ones((depth, 1))
    collapsed = np.where(np.arange(depth + 1) < 2, 0.6, 0.02)
    mirrored = np.where(np.arange(depth + 1) < 4, 0.9, 0.02)
    error = np.full(depth + 1, 0.001)
    return {
        "weight_spectra": spectra,
        "orbits": np.stack([collapsed, error]),
        "orbits_mirrored": np.stack([mirrored, error]),
        "dynamics": np.array(0),
        "crossing": np.array([0.001, 0.001]),
        "unexplained": np.array([0.002, 0.001]),
        "scores": np.full((2, depth - 2), 0.99),
        "converged": np.array(True),
        "gradient": np.array(0.1),
    }


def statuses(arrays, figure):
    return [o.status for o in figure().outcomes(arrays)]


def test_what_the_paper_states_agrees():
    assert statuses(ideal(), SymmetryLearning) == ["agrees"] * 3 + ["met"] * 2
    assert statuses(ideal(), LearnedStatistics) == ["agrees"] * 4 + ["met"]


@pytest.mark.parametrize(
    ("name", "value", "index", "status"),
    [
        ("weight_spectra", np.where(np.arange(12) < 3, 1.2, 1e-3) * np.ones((25, 1)), 0, "fails"),
        ("orbits", np.full((2, 26), 0.2), 1, "fails"),
        ("orbits", np.where(np.arange(26) < 4, 0.2, 0.01) * np.ones((2, 1)), 1, "differs"),
        ("dynamics", np.array(1), 2, "differs"),
        ("dynamics", np.array(2), 2, "undetermined"),
        ("converged", np.array(False), 3, "not met"),
        ("orbits_mirrored", np.full((2, 26), 0.2), 4, "not met"),
    ],
)
def test_what_is_not_so_does_not_agree(name, value, index, status):
    found = statuses({**ideal(), name: value}, SymmetryLearning)
    assert found[index] == status and found.count("agrees") + found.count("met") == 4


def test_coordinates_that_lose_a_statistic_fail():
    scores = np.full((2, 23), 0.99)
    scores[0, 4] = 0.6
    arrays = {**ideal(), "scores": scores}
    assert statuses(arrays, LearnedStatistics)[:4] == ["fails", "agrees", "agrees", "agrees"]
    assert statuses({**arrays, "converged": np.array(False)}, LearnedStatistics)[0] == "undetermined"


def test_plots_from_arrays_alone(tiny):
    for cls in (SymmetryLearning, LearnedStatistics):
        figure = new_figure(*cls.figure_size)
        cls(**TINY).plot(tiny.arrays, figure)
        assert len(figure.axes) >= 3


def test_the_layer_must_be_hidden():
    with pytest.raises(IsthmusError, match="below the depth"):
        SymmetryLearning(depth=8, layer=8)


def test_the_quick_variant_learns_the_statistics(tmp_path_factory):
    assert quick_run(tmp_path_factory, LearnedStatistics).status == "agrees"


def test_what_is_kept_is_of_the_full_run():
    for cls in (SymmetryLearning, LearnedStatistics):
        kept = json.loads((FIGURES / f"{cls.id}.json").read_text(encoding="utf-8"))
        assert kept["parameters"] == json.loads(json.dumps(cls().parameters))
        assert [o["value"] for o in kept["outcomes"] if "stand out" in o["name"]] in ([], [2.0])
        assert (FIGURES / f"{cls.id}.png").stat().st_size <= 400_000
