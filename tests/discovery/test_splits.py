"""Divisions of the rows: nothing together is parted, nothing later predicts what is earlier."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.model_selection import GroupKFold, KFold

from isthmus import DataError, IsthmusError
from isthmus.discovery._task import Splits, canonical_order
from tools import gaussian


def splits(n=40, **options):
    X = gaussian(n, 2).numpy()
    return Splits("discover", X, X, **options)


@pytest.mark.parametrize(("cv", "held"), [(None, 10), (4, 10), (5, 8), (2, 20), (1000, 1)])
def test_shares(cv, held):
    for index in range(3):
        train, test = splits(cv=cv)(index)
        assert len(test) == held
        assert sorted([*train, *test]) == list(range(40))


def test_divisions_differ_by_index_and_seed_only():
    assert np.array_equal(splits()(0)[1], splits()(0)[1])
    assert not np.array_equal(splits()(0)[1], splits()(1)[1])
    assert not np.array_equal(splits()(0)[1], splits(seed=1)(0)[1])


def test_groups_are_never_divided():
    groups = np.repeat(np.arange(8), 5)[np.random.default_rng(0).permutation(40)]
    for index in range(20):
        train, test = splits(groups=groups)(index)
        assert len(np.unique(groups[test])) == 2
        assert not set(groups[train]) & set(groups[test])


def test_the_future_is_held_out():
    time = np.random.default_rng(0).permutation(40).astype(float)
    for index in range(5):
        train, test = splits(time=time)(index)
        assert time[test].min() > time[train].max()
    assert len(splits(time=time)(1)[1]) > len(splits(time=time)(0)[1])
    # However many divisions: half of the rows are left to learn from.
    assert len(splits(time=time)(50)[0]) == 20


def test_rows_of_one_moment_are_never_divided():
    time = np.repeat(np.arange(4.0), 10)
    for index in range(3):
        train, test = splits(time=time)(index)
        assert not set(time[train]) & set(time[test])
    # With ties at every cut there must still be both sides.
    train, test = splits(time=np.r_[np.zeros(1), np.ones(39)])(0)
    assert (len(train), len(test)) == (1, 39)


def test_groups_in_time_are_ordered_by_their_beginning():
    groups = np.repeat(np.arange(8), 5)
    time = np.arange(40.0)[::-1].copy()
    train, test = splits(groups=groups, time=time)(0)
    assert set(groups[test]) == {0, 1}
    assert time[test].min() > time[train].max()


@pytest.mark.parametrize("n", [2, 3, 4])
def test_both_sides_have_rows(n):
    for index in range(3):
        train, test = splits(n)(index)
        assert len(train) >= 1
        assert len(test) >= 1


def test_a_splitter_or_pairs_decide_themselves():
    cv = KFold(4)
    wanted = list(cv.split(np.zeros((40, 1))))
    for given in (cv, wanted, iter(wanted), [(np.isin(np.arange(40), a), b) for a, b in wanted]):
        own = splits(cv=given)
        for index in range(5):
            assert np.array_equal(own(index)[0], wanted[index % 4][0])
            assert np.array_equal(own(index)[1], wanted[index % 4][1])
        assert own.describe() == "the rows that `cv` gives"
    groups = np.arange(40) // 5
    train, test = splits(cv=GroupKFold(4), groups=groups)(0)
    assert not set(groups[train]) & set(groups[test])


@pytest.mark.parametrize(
    "cv",
    [1, 0, -3, True, 2.5, "kfold", [], [([0, 1], [1, 2])], [([0], [40])], [([-1], [3])], [([], [1])], [(1, 2, 3)], [7]],
)
def test_what_is_not_a_division(cv):
    with pytest.raises(IsthmusError, match="`cv` must"):
        splits(cv=cv)


def test_too_few_units():
    with pytest.raises(DataError, match="at least 2 rows.*Got 1"):
        splits(1)
    with pytest.raises(DataError, match="at least 2 groups.*Got 1"):
        splits(groups=np.zeros(40, dtype=np.int64))


def test_in_words():
    groups = np.arange(40) // 5
    assert splits().describe() == "a quarter at random of the rows"
    assert splits(cv=5, groups=groups).describe() == "one 5th at random of the groups"
    assert splits(time=np.arange(40.0)).describe() == "the last a quarter in time of the rows"


@pytest.mark.parametrize("columns", [1, 5, 40])
def test_canonical_order(columns):
    X, Y = gaussian(30, columns).numpy(), gaussian(30, columns, seed=1).numpy()
    # Ties in all but the last columns; and full copies.
    X[:, :-1] = 0.0
    X[5:10] = 0.0
    Y[:10, :-1] = 0.0
    X[12], Y[12] = X[11], Y[11]
    order = canonical_order(X, Y)
    for seed in range(5):
        shuffled = np.random.default_rng(seed).permutation(30)
        again = canonical_order(X[shuffled], Y[shuffled])
        assert np.array_equal(X[shuffled][again], X[order])
        assert np.array_equal(Y[shuffled][again], Y[order])
