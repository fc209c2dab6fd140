"""Factors: the best of their rank on the data, balanced, and only where they save parameters."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus import IsthmusError
from isthmus.compression._within import factor, saves
from tools import assert_close, gaussian, orthogonal


def least_error(W, S, r):
    """‖(W − W_r)S‖ of the best W_r by weighted low-rank approximation: truncate W·(SSᵀ)^½, the second route."""
    values, vectors = torch.linalg.eigh(S @ S.mT)
    root = (vectors * values.clamp_min(0).sqrt()) @ vectors.mT
    return float(torch.linalg.svdvals(W @ root)[r:].norm())


@pytest.mark.parametrize("shape", [(12, 9, 200), (9, 30, 15), (30, 30, 8)])
@pytest.mark.parametrize("r", [1, 4])
def test_no_other_is_nearer_on_the_data(shape, r):
    m, n, N = shape
    W, S = gaussian(m, n), torch.relu(gaussian(n, N, seed=1)) * torch.logspace(0, -2, n, dtype=torch.float64)[:, None]
    found = factor(W, S, rank=r)
    assert found is not None and found.b is None
    error = float(((W - found.A @ found.B) @ S).norm())
    assert error == pytest.approx(least_error(W, S, r), rel=1e-6, abs=1e-9)
    assert error == pytest.approx(found.error * float((W @ S).norm()), rel=1e-6, abs=1e-9)
    U, s, Vh = torch.linalg.svd(W)
    blind = (U[:, :r] * s[:r]) @ Vh[:r]
    assert error <= float(((W - blind) @ S).norm()) * (1 + 1e-9)
    # Balanced: no other factors of this product have less norm.
    assert_close(found.A.mT @ found.A, found.B @ found.B.mT, atol=1e-10, reason="singular values of the product")
    nuclear = float(torch.linalg.svdvals(found.A @ found.B).sum())
    assert float(found.A.square().sum() + found.B.square().sum()) == pytest.approx(2 * nuclear)


def test_a_constant_goes_into_the_bias():
    """Activations on an affine plane: of rank 2 after the mean is taken into b."""
    S = gaussian(20, 2) @ gaussian(2, 300, seed=1) + gaussian(20, 1, seed=2)
    W, b = gaussian(15, 20, seed=3), gaussian(15, seed=4)
    found = factor(W, S, b, tolerance=1e-10)
    assert found is not None and found.rank == 2 and found.error < 1e-12 and found.b is not None
    assert_close(found.A @ (found.B @ S) + found.b[:, None], W @ S + b[:, None])
    fixed = factor(W, S, b, tolerance=1e-10, offset=False)
    assert fixed is not None and fixed.rank == 3
    assert_close(fixed.b, b)


@given(st.integers(0, 10_000), st.floats(1e-6, 0.5))
def test_the_least_rank_within_the_tolerance(seed, tolerance):
    s = torch.logspace(0, -8, 24, dtype=torch.float64)
    W = (orthogonal(24, 24, seed=seed) * s) @ orthogonal(24, 24, seed=seed + 1).mT
    S = gaussian(24, 100, seed=seed + 2)
    tails = [least_error(W, S, r) / float((W @ S).norm()) for r in range(25)]
    least = next(r for r in range(25) if tails[r] <= tolerance)
    found = factor(W, S, tolerance=tolerance)
    if saves(24, 24, max(least, 1)):
        assert found is not None and found.rank == max(least, 1) and found.error <= tolerance
    else:
        assert found is None


def test_only_where_it_saves():
    for m, n in ((10, 10), (3, 100), (1, 5), (7, 8)):
        most = max(0, (m * n - 1) // (m + n))
        assert not saves(m, n, most + 1) and (most == 0 or saves(m, n, most))
        for r in range(1, min(m, n) + 1):
            assert saves(m, n, r) == (r * (m + n) < m * n) == (r <= most)
    W, S = gaussian(10, 10), gaussian(10, 50, seed=1)
    assert factor(W, S, rank=5) is None
    found = factor(W, S, rank=4)
    assert found is not None and found.A.numel() + found.B.numel() == 80
    assert factor(W, S, tolerance=1e-12) is None


def test_nothing_to_see():
    W = gaussian(10, 10)
    found = factor(W, torch.zeros(10, 5, dtype=torch.float64), tolerance=0.1)
    assert found is not None and found.rank == 1 and found.error == 0.0


def test_what_came_is_said():
    with pytest.raises(IsthmusError, match="must have 10 rows"):
        factor(gaussian(10, 10), gaussian(5, 10), rank=1)
    with pytest.raises(IsthmusError, match="one of `rank` and `tolerance`"):
        factor(gaussian(10, 10), gaussian(10, 5))
