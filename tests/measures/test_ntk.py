"""The tangent kernel and the Hessian against dense matrices made by autograd."""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian, jacrev, vmap

from isthmus import FullyConnected, IsthmusError
from isthmus.measures import (
    hessian_top_eigenvalue,
    hessian_trace,
    largest_stable_step,
    ntk_top_eigenvalue,
    ntk_trace,
    top_eigenvalue,
)
from isthmus.measures._ntk import _ntk_trace_of
from isthmus.objective import cost
from tools import SEED, assert_close, gaussian, generator, random_net


def parameter_jacobian(net: nn.Module, X: Tensor) -> Tensor:
    """J_θ f, (N, d_out, P), by autograd."""
    parameters = {k: p.detach() for k, p in net.named_parameters()}
    J = vmap(jacrev(lambda p, x: functional_call(net, p, (x,))), in_dims=(None, 0))(parameters, X)
    return torch.cat([v.flatten(2) for v in J.values()], dim=2)


def dense_hessian(net: nn.Module, X: Tensor, Y: Tensor, loss: str, ridge: float) -> Tensor:
    shapes = {k: p.shape for k, p in net.named_parameters()}
    theta = torch.cat([p.detach().reshape(-1) for p in net.parameters()])

    def objective(flat: Tensor) -> Tensor:
        parts = flat.split([math.prod(s) for s in shapes.values()])
        named = {k: part.reshape(s) for (k, s), part in zip(shapes.items(), parts)}
        return cost(functional_call(net, named, (X,)), Y, loss) + ridge * flat.square().sum()

    return hessian(objective)(theta)


@pytest.mark.parametrize("slope", [-1.0, -0.5, 0.0, 0.1, 1.0])
@pytest.mark.parametrize("bias", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("dims", [[3, 2], [2, 7, 6, 4], [5, 6, 6, 6, 6, 1]])
def test_trace_equals_parameter_jacobians(slope, bias, dims):
    net = random_net(dims, slope, bias, seed=1)
    X = gaussian(9, dims[0], seed=2)
    expected = parameter_jacobian(net, X).square().sum((1, 2))
    assert_close(ntk_trace(net, X), expected)
    single = net.to(torch.float32)
    assert_close(
        ntk_trace(single, X.float(), dtype=torch.float32),
        parameter_jacobian(single, X.float()).square().sum((1, 2)),
    )
    assert ntk_trace(single, X).dtype == torch.float64


@pytest.mark.parametrize("depth", range(1, 13))
def test_trace_at_every_depth(depth):
    net = random_net([4, *[6] * (depth - 1), 3], 0.1, seed=depth)
    X = gaussian(5, 4, seed=depth)
    expected = parameter_jacobian(net, X).square().sum((1, 2))
    for chunk_bytes in (1, 3000, 2**28):
        assert_close(ntk_trace(net, X, chunk_bytes=chunk_bytes), expected)


@pytest.mark.parametrize("dims", [[4, 3], [4, 9, 5, 3], [2, 3, 8, 8, 7, 1]])
def test_trace_does_not_depend_on_blocks(dims):
    net, X = random_net(dims, 0.1, seed=4), gaussian(11, dims[0], seed=5)
    expected = parameter_jacobian(net, X).square().sum((1, 2))
    # One sample at a time, blocks that leave a rest, and one block.
    for block in (1, 4 * 8 * dims[-1] * max(dims[1:]), 2**30):
        assert_close(_ntk_trace_of(net.trace(X, dtype=torch.float64), block), expected)


@pytest.mark.parametrize("slope", [0.0, -0.5, 1.0])
@pytest.mark.parametrize("bias", [0.0, 0.5])
def test_top_eigenvalue_of_the_kernel(slope, bias):
    net = random_net([3, 8, 6, 2], slope, bias, seed=3)
    X = gaussian(10, 3, seed=4)
    J = parameter_jacobian(net, X).flatten(0, 1)
    expected = torch.linalg.eigvalsh(J @ J.mT)[-1]
    for chunk_bytes in (1, 2**28):
        found = ntk_top_eigenvalue(net, X, tolerance=1e-12, chunk_bytes=chunk_bytes)
        assert found.state == "converged"
        assert_close(found.value, expected)
        assert found.residual < 1e-6
    assert_close(ntk_trace(net, X).sum(), torch.trace(J @ J.mT))


@pytest.mark.parametrize("loss", ["mse", "cross_entropy"])
@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_top_eigenvalue_of_the_hessian(loss, ridge):
    net = random_net([3, 8, 2], 0.2, seed=5)
    X = gaussian(12, 3, seed=6)
    Y = gaussian(12, 2, seed=7) if loss == "mse" else torch.randint(0, 2, (12,), generator=generator(8))
    H = dense_hessian(net, X, Y, loss, ridge)
    values = torch.linalg.eigvalsh(H)
    for chunk_bytes in (1, 2**28):
        found = hessian_top_eigenvalue(net, X, Y, loss=loss, ridge=ridge, tolerance=1e-12, chunk_bytes=chunk_bytes)
        assert found.state == "converged"
        assert_close(found.value, values[-1])
    estimate = hessian_trace(net, X, Y, loss=loss, ridge=ridge, probes=64, seed=SEED)
    assert abs(estimate.value - float(values.sum())) < 4 * estimate.standard_error
    assert estimate.probes == 64


@pytest.mark.slow
def test_hutchinson_is_unbiased_with_an_honest_error():
    net = random_net([3, 6, 2], seed=5)
    X, Y = gaussian(12, 3, seed=6), gaussian(12, 2, seed=7)
    exact = float(torch.trace(dense_hessian(net, X, Y, "mse", 0.0)))
    estimates = [hessian_trace(net, X, Y, probes=16, seed=100 + i) for i in range(25)]
    scores = np.array([(e.value - exact) / e.standard_error for e in estimates])
    assert abs(scores.mean()) < 1.0  # five standard errors of a mean of 25
    assert 0.4 < scores.std() < 2.5
    assert np.abs(scores).max() < 6
    first = hessian_trace(net, X, Y, probes=16, seed=3)
    assert first == hessian_trace(net, X, Y, probes=16, seed=3)


@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("ridge", [0.0, 0.05])
def test_hessian_is_the_kernel_at_an_interpolating_network(slope, ridge):
    """H = (2/N)·J_θᵀJ_θ + 2·ridge where f = y: the factor 2 that bottleneck2023 leaves out."""
    net = random_net([3, 7, 7, 2], slope, seed=9)
    X = gaussian(10, 3, seed=10)
    Y = net(X).detach()
    sharpness = hessian_top_eigenvalue(net, X, Y, ridge=ridge, tolerance=1e-12).value
    kernel = ntk_top_eigenvalue(net, X, tolerance=1e-12).value
    assert_close(sharpness, 2 / 10 * kernel + 2 * ridge)
    P = sum(p.numel() for p in net.parameters())
    exact = float(2 / 10 * ntk_trace(net, X).sum() + 2 * ridge * P)
    assert_close(exact, torch.trace(dense_hessian(net, X, Y, "mse", ridge)))
    estimate = hessian_trace(net, X, Y, ridge=ridge, probes=64, seed=SEED)
    assert abs(estimate.value - exact) < 4 * estimate.standard_error


def test_largest_stable_step_separates_descent_from_divergence():
    """Gradient descent on a quadratic: just below 2/‖H‖ it contracts, just above it leaves."""
    net = FullyConnected([4, 2], slope=1.0, bias=0.0, dtype=torch.float64, generator=generator(1))
    X, Y = gaussian(20, 4), gaussian(20, 2, seed=1)
    limit = largest_stable_step(hessian_top_eigenvalue(net, X, Y, tolerance=1e-12).value)
    best = torch.linalg.lstsq(X, Y).solution.mT
    for factor, contracts in ((0.99, True), (1.01, False)):
        W = net.Ws[0].detach().clone()
        before = (W - best).norm()
        for _ in range(3000):
            W = W - factor * limit * 2 / 20 * (W @ X.mT - Y.mT) @ X
        assert bool((W - best).norm() < before) == contracts
    assert largest_stable_step(0.0) == math.inf
    assert largest_stable_step(-1.0) == math.inf
    with pytest.raises(IsthmusError):
        largest_stable_step(math.nan)


def test_any_module():
    module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    X = gaussian(6, 3)
    J = parameter_jacobian(module, X).flatten(0, 1)
    assert_close(ntk_top_eigenvalue(module, X, tolerance=1e-12).value, torch.linalg.matrix_norm(J, 2) ** 2)


def test_float32_networks_are_measured_in_float64():
    net = random_net([3, 5, 2], dtype=torch.float32)
    X = gaussian(6, 3)
    J = parameter_jacobian(net.double(), X).flatten(0, 1)
    found = ntk_top_eigenvalue(random_net([3, 5, 2], dtype=torch.float32), X, tolerance=1e-12)
    assert_close(found.value, torch.linalg.matrix_norm(J, 2) ** 2)


@pytest.mark.parametrize("size", [1, 2, 3, 30])
def test_lanczos_on_simple_operators(size):
    assert top_eigenvalue(lambda v: 0 * v, size).value == 0.0
    assert_close(top_eigenvalue(lambda v: -v, size).value, -1.0)
    diagonal = torch.linspace(-9.0, 2.0, size, dtype=torch.float64)
    # The largest, not the largest in absolute value.
    assert_close(top_eigenvalue(lambda v: diagonal * v, size, tolerance=1e-12).value, diagonal[-1])


def test_lanczos_says_when_it_has_not_converged():
    diagonal = 1 - torch.linspace(0, 1, 3000, dtype=torch.float64).square() * 1e-3
    found = top_eigenvalue(lambda v: diagonal * v, 3000, tolerance=1e-14, max_products=20)
    assert found.state == "not converged"
    assert found.value <= 1.0
    assert found.residual > 1e-10


def test_lanczos_refuses_nan():
    with pytest.raises(IsthmusError, match="finite"):
        top_eigenvalue(lambda v: v * math.nan, 10)


def test_refused():
    net = random_net([3, 5, 2])
    X, Y = gaussian(6, 3), gaussian(6, 2)
    with pytest.raises(IsthmusError, match="as many rows"):
        hessian_top_eigenvalue(net, X, Y[:4], chunk_bytes=1)
    with pytest.raises(IsthmusError, match="same shape"):
        hessian_top_eigenvalue(net, X, Y[:, :1])
    with pytest.raises(IsthmusError, match="ridge"):
        hessian_trace(net, X, Y, ridge=-1.0)
    with pytest.raises(IsthmusError, match="probes"):
        hessian_trace(net, X, Y, probes=1)
    with pytest.raises(IsthmusError, match="loss"):
        hessian_trace(net, X, Y, loss="hinge")
    with pytest.raises(IsthmusError):
        hessian_trace(net, X, list("abcdef"), loss="cross_entropy")
    with pytest.raises(IsthmusError, match="class indices"):
        hessian_trace(net, X, [[0]] * 6, loss="cross_entropy")
    with pytest.raises(IsthmusError, match="parameters"):
        ntk_top_eigenvalue(nn.ReLU(), X)
    with pytest.raises(IsthmusError, match="at least one row"):
        ntk_top_eigenvalue(net, np.zeros((0, 3)))
    with pytest.raises(IsthmusError, match="columns"):
        ntk_trace(net, gaussian(6, 4))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
def test_memory_stays_bounded():
    """The (N·d_out) × P matrix would have 3000·10 × 85,000 entries, 20 GB; so would all Jacobians of a
    chunk-free run.
    """
    script = textwrap.dedent("""
        import torch, isthmus
        from isthmus.measures import jacobian_spectra, ntk_trace, ntk_top_eigenvalue
        torch.set_num_threads(1)
        net = isthmus.FullyConnected([20, *[200] * 3, 10], generator=torch.Generator().manual_seed(0))
        small, X = torch.randn(8, 20), torch.randn(3000, 20)
        for data in (small, X):  # the small run pays for the libraries
            ntk_trace(net, data, chunk_bytes=2**24)
            jacobian_spectra(net, data, chunk_bytes=2**24)
            ntk_top_eigenvalue(net, data, tolerance=0.1, chunk_bytes=2**24)
            # ru_maxrss would not do: a process inherits the peak of the one that started it.
            print(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1])
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    # In kB. Four times the 16 MB allowed to an intermediate, and the allocator's slack.
    assert after - before < 128 * 1024, (before, after)
