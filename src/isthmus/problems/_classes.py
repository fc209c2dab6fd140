"""Classes of points in the plane whose shape is known: stripes that need one variable, sectors that need two."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isthmus._checks import check_integer, check_number
from isthmus._cite import cites
from isthmus.problems._problem import Array, streams


@dataclass(frozen=True, eq=False)
class Classes:
    """N points with class labels; arrays are read-only.

    Attributes
    ----------
    name : str
    X : array (N, d_in)
    labels : array (N,) of int64
        From 0 on.
    rank : int
        Bottleneck rank of the best classifier: how many variables it needs.
    notes : str
        One sentence: what is known and why.
    """

    name: str
    X: Array
    labels: NDArray[np.int64]
    rank: int
    notes: str

    def __post_init__(self) -> None:
        for array in (self.X, self.labels):
            array.flags.writeable = False


@cites("rank2023", "Figure 2", ids=("F-rank-2",))
def inverted_s_classes(
    *, classes: int = 4, samples: int = 400, spacing: float = 0.5, noise: float = 0.03, seed: int = 0
) -> Classes:
    """Points along identical inverted "S" shapes translated along the x-axis, one shape for each class.

    The c-th curve is (c·spacing − ½·sin 2s, ½·s), s uniform in [−½π, ½π]: a boundary between two neighbours is
    another such S, so the one variable x + ½·sin 4y tells all classes apart.

    Parameters
    ----------
    classes : int
    samples : int
        Points in all, as many of each class up to rounding.
    spacing : float
        Between neighbouring shapes.
    noise : float
        Standard deviation of the points about their curve, in each direction.
    seed : int

    Notes
    -----
    Departs from the paper: it does not give the shape, the number of points or the spacing; these are our choice.
    """
    who = "inverted_s_classes"
    classes = check_integer(who, "classes", classes, low=2)
    samples = check_integer(who, "samples", samples, low=classes)
    check_number(who, "spacing", spacing, low=0.0, low_open=True)
    check_number(who, "noise", noise, low=0.0)
    _, input_rng, noise_rng = streams(who, seed)
    labels = np.arange(samples, dtype=np.int64) % classes
    s = input_rng.uniform(-0.5 * np.pi, 0.5 * np.pi, samples)
    centre = spacing * (labels - 0.5 * (classes - 1))
    X = np.stack([centre - 0.5 * np.sin(2.0 * s), 0.5 * s], axis=1)
    X = X + noise * noise_rng.standard_normal(X.shape)
    truth = "The classes lie side by side: x + sin(4y)/2 orders them, and one variable suffices."
    return Classes(f"inverted_s_{classes}", X, labels, 1, truth)


def sectors(*, classes: int = 3, samples: int = 400, sharpness: float = 4.0, seed: int = 0) -> Classes:
    """Labels drawn from softmax(sharpness·⟨x, a_c⟩), a_c at equal angles, x ~ N(0, I₂): rank 2, one meeting point.

    The probabilities are a bijection of x when there are three classes or more: no single variable carries them, and
    at the origin all classes meet.
    """
    who = "sectors"
    classes = check_integer(who, "classes", classes, low=3)
    samples = check_integer(who, "samples", samples, low=classes)
    check_number(who, "sharpness", sharpness, low=0.0, low_open=True)
    _, input_rng, noise_rng = streams(who, seed)
    X = input_rng.standard_normal((samples, 2))
    angles = 2.0 * np.pi * np.arange(classes) / classes
    logits = sharpness * X @ np.stack([np.cos(angles), np.sin(angles)])
    # The largest of logits plus Gumbel noise is a draw from their softmax.
    labels = (logits + noise_rng.gumbel(size=logits.shape)).argmax(axis=1).astype(np.int64)
    truth = "Probabilities of three or more sectors determine the point: two variables, and all classes meet at 0."
    return Classes(f"sectors_{classes}", X, labels, 2, truth)
