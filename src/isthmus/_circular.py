"""Circular convolutions of signals and images: applied, and as one matrix for each frequency."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

#: From this many taps on the convolution goes through the Fourier transform: it then costs as much as one tap or so.
TAPS = 12
#: What the Fourier transform knows; coarser dtypes are convolved tap by tap.
_TRANSFORMED = (torch.float32, torch.float64)


def before(taps: int) -> int:
    """How many of the taps of one axis come before the centre: ⌊(k − 1)/2⌋, as in PyTorch's ``padding="same"``."""
    return (taps - 1) // 2


def transfer_blocks(W: Tensor, size: Sequence[int]) -> Tensor:
    """Ŵ(ω) = Σ_δ W[:, :, δ] e^{iω·(δ − c)}, c the centre: the DFT of W ⋆ x at ω is Ŵ(ω) times that of x.

    Parameters
    ----------
    W : Tensor (c_out, c_in, k_1, …), k ≤ n
    size : sequence of int
        n_1, …: positions along each axis.

    Returns
    -------
    Tensor (n_1, …, n_last // 2 + 1, c_out, c_in), complex
        Half the frequencies: Ŵ(−ω) is the conjugate of Ŵ(ω). Differentiable.
    """
    taps, axes = W.shape[2:], tuple(range(2, W.ndim))
    spare = [pad for n, k in zip(reversed(size), reversed(taps)) for pad in (0, n - k)]
    kernel = functional.pad(W, spare).roll([-before(k) for k in taps], axes)
    return torch.fft.rfftn(kernel, dim=axes).conj().movedim((0, 1), (-2, -1))


def convolve(X: Tensor, W: Tensor) -> Tensor:
    """y[p] = Σ_δ W[:, :, δ] x[p + δ − c], positions modulo the size: what PyTorch calls a circular convolution.

    Parameters
    ----------
    X : Tensor (N, c_in, n_1, …)
    W : Tensor (c_out, c_in, k_1, …), k ≤ n
        Large filters act in frequency, small ones tap by tap: the same numbers up to rounding.
    """
    taps, size = W.shape[2:], X.shape[2:]
    if math.prod(taps) >= TAPS and X.dtype in _TRANSFORMED:
        return convolve_in_frequency(X, W)
    pads = [pad for k in reversed(taps) for pad in (before(k), k - 1 - before(k))]
    wide = functional.pad(X, pads, mode="circular") if any(pads) else X
    return (functional.conv1d if len(size) == 1 else functional.conv2d)(wide, W)


def convolve_in_frequency(X: Tensor, W: Tensor) -> Tensor:
    """The same as :func:`convolve` by the Fourier transform, whatever the number of taps."""
    size = X.shape[2:]
    axes = tuple(range(2, X.ndim))
    blocks = transfer_blocks(W, size).flatten(0, -3)
    spectrum = torch.fft.rfftn(X, dim=axes)
    product = spectrum.flatten(2).permute(2, 0, 1) @ blocks.mT
    half = product.permute(1, 2, 0).reshape(len(X), len(W), *spectrum.shape[2:])
    return torch.fft.irfftn(half, s=tuple(size), dim=axes)


def circulant(W: Tensor, size: Sequence[int]) -> Tensor:
    """The convolution as one matrix, (c_out·positions, c_in·positions), channels outermost."""
    columns = W.shape[1] * math.prod(size)
    unit = torch.eye(columns, dtype=W.dtype, device=W.device).reshape(columns, W.shape[1], *size)
    return convolve(unit, W).reshape(columns, -1).mT
