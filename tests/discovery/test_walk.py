"""The walk down the ranks: what it tries, in which order, and what it keeps."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect

import numpy as np
import pytest
import torch

from isthmus import IsthmusError, problems
from isthmus._progress import silent
from isthmus.discovery import Settings
from isthmus.discovery._fits import Fit, narrow
from isthmus.discovery._search import FINEST, STRONGER, choose_strength
from isthmus.discovery._task import Data, make_task
from isthmus.discovery._walk import (
    COLLAPSED,
    CUT,
    ROUGH,
    TOLERANCE,
    UNUSED,
    WIDE,
    Context,
    Stages,
    _fresh,
    _from_random,
    alone,
    best_of,
    closer_starts,
    in_parallel,
    level_of,
    slack,
    train_further,
    walk,
)
from made import hourglass
from tools import SEED, assert_close, gaussian

SMALL = Settings(depth=4, width=24, steps=25)


def context_of(data, settings=SMALL):
    with silent(1, "walk") as bar:
        return Context(data, settings, Stages(None, ""), bar, settings.depth, settings.strength, settings.seed)


@pytest.fixture(scope="module")
def data():
    problem = problems.linear(d_in=5, d_out=5, rank=3, samples=120, seed=SEED)
    task = make_task(problem.X, problem.Y, Settings())
    return task.data(0)[0]


def walked(data, highest, settings=SMALL, **options):
    return walk(context_of(data, settings), highest, **{"bound": 3, **options})


@pytest.fixture(scope="module")
def levels(data):
    return walked(data, 3)


def test_from_wide_to_one(levels):
    assert [level.rank for level in levels] == [WIDE, 3, 2, 1]
    assert [level.fit.network.dims[level.fit.network.waist] for level in levels] == [WIDE, 3, 2, 1]
    assert levels[0].start == "fresh"
    # From 16 to 3 at once is tried again one by one, and from random weights, as 3 must suffice; on the first that does
    # not suffice the answer hangs.
    assert [level.tries for level in levels] == [1, 2, 2, 1]
    errors = [level.error for level in levels]
    assert errors[3] > errors[2] > 3 * errors[1]
    for level in levels:
        assert level.shares.shape == (level.rank,)
        assert_close(level.shares.sum(), 1.0)


def test_it_repeats_to_the_bit(data, levels):
    for one, two in zip(walked(data, 3), levels, strict=True):
        assert np.array_equal(one.errors, two.errors)


def test_limits(data):
    short = Settings(depth=4, width=8, steps=1)
    assert [level.rank for level in walked(data, 2, short)] == [WIDE, 2, 1]
    assert [level.rank for level in walked(data, 3, short, down_to=2)] == [WIDE, 3, 2]
    wide = walked(data, 20, Settings(depth=4, width=24, steps=1), down_to=18)
    assert wide[0].rank == 21
    assert [level.rank for level in wide[1:]] == list(range(wide[1].rank, 17, -1))


def test_a_walk_says_which_rank_fails_first(data):
    """At the bound nothing fails: however well the wide network predicts, more cannot be needed."""
    for bound, failed in ((3, 2), (None, 3)):
        said = []
        walked(data, 3, bound=bound, meanwhile=lambda rank, sure: said.append((rank, sure)))  # noqa: B023
        assert said == [(failed, False), (failed, True)]


def cuts(data, monkeypatch):
    """Ranks that a walk from 15 narrows networks to; a cut that is only tried, and the trainings."""
    tried, trained = [], []

    def spy(net, X, rank):
        (trained if inspect.stack()[1].function == "<lambda>" else tried).append((net.dims[net.waist], rank))
        return narrow(net, X, rank)

    monkeypatch.setattr("isthmus.discovery._walk.narrow", spy)
    levels = walked(data, 15, bound=15)
    return levels, tried, trained


@pytest.mark.parametrize("times", [CUT, 1000.0])
def test_the_walk_begins_where_the_wide_network_can_be_cut(data, monkeypatch, times):
    """One above the least rank at which what is left, untrained, is within so many times the slack; or with all."""
    monkeypatch.setattr("isthmus.discovery._walk.CUT", times)
    levels, tried, trained = cuts(data, monkeypatch)
    wide, context = levels[0], context_of(data)
    used = int((wide.shares > UNUSED).sum())
    allowed = wide.error + times * context.slack(wide.error)
    enough = [k for k in range(1, used) if data.errors(narrow(wide.fit.network, data.X, k)).mean() <= allowed]
    least = enough[0] if enough else used - 1
    assert bool(enough) == (times > CUT)
    assert tried == [(WIDE, rank) for rank in range(1, least + 1)]
    assert trained[0] == (WIDE, least + 1)
    # One by one from the first that was not too few.
    assert [level.rank for level in levels] == [WIDE, *range(levels[1].rank, 0, -1)]
    assert levels[1].rank == max(rank for _, rank in trained)


def test_a_walk_that_began_too_low_goes_up_by_two(data, monkeypatch):
    """To as many as the wide network uses at most."""
    monkeypatch.setattr("isthmus.discovery._walk._cut_to", lambda *_: 1)
    levels, _, trained = cuts(data, monkeypatch)
    used = int((levels[0].shares > UNUSED).sum())
    assert used == 4
    assert trained == [(WIDE, 1), (WIDE, 3), (WIDE, 4), (4, 3), (3, 2), (2, 1)]
    assert [level.rank for level in levels] == [WIDE, 4, 3, 2, 1]


def test_small_weights_that_collapse_are_started_again():
    """Through six layers weights of a third are as good as none; the ridge would remove them."""
    problem = problems.teacher(d_in=6, rank=2, d_out=6, samples=200, noise=0.05, seed=SEED)
    task = make_task(problem.X, problem.Y, Settings())
    data = task.data(0)[0]
    small = context_of(data, Settings(depth=8, width=16, resolution=0.05, steps=10, init_scale=0.1))
    assert _from_random(small, WIDE, 0, 0.1, 1.0).cost > COLLAPSED
    again = _fresh(small, WIDE)
    assert again.cost < COLLAPSED
    assert again.cost == _from_random(small, WIDE, 0, 1.0, 1.0).cost


def test_weights_that_overflow_are_an_error(data):
    with pytest.raises(IsthmusError, match="finite outputs"):
        walked(data, 3, Settings(depth=4, width=8, steps=1, init_scale=1e15))


def test_a_smaller_ridge_costs_less(data, levels):
    context = dataclasses.replace(context_of(data), strength=0.1 * SMALL.strength)
    fine = train_further(context, levels[1], "further")
    assert fine.rank == 3
    assert fine.fit.cost < levels[1].fit.cost
    assert fine.fit.norm > levels[1].fit.norm


def strength_of(noise, steps):
    problem = problems.linear(d_in=5, d_out=5, rank=3, samples=200, noise=noise, seed=SEED)
    data = make_task(problem.X, problem.Y, Settings()).data(0)[0]
    context = context_of(data, Settings(depth=4, width=24, steps=steps))
    return context, *choose_strength(context, 4)


def test_noise_asks_for_a_stronger_ridge():
    """A smaller one only learns the noise: the larger one is taken, and ranks are compared strictly."""
    context, chosen, level, why = strength_of(0.3, 15)
    assert (context.strength, chosen.strength, chosen.tolerance) == (1e-3, STRONGER, TOLERANCE)
    assert chosen.resolution == STRONGER
    assert level is not None and level.error == data_error(chosen, level)
    # Noise of 0.3 deviations is a twelfth of the variance.
    assert 0.06 < level.error < 0.11
    assert all(f"at λ = {strength}" in why for strength in ("0.001", "0.0001", "0.01"))


def test_without_noise_the_ridge_falls_as_long_as_that_helps():
    """Down to errors that are not looked at any more; these are approximations, and ranks are compared roughly."""
    _, chosen, level, _ = strength_of(0.0, 15)
    assert (chosen.strength, chosen.tolerance, chosen.resolution) == (1e-4, ROUGH, FINEST)
    assert level is not None and level.error == data_error(chosen, level) < FINEST
    # Nothing smaller is tried where the first one reaches that.
    context, chosen, level, why = strength_of(0.0, 25)
    assert (chosen.strength, chosen.tolerance) == (context.strength, ROUGH)
    assert level is not None and level.error < FINEST and "0.0001" not in why.split("held out")[1]


def data_error(context, level):
    return context.data.errors(level.fit.network).mean()


def test_a_closer_look_keeps_the_best_start(data, levels):
    """At rank 2, which does not suffice: anew, and from the surface of rank 3, flat and as a ring."""
    context = context_of(data)
    above, level = levels[1:3]
    assert set(closer_starts(context, level, None)) == {"anew"}
    fits = {start: make() for start, make in closer_starts(context, level, above).items()}
    assert set(fits) == {"anew", "unrolled", "ring"}
    assert all(fit.network.dims[fit.network.waist] == 2 for fit in fits.values())
    best = best_of(context, level, fits)
    losses = {level.start: level.fit.loss, **{start: fit.loss for start, fit in fits.items()}}
    assert best.fit.loss == min(losses.values()) == losses[best.start]
    assert (best.rank, best.tries) == (2, level.tries + 3)
    # A start that does no better changes nothing but how many were tried.
    poor = dataclasses.replace(level.fit, loss=2.0 * level.fit.loss)
    same = best_of(context, level, {"poor": poor})
    assert (same.start, same.fit, same.tries) == (level.start, level.fit, level.tries + 1)
    # Where errors are approximations the cost decides, not the ridge.
    cheap = dataclasses.replace(poor, cost=0.5 * level.fit.cost)
    rough = dataclasses.replace(context, tolerance=ROUGH)
    assert best_of(context, level, {"cheap": cheap}).start == level.start
    assert best_of(rough, level, {"cheap": cheap}).start == "cheap"


def test_ranks_that_are_trained_alone(data):
    context = context_of(data, Settings(depth=4, width=16, steps=5))
    found = {rank: level_of(context, rank, make(), "anew") for rank, make in alone(context, [3, 2]).items()}
    assert [(level.rank, level.start, len(level.shares)) for level in found.values()] == [
        (3, "anew", 3),
        (2, "anew", 2),
    ]
    # Each by itself: no rank depends on which others are asked for.
    assert np.array_equal(level_of(context, 2, alone(context, [2])[2](), "anew").errors, found[2].errors)


@pytest.mark.slow
def test_processes_change_no_bit(data, tmp_path):
    """Of trainings that do not depend on each other; kept, they are read."""
    context = context_of(data, Settings(depth=4, width=16, steps=2))
    prints = []
    for n_jobs in (1, 2):
        folder = tmp_path / str(n_jobs)
        made = {f"rank{rank}": make for rank, make in alone(context, [2, 1]).items()}
        fits = Stages(folder, "one").get_all(made, n_jobs)
        assert [fit.network.dims[fit.network.waist] for fit in fits] == [2, 1]
        prints.append([p.detach().numpy().tobytes() for fit in fits for p in fit.network.parameters()])
        ahead = Stages(None, "")
        with ahead.awaited():
            ahead.begin(made, n_jobs)
            begun = ahead.get_all(made, n_jobs)
        prints.append([p.detach().numpy().tobytes() for fit in begun for p in fit.network.parameters()])
        again = Stages(folder, "one")
        assert again.get_all(made, n_jobs)[0].cost == fits[0].cost and again.reused == 2
    assert prints == [prints[0]] * 4


def test_what_is_begun_ahead(monkeypatch, tmp_path):
    """It is trained once, kept when it is asked for, and waited for or given up at the end if nobody asks."""
    log = []

    def elsewhere(tasks, n_jobs):
        def gone():
            try:
                yield from (task() for task in tasks)
            except GeneratorExit:
                log.append("given up")
                raise

        return gone() if n_jobs > 1 else (task() for task in tasks)

    def make(name):
        log.append(name)
        return Fit(hourglass(), 1.0, 1.0, 1.0, 0.0, name)

    monkeypatch.setattr("isthmus.discovery._walk.in_parallel", elsewhere)
    made = {name: functools.partial(make, name) for name in ("at rest", "falling")}
    stages = Stages(tmp_path, "one")
    stages.begin(made, 1)
    assert not stages.begun
    with stages.awaited():
        stages.begin(made, 2)
        stages.begin(made, 2)
        assert [fit.state for fit in stages.get_all(made, 2)] == ["at rest", "falling"]
        assert log == ["at rest", "falling"]
        # What is kept is not trained again.
        stages.begin(made, 2)
        assert not stages.begun and stages.reused == 0
        stages.begin({"diverged": functools.partial(make, "diverged")}, 2)
    assert log == ["at rest", "falling", "diverged"] and not stages.begun
    stages.begin({"other": functools.partial(make, "other")}, 2)
    next(stages.begun["other"])
    with pytest.raises(KeyboardInterrupt), stages.awaited():
        raise KeyboardInterrupt
    assert log[-1] == "given up" and not stages.begun


def test_in_parallel_keeps_the_order():
    assert list(in_parallel([lambda: 1, lambda: 2, lambda: 3], 1)) == [1, 2, 3]
    assert list(in_parallel([], 1)) == []


def test_slack():
    assert slack(0.2, 0.01) == pytest.approx(0.025)
    assert slack(0.2, 0.01, ROUGH) == pytest.approx(0.105)


def test_a_copy_is_its_own():
    net = hourglass()
    twin = copy.deepcopy(net)
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
