"""Reading a rank off a spectrum: clear, none, unclear, and the edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus import IsthmusError
from isthmus.measures import GapRule, read_spectrum
from tools import SEED, gaussian


@pytest.mark.parametrize(
    ("s", "status", "count"),
    [
        ([1.3, 1.2, 1.1, 0.01, 0.005], "clear", 3),
        ([1.0, 0.0], "clear", 1),
        ([1.0, 0.9, 0.8, 0.0], "clear", 3),  # exact zeros count past the edge
        ([1.0, 0.9, 0.8, 0.7], "full", 4),
        ([1.0], "full", 1),
        ([0.0], "zero", 0),
        ([0.0, 0.0, 0.0], "zero", 0),
        ([1.0, 0.9, 0.3, 0.2], "unclear", 2),  # a ratio of 3
        ([1.0, 0.9, 0.8, 0.15, 0.1, 0.1], "unclear", 3),  # 5.3, but what remains is not small
        ([1.0, 0.09, 0.009, 0.0009, 0.00009], "unclear", 1),  # several like drops
        ([1.0, 0.9, 0.85, 0.8, 0.01], "full", 5),  # the last value of a random square matrix does that
        ([1.0, 0.9, 0.01, 0.0], "clear", 2),  # what is left is faint
        ([1.0, 0.9, 0.04, 0.0], "unclear", 2),  # a bottleneck and dead neurons, or an ill-conditioned map?
        (
            [1.0, 0.3, 0.1, 0.03, 0.01, 0.0, 0.0],
            "clear",
            5,
        ),  # ill-conditioned without a gap, then exact zeros
        ([1.0, 0.9, 1e-5, 0.0], "clear", 2),  # the end of noise says nothing
    ],
)
def test_table(s, status, count):
    found = read_spectrum(s)
    assert (found.status, found.count) == (status, count)


def test_floor():
    s = [1e-9, 8e-10, 7e-10]
    assert read_spectrum(s).status == "full"
    assert read_spectrum(s, floor=1e-8).status == "zero"
    assert read_spectrum([1.0, 0.8, 1e-12, 1e-12, 1e-12], floor=1e-10).count == 2
    single = read_spectrum([1.0, 0.8, 1e-6, 1e-6, 1e-6], eps=1.2e-7)
    assert single.count == 2
    assert not single.exact
    assert read_spectrum([1.0, 0.8, 1e-8, 1e-8, 1e-8], eps=1.2e-7).exact


def test_numbers_are_reported():
    found = read_spectrum([2.0, 1.0, 0.01, 0.008])
    assert (found.kept, found.next) == (0.5, 0.005)
    assert found.gap == pytest.approx(100.0)


def test_rule_can_be_changed():
    s = [1.0, 0.9, 0.3, 0.2]
    assert read_spectrum(s, rule=GapRule(clear=2.5, tail=0.5)).status == "clear"
    assert read_spectrum(s, rule=GapRule(unclear=4.0)).status == "full"


@given(st.integers(1, 12), st.integers(0, 20), st.floats(1e-9, 0.03), st.floats(-100, 100), st.integers(0, 10**6))
def test_planted_ranks(k, rest, tail, exponent, seed):
    source = np.random.default_rng(seed)
    # Past the edge a drop must be a thousandfold.
    if rest and k > 0.75 * (k + rest):
        tail = tail * 1e-4
    s = np.sort(np.concatenate([source.uniform(0.3, 1, k), tail * source.uniform(0.6, 1, rest)]))[::-1]
    found = read_spectrum(s * 10.0**exponent)
    if rest:
        assert (found.status, found.count) == ("clear", k)
    else:
        assert found.status in ("full", "unclear")


@pytest.mark.parametrize("n", [10, 20, 50, 100])
def test_random_square_matrices_rarely_look_low_rank(n):
    statuses = [read_spectrum(torch.linalg.svdvals(gaussian(n, n, seed=100 * SEED + i))).status for i in range(200)]
    assert statuses.count("clear") <= 2
    assert statuses.count("full") >= (150 if n == 10 else 185)


@pytest.mark.parametrize("bad", [[], [1.0, 2.0], [1.0, -1.0], [[1.0]], [np.nan], ["a"], 3.0])
def test_refused(bad):
    with pytest.raises(IsthmusError):
        read_spectrum(bad)
