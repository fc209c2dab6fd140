"""TwoNN on clouds of known dimension."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus import IsthmusError
from isthmus.measures import flattening_loss, two_nn
from isthmus.measures._dimension import DEPENDENCE
from tools import SEED, assert_close, gaussian, generator, orthogonal


def cube(d: int, n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(1000 * SEED + seed).random((n, d))


@pytest.mark.parametrize("d", [1, 2, 5])
def test_cubes(d):
    found = two_nn(cube(d, 3000))
    assert found.state == "computed"
    # Edges of the cube bias the estimate low by a few per cent in 5 dimensions.
    assert abs(found.dimension - d) < 4 * found.standard_error + 0.04 * d
    embedded = two_nn(cube(d, 3000) @ orthogonal(12, d).numpy().T + 3)
    assert_close(embedded.dimension, found.dimension, rtol=1e-6, reason="distances carry the rounding of the shift")


@pytest.mark.parametrize("d", [1, 2, 3])
def test_errors_have_their_stated_size_where_density_is_constant(d):
    """On products of circles, which have no edges: ratios are exponential there, though those of neighbours not
    independent."""
    scores = []
    for i in range(150):
        angles = 2 * np.pi * cube(d, 300, seed=i)
        found = two_nn(np.concatenate([np.cos(angles), np.sin(angles)], 1))
        scores.append((found.dimension - d) / found.standard_error)
    # 150 draws know their spread to 6 %.
    assert abs(np.mean(scores)) < 0.5
    assert 0.8 < np.std(scores) < 1.2
    # Without the factor for neighbours errors would be a fifth too small.
    assert np.std(scores) * DEPENDENCE**0.5 > 1.0


def test_censoring_uses_all_points():
    X = cube(2, 500)
    r = np.sort(np.linalg.norm(X[:, None] - X[None], axis=2), axis=1)
    t = np.sort(np.log(r[:, 2] / r[:, 1]))
    for discard in (0.0, 0.1, 0.5):
        kept = math.ceil((1 - discard) * 500)
        expected = (kept - 1) / (t[:kept].sum() + (500 - kept) * t[kept - 1])
        assert_close(two_nn(X, discard=discard).dimension, expected)


@given(st.integers(0, 10**6), st.floats(-140, 140), st.sampled_from([1, 2, 4]))
def test_isometries_and_scaling(seed, exponent, d):
    X = np.random.default_rng(seed).random((60, d))
    reference = two_nn(X)
    assert_close(two_nn(X * 10.0**exponent).dimension, reference.dimension, rtol=1e-7, reason="rounding of near pairs")
    Q = orthogonal(d + 2, d, seed=seed).numpy()
    assert_close(two_nn(X @ Q.T).dimension, reference.dimension, rtol=1e-7, reason="rounding of near pairs")
    assert_close(two_nn(X[::-1]).dimension, reference.dimension)


def test_duplicates():
    X = cube(2, 300)
    found = two_nn(np.concatenate([X, X[:50]]))
    assert (found.points, found.duplicates) == (300, 50)
    assert_close(found.dimension, two_nn(X).dimension)
    assert two_nn(np.array([[0.0, 1.0], [-0.0, 1.0], [2.0, 3.0]])).duplicates == 1


def test_not_computed():
    for n in (1, 2):
        found = two_nn(cube(2, n))
        assert found.state == "too few distinct points"
        assert math.isnan(found.dimension)
    assert two_nn(np.zeros((10, 2))).state == "too few distinct points"
    assert two_nn(np.zeros((10, 2))).duplicates == 9
    # A grid and a simplex: all neighbours at one distance, also where rounding blurs it.
    grid = np.stack(np.meshgrid(np.arange(5.0), np.arange(5.0)), -1).reshape(-1, 2)
    assert two_nn(grid).state == "all neighbours equidistant"
    simplex = np.eye(6) @ orthogonal(6, 6).numpy() * 0.3 + 0.1
    assert two_nn(simplex).state == "all neighbours equidistant"


def test_near_duplicates_do_not_divide_by_zero():
    X = cube(2, 50)
    X[1] = X[0]
    X[0, 0], X[1, 0] = 0.0, 1e-300
    assert two_nn(X).state == "computed"


def test_three_points():
    found = two_nn([[0.0], [1.0], [3.0]])
    assert found.state == "computed"
    assert found.points == 3


def test_inputs():
    X = cube(2, 100)
    for same in (X.tolist(), pd.DataFrame(X), torch.from_numpy(X), X[::-1][::-1], np.asfortranarray(X)):
        assert_close(two_nn(same).dimension, two_nn(X).dimension)
    for bad in ([[np.nan]], [["a"]], [[1], [1, 2]], np.zeros((0, 2))):
        with pytest.raises(IsthmusError):
            two_nn(bad)
    for discard in (-0.1, 0.95, "x"):
        with pytest.raises(IsthmusError, match="discard"):
            two_nn(X, discard=discard)


def on_a_circle(samples: int, arc: float):
    t = torch.linspace(0, arc, samples, dtype=torch.float64)
    return torch.stack([t.cos(), t.sin()], 1) @ orthogonal(5, 2).mT


def test_what_unrolls_and_what_does_not():
    assert flattening_loss(on_a_circle(300, 4.0), 1) < 0.01
    assert flattening_loss(on_a_circle(300, 6.283), 1) > 0.3
    sphere = gaussian(500, 3)
    assert flattening_loss(sphere / sphere.norm(dim=1, keepdim=True), 2) > 0.15
    sheet = torch.rand(500, 2, generator=generator(), dtype=torch.float64)
    bent = torch.cat([sheet, sheet[:, :1].square()], 1)
    assert flattening_loss(bent, 2) < 0.02
    assert math.isnan(flattening_loss(gaussian(20, 2), 1))
    assert math.isnan(flattening_loss(torch.ones(100, 2), 1))
