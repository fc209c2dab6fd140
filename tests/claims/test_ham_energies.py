"""Gates of the mechanics: every energy by two routes, and the identity of C-ham-4 on any A and B."""

from __future__ import annotations

import pytest
import torch

from isthmus import LeakyResNet
from isthmus.claims.hamiltonian2024._flow import as_subject, path_of, signed_start
from isthmus.constructions import flow_network
from isthmus.measures import cost_of_identity, mechanics, momenta
from isthmus.measures._identity_cost import KernelNorm
from isthmus.measures._mechanics import flow, hamiltonian, lagrangian_weights, step_energies
from isthmus.objective import cost
from isthmus.trace import with_ones
from tools import assert_close, gaussian, generator

#: What the routes are asked to agree to.
CLOSE = {"rtol": 1e-8, "atol": 1e-8, "reason": "asked of the energies"}


def draw(w, N, seed, bias=1.0):
    A, B, dA = gaussian(3 * w, N, seed=seed).split(w)
    return A, B, dA, with_ones(torch.relu(A), bias)


def solved(M, S, gamma):
    """Tr[M(K + γI)⁻¹Mᵀ] in the space of samples."""
    K = S.mT @ S + gamma * torch.eye(S.shape[1], dtype=torch.float64)
    return float((M * torch.linalg.solve(K, M.mT).mT).sum())


def solved_in_neurons(M, S, gamma):
    """The same in the space of neurons: (K + γI)⁻¹ = (I − Sᵀ(SSᵀ + γI)⁻¹S)/γ."""
    C = S @ S.mT + gamma * torch.eye(len(S), dtype=torch.float64)
    inner = torch.linalg.solve(C, S @ M.mT)
    return float((M.square().sum() - ((S @ M.mT) * inner).sum()) / gamma)


@pytest.mark.parametrize("shape", [(7, 3), (4, 4), (3, 11)])
@pytest.mark.parametrize("gamma", [1e-2, 1.0])
@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_energies(shape, gamma, bias):
    A, _, dA, S = draw(*shape, seed=1, bias=bias)
    found = step_energies(S, A, dA, 1.7, gamma)
    for solve in (solved, solved_in_neurons):
        assert_close(found.identity_cost, solve(A, S, gamma), **CLOSE)
        assert_close(found.kinetic, solve(dA, S, gamma) / 3.4, **CLOSE)
        assert_close(found.potential, -0.85 * solve(A, S, gamma), **CLOSE)
        # Polarisation.
        assert_close(found.cross, (solve(A + dA, S, gamma) - solve(A - dA, S, gamma)) / 4, **CLOSE)
        whole = solve(1.7 * A + dA, S, gamma) / 3.4
        assert_close(found.kinetic - found.potential + found.cross, whole, **CLOSE)
        assert_close(found.speed**2, solve(dA, S, gamma), **CLOSE)


@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_the_cost_of_identity_by_the_pseudo_inverse(bias):
    A, _, dA, S = draw(9, 3, seed=2, bias=bias)
    pinv = torch.linalg.pinv(S)
    assert_close(cost_of_identity(A, bias=bias), float((A @ pinv).square().sum()), **CLOSE)
    found = step_energies(S, A, dA, 1.3, 0.0)
    assert_close(found.kinetic, float((dA @ pinv).square().sum()) / 2.6, **CLOSE)
    assert_close(found.cross, float(((dA @ pinv) * (A @ pinv)).sum()), **CLOSE)


def test_momenta_by_autograd():
    net = LeakyResNet(4, 3, 6, 5, 1.5, dtype=torch.float64, generator=generator(3))
    with torch.no_grad():
        for step in net.stages:
            step.bias.normal_(0.0, 0.5, generator=generator(4))
    X, Y, lam = gaussian(8, 4), gaussian(8, 3, seed=1), 0.2
    found = momenta(net.trace(X), Y, lam)
    A = X @ net.W_in.mT
    path = [A.requires_grad_()]
    for step in net.stages:
        path.append(step(path[-1]))
    for B, gradient in zip(found, torch.autograd.grad(cost(path[-1] @ net.W_out.mT, Y), path)):
        assert_close(B, -gradient.mT / lam, **CLOSE)


def test_lagrangian_weights_are_those_of_a_critical_point():
    """W = (L̃A + ∂_pA)σ(A)⁺ = L̃Bσ(A)ᵀ, because L̃Bσ(A)ᵀσ(A) = L̃A + ∂_pA and its rows lie in the image."""
    subject = as_subject(flow_network(*signed_start(), 2.0, 20))
    path, _ = path_of(subject)
    for ell, W in enumerate(path.trace.Ws, start=1):
        assert_close(lagrangian_weights(path.trace, ell), W, rtol=1e-7, atol=1e-7, reason="a pseudo-inverse")
        assert_close(path.L_tilde * path.Bs[ell] @ path.trace.sigma_A(ell - 1).mT, W, **CLOSE)


def test_the_path_of_the_claims_is_that_of_mechanics():
    """Two ways to the same numbers: samples streamed, and samples at once."""
    made = flow_network(*signed_start(), 2.0, 20)
    arrays = mechanics(made.network, made.X, made.Y, ridge=made.ridge, batch_size=2).arrays
    path, _ = path_of(as_subject(made))
    assert_close(torch.tensor(arrays.hamiltonian), torch.tensor(path.hamiltonians(), dtype=torch.float64), **CLOSE)
    for ell, step in enumerate(path.steps()):
        gamma = float(arrays.gamma[ell])
        coi, _, moving = step.squares(gamma, path.L_tilde)
        assert_close(float(arrays.identity_cost[ell]), coi, **CLOSE)
        assert_close(float(arrays.speed[ell]), moving**0.5, **CLOSE)


def both_sides(seed, gamma, bias):
    """−(2/L̃)𝓗 and ‖A‖² − ‖∂_pA/L̃ + γB‖² + γ‖B‖², and how large their terms are."""
    source = generator(seed)
    w, N = (int(torch.randint(1, 9, (), generator=source)) for _ in range(2))
    L_tilde = float(torch.rand((), generator=source)) * 5 + 0.1
    A, B, _, S = draw(w, N, seed=seed + 1, bias=bias)
    norm = KernelNorm(S)
    dA = flow(A, B, L_tilde, bias=bias)[0]
    parts = [norm.square(A, gamma), norm.square(dA / L_tilde + gamma * B, gamma), gamma * float(B.square().sum())]
    left = -2.0 / L_tilde * hamiltonian(A, B, L_tilde, bias=bias)
    return left, parts[0] - parts[1] + parts[2], max(parts)


@pytest.mark.parametrize("bias", [0.0, 1.0])
@pytest.mark.parametrize("gamma", [1e-3, 1e-1, 10.0])
def test_the_identity_on_random_pairs(bias, gamma):
    for seed in range(5):
        left, right, scale = both_sides(10 * seed, gamma, bias)
        assert abs(left - right) <= 1e-8 * scale


@pytest.mark.slow
def test_the_identity_on_a_thousand_draws():
    for seed in range(1000):
        gamma = 10.0 ** (-4 + 6 * float(torch.rand((), generator=generator(seed))))
        left, right, scale = both_sides(7 * seed, gamma, float(seed % 2))
        assert abs(left - right) <= 1e-8 * scale, seed
