"""Pairs of steps and changes of the gradient: what is kept, of one network and of several, and the recursion."""

from __future__ import annotations

import pytest
import torch

from isthmus.training._lbfgs import FirstLoop, Memory, Pairs, Remember, SecondLoop
from tools import assert_close, gaussian


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 20])
def test_the_last_rows_are_kept(size):
    S, T = gaussian(61, 5), gaussian(61, 5, seed=1)
    pairs = Pairs(size, S[0])
    for count, pair in enumerate(zip(S, T), start=1):
        pairs.append(*pair)
        kept = slice(max(0, count - size), count)
        assert torch.equal(pairs.S, S[kept]) and torch.equal(pairs.T, T[kept])
        assert pairs.memory.rows <= size + -(-size // 4)
    pairs.clear()
    assert pairs.S.shape == pairs.T.shape == (0, 5)
    pairs.append(S[7], T[7])
    assert torch.equal(pairs.S, S[7:8])


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
        assert_close(pairs.products.triu(), (pairs.S @ pairs.T.mT).triu())
        assert pairs.squared == any(move <= index for move in moves)


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
    reason = "float32, summed in another order"
    assert_close(twin.products.triu(), one["products"], rtol=1e-4, atol=1e-4, reason=reason)
    pairs.clear()
    assert len(pairs) == 0
    assert pairs.products.shape == (0, 0)


@pytest.mark.parametrize("copied", [True, False], ids=["small", "large"])
def test_several_networks_remember_what_each_would_alone(copied):
    """Some are skipped, forget, or have their ridge moved on the way: all agree with a memory of their own."""
    length = 30 if copied else 2**14
    memory = Memory(4, gaussian(3, length), count=3)
    together = [Pairs(4, gaussian(3, length)[0], memory, i) for i in range(3)]
    alone = [Pairs(4, gaussian(3, length)[0]) for _ in range(3)]
    for step in range(17):
        S = gaussian(3, length, seed=step)
        T = S * (1.0 + gaussian(3, length, seed=100 + step).square())
        if step == 6:
            T[1] = -T[1]
        if step == 13:
            T[2] = float("nan")
        if step == 9:
            for owner in (together[2], alone[2]):
                owner.clear()
        if step in (3, 11):
            for owner in (together[0], alone[0]):
                owner.move_ridge(0.1)
        Remember.answer_all([Remember(*each) for each in zip(together, S, T)])
        for each in zip(alone, S, T):
            Remember(*each).answer()
        gradients = gaussian(3, length, seed=200 + step)
        firsts = FirstLoop.answer_all([FirstLoop(*each) for each in zip(together, gradients)])
        ends = SecondLoop.answer_all([SecondLoop(*each) for each in zip(together, *zip(*firsts))])
        for pairs, own, gradient, direction in zip(together, alone, gradients, ends):
            assert len(pairs) == len(own)
            assert torch.equal(pairs.S, own.S)
            assert_close(pairs.T, own.T)
            assert_close(direction, SecondLoop(own, *FirstLoop(own, gradient).answer()).answer())
    assert len(together[1]) == 4
