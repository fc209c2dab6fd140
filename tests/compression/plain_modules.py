"""Modules as people write them, in plain PyTorch: a ResNet-18, small Transformers, a U-Net."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """Two convolutions around which the input goes."""

    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet18(nn.Module):
    """As in the paper; of width 64 there."""

    def __init__(self, width=64, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        for k in range(1, 5):
            first = Block(widths[k - 1], widths[k], 1 if k == 1 else 2)
            setattr(self, f"layer{k}", nn.Sequential(first, Block(widths[k], widths[k])))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))

    def blocks(self):
        """All eight."""
        return [block for k in range(1, 5) for block in getattr(self, f"layer{k}")]


class ViT(nn.Module):
    """Patches, a class token, positions, PyTorch's own encoder."""

    def __init__(self, width=24, heads=2, layers=2, **options):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, width) / 10)
        self.places = nn.Parameter(torch.randn(1, 17, width) / 10)
        options = {"batch_first": True, "dropout": 0.1, **options}
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, **options)
        nested = {"enable_nested_tensor": False}
        self.encoder = nn.TransformerEncoder(layer, layers, **nested)
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.encoder(x)[:, 0])


class SelfAttention(nn.Module):
    """Separate projections, as in BERT; what is optional makes it impossible to trace."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, hidden, mask=None):
        B, T, E = hidden.shape
        q, k, v = (one(hidden).view(B, T, self.heads, -1).transpose(1, 2) for one in (self.query, self.key, self.value))
        if mask is not None and bool((~mask).any()):
            mask = torch.zeros(B, 1, 1, T, dtype=hidden.dtype).masked_fill(~mask[:, None, None], -1e9)
        else:
            mask = None
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(mixed.transpose(1, 2).reshape(B, T, E))


class Bert(nn.Module):
    """A sentence encoder called by keywords, that returns a dict."""

    def __init__(self, words=50, width=24, heads=2, layers=2):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.attention = nn.ModuleList(SelfAttention(width, heads) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(3 * width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.decoder = nn.Linear(width, words)
        self.decoder.weight = self.words.weight  # tied

    def forward(self, input_ids, attention_mask=None):
        x = self.words(input_ids)
        for k, (attention, up, down) in enumerate(zip(self.attention, self.up, self.down)):
            x = self.norms[2 * k](x + attention(x, attention_mask))
            x = self.norms[2 * k + 1](x + down(F.gelu(up(x))))
        return {"last_hidden_state": x, "logits": self.decoder(x)}


class UNet(nn.Module):
    """Down, up again with a transposed convolution, and a skip connection by concatenation."""

    def __init__(self, width=8):
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.two = nn.Sequential(nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.three = nn.Sequential(nn.Conv2d(2 * width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        a = self.one(x)
        b = self.two(F.max_pool2d(a, 2))
        return self.out(self.three(torch.cat([F.relu(self.up(b)), a], 1)))


def randomised(net, seed=0):
    """With weights, affine parameters and running statistics of every norm drawn from the seed."""
    draw = torch.Generator().manual_seed(seed)

    def normal(T, scale):
        return scale * torch.randn(T.shape, dtype=torch.float64, generator=draw).to(T.dtype)

    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(normal(p, 0.2) if p.ndim == 1 or "token" in name else normal(p, (2 / p[0].numel()) ** 0.5))
        for part in net.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.weight.copy_(1 + normal(part.weight, 0.2))
                part.running_mean.copy_(normal(part.running_mean, 0.2))
                part.running_var.copy_(0.5 + normal(part.running_var, 0.5).abs())
    return net


def plant_channels(conv, norm, *, dead=(), copies=()):
    """Channels without input and with the constants given, and copies of others: (place, constant), (from, to)."""
    with torch.no_grad():
        for place, constant in dead:
            conv.weight[place] = 0
            if conv.bias is not None:
                conv.bias[place] = 0
            norm.bias[place] = constant
            norm.running_mean[place] = 0
        for here, there in copies:
            conv.weight[there] = conv.weight[here]
            if conv.bias is not None:
                conv.bias[there] = conv.bias[here]
            for name in ("weight", "bias", "running_mean", "running_var"):
                getattr(norm, name)[there] = getattr(norm, name)[here]


def low_rank_(weight, rank, seed=0):
    """A weight of this rank, of the size it had."""
    draw = torch.Generator().manual_seed(seed)
    rows = weight.flatten(1)
    A, B = (
        torch.randn(*shape, dtype=torch.float64, generator=draw) for shape in ((len(rows), rank), (rank, rows.shape[1]))
    )
    with torch.no_grad():
        weight.copy_((A @ B / (rank * rows.shape[1]) ** 0.5).reshape(weight.shape))
