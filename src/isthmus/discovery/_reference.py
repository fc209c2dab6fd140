"""What can be predicted from X at all: quick, strong learners that know nothing of ranks, and how columns are scaled.

A rank is a statement about f only where f has been learned. These say how well it could be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor

from isthmus.discovery._kernel import kernel_ridge
from isthmus.discovery._task import Data
from isthmus.networks import SmoothNetwork
from isthmus.training import Phase, minimise

Array = NDArray[np.float64]

#: Outputs beyond this number are cut to principal components.
OUTPUTS = 48

#: Of the plain network.
WIDTH, PASSES, BATCH, RATE, MOST_STEPS = 160, 80, 64, 4e-3, 3000


@dataclass(frozen=True)
class Reference:
    """Held-out error of the best of several learners, as a share of a constant's.

    Attributes
    ----------
    error : float
    learner : str
        The best one.
    errors : dict
        Of each.
    """

    error: float
    learner: str
    errors: dict[str, float]


def measure_reference(data: Data, seed: int) -> Reference:
    """Train them on the training rows and predict the held-out ones, weighed as those of the walk are."""
    learners: dict[str, Callable[[], Array]] = {
        "kernel ridge regression": lambda: kernel_ridge(_rows(data.X), _rows(data.Y), _rows(data.X_held)),
        "a forest of random trees": lambda: _forest(data, seed),
        "a plain network": lambda: _plain_network(data, seed),
    }
    errors = {name: float(data.errors_of(torch.from_numpy(make())).mean()) for name, make in learners.items()}
    learner = min(errors, key=lambda name: errors[name])
    return Reference(errors[learner], learner, errors)


def _rows(A: torch.Tensor) -> Array:
    return A.double().numpy()


def _forest(data: Data, seed: int) -> Array:
    """With outputs on their principal components, of which trees are grown for all together."""
    Y = _rows(data.Y)
    mean = Y.mean(axis=0)
    axes = np.eye(Y.shape[1])
    if Y.shape[1] > OUTPUTS:
        axes = np.linalg.svd(Y - mean, full_matrices=False)[2][:OUTPUTS]
    trees = ExtraTreesRegressor(60, min_samples_leaf=2, max_features=0.5, random_state=seed, n_jobs=1)
    trees.fit(_rows(data.X), (Y - mean) @ axes.T)
    found = np.asarray(trees.predict(_rows(data.X_held))).reshape(len(data.X_held), -1)
    return found @ axes + mean


def _plain_network(data: Data, seed: int) -> Array:
    """Four layers of SiLU by mini-batches of Adam; nothing narrow in it, and no ridge."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [data.X.shape[1], WIDTH, WIDTH, WIDTH, data.Y.shape[1]]
    net = SmoothNetwork(sizes, generator=generator)
    rows = len(data.X)
    steps = min(MOST_STEPS, PASSES * -(-rows // BATCH))
    phases = [Phase("adam", steps, RATE, batch_size=min(BATCH, rows), anneal=True)]
    minimise(net, data.X, data.Y, ridge=0.0, phases=phases, seed=seed)
    with torch.no_grad():
        return _rows(net(data.X_held))
