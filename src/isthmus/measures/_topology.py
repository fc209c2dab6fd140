"""Q-topology: where three classes of a classifier of the plane meet, and which classes touch."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import KDTree
from torch import Tensor, nn

from isthmus._checks import as_tensor, check_integer, check_number, fail
from isthmus._cite import cites
from isthmus._deprecations import renamed

#: Points classified at a time.
CHUNK_POINTS = 2**17

#: Halvings of an edge between two classes: strips down to 1e-13 of the box are found, or else do not exist in float64.
BISECTIONS = 40


_Labels = Callable[[np.ndarray], np.ndarray]

#: Scores that differ by less than this share of the largest in the box tie.
TIE = 64 * np.finfo(np.float64).eps

#: Where scores tie the class is that of a point beside it, in this direction, as a share of the box.
BESIDE = 1e-10 * np.array([math.cos(1.0), math.sin(1.0)])

_QUARTERS = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])


@dataclass(frozen=True, eq=False)
class Topology:
    """The partition of a box of the plane into classes.

    Attributes
    ----------
    classes : Tensor (C,) of int64
        Labels that were seen, increasing.
    tripoints : Tensor (T, 2)
        Points where three or more classes meet, to within ``size``; cells that touch hold one together.
    meeting : tuple of T tuples of int
        The labels that meet at each.
    adjacency : Tensor (C, C) of bool
        Which classes were seen side by side, with nothing between them; in the order of ``classes``.
    unresolved : Tensor (U, 2)
        Middles of cells in which three classes seemed to meet and on refinement did not, or that were not refined.
    size : float
        Side of the cells that hold the tripoints, as a share of the box; of the first cells when there are none.
    state : str
        ``"computed"``; ``"unresolved"`` when there are such cells; ``"too many cells"`` when the picture is too
        intricate for ``max_cells``: nothing is then said about tripoints, nor about adjacency if the first grid is.
    """

    classes: Tensor
    tripoints: Tensor
    meeting: tuple[tuple[int, ...], ...]
    adjacency: Tensor
    unresolved: Tensor
    size: float
    state: str


@dataclass(frozen=True, eq=False)
class _Found:
    """Cells whose border shows that three classes meet inside, the classes that meet, and all pairs seen touching."""

    cells: np.ndarray
    meeting: list[tuple[int, ...]]
    pairs: np.ndarray
    complete: bool


@cites("rank2023", "§5 and Fig. 2", ids=("Q-topology",))
@renamed(resolution="points")
def tripoints(
    classify: Any,
    box: Any,
    *,
    points: int = 256,
    smallest: float = 1e-6,
    max_cells: int = 100_000,
) -> Topology:
    """Points of a box where three classes meet: cells that a walk around proves to hold one, at every size.

    Where scores tie, the class is that of a point right beside it: a class that only ever ties, on a line or at the
    zeros of a network without biases, has no interior and meets nothing.

    A class strip thinner than a pixel shows three classes in a pixel and fakes a tripoint. So every edge of a cell
    between two classes is bisected until it shows each class on its way, however thin, and the classes on the walk
    around the cell are cancelled: x y x, there and back, becomes x. Where no three classes meet, a single one is
    left, since the nerve of the partition is then a graph and the walk can be contracted in it. Cells of which more
    is left are halved down to ``smallest``, and count only if one of their quarters shows the same each time.

    Parameters
    ----------
    classify : callable, torch.nn.Module, or estimator with ``predict``
        From (n, 2) points to n labels (integers), or to (n, C) scores, whose largest is the label (of one column:
        its sign). A callable gets a NumPy array, an estimator's ``predict`` too, a module (copied, in float64 and
        evaluation mode) a tensor.
    box : ((x_low, x_high), (y_low, y_high))
    points : int, default 256
        Cells along each axis at the start. What lies within one cell is not seen: a class region that no edge
        between two other classes crosses, or two tripoints of the same classes, which cancel one another.
    smallest : float, default 1e-6
        Side, as a share of the box, down to which three classes must stay together.
    max_cells : int, default 100,000
        Cells and border points that may be followed at once: bounds time and memory.
    """
    who = "tripoints"
    check_integer(who, "points", points, low=2, high=4096)
    check_number(who, "smallest", smallest, low=1e-9, high=1.0)
    check_integer(who, "max_cells", max_cells, low=1)
    corners = as_tensor(who, "box", box).cpu().numpy()
    if corners.shape != (2, 2) or bool((corners[:, 0] >= corners[:, 1]).any()):
        fail(who, "`box` must be ((x_low, x_high), (y_low, y_high))", repr(box), "Give low < high for both axes.")
    labels = _classifier(classify, corners)

    count = points
    grid = np.argwhere(np.ones((count + 1, count + 1), dtype=bool))
    seen = labels(grid / count).reshape(count + 1, count + 1)
    same = (seen[1:, 1:] == seen[:-1, :-1]) & (seen[1:, :-1] == seen[:-1, 1:]) & (seen[1:, 1:] == seen[1:, :-1])
    first = found = _meetings(np.argwhere(~same), count, labels, max_cells)
    lost = []
    while found.complete and len(found.cells) and 1.0 / count > smallest:
        # With the neighbours: an edge whose ends are of one class does not show a meeting that it just cuts off.
        quarters = (2 * _neighbourhood(found.cells, count)[:, None, :] + _QUARTERS).reshape(-1, 2)
        inner = _meetings(quarters, 2 * count, labels, max_cells)
        near = _neighbourhood(inner.cells // 2, count)
        kept = np.isin(found.cells @ [count, 1], near @ [count, 1])
        lost += list((found.cells[~kept] + 0.5) / count)
        found, count = inner, 2 * count
    places, meeting = _united(found)
    middles = (places + 0.5) / count
    state = "unresolved" if lost else "computed"
    if not found.complete:
        lost, middles, state = list(middles), middles[:0], "too many cells"

    present = np.unique(np.concatenate([seen.reshape(-1), first.pairs.reshape(-1)]))
    adjacency = np.zeros((len(present), len(present)), dtype=bool)
    i, j = np.searchsorted(present, first.pairs.T)
    adjacency[i, j] = adjacency[j, i] = True

    def placed(unit: Any) -> Tensor:
        return torch.from_numpy(corners[:, 0] + np.array(unit).reshape(-1, 2) * (corners[:, 1] - corners[:, 0]))

    return Topology(
        torch.from_numpy(present),
        placed(middles),
        tuple(meeting) if found.complete else (),
        torch.from_numpy(adjacency),
        placed(lost),
        1.0 / count,
        state,
    )


def _classifier(classify: Any, corners: np.ndarray) -> _Labels:
    """Labels (n,) of points (n, 2) given in the unit square."""
    if isinstance(classify, nn.Module):
        module = copy.deepcopy(classify).double().eval()

        def call(points: np.ndarray) -> Any:
            with torch.no_grad():
                return module(torch.from_numpy(points)).cpu().numpy()
    elif hasattr(classify, "predict"):
        call = classify.predict
    elif callable(classify):
        call = classify
    else:
        got = type(classify).__name__
        fail("tripoints", "`classify` must be callable, a module or an estimator", got, "Pass points → labels.")

    size = [0.0]

    def some(unit: np.ndarray) -> np.ndarray:
        values = np.asarray(call(corners[:, 0] + unit * (corners[:, 1] - corners[:, 0])))
        if values.ndim == 2 and len(values) == len(unit):
            if values.shape[1] == 1:
                return (values[:, 0] > 0).astype(np.int64)
            found = values.argmax(1)
            second, first = np.partition(values.astype(np.float64), -2, axis=1)[:, -2:].T
            # Scores that cancel are known to rounding of what they are elsewhere; the first call is for the whole box.
            size[0] = max(size[0], float(np.abs(values).max(initial=0.0)))
            tie = first - second <= TIE * size[0]
            if tie.any():
                beside = corners[:, 0] + (unit[tie] + BESIDE) * (corners[:, 1] - corners[:, 0])
                found[tie] = np.asarray(call(beside)).argmax(1)
            return found
        if values.shape != (len(unit),) or values.dtype.kind not in "iub":
            got = f"shape {values.shape} and dtype {values.dtype} for {len(unit)} points"
            fail("tripoints", "`classify` must give an integer or a row of scores per point", got, "Return labels.")
        return values.astype(np.int64)

    def labels(unit: np.ndarray) -> np.ndarray:
        parts = [some(unit[start : start + CHUNK_POINTS]) for start in range(0, len(unit), CHUNK_POINTS)]
        return np.concatenate(parts)

    return labels


def _neighbourhood(cells: np.ndarray, count: int) -> np.ndarray:
    """The cells and those around them, on a grid of ``count`` × ``count``, each once."""
    around = cells[:, None, :] + np.argwhere(np.ones((3, 3), dtype=bool)) - 1
    return np.unique(np.clip(around.reshape(-1, 2), 0, count - 1), axis=0)


def _united(found: _Found) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """Middle and classes of each group of cells that touch: a point on a line of the grid may show in several."""
    if not found.complete or len(found.cells) < 2:
        return found.cells.astype(np.float64), found.meeting
    pairs = KDTree(found.cells).query_pairs(1.0, p=np.inf, output_type="ndarray")
    size = len(found.cells)
    graph = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(size, size))
    _, group = connected_components(graph, directed=False)
    order = np.argsort(group, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    united = [tuple(sorted(set().union(*(found.meeting[i] for i in some)))) for some in members]
    return np.stack([found.cells[some].mean(0) for some in members]), united


def _meetings(cells: np.ndarray, count: int, labels: _Labels, most: int) -> _Found:
    """Of ``cells``, given by their lower corners on a grid of ``count`` × ``count``, those that hold a meeting."""
    none = np.zeros((0, 2), dtype=np.int64)
    if not 0 < len(cells) <= most:
        return _Found(cells, [], none, len(cells) == 0)
    # Bottom, right, top and left edge of each cell, from their lower or left end; neighbours share theirs.
    starts = cells[:, None, :] + np.array([[0, 0], [1, 0], [0, 1], [0, 0]])
    upright = np.broadcast_to(np.array([0, 1, 0, 1]), starts.shape[:2])
    keys = (starts[..., 0] * (count + 1) + starts[..., 1]) * 2 + upright
    unique, edge_of = np.unique(keys, return_inverse=True)
    x, y = np.divmod(unique // 2, count + 1)
    a = np.stack([x, y], axis=1)
    b = a + np.stack([1 - unique % 2, unique % 2], axis=1)
    edge, classes, complete = _sequences(a / count, b / count, labels, most)
    if not complete:
        return _Found(cells, [], none, False)
    touch = edge[1:] == edge[:-1]
    pairs = np.unique(np.sort(np.stack([classes[:-1][touch], classes[1:][touch]], axis=1), axis=1), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    along = np.split(classes, np.flatnonzero(~touch) + 1)
    kept, meeting = [], []
    for cell, (bottom, right, top, left) in zip(cells, edge_of.reshape(-1, 4)):
        walk = [*along[bottom], *along[right], *along[top][::-1], *along[left][::-1]]
        left_over = _reduced(walk) if len(set(walk)) > 2 else ()
        if len(left_over) > 2:
            kept.append(cell)
            meeting.append(left_over)
    return _Found(np.array(kept, dtype=np.int64).reshape(-1, 2), meeting, pairs, True)


def _sequences(a: np.ndarray, b: np.ndarray, labels: _Labels, most: int) -> tuple[np.ndarray, np.ndarray, bool]:
    """Classes met on the way from each a to its b: edge indices, classes in order, and whether all were followed."""
    edge = np.repeat(np.arange(len(a)), 2)
    where = np.tile([0.0, 1.0], len(a))
    ends, index = np.unique(np.stack([a, b], axis=1).reshape(-1, 2), axis=0, return_inverse=True)
    classes = labels(ends)[index.reshape(-1)]
    for _ in range(BISECTIONS):
        change = np.flatnonzero((classes[1:] != classes[:-1]) & (edge[1:] == edge[:-1]))
        if len(change) > most:
            return edge, classes, False
        if not len(change):
            break
        middle, its_edge = (where[change] + where[change + 1]) / 2.0, edge[change]
        new = labels(a[its_edge] + middle[:, None] * (b[its_edge] - a[its_edge]))
        # A middle of the class of one end replaces that end, unless a third class lies beyond: runs have two ends.
        where, edge = np.insert(where, change + 1, middle), np.insert(edge, change + 1, its_edge)
        classes = np.insert(classes, change + 1, new)
        alike = (classes[1:] == classes[:-1]) & (edge[1:] == edge[:-1])
        inside = np.r_[False, alike[1:] & alike[:-1], False]
        edge, where, classes = edge[~inside], where[~inside], classes[~inside]
    return edge, classes, True


def _reduced(walk: list[int]) -> tuple[int, ...]:
    """The classes left of a closed walk when every step there and back, x y x, is taken out; one if it cancels."""
    word: list[int] = []
    for label in walk:
        if word and word[-1] == label:
            continue
        if len(word) > 1 and word[-2] == label:
            word.pop()
        else:
            word.append(label)
    # The walk is closed: what is left cancels across its ends too.
    while len(word) > 1:
        if word[-1] == word[0] or word[-2] == word[0]:
            word.pop()
        elif word[-1] == word[1]:
            word.pop(0)
        else:
            break
    return tuple(sorted({int(label) for label in word}))
