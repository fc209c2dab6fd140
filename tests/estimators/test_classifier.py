"""BottleneckClassifier: scikit-learn's own checks, ranks of known tasks, probabilities, boundaries, files."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.metrics import log_loss
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import isthmus
from isthmus import BottleneckClassifier, DataError, IsthmusError
from isthmus.discovery import discover
from isthmus.estimators._classifier import _from_parts, _to_parts
from isthmus.plotting.style import new_figure
from isthmus.problems import inverted_s_classes, sectors
from tools import assert_close, some_checks

#: Where the point is not how well it fits.
QUICK = {"depth": 4, "width": 16, "steps": 4, "replicas": 0}
#: Small, and trained to rest.
SMALL = {"depth": 6, "width": 24, "steps": 20, "replicas": 0}


SMALLEST = BottleneckClassifier(rank=1, depth=4, width=8, steps=2, resolution=0.03)
#: Those of scikit-learn's checks that the fast suite makes of this estimator; of the regressor it makes all.
FEW = ("check_estimators_pickle", "check_classifiers_train", "check_classifiers_classes", "check_n_features_in")


@some_checks(SMALLEST, FEW)
def test_some_of_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([SMALLEST])
def test_scikit_learns_own_checks(estimator, check):
    """In networks so small that all the checks take seconds; the search for the rank is in the slow ones."""
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([BottleneckClassifier()])
def test_scikit_learns_own_checks_at_default_arguments(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def stripes():
    return inverted_s_classes(classes=3, samples=150, seed=1)


@pytest.fixture(scope="module")
def fitted(stripes):
    """Three classes named by texts, in a frame."""
    X = pd.DataFrame(stripes.X, columns=["left", "up"])
    return BottleneckClassifier(**{**SMALL, "steps": 50}, resolution=0.01).fit(
        X, np.array(["a", "b", "c"])[stripes.labels]
    )


def test_one_variable_tells_stripes_apart(fitted, stripes):
    assert (fitted.rank_, fitted.verdict_) == (1, "determined")
    assert fitted.rank_profile_.unit == "entropy"
    assert "of the classes' entropy" in " ".join(fitted.reasons_)
    assert fitted.discovery_.sentence == "The 3 classes depend on the 2 inputs through 1 variable (determined)."
    X = pd.DataFrame(stripes.X, columns=["left", "up"])
    assert fitted.score(X, np.array(["a", "b", "c"])[stripes.labels]) == 1.0
    assert fitted.classes_.tolist() == ["a", "b", "c"]
    assert fitted.discovery_.target_names == ("a", "b", "c")
    # The order of the classes along the coordinate is that of the stripes, one way or the other.
    u = fitted.transform(X)[:, 0]
    means = [u[stripes.labels == c].mean() for c in range(3)]
    assert means == sorted(means) or means == sorted(means, reverse=True)


def test_probabilities_and_decisions(fitted, stripes):
    X = pd.DataFrame(stripes.X, columns=["left", "up"])
    P, D = fitted.predict_proba(X), fitted.decision_function(X)
    assert_close(P.sum(axis=1), np.ones(len(P)))
    assert_close(P, softmax(D, axis=1))
    assert_close(P, fitted.discovery_.probabilities(stripes.X))
    assert np.array_equal(fitted.classes_[P.argmax(axis=1)], fitted.predict(X))
    two = BottleneckClassifier(**QUICK).fit(stripes.X, stripes.labels == 1)
    assert two.verdict_ == "trivial"
    assert two.rank_ == 1
    assert "2 classes have as many logits, of which one is free" in two.reasons_[0]
    assert two.decision_function(stripes.X).shape == (150,)
    assert np.array_equal(two.decision_function(stripes.X) > 0, two.predict(stripes.X))


def test_temperature_calibrates():
    """Noisy labels, hardly any ridge: the network is too sure of itself, and says so after calibration only."""
    data = sectors(classes=3, samples=300, sharpness=2.0, seed=3)
    new = sectors(classes=3, samples=1000, sharpness=2.0, seed=4)
    model = BottleneckClassifier(rank=2, resolution=1e-3, **{**SMALL, "steps": 10}).fit(data.X, data.labels)
    note = next(note for note in model.discovery_.notes if "calibrated" in note)
    T = float(note.split("divided by ")[1].split(",")[0])
    assert T > 1.2
    logits = model.decision_function(new.X)
    assert log_loss(new.labels, softmax(logits, axis=1)) < log_loss(new.labels, softmax(logits * T, axis=1)) - 0.02


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "ranks"),
    [
        (inverted_s_classes(), {1}),
        (sectors(classes=5, samples=800), {2}),
        (sectors(classes=3, samples=400), {2}),
    ],
)
def test_ranks_of_known_tasks(data, ranks):
    found = discover(data.X, data.labels, loss="cross_entropy")
    assert found.rank in ranks or found.verdict == "undetermined"
    if data.name != "sectors_3":
        assert found.verdict == "determined"


def test_sectors_need_two_variables_and_meet():
    data = sectors(classes=3, samples=300, sharpness=6.0, seed=1)
    model = BottleneckClassifier(**SMALL, resolution=0.05).fit(data.X, data.labels)
    assert model.rank_ == 2
    row = model.rank_profile_.row
    assert model.rank_profile_.error[row(1)] > 1.3 * model.rank_profile_.error[row(2)]
    found = model.tripoints(points=64)
    assert len(found.tripoints) >= 1
    assert (0, 1, 2) in found.meeting
    # All three probabilities are 1/3 at the true meeting point; the learned one is near.
    assert np.linalg.norm(found.tripoints.numpy(), axis=1).min() < 0.5


def test_rank_one_has_no_tripoints(fitted):
    found = fitted.tripoints(points=64)
    assert found.state == "computed"
    assert len(found.tripoints) == 0
    assert found.adjacency.tolist() == [[False, True, False], [True, False, True], [False, True, False]]


def test_the_boundary_is_drawn(fitted, stripes):
    axes = fitted.plot_boundary(X=pd.DataFrame(stripes.X, columns=["left", "up"]), y=fitted.classes_[stripes.labels])
    assert axes.get_xlabel() == "left"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b", "c"]
    assert len(axes.collections[-1].get_offsets()) == 150
    given = new_figure(3, 3).subplots()
    assert fitted.plot_boundary(given, box=((-1, 1), (-1, 1))) is given
    assert given.get_xlim() == (-1.0, 1.0)
    wide = BottleneckClassifier(**QUICK).fit(*load_iris(return_X_y=True))
    with pytest.raises(IsthmusError, match="two inputs"):
        wide.plot_boundary()
    with pytest.raises(IsthmusError, match="4 inputs"):
        wide.tripoints()


def test_constant_inputs_and_a_single_class(stripes):
    """Rank 0: probabilities are the shares of the classes."""
    model = BottleneckClassifier(**QUICK).fit(np.ones((60, 2)), np.repeat([0, 1, 1], 20))
    assert (model.rank_, model.verdict_) == (0, "trivial")
    assert_close(model.predict_proba(np.zeros((2, 2))), np.array([[1 / 3, 2 / 3]] * 2))
    single = BottleneckClassifier(**QUICK).fit(stripes.X, ["only"] * 150)
    assert single.reasons_[0] == "there is one class: the rank is 0"
    assert single.predict(stripes.X[:3]).tolist() == ["only"] * 3
    assert single.predict_proba(stripes.X[:3]).tolist() == [[1.0]] * 3


def test_cross_validation_and_clone(stripes):
    model = BottleneckClassifier(**{**QUICK, "steps": 10}, resolution=0.01, rank=1)
    assert clone(model).get_params() == model.get_params()
    assert cross_val_score(model, stripes.X, stripes.labels, cv=3).mean() > 0.8
    with pytest.raises(NotFittedError):
        model.predict_proba(stripes.X)
    with pytest.raises(ValueError, match="Unknown label type"):
        model.fit(stripes.X, stripes.X[:, 0])
    with pytest.raises(DataError, match="without one"):
        discover(stripes.X, np.array(["a", None] * 75, dtype=object), loss="cross_entropy")


@pytest.mark.parametrize(
    "labels", [np.array([0, 1, 2]), np.array(["a", "b", "c"]), np.array([2.0, 3.0, 5.0]), np.array([True, False, True])]
)
def test_files_give_the_same_bits(labels, stripes, tmp_path):
    model = BottleneckClassifier(**QUICK).fit(stripes.X, labels[stripes.labels])
    isthmus.save(model, tmp_path / "model.safetensors")
    twin = isthmus.load(tmp_path / "model.safetensors")
    assert type(twin) is BottleneckClassifier
    assert np.array_equal(twin.classes_, model.classes_)
    assert twin.classes_.dtype == model.classes_.dtype
    assert twin.get_params() == model.get_params()
    assert np.array_equal(twin.predict(stripes.X), model.predict(stripes.X))
    assert np.array_equal(twin.predict_proba(stripes.X), model.predict_proba(stripes.X))
    assert np.array_equal(twin.tripoints(points=8).classes, model.tripoints(points=8).classes)
    assert np.array_equal(pickle.loads(pickle.dumps(twin)).predict(stripes.X), model.predict(stripes.X))


@pytest.mark.parametrize(
    ("key", "value"),
    [("classes", ["a", "b"]), ("classes", ["a", "a", "b"]), ("classes", ["c", "b", "a"]), ("classes", [1, 2, 3]),
     ("classes", "abc"), ("kind", "O"), ("kind", 1), ("box", [[0, 1]]), ("box", [[0, "x"], [0, 1]]),
     ("box", [[0, 1], [2]]), ("parameters", {"ranks": 1})],
)  # fmt: skip
def test_tampered_files(fitted, key, value):
    config, tensors = _to_parts(fitted)
    _from_parts(json.loads(json.dumps(config)), tensors)
    with pytest.raises(IsthmusError):
        _from_parts({**config, key: value}, tensors)
    regression = {**config["discovery"], "settings": {**config["discovery"]["settings"], "loss": "mse"}}
    with pytest.raises(IsthmusError, match="cross_entropy"):
        _from_parts({**config, "discovery": regression}, tensors)
