"""Orbit distances: known orbits, a second route by loops, and errors that are as large as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from isthmus import IsthmusError
from isthmus.measures import distance_matrix, orbit_distance, rotations_about
from isthmus.measures._orbits import distances


def turned(X, draws, generator):
    """Rows of the plane turned by uniform angles."""
    angle = 2 * math.pi * torch.rand(draws, len(X), generator=generator, dtype=torch.float64)
    c, s = angle.cos(), angle.sin()
    return torch.stack([c * X[:, 0] - s * X[:, 1], s * X[:, 0] + c * X[:, 1]], dim=2)


def circles(count, seed, low=0.5, high=1.5):
    """Points of the plane at uniform radii, and a generator to go on with."""
    source = torch.Generator().manual_seed(seed)
    radius = low + (high - low) * torch.rand(count, generator=source, dtype=torch.float64)
    X = torch.stack([radius, torch.zeros_like(radius)], dim=1)
    return X, radius, source


def test_circles_have_the_mean_chord_of_a_circle():
    """A chord between uniform points of a circle of radius r has mean 4r/π."""
    X, radius, source = circles(2000, 0)
    found = orbit_distance(X, turned(X, 20, source))
    assert found.within == pytest.approx(4 / math.pi * float(radius.mean()), rel=0.01)
    # Two orbits: E|r − s·e^{iθ}| by quadrature over radii and angle.
    r = np.linspace(0.5, 1.5, 60)
    theta = np.linspace(0, 2 * np.pi, 400, endpoint=False)
    apart = np.abs(r[:, None, None] - r[None, :, None] * np.exp(1j * theta)).mean()
    assert found.between == pytest.approx(apart, rel=0.02)
    assert found.ratio == pytest.approx(found.within / found.between)


def test_a_second_route_by_loops():
    X, _, source = circles(7, 1)
    moved = turned(X, 3, source)
    within, between = distances(X, moved)
    by_hand = [np.mean([math.dist(X[i], moved[k, i]) for k in range(3)]) for i in range(7)]
    np.testing.assert_allclose(within, by_hand, rtol=1e-12)
    # Every pair (i, i + shift) of each draw, once for either end.
    pairs = [[] for _ in range(7)]
    for k, shift in enumerate((1, 3, 5)):
        for i in range(7):
            j = (i + shift) % 7
            for end in (i, j):
                pairs[end].append(math.dist(X[i], moved[k, j]))
    np.testing.assert_allclose(between, [np.mean(p) for p in pairs], rtol=1e-12)


def test_norms_collapse_circles_and_angles_do_not():
    X, _, source = circles(300, 2)
    moved = turned(X, 4, source)
    assert orbit_distance(X.norm(dim=1, keepdim=True), moved.norm(dim=2, keepdim=True)).ratio < 1e-14
    angle = torch.atan2(moved[..., 1], moved[..., 0])[..., None]
    assert orbit_distance(angle[0], angle[1:]).ratio == pytest.approx(1.0, abs=0.05)


def test_a_constant_has_no_ratio():
    A = torch.full((20, 3), 7.0, dtype=torch.float64)
    found = orbit_distance(A + 1e-15, (A - 1e-15)[None])
    assert math.isnan(found.ratio) and math.isnan(found.error)
    # Small is not constant.
    assert not math.isnan(orbit_distance(1e-9 * torch.randn(20, 3, dtype=torch.float64), torch.zeros(1, 20, 3)).ratio)


def test_the_error_is_not_below_that_of_repeated_samples():
    """Nor above twice it: few partners for each sample make it a little too large."""
    found = []
    for seed in range(60):
        X, _, source = circles(60, seed, low=0.0, high=2.0)
        found.append(orbit_distance(X, turned(X, 4, source)))
    spread = np.std([one.ratio for one in found])
    assert 0.9 < np.mean([one.error for one in found]) / spread < 2.0


def test_distances_of_collapsed_points_keep_their_digits():
    P = torch.full((30, 5), 1e3, dtype=torch.float64)
    P[:, 0] += 1e-6 * torch.arange(30)
    D = distance_matrix(P)
    np.testing.assert_allclose(D[0], 1e-6 * np.arange(30), atol=1e-12)


@pytest.mark.parametrize("reflect", [False, True])
def test_rotations_keep_what_they_should(reflect):
    source = torch.Generator().manual_seed(0)
    w = torch.tensor([3.0, 0.0, 4.0, 0.0], dtype=torch.float64)
    X = torch.randn(5000, 4, generator=source, dtype=torch.float64)
    Y = rotations_about(w, reflect=reflect)(X, source)
    e = w / w.norm()
    along, now = X @ e, Y @ e
    aside, then = X - torch.outer(along, e), Y - torch.outer(now, e)
    torch.testing.assert_close(aside.norm(dim=1), then.norm(dim=1))
    torch.testing.assert_close(along.abs(), now.abs())
    same = float((along * now > 0).double().mean())
    assert same == pytest.approx(0.5, abs=0.03) if reflect else same == 1.0
    # Uniform on the sphere: no direction is preferred, and none is kept.
    unit = then / then.norm(dim=1, keepdim=True)
    covariance = unit.mT @ unit / len(unit)
    torch.testing.assert_close(
        covariance, (torch.eye(4, dtype=torch.float64) - torch.outer(e, e)) / 3, atol=0.02, rtol=0
    )
    assert abs(float((aside * then).sum(1).mean())) < 0.1


def test_errors():
    with pytest.raises(IsthmusError, match="draws, N, n"):
        orbit_distance(np.zeros((5, 2)), np.zeros((5, 2)))
    with pytest.raises(IsthmusError, match="not zero"):
        rotations_about([0.0, 0.0])
    with pytest.raises(IsthmusError, match="3 entries"):
        rotations_about([0.0, 0.0, 1.0])(torch.zeros(4, 2), torch.Generator())
