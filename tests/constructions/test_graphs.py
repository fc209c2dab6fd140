"""A-cpdata: incidence matrices, the bipartite and the one-hot data of Prop. 14, and their optima."""

from __future__ import annotations

import math

import pytest
import torch

from isthmus import IsthmusError
from isthmus.constructions import (
    bipartite_data,
    bipartite_narrow,
    bipartite_optimum,
    complete_bipartite,
    incidence,
    is_triangle_free,
    one_hot_data,
    one_hot_optimum,
)
from isthmus.measures import parameter_norms
from isthmus.objective import cost
from tools import assert_close, gaussian, random_net

TRIANGLE = [(0, 1), (1, 2), (0, 2)]
CYCLE = [(i, (i + 1) % 5) for i in range(5)]


def loss(net, X, Y, ridge):
    return float(cost(net(X).detach(), Y)) + ridge * parameter_norms(net).total


def test_incidence_by_hand():
    E = incidence([(0, 1), (2, 1)], 3)
    assert_close(E, torch.tensor([[1.0, 1, 0], [0, 1, 1]]).double())
    assert_close((E.mT @ E).diagonal(), [1.0, 2.0, 1.0])  # degrees


@pytest.mark.parametrize(
    ("edges", "vertices", "free"),
    [
        (TRIANGLE, 3, False),
        (TRIANGLE, 5, False),
        (CYCLE, 5, True),
        ([(0, 1)], 2, True),
        ([], 4, True),
        ([(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)], 4, False),
        (complete_bipartite(8), 8, True),
    ],
)
def test_triangles(edges, vertices, free):
    assert is_triangle_free(edges, vertices) == free


@pytest.mark.parametrize("edges", [[(0, 0)], [(0, 1), (1, 0)], [(0, 3)], [(0,)], [(-1, 1)], [(0.5, 1)]])
def test_bad_edges(edges):
    with pytest.raises(IsthmusError, match="incidence"):
        incidence(edges, 3)


def test_odd_sides():
    with pytest.raises(IsthmusError, match="even"):
        complete_bipartite(5)


@pytest.mark.parametrize("N", [2, 4, 6, 10])
def test_bipartite_norms(N):
    X, Y = bipartite_data(N)
    best, narrow = bipartite_optimum(N), bipartite_narrow(N)
    assert best.dims == (N, N * N // 4, N) and narrow.dims == (N, N, N)
    for net in (best, narrow):
        assert_close(net(X), Y)
    assert_close(parameter_norms(best).total, float(N * N))
    assert_close(parameter_norms(best).total, 2 * float(torch.linalg.svdvals(Y).sum()))
    assert_close(parameter_norms(narrow).total, float(N * N + N))


@pytest.mark.parametrize("ridge", [0.0, 1e-3, 0.1, 0.3, 0.5])
def test_bipartite_optimum_with_a_ridge(ridge):
    """It reaches (1/N)‖Z − Y‖² + 2λ‖Z‖_* at its minimum, found by soft thresholding; no random network is below."""
    N = 6
    X, Y = bipartite_data(N)
    net = bipartite_optimum(N, ridge=ridge)
    assert net.dims[1] == (9 if ridge == 0 else 1 if ridge == 0.5 else 10)
    U, s, Vh = torch.linalg.svd(Y)
    kept = (s - ridge * N).clamp_min(0)
    floor = float((s - kept).square().sum()) / N + 2 * ridge * float(kept.sum())
    assert_close(loss(net, X, Y, ridge), floor)
    for seed in range(5):
        near = [W.detach() + 0.05 * gaussian(*W.shape, seed=seed) for W in net.Ws]
        assert loss(type(net).from_weights(near), X, Y, ridge) > floor
        assert loss(random_net([N, 20, N], bias=0.0, seed=seed), X, Y, ridge) > floor


def test_too_much_ridge():
    with pytest.raises(IsthmusError, match="ridge"):
        bipartite_optimum(4, ridge=0.6)


@pytest.mark.parametrize("ridge", [0.0, 0.05])
def test_one_hot(ridge):
    sizes = (2, 4, 1)
    X, Y = one_hot_data(sizes)
    assert X.shape == (7, 7) and Y.sum(0).tolist() == [2, 4, 1]
    net = one_hot_optimum(sizes, ridge=ridge)
    Z = net.Ws[0].detach()
    if ridge == 0:
        assert_close(net(X), Y)
        root = Z.mT @ Z
        assert_close(root @ root, Y @ Y.mT)
        assert_close(float(root[0, 1]), 1 / math.sqrt(2))  # and not 1/2, as printed
        assert_close(parameter_norms(net).total, 2 * sum(math.sqrt(m) for m in sizes))
    losses = [loss(one_hot_optimum(sizes, width=w, ridge=ridge), X, Y, ridge) for w in (1, 2, 3, 5)]
    assert losses[0] > losses[1] > losses[2]
    assert_close(losses[3], losses[2])


def test_one_hot_widths_are_optimal():
    """Against descent over weights: never below."""
    sizes, ridge = (2, 1), 0.05
    X, Y = one_hot_data(sizes)
    for width in (1, 2):
        best = loss(one_hot_optimum(sizes, width=width, ridge=ridge), X, Y, ridge)
        reached = math.inf
        for seed in range(3):
            net = random_net([3, width, 2], bias=0.0, seed=seed)
            optimiser = torch.optim.LBFGS(net.parameters(), max_iter=60, line_search_fn="strong_wolfe")

            def closure(net=net, optimiser=optimiser):
                optimiser.zero_grad()
                value = cost(net(X), Y) + ridge * sum(p.square().sum() for p in net.parameters())
                value.backward()
                return value

            optimiser.step(closure)
            reached = min(reached, loss(net, X, Y, ridge))
        assert reached >= best * (1 - 1e-9)
        assert reached <= best * 1.5  # the search is no straw man
