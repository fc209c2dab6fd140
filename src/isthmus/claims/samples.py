"""Networks that meet the hypotheses of the claims: random, balanced, or written down."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.claims.base import Subject
from isthmus.compression import rebalance
from isthmus.constructions import positive_linear_network
from isthmus.networks import FullyConnected


def gaussian_inputs(samples: int, columns: int, seed: int) -> Tensor:
    """Standard normal rows, float64."""
    return torch.randn(samples, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def random_subject(
    dims: list[int], *, slope: float = 0.0, bias: float = 1.0, scale: float = 1.0, samples: int = 32, seed: int = 0
) -> Subject:
    """A random network with biases and standard normal inputs."""
    source = torch.Generator().manual_seed(seed)
    net = FullyConnected(dims, slope, bias, init_scale=scale, dtype=torch.float64, generator=source)
    if net.bs:
        for b in net.biases:
            b.data = 0.3 * torch.randn(b.shape, dtype=torch.float64, generator=source)
    return Subject(net, gaussian_inputs(samples, dims[0], seed + 1))


def relu_random_net() -> Subject:
    """ReLU, depth 5, biases."""
    return random_subject([6, 12, 12, 12, 12, 5], seed=1)


def leaky_random_net() -> Subject:
    """Slope 0.3, depth 5, biases."""
    return random_subject([6, 12, 12, 12, 12, 5], slope=0.3, seed=2)


def balanced_net() -> Subject:
    """A deep ReLU network of a linear map of rank 2, of nearly the least norm: balanced, and its bounds are tight."""
    A = torch.zeros(5, 6, dtype=torch.float64)
    A[0, 0], A[1, 1] = 1.3, 0.8
    made = positive_linear_network(A, 16)
    return Subject(rebalance(made.network).network, gaussian_inputs(32, 6, 3).abs(), known={"k": 2})


def steep_relu_net() -> Subject:
    """A ReLU network of depth 4 with samples near each other, so that some share their activation pattern."""
    subject = random_subject([4, 10, 10, 10, 3], seed=4)
    near = subject.X[:1] + 0.01 * gaussian_inputs(len(subject.X), 4, 9)
    return subject.replace(X=torch.cat([near[:16], subject.X[:16]]))
