"""What can go without any change on given data: neurons that never fire or always do, and parts no sample sees."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus._cite import cites
from isthmus.compression.chain import Chain
from isthmus.compression.conic import caratheodory, fewer_by_relations
from isthmus.compression.everywhere import (
    fold_constants,
    fold_linear,
    mark_linear,
    merge_rays,
    seen_part,
    shrink_everywhere,
)
from isthmus.compression.one_dimensional import merge_one_dimensional
from isthmus.measures import KernelNorm
from isthmus.trace import with_ones

#: Always active means a least pre-activation above this share of the largest: at 0 there is a kink.
STRICTLY = 1e-9
_MAX_ROUNDS = 10


@cites("features2022", "Prop. 1, Prop. 7 and Prop. 15", ids=("A-merge", "A-caratheodory"))
def shrink_on_data(chain: Chain, X: Tensor, *, rounding: float, free_norm: bool = True) -> None:
    """Remove, in place, what the outputs on ``X`` (N, n_0) do not need.

    In turn, until nothing changes: neurons that are never active; constant ones into the biases; always active ones
    become linear and are reduced to their rank; the part of each weight that no activation meets,
    W ← Z(Z^σ)⁺; neurons on one ray; and Carathéodory's theorem, which removes neurons by linear relations between
    contributions to the next layer, or between covariances. None of them raises ‖θ‖² (with ``free_norm`` false).
    """
    for _ in range(_MAX_ROUNDS):
        before = (chain.parameters, sum(int(mask.sum()) for mask in chain.linear))
        # Nothing that is done to a layer changes what goes into it: one pass through the network serves all.
        into = with_ones(X.mT, chain.bias)
        for i in chain.hidden:
            _settle(chain, i, into, free_norm=free_norm)
            _remove_unseen(chain, i, into)
            merge_rays(chain, i, rounding)
            into = _activations(chain, i, into)
        _remove_unseen(chain, len(chain.Ws) - 1, into)
        shrink_everywhere(chain, rounding=rounding, free_norm=free_norm)
        _one_dimensional(chain, X)
        into = with_ones(X.mT, chain.bias)
        for i in chain.hidden:
            _relations(chain, i, into)
            into = _activations(chain, i, into)
        shrink_everywhere(chain, rounding=rounding, free_norm=free_norm)
        if (chain.parameters, sum(int(mask.sum()) for mask in chain.linear)) == before:
            return


def settle_on_data(chain: Chain, X: Tensor, *, rounding: float, free_norm: bool = True) -> None:
    """The part of :func:`shrink_on_data` that solves nothing: never active, constant and always active neurons."""
    into = with_ones(X.mT, chain.bias)
    for i in chain.hidden:
        _settle(chain, i, into, free_norm=free_norm)
        into = _activations(chain, i, into)
    shrink_everywhere(chain, rounding=rounding, free_norm=free_norm)


def _activations(chain: Chain, i: int, into: Tensor) -> Tensor:
    """What the next weight is applied to, from what ``Ws[i]`` is: samples as columns, the row β below."""
    Z = chain.Ws[i] @ into[: chain.Ws[i].shape[1]] + chain.bs[i][:, None]
    return with_ones(chain.sigma(i, Z.mT).mT, chain.bias)


def _settle(chain: Chain, i: int, into: Tensor, *, free_norm: bool) -> None:
    """Never active, constant, or linear on the data; the linear ones reduced to their rank there."""
    Z = into[: chain.Ws[i].shape[1]].mT @ chain.Ws[i].mT + chain.bs[i]
    top, low, high = Z.abs().amax(0), Z.amin(0), Z.amax(0)
    active = ~chain.linear[i]
    # At 0 the ReLU gives 0 as below it: no margin is needed for a neuron that never fires.
    never = active & (high <= 0 if chain.slopes[i] == 0.0 else high < -STRICTLY * top)
    always = active & (low > STRICTLY * top)
    S = chain.sigma(i, Z)
    flat = (S.amax(0) - S.amin(0)) <= 4 * torch.finfo(torch.float64).eps * S.abs().amax(0)
    constant = torch.where(flat & ~never & (S.abs().amax(0) > 0), S.mean(0), torch.nan)
    if chain.bias != 0.0:
        kept = ~never
        if mark_linear(chain, i, always=always & constant.isnan(), never=never, why="never active on the data"):
            constant = constant[kept] if len(chain.Ws[i]) == int(kept.sum()) else constant[:0]
        if len(constant) == len(chain.Ws[i]) and not bool(constant.isnan().all()):
            fold_constants(chain, i, free_norm=free_norm, constant=constant, why="constant on the data")
    else:
        mark_linear(chain, i, always=always, never=never, why="never active on the data")
    if bool(chain.linear[i].any()):
        fold_linear(chain, i, free_norm=free_norm, into=into[: chain.Ws[i].shape[1]])


def _remove_unseen(chain: Chain, i: int, into: Tensor) -> None:
    """W_ℓ ← W_ℓ P with P onto the span of the activations: Z_ℓ(Z^σ_{ℓ-1})⁺, without dividing by small numbers."""
    rows = chain.incoming(i)
    kept = rows @ seen_part(into)
    if float((rows - kept).norm()) <= 1e-12 * float(rows.norm()):
        return
    if not chain.biased[i]:
        # Without a bias in this layer the projection must not make one: it acts on the weights alone.
        kept = torch.zeros_like(rows)
        kept[:, : chain.Ws[i].shape[1]] = chain.Ws[i] @ seen_part(into[: chain.Ws[i].shape[1]])
    chain.set_incoming(i, kept)


def _one_dimensional(chain: Chain, X: Tensor) -> None:
    """Prop. 15, for one hidden ReLU layer between scalars."""
    if len(chain.Ws) != 2 or chain.Ws[0].shape[1] != 1 or len(chain.Ws[1]) != 1:
        return
    if chain.slopes[0] != 0.0 or chain.bias == 0.0 or bool(chain.linear[0].any()):
        return
    c, d, a = merge_one_dimensional(
        chain.Ws[0][:, 0], chain.bs[0] / chain.bias, chain.Ws[1][0], X[:, 0], bias=chain.bias
    )
    fewer = len(chain.Ws[0]) - len(c)
    if fewer <= 0 or len(c) == 0:
        return
    chain.Ws, chain.linear = [c[:, None], a[None, :]], [torch.zeros(len(c), dtype=torch.bool)]
    chain.bs[0] = chain.bias * d
    chain.note(0, "merged within one gap of the data", fewer)


def _relations(chain: Chain, i: int, into: Tensor) -> None:
    """Shares of the neurons by which some vanish: equal contributions to the next layer, or equal covariances."""
    # Balanced, a neuron costs twice the product of its norms, and a share of it that share of the cost.
    chain.balance(i)
    Z = chain.incoming(i) @ into
    S = chain.sigma(i, Z.mT).mT
    found = fewer_by_relations(S, chain.Ws[i + 1], chain.incoming(i).norm(dim=1) * chain.Ws[i + 1].norm(dim=0))
    if found.state == "reduced":
        _scale_both(chain, i, found.shares)
        chain.drop(i, found.shares == 0, "by relations on the data")
    elif len(Z) > Z.shape[1] * (Z.shape[1] + 1) and not bool(chain.linear[i].any()):
        _equal_covariances(chain, i, Z, with_ones(S, chain.bias))


def _scale_both(chain: Chain, i: int, shares: Tensor) -> None:
    chain.set_incoming(i, shares.sqrt()[:, None] * chain.incoming(i))
    chain.Ws[i + 1] = chain.Ws[i + 1] * shares.sqrt()


def _equal_covariances(chain: Chain, i: int, Z: Tensor, S: Tensor) -> None:
    """At most N(N+1) neurons of the same K_ℓ and K^σ_ℓ, and W_{ℓ+1} = Z_{ℓ+1}(Z^σ_ℓ)⁺; kept only if it is exact."""
    found = caratheodory(Z, slope=chain.slopes[i])
    if found.state != "reduced":
        return
    trial = chain.copy()
    _scale_both(trial, i, found.shares)
    trial.drop(i, found.shares == 0, "at equal covariances")
    root = found.shares[found.shares > 0].sqrt()
    fewer = torch.cat([root[:, None] * S[: len(Z)][found.shares > 0], S[len(Z) :]])
    wanted = chain.incoming(i + 1) @ S
    rows = KernelNorm(fewer).weights(wanted)
    trial.set_incoming(i + 1, rows)
    exact = float((rows @ fewer - wanted).abs().max()) <= 1e-13 * float(wanted.abs().max())
    if exact and trial.norm <= chain.norm * (1 + 1e-12) and trial.biased == chain.biased:
        chain.become(trial)
