"""SmoothNetwork: the function, its trace, its gradient without a graph, its PyTorch form and its file."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import isthmus
from isthmus import IsthmusError, SmoothNetwork, Standardized, load, save
from tools import assert_close, gaussian, generator


def network(dims=(5, 8, 3, 7, 4), slope=(0.0, 1.0, 0.0), bias=0.5, **options):
    net = SmoothNetwork(dims, slope, bias, dtype=torch.float64, generator=generator(), **options)
    with torch.no_grad():
        for b in net.bs:
            b.normal_(generator=generator())
    return net


def silu(Z):
    return Z / (1.0 + torch.exp(-Z))


def test_function_and_trace_by_hand():
    net, X = network(), gaussian(9, 5)
    Ws, bs = net.Ws, net.bs
    Z_1 = X @ Ws[0].mT + 0.5 * bs[0]
    Z_2 = silu(Z_1) @ Ws[1].mT + 0.5 * bs[1]
    Z_3 = Z_2 @ Ws[2].mT + 0.5 * bs[2]
    Y = silu(Z_3) @ Ws[3].mT + 0.5 * bs[3]
    assert_close(net(X), Y)
    trace = net.trace(X)
    assert_close(trace.outputs, Y)
    assert trace.smooth and net.kind == "a smooth fully connected network"
    for got, wanted in zip(trace.activations, (X, silu(Z_1), Z_2, silu(Z_3))):
        assert_close(got, wanted)
    plain = net.to_torch()
    kinds = [nn.Linear, nn.SiLU, nn.Linear, nn.Identity, nn.Linear, nn.SiLU, nn.Linear]
    assert [type(layer) for layer in plain] == kinds
    assert_close(plain(X), Y)


def test_it_has_no_slope_and_no_law_of_norms():
    net = network()
    with pytest.raises(IsthmusError, match="SiLU"):
        _ = net.slope
    assert network(slope=1.0).slope == 1.0
    assert net.slopes == (0.0, 1.0, 0.0) and not net.uniform and net.plain_layers() is None
    assert all(value != value for value in net.imbalance())
    for slope, linear in (((0.0, 0.5, 0.0), None), (0.0, [1, 0, 0])):
        with pytest.raises(IsthmusError, match="linear as a whole"):
            SmoothNetwork([5, 8, 3, 7, 4], slope, linear=linear)
    with pytest.raises(IsthmusError):
        isthmus.from_torch(net)


@pytest.mark.parametrize("behind", [False, True])
def test_file(tmp_path, behind):
    inner, X = network(), gaussian(6, 5)
    net = Standardized(inner, gaussian(5, seed=6), gaussian(5, seed=7).abs() + 0.5) if behind else inner
    save(net, tmp_path / "net.safetensors")
    same = load(tmp_path / "net.safetensors")
    assert type(same) is type(net) and same.config() == net.config()
    assert type(same.network if behind else same) is SmoothNetwork
    assert torch.equal(same(X), net(X))
    if behind:
        assert_close(net(X), inner((X - net.shift) / net.scale))
        with pytest.raises(IsthmusError, match="FullyConnected, SmoothNetwork"):
            Standardized(inner.config(), family="Other")


def test_its_parts_are_of_its_family():
    net, X = SmoothNetwork.joined(network((5, 8, 3), 0.0), network((3, 7, 4), 0.0)), gaussian(6, 5)
    encoder, decoder = net.encoder(), net.decoder()
    assert type(net) is type(encoder) is type(decoder) is SmoothNetwork
    assert_close(decoder(encoder(X)), net(X))


def test_public():
    assert isthmus.SmoothNetwork is SmoothNetwork
