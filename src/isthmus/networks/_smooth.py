"""Fully connected networks with a smooth activation: the better learners of smooth functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from isthmus._checks import fail
from isthmus.networks._fully_connected import DirectChain, FullyConnected, Parts
from isthmus.trace import Trace

# PyTorch's public functions of SiLU cannot write into given memory; these operators can.
_silu = torch.ops.aten.silu.out
_silu_backward = torch.ops.aten.silu_backward.grad_input


class SmoothNetwork(FullyConnected):
    """f = α̃_L with α̃_ℓ = W_ℓ α_{ℓ-1} + β b_ℓ and α_ℓ = SiLU(α̃_ℓ), SiLU(z) = z/(1 + e^{−z}).

    The bottleneck rank is a property of f = h∘g, not of an activation: where f is smooth, networks with kinks need many
    more samples for the same error. The theorems about ReLU networks are not about these: SiLU is not homogeneous.

    Parameters
    ----------
    dims : sequence of int
        n_0 (inputs), n_1, …, n_L (outputs).
    slope : 0 or 1, or one for each of the layers 1 … L−1
        1 is a layer without activation, as the waist of an hourglass; all others have SiLU.
    bias, linear, biased, init_scale, dtype, device, generator
        As in :class:`FullyConnected`.

    Examples
    --------
    >>> import torch, isthmus
    >>> net = isthmus.SmoothNetwork([4, 16, 2], generator=torch.Generator().manual_seed(0))
    >>> net.to_torch()
    Sequential(
      (0): Linear(in_features=4, out_features=16, bias=True)
      (1): SiLU()
      (2): Linear(in_features=16, out_features=2, bias=True)
    )
    """

    kind: ClassVar[str] = "a smooth fully connected network"

    def _check_activation(self) -> None:
        if not set(self.slopes) <= {0.0, 1.0} or any(self.linear):
            got = f"slopes {list(self.slopes)}, linear neurons {list(self.linear)}"
            fail("SmoothNetwork", "a layer must be linear as a whole (slope 1) or not at all (0)", got, "Pass 0 or 1.")

    @property
    def slope(self) -> float:
        """There is none: SiLU is not piecewise linear. Read ``slopes`` for which layers are linear (1)."""
        if set(self.slopes) == {1.0}:
            return 1.0
        return fail("SmoothNetwork.slope", "the activation must be piecewise linear", "SiLU", "Read `slopes`.")

    @property
    def uniform(self) -> bool:
        """False: the theorems about networks with one slope everywhere do not hold for SiLU."""
        return False

    def _activate(self, Z: Tensor, index: int) -> Tensor:
        return Z if self.slopes[index] == 1.0 else nn.functional.silu(Z)

    def forward(self, X: Tensor) -> Tensor:
        """f(X), (..., n_L) from (..., n_0)."""
        return self._run(self.Ws, self.bs, X)[0][-1]

    def _run(self, Ws: Sequence[Tensor], bs: Sequence[Tensor], X: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Pre-activations and activations of all layers."""
        preactivations, activations = [], [X]
        for index, W in enumerate(Ws):
            Z = activations[-1] @ W.mT
            if bs:
                Z = Z + self.bias * bs[index]
            preactivations.append(Z)
            if index + 1 < len(Ws):
                activations.append(self._activate(Z, index))
        return preactivations, activations

    def _propagated(self, Ws: Sequence[Tensor], bs: Sequence[Tensor], X: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        return self._run(Ws, bs, X)

    def _trace_of(self, Ws: Parts, bs: Parts, preactivations: Parts, activations: Parts, eps: float) -> Trace:
        return Trace(Ws, bs, preactivations, activations, self.slopes, self.bias, eps, smooth=True)

    def _activation_module(self, index: int) -> nn.Module:
        return nn.Identity() if self.slopes[index] == 1.0 else nn.SiLU()

    def plain_layers(self) -> None:
        """None: what is known of ReLU networks, such as which neurons are dead, does not hold here."""

    def imbalance(self) -> tuple[float, float]:
        """NaN: SiLU is not homogeneous, so that norms of consecutive layers need not balance."""
        return float("nan"), float("nan")

    def direct(self, loss: str, values: Sequence[Tensor], gradients: Sequence[Tensor], rows: int) -> DirectChain | None:
        """Training steps without autograd, if all layers have biases or none has, and all parameters are trained."""
        # A subclass with another forward computes something else.
        same = type(self).forward is SmoothNetwork.forward and self._evenly_biased
        possible = same and all(p.requires_grad for p in self.parameters())
        return _SmoothChain(self, loss, values, gradients, rows) if possible else None


class _SmoothChain(DirectChain):
    """A DirectChain with SiLU: its derivative does not follow from the activation, so pre-activations are kept too."""

    def __init__(
        self, net: SmoothNetwork, loss: str, values: Sequence[Tensor], gradients: Sequence[Tensor], rows: int
    ) -> None:
        self.kept: list[Tensor] = []
        super().__init__(net, loss, values, gradients, rows)
        hidden = zip(self.memories, self.slopes, net.dims[1:-1])
        self.before = [memory if a == 1.0 else self.take_memory(n) for memory, a, n in hidden]

    def shape(self) -> None:
        """Let matrix products write into the memory of the pre-activations."""
        super().shape()
        total, divide = self.rows.total, self.rows.divide
        self.kept = [self.part(memory, n, total) for memory, n in zip(self.before, self.dims[1:-1])]
        self.results = [*(divide(Z) for Z in self.kept), self.divided]

    def _activate(self, index: int) -> None:
        if self.slopes[index] != 1.0:
            _silu(self.kept[index], out=self.activations[index])

    def _pull_back(self, index: int, G: Tensor) -> None:
        if self.slopes[index] != 1.0:
            _silu_backward(G, self.kept[index], grad_input=G)
