"""Spectra by frequency against circulant matrices written out, their invariances, and what stands out in them."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from isthmus import ConvolutionalNet, IsthmusError
from isthmus.measures import FrequencySpectrum, filter_spectra, kept_frequencies, signal_spectra
from isthmus.measures._frequencies import LayerFrequencies, judged
from tools import assert_close, gaussian, generator, orthogonal


def circulant(W: Tensor, size: tuple[int, ...]) -> np.ndarray:
    """The matrix of the convolution, entry by entry from its definition y[p] = Σ_δ W[δ] x[p + δ], p modulo the size."""
    w = W.numpy()
    out, inner = w.shape[:2]
    A = np.zeros((out, *size, inner, *size))
    for p in itertools.product(*map(range, size)):
        for delta in itertools.product(*map(range, w.shape[2:])):
            q = tuple((a + d) % n for a, d, n in zip(p, delta, size))
            A[(slice(None), *p, slice(None), *q)] += w[(slice(None), slice(None), *delta)]
    return A.reshape(out * math.prod(size), -1)


CASES = [
    *[((n,), (k,)) for n in (1, 2, 5, 6) for k in (1, 2, 3, 5, 6) if k <= n],
    *[((n, n), (k, k)) for n in (2, 3, 4, 5, 6) for k in (1, 2, 3, 6) if k <= n],
    ((4, 5), (4, 5)),
    ((3, 6), (2, 2)),
]


@pytest.mark.parametrize(("size", "taps"), CASES)
@pytest.mark.parametrize(("out", "inner"), [(2, 3), (3, 1)])
def test_the_svd_of_the_circulant_matrix(size, taps, out, inner):
    """Equal to 1e-10, every value as often as it occurs; and by the norm of each frequency."""
    W = gaussian(out, inner, *taps, seed=sum(size) + out)
    found = filter_spectra(W, size)
    truth = np.linalg.svd(circulant(W, size), compute_uv=False)
    assert found.union().shape == truth.shape
    assert_close(found.union(), truth, rtol=0, atol=1e-10, reason="the bound of the gate")
    assert_close(found.norm, math.sqrt(math.prod(size)) * found.filter_norm)
    assert_close(found.filter_norm, W.norm())
    assert_close(found.norms, found.values.norm(dim=1))


def test_a_shuffled_filter_has_another_spectrum():
    """The twin: same norm, same taps, other order."""
    W = gaussian(2, 3, 4, 4)
    moved = W.flatten(2)[..., torch.randperm(16, generator=generator(1))].reshape(W.shape)
    difference = filter_spectra(W, 6).union() - filter_spectra(moved, 6).union()
    assert float(difference.abs().max()) > 1e-2


def test_the_blocks_of_the_dft():
    """A second route to the values of each frequency, and not of their union alone: the FFT of the filter."""
    W = gaussian(3, 2, 5, 3)
    size = (5, 4)
    found = filter_spectra(W, size)
    padded = torch.zeros(3, 2, *size, dtype=torch.float64)
    padded[..., :3] = W
    blocks = torch.fft.fftn(padded, dim=(2, 3))
    for index, other, s in zip(found.indices.tolist(), found.conjugates.tolist(), found.values):
        for place in (index, other):
            assert_close(torch.linalg.svdvals(blocks[(..., *place)]), s)
    paired = (found.indices != found.conjugates).any(1)
    assert torch.equal(found.multiplicity, torch.where(paired, 2, 1))
    assert int(found.signed.max()) <= 2 and int(found.signed.min()) >= -2


@given(st.data())
def test_shifts_rotations_and_norm(data):
    """s is unchanged by circular shifts of the filter and by rotations of channels; Σ s² = positions · ‖filter‖²."""
    dims = data.draw(st.integers(1, 2))
    size = tuple(data.draw(st.integers(1, 6)) for _ in range(dims))
    out, inner = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    seed = data.draw(st.integers(0, 10**6))
    W = gaussian(out, inner, *size, seed=seed)
    found = filter_spectra(W, size)
    shift = [data.draw(st.integers(-7, 7)) for _ in range(dims)]
    assert_close(filter_spectra(W.roll(shift, tuple(range(2, 2 + dims))), size).values, found.values)
    turned = torch.einsum("ab,bc...->ac...", orthogonal(out, out, seed=seed), W)
    assert_close(filter_spectra(turned, size).values, found.values)
    assert_close(filter_spectra(W.transpose(0, 1).flip(*range(2, 2 + dims)), size).union(), found.union())
    total = (found.values.square().sum(1) * found.multiplicity).sum()
    assert_close(total, math.prod(size) * W.square().sum())
    assert int(found.multiplicity.sum()) == math.prod(size)


# --- signals


@pytest.mark.parametrize(("size", "channels"), [((5,), 2), ((6,), 3), ((3, 4), 2)])
def test_signals_are_those_of_all_translations(size, channels):
    A = gaussian(4, channels, *size) + 2.0
    centred = A - A.mean(0)
    axes = tuple(range(2, 2 + len(size)))
    moved = [centred.roll(p, axes).flatten(1) for p in itertools.product(*map(range, size))]
    rows = torch.cat(moved) / math.sqrt(len(A) * len(moved))
    truth = torch.linalg.svdvals(rows)
    found = signal_spectra(A)
    union = torch.zeros_like(truth)
    union[: len(found.union())] = found.union()
    assert_close(union.square(), truth.square())
    assert_close(found.norm**2, centred.square().sum() / len(A))
    assert_close(signal_spectra(A, centered=False).norm ** 2, A.square().sum() / len(A))
    assert math.isnan(found.filter_norm)


# --- what stands out


def waves(size: tuple[int, ...], gains: dict[tuple[int, ...], float], channels: int = 1) -> Tensor:
    """A filter on channels × channels whose only values are ``gains``, at one of each pair, in the first channel."""
    blocks = torch.zeros(*size, channels, channels, dtype=torch.complex128)
    for turns, gain in gains.items():
        for place in (turns, tuple(-k % n for k, n in zip(turns, size))):
            blocks[(*place, 0, 0)] = gain
    return torch.fft.ifftn(blocks, dim=tuple(range(len(size)))).real.movedim((-2, -1), (0, 1)).contiguous()


def test_what_stands_out_is_named():
    found = filter_spectra(waves((6, 6), {(1, 0): 1.0, (2, 5): 0.8, (3, 3): 0.9, (0, 0): 0.7}, 2), 6).read()
    assert found.reading.status == "clear" and found.reading.count == 6
    assert [(one.name, one.dimensions) for one in found.kept] == [
        ("±(1, 0)", 2),
        ("(3, 3)", 1),
        ("±(2, -1)", 2),
        ("(0, 0)", 1),
    ]
    assert found.passes_the_mean and len(found.waves) == 3
    assert_close([one.largest for one in found.kept], [1.0, 0.9, 0.8, 0.7])


def test_nothing_and_everything():
    assert filter_spectra(torch.zeros(2, 2, 3, dtype=torch.float64), (5,)).read().kept == ()
    unit = torch.ones(1, 1, 1, dtype=torch.float64)
    found = filter_spectra(unit, (5,)).read()
    assert found.reading.status == "full" and found.frequencies == {(0,), (1,), (2,)}
    assert filter_spectra(waves((8,), {(1,): 1.0, (2,): 0.4}), (8,)).read().reading.count == 4
    assert filter_spectra(waves((8,), {(k,): 0.4**k for k in range(5)}), (8,)).read().reading.status == "unclear"


def test_several_channels_at_one_frequency():
    W = waves((6,), {(1,): 1.0}, 3)
    both = W + W.roll(1, 0).roll(1, 1)
    (one,) = filter_spectra(both, (6,)).read().kept
    assert one.name == "±1 ×2" and one.dimensions == 4


def test_plain_data_and_back():
    found = filter_spectra(gaussian(3, 2, 4, 4), 4)
    back = FrequencySpectrum.from_dict(json.loads(json.dumps(found.to_dict())))
    assert torch.equal(back.values, found.values) and torch.equal(back.indices, found.indices)
    assert back.norm == found.norm and back.filter_norm == found.filter_norm and back.size == found.size
    assert math.isnan(FrequencySpectrum.from_dict(signal_spectra(gaussian(3, 1, 4)).to_dict()).filter_norm)
    for change in ({"size": [10**9, 10**9]}, {"size": []}, {"values": [1.0]}, {"norms": [[1.0]]}, {"size": [4.5, 4]}):
        with pytest.raises(IsthmusError):
            FrequencySpectrum.from_dict({**found.to_dict(), **change})


def test_wrong_input_is_named():
    for W, size, what in [
        (gaussian(3, 2), 4, "`W`"),
        (gaussian(3, 2, 3), (4, 4), "1 entries"),
        (gaussian(3, 2, 3), 0, "`size`"),
        (torch.ones(1, 1, 3, dtype=torch.long), 4, "`W`"),
    ]:
        with pytest.raises(IsthmusError, match=what):
            filter_spectra(W, size)
    with pytest.raises(IsthmusError, match="`A`"):
        signal_spectra(gaussian(3, 2))


# --- the verdict


def chain(gains: list[dict[tuple[int, ...], float]], size: tuple[int, ...] = (12,)) -> ConvolutionalNet:
    """A linear network of one channel with these filters."""
    net = ConvolutionalNet([1] * (len(gains) + 1), size, slope=1.0, bias=0.0, init_scale=0.0, dtype=torch.float64)
    with torch.no_grad():
        for parameter, one in zip(net.filters, gains):
            parameter.copy_(waves(size, one))
    return net


EVERY = {(k,): 1.0 for k in range(7)}
TWO = {(1,): 1.0, (3,): 0.9}


def test_two_frequencies_are_determined():
    found = kept_frequencies(chain([EVERY, TWO, TWO, EVERY]).trace(gaussian(40, 12)))
    assert found.verdict == "determined" and found.frequencies == {(1,), (3,)} and found.dimensions == 4
    assert found.mean == "absent" and found.layers == (2, 3) and "±1, ±3" in found.reasons[0]
    told = json.loads(json.dumps(found.to_dict()))
    assert told["frequencies"] == [[1], [3]] and told["through_depth"][1]["weights"]["kept"] == ["±1", "±3"]
    other = kept_frequencies(chain([EVERY, {(2,): 1.0, (3,): 0.9}, EVERY]).trace(gaussian(40, 12)))
    assert other.verdict == "determined" and other.frequencies == {(2,), (3,)}


def test_the_mean_is_told_apart():
    lifted = {**TWO, (0,): 1.0}
    found = kept_frequencies(chain([EVERY, lifted]).trace(gaussian(40, 12)))
    assert found.frequencies == {(1,), (3,)} and found.mean == "varies" and found.dimensions == 4
    still = gaussian(40, 12)
    still += 3.0 - still.mean(1, keepdim=True)
    found = kept_frequencies(chain([EVERY, lifted]).trace(still))
    assert found.frequencies == {(1,), (3,)} and found.mean == "constant"


def test_no_bottleneck():
    net = chain([EVERY, EVERY, EVERY])
    assert kept_frequencies(net.trace(gaussian(40, 12))).verdict == "none"
    # One channel of several carries everything: narrower than the layer, not than inputs and outputs.
    wide = ConvolutionalNet([1, 3, 1], (6,), slope=1.0, bias=0.0, init_scale=0.0, dtype=torch.float64)
    with torch.no_grad():
        wide.filters[0][0, 0, 0] = wide.filters[1][0, 0, 0] = 1.0
    found = kept_frequencies(wide.trace(gaussian(40, 6)))
    assert found.verdict == "none" and found.frequencies == frozenset() and found.dimensions is None


def test_a_network_that_ignores_its_inputs():
    net = chain([EVERY, {}, EVERY])
    found = kept_frequencies(net.trace(gaussian(40, 12)))
    assert found.verdict == "determined" and found.dimensions == 0 and found.frequencies == frozenset()
    assert found.layers == (2, 3) and "nothing of the inputs passes" in found.reasons[0]


def test_what_cannot_be_said():
    X = gaussian(40, 12)
    # A slope without a cliff.
    slope = {(k,): 0.4**k for k in range(7)}
    found = kept_frequencies(chain([slope, EVERY]).trace(X))
    assert found.verdict == "undetermined" and "no filter drops clearly" in found.reasons[0]
    # Layers that name different frequencies: what the layer before passed is gone, unless something moves frequencies.
    one, two = (kept_frequencies(chain([EVERY, {(k,): 1.0}]).trace(X)).through_depth[1] for k in (1, 2))
    found = judged([one, LayerFrequencies(3, two.weights, two.signals, 1.0, 1.0)], 12)
    assert found.verdict == "undetermined" and "different frequencies" in found.reasons[0]
    # A layer that may be narrower, but is not clear.
    clear = kept_frequencies(chain([EVERY, {(1,): 1.0, (2,): 0.9, (3,): 0.9}]).trace(X)).through_depth[1]
    faint = kept_frequencies(chain([EVERY, {(k,): 0.3**k for k in range(7)}]).trace(X)).through_depth[1]
    assert not faint.clear
    found = judged([clear, faint], 12)
    assert found.verdict == "undetermined" and "may pass fewer" in found.reasons[0]
