"""A Kronecker-factored metric for fully connected networks: where curvature is, and where only the ridge is.

In directions of a weight matrix that no sample excites, or that no output sees, the loss has only the curvature 2·ridge
of the ridge, thousands of times below the largest. Quasi-Newton steps that start from a multiple of the identity remove
such directions slowly; starting from this metric they do so at once.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isthmus.networks import FullyConnected, Hourglass
from isthmus.networks.fully_connected import propagate
from isthmus.trace import activation_derivative

#: Samples from which the factors are estimated.
SAMPLES = 2000


class KroneckerMetric:
    """H⁻¹ for the Gauss–Newton model H ≈ A_{ℓ-1} ⊗ G_ℓ + 2·ridge of each layer, in its eigenbasis.

    A_{ℓ-1} = E[āāᵀ] with ā = (α_{ℓ-1}, β); G_ℓ = E[ggᵀ] with g = J(α̃_ℓ → f)ᵀ c, where E[ccᵀ] is the Hessian of
    the cost in the outputs. The state is in named tensors.
    """

    def __init__(self, net: FullyConnected | Hourglass, loss: str) -> None:
        self.dims, self.slopes, self.bias, self.loss = net.dims, net.slopes, net.bias, loss
        self.tensors: dict[str, Tensor] = {}

    @staticmethod
    def for_network(net: nn.Module, loss: str) -> KroneckerMetric | None:
        """The metric, if there is one for this network: all parameters of a FullyConnected or Hourglass trainable."""
        if isinstance(net, (FullyConnected, Hourglass)) and all(p.requires_grad for p in net.parameters()):
            return KroneckerMetric(net, loss)
        return None

    def _split(self, vector: Tensor) -> list[Tensor]:
        """Flat vectors W_1 … W_L, b_1 … b_L (last axis) as matrices (W_ℓ, b_ℓ)."""
        shapes = list(zip(self.dims[1:], self.dims[:-1]))
        sizes = [n * m for n, m in shapes] + (list(self.dims[1:]) if self.bias else [])
        parts = vector.split(sizes, -1)
        weights = [part.reshape(*vector.shape[:-1], *shape) for part, shape in zip(parts, shapes)]
        if not self.bias:
            return weights
        return [torch.cat([W, b[..., None]], -1) for W, b in zip(weights, parts[len(shapes) :])]

    def _join(self, matrices: list[Tensor]) -> Tensor:
        if not self.bias:
            return torch.cat([M.flatten(-2) for M in matrices], -1)
        weights = [M[..., :-1].flatten(-2) for M in matrices]
        return torch.cat(weights + [M[..., -1] for M in matrices], -1)

    @torch.no_grad()
    def refresh(self, theta: Tensor, X: Tensor, generator: torch.Generator) -> None:
        """Estimate the factors at ``theta``."""
        matrices = self._split(theta)
        Ws = [M[:, : self.dims[i]] for i, M in enumerate(matrices)]
        bs = [M[:, -1] for M in matrices] if self.bias else []
        rows = X if len(X) <= SAMPLES else X[:: -(-len(X) // SAMPLES)]
        preactivations, activations = propagate(Ws, bs, rows, slopes=self.slopes, bias=self.bias)
        g = self._cotangents(preactivations[-1], generator)
        for ell in range(len(Ws), 0, -1):
            a = activations[ell - 1]
            if self.bias:
                a = torch.cat([a, torch.full_like(a[:, :1], self.bias)], 1)
            for name, factor in (("A", a), ("G", g)):
                values, vectors = torch.linalg.eigh((factor.mT @ factor / len(rows)).double())
                self.tensors[f"{name}{ell}.values"] = values.clamp_min(0).to(theta.dtype)
                # As rows: contiguous, as a checkpoint gives them back. The layout can decide the last bit of a product.
                self.tensors[f"{name}{ell}.vectors"] = vectors.mT.to(theta.dtype).contiguous()
            if ell > 1:
                g = (g @ Ws[ell - 1]) * activation_derivative(preactivations[ell - 2], self.slopes[ell - 2])

    def _cotangents(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        """Random vectors c with E[ccᵀ] = the Hessian of the cost in the outputs."""
        if self.loss == "mse":
            signs = torch.randint(0, 2, outputs.shape, generator=generator).to(outputs)
            return (2.0 * signs - 1.0) * 2.0**0.5
        p = torch.softmax(outputs, -1)
        labels = torch.multinomial(p.cpu(), 1, generator=generator).to(outputs.device)
        return p - torch.zeros_like(p).scatter_(-1, labels, 1.0)

    @torch.no_grad()
    def solve(self, gradient: Tensor, ridge: float) -> Tensor:
        """H⁻¹ · gradient, for one vector or for each row of several."""
        images = []
        for ell, M in enumerate(self._split(gradient), start=1):
            UA, UG = self.tensors[f"A{ell}.vectors"].mT, self.tensors[f"G{ell}.vectors"].mT
            curvature = torch.outer(self.tensors[f"G{ell}.values"], self.tensors[f"A{ell}.values"])
            # Without any ridge the flat directions would get unbounded steps.
            floor = max(2.0 * ridge, 1e-7 * float(curvature.max()), 1e-30)
            images.append(UG @ ((UG.mT @ M @ UA) / (curvature + floor)) @ UA.mT)
        return self._join(images)
