"""Dynamics: coordinates known to close, the same with one left out, noise, and too little to tell."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from isthmus import IsthmusError, dynamics_of
from isthmus.discovery._dynamics import crossings, explained, velocities
from isthmus.plotting.style import render
from isthmus.problems import summary_statistics, summary_step, summary_velocity
from isthmus.problems._dynamics import descend


def descents(count=100, steps=20, eta=0.02, d=6, seed=0):
    """u along gradient descents (Q-summary), times and trajectories."""
    rng = np.random.default_rng(seed)
    w = np.eye(d)[0]
    G = rng.standard_normal((count, d)) * (1 - w)
    V = np.outer(rng.uniform(-1.2, 1.2, count), w)
    V += rng.uniform(0, 1.2, (count, 1)) * G / np.linalg.norm(G, axis=1, keepdims=True)
    paths, _ = descend(V, w, steps=steps, step_size=eta)
    U = np.concatenate([summary_statistics(path, w) for path in paths])
    return U, np.tile(eta * np.arange(steps + 1), count), np.repeat(np.arange(count), steps + 1)


U, TIME, GROUPS = descents()


@pytest.fixture(scope="module")
def both():
    return dynamics_of(U, TIME, GROUPS)


def test_the_summary_statistics_close(both):
    assert both.state == "closed" and both.method == "polynomial of degree 3"
    assert both.crossing < 0.02 and both.unexplained < 1e-10
    # G is the exact step of gradient descent, and near the flow: two other routes.
    points = np.array([[0.3, 0.2], [0.9, 0.4], [0.1, 0.9]])
    step = (summary_step(points, 0.02) - points) / 0.02
    np.testing.assert_allclose(both.predict(points), step, atol=1e-5)
    assert np.abs(step - summary_velocity(points)).max() < 0.2 * np.abs(step).max()


def test_with_one_statistic_left_out_paths_cross():
    for column in (0, 1):
        found = dynamics_of(U[:, column], TIME, GROUPS)
        assert found.state == "not closed", found
        assert found.crossing > 0.07 and found.unexplained > 0.07 and found.persistence > 0.5


def test_a_bijection_closes_as_well():
    curved = np.column_stack([np.sqrt(U[:, 0]) + 0.3 * U[:, 1] ** 2, 2.0 * U[:, 1] - U[:, 0]])
    assert dynamics_of(curved, TIME, GROUPS).state == "closed"


def test_noise_is_no_hidden_variable():
    noisy = U + 0.01 * np.random.default_rng(0).standard_normal(U.shape)
    found = dynamics_of(noisy, TIME, GROUPS)
    assert found.state == "undetermined" and "noise" in found.reason
    assert found.persistence < 0


def test_few_trajectories_do_not_tell():
    few = GROUPS < 12
    assert dynamics_of(U[few, 1], TIME[few], GROUPS[few]).state == "undetermined"
    with pytest.raises(IsthmusError, match="at least 8 trajectories"):
        dynamics_of(U[GROUPS < 7], TIME[GROUPS < 7], GROUPS[GROUPS < 7])


def test_unequal_times_order_of_rows_and_names_of_trajectories():
    rng = np.random.default_rng(1)
    starts = rng.uniform(-1, 1, (60, 2))
    t = np.sort(rng.uniform(0, 2, (60, 30)), axis=1)
    turn = starts[:, :1] * np.cos(t) - starts[:, 1:] * np.sin(t), starts[:, :1] * np.sin(t) + starts[:, 1:] * np.cos(t)
    path = np.stack(turn, axis=2).reshape(-1, 2)
    names = np.repeat([f"run {i}" for i in range(60)], 30)
    mixed = rng.permutation(len(path))
    found = dynamics_of(path[mixed], t.ravel()[mixed], names[mixed])
    assert found.state == "closed", found
    P = np.array([[0.3, -0.4]])
    np.testing.assert_allclose(found.predict(P), [[0.4, 0.3]], atol=0.03)


def test_velocities_are_known_ones():
    t = np.array([0.0, 1.0, 2.0, 0.0, 1.0])
    points, speeds, owner = velocities("test", t[:, None] ** 2, t, np.array([5, 5, 5, 7, 7]))
    assert points.ravel().tolist() == [0.0, 1.0, 0.0] and speeds.ravel().tolist() == [1.0, 3.0, 1.0]
    assert owner.tolist() == [5, 5, 7]
    t = np.array([0.0, 1.0, 3.0, 4.0])
    points, speeds, _ = velocities("test", t[:, None] ** 2, t, np.zeros(4, dtype=int))
    # Central differences are exact for parabolas, at unequal steps too.
    np.testing.assert_allclose(speeds.ravel(), [2.0, 6.0], rtol=1e-12)


def test_crossings_measure_the_variance_of_what_is_hidden():
    """Speed = sin(place) + a random sign of each trajectory: the share that the place does not explain is known."""
    rng = np.random.default_rng(0)
    place = rng.uniform(-2, 2, (4000, 1))
    owner = np.repeat(np.arange(200), 20)
    sign = 0.5 * (1 - 2 * rng.integers(2, size=(200, 1)))[owner]
    speed = np.sin(place) + sign
    value, error = crossings(place, speed, owner, rng)
    # In the scale in which it is taken.
    calm = np.arcsinh(speed / np.abs(speed).mean())
    grid = np.linspace(-2, 2, 2000)[:, None]
    two = np.arcsinh((np.sin(grid) + np.array([-0.5, 0.5])) / np.abs(speed).mean())
    assert value == pytest.approx((two.var(axis=1).mean() / calm.var()), abs=0.05)
    assert crossings(place, np.sin(place), owner, rng)[0] < 0.01
    assert 0 < error < 0.1


def test_explained_is_a_share_of_unseen_rows():
    rng = np.random.default_rng(0)
    P = rng.uniform(-1, 1, (300, 2))
    assert explained(P, (np.sin(2 * P[:, 0]) * P[:, 1])[:, None])[0] > 0.99
    assert explained(P, rng.standard_normal((300, 1)))[0] < 0.1


def test_plain_data_and_picture(both):
    data = both.to_dict()
    assert data["state"] == "closed" and data["coordinates"].shape == data["velocity"].shape
    assert len(render(both.plot())) > 10_000 and "closed" in both._repr_html_()
    assert repr(both).startswith("Closed")


START = pd.Timestamp("2024-03-30 23:00")
#: Steps of twenty milliseconds; a clock that is put forward in the night must not matter.
DATES = START + pd.to_timedelta(TIME, unit="s")


@pytest.mark.parametrize(
    "time",
    [
        DATES,
        pd.Series(DATES),
        pd.DataFrame({"when": DATES}),
        DATES.to_numpy(),
        DATES.tz_localize("UTC").tz_convert("Europe/Berlin"),
        list(DATES.to_pydatetime()),
        [str(moment) for moment in DATES],
        pd.to_timedelta(TIME, unit="s"),
        TIME[:, None],
    ],
    ids=["index", "series", "frame", "array", "zone", "objects", "text", "durations", "column"],
)
def test_dates_are_times(both, time):
    found = dynamics_of(U, time, GROUPS)
    assert (found.state, found.method) == (both.state, both.method)
    # Seconds since 1970 have seven digits behind the point, the steps here are of 0.02.
    np.testing.assert_allclose(found.velocity, both.velocity, rtol=1e-4)
    np.testing.assert_array_equal(found.coordinates, both.coordinates)


def test_unequal_dates_are_not_taken_for_equal_ones(both):
    later = TIME + np.where(TIME > 0.2, 1e-3, 0.0)
    points = velocities("t", U, later + 1.7e9, GROUPS)[0]
    assert len(points) < len(both.coordinates)
    np.testing.assert_array_equal(points, velocities("t", U, later, GROUPS)[0])


def test_errors():
    with pytest.raises(IsthmusError, match=f"`time` must have {len(U)} entries, one for each row"):
        dynamics_of(U, TIME[:5], GROUPS)
    with pytest.raises(IsthmusError, match="`groups` must have one entry for each row"):
        dynamics_of(U, TIME, GROUPS[:5])
    for time in (None, ["noon"] * len(U), ["01/02/2020"] * len(U), [pd.NaT, *DATES[1:]], np.column_stack([TIME, TIME])):
        with pytest.raises(IsthmusError, match="dynamics_of: `time`"):
            dynamics_of(U, time, GROUPS)
    with pytest.raises(IsthmusError, match="must differ"):
        dynamics_of(U, 0 * TIME, GROUPS)
    with pytest.raises(IsthmusError, match="two times"):
        dynamics_of(U, TIME, np.arange(len(U)))
    with pytest.raises(IsthmusError, match="must move"):
        dynamics_of(np.column_stack([U, np.ones(len(U))]), TIME, GROUPS)
