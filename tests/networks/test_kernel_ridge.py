"""M-kernel: kernel ridge regression, its Jacobian by three routes, and C-rank-10 with its twin."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.linalg import lstsq

from isthmus import IsthmusError
from isthmus.linalg import numerical_rank
from isthmus.networks._kernel_ridge import KERNELS, MAX_SAMPLES, KernelRidge
from tools import assert_close, gaussian


def by_hand(x, X, C, kernel, length):
    """f(x) for one point, written down again for autograd."""
    t = (x - X).square().sum(1).sqrt() / length
    k = {
        "gaussian": lambda: (-(t**2) / 2).exp(),
        "laplace": lambda: (-t).exp(),
        "matern-3/2": lambda: (1 + math.sqrt(3) * t) * (-math.sqrt(3) * t).exp(),
    }[kernel]()
    return k @ C


@pytest.mark.parametrize("kernel", KERNELS)
def test_interpolates_and_shrinks(kernel):
    X, Y = gaussian(40, 3), gaussian(40, 2, seed=1)
    model = KernelRidge(kernel, length=1.0).fit(X, Y)
    assert model.state_ == "solved"
    assert_close(model.predict(X), Y, rtol=1e-8, reason="rounding times the condition of K")
    # Two samples by hand: (K + ridge)⁻¹ of a 2 × 2 matrix.
    two = KernelRidge(kernel, length=2.0, ridge=0.5).fit(X[:2], Y[:2, :1])
    t = (X[0] - X[1]).norm() / 2.0
    k = float(KERNELS[kernel][0](t))
    solution = np.linalg.inv([[1.5, k], [k, 1.5]]) @ Y[:2, :1].numpy()
    assert_close(two.coefficients_, solution)
    assert_close(two.predict(X[:1]), solution[0] + k * solution[1:])
    assert KernelRidge(kernel, ridge=1e6).fit(X, Y).predict(X).abs().max() < 1e-3


@pytest.mark.parametrize("kernel", KERNELS)
def test_jacobian_by_three_routes(kernel):
    X, Y = gaussian(30, 4) + 5.0, gaussian(30, 3, seed=1)
    model = KernelRidge(kernel, length=1.5, ridge=1e-3).fit(X, Y)
    x = gaussian(7, 4, seed=2) + 5.0
    J = model.jacobian(x)
    assert J.shape == (7, 3, 4)
    for i in range(7):
        automatic = torch.autograd.functional.jacobian(
            lambda point: by_hand(point, X, model.coefficients_, kernel, 1.5), x[i]
        )
        assert_close(J[i], automatic, rtol=1e-9, reason="sums of 30 terms of both signs")
    step = 1e-5
    for a in range(4):
        shift = step * torch.eye(4, dtype=torch.float64)[a]
        finite = (model.predict(x + shift) - model.predict(x - shift)) / (2 * step)
        assert_close(J[:, :, a], finite, rtol=1e-6, atol=1e-8, reason="central differences with step 1e-5")
    for small in (1, 2000):
        assert_close(model.jacobian(x, chunk_bytes=small), J)
        assert_close(model.predict(x, chunk_bytes=small), model.predict(x))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("N", "d_in", "d_out", "of_X", "of_Y"), [(20, 6, 4, 6, 4), (3, 6, 5, 6, 5), (20, 6, 5, 2, 5), (20, 5, 6, 5, 2)]
)
def test_rank_of_the_jacobian(kernel, N, d_in, d_out, of_X, of_Y):
    """C-rank-10: min{Rank(X − x), Rank Y}: not the rank of any task, only of the data."""
    X = gaussian(N, of_X) @ gaussian(of_X, d_in, seed=1)
    Y = gaussian(N, of_Y, seed=2) @ gaussian(of_Y, d_out, seed=3)
    model = KernelRidge(kernel).fit(X, Y)
    x = gaussian(1, d_in, seed=4)
    expected = min(int(numerical_rank(X - x)), int(numerical_rank(Y)))
    # Rounding of the coefficients is magnified by the condition of K.
    assert int(numerical_rank(model.jacobian(x)[0], eps=1e-16 / model.rcond_)) == expected


def test_structured_outputs_are_the_twin():
    """Y of full rank, made so that one output does not change at x: the Jacobian loses a rank there."""
    X, x = gaussian(20, 4), gaussian(1, 4, seed=1)
    C = gaussian(20, 3, seed=2)
    t = (x - X).norm(dim=1)
    pulls = KERNELS["gaussian"][1](t)[:, None] * (x - X)
    C[:, 0] -= pulls @ torch.linalg.lstsq(pulls, C[:, :1]).solution[:, 0]
    K = KERNELS["gaussian"][0](torch.cdist(X, X))
    model = KernelRidge(length=1.0).fit(X, K @ C)
    assert int(numerical_rank(K @ C)) == 3
    assert int(numerical_rank(model.jacobian(x)[0], eps=1e-15 / model.rcond_)) == 2


def test_ill_conditioned_has_a_name():
    X, Y = gaussian(30, 2), gaussian(30, 2, seed=1)
    flat = KernelRidge(length=100.0).fit(X, Y)
    assert flat.state_ == "ill-conditioned"
    K = np.exp(-np.square(np.linalg.norm(X.numpy()[:, None] - X.numpy(), axis=2)) / 2e4)
    least = lstsq(K, Y.numpy(), cond=30 * np.finfo(float).eps)[0]
    assert bool(torch.isfinite(flat.predict(X)).all())
    assert_close(flat.predict(X), K @ least, atol=0.05, reason="two truncations at rounding level")
    # Equal samples with equal outputs: singular, and still the interpolation of the distinct ones.
    twice = KernelRidge("laplace").fit(torch.cat([X, X]), torch.cat([Y, Y]))
    assert twice.state_ == "ill-conditioned"
    assert_close(twice.predict(X), Y, rtol=1e-7, atol=1e-9, reason="an eigenvalue solution")
    assert KernelRidge(length=100.0, ridge=1e-3).fit(X, Y).state_ == "solved"


def test_condition_number_against_the_eigenvalues():
    X, Y = gaussian(50, 3), gaussian(50, 1, seed=1)
    model = KernelRidge("laplace", length=1.0, ridge=0.01).fit(X, Y)
    K = KERNELS["laplace"][0](torch.cdist(X, X)) + 0.01 * torch.eye(50, dtype=torch.float64)
    exact = 1.0 / float(torch.linalg.cond(K, 1))
    assert exact <= model.rcond_ * (1 + 1e-9)
    assert model.rcond_ <= 3 * exact


def test_length_by_default():
    X = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)
    assert KernelRidge().fit(X, X).length_ == 2.0
    one = KernelRidge().fit([[1.0, 2.0]], [[3.0]])
    assert (one.length_, one.state_) == (1.0, "solved")
    assert_close(one.predict([[1.0, 2.0]]), [[3.0]])


@pytest.mark.parametrize("kernel", KERNELS)
def test_at_a_sample(kernel):
    """Smooth kernels have no slope at their centre; Laplace's kink counts as none."""
    model = KernelRidge(kernel, length=1.0).fit([[1.0, 2.0]], [[3.0]])
    assert_close(model.jacobian([[1.0, 2.0]]), np.zeros((1, 1, 2)))


def test_chunks_follow_the_budget():
    X, Y = gaussian(500, 60), gaussian(500, 2, seed=1)
    model = KernelRidge("laplace").fit(X, Y)
    sizes = {len(part) for part in model._chunks("test", gaussian(400, 60, seed=2), 24 * 500 * 50)}
    assert sizes == {50}


def test_refused():
    X, Y = gaussian(5, 2), gaussian(5, 1, seed=1)
    with pytest.raises(IsthmusError, match="must be fitted"):
        KernelRidge().predict(X)
    with pytest.raises(IsthmusError, match="must be fitted"):
        KernelRidge().jacobian(X)
    with pytest.raises(IsthmusError, match="'gaussian', 'laplace', 'matern-3/2'"):
        KernelRidge("cubic").fit(X, Y)
    with pytest.raises(IsthmusError, match="same number of rows"):
        KernelRidge().fit(X, Y[:4])
    with pytest.raises(IsthmusError, match="length"):
        KernelRidge(length=0.0).fit(X, Y)
    with pytest.raises(IsthmusError, match="ridge"):
        KernelRidge(ridge=-1.0).fit(X, Y)
    with pytest.raises(IsthmusError, match="2 columns"):
        KernelRidge().fit(X, Y).predict(gaussian(3, 3))
    many = torch.zeros(MAX_SAMPLES + 1, 1)
    with pytest.raises(IsthmusError, match=f"at most {MAX_SAMPLES} rows"):
        KernelRidge().fit(many, many)
