"""What discover does about marks, masks, outliers and columns that should not be inputs, and on new rows."""

import numpy as np
import pytest

import isthmus
from isthmus import DataError
from isthmus._settings import Settings
from isthmus.discovery._columns import Mending, read_arrays

N = 120


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, 4))
    return X, np.tanh(X @ rng.standard_normal((4, 3)))


def read(X, Y, na_values=None, **settings):
    return read_arrays(X, Y, Settings(**settings), None, None, na_values)


def test_marks_are_refused_by_name_value_and_count(data):
    X, Y = data
    X[::10, 2] = -9999.0
    with pytest.raises(DataError) as refused:
        read(X, Y)
    for word in ("`X`", "-9999", "12 times", "x2", "missing='median'", "na_values=()"):
        assert word in str(refused.value)
    with pytest.raises(DataError, match="`Y`"):
        read(Y, X)
    # Measured values, says the user.
    assert np.array_equal(read(X, Y, na_values=()).X, X)
    assert read(X, Y, na_values=()).mending.settings == {}


def test_marks_become_gaps_of_the_fit_and_of_new_rows(data):
    X, Y = data
    rest = np.delete(X[:, 2], np.s_[::10])
    X[::10, 2] = -9999.0
    table = read(X, Y, missing="median")
    assert (table.X[::10, 2] == np.median(rest)).all()
    assert table.mending.settings == {"na_values": {"x2": [-9999.0]}}
    names = table.names[0]
    again = Mending.of("test", table.mending.settings, table.mending.fill)("test", X[:30], names)
    assert np.array_equal(again, table.X[:30])
    # Of another column, it is a number like any other.
    other = np.zeros((1, 4))
    other[0, 1] = -9999.0
    assert np.array_equal(table.mending("test", other, names), other)


def test_given_marks_are_the_only_ones(data):
    X, Y = data
    X[::10, 2], X[::11, 1] = -9999.0, 0.5
    with pytest.raises(DataError, match="0.5"):
        read(X, Y, na_values=[0.5])
    table = read(X, Y, na_values=[0.5], missing="median")
    assert table.mending.settings == {"na_values": {"x1": [0.5]}}
    assert (table.X[::10, 2] == -9999.0).all()


def test_masked_entries_are_missing(data):
    X, Y = data
    masked = np.ma.array(X, mask=X < -1.5)
    count = int((X < -1.5).sum())
    with pytest.raises(DataError, match=f"{count} NaN"):
        read(masked, Y)
    table = read(masked, Y, missing="median")
    plain = read(np.where(X < -1.5, np.nan, X), Y, missing="median")
    assert np.array_equal(table.X, plain.X)
    with pytest.raises(DataError, match="`Y` must be finite"):
        read(X, np.ma.array(Y, mask=Y > 0.9))
    labels = np.ma.array(np.arange(N) % 3, mask=np.arange(N) == 5)
    with pytest.raises(DataError, match="1 without one"):
        read(X, labels, loss="cross_entropy")
    # A mask that hides nothing is none.
    assert np.array_equal(read(np.ma.array(X), Y).X, X)


def test_masked_moments_and_groups_are_refused(data):
    X, Y = data
    masked = np.ma.array(np.arange(N), mask=np.arange(N) == 5)
    for role in ("time", "groups"):
        with pytest.raises(DataError, match=role):
            isthmus.discover(X, Y, **{role: masked})


def test_estimators_keep_the_mask(data):
    X, Y = data
    with pytest.raises(ValueError, match="NaN"):
        isthmus.BottleneckRegressor().fit(np.ma.array(X, mask=X < -1.5), Y)


def test_numbers_that_cannot_be_scaled_are_refused(data):
    X, Y = data
    X[:, 1] = np.where(X[:, 1] > 0, 1.7e308, -1.7e308)
    for inputs, outputs, name in ((X, Y, "`X`"), (Y, X, "`Y`")):
        with pytest.raises(DataError, match=name):
            read(inputs, outputs)
    # Squares of these overflow; of a little less than 1e150 they do not.
    X[:, 1] *= 1e-157
    with pytest.raises(DataError, match="`X`"):
        read(X, Y)
    X[:, 1] *= 1e-2
    assert len(read(X, Y).notes) == 0


def test_gross_outliers_are_limited_and_said(data):
    X, Y = data
    clean = X.copy()
    X[7, 3] = 1e6
    table = read(X, Y)
    assert table.X[7, 3] == np.delete(clean[:, 3], 7).max()
    assert np.array_equal(np.delete(table.X, 7, 0), np.delete(clean, 7, 0))
    (note,) = table.notes
    assert "x3" in note and "1e+06" in note
    limits = table.mending.settings["limits"]["x3"]
    assert table.mending("test", np.full((1, 4), -50.0), table.names[0])[0].tolist() == [-50.0, -50.0, -50.0, limits[0]]
    assert read(clean, Y).notes == ()
    # Outputs likewise; an autoencoder has one table.
    assert np.abs(read(Y, X).Y).max() < 10
    both = read(X, X)
    assert np.array_equal(both.X, both.Y)


def test_heavy_tails_are_said_and_left(data):
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((400, 3)), rng.standard_normal((400, 2))
    X[:, 1] = rng.standard_cauchy(400)
    table = read(X, Y)
    (note,) = table.notes
    assert "x1" in note and "x0" not in note
    assert np.array_equal(table.X, X)
    assert read(np.repeat(X, 20, axis=1), Y).notes == ()


def test_suspects_are_named(data):
    X, Y = data
    rng = np.random.default_rng(1)
    X[:, 0], X[:, 1], X[:, 2] = np.arange(N), rng.permutation(10**6)[:N], np.exp(Y[:, 1])
    notes = read(X, Y).notes
    assert len(notes) == 3
    for note, name in zip(notes, ("x0", "x1", "x2")):
        assert name in note
        assert sum(other in note for other in ("x0", "x1", "x2", "x3")) == 1
    assert read(X, X).notes == ()


def test_the_maps_of_a_kept_discovery_mend_new_rows(data, tmp_path):
    X, Y = data
    X[::10, 2], X[7, 3] = -9999.0, 1e6
    found = isthmus.discover(X, Y, depth=4, width=8, steps=2, replicas=0, rank=1, missing="median")
    assert set(found.settings["na_values"]) == {"x2"}
    assert set(found.settings["limits"]) == {"x3"}
    assert np.allclose(found.transform(X), found.coordinates)
    isthmus.save(found, tmp_path / "kept.safetensors")
    assert np.array_equal(isthmus.load(tmp_path / "kept.safetensors").transform(X), found.transform(X))


@pytest.mark.parametrize("settings", [{"limits": 3}, {"na_values": {"x": "-9999"}}, {"limits": {"x": [1.0, "2"]}}])
def test_forged_settings_are_refused(settings):
    with pytest.raises(isthmus.IsthmusError):
        Mending.of("load", settings, None)
