"""Fewer neurons by linear relations on the data: shares of neurons, never a new direction (A-caratheodory)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus._checks import as_tensor, check_number, fail
from isthmus._cite import cites
from isthmus._cone import RELATION, eliminate
from isthmus.linalg import chunk_rows, matrix
from isthmus.trace import activate

#: Bytes of one intermediate.
MEMORY = 200 * 2**20
#: Coordinates of a sketch beyond twice the neurons.
EXTRA = 32
SEED = 20220531


@dataclass(frozen=True, eq=False)
class Shares:
    """Non-negative shares of the n neurons of a layer; a neuron of share 0 can go.

    Attributes
    ----------
    shares : Tensor (n,)
        All 1 unless ``state`` is ``"reduced"``.
    state : str
        ``"reduced"``; ``"independent"`` if there is no relation to use; ``"not exact"`` if rounding spoilt the result
        (nothing is then changed).
    deviation : float
        Largest change of what must be kept, relative to its largest entry.
    """

    shares: Tensor
    state: str
    deviation: float

    @property
    def kept(self) -> int:
        """Neurons that are left."""
        return int((self.shares > 0).sum())


@cites("features2022", "after Def. 2, Prop. 15", ids=("A-merge",))
def fewer_by_relations(S: Any, V: Any, costs: Any, *, tolerance: float = 1e-13) -> Shares:
    """Shares m ≥ 0 with V·diag(m)·S = V·S and Σm_i·cost_i ≤ Σcost_i, at most Rank{v_i ⊗ S_i} ≤ m·N of them positive.

    The next layer sees neuron i as v_i ⊗ S_i. Where these are dependent, weights move along a relation until a neuron
    vanishes, with the same pre-activations on the data and a norm that never grows (:func:`isthmus._cone.eliminate`).
    A share scales a neuron by √m_i on both sides (:func:`with_shares`): no direction of an incoming weight and no sign
    on the data changes. For a scalar output at most N neurons are left, whatever the inputs: fewer than the 4N of
    Prop. 15.

    Parameters
    ----------
    S : array (n, N)
        Activations on the data, neurons as rows.
    V : array (m, n)
        Outgoing weights.
    costs : array (n,)
        Non-negative. |w_i|² + |v_i|² (biases included) is what neuron i adds to ‖θ‖².
    tolerance : float
        Relative to the largest entry of V·S; rounding of that product itself is granted on top.

    Notes
    -----
    Where m·N exceeds twice the neurons, relations are found from 2n + 32 random functionals (v·g)(S·h), drawn from a
    fixed generator: they have the same relations with probability 1, and the result is checked on all the data.
    """
    who = "fewer_by_relations"
    A, B, prices = matrix(who, "S", S), matrix(who, "V", V), as_tensor(who, "costs", costs)
    n, N = A.shape
    if B.ndim != 2 or B.shape[1] != n or prices.shape != (n,):
        got = f"S {tuple(A.shape)}, V {tuple(B.shape)}, costs {tuple(prices.shape)}"
        fail(who, "`S`, `V` and `costs` must be (n, N), (m, n) and (n,)", got, "Give each neuron its row and column.")
    check_number(who, "tolerance", tolerance, low=0.0)
    columns = B.mT / B.norm(dim=0).clamp_min(torch.finfo(torch.float64).tiny)[:, None]
    rows = A / A.norm(dim=1).clamp_min(torch.finfo(torch.float64).tiny)[:, None]
    if N * len(B) <= 2 * n + EXTRA:
        units = (columns[:, :, None] * rows[:, None, :]).reshape(n, -1)
    else:
        draw = torch.Generator().manual_seed(SEED)
        units = _functionals(columns, 2 * n + EXTRA, draw) * _functionals(rows, 2 * n + EXTRA, draw)
    points = units * (A.norm(dim=1) * B.norm(dim=0))[:, None]
    scale = float((B @ A).abs().max())
    rounding = 16 * torch.finfo(torch.float64).eps * float((B.abs() @ A.abs()).max())
    found = _result(torch.ones_like(prices), 0.0, False)
    # A relation that is only nearly one can spoil the others: without it, those that hold to the last digit remain.
    for relation in (RELATION, RELATION / 50):
        shares = eliminate(points, prices, relation=relation)
        change = B * (shares - 1.0)
        deviation = max(float((change @ part).abs().max()) for part in A.split(_samples(n, N), 1))
        exact = deviation <= tolerance * scale + rounding
        cheap = float(shares @ prices) <= float(prices.sum()) * (1 + 1e-12)
        found = _result(shares, deviation / scale if scale else 0.0, exact and cheap)
        if found.state != "not exact":
            break
    return found


@cites("features2022", "after Def. 2, Prop. 7", ids=("A-caratheodory",))
def caratheodory(Z: Any, *, slope: float = 0.0, tolerance: float = 1e-12) -> Shares:
    """Shares m ≥ 0 with Σm_i(z_iz_iᵀ, σ(z_i)σ(z_i)ᵀ) = Σ(z_iz_iᵀ, σ(z_i)σ(z_i)ᵀ), at most N(N+1) of them positive.

    Rows √m_i·z_i have the covariances K and K^σ of Z, whatever the amount of bias: with W = Z_{ℓ+1}(Z^σ_ℓ)⁺ recomputed
    the outputs on the data and Tr[K_ℓ(K^σ_{ℓ-1})⁺] are the same in every layer.

    Parameters
    ----------
    Z : array (n, N)
        Pre-activations of one layer, neurons as rows.
    slope : float
        a of σ_a; σ must be homogeneous for √m_i to pass through it.
    tolerance : float
        Relative to the largest entry of each covariance.
    """
    A = matrix("caratheodory", "Z", Z)
    parts = (A, activate(A, slope))
    n, N = A.shape
    if 2 * n + EXTRA >= N * (N + 1):
        i, j = torch.triu_indices(N, N)
        pairs = torch.cat([P[:, i] * P[:, j] for P in parts], 1)
    else:
        draw = torch.Generator().manual_seed(SEED)
        count = 2 * n + EXTRA
        first, second = (_functionals(P, count, draw) * _functionals(P, count, draw) for P in parts)
        pairs = first + second
    shares = eliminate(pairs)
    deviation, rounding = 0.0, 0.0
    for P in parts:
        scale = float(P.square().sum(0).max())  # the largest entry of a covariance is on its diagonal
        if scale > 0.0:
            change = (P * (shares - 1.0)[:, None]).mT
            worst = max(float((change @ part).abs().max()) for part in P.split(_samples(N, N), 1))
            deviation = max(deviation, worst / scale)
            rounding = 16 * torch.finfo(torch.float64).eps * n
    return _result(shares, deviation, deviation <= tolerance + rounding)


def with_shares(W: Tensor, b: Tensor | None, V: Tensor, shares: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
    """Rows w_i√m_i (and biases) and columns v_i√m_i of the neurons of positive share.

    Parameters
    ----------
    W, b, V : Tensor (n, d), (n,) or None, (m, n)
        Incoming weights, biases and outgoing weights.
    shares : Tensor (n,)
    """
    kept = shares > 0
    root = shares[kept].sqrt()
    return W[kept] * root[:, None], None if b is None else b[kept] * root, V[:, kept] * root


def _result(shares: Tensor, deviation: float, exact: bool) -> Shares:
    if not exact:
        return Shares(torch.ones_like(shares), "not exact", 0.0)
    if bool((shares > 0).all()):
        return Shares(torch.ones_like(shares), "independent", 0.0)
    return Shares(shares, "reduced", deviation)


def _functionals(rows: Tensor, count: int, draw: torch.Generator) -> Tensor:
    """``count`` Gaussian functionals of each row, (n, count), a bounded number of columns at a time."""
    out = rows.new_zeros(len(rows), count)
    for part in rows.split(_samples(count, rows.shape[1]), 1):
        out += part @ torch.randn(part.shape[1], count, dtype=torch.float64, generator=draw)
    return out


def _samples(rows: int, samples: int) -> int:
    return chunk_rows(samples, 8.0 * rows, MEMORY)
