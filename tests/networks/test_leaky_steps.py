"""How [0, 1] is divided: sums, shapes, and adaptive steps that nothing throws off."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus import IsthmusError
from isthmus.networks._leaky_resnet import CEILING, FLOOR, LEAK, adapted, bounded, equidistant, irregular, limits
from tools import assert_close, gaussian

#: Every float there is that a norm may come out as, the smallest and largest among them.
SPEEDS = st.one_of(
    st.floats(min_value=0.0, allow_infinity=True, allow_subnormal=True),
    st.sampled_from([0.0, 5e-324, 1e-308, 1.0, 1e308, math.inf, math.nan]),
)


def printed(layers: int, a: float) -> list[float]:
    """The irregular steps as the paper prints them."""
    return [1 / layers + a / layers * (1 / 4 - abs(ell / layers - 1 / 2)) for ell in range(1, layers + 1)]


@pytest.mark.parametrize("layers", [1, 2, 3, 20, 49])
def test_equidistant(layers):
    assert equidistant(layers).tolist() == [1 / layers] * layers
    assert equidistant(layers).dtype == torch.float64


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 7, 20, 21])
@pytest.mark.parametrize("a", [0.0, 0.5, 0.9, 1.0])
def test_irregular_is_the_printed_formula_renormalised(layers, a):
    raw = printed(layers, a)
    # The sum that the paper takes for 1: right for even L only.
    assert_close(sum(raw), 1.0 if layers % 2 == 0 else 1.0 - a / (4 * layers**2))
    assert_close(irregular(layers, a), torch.tensor(raw, dtype=torch.float64) / sum(raw))
    assert_close(float(irregular(layers, a).sum()), 1.0)


def test_irregular_steps_are_longest_in_the_middle():
    rho = irregular(10)
    assert int(rho.argmax()) == 4 and float(rho.max()) > 1.2 / 10 and float(rho.min()) < 0.82 / 10
    assert_close(irregular(10, 0.0), equidistant(10))


@given(
    speeds=st.lists(SPEEDS, min_size=1, max_size=30),
    start=st.integers(0, 10**6),
    effective_depth=st.sampled_from([0.0, 0.5, 3.0, 25.0, 1e4]),
)
def test_no_speeds_throw_adaptive_steps_off(speeds, start, effective_depth):
    count = len(speeds)
    low, high = limits(count, effective_depth)
    rho = bounded(gaussian(count, seed=start).abs() + 1e-9, low, high)
    for damping in (0.0, 0.5, 0.9):
        new = adapted(rho, torch.tensor(speeds, dtype=torch.float64), effective_depth, damping=damping)
        assert new.shape == rho.shape and new.dtype == rho.dtype
        assert abs(float(new.sum()) - 1.0) < 1e-9
        assert float(new.min()) >= low * (1 - 1e-9) and float(new.max()) <= high * (1 + 1e-9)
        if not all(map(math.isfinite, speeds)) or max(speeds) == 0.0:
            assert torch.equal(new, rho)


@given(st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=20))
def test_slow_steps_become_longer(speeds):
    """In the order of 1/c, wherever the limits leave room; repeated, at ρ ∝ 1/c."""
    count = len(speeds)
    rho = equidistant(count)
    new = adapted(rho, torch.tensor(speeds, dtype=torch.float64), 0.0)
    for i in range(count):
        for j in range(count):
            if speeds[i] < speeds[j]:
                assert new[i] >= new[j] * (1 - 1e-12)


def test_the_fixed_point_is_inverse_to_the_speed():
    speeds = torch.tensor([1.0, 1.5, 2.0, 1.2], dtype=torch.float64)
    rho = equidistant(4)
    for _ in range(60):
        rho = adapted(rho, speeds, 0.0)
    assert_close(rho, (1 / speeds) / (1 / speeds).sum())
    once = adapted(equidistant(4), speeds, 0.0, damping=0.0)
    assert_close(once, rho)
    # Half of the way in logarithms.
    half = adapted(equidistant(4), speeds, 0.0)
    between = (equidistant(4) * rho).sqrt()
    assert_close(half, between / between.sum())


def test_floor_and_ceiling_bind():
    slow, fast = torch.ones(10, dtype=torch.float64), torch.ones(10, dtype=torch.float64)
    slow[3], fast[3] = 0.0, 1e9
    long = adapted(equidistant(10), slow, 0.0, damping=0.0)
    assert_close(float(long[3]), CEILING / 10)
    short = adapted(equidistant(10), fast, 0.0, damping=0.0)
    assert_close(float(short[3]), FLOOR / 10)
    # The leak binds first: ρ·L̃ stays below 1.
    leaking = adapted(equidistant(10), slow, 5.0, damping=0.0)
    assert_close(float(leaking[3]) * 5.0, LEAK)
    # Ten steps cannot have ρ·L̃ < 1 for L̃ = 40: then none is much longer than the others.
    assert limits(10, 40.0)[1] == 0.15


def test_bounded_needs_room():
    with pytest.raises(IsthmusError, match="must be able to sum to 1"):
        bounded(torch.ones(4), 0.3, 0.5)
    with pytest.raises(IsthmusError, match="must be able to sum to 1"):
        bounded(torch.ones(4), 0.0, 0.2)


@pytest.mark.parametrize("rule", [equidistant, irregular])
@pytest.mark.parametrize("layers", [0, -1, 2.5, None])
def test_a_number_of_layers_is_needed(rule, layers):
    with pytest.raises(IsthmusError, match="`layers` must be an integer"):
        rule(layers)


@pytest.mark.parametrize("a", [-0.1, 1.1, math.nan])
def test_irregularity_is_a_share(a):
    with pytest.raises(IsthmusError, match="`irregularity`"):
        irregular(5, a)
