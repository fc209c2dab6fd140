"""Solutions of the Hamiltonian dynamics of leaky ResNets, integrated without training, and networks made of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus._checks import check_choice, check_integer, check_number, fail
from isthmus._cite import cites
from isthmus._cone import eliminate
from isthmus._errors import DataError
from isthmus.linalg import matrix, numerical_rank
from isthmus.measures._mechanics import flow
from isthmus.networks import LeakyResNet
from isthmus.networks._leaky_resnet import equidistant
from isthmus.trace import activate, with_ones

METHODS = ("symplectic_euler", "midpoint", "rk4")

#: Order of each method away from the kinks of σ.
ORDERS = {"symplectic_euler": 1, "midpoint": 2, "rk4": 4}

#: Most iterations of an implicit step.
ITERATIONS = 500


State = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class HamiltonianFlow:
    """Representations and momenta at p_0 = 0, p_1, …, p_L.

    Attributes
    ----------
    A, B : Tensor (L + 1, w, N)
        Samples as columns, as printed.
    rho : Tensor (L,)
        Lengths of the steps.
    effective_depth, slope, bias : float
    """

    A: Tensor
    B: Tensor
    rho: Tensor
    effective_depth: float
    slope: float
    bias: float

    @property
    def layers(self) -> int:
        """L, the number of steps."""
        return len(self.rho)

    @property
    def hamiltonian(self) -> Tensor:
        """𝓗(A_ℓ, B_ℓ), ℓ = 0 … L: constant along exact solutions."""
        return self._energies(self.A, self.B)

    @property
    def paired_hamiltonian(self) -> Tensor:
        """𝓗(A_{ℓ-1}, B_ℓ), ℓ = 1 … L: that of the steps of a network."""
        return self._energies(self.A[:-1], self.B[1:])

    @property
    def drift(self) -> float:
        """Largest 𝓗 minus least over the positions."""
        return float(self.hamiltonian.max() - self.hamiltonian.min())

    @property
    def crossings(self) -> int:
        """How often an entry of A changes its sign: at each, the dynamics has a kink."""
        signs = self.A > 0
        return int((signs[1:] != signs[:-1]).sum())

    @property
    def weights(self) -> tuple[Tensor, ...]:
        """W_ℓ = L̃B_ℓσ(A_{ℓ-1})ᵀ, ℓ = 1 … L, each (w, w + 1); (w, w) without bias."""
        pairs = zip(self.A[:-1], self.B[1:])
        return tuple(self.effective_depth * B @ with_ones(activate(A, self.slope), self.bias).mT for A, B in pairs)

    def _energies(self, As: Tensor, Bs: Tensor) -> Tensor:
        S = activate(As, self.slope)
        force = (Bs @ S.mT).square().sum((1, 2)) + self.bias**2 * Bs.sum(2).square().sum(1)
        return self.effective_depth * (0.5 * force - (As * Bs).sum((1, 2)))


@cites("hamiltonian2024", "§1.5", ids=("C-ham-4",))
def hamiltonian_flow(
    A: Any,
    B: Any,
    effective_depth: float,
    layers: int,
    *,
    method: str = "rk4",
    rho: Any = None,
    slope: float = 0.0,
    bias: float = 1.0,
) -> HamiltonianFlow:
    """Integrate ∂_pA = L̃(Bσ(A)ᵀσ(A) − A), −∂_pB = L̃(σ̇(A)⊙[σ̄(A)BᵀB] − B) from (A, B) over p ∈ [0, 1].

    Parameters
    ----------
    A, B : array (w, N)
        Where it starts; samples as columns.
    effective_depth : float
        L̃ > 0.
    layers : int
        L, the number of steps.
    method : {"rk4", "midpoint", "symplectic_euler"}, default "rk4"
        Of order 4, 2 and 1. The implicit midpoint rule and symplectic Euler are symplectic; the latter,
        B_{ℓ-1} = B_ℓ + ρ∂_A𝓗(A_{ℓ-1}, B_ℓ) and A_ℓ = A_{ℓ-1} + ρ∂_B𝓗(A_{ℓ-1}, B_ℓ), is what a network at a critical
        point does exactly.
    rho : array (L,), optional
        Lengths of the steps, positive; equidistant by default.
    slope, bias : float
        a of σ_a; 1 if σ appends a one, 0 if not.

    Notes
    -----
    The dynamics has a jump in ∂_pB where an entry of A changes its sign: a step across it has order 1, whatever the
    method, and 𝓗 keeps that error.
    """
    who = "hamiltonian_flow"
    start = matrix(who, "A", A), matrix(who, "B", B)
    if start[0].ndim != 2 or start[0].shape != start[1].shape:
        got = f"{tuple(start[0].shape)} and {tuple(start[1].shape)}"
        fail(who, "`A` and `B` must be matrices of one shape", got, "Pass neurons × samples.")
    L_tilde = check_number(who, "effective_depth", effective_depth, low=0.0, low_open=True)
    L = check_integer(who, "layers", layers, low=1)
    check_choice(who, "method", method, METHODS)
    lengths = equidistant(L) if rho is None else torch.as_tensor(rho, dtype=torch.float64)
    if lengths.shape != (L,) or not bool((lengths > 0).all()):
        fail(who, f"`rho` must be {L} positive lengths", f"{lengths.tolist()!r:.80}", "Pass one for each layer.")

    def velocity(state: State) -> State:
        return flow(*state, L_tilde, slope=slope, bias=bias)

    step = {"rk4": _rk4, "midpoint": _midpoint, "symplectic_euler": _symplectic_euler}[method]
    states = [start]
    for length in lengths.tolist():
        states.append(step(velocity, states[-1], length))
        # By the norm: entries may be finite when nothing made of them is.
        if not all(bool(torch.isfinite(part.norm())) for part in states[-1]):
            got = f"infinite values after {len(states) - 1} of {L} steps"
            fail(who, "the flow must stay finite", got, "Start nearer to BK = A, or lower L̃.", error=DataError)
    As, Bs = (torch.stack(parts) for parts in zip(*states))
    return HamiltonianFlow(As, Bs, lengths, L_tilde, slope, bias)


def _moved(state: State, velocity: State, length: float) -> State:
    return state[0] + length * velocity[0], state[1] + length * velocity[1]


def _rk4(velocity: Callable[[State], State], state: State, h: float) -> State:
    k1 = velocity(state)
    k2 = velocity(_moved(state, k1, h / 2))
    k3 = velocity(_moved(state, k2, h / 2))
    k4 = velocity(_moved(state, k3, h))
    total = tuple(a + 2 * b + 2 * c + d for a, b, c, d in zip(k1, k2, k3, k4))
    return _moved(state, (total[0], total[1]), h / 6)


def _midpoint(velocity: Callable[[State], State], state: State, h: float) -> State:
    def again(both: Tensor) -> Tensor:
        between = (state[0] + both[0]) / 2, (state[1] + both[1]) / 2
        return torch.stack(_moved(state, velocity(between), h))

    both = _fixed_point(again, torch.stack(_moved(state, velocity(state), h)))
    return both[0], both[1]


def _symplectic_euler(velocity: Callable[[State], State], state: State, h: float) -> State:
    A, B = state
    B_next = _fixed_point(lambda guess: B + h * velocity((A, guess))[1], B)
    return A + h * velocity((A, B_next))[0], B_next


def _fixed_point(again: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Iterate until the change is rounding and falls no further."""
    guess, last, done = start, float("inf"), False
    for _ in range(ITERATIONS):
        better = again(guess)
        change, size = float((better - guess).norm()), float(better.norm())
        guess = better
        done = change == 0.0 or 0.5 * last <= change <= 1e-13 * size < math.inf
        if done or not math.isfinite(change):
            break
        last = change
    if not done:
        fix = "Take more layers, or start nearer to BK = A."
        fail("hamiltonian_flow", "steps must be short enough to be solved", f"change {last:.2g}", fix, error=DataError)
    return guess


@dataclass(frozen=True, eq=False)
class FlowNetwork:
    """A network made of a flow, and the task for which it is a critical point.

    Attributes
    ----------
    network : LeakyResNet
        W_in = W_out = the identity.
    X, Y : Tensor (N, w)
    lam, ridge : float
        λ of the paper, and λ/2L̃.
    flow : HamiltonianFlow
        What its weights were taken from.
    """

    network: LeakyResNet
    X: Tensor
    Y: Tensor
    lam: float
    flow: HamiltonianFlow

    @property
    def ridge(self) -> float:
        """λ/2L̃: for :func:`isthmus.mechanics` and ``verify``."""
        return self.lam / (2.0 * self.flow.effective_depth)


def as_network(steps: HamiltonianFlow, lam: float) -> FlowNetwork:
    """The network with the weights of ``steps`` and the targets Y = f(X) + (λN/2)B_L that give it B_L."""
    net = LeakyResNet.from_weights(
        steps.weights, steps.rho, effective_depth=steps.effective_depth, slope=steps.slope, bias=steps.bias
    )
    X = steps.A[0].mT.contiguous()
    Y = net.trace(X).outputs + 0.5 * lam * len(X) * steps.B[-1].mT
    return FlowNetwork(net.requires_grad_(False), X, Y, lam, steps)


@cites("hamiltonian2024", "§1.5 and §3", ids=("C-ham-4",))
def flow_network(
    A: Any,
    B: Any,
    effective_depth: float,
    layers: int,
    *,
    lam: float = 0.1,
    exact: bool = True,
    refine: int = 8,
    slope: float = 0.0,
    bias: float = 1.0,
) -> FlowNetwork:
    """The leaky ResNet with W_ℓ = L̃B_ℓσ(A_{ℓ-1})ᵀ along the flow from (A, B), on L equidistant steps.

    Its inputs are A, its maps in and out the identity, and its targets Y = f(X) + (λN/2)B_1, so that
    B_1 = (2/λN)(Y − f(X)).

    Parameters
    ----------
    exact : bool, default True
        True: steps of symplectic Euler. The network is then at a critical point up to rounding, and 𝓗 drifts by O(ρ).
        False: weights read off a fine flow; the residual of criticality is O(ρ).
    refine : int, default 8
        With ``exact=False``: steps of RK4 for each layer.
    """
    who = "flow_network"
    check_number(who, "lam", lam, low=0.0, low_open=True)
    L = check_integer(who, "layers", layers, low=1)
    if exact:
        steps = hamiltonian_flow(A, B, effective_depth, L, method="symplectic_euler", slope=slope, bias=bias)
        return as_network(steps, lam)
    m = check_integer(who, "refine", refine, low=1)
    fine = hamiltonian_flow(A, B, effective_depth, L * m, slope=slope, bias=bias)
    coarse = HamiltonianFlow(fine.A[::m], fine.B[::m], equidistant(L), fine.effective_depth, slope, bias)
    return as_network(coarse, lam)


# ---- Critical points of leaky ResNets in closed form: the same symmetric weights at every step


@cites("hamiltonian2024", "§1.5 and §2.1", ids=("C-ham-6", "C-ham-9"))
def steady_path(
    A: Any,
    G: Any,
    effective_depth: float,
    layers: int,
    *,
    leaking: Any = None,
    lam: float = 0.1,
    slope: float = 0.0,
) -> FlowNetwork:
    """W_ℓ = L̃G for all ℓ, G symmetric: A_ℓ = M^ℓA, B_ℓ = M^{1−ℓ}G(Aᵀ)⁺ with M = (1−ρL̃)I + ρL̃G, where σ(A_ℓ) = A_ℓ.

    An exact critical point of the discrete loss, for the targets f(X) + (λN/2)B_L: B_ℓA_{ℓ-1}ᵀ = G at every step, so
    that −(2/L̃)𝓗 = Tr[2G − G²] is conserved exactly. For G = I + D/L̃ it is k − ‖D‖²/L̃² and A_1 → e^D A.

    Parameters
    ----------
    A : array (k, N)
        Of rank k; positive, and to stay so, unless ``slope`` is 1: at zero σ̇ is that of the other side.
    G : array (k, k)
        Symmetric.
    leaking : array (m, N), optional
        Further neurons, all entries negative, that are never rebuilt: they leak as (1−ρL̃)^ℓ. For slope 0.
    """
    who = "steady_path"
    start, weights = matrix(who, "A", A), matrix(who, "G", G)
    L_tilde = check_number(who, "effective_depth", effective_depth, low=0.0, low_open=True)
    L = check_integer(who, "layers", layers, low=1)
    check_number(who, "lam", lam, low=0.0, low_open=True)
    k = len(start)
    if int(numerical_rank(start)) < k:
        fail(who, "`A` must have independent rows", f"rank {int(numerical_rank(start))} of {k}", "Leave some out.")
    if weights.shape != (k, k) or float((weights - weights.mT).norm()) > 1e-12 * float(weights.norm()):
        fail(who, f"`G` must be symmetric, ({k}, {k})", tuple(weights.shape), "Pass (G + Gᵀ)/2.")
    rho = 1.0 / L
    M = (1.0 - rho * L_tilde) * torch.eye(k, dtype=torch.float64) + rho * L_tilde * weights
    values, vectors = torch.linalg.eigh(M)
    if float(values.min()) <= 0.0:
        fail(who, "(1−ρL̃)I + ρL̃G must be positive", f"eigenvalue {float(values.min()):.3g}", "Take more layers.")
    dual = weights @ torch.linalg.pinv(start.mT)

    def power(n: int) -> torch.Tensor:
        return (vectors * values**n) @ vectors.mT

    As = torch.stack([power(ell) @ start for ell in range(L + 1)])
    Bs = torch.stack([power(1 - ell) @ dual for ell in range(L + 1)])
    if slope != 1.0 and float(As.min()) <= 0.0:
        fail(who, "the path must stay positive", f"an entry {float(As.min()):.3g}", "Pass slope=1 or another A.")
    if leaking is not None:
        rest = matrix(who, "leaking", leaking)
        if rest.shape[1] != start.shape[1] or float(rest.max()) >= 0.0 or slope != 0.0 or rho * L_tilde >= 1.0:
            must = "`leaking` must be negative, (m, N), with slope 0 and ρL̃ < 1"
            fail(who, must, f"shape {tuple(rest.shape)}, largest {float(rest.max()):.3g}", "Take more layers.")
        gone = torch.stack([(1.0 - rho * L_tilde) ** ell * rest for ell in range(L + 1)])
        As, Bs = torch.cat([As, gone], 1), torch.cat([Bs, torch.zeros_like(gone)], 1)
    return as_network(HamiltonianFlow(As, Bs, equidistant(L), L_tilde, slope, 0.0), lam)


# ---- The path of constant cost of identity along which superfluous neurons vanish (hamiltonian2024, Prop. 3)


@dataclass(frozen=True, eq=False)
class IdentityPath:
    """A_t with rows √((1−t) + t·a_i)·Â_i: the covariances AᵀA and σ̄(A)ᵀσ̄(A) do not change with t.

    Attributes
    ----------
    A : Tensor (w, N)
        Â, where it starts.
    shares : Tensor (w,)
        a_i ≥ 0, at most N(N+1) of them positive.
    """

    A: Tensor
    shares: Tensor

    def at(self, t: float) -> Tensor:
        """A_t, (w, N), for t ∈ [0, 1]."""
        return ((1.0 - t) + t * self.shares).clamp_min(0.0).sqrt()[:, None] * self.A

    @property
    def kept(self) -> int:
        """Neurons that are left at t = 1."""
        return int((self.shares > 0).sum())


@cites("hamiltonian2024", "Prop. 3 and Prop. 7", ids=("C-ham-3",))
def constant_identity_path(A: Any, *, slope: float = 0.0) -> IdentityPath:
    """Σa_i(A_iA_iᵀ, σ(A_i)σ(A_i)ᵀ) = Σ(A_iA_iᵀ, σ(A_i)σ(A_i)ᵀ) with a_i ≥ 0, at most N(N+1) of them positive.

    The pairs lie in a space of N(N+1) dimensions: among more of them there is a linear relation, and subtracting the
    right multiple of it takes a weight to 0 and leaves the others non-negative. Repeated until the pairs that are left
    are independent. The cost of identity, with and without bias, depends on A through these covariances only.

    Parameters
    ----------
    A : array (w, N)
        Samples as columns, neurons as rows. For small N: the pairs are held as a matrix N(N+1) × w.
    """
    M = matrix("constant_identity_path", "A", A)
    N = M.shape[1]
    i, j = torch.triu_indices(N, N)
    pairs = torch.cat([row[:, i] * row[:, j] for row in (M, activate(M, slope))], 1)
    # Any independent set will do: the covariances, and with them the cost, are the same.
    return IdentityPath(M, eliminate(pairs, relation=1e-12))


# ---- A-symmetries: leaky ResNets that are the same up to a change of scale


@cites("hamiltonian2024", "§1.2, integration range", ids=("A-symmetries",))
def rescale_range(net: LeakyResNet, factor: float) -> LeakyResNet:
    """W'_ℓ = W_ℓ/c on steps cρ_ℓ with the leak L̃/c: the same representations on [0, c], and Σρ‖W‖² divided by c.

    Exact discretely, because ρL̃ and ρW stay as they are. The lengths of the result sum to c.

    Parameters
    ----------
    net : LeakyResNet
        Not changed.
    factor : float
        c > 0.
    """
    c = check_number("rescale_range", "factor", factor, low=0.0, low_open=True)
    return _with(net, [W.detach() / c for W in net.Ws], c * net.rho, net.effective_depth / c)


@cites("hamiltonian2024", "§1.2, output scaling", ids=("A-symmetries",))
def shift_leak(net: LeakyResNet, shift: float) -> LeakyResNet:
    """The same W with the leak L̃ + c: α'_p = e^{−cp}α_p as ρ → 0, up to O(ρ) on a network; without bias only.

    Parameters
    ----------
    net : LeakyResNet
        Without bias. Not changed.
    shift : float
        c ≥ −L̃.
    """
    who = "shift_leak"
    if net.bias:
        fix = "A bias does not scale with the representation: there is no such symmetry."
        fail(who, "`net` must have no bias", f"bias {net.bias:g}", fix)
    c = check_number(who, "shift", shift, low=-net.effective_depth)
    return _with(net, [W.detach() for W in net.Ws], net.rho, net.effective_depth + c)


@cites("hamiltonian2024", "§3", ids=("A-symmetries",))
def refine_steps(net: LeakyResNet, times: int) -> LeakyResNet:
    """Every step cut into ``times`` of the same W: nearer to the path ∂_pα = −L̃α + W_pσ(α) of the stepwise W_p."""
    m = check_integer("refine_steps", "times", times, low=1)
    Ws = [W.detach() for W in net.Ws for _ in range(m)]
    return _with(net, Ws, (net.rho / m).repeat_interleave(m), net.effective_depth)


def _with(net: LeakyResNet, Ws: list[Tensor], rho: Tensor, effective_depth: float) -> LeakyResNet:
    return LeakyResNet.from_weights(
        Ws,
        rho,
        effective_depth=effective_depth,
        W_in=net.W_in.detach(),
        W_out=net.W_out.detach(),
        slope=net.slope,
        bias=net.bias,
        steps=net.steps,
        embed=net.embed,
    )
