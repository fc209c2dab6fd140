"""What changes of parametrisation and of coordinates leave alone, for every slope.

Which hold where (P permutation of hidden neurons, R positive rescaling of hidden neurons or layers, Q
orthogonal change of inputs and outputs):

=====================================  ===  ===  ===========================
quantity                               P    R    Q
=====================================  ===  ===  ===========================
outputs, Jacobian spectra, AGOP        yes  yes  equivariant (spectra: yes)
‖θ‖², per layer; weight spectra        yes  no   yes
representation spectra                 yes  no   yes
Tr Θ(x, x), top eigenvalue of Θ        yes  no   yes (β included: ‖x‖ is kept)
balance (neuron-wise)                  yes* no   yes        (* permuted)
norm after rebalancing                 yes  yes  yes
bottleneck rank                        yes  layer-wise only  yes
=====================================  ===  ===  ===========================

Neuron-wise rescaling by large factors changes the weight and representation spectra at will, so that the rank
read off them may change: only one factor for each layer leaves ratios s_i/s_1 alone.
"""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus import FullyConnected, rebalance
from isthmus.measures import (
    agop,
    balance,
    bottleneck_rank,
    jacobian,
    jacobian_spectra,
    ntk_top_eigenvalue,
    ntk_trace,
    parameter_norms,
    representation_spectra,
    weight_spectra,
)
from tools import assert_close, gaussian, generator, orthogonal, random_net, three_part_net

slopes = st.one_of(st.floats(-1, 1), st.sampled_from([-1.0, 0.0, 1.0]))
biases = st.sampled_from([0.0, 0.5, 1.0])
seeds = st.integers(0, 10**6)


def sizes(depth: int, seed: int) -> list[int]:
    return torch.randint(2, 7, (depth + 1,), generator=generator(seed)).tolist()


def edited(net: FullyConnected, left: list[torch.Tensor]) -> FullyConnected:
    """W_ℓ → M_ℓ W_ℓ M_{ℓ-1}⁻¹, b_ℓ → M_ℓ b_ℓ for the given M_0 … M_L."""
    Ws = [left[i + 1] @ W.detach() @ torch.linalg.inv(left[i]) for i, W in enumerate(net.Ws)]
    bs = [left[i + 1] @ b.detach() for i, b in enumerate(net.bs)]
    return FullyConnected.from_weights(Ws, bs or None, slope=net.slope, bias=net.bias)


def eyes(net: FullyConnected) -> list[torch.Tensor]:
    return [torch.eye(n, dtype=torch.float64) for n in net.dims]


def permuted(net: FullyConnected, seed: int) -> FullyConnected:
    source = generator(seed)
    left = eyes(net)
    for i in range(1, net.depth):
        left[i] = left[i][torch.randperm(net.dims[i], generator=source)]
    return edited(net, left)


def rescaled(net: FullyConnected, seed: int, *, by: str) -> FullyConnected:
    source = generator(seed)
    left = eyes(net)
    for i in range(1, net.depth):
        count = net.dims[i] if by == "neuron" else 1
        scales = (1.5 * torch.randn(count, generator=source, dtype=torch.float64)).exp()
        left[i] = torch.diag(scales.expand(net.dims[i]))
    return edited(net, left)


def turned(net: FullyConnected, seed: int) -> tuple[FullyConnected, torch.Tensor, torch.Tensor]:
    """The network in other orthonormal coordinates of inputs (x' = Qx) and outputs (f' = Of)."""
    Q, O = (
        orthogonal(net.dims[0], net.dims[0], seed=seed),
        orthogonal(net.dims[-1], net.dims[-1], seed=seed + 1),
    )
    left = eyes(net)
    left[0], left[-1] = Q, O
    return edited(net, left), Q, O


def loose(actual, expected) -> None:
    scale = float(torch.as_tensor(expected).detach().abs().max())
    assert_close(actual, expected, rtol=1e-8, atol=1e-9 * scale, reason="scales of e^±5 in a chain of products")


@given(seeds, st.integers(1, 6), slopes, biases)
def test_permutation(seed, depth, slope, bias):
    net = random_net(sizes(depth, seed), slope, bias, seed=seed)
    other = permuted(net, seed + 1)
    X = gaussian(7, net.dims[0], seed=seed)
    assert_close(other(X), net(X))
    assert_close(jacobian(other, X), jacobian(net, X))
    assert_close(ntk_trace(other, X), ntk_trace(net, X))
    assert_close(parameter_norms(other).layers, parameter_norms(net).layers)
    for a, b in zip(weight_spectra(other), weight_spectra(net)):
        assert_close(a, b)
    for a, b in zip(representation_spectra(other.trace(X)), representation_spectra(net.trace(X))):
        assert_close(a, b)
    for a, b in zip(balance(other).neurons, balance(net).neurons):
        assert_close(a.sort().values, b.sort().values)


@given(seeds, st.integers(2, 6), slopes, biases, st.sampled_from(["neuron", "layer"]))
def test_rescaling(seed, depth, slope, bias, by):
    net = random_net(sizes(depth, seed), slope, bias, seed=seed)
    other = rescaled(net, seed + 1, by=by)
    X = gaussian(7, net.dims[0], seed=seed)
    loose(other(X), net(X))
    loose(jacobian(other, X), jacobian(net, X))
    loose(jacobian_spectra(other, X), jacobian_spectra(net, X))
    loose(agop(other, X), agop(net, X))
    loose(rebalance(other, by=by).norm_after, rebalance(net, by=by).norm_after)
    if by == "layer":
        for a, b in zip(weight_spectra(other), weight_spectra(net)):
            loose(a / a[0], b / b[0])


def test_rescaling_changes_norm_and_kernel():
    """The failing twin: these are not invariant, and a test that could not see it would prove nothing."""
    net = random_net([3, 5, 5, 2], seed=1)
    other = rescaled(net, 2, by="neuron")
    X = gaussian(7, 3)
    assert abs(parameter_norms(other).total / parameter_norms(net).total - 1) > 0.1
    assert ((ntk_trace(other, X) / ntk_trace(net, X) - 1).abs() > 0.1).all()
    assert abs(ntk_top_eigenvalue(other, X).value / ntk_top_eigenvalue(net, X).value - 1) > 0.1


def test_negative_rescaling_changes_the_function():
    net = random_net([3, 5, 2], seed=1)
    left = eyes(net)
    left[1] = -left[1]
    X = gaussian(7, 3)
    assert not torch.allclose(edited(net, left)(X), net(X))


@given(seeds, st.integers(1, 6), slopes, biases)
def test_orthogonal_coordinates(seed, depth, slope, bias):
    net = random_net(sizes(depth, seed), slope, bias, seed=seed)
    other, Q, O = turned(net, seed)
    X = gaussian(7, net.dims[0], seed=seed)
    XQ = X @ Q.mT
    assert_close(other(XQ), net(X) @ O.mT)
    assert_close(jacobian(other, XQ), O @ jacobian(net, X) @ Q.mT)
    assert_close(jacobian_spectra(other, XQ), jacobian_spectra(net, X), atol=1e-11, reason="zero singular values")
    assert_close(agop(other, XQ), Q @ agop(net, X) @ Q.mT)
    assert_close(ntk_trace(other, XQ), ntk_trace(net, X))
    assert_close(parameter_norms(other).total, parameter_norms(net).total)
    for a, b in zip(representation_spectra(other.trace(XQ)), representation_spectra(net.trace(X))):
        assert_close(a, b, atol=1e-11, reason="zero singular values")


@given(seeds, st.integers(1, 6), st.sampled_from([0.0, 0.01]))
def test_bottleneck_rank(seed, k, noise):
    net = three_part_net(k, depth=7, noise=noise, seed=seed)
    X = gaussian(80, 12, seed=seed + 5)
    reference = bottleneck_rank(net.trace(X))
    assert reference.rank == k, reference.reasons
    assert bottleneck_rank(permuted(net, seed).trace(X)).rank == k
    assert bottleneck_rank(rescaled(net, seed, by="layer").trace(X)).rank == k
    other, Q, _ = turned(net, seed)
    assert bottleneck_rank(other.trace(X @ Q.mT)).rank == k
    assert bottleneck_rank(net.trace(X.flip(0))).rank == k


@given(seeds)
def test_no_rank_stays_no_rank(seed):
    net = random_net([20, 30, 30, 30, 15], seed=seed)
    X = gaussian(80, 20, seed=seed + 5)
    verdict = bottleneck_rank(net.trace(X)).verdict
    assert bottleneck_rank(permuted(net, seed).trace(X)).verdict == verdict
    assert bottleneck_rank(rescaled(net, seed, by="layer").trace(X)).verdict == verdict
    other, Q, _ = turned(net, seed)
    assert bottleneck_rank(other.trace(X @ Q.mT)).verdict == verdict


@given(seeds, slopes, st.floats(-3, 3))
def test_homogeneity(seed, slope, log_scale):
    """Without biases f(cx) = c·f(x) for c > 0, and the Jacobian does not see c."""
    net = random_net([3, 5, 4, 2], slope, 0.0, seed=seed)
    X, c = gaussian(7, 3, seed=seed), 10.0**log_scale
    loose(net(c * X), c * net(X))
    loose(jacobian(net, c * X), jacobian(net, X))
    loose(torch.einsum("nij,nj->ni", jacobian(net, X), X), net(X))  # Euler: Jf(x)·x = f(x)
