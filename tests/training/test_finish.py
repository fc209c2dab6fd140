"""Trainings that end at stationary points: reached, certified, interrupted and resumed, and where it is not tried."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import isthmus
from isthmus import FullyConnected, IsthmusError, LeakyResNet
from isthmus._activations import Rounded, Rounding, preactivations
from isthmus.training import Phase, finishing_plan, minimise, train_together
from isthmus.training._newton import Newton
from isthmus.training._objective import Stack

RIDGE = 1e-2


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def data(samples: int = 40):
    X = torch.randn(samples, 3, generator=generator(7), dtype=torch.float64)
    return X, torch.stack([X[:, 0].abs(), X[:, 1] * X[:, 2]], 1)


def network(slope=0.0, dtype=torch.float64, bias: float = 1.0) -> FullyConnected:
    return FullyConnected([3, 8, 8, 2], slope, bias, dtype=dtype, generator=generator(1))


@pytest.mark.parametrize(
    ("net", "loss"),
    [
        (network(), "mse"),
        (network(bias=0.0), "mse"),
        (network(0.1), "mse"),
        (network(1.0), "mse"),
        (network(dtype=torch.float32), "mse"),
        (network(), "cross_entropy"),
        (LeakyResNet(3, 2, 5, 5, generator=generator(1)), "mse"),
        (network().to_torch(), "mse"),
    ],
    ids=["ReLU", "no bias", "leaky slope", "linear", "float32", "classes", "leaky ResNet", "nn.Sequential"],
)
def test_a_training_ends_at_a_stationary_point(net, loss):
    X, Y = data()
    if loss == "cross_entropy":
        Y = (Y[:, 1] > 0).long()
    result = minimise(net, X, Y, ridge=RIDGE, loss=loss, finish="stationary")
    found = result.stationarity
    assert result.state == "stationary" and result.at_rest and found is not None
    assert found.residual <= 1e-3 and found.kink_tolerance <= 1e-4 and found.kind == "local minimum"
    # Certified again from outside, without what the training knew.
    again = isthmus.measures.stationarity(net, X, Y, ridge=RIDGE, loss=loss)
    assert again.stationary


def test_the_loss_is_lower_than_where_it_is_flat():
    X, Y = data()
    flat, best = (minimise(network(), X, Y, ridge=RIDGE, finish=finish) for finish in ("flat", "stationary"))
    assert flat.state in ("flat", "budget") and flat.stationarity is None
    assert best.loss <= flat.loss * 1.0001
    assert isthmus.measures.stationarity(flat.network, X, Y, ridge=RIDGE).residual > 10 * best.stationarity.residual


def test_small_networks_finish_unless_told_otherwise():
    X, Y = data()
    assert minimise(network(), X, Y, ridge=RIDGE).state == "stationary"
    assert minimise(network(), X, Y, ridge=RIDGE, finish="flat").stationarity is None
    assert minimise(network(), X, Y, ridge=RIDGE, phases=[Phase("lbfgs", 20)]).stationarity is None
    assert minimise(network(), X, Y, ridge=0.0, phases=[Phase("adam", 5, 1e-3)]).stationarity is None
    given = minimise(network(), X, Y, ridge=RIDGE, phases=[Phase("lbfgs", 200)], finish="stationary")
    assert given.state == "stationary"
    large = FullyConnected([3, 60, 60, 2], generator=generator())
    phases = minimise(large, X, Y, ridge=RIDGE, max_seconds=0.0).settings["phases"]
    assert not any(phase["band"] for phase in phases)


def test_arguments_are_checked():
    X, Y = data()
    with pytest.raises(IsthmusError, match="finish"):
        minimise(network(), X, Y, ridge=RIDGE, finish="exact")
    with pytest.raises(IsthmusError, match="ridge"):
        minimise(network(), X, Y, ridge=0.0, finish="stationary")
    with pytest.raises(IsthmusError, match="band"):
        train_together([network(), network()], X, Y, ridges=RIDGE, phases=finishing_plan())
    for wrong in ({"method": "newton", "steps": 5}, {"method": "narrow", "steps": 5, "band": 0.1}):
        with pytest.raises(IsthmusError, match="band"):
            Phase(**wrong)


class Stop:
    """Interrupts at a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def __call__(self, event) -> bool:
        return event.step == self.step


def test_every_part_goes_on_to_the_same_bits(tmp_path):
    X, Y = data()
    plan = [Phase("lbfgs", 60), *finishing_plan()]
    whole = minimise(network(), X, Y, ridge=RIDGE, phases=plan)
    phases = whole.history["phase"]
    kinds = {(plan[int(i)].method, plan[int(i)].band > 0, plan[int(i)].moved): i for i in np.unique(phases)}
    # One step into, and in the middle of, each kind of part that was run.
    for kind, phase in kinds.items():
        places = np.flatnonzero(phases == phase)
        for step in {int(places[0]) + 1, int(places[len(places) // 2]) + 1}:
            folder = tmp_path / f"{kind}-{step}"
            options = {"ridge": RIDGE, "phases": plan, "checkpoint": folder}
            stopped = minimise(network(), X, Y, callbacks=[Stop(step)], **options)
            assert stopped.state == "interrupted" and stopped.steps == step
            resumed = minimise(network(), X, Y, **options)
            for ours, theirs in zip(resumed.network.parameters(), whole.network.parameters()):
                assert torch.equal(ours, theirs)
            assert resumed.state == whole.state and resumed.steps == whole.steps
    assert ("newton", True, True) in kinds


@pytest.mark.parametrize("net", [network(), network(0.2), LeakyResNet(3, 2, 5, 4, generator=generator(2)).double()])
def test_newton_starts_from_the_hessian_of_the_rounded_loss(net):
    """Against differences of gradients; terms that would make it indefinite are left out, so along few directions."""
    X, Y = data()
    minimise(net, X, Y, ridge=RIDGE, phases=[Phase("lbfgs", 300), *finishing_plan()[:2]])
    phase = Phase("newton", 10, band=0.1, moved=True, precision="double")
    objective = Stack([net], [X], [Y], "mse").objectives[0]
    with objective.attached(), torch.no_grad():
        objective.set_rounding(objective.roundings(0.1))
        optimiser = Newton(phase, objective.theta, None, generator())
        theta = objective.theta.clone()
        optimiser._compute(objective, theta, RIDGE)
        assert optimiser.factor is not None
        H = optimiser.factor @ optimiser.factor.mT
        d = torch.zeros_like(theta)
        d[optimiser.live] = torch.randn(len(optimiser.live), generator=generator(3), dtype=torch.float64)
        gradients = []
        for length in (1e-7, -1e-7):
            objective.theta.copy_(theta + length * d)
            gradients.append(objective(RIDGE).gradient.clone())
        slope = (gradients[0] - gradients[1]) / 2e-7
        apart = H @ d[optimiser.live] - slope[optimiser.live]
        assert float(apart.norm()) < 0.02 * float(slope.norm())


@pytest.mark.parametrize(
    "net", [network(), network([0.3, 0.0]), network([1.0, 0.2]), LeakyResNet(3, 2, 5, 4, slope=0.2)]
)
def test_rounded_kinks_with_and_without_a_graph(net):
    X, Y = data()
    net = net.double()
    own = Stack([net], [X], [Y], "mse").objectives[0]
    with own.attached(), torch.no_grad():
        assert own.direct is not None
        for rounded in ((), own.roundings(0.3), None):
            own.set_rounding(own.moved(0.2) if rounded is None else rounded)
            direct = own(RIDGE)
            way, own.direct = own.direct, None
            graph = own(RIDGE)
            own.direct = way
            assert direct.loss == pytest.approx(graph.loss, rel=1e-12)
            torch.testing.assert_close(direct.gradient, graph.gradient)


def test_a_moved_parabola_has_the_value_and_slope_of_the_kink():
    z = torch.linspace(-1.0, 1.0, 21, dtype=torch.float64)
    first = Rounding(0.5)
    D = first.share(z)
    again = first.moved(z, 0.2)
    zero = torch.zeros_like(z)
    inside = (D > 0) & (D < 1)
    assert int(inside.sum()) == 9
    torch.testing.assert_close(again.value(zero, 0.0)[inside], zero[inside])
    torch.testing.assert_close(again.share(zero)[inside], D[inside])
    # Others are as they were, and all are convex with slopes from 0 to 1.
    torch.testing.assert_close(again.value(z, 0.0)[~inside], Rounding(0.2).value(z, 0.0)[~inside])
    grid = torch.linspace(-3.0, 3.0, 601, dtype=torch.float64)[:, None].expand(-1, 21)
    slopes = again.value(grid, 0.1).diff(dim=0) / grid.diff(dim=0)
    assert float(slopes.min()) == pytest.approx(0.1) and float(slopes.max()) == pytest.approx(1.0)
    assert bool((slopes.diff(dim=0) >= -1e-9).all())


def test_rounding_any_module():
    X, _ = data()
    module = network().to_torch()
    zs = preactivations(module, X)
    assert [tuple(z.shape) for z in zs] == [(40, 8), (40, 8)]
    near = Rounded(module, [Rounding(1e-9)] * 2)
    torch.testing.assert_close(near(X), module(X))
    far = Rounded(module, [Rounding(1.0)] * 2)
    assert float((far(X) - module(X)).detach().abs().max()) > 1e-3
