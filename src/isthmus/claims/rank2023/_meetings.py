"""How many classes meet at a point, when all that tells them apart passes through k dimensions (rank2023 §5)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.claims._base import Check, Subject, claim
from isthmus.claims._evidence import random_subject, seeded
from isthmus.networks import FullyConnected
from isthmus.trace import Trace

#: Dimensions of the narrowest layer that are searched.
DIMENSIONS = 3

#: Boxes that are followed at once, and passed through the network together.
MOST, BLOCK = 20_000, 1024

#: Halvings of every side of the box, after which scores that may still be equal are compared directly.
HALVINGS = 32

#: Boxes so small whose scores are compared, and the relative difference up to which they are equal.
CANDIDATES, EQUAL = 256, 1e-9

#: What cutting a matrix to rank k may change of the outputs, as a share, while every sample keeps its class.
LITTLE = 1e-3

#: Changes of the output biases: how many, and how large against the spread of the scores.
DRAWS, SHIFT = 3, 0.02


NARROW = f"a layer of width ≤ {DIMENSIONS}, or a W_ℓ of nearly that rank"


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
    hypotheses=(NARROW, "k + 2 classes seen", "partition resolved"),
    sample=five_classes_through_two,
    erratum="'topological properties typical of a partition on a k-dim. space': for k > 1 only up to a change of the "
    "output biases, however small; four quadrants of the plane meet in a point.",
)
def few_classes_meet(check: Check, subject: Subject) -> None:
    """No point of the narrowest layer's box at which k + 2 scores are equal and largest, after a change of the biases.

    Where k + 2 classes meet, so many scores are equal and largest: k + 1 equations h_i(z) − h_j(z) = b_j − b_i in k
    unknowns. The image of ℝ^k under the piecewise linear left side has measure 0 in ℝ^{k+1}, so that almost no biases
    solve them. For k = 1 this is C-rank-11, which needs no change of biases if the partition has no flat pieces.

    Where no layer is so narrow, but a weight matrix nearly has such a rank, the network with it cut to that rank is
    judged, if every sample keeps its class. ``known["k"]`` asks for at most so many dimensions; ``known["rank"]`` takes
    the place of their number; ``known["shift"]`` is the size of the change relative to the spread of the scores.
    """
    through = narrowest(subject)
    if through is None:
        dims = subject.net.dims
        check.assume(NARROW, False, f"narrowest {min(dims[:-1])}, and no W_ℓ of such a rank")
        check.not_applicable()
    trace, shift = through.trace, subject.known.get("shift", SHIFT)
    k = int(subject.known.get("rank", through.Z.shape[1]))
    seen = len(trace.outputs.argmax(1).unique())
    check.assume(NARROW, True, through.said)
    check.assume("k + 2 classes seen", seen >= k + 2, f"{seen} of {trace.dims[-1]}, k = {k}")
    if check.unmet:
        check.not_applicable()
    spread = float((trace.outputs - trace.outputs.mean(0)).square().mean().sqrt())
    draws = torch.randn(DRAWS if shift else 1, trace.dims[-1], generator=seeded(0), dtype=torch.float64)
    found = [_meetings(through, k + 2, shift * spread * change, spread) for change in draws]
    met = sum(one.met for one in found)
    resolved = met > 0 or all(one.complete for one in found)
    check.assume("partition resolved", resolved, f"{sum(one.boxes for one in found)} boxes")
    where = f"k = {k}, {seen} classes, {through.said}, {len(draws)} changes of the biases"
    check.compare(float(met), "=", 0.0, tolerance=0.0, scale=1.0, where=where)


@dataclass(frozen=True, eq=False)
class Through:
    """A network as h∘g through k dimensions, α̃_ℓ = Bz + c with z = g(x) (or α_0, for ℓ = 0).

    Attributes
    ----------
    trace : Trace
        Of the network, or of that with W_ℓ cut to rank k.
    ell : int
    Z : Tensor (N, k)
        g at the samples.
    B, c : Tensor (n_ℓ, k), (n_ℓ,)
    said : str
    """

    trace: Trace
    ell: int
    Z: Tensor
    B: Tensor
    c: Tensor
    said: str


@torch.no_grad()
def narrowest(subject: Subject) -> Through | None:
    """The network through its narrowest layer, or through a matrix nearly of low rank; None if there is none."""
    net, trace = subject.net, subject.trace()
    most = min(DIMENSIONS, int(subject.known.get("k", DIMENSIONS)))
    width = min(trace.dims[:-1])
    if width <= most:
        ell = trace.dims.index(width)
        Z = trace.inputs if ell == 0 else trace.preactivations[ell - 1]
        return Through(trace, ell, Z, torch.eye(width).double(), Z.new_zeros(width), f"layer {ell} has width {width}")
    values = [torch.linalg.svdvals(W) for W in trace.Ws]
    for k in range(1, most + 1):
        shares = [float(s[k] / s[0].clamp_min(1e-300)) if len(s) > k else 0.0 for s in values]
        ell = min(range(trace.depth), key=shares.__getitem__) + 1
        if shares[ell - 1] > LITTLE:
            continue
        U, s, Vh = torch.linalg.svd(trace.Ws[ell - 1], full_matrices=False)
        Ws, B = list(trace.Ws), U[:, :k] * s[:k]
        Ws[ell - 1] = B @ Vh[:k]
        cut = FullyConnected.from_weights(Ws, trace.bs or None, slope=net.slope, bias=net.bias).trace(subject.X)
        moved = float((cut.outputs - trace.outputs).norm() / trace.outputs.norm().clamp_min(1e-300))
        if moved <= LITTLE and torch.equal(cut.outputs.argmax(1), trace.outputs.argmax(1)):
            c = net.bias * trace.bs[ell - 1] if trace.bs else U.new_zeros(len(U))
            said = f"W_{ell} cut to rank {k}, which moves the outputs by {moved:.1g}"
            return Through(cut, ell, cut.activations[ell - 1] @ Vh[:k].mT, B, c, said)
    return None


@dataclass(frozen=True)
class _Found:
    """Boxes in which so many scores are equal, whether nothing was left open, and boxes looked at."""

    met: int
    complete: bool
    boxes: int


@torch.no_grad()
def _meetings(through: Through, classes: int, shift: Tensor, spread: float) -> _Found:
    """Halve the box of the values of g and drop the parts where fewer than ``classes`` scores can be the largest."""
    trace, low, high = through.trace, through.Z.amin(0), through.Z.amax(0)

    def scores(centres: Tensor, halves: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return _scores(trace, through.ell, centres @ through.B.mT + through.c, through.B * halves[:, None], shift)

    centres, halves = ((low + high) / 2)[None], ((high - low) / 2)[None]
    slack, looked_at = 1e-12 * (spread + float(trace.outputs.abs().max())), 0
    for step in range(HALVINGS * len(low)):
        looked_at += len(centres)
        parts = zip(centres.split(BLOCK), halves.split(BLOCK))
        contenders = torch.cat([_contenders(*scores(*part), slack) for part in parts])
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
    c, A, r = scores(centres[:CANDIDATES], halves[:CANDIDATES])
    met = sum(_equal(*one, classes, EQUAL * spread) for one in zip(c, A, r))
    return _Found(met, False, looked_at)


def _scores(trace: Trace, ell: int, c: Tensor, A: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores c + Ae ± r where α̃_ℓ is c + Ae, |e| ≤ 1, in each of M boxes: c and r (M, m), A (M, m, k)."""
    r = torch.zeros_like(c)
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
