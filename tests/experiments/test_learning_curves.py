"""F-talk-4: that it runs, and that its outcomes follow from the arrays, in both directions."""

from __future__ import annotations

import numpy as np
import pytest

from isthmus import IsthmusError
from isthmus.experiments.talk2023._learning_curves import LearningCurves
from isthmus.plotting.style import new_figure
from quick_runs import quick_run

FIGURE = LearningCurves()


def test_samples_are_of_the_task():
    X, Y, X_test, Y_test = FIGURE.samples(8, 2, 0)
    assert X.shape == (4096, 8) and Y.shape == (4096, 6) and len(X_test) == len(Y_test) == 2000
    # g(x) = Σ|x_i| by block, uniform; the outputs are a function of it alone, of variance 1 in all.
    Z = np.abs(X).reshape(-1, 2, 4).sum(axis=2)
    Z /= np.sqrt(1.5 * 4)
    np.testing.assert_allclose(
        np.quantile(Z, [0.25, 0.5, 0.75], axis=0), [[0.25] * 2, [0.5] * 2, [0.75] * 2], atol=0.04
    )
    assert Y.var(axis=0).sum() == pytest.approx(1.0, abs=0.1)
    near = np.argsort(np.linalg.norm(Z - Z[0], axis=1))[:5]
    assert np.abs(Y[near] - Y[0]).max() < 0.3 < np.abs(Y - Y[0]).max()
    # The same h for every number of inputs, another one in every trial.
    other, values = (part[0] for part in FIGURE.samples(16, 2, 0)[:2])
    assert np.isfinite(other).all() and np.isfinite(values).all()
    assert not np.allclose(FIGURE.samples(8, 2, 1)[1][:10], Y[:10])


def ideal(kernel=lambda d: 2.0 / d, deep=lambda d: 1.2):  # noqa: ARG005
    """Arrays as the slides state them, with a little noise."""
    dims, counts = np.array(FIGURE.dims), np.array(FIGURE.counts, dtype=float)
    noise = np.exp(0.02 * np.random.default_rng(0).standard_normal((3, len(dims), 5, len(counts))))
    laws = [[0.5 * (counts / 256) ** -law(d) for d in dims] for law in (kernel, lambda d: 0.3, deep)]  # noqa: ARG005
    errors = np.array(laws)[:, :, None] * noise
    errors[2] *= 0.02
    return {
        "dims": dims,
        "counts": counts,
        "errors": errors,
        "more_inner_errors": 10.0 * errors[2, 1],
        "ranks": np.full((len(dims), 5), 2),
        "at_rest": np.full((2, *errors.shape[1:]), True),
    }


def statuses(arrays):
    return [o.status for o in FIGURE.outcomes(arrays)]


def test_what_the_slides_state_agrees():
    assert statuses(ideal()) == ["agrees"] * 4 + ["met"] * 3
    assert all(o.quote and o.where for o in FIGURE.outcomes(ideal()) if o.kind == "statement")


def test_a_kernel_without_the_curse_and_a_network_with_it_fail():
    assert statuses(ideal(kernel=lambda d: 0.2 + 0.05 * d))[0] == "fails"
    cursed = ideal(deep=lambda d: 4.0 / d)
    found = statuses(cursed)
    assert found[1] == "fails"
    # Of trainings that did not converge that says nothing.
    cursed["at_rest"] = np.zeros_like(cursed["at_rest"])
    assert statuses(cursed)[1] == "undetermined"


def test_what_functions_disagree_about_is_undetermined():
    arrays = ideal()
    tilt = np.linspace(-1.0, 1.0, 5)[:, None]
    for method in (0, 2):
        arrays["errors"][method, -1] *= (arrays["counts"] / 1024) ** tilt
    assert statuses(arrays)[:2] == ["undetermined", "undetermined"]


@pytest.mark.parametrize(
    ("change", "index", "status"),
    [
        (lambda a: a["errors"][2, -1].__imul__(400.0), 2, "fails"),
        (lambda a: a["more_inner_errors"].__imul__(0.1), 3, "fails"),
        (lambda a: a["ranks"].__setitem__((0, 0), 3), 5, "not met"),
        (lambda a: a["errors"][1].__imul__(1e-4), 6, "not met"),
    ],
)
def test_what_is_not_so_does_not_agree(change, index, status):
    arrays = ideal()
    change(arrays)
    assert statuses(arrays)[index] == status


def test_small_curves_run_and_are_drawn():
    small = {"test_samples": 50, "depth": 3, "width": 6, "shallow_width": 6, "steps": 3}
    run = LearningCurves(dims=(2, 4), counts=(16, 32, 64), trials=2, **small).run()
    assert run.arrays["errors"].shape == (3, 2, 2, 3) and (run.arrays["errors"] > 0).all()
    assert len(run.outcomes) == 7 and set(run.figures) == {"figure.png", "figure.svg"}
    figure = new_figure(*LearningCurves.figure_size)
    FIGURE.plot(ideal(), figure)
    assert len(figure.axes) == 2


def test_dimensions_must_be_multiples():
    with pytest.raises(IsthmusError, match="multiples of 2"):
        LearningCurves(dims=(4, 8, 9))
    with pytest.raises(IsthmusError, match="increasing"):
        LearningCurves(counts=(64, 32, 16))


def test_the_quick_variant_shows_the_same(tmp_path_factory):
    run = quick_run(tmp_path_factory, LearningCurves)
    kernel, deep, *rest = run.statements
    assert kernel.status == "agrees" and deep.value > kernel.value
    assert "fails" not in {o.status for o in rest}
