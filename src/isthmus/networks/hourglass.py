"""A network with a narrow linear layer in the middle: encoder g, waist of k coordinates, decoder h."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from isthmus._checks import fail
from isthmus.networks.fully_connected import FullyConnected
from isthmus.trace import activate


class Hourglass(nn.Module):
    """f = h∘g through R^k: two fully connected networks, g: R^{d_in} → R^k and h: R^k → R^{d_out}.

    The waist z = g(x) is linear (no activation), so nothing but the number of coordinates limits what passes. Whatever
    its weights, the bottleneck rank of f is at most k.

    Parameters
    ----------
    encoder, decoder : FullyConnected
        Copied. Of one slope, amount of bias and dtype; ``encoder`` ends where ``decoder`` begins.

    Notes
    -----
    Parameters are laid out as in :class:`FullyConnected`: W_1 … W_L, b_1 … b_L.
    """

    def __init__(self, encoder: FullyConnected, decoder: FullyConnected) -> None:
        super().__init__()
        who = "Hourglass"
        if encoder.dims[-1] != decoder.dims[0]:
            must = f"`decoder` must have {encoder.dims[-1]} inputs, one for each output of `encoder`"
            fail(who, must, decoder.dims[0], "Give both the same waist.")
        kinds = [(net.slope, net.bias, net.weights[0].dtype) for net in (encoder, decoder)]
        if kinds[0] != kinds[1]:
            fail(who, "`encoder` and `decoder` must have one slope, bias and dtype", kinds, "Make them alike.")
        self.dims = (*encoder.dims, *decoder.dims[1:])
        self.slope, self.bias, self.waist = encoder.slope, encoder.bias, encoder.depth
        self.weights = nn.ParameterList(nn.Parameter(W.detach().clone()) for W in (*encoder.Ws, *decoder.Ws))
        self.biases = nn.ParameterList(nn.Parameter(b.detach().clone()) for b in (*encoder.bs, *decoder.bs))

    @classmethod
    def fresh(
        cls,
        dims_in: Sequence[int],
        dims_out: Sequence[int],
        *,
        slope: float = 0.0,
        bias: float = 1.0,
        init_scale: float = 1.0,
        dtype: torch.dtype | None = None,
        generator: torch.Generator | None = None,
    ) -> Self:
        """Random initial weights; ``dims_in`` ends and ``dims_out`` begins with k."""
        options: dict[str, Any] = {"init_scale": init_scale, "dtype": dtype, "generator": generator}
        return cls(*(FullyConnected(dims, slope, bias, **options) for dims in (dims_in, dims_out)))

    @property
    def depth(self) -> int:
        """L, the number of weight matrices."""
        return len(self.dims) - 1

    @property
    def rank(self) -> int:
        """k, the width of the waist."""
        return self.dims[self.waist]

    @property
    def slopes(self) -> tuple[float, ...]:
        """The slope below zero at each of the layers 1 … L−1: 1 at the waist."""
        return tuple(1.0 if ell == self.waist else self.slope for ell in range(1, self.depth))

    @property
    def Ws(self) -> tuple[Tensor, ...]:
        """W_1 … W_L: the live parameters."""
        return tuple(self.weights)

    @property
    def bs(self) -> tuple[Tensor, ...]:
        """b_1 … b_L: the live parameters; empty when ``bias == 0``."""
        return tuple(self.biases)

    def forward(self, X: Tensor) -> Tensor:
        """f(X), (..., d_out) from (..., d_in)."""
        for index, (W, slope) in enumerate(zip(self.weights, (*self.slopes, 1.0))):
            X = X @ W.mT
            if self.bias != 0.0:
                b = self.biases[index]
                X = X + (b if self.bias == 1.0 else self.bias * b)
            X = activate(X, slope)
        return X

    def encoder(self) -> FullyConnected:
        """g, a copy."""
        return self._part(slice(0, self.waist))

    def decoder(self) -> FullyConnected:
        """h, a copy."""
        return self._part(slice(self.waist, self.depth))

    def _part(self, part: slice) -> FullyConnected:
        bs = self.bs[part] if self.bias != 0.0 else None
        return FullyConnected.from_weights(self.Ws[part], bs, slope=self.slope, bias=self.bias)

    @torch.no_grad()
    def merged(self) -> FullyConnected:
        """The same function as a FullyConnected with one layer less: the weights at the waist multiplied."""
        m = self.waist
        Ws, bs = [W.detach() for W in self.Ws], [b.detach() for b in self.bs]
        joint = Ws[m] @ Ws[m - 1]
        if self.bias != 0.0:
            bs = [*bs[: m - 1], Ws[m] @ bs[m - 1] + bs[m], *bs[m + 1 :]]
        weights = [*Ws[: m - 1], joint, *Ws[m + 1 :]]
        return FullyConnected.from_weights(weights, bs or None, slope=self.slope, bias=self.bias)
