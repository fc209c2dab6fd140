"""A-path: the two-point problem A_0 = X, B_1 = (2/λN)(Y − A_1) of a leaky ResNet, solved by Newton's method."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus._activations import Rounding, scales_of
from isthmus._checks import as_matrix, check_integer, check_number, fail
from isthmus._cite import cites
from isthmus._errors import DataError
from isthmus.networks import LeakyResNet
from isthmus.trace import activate, activation_derivative, with_ones

STATES = ("converged", "at kinks", "not converged", "diverged")

#: Width times samples: the linearised problem has matrices of this size, one for each step.
MOST = 2000

#: Share of the first-order decrease that a step must give, and the shortest step that is tried.
ARMIJO, SHORTEST = 1e-4, 2.0**-20

#: Decrease of the loss, relative to it, that rounding may hide.
ROUNDING = 1e-13

#: Half-widths of the parabolas that stand for kinks, as shares of the scale of their representation; the residual at
#: which the next one is taken; and how often those of the last are moved to the slopes that entries have there.
BANDS, COARSE, MOVES = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001), 1e-3, 30

#: Second-order terms of the linearised problem: all of them, only those that keep it convex, none (Gauss–Newton).
FULL, CONVEX, NONE = "full", "convex", "none"


@dataclass(frozen=True, eq=False)
class PathOptimum:
    """What solving for the path ended with.

    Attributes
    ----------
    network : LeakyResNet
        Its weights are W_ℓ = L̃B_ℓσ(A_{ℓ-1})ᵀ up to ``residual``; the maps in and out are those of the start, fixed.
    loss : float
        (1/N)‖f(X) − Y‖² + ridge·Σρ_ℓ‖W_ℓ‖².
    residual : float
        √(Σρ‖W_ℓ − L̃B_ℓσ(A_{ℓ-1})ᵀ‖²/Σρ‖W_ℓ‖²): the gradient of the loss relative to that of its ridge term.
    resolved : float
        The same with derivatives in [a, 1] chosen where entries of A_ℓ are at a kink.
    kinks : int
        Entries for which one was chosen.
    state : {"converged", "at kinks", "not converged", "diverged"}
        Which of the two is below the tolerance: the residual, the resolved one only, or none.
    losses, residuals : tuple of float
        Of the iterations, with kinks rounded off on the way.
    newton : int
        Iterations that took the whole step of Newton's method, or a part of it; the others took a convex one.
    seconds : float
    """

    network: LeakyResNet
    loss: float
    residual: float
    resolved: float
    kinks: int
    state: str
    losses: tuple[float, ...]
    residuals: tuple[float, ...]
    newton: int
    seconds: float


@cites("hamiltonian2024", "§1.3 and §1.5", ids=("A-path",))
def optimise_path(
    net: LeakyResNet, X: Any, Y: Any, *, ridge: float, iterations: int = 400, tolerance: float = 1e-8
) -> PathOptimum:
    """Solve A_ℓ = A_{ℓ-1} + ρ∂_B𝓗(A_{ℓ-1}, B_ℓ), B_{ℓ-1} = B_ℓ + ρ∂_A𝓗(A_{ℓ-1}, B_ℓ), A_0 = X, B_L = (2/λN)(Y − A_L).

    Solutions are the critical points of the squared error with ridge. Each iteration solves the linearised two-point
    problem by a sweep from the end: δB_ℓ = P_ℓδA_ℓ + q_ℓ with P_L = −(2/λN), so that nothing is integrated in the
    direction in which it grows as e^{L̃}. The path is then followed forwards with this feedback, as far along as the
    loss falls. Where that fails for want of convexity, P_ℓ is cut to its negative part, or all second-order terms are
    left out (Gauss–Newton), whichever does better. Kinks of σ are parabolas at first, ever narrower; those that entries
    stay in are then moved to the slope that they have there, so that they meet the kink itself.

    Parameters
    ----------
    net : LeakyResNet
        Where to begin, and the steps, slope, bias and maps; L̃ > 0. Not changed. Width times N is at most 2000.
    X, Y : arrays (N, d_in), (N, d_out)
    ridge : float
        λ/2L̃ > 0.
    iterations : int
    tolerance : float
        Of the residual.

    Returns
    -------
    PathOptimum

    Notes
    -----
    A critical point need not be the best one: compare the loss from several starts. At a minimum of a ReLU network
    entries sit at kinks, where no gradient vanishes: ``"at kinks"`` is then as good as ``"converged"``. The derivation,
    and where it does not converge, are in docs/notes/paths.md.

    Examples
    --------
    >>> import torch, isthmus
    >>> g = torch.Generator().manual_seed(0)
    >>> net = isthmus.LeakyResNet(2, 2, 4, 6, 2.0, slope=1.0, dtype=torch.float64, generator=g)
    >>> X = torch.randn(12, 2, dtype=torch.float64, generator=g)
    >>> isthmus.reformulations.optimise_path(net, X, X.flip(1), ridge=1e-2).state
    'converged'
    """
    who = "optimise_path"
    began = time.perf_counter()
    check_number(who, "ridge", ridge, low=0.0, low_open=True)
    check_number(who, "tolerance", tolerance, low=0.0)
    check_integer(who, "iterations", iterations, low=1)
    if not net.effective_depth > 0.0:
        fail(who, "`net` must have a leak, L̃ > 0", net.effective_depth, "There are no momenta without: train it.")
    inputs = as_matrix(who, "X", X, columns=net.d_in)
    targets = as_matrix(who, "Y", Y, columns=net.d_out)
    if len(inputs) != len(targets):
        got = f"{len(inputs)} and {len(targets)}"
        fail(who, "`X` and `Y` must have as many rows", got, "Pass one for each sample.", error=DataError)
    if net.width * len(inputs) > MOST:
        got = f"{net.width} × {len(inputs)}"
        fail(who, f"width times samples must be at most {MOST}", got, "Take fewer samples, or train the network.")

    problem = _TwoPoint(net, inputs, targets, ridge)
    Ws = [W.detach().double() for W in net.Ws]
    seen = _Iterations(problem, iterations)
    for band in BANDS if net.slope < 1.0 else (0.0,):
        problem.round_off(Ws, band)
        Ws = seen.run(Ws, max(tolerance, COARSE) if band else tolerance)
    for move in range(MOVES if net.slope < 1.0 else 0):
        if problem.resolved(Ws) <= tolerance or not math.isfinite(seen.losses[-1]):
            break
        # With the first the last band is solved to the end.
        if move:
            problem.move(Ws)
        Ws = seen.run(Ws, tolerance)
    resolved, kinks = problem.resolved(Ws), problem.kinks(Ws)
    problem.rounded = None
    residual, loss = problem.resolved(Ws), problem.follow(Ws)[1]
    state = "diverged" if not math.isfinite(loss) else "not converged"
    if residual <= tolerance:
        state, resolved, kinks = "converged", residual, 0
    elif resolved <= tolerance:
        state = "at kinks"
    return PathOptimum(
        network=problem.network(Ws),
        loss=loss,
        residual=residual,
        resolved=resolved,
        kinks=kinks,
        state=state,
        losses=tuple(seen.losses),
        residuals=tuple(seen.residuals),
        newton=seen.newton,
        seconds=time.perf_counter() - began,
    )


class _Iterations:
    """Steps of Newton's method, and what they gave; ``left`` of them may still be taken."""

    def __init__(self, problem: _TwoPoint, left: int) -> None:
        self.problem, self.left, self.newton = problem, left, 0
        self.losses: list[float] = []
        self.residuals: list[float] = []

    def run(self, Ws: list[Tensor], tolerance: float) -> list[Tensor]:
        """Until the residual is below ``tolerance``, no step lowers the loss, or none are left."""
        problem = self.problem
        As, loss = problem.follow(Ws)
        while True:
            Bs = problem.momenta(As, Ws)
            self.losses.append(loss)
            self.residuals.append(problem.residual(As, Bs, Ws))
            if not math.isfinite(loss) or self.residuals[-1] <= tolerance or self.left <= 0:
                return Ws
            moved = problem.descend(As, Bs, Ws, loss, FULL)
            self.newton += moved is not None
            if moved is None:
                others = [problem.descend(As, Bs, Ws, loss, terms) for terms in (NONE, CONVEX)]
                moved = min((one for one in others if one is not None), key=lambda one: one[2], default=None)
            if moved is None:
                return Ws
            Ws, As, loss = moved
            self.left -= 1


#: Weights, path and loss.
Moved = tuple[list[Tensor], list[Tensor], float]

#: (G_ℓ, g_ℓ) for every step.
Feedback = list[tuple[Tensor, Tensor]]


class _TwoPoint:
    """The path of a leaky ResNet as a function of its weights, its momenta, and the linearised problem.

    Matrices are as printed, (w, N); δA and δB are vectors of w·N entries, neuron by neuron.
    """

    def __init__(self, net: LeakyResNet, X: Tensor, Y: Tensor, ridge: float) -> None:
        self.net, self.Y, self.ridge = net, Y.mT, ridge
        self.W_in, self.W_out = (M.detach().double() for M in (net.W_in, net.W_out))
        self.start = self.W_in @ X.mT
        self.rho, self.leak = net.rho.tolist(), net.effective_depth
        self.lam, self.samples = 2.0 * self.leak * ridge, len(X)
        #: What stands for the kinks of A_0 … A_{L-1}.
        self.rounded: list[Rounding] | None = None

    def round_off(self, Ws: Sequence[Tensor], band: float) -> None:
        """Parabolas of this half-width, relative to the scale of each representation; none for 0."""
        As, _ = self.follow(Ws)
        self.rounded = [Rounding(band * scale) for scale in scales_of(As[:-1])] if band else None

    def move(self, Ws: Sequence[Tensor]) -> None:
        """Those that entries are in to the slopes which they have there."""
        As, _ = self.follow(Ws)
        self.rounded = [one.moved(A, one.band) for one, A in zip(self.rounded or (), As)]

    def sigma(self, A: Tensor, ell: int) -> Tensor:
        """σ(A_ℓ), with the row of ones."""
        a = self.net.slope
        return with_ones(activate(A, a) if self.rounded is None else self.rounded[ell].value(A, a), self.net.bias)

    def slope(self, A: Tensor, ell: int) -> Tensor:
        """σ̇(A_ℓ)."""
        a = self.net.slope
        if self.rounded is None:
            return activation_derivative(A, a)
        return a + (1.0 - a) * self.rounded[ell].share(A)

    def curvature(self, A: Tensor, ell: int) -> Tensor | None:
        """σ̈(A_ℓ); None where it is 0 everywhere."""
        if self.rounded is None:
            return None
        D = self.rounded[ell].share(A)
        return (1.0 - self.net.slope) / (2.0 * self.rounded[ell].band) * ((D > 0.0) & (D < 1.0)).to(A)

    def step(self, A: Tensor, S: Tensor, W: Tensor, rho: float) -> Tensor:
        """A_ℓ from A_{ℓ-1} and S = σ(A_{ℓ-1})."""
        return (1.0 - rho * self.leak) * A + rho * W @ S

    def resolved(self, Ws: Sequence[Tensor]) -> float:
        """Residual of the network itself, with the derivatives of the parabolas where there are any."""
        rounded, self.rounded = self.rounded, None
        As, _ = self.follow(Ws)
        self.rounded = rounded
        Bs = self.momenta(As, Ws)
        self.rounded = None
        found = self.residual(As, Bs, Ws)
        self.rounded = rounded
        return found

    def kinks(self, Ws: Sequence[Tensor]) -> int:
        """Entries that are in a parabola."""
        As, _ = self.follow(Ws)
        shares = [one.share(A) for one, A in zip(self.rounded or (), As)]
        return sum(int(((D > 0.0) & (D < 1.0)).sum()) for D in shares)

    def follow(self, Ws: Sequence[Tensor]) -> tuple[list[Tensor], float]:
        """A_0 … A_L and the loss."""
        As = [self.start]
        for ell, (W, rho) in enumerate(zip(Ws, self.rho)):
            As.append(self.step(As[-1], self.sigma(As[-1], ell), W, rho))
        return As, self.loss(As[-1], Ws)

    def loss(self, A: Tensor, Ws: Sequence[Tensor]) -> float:
        """(1/N)‖W_out A_L − Y‖² + ridge·Σρ‖W‖²."""
        penalty = sum(rho * float(W.square().sum()) for W, rho in zip(Ws, self.rho))
        return float((self.W_out @ A - self.Y).square().sum()) / self.samples + self.ridge * penalty

    def momenta(self, As: Sequence[Tensor], Ws: Sequence[Tensor]) -> list[Tensor]:
        """B_1 … B_L = −(1/λ)∂C/∂A_ℓ."""
        Bs = [2.0 / (self.lam * self.samples) * self.W_out.mT @ (self.Y - self.W_out @ As[-1])]
        for ell in range(len(Ws) - 1, 0, -1):
            rho, B, W = self.rho[ell], Bs[0], Ws[ell][:, : self.net.width]
            Bs.insert(0, (1.0 - rho * self.leak) * B + rho * self.slope(As[ell], ell) * (W.mT @ B))
        return Bs

    def forces(self, As: Sequence[Tensor], Bs: Sequence[Tensor], Ws: Sequence[Tensor]) -> list[Tensor]:
        """L̃B_ℓσ(A_{ℓ-1})ᵀ − W_ℓ, ℓ = 1 … L: minus the gradient, over 2·ridge·ρ."""
        every = enumerate(zip(As, Bs, Ws))
        return [self.leak * B @ self.sigma(A, ell).mT - W for ell, (A, B, W) in every]

    def residual(self, As: Sequence[Tensor], Bs: Sequence[Tensor], Ws: Sequence[Tensor]) -> float:
        """Residual of criticality over all steps."""
        off = sum(rho * float(R.square().sum()) for rho, R in zip(self.rho, self.forces(As, Bs, Ws)))
        size = sum(rho * float(W.square().sum()) for rho, W in zip(self.rho, Ws))
        return math.sqrt(off / size) if size > 0.0 else (0.0 if off == 0.0 else math.inf)

    def descend(self, As: list[Tensor], Bs: list[Tensor], Ws: list[Tensor], loss: float, terms: str) -> Moved | None:
        """The path after one step along the solution of the linearised problem; None where the loss does not fall."""
        swept = self.sweep(As, Bs, Ws, terms)
        if swept is None:
            return None
        Rs = self.forces(As, Bs, Ws)
        every = zip(self.rho, Rs, self.directions(As, Bs, Ws, swept, terms))
        slope = -2.0 * self.ridge * sum(rho * float((R * dW).sum()) for rho, R, dW in every)
        if not slope < 0.0:
            return None
        if -slope <= ROUNDING * loss:
            # What there is to win is rounding of the loss: the residual is judged instead.
            moved = self._advance(As, Bs, Ws, swept, terms, 1.0)
            left = self.residual(moved[1], self.momenta(moved[1], moved[0]), moved[0])
            return moved if left < self.residual(As, Bs, Ws) else None
        size = 1.0
        while size >= SHORTEST:
            moved = self._advance(As, Bs, Ws, swept, terms, size)
            if moved[2] <= loss + ARMIJO * size * slope and moved[2] < loss:
                return moved
            size *= 0.5
        return None

    def directions(
        self, As: list[Tensor], Bs: list[Tensor], Ws: list[Tensor], swept: Feedback, terms: str
    ) -> list[Tensor]:
        """δW_1 … δW_L along the linearised path: for ``"full"`` the step of Newton's method for the loss."""
        found, change = [], torch.zeros_like(self.start)
        for ell, (A, B, W, R, rho) in enumerate(zip(As, Bs, Ws, self.forces(As, Bs, Ws), self.rho)):
            G, g = swept[ell]
            dB = (G @ change.reshape(-1) + g).reshape_as(A)
            S, dS = self.sigma(A, ell), self.slope(A, ell) * change
            dW = R + self.leak * dB @ S.mT
            if terms != NONE:
                dW = dW + self.leak * B @ (torch.cat([dS, torch.zeros_like(dS[:1])]) if self.net.bias else dS).mT
            found.append(dW)
            change = (1.0 - rho * self.leak) * change + rho * (W[:, : self.net.width] @ dS + dW @ S)
        return found

    def _advance(
        self, As: list[Tensor], Bs: list[Tensor], Ws: list[Tensor], swept: Feedback, terms: str, size: float
    ) -> Moved:
        """Follow the path with the feedback of the linearised problem, a share ``size`` of the way."""
        path, weights = [self.start], []
        for ell, (A, B, W, R, rho) in enumerate(zip(As, Bs, Ws, self.forces(As, Bs, Ws), self.rho)):
            G, g = swept[ell]
            S, moved, change = self.sigma(A, ell), self.sigma(path[-1], ell), path[-1] - A
            dB = (G @ change.reshape(-1) + size * g).reshape_as(A)
            new = W + size * R + self.leak * dB @ S.mT
            if terms != NONE:
                new = new + self.leak * B @ (moved - S).mT
            weights.append(new)
            path.append(self.step(path[-1], moved, new, rho))
        return weights, path, self.loss(path[-1], weights)

    def sweep(self, As: list[Tensor], Bs: list[Tensor], Ws: list[Tensor], terms: str) -> Feedback | None:
        """(G_ℓ, g_ℓ) with δB_ℓ = G_ℓδA_{ℓ-1} + g_ℓ that solve the linearised problem; None where there are none.

        With R = L̃Bσᵀ − W, D = σ̇(A_{ℓ-1}), S = σ(A_{ℓ-1}) and K = SᵀS a step of it is

            δA_ℓ = EδA_{ℓ-1} + ρL̃δB_ℓK + ρRS,  E = (1 − ρL̃) + ρW̄(D⊙·) + ρL̃B(D⊙·)ᵀS̄,
            δB_{ℓ-1} = EᵀδB_ℓ + ρL̃D⊙[(D⊙δA_{ℓ-1})BᵀB] + ρσ̈⊙[W̄ᵀB]⊙δA_{ℓ-1} + ρD⊙[R̄ᵀB],

        and without the second-order terms E = (1 − ρL̃) + ρW̄(D⊙·) and δB_{ℓ-1} = EᵀδB_ℓ.
        """
        w, N = self.start.shape
        eye = torch.eye(w * N, dtype=torch.float64)
        P = -2.0 / (self.lam * self.samples) * torch.kron(self.W_out.mT @ self.W_out, torch.eye(N, dtype=torch.float64))
        q = torch.zeros(w * N, dtype=torch.float64)
        Rs = self.forces(As, Bs, Ws)
        found: Feedback = []
        for ell in range(len(Ws) - 1, -1, -1):
            A, B, R, rho, V = As[ell], Bs[ell], Rs[ell], self.rho[ell], Ws[ell][:, :w]
            S, D, bent = self.sigma(A, ell), self.slope(A, ell), self.curvature(A, ell)
            # (i, n), (j, m): entries of neuron i at sample n.
            E = torch.zeros(w, N, w, N, dtype=torch.float64)
            E.diagonal(dim1=1, dim2=3).copy_((rho * V[:, :, None] * D[None]).expand(w, w, N))
            if terms != NONE:
                E += rho * self.leak * torch.einsum("im,jm,jn->injm", B, D, S[:w])
            E = E.reshape(w * N, w * N)
            E.diagonal().add_(1.0 - rho * self.leak)
            K = rho * self.leak * S.mT @ S
            M = eye - torch.einsum("nm,imk->ink", K, P.reshape(w, N, w * N)).reshape(w * N, w * N)
            forcing = q.reshape(w, N) @ K + rho * R @ S
            solved, info = torch.linalg.solve_ex(M, torch.cat([E, forcing.reshape(-1, 1)], 1))
            if int(info) or not bool(torch.isfinite(solved).all()):
                return None
            F, f = solved[:, :-1], solved[:, -1]
            G, g = P @ F, P @ f + q
            found.insert(0, (G, g))
            P, q = E.mT @ G, E.mT @ g
            if terms != NONE:
                inner = rho * self.leak * (B.mT @ B)
                blocks = D[:, :, None] * inner * D[:, None, :]
                P.reshape(w, N, w, N).diagonal(dim1=0, dim2=2).add_(blocks.permute(1, 2, 0))
                if bent is not None:
                    P.diagonal().add_((rho * bent * (V.mT @ B)).reshape(-1))
                q = q + (rho * D * (R[:, :w].mT @ B)).reshape(-1)
            P = 0.5 * (P + P.mT)
            if terms == CONVEX:
                values, vectors = torch.linalg.eigh(P)
                P = (vectors * values.clamp_max(0.0)) @ vectors.mT
        return found

    def network(self, Ws: Sequence[Tensor]) -> LeakyResNet:
        """With these weights, and the maps as they are."""
        net = self.net
        return LeakyResNet.from_weights(
            Ws,
            net.rho,
            effective_depth=self.leak,
            W_in=self.W_in,
            W_out=self.W_out,
            slope=net.slope,
            bias=net.bias,
            steps=net.steps,
        )
