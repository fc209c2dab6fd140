"""BottleneckRegressor as scikit-learn sees it: its own checks, and what people build from it."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_regressors_train, parametrize_with_checks

import isthmus
from isthmus import BottleneckRegressor, DataError, IsthmusError, problems
from tools import SEED, assert_close

#: Where the point is not how well it fits.
QUICK = {"depth": 4, "width": 16, "steps": 4, "replicas": 0}


@parametrize_with_checks([BottleneckRegressor(**{**QUICK, "replicas": 1})])
def test_scikit_learns_own_checks(estimator, check):
    """Every branch of a fit, a further walk among them, in networks so small that all the checks take seconds."""
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([BottleneckRegressor()])
def test_scikit_learns_own_checks_at_default_arguments(estimator, check):
    check(estimator)


@pytest.mark.slow
def test_the_default_arguments_learn():
    """The check that asks for a good fit, as people call it; the others do not ask how well it fits."""
    check_regressors_train("BottleneckRegressor", BottleneckRegressor())


@pytest.fixture(scope="module")
def task():
    return problems.linear(d_in=5, d_out=4, rank=2, samples=80, seed=SEED)


@pytest.fixture(scope="module")
def frames(task):
    X = pd.DataFrame(task.X, columns=[f"in {i}" for i in range(5)])
    return X, pd.DataFrame(task.Y, columns=[f"out {i}" for i in range(4)])


@pytest.fixture(scope="module")
def fitted(frames):
    return BottleneckRegressor(**{**QUICK, "steps": 20}).fit(*frames)


def test_it_is_the_discovery(fitted, frames, task):
    found = isthmus.discover(*frames, **{**QUICK, "steps": 20})
    assert (fitted.rank_, fitted.verdict_, fitted.reasons_) == (found.rank, found.verdict, list(found.reasons))
    assert fitted.rank_ == 2
    assert fitted.verdict_ == "determined"
    assert np.array_equal(fitted.transform(frames[0]), found.coordinates)
    assert np.array_equal(fitted.predict(frames[0]), found.predict(task.X))
    assert np.array_equal(fitted.decode(fitted.transform(frames[0])), fitted.predict(frames[0]))
    assert fitted.encoder_ is fitted.discovery_.encoder
    assert fitted.decoder_ is fitted.discovery_.decoder
    assert fitted.rank_profile_.chosen == found.profile.chosen
    assert np.array_equal(fitted.rank_profile_.error, found.profile.error)
    assert fitted.score(*frames) > 0.95


def test_parameters_are_stored_as_given():
    model = BottleneckRegressor(rank=3, cv=5, random_state=7)
    assert model.get_params()["rank"] == 3
    twin = clone(model.set_params(resolution=0.1, missing="median"))
    assert twin.get_params() == model.get_params()
    assert twin.resolution == 0.1
    with pytest.raises(ValueError, match="Invalid parameter 'ranks'"):
        model.set_params(ranks=3)


def test_names(fitted, frames):
    assert fitted.get_feature_names_out().tolist() == ["bottleneckregressor0", "bottleneckregressor1"]
    assert fitted.feature_names_in_.tolist() == list(frames[0].columns)
    assert fitted.discovery_.feature_names == tuple(frames[0].columns)
    assert fitted.discovery_.target_names == tuple(frames[1].columns)
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frames[0].rename(columns={"in 0": "other"}))


def test_a_named_series_keeps_its_name(frames):
    model = BottleneckRegressor(**QUICK).fit(frames[0], frames[1]["out 1"])
    assert model.discovery_.target_names == ("out 1",)


def test_set_output_pandas(fitted, frames):
    model = pickle.loads(pickle.dumps(fitted)).set_output(transform="pandas")
    out = model.transform(frames[0])
    assert list(out.columns) == ["bottleneckregressor0", "bottleneckregressor1"]
    assert out.index.equals(frames[0].index)
    assert np.array_equal(out.to_numpy(), fitted.transform(frames[0]))
    # Predictions go through the same coordinates, whatever they are shown as; and frames of them can be decoded.
    assert np.array_equal(model.predict(frames[0]), fitted.predict(frames[0]))
    assert np.array_equal(model.decode(out), fitted.predict(frames[0]))


def test_pickling_gives_the_same_predictions(fitted, frames):
    twin = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(twin.predict(frames[0]), fitted.predict(frames[0]))
    assert (twin.rank_, twin.verdict_, twin.reasons_) == (fitted.rank_, fitted.verdict_, fitted.reasons_)


def test_shape_of_y(task):
    flat = BottleneckRegressor(**QUICK).fit(task.X, task.Y[:, 0])
    column = BottleneckRegressor(**QUICK).fit(task.X, task.Y[:, :1])
    assert flat.predict(task.X).shape == (80,)
    assert column.predict(task.X).shape == (80, 1)
    assert flat.decode(flat.transform(task.X)).shape == (80,)
    assert np.array_equal(flat.predict(task.X), column.predict(task.X)[:, 0])
    assert flat.rank_ == column.rank_ == 1
    assert flat.verdict_ == column.verdict_ == "trivial"


def test_grid_search_over_the_rank(task):
    search = GridSearchCV(BottleneckRegressor(**QUICK), {"rank": [1, 2]}, cv=2).fit(task.X, task.Y)
    assert search.best_params_ == {"rank": 2}
    assert search.best_estimator_.verdict_ == "given"


def test_numpy_numbers_are_parameters_too(task, tmp_path):
    """A grid is often np.arange: its numbers must not be lost when the winner is saved, or break a checkpoint."""
    kinds = {
        "rank": np.int64(2),
        "random_state": np.int64(3),
        "resolution": np.float64(0.02),
        "max_samples": np.int32(50),
    }
    model = BottleneckRegressor(**{**QUICK, **kinds}).fit(task.X, task.Y)
    isthmus.save(model, tmp_path / "model")
    twin = isthmus.load(tmp_path / "model")
    assert twin.get_params() == model.get_params()
    assert twin.discovery_.to_dict() == model.discovery_.to_dict()
    isthmus.discover(task.X, task.Y, rank=np.int64(2), checkpoint=tmp_path / "stages", **QUICK)


def test_groups_reach_the_splits_through_cross_validation(task):
    groups = np.repeat(np.arange(8), 10)
    model = BottleneckRegressor(**QUICK)
    with pytest.raises(DataError, match="80 entries"):
        model.fit(task.X, task.Y, groups=groups[:5])
    scores = cross_val_score(
        model, task.X, task.Y, groups=groups, cv=GroupKFold(4), params={"groups": groups}, error_score="raise"
    )
    assert scores.shape == (4,)
    assert (scores > 0.8).all()


def test_metadata_routing(task):
    import sklearn

    groups = np.repeat(np.arange(8), 10)
    with sklearn.config_context(enable_metadata_routing=True):
        model = BottleneckRegressor(**QUICK).set_fit_request(groups=True)
        pipe = make_pipeline(StandardScaler(), model)
        pipe.fit(task.X, task.Y, groups=groups)
    assert "groups" in pipe[-1].discovery_.settings["held_out"]


def test_pipeline_with_a_scaler_changes_nothing(task):
    alone = BottleneckRegressor(**QUICK).fit(task.X, task.Y)
    pipe = make_pipeline(StandardScaler(), BottleneckRegressor(**QUICK)).fit(task.X, task.Y)
    assert_close(
        pipe.predict(task.X), alone.predict(task.X), rtol=0.01, atol=0.01, reason="training amplifies rounding"
    )
    assert pipe[-1].rank_ == alone.rank_
    assert pipe[:-1].transform(task.X).shape == (80, 5)


def test_missing_values(task):
    X = np.array(task.X)
    X[3, 2] = X[7, 2] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        BottleneckRegressor(**QUICK).fit(X, task.Y)
    model = BottleneckRegressor(missing="median", **QUICK).fit(X, task.Y)
    objects = pd.DataFrame(X).astype(object).mask(np.isnan(X), pd.NA)
    with pytest.raises(DataError, match="Pass missing='median'"):
        BottleneckRegressor(**QUICK).fit(objects, task.Y)
    again = BottleneckRegressor(missing="median", **QUICK).fit(objects, task.Y)
    assert np.array_equal(again.predict(objects), model.predict(X))
    assert "replaced 2 missing values by the median of 1 column: 'x2'" in model.discovery_.notes
    filled = np.where(np.isnan(X), np.nanmedian(X, axis=0), X)
    assert np.array_equal(model.predict(X), model.predict(filled))


ESTIMATORS = [isthmus.BottleneckRegressor, isthmus.BottleneckClassifier, isthmus.BottleneckAutoencoder]


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_columns_that_cannot_be_used_are_named(cls, frames):
    """Of all three: which columns, and the way out that this library has; scikit-learn's advice is another's."""
    X, y = frames[0].copy(), np.arange(80) % 2
    X.loc[[3, 7], "in 2"] = np.nan
    with pytest.raises(DataError, match=r"2 NaN or infinite of 400 values \(column 'in 2': 2 NaN\)") as caught:
        cls(**QUICK).fit(X, y)
    told = str(caught.value)
    assert told.startswith(f"{cls.__name__}: `X` must be finite")
    assert "Pass missing='median'" in told
    assert "SimpleImputer" in told
    assert "HistGradientBoosting" not in told
    assert caught.value.__context__ is None
    X.loc[0, "in 1"] = np.inf
    with pytest.raises(DataError, match=r"column 'in 1': 1 infinite\). Clip or drop it: missing='median' fills in NaN"):
        cls(missing="median", **QUICK).fit(X, y)
    X = frames[0].assign(site="north", kind=pd.Categorical(["u", "v"] * 40), code=["1", "2"] * 40)
    for missing in ("error", "median"):
        with pytest.raises(DataError, match=r"text in column 'site' \(such as 'north'\), column 'kind'") as caught:
            cls(missing=missing, **QUICK).fit(X, y)
        assert "'code'" not in str(caught.value)
        assert "OneHotEncoder" in str(caught.value)
        with pytest.raises(DataError, match="dates in column 'day'. .*`time=`"):
            cls(missing=missing, **QUICK).fit(frames[0].assign(day=pd.date_range("2020", periods=80)), y)
        with pytest.raises(DataError, match="dates in column 'day'. .*`time=`"):
            cls(missing=missing, **QUICK).fit(pd.DataFrame({"day": pd.date_range("2020", periods=80)}), y)
    with pytest.raises(DataError, match=r"column 2 \(such as 'x'\)"):
        cls(**QUICK).fit([[1.0, 2.0, "x"]] * 80, y)


def test_new_rows_and_outputs_that_cannot_be_used(fitted, frames):
    X, Y = frames
    with pytest.raises(DataError, match="column 'in 0': 1 NaN.*fit with missing='median'"):
        fitted.predict(X.assign(**{"in 0": X["in 0"].where(X.index > 0)}))
    with pytest.raises(DataError, match="text in column 'in 4'"):
        fitted.transform(X.assign(**{"in 4": "a"}))
    model = BottleneckRegressor(**QUICK)
    with pytest.raises(DataError, match="`y` must be finite.*column 'out 1': 80 NaN.*Drop these rows"):
        model.fit(X, Y.assign(**{"out 1": np.nan}))
    for y in (Y.assign(**{"out 1": "high"}), Y["out 1"].astype(object).where(Y.index > 0, "high"), ["high"] * 80):
        with pytest.raises(DataError, match=r"`y` must be numbers. Got text .*'high'.*BottleneckClassifier"):
            model.fit(X, y)
    # What is wrong for another reason is said as before.
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        BottleneckRegressor(missing="median", **QUICK).fit(X.assign(**{"in 0": np.nan}), Y[:79])


def test_dates_order_the_rows(frames):
    hours = pd.Series(pd.date_range("2024-03-30 20:00", periods=80, freq="h", tz="UTC")).dt.tz_convert("Europe/Paris")
    quick = {**QUICK, "steps": 1, "rank": 1}
    by_date = BottleneckRegressor(**quick).fit(*frames, time=hours)
    by_number = BottleneckRegressor(**quick).fit(*frames, time=np.arange(80))
    assert "in time" in by_date.discovery_.settings["held_out"]
    assert np.array_equal(by_date.predict(frames[0]), by_number.predict(frames[0]))
    assert by_date.discovery_.error == by_number.discovery_.error
    backwards = BottleneckRegressor(**quick).fit(*frames, time=hours[::-1].to_numpy())
    assert by_date.discovery_.error != backwards.discovery_.error


def test_errors_before_anything_is_trained(task):
    with pytest.raises(NotFittedError):
        BottleneckRegressor().decode(np.zeros((2, 2)))
    for bad in ({"rank": 0}, {"rank": 5}, {"rank": "best"}, {"depth": 7}, {"missing": "drop"}, {"resolution": -1.0}):
        with pytest.raises(IsthmusError):
            BottleneckRegressor(**bad).fit(task.X, task.Y)


def test_random_state():
    task = problems.linear(d_in=3, d_out=3, rank=1, samples=40, seed=SEED)
    quick = {**QUICK, "steps": 2}
    first, again = (BottleneckRegressor(random_state=3, **quick).fit(task.X, task.Y) for _ in range(2))
    assert np.array_equal(first.predict(task.X), again.predict(task.X))
    other = BottleneckRegressor(random_state=np.random.RandomState(0), **quick).fit(task.X, task.Y)
    assert not np.array_equal(other.predict(task.X), first.predict(task.X))


@pytest.mark.parametrize("kind", [BottleneckRegressor, isthmus.BottleneckClassifier, isthmus.BottleneckAutoencoder])
def test_tensors_in_the_middle_of_a_computation(task, kind):
    """Their gradients are nobody's business here: the same as the numbers alone."""
    labels = kind is isthmus.BottleneckClassifier
    X, Y = task.X, (task.Y[:, 0] > 0).astype(int) if labels else task.Y
    tensors = torch.tensor(X, requires_grad=True), torch.tensor(Y, requires_grad=not labels)
    plain, found = (kind(rank=1, **QUICK).fit(*data) for data in ((X, Y), tensors))
    np.testing.assert_array_equal(found.transform(tensors[0]), plain.transform(X))
