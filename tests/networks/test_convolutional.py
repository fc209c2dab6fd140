"""Convolutional networks: four routes to the same function, equivariance, heads, traces, wrong input."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from conv_nets import OPTIONS, conv

from isthmus import ConvolutionalNet, IsthmusError
from isthmus.measures import filter_spectra
from isthmus.networks._convolutional import convolve, convolve_in_frequency
from isthmus.trace import activate
from tools import assert_close, gaussian, generator


@pytest.mark.parametrize("options", OPTIONS)
def test_four_routes(options):
    """Ours, PyTorch's layers, circulant matrices, and one matrix for each frequency."""
    net = conv(**options)
    X = gaussian(7, net.d_in)
    Y = net(X)
    assert tuple(Y.shape) == (7, net.d_out)
    assert_close(net.to_torch()(X), Y)
    assert_close(net.unrolled()(X), Y)
    images = X.reshape(7, net.channels[0], *net.size)
    assert_close(net(images).flatten(1), Y)
    assert_close(net.to_torch()(images), Y)
    axes = tuple(range(2, images.ndim))
    A = images
    for ell in range(1, len(net.filters) + 1):
        blocks = net.frequency_blocks(ell)
        assert tuple(blocks.shape) == (*net.size[:-1], net.size[-1] // 2 + 1, net.channels[ell], net.channels[ell - 1])
        image = torch.einsum("...oi,ni...->no...", blocks, torch.fft.rfftn(A, dim=axes))
        Z = torch.fft.irfftn(image, s=net.size, dim=axes)
        if net.bias:
            Z = Z + net.bias * net.biases[ell - 1].reshape(-1, *[1] * len(net.size))
        A = activate(Z, net.slope) if ell < net.depth else Z
    if net.head is None:
        assert_close(A.flatten(1), Y)


@pytest.mark.parametrize("taps", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("size", [(6,), (6, 7)])
def test_in_frequency_and_tap_by_tap(taps, size, monkeypatch):
    X, W = gaussian(3, 2, *size), gaussian(3, 2, *[taps] * len(size), seed=1)
    monkeypatch.setattr("isthmus.networks._convolutional.TAPS", 10**9)
    assert_close(convolve(X, W), convolve_in_frequency(X, W))


@pytest.mark.parametrize("options", OPTIONS)
def test_moving_the_input_moves_the_output(options):
    net = conv(**options)
    images = gaussian(3, net.channels[0], *net.size)
    axes, shift = tuple(range(2, images.ndim)), [2] * len(net.size)
    moved = net(images.roll(shift, axes))
    if net.head is None:
        assert_close(moved, net(images).roll(shift, axes))
    elif net.head == "mean":
        assert_close(moved, net(images))
    else:
        assert float((moved - net(images)).detach().abs().max()) > 1e-3  # the twin: flattening knows where


def test_the_regularised_norm():
    """Σ s² of a layer is positions · ‖filter‖², the norm of its circulant matrix."""
    net = conv(size=(3, 4), bias=0.0)
    for W, matrix in zip(net.filters, net.unrolled().Ws):
        found = filter_spectra(W, net.size)
        assert_close(found.norm**2, 12 * W.square().sum())
        assert_close(found.norm, matrix.norm())


@pytest.mark.parametrize("options", OPTIONS)
def test_trace(options):
    net = conv(**options, dtype=torch.float32)
    X = gaussian(6, net.d_in)
    trace = net.trace(X)
    exact = copy.deepcopy(net).double()
    assert_close(trace.outputs, exact(X))
    assert trace.outputs.dtype == torch.float64 and trace.source_eps == torch.finfo(torch.float32).eps
    assert trace.samples == 6 and trace.depth == net.depth and trace.size == net.size
    unrolled = exact.unrolled().trace(X)
    for ell in range(len(net.filters) + 1):
        assert_close(trace.Z(ell), unrolled.Z(ell))
        assert tuple(trace.pixels(ell).shape) == (net.channels[ell], 6 * net.positions)
        assert_close(trace.pixels(ell).norm(), trace.Z(ell).norm())
    assert_close(trace.pixels(0)[:, : net.positions], X[0].reshape(net.channels[0], -1))
    kept = trace.activations[0].clone()
    X += 1.0
    assert torch.equal(trace.activations[0], kept)
    assert net.trace(X, dtype=None).outputs.dtype == torch.float32
    with pytest.raises(IsthmusError, match="`ell`"):
        trace.Z(len(net.filters) + 1)


def test_gradients():
    net = conv(channels=[1, 2, 1], size=(5,), head="mean", outputs=2)
    X = gaussian(4, 5)
    names = [name for name, _ in net.named_parameters()]
    values = tuple(p.detach().clone().requires_grad_() for p in net.parameters())

    def function(*given):
        return torch.func.functional_call(net, dict(zip(names, given)), (X,))

    assert torch.autograd.gradcheck(function, values)


def test_an_ordinary_module():
    net = conv(head="flatten", outputs=3)
    keys = ["filters.0", "filters.1", "filters.2", "biases.0", "biases.1", "biases.2", "head_weight", "head_bias"]
    assert sorted(net.state_dict()) == sorted(keys)
    other = conv(head="flatten", outputs=3, seed=5)
    other.load_state_dict(net.state_dict())
    X = gaussian(3, net.d_in)
    assert torch.equal(net(X), other(X))
    assert "size=4×4" in repr(net) and "head='flatten'" in repr(net)
    # Its filters are no matrices: what measures weight matrices must not take it for a fully connected network.
    assert not hasattr(net, "Ws")
    assert net.to_torch().training and not copy.deepcopy(net).eval().to_torch().training


def test_initial_weights():
    net = ConvolutionalNet([3, 64, 64], 8, 3, slope=0.5, generator=generator())
    gain = math.sqrt(2 / 1.25)
    assert_close(net.filters[1].std(), gain / math.sqrt(64 * 9), rtol=0.02, reason="a sample of 36 864")
    state = torch.get_rng_state()
    ConvolutionalNet([1, 1], 3, generator=generator())
    net.to_torch()
    assert torch.equal(state, torch.get_rng_state())
    assert not ConvolutionalNet([1, 2], 3, init_scale=0.0).filters[0].any()


def test_wrong_arguments_are_named():
    for arguments, what in [
        ({"channels": [1]}, "`channels`"),
        ({"channels": 3}, "`channels`"),
        ({"channels": [1, 0]}, r"channels\[1\]"),
        ({"size": (2, 2, 2)}, "`size`"),
        ({"size": 0}, "`size`"),
        ({"filter_size": 5}, r"`filter_size\[0\]`.*\[1, 4\]"),
        ({"filter_size": [3, 3]}, "`filter_size` must be one number, or 3"),
        ({"slope": 2.0}, "`slope`"),
        ({"head": "max"}, "`head`"),
        ({"head": "mean"}, "`outputs`"),
        ({"outputs": 3}, "`outputs`"),
    ]:
        with pytest.raises(IsthmusError, match=what):
            conv(**arguments)
    with pytest.raises(IsthmusError, match="`dtype`"):
        ConvolutionalNet([1, 1], 3, dtype=torch.int64)
    net = conv()
    for shape in [(3, 31), (32,), (3, 2, 4, 5), (3, 1, 4, 4), (2, 4, 4)]:
        with pytest.raises(IsthmusError, match=r"rows \(N, 32\) or images \(N, 2, 4, 4\)"):
            net(torch.zeros(shape, dtype=torch.float64))
    with pytest.raises(IsthmusError, match="`ell`"):
        net.frequency_blocks(0)
    with torch.no_grad():
        net.filters[1][0] = float("inf")
    with pytest.raises(IsthmusError, match="layer 2"):
        net.trace(gaussian(2, 32))
    with pytest.raises(IsthmusError, match="entries"):
        ConvolutionalNet([1, 1], 128, 1).unrolled()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_coarse_dtypes(dtype):
    net = conv()
    X = gaussian(3, 32)
    assert_close(
        copy.deepcopy(net).to(dtype)(X.to(dtype)), net(X), rtol=0.2, atol=0.2, reason="three layers of rounding"
    )
