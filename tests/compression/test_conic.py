"""Shares of neurons: equal contributions or covariances on the data, never a larger norm, never an approximation."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from isthmus import IsthmusError
from isthmus._cone import eliminate
from isthmus.compression import _on_data as conic
from isthmus.compression._draft import Draft
from isthmus.compression._on_data import _scale_both, caratheodory, fewer_by_relations
from isthmus.constructions import constant_identity_path
from isthmus.linalg import numerical_rank
from isthmus.measures import KernelNorm
from isthmus.trace import activate, with_ones
from tools import assert_close, gaussian, generator


def layer(n, d, N, m, *, seed=0, slope=0.0):
    """Incoming rows [W, b], outgoing columns and activations of a random layer, and what each neuron costs."""
    W, V = gaussian(n, d + 1, seed=seed), gaussian(m, n, seed=seed + 1) / n**0.5
    X = with_ones(gaussian(d, N, seed=seed + 2), 1.0)
    return W, V, activate(W @ X, slope), W.square().sum(1) + V.square().sum(0), X


def with_shares(W, b, V, shares):
    """Rows w_i√m_i (and biases) and columns v_i√m_i of the neurons of positive share, as compression makes them."""
    zeros = [torch.zeros(len(M), dtype=torch.float64) for M in (W, V)]
    bs = [zeros[0] if b is None else b, zeros[1]]
    draft = Draft([W, V], bs, [b is not None, False], [0.0], [zeros[0].bool()], 1.0, ["1"])
    _scale_both(draft, 0, shares)
    draft.drop(0, shares == 0, "gone")
    return draft.Ws[0], draft.bs[0], draft.Ws[1]


def contributions(S, V):
    return (V.mT[:, :, None] * S[:, None, :]).reshape(len(S), -1)


@pytest.mark.parametrize("sizes", [(200, 1, 20, 1), (120, 5, 20, 1), (150, 5, 12, 3), (40, 3, 5, 2)])
@pytest.mark.parametrize("slope", [0.0, 0.3])
def test_same_contributions_at_no_larger_cost(sizes, slope):
    W, V, S, costs, X = layer(*sizes, slope=slope)
    found = fewer_by_relations(S, V, costs)
    rank = int(numerical_rank(contributions(S, V)))
    assert found.state == "reduced" and found.kept == rank <= sizes[2] * sizes[3] and bool((found.shares >= 0).all())
    assert float(found.shares @ costs) <= float(costs.sum())
    scale = float((V @ S).abs().max())
    assert float((V @ (found.shares[:, None] * S) - V @ S).abs().max()) <= 1e-13 * scale
    # The neurons themselves, scaled on both sides.
    rows, _, columns = with_shares(W, None, V, found.shares)
    assert len(rows) == found.kept
    assert float((columns @ activate(rows @ X, slope) - V @ S).abs().max()) <= 1e-12 * scale
    assert float(rows.square().sum() + columns.square().sum()) <= float(costs.sum()) * (1 + 1e-12)
    kept = found.shares > 0
    assert_close(rows / rows.norm(dim=1, keepdim=True), (W / W.norm(dim=1, keepdim=True))[kept])


def test_biases_are_scaled_like_the_rows():
    W, V, S, costs, _ = layer(30, 2, 4, 1)
    shares = fewer_by_relations(S, V, costs).shares
    rows, b, _ = with_shares(W[:, :2], W[:, 2], V, shares)
    assert_close(torch.cat([rows, b[:, None]], 1), with_shares(W, None, V, shares)[0])


@pytest.mark.parametrize(("n", "N", "m"), [(60, 300, 2), (90, 40, 7), (25, 2000, 1)])
def test_relations_of_a_sketch_are_those_of_the_contributions(n, N, m, monkeypatch):
    """Planted rays: half of the neurons are positive multiples of the others, with outgoing columns alike."""
    W, V, _, _, X = layer(n, 6, N, m)
    half = n // 2
    share = torch.rand(half, dtype=torch.float64, generator=generator(9)) + 0.1
    W[n - half :] = share[:, None] * W[:half]
    V[:, n - half :] = V[:, :half] * share.flip(0)
    S, costs = torch.relu(W @ X), W.square().sum(1) + V.square().sum(0)
    assert N * m > 2 * n + conic.EXTRA
    sketched = fewer_by_relations(S, V, costs)
    monkeypatch.setattr(conic, "EXTRA", N * m)
    whole = fewer_by_relations(S, V, costs)
    rank = int(numerical_rank(contributions(S, V)))
    assert sketched.state == whole.state == "reduced" and sketched.kept == whole.kept == rank <= n - half
    for found in (sketched, whole):
        assert float((V @ (found.shares[:, None] * S) - V @ S).abs().max()) <= 1e-13 * float((V @ S).abs().max())


@pytest.mark.parametrize(("n", "N", "m"), [(60, 300, 2), (40, 50, 5)])
def test_a_sketch_sees_relations_of_many_neurons(n, N, m):
    """Linear neurons of three inputs: contributions span 4m dimensions, and no two neurons are on one ray."""
    _, V, S, costs, _ = layer(n, 3, N, m, slope=1.0)
    found = fewer_by_relations(S, V, costs)
    assert N * m > 2 * n + conic.EXTRA
    assert found.state == "reduced" and found.kept == int(numerical_rank(contributions(S, V))) == 4 * m
    assert float((V @ (found.shares[:, None] * S) - V @ S).abs().max()) <= 1e-13 * float((V @ S).abs().max())


def test_relations_to_the_last_digit_where_near_ones_spoil(monkeypatch):
    _, V, S, costs, _ = layer(40, 2, 6, 1)
    true, tried = conic.eliminate, []

    def spoilt(points, prices, *, relation):
        tried.append(relation)
        return true(points, prices, relation=relation) * (1 + 1e-11 * (len(tried) == 1))

    monkeypatch.setattr(conic, "eliminate", spoilt)
    found = fewer_by_relations(S, V, costs)
    assert found.state == "reduced" and len(tried) == 2 and tried[1] < tried[0]


def test_the_cost_lies_between_the_least_and_that_before():
    """A vertex of the polytope of shares; linear programming finds the cheapest of them."""
    _, V, S, costs, _ = layer(40, 2, 6, 1)
    C = contributions(S, V)
    least = linprog(costs.numpy(), A_eq=C.mT.numpy(), b_eq=C.sum(0).numpy(), bounds=(0, None))
    assert least.status == 0
    found = float(fewer_by_relations(S, V, costs).shares @ costs)
    assert least.fun * (1 - 1e-9) <= found <= 0.7 * float(costs.sum())


def test_independent_neurons_are_left_alone():
    _, V, S, costs, _ = layer(10, 4, 30, 2)
    found = fewer_by_relations(S, V, costs)
    assert found.state == "independent" and found.kept == 10 and bool((found.shares == 1).all())


@pytest.mark.parametrize("power", range(-17, -6))
def test_what_is_nearly_a_relation_is_not_used(power):
    """Duplicates up to 10^power: merged at rounding, kept beyond, and exact or untouched between."""
    W, V, _, _, X = layer(12, 3, 200, 2, seed=power + 20)
    W[6:] = W[:6] * (1 + 10.0**power * gaussian(6, 4, seed=50))
    V[:, 6:] = V[:, :6]
    S, costs = torch.relu(W @ X), W.square().sum(1) + V.square().sum(0)
    found = fewer_by_relations(S, V, costs)
    change = float((V @ ((found.shares - 1)[:, None] * S)).abs().max()) / float((V @ S).abs().max())
    assert change <= 2e-13 and (found.state == "reduced" or bool((found.shares == 1).all()))
    if power <= -16:
        assert found.kept <= 6
    if power >= -10:
        assert found.state == "independent"


def test_a_result_that_is_not_exact_is_taken_back(monkeypatch):
    _, V, S, costs, _ = layer(40, 2, 6, 1)
    true = conic.eliminate
    monkeypatch.setattr(conic, "eliminate", lambda *a, **k: true(*a, **k) * (1 + 1e-11))
    found = fewer_by_relations(S, V, costs)
    assert found.state == "not exact" and bool((found.shares == 1).all()) and found.kept == 40
    monkeypatch.setattr(conic, "eliminate", lambda *a, **k: true(*a, **k) + 1e-9)
    assert caratheodory(gaussian(40, 3)).state == "not exact"


def test_silent_and_unheard_neurons_have_no_share():
    _, V, S, costs, _ = layer(9, 4, 30, 2)
    S[3], V[:, 5] = 0.0, 0.0
    found = fewer_by_relations(S, V, costs)
    assert found.state == "reduced" and found.shares[3] == found.shares[5] == 0 and found.kept == 7
    assert fewer_by_relations(0 * S, V, costs).kept == 0


@given(st.integers(0, 10_000))
def test_rescaled_and_reordered_neurons(seed):
    """What a neuron passes on does not change with its scale, nor with its place."""
    _, V, S, _, _ = layer(30, 3, 5, 2, seed=seed)
    costs = S.norm(dim=1) * V.norm(dim=0)
    scales = torch.exp(3 * gaussian(30, seed=seed + 7))
    order = torch.randperm(30, generator=generator(seed))
    one = fewer_by_relations(S, V, costs)
    two = fewer_by_relations((scales[:, None] * S)[order], (V / scales)[:, order], costs[order])
    assert one.kept == two.kept
    assert_close(two.shares, one.shares[order], rtol=1e-6, atol=1e-8, reason="hundreds of eliminations")


def test_eliminate_keeps_the_sum_and_stops_at_independence():
    points = gaussian(50, 8)
    points[40:] = 0.0
    shares = eliminate(points)
    kept = shares > 0
    assert int(kept.sum()) == 8 == int(numerical_rank(points[kept]))
    assert_close(shares @ points, points.sum(0))
    # By default the cost is the length.
    assert float(shares @ points.norm(dim=1)) < float(points.norm(dim=1).sum())
    assert not bool(eliminate(torch.zeros(4, 3, dtype=torch.float64)).any())


@pytest.mark.parametrize("block", [4, 16, 1000])
def test_block_by_block(block):
    """Also when a block is smaller than the number of independent vectors."""
    points, costs = gaussian(120, 10), gaussian(120, seed=1).abs()
    shares = eliminate(points, costs, block=block)
    assert int((shares > 0).sum()) == 10 == int(numerical_rank(points[shares > 0])) and bool((shares >= 0).all())
    assert_close(shares @ points, points.sum(0))
    assert float(shares @ costs) < float(costs.sum())


# ----------------------------------------------------------------------------------------------------- A-caratheodory


@pytest.mark.parametrize(("n", "N"), [(60, 4), (30, 3), (100, 5), (5, 3)])
@pytest.mark.parametrize("slope", [0.0, 0.2])
def test_equal_covariances(n, N, slope):
    Z = gaussian(n, N, seed=n) * torch.logspace(-1, 1, n, dtype=torch.float64)[:, None]
    found = caratheodory(Z, slope=slope)
    path = constant_identity_path(Z, slope=slope)
    assert found.kept == path.kept == min(n, N * (N + 1))
    rows = found.shares.sqrt()[:, None] * Z
    for act in (lambda A: A, lambda A: activate(A, slope)):
        assert_close(act(rows).mT @ act(rows), act(Z).mT @ act(Z))
    for ell in (1.0, 0.5):  # the next weights recomputed: same pre-activations, same cost
        S, fewer = (with_ones(activate(A, slope), ell) for A in (Z, rows[found.shares > 0]))
        T = gaussian(2, len(S), seed=3) @ S
        norm = KernelNorm(fewer)
        assert_close(norm.weights(T) @ fewer, T, rtol=1e-8, reason="the kernel's condition")
        assert norm.square(T) == pytest.approx(KernelNorm(S).square(T), rel=1e-7)


def test_covariances_of_many_samples_by_a_sketch():
    Z = gaussian(40, 30)
    Z[20:] = 2.0 * Z[:20]
    assert Z.shape[1] * (Z.shape[1] + 1) > 2 * len(Z) + conic.EXTRA
    found = caratheodory(Z)
    rows = found.shares.sqrt()[:, None] * Z
    assert found.state == "reduced" and found.kept == 20
    assert_close(rows.mT @ rows, Z.mT @ Z)
    assert_close(torch.relu(rows).mT @ torch.relu(rows), torch.relu(Z).mT @ torch.relu(Z))
    assert caratheodory(gaussian(40, 30)).state == "independent"


def test_what_came_is_said():
    _, V, S, costs, _ = layer(9, 4, 30, 2)
    with pytest.raises(IsthmusError, match="must be \\(n, N\\), \\(m, n\\) and \\(n,\\)"):
        fewer_by_relations(S, V.mT, costs)
    with pytest.raises(IsthmusError, match="at least 2 axes"):
        caratheodory(torch.ones(3))
