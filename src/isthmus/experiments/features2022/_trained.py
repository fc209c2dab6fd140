"""Networks trained on few samples of many dimensions, in the coordinates that the samples span."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from isthmus._progress import ProgressFactory
from isthmus.linalg import rank_tolerance
from isthmus.networks import FullyConnected
from isthmus.training import Phase, TrainingResult, minimise
from isthmus.training._result import STATES


def spanned(X: Tensor) -> Tensor:
    """An orthonormal basis V of the row space of X (N, d), as columns: X = XVVᵀ.

    The part of W_1 orthogonal to V is useless and 0 at every minimum (C-feat-1), so that W_1V on XV has the same minima
    in fewer coordinates. Gradient descent takes the same path there too; Adam, which sees coordinates, another one.
    """
    _, s, Vh = torch.linalg.svd(X.double(), full_matrices=False)
    return Vh[: int((s > rank_tolerance(s, (X.shape[0], X.shape[1]))).sum())].mT


def start(dims: Sequence[int], V: Tensor, seed: int, dtype: torch.dtype) -> FullyConnected:
    """The network that a seed gives, its first weight in the coordinates V."""
    generator = torch.Generator().manual_seed(seed)
    drawn = FullyConnected(dims, dtype=torch.float64, generator=generator)
    first, *rest = (W.detach() for W in drawn.Ws)
    return FullyConnected.from_weights([first @ V, *rest], [b.detach() for b in drawn.bs]).to(dtype)


def lifted(net: FullyConnected, V: Tensor) -> FullyConnected:
    """The same function of X as ``net`` is of XV, in float64; ‖θ‖² is the same, V having orthonormal columns."""
    first, *rest = (W.detach().double() for W in net.Ws)
    return FullyConnected.from_weights([first @ V.mT, *rest], [b.detach().double() for b in net.bs])


def fit_features(
    net: FullyConnected,
    X: Tensor,
    Y: Tensor,
    phases: Sequence[Phase],
    *,
    ridge: float,
    loss: str,
    tolerance: float,
    show: ProgressFactory,
    finish: str | None = None,
) -> TrainingResult:
    """Train in place. Not converging is no warning here: the state goes into the arrays and a condition."""
    return minimise(
        net,
        X,
        Y,
        ridge=ridge,
        loss=loss,
        phases=phases,
        tolerance=tolerance,
        finish=finish,
        seed=0,
        progress=show,
    )


def state_number(result: TrainingResult) -> int:
    """Place of the state in ``STATES``: arrays hold numbers."""
    return STATES.index(result.state)
