"""The problems that tests and benchmarks run over, by name."""

from __future__ import annotations

import math
from functools import partial
from typing import Protocol

from isthmus.problems._dynamics import ball_trajectories, gradient_descent_losses
from isthmus.problems._elementary import linear, norms, product, pure_noise
from isthmus.problems._frequencies import planted_frequencies
from isthmus.problems._nuisances import with_nuisances
from isthmus.problems._problem import Problem
from isthmus.problems._rank_gap import angle, min_cross
from isthmus.problems._teachers import partially_seen_surface, teacher, teacher_chain


class Maker(Protocol):
    """Anything that makes a problem from a seed and a noise level, both optional."""

    def __call__(self, *, seed: int = 0, noise: float = 0.0) -> Problem:
        """The problem."""
        ...


def _hostile_teacher(*, seed: int = 0, noise: float = 0.0) -> Problem:
    """Rank 3 behind correlated irrelevant columns, units over six decades, heavy tails and another order."""
    problem = teacher(d_in=10, rank=3, d_out=15, samples=1000, seed=seed, noise=noise)
    return with_nuisances(problem, irrelevant=20, units=3.0, heavy_tails=0.7, shuffle=True, seed=seed)


def _pure_noise(*, seed: int = 0, noise: float = 0.0) -> Problem:
    """Pure noise, whatever ``noise`` asks for."""
    return pure_noise(seed=seed)


#: Name → callable with keywords ``seed`` and ``noise``; 500 to 2000 samples of at most 50 columns each.
CATALOGUE: dict[str, Maker] = {
    "teacher-1": partial(teacher, d_in=20, rank=1, d_out=20, samples=1000),
    "teacher-3": partial(teacher, d_in=20, rank=3, d_out=20, samples=1000),
    "teacher-5": partial(teacher, d_in=50, rank=5, d_out=50, samples=2000),
    "teacher-5-narrow": partial(teacher, d_in=20, rank=5, d_out=20, samples=2000),
    "teacher-8": partial(teacher, d_in=30, rank=8, d_out=30, samples=2000),
    "teacher-chain": partial(teacher_chain, dims=(30, 6, 3, 30), samples=2000),
    "surface": partial(partially_seen_surface, samples=2000),
    "norm": partial(norms, blocks=1, block_size=10),
    "norms-2": partial(norms, blocks=2),
    "norms-3": partial(norms, blocks=3, block_size=4, samples=2000),
    "linear-3": partial(linear),
    "linear-6": partial(linear, d_in=30, d_out=12, rank=6),
    "angle": partial(angle),
    "angle-embedded": partial(angle, d_in=10),
    "arc": partial(angle, arc=1.5 * math.pi),
    "min-cross": partial(min_cross, d_in=6, d_out=6),
    "ball": partial(ball_trajectories),
    "ball-ranges": partial(ball_trajectories, encoding="ranges"),
    "ball-vertical": partial(ball_trajectories, throw="vertical", encoding="ranges"),
    "descent": partial(gradient_descent_losses),
    "frequencies": partial(planted_frequencies),
    "product": partial(product, rank=3),
    "product-decoder": partial(product, rank=2, where="decoder"),
    "hostile": _hostile_teacher,
    "pure-noise": _pure_noise,
}
