"""Q-topology: pictures whose tripoints are known, thin strips that fake them, and classifiers of every kind."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import KDTree, Voronoi
from torch import nn

from isthmus import IsthmusError
from isthmus.measures._topology import _reduced, tripoints
from tools import assert_close, random_net

BOX = ((-1.0, 1.0), (-1.0, 1.0))
PIXEL = "the size of the last cells"


def sectors(*angles: float, centre=(0.1234, -0.0567)):
    """Classes 0, 1, … between consecutive angles around a centre."""

    def classify(P):
        turn = np.mod(np.arctan2(P[:, 1] - centre[1], P[:, 0] - centre[0]), 2 * math.pi)
        return np.searchsorted(np.sort(angles), turn) % len(angles)

    return classify


def strips(*edges: float, slope: float = 0.3, bend: float = 0.0):
    """Parallel (or equally bent) strips between the edges, none of which meets another."""

    def classify(P):
        return np.searchsorted(edges, P[:, 0] + slope * P[:, 1] + bend * np.sin(4 * P[:, 1]))

    return classify


def rings(*radii: float):
    return lambda P: np.searchsorted(radii, np.hypot(P[:, 0] - 0.01, P[:, 1] + 0.02))


@pytest.mark.parametrize("turn", [0.0, 0.7, 2.0])
def test_three_sectors_meet_once(turn):
    found = tripoints(sectors(0.1 + turn, 2.3 + turn, 4.1 + turn), BOX)
    assert found.state == "computed"
    assert found.meeting == ((0, 1, 2),)
    assert_close(found.tripoints, [[0.1234, -0.0567]], atol=2e-6, reason=PIXEL)
    assert bool((found.adjacency == ~torch.eye(3, dtype=torch.bool)).all())
    assert found.size <= 1e-6


@pytest.mark.parametrize("degrees", [1.0, 5.0, 20.0])
@pytest.mark.parametrize("turn", np.linspace(0.0, 6.0, 4))
def test_narrow_sectors(turn, degrees):
    found = tripoints(sectors(*np.mod([turn, turn + math.radians(degrees), turn + 3.5], 2 * math.pi)), BOX, points=64)
    assert found.meeting == ((0, 1, 2),)
    assert_close(found.tripoints, [[0.1234, -0.0567]], atol=2e-6, reason=PIXEL)


def test_tripoints_on_the_grid_and_on_the_border():
    assert tripoints(sectors(0.1, 2.3, 4.1, centre=(0.0, 0.0)), BOX).meeting == ((0, 1, 2),)
    # On the border of the box itself: within a cell that reaches over it, or nowhere.
    edge = tripoints(sectors(0.5, 2.0, 4.1, centre=(0.2, -1.0)), BOX)
    assert len(edge.tripoints) <= 1 and edge.state == "computed"


@pytest.mark.parametrize("count", [4, 5])
@pytest.mark.parametrize("centre", [(0.0, 0.0), (1 / 96, 0.0), (0.5, 0.5), (-0.99999, 0.0)])
def test_many_sectors_on_a_line_of_the_grid_meet_once(centre, count):
    """Two of the cells around the centre show it, each with some of the classes."""
    angles = 2 * math.pi * np.arange(count) / count + 0.1
    rays = np.stack([np.cos(angles), np.sin(angles)])
    found = tripoints(lambda P: (P - np.array(centre)) @ rays, BOX, points=96)
    assert found.meeting == (tuple(range(count)),) and found.state == "computed"
    assert_close(found.tripoints, [centre], atol=2e-6, reason=PIXEL)


@pytest.mark.parametrize(
    "edges",
    [
        (-0.5, 0.0, 0.5),
        (0.0, 0.004),  # thinner than a cell
        (0.0, 1e-4),
        (0.0, 1e-9, 2e-9, 2e-9 + 1e-11),
        (-0.3, 0.1, 0.1 + 1e-4, 0.1 + 2e-4),  # nested: two thin strips side by side
    ],
)
@pytest.mark.parametrize("bend", [0.0, 0.2])
def test_strips_never_meet(edges, bend):
    found = tripoints(strips(*edges, bend=bend), BOX)
    assert found.state == "computed"
    assert len(found.tripoints) == 0 == len(found.unresolved)
    # Neighbours touch, others do not, however thin the strip between them.
    C = len(found.classes)
    assert len(edges) + 1 == C
    expected = torch.diag(torch.ones(C - 1), 1).bool()
    assert bool((found.adjacency == (expected | expected.mT)).all())


def test_pixels_would_be_fooled():
    """What counting pixels says of a strip thinner than one: the check above can fail."""
    axis = np.linspace(-1, 1, 129)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    seen = strips(0.0, 0.004)(grid).reshape(129, 129)
    corners = np.stack([seen[:-1, :-1], seen[1:, :-1], seen[:-1, 1:], seen[1:, 1:]], -1).reshape(-1, 4)
    assert sum(len(set(pixel)) == 3 for pixel in corners.tolist()) > 10
    assert len(tripoints(strips(0.0, 0.004), BOX).tripoints) == 0


def test_a_thin_class_between_all_others_keeps_them_apart():
    """Three sectors whose common boundary is a fourth class, of width 1e-5."""
    three = sectors(0.1, 2.3, 4.1)

    def framed(P):
        shifts = [np.array([1e-5, 0.0]), np.array([-1e-5, 0.0]), np.array([0.0, 1e-5])]
        seen = np.stack([three(P + shift) for shift in shifts])
        return np.where((seen == seen[0]).all(0), seen[0], 3)

    found = tripoints(framed, BOX)
    assert found.state == "computed"
    # Three classes around one of them, 3, which touches all: every walk cancels to it.
    assert len(found.tripoints) == 0
    assert found.adjacency[3, :3].all() and not found.adjacency[:3, :3].any()


def test_two_tripoints_in_a_cell_cancel_and_a_finer_grid_parts_them():
    """A disc of a third class on the border of two."""

    def bubble(P):
        return np.where(np.hypot(P[:, 0] - 0.31, P[:, 1] - 0.26) < 0.05, 2, (P[:, 1] > 0.26).astype(int))

    fine = tripoints(bubble, BOX)
    assert fine.meeting == ((0, 1, 2), (0, 1, 2))
    assert_close(fine.tripoints[:, 0].sort().values, [0.26, 0.36], atol=2e-6, reason=PIXEL)
    assert len(tripoints(bubble, BOX, points=8).tripoints) == 0


def test_a_meeting_that_does_not_last_is_unresolved():
    """Boundaries that look crossed on a coarse grid only: many thin strips, of which bisection finds some."""
    rng = np.random.default_rng(0)
    order = rng.integers(0, 5, 150)
    found = tripoints(lambda P: order[((P[:, 0] + 0.3 * P[:, 1] + 1.3) * 50).astype(int)], BOX, points=8)
    assert found.state == "unresolved"
    assert len(found.unresolved) > 0 and len(found.tripoints) == 0
    assert tripoints(strips(-0.5, 0.1, 0.6), BOX, points=64).state == "computed"


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_cancelling_does_not_depend_on_where_the_walk_starts(walk):
    found = {_reduced(walk[i:] + walk[:i]) for i in range(len(walk))}
    # What is left of a walk that cancels is whichever class it ends in.
    assert len(found) == 1 or all(len(rest) == 1 for rest in found)
    assert _reduced([0, 1, 2, 1, 0, 3, 0]) in ((0,), (1,), (2,), (3,))
    assert _reduced([0, 0, 1, 1, 2]) == (0, 1, 2)
    there_and_back = [*walk, *walk[::-1]]
    assert len(_reduced(there_and_back)) == 1


def test_checkerboards():
    """Four colours: a 4-corner at each of the nine crossings. Two colours: no three classes anywhere."""

    def square(P):
        return np.clip(np.floor((P + 1.03) * 2).astype(int), 0, 3)

    four = tripoints(lambda P: square(P)[:, 0] % 2 * 2 + square(P)[:, 1] % 2, BOX)
    assert len(four.tripoints) == 9
    assert set(four.meeting) == {(0, 1, 2, 3)}
    assert not bool(four.adjacency[0, 3]) and bool(four.adjacency[0, 1])
    two = tripoints(lambda P: square(P).sum(1) % 2, BOX)
    assert len(two.tripoints) == 0 and bool(two.adjacency[0, 1])


def test_concentric_rings():
    found = tripoints(rings(0.2, 0.3, 0.3005, 0.8), BOX)
    assert len(found.tripoints) == 0 and found.state == "computed"
    assert found.adjacency.sum() == 8


def test_strips_and_a_tripoint_together():
    """A half plane of thin strips beside three sectors: one is counted, the others are not."""
    three, thin = sectors(0.5, 2.5, 4.5, centre=(-0.5, 0.3)), strips(0.4, 0.402, slope=0.1)

    def classify(P):
        side = thin(P)
        return np.where(side > 0, side + 2, three(P))

    found = tripoints(classify, BOX)
    inside = found.tripoints[[0 < sum(np.array(m) < 3) == 3 for m in found.meeting]]
    assert_close(inside, [[-0.5, 0.3]], atol=2e-6, reason=PIXEL)
    # Where the boundaries of the sectors end at the strip there are tripoints too, with the strip as third.
    assert {m for m in found.meeting if m != (0, 1, 2)} <= {(0, 1, 3), (0, 2, 3), (1, 2, 3)}


def test_four_inverted_s():
    """The task of Fig. 2: four shifted S-curves; as nearest-curve classes they are strips without a tripoint."""
    t = np.linspace(-2.0, 2.0, 400)
    curve = np.stack([0.25 * np.sin(-2.5 * t), 0.5 * t], axis=1)
    trees = [KDTree(curve + [shift, 0.0]) for shift in (-0.75, -0.25, 0.25, 0.75)]
    found = tripoints(lambda P: np.stack([-tree.query(P)[0] for tree in trees], 1), BOX, points=32, smallest=1e-3)
    assert len(found.tripoints) == 0
    assert found.adjacency.sum() == 6


@settings(max_examples=8)
@given(st.integers(0, 10**5))
def test_rank_one_classifiers_have_none(seed):
    """C-rank-11: classes cut by thresholds of one continuous function."""
    g = random_net((2, 12, 12, 1), seed=seed).double()

    def classify(P):
        with torch.no_grad():
            values = g(torch.from_numpy(P))[:, 0].numpy()
        return np.searchsorted([-0.2, 0.1, 0.15], values)

    found = tripoints(classify, BOX, points=64, smallest=1e-5)
    assert len(found.tripoints) == 0


@pytest.mark.parametrize("seed", range(3))
def test_voronoi_vertices(seed):
    """Nearest of 15 centres: the classes meet at the vertices of the Voronoi diagram, found by another algorithm."""
    centres = np.random.default_rng(seed).uniform(-1, 1, (15, 2))
    expected = Voronoi(centres).vertices
    expected = expected[(np.abs(expected) < 1).all(1)]
    found = tripoints(lambda P: -np.square(P[:, None] - centres).sum(2), BOX, points=128)
    assert found.state == "computed"
    assert len(found.tripoints) == len(expected)
    matched = np.abs(found.tripoints.numpy()[:, None] - expected).max(2).min(1)
    assert float(matched.max()) < 2e-6


def test_random_networks_against_their_own_scores():
    """At every tripoint found, three scores are equal and above the rest."""
    count = 0
    for seed in range(6):
        net = random_net((2, 20, 5), seed=seed)
        found = tripoints(net, BOX, points=64)
        assert found.state == "computed"
        for point, meet in zip(found.tripoints, found.meeting):
            scores = net(point[None])[0].detach()
            assert float(scores[list(meet)].max() - scores[list(meet)].min()) < 1e-4
            assert float(scores.max() - scores[list(meet)].max()) < 1e-4
        count += len(found.tripoints)
    assert count >= 1


def test_every_kind_of_classifier():
    class Estimator:
        def predict(self, P):
            return (P[:, 0] > 0).astype(int) + 2 * (P[:, 1] > 0)

    class Planes(nn.Module):
        def forward(self, x):
            return torch.stack([x[:, 0], -x[:, 0] + x[:, 1], -x[:, 1]], 1)

    one = nn.Linear(2, 1)
    by_estimator, by_call = tripoints(Estimator(), BOX), tripoints(Estimator().predict, BOX)
    assert by_estimator.meeting == by_call.meeting == ((0, 1, 2, 3),)
    assert tripoints(Planes(), BOX).meeting == ((0, 1, 2),)
    assert len(tripoints(one, BOX).tripoints) == 0  # a single score: its sign
    assert one.weight.dtype == torch.float32 and one.training


def test_one_class():
    found = tripoints(lambda P: np.full(len(P), 7), BOX)
    assert found.classes.tolist() == [7] and found.adjacency.shape == (1, 1)
    assert not bool(found.adjacency.any()) and found.tripoints.shape == (0, 2) and found.state == "computed"


def test_too_many_cells_is_said():
    hashed = lambda P: (np.abs(np.sin(P @ [12345.6, 65432.1])) * 1e4).astype(int) % 5  # noqa: E731
    found = tripoints(hashed, BOX, max_cells=1000)
    assert found.state == "too many cells"
    assert len(found.tripoints) == 0 and len(found.unresolved) >= 1
    assert not bool(found.adjacency.any())


@pytest.mark.parametrize("shift", [(0.0, 0.0), (30.0, -7.0)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_boxes_of_any_size_and_place(shift, scale):
    three = sectors(0.1, 2.3, 4.1)
    move = np.array(shift) * scale
    box = [(move[0] - scale, move[0] + scale), (move[1] - scale, move[1] + scale)]
    found = tripoints(lambda P: three((P - move) / scale), box, points=32)
    expected = (np.array([[0.1234, -0.0567]]) * scale + move) / scale
    assert_close(found.tripoints / scale, expected, atol=2e-6, reason=PIXEL)


def test_refused():
    good = sectors(0.1, 2.3, 4.1)
    with pytest.raises(IsthmusError, match="box"):
        tripoints(good, ((1.0, 0.0), (0.0, 1.0)))
    with pytest.raises(IsthmusError, match="box"):
        tripoints(good, (0.0, 1.0))
    with pytest.raises(IsthmusError, match="points"):
        tripoints(good, BOX, points=1)
    with pytest.raises(IsthmusError, match="classify"):
        tripoints("good", BOX)
    with pytest.raises(IsthmusError, match="integer or a row of scores"):
        tripoints(lambda P: P[:, 0], BOX)


def test_a_class_that_only_ties_has_no_interior():
    """Scores (0, x, −x) tie at x = 0, where the first would win: two classes that touch, and no third between them."""

    def scores(points):
        x = points[:, :1] + 0.3 * points[:, 1:]
        return np.concatenate([np.zeros_like(x), x, -x], axis=1)

    found = tripoints(scores, BOX, points=64)
    assert found.classes.tolist() == [1, 2] and len(found.tripoints) == 0 and found.state == "computed"
    # Where they tie on a region, it is one of the classes.
    dead = tripoints(lambda points: np.maximum(scores(points) - 0.5, 0.0), BOX, points=64)
    assert dead.classes.tolist() == [0, 1, 2] and len(dead.tripoints) == 0
