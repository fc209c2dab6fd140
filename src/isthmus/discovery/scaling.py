"""From the user's units to numbers a network can be trained on, and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: A column that varies by less than this share of its size is constant: what is left of it is rounding.
CONSTANT = 1e-13
#: Singular values below this share of the largest are no direction of the data.
NO_DIRECTION = 1e-9


@dataclass(frozen=True, eq=False)
class Scaling:
    """Centre and divide the columns; beyond ``limit`` columns, also rotate onto the leading principal axes.

    A squared error and a ridge do not notice rotations, and the weights of a minimum lie in the span of the data: with
    at least as many axes as samples, nothing is lost by the rotation.

    Attributes
    ----------
    shift, scale : array (d,)
        Mean and standard deviation (each column's own, or one for all); 1 for constant columns.
    axes : array (r, d) or None
        Orthonormal rows.
    constant : array (d,) of bool
    share : float
        Share of the variance that the axes keep.
    """

    shift: Array
    scale: Array
    axes: Array | None
    constant: NDArray[np.bool_]
    share: float = 1.0

    @staticmethod
    def fit(A: Array, limit: int, units: str = "own") -> Scaling:
        """Learn the scaling from the rows of ``A``; with ``units="common"`` all columns are divided by one number."""
        # Divided by their size first: squares of very large or small numbers leave the range of float64.
        size = np.abs(A).max(axis=0)
        size = np.where(size > 0, size, 1.0)
        mean, deviation = (A / size).mean(axis=0), (A / size).std(axis=0)
        constant = deviation <= CONSTANT
        scale = np.where(constant, 1.0, deviation * size)
        if units == "common" and not constant.all():
            largest = scale[~constant].max()
            scale = np.where(constant, 1.0, largest * np.sqrt(((scale[~constant] / largest) ** 2).mean()))
        plain = Scaling(mean * size, scale, None, constant)
        if A.shape[1] <= limit:
            return plain
        _, s, axes = np.linalg.svd(plain(A), full_matrices=False)
        count = max(1, min(limit, int((s > NO_DIRECTION * s[0]).sum())))
        share = float((s[:count] ** 2).sum() / max((s**2).sum(), 1e-300))
        return Scaling(plain.shift, plain.scale, axes[:count], constant, share)

    @staticmethod
    def none(columns: int) -> Scaling:
        """Columns as they are."""
        return Scaling(np.zeros(columns), np.ones(columns), None, np.zeros(columns, dtype=bool))

    def __call__(self, A: Array) -> Array:
        """Scaled (and rotated) rows."""
        B = np.where(self.constant, 0.0, (A - self.shift) / self.scale)
        return B if self.axes is None else B @ self.axes.T

    def undo(self, B: Array) -> Array:
        """Back to the user's units."""
        return (B if self.axes is None else B @ self.axes) * np.where(self.constant, 0.0, self.scale) + self.shift

    @property
    def columns(self) -> int:
        """Columns after scaling."""
        return len(self.shift) if self.axes is None else len(self.axes)


def linear_rank(B: Array) -> int:
    """Dimension of the affine span of the rows of ``B``, scaled columns; at most 2000 rows are looked at."""
    rows = B if len(B) <= 2000 else B[:: -(-len(B) // 2000)]
    s = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)
    return int((s > NO_DIRECTION * max(s[0], 1e-300)).sum()) if s.size and s[0] > 0 else 0
