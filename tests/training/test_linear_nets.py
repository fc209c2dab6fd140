"""Linear networks, where the minimum is known: ‖θ‖² = L·Σs^{2/L}, and each s solves a scalar problem."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from isthmus import FullyConnected, ridge_from
from isthmus.measures import parameter_norms
from isthmus.training import train
from tools import assert_close, gaussian, generator, orthogonal


def whitened(n, d, seed=0):
    """Inputs with mean 0 and E[xxᵀ] = I exactly."""
    X = gaussian(n, d, seed=seed)
    return torch.linalg.qr(X - X.mean(0)).Q * n**0.5


def linear_task(singular, n=60, d_in=5, d_out=4, seed=0):
    k = len(singular)
    A = (orthogonal(d_out, k, seed=seed) * torch.tensor(singular, dtype=torch.float64)) @ orthogonal(
        d_in, k, seed=seed + 1
    ).mT
    X = whitened(n, d_in, seed)
    return X, X @ A.mT


def scalar_minimum(a, ridge, L):
    """min_s (s − a)² + ridge·L·s^{2/L} over s ≥ 0: the least loss and where."""
    s = np.linspace(0.0, a, 400_001)
    loss = (s - a) ** 2 + ridge * L * s ** (2 / L)
    best = int(loss.argmin())
    return loss[best], s[best]


def trained(singular, L, ridge, *, bias=0.0, width=8, dtype=torch.float64, seed=1):
    X, Y = linear_task(singular)
    net = FullyConnected([5, *[width] * (L - 1), 4], 1.0, bias, dtype=dtype, generator=generator(seed))
    return net, train(net, X, Y, ridge=ridge)


def learned(net):
    product = net.Ws[0].detach().double()
    for W in net.Ws[1:]:
        product = W.detach().double() @ product
    return torch.linalg.svdvals(product)


@pytest.mark.parametrize(
    ("L", "singular", "ridge", "bias"),
    [
        (1, (2.0, 1.0), 0.1, 0.0),
        (2, (2.0, 1.0, 0.5), 0.05, 0.0),
        (2, (2.0, 1.0, 0.1), 0.05, 1.0),
        (3, (3.0, 1.0), 1e-3, 0.0),
        (4, (2.0, 1.5, 1.0), 1e-2, 1.0),
        (6, (1.5,), 1e-2, 0.0),
    ],
)
def test_norm_and_loss_at_the_closed_form(L, singular, ridge, bias):
    net, result = trained(singular, L, ridge, bias=bias)
    assert result.at_rest
    s = learned(net)
    predicted = L * float((s ** (2 / L)).sum())
    reason = "the gate: 1 %"
    assert_close(result.norm, predicted, rtol=1e-2, reason=reason)
    assert_close(result.norm, parameter_norms(net).total)
    # The second route: the loss, and the singular values, of the scalar problems.
    minima = [scalar_minimum(a, ridge, L) for a in singular]
    assert_close(result.loss, sum(m[0] for m in minima), rtol=1e-3, reason="tolerance 1e-4 over 50 steps")
    expected = sorted((m[1] for m in minima), reverse=True)
    assert_close(s[: len(expected)], expected, rtol=1e-2, atol=2e-2, reason="flat around the minimum")


def test_float32_reaches_the_same():
    net, result = trained((2.0, 1.0), 3, 1e-2, dtype=torch.float32)
    assert result.at_rest
    assert net.weights[0].dtype == torch.float32
    s = learned(net)
    # Singular values at the floor of float32 count with their power 2/3, as they do in the norm.
    assert_close(result.norm, 3 * float((s ** (2 / 3)).sum()), rtol=1e-2, reason="the gate: 1 %")


def test_too_large_a_ridge_gives_zero():
    """Past a threshold the best s jumps to 0: known truth for the zero solution."""
    assert scalar_minimum(1.0, 1.0, 3)[1] == 0.0
    net, result = trained((1.0, 0.8), 3, 1.0)
    assert result.at_rest
    assert_close(result.loss, 1.0 + 0.64)
    assert result.norm < 1e-10


def test_the_papers_convention():
    """rank2023: mean over samples and outputs, plus (λ/L)‖W‖²; ridge_from gives the same minimum."""
    L, lam, d_out = 3, 6e-3, 4
    ridge = ridge_from("rank2023", lam, depth=L, outputs=d_out)
    X, Y = linear_task((2.0, 1.0))
    net, result = trained((2.0, 1.0), L, ridge)
    with torch.no_grad():
        paper = torch.nn.functional.mse_loss(net(X), Y) + lam / L * sum(p.square().sum() for p in net.parameters())
    assert_close(result.loss, d_out * paper)
    # The paper's loss, differentiated by hand, is stationary there …
    by_hand = torch.nn.functional.mse_loss(net(X), Y) + lam / L * sum(p.square().sum() for p in net.parameters())
    gradient = torch.autograd.grad(by_hand, list(net.parameters()))
    size = float(torch.cat([g.reshape(-1) for g in gradient]).norm())
    assert size < 1e-2 * 2 * lam / L * result.norm**0.5
    # … and at its least value, known in closed form: Σ (s − a)²/d_out + λ·s^{2/L}.
    s = np.linspace(0, 2, 200_001)
    least = sum(((s - a) ** 2 / d_out + lam * s ** (2 / L))[s <= a].min() for a in (2.0, 1.0))
    assert_close(paper, least, rtol=1e-3, reason="tolerance 1e-4 over 50 steps")
