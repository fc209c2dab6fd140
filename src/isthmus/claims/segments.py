"""Functions along segments: the kinks of a network, where it is steepest, and the jumps of what is not continuous."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from isthmus._checks import fail
from isthmus.linalg import chunk_rows
from isthmus.measures import jacobian
from isthmus.networks import FullyConnected
from isthmus.trace import activate

#: Linear pieces shorter than this share of a segment are rounding.
SHORTEST = 1e-12
#: Memory for the values at all kinks of a segment.
SEGMENT_BYTES = 2**24
#: Pieces whose whole Jacobian is looked at, the steepest along the segment.
PIECES = 8


@torch.no_grad()
def kinks_on_segment(net: FullyConnected, start: Tensor, end: Tensor) -> Tensor:
    """Increasing t ∈ [0, 1], with both ends, between which t ↦ f(start + t(end − start)) is linear, (m,).

    Layer by layer: between two kinks every pre-activation is linear in t, so its zero is known exactly.
    """
    t = torch.tensor([0.0, 1.0], dtype=torch.float64)
    values = torch.stack([start, end]).double()
    for index, W in enumerate(net.Ws[:-1] if net.slope != 1.0 else ()):
        Z = values @ W.double().mT
        if net.bs:
            Z = Z + net.bias * net.bs[index].double()
        left, right = Z[:-1], Z[1:]
        crossing = left * right < 0
        piece = crossing.nonzero()[:, 0]
        share = left[crossing] / (left[crossing] - right[crossing])
        knots = torch.cat([t, t[piece] + share * t.diff()[piece]]).unique()
        if 8.0 * len(knots) * max(net.dims) > SEGMENT_BYTES:
            got = f"{len(knots)} at layer {index + 1}"
            fail("kinks_on_segment", "the segment must have fewer kinks", got, "Choose points nearer to one another.")
        at = (torch.searchsorted(t, knots, right=True) - 1).clamp(0, len(t) - 2)
        weight = ((knots - t[at]) / t.diff()[at])[:, None]
        values, t = activate(Z[at] + weight * (Z[at + 1] - Z[at]), net.slope), knots
    return t


@torch.no_grad()
def steepest_on_segment(net: FullyConnected, start: Tensor, end: Tensor) -> tuple[float, float]:
    """Largest ‖Jf(x)‖_op found at points x of the segment, and the length of the segment's image under f."""
    t = kinks_on_segment(net, start, end)
    rows = chunk_rows(len(t), 24.0 * sum(net.dims))
    outputs = torch.cat([net.trace(start + part[:, None] * (end - start)).outputs for part in t.split(rows)])
    steps = outputs.diff(dim=0).norm(dim=1)
    speeds = torch.where(t.diff() > SHORTEST, steps / t.diff(), torch.zeros_like(steps))
    fastest = speeds.topk(min(PIECES, len(speeds))).indices
    middles = (t[fastest] + t[fastest + 1]) / 2.0
    J = jacobian(net, start + middles[:, None] * (end - start))
    return float(torch.linalg.matrix_norm(J, 2).max()), float(steps.sum())


@torch.no_grad()
def largest_jump(f: Callable[[Tensor], Tensor], A: Tensor, B: Tensor, *, halvings: int = 44) -> float:
    """What is left of max‖f(b) − f(a)‖ when segments are halved, always keeping the half with the larger change.

    0 up to rounding for a Lipschitz function; the height of a jump otherwise, if a segment crosses it.

    Parameters
    ----------
    f : callable, (N, d_in) → (N, d_out)
    A, B : Tensor (N, d_in)
        Ends of N segments.
    """
    at_a, at_b = f(A), f(B)
    for _ in range(halvings):
        middle = (A + B) / 2.0
        value = f(middle)
        first = ((value - at_a).norm(dim=1) > (at_b - value).norm(dim=1))[:, None]
        A, at_a = torch.where(first, A, middle), torch.where(first, at_a, value)
        B, at_b = torch.where(first, middle, B), torch.where(first, value, at_b)
    return float((at_b - at_a).norm(dim=1).max())
