"""Q-spectra by frequency: exact singular values of circular convolutions, and of what passes through them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from isthmus._checks import check_integer, fail
from isthmus._cite import cites
from isthmus.linalg import chunk_rows
from isthmus.measures.frequency_spectrum import FrequencySpectrum, half_of_frequencies


@cites("talk2023", "Slides 'Convolutional Networks'", ids=("Q-spectra",))
@torch.no_grad()
def filter_spectra(
    W: Tensor, size: int | Sequence[int], *, dilation: int | Sequence[int] = 1, groups: int = 1
) -> FrequencySpectrum:
    """Singular values s_{ω,i} of Ŵ(ω) = Σ_δ W[:, :, δ] e^{−iω·dδ} for every frequency ω of the grid.

    Parameters
    ----------
    W : Tensor (c_out, c_in/groups, k_1, …, k_dims)
        Filter of a convolution with stride 1 whose input is wrapped around and keeps its size. It may be larger than
        the grid.
    size : int or sequence of int
        Positions along each axis; one number for all of them.
    dilation : int or sequence of int, default 1
        d, the distance of neighbouring taps.
    groups : int, default 1

    Notes
    -----
    The circulant matrix of the convolution is block diagonal in frequency: together these are its singular values.
    Shifting a filter multiplies Ŵ(ω) by a phase, so that neither the side of the padding nor the sign of ω matters.
    Σ_{ω,i} s² = (number of positions) · ‖W‖² when the filter fits the grid. Float64, in chunks of frequencies.

    Examples
    --------
    >>> W = torch.tensor([[[0.5, 0.5]]], dtype=torch.float64)  # the mean of two neighbours: |cos(ω/2)|
    >>> found = filter_spectra(W, (4,))
    >>> [(tuple(k), round(s, 4)) for k, s in zip(found.signed.tolist(), found.values[:, 0].tolist())]
    [((0,), 1.0), ((1,), 0.7071), ((2,), 0.0)]
    """
    who, dims = "filter_spectra", W.ndim - 2
    if dims < 1 or not W.is_floating_point():
        fail(who, "`W` must be real, (c_out, c_in/groups, k…)", f"{tuple(W.shape)}, {W.dtype}", "Reshape it.")
    sizes = _each(who, "size", size, dims)
    steps = _each(who, "dilation", dilation, dims)
    if groups < 1 or W.shape[0] % groups:
        fail(who, f"`groups` must divide {W.shape[0]}", groups, "Pass the groups of the convolution.")
    indices, multiplicity = half_of_frequencies(sizes)
    grid = torch.tensor(sizes)
    taps = torch.cartesian_prod(*[torch.arange(k) * d for k, d in zip(W.shape[2:], steps)]).reshape(-1, dims)
    filters = W.detach().to("cpu", torch.float64)
    blocks = filters.reshape(groups, W.shape[0] // groups, W.shape[1], -1).to(torch.complex128)
    values = []
    # A chunk holds the transfer matrices and the copy that LAPACK overwrites.
    for chunk in indices.split(chunk_rows(len(indices), 32.0 * W.shape[0] * W.shape[1])):
        # Whole turns are taken out in integers: the phase is exact however far the tap.
        turns = (chunk[:, None, :] * taps % grid).double() / grid
        phase = torch.polar(torch.ones(len(chunk), len(taps), dtype=torch.float64), -2 * math.pi * turns.sum(-1))
        transfer = torch.einsum("goit,ft->fgoi", blocks, phase)
        values.append(torch.linalg.svdvals(transfer).flatten(1).sort(dim=1, descending=True).values)
    s = torch.cat(values)
    return FrequencySpectrum(s, indices, multiplicity, tuple(sizes), _norms(s), float(_norms(filters.reshape(1, -1))))


@cites("talk2023", "Slides 'Convolutional Networks'", ids=("Q-spectra",))
@torch.no_grad()
def signal_spectra(A: Tensor, *, centered: bool = True) -> FrequencySpectrum:
    """Singular values of the DFT coefficients Â(ω)/√(N·positions), one matrix (N, c) for each frequency ω.

    Parameters
    ----------
    A : Tensor (N, c, n_1, …)
        Images or signals of N samples.
    centered : bool, default True
        Take the mean over samples off first, position by position.

    Notes
    -----
    Together they are the singular values of the representation (divided by √N) of all translations of the samples:
    averaging over translations removes the correlations between frequencies. Σ_{ω,i} s² = ‖A‖²/N.
    """
    who = "signal_spectra"
    if A.ndim < 3 or not A.is_floating_point() or 0 in A.shape:
        fail(who, "`A` must be real, (N, c, n…)", f"{tuple(A.shape)}, {A.dtype}", "Pass images, samples first.")
    images = A.detach().to("cpu", torch.float64)
    images = images - images.mean(0) if centered else images
    sizes, axes = tuple(A.shape[2:]), tuple(range(2, A.ndim))
    indices, multiplicity = half_of_frequencies(sizes)
    spectrum = torch.fft.fftn(images, dim=axes, norm="ortho").flatten(2)
    flat = (indices * torch.tensor([math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))])).sum(1)
    blocks = spectrum[:, :, flat].permute(2, 0, 1) / math.sqrt(len(A))
    s = torch.linalg.svdvals(blocks)
    return FrequencySpectrum(s, indices, multiplicity, sizes, _norms(s))


def _norms(rows: Tensor) -> Tensor:
    """Norms of rows without overflow of the squares."""
    top = rows.abs().amax(1, keepdim=True)
    top = torch.where(top > 0, top, 1.0)
    return (rows / top).norm(dim=1) * top[:, 0]


def _each(who: str, name: str, given: int | Sequence[int], dims: int) -> list[int]:
    """One integer for each axis."""
    numbers = list(given) if isinstance(given, Sequence) else [given] * dims
    if len(numbers) != dims:
        fail(who, f"`{name}` must have {dims} entries", numbers, "Give one a dimension.")
    return [check_integer(who, name, number, low=1) for number in numbers]
