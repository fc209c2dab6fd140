"""The least ‖θ‖² over rescalings of neurons or layers that keep the function, on weights as plain tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from isthmus._checks import fail

_MAX_NEWTON_STEPS = 100


class Rescaled(NamedTuple):
    """Weights and biases in float64, hidden neurons of each layer that were set to 0, and Newton steps."""

    Ws: list[Tensor]
    bs: list[Tensor]
    dead: tuple[int, ...]
    steps: int


@torch.no_grad()
def least_norm(Ws: Sequence[Tensor], bs: Sequence[Tensor], *, by: str, tolerance: float) -> Rescaled:
    """Copies of W_1 … W_L and b_1 … b_L, rescaled; ``by`` "neuron" or "layer".

    A neuron's inputs and bias are multiplied by e^u and its outgoing weights by e^{−u}. As a function of all
    the u, ‖θ‖² = Σ_ℓ Σ_ij W²_{ℓ,ij} e^{2(u_{ℓ,i} − u_{ℓ-1,j})} + Σ b²_{ℓ,i} e^{2u_{ℓ,i}} is convex (a
    geometric programme); its stationarity is balancedness.
    """
    weights = [W.detach().double().clone() for W in Ws]
    biases = [b.detach().double().clone() for b in bs]
    dead = _zero_dead_neurons(weights, biases, whole_layers=by == "layer")
    scales, steps = _solve(*_squares(weights, biases, by), tolerance)
    left = torch.zeros(1, dtype=torch.float64)
    for index, W in enumerate(weights):
        right = scales[index] if index < len(scales) else torch.zeros(1, dtype=torch.float64)
        W.mul_((right[:, None] - left[None, :]).exp())
        if biases:
            biases[index].mul_(right.exp())
        left = right
    return Rescaled(weights, biases, dead, steps)


def _zero_dead_neurons(Ws: list[Tensor], bs: list[Tensor], *, whole_layers: bool) -> tuple[int, ...]:
    """Set to 0 every neuron (or layer) without input or output, repeatedly; how many in each layer."""
    hidden = range(len(Ws) - 1)
    dead = [torch.zeros(len(Ws[i]), dtype=torch.bool) for i in hidden]
    changed = True
    while changed:
        changed = False
        for i in hidden:
            silent = (Ws[i] == 0).all(1) & ((bs[i] == 0) if bs else True)
            unheard = (Ws[i + 1] == 0).all(0)
            now = silent | unheard
            if whole_layers:
                now = (silent.all() | unheard.all()).expand_as(now)
            if bool((now & ~dead[i]).any()):
                changed = True
            dead[i] = now
            Ws[i][now] = 0.0
            Ws[i + 1][:, now] = 0.0
            if bs:
                bs[i][now] = 0.0
    return tuple(int(d.sum()) for d in dead)


def _squares(Ws: list[Tensor], bs: list[Tensor], by: str) -> tuple[list[Tensor], list[Tensor]]:
    """Squared entries, summed over what shares a scale: inputs and outputs always, layers if asked."""
    squares = [W.square() for W in Ws]
    biases = [b.square() for b in bs[:-1]] or [torch.zeros(len(W), dtype=torch.float64) for W in Ws[:-1]]
    squares[0] = squares[0].sum(1, keepdim=True)
    squares[-1] = squares[-1].sum(0, keepdim=True)
    if by == "layer":
        squares = [S.sum()[None, None] for S in squares]
        biases = [b.sum()[None] for b in biases]
    total = sum(float(S.sum()) for S in [*squares, *biases])
    if not 0 <= total < float("inf"):
        fail("rebalance", "‖θ‖² must be finite", total, "Rescale or replace the offending weights.")
    return squares, biases


def _solve(squares: list[Tensor], biases: list[Tensor], tolerance: float) -> tuple[list[Tensor], int]:
    """Minimise Σ S_ℓ,ij e^{2(u_ℓ,i − u_{ℓ-1},j)} + Σ B_ℓ,i e^{2u_ℓ,i} over the u of the hidden layers."""
    sizes = [len(b) for b in biases]
    if not sizes:
        return [], 0
    zero = torch.zeros(1, dtype=torch.float64)

    def parts(v: Tensor) -> list[Tensor]:
        return [zero, *v.split(sizes), zero]

    def scaled(v: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        us = parts(v)
        S = [M * (2 * (us[i + 1][:, None] - us[i][None, :])).exp() for i, M in enumerate(squares)]
        return S, [b * (2 * us[i + 1]).exp() for i, b in enumerate(biases)]

    def value(S: list[Tensor], B: list[Tensor]) -> float:
        return float(sum(M.sum() for M in S) + sum(b.sum() for b in B))

    u = _sweeps(squares, biases)
    S, B = scaled(u)
    current = value(S, B)
    least, stalled = float("inf"), 0
    for step in range(_MAX_NEWTON_STEPS):
        incoming = torch.cat([S[i].sum(1) + B[i] for i in range(len(sizes))])
        outgoing = torch.cat([S[i + 1].sum(0) for i in range(len(sizes))])
        gradient = incoming - outgoing
        imbalance = float(gradient.abs().sum())
        # The gradient is a difference of sums, and cannot fall below their rounding.
        stalled = stalled + 1 if imbalance > 0.5 * least and imbalance <= 1e-10 * current else 0
        least = min(least, imbalance)
        if imbalance <= tolerance * max(current, torch.finfo(torch.float64).tiny) or stalled >= 3:
            return list(u.split(sizes)), step
        diagonal = incoming + outgoing
        diagonal = torch.where(diagonal > 0, diagonal, torch.ones_like(diagonal))

        def product(v: Tensor, S: list[Tensor] = S, diagonal: Tensor = diagonal) -> Tensor:
            vs = parts(v)
            cross = [S[i] @ vs[i] + S[i + 1].mT @ vs[i + 2] for i in range(len(sizes))]
            return 2 * (diagonal * v - torch.cat(cross))

        # Inexact Newton: solve only as well as the distance to the minimum deserves.
        forcing = min(0.1, imbalance / current)
        direction = _conjugate_gradients(product, -gradient, 2 * diagonal, forcing)
        # e^{2u} overflows quickly: a bounded first step keeps badly scaled networks safe.
        length = min(1.0, 2.0 / max(float(direction.abs().max()), 1e-300))
        slope = 2.0 * float(gradient @ direction)
        # Close to the minimum a step gains less than the rounding of the norm, and is still worth taking.
        rounding = 16 * torch.finfo(torch.float64).eps * current
        while True:
            trial = u + length * direction
            S, B = scaled(trial)
            new = value(S, B)
            if new <= current + 1e-4 * length * slope + rounding or length < 1e-8:
                break
            length *= 0.5
        if not new <= current + rounding:
            return list(u.split(sizes)), step
        u, current = trial, new
    return list(u.split(sizes)), _MAX_NEWTON_STEPS


def _sweeps(squares: list[Tensor], biases: list[Tensor], sweeps: int = 10) -> Tensor:
    """Balance one layer after another, there and back: exact for a layer whose neighbours stand still.

    e^{4u} = outgoing/incoming minimises incoming·e^{2u} + outgoing·e^{−2u}. Sweeps remove all imbalance
    between neighbours at once; what is smooth through depth is left to Newton's method.
    """
    us = [torch.zeros(len(b), dtype=torch.float64) for b in biases]
    zero = torch.zeros(1, dtype=torch.float64)
    order = list(range(len(us)))
    for _ in range(sweeps):
        for i in order + order[::-1]:
            before = us[i - 1] if i > 0 else zero
            after = us[i + 1] if i + 1 < len(us) else zero
            incoming = squares[i] @ (-2 * before).exp() + biases[i]
            outgoing = (2 * after).exp() @ squares[i + 1]
            alive = (incoming > 0) & (outgoing > 0)
            ratio = torch.where(alive, outgoing, 1.0) / torch.where(alive, incoming, 1.0)
            us[i] = ratio.log() / 4
    return torch.cat(us)


def _conjugate_gradients(
    product: Callable[[Tensor], Tensor], right: Tensor, diagonal: Tensor, forcing: float, steps: int = 1000
) -> Tensor:
    """Solve A x = right for a symmetric positive (semi-)definite A, preconditioned by its diagonal."""
    x = torch.zeros_like(right)
    r = right.clone()
    z = r / diagonal
    p = z.clone()
    rho = r @ z
    stop = float(rho) * forcing**2
    for _ in range(steps):
        if float(rho) <= stop:
            break
        Ap = product(p)
        curvature = p @ Ap
        if float(curvature) <= 0:
            break
        alpha = rho / curvature
        x += alpha * p
        r -= alpha * Ap
        z = r / diagonal
        rho, previous = r @ z, rho
        p = z + (rho / previous) * p
    return x
