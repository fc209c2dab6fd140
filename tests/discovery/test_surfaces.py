"""How many dimensions the surface has that the outputs follow, and what comes of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from isthmus import discover, problems
from isthmus.discovery._evidence import local_dimension, surface_dimension
from isthmus.discovery._task import Data
from isthmus.networks import FullyConnected


def data_of(X):
    X = torch.from_numpy(X).float()
    return Data(X, X, X, X, 1.0, None)


def passing_on(seen):
    """(x₀, x₁) through a waist of two, of which the decoder looks at the first ``seen``."""
    A = torch.eye(2)
    B = torch.zeros(3, 2)
    B[:seen, :seen] = torch.eye(seen)
    return FullyConnected.from_weights([A, B], [torch.zeros(2), torch.zeros(3)], slope=[1.0], bias=1.0)


def test_what_the_decoder_ignores_is_no_dimension():
    data = data_of(np.random.default_rng(0).uniform(size=(600, 2)))
    for seen in (1, 2):
        assert local_dimension(passing_on(seen), data) == pytest.approx(2.0, abs=0.25)
    assert surface_dimension(passing_on(1), data) == 1.0
    # With so many standard errors of 2/√(kept rows/1.5) more.
    more = local_dimension(passing_on(2), data, errors=1.5) - local_dimension(passing_on(2), data)
    assert more == pytest.approx(1.5 * 2.0 / math.sqrt(0.9 * len(data.X) / 1.5), rel=0.1)
    assert surface_dimension(passing_on(2), data) == pytest.approx(2.0, abs=0.25)
    assert math.isnan(surface_dimension(passing_on(1), data_of(np.random.default_rng(0).uniform(size=(20, 2)))))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_an_open_arc_is_never_called_two(seed):
    task = problems.CATALOGUE["arc"](seed=seed, noise=0.0)
    found = discover(task.X, task.Y)
    assert (found.rank, found.verdict) in {(1, "determined"), (1, "undetermined"), (2, "undetermined")}, found.reasons
