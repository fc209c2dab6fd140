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
from isthmus._errors import DataError
from isthmus.linalg import matrix
from isthmus.measures.energies import flow
from isthmus.networks import LeakyResNet
from isthmus.networks.leaky_steps import equidistant
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
