"""Q-energy by two routes: momenta by autograd, the flow as the gradient of 𝓗, energies by dense inverses."""

from __future__ import annotations

import pytest
import torch

from isthmus import IsthmusError
from isthmus.measures import cost_of_identity, flow, hamiltonian, lagrangian_weights, momenta, step_energies
from isthmus.objective import cost
from isthmus.trace import activate, with_ones
from leaky_nets import OPTIONS, leaky
from tools import assert_close, gaussian, generator


def momenta_by_autograd(net, X, Y, lam, loss):
    """−(1/λ)∂C/∂A_ℓ from the graph of the module's own steps."""
    A = X @ net.W_in.mT
    path = [A.detach().requires_grad_()]
    for step in net.path:
        path.append(step(path[-1]))
        path[-1].retain_grad()
    cost(path[-1] @ net.W_out.mT, Y, loss).backward()
    return [-T.grad.mT / lam for T in path]


@pytest.mark.parametrize("options", OPTIONS)
def test_momenta_are_gradients(options):
    net, X, Y = leaky(**options), gaussian(6, 4), gaussian(6, 3, seed=1)
    for ours, theirs in zip(momenta(net.trace(X), Y, 0.3), momenta_by_autograd(net, X, Y, 0.3, "mse"), strict=True):
        assert_close(ours, theirs)


def test_momenta_of_classes():
    net, X = leaky(), gaussian(6, 4)
    classes = torch.randint(3, (6,), generator=generator())
    soft = gaussian(6, 3, seed=1).softmax(1)
    for Y in (classes, soft):
        found = momenta(net.trace(X), Y, 0.3, loss="cross_entropy")
        for ours, theirs in zip(found, momenta_by_autograd(net, X, Y, 0.3, "cross_entropy"), strict=True):
            assert_close(ours, theirs)
        # The gradient of the cross-entropy is softmax − target.
        target = torch.nn.functional.one_hot(Y, 3).double() if Y.ndim == 1 else Y
        last = (target - net(X).detach().softmax(1)) @ net.W_out / (6 * 0.3)
        assert_close(found[-1], last.mT)


def test_momenta_of_part_of_the_samples():
    net, X, Y = leaky(), gaussian(6, 4), gaussian(6, 3, seed=1)
    whole = momenta(net.trace(X), Y, 0.3)
    parts = [momenta(net.trace(X[i:j]), Y[i:j], 0.3, samples=6) for i, j in ((0, 4), (4, 6))]
    for one, pieces in zip(whole, zip(*parts)):
        assert_close(one, torch.cat(pieces, 1))
    with pytest.raises(IsthmusError, match="`lam`"):
        momenta(net.trace(X), Y, 0.0)


@pytest.mark.parametrize(("bias", "slope"), [(1.0, 0.0), (0.0, 0.0), (1.0, 0.3)])
def test_the_flow_is_that_of_the_hamiltonian(bias, slope):
    A, B = gaussian(4, 7).requires_grad_(), gaussian(4, 7, seed=1).requires_grad_()
    S = with_ones(activate(A, slope), bias)
    H = 2.5 * (0.5 * (B @ S.mT).square().sum() - (A * B).sum())
    along_A, along_B = torch.autograd.grad(H, (A, B))
    moved = flow(A.detach(), B.detach(), 2.5, slope=slope, bias=bias)
    assert_close(moved[0], along_B)
    assert_close(moved[1], -along_A)
    assert_close(hamiltonian(A.detach(), B.detach(), 2.5, slope=slope, bias=bias), float(H.detach()))
    # And so 𝓗 does not change along it.
    assert_close(float((along_A * moved[0] + along_B * moved[1]).sum()), 0.0, atol=1e-9, reason="sums of products")


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (5, 1)])
@pytest.mark.parametrize("gamma", [1e-3, 0.5])
def test_energies_against_the_dense_inverse(shape, gamma):
    A, dA, L = gaussian(*shape), gaussian(*shape, seed=1), 2.5
    S = with_ones(A.relu(), 1.0)
    found = step_energies(S, A, dA, L, gamma)
    inverse = torch.linalg.inv(S.mT @ S + gamma * torch.eye(shape[1], dtype=torch.float64))

    def product(M, other):
        return float((M @ inverse @ other.mT).trace())

    assert_close(found.kinetic, product(dA, dA) / (2 * L), rtol=1e-9, reason="a dense inverse at γ = 1e-3")
    assert_close(found.potential, -L / 2 * product(A, A), rtol=1e-9, reason="the same")
    assert_close(found.cross, product(dA, A), rtol=1e-8, atol=1e-9, reason="the same")
    assert_close(found.speed, product(dA, dA) ** 0.5, rtol=1e-9, reason="the same")
    assert_close(found.identity_cost, cost_of_identity(A, gamma=gamma))
    assert_close(found.hamiltonian, found.kinetic + found.potential)
    whole = product(L * A + dA, L * A + dA) / (2 * L)
    assert_close(found.kinetic - found.potential + found.cross, whole, rtol=1e-8, reason="the same")


def test_the_stable_identity_of_the_hamiltonian():
    """−(2/L̃)𝓗 = ‖A‖² − ‖∂_pA/L̃ + γB‖² + γ‖B‖_F² in the norm of K + γI, for any A and B."""
    L, gamma = 3.0, 0.2
    for N in (5, 12):
        A, B = gaussian(6, N), gaussian(6, N, seed=1)
        S = with_ones(A.relu(), 1.0)
        dA = flow(A, B, L)[0]
        inverse = torch.linalg.inv(S.mT @ S + gamma * torch.eye(N, dtype=torch.float64))
        moved = dA / L + gamma * B
        right = cost_of_identity(A, gamma=gamma) - float((moved @ inverse @ moved.mT).trace())
        right += gamma * float(B.square().sum())
        assert_close(-2 / L * hamiltonian(A, B, L), right, rtol=1e-8, reason="a dense inverse")


@pytest.mark.parametrize("width", [12, 5])
def test_lagrangian_weights(width):
    """With more neurons than samples the smallest weights that make the step; with fewer, the network's own."""
    net, X = leaky(width=width), gaussian(8, 4)
    trace = net.trace(X)
    for ell in (1, 3, 5):
        W, S = lagrangian_weights(trace, ell), trace.sigma_A(ell - 1)
        moved = 2.5 * trace.A(ell - 1) + trace.derivative(ell)
        assert_close(W @ S, moved, rtol=1e-7, atol=1e-9, reason="the step is made")
        assert_close(W, moved @ torch.linalg.pinv(S), rtol=1e-6, atol=1e-8, reason="another cut")
        assert float(W.norm()) <= float(trace.Ws[ell - 1].norm()) * (1 + 1e-9)
        if width == 5:
            assert_close(W, trace.Ws[ell - 1], rtol=1e-7, atol=1e-8, reason="S has full row rank")
