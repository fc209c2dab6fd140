"""What a training consists of: phases, each one optimiser with its schedule. Plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass

from isthmus._checks import check_choice, check_integer, check_number, fail

METHODS = ("scale", "adam", "gd", "sgd", "nesterov", "lbfgs", "narrow")


@dataclass(frozen=True)
class Phase:
    """One optimiser for a number of steps.

    Attributes
    ----------
    method : {"scale", "adam", "gd", "sgd", "nesterov", "lbfgs", "narrow"}
        ``"sgd"`` is gradient descent with momentum on mini-batches; ``"nesterov"`` restarts its momentum whenever
        the loss rises; ``"lbfgs"`` has a line search, no learning rate, and stops when converged; ``"narrow"`` removes
        the weakest dimension of the middle layer, polishes, and keeps that if the loss is lower; ``"scale"`` multiplies
        all parameters by one number ≤ 1 so that the cost is at most twice that of a constant.
    steps : int
        At most this many.
    learning_rate : float, optional
        Needed by the first-order methods.
    batch_size : int, optional
        Mini-batches for ``"adam"`` and ``"sgd"``; all samples otherwise.
    ridge_start, ridge_end : float > 0
        The ridge goes geometrically from ``ridge_start`` to ``ridge_end`` times its value …
    ridge_share : float in [0, 1]
        … during this share of the phase, and then stays.
    anneal : bool
        Whether the learning rate falls along a cosine to a hundredth, after a short linear rise.
    momentum : float
        For ``"sgd"``.
    memory : int
        Pairs kept by ``"lbfgs"``.
    metric : bool
        Whether ``"lbfgs"`` starts from the Kronecker-factored metric where there is one (fully connected networks).
    attempt : int
        Polishing steps after which ``"narrow"`` decides; ``steps`` bounds their sum.
    precision : {"module", "double"}
        ``"double"`` runs the phase in float64 whatever the module's dtype.
    """

    method: str
    steps: int
    learning_rate: float | None = None
    batch_size: int | None = None
    ridge_start: float = 1.0
    ridge_end: float = 1.0
    ridge_share: float = 0.7
    anneal: bool = False
    momentum: float = 0.9
    memory: int = 20
    metric: bool = True
    attempt: int = 60
    precision: str = "module"

    def __post_init__(self) -> None:
        who = "Phase"
        check_choice(who, "method", self.method, METHODS)
        check_choice(who, "precision", self.precision, ("module", "double"))
        check_integer(who, "steps", self.steps, low=0)
        check_integer(who, "memory", self.memory, low=1, high=1000)
        check_number(who, "ridge_start", self.ridge_start, low=0.0, low_open=True)
        check_number(who, "ridge_end", self.ridge_end, low=0.0, low_open=True)
        check_number(who, "ridge_share", self.ridge_share, low=0.0, high=1.0)
        check_number(who, "momentum", self.momentum, low=0.0, high=1.0)
        check_integer(who, "attempt", self.attempt, low=1)
        if self.quasi_newton or self.method == "scale":
            if self.batch_size is not None:
                fail(who, f"`batch_size` must be None for {self.method!r}", self.batch_size, "Use 'adam' or 'sgd'.")
        elif self.learning_rate is None:
            fail(who, f"`learning_rate` must be given for {self.method!r}", None, "Pass e.g. 1e-3.")
        else:
            check_number(who, "learning_rate", self.learning_rate, low=0.0, low_open=True)
        if self.batch_size is not None:
            check_integer(who, "batch_size", self.batch_size, low=1)
            if self.method in ("gd", "nesterov"):
                fail(who, f"`batch_size` must be None for {self.method!r}", self.batch_size, "Use 'sgd'.")

    @property
    def quasi_newton(self) -> bool:
        """Whether the phase takes line-searched steps on all samples."""
        return self.method in ("lbfgs", "narrow")

    def ridge_factor(self, step: int) -> float:
        """The ridge in force at ``step`` (from 0), as a multiple of the training's."""
        change = self.ridge_share * self.steps
        if step >= change:
            return self.ridge_end
        return self.ridge_start * (self.ridge_end / self.ridge_start) ** (step / change)

    def rate(self, step: int) -> float:
        """Learning rate at ``step`` (from 0)."""
        if self.learning_rate is None:
            return 1.0
        if not self.anneal:
            return self.learning_rate
        warm = max(1.0, 0.05 * self.steps)
        fall = 0.505 + 0.495 * math.cos(math.pi * step / max(self.steps, 1))
        return self.learning_rate * min(1.0, (step + 1) / warm) * fall
