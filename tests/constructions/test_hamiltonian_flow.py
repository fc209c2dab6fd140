"""Integrated flows: orders, kinks, and the networks made of them."""

from __future__ import annotations

import pytest
import torch

from isthmus import DataError, IsthmusError, mechanics
from isthmus.claims._evidence import fit_exponent
from isthmus.claims.hamiltonian2024._flow import signed_start
from isthmus.constructions import flow_network, hamiltonian_flow, steady_path
from isthmus.constructions._paths import METHODS, ORDERS
from isthmus.measures import hamiltonian, momenta
from isthmus.measures._mechanics import flow
from tools import assert_close, gaussian

L_TILDE = 2.0
LAYERS = (40, 80, 160)


@pytest.fixture(scope="module")
def start():
    return signed_start()


def test_the_flow_is_that_of_the_hamiltonian(start):
    """(∂_B𝓗, −∂_A𝓗) by autograd."""
    A, B = (M.clone().requires_grad_() for M in start)
    S = torch.cat([torch.relu(A), torch.ones(1, A.shape[1], dtype=A.dtype)])
    H = L_TILDE * (0.5 * (B @ S.mT).square().sum() - (A * B).sum())
    by_A, by_B = torch.autograd.grad(H, [A, B])
    dA, dB = flow(A.detach(), B.detach(), L_TILDE)
    assert_close(dA, by_B)
    assert_close(dB, -by_A)
    assert_close(float(H.detach()), hamiltonian(*start, L_TILDE))


@pytest.mark.parametrize("method", METHODS)
def test_the_hamiltonian_is_constant_to_the_order_of_the_method(start, method):
    sizes = (40, 80, 160) if method == "symplectic_euler" else (16, 32, 64)
    flows = [hamiltonian_flow(*start, L_TILDE, layers, method=method) for layers in sizes]
    # Entries of both signs, and none that crosses zero.
    assert all(one.crossings == 0 for one in flows) and bool((flows[0].A < 0).any() and (flows[0].A > 0).any())
    rate = fit_exponent([one.layers for one in flows], [one.drift for one in flows])
    assert rate.value == pytest.approx(-ORDERS[method], abs=0.1 * ORDERS[method])


@pytest.mark.parametrize("method", METHODS)
def test_the_ends_converge_to_one_another(start, method):
    fine = hamiltonian_flow(*start, L_TILDE, 300)
    errors = []
    for layers in (16, 32, 64):
        one = hamiltonian_flow(*start, L_TILDE, layers, method=method)
        errors.append(float((one.A[-1] - fine.A[-1]).norm() + (one.B[-1] - fine.B[-1]).norm()))
    assert fit_exponent((16, 32, 64), errors).value == pytest.approx(-ORDERS[method], abs=0.12 * ORDERS[method])


def test_kinks_cost_the_order():
    """An entry that crosses zero leaves an error of first order in the step that crosses it, also for RK4."""
    A, B = signed_start(seed=3)
    layers = [51 + 12 * i for i in range(12)]
    flows = [hamiltonian_flow(A, B, 1.0, L) for L in layers]
    assert min(one.crossings for one in flows) > 0
    # Where in its step the crossing falls is as good as random: the trend is that of the worst cases.
    rate = fit_exponent(layers, [one.drift for one in flows])
    smooth = hamiltonian_flow(*signed_start(), 1.0, layers[-1])
    assert -1.9 < rate.value < 0.0
    assert flows[-1].drift > 1e3 * smooth.drift


def test_discrete_networks_are_critical_to_rounding(start):
    drifts = []
    for layers in LAYERS:
        made = flow_network(*start, L_TILDE, layers)
        found = mechanics(made.network, made.X, made.Y, ridge=made.ridge)
        assert found.residual < 1e-12
        Bs = momenta(made.network.trace(made.X), made.Y, made.lam)
        # Backward from the targets, and forward from the start.
        assert_close(torch.stack(Bs), made.flow.B, rtol=1e-9, atol=1e-9, reason="two recursions of 160 steps")
        assert_close(torch.tensor(found.arrays.hamiltonian), made.flow.paired_hamiltonian, rtol=1e-9, reason="as above")
        drifts.append(found.spread)
    assert fit_exponent(LAYERS, drifts).value == pytest.approx(-1.0, abs=0.1)


def test_networks_of_a_fine_flow_become_critical(start):
    residuals = []
    for layers in LAYERS:
        made = flow_network(*start, L_TILDE, layers, exact=False, refine=4)
        residuals.append(mechanics(made.network, made.X, made.Y, ridge=made.ridge).residual)
    assert fit_exponent(LAYERS, residuals).value == pytest.approx(-1.0, abs=0.1)
    assert residuals[0] > 1e-3


@pytest.mark.parametrize("lam", [1e-3, 0.1, 10.0])
def test_lambda_only_moves_the_targets(start, lam):
    made = flow_network(*start, L_TILDE, 20, lam=lam)
    assert made.ridge == pytest.approx(lam / (2 * L_TILDE))
    found = mechanics(made.network, made.X, made.Y, ridge=made.ridge)
    # Rounding of Y − f(X) is divided by λ.
    assert found.residual < 1e-12 * max(1.0, 1.0 / lam)
    assert mechanics(made.network, made.X, made.Y, ridge=2 * made.ridge).residual > 0.1


def test_irregular_steps(start):
    rho = torch.tensor([0.1, 0.3, 0.05, 0.15, 0.4]) * torch.ones(20, 1)
    rho = (rho / rho.sum()).flatten()
    one = hamiltonian_flow(*start, L_TILDE, 100, rho=rho, method="midpoint")
    even = hamiltonian_flow(*start, L_TILDE, 100)
    assert_close(one.A[-1], even.A[-1], rtol=1e-3, atol=1e-3, reason="second order on other steps")
    assert_close(float(one.rho.sum()), 1.0, rtol=1e-6, reason="float32 lengths")


def test_closed_form():
    A = gaussian(3, 5).abs() + 0.1
    D = gaussian(3, 3, seed=1)
    G = torch.eye(3, dtype=torch.float64) + 0.02 * (D + D.mT)
    leaking = -gaussian(2, 5, seed=2).abs() - 0.1
    made = steady_path(A, G, 4.0, 30, leaking=leaking)
    found = mechanics(made.network, made.X, made.Y, ridge=made.ridge)
    assert found.residual < 1e-12
    H = torch.tensor(found.arrays.hamiltonian)
    assert_close(-0.5 * H, (2 * G - G @ G).trace().expand(30), rtol=1e-9, reason="conserved exactly, up to rounding")
    for W in made.network.Ws:
        assert_close(W[:3, :3], 4.0 * G)
    # The same by the integrator: its start is on the closed form.
    again = hamiltonian_flow(made.flow.A[0], made.flow.B[0], 4.0, 30, method="symplectic_euler", bias=0.0)
    assert_close(again.A, made.flow.A, rtol=1e-8, atol=1e-8, reason="implicit steps, an unstable direction")


def test_mistakes(start):
    A, B = start
    with pytest.raises(IsthmusError, match="one shape"):
        hamiltonian_flow(A, B[:, :-1], 1.0, 5)
    with pytest.raises(IsthmusError, match="effective_depth"):
        hamiltonian_flow(A, B, 0.0, 5)
    with pytest.raises(IsthmusError, match="method"):
        hamiltonian_flow(A, B, 1.0, 5, method="euler")
    with pytest.raises(IsthmusError, match="lengths"):
        hamiltonian_flow(A, B, 1.0, 2, rho=[0.5, -0.5])
    with pytest.raises(DataError, match="short enough"):
        hamiltonian_flow(A, 3 * B, 3.0, 3, method="symplectic_euler")
    with pytest.raises(DataError, match="finite"):
        hamiltonian_flow(A, 3 * B, 9.0, 3)
    eye = torch.eye(2, dtype=torch.float64)
    with pytest.raises(IsthmusError, match="independent"):
        steady_path(torch.ones(2, 3), eye, 1.0, 5)
    with pytest.raises(IsthmusError, match="symmetric"):
        steady_path(eye, torch.tensor([[1.0, 1.0], [0.0, 1.0]]), 1.0, 5)
    with pytest.raises(IsthmusError, match="path must stay positive"):
        steady_path(gaussian(2, 3), eye, 1.0, 5)
    with pytest.raises(IsthmusError, match="leaking"):
        steady_path(eye + 0.1, eye, 1.0, 5, leaking=torch.ones(1, 2))
    with pytest.raises(IsthmusError, match="must be positive"):
        steady_path(eye, -9 * eye, 1.0, 5)


def test_no_zero_on_a_steady_path():
    """σ̇(0) = 0 stops the momentum of an entry at the kink: no critical point, unless σ is linear."""
    A, G = torch.tensor([[1.0, 0.0], [0.5, 1.0]]).double(), torch.eye(2).double()
    with pytest.raises(IsthmusError, match="path must stay positive"):
        steady_path(A, G, 2.0, 10)
    for made in (steady_path(A, G, 2.0, 10, slope=1.0), steady_path(A + 0.1, G, 2.0, 10)):
        assert mechanics(made.network, made.X, made.Y, ridge=made.ridge).residual < 1e-12
