"""What the coordinates mean: how each responds to every input column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from isthmus.measures import jacobian
from isthmus.networks import FullyConnected

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
