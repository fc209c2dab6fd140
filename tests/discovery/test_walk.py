"""The walk down the ranks: what it tries, in which order, and what it keeps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from isthmus import IsthmusError, problems
from isthmus._progress import silent
from isthmus.discovery.stages import Stages
from isthmus.discovery.task import make_task
from isthmus.discovery.walk import WIDE, Data, Effort, copy_of, refine, walk
from made import hourglass
from tools import SEED, assert_close, gaussian

EFFORT = Effort(half=2, width=24, warm=10, rise=30, first=25, each=25)


@pytest.fixture(scope="module")
def data():
    problem = problems.linear(d_in=5, d_out=5, rank=3, samples=120, seed=SEED)
    task = make_task("t", problem.X, problem.Y, groups=None, time=None, cv=None, seed=0, max_samples=5000)
    return task.data(0)[0]


def walked(data, highest, effort=EFFORT, **options):
    with silent(1, "walk") as bar:
        options = {"bound": 3, **options}
        return walk(data, effort, highest, seed=0, name="main", stages=Stages(None, ""), bar=bar, **options)


@pytest.fixture(scope="module")
def levels(data):
    return walked(data, 3)


def test_from_wide_to_one(levels):
    assert [level.rank for level in levels] == [WIDE, 3, 2, 1]
    assert [level.fit.network.rank for level in levels] == [WIDE, 3, 2, 1]
    assert levels[0].start == "fresh"
    # The first level that does not suffice is the one on which the answer hangs.
    assert [level.tries for level in levels] == [1, 1, 3, 1]
    errors = [level.error for level in levels]
    assert errors[3] > errors[2] > 3 * errors[1]
    for level in levels:
        assert level.shares.shape == (level.rank,)
        assert_close(level.shares.sum(), 1.0)


def test_it_repeats_to_the_bit(data, levels):
    for one, two in zip(walked(data, 3), levels, strict=True):
        assert np.array_equal(one.errors, two.errors)


def test_limits(data):
    short = Effort(half=2, width=8, warm=1, rise=2, first=2, each=1)
    assert [level.rank for level in walked(data, 2, short)] == [WIDE, 2, 1]
    assert [level.rank for level in walked(data, 3, short, down_to=2)] == [WIDE, 3, 2]
    wide = walked(data, 20, Effort(half=2, width=24, warm=1, rise=2, first=2, each=1), down_to=18)
    assert wide[0].rank == 21
    assert [level.rank for level in wide[1:]] == list(range(wide[1].rank, 17, -1))


def test_a_walk_that_ends_at_the_first_failure(data):
    """At the bound nothing fails: however well the wide network predicts, more cannot be needed."""
    assert [level.rank for level in walked(data, 3, to_the_end=False)] == [WIDE, 3, 2]
    assert [level.rank for level in walked(data, 3, to_the_end=False, bound=None)] == [WIDE, 3]


def test_weights_that_overflow_are_an_error(data):
    with pytest.raises(IsthmusError, match="finite outputs"):
        walked(data, 3, Effort(half=2, width=8, warm=1, rise=1, first=1, each=1, init_scale=1e15))


def test_a_finer_level_has_a_lower_cost(data, levels):
    with silent(1, "refine") as bar:
        fine = refine(data, EFFORT, levels[1:2], seed=0, name="main", stages=Stages(None, ""), bar=bar)
    assert [level.rank for level in fine] == [3]
    assert fine[0].fit.cost < levels[1].fit.cost
    assert fine[0].fit.norm > levels[1].fit.norm


def test_slack():
    assert Effort(strength=0.01, tolerance=0.1).slack(0.2) == pytest.approx(0.025)


def test_a_copy_is_its_own():
    net = hourglass()
    twin = copy_of(net)
    with torch.no_grad():
        twin.weights[0].zero_()
    assert bool(net.weights[0].any())


def test_errors_are_relative_to_the_variance():
    Y = gaussian(30, 4)
    X = gaussian(30, 5)
    net = hourglass()
    data = Data(X, Y, X, Y, 7.0, None)
    assert_close(data.errors(net), ((net(X) - Y) ** 2).sum(1).detach() / 7.0)
    groups = Data(X, Y, X, Y, 7.0, np.arange(30) // 10)
    assert_close(groups.errors(net), data.errors(net).reshape(3, 10).mean(axis=1))
