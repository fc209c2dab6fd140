"""Convolutional networks for tests: every option, with biases that are not zero."""

from __future__ import annotations

from typing import Any

import torch

from isthmus import ConvolutionalNet
from tools import generator

OPTIONS: list[dict[str, Any]] = [
    {},
    {"size": (5,), "channels": [2, 3, 2]},
    {"size": (6,), "channels": [1, 4, 4, 1], "filter_size": [2, 3, None]},
    {"size": (4, 5), "filter_size": 4, "slope": 0.2},
    {"size": 5, "filter_size": 2, "slope": 1.0, "bias": 0.0},
    {"bias": 0.5, "head": "mean", "outputs": 4},
    {"head": "flatten", "outputs": 2, "bias": 0.0, "slope": 0.1},
    {"size": (6,), "head": "mean", "outputs": 3, "filter_size": 3, "slope": -1.0},
    {"size": (7,), "channels": [1, 2], "head": "flatten", "outputs": 1},
    {"size": 1},
]


def conv(*, seed: int = 0, dtype: torch.dtype = torch.float64, **options: Any) -> ConvolutionalNet:
    """A random network."""
    source = generator(seed)
    settings = {"channels": [2, 3, 2, 1], "size": 4, "dtype": torch.float64, "generator": source, **options}
    net = ConvolutionalNet(**settings)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if "bias" in name:
                parameter.normal_(0.0, 0.3, generator=source)
    return net.to(dtype)
