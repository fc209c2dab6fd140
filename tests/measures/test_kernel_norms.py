"""Norms of K + γI without K: against dense inverses in both dimensions, and on data that has lost directions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus import DataError, IsthmusError
from isthmus.measures import KernelNorm, fewer_columns
from isthmus.measures._forces import solve
from tools import assert_close, gaussian

#: (n, N): more samples than neurons, fewer, one of each.
SHAPES = [(4, 9), (9, 4), (6, 6), (5, 1), (1, 5)]


def dense(M, other, S, gamma):
    """Tr[M(K+γI)⁻¹M'ᵀ] with K formed."""
    K = S.mT @ S + gamma * torch.eye(S.shape[1], dtype=torch.float64)
    return float((M @ torch.linalg.solve(K, other.mT)).trace())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gamma", [1e-3, 0.7])
def test_against_the_dense_inverse(shape, gamma):
    S, M, other = gaussian(*shape), gaussian(3, shape[1], seed=1), gaussian(3, shape[1], seed=2)
    norm = KernelNorm(S)
    assert_close(norm.square(M, gamma), dense(M, M, S, gamma))
    assert_close(norm.product(M, other, gamma), dense(M, other, S, gamma))
    # The other dimension: (K+γI)⁻¹ = (I − Sᵀ(SSᵀ+γI)⁻¹S)/γ.
    inner = torch.linalg.solve(S @ S.mT + gamma * torch.eye(len(S), dtype=torch.float64), S)
    by_neurons = (float((M * other).sum()) - float(((M @ S.mT) @ inner * other).sum())) / gamma
    assert_close(norm.product(M, other, gamma), by_neurons, rtol=1e-8, atol=1e-10, reason="a difference over γ")


@pytest.mark.parametrize("shape", SHAPES)
def test_without_gamma_against_the_pseudo_inverse(shape):
    S = gaussian(*shape)
    M, other = gaussian(3, shape[0], seed=1) @ S, gaussian(3, shape[0], seed=2) @ S
    pinv = torch.linalg.pinv(S.mT @ S)
    assert_close(KernelNorm(S).square(M), float((M @ pinv @ M.mT).trace()), rtol=1e-8, reason="squared condition")
    assert_close(KernelNorm(S).product(M, other), float((M @ pinv @ other.mT).trace()), rtol=1e-8, reason="the same")
    # The smallest W with WS = M has that norm.
    W = KernelNorm(S).weights(M)
    assert_close(W, M @ torch.linalg.pinv(S), rtol=1e-8, reason="pinv by another cut")
    assert_close(W @ S, M, rtol=1e-8, reason="conditioning of a square Gaussian matrix")
    assert_close(float(W.square().sum()), KernelNorm(S).square(M))


def test_small_gamma_tends_to_none_inside_the_image_and_to_infinity_outside():
    S, inside, outside = gaussian(4, 9), gaussian(2, 4, seed=1) @ gaussian(4, 9), gaussian(2, 9, seed=2)
    norm = KernelNorm(S)
    assert_close(norm.square(inside, 1e-12), norm.square(inside), rtol=1e-9, reason="γ/s² of the smallest value")
    assert norm.square(outside) == math.inf and norm.square(outside, 1e-9) > 1e8
    assert math.isnan(norm.product(inside, outside)) and math.isnan(norm.product(outside, inside))
    # Parts outside the image are not lost in a difference of squares: exact to a relative 1e-10 at γ = 1e-13.
    P = outside - outside @ norm.Vh.mT @ norm.Vh
    assert_close(norm.square(P, 1e-13), float(P.square().sum()) / 1e-13)


def test_lost_directions_and_duplicates():
    S = gaussian(6, 3) @ gaussian(3, 10, seed=1)
    norm = KernelNorm(S)
    assert norm.rank == 3
    M = gaussian(2, 6, seed=2) @ S
    expected = float((M @ torch.linalg.pinv(S.mT @ S, rtol=1e-10) @ M.mT).trace())
    assert_close(norm.square(M), expected, rtol=1e-8, reason="pinv of a singular kernel")
    # Samples that come twice: twice the kernel on one of them, half the norm.
    twice = KernelNorm(torch.cat([S, S], 1))
    assert_close(twice.square(torch.cat([M, M], 1)), norm.square(M))
    # Duplicates that should differ cannot be rebuilt.
    assert twice.square(torch.cat([M, -M], 1)) == math.inf


def test_single_precision_does_not_count_as_leaving_the_image():
    S = (gaussian(6, 3) @ gaussian(3, 10, seed=1)).float()
    M = (gaussian(2, 6, seed=2).float() @ S).double()
    assert KernelNorm(S, eps=torch.finfo(torch.float32).eps).rank == 3
    assert math.isfinite(KernelNorm(S, eps=torch.finfo(torch.float32).eps).square(M))


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("gamma", [1e-12, 1e-20, 1e-28, 1e-40, 1e-300])
def test_a_tiny_gamma_does_not_amplify_rounding(gamma, repeated):
    """‖S‖²_{SᵀS + γI} is the rank of S, whether directions without weight come from columns or from equal rows."""
    S = gaussian(3, 40).abs()
    S = torch.cat([S, S.sum(0, keepdim=True)]) if repeated else S
    norm = KernelNorm(S)
    assert_close(norm.square(S, gamma), 3.0, rtol=1e-9, reason="of the condition number")
    assert_close(solve(norm, S, gamma) @ S.mT, solve(norm, S) @ S.mT, rtol=1e-8, atol=1e-8, reason="the same")
    # What is outside is still seen.
    assert norm.square(S + 1e-9 * gaussian(len(S), 40, seed=1), gamma) > 3.0 + 1e-18 / gamma


def test_nothing():
    zero = KernelNorm(torch.zeros(3, 5, dtype=torch.float64))
    assert zero.top == 0.0 and zero.rank == 0
    assert zero.square(torch.zeros(2, 5)) == 0.0 and zero.square(gaussian(2, 5)) == math.inf
    assert_close(zero.square(gaussian(2, 5), 0.5), float(gaussian(2, 5).square().sum()) / 0.5)
    assert_close(zero.weights(gaussian(2, 5)), torch.zeros(2, 3))


def test_errors():
    with pytest.raises(IsthmusError, match="`S` must be a matrix"):
        KernelNorm(torch.zeros(3))
    with pytest.raises(IsthmusError, match="`gamma`"):
        KernelNorm(gaussian(3, 4)).square(gaussian(2, 4), -1.0)
    bad = gaussian(3, 4)
    bad[1, 2] = torch.nan
    with pytest.raises(DataError, match="1 NaN or infinite of 12 values"):
        KernelNorm(bad)


@given(
    n=st.integers(1, 6),
    m=st.integers(1, 4),
    parts=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    gamma=st.sampled_from([1e-3, 1.0]),
)
def test_fewer_columns_keep_every_norm(n, m, parts, gamma):
    """However the samples are cut into pieces."""
    N = sum(parts)
    S, M = gaussian(n, N), gaussian(m, N, seed=1)
    stack = None
    for A, B in zip(S.split(parts, 1), M.split(parts, 1)):
        stack = fewer_columns([A, B], stack)
    assert stack is not None and stack.shape[1] <= max(n + m, N if n + m >= N else 0)
    whole = torch.cat([S, M])
    assert_close(stack @ stack.mT, whole @ whole.mT, rtol=1e-9, atol=1e-9, reason="products of rotated columns")
    small = KernelNorm(stack[:n]).square(stack[n:], gamma)
    assert_close(small, KernelNorm(S).square(M, gamma), rtol=1e-8, reason="the part outside, over γ")
