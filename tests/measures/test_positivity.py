"""Complete positivity: every verdict with a certificate that is checked here by its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from isthmus import IsthmusError
from isthmus.measures import _positivity as positivity
from isthmus.measures._positivity import is_completely_positive
from tools import assert_close, gaussian, generator


def check(found, K):
    """The certificate by its definition: a factor multiplies to K, a witness is copositive and separates."""
    K = torch.as_tensor(K, dtype=torch.float64)
    if found.verdict == "yes":
        assert found.witness is None
        B = found.factor
        assert B is not None and bool((B >= 0).all())
        assert_close(B.mT @ B / K.abs().max(), K / K.abs().max(), atol=2e-9, reason="the tolerance of the verdict")
    elif found.verdict == "no":
        assert found.factor is None
        C = found.witness
        assert float((C * K).sum()) < 0
        for seed in range(5):
            start = gaussian(len(K), seed=seed).abs().numpy()
            best = minimize(lambda v: v @ C.numpy() @ v, start, bounds=[(0, 1)] * len(K)).fun
            assert best > -1e-9
    else:
        assert found.factor is None and found.witness is None


def cycle(n: int, c: float) -> np.ndarray:
    K = np.eye(n)
    for i in range(n):
        K[i, (i + 1) % n] = K[(i + 1) % n, i] = c
    return K


@pytest.mark.parametrize(
    ("K", "verdict", "reason"),
    [
        ([[1.0, -0.1], [-0.1, 1.0]], "no", "negative"),
        ([[1.0, 2.0], [2.0, 1.0]], "no", "eigenvalue"),
        ([[0.0, 1.0], [1.0, 0.0]], "no", "eigenvalue"),
        ([[-1.0]], "no", "negative"),
        ([[4.0]], "yes", "rank"),
        (np.zeros((3, 3)), "yes", "rank"),
        ([[1.0, 1.0], [1.0, 1.0]], "yes", "rank"),
        (cycle(5, 0.4), "yes", "comparison"),
        (cycle(5, 0.5), "yes", "comparison"),
        (cycle(5, 0.55), "no", "indefinite"),  # doubly non-negative up to 0.618, completely positive up to 0.5
        (cycle(5, 0.7), "no", "eigenvalue"),
        (cycle(7, 0.52), "no", "indefinite"),
        (np.ones((5, 5)) + 5 * np.eye(5), "yes", "comparison"),
    ],
)
def test_known_answers(K, verdict, reason):
    found = is_completely_positive(K)
    assert found.verdict == verdict
    assert reason in found.reason
    check(found, K)


def test_scaled_dominance_beside_isolated_and_zero_rows():
    """Diagonal scaling destroys dominance, not complete positivity; zero rows and components do not disturb."""
    K = np.zeros((9, 9))
    scale = 10.0 ** np.arange(5)
    K[:5, :5] = cycle(5, 0.45) * np.outer(scale, scale) / 1e8
    K[6, 6] = 0.3
    K[7:, 7:] = [[1e-3, 5e-4], [5e-4, 1e-3]]
    check(is_completely_positive(K), K)
    assert is_completely_positive(K).verdict == "yes"
    K[:5, :5] = cycle(5, 0.55)
    found = is_completely_positive(K)
    assert found.verdict == "no"
    check(found, K)


@pytest.mark.parametrize("rank", [1, 2])
def test_points_in_a_quadrant(rank):
    B = gaussian(rank, 30).abs()
    K = B.mT @ B
    found = is_completely_positive(K)
    assert found.verdict == "yes" and "rank" in found.reason
    assert found.factor.shape[0] == 2
    check(found, K)
    # Turned out of the quadrant the kernel is the same; a cone wider than 90° is another matter.
    angles = torch.linspace(0, 0.55 * math.pi, 30, dtype=torch.float64)
    wide = torch.stack([angles.cos(), angles.sin()])
    assert is_completely_positive(wide.mT @ wide).verdict == "no"


@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 10**5))
def test_up_to_four_doubly_non_negative_is_enough(n, rows, seed):
    """Kernels of random vectors at sharp angles, none of them non-negative as given."""
    Z = gaussian(rows, n, seed=seed) + 1.5 * gaussian(rows, 1, seed=seed + 1)
    K = Z.mT @ Z
    found = is_completely_positive(K)
    expected = "yes" if bool((-1e-9 * K.diagonal().max() <= K).all()) else "no"
    assert found.verdict == expected
    if found.factor is not None or found.verdict == "no":
        check(found, K)


@given(st.integers(5, 9), st.integers(0, 10**5))
def test_dense_factors_are_found(n, seed):
    B = torch.rand(2 * n, n, generator=generator(seed), dtype=torch.float64)
    K = B.mT @ B
    found = is_completely_positive(K)
    assert found.verdict == "yes"
    check(found, K)


def test_a_sparse_factor_at_the_border_of_the_cone():
    B = torch.relu(gaussian(8, 6, seed=3))
    found = is_completely_positive(B.mT @ B)
    assert found.verdict == "yes"
    check(found, B.mT @ B)


def test_unknown_is_said():
    """Doubly non-negative with triangles, and not completely positive: no criterion decides it, no factor is found."""
    K = cycle(5, 0.6) + 1e-3
    horn = np.array(
        [[1, -1, 1, 1, -1], [-1, 1, -1, 1, 1], [1, -1, 1, -1, 1], [1, 1, -1, 1, -1], [-1, 1, 1, -1, 1]], dtype=float
    )
    assert (horn * K).sum() < 0  # Horn's matrix is copositive: K is not completely positive
    assert np.linalg.eigvalsh(K)[0] > 0
    found = is_completely_positive(K, restarts=2)
    assert found.verdict == "unknown"
    assert found.residual > 1e-3
    check(found, K)
    B = torch.rand(10, 6, generator=generator(1), dtype=torch.float64)
    none = is_completely_positive(B.mT @ B, restarts=0)
    assert none.verdict == "unknown" and math.isnan(none.residual)


def test_too_large_is_said(monkeypatch):
    B = torch.rand(10, 7, generator=generator(1), dtype=torch.float64)
    monkeypatch.setattr(positivity, "SEARCH_SIZE", 6)
    assert "N > 6" in is_completely_positive(B.mT @ B).reason
    monkeypatch.setattr(positivity, "CHUNK_BYTES", 100)
    found = is_completely_positive(cycle(6, 0.4))
    assert found.verdict == "yes" and found.factor is None and "too large" in found.reason


@given(st.floats(-250, 250), st.integers(0, 10**5))
def test_invariances(exponent, seed):
    order = torch.randperm(5, generator=generator(seed))
    for c, verdict in ((0.45, "yes"), (0.55, "no")):
        K = torch.from_numpy(cycle(5, c))[order][:, order] * 2.0**exponent
        found = is_completely_positive(K)
        assert found.verdict == verdict
        if verdict == "yes":
            assert_close(found.factor.mT @ found.factor / 2.0**exponent, K / 2.0**exponent)


def test_repeatable_and_by_a_given_generator():
    B = torch.rand(10, 6, generator=generator(1), dtype=torch.float64)
    first, second = (is_completely_positive(B.mT @ B).factor for _ in range(2))
    assert torch.equal(first, second)
    other = is_completely_positive(B.mT @ B, generator=generator(5)).factor
    assert not torch.equal(first, other)


def test_refused():
    with pytest.raises(IsthmusError, match="symmetric"):
        is_completely_positive([[1.0, 0.5], [0.0, 1.0]])
    with pytest.raises(IsthmusError, match="symmetric"):
        is_completely_positive(np.zeros((2, 3)))
    with pytest.raises(IsthmusError, match="finite"):
        is_completely_positive([[math.nan]])
    with pytest.raises(IsthmusError, match="tolerance"):
        is_completely_positive([[1.0]], tolerance=-1.0)
