"""Kronecker-factored metrics: where a network's loss has curvature, and where only the ridge has.

In directions of a weight matrix that no sample excites, or that no output sees, the loss has only the curvature 2·ridge
of the ridge, thousands of times below the largest. Quasi-Newton steps that start from a multiple of the identity remove
such directions slowly; starting from such a metric they do so at once.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isthmus.networks import FullyConnected, Hourglass, LeakyResNet
from isthmus.networks._fully_connected import propagate
from isthmus.trace import activate, activation_derivative

#: Samples from which the factors are estimated.
SAMPLES = 2000

#: Entries up to which matrices of one shape are worked on together.
TOGETHER = 2**16


@dataclass(frozen=True)
class Place:
    """Where a weight (outputs, inputs) begins in a flat vector, and its bias where there is one."""

    outputs: int
    inputs: int
    weight: int
    bias: int | None

    @property
    def shape(self) -> tuple[int, int]:
        """With the bias as a last column."""
        return self.outputs, self.inputs + (self.bias is not None)


class KroneckerMetric(ABC):
    """H⁻¹ for the Gauss–Newton model H ≈ c·A ⊗ G + 2·ridge of each weight matrix, in its eigenbasis.

    A = E[āāᵀ] of the matrix's inputs (a last entry for its bias); G = E[ggᵀ] with g = J(its outputs → f)ᵀ c, where
    E[ccᵀ] is the Hessian of the cost in the outputs. The state is in named tensors.
    """

    #: c: how many times its own block the curvature along a matrix may be, because others move the outputs with it.
    coupling: float = 1.0

    def __init__(self, loss: str) -> None:
        self.loss = loss
        self.tensors: dict[str, Tensor] = {}
        self._made: tuple[tuple[float, float], dict[str, Tensor], list[_Block]] | None = None

    @abstractmethod
    def split(self, vector: Tensor) -> list[Tensor]:
        """Flat vectors (last axis) as matrices, biases as last columns."""

    @abstractmethod
    def layout(self) -> list[Place]:
        """Where these matrices are in a flat vector."""

    @abstractmethod
    def join(self, matrices: list[Tensor]) -> Tensor:
        """The inverse of :meth:`split`."""

    @abstractmethod
    def factors(self, theta: Tensor, X: Tensor, generator: torch.Generator) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(number of the matrix from 1, inputs (N, n_in), cotangents of its outputs (N, n_out)), in any order."""

    @torch.no_grad()
    def refresh(self, theta: Tensor, X: Tensor, generator: torch.Generator) -> None:
        """Estimate the factors at ``theta``."""
        rows = X if len(X) <= SAMPLES else X[:: -(-len(X) // SAMPLES)]
        for index, inputs, cotangents in self.factors(theta, rows, generator):
            for name, factor in (("A", inputs), ("G", cotangents)):
                values, vectors = torch.linalg.eigh((factor.mT @ factor / len(rows)).double())
                self.tensors[f"{name}{index}.values"] = values.clamp_min(0).to(theta.dtype)
                # As rows: contiguous, as a checkpoint gives them back. The layout can decide the last bit of a product.
                self.tensors[f"{name}{index}.vectors"] = vectors.mT.to(theta.dtype).contiguous()

    def cotangents(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
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
        vectors = gradient.reshape(-1, gradient.shape[-1]).contiguous()
        whole = torch.empty_like(vectors)
        for block in self._blocks(ridge):
            k, n, m = *block.UG.shape[:2], block.UA.shape[1]
            # As (k, n, rows, m): products from the left see matrices (n, rows·m), those from the right (n·rows, m).
            M = vectors.new_empty(k, n, len(vectors), m)
            for own, part in zip(block.places(vectors), block.parts(M)):
                part.copy_(own)
            inner = torch.bmm(block.UG, M.view(k, n, -1)).view(k, -1, m)
            inner = torch.bmm(inner, block.UA.mT).view(M.shape).div_(block.curvature)
            inner = torch.bmm(block.UG.mT, inner.view(k, n, -1)).view(k, -1, m)
            torch.bmm(inner, block.UA, out=M.view(k, -1, m))
            for own, part in zip(block.places(whole), block.parts(M)):
                own.copy_(part)
        return whole.reshape(gradient.shape)

    def _blocks(self, ridge: float) -> list[_Block]:
        """The factors, made once for each estimate of them and each ridge."""
        key = ridge, self.coupling
        if self._made is None or self._made[0] != key or not _same(self._made[1], self.tensors):
            found: list[_Block] = []
            layout = self.layout()
            for (n, m), group in itertools.groupby(range(1, len(layout) + 1), key=lambda i: layout[i - 1].shape):
                numbers = list(group)
                # Large matrices keep the cores busy alone, and copies of their factors would cost memory.
                step = len(numbers) if n * m <= TOGETHER else 1
                for at in range(0, len(numbers), step):
                    chosen = numbers[at : at + step]
                    found.append(self._block(chosen, [layout[i - 1] for i in chosen], ridge))
            self._made = key, dict(self.tensors), found
        return self._made[2]

    def _block(self, numbers: list[int], layout: list[Place], ridge: float) -> _Block:
        def stacked(name: str) -> Tensor:
            found = [self.tensors[name.format(i)] for i in numbers]
            return torch.stack(found) if len(found) > 1 else found[0][None]

        curvature = stacked("G{}.values")[:, :, None] * stacked("A{}.values")[:, None, :]
        curvature *= self.coupling
        # Without any ridge the flat directions would get unbounded steps.
        floor = (1e-7 * curvature.amax((1, 2), keepdim=True)).clamp_min(max(2.0 * ridge, 1e-30))
        return _Block(stacked("A{}.vectors"), stacked("G{}.vectors"), (curvature + floor)[:, :, None], layout)


@dataclass(frozen=True)
class _Block:
    """Matrices of one shape, k of them: eigenvectors as rows (k, m, m) and (k, n, n), curvature (k, n, 1, m).

    In the flat vector they lie at equal distances, as neighbours of one shape do.
    """

    UA: Tensor
    UG: Tensor
    curvature: Tensor
    layout: list[Place]

    def places(self, vectors: Tensor) -> list[Tensor]:
        """Where they are in flat vectors, as (k, n, rows, m), their biases as (k, n, rows): views."""
        k, n, (rows, size), first = len(self.layout), self.layout[0].outputs, vectors.shape, self.layout[0]
        apart = self.layout[1].weight - first.weight if k > 1 else 0
        shape, strides = (k, n, rows, first.inputs), (apart, first.inputs, size, 1)
        found = [vectors.as_strided(shape, strides, vectors.storage_offset() + first.weight)]
        if first.bias is not None:
            second = self.layout[1].bias if k > 1 else None
            apart = 0 if second is None else second - first.bias
            found.append(vectors.as_strided(shape[:3], (apart, 1, size), vectors.storage_offset() + first.bias))
        return found

    def parts(self, M: Tensor) -> list[Tensor]:
        """The same of the matrices (k, n, rows, m) with biases as last columns."""
        return [M] if self.layout[0].bias is None else [M[..., :-1], M[..., -1]]


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one.values(), other.values()))


class ChainMetric(KroneckerMetric):
    """The metric of fully connected layers, parameters laid out W_1 … W_L, b_1 … b_L."""

    def __init__(self, net: FullyConnected | Hourglass, loss: str) -> None:
        super().__init__(loss)
        self.dims, self.slopes, self.bias = net.dims, net.slopes, net.bias

    def split(self, vector: Tensor) -> list[Tensor]:
        """Matrices (W_ℓ, b_ℓ)."""
        shapes = list(zip(self.dims[1:], self.dims[:-1]))
        sizes = [n * m for n, m in shapes] + (list(self.dims[1:]) if self.bias else [])
        parts = vector.split(sizes, -1)
        weights = [part.reshape(*vector.shape[:-1], *shape) for part, shape in zip(parts, shapes)]
        if not self.bias:
            return weights
        return [torch.cat([W, b[..., None]], -1) for W, b in zip(weights, parts[len(shapes) :])]

    def layout(self) -> list[Place]:
        """W_1 … W_L, b_1 … b_L."""
        found, weights = [], 0
        biases = sum(n * m for n, m in zip(self.dims[1:], self.dims[:-1]))
        for n, m in zip(self.dims[1:], self.dims[:-1]):
            found.append(Place(n, m, weights, biases if self.bias else None))
            weights, biases = weights + n * m, biases + n
        return found

    def join(self, matrices: list[Tensor]) -> Tensor:
        """Flat again."""
        if not self.bias:
            return torch.cat([M.flatten(-2) for M in matrices], -1)
        weights = [M[..., :-1].flatten(-2) for M in matrices]
        return torch.cat(weights + [M[..., -1] for M in matrices], -1)

    def factors(self, theta: Tensor, X: Tensor, generator: torch.Generator) -> Iterator[tuple[int, Tensor, Tensor]]:
        """From the last layer to the first."""
        matrices = self.split(theta)
        Ws = [M[:, : self.dims[i]] for i, M in enumerate(matrices)]
        bs = [M[:, -1] for M in matrices] if self.bias else []
        preactivations, activations = propagate(Ws, bs, X, slopes=self.slopes, bias=self.bias)
        g = self.cotangents(preactivations[-1], generator)
        for ell in range(len(Ws), 0, -1):
            a = activations[ell - 1]
            if self.bias:
                a = torch.cat([a, torch.full_like(a[:, :1], self.bias)], 1)
            yield ell, a, g
            if ell > 1:
                g = (g @ Ws[ell - 1]).mul_(activation_derivative(preactivations[ell - 2], self.slopes[ell - 2]))


class LeakyMetric(KroneckerMetric):
    """The metric of a leaky ResNet, its curvature multiplied by the number L of steps.

    Every step can correct the outputs alone; if each did, the correction would be L times too large. For any residual
    ‖Σ_ℓJ_ℓδ_ℓ‖² ≤ LΣ‖J_ℓδ_ℓ‖², so that L times the block diagonal bounds the Gauss–Newton matrix from above, and
    directions with nothing but the ridge keep their full step. Its Kronecker form is no bound any more (off by 4 to 6
    in docs/notes/criticality.md): a line search is needed.
    """

    def __init__(self, net: LeakyResNet, loss: str) -> None:
        super().__init__(loss)
        self.net = net
        self.coupling = float(net.layers + (2 if net.embed == "learned" else 0))
        self.shapes = [tuple(p.shape) for p in net.parameters()]

    def split(self, vector: Tensor) -> list[Tensor]:
        """The maps in and out where they are learned, then √ρ(W_ℓ, b_ℓ)."""
        sizes = [math.prod(shape) for shape in self.shapes]
        parts = [p.reshape(*vector.shape[:-1], *shape) for p, shape in zip(vector.split(sizes, -1), self.shapes)]
        if not self.net.bias:
            return parts
        steps = parts[len(parts) - 2 * self.net.layers :]
        joined = [torch.cat([V, b[..., None]], -1) for V, b in zip(steps[::2], steps[1::2])]
        return parts[: len(parts) - len(steps)] + joined

    def layout(self) -> list[Place]:
        """The maps where they are learned, then weight and bias of each step in turn."""
        found, at = [], 0
        for index, shape in enumerate(self.shapes):
            if len(shape) == 2:
                biased = self.net.bias and index >= len(self.shapes) - 2 * self.net.layers
                found.append(Place(shape[0], shape[1], at, at + math.prod(shape) if biased else None))
            at += math.prod(shape)
        return found

    def join(self, matrices: list[Tensor]) -> Tensor:
        """Flat again."""
        parts = []
        steps = len(matrices) - self.net.layers
        for index, M in enumerate(matrices):
            if index >= steps and self.net.bias:
                parts += [M[..., :-1].flatten(-2), M[..., -1]]
            else:
                parts.append(M.flatten(-2))
        return torch.cat(parts, -1)

    def factors(self, theta: Tensor, X: Tensor, generator: torch.Generator) -> Iterator[tuple[int, Tensor, Tensor]]:
        """From the last step to the first."""
        matrices = self.split(theta)
        count = self.net.layers
        learned = len(matrices) - count
        W_in, W_out = matrices[:2] if learned else (self.net.W_in, self.net.W_out)
        L_tilde, width, slope = self.net.effective_depth, self.net.width, self.net.slope
        rho = self.net.rho.tolist()
        path, inputs = [X @ W_in.mT], []
        for M, length in zip(matrices[learned:], rho):
            S = activate(path[-1], slope)
            inputs.append(torch.cat([S, torch.ones_like(S[:, :1])], 1) if self.net.bias else S)
            path.append((1.0 - length * L_tilde) * path[-1] + math.sqrt(length) * (inputs[-1] @ M.mT))
        c = self.cotangents(path[-1] @ W_out.mT, generator)
        g = c @ W_out
        if learned:
            yield 2, path[-1], c
        for ell in range(count, 0, -1):
            length = rho[ell - 1]
            pulled = math.sqrt(length) * g
            yield learned + ell, inputs[ell - 1], pulled
            back = pulled @ matrices[learned + ell - 1][:, :width]
            g = (1.0 - length * L_tilde) * g + back * activation_derivative(path[ell - 1], slope)
        if learned:
            yield 1, X, g


def metric_for(net: nn.Module, loss: str) -> KroneckerMetric | None:
    """The metric, if there is one for this network: all of it trainable, and of a kind that is known here."""
    if not all(p.requires_grad for p in net.parameters()):
        return None
    if isinstance(net, (FullyConnected, Hourglass)):
        return ChainMetric(net, loss)
    return LeakyMetric(net, loss) if isinstance(net, LeakyResNet) else None
