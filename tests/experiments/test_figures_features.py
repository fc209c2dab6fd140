"""F-feat-1 and F-feat-2: that they run, and that their outcomes follow from the arrays, in both directions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus import DataError, IsthmusError, datasets
from isthmus._progress import silent
from isthmus.experiments.features2022._forces import FeaturesFigure1, nearest_mean
from isthmus.experiments.features2022._trained import lifted, spanned, start
from isthmus.experiments.features2022._widths import FeaturesFigure2, best_losses, plateau_of_losses, plateau_start
from isthmus.measures import parameter_norms
from isthmus.objective import cost
from isthmus.plotting.style import new_figure
from quick_runs import quick_run

FIRST = FeaturesFigure1.quick()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return quick_run(tmp_path_factory, FeaturesFigure1)


@pytest.fixture(scope="module")
def random(trained):
    """The failing twin: the same figure of a network that was not trained."""
    X, labels = FIRST.samples()
    net = lifted(start([X.shape[1], FIRST.width, FIRST.width, 3], spanned(X), 5, torch.float64), spanned(X))
    return {**trained.arrays, **FIRST.measure(net, X, labels)}


def statuses(figure, arrays):
    return {outcome.name: outcome.status for outcome in figure.outcomes(arrays)}


def one(figure, arrays, words):
    found = [outcome for outcome in figure.outcomes(arrays) if words in outcome.name]
    assert len(found) == 1, words
    return found[0]


# ---------------------------------------------------------------- F-feat-1


def test_classes_cluster_and_neurons_are_on_rays(trained):
    for words in ("scatter between", "on 3 rays"):
        assert {o.status for o in trained.statements if words in o.name} == {"agrees"}
    assert {o.status for o in trained.conditions if "nearest class" in o.name} == {"met"}
    assert one(FIRST, trained.arrays, "layer 2: rays with").value == 3
    assert all(o.quote and o.where for o in trained.statements)
    # C-feat-2 without a condition on K_1: at the first layer the attraction is the gradient of the cost.
    assert one(FIRST, trained.arrays, "off kinks").status == "met"
    assert float(trained.arrays["weight_residuals"].max()) < 0.2
    assert set(trained.figures) == {"figure.png", "figure.svg"}


def test_a_random_network_does_not_agree(random):
    found = statuses(FIRST, random)
    assert {s for name, s in found.items() if "scatter" in name or "rays" in name} == {"fails"}
    assert {s for name, s in found.items() if "cosine" in name or "off kinks" in name} == {"not met"}
    assert "agrees" not in found.values()


@pytest.mark.parametrize(
    ("name", "value", "words", "status"),
    [
        ("separation", 0.3, "scatter between", "fails"),
        ("nearest_mean", 0.9, "nearest class", "not met"),
        ("ray_shares", 0.8, "on 3 rays", "fails"),
        ("ray_counts", 5, "rays with", "differs"),
        ("ray_counts", 20, "rays with", "fails"),
        ("cosine", -0.5, "cosine", "not met"),
        ("cost_residual", 0.5, "off kinks", "not met"),
        ("smooth_samples", 0, "off kinks", "not met"),
        ("state", 1, "converged", "not met"),
    ],
)
def test_corrupted_arrays_are_said(trained, name, value, words, status):
    arrays = dict(trained.arrays)
    arrays[name] = np.full_like(arrays[name], value)
    found = {s for text, s in statuses(FIRST, arrays).items() if words in text}
    assert found == {status}


def test_what_a_training_that_did_not_converge_does_not_show_is_undetermined(trained):
    arrays = {**trained.arrays, "ray_counts": np.array([20, 20]), "state": np.array(1)}
    assert one(FIRST, arrays, "layer 1: rays with").status == "undetermined"
    assert one(FIRST, arrays, "layer 2: scatter").status == "agrees"


def test_the_reason_names_the_kernel_that_is_deficient(trained):
    arrays = {**trained.arrays, "cosine": np.array([-0.5, -0.5]), "ranks": np.array([24, 5, 24])}
    assert "K^σ_1 has rank 5 of 24" in one(FIRST, arrays, "layer 1: cosine").reason


def test_forces_by_explicit_inverses(trained):
    X, _ = FIRST.samples()
    S = torch.cat([X, torch.ones(len(X), 1)], dim=1).double().numpy()
    Z = [trained.arrays["Z_1"], trained.arrays["Z_2"]]
    K0, active = S @ S.T, np.maximum(Z[0], 0.0)
    K1 = active.T @ active + 1.0
    eye, share = np.eye(len(X)), FIRST.gamma_share
    first = np.linalg.inv(K0 + share * np.linalg.norm(K0, 2) * eye)
    second = np.linalg.inv(K1 + share * np.linalg.norm(K1, 2) * eye)
    att, rep = 2.0 * Z[0] @ first, -2.0 * (Z[0] > 0) * (active @ second @ Z[1].T @ Z[1] @ second)
    assert np.allclose(att, trained.arrays["attraction_1"], rtol=1e-8, atol=1e-10 * np.abs(att).max())
    assert np.allclose(rep, trained.arrays["repulsion_1"], rtol=1e-8, atol=1e-10 * np.abs(rep).max())
    cosine = (att * rep).sum() / np.linalg.norm(att) / np.linalg.norm(rep)
    assert cosine == pytest.approx(float(trained.arrays["cosine"][0]), abs=1e-8)


def test_fewer_coordinates_are_the_same_network():
    X, labels = FIRST.samples()
    V = spanned(X)
    assert V.shape == (100, 24)
    net = start([100, 7, 7, 3], V, 3, torch.float64)
    whole = lifted(net, V)
    assert torch.allclose(net(X @ V), whole(X), atol=1e-12)
    assert parameter_norms(net).total == pytest.approx(parameter_norms(whole).total)
    # The stationarity of each layer is the gradient that autograd gives.
    value = cost(whole(X), labels, "cross_entropy") + FIRST.ridge * sum(p.square().sum() for p in whole.parameters())
    value.backward()
    for ell, residual in enumerate(FIRST.measure(whole, X, labels)["weight_residuals"]):
        W, b = whole.weights[ell], whole.biases[ell]
        size = 2.0 * FIRST.ridge * torch.cat([W, b[:, None]], dim=1).detach().norm()
        gradient = torch.cat([W.grad, b.grad[:, None]], dim=1).norm()
        assert float(residual) == pytest.approx(float(gradient / size), rel=1e-9)


def test_nearest_mean_leaves_the_sample_out():
    Z = torch.tensor([[0.0, 1.0, 10.0, 11.0, 6.0]])
    labels = torch.tensor([0, 0, 1, 1, 0])
    # Class 0 without the last sample has its mean at 0.5, class 1 at 10.5: the last sample goes to class 1.
    assert nearest_mean(Z, labels) == pytest.approx(4 / 5)


def test_without_images_the_error_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.delenv(datasets.FOLDER, raising=False)
    monkeypatch.chdir(tmp_path)
    for figure in (FeaturesFigure1(), FeaturesFigure2()):
        with pytest.raises(DataError, match="ISTHMUS_DATA"):
            figure.compute(silent)


# ---------------------------------------------------------------- the plateau


def test_the_start_of_a_known_plateau():
    widths = np.array([2, 5, 10, 20, 40])
    best = np.array([9.0, 3.0, 1.03, 1.01, 1.0])
    losses = np.stack([best, best * 1.004, best * 1.006])
    found = plateau_of_losses(widths, losses)
    assert (found.level, found.start, found.strict) == (1.0, 10, 40)
    assert found.spread == pytest.approx(0.004)
    assert found.low <= 10 <= found.high <= 20
    assert plateau_of_losses(widths, losses[:1]).spread == 0.0
    # One lucky trial at width 10 in three: the interval says that it may have been luck.
    lucky = np.stack([best, best, best])
    lucky[1:, 2] = 2.0
    assert plateau_of_losses(widths, lucky).start == 10 and plateau_of_losses(widths, lucky).high == 20


def test_a_loss_that_keeps_falling_has_no_early_plateau():
    widths = np.array([2, 4, 8, 16, 32, 64])
    found = plateau_of_losses(widths, (1.0 / widths)[None].repeat(3, axis=0))
    assert found.start == found.strict == found.low == 64


def test_a_wider_network_that_failed_does_not_count():
    losses = np.array([[4.0, 1.0, 7.0, 1.0]])
    assert best_losses(losses).tolist() == [4.0, 1.0, 1.0, 1.0]
    assert plateau_of_losses([1, 2, 3, 4], losses).start == 2


@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=8), st.floats(0.001, 1.0), st.floats(0.1, 100.0))
def test_starts_fall_with_the_tolerance_and_have_no_unit(values, tolerance, factor):
    widths, best = np.arange(1, len(values) + 1), best_losses(np.array([values]))
    here = plateau_start(widths, best, tolerance)
    assert plateau_start(widths, best, 2.0 * tolerance) <= here <= plateau_start(widths, best, tolerance / 2.0)
    # A loss at the very border may fall on either side of it when rescaled.
    if np.abs(best / best[-1] - 1.0 - tolerance).min() > 1e-9:
        assert plateau_start(widths, best * factor, tolerance) == here


@pytest.mark.parametrize(
    ("widths", "losses"),
    [([1, 2], [[1.0, 2.0, 3.0]]), ([2, 1], [[1.0, 2.0]]), ([1, 2], [[1.0, np.nan]]), ([1, 2], [[1.0, 0.0]])],
)
def test_what_is_no_table_of_losses(widths, losses):
    with pytest.raises(IsthmusError, match="plateau"):
        plateau_of_losses(widths, losses)


# ---------------------------------------------------------------- F-feat-2

SECOND = FeaturesFigure2()
TINY = FeaturesFigure2.quick().replace(widths=(2, 6), lams=(3e-3,), samples=60, test_samples=40, steps=3)


def ideal():
    """Arrays as the paper states them."""
    widths = np.array(SECOND.widths)
    curve = np.where(widths < 10, 20.0 / widths, 1.0) * np.array([[1.0], [1.001], [1.002]])
    zeros = np.zeros_like(curve)
    return {
        "widths": widths,
        "left_constant": np.array(30.0),
        "right_constant": np.array(30.0),
        "teacher_loss": np.array(1.03),
        **{f"right_{name}": table for name, table in (("train", curve), ("test", 0.5 * curve), ("states", zeros))},
        "left_train": np.stack([curve, curve]),
        "left_test": np.stack([curve, curve]),
        "left_states": np.stack([zeros, zeros]),
    }


def test_what_the_paper_states_agrees():
    assert list(statuses(SECOND, ideal()).values()) == ["agrees"] * 5 + ["met"] * 7
    drawn = new_figure(*SECOND.figure_size)
    SECOND.plot(ideal(), drawn)
    assert len(drawn.axes) == 2


def test_and_what_it_does_not_is_said():
    widths = np.array(SECOND.widths)
    late, slow, zero = ideal(), ideal(), ideal()
    late["right_train"] = (100.0 / widths)[None].repeat(3, axis=0)
    assert one(SECOND, late, "teacher: within").status == "differs"
    assert one(SECOND, late, "loss of the teacher").status == "not met"
    slow["left_train"] = slow["left_train"] * (1.0 + 0.3 / widths)
    assert one(SECOND, slow, "λ = 0.01: within").status == "agrees"
    assert one(SECOND, slow, "λ = 0.01: flat").status == "not met"
    zero["left_constant"] = np.array(1.0)
    assert one(SECOND, zero, "λ = 0.001: within").status == "undetermined"
    worse = ideal() | {"right_test": 2.0 * ideal()["right_test"] + 1.0}
    assert one(SECOND, worse, "test loss over").status == "differs"
    stuck = ideal()
    stuck["right_states"][0, :4] = 1.0
    found = one(SECOND, stuck, "teacher: share")
    assert found.status == "not met" and found.reason == "35 flat, 4 budget"


def test_few_steps_run_and_say_that_they_did_not_converge():
    run = TINY.run()
    assert run.arrays["left_train"].shape == (1, 2, 2) and run.arrays["right_test"].shape == (2, 2)
    assert one(TINY, run.arrays, "teacher: share").status == "not met"
    # The regularised loss at width 6 lies above that of the teacher of width 4 after so few steps.
    assert float(run.arrays["right_train"].min()) > 0.9 * float(run.arrays["teacher_loss"])


def test_the_teachers_loss_is_its_ridge_alone():
    """A network with the teacher's weights, rebalanced, has that loss: no error, and λ‖θ‖²."""
    task, least = TINY._teacher()
    rng = np.random.default_rng([TINY.seed, 4])
    dims = TINY.teacher_dims
    Ws = [rng.standard_normal((m, n)) * np.sqrt(TINY.teacher_gain / n) for n, m in zip(dims, dims[1:])]
    X = np.asarray(rng.standard_normal((100, dims[0])))
    Y = np.maximum(np.maximum(X @ Ws[0].T, 0.0) @ Ws[1].T, 0.0) @ Ws[2].T
    assert np.allclose(task.Y.numpy(), Y[:60], atol=1e-5) and task.unit == 0.25
    assert least < sum(float((W**2).sum()) for W in Ws)


def test_quick_variants_show_the_same(tmp_path_factory):
    run = quick_run(tmp_path_factory, FeaturesFigure2)
    assert run.status == "agrees" and sum("within 5%" in o.name for o in run.statements) == 3


@pytest.mark.slow
def test_digits():
    try:
        run = FeaturesFigure1().run()
    except DataError as missing:
        if "must hold" not in str(missing):
            raise
        pytest.skip("MNIST's images are not on this machine (ISTHMUS_DATA)")
    for words in ("scatter between", "on 3 rays"):
        assert {o.status for o in run.statements if words in o.name} == {"agrees"}
    assert one(FeaturesFigure1(), run.arrays, "off kinks").status == "met"
    assert one(FeaturesFigure1(), run.arrays, "layer 2: rays with").value == 3
