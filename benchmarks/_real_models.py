"""Networks of the sizes that people have, with random weights from their configurations, and data of their kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class UNet(nn.Module):
    """Two levels with skip connections, 16 and 32 channels."""

    def __init__(self) -> None:
        super().__init__()

        def twice(inside: int, outside: int) -> nn.Sequential:
            first, second = nn.Conv2d(inside, outside, 3, padding=1), nn.Conv2d(outside, outside, 3, padding=1)
            return nn.Sequential(first, nn.BatchNorm2d(outside), nn.ReLU(True), second, nn.ReLU(True))

        self.down1, self.down2, self.middle = twice(1, 16), twice(16, 32), twice(32, 64)
        self.pool = nn.MaxPool2d(2)
        self.up2, self.up1 = nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)
        self.join2, self.join1, self.out = twice(64, 32), twice(32, 16), nn.Conv2d(16, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, 1, h, w) → the same shape."""
        one = self.down1(x)
        two = self.down2(self.pool(one))
        up = self.join2(torch.cat([two, self.up2(self.middle(self.pool(two)))], 1))
        return self.out(self.join1(torch.cat([one, self.up1(up)], 1)))


def images(count: int, channels: int, size: int) -> Tensor:
    """Smooth random images: white noise that is blurred, plus a tenth of it."""
    noise = torch.randn(count, channels, size, size, generator=torch.Generator().manual_seed(0))
    return nn.functional.avg_pool2d(noise, 9, 1, 4) * 9 + 0.1 * noise


def sentences(count: int, length: int, vocabulary: int) -> dict[str, Tensor]:
    """Random tokens with padding behind them, and the mask that says so."""
    source = torch.Generator().manual_seed(0)
    lengths = torch.randint(4, length + 1, (count, 1), generator=source)
    mask = (torch.arange(length) < lengths).long()
    ids = torch.randint(vocabulary, (count, length), generator=source)
    return {"input_ids": ids * mask, "attention_mask": mask}


def resnet18() -> tuple[nn.Module, Any]:
    """ResNet-18 of 1,000 classes, 64 images of 96²."""
    from transformers import ResNetConfig, ResNetForImageClassification

    sizes: dict[str, Any] = {
        "depths": [2, 2, 2, 2],
        "hidden_sizes": [64, 128, 256, 512],
        "embedding_size": 64,
        "num_labels": 1000,
    }
    made = ResNetForImageClassification(ResNetConfig(layer_type="basic", **sizes))
    return made, images(64, 3, 96)


def vit_tiny() -> tuple[nn.Module, Any]:
    """ViT-tiny, patches of 8², 64 images of 64²."""
    from transformers import ViTConfig, ViTForImageClassification

    sizes: dict[str, Any] = {
        "hidden_size": 192,
        "num_hidden_layers": 12,
        "num_attention_heads": 3,
        "intermediate_size": 768,
        "num_labels": 1000,
    }
    config = ViTConfig(image_size=64, patch_size=8, **sizes)
    return ViTForImageClassification(config), images(64, 3, 64)


def sentence_encoder() -> tuple[nn.Module, Any]:
    """MiniLM's configuration, 22 million parameters, 500 sentences of up to 32 tokens."""
    from transformers import BertConfig, BertModel

    sizes: dict[str, Any] = {
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
    }
    return BertModel(BertConfig(**sizes)), sentences(500, 32, 30522)


def gpt2() -> tuple[nn.Module, Any]:
    """GPT-2, 124 million parameters, with its head of 50,257 tokens; 64 texts of 32 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    ids = torch.randint(50257, (64, 32), generator=torch.Generator().manual_seed(0))
    return GPT2LMHeadModel(GPT2Config()), {"input_ids": ids}


def unet() -> tuple[nn.Module, Any]:
    """A toy U-Net, 32 images of 32²."""
    return UNet(), images(32, 1, 32)


#: Name → (what makes the network and its data, seconds and megabytes that a diagnosis may take on two cores).
NETWORKS: dict[str, tuple[Callable[[], tuple[nn.Module, Any]], float, float]] = {
    "ResNet-18": (resnet18, 60.0, 2000.0),
    "ViT-tiny": (vit_tiny, 60.0, 2000.0),
    "sentence encoder": (sentence_encoder, 120.0, 3000.0),
    "GPT-2": (gpt2, 300.0, 6000.0),
    "U-Net": (unet, 15.0, 1000.0),
}
