"""What claims beyond one network share: what is lacking, a few rows of the data, an exponent with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import t as t_distribution
from torch import Tensor

from isthmus._checks import fail
from isthmus.claims.base import CLAIMS, Hypothesis, Verdict, not_applicable


def lacking(identity: str, relation: str, reason: str) -> Verdict:
    """The verdict where the subject does not bring what the claim is about: no hypothesis is known."""
    unknown = [Hypothesis.of(name, None) for name in CLAIMS[identity].hypotheses]
    return not_applicable(identity, relation, unknown, reason)


def some_rows(X: Tensor, most: int) -> Tensor:
    """At most ``most`` indices of rows, evenly spaced."""
    return torch.linspace(0, len(X) - 1, min(len(X), most)).round().long().unique()


@dataclass(frozen=True)
class Exponent:
    """e of values ∝ sizes^e, with its confidence interval."""

    value: float
    low: float
    high: float

    @property
    def numbers(self) -> list[float]:
        """Value, lower and upper end: what a verdict's details show."""
        return [self.value, self.low, self.high]


def fit_exponent(
    sizes: Sequence[float], values: Sequence[float], *, finite_size: bool = False, confidence: float = 0.95
) -> Exponent:
    """Least squares of log value = e·log size + constant (+ a/size); the interval is Student's.

    Parameters
    ----------
    sizes, values : sequences of n > 2 positive numbers
        Repetitions of a size are allowed, and make the interval honest.
    finite_size : bool, default False
        Fit the term a/size too, by which a power law is approached. It needs 4 sizes and widens the interval.
    """
    x, y = np.asarray(sizes, dtype=np.float64), np.asarray(values, dtype=np.float64)
    least = 4 if finite_size else 3
    if len(x) != len(y) or len(np.unique(x)) < least or not (np.all(x > 0) and np.all(y > 0)):
        got = f"{len(x)} sizes and {len(y)} values"
        must = f"at least {least} different sizes, and positive values, are needed"
        fail("fit_exponent", must, got, "Pass more sizes.")
    columns = np.stack([np.log(x), np.ones_like(x), x.min() / x][: least - 1], axis=1)
    inverse = np.linalg.pinv(columns)
    fit = inverse @ np.log(y)
    freedom = len(x) - columns.shape[1]
    misfit = float(((np.log(y) - columns @ fit) ** 2).sum())
    error = math.sqrt(misfit / freedom * float(inverse[0] @ inverse[0]))
    reach = error * float(t_distribution.ppf(0.5 + confidence / 2.0, freedom))
    return Exponent(float(fit[0]), float(fit[0]) - reach, float(fit[0]) + reach)
