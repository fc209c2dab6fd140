"""The Kronecker-factored metrics of a stack of networks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from isthmus.networks import FullyConnected
from isthmus.networks._fully_connected import propagate
from isthmus.trace import activation_derivative
from isthmus.training._metric import SAMPLES, ChainMetric
from isthmus.training._together_stack import Array, column


class StackedMetric:
    """:class:`~.metric.ChainMetric` for every network of a stack, each with its own generator.

    Parameters
    ----------
    net : FullyConnected
        One of the networks.
    generators : list of torch.Generator
        Of the random cotangents, one for each network.
    """

    def __init__(self, net: FullyConnected, generators: list[torch.Generator]) -> None:
        self.single = ChainMetric(net, "mse")
        self.generators = generators
        self.shapes = list(zip(net.dims[1:], net.dims[:-1]))
        self.sizes = [n * m for n, m in self.shapes] + (list(net.dims[1:]) if net.bias else [])
        #: A's and G's eigenvalues (B, n) and eigenvectors as rows (B, n, n), layer by layer.
        self.values: list[tuple[Tensor, Tensor]] = []
        self.vectors: list[tuple[Tensor, Tensor]] = []
        self._ridges: Array | None = None
        self._inverses: list[Tensor] = []

    def keep(self, rows: Tensor) -> None:
        """Go on with some of the networks."""
        self.generators = [self.generators[i] for i in rows.tolist()]
        self.values = [(a[rows], g[rows]) for a, g in self.values]
        self.vectors = [(A[rows], G[rows]) for A, G in self.vectors]
        self._ridges = None

    @torch.no_grad()
    def refresh(self, theta: Tensor, X: Tensor, members: Array) -> None:
        """Estimate the factors at ``theta``; ``members`` are the rows of X that belong to those of theta."""
        self._ridges = None
        self.values, self.vectors = [], []
        inputs = X[..., :: max(1, -(-X.shape[-2] // SAMPLES)), :]
        if X.ndim == 3:
            inputs = inputs[torch.as_tensor(members)]
        for factors in self._factors(theta, inputs):
            pairs = [torch.linalg.eigh((F.mT @ F / inputs.shape[-2]).double()) for F in factors]
            self.values.insert(0, (*(values.clamp_min(0).to(theta.dtype) for values, _ in pairs),))
            self.vectors.insert(0, (*(U.mT.to(theta.dtype).contiguous() for _, U in pairs),))

    def _factors(self, theta: Tensor, X: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs (B, N, n_in) and cotangents (B, N, n_out) of each layer, from the last to the first."""
        single = self.single
        matrices = single.split(theta)
        Ws = [M[..., : single.dims[i]] for i, M in enumerate(matrices)]
        bs = [M[..., -1] for M in matrices] if single.bias else []
        preactivations, activations = propagate(Ws, bs, X, slopes=single.slopes, bias=single.bias)
        outputs = preactivations[-1]
        g = torch.stack([single.cotangents(f, own) for f, own in zip(outputs, self.generators)])
        for ell in range(len(Ws), 0, -1):
            a = activations[ell - 1].expand(len(theta), -1, -1)
            if single.bias:
                a = torch.cat([a, torch.full_like(a[..., :1], single.bias)], -1)
            yield a, g
            if ell > 1:
                g = (g @ Ws[ell - 1]) * activation_derivative(preactivations[ell - 2], single.slopes[ell - 2])

    @torch.no_grad()
    def solve(self, vectors: Tensor, ridges: Array) -> Tensor:
        """H⁻¹ · v for the vectors (B, k, P), k for each network."""
        if self._ridges is None or not np.array_equal(ridges, self._ridges):
            self._prepare(ridges)
        B, k, _ = vectors.shape
        whole = torch.empty_like(vectors)
        parts, images = vectors.split(self.sizes, -1), whole.split(self.sizes, -1)
        for ell, ((UA, UG), inverse) in enumerate(zip(self.vectors, self._inverses)):
            n, m = self.shapes[ell]
            # As (B, n, k, m): products from the left see one matrix (n, k·m), those from the right one (n·k, m).
            M = parts[ell].view(B, k, n, m).transpose(1, 2)
            if self.single.bias:
                M = torch.cat([M, parts[len(self.shapes) + ell].transpose(1, 2)[..., None]], -1)
            inner = torch.bmm(UG, M.reshape(B, n, -1)).view(B, n * k, -1)
            inner = torch.bmm(inner, UA.mT).view(B, n, k, -1).mul_(inverse)
            inner = torch.bmm(UG.mT, inner.view(B, n, -1)).view(B, n * k, -1)
            image = torch.bmm(inner, UA).view(B, n, k, -1).transpose(1, 2)
            images[ell].view(B, k, n, m).copy_(image[..., :m])
            if self.single.bias:
                images[len(self.shapes) + ell].copy_(image[..., m])
        return whole

    def _prepare(self, ridges: Array) -> None:
        """1/(curvature + floor) of each layer (B, n_out, 1, n_in)."""
        self._ridges, self._inverses = ridges.copy(), []
        for a, g in self.values:
            curvature = g[:, :, None] * a[:, None, :]
            top = curvature.amax((1, 2)).double().numpy(force=True)
            # Without any ridge the flat directions would get unbounded steps.
            floor = np.maximum(np.maximum(2.0 * ridges, 1e-7 * top), 1e-30)
            self._inverses.append((1.0 / (curvature + column(floor, curvature)[:, :, None]))[:, :, None])
