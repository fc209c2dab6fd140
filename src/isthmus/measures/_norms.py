"""Q-norm and Q-balance: where the parameter norm sits, and whether it is balanced between layers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus._cite import cites
from isthmus.trace import Layered


@dataclass(frozen=True, eq=False)
class Norms:
    """‖θ‖² and its parts.

    Attributes
    ----------
    weights, biases : Tensor (L,)
        ‖W_ℓ‖²_F and ‖b_ℓ‖² for ℓ = 1 … L (zeros where there is no bias).
    """

    weights: Tensor
    biases: Tensor

    @property
    def layers(self) -> Tensor:
        """‖W_ℓ‖² + ‖b_ℓ‖², (L,)."""
        return self.weights + self.biases

    @property
    def total(self) -> float:
        """‖θ‖², weights and biases."""
        return float(self.layers.sum())

    @property
    def per_depth(self) -> float:
        """‖θ‖²/L."""
        return self.total / len(self.weights)


@cites("rank2023", "§2", ids=("Q-norm",))
@torch.no_grad()
def parameter_norms(net: Layered) -> Norms:
    """‖θ‖² = Σ_ℓ ‖W_ℓ‖²_F + ‖b_ℓ‖², in float64."""
    weights = torch.stack([W.detach().double().square().sum() for W in net.Ws])
    if not net.bs:
        return Norms(weights, torch.zeros_like(weights))
    return Norms(weights, torch.stack([b.detach().double().square().sum() for b in net.bs]))


@dataclass(frozen=True, eq=False)
class Balance:
    """How far the parameters are from balanced.

    Attributes
    ----------
    layers : Tensor (L−1,)
        ‖W_ℓ‖² + ‖b_ℓ‖² − ‖W_{ℓ+1}‖² for ℓ = 1 … L−1.
    neurons : tuple of Tensor (n_ℓ,)
        ‖W_{ℓ,i·}‖² + b_{ℓ,i}² − ‖W_{ℓ+1,·i}‖² for every hidden neuron i of layer ℓ.
    scale : float
        Mean of ‖W_ℓ‖² over layers: what the residuals are relative to.
    """

    layers: Tensor
    neurons: tuple[Tensor, ...]
    scale: float

    @property
    def layer_residual(self) -> float:
        """max_ℓ |layers| / scale; 0 when there is no hidden layer."""
        return _relative([self.layers], self.scale)

    @property
    def neuron_residual(self) -> float:
        """max_ℓ Σ_i |neurons| / scale: the unbalanced part of a layer's norm."""
        return _relative([n.abs().sum()[None] for n in self.neurons], self.scale)


def _relative(parts: list[Tensor], scale: float) -> float:
    values = [float(p.abs().max()) for p in parts if p.numel()]
    return max(values, default=0.0) / scale if scale > 0 else 0.0


@cites("rank2023", "Prop. 12, Remark 6", ids=("Q-balance",))
@torch.no_grad()
def balance(net: Layered) -> Balance:
    """Layer-wise and neuron-wise balancedness ‖W_ℓ‖² + ‖b_ℓ‖² = ‖W_{ℓ+1}‖², which holds at every minimum.

    Neuron-wise it holds too, because σ_a is positively homogeneous: scaling a neuron's inputs and bias by c >
    0 and its outgoing weights by 1/c leaves the function unchanged (for β ≠ 1 as well: βb scales like b).
    """
    Ws = [W.detach().double() for W in net.Ws]
    bs = [b.detach().double() for b in net.bs]
    neurons = []
    for index in range(len(Ws) - 1):
        incoming = Ws[index].square().sum(1)
        if bs:
            incoming = incoming + bs[index].square()
        neurons.append(incoming - Ws[index + 1].square().sum(0))
    layers = torch.stack([n.sum() for n in neurons]) if neurons else torch.zeros(0, dtype=torch.float64)
    scale = float(torch.stack([W.square().sum() for W in Ws]).mean())
    return Balance(layers, tuple(neurons), scale)
