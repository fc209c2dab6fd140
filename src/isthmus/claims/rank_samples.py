"""Subjects that meet the hypotheses of the claims of rank2023 about families, fits and functions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isthmus.claims.base import Subject
from isthmus.claims.samples import gaussian_inputs
from isthmus.constructions import (
    Construction,
    interpolant_1d,
    linear_network,
    positive_linear_network,
    rank_one,
    three_part,
)
from isthmus.networks import FullyConnected


def uniform_inputs(samples: int, columns: int, seed: int) -> Tensor:
    """Rows uniform in [0, 1]^columns, float64."""
    return torch.rand(samples, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def positive_net(dims: list[int], seed: int) -> FullyConnected:
    """A random ReLU network whose outputs are positive on positive inputs: the last layer's entries are."""
    net = FullyConnected(dims, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    net.weights[-1].data.abs_()
    return net


def family_of_rank(k: int, depths: list[int], *, d: int = 4, seed: int = 0) -> list[Construction]:
    """One function of ℝ^d through k dimensions, positive on positive inputs, at several depths."""
    g, h = positive_net([d, 8, k], seed), positive_net([k, 8, d], seed + 1)
    return [three_part(g, h, depth) for depth in depths]


def rank_two_family() -> Subject:
    """ReLU, rank 2 in ℝ⁴, depths 6 to 96."""
    family = family_of_rank(2, [6, 8, 12, 16, 24, 48, 96], seed=2)
    return Subject(family[0].network, uniform_inputs(64, 4, 1), known={"family": family})


def two_families() -> Subject:
    """Functions of rank 1 and 2 in ℝ⁴, and a linear map of rank 2."""
    depths = [6, 8, 12, 24, 48]
    f, g = family_of_rank(1, depths, seed=4), family_of_rank(2, depths, seed=2)
    A = gaussian_inputs(4, 2, 3).abs() @ gaussian_inputs(2, 4, 4).abs()
    # Its frame need not be positive on the samples: linear networks are valid everywhere.
    affine = [linear_network(A, depth) for depth in (50, 100, 200, 400, 800)]
    return Subject(f[0].network, uniform_inputs(64, 4, 1), known={"f": f, "g": g, "affine": (A, affine)})


def nearly_rank_one_family() -> Subject:
    """W_ℓ = diag(1, √(C/L)) at depths 9 to 49, C = 6: balanced, ‖W‖² = L + C, and two dimensions that fade."""
    C, depths = 6.0, [9, 16, 25, 36, 49]
    family = [
        FullyConnected.from_weights([torch.diag(torch.tensor([1.0, math.sqrt(C / L)], dtype=torch.float64))] * L)
        for L in depths
    ]
    return Subject(family[-1], uniform_inputs(64, 2, 1), known={"family": family, "C": C})


def fitted_by_rank_one() -> Subject:
    """Twelve points of a map of the plane, fitted by a network of bottleneck rank 1 and depth 5."""
    X = gaussian_inputs(12, 2, 1)
    Y = torch.stack([X[:, 0], (X[:, 0] + X[:, 1]).abs()], 1)
    return Subject(rank_one(X, Y, 5).network, X, Y, 0.02)


def paths_through_surfaces() -> Subject:
    """A rank-1 fit, and points drawn on closed surfaces of dimension 2 and 3, which have no border to feel."""
    sizes, growth = [n for n in (60, 120, 240, 480) for _ in range(3)], {}
    for k in (2, 3):
        drawn = gaussian_inputs(sum(sizes), k + 1, k)
        growth[k] = [points / points.norm(dim=1, keepdim=True) for points in drawn.split(sizes)]
    return fitted_by_rank_one().replace(known={"path growth": growth})


def linear_global_minimum() -> Subject:
    """A linear network of depth 6 at the global minimum of cost + ridge·‖θ‖², in closed form, and its truth.

    With XᵀX = N the loss over A is Σ(s_i − m_i)² + ridge·L·Σs_i^{2/L}, m_i the singular values of the true map: one
    equation for each, s + ridge·s^{2/L−1} = m, by iteration from s = m.
    """
    N, L, ridge = 40, 6, 0.01
    X = torch.linalg.qr(gaussian_inputs(N, 4, 5)).Q * N**0.5
    M = gaussian_inputs(3, 2, 6) @ gaussian_inputs(2, 4, 7)
    U, m, Vh = torch.linalg.svd(M, full_matrices=False)
    U, m, Vh = U[:, :2], m[:2], Vh[:2]
    s = m.clone()
    for _ in range(200):
        s = m - ridge * s.pow(2 / L - 1)
    least = linear_network((U * s) @ Vh, L).network
    return Subject(least, X, X @ M.mT, ridge, known={"truth": linear_network(M, L)})


def plane_to_learn() -> Subject:
    """300 points of the unit square and a linear map of rank 2 to ℝ³: depth 4, well above the threshold."""
    A = torch.tensor([[1.0, 0.2], [0.1, 1.0], [0.3, 0.3]], dtype=torch.float64)
    X = uniform_inputs(300, 2, 3)
    truth = positive_linear_network(A, 4)
    return Subject(truth.network, X, X @ A.mT, known={"truth": truth, "independent": True})


def noisy_curve() -> Subject:
    """A task of rank 1 from ℝ⁵ to ℝ⁴ with noise; the network is not looked at."""
    X = gaussian_inputs(40, 5, 1)
    t = X[:, :1]
    Y = torch.cat([t, t.sin(), t.cos(), t.abs()], 1) + 0.05 * gaussian_inputs(40, 4, 2)
    return Subject(FullyConnected([5, 4, 4], dtype=torch.float64, generator=_seed(0)), X, Y, known={"noise": 0.05})


def curved_stripes() -> Subject:
    """Four classes in the plane told apart by one bent coordinate g: h∘g with scores of each class in turn."""
    g = FullyConnected([2, 6, 1], dtype=torch.float64, generator=_seed(5))
    X = 4 * uniform_inputs(200, 2, 2) - 2
    with torch.no_grad():
        values = g(X)[:, 0]
    low, high = float(values.min()), float(values.max())
    peaks = torch.linspace(low, high, 4, dtype=torch.float64)
    h = interpolant_1d(peaks, torch.eye(4, dtype=torch.float64))
    labels = (values[:, None] - peaks).abs().argmin(1)
    return Subject(three_part(g, h, 7, shift="least", X=X).network, X, labels, loss="cross_entropy")


def two_dimensional_autoencoder() -> Subject:
    """f(x) = (x_1, φ(x_1), x_3, ψ(x_3)) in ℝ⁴: the identity on a bent surface, an oblique projection near it."""
    knots = torch.tensor([0.0, 0.3, 0.5, 1.0], dtype=torch.float64)
    heights = torch.tensor([[0.0, 0.6, 0.1, 0.9], [0.5, 0.2, 0.8, 0.4]], dtype=torch.float64)
    parts = [interpolant_1d(knots, torch.stack([knots, y], 1)).network for y in heights]
    read = torch.zeros(2, 4, dtype=torch.float64)
    read[0, 0] = read[1, 2] = 1.0
    g = FullyConnected.from_weights([read])
    Ws = [torch.block_diag(*(part.Ws[ell].detach() for part in parts)) for ell in range(2)]
    bs = [torch.cat([part.bs[ell].detach() for part in parts]) for ell in range(2)]
    z = uniform_inputs(40, 2, 4)
    X, tangents = torch.zeros(40, 4, dtype=torch.float64), torch.zeros(40, 4, 2, dtype=torch.float64)
    for i, y in enumerate(heights):
        piece = torch.searchsorted(knots, z[:, i].contiguous()) - 1
        slope = y.diff() / knots.diff()
        X[:, 2 * i], X[:, 2 * i + 1] = z[:, i], y[piece] + slope[piece] * (z[:, i] - knots[piece])
        tangents[:, 2 * i, i], tangents[:, 2 * i + 1, i] = 1.0, slope[piece]
    net = three_part(g, FullyConnected.from_weights(Ws, bs), 8).network
    return Subject(net, X, X, known={"tangents": tangents})


def cross_function() -> Subject:
    """f(x) = min(|x_0|, |x_1|)·(sign x_0, sign x_1) as a ReLU network of depth 4, without biases.

    f_0 = m − σ(2m − σ(x_0 + m)) with m = |x_1| clips x_0 to [−m, m]; f_1 likewise.
    """
    split = torch.tensor([[1, 0], [-1, 0], [0, 1], [0, -1]])
    # From x_0^±, x_1^±: σ(x_0 + m_1), m_1, σ(x_1 + m_0), m_0; then σ(2m_1 − …), m_1, σ(2m_0 − …), m_0.
    raise_ = torch.tensor([[1, -1, 1, 1], [0, 0, 1, 1], [1, 1, 1, -1], [1, 1, 0, 0]])
    cut = torch.tensor([[-1, 2, 0, 0], [0, 1, 0, 0], [0, 0, -1, 2], [0, 0, 0, 1]])
    join = torch.tensor([[-1, 1, 0, 0], [0, 0, -1, 1]])
    net = FullyConnected.from_weights([W.double() for W in (split, raise_, cut, join)])
    return Subject(net, 2 * uniform_inputs(200, 2, 1) - 1, known={"skeleton": "cross"})


def _seed(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
