"""Q-tsp: the length of the shortest open path through points, exactly or bounded from both sides; diameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from isthmus._checks import as_matrix, check_integer
from isthmus._cite import cites
from isthmus.linalg import CHUNK_BYTES, chunk_rows

#: Distinct points up to which Held–Karp's 2ⁿ·n table is filled.
EXACT_POINTS = 15

#: Distinct points up to which all distances are held at once (8n² bytes: 200 MB).
TABLE_POINTS = 5000

_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class PathLength:
    """Length of an open path through every point, or a bound of the shortest one.

    Attributes
    ----------
    value : float
    order : tuple of int, or None
        Rows of Y in the order of the path; None for a lower bound, which is the length of no path.
    state : str
        ``"exact"``, ``"lower bound"`` or ``"upper bound"``.
    """

    value: float
    order: tuple[int, ...] | None
    state: str


class _Points:
    """Distinct rows, scaled by a power of two so that squares neither under- nor overflow."""

    def __init__(self, who: str, Y: Any, *, table: bool = True) -> None:
        rows = as_matrix(who, "Y", Y).cpu().numpy() + 0.0  # −0 becomes 0: equal points have equal bits
        largest = float(np.abs(rows).max())
        self.scale = 2.0 ** math.floor(math.log2(largest)) if largest > 0 else 1.0
        self.rows, inverse = np.unique(rows / self.scale, axis=0, return_inverse=True)
        self.inverse = inverse.reshape(-1)
        self.table = cdist(self.rows, self.rows) if table and len(self.rows) <= TABLE_POINTS else None

    def __len__(self) -> int:
        return len(self.rows)

    def distances(self, i: int) -> np.ndarray:
        """From point i to all, (n,)."""
        if self.table is not None:
            return self.table[i]
        return np.linalg.norm(self.rows - self.rows[i], axis=1)

    def path(self, order: np.ndarray, state: str) -> PathLength:
        """The path through the distinct points as one through all rows: equal rows follow one another."""
        steps = np.linalg.norm(np.diff(self.rows[order], axis=0), axis=1)
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        rows = np.argsort(place[self.inverse], kind="stable")
        return PathLength(self.scale * math.fsum(steps), tuple(rows.tolist()), state)


@cites("rank2023", "Prop. 10", ids=("Q-tsp",))
def shortest_path(Y: Any) -> PathLength:
    """TSP(y_1 … y_N) = min over orders of Σ‖y_{i+1} − y_i‖: an *open* path, which does not return.

    Parameters
    ----------
    Y : array (N, d)
        Points as rows; equal rows count once.

    Returns
    -------
    PathLength
        ``"exact"`` for up to 15 distinct points (Held–Karp) and for any number on a line (d = 1); above that
        the ``"lower bound"`` of :func:`path_lower_bound`.

    Examples
    --------
    >>> shortest_path([[0.0], [3.0], [1.0]])
    PathLength(value=3.0, order=(0, 2, 1), state='exact')
    """
    points = _Points("shortest_path", Y, table=False)
    if points.rows.shape[1] == 1:
        return points.path(np.arange(len(points)), "exact")  # distinct rows come sorted
    if len(points) <= EXACT_POINTS:
        return points.path(_held_karp(cdist(points.rows, points.rows)), "exact")
    return path_lower_bound(Y)


def _held_karp(D: np.ndarray) -> np.ndarray:
    """Order of the shortest open path by dynamic programming over (set visited, last point)."""
    n = len(D)
    length = np.full((2**n, n), np.inf)
    before = np.zeros((2**n, n), dtype=np.int8)
    length[2 ** np.arange(n), np.arange(n)] = 0.0
    sets = np.arange(2**n)
    sizes = sum((sets >> i) & 1 for i in range(n))
    for size in range(1, n):
        of_size = sets[sizes == size]
        for last in range(n):
            free = of_size[(of_size >> last) & 1 == 0]
            through = length[free] + D[:, last]
            before[free | (1 << last), last] = through.argmin(1)
            length[free | (1 << last), last] = through.min(1)
    visited, order = 2**n - 1, [int(length[-1].argmin())]
    while len(order) < n:
        previous = int(before[visited, order[-1]])
        visited -= 1 << order[-1]
        order.append(previous)
    return np.array(order[::-1])


@cites("rank2023", "Prop. 10", ids=("Q-tsp",))
def path_lower_bound(Y: Any, *, iterations: int | None = None) -> PathLength:
    """max_π MST(d_ij + π_i + π_j) + (two smallest π) − 2Σπ ≤ TSP: the Held–Karp bound, for open paths.

    An open path closes to a tour through one more point at distance 0 from all. The 1-tree of that point is a
    spanning tree of the others and its two cheapest edges; prices π on the points change every tour by 2Σπ
    and every 1-tree by its degrees. π = 0 is the minimum spanning tree, so the bound is never below it.

    Parameters
    ----------
    Y : array (N, d)
        Points as rows.
    iterations : int, optional
        Spanning trees to try, each O(n²). By default 10 to 200, fewer for more points; one (the minimum
        spanning tree) above 5,000 points, where distances are recomputed instead of held.
    """
    points = _Points("path_lower_bound", Y)
    n = len(points)
    if iterations is None:
        iterations = max(10, min(200, 10**9 // (8 * n * n))) if points.table is not None else 1
    check_integer("path_lower_bound", "iterations", iterations, low=1)
    if n == 1:
        return PathLength(0.0, None, "lower bound")
    above = _steps(points, _nearest_neighbours(points)).sum() if iterations > 1 else math.inf
    price, best, share = np.zeros(n), -math.inf, 1.0
    for _ in range(iterations):
        lengths, degree = _spanning_tree(points, price)
        cheapest = np.argpartition(price, 1)[:2]
        terms = np.concatenate([lengths, price[cheapest], -2.0 * price])
        # Rounding of the distances and of the added prices must not lift the bound above the truth.
        rounding = (points.rows.shape[1] + 8) * _EPS * float(np.abs(terms).sum() + 2.0 * np.abs(price).sum())
        value = math.fsum(terms) - rounding
        share = share if value > best else 0.9 * share
        best = max(best, value)
        degree[cheapest] += 1
        slope = degree - 2.0
        if iterations == 1 or not slope.any() or value >= above:
            break  # in the last two cases nothing lies between the bound and the truth
        price = price + share * (above - value) / float(slope @ slope) * slope
    return PathLength(points.scale * max(best, 0.0), None, "lower bound")


def _spanning_tree(points: _Points, price: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Edges (n − 1,) and degrees (n,) of the minimum spanning tree of d_ij + π_i + π_j, by Prim."""
    n = len(points)
    reach, nearest, outside = np.full(n, np.inf), np.zeros(n, dtype=np.int64), np.ones(n, dtype=bool)
    lengths, degree, current = np.empty(n - 1), np.zeros(n), 0
    outside[0] = False
    for step in range(n - 1):
        row = points.distances(current) + (price + price[current])
        closer = (row < reach) & outside
        reach[closer], nearest[closer] = row[closer], current
        current = int(reach.argmin())
        lengths[step] = reach[current]
        degree[current] += 1
        degree[nearest[current]] += 1
        outside[current], reach[current] = False, np.inf
    return lengths, degree


def path_upper_bound(Y: Any, *, sweeps: int = 10) -> PathLength:
    """Length of a short open path: nearest neighbours, then 2-opt and Or-opt moves until none helps.

    Parameters
    ----------
    Y : array (N, d)
        Points as rows.
    sweeps : int, default 10
        Rounds of moves at most, each O(n²).
    """
    check_integer("path_upper_bound", "sweeps", sweeps, low=0)
    points = _Points("path_upper_bound", Y)
    order = _nearest_neighbours(points)
    for _ in range(sweeps if len(points) > 2 else 0):
        reversed_some = _two_opt(points, order)
        order, moved_some = _or_opt(points, order)
        if not (reversed_some or moved_some):
            break
    return points.path(order, "upper bound")


def _nearest_neighbours(points: _Points) -> np.ndarray:
    # From the point farthest from the middle: a short path rarely ends inside.
    current = int(np.linalg.norm(points.rows - points.rows.mean(0), axis=1).argmax())
    order, free = [current], np.ones(len(points), dtype=bool)
    free[current] = False
    for _ in range(len(points) - 1):
        current = int(np.where(free, points.distances(current), np.inf).argmin())
        free[current] = False
        order.append(current)
    return np.array(order)


def _steps(points: _Points, order: np.ndarray) -> np.ndarray:
    return np.linalg.norm(np.diff(points.rows[order], axis=0), axis=1)


def _two_opt(points: _Points, order: np.ndarray) -> bool:
    """One sweep of best reversals of order[i … j], in place; past either end a step costs nothing."""
    n, improved = len(order), False
    after = np.append(_steps(points, order), 0.0)
    for i in range(n - 1):
        into_end = points.distances(order[i - 1])[order] if i else np.zeros(n)
        out_of_start = np.append(points.distances(order[i])[order[1:]], 0.0)
        change = into_end + out_of_start - after - (after[i - 1] if i else 0.0)
        j = i + 1 + int(change[i + 1 :].argmin())
        # Less than rounding is no gain, and two moves could undo one another for ever.
        if change[j] < -1e-12:
            if i:
                after[i - 1] = into_end[j]
            after[j] = out_of_start[j]
            after[i:j] = after[i:j][::-1].copy()
            order[i : j + 1] = order[i : j + 1][::-1].copy()
            improved = True
    return improved


def _or_opt(points: _Points, order: np.ndarray) -> tuple[np.ndarray, bool]:
    """One sweep of best moves of 1, 2 or 3 consecutive points to another place, either way round."""
    n, improved = len(order), False
    for size in range(1, min(3, n - 2) + 1):
        for i in range(n - size + 1):
            piece, rest = order[i : i + size], np.delete(order, slice(i, i + size))
            head, tail = points.distances(piece[0])[rest], points.distances(piece[-1])[rest]
            gaps = np.zeros(len(rest) + 1)  # what a step between rest[q − 1] and rest[q] costs
            gaps[1:-1] = _steps(points, rest) if points.table is None else points.table[rest[:-1], rest[1:]]
            forward, backward = np.append(0.0, head) + np.append(tail, 0.0), np.append(0.0, tail) + np.append(head, 0.0)
            cost = np.minimum(forward, backward) - gaps
            q = int(cost.argmin())
            if cost[q] < cost[i] - 1e-12:
                order = np.concatenate([rest[:q], piece if forward[q] <= backward[q] else piece[::-1], rest[q:]])
                improved = True
    return order, improved


@cites("rank2023", "Prop. 10", ids=("Q-tsp",))
def diameter(X: Any, *, chunk_bytes: int = CHUNK_BYTES) -> float:
    """diam(x_1 … x_N) = max ‖x_i − x_j‖, exactly, in chunks of ``chunk_bytes``.

    Parameters
    ----------
    X : array (N, d)
        Points as rows.
    """
    rows = as_matrix("diameter", "X", X).cpu().numpy()
    scale = float(np.abs(rows).max()) or 1.0
    rows = rows / scale
    middle = (rows.min(0) + rows.max(0)) / 2.0
    radius = np.linalg.norm(rows - middle, axis=1)
    found = float(np.linalg.norm(rows - rows[radius.argmax()], axis=1).max())
    # ‖x − y‖ ≤ radius(x) + radius(y): a point too near the middle ends no longest line.
    rows = rows[radius + radius.max() >= found * (1.0 - 1e-9)]
    step = chunk_rows(len(rows), 8.0 * len(rows), chunk_bytes)
    for start in range(0, len(rows), step):
        found = max(found, float(cdist(rows[start : start + step], rows[start:]).max()))
    return scale * found
