"""The maps in and out as ordinary modules, in the user's units and in float64."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from isthmus.discovery._fits import Coordinates, rewaist
from isthmus.discovery._task import Scaling
from isthmus.measures import jacobian
from isthmus.networks import FullyConnected, Standardized


class ConstantMap(nn.Module):
    """The same row for whatever input: the maps of a function of rank 0."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value: Tensor
        self.register_buffer("value", value.clone())

    def forward(self, X: Tensor) -> Tensor:
        """The constant outputs, (N, len(value))."""
        return self.value.expand(len(X), -1)

    def to_torch(self) -> nn.Module:
        """Itself: there is no layer in it."""
        return self


def finish(
    net: FullyConnected,
    inputs: Scaling,
    outputs: Scaling,
    found: Coordinates,
    signs: NDArray[np.float64],
    factor: float = 1.0,
) -> tuple[Standardized, FullyConnected]:
    """Encoder and decoder of ``net`` in the user's units; its waist becomes ``found``, times ``signs``.

    ``factor`` multiplies the outputs, before they are put in the user's units.
    """
    flip = torch.from_numpy(signs)
    whole = rewaist(
        copy.deepcopy(net).double(), flip[:, None] * found.into, found.out_of * flip, found.mean, balanced=False
    )
    encoder, decoder = whole.encoder(), whole.decoder()
    if inputs.axes is not None:
        Ws = [encoder.Ws[0] @ torch.from_numpy(inputs.axes), *encoder.Ws[1:]]
        encoder = _network(Ws, encoder)
    with torch.no_grad():
        # A constant column must not count, whatever value a new row has there.
        encoder.weights[0][:, torch.from_numpy(inputs.constant)] = 0.0
    W, b = decoder.Ws[-1].detach(), decoder.bs[-1].detach() * decoder.bias
    if outputs.axes is not None:
        axes = torch.from_numpy(outputs.axes)
        W, b = axes.mT @ W, axes.mT @ b
    size = torch.from_numpy(factor * np.where(outputs.constant, 0.0, outputs.scale))
    W, b = size[:, None] * W, size * b + torch.from_numpy(outputs.shift)
    Ws = [*decoder.Ws[:-1], W]
    bs = [*decoder.bs[:-1], b / decoder.bias]
    decoder = type(decoder).from_weights(Ws, bs, slope=decoder.slopes, bias=decoder.bias)
    shift, scale = torch.from_numpy(inputs.shift), torch.from_numpy(inputs.scale)
    return (
        Standardized(encoder, shift, scale).requires_grad_(False),
        decoder.requires_grad_(False),
    )


def apply(module: nn.Module, A: NDArray[np.float64], rows: int = 8192) -> NDArray[np.float64]:
    """The module on the rows of ``A``, in pieces."""
    with torch.no_grad():
        parts = [module(torch.from_numpy(np.ascontiguousarray(A[i : i + rows]))) for i in range(0, len(A), rows)]
    return torch.cat(parts).numpy()


def _network(Ws: list[Any], like: FullyConnected) -> FullyConnected:
    return type(like).from_weights(Ws, like.bs, slope=like.slopes, bias=like.bias)


# ---- What the coordinates mean: how each responds to every input column


Array = NDArray[np.float64]


#: Rows over which derivatives are averaged.
ROWS = 500


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """How far coordinate j moves, in its standard deviations, when input i moves by one of its own.

    Attributes
    ----------
    value : array (k, d_in)
        Root mean square over the samples of ∂u_j/∂x_i, both in standard deviations.
    low, high : array (k, d_in)
        Smallest and largest value over refits from other seeds, on other rows.
    agreement : array (k,)
        Share of the variance of each coordinate that the refits' coordinates explain linearly, the worst of them.
    """

    value: Array
    low: Array
    high: Array
    agreement: Array

    def strongest(self, coordinate: int, count: int = 5) -> list[int]:
        """Indices of the inputs that ``coordinate`` responds to most, falling."""
        return [int(i) for i in np.argsort(-self.value[coordinate], kind="stable")[:count]]

    def to_frame(self, feature_names: Sequence[str]) -> Any:
        """As a pandas DataFrame: one row per coordinate and input."""
        import pandas as pd

        k, d = self.value.shape
        return pd.DataFrame(
            {
                "coordinate": np.repeat([f"coordinate{j}" for j in range(k)], d),
                "input": np.tile(np.asarray(feature_names, dtype=object), k),
                "sensitivity": self.value.ravel(),
                "low": self.low.ravel(),
                "high": self.high.ravel(),
            }
        )


def sensitivity(main: FullyConnected, refits: Sequence[FullyConnected], X: Array) -> Sensitivity:
    """Compare encoders (scaled inputs → coordinates) that should give the same coordinates up to a linear map."""
    rows = torch.from_numpy(X[:: max(1, -(-len(X) // ROWS))])
    with torch.no_grad():
        Z = main(rows).numpy()
        deviation = Z.std(axis=0)
        deviation = np.where(deviation > 0, deviation, 1.0)
        own = jacobian(main, rows).numpy() / deviation[:, None]
        values = [_rms(own)]
        agreement = np.ones(Z.shape[1])
        centred = (Z - Z.mean(axis=0)) / deviation
        for other in refits:
            U = other(rows).numpy()
            U = U - U.mean(axis=0)
            B, *_ = np.linalg.lstsq(U, centred, rcond=None)
            left, whole = ((A**2).sum(axis=0) for A in (centred - U @ B, centred))
            agreement = np.minimum(agreement, 1.0 - left / np.maximum(whole, 1e-300))
            values.append(_rms(np.einsum("uj,nui->nji", B, jacobian(other, rows).numpy())))
    stack = np.stack(values)
    return Sensitivity(values[0], stack.min(axis=0), stack.max(axis=0), agreement)


def _rms(J: Array) -> Array:
    return np.sqrt((J**2).mean(axis=0))
