"""Prop. 15: neurons that switch between the same inputs become one; at most 4N of them, outputs and norm kept."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus import IsthmusError
from isthmus.compression._on_data import fewer_by_relations, merge_one_dimensional, merge_patterns
from tools import assert_close, gaussian


def outputs(c, d, a, x, bias=1.0):
    return (a[:, None] * torch.relu(torch.outer(c, x) + bias * d[:, None])).sum(0)


def least_norm(c, d, a):
    """‖θ‖² once every neuron is balanced."""
    return float(2 * (a.abs() * torch.hypot(c, d)).sum())


def check(before, after, x, bias=1.0):
    c, d, a = after
    distinct = len(x.unique())
    assert len(c) <= 4 * distinct - 2
    scale = float(outputs(before[0], before[1], before[2].abs(), x, bias).max())
    assert float((outputs(*after, x, bias) - outputs(*before, x, bias)).abs().max()) <= 1e-13 * max(scale, 1.0)
    assert_close(a.square(), c.square() + d.square())
    assert float((a.square() + c.square() + d.square()).sum()) <= least_norm(*before) * (1 + 1e-13)


@pytest.mark.parametrize("bias", [1.0, 0.3, -2.0])
def test_a_thousand_neurons_on_twenty_points(bias):
    before = tuple(gaussian(3, 1000))
    x = gaussian(20, seed=1)
    after = merge_one_dimensional(*before, x, bias=bias)
    assert 40 < len(after[0]) <= 78
    check(before, after, x, bias)
    # Relations on the data then leave as many as there are outputs to be matched.
    c, d, a = after
    S = torch.relu(torch.outer(c, x) + bias * d[:, None])
    found = fewer_by_relations(S, a[None], a.square() + c.square() + d.square())
    assert found.state == "reduced" and found.kept <= 20
    assert_close(a @ (found.shares[:, None] * S), outputs(*before, x, bias))


def test_pairs_merged_one_after_another():
    """The printed formula for two neurons, applied again and again, ends in the same neurons."""
    before = tuple(gaussian(3, 60, seed=2))
    x = gaussian(4, seed=3)
    found = merge_one_dimensional(*before, x)
    # Balanced at first, as the paper assumes.
    scales = (before[2].abs() / torch.hypot(before[0], before[1])).sqrt()
    neurons = [(float(r * c), float(r * d), float(a / r)) for r, c, d, a in zip(scales, *before)]

    def pattern(neuron):
        c, d, a = neuron
        return tuple(c * t + d > 0 for t in x.tolist()), a > 0

    neurons = [one for one in neurons if any(pattern(one)[0])]
    while True:
        pair = next(((p, q) for p, q in itertools.combinations(neurons, 2) if pattern(p) == pattern(q)), None)
        if pair is None:
            break
        (c, d, a), (e, f, b) = pair
        ac, ad = a * c + b * e, a * d + b * f
        size = (ac**2 + ad**2) ** 0.25 * (1 if a > 0 else -1)
        neurons = [one for one in neurons if one not in pair] + [(ac / size, ad / size, size)]
    assert len(neurons) == len(found[0])
    mine = sorted(zip(*(v.tolist() for v in found)))
    assert_close(torch.tensor(mine, dtype=torch.float64), torch.tensor(sorted(neurons), dtype=torch.float64))


def test_cusps_at_inputs_and_repeated_inputs():
    """Cusps at every input, left and right of all, and nowhere (c = 0); inputs unsorted and repeated."""
    x = torch.tensor([2.0, -1.0, 0.5, 2.0, -1.0, 0.5, 3.0], dtype=torch.float64)
    cusps = torch.cat([x, torch.tensor([-5.0, -1.5, 0.0, 2.5, 9.0], dtype=torch.float64)])
    c = torch.tensor([1.0, -1.0, 2.0, -0.5], dtype=torch.float64).repeat_interleave(len(cusps))
    d = -c * cusps.repeat(4)
    flat = torch.tensor([1.0, 2.0, 0.5, -1.0, 0.0, 3.0], dtype=torch.float64)
    c, d = torch.cat([c, 0.0 * flat]), torch.cat([d, flat])
    a = gaussian(len(c), seed=4)
    a[5] = 0.0
    after = merge_one_dimensional(c, d, a, x)
    check((c, d, a), after, x)
    assert len(merge_one_dimensional(*after, x)[0]) <= len(after[0])


def test_constants_join_those_that_are_always_active():
    x = torch.tensor([0.0, 1.0], dtype=torch.float64)
    c, d, a = merge_one_dimensional([0.0, 1.0, -1.0], [1.0, 2.0, 5.0], [1.0, 2.0, 3.0], x)
    assert len(c) == 1
    assert_close(torch.stack([a * c, a * d]), [[-1.0], [20.0]])


def test_opposite_signs_stay_apart():
    x = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert len(merge_one_dimensional([1.0, 1.0], [-0.2, -0.4], [3.0, -1.0], x)[0]) == 2
    assert len(merge_one_dimensional([1.0, -1.0], [-0.2, 0.4], [3.0, 1.0], x)[0]) == 2


def test_nothing_that_is_heard():
    x = gaussian(5)
    assert [len(v) for v in merge_one_dimensional([1.0, -1.0], [-9.0, -9.0], [1.0, 1.0], x)] == [0, 0, 0]
    assert len(merge_one_dimensional([1.0], [9.0], [0.0], x)[0]) == 0
    assert len(merge_one_dimensional(*gaussian(3, 50), [0.3])[0]) == 2


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 40))
def test_random_networks(seed, N, n):
    """On a grid, so that cusps meet inputs and each other."""
    before = tuple(gaussian(3, n, seed=seed).mul(2).round().div(2))
    x = gaussian(N, seed=seed + 1).mul(2).round().div(2)
    check(before, merge_one_dimensional(*before, x), x)


def test_scale_of_a_neuron_does_not_matter():
    c, d, a = gaussian(3, 200)
    x, scales = gaussian(6, seed=1), torch.exp(4 * gaussian(200, seed=2))
    one, two = merge_one_dimensional(c, d, a, x), merge_one_dimensional(scales * c, scales * d, a / scales, x)
    for first, second in zip(one, two):
        assert_close(first, second)


def test_more_inputs():
    """The same merging for any layer of ReLUs with one output: as many neurons as patterns and signs."""
    W, a, X = gaussian(300, 4), gaussian(300, seed=1), gaussian(4, 5, seed=2)
    Z = W @ X
    rows, out = merge_patterns(W, a, Z > 0)
    assert_close(out @ torch.relu(rows @ X), a @ torch.relu(Z))
    patterns = {(tuple(z.tolist()), s) for z, s in zip(Z > 0, (a > 0).tolist()) if bool(z.any())}
    assert len(out) == len(patterns) < 300
    assert float(out.square().sum() * 2) <= float(2 * (a.abs() * W.norm(dim=1)).sum())


def test_what_came_is_said():
    with pytest.raises(IsthmusError, match="vectors of one length"):
        merge_one_dimensional([1.0], [1.0, 2.0], [1.0], [0.0])
    with pytest.raises(IsthmusError, match="vectors of one length"):
        merge_one_dimensional([1.0], [1.0], [1.0], [])
