"""Class labels in a discovery: encoding, divisions by class, temperature, log losses relative to the entropy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from sklearn.metrics import log_loss

from isthmus import DataError
from isthmus.discovery import Settings
from isthmus.discovery._columns import one_hot
from isthmus.discovery._final import COLDEST, accuracy, temperature
from isthmus.discovery._profile import RankProfile
from isthmus.discovery._task import Data, Scaling, Splits, make_task, notes_on
from made import hourglass, profile_of
from tools import SEED, assert_close


def test_one_hot():
    Y, classes = one_hot("t", ["b", "a", "b"])
    assert Y.tolist() == [[0, 1], [1, 0], [0, 1]]
    assert classes.tolist() == ["a", "b"]
    assert one_hot("t", torch.tensor([[3], [1]]))[1].tolist() == [1, 3]
    assert one_hot("t", np.array([1.0, 2.0]))[1].tolist() == [1.0, 2.0]
    for bad, what in [
        (np.zeros((3, 2)), "shape"),
        ([1.5, 2.0], "continuous"),
        (np.array([1, "1"], dtype=object), "one type"),
        ([None, "a"], "without one"),
        ([], "shape"),
    ]:
        with pytest.raises(DataError, match=what):
            one_hot("t", bad)


def test_notes_on_rare_classes():
    Y, _ = one_hot("t", ["a"] * 20 + ["b"] * 3)
    assert "'b' (3)" in notes_on(Y, ("a", "b"))[0]
    assert notes_on(Y[:20], ("a", "b"))
    assert notes_on(one_hot("t", ["a"] * 3)[0], ("a",)) == ()
    assert notes_on(one_hot("t", ["a", "b"] * 8)[0], ("a", "b")) == ()


def test_every_class_is_divided_for_itself():
    rng = np.random.default_rng(SEED)
    X = rng.standard_normal((103, 2))
    labels = np.array([0] * 80 + [1] * 20 + [2] * 2 + [3])
    splits = Splits("t", X, X, labels=labels, seed=3)
    for index in range(3):
        train, held = splits(index)
        assert sorted([*train, *held]) == list(range(103))
        assert np.bincount(labels[held], minlength=4).tolist() == [20, 5, 1, 0]
    assert not np.array_equal(splits(0)[1], splits(1)[1])
    assert splits.describe().endswith("of each class")


def test_groups_stay_together_and_no_class_is_lost():
    rng = np.random.default_rng(SEED)
    groups = np.repeat(np.arange(20), 5)
    labels = rng.integers(0, 2, 100)
    labels[:5] = 2  # in one group only
    splits = Splits("t", np.zeros((100, 1)), np.zeros((100, 1)), groups=groups, labels=labels, seed=1)
    for index in range(5):
        train, held = splits(index)
        assert not set(groups[train]) & set(groups[held])
        assert set(labels[train]) == {0, 1, 2}
        assert len(held) >= 15
    alone = Splits("t", np.zeros((3, 1)), np.zeros((3, 1)), labels=np.arange(3), seed=1)
    assert len(alone(0)[1]) == 1


def test_temperature_is_that_of_the_labels():
    """Labels drawn from softmax(z/3): the temperature of the logits z is 3; and 1/3 of it for z/9."""
    rng = np.random.default_rng(SEED)
    z = 3.0 * rng.standard_normal((20_000, 3))
    labels = (z / 3.0 + rng.gumbel(size=z.shape)).argmax(axis=1)
    Y = torch.from_numpy(np.eye(3)[labels])
    assert temperature(torch.from_numpy(z), Y) == pytest.approx(3.0, rel=0.05)
    assert temperature(torch.from_numpy(z / 9.0), Y) == pytest.approx(1 / 3, rel=0.05)
    # All right: M rows do not make certain, but they make surer than one row does.
    sure = torch.from_numpy(np.eye(3)[labels])
    assert COLDEST < temperature(sure[:200], sure[:200]) < temperature(sure[:5], sure[:5])
    assert temperature(sure * float("nan"), sure) == 1.0
    assert accuracy(sure, sure) == 1.0
    assert accuracy(-sure, sure) == 0.0


def test_errors_are_log_losses_relative_to_the_entropy():
    rng = np.random.default_rng(SEED)
    X, labels = rng.standard_normal((40, 5)), rng.integers(0, 4, 40)
    task = make_task(X, np.eye(4)[labels], Settings(max_samples=100, loss="cross_entropy"))
    data, _, outputs = task.data(0)
    assert isinstance(data, Data)
    p = data.Y.double().mean(0).numpy()
    assert data.variance == pytest.approx(-(p * np.log(p)).sum(), rel=1e-6)
    assert np.array_equal(outputs(np.eye(4)), np.eye(4))
    net = hourglass().float()
    held, truth = data.held_outputs(net).numpy(), data.Y_held.numpy().argmax(axis=1)
    by_hand = -log_softmax(held, axis=1)[np.arange(len(held)), truth] / data.variance
    assert_close(data.errors(net), by_hand)
    known = np.asarray(log_loss(truth, np.exp(log_softmax(held, axis=1)), labels=range(4)))
    assert data.errors(net).mean() * data.variance == pytest.approx(float(known), rel=1e-6)
    assert data.baseline.mean() == pytest.approx(1.0, abs=0.1)
    assert np.isfinite(data.baseline).all()
    assert task.bound == 3
    assert "4 classes have as many logits" in task.why


def test_a_class_that_was_never_trained_on_leaves_errors_finite():
    X, labels = np.arange(20.0)[:, None], np.array([0, 1] * 8 + [2] * 4)
    settings = Settings(max_samples=100, loss="cross_entropy")
    task = make_task(X, np.eye(3)[labels], settings, time=np.arange(20))
    data = task.data(0)[0]
    assert float(data.Y.sum(0)[2]) == 0.0
    assert np.isfinite(data.baseline).all()


def test_a_file_sorted_by_class_is_no_series():
    labels = np.repeat([0, 1, 2], 30)
    X = np.random.default_rng(SEED).standard_normal((90, 2))
    settings = Settings(max_samples=100, loss="cross_entropy")
    assert not make_task(X, np.eye(3)[labels], settings).notes
    waves = np.repeat([0, 1, 2, 0, 2, 1], 15)
    assert "resemble each other" in make_task(X, np.eye(3)[waves], settings).notes[0]


def test_profiles_say_what_errors_are_shares_of():
    plain = profile_of({1: 0.5, 2: 0.1})
    assert (plain.unit, plain.whole) == ("variance", "the outputs' variance")
    content = {**plain.to_dict(), "loss_kind": "cross_entropy"}
    assert RankProfile.from_dict(content).whole == "the classes' entropy"
    del content["loss_kind"]
    assert RankProfile.from_dict(content).unit == "variance"
    with pytest.raises(ValueError, match="loss_kind"):
        RankProfile.from_dict({**content, "loss_kind": "hinge"})


def test_common_units():
    A = np.random.default_rng(SEED).standard_normal((50, 3)) * [1.0, 10.0, 0.0] + [5.0, 0.0, 7.0]
    common, own = Scaling.fit(A, 10, "common"), Scaling.fit(A, 10)
    assert common.scale[0] == common.scale[1] == pytest.approx(np.sqrt((A[:, :2].var(axis=0)).mean()))
    assert common.constant.tolist() == [False, False, True]
    assert_close(common(A)[:, :2].var(axis=0).sum(), np.array(2.0))
    assert_close(common(A)[:, 0] * common.scale[0], own(A)[:, 0] * own.scale[0])
    assert_close(common.undo(common(A)), A)
    assert Scaling.fit(np.full((4, 2), 3.0), 10, "common").constant.all()
