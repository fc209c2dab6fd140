"""F-bn-1: that it runs, and that its outcomes follow from the arrays, in both directions."""

from __future__ import annotations

import numpy as np
import pytest

from isthmus import IsthmusError
from isthmus.experiments.bottleneck2023 import _norm_and_depth as norm_trained
from isthmus.experiments.bottleneck2023._norm_and_depth import NormAndDepth
from isthmus.plotting.style import new_figure
from quick_runs import quick_run

TINY = {"latent_dim": 3, "d_in": 6, "d_out": 6, "samples": 40, "width": 8, "adam_steps": 30, "steps": 15, "lam": 5e-3}
FIGURE = NormAndDepth(depths=(6, 10, 14, 18, 22, 30), further=5)


@pytest.fixture(scope="module")
def tiny():
    """A run in seconds: the code, not the phenomenon."""
    return NormAndDepth(**TINY, depths=(3, 5), seeds=2, further=1).run()


def test_runs_and_says_what_it_found(tiny):
    arrays = tiny.arrays
    assert arrays["depths"].tolist() == [3, 3, 5, 5] and arrays["spectra"].shape == (4, 5, 10)
    assert np.isnan(arrays["spectra"][0, 3:]).all() and np.isfinite(arrays["spectra"][2]).all()
    # A few steps do not converge, and the run says so.
    unfinished = next(o for o in tiny.conditions if "converge" in o.name)
    assert unfinished.status == "not met" and unfinished.value == 4
    assert set(tiny.figures) == {"figure.png", "figure.svg"}


def test_a_depth_trained_apart_is_the_same(tiny, monkeypatch):
    monkeypatch.setattr(norm_trained, "_KEPT", {})
    alone = NormAndDepth(**TINY, depths=(5,), seeds=2, further=0)
    arrays = alone.compute(lambda *_: _NoBar())
    np.testing.assert_array_equal(arrays["norms"], tiny.arrays["norms"][2:])
    assert len(norm_trained._KEPT) == 2
    monkeypatch.setattr(norm_trained, "_fit", None)
    alone.compute(lambda *_: _NoBar())
    with pytest.raises(TypeError):
        alone.replace(samples=41).compute(lambda *_: _NoBar())


class _NoBar:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def advance(self, *_, **__):
        return None


def test_a_network_continued_without_steps_costs_what_it_did():
    figure = NormAndDepth(**{**TINY, "steps": 60}, depths=(4,))
    start = norm_trained.trained(figure.settings, 4, 0)
    longer = norm_trained.continued(figure.replace(steps=0).settings, start, 7)
    old, new = start.row(6), longer.row(6)
    assert int(new["depths"]) == 7 and new["costs"] == pytest.approx(float(old["costs"]), abs=1e-3)
    # Three identity layers of rank k add 3k to the norm.
    added = float(new["norms"] - old["norms"])
    assert added == pytest.approx(3 * round(added / 3), abs=1e-3) and added > 0


def ideal(slopes=((2, 2.0), (3, 3.0))):
    """Arrays as the paper states them: rank 4, 3, 3, 2, 2 and nothing."""
    depths, ranks = np.array([6, 10, 14, 18, 22, 26]), np.array([4, 3, 3, 2, 2, 0])
    zero = ranks == 0
    spectra = np.where(np.arange(10) < ranks[:, None, None], 1.2, 1e-3) * np.ones((6, 30, 1))
    L = np.arange(18.0, 36.0, 3.0)
    many = len(slopes)
    return {
        "depths": depths,
        "ranks": ranks,
        "failed": zero,
        "norms": np.where(zero, 0.04, ranks * depths + 30.0),
        "losses": np.full(6, 0.1),
        "spectra": spectra,
        "converged": np.full(6, True),
        "continued_families": np.repeat([k for k, _ in slopes], len(L)),
        "continued_ranks": np.repeat([k for k, _ in slopes], len(L)),
        "continued_depths": np.tile(L, many),
        "continued_norms": np.concatenate([s * L + 30.0 + 40.0 / L for _, s in slopes]),
        "continued_failed": np.full(many * len(L), False),
    }


def statuses(arrays):
    return [o.status for o in FIGURE.outcomes(arrays)]


def test_what_the_paper_states_agrees():
    assert statuses(ideal()) == ["agrees"] * 5 + ["met"] * 2
    assert all(o.quote and o.where for o in FIGURE.outcomes(ideal()) if o.kind == "statement")


@pytest.mark.parametrize(
    ("changes", "index", "status"),
    [
        ({"ranks": np.array([2, 2, 3, 3, 4, 0])}, 0, "fails"),
        ({"ranks": np.array([4, 2, 2, 3, 3, 0])}, 0, "differs"),
        (ideal(slopes=((2, 2.6), (3, 3.0))), 1, "fails"),
        (ideal(slopes=((2, 2.0), (3, 2.0))), 2, "fails"),
        ({"norms": np.full(6, 60.0)}, 3, "undetermined"),
        ({"norms": np.array([60.0, 60.0, 0.0, 0.0, 0.0, 0.0])}, 3, "differs"),
        ({"ranks": np.array([4, 3, 3, 2, 1, 0])}, 4, "differs"),
        ({"converged": np.array([True] * 5 + [False])}, 5, "not met"),
        ({"ranks": np.array([5, 4, 4, 3, 3, 0])}, 6, "not met"),
    ],
)
def test_what_is_not_so_does_not_agree(changes, index, status):
    found = statuses({**ideal(), **changes})
    assert found[index] == status and found.count("agrees") + found.count("met") == len(found) - 1


def test_deep_enough_and_still_something_left_differs():
    """Up to L = 26 the zero solution may yet come; beyond 32 it should have."""
    arrays = ideal() | {"depths": np.array([6, 10, 14, 18, 22, 40]), "norms": np.full(6, 60.0)}
    assert statuses(arrays)[3] == "differs"


def test_a_slope_of_trainings_that_did_not_converge_is_undetermined():
    arrays = ideal(slopes=((2, 2.6), (3, 3.0))) | {"converged": np.array([True] * 5 + [False])}
    assert statuses(arrays)[1] == "undetermined"


def test_the_best_networks_of_a_range_are_judged_too():
    """Slopes of their own; of two networks of one depth the one of less loss counts."""
    depths, ranks = np.array([6, 10, 14, 18, 22, 26]), np.array([3, 2, 2, 2, 2, 0])
    arrays = {**ideal(), "ranks": ranks, "norms": np.where(ranks > 0, 2.0 * depths + 30.0, 0.04)}
    name = "best networks of the depths of rank 2: slope of ‖θ‖² in L"
    assert {o.name: o.status for o in FIGURE.outcomes(arrays)}[name] == "agrees"
    steep = arrays | {"norms": np.where(ranks > 0, 3.0 * depths + 30.0, 0.04)}
    assert {o.name: o.status for o in FIGURE.outcomes(steep)}[name] == "differs"
    twice = {key: np.concatenate([values, values]) for key, values in arrays.items() if len(values) == 6}
    twice["norms"][6:11] += 40.0 * np.arange(5)
    twice["losses"][6:] += 0.1
    assert norm_trained.best_of_depths(twice) == [0, 1, 2, 3, 4]
    assert {o.name: o.status for o in FIGURE.outcomes(arrays | twice)}[name] == "agrees"


def test_outputs_are_scaled():
    plain, scaled = (NormAndDepth(**TINY, output_scale=scale).settings.data()[1] for scale in (1.0, 1.2))
    np.testing.assert_allclose(scaled, 1.2 * plain, rtol=1e-6)


def test_one_deep_network_of_another_rank_does_not_undo_that_the_rank_falls():
    """Which of two neighbouring depths loses a dimension is decided by rounding."""
    found = FIGURE.outcomes({**ideal(), "ranks": np.array([4, 3, 3, 1, 2, 0])})[0]
    assert found.status == "agrees" and "least ranks [4, 3, 3, 1, 2]" in found.reason


@pytest.mark.parametrize(("shift", "status"), [(0.0, "agrees"), (8.0, "undetermined")])
def test_a_slope_that_is_right_by_chance_says_nothing(shift, status):
    """Networks off the line by so much that its interval is wider than a rank, at the same slope."""
    arrays = ideal()
    L = arrays["continued_depths"][:6]
    basis = np.linalg.qr(np.stack([L, np.ones(6), 1.0 / L], 1))[0]
    scatter = np.random.default_rng(0).normal(size=6)
    scatter = shift * (scatter - basis @ (basis.T @ scatter))
    arrays["continued_norms"] = arrays["continued_norms"] + np.concatenate([scatter, np.zeros(6)])
    found = FIGURE.outcomes(arrays)[1]
    assert found.value == pytest.approx(2.0, abs=0.1) and found.status == status


def test_a_family_that_changes_its_rank_is_cut_there():
    arrays = ideal()
    arrays["continued_ranks"] = arrays["continued_ranks"].copy()
    arrays["continued_ranks"][3:6] = 1
    arrays["continued_norms"][3:6] = 1000.0
    assert statuses(arrays) == statuses(ideal())
    arrays["continued_ranks"][1:6] = 1
    assert len(FIGURE.fits(arrays)) == 1


def test_the_best_of_each_rank_is_continued():
    arrays = {**ideal(), "losses": np.array([0.1, 0.1, 0.2, 0.12, 0.1, 1.0])}
    assert FIGURE.starts(arrays) == [4, 1]
    assert FIGURE.starts({**arrays, "failed": np.array([False, True, False, False, True, True])}) == [3, 2]


def test_plots_from_arrays_alone(tiny):
    for figure, arrays in ((FIGURE, ideal()), (NormAndDepth(**TINY, depths=(3, 5)), tiny.arrays)):
        canvas = new_figure(*figure.figure_size)
        figure.plot(arrays, canvas)
        assert len(canvas.axes) == 5


def test_depths_must_increase():
    with pytest.raises(IsthmusError, match="increasing"):
        NormAndDepth(depths=(8, 4))


def test_the_quick_variant_shows_the_same(tmp_path_factory):
    run = quick_run(tmp_path_factory, NormAndDepth)
    assert run.status == "agrees" and sum("slope" in o.name for o in run.statements) >= 1
    assert next(o for o in run.statements if "zero" in o.name).value == 36
