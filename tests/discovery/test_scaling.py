"""Units come and go without a trace."""

from __future__ import annotations

import numpy as np
import pytest

from isthmus.discovery._task import Scaling, linear_rank
from tools import assert_close, gaussian, orthogonal


def table(n=40, d=5):
    return gaussian(n, d).numpy() * [1e-9, 1.0, 1e9, 3.0, 0.1][:d] + [0.0, 5.0, -1e9, 1e6, 0.0][:d]


def test_scaled_columns_have_mean_0_and_deviation_1():
    A = table()
    scaling = Scaling.fit(A, 256)
    B = scaling(A)
    reason = "a column at 1e6 ± 3 has ten digits left"
    assert_close(B.mean(axis=0), np.zeros(5), rtol=0, atol=1e-8, reason=reason)
    assert_close(B.std(axis=0), np.ones(5), rtol=1e-8, reason=reason)
    assert_close(scaling.undo(B), A)
    assert scaling.axes is None
    assert scaling.columns == 5
    assert not scaling.constant.any()


@pytest.mark.parametrize("unit", [1e-300, 1e-9, 1.0, 1e9, 1e300])
def test_units_do_not_matter(unit):
    A = gaussian(30, 3).numpy()
    assert_close(Scaling.fit(A * unit, 256)(A * unit), Scaling.fit(A, 256)(A))


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1e300, -7e-300])
def test_constant_columns_are_set_aside(value):
    A = gaussian(30, 3).numpy()
    A[:, 1] = value
    scaling = Scaling.fit(A, 256)
    assert scaling.constant.tolist() == [False, True, False]
    assert not scaling(A)[:, 1].any()
    # A new value there counts for nothing, and comes back as the constant.
    other = A.copy()
    other[:, 1] = 17.0
    assert np.array_equal(scaling(other), scaling(A))
    assert_close(scaling.undo(scaling(other))[:, 1], A[:, 1])


def test_a_constant_with_rounding_is_constant_and_a_small_variation_is_not():
    n = 50
    rounding = np.full(n, 0.1) * 3 + np.tile([0.0, 1e-17], n // 2)
    small = 1e6 + 1e-4 * gaussian(n).numpy()
    assert Scaling.fit(np.stack([rounding, small], 1), 256).constant.tolist() == [True, False]


def test_rotation_keeps_distances_and_is_undone():
    A = gaussian(20, 50).numpy() * np.geomspace(1e-3, 1e3, 50)
    scaling = Scaling.fit(A, 30)
    plain = Scaling.fit(A, 50)
    B = scaling(A)
    assert B.shape == (20, 19)
    assert scaling.share == pytest.approx(1.0)
    assert_close(B @ B.T, plain(A) @ plain(A).T, rtol=1e-9, atol=1e-9, reason="products of 50 terms")
    assert_close(scaling.undo(B), A, rtol=1e-8, atol=1e-9, reason="products of 50 terms")


def test_rotation_beyond_the_limit_says_what_it_loses():
    A = gaussian(100, 40).numpy()
    scaling = Scaling.fit(A, 10)
    assert scaling.columns == 10
    values = np.linalg.svd(Scaling.fit(A, 40)(A), compute_uv=False) ** 2
    assert scaling.share == pytest.approx(values[:10].sum() / values.sum())
    assert 0.2 < scaling.share < 0.8


@pytest.mark.parametrize(("n", "d", "rank"), [(30, 6, 3), (30, 6, 6), (30, 6, 0), (4, 6, 3), (1, 6, 0), (3000, 5, 2)])
def test_linear_rank(n, d, rank):
    B = gaussian(n, rank).numpy() @ orthogonal(d, rank, seed=1).numpy().T if rank else np.zeros((n, d))
    assert linear_rank(B + 3.0) == min(rank, n - 1)
