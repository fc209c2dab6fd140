"""Jacobians at a few points off the kinks, with what rounding leaves of their singular values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.claims.base import Hypothesis, Subject
from isthmus.linalg import chunk_rows
from isthmus.measures import jacobian_of_trace
from isthmus.trace import Trace

#: Points at which claims are evaluated, evenly spaced among the samples.
POINTS = 16
#: Bytes that the Jacobians at these points may take: fewer points in wide networks.
POINT_BYTES = 2**28
#: A pre-activation this near to 0, relative to its layer, is at a kink: f has no derivative there.
KINK = 1e-10
#: Singular values that rounding may have changed by more than this share are taken for 0.
TRUSTED = 1e-3


@dataclass(frozen=True, eq=False)
class Points:
    """A network at P points.

    Attributes
    ----------
    index : Tensor (P,)
        Which samples they are.
    trace : Trace
        At these points, in float64.
    J : Tensor (P, d_out, d_in)
    s : Tensor (P, r)
        Singular values, decreasing; those that are rounding are 0.
    error : Tensor (P,)
        Bound on the error of each value.
    slope_hypothesis, kink_hypothesis : Hypothesis
    """

    index: Tensor
    trace: Trace
    J: Tensor
    s: Tensor
    error: Tensor
    slope_hypothesis: Hypothesis
    kink_hypothesis: Hypothesis

    @property
    def ranks(self) -> Tensor:
        """Rank of the Jacobian at each point, up to rounding."""
        return (self.s > 0).sum(1)

    def name(self, row: int) -> str:
        """The sample of this row, in words."""
        return f"sample {int(self.index[row])}"


@torch.no_grad()
def points_of(subject: Subject, *, points: int = POINTS) -> Points:
    """Choose the points and differentiate there."""
    net = subject.net
    dims = (net.Ws[0].shape[1], *(W.shape[0] for W in net.Ws))
    # Three live copies of the widest intermediate product.
    most = chunk_rows(points, 24.0 * min(dims[0], dims[-1]) * max(dims), POINT_BYTES)
    candidates = torch.linspace(0, len(subject.X) - 1, min(len(subject.X), 4 * most)).long().unique()
    whole = subject.trace(candidates)
    off = torch.ones(len(candidates), dtype=torch.bool)
    for Z in whole.preactivations[:-1]:
        near = KINK * Z.abs().amax(1, keepdim=True)
        # A neuron that is 0 at every point is dead, and its derivative 0 or `slope` on both sides alike.
        alive = (Z != 0).any(0)
        off &= ~((Z.abs() <= near) & alive).any(1)
    if net.slope == 1.0:
        off[:] = True
    chosen = candidates[off][:most]
    kinks = Hypothesis.of("x off the kinks", bool(len(chosen)), f"{int(off.sum())} of {len(candidates)} samples are")
    slope = Hypothesis.of("|slope| ≤ 1", abs(net.slope) <= 1.0, f"slope {net.slope:g}")
    trace = subject.trace(chosen) if len(chosen) else whole
    J = jacobian_of_trace(trace)
    s = torch.linalg.svdvals(J)
    # |δJ| ≲ eps · n · L · Π‖W_ℓ‖_op, by the usual bound for a product.
    eps = torch.finfo(torch.float64).eps
    norms = torch.stack([torch.linalg.matrix_norm(W.double(), 2) for W in net.Ws])
    error = (eps * max(dims) * len(net.Ws) * norms.prod()).expand(len(s))
    s = torch.where(s * TRUSTED > error[:, None], s, torch.zeros_like(s))
    return Points(chosen, trace, J, s, error, slope, kinks)
