"""Networks that meet the hypotheses of the claims of features2022: random ones, and stationary points written down."""

from __future__ import annotations

import torch

from isthmus.claims.base import Subject
from isthmus.claims.samples import gaussian_inputs, random_subject
from isthmus.constructions import linear_network, minimal_network, saddle
from isthmus.networks import FullyConnected


def wide_net() -> Subject:
    """Depth 3, more neurons and inputs than samples: useless weights at every layer."""
    subject = random_subject([7, 9, 8, 3], samples=5, seed=61)
    return subject.replace(Y=gaussian_inputs(5, 3, 62), ridge=0.05)


def leaky_wide_net() -> Subject:
    """Slope 0.2, depth 3."""
    subject = random_subject([6, 8, 8, 2], slope=0.2, samples=6, seed=63)
    return subject.replace(Y=gaussian_inputs(6, 2, 64), ridge=0.1)


def deficient_layer() -> Subject:
    """Five neurons for nine samples: representations that their activations cannot give exist next to those they do."""
    subject = random_subject([4, 5, 2], samples=9, seed=65)
    return subject.replace(Y=gaussian_inputs(9, 2, 66), ridge=0.1)


def balanced_forces(correlation: float = 0.3, ridge: float = 0.05) -> Subject:
    """A ReLU network (3, 6, 3) at an exact stationary point, off kinks, all kernels invertible.

    Inputs with K_0 = (1+c)I − c11ᵀ, and a neuron z = r·K_0·1_A for every A of one or two samples: positive on A and
    negative off it. Then Z_1K_0⁻¹ = r·1_A vanishes where σ̇ does, and on A it is σ(z)H for
    H = (1−η)I + η11ᵀ with η = c/(1−c), because (1+η)(1−c) = 1: attraction and repulsion cancel for K_2 = K^σ_1HK^σ_1,
    whatever the lengths r. Targets Z_2 + λNZ_2(K^σ_1)⁻¹ make the outputs stationary too.
    """
    eye, ones = torch.eye(3, dtype=torch.float64), torch.ones(3, 3, dtype=torch.float64)
    K_0 = (1.0 + correlation) * eye - correlation * ones
    sets = torch.cat([eye, 1.0 - eye])
    Z_1 = torch.tensor([1.0, 0.8, 1.2, 0.7, 0.9, 0.5], dtype=torch.float64)[:, None] * (sets @ K_0)
    S = torch.relu(Z_1)
    K_sigma = S.mT @ S
    eta = correlation / (1.0 - correlation)
    values, Q = torch.linalg.eigh((1.0 - eta) * eye + eta * ones)
    Z_2 = (Q * values.sqrt()) @ Q.mT @ K_sigma
    values, Q = torch.linalg.eigh(K_0)
    X = (Q * values.sqrt()) @ Q.mT
    Y = (Z_2 + 3 * ridge * torch.linalg.solve(K_sigma, Z_2.mT).mT).mT
    net = minimal_network([Z_1, Z_2], X, bias=0.0).requires_grad_(False)
    return Subject(net, X, Y, ridge)


def linear_minimum(depth: int = 3, samples: int = 4, ridge: float = 0.05) -> Subject:
    """A deep linear network at its minimum on X = √N·I: its singular values solve s − m + ridge·s^{2/L−1} = 0."""
    M = gaussian_inputs(samples, samples, 67) + 2.0 * torch.eye(samples, dtype=torch.float64)
    U, m, Vh = torch.linalg.svd(M)
    s = m.clone()
    for _ in range(200):
        s = m - ridge * s ** (2.0 / depth - 1.0)
    X = samples**0.5 * torch.eye(samples, dtype=torch.float64)
    net = linear_network((U * s) @ Vh, depth).network.requires_grad_(False)
    return Subject(net, X, X @ M.mT, ridge)


def linear_on_few() -> Subject:
    """The least linear network of depth 4 of a map that vanishes off the span of three inputs in five dimensions."""
    X = gaussian_inputs(3, 5, 68)
    A = gaussian_inputs(4, 3, 69) @ torch.linalg.pinv(X).mT
    return Subject(linear_network(A, 4).network.requires_grad_(False), X)


def saddle_point() -> Subject:
    """Prop. 19's weights, in the middle of their segment of local minima."""
    made = saddle(0.2)
    return Subject(made.network, made.X, made.Y, made.ridge)


def diagonal_minimum(ridge: float = 0.05) -> Subject:
    """A ReLU network at its global minimum, with one neuron split in two and one dead.

    On X = I without bias the loss is at least ‖Z_2 − Y‖²/N + 2λ‖Z_2‖_*; for a diagonal Y its minimum, the
    soft-thresholding of Y by λN, is attained by diagonal weights.
    """
    X = torch.eye(3, dtype=torch.float64)
    Y = torch.diag(torch.tensor([1.5, 1.0, 0.7], dtype=torch.float64))
    root = (Y.diagonal() - 3 * ridge).sqrt()
    split = torch.zeros(5, 3, dtype=torch.float64)
    split[0, 0], split[1, 0] = 0.6 * root[0], 0.8 * root[0]
    split[2, 1], split[3, 2] = root[1], root[2]
    net = FullyConnected.from_weights([split, split.mT], bias=0.0).requires_grad_(False)
    return Subject(net, X, Y, ridge)
