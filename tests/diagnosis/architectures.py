"""Small real architectures for the tests of the diagnosis: each a function of a seed to (module, X), both float32.

They come as a user has them: in training mode, batch-norm statistics moved by data, biases not zero.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tools import SEED, gaussian


def _made(build: Callable[[], nn.Module], seed: int, *warm_up: Tensor) -> nn.Module:
    """The module with its own random weights; the global generator stays where it was."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1000 * SEED + seed)
        module = build()
        for name, parameter in module.named_parameters():
            # A TransformerEncoder starts with copies of one layer, norms start as the identity: tell them apart.
            if "bias" in name or "norm" in name or "layers." in name:
                parameter += 0.1 * torch.randn_like(parameter)
        for X in warm_up:
            module(X)
    return module


def mlp(seed: int = 0) -> tuple[nn.Module, Tensor]:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))

    return _made(build, seed), gaussian(40, 8, seed=seed, dtype=torch.float32)


class Block(nn.Module):
    """Two convolutions around a skip, everything that can be in place is."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.short = nn.Conv2d(inside, outside, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        out += self.short(x)
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.stages = nn.Sequential(Block(8, 8, 1), Block(8, 12, 2))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.stages(self.stem(x))).flatten(1))


def resnet(seed: int = 0) -> tuple[nn.Module, Tensor]:
    X = gaussian(24, 3, 8, 8, seed=seed, dtype=torch.float32)
    return _made(ResNet, seed, 2 * X + 1, X), X


class TokenClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.position = nn.Parameter(torch.zeros(1, 6, 16))
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
        self.head = nn.Linear(16, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(ids) + self.position).mean(1))


def transformer(seed: int = 0) -> tuple[nn.Module, Tensor]:
    source = torch.Generator().manual_seed(1000 * SEED + seed)
    return _made(TokenClassifier, seed), torch.randint(20, (30, 6), generator=source)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(inplace=True))
        self.pool = nn.MaxPool2d(2)
        self.middle = nn.Sequential(nn.Conv2d(6, 12, 3, padding=1), nn.GroupNorm(3, 12), nn.ReLU(inplace=True))
        self.up = nn.ConvTranspose2d(12, 6, 2, 2)
        self.out = nn.Conv2d(12, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.down(x)
        return self.out(torch.cat([skip, self.up(self.middle(self.pool(skip)))], 1))


def unet(seed: int = 0) -> tuple[nn.Module, Tensor]:
    return _made(UNet, seed), gaussian(10, 1, 8, 8, seed=seed, dtype=torch.float32)


class SeriesClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 10, num_layers=2, batch_first=True, dropout=0.2)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(x)
        return self.head(self.drop(states[:, -1]))


def lstm(seed: int = 0) -> tuple[nn.Module, Tensor]:
    return _made(SeriesClassifier, seed), gaussian(20, 7, 4, seed=seed, dtype=torch.float32)


class Opaque(nn.Module):
    """The same layers in a class that ``from_torch`` does not understand."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


ARCHITECTURES = {"mlp": mlp, "resnet": resnet, "transformer": transformer, "unet": unet, "lstm": lstm}
