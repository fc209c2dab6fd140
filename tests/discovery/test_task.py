"""What is known before any training: bounds, canonical rows, honest and thinned divisions."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pytest
import torch

from isthmus import DataError
from isthmus.discovery import Settings
from isthmus.discovery._task import make_task, moments_of
from isthmus.tables import choose_columns
from tools import gaussian


def task_of(X, Y, *, groups=None, time=None, cv=None, seed=0, max_samples=5000):
    return make_task(X, Y, Settings(seed=seed, max_samples=max_samples), groups=groups, time=time, cv=cv)


def arrays(n=60, d_in=4, d_out=3):
    return gaussian(n, d_in).numpy(), gaussian(n, d_out, seed=1).numpy()


@pytest.mark.parametrize(
    ("d_in", "d_out", "bound", "words"),
    [
        (4, 3, 3, "the outputs span 3 dimensions"),
        (2, 3, 2, "the inputs span 2 dimensions"),
        (4, 1, 1, "there is one output"),
        (1, 3, 1, "there is one input"),
        (1, 1, 1, "there is one output"),
    ],
)
def test_bound(d_in, d_out, bound, words):
    task = task_of(*arrays(60, d_in, d_out))
    assert task.bound == bound
    assert task.why.startswith(words)


def test_bound_sees_through_linear_dependence_and_units():
    X, Y = arrays()
    assert task_of(X, np.hstack([Y[:, :2], Y[:, :2] @ [[1.0], [2.0]] * 1e9 + 5.0])).bound == 2
    assert task_of(np.hstack([X[:, :1], -X[:, :1]]), Y).bound == 1
    # A column that is nearly another's multiple is one of its own.
    assert task_of(X, np.hstack([Y[:, :1], Y[:, :1] + 1e-6 * Y[:, 1:2]])).bound == 2
    assert task_of(X, np.ones((60, 2))).bound == 0
    assert task_of(np.ones((60, 2)), Y).bound == 0


def test_rows_in_any_order_are_the_same_task():
    X, Y = arrays()
    groups = np.array([f"g{i // 5}" for i in range(60)])
    time = np.arange(60.0) // 3
    for options in ({}, {"groups": groups}, {"time": time}, {"groups": groups, "time": time}):
        task = task_of(X, Y, **options)
        for seed in range(3):
            order = np.random.default_rng(seed).permutation(60)
            other = task_of(X[order], Y[order], **{key: value[order] for key, value in options.items()})
            assert np.array_equal(other.X, task.X)
            assert np.array_equal(other.Y, task.Y)
            for index in range(3):
                assert all(np.array_equal(a, b) for a, b in zip(other.splits(index), task.splits(index)))
                one, two = task.data(index)[0], other.data(index)[0]
                assert (one.X == two.X).all()
                assert (one.Y_held == two.Y_held).all()


def test_names_of_groups_do_not_matter():
    X, Y = arrays()
    groups = np.arange(60) // 5
    first = task_of(X, Y, groups=groups)
    for other in (99 - groups, [f"patient {g}" for g in groups], groups.astype(float), groups.astype(object)):
        assert np.array_equal(task_of(X, Y, groups=other).splits(0)[1], first.splits(0)[1])


def test_groups_are_together_and_time_runs_forward():
    X, Y = arrays()
    groups = np.random.default_rng(0).integers(0, 12, 60)
    task = task_of(X, Y, groups=groups)
    for index in range(5):
        train, held = task.splits(index)
        assert not set(task.groups[train]) & set(task.groups[held])
        data = task.data(index)[0]
        assert len(data.errors(lambda part: part[:, :3] * 0)) == len(set(task.groups[held]))
    time = np.random.default_rng(1).permutation(60).astype(float)
    task = task_of(np.c_[time, X], Y, time=time)
    for index in range(5):
        train, held = task.splits(index)
        assert task.X[train, 0].max() < task.X[held, 0].min()


HOURS = pd.Series(pd.date_range("2024-03-30 20:00", periods=60, freq="h"))  # over a change of the clocks


@pytest.mark.parametrize(
    "time",
    [
        HOURS,
        HOURS.to_frame(),
        pd.DatetimeIndex(HOURS),
        HOURS.to_numpy(),
        HOURS.to_numpy().astype("M8[m]")[:, None],
        HOURS.dt.tz_localize("UTC").dt.tz_convert("Europe/Paris"),
        HOURS.dt.tz_localize("UTC").dt.tz_convert("Europe/Paris").tolist(),
        [moment.to_pydatetime() for moment in HOURS],
        HOURS.astype(str).tolist(),
        HOURS.dt.strftime("%d.%m.%Y %H:%M"),
        HOURS - HOURS[0],
        HOURS.dt.to_period("h"),
        torch.arange(60),
        np.arange(60)[:, None],
        [str(i) for i in range(60)],
    ],
    ids=lambda time: type(time).__name__,
)
def test_dates_order_the_rows_as_numbers_do(time):
    X, Y = arrays()
    wanted, got = task_of(X, Y, time=np.arange(60.0)).splits(0), task_of(X, Y, time=time).splits(0)
    assert all(np.array_equal(a, b) for a, b in zip(wanted, got))


def test_dates_are_read_as_in_a_table():
    """The same seconds since 1970 as the column of a CSV gives."""
    days = [datetime.date(2020, 1, 1), datetime.date(2020, 1, 3)]
    for time in (days, pd.to_datetime(days), pd.to_datetime(days).tz_localize("UTC"), [str(day) for day in days]):
        frame = pd.DataFrame({"a": [1.0, 2.0], "y": [1.0, 2.0], "t": pd.Series(time)})
        wanted = choose_columns(frame, targets="y", time="t").time
        assert wanted.tolist() == [1577836800, 1578009600]
        assert moments_of("discover", time, 2).tolist() == wanted.tolist()


def test_rows_of_the_same_inputs_stay_together():
    X, Y = arrays()
    X[30:] = X[:30]
    task = task_of(X, Y)
    for index in range(5):
        train, held = task.splits(index)
        seen = {row.tobytes() for row in task.X[train]}
        assert not any(row.tobytes() in seen for row in task.X[held])
    assert task.splits.describe() == "a quarter at random of the distinct inputs"
    assert "30 rows repeat the inputs of another" in task.notes
    # What the user says about the rows goes first.
    assert task_of(X, Y, groups=np.arange(60)).splits.describe().endswith("groups")
    assert task_of(X, Y, time=np.arange(60)).splits.describe().endswith("rows")


def test_rows_named_by_cv_stay_where_they_are():
    X, Y = arrays()
    task = task_of(X, Y, cv=[(range(20), range(20, 60))])
    assert np.array_equal(task.X, X)
    data, inputs, _ = task.data(0)
    assert np.array_equal(data.X_held.numpy(), inputs(X[20:]).astype(np.float32))


def test_scaled_by_the_training_rows_alone():
    X, Y = arrays()
    task = task_of(X, Y)
    data, inputs, outputs = task.data(0)
    train, held = task.splits(0)
    assert np.allclose(inputs.shift, task.X[train].mean(axis=0))
    assert np.allclose(outputs.scale, task.Y[train].std(axis=0))
    assert data.variance == pytest.approx(3.0)
    errors = data.errors(lambda part: part[:, :3] * 0)
    assert np.allclose(errors, data.baseline)
    assert np.allclose(errors, (outputs(task.Y[held]) ** 2).sum(axis=1) / 3.0, rtol=1e-5)


def test_errors_by_group_have_the_mean_of_the_rows():
    X, Y = arrays()
    groups = np.minimum(np.arange(60) // 3, 12)
    task = task_of(X, Y, groups=groups)
    data = task.data(0)[0]
    rows = (data.Y_held.double() ** 2).sum(1).numpy() / data.variance
    assert data.baseline.mean() == pytest.approx(rows.mean())


def test_thinning():
    X, Y = arrays(200)
    task = task_of(X, Y, max_samples=50)
    train, held = task.splits(0)
    data, inputs, _ = task.data(0)
    assert (len(data.X), len(data.X_held)) == (50, 50)
    assert task_of(X, Y, max_samples=500).data(0)[0].X.shape == (150, 4)
    again = task.data(0)[0]
    assert (again.X == data.X).all()
    assert not (task.data(1)[0].X == data.X).all()
    kept = {row.tobytes() for row in inputs(task.X[train]).astype(np.float32)}
    assert all(row.tobytes() in kept for row in data.X.numpy())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"groups": np.zeros(59)}, "60 entries"),
        ({"groups": np.r_[np.nan, np.zeros(59)]}, "1 missing of 60"),
        ({"groups": np.array([None] * 2 + ["a"] * 58, dtype=object)}, "2 missing of 60"),
        ({"groups": ["a"] * 60}, "at least 2 groups"),
        ({"time": np.zeros(59)}, "60 entries"),
        ({"time": np.r_[np.nan, np.zeros(59)]}, "1 NaN"),
        ({"time": ["noon"] * 60}, "`time` must hold numbers or dates. Got text such as 'noon'"),
        ({"time": ["01/02/2020"] * 60}, "day and month may be either. .*pandas.to_datetime"),
        ({"time": pd.DatetimeIndex([None] * 3 + ["2020-01-01"] * 57)}, "3 NaN"),
        ({"time": pd.date_range("2020", periods=59)}, "60 entries"),
    ],
)
def test_what_does_not_belong_to_the_rows(options, words):
    with pytest.raises(DataError, match=words):
        task_of(*arrays(), **options)
