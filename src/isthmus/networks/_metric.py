"""Kronecker-factored metrics: where a network's loss has curvature, and where only the ridge has.

In directions of a weight matrix that no sample excites, or that no output sees, the loss has only the curvature 2·ridge
of the ridge, thousands of times below the largest. Quasi-Newton steps that start from a multiple of the identity remove
such directions slowly; starting from such a metric they do so at once.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

#: Samples from which the factors are estimated.
SAMPLES = 2000

#: Entries up to which matrices of one shape are worked on together.
TOGETHER = 2**16


@dataclass(frozen=True)
class Slot:
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
    E[ccᵀ] is the Hessian of the cost in the outputs. The state is in named tensors; those of several networks of one
    shape have a leading axis, as their parameters have.
    """

    #: c: how many times its own block the curvature along a matrix may be, because others move the outputs with it.
    coupling: float = 1.0
    #: Whether the parameters are all that differs between networks of one shape.
    several: ClassVar[bool] = False

    def __init__(self, loss: str) -> None:
        self.loss = loss
        self.tensors: dict[str, Tensor] = {}
        #: The states of several networks' metrics, and these as one.
        self.joint: tuple[list[dict[str, Tensor]], KroneckerMetric] | None = None
        self._made: tuple[tuple[tuple[float, ...], float], dict[str, Tensor], list[_Block]] | None = None

    @abstractmethod
    def layout(self) -> list[Slot]:
        """Where the matrices are in a flat vector."""

    @abstractmethod
    def factors(
        self, theta: Tensor, X: Tensor, generators: Sequence[torch.Generator]
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(number of the matrix from 1, inputs (N, n_in), cotangents of its outputs (N, n_out)), in any order."""

    def kinked(self) -> list[int]:
        """Of each activation with kinks, in the order of the forward pass, the matrix (from 1) whose outputs it takes.

        Empty where activations are applied to something else.
        """
        return []

    def matrices(self, theta: Tensor) -> list[Tensor]:
        """The matrices of a flat vector (last axis), biases as last columns."""
        found = []
        for slot in self.layout():
            n, m = slot.outputs, slot.inputs
            W = theta[..., slot.weight : slot.weight + n * m].reshape(*theta.shape[:-1], n, m)
            if slot.bias is not None:
                W = torch.cat([W, theta[..., slot.bias : slot.bias + n, None]], -1)
            found.append(W)
        return found

    @torch.no_grad()
    def refresh(self, theta: Tensor, X: Tensor, generators: Sequence[torch.Generator]) -> None:
        """Estimate the factors at ``theta`` (P,), or (B, P) for several networks; one generator for each."""
        count, leading = X.shape[-2], theta.shape[:-1]
        rows = X if count <= SAMPLES else X[..., :: -(-count // SAMPLES), :]
        found: dict[str, Tensor] = {}
        for index, inputs, cotangents in self.factors(theta, rows, generators):
            for name, factor in (("A", inputs), ("G", cotangents)):
                values, vectors = torch.linalg.eigh((factor.mT @ factor / rows.shape[-2]).double())
                # Inputs that all networks share have no leading axis.
                values, vectors = values.expand(*leading, -1), vectors.mT.expand(*leading, -1, -1)
                found[f"{name}{index}.values"] = values.clamp_min(0).to(theta.dtype)
                # As rows: contiguous, as a checkpoint gives them back. The layout can decide the last bit of a product.
                found[f"{name}{index}.vectors"] = vectors.to(theta.dtype).contiguous()
        self.tensors = found

    def cotangents(self, outputs: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Random vectors c with E[ccᵀ] = the Hessian of the cost in the outputs."""
        if outputs.ndim == 3:
            return torch.stack([self._cotangents(f, one) for f, one in zip(outputs, generators)])
        return self._cotangents(outputs, generators[0])

    def _cotangents(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        if self.loss == "mse":
            signs = torch.randint(0, 2, outputs.shape, generator=generator).to(outputs)
            return (2.0 * signs - 1.0) * 2.0**0.5
        p = torch.softmax(outputs, -1)
        labels = torch.multinomial(p.cpu(), 1, generator=generator).to(outputs.device)
        return p - torch.zeros_like(p).scatter_(-1, labels, 1.0)

    @torch.no_grad()
    def solve(self, vectors: Tensor, ridges: Sequence[float]) -> Tensor:
        """H⁻¹·v for vectors (k, P), or (B, k, P) for several networks; one ridge for each."""
        flat = vectors.reshape(-1, *vectors.shape[-2:]).contiguous()
        whole = torch.empty_like(flat)
        for block in self._blocks(tuple(ridges)):
            k, n, m = *block.UG.shape[:2], block.UA.shape[1]
            # As (k, n, rows, m): products from the left see matrices (n, rows·m), those from the right (n·rows, m).
            M = flat.new_empty(k, n, flat.shape[1], m)
            for own, part in zip(block.places(flat), block.parts(M)):
                part.unflatten(0, own.shape[:2]).copy_(own)
            inner = torch.bmm(block.UG, M.view(k, n, -1)).view(k, -1, m)
            inner = torch.bmm(inner, block.UA.mT).view(M.shape).div_(block.curvature)
            inner = torch.bmm(block.UG.mT, inner.view(k, n, -1)).view(k, -1, m)
            torch.bmm(inner, block.UA, out=M.view(k, -1, m))
            for own, part in zip(block.places(whole), block.parts(M)):
                own.copy_(part.unflatten(0, own.shape[:2]))
        return whole.view(vectors.shape)

    def _blocks(self, ridges: tuple[float, ...]) -> list[_Block]:
        """The factors, made once for each estimate of them and each ridge."""
        key = ridges, self.coupling
        if self._made is None or self._made[0] != key or not _same(self._made[1], self.tensors):
            found: list[_Block] = []
            layout = self.layout()
            for (n, m), group in itertools.groupby(range(1, len(layout) + 1), key=lambda i: layout[i - 1].shape):
                numbers = list(group)
                # Large matrices, and those of many networks, keep the cores busy alone; more would not fit in caches.
                step = len(numbers) if n * m * len(ridges) <= TOGETHER else 1
                for at in range(0, len(numbers), step):
                    chosen = numbers[at : at + step]
                    found.append(self._block(chosen, [layout[i - 1] for i in chosen], ridges))
            self._made = key, dict(self.tensors), found
        return self._made[2]

    def _block(self, numbers: list[int], layout: list[Slot], ridges: tuple[float, ...]) -> _Block:
        def stacked(name: str, ndim: int) -> Tensor:
            found = [self.tensors[name.format(i)] for i in numbers]
            if found[0].ndim > ndim:  # of several networks
                return torch.stack(found, 1).flatten(0, 1)
            return torch.stack(found) if len(found) > 1 else found[0][None]

        curvature = stacked("G{}.values", 1)[:, :, None] * stacked("A{}.values", 1)[:, None, :]
        curvature *= self.coupling
        # Without any ridge the flat directions would get unbounded steps.
        least = curvature.new_tensor([max(2.0 * ridge, 1e-30) for ridge in ridges]).repeat_interleave(len(numbers))
        floor = torch.maximum(1e-7 * curvature.amax((1, 2), keepdim=True), least[:, None, None])
        return _Block(stacked("A{}.vectors", 2), stacked("G{}.vectors", 2), (curvature + floor)[:, :, None], layout)


@dataclass(frozen=True)
class _Block:
    """Matrices of one shape, k of them in each of B networks: eigenvectors as rows (Bk, m, m) and (Bk, n, n).

    Their curvature is (Bk, n, 1, m). In the flat vector they lie at equal distances, as neighbours of one shape do.
    """

    UA: Tensor
    UG: Tensor
    curvature: Tensor
    layout: list[Slot]

    def places(self, vectors: Tensor) -> list[Tensor]:
        """Where they are in flat vectors (B, rows, P), as (B, k, n, rows, m), biases as (B, k, n, rows): views."""
        B, rows, size = vectors.shape
        k, n, first = len(self.layout), self.layout[0].outputs, self.layout[0]
        apart = self.layout[1].weight - first.weight if k > 1 else 0
        shape, strides = (B, k, n, rows, first.inputs), (rows * size, apart, first.inputs, size, 1)
        found = [vectors.as_strided(shape, strides, vectors.storage_offset() + first.weight)]
        if first.bias is not None:
            second = self.layout[1].bias if k > 1 else None
            apart = 0 if second is None else second - first.bias
            start = vectors.storage_offset() + first.bias
            found.append(vectors.as_strided(shape[:4], (rows * size, apart, 1, size), start))
        return found

    def parts(self, M: Tensor) -> list[Tensor]:
        """The same of the matrices (Bk, n, rows, m) with biases as last columns."""
        return [M] if self.layout[0].bias is None else [M[..., :-1], M[..., -1]]


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one.values(), other.values()))
