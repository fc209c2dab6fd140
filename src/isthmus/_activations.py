"""The piecewise linear activations of any module: seen, or replaced, while its forward pass runs.

σ_a(z) = z for z ≥ 0 and a·z below, written with whatever PyTorch function a module uses for it. Within a
:class:`Activations` they are computed by a function of ours instead: one that records z, one that takes chosen
derivatives at kinks, one that is smooth. Networks of ours and modules of others are treated alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Slope = float | Tensor
#: (number of the activation in the forward pass, z, a) → what stands in the place of σ_a(z).
Replacement = Callable[[int, Tensor, Slope], Tensor]

_RELU = {torch.relu, torch.relu_, Tensor.relu, Tensor.relu_, functional.relu, functional.relu_}
_LEAKY = {functional.leaky_relu, functional.leaky_relu_}
_PRELU = {torch.prelu, Tensor.prelu, functional.prelu}
_CLAMP = {torch.clamp, torch.clamp_, Tensor.clamp, Tensor.clamp_, torch.clamp_min, torch.clamp_min_}
_CLAMP |= {Tensor.clamp_min, Tensor.clamp_min_}


class Activations(TorchFunctionMode):
    """Inside this context every σ_a of a forward pass is computed by ``replacement``; max pooling is left as it is."""

    def __init__(self, replacement: Replacement) -> None:
        super().__init__()
        self.replacement = replacement
        self.count = 0

    def __torch_function__(
        self, function: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Called by PyTorch for every function of tensors."""
        kwargs = kwargs or {}
        found = _piecewise(function, args, kwargs)
        if found is None:
            return function(*args, **kwargs)
        place, self.count = self.count, self.count + 1
        return self.replacement(place, *found)


def _piecewise(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Tensor, Slope] | None:
    """(z, a) if the function is a σ_a with a kink."""
    if function in _RELU:
        return (args[0] if args else kwargs["input"]), 0.0
    if function in _LEAKY:
        a = float(args[1] if len(args) > 1 else kwargs.get("negative_slope", 0.01))
        return None if a == 1.0 else ((args[0] if args else kwargs["input"]), a)
    if function in _PRELU and not args[1].requires_grad:
        Z, a = args[0], args[1]
        return Z, a if a.numel() == 1 or Z.ndim < 2 else a.view(-1, *[1] * (Z.ndim - 2))
    if function in _CLAMP:
        low = args[1] if len(args) > 1 else kwargs.get("min")
        high = args[2] if len(args) > 2 else kwargs.get("max")
        if high is None and isinstance(low, int | float) and low == 0:
            return args[0], 0.0
    return None


def plain(Z: Tensor, a: Slope) -> Tensor:
    """σ_a(Z), entrywise."""
    if isinstance(a, float):
        return torch.relu(Z) if a == 0.0 else functional.leaky_relu(Z, a)
    return torch.where(Z > 0, Z, a * Z)


class Rounding:
    """A parabola in the place of a kink, continuously differentiable and convex.

    Unmoved, σ_a becomes a·z + (1 − a)·s(z) with s(z) = (z + h)²/4h for |z| ≤ h: its slope D = (z + h)/2h, as a share of
    the way from a to 1, is ½ at the kink. Moved to a slope D₀ it is s(z + h(2D₀ − 1)) − hD₀², which at z = 0 has the
    value 0 and the slope D₀: at a minimum of the loss where z = 0 and D = D₀, the kink itself has one.

    Parameters
    ----------
    band : float
        h > 0.
    centres : Tensor, optional
        D₀ for each entry that is moved, (N, …); −1 for those that are not.
    """

    def __init__(self, band: float, centres: Tensor | None = None) -> None:
        self.band, self.centres = band, centres
        self.shift: Tensor | float = 0.0
        self.offset: Tensor | float = 0.0
        if centres is not None:
            moved = centres >= 0.0
            self.shift = torch.where(moved, band * (2.0 * centres - 1.0), torch.zeros_like(centres))
            self.offset = torch.where(moved, band * centres.square(), torch.zeros_like(centres))

    def value(self, Z: Tensor, a: Slope) -> Tensor:
        """The rounded σ_a(z)."""
        t = (Z + (self.shift + self.band)).clamp_min(0.0)
        q = t.clamp_max(2.0 * self.band)
        rounded = q * q / (4.0 * self.band) + (t - q) - self.offset
        return rounded if isinstance(a, float) and a == 0.0 else a * Z + (1.0 - a) * rounded

    def of_rows(self, rows: slice) -> Rounding:
        """The same for some of the samples."""
        return self if self.centres is None else Rounding(self.band, self.centres[rows])

    def share(self, Z: Tensor) -> Tensor:
        """The share D in [0, 1] of the linear branch at each entry: σ' = a + (1 − a)·D."""
        return ((Z + (self.shift + self.band)) / (2.0 * self.band)).clamp(0.0, 1.0)

    def moved(self, Z: Tensor, band: float) -> Rounding:
        """The same with another half-width, and every entry's parabola moved to where it has the entry's slope."""
        return Rounding(band, self.share(Z))


@torch.no_grad()
def preactivations(net: nn.Module, X: Tensor, rounded: Sequence[Rounding] | None = None) -> list[Tensor]:
    """The arguments of every σ_a of the forward pass, in order; also where kinks are ``rounded``."""
    found: list[Tensor] = []

    def record(place: int, Z: Tensor, a: Slope) -> Tensor:
        found.append(Z.detach().clone())
        return plain(Z, a) if rounded is None else rounded[place].value(Z, a)

    with Activations(record):
        net(X)
    return found


def scales_of(Zs: Iterable[Tensor]) -> list[float]:
    """Root mean square of each; 1 where all is zero."""
    return [float(Z.double().square().mean().sqrt()) or 1.0 for Z in Zs]


def idle_centres(Z: Tensor, band: float) -> Tensor | None:
    """Centres that keep dead neurons dead: those all of whose entries are within the band.

    Unmoved, the parabola would make linear neurons of them, which the ridge must remove again in every band.
    """
    idle = Z.abs().movedim(1, 0).flatten(1).amax(1) <= band if Z.ndim > 1 else torch.zeros(0, dtype=torch.bool)
    if not bool(idle.any()):
        return None
    centres = torch.where(idle, 0.0, -1.0).to(Z).view(-1, *[1] * (Z.ndim - 2))
    return centres.expand_as(Z).contiguous()


class Rounded(nn.Module):
    """A module with the kinks of its activations rounded off."""

    def __init__(self, net: nn.Module, rounded: Sequence[Rounding]) -> None:
        super().__init__()
        self.net, self.rounded = net, list(rounded)

    def forward(self, X: Tensor) -> Tensor:
        """Outputs of the network with rounded kinks."""
        with Activations(lambda place, Z, a: self.rounded[place].value(Z, a)):
            return self.net(X)
