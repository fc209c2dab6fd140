"""The cost of linear and diagonal networks against closed forms and against minimisation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from isthmus import FullyConnected, IsthmusError
from isthmus.measures import (
    diagonal_cost,
    diagonal_expansion,
    linear_cost,
    linear_expansion,
    parameter_norms,
)
from isthmus.measures._representation_cost import estimate_costs
from tools import assert_close, gaussian, linear_net, orthogonal


def product(net: FullyConnected) -> torch.Tensor:
    A = torch.eye(net.dims[0], dtype=torch.float64)
    for W in net.Ws:
        A = W.detach() @ A
    return A


@pytest.mark.parametrize("L", [1, 2, 3, 8, 40])
@pytest.mark.parametrize("s", [[2.0], [3.0, 1.0, 0.2], [1.0, 1.0], [1e3, 1e-3]])
def test_attained_by_the_explicit_network(L, s):
    """W_ℓ = U_ℓ S^{1/L} U_{ℓ-1}ᵀ has the cost as its norm; reparametrisations of the same map do not go
    below.
    """
    net = linear_net(s, [4, *[5] * (L - 1), 4])
    A = product(net)
    exact = L * sum(v ** (2 / L) for v in s)
    assert_close(linear_cost(A, L), exact, rtol=1e-8, reason="the smallest singular value of a condition-1e6 product")
    assert_close(parameter_norms(net).total, exact)
    for seed in range(10):
        Ws = [W.detach().clone() for W in net.Ws]
        for i in range(L - 1):
            G = gaussian(5, 5, seed=seed * 100 + i) * 0.3 + torch.eye(5, dtype=torch.float64)
            Ws[i], Ws[i + 1] = G @ Ws[i], torch.linalg.solve(G, Ws[i + 1], left=False)
        other = FullyConnected.from_weights(Ws, slope=1.0)
        assert_close(product(other), A, rtol=1e-6, atol=1e-6, reason="products of inverses of random matrices")
        assert parameter_norms(other).total >= exact * (1 - 1e-10)


@pytest.mark.parametrize("L", [2, 3])
def test_is_the_minimum_found_numerically(L):
    """Minimise ‖θ‖² subject to the product, by eliminating one factor: a route that knows nothing of singular
    values.
    """
    A = gaussian(3, 3, seed=5) + torch.eye(3, dtype=torch.float64)

    def norm(flat: np.ndarray) -> tuple[float, np.ndarray]:
        theta = torch.from_numpy(flat.reshape(L - 1, 3, 3)).requires_grad_()
        rest = A
        for W in theta:
            rest = torch.linalg.solve(W, rest, left=False)  # rest · W⁻¹
        value = theta.square().sum() + rest.square().sum()
        (gradient,) = torch.autograd.grad(value, theta)
        return float(value.detach()), gradient.numpy().reshape(-1)

    best = math.inf
    for seed in range(3):
        start = gaussian(L - 1, 3, 3, seed=seed) * 0.1 + torch.eye(3, dtype=torch.float64)
        result = minimize(norm, start.numpy().reshape(-1), jac=True, method="BFGS", options={"gtol": 1e-9})
        best = min(best, result.fun)
    assert_close(best, linear_cost(A, L), rtol=1e-8, reason="the accuracy of a quasi-Newton minimum")


@pytest.mark.parametrize("L", [1, 2, 5])
def test_diagonal_networks(L):
    w = torch.tensor([2.0, -0.5, 0.0, 1e-5], dtype=torch.float64)
    exact = L * sum(abs(float(v)) ** (2 / L) for v in w)
    assert_close(diagonal_cost(w, L), exact)
    # Attained by |w|^{1/L} in every layer, with the sign in the first.
    layers = torch.stack([w.abs() ** (1 / L)] * L)
    layers[0] *= w.sign()
    assert_close(layers.prod(0), w)
    assert_close(layers.square().sum(), exact)
    for seed in range(10):
        scales = gaussian(L, 4, seed=seed)
        scales -= scales.mean(0)
        assert float((layers * scales.exp()).square().sum()) >= exact * (1 - 1e-12)
    assert_close(diagonal_cost(w, L), linear_cost(torch.diag(w), L))


def test_expansion_against_closed_forms():
    s = torch.tensor([3.0, 1.0, 0.2], dtype=torch.float64)
    A = orthogonal(6, 3) * s @ orthogonal(5, 3, seed=1).mT
    found = linear_expansion(A)
    assert found.R0 == 3
    assert_close(found.R1, 2 * math.log(0.6))
    # ½‖log₊ AᵀA‖²: by an eigendecomposition of AᵀA, its zero eigenvalues left out.
    eigenvalues = torch.linalg.eigvalsh(A.mT @ A)
    assert_close(found.R2, 0.5 * eigenvalues[eigenvalues > 1e-10].log().square().sum())
    assert_close(diagonal_expansion(s).R2, found.R2)
    assert_close(found.at(7), 7 * 3 + found.R1 + found.R2 / 7)
    assert_close(found.at(7, terms=1), 21.0)
    assert_close(found.at(7, terms=2), 21.0 + found.R1)


@pytest.mark.parametrize("terms", [1, 2, 3])
def test_error_of_the_expansion_decays_as_it_should(terms):
    s = [2.5, 1.3, 0.5]
    A = torch.diag(torch.tensor(s, dtype=torch.float64))
    depths = np.array([64, 128, 256, 512, 1024])
    errors = np.array([abs(linear_cost(A, int(L)) - linear_expansion(A).at(int(L), terms)) for L in depths])
    exponent = np.polyfit(np.log(depths), np.log(errors), 1)[0]
    assert_close(exponent, 1.0 - terms, atol=0.05, reason="the next order is still there at L = 64")


@given(st.lists(st.floats(0.05, 20), min_size=1, max_size=5), st.integers(1, 60))
def test_properties(s, L):
    A = np.diag(s)
    value = linear_cost(A, L)
    assert_close(value, diagonal_cost(s, L))
    assert_close(linear_cost(A.T, L), value)
    # Convexity of the exponential: the first two terms are a lower bound (C-bn-1 for linear maps).
    assert value >= linear_expansion(A).at(L, terms=2) - 1e-9 * value
    assert linear_expansion(A).R2 >= 0


def test_zero_and_tiny():
    assert linear_cost(np.zeros((3, 2)), 5) == 0.0
    assert linear_expansion(np.zeros((3, 2))).at(9) == 0.0
    assert diagonal_expansion([0.0, 0.0]).R0 == 0
    # A rank-1 matrix of rounding noise must not count as rank 3 at large depth.
    low = gaussian(3, 1) @ gaussian(1, 3, seed=1)
    assert linear_expansion(low).R0 == 1
    assert linear_cost(low, 1000) < 1100


def test_refused():
    for function in (linear_cost, diagonal_cost):
        for depth in (0, 1.5, True):
            with pytest.raises(IsthmusError, match="depth"):
                function([[1.0]], depth)
    with pytest.raises(IsthmusError, match="one matrix"):
        linear_cost(np.zeros((2, 3, 3)), 2)
    with pytest.raises(IsthmusError, match="vector"):
        diagonal_cost([[1.0]], 2)
    with pytest.raises(IsthmusError, match="vector"):
        diagonal_expansion([[1.0]])
    with pytest.raises(IsthmusError, match="terms"):
        linear_expansion(np.eye(2)).at(3, terms=4)
    with pytest.raises(IsthmusError, match="depth"):
        linear_expansion(np.eye(2)).at(0)


A_KNOWN = np.diag([2.5, 1.3, 0.5, 0.0])
DEPTHS = np.array([40, 60, 90, 130, 200, 300, 400, 500])


def costs(A, depths) -> np.ndarray:
    return np.array([linear_cost(A, int(L)) for L in depths])


def test_estimates_recover_the_expansion():
    """Exact costs of a linear map: rank, 2log|A|₊ and ½‖log₊AᵀA‖²_F come back, up to the next term O(L⁻²)."""
    known = linear_expansion(A_KNOWN)
    found = estimate_costs(DEPTHS, costs(A_KNOWN, DEPTHS))
    assert found.state == "computed"
    next_term = "the next term of the expansion"
    assert_close(found.R0.value, known.R0, rtol=1e-6, reason=next_term)
    assert_close(found.R1.value, known.R1, rtol=1e-3, reason=next_term)
    assert_close(found.R2.value, known.R2, rtol=2e-2, reason=next_term)
    assert found.residual < 1e-4
    # It is that term: four times the depths divide the error of R2 by about 4.
    deeper = estimate_costs(4 * DEPTHS, costs(A_KNOWN, 4 * DEPTHS))
    assert abs(deeper.R2.value - known.R2) < 0.35 * abs(found.R2.value - known.R2)


def test_an_exact_line_and_an_exact_curve():
    L = np.array([5.0, 8.0, 12.0])
    affine = estimate_costs(L, 3 * L + 2)
    assert_close((affine.R0.value, affine.R1.value), (3.0, 2.0))
    assert math.isnan(affine.R2.value) and math.isnan(affine.break_p_value)
    L = np.arange(5.0, 16.0)
    curved = estimate_costs(L, 3 * L + 2 - 7 / L)
    assert_close((curved.R0.value, curved.R1.value, curved.R2.value), (3.0, 2.0, -7.0))
    assert curved.state == "computed" and curved.residual < 1e-12


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_rank_that_changes_half_way_is_not_affine(noise):
    L = np.arange(6, 42, 2)
    deep, shallow = np.diag([2.0, 1.5, 0.0]), np.diag([2.0, 1.5, 1.2])
    # As a minimum over ranks would: continuous, with a bend; and as a jump from one function to another.
    kink = np.where(L <= 22, 3.0 * L, 66.0 + 2.0 * (L - 22))
    jump = np.where(L <= 22, costs(shallow, L), costs(deep, L))
    for norms in (kink, jump):
        found = estimate_costs(L, norms + noise * gaussian(len(L), seed=3).numpy())
        assert found.state == "not affine"
        assert abs(found.break_depth - 22) <= 4
    noisy = costs(shallow, L) + noise * gaussian(len(L), seed=3).numpy()
    assert estimate_costs(L, noisy).state == "computed"


def test_noise_is_rarely_called_a_break():
    L = np.arange(10, 40, 2)
    states = [estimate_costs(L, 4 * L + 3 + 3.0 * gaussian(15, seed=i).numpy()).state for i in range(200)]
    assert states.count("not affine") <= 6


@pytest.mark.parametrize("given_errors", [False, True])
def test_intervals_cover_as_often_as_they_say(given_errors):
    L = np.array([10, 12, 15, 20, 26])
    sigma = np.array([0.1, 0.1, 0.3, 0.3, 0.5]) if given_errors else np.full(5, 0.2)
    hits = np.zeros(3)
    for seed in range(400):
        norms = 4 * L + 3 - 8 / L + sigma * gaussian(5, seed=seed).numpy()
        found = estimate_costs(L, norms, sigma if given_errors else None, confidence=0.8)
        for i, (part, truth) in enumerate(zip((found.R0, found.R1, found.R2), (4, 3, -8))):
            hits[i] += part.low <= truth <= part.high
    # 400 draws know 0.8 to ± 0.07. With given errors the intervals cover more: Student's and never below those errors.
    low, high = (0.73, 1.0) if given_errors else (0.73, 0.87)
    assert bool((hits / 400 >= low).all()) and bool((hits / 400 <= high).all()), hits / 400


def test_weights_by_two_routes():
    L, norms = np.array([5.0, 6, 8, 11, 15]), gaussian(5, seed=7).numpy() + 10
    sigma = np.array([1.0, 2.0, 1.0, 0.5, 1.0])
    found = estimate_costs(L, norms, sigma)
    A = np.stack([L, np.ones(5), 1 / L], 1) / sigma[:, None]
    normal = np.linalg.solve(A.T @ A, A.T @ (norms / sigma))
    numbers = (found.R0.value, found.R1.value, found.R2.value)
    assert_close(numbers, normal, rtol=1e-7, reason="normal equations square the condition")
    factor = max(1.0, float(((norms / sigma - A @ normal) ** 2).sum()) / 2)
    assert_close(
        found.R1.standard_error, math.sqrt(factor * np.linalg.inv(A.T @ A)[1, 1]), rtol=1e-7, reason="as above"
    )


def test_too_few_depths():
    for depths, norms in (([5], [1.0]), ([5, 9], [1.0, 2.0]), ([5, 5, 9, 9], [1.0, 1.1, 2.0, 2.1])):
        found = estimate_costs(depths, norms)
        assert found.state == "too few depths"
        assert math.isnan(found.R0.value) and math.isnan(found.residual)
    repeated = estimate_costs([5, 5, 7, 9, 9], [10.0, 10.2, 14.0, 18.1, 18.0])
    assert repeated.state == "computed" and math.isnan(repeated.R2.value)


def test_estimates_refused():
    with pytest.raises(IsthmusError, match="one for each norm"):
        estimate_costs([1, 2, 3], [1.0, 2.0])
    with pytest.raises(IsthmusError, match="one for each norm"):
        estimate_costs([0, 2, 3], [1.0, 2.0, 3.0])
    with pytest.raises(IsthmusError, match="errors"):
        estimate_costs([1, 2, 3], [1.0, 2.0, 3.0], [0.1, 0.0, 0.1])
    with pytest.raises(IsthmusError, match="confidence"):
        estimate_costs([1, 2, 3], [1.0, 2.0, 3.0], confidence=1.0)
    with pytest.raises(IsthmusError, match="finite"):
        estimate_costs([1, 2, 3], [1.0, math.nan, 3.0])
