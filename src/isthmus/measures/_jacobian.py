"""Q-jac: Jacobians Jf(x) = W_L D_{L-1}(x) W_{L-1} … D_1(x) W_1, batched and in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus._checks import as_matrix, check_number
from isthmus._cite import cites
from isthmus.linalg import CACHE_BYTES, CHUNK_BYTES, chunk_rows, rank_tolerance
from isthmus.trace import Trace, Traceable


@torch.no_grad()
def jacobian_of_trace(trace: Trace) -> Tensor:
    """Jf(x) for every sample of a trace, (N, d_out, d_in).

    The product starts from the narrower end (inputs or outputs): its factors have min(d_in, d_out) rows.
    """
    wide = trace.dims[-1] > trace.dims[0]
    # Where the inputs are narrower everything is transposed: rows are input directions, W_ℓᵀ acts on the right.
    chain = [W.mT for W in trace.Ws] if wide else list(trace.Ws[::-1])
    layers = range(1, trace.depth) if wide else range(trace.depth - 1, 0, -1)
    derivatives = [trace.derivative(ell) for ell in layers]
    first, rest = chain[0], chain[1:]
    N, rows = trace.samples, len(first)
    J = first.new_empty(N, rows, chain[-1].shape[1])
    if not rest:
        J.copy_(first)
    # In blocks whose products stay in the cache, and in memory taken once.
    widest = max(M.shape[1] for M in chain)
    block = chunk_rows(N, float(first.element_size() * rows * widest), CACHE_BYTES)
    room = [first.new_empty(block * rows * widest) for _ in range(2)]
    for start in range(0, N, block) if rest else ():
        part = slice(start, min(start + block, N))
        count = (part.stop - start) * rows
        A = room[0][: count * first.shape[1]].view(-1, *first.shape)
        torch.mul(first, derivatives[0][part, None, :], out=A)
        for index, M in enumerate(rest, start=1):
            last = index == len(rest)
            B = J[part].view(count, -1) if last else room[index % 2][: count * M.shape[1]].view(count, -1)
            torch.mm(A.view(count, -1), M, out=B)
            A = B.view(-1, rows, M.shape[1])
            if not last:
                A.mul_(derivatives[index][part, None, :])
    return J.mT.contiguous() if wide else J


def _chunks(net: Traceable, X: Any, chunk_bytes: int, dtype: torch.dtype) -> Iterator[Tensor]:
    """Jacobians of consecutive rows of X, each chunk's intermediates within ``chunk_bytes``."""
    dims = (net.Ws[0].shape[1], *(W.shape[0] for W in net.Ws))
    inputs = as_matrix("jacobian", "X", X, columns=dims[0], dtype=dtype, device=net.Ws[0].device)
    rows = min(dims[0], dims[-1])
    # Three live copies of (chunk, rows, widest), and the trace itself.
    per_row = inputs.element_size() * (3 * rows * max(dims) + 3 * sum(dims))
    for part in inputs.split(chunk_rows(len(inputs), per_row, chunk_bytes)):
        yield jacobian_of_trace(net.trace(part, dtype=dtype))


@cites("rank2023", "Definition 1", ids=("Q-jac",))
def jacobian(net: Traceable, X: Any, *, chunk_bytes: int = CHUNK_BYTES, dtype: torch.dtype = torch.float64) -> Tensor:
    """Jf(x) for every row x of X, (N, d_out, d_in), computed in chunks of ``chunk_bytes``.

    At a kink (a pre-activation exactly 0) σ̇ takes the value ``slope``, as in PyTorch's autograd.
    """
    return torch.cat(list(_chunks(net, X, chunk_bytes, dtype)))


@cites("rank2023", "Fig. 1C", ids=("Q-spectra", "Q-jac"))
def jacobian_spectra(net: Traceable, X: Any, *, chunk_bytes: int = CHUNK_BYTES) -> Tensor:
    """Singular values of Jf(x) for every row of X, (N, min(d_in, d_out)); no Jacobian is kept."""
    return torch.cat([torch.linalg.svdvals(J) for J in _chunks(net, X, chunk_bytes, torch.float64)])


@dataclass(frozen=True, eq=False)
class JacobianRank:
    """Rank of the Jacobian at every sample, with the tolerance that decided it.

    Attributes
    ----------
    rank : int
        Rank_J = max over the samples, a lower bound of the maximum over all linear regions.
    ranks : Tensor (N,)
    spectra : Tensor (N, min(d_in, d_out))
    tolerance : Tensor (N, 1)
        Singular values below it count as zero.
    explanation : str
        How the tolerance was chosen.
    """

    rank: int
    ranks: Tensor
    spectra: Tensor
    tolerance: Tensor
    explanation: str


@cites("rank2023", "Definition 1", ids=("Q-jac",))
def jacobian_rank(
    net: Traceable, X: Any, *, relative: float | None = None, chunk_bytes: int = CHUNK_BYTES
) -> JacobianRank:
    """Rank_J(f) = max_x Rank Jf(x) over the rows of X.

    Parameters
    ----------
    net : Traceable
        A network with ``trace``.
    X : array (N, d_in)
        Samples: the maximum is over them.
    relative : float, optional
        Singular values below ``relative`` · s₁(x) count as zero. By default only rounding does: the unit
        round-off of the network's own dtype × depth × the widest layer. A trained network's Jacobian is
        numerically of full rank at that tolerance; pass for example 0.01 for its effective rank.
    chunk_bytes : int
        Memory that intermediates may take.
    """
    spectra = jacobian_spectra(net, X, chunk_bytes=chunk_bytes)
    depth, widest = len(net.Ws), max(max(W.shape) for W in net.Ws)
    if relative is None:
        eps = torch.finfo(net.Ws[0].dtype).eps * depth
        tolerance = rank_tolerance(spectra, (widest, widest), eps=eps)
        explanation = f"rounding: s₁ × widest layer ({widest}) × depth ({depth}) × unit round-off"
    else:
        check_number("jacobian_rank", "relative", relative, low=0.0, high=1.0)
        tolerance = spectra[:, :1] * relative
        explanation = f"relative: {relative:g} × s₁, as asked"
    ranks = (spectra > tolerance).sum(1)
    return JacobianRank(int(ranks.max()), ranks, spectra, tolerance, explanation)


def agop(net: Traceable, X: Any, *, chunk_bytes: int = CHUNK_BYTES) -> Tensor:
    """Average gradient outer product (1/N) Σ Jf(x)ᵀ Jf(x), (d_in, d_in).

    Its large eigenvalues span the *linear* subspace of inputs that f depends on: an upper bound of what a
    non-linear encoder needs, and a baseline.
    """
    d_in = net.Ws[0].shape[1]
    total = torch.zeros(d_in, d_in, dtype=torch.float64, device=net.Ws[0].device)
    samples = 0
    for J in _chunks(net, X, chunk_bytes, torch.float64):
        flat = J.reshape(-1, d_in)
        total += flat.mT @ flat
        samples += len(J)
    return total / samples
