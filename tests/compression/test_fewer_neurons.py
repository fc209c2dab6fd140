"""Neurons chosen greedily, weights refitted, and the promise on the outputs kept."""

from __future__ import annotations

import itertools

import pytest
import torch

from isthmus import IsthmusError
from isthmus.compression import _within as fewer_neurons
from isthmus.compression._within import choose_neurons, count_parameters, polish, reduce_chain, refit, run
from tools import assert_close, gaussian, random_net, three_part_net


def stack(net):
    """Weights, what is added, slopes."""
    Ws = [W.detach().double() for W in net.Ws]
    bs = [net.bias * b.detach().double() for b in net.bs] if net.bs else [None] * net.depth
    return Ws, bs, list(net.slopes)


def evaluate(found, slopes, X, linear=None):
    masks = [torch.zeros(len(W), dtype=torch.bool) for W in found.Ws[:-1]] if linear is None else linear
    return run(found.Ws, found.bs, slopes, masks, X.mT).mT


def residual(S, T, J, bias, ridge=0.0):
    """√(‖T − W'S_J − b'‖² + γ‖W'‖²) by the normal equations."""
    A = torch.cat([S[J], torch.ones(1, S.shape[1], dtype=torch.float64)]) if bias else S[J]
    D = ridge * torch.eye(len(A), dtype=torch.float64)
    if bias:
        D[-1, -1] = 0.0
    W = torch.linalg.solve(A @ A.mT + D, A @ T.mT).mT
    penalty = ridge * float(W[:, : len(J)].square().sum())
    return (float((T - W @ A).square().sum()) + penalty) ** 0.5


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("ridge", [0.0, 0.7])
def test_each_step_is_the_best_single_addition(bias, ridge):
    S, T = torch.relu(gaussian(9, 40)), gaussian(3, 40, seed=1)
    found = choose_neurons(S, T, bias=bias, ridge=ridge)
    whole = float((T - T.mean(1, keepdim=True) if bias else T).norm())
    chosen: list[int] = []
    for step, index in enumerate(found.order.tolist()):
        others = {i: residual(S, T, [*chosen, i], bias, ridge) for i in range(9) if i not in chosen}
        assert min(others, key=others.__getitem__) == index
        chosen.append(index)
        assert float(found.errors[step + 1]) == pytest.approx(others[index] / whole, rel=1e-9)
    assert found.floor == pytest.approx(float(found.errors[-1]), rel=1e-9)


def test_a_planted_subset_is_found():
    """T depends on three of 20 neurons; and no pair explains it."""
    S = torch.relu(gaussian(20, 100))
    T = gaussian(5, 3, seed=1) @ S[[2, 7, 11]] + 0.5
    found = choose_neurons(S, T)
    assert found.least(1e-8).tolist() == [2, 7, 11]
    least = min(residual(S, T, list(J), True) for J in itertools.combinations((2, 7, 11), 2))
    assert float(found.errors[2]) >= least / float((T - T.mean(1, keepdim=True)).norm()) * (1 - 1e-9)


def test_dependent_and_silent_neurons_are_not_chosen():
    S = torch.relu(gaussian(6, 50))
    S = torch.cat([S, 2.0 * S[:3], torch.zeros(2, 50), torch.ones(1, 50)]).double()
    found = choose_neurons(S, gaussian(2, 12, seed=1) @ S + 1e-3 * gaussian(2, 50, seed=2))
    assert len(found.order) == 6 and len({i % 6 if i < 9 else i for i in found.order.tolist()}) == 6
    assert max(found.order.tolist()) < 9
    flat = choose_neurons(S, torch.ones(2, 50, dtype=torch.float64))
    assert len(flat.least(0.1)) == 1 and flat.floor == 0.0
    assert choose_neurons(S[9:], gaussian(2, 50)).floor == pytest.approx(1.0)


def test_the_error_that_layers_before_have_left_is_not_asked_for():
    S = torch.relu(gaussian(8, 60))
    T = gaussian(2, 8, seed=1) @ S + gaussian(2, 60, seed=2)
    found = choose_neurons(S, T, tolerance=0.01)
    assert found.floor > 0.01 and len(found.least(0.01)) <= 8
    assert float(found.errors[-1]) ** 2 <= (found.floor**2 + 0.01**2) * (1 + 1e-8)


def test_refit_against_the_normal_equations():
    S, T = torch.relu(gaussian(7, 50)), gaussian(4, 50, seed=1)
    for bias, ridge in itertools.product((True, False), (0.0, 0.5)):
        W, b = refit(S, T, bias=bias, ridge=ridge)
        value = (T - W @ S - (0 if b is None else b[:, None])).square().sum() + ridge * W.square().sum()
        assert float(value) ** 0.5 == pytest.approx(residual(S, T, list(range(7)), bias, ridge), rel=1e-10)
    W, b = refit(torch.cat([S, S]), T, bias=True)
    assert_close(W[:, :7], W[:, 7:])  # deficient: the least norm shares equally


@pytest.mark.parametrize(("tolerance", "bias"), [(1e-3, 1.0), (1e-1, 1.0), (1e-2, 0.0)])
def test_the_promise_is_kept(tolerance, bias):
    net = three_part_net(2, depth=6, noise=1e-3, offset=0.0 if bias else 1.0)
    X = gaussian(200, 12, seed=5)
    if not bias:
        X[:, -1] = 1.0
    Ws, bs, slopes = stack(net)
    found = reduce_chain(Ws, bs, slopes, X, tolerance, steps=30)
    before = net(X).detach()
    deviation = float((evaluate(found, slopes, X) - before).abs().max() / before.abs().max())
    assert found.state != "unchanged" and deviation <= tolerance
    assert deviation == pytest.approx(found.deviation, rel=1e-9, abs=1e-12)
    assert found.parameters == count_parameters(found.Ws, found.bs) < count_parameters(Ws, bs) / 2
    assert [len(k) for k in found.kept] == [len(W) for W in found.Ws[:-1]]
    assert all((b is None) == (a is None) for a, b in zip(bs, found.bs))
    # Elsewhere too: rays, small directions and their refits have not followed the samples.
    fresh = gaussian(200, 12, seed=6)
    if not bias:
        fresh[:, -1] = 1.0
    other = (evaluate(found, slopes, fresh) - net(fresh).detach()).abs().max() / before.abs().max()
    assert float(other) <= 20 * tolerance


def test_duplicated_neurons_go_at_a_small_tolerance():
    net = random_net([4, 6, 6, 3])
    Ws, bs, slopes = stack(net)
    # Each of three neurons of the first layer is split into two of half its weight.
    W = torch.cat([Ws[1], 0.5 * Ws[1][:, :3]], 1)
    W[:, :3] *= 0.5
    wide, shifts = [torch.cat([Ws[0], Ws[0][:3]]), W, Ws[2]], [torch.cat([bs[0], bs[0][:3]]), *bs[1:]]
    found = reduce_chain(wide, shifts, slopes, gaussian(300, 4, seed=1), 1e-6)
    assert len(found.kept[0]) == 6 and found.deviation <= 1e-6


def test_linear_neurons_stay_linear():
    net = random_net([3, 12, 2])
    Ws, bs, slopes = stack(net)
    linear = [torch.arange(12) < 9]
    X = gaussian(200, 3, seed=1)
    masks = [torch.zeros(12, dtype=torch.bool)]
    found = reduce_chain(Ws, bs, slopes, X, 1e-9, linear=linear)
    assert int(linear[0][found.kept[0]].sum()) <= 3  # nine linear functions of three inputs
    exact = run(Ws, bs, slopes, linear, X.mT).mT
    after = evaluate(found, slopes, X, [linear[0][found.kept[0]]])
    assert_close(after, exact, rtol=1e-7, atol=1e-8, reason="the tolerance")
    assert float((run(Ws, bs, slopes, masks, X.mT).mT - exact).abs().max()) > 0.1


def test_unchanged_when_nothing_smaller_serves():
    net = random_net([4, 5, 3])
    Ws, bs, slopes = stack(net)
    found = reduce_chain(Ws, bs, slopes, gaussian(100, 4), 1e-9)
    assert found.state == "unchanged" and found.parameters == count_parameters(Ws, bs)
    assert all(a is b for a, b in zip(found.Ws, Ws))
    assert reduce_chain(Ws, bs, slopes, gaussian(100, 4), 0.0).state == "unchanged"
    assert reduce_chain(Ws[:1], bs[:1], [], gaussian(100, 4), 0.1).state == "unchanged"
    silent = [*Ws[:1], 0.0 * Ws[1]]
    assert reduce_chain(silent, [bs[0], 0.0 * bs[1]], slopes, gaussian(100, 4), 0.1).state == "unchanged"


def test_sensitivities_by_autograd():
    net = random_net([4, 6, 5, 3], slope=0.2)
    Ws, bs, slopes = stack(net)
    X = gaussian(20, 4, seed=2)
    roots = fewer_neurons._Stack(Ws, bs, slopes, X, None).weights

    def after(Z, i):
        for W, b in zip(Ws[i + 1 :], bs[i + 1 :]):
            Z = torch.nn.functional.leaky_relu(Z, 0.2) @ W.mT + b
        return Z

    Z = X
    for i, (W, b) in enumerate(zip(Ws, bs)):
        Z = (Z if i == 0 else torch.nn.functional.leaky_relu(Z, 0.2)) @ W.mT + b
        J = torch.stack([torch.autograd.functional.jacobian(lambda z, i=i: after(z, i), row) for row in Z])
        assert_close(roots[i].mT @ roots[i], torch.einsum("sod,soe->de", J, J) / 20)


def test_polishing_lowers_the_deviation_and_stops_in_time():
    net = random_net([4, 10, 10, 3])
    Ws, bs, slopes = stack(net)
    X = gaussian(4, 200, seed=1)
    masks = [torch.zeros(10, dtype=torch.bool)] * 2
    Y = run(Ws, bs, slopes, masks, X)
    moved = [W + 0.02 * gaussian(*W.shape, seed=i) for i, W in enumerate(Ws)]
    before = float((run(moved, bs, slopes, masks, X) - Y).abs().max() / Y.abs().max())
    for stop in (0.5 * before, 0.1 * before):
        weights, biases, deviation = polish(moved, bs, slopes, masks, X, Y, steps=200, stop=stop)
        assert deviation <= stop
        assert float((run(weights, biases, slopes, masks, X) - Y).abs().max() / Y.abs().max()) == pytest.approx(
            deviation
        )
    assert polish(moved, bs, slopes, masks, X, Y, steps=2, stop=0.0)[2] <= before


def test_more_weights_than_numbers_are_not_polished(monkeypatch):
    """Five samples of three outputs: a fit of all weights would follow them and nothing else."""
    net = random_net([4, 30, 30, 3])
    Ws, bs, slopes = stack(net)
    calls = []
    monkeypatch.setattr(fewer_neurons, "polish", lambda *a, **k: calls.append(1))
    reduce_chain(Ws, bs, slopes, gaussian(5, 4), 0.05)
    assert not calls


def test_what_came_is_said():
    with pytest.raises(IsthmusError, match="same samples as columns"):
        choose_neurons(gaussian(4, 5), gaussian(2, 6))
    net = random_net([4, 5, 3])
    with pytest.raises(IsthmusError, match="tolerance"):
        reduce_chain(*stack(net), gaussian(10, 4), -1.0)
