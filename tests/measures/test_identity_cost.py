"""Q-coi: the smallest weights that rebuild a representation, its bounds, and its course through any network."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus import DataError, IsthmusError
from isthmus.measures import cost_of_identity, identity_cost_bounds, identity_costs
from isthmus.trace import activate
from leaky_nets import leaky
from tools import assert_close, frame, gaussian, random_net, three_part_net


def by_least_squares(A, bias, slope):
    """‖W‖² of the least-norm W with Wσ(A) = A, by LAPACK's least squares on the transposed system."""
    S = torch.cat([activate(A, slope), torch.full_like(A[:1], bias)]) if bias else activate(A, slope)
    W = torch.linalg.lstsq(S.mT, A.mT, driver="gelsd").solution.mT
    assert_close(W @ S, A, rtol=1e-8, atol=1e-9, reason="it must be rebuilt")
    return float(W.square().sum())


@pytest.mark.parametrize("shape", [(9, 5), (5, 1), (30, 6)])
@pytest.mark.parametrize(("bias", "slope"), [(1.0, 0.0), (0.0, 0.0), (0.5, 0.2), (0.0, 1.0)])
def test_the_smallest_weights(shape, bias, slope):
    A = gaussian(*shape) + 0.3
    assert_close(
        cost_of_identity(A, bias=bias, slope=slope), by_least_squares(A, bias, slope), rtol=1e-7, reason="SVDs"
    )


def test_with_more_samples_than_neurons_it_may_not_be_had():
    A = gaussian(4, 30)
    assert cost_of_identity(A) == math.inf
    stable = cost_of_identity(A, gamma=0.01)
    S = torch.cat([A.relu(), torch.ones(1, 30, dtype=torch.float64)])
    K = S.mT @ S + 0.01 * torch.eye(30, dtype=torch.float64)
    assert_close(stable, float((A @ torch.linalg.solve(K, A.mT)).trace()))


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("samples", [2, 8, 40])
def test_of_what_is_not_negative_it_is_the_rank(k, samples):
    A = frame(7, k) @ gaussian(k, samples).abs()
    rank = min(k, samples)
    assert_close(cost_of_identity(A, bias=0.0), rank)
    # With bias it can only be cheaper.
    assert cost_of_identity(A) <= rank + 1e-9
    assert_close(identity_cost_bounds(A)[0] <= rank + 1e-9, True)


def test_linear_networks_have_the_rank():
    A = gaussian(6, 2) @ gaussian(2, 9, seed=1)
    assert_close(cost_of_identity(A, bias=0.0, slope=1.0), 2.0)


@given(
    w=st.integers(1, 8),
    N=st.integers(1, 8),
    shift=st.floats(-1.5, 1.5),
    scale=st.floats(1e-3, 1e3),
    seed=st.integers(0, 99),
)
def test_proposition_1_holds_without_bias(w, N, shift, scale, seed):
    A = scale * (gaussian(w, N, seed=seed) + shift)
    first, second = identity_cost_bounds(A)
    assert cost_of_identity(A, bias=0.0) >= first * (1 - 1e-9) and first >= second * (1 - 1e-9)


def test_and_fails_with_bias_or_gamma():
    """A constant representation costs its bias alone: c²/(1 + c²), below the bound 1."""
    A = torch.full((1, 3), 0.1, dtype=torch.float64)
    bound = identity_cost_bounds(A)[0]
    assert_close(bound, 1.0)
    assert_close(cost_of_identity(A), 0.01 / 1.01)
    assert cost_of_identity(A) < bound
    assert_close(cost_of_identity(A, bias=0.0), 1.0)
    assert cost_of_identity(A, bias=0.0, gamma=0.1) < bound


def test_bounds_by_hand():
    A = torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))
    assert_close(identity_cost_bounds(A)[0], 36 / 14)
    assert_close(identity_cost_bounds(A)[1], 14 / 9)
    assert identity_cost_bounds(torch.zeros(2, 3)) == (0.0, 0.0)


@pytest.mark.parametrize("bias", [1.0, 0.0])
def test_rescaling_and_rotation_of_samples_change_nothing_without_bias(bias):
    A = gaussian(5, 4) + 0.2
    if bias == 0.0:
        assert_close(cost_of_identity(17.0 * A, bias=0.0), cost_of_identity(A, bias=0.0), rtol=1e-9, reason="SVD")
    twice = torch.cat([A, A], 1)
    assert_close(cost_of_identity(twice, bias=bias), cost_of_identity(A, bias=bias), rtol=1e-9, reason="SVD")


def test_zero_and_dead_representations():
    zero, dead = torch.zeros(3, 4, dtype=torch.float64), -gaussian(3, 4).abs()
    assert cost_of_identity(zero) == 0.0 and cost_of_identity(zero, bias=0.0) == 0.0
    assert cost_of_identity(dead, bias=0.0) == math.inf


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_through_a_leaky_network(dtype):
    net, X = leaky(width=9, dtype=dtype), gaussian(6, 4)
    trace = net.trace(X)
    found = identity_costs(trace, gamma_share=1e-2)
    assert found.layers == tuple(range(6))
    for ell, cost, bare, exact, dimension, gamma in zip(
        found.layers, found.cost, found.without_bias, found.exact, found.effective_dimension, found.gamma
    ):
        A, S = trace.A(ell), trace.sigma_A(ell)
        assert_close(gamma, 1e-2 * float(torch.linalg.matrix_norm(S.mT @ S, ord=2)))
        assert_close(cost, cost_of_identity(A, gamma=gamma), rtol=1e-8, reason="rotated columns")
        assert_close(bare, cost_of_identity(A, gamma=gamma, bias=0.0), rtol=1e-8, reason="rotated columns")
        assert bare >= cost * (1 - 1e-9)
        if dtype == torch.float64:
            assert_close(exact, cost_of_identity(A), rtol=1e-6, reason="rotated columns")
        assert_close(dimension, identity_cost_bounds(A)[0])


def test_through_a_fully_connected_network():
    net, X = random_net([5, 12, 12, 4], bias=0.7, slope=0.1), gaussian(7, 5)
    trace = net.trace(X)
    found = identity_costs(trace)
    assert found.layers == (1, 2)
    for ell, cost, gamma in zip(found.layers, found.cost, found.gamma):
        assert_close(
            cost, cost_of_identity(trace.Z(ell), gamma=gamma, bias=0.7, slope=0.1), rtol=1e-8, reason="rotated"
        )


def test_inside_a_bottleneck_it_is_the_rank():
    """Identity layers on the positive cone: without bias the cost there is k, before them it is more."""
    k = 3
    found = identity_costs(three_part_net(k).trace(gaussian(400, 12)), gamma_share=1e-6)
    middle = found.layers.index(4)
    assert abs(found.without_bias[middle] - k) < 0.05 and found.cost[middle] <= found.without_bias[middle] + 1e-9
    assert found.cost[0] > 2 * k


def test_dead_layers_have_no_finite_cost():
    net = leaky(bias=0)
    with torch.no_grad():
        net.W_in.copy_(-net.W_in.abs())
    found = identity_costs(net.trace(gaussian(5, 4).abs()))
    assert found.gamma[0] == 0.0 and found.cost[0] == found.exact[0] == math.inf
    still = identity_costs(net.trace(torch.zeros(5, 4)))
    assert set(still.cost) == set(still.exact) == set(still.effective_dimension) == {0.0}


def test_errors():
    with pytest.raises(DataError, match="finite"):
        cost_of_identity([[1.0, float("nan")]])
    with pytest.raises(IsthmusError, match="`gamma`"):
        cost_of_identity([[1.0]], gamma=-1)
    with pytest.raises(IsthmusError, match="`gamma_share`"):
        identity_costs(leaky().trace(gaussian(3, 4)), gamma_share=0.0)
    assert identity_costs(random_net([3, 2]).trace(gaussian(4, 3))).layers == ()
