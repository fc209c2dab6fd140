"""BottleneckRegressor as scikit-learn sees it: its own checks, and what people build from it."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
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
    assert fitted.rank_profile_.chosen == 2
    assert fitted.score(*frames) > 0.95


def test_parameters_are_stored_as_given():
    model = BottleneckRegressor(rank=3, cv=5, random_state=7)
    assert model.get_params()["rank"] == 3
    twin = clone(model.set_params(ridge=0.1, missing="median"))
    assert twin.get_params() == model.get_params()
    assert twin.ridge == 0.1
    with pytest.raises(ValueError, match="Invalid parameter 'ranks'"):
        model.set_params(ranks=3)


def test_names(fitted, frames):
    assert fitted.get_feature_names_out().tolist() == ["coordinate0", "coordinate1"]
    assert fitted.feature_names_in_.tolist() == list(frames[0].columns)
    assert fitted.discovery_.feature_names == tuple(frames[0].columns)
    assert fitted.discovery_.target_names == tuple(frames[1].columns)
    with pytest.raises(ValueError, match="feature_names_in_"):
        fitted.get_feature_names_out(["a", "b", "c", "d", "e"])
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frames[0].rename(columns={"in 0": "other"}))


def test_a_named_series_keeps_its_name(frames):
    model = BottleneckRegressor(**QUICK).fit(frames[0], frames[1]["out 1"])
    assert model.discovery_.target_names == ("out 1",)


def test_set_output_pandas(fitted, frames):
    model = pickle.loads(pickle.dumps(fitted)).set_output(transform="pandas")
    out = model.transform(frames[0])
    assert list(out.columns) == ["coordinate0", "coordinate1"]
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
    kinds = {"rank": np.int64(2), "random_state": np.int64(3), "ridge": np.float64(0.02), "max_samples": np.int32(50)}
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
    filled = np.where(np.isnan(X), np.nanmedian(X, axis=0), X)
    assert np.array_equal(model.predict(X), model.predict(filled))


def test_errors_before_anything_is_trained(task):
    with pytest.raises(NotFittedError):
        BottleneckRegressor().decode(np.zeros((2, 2)))
    for bad in ({"rank": 0}, {"rank": 5}, {"rank": "best"}, {"depth": 7}, {"missing": "drop"}, {"ridge": -1.0}):
        with pytest.raises(IsthmusError):
            BottleneckRegressor(**bad).fit(task.X, task.Y)


def test_random_state():
    task = problems.linear(d_in=3, d_out=3, rank=1, samples=40, seed=SEED)
    quick = {**QUICK, "steps": 2}
    first, again = (BottleneckRegressor(random_state=3, **quick).fit(task.X, task.Y) for _ in range(2))
    assert np.array_equal(first.predict(task.X), again.predict(task.X))
    other = BottleneckRegressor(random_state=np.random.RandomState(0), **quick).fit(task.X, task.Y)
    assert not np.array_equal(other.predict(task.X), first.predict(task.X))
