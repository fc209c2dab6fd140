"""Exact singular values of a circular convolution, frequency by frequency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus._checks import check_integer, fail
from isthmus.linalg import chunk_rows


@dataclass(frozen=True)
class CircularSpectrum:
    """Singular values of a circular convolution.

    Attributes
    ----------
    values : Tensor (F, r)
        Of the transfer matrix at each frequency, decreasing; r = groups · min(out, in)/groups.
    frequencies : Tensor (F, dims)
        ω in [0, 2π), one of each conjugate pair ±ω.
    multiplicity : Tensor (F,) of int64
        2 for a pair, 1 where −ω = ω.
    """

    values: Tensor
    frequencies: Tensor
    multiplicity: Tensor

    def union(self) -> Tensor:
        """All singular values of the operator, decreasing, each as often as it occurs."""
        return self.values.repeat_interleave(self.multiplicity, dim=0).flatten().sort(descending=True).values


def paired_frequencies(grid: Sequence[int]) -> int:
    """How many frequencies a grid has when ±ω count once."""
    fixed = math.prod(2 if size % 2 == 0 else 1 for size in grid)
    return (math.prod(grid) + fixed) // 2


@torch.no_grad()
def circular_spectrum(
    weight: Tensor, grid: Sequence[int], dilation: int | Sequence[int] = 1, groups: int = 1
) -> CircularSpectrum:
    """Singular values of Ŵ(ω) = Σ_δ W[:, :, δ] e^{−iω·dδ} for every frequency ω of the grid.

    Parameters
    ----------
    weight : Tensor (out, in/groups, k_1, …, k_dims)
        Of a convolution with stride 1 whose input is wrapped around and keeps its size. It may be larger than the grid.
    grid : sequence of int
        Spatial size of the input.
    dilation : int or sequence of int, default 1
        d, the distance of neighbouring taps.
    groups : int, default 1

    Notes
    -----
    Shifting a filter multiplies Ŵ(ω) by a phase, so that neither the side of the padding nor the sign of ω matters.
    Σ s² over all frequencies is (number of positions) · ‖W‖² when the filter fits the grid.
    """
    who = "circular_spectrum"
    dims = weight.ndim - 2
    if dims < 1 or not weight.is_floating_point():
        fail(
            who, "`weight` must be real, (out, in/groups, k…)", f"{tuple(weight.shape)}, {weight.dtype}", "Reshape it."
        )
    sizes = [check_integer(who, "grid", size, low=1) for size in grid]
    steps = [dilation] * dims if isinstance(dilation, int) else list(dilation)
    if len(sizes) != dims or len(steps) != dims:
        fail(who, f"`grid` and `dilation` must have {dims} entries", f"{sizes} and {steps}", "Give one a dimension.")
    if groups < 1 or weight.shape[0] % groups:
        fail(who, f"`groups` must divide {weight.shape[0]}", groups, "Pass the groups of the convolution.")
    indices = torch.cartesian_prod(*[torch.arange(size) for size in sizes]).reshape(-1, dims)
    flat = torch.arange(len(indices))
    negative = _flat_index(-indices, sizes)
    kept = flat <= negative
    indices, multiplicity = indices[kept], torch.where(flat == negative, 1, 2)[kept]
    size = torch.tensor(sizes)
    taps = torch.cartesian_prod(*[torch.arange(k) * d for k, d in zip(weight.shape[2:], steps)]).reshape(-1, dims)
    W = weight.detach().to("cpu", torch.float64)
    blocks = W.reshape(groups, W.shape[0] // groups, W.shape[1], -1).to(torch.complex128)
    values = []
    # A chunk holds the transfer matrices and the copy that LAPACK overwrites.
    for chunk in indices.split(chunk_rows(len(indices), 32.0 * W.shape[0] * W.shape[1])):
        # Whole turns are taken out in integers: the phase is exact however far the tap.
        turns = (chunk[:, None, :] * taps % size).double() / size
        phase = torch.polar(torch.ones(len(chunk), len(taps), dtype=torch.float64), -2 * math.pi * turns.sum(-1))
        transfer = torch.einsum("goit,ft->fgoi", blocks, phase)
        values.append(torch.linalg.svdvals(transfer).flatten(1).sort(dim=1, descending=True).values)
    frequencies = 2 * math.pi * indices.double() / size
    return CircularSpectrum(torch.cat(values), frequencies, multiplicity)


def _flat_index(indices: Tensor, sizes: list[int]) -> Tensor:
    """Place of grid points in the order of ``cartesian_prod``."""
    flat = torch.zeros(len(indices), dtype=torch.int64)
    for axis, size in enumerate(sizes):
        flat = flat * size + indices[:, axis] % size
    return flat
