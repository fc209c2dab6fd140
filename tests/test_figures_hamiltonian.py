"""F-ham-1, 2 and 3: that they run, and that their outcomes follow from the arrays, in both directions."""

from __future__ import annotations

import numpy as np
import pytest

from isthmus.experiments.hamiltonian2024 import _trained as trained
from isthmus.experiments.hamiltonian2024._discretisations import HamiltonianFigure2
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
    assert len([o for o in tiny.outcomes if o.name.startswith("L̃ = 7.5")]) == 6
    # Six steps do not make a critical point, and the run says so.
    poor = next(o for o in tiny.outcomes if "residual" in o.name)
    assert poor.status == "differs" and "residual" in poor.reason
    assert set(tiny.figures) == {"figure.png", "figure.svg"}


def test_the_third_figure_uses_the_same_trainings(tiny, monkeypatch):
    def never(*args, **kwargs):
        raise AssertionError("trained twice")

    monkeypatch.setattr(trained, "fit_path", never)
    again = HamiltonianFigure3(**TINY, effective_depths=(1.0, 7.5)).run()
    assert np.array_equal(again.arrays["length"], tiny.arrays["length"])
    assert len(again.outcomes) == 3
    with pytest.raises(AssertionError, match="trained twice"):
        HamiltonianFigure3(**{**TINY, "samples": 41}, effective_depths=(1.0, 7.5)).run()


def ideal(rank=5, depths=(1.0, 7.0, 11.0), layers=20):
    """Arrays as the paper states them."""
    count = len(depths)
    scale = np.array(depths)[:, None]
    spectra = np.where(np.arange(12) < rank, 1.0, 1e-3)[None, None] * scale[..., None] * np.ones((count, layers, 1))
    H = -(scale / 2) * (rank - 1.0 / scale) * np.ones((count, layers))
    coi = np.full((count, layers), rank + 0.2) + 3.0 / scale
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
    assert set(statuses(ideal()).values()) == {"agrees"}
    for figure, arrays in ((FIGURE, ideal()), (HamiltonianFigure3(layers=20), ideal())):
        drawn = new_figure(*figure.figure_size)
        figure.plot(arrays, drawn)
        assert len(drawn.axes) >= 3


@pytest.mark.parametrize(
    ("name", "values", "word", "status"),
    [
        ("total_residual", 0.2, "residual of criticality", "differs"),
        ("spread", 0.2, "spread", "differs"),
        ("hamiltonian", -20.0, "(2/L̃)𝓗 within", "differs"),  # above the rank at L̃ = 7
        ("identity_cost", 4.0, "least cost", "differs"),
        ("weight_spectra", 1.0, "clear singular values", "fails"),
    ],
)
def test_and_what_it_does_not_is_said(name, values, word, status):
    arrays = ideal()
    arrays[name] = np.full_like(arrays[name], values)
    found = [s for text, s in statuses(arrays).items() if word in text]
    assert found and set(found) == {status}


def test_one_direction_more_differs_with_a_reason():
    arrays = ideal()
    arrays["weight_spectra"][:, :, 5] = arrays["weight_spectra"][:, :, 4]
    counted = next(o for o in FIGURE.outcomes(arrays) if "as many" in o.name)
    assert (counted.status, counted.value) == ("differs", 6.0) and "constant" in counted.reason


def test_growth_with_the_depth_is_said():
    figure = HamiltonianFigure3(layers=20, effective_depths=(1.0, 7.0, 11.0))
    assert set(statuses(ideal(), figure).values()) == {"agrees"}
    arrays = ideal()
    arrays["length"] = np.array([1.0, 7.0, 11.0])
    assert sorted(statuses(arrays, figure).values()) == ["agrees", "agrees", "differs"]


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
    found = {o.name.split(":")[0]: o.status for o in figure.outcomes(arrays)}
    assert found["adaptive steps"] == "agrees" and found["irregular steps"] == "differs"
    arrays["overhead"] = np.full((4, 3), 0.2)
    assert any(o.status == "fails" and "adapting" in o.name for o in figure.outcomes(arrays))


@pytest.mark.parametrize("kind", [HamiltonianFigure1, HamiltonianFigure2, HamiltonianFigure3])
def test_quick_variants(kind, tmp_path_factory):
    arrays = quick_run(tmp_path_factory, kind).arrays
    assert all(np.isfinite(values).all() for values in arrays.values())
