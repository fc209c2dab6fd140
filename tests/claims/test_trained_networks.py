"""`verify` on networks that were trained to stationary points: how much of the theory is tested by one network."""

from __future__ import annotations

import pytest
import torch

import isthmus
from isthmus import FullyConnected, LeakyResNet


def rank_two_task(samples, d_in, d_out):
    """h∘g through two dimensions, outputs of unit variance."""
    X = torch.randn(samples, d_in, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inner, outer = (
        FullyConnected(dims, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        for dims, seed in (([d_in, 12, 2], 1), ([2, 12, d_out], 2))
    )
    with torch.no_grad():
        Y = outer(inner(X))
    return X, (Y - Y.mean(0)) / Y.std()


def holding(found):
    return {v.claim for v in found if v.status == "holds"}


@pytest.mark.slow
def test_a_fully_connected_network_of_rank_two():
    X, Y = rank_two_task(200, 6, 5)
    net = FullyConnected([6, *[24] * 5, 5], dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    result = isthmus.train(net, X, Y, ridge=2e-3, finish="stationary")
    assert result.stationarity.stationary
    found = isthmus.verify(net, X, Y, ridge=2e-3)
    assert found.failed == ()
    expected = {f"C-rank-{n}" for n in (1, 5, 9, 15)} | {f"C-bn-{n}" for n in (1, 2, 5, 6, 7, 8, 9, 11, 13, 16)}
    expected |= {f"C-feat-{n}" for n in (1, 2, 3, 5, 11, 12)}
    assert len(expected) == 20 and holding(found) >= expected
    # Each could have failed: no margin is the whole of its larger side.
    assert all(found[one].margin <= 0.99 for one in holding(found))


@pytest.mark.slow
def test_a_leaky_network():
    X, Y = rank_two_task(40, 5, 4)
    net = LeakyResNet(
        5, 4, width=12, layers=40, effective_depth=2.0, dtype=torch.float64, generator=torch.Generator().manual_seed(3)
    )
    result = isthmus.train(net, X, Y, ridge=4e-3, finish="stationary")
    assert result.stationarity.stationary
    found = isthmus.verify(net, X, Y, ridge=4e-3)
    assert found.failed == ()
    assert holding(found) >= {f"C-ham-{n}" for n in (1, 3, 4, 5, 7, 8)}
    assert "Hamiltonian flow" in found.closing


@pytest.mark.slow
def test_an_autoencoder_of_a_surface():
    """The identity on a folded surface of dimension 2, learned: it projects onto the tangents of its samples."""
    z = 2 * torch.rand(200, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 1
    X = torch.cat([z, 0.3 * z.abs()], 1)
    X = X - X.mean(0)
    net = FullyConnected([4, *[24] * 5, 4], dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    result = isthmus.train(net, X, X, ridge=1e-4, finish="stationary")
    assert result.stationarity.stationary
    found = isthmus.verify(net, X, X, ridge=1e-4)
    assert found.failed == () and len(holding(found)) >= 20
    assert {"C-rank-12", "C-rank-15", "C-bn-5", "C-bn-16"} <= holding(found)
    assert found["C-rank-12"].status == "holds" and found["C-rank-12"].margin < 0.1
    assert "rank-2 network" in found.closing
