"""Pairs of steps and changes of the gradient: what is kept, and that products need not be computed anew."""

from __future__ import annotations

import pytest
import torch

from isthmus.training._lbfgs import Pairs, Window
from tools import assert_close, gaussian


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 20])
def test_a_window_holds_the_last_rows(size):
    rows = gaussian(61, 5)
    window = Window(size, rows[0])
    for count, row in enumerate(rows, start=1):
        window.append(row)
        assert torch.equal(window.rows, rows[max(0, count - size) : count])
        assert len(window.memory) <= size + -(-size // 4)
    window.clear()
    assert window.rows.shape == (0, 5)
    window.append(rows[7])
    assert torch.equal(window.rows, rows[7:8])


@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize("moves", [(), (4,), (0, 3, 4, 9)])
def test_products_are_those_of_the_rows(size, moves):
    S, T = gaussian(13, 30, seed=1), gaussian(13, 30, seed=2)
    pairs = Pairs(size, S[0])
    for index, (s, t) in enumerate(zip(S, T)):
        if index in moves:
            before = pairs.T.clone()
            pairs.move_ridge(0.3)
            assert_close(pairs.T, before + 0.6 * pairs.S)
        pairs.append(s, t)
        assert_close(pairs.products, pairs.S @ pairs.T.mT)
        assert (pairs.squares is None) == (not any(move <= index for move in moves))
        if pairs.squares is not None:
            assert_close(pairs.squares, pairs.S @ pairs.S.mT)


def test_the_state_continues_to_the_same_bits():
    S, T = gaussian(20, 30, seed=1, dtype=torch.float32), gaussian(20, 30, seed=2, dtype=torch.float32)
    pairs, twin = Pairs(4, S[0]), Pairs(4, S[0])
    for index, (s, t) in enumerate(zip(S, T)):
        if index % 3 == 2:
            pairs.move_ridge(0.01 * index)
        pairs.append(s, t)
        if index == 9:
            twin.set_state({name: tensor.clone() for name, tensor in pairs.get_state().items()})
        elif index > 9:
            if index % 3 == 2:
                twin.move_ridge(0.01 * index)
            twin.append(s, t)
    one, other = pairs.get_state(), twin.get_state()
    assert one.keys() == other.keys() == {"S", "T", "products", "squares"}
    assert all(torch.equal(one[name], other[name]) for name in one)
    # A file of a time when products were not kept.
    twin.set_state({"S": one["S"], "T": one["T"]})
    assert_close(twin.products, one["products"], rtol=1e-4, atol=1e-4, reason="float32, summed in another order")
    pairs.clear()
    assert len(pairs) == 0
    assert pairs.products.shape == (0, 0)
