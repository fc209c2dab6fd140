"""Shared by the tests of discovery: levels and profiles written down by hand, quick settings."""

from __future__ import annotations

import numpy as np

from isthmus.discovery._fits import Fit
from isthmus.discovery._profile import RankProfile
from isthmus.discovery._walk import TOLERANCE, Level
from isthmus.networks import FullyConnected
from tools import SEED, generator, random_net

#: Where the point is not how well it fits.
QUICK = {"depth": 4, "width": 16, "steps": 4, "replicas": 0}
#: Small, and trained to rest.
SMALL = {"depth": 4, "width": 24, "steps": 25, "replicas": 0}

#: A network where a Level needs one and nobody looks at it.
SOME = FullyConnected.joined(random_net((2, 1)), random_net((1, 2)))


def level(rank, error, *, rows=200, spread=0.2, cost=None, state="at rest", tries=1, seed=0):
    """A level whose held-out errors have this mean; rows are easy or hard at every rank alike."""
    rng = np.random.default_rng([SEED, seed])
    common = rng.standard_normal(rows)
    own = np.random.default_rng([SEED, seed, rank, 1]).standard_normal(rows) * 0.1
    pattern = 1.0 + spread * (common - common.mean() + own - own.mean())
    fit = Fit(SOME, error if cost is None else cost, error, 10.0, 0.0, state)
    return Level(rank, fit, error * pattern, "narrowed", tries, np.full(rank, 1.0 / rank))


def levels_of(errors, *, states=None, **options):
    """``errors`` by rank; the widest first, as a walk gives them."""
    states = states or {}
    return [level(k, e, state=states.get(k, "at rest"), **options) for k, e in sorted(errors.items(), reverse=True)]


def profile_of(errors, *, baseline=1.0, tolerance=TOLERANCE, resolution=None, **options):
    shared = {"depth": 8, "width": 64, "strength": 0.01, "tolerance": tolerance, "resolution": resolution}
    return RankProfile.of(levels_of(errors, **options), baseline=baseline, **shared)


def hourglass(dims_in=(5, 8, 3), dims_out=(3, 8, 4), slope=0.0, *, seed=0):
    return FullyConnected.joined(random_net(dims_in, slope, seed=seed), random_net(dims_out, slope, seed=seed + 1))


__all__ = ["QUICK", "SMALL", "generator", "hourglass", "level", "levels_of", "profile_of"]
