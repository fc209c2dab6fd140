"""A-zopt: minimise the loss over representations Z instead of weights W, by continuation in a Tikhonov γ."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isthmus._checks import as_matrix, check_choice, check_integer, check_number, check_seed, fail
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
    network : FullyConnected, nn.Sequential or None
        Ψ of the representations, made admissible: linear layers and the activation in turn (``nn.Linear`` with the bias
        βb_ℓ) where that is not σ_a. None after divergence.
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

    network: FullyConnected | nn.Sequential | None
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
    start: FullyConnected | nn.Sequential | None = None,
    gammas: Sequence[float] = GAMMAS,
    iterations: int = 400,
    seed: int = 0,
) -> ZOptimum:
    """Minimise C(Z_L) + λΣ_ℓTr[Z_ℓ(K^σ_{ℓ-1} + γI)⁻¹Z_ℓᵀ] over Z_1 … Z_L for γ → 0, and map back to weights.

    Each term is min_W ‖W‖² + ‖WZ^σ_{ℓ-1} − Z_ℓ‖²/γ: the stable loss is an exact partial minimum over weights of a
    penalised problem, finite for every Z. With W at that minimum its gradient is that of the penalty alone (envelope
    theorem): no derivative of an inverse is taken, and only (n+1) × (n+1) systems are solved. Z_1 never leaves
    Im(Z^σ_0)ᵀ, which does not move: it is kept as C_1·diag(s)Vᵀ with the SVD of Z^σ_0, its term being ‖C_1‖².

    None of this asks anything of σ but that it acts entry by entry and is differentiable almost everywhere: unlike the
    reformulation over covariances it holds for tanh, softplus, sine, … as for σ_a.

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
        Any σ, entrywise, instead of σ_a: ``torch.tanh``, ``nn.Softplus()``, a function of your own. A module with
        parameters is taken as it is.
    start : FullyConnected, or nn.Sequential of ``nn.Linear`` and activations, optional
        Where to begin: its weights are taken, its activation is not. By default a random network.
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
    if activation is not None:
        _check_entrywise(who, activation)
    weights = _start(who, start, dims, slope, bias, seed)
    problem = _Problem(inputs, targets, ridge, loss, bias, activation or (lambda Z: activate(Z, slope)))

    variables = problem.variables(weights)
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
    network = _network(Ws, slope, bias, activation)
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

    def variables(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """C_1, Z_2 … Z_L of the weights [W_ℓ, b_ℓ] of a network."""
        first = weights[0] @ self.basis
        made = [first]
        with torch.no_grad():
            S = self.after(first @ self.frame)
            for W in weights[1:]:
                made.append(W @ S)
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
    who: str,
    start: FullyConnected | nn.Sequential | None,
    dims: list[int],
    slope: float,
    bias: float,
    seed: int,
) -> list[Tensor]:
    """The weights [W_ℓ, b_ℓ] to begin with, in float64; W_ℓ where there is no bias."""
    check_number(who, "slope", slope, low=-1.0, high=1.0)
    check_number(who, "bias", bias)
    if start is None:
        source = torch.Generator().manual_seed(check_seed(who, seed))
        start = FullyConnected(dims, slope, bias, dtype=torch.float64, generator=source)
    if not isinstance(start, nn.Sequential):
        Ws, bs, amount = start.Ws, start.bs if start.bias else (), start.bias
    else:
        layers = [layer for layer in start.modules() if isinstance(layer, nn.Linear)]
        Ws = tuple(layer.weight for layer in layers)
        amount = bias if layers and all(layer.bias is not None for layer in layers) else 0.0
        bs = tuple(layer.bias / amount for layer in layers) if amount else ()
    shapes = [tuple(W.shape) for W in Ws]
    if shapes != [(n, m) for m, n in zip(dims, dims[1:])] or amount != bias:
        got = f"weights of shapes {shapes} with bias {amount:g}"
        fail(who, f"`start` must have dims {dims} and bias {bias:g}", got, "Make it of these widths.")
    if not bs:
        return [W.detach().double() for W in Ws]
    return [torch.cat([W, b[:, None]], 1).detach().double() for W, b in zip(Ws, bs)]


def _check_entrywise(who: str, activation: Callable[[Tensor], Tensor]) -> None:
    """Refuse what mixes entries: softmax, normalisations, pooling."""
    Z = torch.linspace(-2.0, 2.0, 12, dtype=torch.float64).reshape(3, 4)
    with torch.no_grad():
        whole, single = activation(Z), activation(Z.reshape(-1, 1))
    if whole.shape != Z.shape or single.shape != (12, 1):
        got = f"shape {tuple(whole.shape)} from {tuple(Z.shape)}"
        fail(who, "`activation` must keep the shape of what it is applied to", got, "Pass e.g. torch.tanh.")
    if not torch.allclose(whole.reshape(-1, 1), single, rtol=1e-9, atol=1e-12, equal_nan=True):
        got = "one whose entries depend on one another, or on chance"
        fail(who, "`activation` must act entry by entry", got, "Pass e.g. torch.tanh.")


def _network(
    Ws: Sequence[Tensor], slope: float, bias: float, activation: Callable[[Tensor], Tensor] | None
) -> FullyConnected | nn.Sequential:
    plain = [W if bias == 0.0 else W[:, :-1] for W in Ws]
    biases = None if bias == 0.0 else [W[:, -1] for W in Ws]
    if activation is None:
        return FullyConnected.from_weights(plain, biases, slope=slope, bias=bias)
    layers: list[nn.Module] = []
    for index, W in enumerate(plain):
        with torch.random.fork_rng(devices=[]):
            layer = nn.Linear(W.shape[1], W.shape[0], bias=biases is not None, dtype=W.dtype)
        with torch.no_grad():
            layer.weight.copy_(W)
            if biases is not None:
                layer.bias.copy_(bias * biases[index])
        layers += [layer, activation if isinstance(activation, nn.Module) else _Entrywise(activation)]
    return nn.Sequential(*layers[:-1])


class _Entrywise(nn.Module):
    """An entrywise function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, Z: Tensor) -> Tensor:
        """σ(Z)."""
        return self.function(Z)

    def extra_repr(self) -> str:
        """Shown by ``print(net)``."""
        return getattr(self.function, "__name__", "")


def _targets(who: str, Y: Any, samples: int, loss: str) -> Tensor:
    targets = as_matrix(who, "Y", Y)
    if len(targets) != samples:
        fail(who, "`X` and `Y` must have as many rows", f"{samples} and {len(targets)}", "Pass one for each sample.")
    return class_indices(who, targets) if loss == "cross_entropy" and targets.shape[1] == 1 else targets
