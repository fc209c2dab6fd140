"""Q-forces: gradients by two other routes, cancellation at a known minimum, names where they need not cancel."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tools
from isthmus import FullyConnected, IsthmusError
from isthmus.constructions import linear_network
from isthmus.measures import KernelNorm, forces, representations, stationarity_of_representations
from isthmus.measures._forces import kink_share, output_gradients, repulsion
from isthmus.objective import cost
from isthmus.trace import activate, with_ones
from tools import assert_close, gaussian


def random_net(*args, **options):
    return tools.random_net(*args, **options).requires_grad_(False)


def neighbouring_terms(Z, before, after, slope, bias, gamma=(0.0, 0.0)):
    """Σ of the two terms that see Z, through torch's own pseudo-inverse, or through a solve for γ > 0."""
    S = with_ones(activate(Z, slope), bias)
    if gamma == (0.0, 0.0):
        return (Z @ torch.linalg.pinv(before)).square().sum(), (after @ torch.linalg.pinv(S)).square().sum()
    eye = torch.eye(Z.shape[1], dtype=torch.float64)
    first = (Z * torch.linalg.solve(before.mT @ before + gamma[0] * eye, Z.mT).mT).sum()
    return first, (after * torch.linalg.solve(S.mT @ S + gamma[1] * eye, after.mT).mT).sum()


SHAPES = [
    ([6, 9, 8, 3], 5),  # more neurons than samples: every K^σ invertible
    ([3, 4, 4, 2], 9),  # fewer: Z^σ of full row rank, K^σ deficient
]


@pytest.mark.parametrize(("dims", "samples"), SHAPES)
@pytest.mark.parametrize("slope", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("share", [0.0, 1e-3])
@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_they_are_the_gradients(dims, samples, slope, share, bias):
    """By autograd through the pseudo-inverse, and through a solve, at constant rank."""
    net = random_net(dims, slope, bias, seed=2)
    trace = net.trace(gaussian(samples, dims[0], seed=7))
    found = forces(trace, gamma_share=share)
    assert found.layers == (1, 2)
    for index, ell in enumerate(found.layers):
        Z = trace.Z(ell).clone().requires_grad_(True)
        terms = neighbouring_terms(Z, trace.Z_sigma(ell - 1), trace.Z(ell + 1), net.slope, bias, found.gamma[index])
        for mine, term in zip((found.attraction[index], found.repulsion[index]), terms):
            (gradient,) = torch.autograd.grad(term, Z)
            # Off the image of K^σ_{ℓ-1} a representation is not admissible, and autograd's pinv is blind there.
            assert_close(mine, gradient, rtol=1e-7, atol=1e-8 * float(gradient.abs().max()), reason="conditioning")


def test_repulsion_by_differences():
    net, X = random_net([5, 7, 3], seed=4), gaussian(5, 5, seed=5)
    trace = net.trace(X)
    Z, after = trace.Z(1), trace.Z(2)
    found = repulsion(Z, after, KernelNorm(trace.Z_sigma(1)), slope=0.0)
    E = gaussian(7, 5, seed=6)

    def term(step):
        return KernelNorm(with_ones(torch.relu(Z + step * E), 1.0)).square(after)

    assert float((found * E).sum()) == pytest.approx((term(1e-6) - term(-1e-6)) / 2e-6, rel=1e-5)


def closed_form(depth=3, N=4, ridge=0.05):
    """A linear network at its minimum: X = √N·I, so that each singular value solves s − m + ridge·s^(2/L − 1) = 0."""
    M = gaussian(N, N, seed=1) + 2.0 * torch.eye(N, dtype=torch.float64)
    U, m, Vh = torch.linalg.svd(M)
    s = m.clone()
    for _ in range(200):
        s = m - ridge * s ** (2.0 / depth - 1.0)
    X = N**0.5 * torch.eye(N, dtype=torch.float64)
    net = linear_network(U @ torch.diag(s) @ Vh, depth).network.requires_grad_(False)
    return net, X, X @ M.mT, ridge


def test_forces_cancel_at_a_minimum():
    net, X, Y, ridge = closed_form()
    found = forces(net, X, gamma_share=0.0)
    assert found.state == ("balanced", "balanced")
    assert max(found.residual) < 1e-10 and max(found.cosine) == pytest.approx(-1.0)
    assert max(stationarity_of_representations(net, X, Y, ridge)) < 1e-10
    # And with a little γ nearly.
    assert 1e-10 < max(forces(net, X).residual) < 1e-3
    # A point that is no minimum.
    moved = FullyConnected.from_weights([1.1 * W if i == 1 else W for i, W in enumerate(net.Ws)], slope=1.0)
    assert forces(moved, X, gamma_share=0.0).state == ("not balanced", "not balanced")
    assert max(stationarity_of_representations(moved, X, Y, ridge)) > 0.05


def test_rounding_is_not_divided_by_gamma():
    """Of the order of γ at a minimum, down to rounding; and pseudo-inverses are the limit, with few neurons too."""
    net, X, _, _ = closed_form()
    for share in (1e-4, 1e-7, 1e-10):
        assert max(forces(net, X, gamma_share=share).residual) < 20 * share
    trace = random_net([3, 4, 4, 2], 0.3, seed=2).trace(gaussian(9, 3, seed=7))
    exact, near = forces(trace, gamma_share=0.0), forces(trace, gamma_share=1e-13)
    for first, second in zip((*exact.attraction, *exact.repulsion), (*near.attraction, *near.repulsion)):
        assert float((first - second).norm()) < 1e-8 * float(first.norm())


def test_names_where_they_need_not_cancel():
    found = forces(random_net([2, 6, 6, 1]), gaussian(9, 2))
    assert found.state[0] == "not comparable: K^σ_0 deficient, K^σ_1 deficient"
    assert found.invertible == ((False, False), (False, False))
    # A dead row sits at the kink.
    net = random_net([4, 8, 6, 2])
    net.weights[0][2], net.biases[0][2] = 0.0, 0.0
    found = forces(net, gaussian(4, 4))
    assert "entries at the kink" in found.state[0] and found.at_kink[0] == pytest.approx(1 / 8)
    assert kink_share(torch.zeros(2, 2), 1.0) == 0.0
    silent = FullyConnected([2, 3, 1], dtype=torch.float64, init_scale=0.0)
    assert forces(silent, gaussian(3, 2)).state == ("no forces",)
    assert forces(random_net([2, 1]), gaussian(3, 2)).layers == ()


def test_views_and_plain_data():
    net, X = random_net([4, 6, 5, 2]), gaussian(4, 4)
    found = forces(net, X)
    att, rep, both = found.by_sample(1)
    assert att.shape == rep.shape == both.shape == (4,)
    assert float(found.by_neuron(2)[0].square().sum()) == pytest.approx(float(found.attraction[1].square().sum()))
    assert bool((both <= att + rep + 1e-12).all())
    plain = json.loads(json.dumps(found.to_dict()))
    assert [row["layer"] for row in plain["layers"]] == [1, 2] and plain["layers"][0]["residual"] == found.residual[0]
    with pytest.raises(IsthmusError, match="hidden layer"):
        found.by_sample(3)


@given(st.integers(0, 10_000), st.floats(0.05, 20.0), st.sampled_from([0.0, 0.4, -0.5]))
def test_neurons_on_one_ray_have_proportional_forces(seed, c, slope):
    """Z_k = cZ_k' with c > 0: attraction and repulsion are c times as large, with any γ."""
    net = random_net([5, 6, 3], slope, seed=seed)
    net.weights[0][4], net.biases[0][4] = c * net.weights[0][1], c * net.biases[0][1]
    found = forces(net, gaussian(5, 5, seed=seed + 1), gamma_share=1e-4)
    for force in (found.attraction[0], found.repulsion[0]):
        size = float(force.abs().max())
        assert_close(force[4], c * force[1], rtol=1e-7, atol=1e-9 * max(c, 1.0) * size, reason="conditioning 1e4")


def test_a_negative_factor_is_not_enough():
    """Departs from the paper: on the opposite ray the repulsion is another one."""
    net = random_net([5, 6, 3], seed=3)
    net.weights[0][4], net.biases[0][4] = -net.weights[0][1], -net.biases[0][1]
    rep = forces(net, gaussian(5, 5, seed=1)).repulsion[0]
    assert float((rep[4] + rep[1]).norm()) > 0.1 * float(rep[1].norm())


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
def test_output_gradients_by_autograd(loss):
    net, X = random_net([3, 5, 4, 3], 0.2), gaussian(6, 3)
    Y = gaussian(6, 3, seed=1) if loss == "mse" else torch.tensor([0, 1, 2, 2, 1, 0])
    for ell, G in enumerate(output_gradients(net.trace(X), Y, loss), start=1):
        Z = representations(net, X)[ell - 1].mT.clone().requires_grad_(True)
        H = Z
        for W, b in list(zip(net.Ws, net.bs))[ell:]:
            H = activate(H, 0.2) @ W.mT + b
        (expected,) = torch.autograd.grad(cost(H, Y, loss), Z)
        assert_close(G, expected.mT)


def test_the_general_form_is_the_gradient_by_weights():
    """2λZK⁺ + GP is the gradient by W_ℓ, times ((Z^σ)⁺)ᵀ: another route, at a point that is not stationary."""
    net, X, Y = random_net([3, 6, 2], seed=8), gaussian(9, 3, seed=1), gaussian(9, 2, seed=2)
    found = stationarity_of_representations(net, X, Y, 0.1)
    live = random_net([3, 6, 2], seed=8).requires_grad_(True)
    gradients = torch.autograd.grad(
        cost(live(X), Y) + 0.1 * sum(p.square().sum() for p in live.parameters()), list(live.parameters())
    )
    trace = net.trace(X)
    for ell in (1, 2):
        S = trace.Z_sigma(ell - 1)
        P = torch.linalg.pinv(S) @ S
        whole = torch.cat([gradients[ell - 1], gradients[ell + 1][:, None]], 1) @ torch.linalg.pinv(S).mT
        push = output_gradients(trace, Y)[ell - 1] @ P
        size = max(float((whole - push).norm()), float(push.norm()))
        assert found[ell - 1] == pytest.approx(float(whole.norm()) / size, rel=1e-8)
    assert math.isfinite(sum(found)) and min(found) > 1e-3
