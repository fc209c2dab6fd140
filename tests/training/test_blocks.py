"""Gradients summed over blocks of samples are those of all samples."""

from __future__ import annotations

from functools import partialmethod

import pytest
import torch

from isthmus.networks import _direct as direct
from isthmus.networks._direct import ONE_THREAD, ROWS_PER_BLOCK, Rows, Shares, as_one, block_count, equal_runs, views
from isthmus.networks._fully_connected import DirectChain
from isthmus.training import Phase
from isthmus.training._first_order import FirstOrder
from isthmus.training._lbfgs import LBFGS
from small import objective_of, quiet
from test_direct import agree, both_ways, chain, data, hourglass, leaky
from tools import assert_close, gaussian, random_net

MAKERS = {
    "chain": chain,
    "hourglass": hourglass,
    "leaky": leaky,
    "leaky, learned": lambda: leaky(embed="learned"),
    "without bias": lambda: leaky(bias=0.0),
    "without hidden layers": lambda: random_net((5, 3)),
    "linear": lambda: random_net((5, 6, 6, 6, 3), 1.0, 0.0),
}


@pytest.fixture(params=[2, 3, 7])
def blocks(request, monkeypatch):
    monkeypatch.setattr(direct, "block_count", lambda *_: request.param)
    return request.param


@pytest.mark.parametrize("rows", [1, 2, 36, 37])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_the_gradient_is_autograds(make, rows, blocks):
    net = make()
    X, Y = data(net, rows)
    assert objective_of(net, X, Y, "mse").direct.blocks == blocks
    agree(*both_ways(net, X, Y))
    agree(*both_ways(net, X, torch.arange(rows) % 3, "cross_entropy"))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_in_chunks_of_unequal_length_and_for_a_batch(make, blocks):
    """37 rows in chunks of 10: the last one has 7, and rows that the others left in memory must not count."""
    net = make()
    X, Y = data(net)
    agree(*both_ways(net, X, Y, rows=10))
    agree(*both_ways(net, X, Y, rows=10, batch=torch.tensor([3, 3, 17, 36, 0])))
    assert objective_of(net, X, Y, "mse").direct.blocks == blocks


def test_inputs_that_are_not_contiguous(blocks):
    net = chain()
    X, Y = data(net, 7 * blocks)
    whole = both_ways(net, X, Y)[1]
    assert_close(both_ways(net, X.mT.contiguous().mT, Y)[0].gradient, whole.gradient)


def test_one_block_for_each_thread_if_there_is_enough_for_each(monkeypatch):
    like = torch.zeros(1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert [block_count(rows, 50, like) for rows in (1, 4 * ROWS_PER_BLOCK - 1, 4 * ROWS_PER_BLOCK)] == [1, 1, 4]
    assert [block_count(rows, 100, like) for rows in (399, 400)] == [1, 4]
    assert [block_count(1000, width, like) for width in (ONE_THREAD // 1000, 1 + ONE_THREAD // 1000)] == [1, 4]
    assert block_count(10**6, 100, torch.zeros(1, device="meta")) == 1
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert block_count(10**6, 100, like) == 1


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("rows", "expected"), [(20, 1), (1 + ONE_THREAD // 40, 2)])
@pytest.mark.parametrize("method", ["adam", "lbfgs"])
def test_small_networks_are_trained_on_one_thread(method, rows, expected, two_threads, monkeypatch):
    """Gradients and what an optimiser does with them; afterwards the number of threads is as it was."""
    seen = []
    for kind, name in ((DirectChain, "_head"), (FirstOrder, "step"), (LBFGS, "step")):
        old = getattr(kind, name)
        spy = partialmethod(lambda self, old, *a: (seen.append(torch.get_num_threads()), old(self, *a))[1], old)
        monkeypatch.setattr(kind, name, spy)
    net = chain()
    quiet(net, *data(net, rows), phases=[Phase(method, 2, 1e-3)])
    assert len(seen) >= 4 and set(seen) == {expected}
    assert torch.get_num_threads() == 2


def test_threads_are_as_before_where_a_gradient_raises(two_threads):
    net = chain()
    X, Y = data(net)
    objective = objective_of(net, X, Y[:, :2], "mse")
    inside = []
    with pytest.raises(RuntimeError), objective.attached(), objective.stack.threads():
        inside.append(torch.get_num_threads()) or objective(0.1)
    assert inside == [1]
    assert torch.get_num_threads() == 2


def test_rows_are_filled_up_with_zeros():
    X = gaussian(5, 2)
    rows = Rows(3, 5)
    filled = rows.fill(X)
    assert rows.total == 6
    assert filled.shape == (3, 2, 2)
    assert_close(filled.reshape(6, 2)[:5], X)
    assert not filled[2, 1].any()
    assert Rows(1, 5).fill(X) is X
    assert Rows(5, 5).fill(X).data_ptr() == X.data_ptr()


def test_equal_layers_are_summed_together():
    """(5, 6), two of (6, 6), (6, 3), two of (3, 3)."""
    shapes = [(6, 5), (6, 6), (6, 6), (3, 6), (3, 3), (3, 3)]
    flat = torch.zeros(sum(n * m for n, m in shapes))
    parts = views(flat, [torch.empty(shape) for shape in shapes])
    assert equal_runs(parts) == [(0, 1), (1, 3), (3, 4), (4, 6)]
    shares = Shares([parts], 2)
    assert [len(place) for place, _ in shares.sums] == [1, 2, 1, 2]
    for index, own in enumerate(shares.kinds[0]):
        own.copy_(torch.stack([torch.full(shapes[index], 1.0 + index), torch.full(shapes[index], 10.0)]))
    shares.sum()
    for index, part in enumerate(parts):
        assert part.eq(11.0 + index).all()


def test_tensors_at_equal_distances_are_one_tensor():
    flat = torch.arange(24.0)
    parts = [flat[i : i + 4].view(2, 2) for i in (0, 6, 12, 18)]
    assert equal_runs(parts) == [(0, 4)]
    assert torch.equal(as_one(parts), torch.stack(parts))
    assert equal_runs([flat[0:4], flat[6:10], flat[11:15]]) == [(0, 2), (2, 3)]
    assert equal_runs([flat[0:4], flat[0:4].clone()]) == [(0, 1), (1, 2)]
    assert equal_runs([]) == []
