"""Jacobians at a few points off the kinks, with what rounding leaves of their singular values."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from isthmus.claims.base import Hypothesis, Subject
from isthmus.claims.evidence import some_rows
from isthmus.linalg import chunk_rows
from isthmus.measures import jacobian_of_trace
from isthmus.trace import Trace

#: Points at which claims are evaluated, evenly spaced among the samples.
POINTS = 16
#: Bytes that the Jacobians at these points may take: fewer points in wide networks.
POINT_BYTES = 2**28
#: A pre-activation this near to 0, relative to the terms that it sums, is at a kink: f has no derivative there.
KINK = 1e-10
#: Singular values that rounding may have changed by more than this share are taken for 0.
TRUSTED = 1e-3


@dataclass(frozen=True, eq=False)
class Points:
    """A network at P points, none if every sample is at a kink.

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

    @property
    def log_error(self) -> float:
        """Bound on the error of 2 log(s_1 … s_k), at every point and for every k."""
        relative = (self.error[:, None] / self.s.clamp_min(1e-300)).where(self.s > 0, torch.zeros_like(self.s))
        return 2 * float(relative.sum(1).max()) if len(relative) else 0.0

    def name(self, row: int) -> str:
        """The sample of this row, in words."""
        return f"sample {int(self.index[row])}"


@torch.no_grad()
def off_kinks(trace: Trace) -> Tensor:
    """Samples near which the network is differentiable, because no neuron is at its kink, (N,) of bool."""
    off = torch.ones(trace.samples, dtype=torch.bool)
    for ell, (W, alpha, Z) in enumerate(zip(trace.Ws, trace.activations, trace.preactivations[:-1])):
        if trace.slope == 1.0:
            break
        constant = (trace.bias * trace.bs[ell]).abs() if trace.bs else Z.new_zeros(())
        terms = alpha.abs() @ W.abs().mT + constant
        # Off the kinks of earlier layers, neurons that are 0 stay so nearby: what sums only these is dead, at no kink.
        dead = (W == 0).all(1) & (constant == 0) if ell == 0 else terms == 0
        off &= ~((Z.abs() <= KINK * terms) & ~dead).any(1)
    return off


@torch.no_grad()
def points_of(subject: Subject, *, points: int = POINTS) -> Points:
    """Choose the points and differentiate there; none where the Jacobian or the bound on its error overflows."""
    net = subject.net
    dims = (net.Ws[0].shape[1], *(W.shape[0] for W in net.Ws))
    # Three live copies of the widest intermediate product.
    most = chunk_rows(points, 24.0 * min(dims[0], dims[-1]) * max(dims), POINT_BYTES)
    candidates = some_rows(subject.X, 4 * most)
    whole = subject.trace(candidates)
    off = off_kinks(whole).nonzero()[:, 0]
    rows = off[some_rows(off, most)]
    # |δJ| ≲ eps · n · L · Π‖W_ℓ‖_op, by the usual bound for a product.
    eps = torch.finfo(torch.float64).eps
    norms = torch.stack([torch.linalg.matrix_norm(W.double(), 2) for W in net.Ws])
    error = eps * max(dims) * len(net.Ws) * norms.prod()
    J = jacobian_of_trace(_some(whole, rows))
    finite = J.isfinite().all(2).all(1) & error.isfinite()
    rows, J = rows[finite], J[finite]
    said = f"{len(off)} of {len(candidates)} samples are" if bool(finite.all()) else "Jacobians overflow"
    kinks = Hypothesis.of("x off the kinks", None if len(finite) > len(rows) == 0 else len(rows) > 0, said)
    slope = Hypothesis.of("|slope| ≤ 1", abs(net.slope) <= 1.0, f"slope {net.slope:g}")
    s = torch.linalg.svdvals(J)
    s = torch.where(s * TRUSTED > error, s, torch.zeros_like(s))
    return Points(candidates[rows], _some(whole, rows), J, s, error.expand(len(s)), slope, kinks)


def _some(trace: Trace, rows: Tensor) -> Trace:
    """The trace of these samples, which may be none."""
    preactivations, activations = ([A[rows] for A in layers] for layers in (trace.preactivations, trace.activations))
    return replace(trace, preactivations=tuple(preactivations), activations=tuple(activations))
