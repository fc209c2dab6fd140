"""The Trace: weights and per-layer representations of a network on a data set, frozen.

This is the only place where orientation and scaling conventions are applied. In code samples are rows; the
papers write them as columns: :meth:`Trace.Z` turns them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from isthmus._checks import check_integer, fail


class Layered(Protocol):
    """Anything with the weights of a fully connected network: a network or a :class:`Trace`."""

    @property
    def Ws(self) -> tuple[Tensor, ...]:
        """Weights W_1 … W_L, each (n_ℓ, n_{ℓ-1})."""
        ...

    @property
    def bs(self) -> tuple[Tensor, ...]:
        """Biases b_1 … b_L, each (n_ℓ,); empty when the amount of bias is 0."""
        ...

    @property
    def bias(self) -> float:
        """Amount of bias β."""
        ...


class Traceable(Layered, Protocol):
    """A :class:`Layered` module of one slope that can be traced."""

    @property
    def slope(self) -> float:
        """Slope a of σ_a below zero."""
        ...

    def trace(self, X: Any, *, dtype: torch.dtype | None = torch.float64) -> Trace:
        """Weights and representations on ``X``."""
        ...


def activate(Z: Tensor, slope: float, linear: int = 0) -> Tensor:
    """σ_a(z) = z for z ≥ 0, a·z below, entrywise; the first ``linear`` entries of the last axis as they are."""
    if linear:
        return torch.cat([Z[..., :linear], activate(Z[..., linear:], slope)], -1)
    if slope == 0.0:
        return torch.relu(Z)
    if slope == 1.0:
        return Z
    return torch.nn.functional.leaky_relu(Z, slope)


def activation_derivative(Z: Tensor, slope: float, linear: int = 0) -> Tensor:
    """σ̇_a(z) = 1 for z > 0, a for z ≤ 0: at the kink the value that PyTorch's autograd uses; 1 where ``linear``."""
    if linear:
        return torch.cat([torch.ones_like(Z[..., :linear]), activation_derivative(Z[..., linear:], slope)], -1)
    if slope == 0.0:
        return (Z > 0).to(Z.dtype)
    return torch.where(Z > 0, torch.ones_like(Z), torch.full_like(Z, slope))


def silu_derivative(Z: Tensor) -> Tensor:
    """d/dz z·s(z) = s(z)·(1 + z·(1 − s(z))) with s(z) = 1/(1 + e^{−z})."""
    S = torch.sigmoid(Z)
    return S * (1.0 + Z * (1.0 - S))


@dataclass(frozen=True, eq=False)
class Trace:
    """Weights and representations of a fully connected network on N samples.

    Attributes
    ----------
    Ws : tuple of Tensor (n_ℓ, n_{ℓ-1})
        ``Ws[ell - 1]`` is W_ℓ.
    bs : tuple of Tensor (n_ℓ,)
        ``bs[ell - 1]`` is b_ℓ; empty when ``bias == 0``.
    preactivations : tuple of Tensor (N, n_ℓ)
        ``preactivations[ell - 1]`` is α̃_ℓ(X), ℓ = 1 … L.
    activations : tuple of Tensor (N, n_ℓ)
        ``activations[ell]`` is α_ℓ(X), ℓ = 0 … L−1; ``activations[0]`` is X.
    given_slope : float, or tuple of float
        a of all layers, or of each of the layers 1 … L−1; read :attr:`slope` or :attr:`slopes`.
    bias : float
        β of the network.
    source_eps : float
        Unit round-off of the dtype the network was stored in: noise below it says nothing about the network.
    linear : tuple of int
        How many of the first neurons of each of these layers have no activation; empty where none has.
    smooth : bool
        Whether the activation is SiLU, but where a slope is 1.
    """

    Ws: tuple[Tensor, ...]
    bs: tuple[Tensor, ...]
    preactivations: tuple[Tensor, ...]
    activations: tuple[Tensor, ...]
    given_slope: float | tuple[float, ...]
    bias: float
    source_eps: float = torch.finfo(torch.float64).eps
    linear: tuple[int, ...] = ()
    smooth: bool = False

    @property
    def slope(self) -> float:
        """A of all neurons; fails where they differ, and where the activation is smooth."""
        if self.smooth:
            fail("Trace.slope", "the activation must be piecewise linear", "SiLU", "Ask `derivative`.")
        if isinstance(self.given_slope, tuple) or self.linear:
            got = f"slopes {list(self.slopes)}, linear neurons {list(self.linear)}"
            fail("Trace.slope", "all layers must have one slope", got, "Ask `slopes`, `linear` or `derivative`.")
        return self.given_slope

    @property
    def slopes(self) -> tuple[float, ...]:
        """A of each of the layers 1 … L−1."""
        given = self.given_slope
        return given if isinstance(given, tuple) else (given,) * (self.depth - 1)

    @property
    def depth(self) -> int:
        """L, the number of weight matrices."""
        return len(self.Ws)

    @property
    def samples(self) -> int:
        """N, the number of samples."""
        return self.activations[0].shape[0]

    @property
    def dims(self) -> tuple[int, ...]:
        """n_0 … n_L."""
        return (self.Ws[0].shape[1], *(W.shape[0] for W in self.Ws))

    @property
    def inputs(self) -> Tensor:
        """X, (N, d_in)."""
        return self.activations[0]

    @property
    def outputs(self) -> Tensor:
        """f(X) = α̃_L(X), (N, d_out)."""
        return self.preactivations[-1]

    def Z(self, ell: int) -> Tensor:
        """Z_ℓ = α̃_ℓ(X) as the papers write it: (n_ℓ, N), samples as columns; Z_0 is the input."""
        check_integer("Trace.Z", "ell", ell, low=0, high=self.depth)
        return (self.activations[0] if ell == 0 else self.preactivations[ell - 1]).mT

    def Z_sigma(self, ell: int) -> Tensor:
        """Z^σ_ℓ: the activations α_ℓ(X) as columns with a last row β·1, (n_ℓ + 1, N); no such row when β =
        0.
        """
        check_integer("Trace.Z_sigma", "ell", ell, low=0, high=self.depth - 1)
        return with_ones(self.activations[ell].mT, self.bias)

    def derivative(self, ell: int) -> Tensor:
        """Diagonals of D_ℓ = diag(σ̇(α̃_ℓ(x))), (N, n_ℓ), ℓ = 1 … L−1."""
        check_integer("Trace.derivative", "ell", ell, low=1, high=self.depth - 1)
        if self.smooth and self.slopes[ell - 1] != 1.0:
            return silu_derivative(self.preactivations[ell - 1])
        linear = self.linear[ell - 1] if self.linear else 0
        return activation_derivative(self.preactivations[ell - 1], self.slopes[ell - 1], linear)


@dataclass(frozen=True, eq=False)
class LeakyTrace:
    """Weights and the path of representations A_0 … A_L of a leaky ResNet on N samples.

    Attributes
    ----------
    Ws : tuple of Tensor (w, w + 1)
        ``Ws[ell - 1]`` is W_ℓ as printed, its last column the bias; (w, w) when ``bias == 0``.
    rho : Tensor (L,)
        Lengths ρ_ℓ of the steps; their sum is 1.
    representations : tuple of Tensor (N, w)
        ``representations[ell]`` is α at position p_ℓ, ℓ = 0 … L; samples as rows.
    effective_depth : float
        L̃.
    W_in, W_out : Tensor (w, d_in), (d_out, w)
        The linear maps before and after the path.
    inputs, outputs : Tensor (N, d_in), (N, d_out)
    slope : float
        a of σ_a: 0 is ReLU.
    bias : float
        1 when σ appends a one, 0 when it does not.
    source_eps : float
        Unit round-off of the dtype the network was stored in.
    """

    Ws: tuple[Tensor, ...]
    rho: Tensor
    representations: tuple[Tensor, ...]
    effective_depth: float
    W_in: Tensor
    W_out: Tensor
    inputs: Tensor
    outputs: Tensor
    slope: float
    bias: float
    source_eps: float = torch.finfo(torch.float64).eps

    @property
    def depth(self) -> int:
        """L, the number of steps."""
        return len(self.Ws)

    @property
    def width(self) -> int:
        """w, the width of the path."""
        return self.Ws[0].shape[0]

    @property
    def samples(self) -> int:
        """N, the number of samples."""
        return self.inputs.shape[0]

    @property
    def positions(self) -> Tensor:
        """p_0 = 0, p_1, …, p_L = 1: where the representations sit, (L + 1,)."""
        return torch.cat([self.rho.new_zeros(1), self.rho.cumsum(0)])

    def A(self, ell: int) -> Tensor:
        """A_ℓ as printed: (w, N), samples as columns."""
        check_integer("LeakyTrace.A", "ell", ell, low=0, high=self.depth)
        return self.representations[ell].mT

    def sigma_A(self, ell: int) -> Tensor:
        """σ(A_ℓ): (w + 1, N) with a last row of ones; (w, N) when ``bias == 0``."""
        return with_ones(activate(self.A(ell), self.slope), self.bias)

    def derivative(self, ell: int) -> Tensor:
        """∂_pA on step ℓ: (A_ℓ − A_{ℓ-1})/ρ_ℓ, (w, N), ℓ = 1 … L."""
        check_integer("LeakyTrace.derivative", "ell", ell, low=1, high=self.depth)
        return (self.A(ell) - self.A(ell - 1)) / self.rho[ell - 1]


def with_ones(S: Tensor, bias: float) -> Tensor:
    """Append the row β·1 to an activation matrix (samples as columns); nothing when β = 0."""
    if bias == 0.0:
        return S
    return torch.cat([S, S.new_full((1, *S.shape[1:]), bias)])
