"""The same answer from other learning rates, initial scales, units and row orders."""

from __future__ import annotations

import numpy as np
import pytest

from isthmus import discover, problems
from made import SMALL
from tools import SEED


def variants(problem):
    """Name → (X, Y, options): the same task, seen otherwise."""
    X, Y = problem.X, problem.Y
    rng = np.random.default_rng(SEED)
    order = rng.permutation(len(X))
    units_in, units_out = (10.0 ** rng.choice([-4, 4], A.shape[1]) for A in (X, Y))
    return {
        "slow": (X, Y, {"learning_rate": 3e-4}),
        "fast": (X, Y, {"learning_rate": 1e-2}),
        "small": (X, Y, {"init_scale": 0.5}),
        "large": (X, Y, {"init_scale": 2.0}),
        "units": (X * units_in, Y * units_out, {}),
        "rows": (X[order], Y[order], {}),
    }


NAMES = ["slow", "fast", "small", "large", "units", "rows"]


@pytest.fixture(scope="module")
def line():
    return problems.linear(d_in=4, d_out=4, rank=2, samples=120, noise=0.05, seed=SEED)


@pytest.mark.parametrize("name", NAMES)
def test_a_small_problem(line, name):
    X, Y, options = variants(line)[name]
    # So many that all come to rest, whatever rounding does to the way there.
    found = discover(X, Y, **{**SMALL, "steps": 50, **options})
    assert (found.rank, found.verdict) == (2, "determined"), found.reasons


SLOW = pytest.mark.slow


@pytest.mark.parametrize("name", [pytest.param("fast", marks=SLOW), pytest.param("large", marks=SLOW), "units"])
def test_doubt_is_as_stable(name):
    problem = problems.pure_noise(d_in=3, d_out=3, samples=80, seed=SEED)
    X, Y, options = variants(problem)[name]
    assert discover(X, Y, **{**SMALL, **options}).verdict == "undetermined"


GRID = {
    "teacher": lambda: problems.teacher(d_in=10, rank=3, d_out=10, samples=1000, noise=0.05, seed=SEED),
    "norms": lambda: problems.norms(blocks=2, samples=1000, seed=SEED),
    # With fewer rows the network through one coordinate does not always come to rest.
    "angle": lambda: problems.angle(samples=1000, seed=SEED),
    "ball": lambda: problems.ball_trajectories(samples=600, noise=0.03, seed=SEED),
}


@pytest.mark.slow
@pytest.mark.parametrize("task", GRID)
def test_a_grid_at_default_arguments(task):
    problem = GRID[task]()
    plain = discover(problem.X, problem.Y)
    assert (plain.rank, plain.verdict) == (problem.rank, "determined")
    for name, (X, Y, options) in variants(problem).items():
        found = discover(X, Y, **options)
        assert (found.rank, found.verdict) == (plain.rank, plain.verdict), (name, found.reasons)
