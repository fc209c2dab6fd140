"""How many classes meet at a point, when all that tells them apart passes through k dimensions (rank2023 §5)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.claims._base import Check, Subject, claim
from isthmus.claims._evidence import random_subject, seeded
from isthmus.trace import Trace

#: Dimensions of the narrowest layer that are searched.
DIMENSIONS = 3

#: Boxes that are followed at once, and passed through the network together.
MOST, BLOCK = 20_000, 1024

#: Halvings of every side of the box, after which scores that may still be equal are compared directly.
HALVINGS = 32

#: Boxes so small whose scores are compared, and the relative difference up to which they are equal.
CANDIDATES, EQUAL = 256, 1e-9

#: Changes of the output biases: how many, and how large against the spread of the scores.
DRAWS, SHIFT = 3, 0.02


def five_classes_through_two() -> Subject:
    """A random classifier of five classes, all of which are seen, through a layer of width 2."""
    subject = random_subject([3, 8, 2, 16, 16, 5], samples=400, seed=3)
    scores = subject.trace().outputs
    # Scores of like size, so that every class is somewhere the largest.
    last = subject.net.biases[-1]
    last.data = last.data - scores.mean(0)
    return subject


@claim(
    "C-rank-15",
    "A classifier f = h∘g through k dimensions has, for almost all output biases, no point where k + 2 classes meet",
    paper="rank2023",
    where="§5, 'Multiclass classification'",
    hypotheses=("a layer of width ≤ 3", "k + 2 classes seen", "partition resolved"),
    sample=five_classes_through_two,
    erratum="'topological properties typical of a partition on a k-dim. space': for k > 1 only up to a change of the "
    "output biases, however small; four quadrants of the plane meet in a point.",
)
def few_classes_meet(check: Check, subject: Subject) -> None:
    """No point of the narrowest layer's box at which k + 2 scores are equal and largest, after a change of the biases.

    Where k + 2 classes meet, so many scores are equal and largest: k + 1 equations h_i(z) − h_j(z) = b_j − b_i in k
    unknowns. The image of ℝ^k under the piecewise linear left side has measure 0 in ℝ^{k+1}, so that almost no biases
    solve them. For k = 1 this is C-rank-11, which needs no change of biases if the partition has no flat pieces.

    ``known["k"]`` is the rank, the width of the narrowest layer unless given; ``known["shift"]`` the size of the change
    relative to the spread of the scores.
    """
    net, trace = subject.net, subject.trace()
    width = min(trace.dims[:-1])
    k, shift = subject.known.get("k", width), subject.known.get("shift", SHIFT)
    seen = len(trace.outputs.argmax(1).unique())
    check.assume("a layer of width ≤ 3", width <= DIMENSIONS, f"narrowest {width}")
    check.assume("k + 2 classes seen", seen >= k + 2, f"{seen} of {trace.dims[-1]}, k = {k}")
    if check.unmet:
        check.assume("partition resolved", None, "not looked at")
        check.not_applicable()
    ell = trace.dims.index(width)
    spread = float((trace.outputs - trace.outputs.mean(0)).square().mean().sqrt())
    draws = torch.randn(DRAWS if shift else 1, trace.dims[-1], generator=seeded(0), dtype=torch.float64)
    found = [_meetings(trace, ell, k + 2, shift * spread * change, spread) for change in draws]
    met = sum(one.met for one in found)
    resolved = met > 0 or all(one.complete for one in found)
    check.assume("partition resolved", resolved, f"{sum(one.boxes for one in found)} boxes of layer {ell}")
    where = f"k = {k}, {seen} classes, {len(draws)} changes of the biases of {net.depth} layers"
    check.compare(float(met), "=", 0.0, tolerance=0.0, scale=1.0, where=where)


@dataclass(frozen=True)
class _Found:
    """Boxes in which so many scores are equal, whether nothing was left open, and boxes looked at."""

    met: int
    complete: bool
    boxes: int


@torch.no_grad()
def _meetings(trace: Trace, ell: int, classes: int, shift: Tensor, spread: float) -> _Found:
    """Halve the box of layer ``ell`` and drop the parts where fewer than ``classes`` scores can be the largest."""
    Z = trace.inputs if ell == 0 else trace.preactivations[ell - 1]
    low, high = Z.amin(0), Z.amax(0)
    centres, halves = ((low + high) / 2)[None], ((high - low) / 2)[None]
    slack, looked_at = 1e-12 * (spread + float(trace.outputs.abs().max())), 0
    for step in range(HALVINGS * len(low)):
        looked_at += len(centres)
        parts = zip(centres.split(BLOCK), halves.split(BLOCK))
        contenders = torch.cat([_contenders(*_scores(trace, ell, *part, shift), slack) for part in parts])
        kept = contenders.sum(1) >= classes
        centres, halves = centres[kept], halves[kept]
        if len(centres) == 0:
            return _Found(0, True, looked_at)
        if len(centres) > MOST:
            return _Found(0, False, looked_at)
        axis = step % len(low)
        halves = halves.clone()
        halves[:, axis] /= 2
        moved = torch.zeros_like(halves)
        moved[:, axis] = halves[:, axis]
        centres, halves = torch.cat([centres - moved, centres + moved]), halves.repeat(2, 1)
    c, A, r = _scores(trace, ell, centres[:CANDIDATES], halves[:CANDIDATES], shift)
    met = sum(_equal(*one, classes, EQUAL * spread) for one in zip(c, A, r))
    return _Found(met, False, looked_at)


def _scores(trace: Trace, ell: int, centres: Tensor, halves: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores c + Ae ± r at the points centre + half·e, |e| ≤ 1, of M boxes: c and r (M, m), A (M, m, k)."""
    c, A, r = centres, torch.diag_embed(halves), torch.zeros_like(centres)
    for layer in range(ell, trace.depth):
        if layer > 0:
            c, A, r = _activated(trace, layer, c, A, r)
        W = trace.Ws[layer]
        c, A, r = c @ W.mT, W @ A, r @ W.abs().mT
        if trace.bs:
            c = c + trace.bias * trace.bs[layer]
    return c + shift, A, r


def _activated(trace: Trace, layer: int, c: Tensor, A: Tensor, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """σ_a of c + Ae ± r: exact where no kink is inside; else between sz and s(z − low) + a·low, s the chord's slope."""
    slope, reach = trace.slopes[layer - 1], A.abs().sum(-1) + r
    low, high = c - reach, c + reach
    chord = (high - slope * low) / (high - low).clamp_min(1e-300)
    factor = torch.where(low >= 0, torch.ones_like(c), torch.where(high <= 0, torch.full_like(c, slope), chord))
    half = torch.where((low < 0) & (high > 0), (slope - factor) * low / 2, torch.zeros_like(c))
    linear = trace.linear[layer - 1] if trace.linear else 0
    factor[:, :linear], half[:, :linear] = 1.0, 0.0
    return factor * c + half, factor[..., None] * A, factor.abs() * r + half


def _contenders(c: Tensor, A: Tensor, r: Tensor, slack: float) -> Tensor:
    """Which scores can be as large as the one that is largest in the middle, somewhere in each box, (M, m) of bool."""
    best = c.argmax(1)
    rows = torch.arange(len(c))
    reach = (A - A[rows, best][:, None]).abs().sum(-1) + r + r[rows, best][:, None]
    reach[rows, best] = 0.0
    return c - c[rows, best][:, None] + reach >= -slack


def _equal(c: Tensor, A: Tensor, r: Tensor, classes: int, tolerance: float) -> bool:
    """Whether the largest ``classes`` scores c + Ae are equal at some e of the box or just beside it."""
    top = c.topk(classes).indices
    gaps, slopes = c[top[1:]] - c[top[0]], A[top[1:]] - A[top[0]]
    e = -torch.linalg.lstsq(slopes, gaps[:, None], driver="gelsd").solution
    left = (gaps[:, None] + slopes @ e).abs().amax()
    return bool(left <= tolerance) and bool(e.abs().amax() <= 2.0) and bool(r[top].amax() <= tolerance)
