"""A-kopt: minimise the loss over covariance pairs, layer by layer, by Frank–Wolfe over the cone of neurons."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import torch
from scipy.optimize import minimize
from torch import Tensor

from isthmus._checks import as_matrix, check_integer, check_number, fail
from isthmus._cite import cites
from isthmus.constructions import constant_identity_path, minimal_network
from isthmus.measures import KernelNorm, parameter_norms
from isthmus.networks import FullyConnected
from isthmus.objective import cost
from isthmus.reformulations.certificate import LayerCertificate, certify_layer
from isthmus.reformulations.layer_block import Block
from isthmus.reformulations.oracle import search
from isthmus.trace import activate, with_ones

#: Samples up to which this reference is meant: everything is N × N, and neurons may number N(N+1).
MOST_SAMPLES = 60
STATES = ("certified", "no descent found", "not converged")


@dataclass(frozen=True, eq=False)
class KOptimum:
    """What minimising over covariances ended with.

    Attributes
    ----------
    network : FullyConnected
        Of the least weights with these pairs and outputs (Ψ of the neurons that make up the pairs).
    loss : float
        𝓛 of that network, evaluated through its weights.
    atoms : tuple of Tensor (n_ℓ, N)
        Neurons of each hidden layer: K_ℓ = Σzzᵀ, K^σ_ℓ = Σσ(z)σ(z)ᵀ + β²11ᵀ.
    certificates : tuple of LayerCertificate
        One for each hidden layer. At depth 2 ``"certified"`` means the global minimum over all widths.
    state : {"certified", "no descent found", "not converged"}
        The weakest of the layers; ``"not converged"`` when rounds ran out or descent was left.
    history : tuple of float
        Loss after each round.
    seconds : float
    """

    network: FullyConnected
    loss: float
    atoms: tuple[Tensor, ...]
    certificates: tuple[LayerCertificate, ...]
    state: str
    history: tuple[float, ...]
    seconds: float


@cites("features2022", "Prop. 3, Prop. 5, §3.3", ids=("A-kopt",))
def optimise_covariances(
    X: Any,
    Y: Any,
    *,
    ridge: float,
    depth: int = 2,
    slope: float = 0.0,
    bias: float = 1.0,
    start: FullyConnected | None = None,
    rounds: int = 40,
    tolerance: float = 1e-6,
    starts: int = 32,
    seed: int = 0,
) -> KOptimum:
    """Minimise (1/N)‖Z_L − Y‖² + λΣ_ℓTr[K_ℓ(K^σ_{ℓ-1})⁺] over pairs in the cone of σ_a and over outputs.

    Layer by layer, the others fixed: the oracle looks for the neuron z with the largest |Vσ(z)|²/zᵀ(K^σ_{ℓ-1})⁺z; where
    it exceeds 1, z joins the pair, and the weights of all neurons are made the best ones (Frank–Wolfe, fully
    corrective); now and then all neurons are moved together by L-BFGS, which changes their directions too; at most
    N(N+1) are kept (Carathéodory). The last hidden layer has the outputs eliminated: its block is convex in both. No
    layer ever ends higher than it began.

    A reference for small N, with mse: see :func:`certify_layer` for what the result may be called.

    Parameters
    ----------
    X, Y : array (N, d_in), (N, d_out)
    ridge : float
        λ > 0.
    depth : int, default 2
        L.
    slope, bias : float
        a of σ_a, and β.
    start : FullyConnected, optional
        Where to begin, a network of this depth, slope and bias; by default a random one.
    rounds : int
        Passes over the layers.
    tolerance : float
        Relative to the loss: of the certificates, and of the decrease of a round that counts as none.
    starts, seed : int
        Of the oracle's search, and of the first neurons.
    """
    who = "optimise_covariances"
    began = time.perf_counter()
    inputs = as_matrix(who, "X", X)
    targets = as_matrix(who, "Y", Y)
    N = len(inputs)
    if len(targets) != N or N > MOST_SAMPLES:
        got = f"{N} and {len(targets)}"
        fail(who, f"`X` and `Y` must have as many rows, at most {MOST_SAMPLES}", got, "Use `train` for more samples.")
    check_number(who, "ridge", ridge, low=0.0, low_open=True)
    check_number(who, "slope", slope, low=-1.0, high=1.0)
    check_integer(who, "depth", depth, low=2, high=20)
    check_integer(who, "rounds", rounds, low=1)
    first = _start(who, start, inputs, targets, depth, slope, bias, seed).trace(inputs)
    Zs = [first.Z(ell) for ell in range(1, depth)]
    S_0 = first.Z_sigma(0)
    history: list[float] = []
    rested = False
    for count in range(rounds):
        for ell in range(1, depth):
            before = S_0 if ell == 1 else with_ones(activate(Zs[ell - 2], slope), bias)
            last = ell == depth - 1
            block = Block.after(before, targets.mT if last else Zs[ell], ridge * N if last else 0.0, slope, bias)
            Zs[ell - 1] = _improved(block, Zs[ell - 1], starts, seed + count, tolerance, count % 4 == 0)
        history.append(_loss(Zs, S_0, targets, ridge, slope, bias))
        if len(history) > 2 and history[-3] - history[-1] <= 0.1 * tolerance * abs(history[-1]):
            rested = True
            break
    S = with_ones(activate(Zs[-1], slope), bias)
    outputs = _best_outputs(S, targets.mT, ridge * N)
    net = minimal_network([*Zs, outputs], inputs, slope=slope, bias=bias, least_squares=True).requires_grad_(False)
    found = tuple(
        certify_layer(net, inputs, ell, Y=targets, ridge=ridge, tolerance=10 * tolerance, starts=4 * starts, seed=seed)
        for ell in range(1, depth)
    )
    verdicts = {one.verdict for one in found}
    state = "certified" if verdicts == {"certified"} else "no descent found"
    if "descent found" in verdicts or (not rested and state != "certified"):
        state = "not converged"
    loss = float(cost(net(inputs), targets)) + ridge * parameter_norms(net).total
    return KOptimum(net, loss, tuple(Zs), found, state, tuple(history), time.perf_counter() - began)


def _start(
    who: str, start: FullyConnected | None, X: Tensor, Y: Tensor, depth: int, slope: float, bias: float, seed: int
) -> FullyConnected:
    if start is None:
        source = torch.Generator().manual_seed(check_integer(who, "seed", seed, low=0))
        dims = [X.shape[1], *[2 * len(X) + 2] * (depth - 1), Y.shape[1]]
        return FullyConnected(dims, slope, bias, dtype=torch.float64, generator=source)
    if (start.depth, start.slope, start.bias) != (depth, slope, bias):
        got = f"depth {start.depth}, slope {start.slope:g}, bias {start.bias:g}"
        fail(who, f"`start` must have depth {depth}, slope {slope:g}, bias {bias:g}", got, "Pass them alike.")
    return start


def _improved(block: Block, Z: Tensor, starts: int, seed: int, tolerance: float, slide: bool) -> Tensor:
    """A pair of this layer that is no higher: neurons from the oracle, the best weights of all, and a move of all."""
    C = block.coordinates(Z)
    best = block.value(C)
    gamma = _stable(block, C)

    def keep(trial: Tensor) -> None:
        nonlocal C, best
        value = block.value(trial)
        if value < best:
            C, best = trial, value

    keep(_weighted(block, C, gamma))
    V = block.prices(C)
    ratios, ends = search(V, block.Q, slope=block.slope, starts=starts, seed=seed)
    new = ends[ratios > 1.0 + 0.1 * tolerance]
    if len(new):
        keep(_weighted(block, torch.cat([C, 1e-3 * (float(C.norm()) or 1.0) * new]), gamma))
    if slide and C.numel():
        keep(_moved(block, C, gamma))
        keep(_weighted(block, C, gamma))
    alive = C.norm(dim=1) > 0.0
    # Where nothing pays, a neuron that does nothing keeps the layer's place.
    rows = C[alive] @ block.Q.mT if bool(alive.any()) else block.Q.new_zeros(1, len(block.Q))
    N = rows.shape[1]
    if len(rows) > N * (N + 1):
        path = constant_identity_path(rows, slope=block.slope)
        rows = path.at(1.0)[path.shares > 0]
    return rows


def _weighted(block: Block, C: Tensor, gamma: float) -> Tensor:
    """The best non-negative weights of the neurons of C, a smooth convex problem: rows of weight 0 vanish."""
    sizes = C.norm(dim=1)
    if not bool((sizes > 0).any()):
        return C
    units = (C[sizes > 0] / sizes[sizes > 0, None]).contiguous()
    S = block.activations(units).numpy()
    T = block.T.numpy()
    base = gamma * np.eye(S.shape[1]) + block.bias**2

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        factor = scipy.linalg.cho_factor((S.T * w) @ S + base)
        V = scipy.linalg.cho_solve(factor, T.T).T
        return float(w.sum() + (V * T).sum()), 1.0 - ((V @ S.T) ** 2).sum(0)

    first = sizes[sizes > 0].square().numpy()
    options = {"maxiter": 500, "maxfun": 1000, "ftol": 1e-15, "gtol": 1e-12}
    bounds = [(0.0, None)] * len(first)
    try:
        w = minimize(objective, first, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    except scipy.linalg.LinAlgError:  # K^σ lost its rank on the way: the weights stay
        return C
    w = np.where(w > 1e-12 * w.max(), w, 0.0)
    return torch.from_numpy(np.sqrt(w))[:, None] * units


def _stable(block: Block, C: Tensor) -> float:
    """γ of the search: that of the block, or a small one where the exact term has no gradient at a loss of rank."""
    return block.gamma if block.gamma > 0.0 else 1e-9 * max(block.norm(C).top, 1e-300)


def _moved(block: Block, C: Tensor, gamma: float, iterations: int = 200) -> Tensor:
    """Local descent of |C|² + Tr[T(K^σ + γI)⁻¹Tᵀ] from C."""
    X = C.clone().requires_grad_(True)
    eye = gamma * torch.eye(len(block.Q), dtype=torch.float64)
    optimiser = torch.optim.LBFGS(
        [X],
        max_iter=iterations,
        history_size=20,
        tolerance_grad=1e-12,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        S = with_ones(activate(X @ block.Q.mT, block.slope), block.bias)
        K = S.mT @ S + eye
        # At the best V the derivative by V vanishes: V may stand as a constant.
        V = torch.linalg.solve(K.detach(), block.T.mT).mT
        value = X.square().sum() + 2 * (V * block.T).sum() - ((V @ K) * V).sum()
        value.backward()
        return value

    optimiser.step(closure)
    moved = X.detach()
    return moved if bool(torch.isfinite(moved).all()) else C


def _best_outputs(S: Tensor, T: Tensor, gamma: float) -> Tensor:
    """Z_L = YK^σ(K^σ + λNI)⁻¹, kernel ridge regression, from the SVD of Z^σ_{L-1}."""
    norm = KernelNorm(S)
    return (T @ norm.Vh.mT * (norm.s**2 / (norm.s**2 + gamma))) @ norm.Vh


def _loss(Zs: list[Tensor], S_0: Tensor, Y: Tensor, ridge: float, slope: float, bias: float) -> float:
    before = [S_0, *(with_ones(activate(Z, slope), bias) for Z in Zs)]
    terms = sum(KernelNorm(S).square(Z) for S, Z in zip(before, Zs))
    outputs = KernelNorm(before[-1]).square(Y.mT, ridge * len(Y))
    return ridge * (terms + outputs) if math.isfinite(terms) else math.inf
