"""Values of a grid: what the texts stand for, and what is refused."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus import IsthmusError
from isthmus.sweeps.plan import MOST, Grid, Plan, check_count, read_lists, read_values

whole = st.integers(-1000, 1000)
positive = st.floats(1e-6, 1e6).map(lambda x: float(f"{x:.6g}"))


def read(kind, given_, **more):
    return read_values("sweep", "name", kind, given_, **more)


@pytest.mark.parametrize(
    ("kind", "given_", "wanted"),
    [
        (int, "4:30:2", list(range(4, 31, 2))),
        (int, "4:9:2", [4, 6, 8]),
        (int, "9:4:-2", [9, 7, 5]),
        (int, "3:6", [3, 4, 5, 6]),
        (int, "5", [5]),
        (int, "1e3", [1000]),
        (int, "2, 4 ,8:10", [2, 4, 8, 9, 10]),
        (int, [2, "4:6:1", np.int64(4)], [2, 4, 5, 6]),
        (int, range(3), [0, 1, 2]),
        (int, 4.0, [4]),
        (int, "1:100:log3", [1, 10, 100]),
        (float, "1e-4:1e-1:log7", None),
        (float, "0:1:lin5", [0.0, 0.25, 0.5, 0.75, 1.0]),
        (float, "0:1:0.1", [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]),
        (float, "0.1,1e-3", [0.1, 1e-3]),
        (float, np.array([1.0, 2.0]), [1.0, 2.0]),
        (float, 3, [3.0]),
        (bool, "true,false", [True, False]),
        (bool, [True], [True]),
        (str, "relu,tanh", ["relu", "tanh"]),
        (str, "a:b", ["a:b"]),
    ],
)
def test_what_stands_for_what(kind, given_, wanted):
    found = read(kind, given_)
    if wanted is None:
        wanted = [1e-4, 10**-3.5, 1e-3, 10**-2.5, 1e-2, 10**-1.5, 1e-1]
        assert np.allclose(found, wanted, rtol=1e-11)
        assert found[::2] == wanted[::2], "powers of ten are exact"
    else:
        assert found == wanted
    assert all(type(value) is kind for value in found)


def test_words():
    assert read(float, "auto,0.1", words={"auto": "auto"}) == ["auto", 0.1]
    assert read(int, [None, 3], words={"none": None}) == [None, 3]
    assert read(int, "none,3", words={"none": None}) == [None, 3]


@pytest.mark.parametrize(
    ("kind", "given_"),
    [
        (int, "4:30:0"),
        (int, "4:30:-2"),
        (int, "4:5:6:7"),
        (int, "1.5"),
        (int, "a"),
        (int, ""),
        (int, []),
        (int, True),
        (int, 1.5),
        (int, "nan"),
        (int, "inf:3"),
        (int, "0:9999999"),
        (int, None),
        (float, "0:1"),
        (float, "0:1:log3"),
        (float, "-1:1:log3"),
        (float, "1:2:lin1"),
        (float, "1:2:lin0"),
        (float, math.nan),
        (float, "1e400"),
        (bool, "maybe"),
        (bool, 1),
        (str, 3),
        (str, "a,,b"),
    ],
)
def test_refused(kind, given_):
    with pytest.raises(IsthmusError, match="sweep: `name` must"):
        read(kind, given_)


@given(whole, whole, st.integers(1, 50))
def test_ranges_of_integers(start, stop, step):
    step = step if stop >= start else -step
    found = read(int, f"{start}:{stop}:{step}")
    assert found == list(range(start, stop + (1 if step > 0 else -1), step))
    assert (stop - start) % step or found[-1] == stop, "the end is included where it is reached"


@given(positive, positive, st.integers(2, 40))
def test_ranges_of_floats(a, b, n):
    lin, log = read(float, f"{a}:{b}:lin{n}"), read(float, f"{a}:{b}:log{n}")
    for found, made in ((lin, np.linspace(a, b, n)), (log, np.geomspace(a, b, n))):
        assert found[0] == a
        assert found[-1] == b
        wanted = list(dict.fromkeys(float(f"{x:.12g}") for x in made))
        assert len(found) == len(wanted)
        assert np.allclose(found, wanted, rtol=1e-9)


@given(st.lists(positive, min_size=1, max_size=8))
def test_texts_and_sequences_agree(values):
    unique = list(dict.fromkeys(values))
    assert read(float, values) == unique == read(float, ",".join(map(repr, values)))


def test_too_many():
    axes = {"depth": range(1000), "ridge": range(100)}
    with pytest.raises(IsthmusError, match=f"at most {MOST} configurations. Got 100000 .1000 of depth × 100 of ridge"):
        check_count("sweep", axes)
    small = {"a": [1, 2], "b": "xyz"}
    assert check_count("sweep", small) == len(list(itertools.product(*small.values())))


@pytest.mark.parametrize(
    ("given_", "wanted"),
    [
        ("2,4", [(2, 4)]),
        ("2,4;8,16", [(2, 4), (8, 16)]),
        ("30,6,3,30; 5", [(30, 6, 3, 30), 5]),
        ("2,4:6", [(2, 4, 5, 6)]),
        ("4:6", [4, 5, 6]),
        ([2, 4], [2, 4]),
        ([(2, 4), [8, 16], "2,4", (5,), 5], [(2, 4), (8, 16), 5]),
        (np.array([2, 4]), [2, 4]),
    ],
)
def test_lists_stay_whole(given_, wanted):
    found = read_lists("sweep", "depths", int, given_)
    assert found == wanted
    # What is written is what is read, and every configuration has a list.
    plan = Plan("E", "a title", {"depths": [1, 2], "seed": 0}).with_grid(Grid({"depths": found}, [0]), {})
    again = Plan.from_dict(plan.to_dict(), "sweep.json")
    assert again.to_dict() == plan.to_dict()
    assert again.with_grid(Grid({"depths": found}, [0]), {}).grids == again.grids
    lists = [list(value) if isinstance(value, tuple) else [value] for value in wanted]
    for one in (plan, again):
        assert [configuration.parameters["depths"] for configuration in one.configurations().values()] == lists


@pytest.mark.parametrize("given_", ["2,x", "2,4;", ";", [(2, None)], [[]], []])
def test_lists_that_are_none(given_):
    with pytest.raises(IsthmusError, match="`depths` must"):
        read_lists("sweep", "depths", int, given_)
