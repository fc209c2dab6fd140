"""Class labels as rows of 0 and 1, and how far probabilities from a network can be trusted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from torch import Tensor

from isthmus._checks import fail
from isthmus._errors import DataError

#: Temperatures that are looked at; a fit that wants more has not enough held-out rows to say.
COLDEST, HOTTEST = 0.1, 10.0
#: Rows of a class below which a note is made of it.
FEW = 8


def one_hot(who: str, labels: Any) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Labels (N,) as rows (N, K) of 0 and 1, and the K classes in their order.

    Parameters
    ----------
    who : str
        For errors.
    labels : array (N,)
        Integers, truth values, texts or other things that can be sorted; a column (N, 1) is taken as flat.
    """
    values = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or not len(values):
        do = "Pass one label for each row; rows of 0 and 1 become labels by argmax(axis=1)."
        fail(who, "`Y` must be one class label for each row", f"shape {values.shape}", do, error=DataError)
    lost = int(pd.isna(values).sum())
    if lost:
        do = "Drop these rows, or give them a class of their own."
        fail(who, "every row must have a class", f"{lost} without one", do, error=DataError)
    if values.dtype.kind == "f" and not np.array_equal(values, np.round(values)):
        do = "Use loss='mse' for numbers, or cut them into classes."
        got = "Unknown label type: continuous numbers"
        fail(who, "`Y` must be class labels for loss='cross_entropy'", got, do, error=DataError)
    try:
        classes, index = np.unique(values, return_inverse=True)
    except TypeError:
        fail(who, "class labels must be of one type", "a mixture", "Convert all to text.", error=DataError)
    names = [str(name) for name in classes.tolist()]
    if len(set(names)) != len(names):
        fail(who, "classes must have different names", f"{names[:6]}", "Rename one of them.", error=DataError)
    return np.eye(len(classes))[index.reshape(-1)], classes


def notes_on(Y: NDArray[np.float64], names: tuple[str, ...]) -> tuple[str, ...]:
    """What is to be said about classes with few rows."""
    counts = Y.sum(axis=0)
    few = [f"{name!r} ({int(n)})" for name, n in zip(names, counts) if n < FEW]
    if not few or len(names) == 1:
        return ()
    listed = ", ".join(few[:6]) + (", …" if len(few) > 6 else "")
    return (f"classes with fewer than {FEW} rows, about which little can be held out: {listed}",)


def temperature(outputs: Tensor, Y: Tensor) -> float:
    """T > 0 at which softmax(f/T) has the least log loss on rows (M, K) that were held out.

    The share 1/(M + 2) of every label is spread over the classes (M rows cannot tell rarer events): where all of them
    are right, T would otherwise fall to 0.
    """
    M, K = Y.shape
    logits, share = outputs.double(), 1.0 / (M + 2)
    target = (1.0 - share) * Y.double() + share / K
    if not bool(torch.isfinite(logits).all()):
        return 1.0

    def loss(log_T: float) -> float:
        return float(-(target * torch.log_softmax(logits / float(np.exp(log_T)), -1)).sum(1).mean())

    found: Any = minimize_scalar(loss, bounds=(np.log(COLDEST), np.log(HOTTEST)), method="bounded")
    return float(np.exp(found.x)) if loss(float(found.x)) < loss(0.0) else 1.0


def accuracy(outputs: Tensor, Y: Tensor) -> float:
    """Share of rows whose largest output is their class."""
    return float((outputs.argmax(1) == Y.argmax(1)).double().mean())
