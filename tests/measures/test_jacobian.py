"""The Jacobian by masked products against vmap(jacrev)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.func import jacrev, vmap

from isthmus import FullyConnected, IsthmusError
from isthmus.measures import (
    agop,
    jacobian,
    jacobian_of_trace,
    jacobian_rank,
    jacobian_spectra,
    log_pseudo_determinant,
    schatten,
)
from tools import assert_close, gaussian, linear_net, random_net

SLOPES = (-1.0, -0.5, 0.0, 0.1, 0.9, 1.0)


@pytest.mark.parametrize("slope", SLOPES)
@pytest.mark.parametrize("bias", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("d_in", "d_out"), [(2, 6), (6, 2), (4, 4), (1, 3)])
def test_equals_autograd(slope, bias, d_in, d_out):
    net = random_net([d_in, 7, 9, 5, d_out], slope, bias, seed=1)
    X = gaussian(11, d_in, seed=2)
    assert_close(jacobian(net, X), vmap(jacrev(net))(X))


@pytest.mark.parametrize("depth", range(1, 13))
def test_every_depth(depth):
    for d_in, d_out in ((3, 5), (5, 3)):
        net = random_net([d_in, *[8] * (depth - 1), d_out], seed=depth)
        X = gaussian(5, d_in, seed=depth)
        J = jacobian(net, X)
        assert J.shape == (5, d_out, d_in)
        assert_close(J, vmap(jacrev(net))(X))
        assert_close(jacobian_of_trace(net.trace(X)), J)


@pytest.mark.parametrize("chunk_bytes", [1, 1000, 5000, 2**28])
def test_chunks_do_not_matter(chunk_bytes):
    net = random_net([4, 8, 8, 3])
    X = gaussian(23, 4)
    reference = vmap(jacrev(net))(X)
    assert_close(jacobian(net, X, chunk_bytes=chunk_bytes), reference)
    assert_close(jacobian_spectra(net, X, chunk_bytes=chunk_bytes), np.linalg.svd(reference.detach(), compute_uv=False))
    assert_close(agop(net, X, chunk_bytes=chunk_bytes), torch.einsum("nij,nik->jk", reference, reference) / 23)


@pytest.mark.parametrize("slope", [-1.0, 0.0, 0.3, 1.0])
def test_at_the_kink_as_autograd(slope):
    # Pre-activations exactly 0: both sides must choose the same one-sided derivative.
    net = FullyConnected.from_weights([torch.eye(3).double(), torch.ones(2, 3).double()], slope=slope)
    X = torch.tensor([[0.0, 1.0, -1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    assert_close(jacobian(net, X), vmap(jacrev(net))(X))


def test_dtype():
    net = random_net([3, 5, 2], dtype=torch.float32)
    X = gaussian(4, 3)
    assert jacobian(net, X).dtype == torch.float64
    single = jacobian(net, X, dtype=torch.float32)
    assert single.dtype == torch.float32
    assert_close(single, jacobian(net, X))


def test_result_does_not_share_memory():
    for depth_dims in ([3, 2], [2, 3]):
        net = random_net(depth_dims)
        trace = net.trace(gaussian(1, depth_dims[0]))
        jacobian_of_trace(trace).zero_()
        assert trace.Ws[0].any()


@pytest.mark.parametrize("k", range(1, 6))
def test_rank_of_linear_nets(k):
    net = linear_net([0.9**i for i in range(k)], [6, 8, 8, 5], seed=k)
    result = jacobian_rank(net, gaussian(4, 6))
    assert result.rank == k
    assert result.ranks.tolist() == [k] * 4
    assert "rounding" in result.explanation
    single = jacobian_rank(net.to(torch.float32), gaussian(4, 6))
    assert single.rank == k  # float32 noise stays below the tolerance of the network's own dtype


def test_rank_with_a_relative_tolerance():
    net = linear_net([1.0, 0.5, 1e-3], [4, 6, 5])
    X = gaussian(3, 4)
    assert jacobian_rank(net, X).rank == 3
    result = jacobian_rank(net, X, relative=0.01)
    assert result.rank == 2
    assert "0.01" in result.explanation
    for bad in (-0.1, 1.1, float("nan"), "x"):
        with pytest.raises(IsthmusError, match="relative"):
            jacobian_rank(net, X, relative=bad)  # pyright: ignore[reportArgumentType]


def test_rank_is_a_maximum_over_samples():
    # ReLU of the input: the rank is the number of positive coordinates.
    eye = torch.eye(3, dtype=torch.float64)
    net = FullyConnected.from_weights([eye, eye])
    X = [[1.0, -1.0, -1.0], [1.0, 1.0, -1.0], [-1.0, -1.0, -1.0]]
    result = jacobian_rank(net, X)
    assert result.ranks.tolist() == [1, 2, 0]
    assert result.rank == 2


def test_pseudo_determinant_and_schatten_of_a_jacobian():
    net = random_net([4, 9, 4], 0.5, seed=3)
    J = jacobian(net, gaussian(5, 4))
    assert_close(log_pseudo_determinant(J, rank=4), torch.linalg.slogdet(J).logabsdet)
    assert_close(schatten(J, 2.0), J.square().sum((1, 2)))


def test_agop_finds_the_inputs_used():
    net = random_net([5, 16, 2], seed=4)
    with torch.no_grad():
        net.weights[0][:, 2:] = 0.0
    M = agop(net, gaussian(50, 5))
    assert not M[2:].any()
    assert int((torch.linalg.eigvalsh(M) > 1e-8).sum()) == 2


def test_refused():
    net = random_net([3, 5, 2])
    for function in (jacobian, jacobian_spectra, jacobian_rank, agop):
        with pytest.raises(IsthmusError, match="columns"):
            function(net, np.zeros((2, 4)))
        with pytest.raises(IsthmusError, match="NaN"):
            function(net, [[np.nan, 0, 0]])
