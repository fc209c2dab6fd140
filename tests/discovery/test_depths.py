"""Q-depth: ranges of depth from profiles of known lines, of linear networks in closed form, and of a discovery."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

import isthmus
from isthmus import IsthmusError, RankProfile, depth_range
from isthmus.constructions import rank_one
from isthmus.discovery._depths import depth_intervals
from isthmus.plotting.style import new_figure
from tools import assert_close


def profile_of(ranks, cost, R1, *, depth=8, strength=0.01, states=None):
    """A profile with these numbers, and the wide network that every walk begins with."""
    ranks, cost, R1 = [*ranks, 16], [*cost, 0.0], [*R1, 0.0]
    zeros = np.zeros(len(ranks))
    norm = np.array(R1) + np.array(ranks) * depth
    return RankProfile(
        ranks=np.array(ranks),
        cost=np.array(cost),
        loss=zeros,
        error=np.array(cost),
        standard_error=zeros,
        excess=zeros,
        excess_error=zeros,
        norm=norm,
        regularity=np.array(R1),
        states=tuple(states or ["at rest"] * len(ranks)),
        starts=tuple(["narrowed"] * (len(ranks) - 1) + ["fresh"]),
        baseline=1.0,
        depth=depth,
        width=32,
        strength=strength,
        tolerance=0.1,
        resolution=strength,
    )


@pytest.fixture(scope="module")
def task():
    return isthmus.problems.linear(d_in=5, d_out=4, rank=2, samples=120)


@pytest.fixture(scope="module")
def found(task):
    return isthmus.discover(task.X, task.Y, depth=4, width=16, replicas=0, steps=30)


def with_profile(found, profile, *replicas, rank=2, verdict="determined"):
    return dataclasses.replace(found, profile=profile, replicas=replicas, rank=rank, verdict=verdict)


# ---- The envelope of straight lines


lines = st.lists(st.tuples(st.floats(0.0, 1.0, width=32), st.floats(-20.0, 60.0, width=32)), min_size=2, max_size=6)


@given(lines, st.booleans())
def test_the_intervals_are_those_of_a_search_over_all_depths(pairs, per_depth):
    ranks = np.arange(len(pairs), dtype=np.float64)
    cost, R1 = (np.array(column, dtype=np.float64) for column in zip(*pairs))
    lam, ridge = 0.01, 0.002
    lows, highs = depth_intervals(ranks, cost, R1, lam, None if per_depth else ridge)
    for L in (1, 2, 3, 5, 8, 13, 40, 200, 3000):
        values = cost + lam * ranks + lam / L * R1 if per_depth else cost + ridge * (ranks * L + R1)
        inside = (lows <= L) & (highs >= L)
        gaps = values - values.min()
        assert inside[gaps > 1e-9].sum() == 0  # what is not the best is nowhere inside
        alone = np.flatnonzero(gaps <= 1e-9)
        assert len(alone) > 1 or inside[alone[0]]


def test_a_profile_by_hand(found):
    """2 against 3: 0.02 + 0.3/L < 0.03 + 0.1/L from L = 20 on; against 1, 0.12 + 0.5/L, always."""
    made = with_profile(found, profile_of([1, 2, 3], [0.11, 0.0, 0.0], [50.0, 30.0, 10.0]))
    here = depth_range(made)
    assert (here.low, here.high, here.state) == (20, math.inf, "determined")
    assert [here.best(L) for L in (1, 19, 21, 10**6)] == [3, 3, 2, 2]
    # With the ridge 0.01/8 at every depth each rank has its end, the last being none at all.
    other = depth_range(made, fixed="ridge")
    assert (other.low, other.high) == (20, 0.11 / 0.00125 + 20)
    assert [other.best(L) for L in (1, 21, 200, 10**4)] == [3, 2, 1, 0]
    assert "depth" in other.sentence and other.to_dict()["rows"][0]["rank"] == 0


def test_the_picture_has_a_line_for_every_rank_and_the_range(found):
    here = depth_range(with_profile(found, profile_of([1, 2, 3], [0.11, 0.0, 0.0], [50.0, 30.0, 10.0])), fixed="ridge")
    (axes,) = here.plot(new_figure(6.0, 4.0, dpi=30)).axes
    lines = {line.get_label(): line for line in axes.lines}
    assert {"a constant", "rank 1", "rank 2"} <= set(lines)
    depths, losses = lines["rank 2"].get_data()
    assert_close(losses, [0.00125 * (2 * depth + 30.0) for depth in depths])
    (span,) = axes.patches
    assert (span.get_x(), span.get_x() + span.get_width()) == pytest.approx((here.low, here.high))


def test_states(found):
    numbers = [1, 2, 3], [0.11, 0.0, 0.0], [50.0, 30.0, 10.0]
    good = profile_of(*numbers)
    falling = profile_of(*numbers, states=["at rest", "falling", "at rest", "at rest"])
    assert depth_range(with_profile(found, falling)).state == "undetermined"
    assert depth_range(with_profile(found, good, verdict="undetermined")).state == "undetermined"
    # A replica for which it ends before it begins here.
    apart = profile_of([1, 2, 3], [0.0, 0.0, 0.5], [31.0, 30.0, 80.0], depth=10)
    disagree = depth_range(with_profile(found, good, apart))
    assert disagree.state == "undetermined" and disagree.replicas == ((1.0, 1.0),)
    assert depth_range(with_profile(found, good, good)).state == "determined"
    # Rank 3 costs nothing less and has the larger R1: nowhere the best.
    empty = depth_range(with_profile(found, profile_of([1, 2, 3], [0.11, 0.0, 0.0], [50.0, 10.0, 30.0])), rank=3)
    assert empty.state == "empty" and math.isnan(empty.low)
    # No rank above it was tried.
    short = depth_range(with_profile(found, profile_of([1, 2], [0.11, 0.0], [50.0, 30.0])))
    assert short.low == 1 and any("later" in reason for reason in short.reasons)


# ---- Linear networks, where everything is known


def least(s, ridge, depth):
    """min_t (t − s)² + ridge·L·t^{2/L} over the branch t > 0, and t there."""
    objective = lambda t: (t - s) ** 2 + ridge * depth * t ** (2 / depth)  # noqa: E731
    result: Any = minimize_scalar(objective, bounds=(0.3 * s, 1.2 * s), method="bounded", options={"xatol": 1e-12})
    return float(result.fun), float(result.x)


def linear_profile(values, ridge, depth):
    """That of Y = AX, X white, in closed form: cost and norm of the best linear network of each rank."""
    total = sum(s**2 for s in values)
    ranks = range(1, len(values) + 1)
    kept = [least(s, ridge, depth)[1] for s in values]
    cost = [sum((s - t) ** 2 for s, t in zip(values[:k], kept)) + sum(s**2 for s in values[k:]) for k in ranks]
    norm = [depth * sum(t ** (2 / depth) for t in kept[:k]) for k in ranks]
    R1 = [n - k * depth for k, n in zip(ranks, norm)]
    return profile_of(ranks, np.array(cost) / total, R1, depth=depth, strength=ridge * depth / total)


def true_rank(values, ridge, depth):
    """Singular values that are worth ridge·L·t^{2/L}."""
    return sum(least(s, ridge, depth)[0] < s**2 for s in values)


@pytest.mark.parametrize("fixed", ["ridge", "strength"])
def test_linear_networks_in_closed_form(found, fixed):
    """The predicted ends are where the exact minimum changes its rank, up to O(1/L)."""
    values, depth, ridge = [3.0, 2.0, 1.0, 0.5], 60, 0.01
    made = with_profile(found, linear_profile(values, ridge, depth))
    if fixed == "strength":
        # λ = 0.6: what explains less does not pay in a deep network.
        here = depth_range(made, rank=3)
        assert here.high == math.inf and here.low > 1
        assert all(true_rank(values, ridge * depth / L, L) == here.best(L) for L in (20, 60, 200, 2000))
        return
    here = depth_range(made, fixed=fixed, rank=2)
    by_truth = [L for L in range(3, 600) if true_rank(values, ridge, L) == 2]
    assert abs(here.low - by_truth[0]) <= 0.06 * by_truth[0]
    assert abs(here.high - by_truth[-1]) <= 0.06 * by_truth[-1]
    # The twin: with another R1 the ends are elsewhere.
    wrong = linear_profile(values, ridge, depth)
    wrong = dataclasses.replace(wrong, regularity=wrong.regularity + 80.0 * wrong.ranks)
    assert abs(depth_range(with_profile(found, wrong), fixed=fixed, rank=2).high - by_truth[-1]) > 0.15 * by_truth[-1]


# ---- The deep end: networks of rank 1 through all samples


def grid_task(count, seed=0):
    """y = x in the plane: of rank 2."""
    X = np.random.default_rng(seed).uniform(-1, 1, (count, 2))
    return X, X.copy()


def of_the_plane(found):
    names = {"feature_names": ("a", "b"), "target_names": ("c", "d")}
    return dataclasses.replace(with_profile(found, profile_of([1, 2], [0.5, 0.0], [5.0, 4.0])), **names)


def test_the_range_grows_with_the_samples(found):
    made = of_the_plane(found)
    sizes = (10, 40, 160)
    ranges = [depth_range(made, *grid_task(N)) for N in sizes]
    ends = [one.interpolator for one in ranges]
    assert [one.high for one in ranges] == [end - 1 for end in ends]
    assert ends == sorted(ends) and math.isfinite(ends[-1]) and ends[-1] > 2 * ends[0]
    # 2(1 − 1/k)log N = log N for k = 2.
    excess = [one.least_excess for one in ranges]
    slope = np.polyfit(np.log(sizes), excess, 1)[0]
    assert 0.6 < slope < 1.4


@pytest.mark.parametrize("fixed", ["strength", "ridge"])
def test_the_interpolator_takes_over_where_it_says(found, fixed):
    """Against the network itself: its norm at that depth, and one layer before."""
    made = of_the_plane(found)
    X, Y = grid_task(12)
    here = depth_range(made, X, Y, fixed=fixed)
    own = here.rows[2]
    assert own["rank"] == 2
    scaled = (X - X.mean(0)) / X.std(0)
    for depth, wins in ((int(here.interpolator), True), (int(here.interpolator) - 1, False)):
        built = rank_one(scaled, scaled, depth)
        norm = sum(float(p.detach().square().sum()) for p in built.network.parameters())
        ridge = here.strength / depth if fixed == "strength" else here.ridge
        assert (ridge * norm < here.loss(own, depth)) == wins
        # Prop. 3 and Thm 2: any network of rank 1 through all samples has at least this norm.
        assert norm >= depth * math.exp(here.least_excess / depth) * (1 - 1e-9)


def test_contradictory_samples_have_no_interpolator(found):
    X, Y = grid_task(10)
    X[1] = X[0]
    assert depth_range(of_the_plane(found), X, Y).interpolator == math.inf


# ---- A discovery


def test_of_a_discovery(found, task):
    here = depth_range(found, task.X, task.Y)
    assert here.rank == found.rank and here.strength == found.profile.strength
    assert {row["rank"] for row in here.rows} == {0, *map(int, found.profile.ranks[:-1])}
    # The lines meet the profile at its own depth.
    for row in here.rows[1:]:
        own = found.profile.row(row["rank"])
        assert here.loss(row, found.profile.depth) == pytest.approx(float(found.profile.loss[own]), rel=1e-4)
    assert depth_range(found, fixed="ridge").best(10**6) == 0
    assert math.isnan(depth_range(found).least_excess) and here.least_excess > -10


def test_bad_input(found, task):
    with pytest.raises(IsthmusError, match="rank"):
        depth_range(found, rank=9)
    with pytest.raises(IsthmusError, match="fixed"):
        depth_range(found, fixed="width")
    with pytest.raises(IsthmusError, match="rows"):
        depth_range(found, task.X, task.Y[:-1])
    with pytest.raises(IsthmusError, match="profile"):
        depth_range(dataclasses.replace(found, profile=None))
