"""Neurons chosen greedily, weights refitted, and the promise on the outputs kept."""

from __future__ import annotations

import itertools

import pytest
import torch

from isthmus import FullyConnected, IsthmusError
from isthmus.compression import _within as fewer_neurons
from isthmus.compression._draft import Draft
from isthmus.compression._within import choose_neurons, fit_together, preactivations, refit, with_fewer_neurons
from tools import assert_close, gaussian, random_net, three_part_net


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
    first = Draft.of(net)
    found = with_fewer_neurons(first, X, tolerance, steps=30)
    before = net(X).detach()
    deviation = float((found.draft(X) - before).abs().max() / before.abs().max())
    assert found.state != "unchanged" and deviation <= tolerance
    assert deviation == pytest.approx(found.deviation, rel=1e-9, abs=1e-12)
    count = sum(p.numel() for p in found.draft.network(net).parameters())
    assert found.draft.parameters == count < sum(p.numel() for p in net.parameters()) / 2
    assert [len(k) for k in found.kept] == found.draft.widths
    assert found.draft.biased == first.biased == [bool(bias)] * 6
    # Elsewhere too: rays, small directions and their refits have not followed the samples.
    fresh = gaussian(200, 12, seed=6)
    if not bias:
        fresh[:, -1] = 1.0
    other = (found.draft(fresh) - net(fresh).detach()).abs().max() / before.abs().max()
    assert float(other) <= 20 * tolerance


def test_duplicated_neurons_go_at_a_small_tolerance():
    net = random_net([4, 6, 6, 3])
    Ws, bs = ([T.detach() for T in Ts] for Ts in (net.Ws, net.bs))
    # Each of three neurons of the first layer is split into two of half its weight.
    W = torch.cat([Ws[1], 0.5 * Ws[1][:, :3]], 1)
    W[:, :3] *= 0.5
    wide, shifts = [torch.cat([Ws[0], Ws[0][:3]]), W, Ws[2]], [torch.cat([bs[0], bs[0][:3]]), *bs[1:]]
    draft = Draft.of(FullyConnected.from_weights(wide, shifts))
    found = with_fewer_neurons(draft, gaussian(300, 4, seed=1), 1e-6)
    assert len(found.kept[0]) == 6 and found.deviation <= 1e-6


def test_linear_neurons_stay_linear():
    net = random_net([3, 12, 2])
    partly = FullyConnected.from_weights(net.Ws, net.bs, linear=[9])
    X = gaussian(200, 3, seed=1)
    first = Draft.of(partly)
    found = with_fewer_neurons(first, X, 1e-9)
    assert int(first.linear[0][found.kept[0]].sum()) <= 3  # nine linear functions of three inputs
    assert torch.equal(found.draft.linear[0], first.linear[0][found.kept[0]])
    exact = partly(X)
    assert_close(first(X), exact)
    assert_close(found.draft(X), exact, rtol=1e-7, atol=1e-8, reason="the tolerance")
    assert float((net(X) - exact).detach().abs().max()) > 0.1


def test_unchanged_when_nothing_smaller_serves():
    net, X = random_net([4, 5, 3]), gaussian(100, 4)
    draft = Draft.of(net)
    found = with_fewer_neurons(draft, X, 1e-9)
    assert found.state == "unchanged" and found.draft is draft
    assert draft.parameters == sum(p.numel() for p in net.parameters())
    assert all(torch.equal(a, b) for a, b in zip(draft.Ws, net.Ws))
    assert with_fewer_neurons(draft, X, 0.0).state == "unchanged"
    assert with_fewer_neurons(Draft.of(net.part(0, 1)), X, 0.1).state == "unchanged"
    draft.Ws[1], draft.bs[1] = 0.0 * draft.Ws[1], 0.0 * draft.bs[1]
    assert with_fewer_neurons(draft, X, 0.1).state == "unchanged"


def test_sensitivities_by_autograd():
    net = random_net([4, 6, 5, 3], slope=0.2)
    Ws, bs = ([T.detach() for T in Ts] for Ts in (net.Ws, net.bs))
    X = gaussian(20, 4, seed=2)
    roots = fewer_neurons._Original(Draft.of(net), X).weights

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
    moved = Draft.of(random_net([4, 10, 10, 3]))
    X = gaussian(4, 200, seed=1)
    Y = preactivations(moved, X)[-1]
    assert_close(Y.mT, moved(X.mT))
    moved.Ws = [W + 0.02 * gaussian(*W.shape, seed=i) for i, W in enumerate(moved.Ws)]
    before = float((moved(X.mT).mT - Y).abs().max() / Y.abs().max())
    for stop in (0.5 * before, 0.1 * before):
        made, deviation = fit_together(moved, X, Y, steps=200, stop=stop)
        assert deviation <= stop
        assert float((made(X.mT).mT - Y).abs().max() / Y.abs().max()) == pytest.approx(deviation)
    assert fit_together(moved, X, Y, steps=2, stop=0.0)[1] <= before


def test_more_weights_than_numbers_are_not_polished(monkeypatch):
    """Five samples of three outputs: a fit of all weights would follow them and nothing else."""
    calls = []
    monkeypatch.setattr(fewer_neurons, "fit_together", lambda *a, **k: calls.append(1))
    with_fewer_neurons(Draft.of(random_net([4, 30, 30, 3])), gaussian(5, 4), 0.05)
    assert not calls


def test_what_came_is_said():
    with pytest.raises(IsthmusError, match="same samples as columns"):
        choose_neurons(gaussian(4, 5), gaussian(2, 6))
    with pytest.raises(IsthmusError, match="tolerance"):
        with_fewer_neurons(Draft.of(random_net([4, 5, 3])), gaussian(10, 4), -1.0)
