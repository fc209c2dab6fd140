"""Learners that say what can be predicted at all."""

from __future__ import annotations

import numpy as np
import pytest

from isthmus import problems
from isthmus.discovery import Settings
from isthmus.discovery import _kernel as kernel
from isthmus.discovery._kernel import kernel_ridge
from isthmus.discovery._reference import measure_reference
from isthmus.discovery._task import make_task
from tools import SEED, assert_close, gaussian


def brute_force(X, Y, X_held):
    """Every length and ridge, every row left out in turn and predicted by the others."""

    def gram(A, B, scale):
        return np.exp(-((A[:, None] - B[None]) ** 2).sum(-1) / scale)

    n, mean = len(X), Y.mean(axis=0)
    typical = float(np.median(((X[:, None] - X[None]) ** 2).sum(-1)))
    found = []
    for length in kernel.LENGTHS:
        scale = 2 * length**2 * typical
        K = gram(X, X, scale)
        for ridge in kernel.RIDGES[3:]:
            R, error = ridge * np.trace(K) / n, 0.0
            for i in range(n):
                rest = np.arange(n) != i
                weights = np.linalg.solve(K[np.ix_(rest, rest)] + R * np.eye(n - 1), (Y - mean)[rest])
                error += float(((K[i, rest] @ weights - (Y - mean)[i]) ** 2).sum())
            found.append((error, scale, R))
    _, scale, R = min(found)
    weights = np.linalg.solve(gram(X, X, scale) + R * np.eye(n), Y - mean)
    return gram(X_held, X, scale) @ weights + mean


def test_kernel_ridge_leaves_one_out():
    """With noise, so that the ridge it chooses is not the smallest."""
    X, X_held = gaussian(30, 3).numpy(), gaussian(11, 3, seed=1).numpy()
    Y = np.column_stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]]) + 0.3 * gaussian(30, 2, seed=2).numpy()
    assert_close(kernel_ridge(X, Y, X_held), brute_force(X, Y, X_held), rtol=1e-6, reason="solved otherwise")


def test_kernel_ridge_of_nothing():
    """Inputs that do not vary: the mean."""
    Y = gaussian(20, 2).numpy()
    found = kernel_ridge(np.ones((20, 3)), Y, np.ones((4, 3)))
    assert_close(found, np.tile(Y.mean(axis=0), (4, 1)), atol=1e-8, reason="a singular kernel")


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_the_reference_reaches_the_noise(noise):
    problem = problems.linear(d_in=4, d_out=4, rank=2, samples=160, noise=noise, seed=SEED)
    data = make_task(problem.X, problem.Y, Settings()).data(0)[0]
    found = measure_reference(data, 0)
    assert found.error == min(found.errors.values()) == found.errors[found.learner]
    assert len(found.errors) == 3
    # Noise of half a deviation is a fifth of the variance.
    assert (found.error < 0.02) == (noise == 0.0)
    assert found.error < 0.4
    assert measure_reference(data, 0) == found
