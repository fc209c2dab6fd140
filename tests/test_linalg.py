"""Linear algebra of the bottom layer against NumPy and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from isthmus import IsthmusError, linalg
from tools import assert_close, gaussian, orthogonal


def test_svd_reconstructs_with_fixed_signs():
    for shape in [(5, 3), (3, 5), (4, 4), (2, 6, 3)]:
        A = gaussian(*shape)
        U, s, Vh = linalg.svd(A)
        assert_close((U * s[..., None, :]) @ Vh, A)
        assert_close(s, np.linalg.svd(A.numpy(), compute_uv=False))
        largest = torch.gather(Vh, -1, Vh.abs().argmax(-1, keepdim=True))
        assert (largest > 0).all()
        V = linalg.svd(-A)[2]
        assert_close(V, Vh)  # the sign of A goes to U


def test_svd_of_zero():
    U, s, Vh = linalg.svd(torch.zeros(3, 2))
    assert not s.any()
    assert_close((U * s) @ Vh, torch.zeros(3, 2, dtype=torch.float64))


@pytest.mark.parametrize("k", range(5))
def test_numerical_rank(k):
    A = gaussian(6, k, seed=k) @ gaussian(k, 4, seed=k + 9) if k else torch.zeros(6, 4)
    assert int(linalg.numerical_rank(A)) == k == np.linalg.matrix_rank(A.numpy())
    assert linalg.numerical_rank(torch.stack([A.double()] * 3)).tolist() == [k] * 3


def test_rank_tolerances():
    A = torch.diag(torch.tensor([1.0, 1e-3, 1e-9], dtype=torch.float64))
    assert int(linalg.numerical_rank(A)) == 3
    assert int(linalg.numerical_rank(A, tolerance=1e-2)) == 1
    assert int(linalg.numerical_rank(A, eps=torch.finfo(torch.float32).eps)) == 2
    with pytest.raises(IsthmusError, match="tolerance"):
        linalg.numerical_rank(A, tolerance=-1.0)


def test_pseudo_determinant():
    A = gaussian(4, 4)
    assert_close(linalg.log_pseudo_determinant(A), np.linalg.slogdet(A.numpy())[1])
    B = orthogonal(5, 2) @ torch.diag(torch.tensor([3.0, 0.5], dtype=torch.float64)) @ orthogonal(4, 2, seed=1).mT
    assert_close(linalg.log_pseudo_determinant(B), math.log(1.5))
    assert_close(linalg.log_pseudo_determinant(B, rank=1), math.log(3.0))
    assert_close(linalg.log_pseudo_determinant(B, rank=0), 0.0)
    assert float(linalg.log_pseudo_determinant(torch.diag(torch.tensor([2.0, 0.0])), rank=2)) == -math.inf
    assert float(linalg.log_pseudo_determinant(torch.zeros(3, 3))) == 0.0
    for bad in (5, -1, 1.5, True):
        with pytest.raises(IsthmusError, match="rank"):
            linalg.log_pseudo_determinant(B, rank=bad)  # pyright: ignore[reportArgumentType]


def test_schatten():
    A = gaussian(4, 6)
    assert_close(linalg.schatten(A, 2.0), A.square().sum())
    assert_close(linalg.schatten(A, 1.0), torch.linalg.matrix_norm(A, "nuc"))
    # Rounding-level singular values would each add (1e-16)^{0.01} ≈ 0.7.
    low = gaussian(6, 2) @ gaussian(2, 6, seed=1)
    s = torch.linalg.svdvals(low)[:2]
    assert_close(linalg.schatten(low, 0.01), s.pow(0.01).sum())
    assert float(linalg.schatten(torch.zeros(2, 2), 0.5)) == 0.0
    for p in (0.0, -1.0, float("nan")):
        with pytest.raises(IsthmusError, match="`p`"):
            linalg.schatten(A, p)


def test_orthogonal_invariance():
    A, Q, R = gaussian(5, 4), orthogonal(5, 5, seed=1), orthogonal(4, 4, seed=2)
    for measure in (linalg.log_pseudo_determinant, linalg.singular_values, lambda M: linalg.schatten(M, 0.4)):
        assert_close(measure(Q @ A @ R), measure(A))


@pytest.mark.parametrize("bad", [[1.0, 2.0], 3.0, [[float("nan")]], [["x"]]])
def test_refused(bad):
    for function in (
        linalg.singular_values,
        linalg.svd,
        linalg.numerical_rank,
        linalg.log_pseudo_determinant,
    ):
        with pytest.raises(IsthmusError):
            function(bad)


def test_chunk_rows():
    assert linalg.chunk_rows(100, 10, 55) == 5
    assert linalg.chunk_rows(100, 1e12, 55) == 1
    assert linalg.chunk_rows(3, 1, 55) == 3
    assert linalg.chunk_rows(10, 0.0, 5) == 5


def test_thin_svd_falls_back(monkeypatch):
    """Divide and conquer fails on rare matrices: QR iteration gives the same."""
    A = gaussian(7, 4)
    expected = linalg.thin_svd(A)

    def broken(*_, **__):
        raise torch.linalg.LinAlgError("did not converge")

    monkeypatch.setattr(torch.linalg, "svd", broken)
    U, s, Vh = linalg.thin_svd(A)
    assert_close(s, expected[1])
    assert_close(U * s @ Vh, A)
    assert linalg.thin_svd(A, full_matrices=True)[0].shape == (7, 7)
