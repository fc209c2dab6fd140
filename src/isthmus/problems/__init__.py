"""Synthetic tasks with their truth attached: rank, latent coordinates, exact function, noise level.

To add a family, write one function with keyword arguments (``samples``, ``noise``, ``seed`` among them) that
returns a :class:`Problem`, and an entry of :data:`CATALOGUE`: the tests then check its truth by themselves.
"""

from __future__ import annotations

from isthmus.problems.base import Problem
from isthmus.problems.catalogue import CATALOGUE
from isthmus.problems.dynamics import ball_trajectories, gradient_descent_losses
from isthmus.problems.elementary import linear, norms, product, pure_noise
from isthmus.problems.nuisances import with_nuisances
from isthmus.problems.rank_gap import angle, min_cross
from isthmus.problems.summary import (
    descend,
    factorisation_cost,
    summary_cost,
    summary_statistics,
    summary_step,
    summary_velocity,
)
from isthmus.problems.teachers import partially_seen_surface, teacher, teacher_chain

__all__ = [
    "CATALOGUE",
    "Problem",
    "angle",
    "ball_trajectories",
    "descend",
    "factorisation_cost",
    "gradient_descent_losses",
    "linear",
    "min_cross",
    "norms",
    "partially_seen_surface",
    "product",
    "pure_noise",
    "summary_cost",
    "summary_statistics",
    "summary_step",
    "summary_velocity",
    "teacher",
    "teacher_chain",
    "with_nuisances",
]
