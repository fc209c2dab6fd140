"""The default plan."""

from __future__ import annotations

import torch
from torch import nn

from isthmus.objective import constant_cost
from isthmus.training import default_plan
from isthmus.training._phases import FULL_BATCH, STRUCTURE_SHARE
from small import network, task
from tools import assert_close


def test_ridge_rises_to_the_structure_and_comes_back():
    net, (_, Y) = network(), task()
    ridge = 1e-6
    plan = default_plan(net, Y, ridge=ridge)
    top = STRUCTURE_SHARE * constant_cost(Y) / 3 / ridge
    assert_close(max(p.ridge_factor(s) for p in plan for s in range(p.steps)), top)
    assert plan[-1].method == "lbfgs"
    assert plan[-1].ridge_start == plan[-1].ridge_end == 1.0
    # Without a jump of the ridge between phases, but for the first ones.
    newton = [p for p in plan if p.quasi_newton]
    for first, second in zip(newton, newton[1:]):
        assert_close(first.ridge_end, second.ridge_start)


def test_a_large_ridge_is_never_exceeded():
    plan = default_plan(network(), task()[1], ridge=10.0)
    assert max(p.ridge_factor(s) for p in plan for s in range(p.steps)) == 1.0


def test_plain_modules_and_frozen_networks_are_not_narrowed():
    Y = task()[1]
    assert "narrow" in {p.method for p in default_plan(network(), Y, ridge=1e-3)}
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    frozen = network()
    frozen.weights[0].requires_grad_(False)
    for net in (plain, frozen):
        assert "narrow" not in {p.method for p in default_plan(net, Y, ridge=1e-3)}


def test_without_ridge_or_structure():
    for ridge, Y in ((0.0, task()[1]), (0.1, torch.zeros(10, 3))):
        plan = default_plan(network(), Y, ridge=ridge)
        assert plan[-1].method == "lbfgs"
        assert all(p.ridge_start == p.ridge_end == 1.0 for p in plan)


def test_many_samples_get_mini_batches():
    for n, batched in ((FULL_BATCH, False), (FULL_BATCH + 1, True)):
        plan = default_plan(network(), torch.arange(2 * n).view(n, 2).double(), ridge=1e-3)
        assert any(p.batch_size is not None for p in plan) == batched


def test_labels():
    labels = torch.tensor([0, 0, 1, 1])
    assert_close(constant_cost(labels, "cross_entropy"), torch.tensor(2.0).log(), rtol=1e-6, reason="float32 shares")
    one_hot = torch.eye(2, dtype=torch.float64)[labels]
    assert_close(constant_cost(one_hot, "cross_entropy"), torch.tensor(2.0, dtype=torch.float64).log())
    assert constant_cost(torch.zeros(4, dtype=torch.int64), "cross_entropy") == 0.0
