"""Waists planted in a residual net, a transformer for images and a U-Net are found at their layer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from isthmus.diagnosis import diagnose
from tools import gaussian


class Residual(nn.Module):
    def __init__(self, inside: nn.Module) -> None:
        super().__init__()
        self.inside = inside

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.3 * self.inside(x)


def mixing(width: int) -> Residual:
    return Residual(nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)))


class Waist(nn.Module):
    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Linear(width, rank), nn.Linear(rank, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(self.narrow(x))


class Tokens(nn.Module):
    """A ViT: patches, attention, the mean of the tokens, a waist, outputs."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 24, 4, 4)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(24, 2, 32, batch_first=True), 2)
        self.waist, self.head = Waist(24, rank), nn.Linear(24, 12)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.encoder(self.patches(x).flatten(2).mT)
        return self.head(self.waist(tokens.mean(1)))


class UNet(nn.Module):
    """With a skip connection, and all channels of the image through a waist before it."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.waist = Waist(64, rank)
        self.down, self.middle = nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 12, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(12, 6, 2, 2), nn.Conv2d(12, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = torch.tanh(self.down(self.waist(x.flatten(1)).reshape(x.shape)))
        inner = torch.tanh(self.middle(nn.functional.avg_pool2d(skip, 2)))
        return self.out(torch.cat([skip, self.up(inner)], 1))


def residual_net(rank: int) -> nn.Module:
    before, after = [mixing(16) for _ in range(2)], [mixing(16) for _ in range(2)]
    return nn.Sequential(nn.Linear(12, 16), *before, Waist(16, rank), *after, nn.Linear(16, 12))


@pytest.mark.parametrize(
    ("build", "shape", "at"),
    [
        (residual_net, (12,), "3.narrow"),
        (Tokens, (1, 8, 8), "waist.narrow"),
        (UNet, (1, 8, 8), "waist.narrow"),
    ],
)
def test_a_planted_waist_is_found(build, shape, at):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        module = build(3)
    found = diagnose(module, gaussian(60, *shape, dtype=torch.float32))
    assert (found.verdict, found.rank) == ("determined", 3), found.isthmus.reasons
    assert at in found.isthmus.layers
