"""Marks of missing values, gross outliers, heavy tails, keys and copies: what is one, and what just is not."""

import numpy as np
import pytest

from isthmus._oddities import copies, has_heavy_tails, is_key, known_mark, limits_of, marks_of, numbers_rows

N = 400


@pytest.fixture(scope="module")
def rng():
    return np.random.default_rng(0)


@pytest.fixture(scope="module")
def normal():
    return np.random.default_rng(1).standard_normal(N)


def with_marks(column, value, count):
    """The column with ``value`` in ``count`` of its rows."""
    column = column.copy()
    column[3 : 3 + 7 * count : 7] = value
    return column


@pytest.mark.parametrize(
    "value", [-9999.0, 99.0, 999.9, 777.0, -88888.0, -1e30, 1e20, 9.96921e36, -32768.0, 2147483647.0, 1.797693e308]
)
def test_known_marks_far_outside_are_found(normal, value):
    assert known_mark(value)
    assert marks_of(with_marks(normal, value, 4)) == (value,)


@pytest.mark.parametrize("value", [0.0, -1.0, 9.0, 77.0, 100.0, 1000.0, 12345.0, 998.0])
def test_other_numbers_are_no_known_marks(value):
    assert not known_mark(value)


def test_a_mark_that_is_not_repeated_must_be_ten_times_as_far(normal):
    # The rest is about 6 wide.
    assert marks_of(with_marks(normal, 99.0, 1)) == (99.0,)
    assert marks_of(with_marks(normal * 3, 99.0, 1)) == ()
    assert marks_of(with_marks(normal * 3, 99.0, 2)) == (99.0,)


def test_a_number_of_the_range_is_no_mark(rng):
    ages = rng.integers(0, 100, N).astype(float)
    assert 99.0 in ages
    assert marks_of(ages) == ()
    # 999 − 99 is farther than the ages are wide, 130 − 99 is not.
    assert marks_of(with_marks(ages, 999.0, 3)) == (999.0,)
    assert marks_of(with_marks(ages, 130.0, 3)) == ()
    heights = rng.uniform(0, 8000, N)
    assert marks_of(with_marks(heights, 9999.0, 3)) == ()
    # Negative where nothing else is.
    assert marks_of(with_marks(heights, -999.0, 3)) == (-999.0,)
    assert marks_of(with_marks(heights - 4000, -5000.0, 3)) == ()


def test_marks_at_both_ends_and_two_at_one(normal):
    column = with_marks(with_marks(normal, -9999.0, 4)[::-1], 9999.0, 2)
    assert marks_of(column) == (-9999.0, 9999.0)
    assert marks_of(with_marks(with_marks(normal, -9999.0, 4)[::-1], -8888.0, 3)) == (-9999.0, -8888.0)


def test_a_value_of_no_known_form_must_be_thrice_and_ten_widths_away(rng):
    kelvin = rng.uniform(290, 310, N)
    assert marks_of(with_marks(kelvin, 0.0, 3)) == (0.0,)
    assert marks_of(with_marks(kelvin, 0.0, 2)) == ()
    assert marks_of(with_marks(kelvin, 200.0, 3)) == ()
    # A state rather than a mark: two fifths of the rows.
    assert marks_of(np.where(np.arange(N) % 5 < 2, 0.0, kelvin)) == ()


def test_few_values_have_no_marks(rng):
    assert marks_of((rng.random(N) < 0.01) * 9999.0) == ()
    assert marks_of(np.full(N, -9999.0)) == ()
    assert marks_of(np.array([np.nan, np.inf, -np.inf])) == ()


def test_gaps_are_passed_over(normal):
    column = with_marks(normal, -9999.0, 3)
    column[:3] = np.nan, np.inf, -np.inf
    assert marks_of(column) == (-9999.0,)
    assert limits_of(column) is not None


def test_gross_outliers_are_limited_to_the_rest(normal):
    column = normal.copy()
    column[[5, 9]] = 1e5, -3e300
    low, high = limits_of(column)
    assert (low, high) == (np.delete(normal, [5, 9]).min(), np.delete(normal, [5, 9]).max())
    # Whatever the units and the offset.
    column[9] = -3e4
    assert limits_of(1e-9 * column + 5.0) == pytest.approx([1e-9 * x + 5.0 for x in limits_of(column)])


def test_what_is_no_gross_outlier(rng, normal):
    assert limits_of(normal) is None
    # It does not carry the variance: 11 deviations in one row of 400.
    assert limits_of(np.where(np.arange(N) == 5, 11.0, normal)) is None
    # Not rare: two rows in a hundred.
    assert limits_of(np.where(np.arange(N) % 50 == 5, 1e5, normal)) is None
    for heavy in (rng.lognormal(0, 1.5, 2000), rng.standard_cauchy(2000)):
        assert limits_of(heavy) is None
        assert has_heavy_tails(heavy)
    for light in (rng.exponential(size=2000), rng.laplace(size=2000), rng.random(2000)):
        assert not has_heavy_tails(light)
    assert not has_heavy_tails((rng.random(2000) < 0.005) * 1.0)


def test_a_column_that_numbers_the_rows(rng, normal):
    n = 40
    for values in (
        np.arange(1000, 1000 + n),
        np.arange(n)[::-1] * 3,
        rng.permutation(n) + 5,
        np.sort(rng.choice(10**6, n, replace=False)),
        np.arange(10),
    ):
        assert numbers_rows(values.astype(float))
    for values in (
        rng.integers(0, 10**6, n),
        np.r_[0, np.arange(n - 1)],
        np.arange(n) / 2,
        np.sort(normal),
        np.r_[np.nan, np.arange(1, n)],
        np.r_[5000, np.arange(n - 1)],
        np.ones(n),
        np.arange(9),
    ):
        assert not numbers_rows(values.astype(float))


def test_keys_are_different_whole_numbers_that_predict_nothing(rng):
    Y = rng.standard_normal((N, 3))
    key = rng.permutation(10**6)[:N].astype(float)
    assert is_key(key, Y)
    assert not is_key(key + 0.5, Y)
    assert not is_key(rng.integers(0, 50, N).astype(float), Y)
    assert not is_key(key, np.column_stack([Y, key + 2e5 * Y[:, 0]]))
    # By its classes alone: no correlation.
    assert not is_key(key, np.abs(key - 5e5)[:, None] + 1e5 * Y)


def test_keys_are_rarely_taken_for_inputs():
    found = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        found.append(is_key(rng.integers(0, 2**40, N).astype(float), rng.standard_normal((N, 8))))
    assert sum(found) >= 97


def test_copies_up_to_a_growing_function(rng):
    X, Y = rng.standard_normal((N, 4)), rng.standard_normal((N, 3))
    assert copies(X, Y) == []
    X[:, 1], X[:, 3] = 5 - 2 * Y[:, 2], np.exp(Y[:, 0])
    assert copies(X, Y) == [(1, 2), (3, 0)]
    X[7, 1] += 1e-3
    X[8, 3] = 0.0
    assert copies(X, Y) in ([], [(1, 2)])
    # Columns of few values are often alike.
    assert copies((X > 0) * 1.0, (X > 0) * 1.0) == []
