"""Synthetic tasks with their truth attached: rank, latent coordinates, exact function, noise level.

To add a family, write one function with keyword arguments (``samples``, ``noise``, ``seed`` among them) that
returns a :class:`Problem`, and an entry of :data:`CATALOGUE`: the tests then check its truth by themselves.
"""

from __future__ import annotations

from isthmus.problems._catalogue import CATALOGUE
from isthmus.problems._classes import Classes, inverted_s_classes, sectors
from isthmus.problems._dynamics import (
    ball_trajectories,
    descend,
    factorisation_cost,
    gradient_descent_losses,
    summary_cost,
    summary_statistics,
    summary_step,
    summary_velocity,
)
from isthmus.problems._elementary import linear, norms, product, pure_noise
from isthmus.problems._frequencies import planted_frequencies
from isthmus.problems._nuisances import with_nuisances
from isthmus.problems._problem import Problem
from isthmus.problems._rank_gap import angle, min_cross
from isthmus.problems._surfaces import Surface, noisy_curve, noisy_surface
from isthmus.problems._teachers import partially_seen_surface, teacher, teacher_chain

__all__ = [
    "CATALOGUE",
    "Classes",
    "Problem",
    "Surface",
    "angle",
    "ball_trajectories",
    "descend",
    "factorisation_cost",
    "gradient_descent_losses",
    "inverted_s_classes",
    "linear",
    "min_cross",
    "noisy_curve",
    "noisy_surface",
    "norms",
    "partially_seen_surface",
    "planted_frequencies",
    "product",
    "pure_noise",
    "sectors",
    "summary_cost",
    "summary_statistics",
    "summary_step",
    "summary_velocity",
    "teacher",
    "teacher_chain",
    "with_nuisances",
]
