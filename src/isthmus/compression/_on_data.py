"""What can go without any change on given data: neurons that never fire or always do, and parts no sample sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus._checks import as_tensor, check_number, fail
from isthmus._cite import cites
from isthmus._cone import RELATION, eliminate
from isthmus.compression._draft import Draft
from isthmus.compression._everywhere import (
    fold_constants,
    fold_linear,
    mark_linear,
    merge_rays,
    seen_part,
    shrink_everywhere,
)
from isthmus.linalg import chunk_rows, matrix
from isthmus.measures import KernelNorm
from isthmus.trace import activate, with_ones

#: Always active means a least pre-activation above this share of the largest: at 0 there is a kink.
STRICTLY = 1e-9

_MAX_ROUNDS = 10


@cites("features2022", "Prop. 1, Prop. 7 and Prop. 15", ids=("A-merge", "A-caratheodory"))
def shrink_on_data(draft: Draft, X: Tensor, *, rounding: float, free_norm: bool = True) -> None:
    """Remove, in place, what the outputs on ``X`` (N, n_0) do not need.

    In turn, until nothing changes: neurons that are never active; constant ones into the biases; always active ones
    become linear and are reduced to their rank; the part of each weight that no activation meets,
    W ← Z(Z^σ)⁺; neurons on one ray; and Carathéodory's theorem, which removes neurons by linear relations between
    contributions to the next layer, or between covariances. None of them raises ‖θ‖² (with ``free_norm`` false).
    """
    for _ in range(_MAX_ROUNDS):
        before = (draft.parameters, sum(int(mask.sum()) for mask in draft.linear))
        # Nothing that is done to a layer changes what goes into it: one pass through the network serves all.
        into = with_ones(X.mT, draft.bias)
        for i in draft.hidden:
            _settle(draft, i, into, free_norm=free_norm)
            _remove_unseen(draft, i, into)
            merge_rays(draft, i, rounding)
            into = _activations(draft, i, into)
        _remove_unseen(draft, len(draft.Ws) - 1, into)
        shrink_everywhere(draft, rounding=rounding, free_norm=free_norm)
        _one_dimensional(draft, X)
        into = with_ones(X.mT, draft.bias)
        for i in draft.hidden:
            _relations(draft, i, into)
            into = _activations(draft, i, into)
        shrink_everywhere(draft, rounding=rounding, free_norm=free_norm)
        if (draft.parameters, sum(int(mask.sum()) for mask in draft.linear)) == before:
            return


def settle_on_data(draft: Draft, X: Tensor, *, rounding: float, free_norm: bool = True) -> None:
    """The part of :func:`shrink_on_data` that solves nothing: never active, constant and always active neurons."""
    into = with_ones(X.mT, draft.bias)
    for i in draft.hidden:
        _settle(draft, i, into, free_norm=free_norm)
        into = _activations(draft, i, into)
    shrink_everywhere(draft, rounding=rounding, free_norm=free_norm)


def _activations(draft: Draft, i: int, into: Tensor) -> Tensor:
    """What the next weight is applied to, from what ``Ws[i]`` is: samples as columns, the row β below."""
    Z = draft.Ws[i] @ into[: draft.Ws[i].shape[1]] + draft.bs[i][:, None]
    return with_ones(draft.sigma(i, Z.mT).mT, draft.bias)


def _settle(draft: Draft, i: int, into: Tensor, *, free_norm: bool) -> None:
    """Never active, constant, or linear on the data; the linear ones reduced to their rank there."""
    Z = into[: draft.Ws[i].shape[1]].mT @ draft.Ws[i].mT + draft.bs[i]
    top, low, high = Z.abs().amax(0), Z.amin(0), Z.amax(0)
    active = ~draft.linear[i]
    # At 0 the ReLU gives 0 as below it: no margin is needed for a neuron that never fires.
    never = active & (high <= 0 if draft.slopes[i] == 0.0 else high < -STRICTLY * top)
    always = active & (low > STRICTLY * top)
    S = draft.sigma(i, Z)
    flat = (S.amax(0) - S.amin(0)) <= 4 * torch.finfo(torch.float64).eps * S.abs().amax(0)
    constant = torch.where(flat & ~never & (S.abs().amax(0) > 0), S.mean(0), torch.nan)
    if draft.bias != 0.0:
        kept = ~never
        if mark_linear(draft, i, always=always & constant.isnan(), never=never, why="never active on the data"):
            constant = constant[kept] if len(draft.Ws[i]) == int(kept.sum()) else constant[:0]
        if len(constant) == len(draft.Ws[i]) and not bool(constant.isnan().all()):
            fold_constants(draft, i, free_norm=free_norm, constant=constant, why="constant on the data")
    else:
        mark_linear(draft, i, always=always, never=never, why="never active on the data")
    if bool(draft.linear[i].any()):
        fold_linear(draft, i, free_norm=free_norm, into=into[: draft.Ws[i].shape[1]])


def _remove_unseen(draft: Draft, i: int, into: Tensor) -> None:
    """W_ℓ ← W_ℓ P with P onto the span of the activations: Z_ℓ(Z^σ_{ℓ-1})⁺, without dividing by small numbers."""
    rows = draft.incoming(i)
    kept = rows @ seen_part(into)
    if float((rows - kept).norm()) <= 1e-12 * float(rows.norm()):
        return
    if not draft.biased[i]:
        # Without a bias in this layer the projection must not make one: it acts on the weights alone.
        kept = torch.zeros_like(rows)
        kept[:, : draft.Ws[i].shape[1]] = draft.Ws[i] @ seen_part(into[: draft.Ws[i].shape[1]])
    draft.set_incoming(i, kept)


def _one_dimensional(draft: Draft, X: Tensor) -> None:
    """Prop. 15, for one hidden ReLU layer between scalars."""
    if len(draft.Ws) != 2 or draft.Ws[0].shape[1] != 1 or len(draft.Ws[1]) != 1:
        return
    if draft.slopes[0] != 0.0 or draft.bias == 0.0 or bool(draft.linear[0].any()):
        return
    c, d, a = merge_one_dimensional(
        draft.Ws[0][:, 0], draft.bs[0] / draft.bias, draft.Ws[1][0], X[:, 0], bias=draft.bias
    )
    fewer = len(draft.Ws[0]) - len(c)
    if fewer <= 0 or len(c) == 0:
        return
    draft.Ws, draft.linear = [c[:, None], a[None, :]], [torch.zeros(len(c), dtype=torch.bool)]
    draft.bs[0] = draft.bias * d
    draft.note(0, "merged within one gap of the data", fewer)


def _relations(draft: Draft, i: int, into: Tensor) -> None:
    """Shares of the neurons by which some vanish: equal contributions to the next layer, or equal covariances."""
    # Balanced, a neuron costs twice the product of its norms, and a share of it that share of the cost.
    draft.balance(i)
    Z = draft.incoming(i) @ into
    S = draft.sigma(i, Z.mT).mT
    found = fewer_by_relations(S, draft.Ws[i + 1], draft.incoming(i).norm(dim=1) * draft.Ws[i + 1].norm(dim=0))
    if found.state == "reduced":
        _scale_both(draft, i, found.shares)
        draft.drop(i, found.shares == 0, "by relations on the data")
    elif len(Z) > Z.shape[1] * (Z.shape[1] + 1) and not bool(draft.linear[i].any()):
        _equal_covariances(draft, i, Z, with_ones(S, draft.bias))


def _scale_both(draft: Draft, i: int, shares: Tensor) -> None:
    draft.set_incoming(i, shares.sqrt()[:, None] * draft.incoming(i))
    draft.Ws[i + 1] = draft.Ws[i + 1] * shares.sqrt()


def _equal_covariances(draft: Draft, i: int, Z: Tensor, S: Tensor) -> None:
    """At most N(N+1) neurons of the same K_ℓ and K^σ_ℓ, and W_{ℓ+1} = Z_{ℓ+1}(Z^σ_ℓ)⁺; kept only if it is exact."""
    found = caratheodory(Z, slope=draft.slopes[i])
    if found.state != "reduced":
        return
    trial = draft.copy()
    _scale_both(trial, i, found.shares)
    trial.drop(i, found.shares == 0, "at equal covariances")
    root = found.shares[found.shares > 0].sqrt()
    fewer = torch.cat([root[:, None] * S[: len(Z)][found.shares > 0], S[len(Z) :]])
    wanted = draft.incoming(i + 1) @ S
    rows = KernelNorm(fewer).weights(wanted)
    trial.set_incoming(i + 1, rows)
    exact = float((rows @ fewer - wanted).abs().max()) <= 1e-13 * float(wanted.abs().max())
    if exact and trial.norm <= draft.norm * (1 + 1e-12) and trial.biased == draft.biased:
        draft.become(trial)


# ---- Fewer neurons by linear relations on the data: shares of neurons, never a new direction (A-caratheodory)


#: Bytes of one intermediate.
MEMORY = 200 * 2**20

#: Coordinates of a sketch beyond twice the neurons.
EXTRA = 32

SEED = 20220531


@dataclass(frozen=True, eq=False)
class NeuronShares:
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
        """Number of neurons that are left."""
        return int((self.shares > 0).sum())


@cites("features2022", "after Def. 2, Prop. 15", ids=("A-merge",))
def fewer_by_relations(S: Any, V: Any, costs: Any, *, tolerance: float = 1e-13) -> NeuronShares:
    """Shares m ≥ 0 with V·diag(m)·S = V·S and Σm_i·cost_i ≤ Σcost_i, at most Rank{v_i ⊗ S_i} ≤ m·N of them positive.

    The next layer sees neuron i as v_i ⊗ S_i. Where these are dependent, weights move along a relation until a neuron
    vanishes, with the same pre-activations on the data and a norm that never grows (:func:`isthmus._cone.eliminate`).
    A share scales a neuron by √m_i on both sides: no direction of an incoming weight and no sign on the data changes.
    For a scalar output at most N neurons are left, whatever the inputs: fewer than the 4N of Prop. 15.

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
def caratheodory(Z: Any, *, slope: float = 0.0, tolerance: float = 1e-12) -> NeuronShares:
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


def _result(shares: Tensor, deviation: float, exact: bool) -> NeuronShares:
    if not exact:
        return NeuronShares(torch.ones_like(shares), "not exact", 0.0)
    if bool((shares > 0).all()):
        return NeuronShares(torch.ones_like(shares), "independent", 0.0)
    return NeuronShares(shares, "reduced", deviation)


def _functionals(rows: Tensor, count: int, draw: torch.Generator) -> Tensor:
    """``count`` Gaussian functionals of each row, (n, count), a bounded number of columns at a time."""
    out = rows.new_zeros(len(rows), count)
    for part in rows.split(_samples(count, rows.shape[1]), 1):
        out += part @ torch.randn(part.shape[1], count, dtype=torch.float64, generator=draw)
    return out


def _samples(rows: int, samples: int) -> int:
    return chunk_rows(samples, 8.0 * rows, MEMORY)


# ---- A-merge in one dimension: neurons that switch between the same inputs become one (features2022, Prop. 15)


@cites("features2022", "Prop. 15 and Prop. 24", ids=("A-merge",))
def merge_one_dimensional(c: Any, d: Any, a: Any, x: Any, *, bias: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """At most 4N − 2 neurons with Σã_kσ(c̃_kx + βd̃_k) = Σa_kσ(c_kx + βd_k) on N inputs x, of no larger norm; ReLU.

    Neurons that are active on the same inputs and have the same sign of a merge: ãc̃ = Σac, ãd̃ = Σad, ã² = c̃² + d̃².
    On these inputs the sum is linear, and c̃x + βd̃ is positive; on the others every c_kx + βd_k ≤ 0, and so is their
    mean. The triangle inequality gives |ã|√(c̃² + d̃²) ≤ Σ|a|√(c² + d²): balanced, the norm does not grow. Of the sets
    that a neuron can switch on there are at most 2N − 1 (left parts, right parts, all), and two signs. Neurons that
    are never active, or unheard, go.

    Parameters
    ----------
    c, d, a : array (n,)
        Incoming weights, biases and outgoing weights. All that are returned are balanced, a² = c² + d².
    x : array (N,)
        In any order; repeated inputs count once.
    bias : float
        β. It does not enter the merging: the norm counts d, and c, d are added in the same proportions.

    Returns
    -------
    c, d, a : Tensor (n',)

    Notes
    -----
    Departs from the paper: neurons are compared by the set of inputs at which they are active rather than by their
    cusp −d/c. This treats cusps at an input, neurons with c = 0 and those left or right of the data alike.

    Examples
    --------
    >>> merge_one_dimensional([1.0, 1.0], [-0.2, -0.4], [3.0, 1.0], [0.0, 1.0])[0].shape
    torch.Size([1])
    """
    who = "merge_one_dimensional"
    check_number(who, "bias", bias)
    vectors = [as_tensor(who, name, value) for name, value in (("c", c), ("d", d), ("a", a), ("x", x))]
    shapes = [tuple(v.shape) for v in vectors]
    if any(v.ndim != 1 for v in vectors) or len(set(shapes[:3])) > 1 or not len(vectors[3]):
        fail(who, "`c`, `d`, `a` must be vectors of one length and `x` one of at least 1", shapes, "Flatten them.")
    C, D, A, inputs = vectors
    Z = torch.outer(C, inputs.unique()) + bias * D[:, None]
    rows, out = merge_patterns(torch.stack([C, D], 1), A, Z > 0)
    return rows[:, 0], rows[:, 1], out


def merge_patterns(rows: Tensor, a: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """One neuron ã² = ‖w̃‖², ãw̃ = Σa_kw_k, for all that are active on the same samples with the same sign of a.

    For a layer of ReLUs with one output and any inputs; see :func:`merge_one_dimensional`.

    Parameters
    ----------
    rows : Tensor (n, p)
        Incoming weights, the bias among them.
    a : Tensor (n,)
        Outgoing weights.
    active : Tensor (n, N) of bool
        Where the pre-activation is positive.

    Returns
    -------
    rows, a : Tensor (n', p), (n',)
        Balanced; in the order in which the groups first occur.
    """
    heard = active.any(1) & (a != 0)
    rows, a, active = rows[heard], a[heard], active[heard]
    if not len(a):
        return rows, a
    key = torch.cat([active, (a > 0)[:, None]], 1)
    _, group = torch.unique(key, dim=0, return_inverse=True)
    first = torch.full((int(group.max()) + 1,), len(a)).scatter_reduce(0, group, torch.arange(len(a)), "amin")
    first, order = first.sort()
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    sums = rows.new_zeros(len(first), rows.shape[1]).index_add(0, place[group], a[:, None] * rows)
    sizes = sums.norm(dim=1).sqrt()
    # A sum of pre-activations that are positive somewhere cannot vanish; by underflow it can.
    alive = sizes > 0
    out = (a[first].sign() * sizes)[alive]
    return sums[alive] / out[:, None], out
