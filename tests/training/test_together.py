"""Networks trained together: each goes the way that ``train`` takes with it alone."""

from __future__ import annotations

import copy
import json
import warnings
from functools import partial

import numpy as np
import pytest
import torch

from isthmus import ConvergenceWarning, FullyConnected, LeakyResNet
from isthmus._errors import IsthmusError
from isthmus._progress import silent
from isthmus.experiments.bottleneck2023._norm_and_depth import NormAndDepth
from isthmus.measures import bottleneck_rank
from isthmus.training import Phase, train_together
from isthmus.training import _core as core
from isthmus.training._objective import Stack
from isthmus.training._train import _fitting
from small import quiet, same_bits, task, weights
from tools import assert_close, gaussian, generator, random_net

RIDGES = (1e-3, 2e-3, 4e-3, 1e-2, 3e-2)


def networks(dims=(4, 8, 8, 3), count=5, *, grow=0.5, dtype=torch.float64, **options):
    """Of growing initial scale: the line searches and the scaling down differ."""
    kinds = {"dtype": dtype, **options}
    return [FullyConnected(dims, init_scale=1.0 + grow * i, generator=generator(i), **kinds) for i in range(count)]


def together(nets, X, Y, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return train_together(nets, X, Y, **{"ridges": RIDGES[: len(nets)], "seeds": range(len(nets)), **options})


def alone(nets, X, Y, **options):
    """The same by ``train``; data may be one for each."""
    own = [[T if T.ndim == 2 else T[i] for T in (X, Y)] for i in range(len(nets))]
    return [quiet(net, *own[i], ridge=RIDGES[i], seed=i, **options) for i, net in enumerate(nets)]


def trained(result) -> FullyConnected:
    return result.network


def assert_same(ours, theirs, *, rtol=1e-7):
    """The two accounts of one training, but for rounding and time."""
    assert (ours.state, ours.steps, ours.evaluations) == (theirs.state, theirs.steps, theirs.evaluations)
    assert ours.history.keys() == theirs.history.keys()
    for name, values in ours.history.items():
        np.testing.assert_allclose(values, theirs.history[name], rtol=rtol, err_msg=name)
    for name in ("loss", "cost", "norm", "ridge"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=rtol)
    for name in ("gradient", "decrease", "balance"):
        assert getattr(ours.criteria, name) == pytest.approx(getattr(theirs.criteria, name), rel=1e-3, nan_ok=True)
    why = "rounding grows from step to step"
    for p, q in zip(weights(ours.network), weights(theirs.network)):
        assert_close(p, q, rtol=100 * rtol, atol=100 * rtol, reason=why)
    told = {k: v for k, v in ours.settings.items() if k != "together"}
    assert told == theirs.settings
    assert ours.to_dict().keys() == theirs.to_dict().keys()


PLANS = {
    "scale": [Phase("scale", 1), Phase("gd", 5, 1e-3)],
    "adam": [Phase("adam", 60, 1e-2, anneal=True, ridge_start=0.1)],
    "gd": [Phase("gd", 12, 1e-3)],
    "sgd": [Phase("sgd", 12, 1e-3)],
    "nesterov": [Phase("nesterov", 60, 5e-3)],
    "lbfgs": [Phase("lbfgs", 14, metric=False, memory=4)],
    "metric": [Phase("lbfgs", 14, memory=6)],
    "ridge": [Phase("lbfgs", 24, ridge_start=10.0, ridge_share=0.5, memory=6)],
    "several": [
        Phase("adam", 10, 1e-2),
        Phase("lbfgs", 8, ridge_start=5.0, ridge_end=5.0),
        Phase("lbfgs", 6, memory=1),
    ],
    "adam in batches": [Phase("adam", 24, 1e-2, batch_size=16, anneal=True), Phase("lbfgs", 6)],
    "sgd in batches": [Phase("sgd", 12, 1e-3, batch_size=7)],
    "narrow": [Phase("lbfgs", 8), Phase("narrow", 24, attempt=6), Phase("lbfgs", 5)],
    "double": [Phase("adam", 5, 1e-2), Phase("lbfgs", 10, precision="double"), Phase("gd", 3, 1e-4)],
    "none": [],
    "no steps": [Phase("adam", 0, 1e-2), Phase("lbfgs", 0)],
}


@pytest.mark.parametrize("name", PLANS)
def test_each_goes_the_way_of_train(name):
    # Of the few tasks where ``train`` itself is not led elsewhere, at kinks, by a change of 1e-15 in the first weights.
    X, Y = task(seed=28)
    nets = networks()
    single = alone(copy.deepcopy(nets), X, Y, phases=PLANS[name])
    # Groups of 3 and 2.
    results = together(nets, X, Y, phases=PLANS[name], at_once=3)
    parted = 0
    for net, ours, theirs in zip(nets, results, single):
        assert ours.network is net
        if name == "ridge" and abs(ours.loss / theirs.loss - 1.0) > 1e-9:
            # Rounding can grow at kinks, on some processors; a mistake would show in all of them.
            parted += 1
            continue
        assert_same(ours, theirs)
        assert ours.reason == theirs.reason
    assert parted <= 1
    assert [r.settings["together"] for r in results] == [2, 2, 3, 3, 3]
    if name == "lbfgs":
        # The twin: some line searches took more than one trial, and not the same number.
        assert len({r.evaluations for r in results}) > 1


@pytest.mark.parametrize(("slope", "bias"), [(0.0, 0.0), (0.3, 0.5), (1.0, 1.0)])
@pytest.mark.parametrize("own_X", [False, True])
def test_slopes_biases_and_own_data(slope, bias, own_X):
    nets = networks(slope=slope, bias=bias)
    Y = torch.stack([task(seed=7 * i)[1] for i in range(5)])
    X = torch.stack([task(seed=7 * i)[0] for i in range(5)]) if own_X else task()[0]
    plan = [Phase("adam", 10, 1e-2), Phase("lbfgs", 12)]
    single = alone(copy.deepcopy(nets), X, Y, phases=plan)
    for ours, theirs in zip(together(nets, X, Y, phases=plan), single):
        assert_same(ours, theirs)


@pytest.mark.parametrize("rows", [None, 7])
def test_gradients_against_autograd(rows):
    nets = networks((3, 7, 5, 2), slope=0.2, bias=0.7)
    X, Y = gaussian(5, 20, 3), gaussian(20, 2)
    stack = Stack(nets, list(X), [Y] * 5, "mse")
    stack.rows = rows or stack.rows
    some = (1, 4)
    whole = stack.evaluate(stack.objectives, RIDGES)
    found = [[whole[i] for i in some]]
    found.append(stack.evaluate([stack.objectives[i] for i in some], [RIDGES[i] for i in some]))
    for values in found:
        for value, i in zip(values, some):
            loss = (nets[i](X[i]) - Y).square().sum(1).mean() + RIDGES[i] * sum(
                p.square().sum() for p in nets[i].parameters()
            )
            assert value.loss == pytest.approx(float(loss.detach()), rel=1e-12)
            gradient = torch.autograd.grad(loss, list(nets[i].parameters()))
            assert_close(value.gradient, torch.cat([g.reshape(-1) for g in gradient]))
    assert [own.evaluations for own in stack.objectives] == [1, 2, 1, 1, 2]


def test_numbers_of_large_networks_are_as_exact_as_of_one():
    nets = [random_net([300, 300, 300], seed=i, dtype=torch.float32) for i in range(3)]
    X, Y = gaussian(10, 300, dtype=torch.float32), gaussian(10, 300, seed=1, dtype=torch.float32)
    stack = Stack(nets, [X] * 3, [Y] * 3, "mse")
    # A sum of 180,000 squares term by term is wrong by 5e-5.
    for net, value in zip(nets, stack.evaluate(stack.objectives, [0.1] * 3)):
        exact = sum(float(p.detach().double().square().sum()) for p in net.parameters())
        assert value.norm == pytest.approx(exact, rel=1e-6)
        assert value.cost == pytest.approx(float((net(X) - Y).detach().double().square().sum(1).mean()), rel=1e-5)


def test_many_samples_are_taken_in_parts(monkeypatch):
    X, Y = task()
    nets = networks()
    whole = together(copy.deepcopy(nets), X, Y, phases=PLANS["adam"])
    in_parts = partial(Stack, chunk_bytes=20_000)
    monkeypatch.setattr(core, "Stack", in_parts)
    assert in_parts(nets, [X] * 5, [Y] * 5, "mse").rows < len(X) / 2
    for ours, theirs in zip(together(nets, X, Y, phases=PLANS["adam"]), whole):
        assert_close(torch.tensor(ours.loss), torch.tensor(theirs.loss))


def test_full_trainings_end_alike_and_leave_one_by_one():
    """Linear networks, whose minima no kink divides: state, loss and rank agree to the end."""
    X, Y = task()
    plan = [Phase("adam", 60, 1e-2), Phase("lbfgs", 100, ridge_start=3.0, ridge_end=3.0), Phase("lbfgs", 500)]
    nets = networks((4, 8, 8, 8, 3), slope=1.0, grow=0.0)
    single = alone(copy.deepcopy(nets), X, Y, phases=plan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = train_together(nets, X, Y, ridges=RIDGES, seeds=range(5), phases=plan)
    assert len({r.steps for r in results}) > 2
    seen = set()
    for ours, theirs in zip(results, single):
        assert ours.state == theirs.state == "flat"
        assert ours.reason == theirs.reason
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
        assert len(ours.history["loss"]) == ours.steps
        ranks = [bottleneck_rank(net.trace(X)).rank for net in map(trained, (ours, theirs))]
        assert ranks[0] == ranks[1]
        seen.add(ranks[0])
    # The largest ridge leaves less.
    assert max(seen) == 2


def test_phases_that_end_at_different_steps():
    """Networks in different phases at one time: mini-batches, both precisions, all samples."""
    X, Y = task()
    plan = [
        Phase("lbfgs", 300, ridge_start=0.5, ridge_end=0.5, metric=False),
        Phase("lbfgs", 8, precision="double"),
        Phase("adam", 12, 1e-3, batch_size=16),
        Phase("lbfgs", 12),
    ]
    nets = networks(slope=1.0, grow=0.0)
    # Loose, so that a phase ends before rounding could decide its end.
    single = alone(copy.deepcopy(nets), X, Y, phases=plan, tolerance=1e-3)
    results = together(nets, X, Y, phases=plan, tolerance=1e-3)
    assert len({int((r.history["phase"] == 0).sum()) for r in results}) > 1
    for ours, theirs in zip(results, single):
        assert (ours.state, ours.steps) == (theirs.state, theirs.steps)
        np.testing.assert_allclose(ours.history["loss"], theirs.history["loss"], rtol=1e-5)


def test_adam_to_the_end_with_kinks():
    X, Y = task()
    plan = [Phase("adam", 250, 1e-2, anneal=True)]
    nets = networks(grow=0.0)
    single = alone(copy.deepcopy(nets), X, Y, phases=plan)
    for ours, theirs in zip(together(nets, X, Y, phases=plan), single):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-9)
        assert "only 'lbfgs' phases converge" in ours.reason


@pytest.mark.parametrize("plan", [[Phase("gd", 30, 0.15)], [Phase("nesterov", 30, 0.15)]])
def test_one_that_diverges_leaves_the_others_alone(plan):
    X, Y = task()
    nets = networks()
    single = alone(copy.deepcopy(nets), X, Y, phases=plan)
    states = [r.state for r in single]
    assert 0 < states.count("diverged") < 5
    for ours, theirs in zip(together(nets, X, Y, phases=plan), single):
        assert_same(ours, theirs)
        assert ours.reason == theirs.reason


@pytest.mark.parametrize("method", ["lbfgs", "adam"])
def test_non_finite_weights_are_reported_not_raised(method):
    X, Y = task()
    nets = networks()
    with torch.no_grad():
        nets[1].weights[1].fill_(float("nan"))
        # Finite weights, outputs beyond the largest number.
        nets[3].weights[0].fill_(1e300)
        nets[3].weights[1].fill_(1e300)
    kept = [weights(net) for net in nets]
    plan = [Phase(method, 12, None if method == "lbfgs" else 1e-3)]
    results = together(nets, X, Y, phases=plan)
    assert [r.state for r in results] == ["budget", "diverged", "budget", "diverged", "budget"]
    assert [r.steps for r in results] == [12, 0, 12, 0, 12]
    assert all("non-finite loss at step 0" in results[i].reason for i in (1, 3))
    assert same_bits(weights(nets[3]), kept[3])
    # The others go on as if these were not there.
    beside = quiet(networks()[4], X, Y, ridge=RIDGES[4], seed=4, phases=plan)
    assert_same(results[4], beside)


def test_stalled_at_the_minimum_itself():
    X, Y = task()
    nets = [FullyConnected((4, 6, 3), dtype=torch.float64, init_scale=0.0) for _ in range(2)]
    single = alone(copy.deepcopy(nets), X, torch.zeros_like(Y), phases=[Phase("lbfgs", 40)])
    results = together(nets, X, torch.zeros_like(Y), phases=[Phase("lbfgs", 40)])
    for ours, theirs in zip(results, single):
        assert (ours.state, ours.steps, ours.loss) == (theirs.state, theirs.steps, theirs.loss) == ("flat", 1, 0.0)
        assert ours.evaluations == theirs.evaluations


def test_double_precision_of_single_networks():
    X, Y = task(dtype=torch.float32)
    plan = [Phase("adam", 5, 1e-2), Phase("lbfgs", 10, precision="double"), Phase("gd", 2, 1e-4)]
    nets = networks(dtype=torch.float32, grow=0.0)
    places = [p.data_ptr() for net in nets for p in net.parameters()]
    single = alone(copy.deepcopy(nets), X, Y, phases=plan)
    for ours, theirs in zip(together(nets, X, Y, phases=plan), single):
        assert trained(ours).weights[0].dtype == torch.float32
        np.testing.assert_allclose(ours.history["loss"], theirs.history["loss"], rtol=1e-3)
    # In place: whoever holds the parameters sees them trained.
    assert [p.data_ptr() for net in nets for p in net.parameters()] == places


def test_an_interrupt_keeps_what_there_is():
    class Bar:
        def advance(self, steps=1, **numbers):
            if steps:
                raise KeyboardInterrupt

    class Show:
        def __init__(self, total, label):
            assert (total, label) == (4 * 20, "train_together")

        def __enter__(self):
            return Bar()

        def __exit__(self, *error):
            return None

    nets = networks(count=4)
    before = [weights(net) for net in nets]
    plan = [Phase("adam", 10, 1e-3), Phase("lbfgs", 10)]
    places = [p.data_ptr() for net in nets for p in net.parameters()]
    with pytest.raises(KeyboardInterrupt):
        together(nets, *task(), phases=plan, at_once=2, progress=Show)
    # Raised when the tenth step of the first was done: its last evaluated point is that before the tenth move, and
    # that of the second, whose tenth step was not done yet, the one before the ninth.
    for i, moves in ((0, 9), (1, 8)):
        assert not same_bits(weights(nets[i]), before[i])
        single = networks(count=2)[i]
        quiet(single, *task(), ridge=RIDGES[i], seed=i, phases=[Phase("adam", moves, 1e-3)])
        for p, q in zip(weights(nets[i]), weights(single)):
            assert_close(p, q)
    assert same_bits(weights(nets[2]), before[2])
    assert same_bits(weights(nets[3]), before[3])
    assert [p.data_ptr() for net in nets for p in net.parameters()] == places


def test_the_account_is_plain_and_the_warning_tells_how_many():
    X, Y = task()
    with pytest.warns(ConvergenceWarning, match="train_together: 2 of 2 networks: not converged after 3 steps"):
        results = train_together(networks(count=2), X, Y, ridges=1e-2, phases=[Phase("lbfgs", 3)])
    shown = json.loads(json.dumps(results[1].to_dict()))
    assert shown["settings"]["together"] == 2
    assert results[0].settings["ridge"] == 1e-2
    assert results[0].seconds == results[1].seconds > 0.0


def leaky(seed=0, **options):
    return LeakyResNet(4, 3, 6, 4, 2.0, dtype=torch.float64, generator=generator(seed), **options)


def refused(nets=None, X=None, Y=None, **options):
    own_X, own_Y = task()
    given = {"ridges": 1e-3, "phases": [Phase("lbfgs", 2)], **options}
    train_together(nets or networks(count=3), own_X if X is None else X, own_Y if Y is None else Y, **given)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"phases": [Phase("narrow", 5)], "nets": [leaky(), leaky()]}, "for the phase 'narrow'"),
        ({"phases": ["adam"]}, "must be Phase objects"),
        ({"ridges": [1e-3, 1e-3]}, "`ridges` must be one, or one for each of the 3"),
        ({"ridges": -1.0}, "`ridges`"),
        ({"seeds": [1, 2]}, "`seeds` must be one"),
        ({"at_once": 0}, "`at_once`"),
        ({"X": torch.zeros(2, 40, 4)}, "one entry for each of the 3"),
        ({"Y": torch.zeros(40, 5)}, "outputs of `net` as columns"),
        ({"Y": torch.zeros(3, 39, 3)}, "as many rows"),
        ({"nets": [random_net((4, 8, 3)), random_net((4, 9, 3))]}, r"must be like nets\[0\]"),
        ({"nets": [random_net((4, 8, 3)), random_net((4, 8, 3), dtype=torch.float32)]}, r"must be like nets\[0\]"),
        ({"nets": [random_net((4, 8, 3), 0.1), random_net((4, 8, 3), 0.1 + 1e-9)]}, r"must be like nets\[0\]"),
        ({"nets": [random_net((4, 8, 3)), leaky()]}, r"must be like nets\[0\]"),
        ({"nets": [random_net((4, 8, 3))] * 2}, "different modules"),
        ({"nets": [torch.nn.Linear(4, 3)]}, "must be a Network"),
    ],
)
def test_what_is_not_supported_is_refused(options, told):
    with pytest.raises(IsthmusError, match=told):
        refused(**options)


def test_frozen_parameters_and_no_networks_are_refused():
    net = random_net((4, 8, 3))
    net.weights[0].requires_grad_(False)
    with pytest.raises(IsthmusError, match="no frozen parameters"):
        refused(nets=[net])
    with pytest.raises(IsthmusError, match="must not be empty"):
        train_together([], *task(), ridges=1e-3, phases=[])


@pytest.mark.slow
def test_kinks_divide_no_further_than_they_divide_train_from_itself():
    """A change of 1e-15 in the first weights also leads ``train`` to other ends: rounding is all that differs."""
    X, Y = task()
    plan = [Phase("adam", 100, 1e-2, anneal=True), Phase("lbfgs", 400)]
    ridges = [5e-3] * 8
    nets = networks(count=8, grow=0.1)
    near = copy.deepcopy(nets)
    with torch.no_grad():
        for p in (p for net in near for p in net.parameters()):
            p.mul_(1.0 + 1e-15 * gaussian(*p.shape))
    ends = [[quiet(net, X, Y, ridge=5e-3, seed=i, phases=plan) for i, net in enumerate(copy.deepcopy(nets))]]
    ends.append([quiet(net, X, Y, ridge=5e-3, seed=i, phases=plan) for i, net in enumerate(near)])
    ends.append(together(nets, X, Y, ridges=ridges, phases=plan))
    losses = np.log([[r.loss for r in results] for results in ends])
    itself, ours = np.sort(np.abs(losses[1:] - losses[0]), axis=1)
    # Eight numbers over three decades: their medians scatter by several times.
    assert np.median(ours) <= max(10.0 * np.median(itself), 1e-5)
    assert ours.max() <= max(3.0 * itself.max(), 1e-2)
    assert abs(float((losses[2] - losses[0]).mean())) < 1e-2


def test_figure_1_trains_networks_of_one_shape_together():
    base = NormAndDepth.single(quick=True).replace(depths=(5,), adam_steps=60, steps=10)
    many = [base.replace(lam=lam, seed=seed) for lam in (5e-3, 2e-2) for seed in (0, 1)]
    assert len({one.batch_shape() for one in many}) == 1
    assert base.replace(depths=(6,)).batch_shape() != base.batch_shape()
    assert base.replace(steps=11).batch_shape() != base.batch_shape()
    assert NormAndDepth.quick().batch_shape() is None
    found = NormAndDepth.compute_together(many, silent)
    for one, ours in zip(many, found):
        theirs = one.compute(silent)
        assert ours.keys() == theirs.keys()
        for name, values in ours.items():
            assert (values.shape, values.dtype) == (theirs[name].shape, theirs[name].dtype)
        for name in ("depths", "ranks", "failed", "converged", "diverged"):
            assert np.array_equal(ours[name], theirs[name])
        for name in ("norms", "costs", "losses"):
            np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-2, err_msg="float32, and kinks")
        assert one.measured(ours).keys() == one.measured(theirs).keys()


def test_how_many_at_once_is_bounded_by_memory():
    narrow, wide = (FullyConnected([20, *[w] * 8, 20]) for w in (50, 400))
    first, last = [Phase("adam", 1, 1e-3)], [Phase("lbfgs", 1)]
    assert _fitting(narrow, 200, first) == _fitting(narrow, 200, last) == 64
    assert 1 <= _fitting(wide, 2000, last) < _fitting(wide, 2000, first) < 64
    assert _fitting(wide, 10**6, last) == 1
