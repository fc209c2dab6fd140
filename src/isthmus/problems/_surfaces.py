"""Curves and surfaces with noise around them, and the nearest point on each: what an autoencoder should find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from scipy.spatial import KDTree

from isthmus._checks import check_integer, check_number
from isthmus._cite import cites
from isthmus.problems._problem import Array, Map, isometry, streams

#: Points of a grid from which the nearest point is looked for, in each of one or two parameters.
_GRID = {1: 4001, 2: 201}

#: Gauss–Newton steps from the nearest grid point.
_STEPS = 12


@dataclass(frozen=True, eq=False)
class Surface:
    """N points near a surface in R^d. Arrays are read-only.

    Attributes
    ----------
    name : str
    X : array (N, d)
        Points with noise.
    clean : array (N, d)
        The same without, on the surface.
    rank : int
        Coordinates that tell all its points apart: the least k with a continuous bijection to a part of R^k.
    dimension : int
        Of the surface near a point; less than ``rank`` where it closes up.
    noise : float
        Standard deviation of X − clean in each direction.
    projection : callable (M, d) → (M, d)
        The nearest point of the surface.
    notes : str
    """

    name: str
    X: Array
    clean: Array
    rank: int
    dimension: int
    noise: float
    projection: Map
    notes: str

    def __post_init__(self) -> None:
        for array in (self.X, self.clean):
            array.flags.writeable = False

    def distance(self, Z: Array) -> Array:
        """Distance of each row of Z (M, d) to the surface, (M,)."""
        Z = np.asarray(Z, dtype=np.float64)
        return np.linalg.norm(Z - self.projection(Z), axis=1)


@cites("rank2023", "Figure 3")
def noisy_curve(*, closed: bool = False, samples: int = 500, noise: float = 0.05, seed: int = 0) -> Surface:
    """A curve in the plane, (t, ½·sin πt) for t in [−1, 1] or the unit circle, with noise in both directions.

    The open one needs 1 coordinate. The circle is as thin, dimension 1, but needs 2: no single number runs around it
    without a jump.

    Parameters
    ----------
    closed : bool
        The circle.
    samples : int
    noise : float
        Standard deviation of each coordinate's noise.
    seed : int

    Notes
    -----
    Departs from the paper: the shape of its curve is not given, this one is our choice.
    """
    who = "noisy_curve"
    samples, _, rng, noise_rng = _start(who, samples, noise, seed)
    t = rng.uniform(-1.0, 1.0, (samples, 1))
    if closed:
        clean = np.concatenate([np.cos(np.pi * t), np.sin(np.pi * t)], axis=1)
        return _surface("circle", clean, 2, 1, noise, noise_rng, _onto_sphere(np.eye(2)))

    def place(t: Array) -> Array:
        return np.concatenate([t, 0.5 * np.sin(np.pi * t)], axis=1)

    def slope(t: Array) -> Array:
        return np.stack([np.ones_like(t), 0.5 * np.pi * np.cos(np.pi * t)], axis=1)

    return _surface("curve", place(t), 1, 1, noise, noise_rng, _onto_patch(place, slope, 1))


@cites("rank2023", "§5, 'Autoencoders'")
def noisy_surface(
    *, closed: bool = False, d: int = 10, samples: int = 1000, noise: float = 0.05, seed: int = 0
) -> Surface:
    """A bent patch of dimension 2 in R^d, or the unit sphere in three of its dimensions, with noise in all d.

    The patch is (u, v, ½(u² − v²), uv, ½·sin(2u + v)) for u, v in [−1, 1], placed by a random isometry: 2 coordinates.
    The sphere has dimension 2 and needs 3.

    Parameters
    ----------
    closed : bool
        The sphere.
    d : int
        At least 5, or 3 for the sphere.
    samples, noise, seed : int, float, int
        As in :func:`noisy_curve`.
    """
    who = "noisy_surface"
    d = check_integer(who, "d", d, low=3 if closed else 5)
    samples, placing, rng, noise_rng = _start(who, samples, noise, seed)
    if closed:
        P = rng.standard_normal((samples, 3))
        Q = isometry(placing, d, 3)
        clean = P / np.linalg.norm(P, axis=1, keepdims=True) @ Q.T
        return _surface("sphere", clean, 3, 2, noise, noise_rng, _onto_sphere(Q))
    U = rng.uniform(-1.0, 1.0, (samples, 2))
    Q = isometry(placing, d, 5)

    def place(U: Array) -> Array:
        u, v = U.T
        return np.stack([u, v, 0.5 * (u**2 - v**2), u * v, 0.5 * np.sin(2.0 * u + v)], axis=1) @ Q.T

    def slope(U: Array) -> Array:
        u, v = U.T
        one, none, wave = np.ones_like(u), np.zeros_like(u), 0.5 * np.cos(2.0 * u + v)
        by_u, by_v = np.stack([one, none, u, v, 2.0 * wave], axis=1), np.stack([none, one, -v, u, wave], axis=1)
        return np.stack([by_u @ Q.T, by_v @ Q.T], axis=2)

    return _surface("surface", place(U), 2, 2, noise, noise_rng, _onto_patch(place, slope, 2))


def _start(who: str, samples: int, noise: float, seed: int) -> tuple[int, Generator, Generator, Generator]:
    samples = check_integer(who, "samples", samples, low=2)
    check_number(who, "noise", noise, low=0.0)
    return samples, *streams(who, seed)


def _surface(
    name: str, clean: Array, rank: int, dimension: int, noise: float, rng: Generator, projection: Map
) -> Surface:
    closes = " It closes up, which takes one coordinate more." if rank > dimension else ""
    truth = f"A surface of dimension {dimension} in {clean.shape[1]} dimensions needs {rank} coordinates.{closes}"
    X = clean + noise * rng.standard_normal(clean.shape)
    return Surface(name, X, clean, rank, dimension, float(noise), projection, truth)


def _onto_sphere(Q: Array) -> Map:
    """The nearest point of the unit sphere in the span of the columns of Q."""

    def project(Z: Array) -> Array:
        inside = np.asarray(Z, dtype=np.float64) @ Q
        size = np.linalg.norm(inside, axis=1, keepdims=True)
        # From the middle every point is as near: any will do.
        inside = np.where(size > 0, inside, np.eye(Q.shape[1])[0])
        return inside / np.where(size > 0, size, 1.0) @ Q.T

    return project


def _onto_patch(place: Map, slope: Callable[[Array], Array], parameters: int) -> Map:
    """The nearest point of place([−1, 1]^p): of a grid first, then by Gauss–Newton steps that stay in the patch."""
    axis = np.linspace(-1.0, 1.0, _GRID[parameters])
    grid = np.stack(np.meshgrid(*[axis] * parameters, indexing="ij"), axis=-1).reshape(-1, parameters)
    tree = KDTree(place(grid))

    def project(Z: Array) -> Array:
        Z = np.asarray(Z, dtype=np.float64)
        U = grid[tree.query(Z)[1]]
        best = ((place(U) - Z) ** 2).sum(axis=1)
        for _ in range(_STEPS):
            J = slope(U)
            step = np.linalg.solve(J.transpose(0, 2, 1) @ J, np.einsum("ndp,nd->np", J, Z - place(U))[:, :, None])
            trial = np.clip(U + step[:, :, 0], -1.0, 1.0)
            new = ((place(trial) - Z) ** 2).sum(axis=1)
            better = new < best
            U, best = np.where(better[:, None], trial, U), np.where(better, new, best)
        return place(U)

    return project
