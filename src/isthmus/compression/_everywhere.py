"""What can go without any change of the function: dead, constant and aligned neurons, linear ones beyond their rank."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus._cite import cites
from isthmus.compression._draft import Draft
from isthmus.linalg import thin_svd
from isthmus.trace import activate

#: Relative rounding that a relation between float64 weights may have gathered in earlier layers.
ROUNDING = 64 * torch.finfo(torch.float64).eps

#: Singular values of activations below this share of the largest are rounding.
UNSEEN = 32 * torch.finfo(torch.float64).eps

#: Rows are merged if what their differences may add to the outputs is below so many roundings of what is left of them.
MERGED = 64

_MAX_ROUNDS = 100


@cites("features2022", "§3.1 and Prop. 15", ids=("A-merge",))
def shrink_everywhere(draft: Draft, *, rounding: float = ROUNDING, free_norm: bool = True) -> None:
    """Remove, in place, what the function does not need for any input.

    Neurons without output, without input (their constant goes into the biases), of one ray (σ(cz) = cσ(z) for c > 0:
    one neuron with Σc_kv_k stands for all), and neurons that are never or always active because their inputs are
    non-negative. Linear neurons are reduced to the rank of what they pass on.

    Parameters
    ----------
    rounding : float
        How far from proportional two rows of norm 1 may be.
    free_norm : bool
        Fold constants into biases, and linear layers into one another, also where ‖θ‖² then grows.
    """
    for _ in range(_MAX_ROUNDS):
        changed = False
        for i in draft.hidden:
            changed |= drop_unheard(draft, i)
            changed |= settle_signs(draft, i)
            changed |= fold_constants(draft, i, free_norm=free_norm)
            changed |= merge_rays(draft, i, rounding)
            changed |= fold_linear(draft, i, free_norm=free_norm)
        changed |= join_linear_layers(draft, free_norm=free_norm)
        if not changed:
            return


def drop_unheard(draft: Draft, i: int) -> bool:
    """Neurons of which the next layer takes nothing."""
    return draft.drop(i, (draft.Ws[i + 1] == 0).all(0), "without output")


def fold_constants(draft: Draft, i: int, *, free_norm: bool, constant: Tensor | None = None, why: str = "") -> bool:
    """Neurons of constant activation: their contribution goes into the next biases.

    ``constant`` are activations to be taken for constant, NaN where they are not; by default those of neurons without
    input.
    """
    if constant is None:
        values = torch.where(draft.linear[i], draft.bs[i], activate(draft.bs[i], draft.slopes[i]))
        silent = (draft.Ws[i] == 0).all(1)
    else:
        values, silent = constant.nan_to_num(), ~constant.isnan()
    gone = silent & (values == 0)
    changed = draft.drop(i, gone, why or "dead")
    if not changed and bool(gone.any()):
        return False
    values, silent = values[~gone], silent[~gone]
    if draft.bias == 0.0 or len(values) != len(draft.Ws[i]):
        return changed
    passed = draft.Ws[i + 1] * values
    left = torch.zeros_like(silent)
    into, out = draft.incoming(i).square().sum(1), draft.Ws[i + 1].square().sum(0)
    b, size = draft.bs[i + 1].clone(), draft.bs[i + 1].abs()
    for k in torch.nonzero(silent)[:, 0].tolist():
        growth = float((b + passed[:, k]).square().sum() - b.square().sum()) / draft.bias**2
        if free_norm or growth <= float(into[k] + out[k]):
            b, size = b + passed[:, k], size + passed[:, k].abs()
            left[k] = True
    if not bool(left.any()):
        return changed
    draft.bs[i + 1] = without_rounding(b, size)
    draft.biased[i + 1] = True
    draft.Ws[i + 1][:, left] = 0.0
    return draft.drop(i, left, why or "constant") or changed


def without_rounding(total: Tensor, size: Tensor) -> Tensor:
    """Sums that cancelled up to rounding as 0; ``size`` is the sum of absolute values."""
    return torch.where(total.abs() <= 8 * torch.finfo(torch.float64).eps * size, 0.0, total)


def settle_signs(draft: Draft, i: int) -> bool:
    """Neurons that see non-negative activations only, through weights of one sign: never active, or linear."""
    if i == 0 or draft.slopes[i] == 1.0:
        return False
    # What passed a ReLU is not negative; linear neurons and other slopes may be.
    positive = ~draft.linear[i - 1] if draft.slopes[i - 1] == 0.0 else torch.zeros_like(draft.linear[i - 1])
    W, b = draft.Ws[i], draft.bs[i]
    blind = (W[:, ~positive] == 0).all(1) & ~draft.linear[i]
    return mark_linear(
        draft,
        i,
        always=blind & (W >= 0).all(1) & (b >= 0) & (W != 0).any(1),
        never=blind & (W <= 0).all(1) & (b <= 0) & (W != 0).any(1),
        why="never active",
    )


def mark_linear(draft: Draft, i: int, *, always: Tensor, never: Tensor, why: str) -> bool:
    """Neurons above zero become linear, those below are linear of slope a, or go with the ReLU."""
    if not draft.mixed:
        bent = ~(draft.linear[i] | always) & ~never
        if bool(bent.any()):
            always = torch.zeros_like(always)
            never = never if draft.slopes[i] == 0.0 else torch.zeros_like(never)
    if draft.slopes[i] != 0.0:
        draft.Ws[i][never] *= draft.slopes[i]
        draft.bs[i][never] *= draft.slopes[i]
        always, never = always | never, torch.zeros_like(never)
    draft.linear[i] = draft.linear[i] | always
    gone = draft.drop(i, never, why)
    return gone or bool(always.any())


def merge_rays(draft: Draft, i: int, rounding: float) -> bool:
    """Neurons whose rows [W, b] are positive multiples of one another."""
    rows = draft.incoming(i)
    sizes = rows.norm(dim=1)
    candidates = torch.nonzero((sizes > 0) & ~draft.linear[i])[:, 0]
    if len(candidates) < 2:
        return False
    units = rows[candidates] / sizes[candidates, None]
    first = first_of_ray(units, rounding)
    outgoing = draft.Ws[i + 1]
    V, gone = _merged(outgoing, sizes, candidates, first)
    # Rows that differ by rounding stand for one another, but not where their outputs cancel: what is left of them there
    # is the difference itself, however small a part of the inputs sees it.
    heard = outgoing.norm(dim=0)[candidates] * sizes[candidates] * (units - units[first]).norm(dim=1)
    missed = torch.zeros(len(units), dtype=torch.float64).index_add(0, first, heard)
    left = float((V.norm(dim=0) * sizes)[~gone].sum())
    apart = (missed > MERGED * rounding * left)[first]
    if bool(apart.any()):
        first = torch.where(apart, torch.arange(len(first)), first)
        V, gone = _merged(outgoing, sizes, candidates, first)
    if not bool(gone.any()):
        return False
    touched = candidates[first.unique()]
    draft.Ws[i + 1] = V
    # Balanced, the norm of the merged neuron is at most that of its parts (triangle inequality).
    into, out = sizes[touched], V[:, touched].norm(dim=0)
    factors = torch.ones(len(rows), dtype=torch.float64)
    factors[touched] = torch.where(out > 0, out / into, 1.0).sqrt()
    draft.rescale(i, factors)
    return draft.drop(i, gone, "on one ray")


def _merged(outgoing: Tensor, sizes: Tensor, candidates: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Outgoing weights after each candidate was added to the first of its ray, and which neurons are thereby gone."""
    gone = torch.zeros(len(sizes), dtype=torch.bool)
    V, size = outgoing.clone(), outgoing.abs()
    for k in torch.nonzero(first != torch.arange(len(first)))[:, 0].tolist():
        here, there = candidates[k], candidates[first[k]]
        ratio = sizes[here] / sizes[there]
        V[:, there] += V[:, here] * ratio
        size[:, there] += size[:, here] * ratio
        gone[here] = True
    return without_rounding(V, size), gone


def first_of_ray(units: Tensor, rounding: float) -> Tensor:
    """For each row of norm 1 the index of the first row equal to it up to ``rounding`` in each entry."""
    # Rows of one ray have one projection on any direction: only neighbours on it need to be compared.
    source = torch.Generator().manual_seed(0)
    direction = torch.randn(units.shape[1], dtype=torch.float64, generator=source)
    places, order = (units @ direction).sort(stable=True)
    apart = 4 * rounding * max(float(direction.abs().sum()), 1.0)
    first = torch.arange(len(units))
    start = 0
    for end in range(1, len(units) + 1):
        if end < len(units) and float(places[end] - places[end - 1]) <= apart:
            continue
        group = order[start:end].sort().values
        while len(group) > 1:
            same = (units[group] - units[group[0]]).abs().amax(1) <= rounding
            first[group[same]] = group[0]
            group = group[~same]
        start = end
    return first


def fold_linear(draft: Draft, i: int, *, free_norm: bool, into: Tensor | None = None) -> bool:
    """Replace the linear neurons of a layer by as many as the rank of what they pass on.

    On activations α they pass on V(Wα + b). Its linear part, the rank of VW, stays; its constant goes into the next
    biases. Where that would raise the norm, or there are no biases, the rank of V[W, b] stays. The balanced factors of
    an SVD have the least norm, twice the nuclear norm, of all pairs with their product. ``into`` (n_i, N), activations
    on data, counts only what they see.
    """
    mask = draft.linear[i]
    count = int(mask.sum())
    if count == 0:
        return False
    W, b, V = draft.Ws[i][mask], draft.bs[i][mask], draft.Ws[i + 1][:, mask]
    first = draft.copy()
    if draft.bias != 0.0:
        offset = b
        if into is not None:
            mean = into.mean(1, keepdim=True)
            seen = W @ seen_part(into - mean)
            W, offset = seen, b + ((W - seen) @ mean)[:, 0]
        if _replace(draft, i, W, torch.zeros_like(b), V):
            draft.bs[i + 1] = first.bs[i + 1] + V @ offset
            draft.biased[i + 1] = True
            if free_norm or draft.norm <= first.norm:
                return True
        draft.become(first.copy())
        return _replace(draft, i, W, offset, V)
    return _replace(draft, i, W if into is None else W @ seen_part(into), b, V)


def _replace(draft: Draft, i: int, W: Tensor, b: Tensor, V: Tensor) -> bool:
    """Linear neurons of the product V[W, b] in the place of those there are; nothing if they are not fewer."""
    mask = draft.linear[i]
    count = int(mask.sum())
    rows = W if draft.bias == 0.0 else torch.cat([W, b[:, None] / draft.bias], 1)
    Qv, Rv = torch.linalg.qr(V)
    Qw, Rw = torch.linalg.qr(rows.mT)
    U, s, Vh = thin_svd(Rv @ Rw.mT)
    # Measured by the factors, not by the product: what cancels in it is rounding.
    scale = float(torch.linalg.matrix_norm(Rv, 2) * torch.linalg.matrix_norm(Rw, 2))
    rank = int((s > 1e-14 * max(count, 8) * scale).sum())
    if rank >= count:
        return False
    root = s[:rank].sqrt()
    places = torch.nonzero(mask)[:, 0]
    into = draft.incoming(i).clone()
    # An input that none of them took, or an output that took none of them, must not get rounding instead of 0.
    into[places[:rank]] = root[:, None] * (Qw @ Vh[:rank].mT).mT * (rows != 0).any(0)
    draft.set_incoming(i, into)
    draft.Ws[i + 1][:, places[:rank]] = (Qv @ U[:, :rank]) * root * (V != 0).any(1)[:, None]
    gone = torch.zeros_like(mask)
    gone[places[rank:]] = True
    return draft.drop(i, gone, "linear, beyond their rank")


def seen_part(into: Tensor) -> Tensor:
    """Orthogonal projection onto the span of the columns of ``into``, (n, n)."""
    R = into if into.shape[1] <= into.shape[0] else torch.linalg.qr(into.mT, mode="r").R.mT
    U, s, _ = thin_svd(R)
    U = U[:, s > UNSEEN * s[0]] if len(s) and float(s[0]) > 0 else U[:, :0]
    return U @ U.mT


def join_linear_layers(draft: Draft, *, free_norm: bool) -> bool:
    """Multiply two weights with only linear neurons between them where that has fewer parameters."""
    changed = False
    for i in reversed(draft.hidden):
        if not bool(draft.linear[i].all()):
            continue
        trial = draft.copy()
        W = trial.Ws[i + 1] @ trial.Ws[i]
        b = trial.Ws[i + 1] @ trial.bs[i] + trial.bs[i + 1]
        trial.note(i, "layer joined with the next", len(trial.Ws[i]))
        trial.Ws[i : i + 2], trial.bs[i : i + 2] = [W], [b]
        trial.biased[i : i + 2] = [trial.biased[i] or trial.biased[i + 1]]
        del trial.slopes[i], trial.linear[i], trial.names[i]
        smaller = trial.parameters <= draft.parameters
        if smaller and (free_norm or trial.norm <= draft.norm):
            draft.become(trial)
            changed = True
    return changed
