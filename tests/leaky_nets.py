"""Shared by the tests of leaky ResNets: networks of every kind, random ones and critical ones."""

from __future__ import annotations

import torch

from isthmus import LeakyResNet
from isthmus.trace import with_ones
from tools import frame, gaussian, generator

#: One of each kind.
OPTIONS = [
    {},
    {"steps": "irregular", "irregularity": 0.5},
    {"steps": "adaptive", "adapt_every": 7},
    {"embed": "learned", "slope": 0.3},
    {"bias": 0, "slope": -0.2},
    {"effective_depth": 0.0},
    {"slope": 1.0, "embed": "learned", "bias": 0},
]


def leaky(d_in=4, d_out=3, width=7, layers=5, effective_depth=2.5, *, dtype=torch.float64, seed=0, **options):
    """A random network whose biases are not zero."""
    options = {"effective_depth": effective_depth, **options}
    net = LeakyResNet(d_in, d_out, width, layers, dtype=torch.float64, generator=generator(seed), **options)
    source = generator(seed + 1)
    with torch.no_grad():
        for step in net.stages:
            if step.bias is not None:
                step.bias.normal_(0.0, 0.3, generator=source)
    return net.to(dtype)


def critical(
    rank=3, *, width=6, samples=12, layers=20, effective_depth=3.0, lam=0.05, noise=0.02, bias=1, seed=0
) -> tuple[LeakyResNet, torch.Tensor, torch.Tensor, float]:
    """A network at an exact critical point, its inputs and targets, and its ridge: nothing is trained.

    Near the equilibrium A ≥ 0, B = AK⁺ of rank ``rank`` the discrete equations W = L̃Bσ(A)ᵀ, forward for A and backward
    for B, are solved step by step. The targets are those for which B at the end is −(1/λ)∂C/∂A.
    """
    L, rho = effective_depth, 1.0 / layers
    A = frame(width, rank) @ (0.5 + gaussian(rank, samples, seed=seed).abs())
    S = with_ones(A, bias)
    B = A @ torch.linalg.pinv(S.mT @ S)
    A = A + noise * A.norm() * gaussian(width, samples, seed=seed + 1) / (width * samples) ** 0.5
    B = B + noise * B.norm() * gaussian(width, samples, seed=seed + 2) / (width * samples) ** 0.5
    inputs, Ws = A, []
    for _ in range(layers):
        S = with_ones(A.relu(), bias)
        Ws.append(L * B @ S.mT)
        A = (1 - rho * L) * A + rho * Ws[-1] @ S
        if len(Ws) == layers:
            break
        B = _next_momentum(A, B, rho * L)
    net = LeakyResNet.from_weights(Ws, [rho] * layers, effective_depth=L, bias=bias)
    return net, inputs.mT, (A + lam * samples / 2 * B).mT, lam / (2 * L)


def _next_momentum(A, last, r):
    """B_{ℓ+1} with B_ℓ = (1 − ρL̃)B_{ℓ+1} + ρσ̇(A_ℓ)⊙(W̄ᵀB_{ℓ+1}), W = L̃B_{ℓ+1}σ(A_ℓ)ᵀ: cubic, by Newton's method."""
    on, S, B = (A > 0).double(), A.relu(), last.clone()

    def off(b):
        return ((1 - r) * b.view_as(A) + r * on * (S @ b.view_as(A).mT @ b.view_as(A)) - last).reshape(-1)

    while float(off(B.reshape(-1)).norm()) > 1e-13 * float(last.norm()):
        J = torch.autograd.functional.jacobian(off, B.reshape(-1), vectorize=True)
        B = B - torch.linalg.solve(J, off(B.reshape(-1))).view_as(A)
    return B


def narrow(rank=3, *, width=12, layers=24, effective_depth=16.0, d_in=6, d_out=5, dtype=torch.float64) -> LeakyResNet:
    """A network with an isthmus of ``rank`` dimensions: identity on a cone, W = L̃VVᵀ.

    ±x, rectified, is encoded into the cone by the first step and kept there by all others. Of the inputs themselves
    (1 − ρL̃)^ℓ remains.
    """
    L, V, zero = effective_depth, frame(width, rank), torch.zeros(width, 1, dtype=torch.float64)
    W_in = torch.zeros(width, d_in, dtype=torch.float64)
    W_in[:d_in], W_in[d_in : 2 * d_in] = torch.eye(d_in), -torch.eye(d_in)
    P = gaussian(rank, d_in, seed=5)
    code = torch.zeros(rank, width, dtype=torch.float64)
    code[:, :d_in], code[:, d_in : 2 * d_in] = P, -P
    shift = torch.full((rank, 1), 6.0, dtype=torch.float64)
    first = L * torch.cat([V @ code, V @ shift], 1)
    keep = L * torch.cat([V @ V.mT, zero], 1)
    Ws = [first, *[keep] * (layers - 1)]
    W_out = gaussian(d_out, width, seed=6)
    options = {"effective_depth": L, "W_in": W_in, "W_out": W_out}
    return LeakyResNet.from_weights(Ws, [1 / layers] * layers, **options).to(dtype)
