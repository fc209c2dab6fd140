"""Narrowing: the pinch, refusal and acceptance."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus import FullyConnected
from isthmus.networks._network import hooks_of
from isthmus.training import Phase
from isthmus.training._narrow import Narrow
from small import network, objective_of, quiet, same_bits, take, task, weights
from tools import assert_close, gaussian, generator, linear_net, orthogonal, three_part_net


@pytest.mark.parametrize("bias", [1.0, 0.3])
@pytest.mark.parametrize("rank", [0, 1, 2, 5])
def test_pinch_keeps_the_mean_and_bounds_the_rank(bias, rank):
    net = network((4, 8, 8, 8, 3), bias=bias)
    X = task()[0]
    before = net.trace(X).preactivations[1]
    net.pinch_(X, 2, rank)
    after = net.trace(X).preactivations[1]
    assert_close(after.mean(0), before.mean(0))
    s = torch.linalg.svdvals(after - after.mean(0))
    assert float(s[rank:].max()) < 1e-12
    # It is the best of that rank: Eckart and Young on the centred matrix.
    lost = torch.linalg.svdvals(before - before.mean(0))[rank:].square().sum()
    assert_close((after - before).square().sum(), lost)


def test_pinch_without_biases_is_uncentred():
    net = network((4, 8, 8, 3), bias=0.0)
    X = task()[0]
    before = net.trace(X).preactivations[1]
    net.pinch_(X, 2, 2)
    after = net.trace(X).preactivations[1]
    assert float(torch.linalg.svdvals(after)[2:].max()) < 1e-12
    assert_close((after - before).square().sum(), torch.linalg.svdvals(before)[2:].square().sum())


def test_narrowest_layer_of_constructed_networks():
    X = gaussian(60, 12)
    for k in (2, 3):
        rank, layer = narrowest(three_part_net(k), X)
        assert rank == k
        assert 2 <= layer <= 7
    assert network((4, 8, 3)).narrowest_layer(gaussian(10, 4)) is None  # no middle
    full = FullyConnected.from_weights([orthogonal(4, 4, seed=i) for i in range(4)], slope=1.0)
    assert full.narrowest_layer(gaussian(100, 4)) is None  # no gap


def narrowest(net, X) -> Any:
    return net.narrowest_layer(X)


def run(net, X, Y, ridge, *, attempt=30, steps=240):
    """Losses before and after a phase of narrowing, and the optimiser."""
    objective = objective_of(net, X, Y, "mse")
    with objective.attached():
        first = objective(ridge).loss
        phase = Phase("narrow", steps, attempt=attempt)
        narrow = Narrow(phase, objective.theta, net.metric("mse"), generator())
        step, last = 0, objective(ridge)
        while step < steps and not narrow.finished:
            last = take(narrow.step(objective, step, ridge))
            step += 1
        assert objective(ridge).loss == last.loss
    return first, last.loss, narrow


def planted(second, *, polished=0.0):
    """A linear network of singular values 1.5 and ``second``, on whitened data of exactly this map.

    With ``polished`` the network is taken to its minimum at this ridge first.
    """
    net = linear_net([1.5, second], [4, 8, 8, 8, 3], seed=2)
    X = gaussian(100, 4, seed=7)
    X = torch.linalg.qr(X - X.mean(0)).Q * 10.0  # whitened: E[xxᵀ] = I
    Y = net(X).detach()
    if polished:
        quiet(net, X, Y, ridge=polished, phases=[Phase("lbfgs", 150)], tolerance=1e-9)
    return net, X, Y


def test_superfluous_dimension_is_removed_and_a_needed_one_kept():
    # Depth 4: a dimension s costs ridge·4·s^{1/2} and explains s². At ridge 0.02: 0.2 costs 0.036 and explains 0.04
    # less what shrinking gains; 0.1 costs 0.025 and explains 0.01.
    net, X, Y = planted(0.1)
    first, last, narrow = run(net, X, Y, 0.02)
    assert last < first
    assert narrow.state.numbers["attempts"] >= 1
    assert narrowest(net, X)[0] == 1
    net, X, Y = planted(1.0, polished=0.02)
    first, last, narrow = run(net, X, Y, 0.02)
    assert first - 1e-9 < last <= first
    assert narrowest(net, X)[0] == 2
    # Too short an attempt to grow the dimension again: refused, and not a bit has moved.
    before = weights(net)
    first, last, narrow = run(net, X, Y, 0.02, attempt=2)
    assert narrow.state.numbers["attempts"] == 1
    assert last == first
    assert same_bits(weights(net), before)


@given(seed=st.integers(0, 10_000), log_ridge=st.floats(-5, 0), attempt=st.sampled_from([1, 2, 7]), bias=st.booleans())
def test_never_ends_higher_than_it_began(seed, log_ridge, attempt, bias):
    net = network((4, 7, 7, 7, 3), seed=seed, bias=1.0 if bias else 0.0)
    X, Y = task(n=30, seed=seed)
    with torch.no_grad():
        # A rank to work on: two directions through the middle.
        P = orthogonal(7, 2, seed=seed)
        net.weights[1].copy_(P @ P.mT @ net.weights[1])
    before = weights(net)
    first, last, narrow = run(net, X, Y, 10.0**log_ridge, attempt=attempt, steps=21)
    assert last <= first
    if last == first:
        assert same_bits(weights(net), before)


def test_no_attempt_is_begun_that_cannot_be_decided():
    net, X, Y = planted(0.1)
    before = weights(net)
    first, last, narrow = run(net, X, Y, 0.02, attempt=30, steps=29)
    assert narrow.state.numbers["attempts"] == 0
    assert last == first
    assert same_bits(weights(net), before)


@pytest.mark.parametrize("how", ["callback", "ctrl-c", "time"])
def test_stopped_in_mid_attempt_goes_back(how):
    """Half an attempt can be worse than none: the weights handed back are those from before it."""
    net, X, Y = planted(1.0, polished=0.02)
    start = weights(net)

    def stop(event):
        if event.step == 3:
            if how == "ctrl-c":
                raise KeyboardInterrupt
            return how == "callback"
        return None

    options = {"ridge": 0.02, "phases": [Phase("narrow", 100, attempt=20)], "callbacks": [stop]}
    if how == "ctrl-c":
        with pytest.raises(KeyboardInterrupt):
            quiet(net, X, Y, **options)
        assert same_bits(weights(net), start)
        return
    result = quiet(net, X, Y, max_seconds=0.0 if how == "time" else None, **options)
    assert result.state == ("budget" if how == "time" else "interrupted")
    assert same_bits(weights(net), start)
    assert result.loss < result.history["loss"].max() or how == "time"


def test_a_polish_that_stalls_is_decided_at_once():
    """A network at its minimum once pinched: the attempt ends when no step helps, not after all its steps."""
    net = linear_net([1.0, 1e-3], [3, 6, 6, 6, 3])
    X = gaussian(50, 3)
    objective = objective_of(net, X, torch.zeros(50, 3, dtype=torch.float64), "mse")
    with objective.attached():
        narrow = Narrow(Phase("narrow", 500, attempt=250), objective.theta, net.metric("mse"), generator())
        step = 0
        while step < 500 and not narrow.finished:
            take(narrow.step(objective, step, 1.0))
            step += 1
    assert narrow.finished
    assert step < 200


def test_can_narrow():
    net = network()
    assert net.can_narrow()
    net.biases[0].requires_grad_(False)
    assert not net.can_narrow()
    assert not hooks_of(torch.nn.Linear(2, 2)).can_narrow()
    assert FullyConnected([2, 2]).can_narrow()
