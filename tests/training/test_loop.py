"""The loop: why it stopped, with a fixture of known truth for every state; generators, callbacks, precision."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from isthmus import ConvergenceWarning, FullyConnected
from isthmus.training import Criteria, Phase, train
from isthmus.training._result import STATES, recent
from small import PLANS, network, quiet, same_bits, task, weights
from test_stacks import by_hand
from tools import assert_close, gaussian, linear_net

ADAM = [Phase("adam", 10, 1e-2)]


# ---------------------------------------------------------------- states


def test_converged_without_a_warning():
    X, Y = task()
    net = network()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = train(net, X, Y, ridge=1e-2)
    assert result.at_rest
    assert result.stationarity is not None and result.stationarity.stationary
    assert result.criteria.met(1e-4)
    assert_close(result.loss, float(by_hand(net, X, Y, 1e-2, "mse").detach()))
    assert result.loss == result.cost + 1e-2 * result.norm
    assert result.network is net
    assert result.steps == len(result.history["loss"]) <= result.evaluations
    assert_close(result.norm_per_depth, result.norm / 3)
    plain = result.to_dict()
    assert plain["state"] == "stationary"
    assert plain["settings"]["ridge"] == 1e-2


@pytest.mark.parametrize(
    ("options", "state", "reason"),
    [
        ({"phases": ADAM}, "budget", "only 'lbfgs' phases converge"),
        ({"phases": []}, "budget", "after 0 steps"),
        ({"phases": [Phase("lbfgs", 5)]}, "budget", "after 5 steps: relative decrease nan.*Allow more steps"),
        ({"phases": [Phase("lbfgs", 60)]}, "budget", "balancedness residual"),
        ({"max_seconds": 0.0}, "budget", "max_seconds"),
        ({"phases": [Phase("gd", 50, 1e6)]}, "diverged", r"loss at step \d+ \(gd\)"),
        ({"phases": [Phase("gd", 1, 1e80)]}, "diverged", "loss at step 1"),
        ({"callbacks": [lambda event: event.step == 7]}, "interrupted", "callback at step 7"),
    ],
)
def test_every_other_state_is_a_warning_with_its_reason(options, state, reason):
    with pytest.warns(ConvergenceWarning, match=reason) as caught:
        result = train(network(), *task(), **{"ridge": 1e-3, **options})
    assert len(caught) == 1
    # The warning points at the caller.
    assert caught[0].filename == __file__
    assert result.state == state in STATES
    assert str(caught[0].message) == f"train: {result.reason}"
    assert math.isfinite(result.loss)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", ["gd", "sgd", "nesterov", "adam"])
def test_divergence_keeps_the_last_good_weights(method, dtype):
    X, Y = task(dtype=dtype)
    net = network(dtype=dtype)
    seen = []
    phases = [Phase("gd", 3, 1e-3), Phase(method, 60, 1e30 if method == "adam" else 1e5)]
    result = quiet(net, X, Y, phases=phases, callbacks=[lambda event: seen.append(weights(event.network))])
    assert result.state == "diverged"
    # The last point that was evaluated and found good is the one before the last recorded move.
    assert same_bits(weights(net), seen[-2])
    assert math.isfinite(result.loss)
    assert_close(result.loss, result.history["loss"][-1], rtol=1e-5, reason="float32; batches are all samples")


class Failing(nn.Module):
    """Gives NaN, or Ctrl-C, at its ``after``-th evaluation with gradients."""

    def __init__(self, after, kind):
        super().__init__()
        self.inner, self.after, self.kind, self.count = nn.Linear(4, 3).double(), after, kind, 0

    def forward(self, X):
        f = self.inner(X)
        if torch.is_grad_enabled():
            self.count += 1
            if self.count == self.after:
                if self.kind == "interrupt":
                    raise KeyboardInterrupt
                f = f * float("nan")
        return f


@pytest.mark.parametrize("phase", [Phase("adam", 50, 1e-2), Phase("lbfgs", 50)])
@pytest.mark.parametrize("kind", ["nan", "interrupt"])
@pytest.mark.parametrize("after", [1, 6])
def test_failures_inside_the_module(phase, kind, after):
    net = Failing(after, kind)
    start, seen = weights(net), []
    storages, options = [p.data_ptr() for p in net.parameters()], {"phases": [phase]}
    options["callbacks"] = [lambda event: seen.append(event.loss)]
    if kind == "interrupt":
        with pytest.raises(KeyboardInterrupt):
            quiet(net, *task(), **options)
        reached = float(by_hand(net, *task(), 1e-3, "mse").detach())
        assert math.isfinite(reached)
        if after == 1:
            assert same_bits(weights(net), start)
        else:
            assert_close(reached, seen[-1])
        assert all(p.grad is None for p in net.parameters())
        assert [p.data_ptr() for p in net.parameters()] == storages
        return
    result = quiet(net, *task(), **options)
    if kind == "nan" and phase.method == "lbfgs" and after > 1:
        # A NaN on the way of a line search is a step too long, not the end.
        assert result.state in ("stationary", "flat", "budget")
        return
    assert result.state == "diverged"
    assert math.isfinite(result.loss)
    if after == 1:
        assert same_bits(weights(net), start)
    else:
        assert result.loss == seen[-1]
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("method", ["adam", "lbfgs", "double"])
def test_ctrl_c_in_a_callback_keeps_the_weights(method):
    phase = Phase("adam", 50, 1e-2) if method == "adam" else Phase("lbfgs", 50)
    if method == "double":
        phase = Phase("lbfgs", 50, precision="double")
    net = network(dtype=torch.float32)
    start, seen = weights(net), []

    def callback(event):
        seen.append(event.loss)
        if event.step == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quiet(net, *task(), phases=[phase], callbacks=[callback])
    assert len(seen) == 9
    X, Y = task(dtype=torch.float32)
    assert_close(float(by_hand(net, X, Y, 1e-3, "mse").detach()), seen[-1], rtol=1e-5, reason="float32")
    assert not same_bits(weights(net), start)


def test_weights_that_are_not_finite_are_diverged():
    for phases in (None, [Phase("lbfgs", 5)], [Phase("narrow", 60)], ADAM):
        net = network((4, 6, 6, 6, 3))
        with torch.no_grad():
            net.weights[1][0, 0] = float("nan")
        assert quiet(net, *task(), phases=phases).state == "diverged"


def test_weights_of_which_the_square_overflows_are_diverged():
    net = network((4, 6, 6, 6, 3))
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(1e160)
    for phases in (None, [Phase("lbfgs", 5)]):
        assert quiet(net, *task(), phases=phases).state == "diverged"


def test_a_rising_ridge_is_not_an_explosion():
    """From a fitted network the loss may rise by any factor with the ridge: compared at the same ridge."""
    net = linear_net([1.0], [4, 6, 3])
    X = gaussian(30, 4)
    phase = Phase("gd", 40, 1e-3, ridge_start=1e-9, ridge_end=1.0, ridge_share=1.0)
    result = quiet(net, X, net(X).detach(), ridge=0.1, phases=[phase])
    assert result.history["loss"].max() > 1e6 * result.history["loss"][0]
    assert result.state == "budget"


@pytest.mark.parametrize(("bias", "dtype"), [(0.0, torch.float32), (1.0, torch.float64)])
@pytest.mark.parametrize(
    ("name", "ridge"),
    [("one", 1e-2), ("constant", 1e-2), ("zero", 1e-2), ("class", 1e-2), ("huge", 1e6), ("none", 0.0)],
)
def test_degenerate_tasks_have_a_state(name, ridge, dtype, bias):
    X, Y = task(dtype=dtype)
    loss = "mse"
    if name == "one":
        X, Y = X[:1], Y[:1]
    elif name in ("constant", "zero"):
        Y = torch.full_like(Y, 2.0 if name == "constant" else 0.0)
    elif name == "class":
        Y, loss = torch.zeros(40, dtype=torch.int64), "cross_entropy"
    net = network((4, 6, 6, 3), dtype=dtype, bias=bias)
    result = quiet(net, X, Y, ridge=ridge, loss=loss, max_seconds=0.8 if name == "none" else None)
    assert result.state in ("stationary", "flat", "budget")
    assert math.isfinite(result.loss)
    if name in ("huge", "zero"):
        # The minimum is θ = 0, and is recognised as such.
        assert result.at_rest
        assert result.norm < 1e-8
        assert_close(result.loss, float(Y.square().sum(1).mean()), rtol=1e-5, atol=1e-5, reason="float32; θ is tiny")
    if name == "constant" and bias:
        assert result.at_rest
        # The mean can be carried by the last bias alone: min (2 − b)² + ridge·b² for each output.
        assert result.loss <= 3 * 4 * ridge / (1 + ridge) * 1.001


def test_minimum_found_before_the_window_is_full_is_converged():
    """One linear layer: solved in a few steps, after which no step lowers the loss."""
    X, Y = task()
    net = FullyConnected([4, 3], dtype=torch.float64)
    result = train(net, X, Y, ridge=0.1, phases=[Phase("lbfgs", 40)])
    assert result.at_rest
    assert result.steps < 40
    assert result.criteria.decrease == 0.0
    Z = torch.cat([X, torch.ones(40, 1, dtype=torch.float64)], 1)
    exact = torch.linalg.solve(Z.mT @ Z / 40 + 0.1 * torch.eye(5, dtype=torch.float64), Z.mT @ Y / 40)
    found = torch.cat([net.weights[0].mT, net.biases[0][None]])
    assert_close(found, exact, rtol=1e-6, atol=1e-7, reason="the loss is flat at its minimum: the root of rounding")


# ---------------------------------------------------------------- criteria


def test_criteria():
    assert Criteria(0.1, 1e-5, 1e-3, 50).met(1e-4)
    for wrong in ((0.6, 1e-5, 1e-3), (0.1, 1e-3, 1e-3), (0.1, 1e-5, 0.1), (0.1, math.nan, 1e-3)):
        assert not Criteria(*wrong, 50).met(1e-4)
    assert Criteria(math.nan, 0.0, math.nan, 50).met(0.0)
    history = {"loss": [5.0, 4.0, 3.0, 2.0, 1.0], "ridge": [1.0, 1.0, 2.0, 2.0, 2.0], "phase": [0, 0, 0, 1, 1]}
    assert recent(history, 50) == [2.0, 1.0]
    assert recent({**history, "phase": [0] * 5, "ridge": [1] * 5}, 2) == [3.0, 2.0, 1.0]
    assert recent({"loss": [], "ridge": [], "phase": []}, 50) == []


def test_tolerance_decides():
    """The same way, only longer."""
    loose, tight = (
        quiet(network(), *task(), ridge=1e-2, phases=[Phase("lbfgs", 2000)], tolerance=t) for t in (0.1, 1e-4)
    )
    assert loose.at_rest and tight.at_rest
    assert loose.steps < tight.steps
    assert loose.history["loss"].tolist() == tight.history["loss"][: loose.steps].tolist()
    assert 1e-4 < loose.criteria.decrease <= 0.1


# ---------------------------------------------------------------- what is trained


def test_ordinary_modules_train_with_the_default_plan():
    X, Y = task(dtype=torch.float32)
    net = nn.Sequential(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 3))
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(0.3 * gaussian(*p.shape, seed=i))
    result = train(net, X, Y, ridge=1e-2)
    assert result.at_rest
    assert math.isnan(result.criteria.balance)
    assert math.isnan(result.norm_per_depth)
    assert result.loss < 0.5 * float((Y - Y.mean(0)).square().sum(1).mean())


def test_frozen_parameters_stay_and_do_not_count():
    X, Y = task()
    net = network()
    net.weights[1].requires_grad_(False)
    net.biases[2].requires_grad_(False)
    frozen = net.weights[1].clone(), net.biases[2].clone()
    result = train(net, X, Y, ridge=1e-2)
    assert torch.equal(net.weights[1], frozen[0])
    assert torch.equal(net.biases[2], frozen[1])
    assert_close(result.norm, sum(float(p.detach().square().sum()) for p in net.parameters() if p.requires_grad))
    # The balance between layers is no law here; convergence is judged without it.
    assert result.at_rest
    assert math.isnan(result.criteria.balance)


def test_double_precision_phases():
    X, Y = task(dtype=torch.float32)
    net = network(dtype=torch.float32)
    kinds, stale = [], []

    def callback(event):
        kinds.append(event.network.weights[0].dtype)
        # What callbacks are shown is what is being trained.
        norm = sum(float(p.detach().double().square().sum()) for p in event.network.parameters())
        stale.append(abs(norm - event.norm) > 1e-5 * norm)

    phases = [Phase("lbfgs", 300), Phase("lbfgs", 2000, precision="double")]
    result = train(net, X, Y, ridge=1e-2, phases=phases, callbacks=[callback], tolerance=1e-6)
    assert set(kinds) == {torch.float32, torch.float64}  # a converged first phase does not skip the finish
    assert not any(stale)
    assert net.weights[0].dtype == torch.float32
    assert result.at_rest
    assert result.criteria.balance < 1e-4


# ---------------------------------------------------------------- generators


@pytest.mark.parametrize("name", sorted(set(PLANS) - {"settled"}))
def test_no_global_generator_and_the_seed_decides(name):
    X, Y = task()
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    ends = {}
    for seed in (0, 0, 1):
        net = network()
        quiet(net, X, Y, phases=PLANS[name][:2], seed=seed)
        ends.setdefault(seed, []).append(weights(net))
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), numpy_state))  # noqa: NPY002
    assert same_bits(*ends[0])
    if name in ("adam", "sgd", "metric"):
        assert not same_bits(ends[0][0], ends[1][0])


# ---------------------------------------------------------------- callbacks, history


def test_events_and_history():
    X, Y = task()
    net, events = network(), []
    phases = [Phase("gd", 4, 1e-3), Phase("lbfgs", 3, ridge_start=8.0, ridge_share=1.0)]
    result = quiet(net, X, Y, phases=phases, callbacks=[events.append, lambda event: False])
    assert [e.step for e in events] == list(range(1, 8))
    assert [e.phase for e in events] == [0] * 4 + [1] * 3
    for key in ("loss", "cost", "norm", "ridge", "phase"):
        assert [getattr(e, key) for e in events] == result.history[key].tolist()
    assert_close(result.history["ridge"], [1e-3] * 4 + [8e-3, 4e-3, 2e-3])
    assert_close(result.history["cost"] + result.history["ridge"] * result.history["norm"], result.history["loss"])
    assert result.settings["phases"][1]["method"] == "lbfgs"


def test_an_error_in_a_callback_is_the_callers():
    net = network()
    storages = [p.data_ptr() for p in net.parameters()]

    def callback(event):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        train(net, *task(), ridge=1e-3, callbacks=[callback])
    assert [p.data_ptr() for p in net.parameters()] == storages


def test_inside_no_grad():
    with torch.no_grad():
        assert quiet(network(), *task(), phases=ADAM).steps == 10
