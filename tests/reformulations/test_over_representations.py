"""A-zopt: the loss over representations, its gradient, its end against training over weights."""

from __future__ import annotations

import math

import pytest
import torch

from isthmus import FullyConnected, IsthmusError, train
from isthmus.constructions import bipartite_data, bipartite_optimum
from isthmus.measures import parameter_norms, representation_loss, representations
from isthmus.objective import cost
from isthmus.reformulations import optimise_representations
from isthmus.reformulations._over_representations import _Problem, _ridge_weights
from isthmus.trace import activate
from tools import assert_close, gaussian, generator, random_net


def loss_of(net, X, Y, ridge, loss="mse"):
    return float(cost(net(X).detach(), Y, loss)) + ridge * parameter_norms(net).total


def problem(X, Y, ridge=0.1, loss="mse", bias=1.0, slope=0.2):
    return _Problem(X, Y, ridge, loss, bias, lambda Z: activate(Z, slope))


@pytest.mark.parametrize("shape", [(3, 7), (7, 3), (5, 5)])
def test_ridge_weights(shape):
    """The weights at which ‖W‖² + ‖WS − Z‖²/γ is stationary, tall and wide."""
    S, Z = gaussian(*shape), gaussian(2, shape[1], seed=1)
    W = _ridge_weights(Z, S, 0.3).requires_grad_(True)
    (W.square().sum() + (W @ S - Z).square().sum() / 0.3).backward()
    assert W.grad is not None
    assert_close(W.grad, torch.zeros_like(W), atol=1e-10, reason="a stationary point")


@pytest.mark.parametrize("bias", [0.0, 1.0])
@pytest.mark.parametrize("width", [3, 9])
def test_relaxed_loss_two_ways(bias, width):
    """Weights eliminated, against the traces of ``representation_loss`` with one γ."""
    X, Y = gaussian(6, 2), gaussian(6, 3, seed=1)
    net = random_net([2, width, width, 3], slope=0.2, bias=bias)
    made = problem(X, Y, bias=bias)
    variables = [Z + 0.1 * gaussian(*Z.shape, seed=5) for Z in (v.detach() for v in made.variables(net))]
    Zs = [variables[0] @ made.frame, *variables[1:]]
    for gamma in (1e-3, 1.0):
        value = float(made.relaxed(variables, [gamma] * 2))
        # The first term has no γ here.
        stable = representation_loss(Zs, X, Y, ridge=0.1, slope=0.2, bias=bias, gamma=gamma)
        first = [representation_loss(Zs[:1], X, Zs[0].mT, ridge=0.1, bias=bias, gamma=g) for g in (0.0, gamma)]
        assert_close(value, stable + first[0] - first[1], rtol=1e-8, reason="condition 1/γ")


def test_gradient_by_differences():
    X, Y = gaussian(5, 2), gaussian(5, 2, seed=1)
    made = problem(X, Y)
    variables = made.variables(random_net([2, 4, 4, 2], slope=0.2))
    gammas = [0.1, 0.2]
    made.relaxed(variables, gammas).backward()
    for variable in variables:
        E = gaussian(*variable.shape, seed=3)
        assert variable.grad is not None
        slope = float((variable.grad * E).sum())
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                variable += sign * 1e-6 * E
                ends.append(float(made.relaxed(variables, gammas)))
                variable -= sign * 1e-6 * E
        assert_close((ends[0] - ends[1]) / 2e-6, slope, rtol=1e-5, reason="a difference")


def test_relaxation_from_below():
    """At representations of a network the relaxed loss is below its loss, and tends to it as γ → 0."""
    X, Y = gaussian(8, 3), gaussian(8, 2, seed=1)
    net = random_net([3, 12, 12, 2], slope=0.2)
    made = problem(X, Y)
    variables = made.variables(net)
    true = representation_loss(representations(net, X), X, Y, ridge=0.1, slope=0.2)
    values = [float(made.relaxed(variables, [g, g]).detach()) for g in (1.0, 1e-3, 1e-6, 1e-9)]
    assert values == sorted(values) and values[-1] <= true * (1 + 1e-9)
    assert_close(values[-1], true, rtol=1e-4, reason="γ is not 0")
    Ws, missed = made.weights(variables, [1e-12, 1e-12])
    assert max(missed) < 1e-6
    assert_close(made.loss_of(Ws), true, rtol=1e-5, reason="γ is not 0")


@pytest.fixture(scope="module")
def task():
    teacher = FullyConnected([3, 3, 2], dtype=torch.float64, generator=generator(1)).requires_grad_(False)
    X = gaussian(12, 3)
    return X, teacher(X)


def best_over_representations(X, Y, ridge):
    found = [
        optimise_representations(X, Y, widths=[10], ridge=ridge, gammas=(0.1, 1e-3, 1e-5), iterations=200, seed=seed)
        for seed in (0, 1)
    ]
    return min(found, key=lambda one: one.loss)


def test_reaches_descent_over_weights(task):
    X, Y = task
    ridge = 1e-2
    best = best_over_representations(X, Y, ridge)
    assert best.state == "converged" and best.network is not None
    assert_close(best.loss, loss_of(best.network, X, Y, ridge))
    assert best.relaxed_loss <= best.loss * (1 + 1e-9)
    assert list(best.history) == sorted(best.history)  # smaller γ, higher loss
    reached = math.inf
    for seed in range(3):
        net = FullyConnected([3, 10, 2], dtype=torch.float64, generator=generator(seed))
        optimiser = torch.optim.LBFGS(net.parameters(), max_iter=300, line_search_fn="strong_wolfe")

        def closure(net=net, optimiser=optimiser):
            optimiser.zero_grad()
            value = cost(net(X), Y) + ridge * sum(p.square().sum() for p in net.parameters())
            value.backward()
            return value

        optimiser.step(closure)
        reached = min(reached, loss_of(net, X, Y, ridge))
    assert best.loss <= 1.01 * reached and reached <= 1.1 * best.loss  # neither is a straw man


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::isthmus.ConvergenceWarning")
def test_reaches_training_over_weights(task):
    """Gate 5: against the library's own training, which is given the time that it asks for."""
    X, Y = task
    ridge = 1e-2
    weights = []
    for seed in (0, 1):
        net = FullyConnected([3, 10, 2], dtype=torch.float64, generator=generator(seed))
        train(net, X, Y, ridge=ridge)
        weights.append(loss_of(net, X, Y, ridge))
    best = best_over_representations(X, Y, ridge).loss
    assert best <= 1.01 * min(weights) and min(weights) <= 1.05 * best


def test_known_optimum():
    """The global minimum of Prop. 14's data, from a random start."""
    X, Y = bipartite_data(4)
    best = loss_of(bipartite_optimum(4, ridge=0.05), X, Y, 0.05)
    found = optimise_representations(X, Y, widths=[12], ridge=0.05, bias=0.0, gammas=(0.1, 1e-3), iterations=150)
    assert best * (1 - 1e-9) <= found.loss <= 1.001 * best


def test_cross_entropy_and_another_activation(task):
    X, Y = task
    labels = Y.argmax(1)
    found = optimise_representations(
        X, labels, widths=[6, 6], ridge=1e-2, loss="cross_entropy", slope=0.1, gammas=(0.1, 1e-4), iterations=60
    )
    assert found.network is not None
    assert_close(found.loss, loss_of(found.network, X, labels, 1e-2, "cross_entropy"))
    assert found.loss < math.log(2)
    smooth = optimise_representations(
        X, Y, widths=[6], ridge=1e-2, activation=torch.tanh, gammas=(0.1, 1e-2), iterations=150
    )
    assert smooth.network is None and smooth.state in ("converged", "inadmissible")
    hidden = torch.tanh(X @ smooth.Ws[0][:, :-1].mT + smooth.Ws[0][:, -1])
    outputs = hidden @ smooth.Ws[1][:, :-1].mT + smooth.Ws[1][:, -1]
    by_hand = float(cost(outputs, Y)) + 1e-2 * sum(float(W.square().sum()) for W in smooth.Ws)
    assert_close(smooth.loss, by_hand)
    assert by_hand < 0.5 * float(cost(torch.zeros_like(Y), Y))


def test_states(task):
    X, Y = task
    coarse = optimise_representations(X, Y, widths=[10], ridge=1e-2, gammas=(10.0,), iterations=150)
    assert coarse.state == "inadmissible" and coarse.loss > 1.01 * coarse.relaxed_loss
    assert max(coarse.inadmissibility) > 0.01 and coarse.inadmissibility[0] < 1e-12
    short = optimise_representations(X, Y, widths=[10], ridge=1e-2, gammas=(1e-6,), iterations=6)
    assert short.state == "not converged"
    broken = optimise_representations(
        X, Y, widths=[4], ridge=1e-2, activation=lambda Z: Z * math.nan, gammas=(0.1,), iterations=3
    )
    assert broken.state == "diverged"


@pytest.mark.parametrize("iterations", [1, 2, 5, 20])
def test_a_few_iterations_are_not_called_convergence(task, iterations):
    X, Y = task
    assert optimise_representations(X, Y, widths=[8], ridge=1e-2, iterations=iterations).state == "not converged"


def test_start_is_used(task):
    X, Y = task
    net = random_net([3, 10, 2], seed=4)
    kept = [W.detach().clone() for W in net.Ws]
    one = optimise_representations(X, Y, widths=[10], ridge=1e-2, start=net, gammas=(1e-6,), iterations=1)
    assert one.loss <= loss_of(net, X, Y, 1e-2)
    for before, after in zip(kept, net.Ws):
        assert torch.equal(before, after.detach())


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"gammas": (1e-3, 1e-2)}, "decrease"),
        ({"gammas": ()}, "decrease"),
        ({"ridge": 0.0}, "ridge"),
        ({"widths": [0]}, "widths"),
        ({"start": random_net([3, 5, 2])}, "start"),
        ({"loss": "hinge"}, "loss"),
    ],
)
def test_bad_input(task, change, match):
    X, Y = task
    with pytest.raises(IsthmusError, match=match):
        optimise_representations(X, Y, **{"widths": [10], "ridge": 1e-2, **change})


def test_rows_must_match(task):
    with pytest.raises(IsthmusError, match="rows"):
        optimise_representations(task[0], task[1][:-1], widths=[3], ridge=0.1)
