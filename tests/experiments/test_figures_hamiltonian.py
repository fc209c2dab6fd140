"""F-ham-1, 2 and 3: that they run, and that their outcomes follow from the arrays, in both directions."""

from __future__ import annotations

import numpy as np
import pytest

from isthmus.experiments.hamiltonian2024 import _trained as trained
from isthmus.experiments.hamiltonian2024._discretisations import HamiltonianFigure2, _crowding
from isthmus.experiments.hamiltonian2024._mechanics import HamiltonianFigure1, HamiltonianFigure3
from isthmus.objective import ridge_from
from isthmus.plotting.style import new_figure
from quick_runs import quick_run

TINY = {"d_in": 5, "rank": 2, "d_out": 5, "width": 10, "layers": 8, "samples": 40, "steps": 6}


@pytest.fixture(scope="module")
def tiny():
    """A run in seconds: the code, not the phenomenon."""
    return HamiltonianFigure1(**TINY, effective_depths=(1.0, 7.5)).run()


def test_runs_and_says_what_it_found(tiny):
    assert tiny.arrays["hamiltonian"].shape == (2, 8)
    assert tiny.arrays["weight_spectra"].shape == (2, 8, 10)
    assert tiny.arrays["path"].shape == (2, 9, 2)
    assert len(tiny.statements) == 6 and len(tiny.conditions) == 2
    # Six steps do not make a critical point, and the run says so.
    assert tiny.conditions[0].status == "not met" and tiny.status == "undetermined"
    assert set(tiny.figures) == {"figure.png", "figure.svg"}


def test_the_third_figure_uses_the_same_trainings(tiny, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("trained twice")

    monkeypatch.setattr(trained, "fit_path", never)
    again = HamiltonianFigure3(**TINY, effective_depths=(1.0, 7.5)).run()
    assert np.array_equal(again.arrays["length"], tiny.arrays["length"])
    assert len(again.statements) == 3 and again.conditions[0] == tiny.conditions[0]
    with pytest.raises(AssertionError, match="trained twice"):
        HamiltonianFigure3(**{**TINY, "samples": 41}, effective_depths=(1.0, 7.5)).run()


def ideal(rank=5, depths=(1.0, 7.0, 11.0), layers=20):
    """Arrays as the paper states them."""
    count = len(depths)
    scale = np.array(depths)[:, None]
    spectra = np.where(np.arange(12) < rank, 1.0, 1e-3)[None, None] * scale[..., None] * np.ones((count, layers, 1))
    H = -(scale / 2) * (rank - 1.0 / scale) * np.ones((count, layers))
    # Large at both ends, least in the middle.
    ends = 5.0 * np.linspace(-1.0, 1.0, layers) ** 2
    coi = rank + 0.2 + 3.0 / scale + ends
    kinetic = (scale / 2) * (coi - rank)
    return {
        "effective_depths": np.array(depths),
        "weight_spectra": spectra,
        "hamiltonian": H,
        "kinetic": kinetic,
        "potential": -(scale / 2) * coi,
        "identity_cost": coi,
        "total_residual": np.full(count, 0.01),
        "spread": np.full(count, 0.02),
        "residual": np.full((count, layers), 0.01),
        "positions": np.tile(np.linspace(0, 1, layers + 1), (count, 1)),
        "length": np.full(count, 3.0),
        "momentum_norm": np.full((count, layers + 1), 2.0),
        "force_norm": np.full((count, layers), 2.0),
    }


FIGURE = HamiltonianFigure1(layers=20, effective_depths=(1.0, 7.0, 11.0))


def statuses(arrays, figure=FIGURE):
    return {o.name: o.status for o in figure.outcomes(arrays)}


def test_what_the_paper_states_agrees():
    assert list(statuses(ideal()).values()) == ["agrees"] * 6 + ["met"] * 2
    assert all(o.quote and o.where for o in FIGURE.outcomes(ideal()) if o.kind == "statement")
    for figure, arrays in ((FIGURE, ideal()), (HamiltonianFigure3(layers=20), ideal())):
        drawn = new_figure(*figure.figure_size)
        figure.plot(arrays, drawn)
        assert len(drawn.axes) >= 3


@pytest.mark.parametrize(
    ("name", "values", "word", "status"),
    [
        ("total_residual", 0.2, "residual of criticality", "not met"),
        ("spread", 0.2, "spread", "not met"),
        ("hamiltonian", -40.0, "(2/L̃)𝓗, median", "fails"),  # above the rank
        ("hamiltonian", -5.0, "(2/L̃)𝓗, median", "fails"),  # further and further below it
        ("identity_cost", 4.0, "least cost", "fails"),
        ("kinetic", 30.0, "kinetic energy: approaches", "fails"),
        ("weight_spectra", 1.0, "stand out", "undetermined"),
        ("weight_spectra", 1.0, "beyond the first 5", "fails"),
    ],
)
def test_and_what_it_does_not_is_said(name, values, word, status):
    arrays = ideal()
    arrays[name] = np.full_like(arrays[name], values)
    found = [s for text, s in statuses(arrays).items() if word in text]
    assert found == [status]
    # Nothing is refuted by networks that are not critical.
    arrays["total_residual"] = np.full(3, 0.2)
    assert "fails" not in statuses(arrays).values()


def test_a_hamiltonian_that_varies_like_its_components_fails():
    arrays = ideal()
    arrays["hamiltonian"] = arrays["hamiltonian"] + 0.5 * (arrays["kinetic"] - arrays["kinetic"].mean(1, keepdims=True))
    assert [s for text, s in statuses(arrays).items() if "variation of 𝓗" in text] == ["fails"]


@pytest.mark.parametrize(
    ("many", "status"), [(5, "agrees"), (6, "differs"), (7, "differs"), (8, "fails"), (4, "fails")]
)
def test_as_many_directions_as_the_rank(many, status):
    """One or two more are among what the paper saw."""
    arrays = ideal()
    arrays["weight_spectra"][-1] = 11.0 * np.where(np.arange(12) < many, 1.0, 1e-3)
    counted = FIGURE.outcomes(arrays)[0]
    assert (counted.status, counted.value) == (status, many)


@pytest.mark.parametrize("name", ["length", "momentum_norm", "force_norm"])
def test_what_grows_or_falls_threefold_is_not_relatively_constant(name):
    figure = HamiltonianFigure3(layers=20, effective_depths=(1.0, 7.0, 11.0))
    assert list(statuses(ideal(), figure).values()) == ["agrees"] * 3 + ["met"]
    for factors in ((1.0, 2.0, 3.0), (3.0, 2.0, 1.0)):
        arrays = ideal()
        arrays[name] = (arrays[name].T * np.array(factors)).T
        assert sorted(statuses(arrays, figure).values()) == ["agrees", "agrees", "differs", "met"]
        arrays["total_residual"] = np.full(3, 0.2)
        assert "undetermined" in statuses(arrays, figure).values()


def test_both_readings_of_the_cost():
    summed = HamiltonianFigure1(average_outputs=False)
    plain = ridge_from("hamiltonian2024", 2e-3, effective_depth=7.0)
    assert trained.ridge_of(summed.settings, 7.0) == plain
    assert trained.ridge_of(HamiltonianFigure1().settings, 7.0) == pytest.approx(20 * plain)


@pytest.fixture(scope="module")
def discretised():
    options = {"dims": (6, 3, 2, 6), "width": 8, "layers": (4, 8), "samples": 30, "seeds": 1, "steps": 4}
    return HamiltonianFigure2(**options).run()


def test_discretisations_run(discretised):
    assert discretised.arrays["errors"].shape == (3, 2, 1)
    assert int(discretised.arrays["shown"]) == 8
    for rule in ("equidistant", "irregular", "adaptive"):
        positions = discretised.arrays[f"{rule}_positions"]
        assert positions[0] == 0.0 and abs(positions[-1] - 1.0) < 1e-9
    steps = np.diff(discretised.arrays["equidistant_positions"])
    assert np.allclose(steps, steps[0])
    assert np.ptp(np.diff(discretised.arrays["adaptive_positions"])) > 1e-3


def test_who_is_ahead_is_judged_pair_by_pair(discretised):
    figure = HamiltonianFigure2(layers=(4, 8, 13, 22), seeds=3)
    arrays = dict(discretised.arrays)
    arrays["errors"] = np.ones((3, 4, 3))
    arrays["errors"][2] = 0.9
    # Seeds that disagree about irregular steps, by as much either way.
    arrays["errors"][1] *= np.array([0.8, 1.0, 1.25])
    found = {o.name.split(":")[0]: o for o in figure.outcomes(arrays)}
    assert found["adaptive steps"].status == "agrees" and found["adaptive steps"].value == pytest.approx(0.1)
    assert found["irregular steps"].status == "undetermined"
    arrays["errors"][1] = 1.1
    assert figure.outcomes(arrays)[1].status == "differs"
    assert (
        figure.replace(seeds=1).outcomes({**arrays, "errors": arrays["errors"][:, :, :1]})[0].status == "undetermined"
    )
    arrays["overhead"] = np.full((4, 3), 0.2)
    assert any(o.status == "fails" and "adapting" in o.name for o in figure.outcomes(arrays))


def test_where_adaptive_steps_crowd():
    even = np.linspace(0.0, 1.0, 21)
    assert _crowding(even) == pytest.approx((1.0, 1.0), abs=0.26)
    crowded = np.concatenate([np.linspace(0.0, 0.2, 9), [0.4, 0.6], np.linspace(0.8, 1.0, 10)])
    assert min(_crowding(crowded)) > 1.9


@pytest.mark.parametrize("kind", [HamiltonianFigure1, HamiltonianFigure2, HamiltonianFigure3])
def test_quick_variants(kind, tmp_path_factory):
    run = quick_run(tmp_path_factory, kind)
    assert all(np.isfinite(values).all() for values in run.arrays.values())
    assert "fails" not in {o.status for o in run.statements}
