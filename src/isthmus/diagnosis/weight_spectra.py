"""The spectrum of one weight: how it was computed, how exact it is, and what it is the spectrum of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.diagnosis.weight_parts import CircularFilter, WeightPart
from isthmus.measures.filter_spectra import filter_spectra
from isthmus.measures.frequency_spectrum import FrequencySpectrum, paired_frequencies
from isthmus.measures.large_spectra import EXACT_UP_TO, LargeSpectrum, Operator, large_spectrum

#: Each frequency is an SVD of (out, in): 4096 of them take seconds for 64 channels and minutes for 512.
FREQUENCIES_UP_TO = 4096


@dataclass(frozen=True)
class WeightSpectrum:
    """Singular values of a weight.

    Attributes
    ----------
    values : Tensor (r,)
        Decreasing, over all groups and frequencies; the largest only if ``method`` is ``"randomised"``.
    method : {"exact", "by frequency", "unfolded filter", "randomised", "not computed"}
    error : float
        Bound on |sᵢ − ŝᵢ| / s₁ for all values shown.
    norm : float
        Frobenius norm of the matrix that ``shape`` describes; exact by every method.
    shape : tuple of int
        (m, n) of the whole matrix: block-diagonal for groups, the operator on the grid for ``"by frequency"``.
    note : str
        What the reader should know.
    by_frequency : FrequencySpectrum or None
        The same values frequency by frequency, with the norm of the filter itself.
    """

    values: Tensor
    method: str
    error: float
    norm: float
    shape: tuple[int, ...]
    note: str
    by_frequency: FrequencySpectrum | None = None


@torch.no_grad()
def weight_spectrum(
    part: WeightPart,
    *,
    grid: Sequence[int] | None = None,
    exact_up_to: int = EXACT_UP_TO,
    frequencies_up_to: int = FREQUENCIES_UP_TO,
    k: int = 128,
    seed: int = 0,
) -> WeightSpectrum:
    """Singular values of one part of a layer's weights, by the best method that its size allows.

    Parameters
    ----------
    part : WeightPart
        From :func:`~isthmus.diagnosis.weights.weighted_layers`.
    grid : sequence of int, optional
        Spatial size of the layer's input. With it, circular convolutions get the spectrum of the operator.
    exact_up_to : int, default 2048
        Smaller side beyond which only the ``k`` largest values are computed, by random projection from ``seed``.
    frequencies_up_to : int, default 4096
        Frequencies (±ω once) beyond which a circular convolution falls back to its filter.
    """
    if part.note:
        none = torch.empty(0, dtype=torch.float64)
        return WeightSpectrum(none, "not computed", math.nan, math.nan, part.matrix_shape, part.note)
    notes = []
    if part.circular is not None and grid is not None:
        count = paired_frequencies(grid)
        if count <= frequencies_up_to:
            return _by_frequency(part.circular, grid)
        notes.append(f"{count} frequencies: pass `frequencies_up_to={count}` for the spectrum of the operator")
    elif part.circular is not None:
        notes.append("circular: pass `grid`, the spatial size of the input, for the spectrum of the operator")
    A = part.stored()
    if A.ndim == 3:
        found, shape = _block_diagonal(A, exact_up_to, k, seed), (A.shape[0] * A.shape[1], A.shape[0] * A.shape[2])
    else:
        found, shape = large_spectrum(A, k, exact_up_to=exact_up_to, seed=seed), (A.shape[0], A.shape[1])
    method = found.method
    if part.how.startswith("unfolded") and method != "not computed":
        notes.insert(0, "singular values of the unfolded filter, not of the convolution operator")
        method = "unfolded filter" if method == "exact" else method
    top = float(found.values[0]) if len(found.values) else 0.0
    error = float(found.error.max()) / top if top > 0 else (math.nan if method == "not computed" else 0.0)
    return WeightSpectrum(found.values, method, error, found.norm, shape, "; ".join(filter(None, [*notes, found.note])))


def _by_frequency(circular: CircularFilter, grid: Sequence[int]) -> WeightSpectrum:
    """The operator on periodic signals of the size ``grid``."""
    W = circular.read().to("cpu", torch.float64)
    positions = math.prod(grid)
    shape = (W.shape[0] * positions, W.shape[1] * circular.groups * positions)
    bad = int((~torch.isfinite(W)).sum())
    if bad:
        none = torch.empty(0, dtype=torch.float64)
        return WeightSpectrum(
            none, "not computed", math.nan, math.nan, shape, f"not computed: {bad} non-finite entries"
        )
    found = filter_spectra(W, list(grid), dilation=circular.dilation, groups=circular.groups)
    # Ŵ(ω) is a sum over the taps: their rounding comes on top of that of an SVD.
    error = (max(W.shape[:2]) + W[0, 0].numel()) * torch.finfo(W.dtype).eps
    note = f"the operator on periodic inputs of size {'×'.join(map(str, grid))}"
    return WeightSpectrum(found.union(), "by frequency", error, found.norm, shape, note, found)


def _block_diagonal(blocks: Tensor, exact_up_to: int, k: int, seed: int) -> LargeSpectrum:
    """Union of the singular values of the blocks (groups, m, n)."""
    groups, m, n = blocks.shape
    blocks = blocks.to("cpu", torch.float64)
    if not bool(torch.isfinite(blocks).all()):
        return large_spectrum(blocks.flatten(0, 1))  # which counts them
    if min(m, n) > exact_up_to:
        operator = Operator(
            (groups * m, groups * n),
            lambda X: (blocks @ X.reshape(groups, n, -1)).flatten(0, 1),
            lambda Y: (blocks.mT @ Y.reshape(groups, m, -1)).flatten(0, 1),
        )
        return large_spectrum(operator, k, exact_up_to=exact_up_to, seed=seed)
    values = torch.linalg.svdvals(blocks).flatten().sort(descending=True).values
    rounding = max(m, n) * torch.finfo(values.dtype).eps * values[:1].expand_as(values)
    return LargeSpectrum(values, rounding, rounding, "exact", _norm(blocks), 0.0, 0.0, "")


def _norm(values: Tensor) -> float:
    """‖·‖ without overflow of the squares."""
    top = float(values.abs().max()) or 1.0
    return top * float((values / top).norm())
