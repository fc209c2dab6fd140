"""The trace of a convolutional network: representations as channels × positions, and as the papers' columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus._checks import check_integer


@dataclass(frozen=True, eq=False)
class ConvolutionalTrace:
    """Filters and representations of a :class:`~isthmus.ConvolutionalNet` on N samples.

    A representation is an image with c_ℓ channels: (N, c_ℓ, n, …), samples first. There are two ways to read it as a
    matrix. :meth:`Z` has one column for each sample, its rows channels × positions: what a fully connected network
    would have. :meth:`pixels` has one column for each sample and position, its rows channels.

    Attributes
    ----------
    filters : tuple of Tensor (c_ℓ, c_{ℓ-1}, k, …)
        ``filters[ell - 1]`` is W_ℓ.
    bs : tuple of Tensor (c_ℓ,)
        Empty when ``bias == 0``.
    preactivations : tuple of Tensor (N, c_ℓ, n, …)
        ``preactivations[ell - 1]`` is α̃_ℓ, ℓ = 1 … L.
    activations : tuple of Tensor (N, c_ℓ, n, …)
        ``activations[ell]`` is α_ℓ; ``activations[0]`` are the inputs. α_L is there when a head follows.
    outputs : Tensor (N, d_out)
        As rows.
    size : tuple of int
        n, … of the images.
    slope, bias : float
    head, head_weight, head_bias
        Of the network; None without a head.
    source_eps : float
        Unit round-off of the dtype the network was stored in.
    """

    filters: tuple[Tensor, ...]
    bs: tuple[Tensor, ...]
    preactivations: tuple[Tensor, ...]
    activations: tuple[Tensor, ...]
    outputs: Tensor
    size: tuple[int, ...]
    slope: float
    bias: float
    head: str | None = None
    head_weight: Tensor | None = None
    head_bias: Tensor | None = None
    source_eps: float = torch.finfo(torch.float64).eps

    @property
    def depth(self) -> int:
        """Number of layers with weights: L filters, and the head if there is one."""
        return len(self.filters) + (self.head is not None)

    @property
    def samples(self) -> int:
        """N, the number of samples."""
        return len(self.activations[0])

    def Z(self, ell: int) -> Tensor:
        """Z_ℓ = α̃_ℓ(X) as the papers write it: (c_ℓ·positions, N), samples as columns; Z_0 is the input."""
        return self._image("Z", ell).flatten(1).mT

    def pixels(self, ell: int) -> Tensor:
        """The same with positions counting as samples: (c_ℓ, N·positions)."""
        return self._image("pixels", ell).transpose(0, 1).flatten(1)

    def _image(self, name: str, ell: int) -> Tensor:
        check_integer(f"ConvolutionalTrace.{name}", "ell", ell, low=0, high=len(self.filters))
        return self.activations[0] if ell == 0 else self.preactivations[ell - 1]
