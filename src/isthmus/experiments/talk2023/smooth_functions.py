"""Random functions on a torus with |β_m|² ∼ ‖m‖₁^{−α−d}, and the sum of the coefficients beyond the first N."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

Array = np.ndarray
#: Terms drawn from all the degrees that are not written out.
DRAWN = 4_000
#: Added to ‖m‖₁. The number of m with ‖m‖₁ ≤ R is near (2R + 1)^d/d!: so the k-th coefficient is a power of k early on.
OFFSET = 0.5
#: Degree up to which coefficients are summed; beyond it, an integral.
SUMMED = 10**5


def shell_sizes(d: int, degrees: Array) -> Array:
    """Number of m ∈ ℤ^d with ‖m‖₁ = r, Σ_j 2^j C(d, j) C(r−1, j−1), for each r ≥ 1 of ``degrees``."""
    r = np.asarray(degrees, dtype=np.float64)
    total = np.zeros_like(r)
    for j in range(1, d + 1):
        below = np.ones_like(r)
        for i in range(1, j):
            below *= (r - i) / i
        total += 2.0**j * math.comb(d, j) * below
    return total


def tail(d: int, alpha: float, counts: Array) -> Array:
    """Σ_{k>N} β_k² for each N of ``counts``, as a share of all: what the best N functions of the basis leave.

    In decreasing order, the constant first though it is 0; shells of equal coefficients may be cut in two.
    """
    r = np.arange(1, SUMMED + 1, dtype=np.float64)
    size = shell_sizes(d, r)
    single = (r + OFFSET) ** (-alpha - d)
    mass = size * single
    # Σ_{r>R} of about 2^d r^{d−1}/(d−1)!·r^{−α−d}.
    rest = 2.0**d / math.factorial(d - 1) * SUMMED ** (-alpha) / alpha
    after = np.append(np.cumsum(mass[::-1])[::-1], 0.0) + rest
    # How many functions the degrees below r have.
    many = 1.0 + np.concatenate([[0.0], np.cumsum(size)])
    left = []
    for N in np.asarray(counts, dtype=np.float64):
        shell = int(np.searchsorted(many, N, side="right")) - 1
        left.append(after[shell] - (N - many[shell]) * (single[shell] if shell < SUMMED else 0.0))
    return np.array(left) / after[0]


@dataclass(frozen=True, eq=False)
class SmoothFunction:
    """f(θ) = Σ_j a_j cos(m_j·θ + φ_j) on the torus, of variance 1.

    Attributes
    ----------
    modes : array (J, d)
    amplitudes, phases : array (J,)
    """

    modes: Array
    amplitudes: Array
    phases: Array

    def __call__(self, theta: Array) -> Array:
        """Value at each row of angles (N, d), (N, 1)."""
        value = np.zeros(len(theta))
        for first in range(0, len(self.modes), 1000):
            part = slice(first, first + 1000)
            value += np.cos(theta @ self.modes[part].T + self.phases[part]) @ self.amplitudes[part]
        return value[:, None]


def smooth_function(d: int, alpha: float, written: int, rng: np.random.Generator) -> SmoothFunction:
    """A function with |β_m|² ∼ ‖m‖₁^{−α−d}, scaled to the sum 1, and random phases.

    All m up to a degree are there, ``written`` at least; for the higher ones stand ``DRAWN``, by chance and of equal
    size. The constant is left out.
    """
    r = np.arange(1, SUMMED + 1, dtype=np.float64)
    sizes = shell_sizes(d, r)
    degree = 1 + int(np.searchsorted(np.cumsum(sizes), written))
    low = _half_ball(d, degree)
    variance = 2.0 * (np.abs(low).sum(axis=1) + OFFSET) ** (-alpha - d)
    mass = sizes * (r + OFFSET) ** (-alpha - d)
    chances = mass[degree:]
    radii = degree + 1 + rng.choice(len(chances), size=DRAWN, p=chances / chances.sum())
    high = _on_shells(d, radii, rng)
    variance = np.concatenate([variance, np.full(DRAWN, chances.sum() / DRAWN)]) / mass.sum()
    modes = np.concatenate([low, high]).astype(np.float64)
    return SmoothFunction(modes, np.sqrt(2.0 * variance), rng.uniform(0.0, 2.0 * np.pi, len(modes)))


def torus(theta: Array) -> Array:
    """Angles (N, d) as points (cos θ_1, sin θ_1, …) / √d of R^{2d}.

    There a radial kernel depends on differences of angles alone: its principal components are the waves.
    """
    return np.concatenate([np.cos(theta), np.sin(theta)], axis=1) / math.sqrt(theta.shape[1])


def _half_ball(d: int, degree: int) -> Array:
    """One of ±m for all m ≠ 0 with ‖m‖₁ ≤ degree, (J, d)."""
    points = np.zeros((1, 0), dtype=np.int64)
    for _ in range(d):
        left = degree - np.abs(points).sum(axis=1)
        grown = [
            np.column_stack([points[left >= abs(k)], np.full(int((left >= abs(k)).sum()), k)])
            for k in range(-degree, degree + 1)
        ]
        points = np.concatenate(grown)
    first = np.array([row[np.flatnonzero(row)[0]] if row.any() else 0 for row in points])
    return points[first > 0]


def _on_shells(d: int, radii: Array, rng: np.random.Generator) -> Array:
    """For each radius one m with ‖m‖₁ = radius, uniformly: how many entries are not 0, their sizes, their signs."""
    j = np.arange(1, d + 1)
    below = np.ones((len(radii), d))
    for i in range(1, d):
        # Products rather than factorials: radii may be large. Beyond the radius they are 0.
        below[:, i] = below[:, i - 1] * np.maximum(radii - i, 0) / i
    weights = below * (2.0**j * [math.comb(d, int(i)) for i in j])
    total = np.cumsum(weights, axis=1)
    chosen = 1 + (total < rng.random((len(radii), 1)) * total[:, -1:]).sum(axis=1)
    m = np.zeros((len(radii), d), dtype=np.int64)
    for many in np.unique(chosen):
        rows = np.flatnonzero(chosen == many)
        sizes = _parts(radii[rows], int(many), rng) * rng.choice([-1, 1], size=(len(rows), int(many)))
        places = rng.random((len(rows), d)).argsort(axis=1)[:, :many]
        m[rows[:, None], places] = sizes
    return m


def _parts(radii: Array, many: int, rng: np.random.Generator) -> Array:
    """Each radius as a sum of ``many`` positive integers, uniformly: cut at different places."""
    cuts = np.zeros((len(radii), many - 1), dtype=np.int64)
    again = np.arange(len(radii))
    while len(again):
        cuts[again] = np.sort(rng.integers(1, radii[again, None], size=(len(again), many - 1)), axis=1)
        again = again[(np.diff(cuts[again], axis=1) == 0).any(axis=1)]
    return np.diff(cuts, axis=1, prepend=0, append=radii[:, None])
