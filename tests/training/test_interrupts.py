"""Ctrl-C at any moment is raised, and the last good weights are in the networks, in their own memory."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from isthmus import LeakyResNet
from isthmus.networks._direct import Direct
from isthmus.training import Phase, train_together
from small import network, quiet, same_bits, task, weights
from test_narrow import planted
from test_stacks import by_hand
from tools import generator

PLAN = [
    Phase("scale", 1),
    Phase("adam", 4, 1e-2, ridge_start=0.1),
    Phase("lbfgs", 4, ridge_start=3.0, ridge_share=1.0),
    Phase("sgd", 3, 1e-3, batch_size=16),
    Phase("lbfgs", 4, precision="double"),
    Phase("nesterov", 3, 1e-3),
    Phase("lbfgs", 3, metric=False),
]


@pytest.fixture(autouse=True)
def two_threads():
    """Small networks are trained on one; afterwards there must be two again."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


class Alarm:
    """Ctrl-C in the middle of the ``after``-th evaluation, when its gradient is half there; counts them all."""

    def __init__(self, monkeypatch, after=math.inf):
        self.count, self.threads, original = 0, set(), Direct._head

        def head(direct, Y, share):
            self.count += 1
            self.threads.add(torch.get_num_threads())
            if self.count == after:
                raise KeyboardInterrupt
            return original(direct, Y, share)

        monkeypatch.setattr(Direct, "_head", head)


def interrupted(monkeypatch, after, train, *arguments, **options):
    """Ctrl-C in this evaluation goes through."""
    with monkeypatch.context() as patched:
        Alarm(patched, after)
        with pytest.raises(KeyboardInterrupt):
            train(*arguments, **options)


class Own:
    """Where parameters are, that they are there again afterwards, and not views into anything."""

    def __init__(self, *nets):
        self.nets = nets
        self.places = [(p.data_ptr(), p.untyped_storage().nbytes()) for net in nets for p in net.parameters()]

    def check(self):
        now = [(p.data_ptr(), p.untyped_storage().nbytes()) for net in self.nets for p in net.parameters()]
        assert now == self.places
        assert all(p.grad is None and bool(p.isfinite().all()) for net in self.nets for p in net.parameters())


def path_of(net, X, Y, **options):
    """Weights before the first step and after each, and the methods of the steps."""
    path, methods = [weights(net)], []

    def callback(event):
        path.append([p.float() for p in weights(event.network)])
        methods.append(options["phases"][event.phase].method)

    quiet(net, X, Y, callbacks=[callback], **options)
    return path, methods


def test_in_every_evaluation_of_every_kind_of_phase(monkeypatch):
    X, Y = task(dtype=torch.float32)
    start = network(dtype=torch.float32)
    with monkeypatch.context() as patched:
        whole = Alarm(patched)
        path, methods = path_of(copy.deepcopy(start), X, Y, phases=PLAN)
    assert whole.threads == {1}
    assert whole.count > sum(p.steps for p in PLAN)
    reached = []
    for after in range(1, whole.count + 1):
        net, taken = copy.deepcopy(start), []
        own = Own(net)
        interrupted(monkeypatch, after, quiet, net, X, Y, phases=PLAN, callbacks=[taken.append])
        own.check()
        steps = len(taken)
        # After a first-order step the point that was evaluated is that before the move, until its phase has ended.
        last = methods[steps - 1] if steps else "none"
        allowed = [steps] if last in ("none", "lbfgs") else [steps - 1, steps]
        found = [k for k in allowed if same_bits(weights(net), path[k])]
        assert found, (after, steps, last)
        reached.append(found[-1])
    assert reached == sorted(reached) and reached[0] == 0 and reached[-1] == len(methods)


@pytest.mark.parametrize("precision", ["module", "double"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("method", ["adam", "lbfgs"])
def test_in_a_callback(method, error, precision):
    X, Y = task(dtype=torch.float32)
    net, seen = network(dtype=torch.float32), []
    phase = Phase(method, 20, 1e-2, precision=precision)
    path, _ = path_of(copy.deepcopy(net), X, Y, phases=[phase])
    own = Own(net)

    def callback(event):
        seen.append(torch.get_num_threads())
        if event.step == 7:
            raise error

    with pytest.raises(error):
        quiet(net, X, Y, phases=[phase], callbacks=[callback])
    own.check()
    # Callbacks have all threads.
    assert seen == [2] * 7
    assert same_bits(weights(net), path[6 if method == "adam" else 7])


@pytest.mark.parametrize(("second", "attempt"), [(1.0, 2), (1.0, 20), (0.1, 10)])
def test_while_a_narrowing_is_undecided(second, attempt, monkeypatch):
    """In every evaluation of a phase of narrowing: never weights of half an attempt."""
    start, X, Y = planted(second, polished=0.02 if second == 1.0 else 0.0)
    phases = [Phase("narrow", 2 * attempt + 1, attempt=attempt)]
    losses = []
    with monkeypatch.context() as patched:
        whole = Alarm(patched)
        end = copy.deepcopy(start)
        options = {"callbacks": [lambda event: losses.append(event.loss)]}
        result = quiet(end, X, Y, ridge=0.02, phases=phases, **options)
    first = float(by_hand(start, X, Y, 0.02, "mse").detach())
    # The attempt at a dimension that pays led through losses above that of the beginning.
    assert max(losses) > first or second < 1.0
    moved = set()
    for after in range(1, whole.count + 1, 1 + whole.count // 60):
        net = copy.deepcopy(start)
        own = Own(net)
        interrupted(monkeypatch, after, quiet, net, X, Y, ridge=0.02, phases=phases)
        own.check()
        moved.add(not same_bits(weights(net), weights(start)))
        assert float(by_hand(net, X, Y, 0.02, "mse").detach()) <= first * (1.0 + 1e-12)
    # Where it was refused nothing has ever moved; else it had, once it was decided.
    assert moved == ({False} if same_bits(weights(end), weights(start)) else {False, True})
    assert result.loss <= first * (1.0 + 1e-12)


def test_among_many(monkeypatch):
    """All networks of the group have a point of their own path, and those of the next group are as they were."""
    X, Y = task(seed=28)
    plan = [Phase("adam", 4, 1e-2), Phase("lbfgs", 5, ridge_start=2.0, ridge_end=2.0), Phase("lbfgs", 3, metric=False)]
    starts = [network(seed=i) for i in range(4)]
    paths = []
    for i, net in enumerate(starts):
        path: list = [weights(net)]
        keep = [lambda event, path=path: path.append(weights(event.network))]
        quiet(copy.deepcopy(net), X, Y, phases=plan, seed=i, callbacks=keep)
        paths.append(path)
    options = {"ridges": 1e-3, "seeds": range(4), "phases": plan, "at_once": 2}
    with monkeypatch.context() as patched:
        whole = Alarm(patched)
        with pytest.warns(match="networks"):
            train_together(copy.deepcopy(starts), X, Y, **options)
    for after in range(1, whole.count + 1):
        nets = copy.deepcopy(starts)
        own = Own(*nets)
        interrupted(monkeypatch, after, train_together, nets, X, Y, **options)
        own.check()
        at = [min(range(len(path)), key=lambda k: apart(net, path[k])) for net, path in zip(nets, paths)]
        assert all(apart(net, path[k]) < 1e-7 for net, path, k in zip(nets, paths, at))
        if at[0] < len(paths[0]) - 1:
            assert same_bits(weights(nets[2]), weights(starts[2])) and same_bits(weights(nets[3]), weights(starts[3]))


def apart(net, point):
    return max(float((p - q).abs().max()) for p, q in zip(weights(net), point))


def test_with_steps_that_adapt(monkeypatch):
    """Parameters √ρW and lengths ρ fit together: W is one of the path, also where ρ has just changed."""
    X, Y = task()
    options = {"steps": "adaptive", "adapt_every": 2, "dtype": torch.float64}
    start = LeakyResNet(4, 3, 6, 4, 2.0, generator=generator(), **options)
    plan = [Phase("adam", 5, 1e-2), Phase("lbfgs", 4, ridge_start=2.0, ridge_end=2.0), Phase("adam", 4, 1e-2)]
    path, lengths = [torch.stack(start.Ws).detach()], [start.rho]

    def keep(event):
        path.append(torch.stack(event.network.Ws).detach())
        lengths.append(event.network.rho)

    with monkeypatch.context() as patched:
        whole = Alarm(patched)
        end = copy.deepcopy(start)
        quiet(end, X, Y, phases=plan, callbacks=[keep])
    assert float((end.rho - start.rho).abs().max()) > 1e-3
    for after in range(1, whole.count + 1):
        net = copy.deepcopy(start)
        own = Own(net)
        interrupted(monkeypatch, after, quiet, net, X, Y, phases=plan)
        own.check()
        assert abs(float(net.rho.sum()) - 1.0) < 1e-12
        Ws = torch.stack(net.Ws).detach()
        assert min(float((Ws - point).abs().max()) for point in path) < 1e-10
        assert any(torch.equal(net.rho, rho) for rho in lengths)
