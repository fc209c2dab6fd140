"""Spectra of weights: circular convolutions against their explicit matrices, groups, sizes and states."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from isthmus import IsthmusError
from isthmus.diagnosis._weights import WeightPart, weight_spectrum, weighted_layers
from isthmus.measures import filter_spectra
from isthmus.measures._frequencies import paired_frequencies
from tools import assert_close, gaussian, orthogonal

CONVS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def part_of(module: nn.Module) -> WeightPart:
    return weighted_layers(module)[0].parts[0]


def convolution(dims: int, *args: Any, **kwargs: Any) -> nn.Module:
    """A circular convolution in float64 that keeps the size, unless told otherwise."""
    settings = {"padding": "same", "padding_mode": "circular", "bias": False, **kwargs}
    return CONVS[dims](*args, **settings).double()


@torch.no_grad()
def explicit(conv: nn.Module, channels: int, grid: tuple[int, ...]) -> Tensor:
    """The matrix of a module, column by column: its answers to the unit vectors."""
    size = channels * math.prod(grid)
    unit = torch.eye(size, dtype=torch.float64).reshape(size, channels, *grid)
    return conv(unit).flatten(1).mT


@pytest.mark.parametrize(
    ("dims", "arguments", "grid", "extra"),
    [
        (1, (2, 3, 3), (8,), {}),
        (1, (3, 2, 3), (7,), {}),
        (1, (2, 2, 4), (6,), {}),  # even kernels
        (1, (2, 3, 3), (9,), {"dilation": 2}),
        (1, (4, 6, 3), (5,), {"groups": 2}),
        (1, (2, 3, 5), (3,), {}),  # larger than the grid: it wraps
        (1, (2, 3, 3), (3,), {"dilation": 2}),
        (1, (1, 1, 1), (1,), {}),
        (2, (2, 3, 3), (4, 5), {}),
        (2, (3, 2, (2, 3)), (4, 6), {"dilation": (1, 2)}),
        (2, (4, 2, 3), (4, 4), {"groups": 2}),
        (2, (3, 3, 3), (4, 4), {"groups": 3, "padding": 1}),
        (3, (2, 3, (2, 3, 1)), (2, 3, 4), {}),
        (3, (2, 4, 2), (3, 2, 3), {"groups": 2, "dilation": (1, 2, 1)}),
    ],
)
def test_frequencies_give_the_spectrum_of_the_operator(dims, arguments, grid, extra):
    conv = convolution(dims, *arguments, **extra)
    A = explicit(conv, arguments[0], grid)
    truth = np.linalg.svd(A.numpy(), compute_uv=False)
    part = part_of(conv)
    found = weight_spectrum(part, grid=grid)
    assert found.method == "by frequency" and found.shape == tuple(A.shape) and "operator" in found.note
    # A block with more inputs than outputs has its zeros at every frequency, the whole matrix likewise.
    assert len(found.values) == len(truth)
    assert_close(found.values, truth, atol=1e-10, rtol=0, reason="the bound asked for, relative to s₁ near 1")
    assert_close(found.norm, A.norm())
    assert float((found.values - torch.from_numpy(truth)).abs().max()) <= 10 * found.error * truth[0] + 1e-14
    # The twin: another filter of the same norm does not pass.
    other = weight_spectrum(part_of(conv), grid=(*grid[:-1], grid[-1] + 1))
    assert len(other.values) != len(truth)


def test_a_wrong_dilation_is_another_operator():
    conv = convolution(1, 2, 2, 3, dilation=2)
    truth = np.linalg.svd(explicit(conv, 2, (8,)).numpy(), compute_uv=False)
    assert isinstance(conv, nn.Conv1d)
    assert_close(filter_spectra(conv.weight, (8,), dilation=2).union(), truth)
    assert float((filter_spectra(conv.weight, (8,), dilation=1).union() - torch.from_numpy(truth)).abs().max()) > 1e-3


def test_known_transfer_functions():
    """The mean of neighbours: |cos(ω/2)|. A shift: all ones. A difference: 2|sin(ω/2)|."""
    for taps, answer in {
        (0.5, 0.5): lambda w: (w / 2).cos().abs(),
        (0.0, 1.0): torch.ones_like,
        (1.0, -1.0): lambda w: 2 * (w / 2).sin().abs(),
    }.items():
        found = filter_spectra(torch.tensor([[taps]], dtype=torch.float64), (12,))
        assert_close(found.values[:, 0], answer(found.frequencies[:, 0]), atol=1e-15, reason="zeros among them")


@pytest.mark.parametrize("grid", [(1,), (2,), (7,), (8,), (4, 4), (3, 5), (4, 3), (2, 3, 4)])
def test_pairs_and_mass(grid):
    W = gaussian(3, 2, *[min(2, size) for size in grid])
    found = filter_spectra(W, grid)
    positions = math.prod(grid)
    assert int(found.multiplicity.sum()) == positions and len(found.values) == paired_frequencies(grid)
    assert found.frequencies.shape == (len(found.values), len(grid))
    assert len(found.union()) == 2 * positions
    total = (found.values.square().sum(1) * found.multiplicity).sum()
    assert_close(total, positions * W.square().sum())
    # Every frequency of the grid, once as itself or as the negative of another one.
    seen = torch.cat([found.frequencies, (-found.frequencies[found.multiplicity == 2]) % (2 * math.pi)])
    steps = (seen * torch.tensor(grid) / (2 * math.pi)).round().long() % torch.tensor(grid)
    assert len({tuple(row) for row in steps.tolist()}) == positions


def test_a_filter_that_wraps_has_another_mass():
    W = torch.ones(1, 1, 4, dtype=torch.float64)
    assert_close(filter_spectra(W, (2,)).union(), [4.0, 0.0])  # Σ s² = 16, not 2 · 4


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv1d(2, 3, 3, padding=1),
        nn.Conv1d(2, 3, 3, padding=1, stride=2, padding_mode="circular"),
        nn.Conv1d(2, 3, 3, padding=2, padding_mode="circular"),
        nn.Conv1d(2, 3, 4, padding=1, padding_mode="circular"),
        nn.Conv1d(2, 3, 3, padding="valid", padding_mode="circular"),
        nn.Conv1d(2, 3, 3, padding=1, padding_mode="reflect"),
        nn.ConvTranspose1d(2, 3, 3),
    ],
)
def test_other_convolutions_are_called_filters(conv):
    found = weight_spectrum(part_of(conv), grid=(8,))
    assert found.method == "unfolded filter" and "not of the convolution operator" in found.note
    assert len(found.values) == 3


def test_too_many_frequencies():
    part = part_of(convolution(2, 1, 1, 3))
    found = weight_spectrum(part, grid=(8, 8), frequencies_up_to=33)
    assert found.method == "unfolded filter" and "frequencies_up_to=34" in found.note
    assert weight_spectrum(part, grid=(8, 8), frequencies_up_to=34).method == "by frequency"
    assert "pass `grid`" in weight_spectrum(part).note


def test_groups_are_a_block_diagonal():
    conv = nn.Conv2d(4, 6, 3, groups=2).double()
    found = weight_spectrum(part_of(conv))
    whole = torch.block_diag(*part_of(conv).matrix())
    assert found.shape == tuple(whole.shape)
    assert_close(found.values, np.linalg.svd(whole.numpy(), compute_uv=False))
    assert_close(found.norm, whole.norm())


def test_large_groups_too():
    conv = nn.Conv1d(80, 80, 1, groups=2, bias=False).double()
    with torch.no_grad():
        conv.weight[..., 0] *= torch.logspace(0, -6, 40, dtype=torch.float64)
    found = weight_spectrum(part_of(conv), exact_up_to=30, k=6)
    truth = weight_spectrum(part_of(conv)).values
    assert found.method == "randomised" and len(found.values) == 6
    assert float((found.values - truth[:6]).abs().max()) <= found.error * float(truth[0])


def test_large_weights_are_random_and_honest():
    layer = nn.Linear(300, 400, bias=False).double()
    s = 0.9 ** torch.arange(300, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_((orthogonal(400, 300) * s) @ orthogonal(300, 300, seed=1).mT)
    found = weight_spectrum(part_of(layer), exact_up_to=100, k=20)
    assert found.method == "randomised" and found.error < 1e-2
    assert float((found.values - s[:20]).abs().max()) <= found.error
    assert_close(found.norm, s.norm())
    assert float((found.values * 1.02 - s[:20]).abs().max()) > found.error
    assert torch.equal(found.values, weight_spectrum(part_of(layer), exact_up_to=100, k=20).values)


@pytest.mark.parametrize("conv", [nn.Conv1d(2, 2, 3, groups=2), convolution(1, 2, 2, 3), nn.Linear(2, 2)])
def test_non_finite_weights(conv):
    with torch.no_grad():
        next(conv.parameters())[0, 0] = float("nan")
    found = weight_spectrum(part_of(conv), grid=(5,))
    bad = int(next(conv.parameters()).isnan().sum())
    assert found.method == "not computed" and found.note.endswith(f"not computed: {bad} non-finite entries")
    assert len(found.values) == 0 and math.isnan(found.error)


def test_zero_weights():
    layer = nn.Linear(3, 4)
    nn.init.zeros_(layer.weight)
    found = weight_spectrum(part_of(layer))
    assert found.values.tolist() == [0.0] * 3 and found.error == found.norm == 0.0
    conv = convolution(1, 2, 2, 3)
    nn.init.zeros_(next(conv.parameters()))
    assert weight_spectrum(part_of(conv), grid=(4,)).norm == 0.0


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_scale(scale):
    for conv in (convolution(1, 4, 4, 3), convolution(1, 4, 4, 3, groups=2)):
        unit = [weight_spectrum(part_of(conv), grid=grid) for grid in (None, (5,))]
        with torch.no_grad():
            next(conv.parameters()).mul_(scale)
        for before, grid in zip(unit, (None, (5,))):
            after = weight_spectrum(part_of(conv), grid=grid)
            assert_close(after.values / scale, before.values)
            assert_close(after.norm / scale, before.norm)


def test_wrong_input_is_named():
    W = gaussian(3, 2, 3)
    with pytest.raises(IsthmusError, match="1 entries"):
        filter_spectra(W, (4, 4))
    with pytest.raises(IsthmusError, match="`size`"):
        filter_spectra(W, (0,))
    with pytest.raises(IsthmusError, match="`groups`"):
        filter_spectra(W, (4,), groups=2)
    with pytest.raises(IsthmusError, match="`W`"):
        filter_spectra(gaussian(3, 2), (4,))
    with pytest.raises(IsthmusError, match="entries"):
        weight_spectrum(part_of(convolution(1, 2, 2, 3)), grid=(4, 4))
