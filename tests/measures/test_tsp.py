"""Q-tsp: open paths against brute force, bounds on both sides of the truth, and exact diameters."""

from __future__ import annotations

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist

from isthmus import IsthmusError
from isthmus.measures import _tsp as tsp
from isthmus.measures._tsp import diameter, path_lower_bound, path_upper_bound, shortest_path
from tools import assert_close, gaussian, orthogonal


def along(Y, order) -> float:
    Y = np.asarray(Y, dtype=float)[list(order)]
    return float(np.linalg.norm(np.diff(Y, axis=0), axis=1).sum())


def brute_force(Y, *, closed: bool = False) -> float:
    paths = itertools.permutations(range(len(Y)))
    return min(along(Y, (*path, path[0]) if closed else path) for path in paths)


def test_known_answers():
    square = [[0, 0], [1, 1], [0, 1], [1, 0]]
    assert shortest_path(square).value == 3.0
    assert shortest_path([[2.0, 1.0]]) == tsp.PathLength(0.0, (0,), "exact")
    assert_close(shortest_path([[0, 0], [3, 4]]).value, 5.0)
    # A star: two arms are walked once, the others back and forth.
    star = [[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]]
    assert_close(shortest_path(star).value, 2 * math.sqrt(2) + 2)
    ring = np.exp(2j * np.pi * np.arange(12) / 12)
    assert_close(shortest_path(np.c_[ring.real, ring.imag]).value, 11 * 2 * math.sin(math.pi / 12))


@pytest.mark.parametrize("n", [2, 3, 5, 7, 8])
def test_brute_force_and_the_closed_twin(n):
    Y = gaussian(n, 2, seed=n).numpy()
    found = shortest_path(Y)
    assert found.state == "exact"
    assert sorted(found.order) == list(range(n))
    if n <= 7:
        assert_close(found.value, brute_force(Y))
        # The closed tour is another number: who confuses them is found out.
        assert brute_force(Y, closed=True) > found.value * 1.05
    assert_close(along(Y, found.order), found.value)


@pytest.mark.parametrize(("n", "d"), [(12, 2), (13, 3), (15, 2), (15, 10)])
def test_bounds_enclose_the_truth(n, d):
    Y = gaussian(n, d, seed=n + d)
    exact, low, high = shortest_path(Y), path_lower_bound(Y), path_upper_bound(Y)
    tree = path_lower_bound(Y, iterations=1)
    assert (exact.state, low.state, high.state) == ("exact", "lower bound", "upper bound")
    assert tree.value <= low.value <= exact.value <= high.value * (1 + 1e-14)
    assert low.value > 0.95 * exact.value
    assert high.value < 1.1 * exact.value
    assert low.order is None
    assert sorted(high.order) == list(range(n))
    assert_close(along(Y, high.order), high.value)


def test_the_enclosure_can_fail():
    """The bound of closed tours is above the open path: taken for it, it would not be a lower bound."""
    Y = gaussian(7, 2, seed=3).numpy()
    assert brute_force(Y, closed=True) > shortest_path(Y).value
    assert path_lower_bound(Y).value <= shortest_path(Y).value


def test_one_tree_is_the_spanning_tree_by_another_route():
    from scipy.sparse.csgraph import minimum_spanning_tree
    from scipy.spatial.distance import squareform

    Y = gaussian(60, 4, seed=8).numpy()
    assert_close(path_lower_bound(Y, iterations=1).value, minimum_spanning_tree(squareform(pdist(Y))).sum())


def test_many_points():
    Y = gaussian(250, 2, seed=4)
    low, high = shortest_path(Y), path_upper_bound(Y)
    assert low.state == "lower bound"
    assert 0.85 * high.value < low.value < high.value
    assert path_lower_bound(Y, iterations=1).value < low.value


def test_a_line_is_exact_at_any_size():
    Y = gaussian(3000, 1, seed=5)
    found = shortest_path(Y)
    assert found.state == "exact"
    assert_close(found.value, float(Y.max() - Y.min()))
    # The same line in the plane: the spanning tree is the path, and rounding does not lift the bound above it.
    plane = Y[:300].numpy() * np.array([[0.6, 0.8]])
    low, length = path_lower_bound(plane), float(Y[:300].max() - Y[:300].min())
    assert length * (1 - 1e-12) < low.value <= length
    assert_close(path_upper_bound(plane).value, length)


def test_duplicates_cost_nothing_and_keep_their_place():
    Y = gaussian(9, 3, seed=6).numpy()
    twice = np.concatenate([Y, Y[::-1], np.array([[-0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])])
    found = shortest_path(twice)
    assert found.state == "exact"
    assert sorted(found.order) == list(range(20))
    assert_close(along(twice, found.order), found.value)
    assert_close(found.value, shortest_path(np.r_[Y, np.zeros((1, 3))]).value)
    same = np.ones((30, 2))
    assert shortest_path(same).value == path_lower_bound(same).value == path_upper_bound(same).value == 0.0


@given(st.integers(2, 9), st.integers(2, 4), st.integers(0, 10**6), st.floats(-200, 200))
def test_invariances(n, d, seed, exponent):
    Y = gaussian(n, d, seed=seed)
    order = np.random.default_rng(seed).permutation(n)
    scale = 2.0**exponent
    moved = scale * (Y @ orthogonal(d, d, seed=seed).mT)[order]
    assert_close(shortest_path(moved).value / scale, shortest_path(Y).value)
    assert_close(diameter(moved) / scale, diameter(Y))
    assert shortest_path(Y).value >= diameter(Y) * (1 - 1e-12)


@settings(max_examples=10)
@given(st.integers(16, 40), st.integers(0, 10**6))
def test_bounds_are_ordered(n, seed):
    Y = gaussian(n, 2, seed=seed)
    assert 0.8 * path_upper_bound(Y).value < path_lower_bound(Y).value <= path_upper_bound(Y).value


def test_without_the_table_of_distances(monkeypatch):
    Y = gaussian(150, 3, seed=7)
    held = path_lower_bound(Y, iterations=20).value, path_upper_bound(Y).value
    monkeypatch.setattr(tsp, "TABLE_POINTS", 100)
    assert_close(path_lower_bound(Y, iterations=20).value, held[0])
    assert_close(path_upper_bound(Y).value, held[1])
    # By default one tree only.
    assert path_lower_bound(Y).value == path_lower_bound(Y, iterations=1).value


@pytest.mark.parametrize("shape", [(1, 3), (2, 1), (500, 2), (2000, 7)])
def test_diameter_against_all_pairs(shape):
    X = gaussian(*shape, seed=shape[0])
    expected = pdist(X.numpy()).max() if shape[0] > 1 else 0.0
    assert_close(diameter(X), expected)
    assert_close(diameter(X, chunk_bytes=1), expected)


def test_diameter_holds_no_square_matrix():
    """Points on a sphere: none can be left out, and still no N × N array."""
    X = gaussian(3000, 3, seed=9)
    X = (X / X.norm(dim=1, keepdim=True)).numpy()
    tracemalloc.start()
    value = diameter(X, chunk_bytes=2**20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2**20 < 8 * 3000**2
    assert_close(value, pdist(X).max())


def test_refused():
    for bad in ([[math.nan, 1.0]], np.zeros((0, 2)), np.zeros((2, 2, 2))):
        for function in (shortest_path, path_lower_bound, path_upper_bound, diameter):
            with pytest.raises(IsthmusError, match=function.__name__):
                function(bad)
    with pytest.raises(IsthmusError, match="iterations"):
        path_lower_bound([[0.0, 1.0]], iterations=0)
    with pytest.raises(IsthmusError, match="sweeps"):
        path_upper_bound([[0.0, 1.0]], sweeps=-1)
