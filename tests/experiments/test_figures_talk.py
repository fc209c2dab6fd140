"""F-talk-1 and F-talk-2: that they run, and that their outcomes follow from the arrays, in both directions."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from isthmus import IsthmusError
from isthmus.experiments.talk2023 import _kernel_curves as smooth_functions
from isthmus.experiments.talk2023._ball import FallingBall, _scores, constant_of, flight_pairs, judged_kept
from isthmus.experiments.talk2023._kernel_curves import (
    OFFSET,
    KernelCurves,
    exponent,
    shell_sizes,
    smooth_function,
    tail,
    torus,
)
from isthmus.networks import KernelRidge
from isthmus.plotting.style import new_figure
from quick_runs import quick_run

# --- F-talk-2: the functions


@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_shells_and_what_lies_beyond_against_counting(d):
    degrees = [sum(map(abs, m)) for m in product(range(-6, 7), repeat=d)]
    counted = np.bincount(degrees)[1:7]
    np.testing.assert_array_equal(shell_sizes(d, np.arange(1, 7)), counted)
    # The constant first, which is 0; then all of degree 1, and so on.
    R = np.arange(1, smooth_functions.SUMMED + 1, dtype=float)
    every = shell_sizes(d, R) * (R + OFFSET) ** (-2.0 - d)
    first = 1 + counted[0] + 1
    wanted = 1.0 - (every[0] + (2.0 + OFFSET) ** (-2.0 - d)) / every.sum()
    np.testing.assert_allclose(tail(d, 2.0, np.array([1, first])), [1.0, wanted], rtol=1e-4)


def test_the_tail_is_a_power_of_n():
    counts = np.array([1000, 4000, 16_000])
    for d in (1, 2, 3):
        found = -np.polyfit(np.log(counts), np.log(tail(d, 2.0, counts)), 1)[0]
        assert found == pytest.approx(2.0 / d, rel=0.05)


def test_a_function_has_its_coefficients():
    """By the discrete Fourier transform, on a grid; and its variance is 1 in any dimension."""
    f = smooth_function(1, 2.0, 60, np.random.default_rng(0))
    n = 2**20  # finer than the highest degree: nothing is folded back
    theta = 2 * np.pi * np.arange(n)[:, None] / n
    low = f.modes[np.abs(f.modes[:, 0]) <= 30]
    part = smooth_functions.SmoothFunction(low, *(x[: len(low)] for x in (f.amplitudes, f.phases)))
    size = np.abs(np.fft.rfft(part(theta[:: n // 1024])[:, 0]) / 1024)[1:31]
    shape = (np.arange(1, 31) + OFFSET) ** -1.5
    np.testing.assert_allclose(size / size[0], shape / shape[0], rtol=1e-8)
    for d in (1, 3):
        g = smooth_function(d, 1.5, 300, np.random.default_rng(1))
        assert (g.amplitudes**2).sum() / 2 == pytest.approx(1.0, rel=1e-2)
        degrees = np.abs(g.modes).sum(axis=1)
        assert (
            degrees.min() == 1 and degrees[-smooth_functions.DRAWN :].min() > degrees[: -smooth_functions.DRAWN].max()
        )


def test_waves_are_the_principal_components_of_the_kernel():
    n = 12
    theta = 2 * np.pi * np.stack(np.meshgrid(np.arange(n), np.arange(n)), axis=-1).reshape(-1, 2) / n
    X = torus(theta)
    wave = np.cos(theta @ [2.0, 1.0])
    # K·wave is a multiple of it: the interpolant of Kc has coefficients c.
    K = np.exp(-np.linalg.norm(X[:, None] - X[None], axis=2))
    image = K @ wave
    np.testing.assert_allclose(image, (image @ wave) / (wave @ wave) * wave, atol=1e-10)
    fitted = KernelRidge("laplace", length=1.0).fit(X, image[:, None])
    np.testing.assert_allclose(fitted.coefficients_[:, 0].numpy(), wave, atol=1e-8)


def test_draws_from_a_shell_are_uniform():
    radii = np.full(40_000, 3)
    drawn = smooth_functions._on_shells(3, radii, np.random.default_rng(0))
    assert (np.abs(drawn).sum(axis=1) == 3).all()
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == shell_sizes(3, np.array([3]))[0] == 38
    # Chi-squared of 37 degrees of freedom: 3e-6 beyond 84.
    expected = len(radii) / 38
    assert ((counts - expected) ** 2 / expected).sum() < 84
    far = smooth_functions._on_shells(4, np.array([1, 2, 90_000]), np.random.default_rng(1))
    assert np.abs(far).sum(axis=1).tolist() == [1, 2, 90_000]


# --- F-talk-2: the figure

CURVES = KernelCurves()


def curves(law=lambda d: 2.0 / d, constant=3.0):
    """Arrays as the slides state them, with a little noise."""
    dims, counts = np.array(CURVES.dims), np.array(CURVES.counts, dtype=float)
    tails = np.stack([0.1 * (counts / 100.0) ** (-2.0 / d) for d in dims])
    noise = np.exp(0.02 * np.random.default_rng(0).standard_normal((len(dims), 6, len(counts))))
    errors = np.stack([0.1 * constant * (counts / 100.0) ** -law(d) for d in dims])[:, None] * noise
    return {"dims": dims, "counts": counts, "errors": errors, "tails": tails}


def statuses(figure, arrays):
    return [o.status for o in figure.outcomes(arrays)]


def test_what_the_slides_state_agrees():
    assert set(statuses(CURVES, curves())) == {"agrees"}
    assert all(o.quote and o.where for o in CURVES.outcomes(curves()))


def test_an_error_without_the_curse_fails():
    found = statuses(CURVES, curves(law=lambda d: 2.0 / 3.0))  # noqa: ARG005
    assert found == ["fails", "fails", "agrees", "fails", "fails", "differs"]


def test_too_few_samples_for_the_law_and_a_wide_interval_judge_nothing():
    arrays = curves(law=lambda d: 1.4 if d == 1 else 2.0 / d)
    arrays["tails"][0] = 0.1 * (arrays["counts"] / 100.0) ** -1.4
    assert statuses(CURVES, arrays)[0] == "undetermined"
    wild = curves(law=lambda d: 1.2 / d)
    wild["errors"] = wild["errors"] * arrays["counts"] ** np.linspace(-2.0, 2.0, 6)[:, None]
    assert "agrees" not in statuses(CURVES, wild)[:4]


def test_exponents():
    counts = np.array([10.0, 100.0, 1000.0])
    value, low, high = exponent(counts, np.stack([counts**-0.4, 2 * counts**-0.5, counts**-0.6]))
    assert value == pytest.approx(0.5) and low < 0.4 and high > 0.6


def test_small_curves_run():
    run = KernelCurves(dims=(1, 2, 3), counts=(16, 32, 64), trials=3, test_samples=50).run()
    assert run.arrays["errors"].shape == (3, 3, 3) and (run.arrays["errors"] > run.arrays["tails"][:, None] / 3).all()
    assert len(run.outcomes) == 5 and set(run.figures) == {"figure.png", "figure.svg"}
    with pytest.raises(IsthmusError, match="increasing"):
        KernelCurves(counts=(64, 32, 16))


# --- F-talk-1

BALL = FallingBall(depth=5)


def test_frames_fall_and_move_together():
    figure = FallingBall(size=16, past=3, future=3)
    X, Y, state = figure.flights(50, 0)
    frames = np.concatenate([X.reshape(50, 3, 16), Y.reshape(50, 3, 16)], axis=1)
    # The phase of the first wave is the height: its differences are velocities, and theirs gravity.
    phase = np.exp(-1j * np.angle(np.fft.fft(frames, axis=2)[:, :, 1]))
    height = np.angle(phase) * 16 / (2 * np.pi)
    np.testing.assert_allclose(np.cos((height[:, 2] - state[:, 0]) * np.pi / 8), 1.0, atol=1e-12)
    moved = np.angle(phase[:, 1:] / phase[:, :-1]) * 16 / (2 * np.pi)
    turn = np.exp(1j * (np.diff(moved, axis=1) + 1.0) * np.pi / 8)
    np.testing.assert_allclose(turn, 1.0, atol=1e-10)
    np.testing.assert_allclose(np.cos((moved[:, 2] - state[:, 1] + 0.5) * np.pi / 8), 1.0, atol=1e-10)
    assert frames.std() == pytest.approx(1.0, rel=0.05)


def test_pairs_of_two_waves():
    rng = np.random.default_rng(0)
    a, b = rng.uniform(0, 2 * np.pi, (2, 400))
    x = 2 * np.pi * np.arange(10) / 10
    waves = np.stack([3 * np.cos(x - a[:, None]), np.cos(x - b[:, None])], axis=1)
    mix = np.linalg.qr(rng.standard_normal((4, 4)))[0][:, :2]
    P = flight_pairs(np.einsum("ck,nkx->ncx", mix, waves) + 5.0)
    strong, weak = P[:, 0] + 1j * P[:, 2], P[:, 1] + 1j * P[:, 3]
    for found, true in ((strong, a), (weak, b)):
        turned = found / np.abs(found) * np.exp(1j * true)
        assert abs(turned.mean()) > 0.9


def test_what_a_constant_channel_carries():
    rng = np.random.default_rng(0)
    v, x = rng.standard_normal(300), 2 * np.pi * np.arange(10) / 10
    Z = np.stack([np.cos(x + v[:, None]), np.tile(v[:, None], 10) + 3.0, np.zeros((300, 10))], axis=1)
    found = constant_of(Z)[:, 0]
    assert abs(np.corrcoef(found, v)[0, 1]) > 1 - 1e-10


def flights():
    """Arrays as the slides state them, in five layers."""
    kept = np.zeros((5, 7), dtype=int)
    kept[:, 1] = 2
    rng = np.random.default_rng(0)
    return {
        "values": np.where(np.arange(4) < kept[:, :, None], 1.1, 0.01),
        "turns": np.arange(7)[:, None],
        "signals": kept,
        "weights": kept,
        "narrow": np.array([False, True, True, True, False]),
        "two_pairs": np.full((5, 2), 0.99),
        "one_pair": np.tile([0.8, 0.1], (5, 1)),
        "constant": np.tile([-0.1, 0.3], (5, 1)),
        "missed": np.array(0.01),
        "converged": np.array(True),
        "losses": np.array([2.0, 2.1]),
        "kept": kept[:2],
        **{name: rng.random((3, 3, 12)) for name in ("seen", "came", "predicted")},
    }


def test_two_pairs_of_frequency_1_agree():
    assert statuses(BALL, flights()) == ["agrees"] * 4 + ["met"] * 4 and judged_kept(flights()) == 2


@pytest.mark.parametrize(
    ("name", "value", "index", "status"),
    [
        ("signals", np.tile([0, 2, 1, 0, 0, 0, 0], (5, 1)), 0, "fails"),
        ("signals", np.tile([0, 1, 0, 0, 0, 0, 0], (5, 1)), 1, "differs"),
        ("signals", np.tile([0, 3, 0, 0, 0, 0, 0], (5, 1)), 1, "fails"),
        ("two_pairs", np.tile([0.7, 0.99], (5, 1)), 2, "fails"),
        ("two_pairs", np.tile([0.99, 0.7], (5, 1)), 3, "fails"),
        ("converged", np.array(False), 4, "not met"),
        ("missed", np.array(0.2), 5, "not met"),
        ("one_pair", np.full((5, 2), 0.99), 6, "not met"),
        ("kept", np.array([[0, 2, 0, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0, 0]]), 7, "not met"),
    ],
)
def test_what_is_not_so_does_not_agree(name, value, index, status):
    found = statuses(BALL, {**flights(), name: value})
    assert found[index] == status and found.count("agrees") + found.count("met") == 7


def test_no_narrowest_layers_no_frequencies():
    found = statuses(BALL, {**flights(), "narrow": np.zeros(5, dtype=bool)})
    assert found[:2] == ["undetermined", "undetermined"]


def test_velocities_are_angles():
    """|v| ≤ n/2 is a whole turn, and R² is of its cosine and sine: a velocity turned by n is the same one."""
    for figure in (FallingBall(), FallingBall.quick()):
        assert figure.speed == figure.size / 2
    figure = FallingBall.quick()
    _, _, state = figure.flights(200, 0)
    angles = 2 * np.pi * state / figure.size
    wanted = np.stack([np.cos(angles), np.sin(angles)], axis=2)
    exact = _scores(wanted.reshape(200, 4), wanted)
    assert (exact > 0.99).all()
    position = _scores(wanted[:, 0], wanted)
    assert position[0] > 0.99 and position[1] < 0.5


def test_a_ball_that_was_hardly_learned_shows_nothing():
    run = FallingBall(samples=20, test_samples=100, depth=4, channels=3, size=8, future=2, starts=2, steps=4).run()
    found = {o.name: o.status for o in run.outcomes}
    assert found["new flights: share of the frames' variance missed, at most"] == "not met"
    assert (
        found["training converged"] == "not met"
        and run.status == "undetermined"
        and set(run.figures) == {"figure.png", "figure.svg"}
    )


def test_a_training_that_did_not_converge_does_not_refute():
    arrays = {**flights(), "two_pairs": np.full((5, 2), 0.7)}
    assert statuses(BALL, arrays)[2:4] == ["fails", "fails"]
    assert statuses(BALL, {**arrays, "converged": np.array(False)})[2:4] == ["undetermined", "undetermined"]


def test_plots_from_arrays_alone():
    figure = new_figure(*FallingBall.figure_size)
    BALL.plot(flights(), figure)
    assert len(figure.axes) == 4


@pytest.mark.parametrize("kind", [FallingBall, KernelCurves])
def test_the_quick_variants_show_the_same(kind, tmp_path_factory):
    assert "fails" not in statuses(kind.quick(), quick_run(tmp_path_factory, kind).arrays)
