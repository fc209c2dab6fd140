"""Q-geodesic: kernels through depth on balanced linear networks, and planarity of known clouds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus import IsthmusError
from isthmus.measures._geodesic import (
    kernel_path,
    kernels,
    linear_geodesic,
    linear_kernel,
    linear_representation,
    planarity,
)
from tools import assert_close, gaussian, generator, linear_net, orthogonal, random_net, three_part_net


def product(net):
    A = torch.eye(net.dims[0], dtype=torch.float64)
    for W in net.Ws:
        A = W.detach() @ A
    return A


@pytest.mark.parametrize("dims", [(4, 6, 5, 4), (4, 4, 4, 4, 4, 4, 7), (3, 3)])
def test_balanced_linear_network(dims):
    """An invertible map in a network built from its SVD: both formulas give every kernel of its trace."""
    net = linear_net([3.0, 1.0, 0.2, 2.0][: dims[0]], dims)
    A, L = product(net), len(dims) - 1
    X, other = gaussian(9, dims[0], seed=1), gaussian(5, dims[0], seed=2)
    trace = net.trace(X)
    found = list(kernels(trace))
    assert len(found) == L + 1
    for ell, K in enumerate(found):
        assert_close(K, linear_kernel(A, X, ell / L))
        assert_close(K, linear_geodesic(X, trace.outputs, ell / L), rtol=1e-8, reason="X is inverted")
        assert_close(linear_kernel(A, X, ell / L, other), linear_kernel(A, other, ell / L, X).mT)
    assert_close(linear_kernel(A, X, 1.0, other), X @ A.mT @ (other @ A.mT).mT)
    # The formula as printed, with columns and an explicit inverse.
    square = gaussian(dims[0], dims[0], seed=3)
    Z = square @ A.mT
    inner = torch.linalg.inv(square.mT).mT @ (Z @ Z.mT) @ torch.linalg.inv(square.mT)
    values, vectors = torch.linalg.eigh(inner)
    printed = square @ (vectors * values**0.4) @ vectors.mT @ square.mT
    assert_close(linear_geodesic(square, Z, 0.4), printed, rtol=1e-7, atol=1e-9, reason="two explicit inverses")


def test_rank_deficient_map_and_inputs():
    net = linear_net([2.0, 0.5], (5, 6, 6, 5))
    A, X = product(net), gaussian(8, 5, seed=1)
    trace = net.trace(X)
    for ell in (1, 2, 3):
        assert_close(linear_kernel(A, X, ell / 3), list(kernels(trace))[ell])
    assert linear_representation(A, X, 0.5).shape == (8, 2)
    # At 0 the limit: the part of X that A sees.
    P = torch.linalg.pinv(A) @ A
    assert_close(linear_kernel(A, X, 0.0), X @ P @ X.mT)
    # Inputs in a plane: A is known there only, and the ends of the geodesic need no more.
    inside = gaussian(8, 2, seed=2) @ orthogonal(5, 2, seed=3).mT
    assert_close(linear_geodesic(inside, inside @ A.mT, 0.0), inside @ inside.mT)
    assert_close(linear_geodesic(inside, inside @ A.mT, 1.0), inside @ A.mT @ A @ inside.mT)


def test_an_unbalanced_network_is_the_twin():
    net = linear_net([3.0, 1.0], (2, 2, 2, 2))
    A, X = product(net), gaussian(6, 2, seed=1)
    with torch.no_grad():
        net.weights[0].mul_(2.0)
        net.weights[1].div_(2.0)
    assert_close(product(net), A)
    middle = list(kernels(net.trace(X)))[1]
    assert (middle - linear_kernel(A, X, 1 / 3)).norm() > 0.5 * middle.norm()


def test_kernel_path_against_the_kernels():
    trace = random_net((4, 10, 3, 12, 5)).trace(gaussian(30, 4, seed=1))
    path, Ks = kernel_path(trace), list(kernels(trace))
    assert_close(path.norms, torch.stack([K.norm() for K in Ks]))
    assert_close(path.steps, torch.stack([(Ks[i + 1] - Ks[i]).norm() for i in range(4)]))
    pairs = [(Ks[i + 1] * Ks[i]).sum() / Ks[i + 1].norm() / Ks[i].norm() for i in range(4)]
    assert_close(path.alignments, torch.stack(pairs))
    assert bool((path.alignments[:4] < 0.9999).any())


def test_rotations_do_not_move_the_kernel():
    trace = linear_net([1.0] * 4, (4, 6, 9, 4)).trace(gaussian(50, 4, seed=1))
    path = kernel_path(trace)
    assert float(path.steps.max()) < 1e-12 * float(path.norms[0])
    assert_close(path.alignments, torch.ones(3, dtype=torch.float64))
    dead = linear_net([1.0, 1.0], (2, 2, 2))
    with torch.no_grad():
        dead.weights[0].zero_()
    path = kernel_path(dead.trace(gaussian(5, 2)))
    assert path.norms[1] == 0 and bool(path.alignments.isnan().all())


def test_kernels_come_one_at_a_time():
    trace = random_net((4, 10, 3)).trace(gaussian(30, 4, seed=1))
    stream = kernels(trace)
    assert next(stream).shape == (30, 30)
    assert_close(next(stream), trace.preactivations[0] @ trace.preactivations[0].mT)


def test_planarity_of_known_clouds():
    plane = gaussian(40, 2) @ orthogonal(6, 2, seed=1).mT
    assert planarity(plane, 2) < 1e-28
    assert planarity(plane, 1) > 0.05
    assert planarity(plane, 0) == 1.0
    assert planarity(plane, 6) == 0.0 == planarity(plane, 9)
    cross = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]], dtype=torch.float64)
    assert_close(planarity(cross, 1), 2 / 10)
    # A line beside the origin: a plane through 0, a line through its mean.
    line = torch.stack([torch.linspace(-1, 1, 30, dtype=torch.float64), torch.ones(30, dtype=torch.float64)], 1)
    assert planarity(line, 1) > 0.2
    assert planarity(line, 1, affine=True) < 1e-28
    # An L-shaped domain, the twin of C-bn-5: no line holds it.
    assert planarity([[1.0, 0.0], [0.5, 0.0], [0.0, 1.0]], 1, affine=True) > 0.05
    assert planarity(torch.zeros(5, 3), 1) == 0.0
    assert planarity(torch.full((7, 3), 0.1), 0, affine=True) == 0.0


@given(st.integers(0, 10**6), st.integers(1, 4), st.booleans(), st.floats(-300, 300))
def test_planarity_is_invariant(seed, k, affine, exponent):
    Z = gaussian(12, 5, seed=seed)
    moved = (Z @ orthogonal(5, 5, seed=seed).mT)[torch.randperm(12, generator=generator(seed))] * 2.0**exponent
    assert_close(planarity(moved, k, affine=affine), planarity(Z, k, affine=affine))
    if affine:
        assert_close(planarity(Z + 3.0, k, affine=True), planarity(Z, k, affine=True))


def test_the_bottleneck_is_planar():
    trace = three_part_net(3).trace(gaussian(60, 12, seed=1))
    shares = [planarity(Z, 3, affine=True) for Z in trace.preactivations]
    assert max(shares[1:6]) < 1e-20
    assert planarity(trace.inputs, 3, affine=True) > 0.1


def test_refused():
    X = gaussian(6, 3)
    with pytest.raises(IsthmusError, match="linear function"):
        linear_geodesic(X, X.square(), 0.5)
    with pytest.raises(IsthmusError, match="same number of rows"):
        linear_geodesic(X, X[:4], 0.5)
    with pytest.raises(IsthmusError, match="share"):
        linear_kernel(torch.eye(3), X, 1.5)
    with pytest.raises(IsthmusError, match="3 columns"):
        linear_kernel(torch.eye(3), X[:, :2], 0.5)
    with pytest.raises(IsthmusError, match="k"):
        planarity(X, -1)
