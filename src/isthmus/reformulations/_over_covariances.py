"""One hidden layer of the loss over covariances, the others fixed: a convex problem over a cone, and its dual bound."""

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

from isthmus._checks import as_matrix, check_integer, check_number, check_seed, fail
from isthmus._cite import cites
from isthmus.constructions import constant_identity_path, minimal_network
from isthmus.measures import KernelNorm, parameter_norms
from isthmus.networks import FullyConnected
from isthmus.objective import cost
from isthmus.reformulations._oracle import MOST_PATTERNS, Ratio, largest_ratio, search
from isthmus.trace import activate, with_ones


@dataclass(frozen=True, eq=False)
class Block:
    """h(K, K^σ) = Tr[K(K^σ_{ℓ-1})⁺] + Tr[T(K^σ + γI)⁻¹Tᵀ] over pairs Σ(zzᵀ, σ(z)σ(z)ᵀ) + (0, β²11ᵀ).

    With γ = 0 and T = Z_{ℓ+1} these are the two terms of 𝓛^k/λ that contain the pair. With γ = λN and T = Y it is the
    least value of (1/λN)‖Z_L − Y‖² + Tr[K(K^σ_{L-2})⁺] + Tr[Z_L(K^σ_{L-1})⁺Z_Lᵀ] over Z_L, reached at
    Z_L = YK^σ(K^σ + λNI)⁻¹: pair and outputs together are one convex block.

    Neurons are z = Qc with |c|² = zᵀ(K^σ_{ℓ-1})⁺z: rows of C (n, r) are all of Im K^σ_{ℓ-1} and nothing else.

    Attributes
    ----------
    Q : Tensor (N, r)
        (K^σ_{ℓ-1})^½ in an orthonormal basis of its image.
    T : Tensor (d, N)
    gamma, slope, bias : float
    """

    Q: Tensor
    T: Tensor
    gamma: float
    slope: float
    bias: float

    @staticmethod
    def after(S: Tensor, T: Tensor, gamma: float, slope: float, bias: float) -> Block:
        """The block whose previous activations Z^σ_{ℓ-1} are ``S`` (bias row included)."""
        norm = KernelNorm(S)
        r = norm.rank
        return Block(norm.Vh[:r].mT * norm.s[:r], T, gamma, slope, bias)

    def coordinates(self, Z: Tensor) -> Tensor:
        """C with Z = CQᵀ, (n, r), for rows of Z in Im K^σ_{ℓ-1} (projected to it otherwise)."""
        return (Z @ self.Q) / self.Q.square().sum(0)

    def activations(self, C: Tensor) -> Tensor:
        """σ(CQᵀ), (n, N)."""
        return activate(C @ self.Q.mT, self.slope)

    def norm(self, C: Tensor) -> KernelNorm:
        """The norm of the path of K^σ."""
        return KernelNorm(with_ones(self.activations(C), self.bias))

    def value(self, C: Tensor) -> float:
        """h; ∞ for γ = 0 when the rows of T do not lie in Im K^σ."""
        return float(C.square().sum()) + self.norm(C).square(self.T, self.gamma)

    def prices(self, C: Tensor) -> Tensor:
        """V = T(K^σ + γI)⁻¹ (d, N): −VᵀV is a gradient of the second term by K^σ (for γ = 0 a subgradient)."""
        norm = self.norm(C)
        if self.gamma > 0.0:
            inside, outside = norm.split(self.T)
            return (inside / (norm.s**2 + self.gamma)) @ norm.Vh + outside / self.gamma
        r = norm.rank
        return (self.T @ norm.Vh[:r].mT / norm.s[:r] ** 2) @ norm.Vh[:r]

    def lower_bound(self, V: Tensor, ratio: float) -> float:
        """max_t 2t⟨V, T⟩ − t²(β²|V1|² + γ‖V‖²), 0 ≤ t ≤ ratio^(−½): below h at every pair of the cone.

        If |Vσ(z)|² ≤ ratio·zᵀ(K^σ_{ℓ-1})⁺z for all z, then tV is feasible for the dual: the second term is the largest
        of 2⟨U, T⟩ − Tr[U(K^σ + γI)Uᵀ] over all U, and for U = tV the part −Tr[U(K^σ − β²11ᵀ)Uᵀ] is made good by the
        first term.
        """
        gain = float((V * self.T).sum())
        price = self.bias**2 * float(V.sum(1).square().sum()) + self.gamma * float(V.square().sum())
        most = ratio**-0.5 if ratio > 0.0 else float("inf")
        t = min(most, gain / price) if price > 0.0 else most
        return 2.0 * t * gain - t * t * price if gain > 0.0 else 0.0

    def reweighted(self, C: Tensor, V: Tensor) -> Tensor:
        """Rows scaled so that K and K^σ − β²11ᵀ get weights √(|Vσ(z_i)|²/|c_i|²): h never rises.

        The second term is min Σ|v_i|²/w_i over outgoing weights; at the present ones the best w_i is this.
        """
        gains = (V @ self.activations(C).mT).square().sum(0)
        sizes = C.square().sum(1)
        alive = sizes > 0.0
        scale = torch.where(alive, gains / sizes.clamp_min(torch.finfo(torch.float64).tiny), torch.zeros_like(sizes))
        return C * scale.pow(0.25)[:, None]


# ---- What may honestly be said about the optimality of one hidden layer: proved, disproved, or neither


VERDICTS = ("certified", "descent found", "no descent found")


@dataclass(frozen=True, eq=False)
class LayerCertificate:
    """Whether the covariance pair of a hidden layer is optimal, the other layers fixed.

    Attributes
    ----------
    layer : int
        ℓ.
    verdict : {"certified", "descent found", "no descent found"}
        ``"certified"``: no pair of the whole cone is lower by more than the tolerance, proved by a dual point.
        ``"descent found"``: a lower value was evaluated. ``"no descent found"``: neither.
    value : float
        Loss, or representation cost, at the network's representations with the least weights.
    lower_bound : float
        Of the same over all pairs of this layer (at the last hidden layer with ``Y`` over all outputs too).
    ratio_found, ratio_bound : float
        max_z |Vσ(z)|²/zᵀ(K^σ_{ℓ-1})⁺z: the largest met, and what none exceeds. At an optimum it is 1.
    complementarity : float
        |⟨∇, (K, K^σ − β²11ᵀ)⟩| relative to Tr[K(K^σ_{ℓ-1})⁺]: 0 at an optimum.
    move : str
        What descends: ``"outputs"``, ``"reweighting"`` or ``"a neuron"``; empty unless the verdict is "descent found".
    lower_value : float
        The value after that move; ∞ without one.
    direction : Tensor (N,), or None
        The neuron z that descends.
    patterns : int
        Sign patterns behind ``ratio_bound``; 0 if it is that of norms.
    """

    layer: int
    verdict: str
    value: float
    lower_bound: float
    ratio_found: float
    ratio_bound: float
    complementarity: float
    move: str
    lower_value: float
    direction: Tensor | None
    patterns: int


@cites("features2022", "Prop. 5, §3.3", ids=("A-kopt",))
def certify_layer(
    net: FullyConnected,
    X: Any,
    ell: int,
    *,
    Y: Any = None,
    ridge: float | None = None,
    tolerance: float = 1e-6,
    starts: int = 64,
    patterns: int = MOST_PATTERNS,
    seed: int = 0,
) -> LayerCertificate:
    """Prove or disprove that (K_ℓ, K^σ_ℓ) minimises the convex problem in which all other blocks are fixed.

    With A = (K^σ_{ℓ-1})⁺ and B = VᵀV, V = Z_{ℓ+1}(K^σ_ℓ)⁺, the pair is optimal if zᵀAz − σ(z)ᵀBσ(z) ≥ 0 for all z ∈
    Im K^σ_{ℓ-1} and Tr[AK] = Tr[B(K^σ − β²11ᵀ)]. Both enter one number: if the largest ratio of the two terms is at
    most ρ, V/√ρ is feasible for the dual, whose value is a lower bound of the loss. The verdict compares it with the
    loss itself, so that it is right whatever the search did.

    For the last hidden layer with ``Y`` the outputs are free too, and V = Y(K^σ + λN)⁻¹. Depth 2 has nothing else:
    "certified" is then a global minimum over all weights of all widths. Deeper it is optimal layer by layer only.

    Where K^σ_ℓ is singular and the outputs are fixed, V is not unique and one choice is tried: optimal layers may then
    be left at "no descent found", never the converse.

    Parameters
    ----------
    net : FullyConnected
    X : array (N, n_0)
    ell : int
        Hidden layer, 1 … L−1.
    Y, ridge : optional
        Both or none. With them the loss (mse) is meant, without them the representation cost of the network's outputs.
    tolerance : float
        Relative to the value.
    starts, seed : int
        Of the search for a neuron.
    patterns : int
        Most sign patterns of neurons that are bounded one by one; 0 to rely on norms alone, which is quick and weak.
    """
    who = "certify_layer"
    trace = net.trace(as_matrix(who, "X", X, columns=net.dims[0]))
    check_integer(who, "ell", ell, low=1, high=trace.depth - 1)
    check_number(who, "tolerance", tolerance, low=0.0, low_open=True)
    if (Y is None) != (ridge is None):
        fail(
            who, "`Y` and `ridge` must be given together", f"Y {type(Y).__name__}, ridge {ridge}", "Give both or none."
        )
    N, slope, bias = trace.samples, trace.slope, trace.bias
    weight = 1.0 if ridge is None else check_number(who, "ridge", ridge, low=0.0, low_open=True)
    free = ridge is not None and ell == trace.depth - 1
    targets = None if Y is None else as_matrix(who, "Y", Y, columns=net.dims[-1])
    fixed = sum(
        KernelNorm(trace.Z_sigma(k - 1)).square(trace.Z(k))
        for k in range(1, trace.depth + 1)
        if k not in (ell, ell + 1)
    )
    if free and targets is not None:
        block = Block.after(trace.Z_sigma(ell - 1), targets.mT, weight * N, slope, bias)
        offset = weight * fixed
    else:
        block = Block.after(trace.Z_sigma(ell - 1), trace.Z(ell + 1), 0.0, slope, bias)
        offset = weight * fixed + (0.0 if targets is None else float(cost(trace.outputs, targets)))
    C = block.coordinates(trace.Z(ell))
    reached = block.value(C)
    value = offset + weight * reached
    if free and targets is not None:
        terms = float(C.square().sum()) + block.norm(C).square(trace.outputs.mT)
        value = offset + float(cost(trace.outputs, targets)) + weight * terms
    V = block.prices(C)
    check_integer(who, "patterns", patterns, low=0)
    aim = 1.0 + 0.1 * tolerance
    ratio = largest_ratio(V, block.Q, slope=slope, target=aim, starts=starts, seed=seed, patterns=patterns)
    least = offset + weight * block.lower_bound(V, max(ratio.bound, ratio.found))
    spent = float(C.square().sum())
    gained = float((V @ block.activations(C).mT).square().sum())
    move, lower, direction = _descent(block, C, V, ratio, offset, weight, value)
    verdict = "no descent found"
    if value - least <= tolerance * abs(value):
        verdict, move, lower, direction = "certified", "", math.inf, None
    elif lower < value - 1e-9 * abs(value):
        verdict = "descent found"
    else:
        move, lower, direction = "", math.inf, None
    complementarity = abs(spent - gained) / spent if spent > 0.0 else 0.0
    return LayerCertificate(
        ell,
        verdict,
        value,
        least,
        ratio.found,
        max(ratio.bound, ratio.found),
        complementarity,
        move,
        lower,
        direction,
        ratio.patterns,
    )


def _descent(
    block: Block, C: Tensor, V: Tensor, ratio: Ratio, offset: float, weight: float, value: float
) -> tuple[str, float, Tensor | None]:
    """The move with the lowest loss, each evaluated."""
    moves: list[tuple[str, float, Tensor | None]] = [
        ("outputs", offset + weight * block.value(C), None),
        ("reweighting", offset + weight * block.value(block.reweighted(C, V)), None),
    ]
    z = block.Q @ ratio.c
    for square in torch.logspace(-8, 1, 19, dtype=torch.float64).tolist():
        size = (square * max(float(C.square().sum()), 1e-300)) ** 0.5
        grown = torch.cat([C, size * ratio.c[None]])
        moves.append(("a neuron", offset + weight * block.value(grown), z))
    # Rounding of two ways to the same number is no move.
    gain = [value - lower if math.isfinite(lower) else -math.inf for _, lower, _ in moves]
    return moves[max(range(len(moves)), key=gain.__getitem__)]


# ---- A-kopt: minimise the loss over covariance pairs, layer by layer, by Frank–Wolfe over the cone of neurons


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
        source = torch.Generator().manual_seed(check_seed(who, seed))
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
