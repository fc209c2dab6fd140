"""Generators of requests, answered for one network or for many side by side."""

from __future__ import annotations

import copy
import weakref
from typing import Any

import pytest
import torch

from isthmus import FullyConnected
from isthmus.training import Phase, train_together
from isthmus.training import _requests as requests
from isthmus.training._objective import Stack
from isthmus.training._requests import Adam, Evaluate, Refresh, Request, Solve, drive
from small import objective_of, task
from tools import assert_close, gaussian, generator

RIDGES = (1e-3, 2e-2, 0.3)


class Early(Request):
    """Answers with what it is asked, and how many asked at once."""

    def __init__(self, number, log):
        self.number, self.log = number, log

    def answer(self):
        return type(self).answer_all([self])[0]

    @staticmethod
    def answer_all(requests):
        requests[0].log.append([type(requests[0]).__name__, *(r.number for r in requests)])
        return [r.number for r in requests]


class Late(Early):
    order = 1


class Failing(Early):
    order = 2

    @staticmethod
    def answer_all(requests):
        raise KeyboardInterrupt


def run(kinds, number, log, closed=None) -> Any:
    total = 0
    try:
        for kind in kinds:
            total += yield kind(number, log)
    except BaseException as error:
        if closed is not None:
            closed.append((number, type(error)))
        raise
    return total


def test_one_kind_is_answered_together_and_who_is_behind_catches_up():
    log = []
    plans = [(Early, Late, Early), (Early, Early, Late, Early), (), (Late,)]
    results = drive([run(kinds, number, log) for number, kinds in enumerate(plans)])
    assert results == [0, 4, 0, 3]
    # Nobody goes on to the later kind before all have asked for it, or ended.
    assert log == [["Early", 0, 1], ["Early", 1], ["Late", 0, 1, 3], ["Early", 0, 1]]


def test_one_alone_and_none():
    log = []
    assert drive([run((Early, Late), 5, log)]) == [10]
    assert log == [["Early", 5], ["Late", 5]]
    assert drive([]) == []


@pytest.mark.parametrize("count", [1, 3])
def test_what_an_answer_raises_closes_all(count):
    log, closed = [], []
    runs = [run((Early, Failing, Early), number, log, closed) for number in range(count)]
    with pytest.raises(KeyboardInterrupt):
        drive(runs)
    assert closed == [(number, GeneratorExit) for number in range(count)]
    assert all(own.gi_frame is None for own in runs)


@pytest.mark.parametrize("count", [1, 4])
def test_what_one_of_them_raises_closes_the_others(count):
    """The last has not begun, the first has ended: those are left alone."""
    log, closed = [], []

    def bad():
        yield Early(9, log)
        raise ValueError("mine")

    others = [run((), 0, log, closed), run((Early, Late), 1, log, closed), run((Late,), 2, log, closed)]
    runs = [*others[: count - 1], bad()]
    with pytest.raises(ValueError, match="mine"):
        drive(runs)
    assert closed == ([] if count == 1 else [(1, GeneratorExit), (2, GeneratorExit)])
    assert all(own.gi_frame is None for own in runs)


def test_before_all_have_begun():
    log, closed = [], []

    def bad():
        raise KeyboardInterrupt
        yield

    runs = [run((Early,), 0, log, closed), bad(), run((Early,), 1, log, closed)]
    with pytest.raises(KeyboardInterrupt):
        drive(runs)
    assert closed == [(0, GeneratorExit)]
    assert log == []
    assert all(own.gi_frame is None for own in runs)


# ---------------------------------------------------------------- answers to many are those to each


def stack_of(count=3, **options):
    X, Y = task()
    nets = [FullyConnected((4, 6, 6, 3), dtype=torch.float64, generator=generator(i), **options) for i in range(count)]
    return Stack(nets, [X] * count, [Y] * count, "mse")


@pytest.mark.parametrize("chosen", [(0, 1, 2), (2, 0), (1,)])
def test_values(chosen):
    stack = stack_of()
    requests = [Evaluate(stack.objectives[i], RIDGES[i]) for i in chosen]
    for i, value in zip(chosen, Evaluate.answer_all(requests)):
        own = stack.objectives[i]
        single = objective_of(own.net, own.X, own.Y)
        expected = single(RIDGES[i])
        assert_close(value.loss, expected.loss)
        assert_close(value.gradient, expected.gradient)
        assert_close(value.cost_gradient, expected.cost_gradient)
        assert (value.finite, own.evaluations) == (True, 1)


def test_values_of_two_stacks_and_of_batches():
    """Networks in phases of other precision, or on mini-batches, ask at the same time."""
    one, other = stack_of(), stack_of(2)
    rows = torch.tensor([3, 3, 20])
    asked = [
        (one.objectives[1], None),
        (other.objectives[0], None),
        (one.objectives[2], rows),
        (one.objectives[0], None),
    ]
    with one.objectives[2].attached():
        found = Evaluate.answer_all([Evaluate(own, 0.1, batch) for own, batch in asked])
    for (own, batch), value in zip(asked, found):
        X, Y = (own.X, own.Y) if batch is None else (own.X[batch], own.Y[batch])
        expected = objective_of(own.net, X, Y)(0.1)
        assert_close(value.loss, expected.loss)
        assert_close(value.gradient, expected.gradient)


@pytest.mark.parametrize("fleeting", [(True, True, True), (True, False, True)])
def test_values_are_overwritten_only_where_all_allow_it(fleeting):
    stack = stack_of()

    def ask():
        return Evaluate.answer_all([Evaluate(own, 0.1, None, f) for own, f in zip(stack.objectives, fleeting)])

    first = ask()
    kept = [value.gradient.clone() for value in first]
    stack.theta.mul_(1.5)
    ask()
    same = [torch.equal(value.gradient, old) for value, old in zip(first, kept)]
    assert same == [not all(fleeting)] * 3


def metrics_of(nets) -> list[Any]:
    return [net.metric("mse") for net in nets]


@pytest.mark.parametrize("own_X", [False, True])
def test_factors_and_solutions_of_metrics(own_X):
    count = 3
    nets = [FullyConnected((4, 6, 6, 3), dtype=torch.float64, generator=generator(i)) for i in range(count)]
    X, Y = task()
    Xs = [gaussian(40, 4, seed=i) for i in range(count)] if own_X else [X] * count
    stack = Stack(nets, Xs, [Y] * count, "mse")
    together, alone = (metrics_of(nets) for _ in range(2))
    first = [Refresh(m, own, generator(5 + i)) for i, (m, own) in enumerate(zip(together, stack.objectives))]
    Refresh.answer_all(first)
    for i, (m, own) in enumerate(zip(alone, stack.objectives)):
        Refresh(m, own, generator(5 + i)).answer()
    for ours, theirs in zip(together, alone):
        assert ours.tensors.keys() == theirs.tensors.keys()
        for name in ours.tensors:
            assert_close(ours.tensors[name].abs(), theirs.tensors[name].abs(), atol=1e-8, reason="eigenvectors")
    # As many vectors as one another, but for the last.
    vectors = [gaussian(k, stack.theta.shape[1], seed=i) for i, k in enumerate((2, 2, 1))]
    answers = Solve.answer_all([Solve(m, v, r) for m, v, r in zip(together, vectors, RIDGES)])
    for m, v, r, found in zip(alone, vectors, RIDGES, answers):
        assert found.shape == v.shape
        assert_close(found, m.solve(v, [r]), rtol=1e-8, atol=1e-8, reason="eigenvectors of close values")


def test_metrics_of_many_are_one_until_one_is_estimated_anew():
    stack = stack_of()
    metrics = metrics_of([own.net for own in stack.objectives])
    refresh = [Refresh(m, own, generator(i)) for i, (m, own) in enumerate(zip(metrics, stack.objectives))]
    Refresh.answer_all(refresh)
    vectors = gaussian(2, stack.theta.shape[1])
    solve = [Solve(m, vectors, 0.1) for m in metrics]
    Solve.answer_all(solve)
    joint = metrics[0].joint
    Solve.answer_all(solve)
    assert metrics[0].joint is joint
    refresh[2].answer()
    expected = metrics[2].solve(vectors, [0.1])
    assert_close(Solve.answer_all(solve)[2], expected)
    assert metrics[0].joint is not joint


def test_old_metrics_are_not_kept(monkeypatch):
    """Every estimate, and every network that ends, makes a new joint metric: the last one must not hold the others."""
    made, original, alive = weakref.WeakSet(), requests._joint, []

    def joint(metrics):
        found = original(metrics)
        made.add(found)
        alive.append(len(made))
        return found

    monkeypatch.setattr(requests, "_joint", joint)
    X, Y = task()
    nets = [FullyConnected((4, 6, 3), dtype=torch.float64, generator=generator(i)) for i in range(3)]
    plan = [Phase("lbfgs", 90, ridge_start=2.0, ridge_end=2.0)]
    with pytest.warns(match="not"):
        train_together(nets, X, Y, ridges=1e-3, phases=plan, tolerance=0.0)
    assert len(alive) > 50 and max(alive) <= 3


def test_adams_of_one_step_in_one_call():
    """Those at another step, or rate, are not mixed up with them."""

    def state() -> Any:
        return [[gaussian(7, seed=10 * i + k).abs() for k in range(4)] for i in range(4)]

    asked: Any = Adam
    steps, rates = (0, 3, 3, 3), (0.1, 0.1, 0.1, 0.2)
    ours, theirs = state(), state()
    Adam.answer_all([asked(*own, step, rate) for own, step, rate in zip(ours, steps, rates)])
    for own, step, rate in zip(theirs, steps, rates):
        asked(*own, step, rate).answer()
    for one, other, before in zip(ours, theirs, state()):
        assert all(torch.equal(a, b) for a, b in zip(one, other))
        assert not torch.equal(one[0], before[0])


def test_a_copy_of_a_stack_is_its_own():
    """A stack holds its networks' parameters only while they are attached."""
    stack = stack_of()
    before = copy.deepcopy(stack.theta)
    for own in stack.objectives:
        with own.attached():
            own.theta.mul_(2.0)
    for own, row in zip(stack.objectives, before):
        assert torch.equal(torch.cat([p.detach().reshape(-1) for p in own.net.parameters()]), 2.0 * row)
    stack.theta.zero_()
    assert all(
        float(p.detach().abs().sum()) > 0 for own in stack.objectives for p in own.net.parameters() if p.ndim == 2
    )
