"""Single layers as PyTorch modules: copies of weights, and activations of which some neurons are free."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isthmus._checks import check_integer, check_number
from isthmus.trace import activate


def partly_linear(X: Tensor, linear: int, slope: float) -> Tensor:
    """σ_a on all of the last axis but the first ``linear`` entries."""
    if linear == 0:
        return activate(X, slope)
    if linear >= X.shape[-1]:
        return X
    return torch.cat([X[..., :linear], activate(X[..., linear:], slope)], -1)


class PartlyLinear(nn.Module):
    """σ_a on all features but the first ``linear``, which pass unchanged.

    Parameters
    ----------
    linear : int
        Number of leading features without activation.
    slope : float, default 0.0
        a of σ_a.
    """

    def __init__(self, linear: int, slope: float = 0.0) -> None:
        super().__init__()
        self.linear = check_integer("PartlyLinear", "linear", linear, low=0)
        self.slope = check_number("PartlyLinear", "slope", slope, low=-1.0, high=1.0)

    def forward(self, X: Tensor) -> Tensor:
        """The same shape, (..., n)."""
        return partly_linear(X, self.linear, self.slope)

    def extra_repr(self) -> str:
        """Shown by ``print``."""
        return f"linear={self.linear}, slope={self.slope:g}"


def linear_module(W: Tensor, b: Tensor | None, bias: float = 1.0) -> nn.Linear:
    """``nn.Linear`` with copies of W and βb."""
    made = nn.Linear(W.shape[1], W.shape[0], bias=b is not None, dtype=W.dtype, device=W.device)
    with torch.no_grad():
        made.weight.copy_(W)
        if b is not None:
            made.bias.copy_(bias * b)
    return made.requires_grad_(W.requires_grad)


def activation_modules(linear: int, slope: float, width: int) -> list[nn.Module]:
    """PyTorch's own activation where all neurons have it, ours where some do, none where none does."""
    if linear >= width or slope == 1.0:
        return []
    if linear:
        return [PartlyLinear(linear, slope)]
    return [nn.ReLU() if slope == 0.0 else nn.LeakyReLU(slope)]
