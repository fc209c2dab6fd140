"""A-zopt: minimise the loss over representations Z instead of weights W, by continuation in a Tikhonov γ."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus._checks import as_matrix, check_choice, check_integer, check_number, fail
from isthmus._cite import cites
from isthmus.measures import KernelNorm
from isthmus.networks import FullyConnected
from isthmus.objective import LOSSES, class_indices, cost
from isthmus.trace import activate, with_ones

#: γ of each stage, as shares of the mean square activation (times N): the last decides how far Z is from admissible.
GAMMAS = tuple(10.0**-e for e in range(1, 8))

STATES = ("converged", "not converged", "inadmissible", "diverged")

#: Share of the loss by which that of the network may exceed the relaxed one.
CLOSE = 0.01

#: A stage is at rest when its last quarter of evaluations, so many at least, lowered the loss by less than this share.
LEAST_FLAT, FLAT = 10, 1e-3


@dataclass(frozen=True, eq=False)
class ZOptimum:
    """What minimising over representations ended with.

    Attributes
    ----------
    network : FullyConnected or None
        Ψ of the representations, made admissible; None for an activation other than σ_a.
    Ws : tuple of Tensor (n_ℓ, n_{ℓ-1} + 1)
        Its weights, the bias b_ℓ as last column; without that column when β = 0. Empty after divergence.
    loss : float
        𝓛 of these weights, evaluated through them.
    relaxed_loss : float
        C(Z_L) + λΣTr[Z_ℓ(K^σ_{ℓ-1} + γI)⁻¹Z_ℓᵀ] at the end of the last stage. Its global minimum is below that of 𝓛;
        what is reached here is a local one.
    gammas : tuple of float
        Shares, one for each stage.
    inadmissibility : tuple of float
        ‖Z_ℓ − W_ℓZ^σ_{ℓ-1}‖/‖Z_ℓ‖ before Z was made admissible; the first is 0 by construction.
    state : {"converged", "not converged", "inadmissible", "diverged"}
        ``"inadmissible"``: the loss of the network is more than 1 % above the relaxed one. ``"not converged"``: a stage
        used up its iterations while its loss still fell.
    history : tuple of float
        Relaxed loss after each stage.
    seconds : float
    """

    network: FullyConnected | None
    Ws: tuple[Tensor, ...]
    loss: float
    relaxed_loss: float
    gammas: tuple[float, ...]
    inadmissibility: tuple[float, ...]
    state: str
    history: tuple[float, ...]
    seconds: float


@cites("features2022", "Prop. 1, §3.3, App. B", ids=("A-zopt",))
def optimise_representations(
    X: Any,
    Y: Any,
    *,
    widths: Sequence[int],
    ridge: float,
    loss: str = "mse",
    slope: float = 0.0,
    bias: float = 1.0,
    activation: Callable[[Tensor], Tensor] | None = None,
    start: FullyConnected | None = None,
    gammas: Sequence[float] = GAMMAS,
    iterations: int = 400,
    seed: int = 0,
) -> ZOptimum:
    """Minimise C(Z_L) + λΣ_ℓTr[Z_ℓ(K^σ_{ℓ-1} + γI)⁻¹Z_ℓᵀ] over Z_1 … Z_L for γ → 0, and map back to weights.

    Each term is min_W ‖W‖² + ‖WZ^σ_{ℓ-1} − Z_ℓ‖²/γ: the stable loss is an exact partial minimum over weights of a
    penalised problem, finite for every Z. With W at that minimum its gradient is that of the penalty alone (envelope
    theorem): no derivative of an inverse is taken, and only (n+1) × (n+1) systems are solved. Z_1 never leaves
    Im(Z^σ_0)ᵀ, which does not move: it is kept as C_1·diag(s)Vᵀ with the SVD of Z^σ_0, its term being ‖C_1‖².

    Parameters
    ----------
    X : array (N, d_in)
    Y : array (N, d_out), or (N,) of labels for ``"cross_entropy"``
    widths : sequence of int
        n_1 … n_{L-1}.
    ridge : float
        λ > 0.
    loss : {"mse", "cross_entropy"}
    slope, bias : float
        a of σ_a, and β.
    activation : callable, optional
        Any σ, entrywise, instead of σ_a: the result then has weights and no network.
    start : FullyConnected, optional
        Where to begin; by default a random network.
    gammas : sequence of float
        Shares of ‖Z^σ_{ℓ-1}‖²/n_{ℓ-1} at the beginning of each stage, decreasing.
    iterations : int
        Of L-BFGS, for each stage.
    seed : int
        Of the random start.
    """
    who = "optimise_representations"
    began = time.perf_counter()
    inputs = as_matrix(who, "X", X)
    check_choice(who, "loss", loss, LOSSES)
    targets = _targets(who, Y, len(inputs), loss)
    check_number(who, "ridge", ridge, low=0.0, low_open=True)
    check_integer(who, "iterations", iterations, low=1)
    shares = [check_number(who, "gammas", g, low=0.0, low_open=True) for g in gammas]
    if not shares or shares != sorted(shares, reverse=True):
        fail(who, "`gammas` must decrease", list(gammas), "Pass e.g. (0.1, 0.01, 0.001).")
    outputs = targets.shape[1] if targets.ndim == 2 else int(targets.max()) + 1
    dims = [inputs.shape[1], *(check_integer(who, "widths", n, low=1) for n in widths), outputs]
    net = _start(who, start, dims, slope, bias, seed)
    problem = _Problem(inputs, targets, ridge, loss, bias, activation or (lambda Z: activate(Z, slope)))

    variables = problem.variables(net)
    history, finished, relaxed = [], True, math.nan
    for share in shares:
        scales = problem.scales(variables, share)
        relaxed, stopped = _descend(problem, variables, scales, iterations)
        history.append(relaxed)
        # A stage of small γ hardly moves what an earlier one has left unfinished.
        finished = finished and stopped
        if not math.isfinite(relaxed):
            seconds = time.perf_counter() - began
            return ZOptimum(None, (), math.nan, relaxed, tuple(shares), (), "diverged", tuple(history), seconds)
    Ws, missed = problem.weights(variables, problem.scales(variables, shares[-1]))
    value = problem.loss_of(Ws)
    network = None
    if activation is None:
        plain = [W if bias == 0.0 else W[:, :-1] for W in Ws]
        network = FullyConnected.from_weights(
            plain, None if bias == 0.0 else [W[:, -1] for W in Ws], slope=slope, bias=bias
        )
    state = "converged"
    if value > relaxed * (1.0 + CLOSE):
        state = "inadmissible"
    elif not finished:
        state = "not converged"
    seconds = time.perf_counter() - began
    return ZOptimum(network, Ws, value, relaxed, tuple(shares), missed, state, tuple(history), seconds)


class _Problem:
    """The relaxed loss as a function of C_1, Z_2 … Z_L, samples as columns."""

    def __init__(
        self,
        X: Tensor,
        Y: Tensor,
        ridge: float,
        loss: str,
        bias: float,
        activation: Callable[[Tensor], Tensor],
    ) -> None:
        self.Y, self.ridge, self.loss, self.bias, self.activation = Y, ridge, loss, bias, activation
        self.S_0 = with_ones(X.mT, bias)
        norm = KernelNorm(self.S_0)
        r = norm.rank
        self.basis = norm.U[:, :r]
        self.frame = norm.s[:r, None] * norm.Vh[:r]

    def variables(self, net: FullyConnected) -> list[Tensor]:
        """C_1, Z_2 … Z_L of a network."""
        W = net.Ws[0].detach().double()
        if self.bias != 0.0:
            W = torch.cat([W, net.bs[0].detach().double()[:, None]], 1)
        first = W @ self.basis
        made, S = [first], self.after(first @ self.frame)
        for index in range(1, net.depth):
            V = net.Ws[index].detach().double()
            if self.bias != 0.0:
                V = torch.cat([V, net.bs[index].detach().double()[:, None]], 1)
            made.append(V @ S)
            S = self.after(made[-1])
        return [Z.clone().requires_grad_(True) for Z in made]

    def after(self, Z: Tensor) -> Tensor:
        """Z^σ."""
        return with_ones(self.activation(Z), self.bias)

    def scales(self, variables: list[Tensor], share: float) -> list[float]:
        """γ for the layers 2 … L: absolute, and held during a stage."""
        with torch.no_grad():
            hidden = [variables[0] @ self.frame, *variables[1:-1]]
            activations = [self.after(Z) for Z in hidden]
        tiny = torch.finfo(torch.float64).tiny
        return [share * max(float(S.square().sum()) / len(S), tiny) for S in activations]

    def relaxed(self, variables: list[Tensor], gammas: Sequence[float]) -> Tensor:
        """C(Z_L) + λ(‖C_1‖² + Σmin_W ‖W‖² + ‖WZ^σ − Z‖²/γ), differentiable."""
        total = variables[0].square().sum()
        Z = variables[0] @ self.frame
        for target, gamma in zip(variables[1:], gammas):
            S = self.after(Z)
            # At the minimum over W the derivative by W vanishes: W may stand as a constant.
            W = _ridge_weights(target.detach(), S.detach(), gamma)
            total = total + W.square().sum() + (W @ S - target).square().sum() / gamma
            Z = target
        return cost(Z.mT, self.Y, self.loss) + self.ridge * total

    def weights(self, variables: list[Tensor], gammas: Sequence[float]) -> tuple[tuple[Tensor, ...], tuple[float, ...]]:
        """Ψ of the representations made admissible front to back, and how far they were from it."""
        Ws, missed = [], []
        S = self.S_0
        with torch.no_grad():
            wanted = [variables[0] @ self.frame, *variables[1:]]
            for index, Z in enumerate(wanted):
                if index == 0:
                    W = variables[0] @ self.basis.mT
                else:
                    # Stable weights give an admissible Z; of the weights with that Z the least ones are taken.
                    norm = KernelNorm(S)
                    W = norm.weights(_ridge_weights(Z, S, gammas[index - 1]) @ S)
                Ws.append(W)
                size = float(Z.norm())
                missed.append(float((W @ S - Z).norm()) / size if size > 0.0 else 0.0)
                S = self.after(W @ S)
        return tuple(Ws), tuple(missed)

    def loss_of(self, Ws: Sequence[Tensor]) -> float:
        """𝓛(W), through the weights."""
        S, Z = self.S_0, self.S_0
        for W in Ws:
            Z = W @ S
            S = self.after(Z)
        return float(cost(Z.mT, self.Y, self.loss)) + self.ridge * sum(float(W.square().sum()) for W in Ws)


def _ridge_weights(Z: Tensor, S: Tensor, gamma: float) -> Tensor:
    """argmin_W ‖W‖² + ‖WS − Z‖²/γ, by the smaller of the two systems."""
    n, N = S.shape
    eye = torch.eye(min(n, N), dtype=torch.float64)
    if n <= N:
        return torch.linalg.solve(S @ S.mT + gamma * eye, S @ Z.mT).mT
    return torch.linalg.solve(S.mT @ S + gamma * eye, Z.mT).mT @ S.mT


def _descend(problem: _Problem, variables: list[Tensor], gammas: list[float], iterations: int) -> tuple[float, bool]:
    """L-BFGS on the relaxed loss; its end, and whether it came to rest."""
    optimiser = torch.optim.LBFGS(
        variables,
        max_iter=iterations,
        max_eval=2 * iterations,
        history_size=30,
        tolerance_grad=1e-10,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )
    values = []

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = problem.relaxed(variables, gammas)
        value.backward()
        values.append(float(value.detach()))
        return value

    optimiser.step(closure)
    with torch.no_grad():
        end = float(problem.relaxed(variables, gammas))
    # Before the iterations were used up there was no gradient or no step left; otherwise the last quarter must be flat.
    if optimiser.state[variables[0]]["n_iter"] < iterations and len(values) < 2 * iterations:
        return end, True
    quarter = len(values) // 4
    return end, quarter >= LEAST_FLAT and values[-quarter] - end <= FLAT * abs(end)


def _start(
    who: str, start: FullyConnected | None, dims: list[int], slope: float, bias: float, seed: int
) -> FullyConnected:
    check_number(who, "slope", slope, low=-1.0, high=1.0)
    check_number(who, "bias", bias)
    if start is None:
        source = torch.Generator().manual_seed(check_integer(who, "seed", seed, low=0))
        return FullyConnected(dims, slope, bias, dtype=torch.float64, generator=source)
    if tuple(start.dims) != tuple(dims) or start.bias != bias:
        got = f"{list(start.dims)} with bias {start.bias:g}"
        fail(who, f"`start` must have dims {dims} and bias {bias:g}", got, "Make it of these widths.")
    return start


def _targets(who: str, Y: Any, samples: int, loss: str) -> Tensor:
    targets = as_matrix(who, "Y", Y)
    if len(targets) != samples:
        fail(who, "`X` and `Y` must have as many rows", f"{samples} and {len(targets)}", "Pass one for each sample.")
    return class_indices(who, targets) if loss == "cross_entropy" and targets.shape[1] == 1 else targets
