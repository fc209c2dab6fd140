"""Numbers of a sweep against a swept one: medians over seeds with their range, and ‖θ‖² over depths by rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus.plotting.sweeps_cells import Gathered


@dataclass(frozen=True, eq=False)
class Curve:
    """One number against a swept one, the others held at ``at``: median, least and greatest over the seeds."""

    at: tuple[int, ...]
    x: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray


def curves(found: Gathered, name: str, column: str) -> Iterator[Curve]:
    """Curves of ``column`` against the swept ``name``, one for every place of the others that has numbers."""
    axis, numbers = found.place(name), found.numbers.get(column, {})
    for at, members in found.along(name).items():
        rows = []
        for one in members:
            values = [numbers[key] for key in one.keys if math.isfinite(numbers.get(key, math.nan))]
            if values:
                x = float(found.swept[axis].values[one.at[axis]])
                rows.append((x, float(np.median(values)), min(values), max(values)))
        if rows:
            yield Curve(at, *np.array(rows, dtype=np.float64).T)


@dataclass(frozen=True, eq=False)
class Piece:
    """‖θ‖² of the networks of one rank over depths, and ‖θ‖² = L·R0 + R1 + R2/L fitted to them.

    ``fit`` is what ``estimate`` gave; None for rank 0, since where nothing is left there is no slope to read.
    """

    rank: int
    depths: np.ndarray
    norms: np.ndarray
    converged: np.ndarray
    keys: tuple[str, ...]
    fit: Any

    @property
    def drawn(self) -> bool:
        """Whether there is a line to draw."""
        return self.fit is not None and math.isfinite(self.fit.R0.value)

    @property
    def told(self) -> str:
        """The rank, and beside it the slope with its interval or why there is none."""
        if self.rank == 0:
            return "rank 0: nothing left"
        if not self.drawn:
            return f"rank {self.rank}" if self.fit is None else f"rank {self.rank}: {self.fit.state}"
        slope = f"rank {self.rank}: slope {self.fit.R0.value:.3g} ({self.fit.R0.low:.3g} … {self.fit.R0.high:.3g})"
        return slope if self.fit.state == "computed" else f"{slope}, {self.fit.state}"

    def line(self, count: int = 60) -> tuple[np.ndarray, np.ndarray]:
        """Depths and the fitted ‖θ‖² there."""
        L = np.linspace(self.depths.min(), self.depths.max(), count)
        rest = self.fit.R2.value if math.isfinite(self.fit.R2.value) else 0.0
        return L, L * self.fit.R0.value + self.fit.R1.value + rest / L


def pieces(
    found: Gathered, name: str, estimate: Callable[[Any, Any], Any], most: int | None = None
) -> list[tuple[tuple[int, ...], list[Piece]]]:
    """Finished networks by rank against the swept depth ``name``, for every place of the other parameters.

    Parameters
    ----------
    found : Gathered
    name : str
        The depth.
    estimate : callable
        :func:`isthmus.measures.estimate_costs`; what draws imports no measures.
    most : int, optional
        Places to fit, the first ones.
    """
    axis = found.place(name)
    norm, rank, settled = (found.numbers.get(key, {}) for key in ("norm", "rank", "converged"))
    result = []
    for at, members in list(found.along(name).items())[:most]:
        groups: dict[int, list[tuple[float, float, bool, str]]] = {}
        for one in members:
            L = float(found.swept[axis].values[one.at[axis]])
            for key in one.keys:
                k, size = rank.get(key, math.nan), norm.get(key, math.nan)
                if math.isfinite(k) and math.isfinite(size) and int(k) in one.ranks:
                    groups.setdefault(int(k), []).append((L, size, settled.get(key, 1.0) != 0.0, key))
        parts = []
        for k, rows in sorted(groups.items()):
            depths, norms, rest = (np.array([row[i] for row in rows]) for i in range(3))
            fit = estimate(depths, norms) if k else None
            parts.append(Piece(k, depths, norms, rest, tuple(row[3] for row in rows), fit))
        if parts:
            result.append((at, parts))
    return result
