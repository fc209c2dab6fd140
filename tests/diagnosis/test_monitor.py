"""The Monitor: it changes nothing, counts what it should, and measures what a direct computation gives."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from torch import nn

import architectures
import isthmus
from isthmus import IsthmusError
from isthmus.diagnosis import Monitor
from isthmus.diagnosis import _monitor as camera
from isthmus.measures import participation_ratio, stable_rank
from tools import assert_close, gaussian, random_net, three_part_net

OPTIMISERS = {
    "sgd": lambda net: torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9),
    "adam": lambda net: torch.optim.Adam(net.parameters(), lr=0.01),
}


def fresh():
    """Dropout, batch norm and an old-style spectral norm: all that a forward pass can disturb."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(6, 16),
            nn.BatchNorm1d(16),
            nn.ReLU(inplace=True),
            nn.Dropout(0.3),
            nn.utils.spectral_norm(nn.Linear(16, 16)),
            nn.Linear(16, 3),
        )


def train(net, optimiser, steps=7, *, autocast=False):
    X, Y = gaussian(40, 6, seed=1, dtype=torch.float32), gaussian(40, 3, seed=2, dtype=torch.float32)
    for _ in range(steps):
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = (net(X).float() - Y).square().mean()
        loss.backward()
        optimiser.step()


def trained(optimiser, around=None, **options):
    """Everything that a training leaves, with a Monitor around it or not."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        net = fresh()
        steps = OPTIMISERS[optimiser](net)
        if around is None:
            train(net, steps, **options)
        else:
            with around(net, steps):
                train(net, steps, **options)
        left = {**net.state_dict(), "rng": torch.get_rng_state()}
        left |= {f"grad of {name}": p.grad for name, p in net.named_parameters()}
        drawn = (random.random(), np.random.random())  # noqa: NPY002
        hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules()]
        return left, (drawn, hooks, net.training, len(steps._optimizer_step_post_hooks))


def assert_identical(first, second):
    assert first[1] == second[1]
    assert set(first[0]) == set(second[0])
    for name, value in first[0].items():
        assert torch.equal(value, second[0][name]), name


X_SEEN = gaussian(30, 6, seed=5, dtype=torch.float32)


@pytest.mark.parametrize("optimiser", list(OPTIMISERS))
@pytest.mark.parametrize("counting", ["forwards", "steps"])
@pytest.mark.parametrize("autocast", [False, True])
def test_training_is_the_same_bit_for_bit(optimiser, counting, autocast):
    seen = []

    def around(net, steps):
        counted = steps if counting == "steps" else None
        seen.append(Monitor(net, X_SEEN, every=2, optimizer=counted, budget=None))
        return seen[0]

    alone = trained(optimiser, autocast=autocast)
    assert_identical(trained(optimiser, around, autocast=autocast), alone)
    assert seen[0].history.steps == (0, 2, 4, 6, 7)
    assert set(seen[0].history.states) == {"measured"}


@pytest.mark.parametrize("fault", ["draws", "statistics", "mode"])
def test_the_comparison_sees_a_monitor_that_disturbs(fault, monkeypatch):
    original = camera.Camera.take

    def disturbing(self, step):
        if fault == "draws":
            torch.rand(1)
        elif fault == "statistics":
            self.module[1].running_mean.add_(1e-6)
        else:
            self.module[3].eval()
        return original(self, step)

    monkeypatch.setattr(camera.Camera, "take", disturbing)
    with_it = trained("sgd", lambda net, _: Monitor(net, X_SEEN, every=2))
    with pytest.raises(AssertionError):
        assert_identical(with_it, trained("sgd"))


@pytest.mark.parametrize("name", list(architectures.ARCHITECTURES))
def test_every_architecture(name):
    net, X = architectures.ARCHITECTURES[name]()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    with Monitor(net, X) as monitor:
        pass
    (snapshot,) = monitor.history.snapshots
    assert snapshot.state == "measured", snapshot.note
    for key, value in net.state_dict().items():
        assert torch.equal(value, before[key])
    for layer in snapshot.layers:
        module = net.get_submodule(layer.name)
        if layer.kind == "linear":
            direct = torch.linalg.svdvals(module.weight.detach().double())
            assert_close(layer.weights[0].values, direct[:32])
            assert_close(layer.weights[0].norm_squared, direct.square().sum())
            assert_close(layer.weights[0].stable_rank, stable_rank(direct))
    total = sum(float(p.detach().double().square().sum()) for p in net.parameters())
    assert_close(snapshot.norm_squared, total)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_representations_equal_a_direct_svd(dtype):
    net = nn.Sequential(nn.Linear(6, 20, dtype=dtype), nn.ReLU(), nn.Linear(20, 3, dtype=dtype))
    X = gaussian(50, 6, dtype=dtype)
    Y = gaussian(50, 3, seed=1, dtype=dtype)
    with Monitor(net, X, Y=Y) as monitor:
        pass
    with torch.no_grad():
        inside, out = net[0](X).double(), net(X).double()
    s = torch.linalg.svdvals(inside - inside.mean(0)) / 50**0.5
    found = monitor.history.snapshots[0]["0"].representation
    # Beyond 6 directions there is only rounding: of float32 if that is what the network has.
    assert_close(found.values[:6], s[:6], rtol=1e-6, reason="the Gram matrix of float32 data")
    assert float(found.values[6:].max()) < 1e-6
    assert found.rank == 6
    assert_close(found.participation_ratio, participation_ratio(s), rtol=1e-6, reason="as above")
    cost = (out - Y.double()).square().sum(1).mean()
    assert_close(monitor.history.snapshots[0].cost, cost, rtol=1e-6, reason="outputs in float32")


def test_the_rank_of_a_known_network_and_of_one_of_ours():
    for net in (three_part_net(3), three_part_net(3).to_torch()):
        state = torch.get_rng_state()
        with Monitor(net, gaussian(100, 12)) as monitor:
            pass
        assert torch.equal(torch.get_rng_state(), state)
        ranks = [layer.representation.rank for layer in monitor.history.snapshots[0].layers]
        assert ranks[:8] == [3] * 8


def test_wide_and_long_representations_are_bounded(monkeypatch):
    net = nn.Sequential(nn.Linear(4, 700), nn.Linear(700, 2))
    with Monitor(net, gaussian(600, 4, dtype=torch.float32), max_samples=600) as monitor:
        pass
    first = monitor.history.snapshots[0]["0"]
    assert (first.representation.rank, first.weights[0].rank) == (4, 4)
    shapes = []
    original = camera._singular_values
    monkeypatch.setattr(camera, "_singular_values", lambda A, eps: shapes.append(tuple(A.shape)) or original(A, eps))
    images = nn.Sequential(nn.Conv2d(1, 3, 1), nn.Flatten(), nn.Linear(300, 2))
    with Monitor(images, gaussian(20, 1, 10, 10, dtype=torch.float32), max_samples=16):
        pass
    # Representations, then weights.
    assert shapes == [(128, 3), (16, 2), (3, 1), (2, 300)]


def test_a_random_projection_counts_only_a_clear_drop():
    net = nn.Sequential(nn.Linear(600, 600, bias=False))
    with Monitor(net, gaussian(10, 600, dtype=torch.float32)) as monitor:
        pass
    weights = monitor.history.snapshots[0]["0"].weights[0]
    assert (weights.rank, weights.status, len(weights.values)) == (None, "unclear", 32)
    with torch.no_grad():
        net[0].weight.copy_(net[0].weight[:, :2] @ net[0].weight[:2])
    assert_close(monitor.record()["0"].weights[0].rank, 2)


def test_what_counts_as_a_step():
    net, X = fresh(), X_SEEN
    with Monitor(net, X, every=2) as monitor:
        net(X)
        net.eval()
        net(X)
        net.train()
        with torch.no_grad():
            net(X)
        assert monitor.step == 1
        monitor.record()
        assert monitor.step == 1
        net(X)
        net(X)
    net(X)
    assert monitor.step == 3
    assert monitor.history.steps == (0, 1, 2, 3)
    assert 0 < monitor.overhead < 1
    before = monitor.overhead
    assert monitor.overhead == before


def fail_inside(monitor, work):
    with monitor:
        work()
        raise ZeroDivisionError


def test_an_exception_leaves_no_hook_and_propagates():
    net = fresh()
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules()]
    optimiser = OPTIMISERS["sgd"](net)
    for given in (None, optimiser):
        monitor = Monitor(net, X_SEEN, every=1, optimizer=given, budget=None)
        with pytest.raises(ZeroDivisionError):
            fail_inside(monitor, lambda: train(net, optimiser, 2))
        assert monitor.history.steps == (0, 1, 2)
        assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules()] == hooks
        assert not optimiser._optimizer_step_post_hooks


def test_weights_that_are_not_finite_do_not_stop_a_training():
    net = fresh()
    with Monitor(net, X_SEEN, every=1) as monitor:
        net(X_SEEN)
        with torch.no_grad():
            net[0].weight[0, 0] = math.nan
            net[5].weight[0, 0] = math.inf
        net(X_SEEN)
    assert monitor.history.states == ("measured", "not finite", "not finite")
    spoiled = monitor.history.snapshots[1]
    assert "0 (weight)" in spoiled.note
    assert spoiled["0"].weights[0].status == "not finite"
    assert spoiled["4"].weights[0].status != "not finite"
    assert not math.isfinite(spoiled.norm_squared)


class Fragile(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.broken = nn.Linear(6, 2), False

    def forward(self, x):
        if self.broken and not self.training:
            raise ValueError("not in evaluation")
        return self.inner(x)


def test_a_failing_forward_is_a_state_inside_and_an_error_on_entering():
    net = Fragile()
    with Monitor(net, X_SEEN, every=1) as monitor:
        net.broken = True
        net(X_SEEN)
        net(X_SEEN)
    assert monitor.history.states == ("measured", "failed", "failed")
    assert "not in evaluation" in monitor.history.snapshots[1].note
    assert monitor.history.snapshots[1].layers == ()
    assert list(monitor.history.to_frame()["state"]) == ["measured", "failed", "failed"]
    with pytest.raises(IsthmusError, match="not in evaluation"), Monitor(net, X_SEEN):
        pass
    assert not net._forward_pre_hooks


def test_snapshots_between_forward_and_backward_leave_the_graph():
    net = fresh()
    with Monitor(net, X_SEEN) as monitor:
        loss = net(X_SEEN).square().mean()
        monitor.record()
        loss.backward()
    assert all(p.grad is not None for p in net.parameters())


def test_memory_is_bounded_by_dropping_every_second_snapshot():
    net = nn.Linear(6, 2)
    with Monitor(net, X_SEEN, every=1, max_snapshots=4, budget=None) as monitor:
        for _ in range(20):
            net(X_SEEN)
    steps = monitor.history.steps
    assert len(steps) <= 4
    assert (steps[0], steps[-1]) == (0, 20)
    assert sorted(set(steps)) == list(steps)
    assert monitor.every > 1
    assert monitor.history.settings["every_at_the_end"] == monitor.every


def test_snapshots_wait_until_the_budget_has_room(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(camera.time, "perf_counter", lambda: now[0])
    original = camera.Camera.take

    def slow(self, step):
        now[0] += 3.0
        return original(self, step)

    monkeypatch.setattr(camera.Camera, "take", slow)

    def monitored(budget):
        net = nn.Linear(6, 2)
        with Monitor(net, X_SEEN, every=1, budget=budget) as monitor:
            for _ in range(100):
                net(X_SEEN)
                now[0] += 1.0
        return monitor

    assert monitored(None).history.steps == (*range(101),)
    monitor = monitored(0.1)
    # 100 s of training, of which snapshots of 3 s each may take a tenth; the first and the last are always taken.
    assert 4 <= len(monitor.history.steps) <= 6
    assert (monitor.history.steps[0], monitor.history.steps[-1]) == (0, 100)
    assert monitor.left_out == 101 - len(monitor.history.steps)
    assert monitor.overhead <= 0.1 + 2 * 3.0 / 110
    assert any("left out" in note for note in monitor.history.notes)
    with pytest.raises(IsthmusError, match="budget"):
        Monitor(nn.Linear(6, 2), X_SEEN, budget=0.0)


def test_layers_are_found_anew_when_the_parameters_are_others():
    net = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
    with Monitor(net, X_SEEN) as monitor:
        with torch.no_grad():
            net[2].weight.zero_()
        assert float(monitor.record()["2"].weights[0].norm_squared) == 0.0
        net[2] = nn.Linear(4, 3)
        assert_close(monitor.record()["2"].weights[0].norm_squared, net[2].weight.detach().double().square().sum())


def test_wrappers_are_looked_into():
    net = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
    for wrapper in (nn.DataParallel(net), torch.compile(net, backend="eager")):
        with Monitor(wrapper, X_SEEN, every=1) as monitor:
            for _ in range(2):
                wrapper(X_SEEN)
            wrapper.eval()
            wrapper(X_SEEN)
            wrapper.train()
        assert monitor.history.steps == (0, 1, 2)
        assert monitor.history.layers == ("0", "2")
    net.compile(backend="eager")
    with pytest.raises(IsthmusError, match="compiled in place"):
        Monitor(net, X_SEEN)


def test_layers_are_chosen_by_name():
    net = fresh()
    with Monitor(net, X_SEEN, layers=["5", "1*"]) as monitor:
        pass
    assert monitor.history.layers == ("1", "5")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"every": 0}, "every"),
        ({"layers": "none of them"}, "layers"),
        ({"optimizer": "sgd"}, "optimizer"),
        ({"max_samples": 1}, "max_samples"),
        ({"max_snapshots": 2}, "max_snapshots"),
        ({"loss": "hinge"}, "loss"),
        ({"Y": gaussian(7, 3)}, "as many rows"),
    ],
)
def test_wrong_arguments(options, says):
    with pytest.raises(IsthmusError, match=says):
        Monitor(fresh(), X_SEEN, **options)


def test_targets_of_another_shape_and_a_monitor_entered_twice():
    with pytest.raises(IsthmusError, match="shape of the outputs"), Monitor(fresh(), X_SEEN, Y=gaussian(30, 2)):
        pass
    with Monitor(fresh(), X_SEEN) as monitor, pytest.raises(IsthmusError, match="once at a time"), monitor:
        pass
    with pytest.raises(IsthmusError, match="loader"):
        Monitor(fresh(), [X_SEEN, X_SEEN], Y=gaussian(60, 3))


def test_a_loader_and_cross_entropy():
    net = random_net([6, 8, 3], dtype=torch.float32)
    labels = torch.arange(30) % 3
    with isthmus.Monitor(net, X_SEEN, Y=labels, loss="cross_entropy") as monitor:
        pass
    with torch.no_grad():
        direct = nn.functional.cross_entropy(net(X_SEEN).double(), labels)
    assert_close(monitor.history.snapshots[0].cost, direct, rtol=1e-6, reason="outputs in float32")
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X_SEEN, labels), batch_size=8, shuffle=True)
    state = torch.get_rng_state()
    with Monitor(net, loader) as monitor:
        pass
    assert torch.equal(torch.get_rng_state(), state)
    assert monitor.history.snapshots[0].state == "measured"
