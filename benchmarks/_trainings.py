"""Twelve trainings, fixed: networks of every family, from 400 to 90,000 parameters, that should end at rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from isthmus import ConvolutionalNet, FullyConnected, LeakyResNet
from isthmus.problems import planted_frequencies, sectors, teacher


@dataclass(frozen=True)
class Training:
    """A network, its data, and how it is trained."""

    name: str
    make: Callable[[], tuple[nn.Module, Tensor, Tensor]]
    ridge: float
    loss: str = "mse"


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _chain(
    inputs: int, width: int, depth: int, rank: int, samples: int, *, bias: float = 1.0, slope: float = 0.0
) -> Callable[[], tuple[nn.Module, Tensor, Tensor]]:
    def make() -> tuple[nn.Module, Tensor, Tensor]:
        task = teacher(d_in=inputs, d_out=inputs, rank=rank, samples=samples, seed=0)
        dims = [inputs, *[width] * (depth - 1), inputs]
        net = FullyConnected(dims, slope, bias, generator=_generator())
        return net, torch.tensor(task.X), torch.tensor(task.Y)

    return make


def _classes() -> tuple[nn.Module, Tensor, Tensor]:
    task = sectors(classes=4, samples=300, seed=0)
    net = FullyConnected([task.X.shape[1], 20, 20, 20, 4], generator=_generator())
    return net, torch.tensor(task.X), torch.tensor(np.asarray(task.labels))


def _leaky() -> tuple[nn.Module, Tensor, Tensor]:
    task = teacher(d_in=6, d_out=6, rank=2, samples=200, seed=0)
    net = LeakyResNet(6, 6, width=14, layers=10, effective_depth=5.0, generator=_generator())
    return net, torch.tensor(task.X), torch.tensor(task.Y)


def _convolutional() -> tuple[nn.Module, Tensor, Tensor]:
    task = planted_frequencies(samples=200, seed=0)
    net = ConvolutionalNet([1, 6, 6, 1], (task.d_in,), 5, generator=_generator())
    return net, torch.tensor(task.X), torch.tensor(task.Y)


TRAININGS = (
    Training("shallow, rank 1", _chain(6, 16, 3, 1, 300), 1e-3),
    Training("five layers, rank 2", _chain(8, 16, 5, 2, 200), 1e-3),
    Training("ten layers, rank 2", _chain(8, 16, 10, 2, 200), 1e-3),
    Training("six layers of 30, rank 3", _chain(10, 30, 6, 3, 400), 5e-4),
    Training("no bias, rank 4", _chain(12, 40, 4, 4, 500, bias=0.0), 1e-3),
    Training("four classes", _classes, 1e-3, "cross_entropy"),
    Training("linear, rank 3", _chain(10, 20, 6, 3, 300, slope=1.0), 1e-3),
    Training("leaky ResNet, rank 2", _leaky, 1e-3),
    Training("convolutional", _convolutional, 1e-3),
    Training("seven layers of 60, rank 5", _chain(20, 60, 7, 5, 1000), 1e-3),
    Training("five layers of 100, no bias, rank 3", _chain(20, 100, 5, 3, 1000, bias=0.0), 1e-3),
    Training("ten layers of 100, rank 5", _chain(50, 100, 10, 5, 2000), 1e-3),
)
