"""What a training ended with, and why it stopped."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from isthmus.measures._stationarity import Stationarity
from isthmus.networks._network import hooks_of
from isthmus.training._objective import Value

#: Why a training stopped; results of earlier versions have these numbers, where "flat" was called "converged".
STATES = ("flat", "budget", "diverged", "interrupted", "stationary")
#: Those of a training that came to rest.
AT_REST = ("flat", "stationary")


@dataclass(frozen=True)
class Criteria:
    """The three numbers that say how converged a training is.

    Attributes
    ----------
    gradient : float
        ‖∇loss‖ / (2·ridge·‖θ‖): 0 at a smooth minimum. At a minimum that sits on kinks it stays above 0, and
        :func:`isthmus.measures.stationarity` tells how far that is from a stationary point. NaN without
        ridge, and where the parameters vanish (ridge·‖θ‖² within rounding of the loss): the zero solution. For a leaky
        ResNet with fixed maps it is the residual of W = L̃Bσ(A)ᵀ that :func:`isthmus.mechanics` reports.
    decrease : float
        Relative decrease of the loss over the last ``window`` quasi-Newton steps; 0 where no step lowers it, NaN
        where it was not judged.
    balance : float
        max_ℓ |‖W_ℓ‖² + ‖b_ℓ‖² − ‖W_{ℓ+1}‖²| relative to the mean ‖W_ℓ‖²: 0 at every minimum, kinks or not. NaN for
        networks without that law (leaky ResNets; frozen parameters break it), without ridge, and where the weights
        vanish.
    window : int
    """

    gradient: float
    decrease: float
    balance: float
    window: int

    def met(self, tolerance: float) -> bool:
        """Whether the loss has stopped falling, and balance and gradient are small enough.

        The decrease must be below ``tolerance``, the balancedness residual below 100·``tolerance``, and the gradient
        below one half: the forces of cost and ridge cancel up to what kinks leave.
        """
        small_balance = math.isnan(self.balance) or self.balance <= 100 * tolerance
        small_gradient = math.isnan(self.gradient) or self.gradient <= 0.5
        return self.decrease <= tolerance and small_balance and small_gradient

    def falls_no_more(self, tolerance: float) -> bool:
        """The same without the gradient, for a network whose residual at kinks has been computed."""
        return self.decrease <= tolerance and (math.isnan(self.balance) or self.balance <= 100 * tolerance)


def criteria(
    net: nn.Module, value: Value, ridge: float, losses: list[float], window: int, *, stalled: bool = False
) -> Criteria:
    """Evaluate the three criteria at the end of ``losses``; ``stalled``: no step lowers the loss any more."""
    gradient = math.nan
    # Both laws compare forces on θ (or the weights alone) with its size: no meaning once that is lost in rounding.
    rounding = torch.finfo(value.gradient.dtype).eps * abs(value.loss)
    alive = ridge * value.norm > rounding
    if alive:
        gradient = float(value.gradient.norm()) / (2.0 * ridge * math.sqrt(value.norm))
    decrease = 0.0 if stalled else math.nan
    if not stalled and len(losses) > window:
        decrease = (losses[-1 - window] - losses[-1]) / max(abs(losses[-1]), 1e-300)
    residual, size = hooks_of(net).imbalance() if alive else (math.nan, math.nan)
    # A constant function can be the minimum, with nothing but the last bias.
    return Criteria(gradient, decrease, residual if ridge * size > rounding else math.nan, window)


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """The trained network and the evidence about it.

    Attributes
    ----------
    network : nn.Module
        The module given, trained in place.
    state : str
        ``"stationary"``: the residual at kinks is at most 10⁻³, see ``stationarity``. ``"flat"``: the loss has stopped
        falling, which is less. Else ``"budget"``, ``"diverged"`` or ``"interrupted"``.
    reason : str
        The same in a sentence.
    loss, cost, norm : float
        cost + ridge·‖θ‖², cost, and ‖θ‖² over the trainable parameters.
    ridge : float
    criteria : Criteria
    stationarity : Stationarity or None
        The certificate of a training that was to end at a stationary point (``finish="stationary"``), reached or not.
    steps, evaluations : int
        Steps taken, and evaluations of loss and gradient (line searches included).
    seconds : float
        Of this call; a resumed training counts only its last part.
    history : dict of ndarray
        ``loss``, ``cost``, ``norm``, ``ridge`` at every step and ``phase`` (index).
    settings : dict
        How it was trained, as plain data.
    """

    network: nn.Module
    state: str
    reason: str
    loss: float
    cost: float
    norm: float
    ridge: float
    criteria: Criteria
    steps: int
    evaluations: int
    seconds: float
    history: dict[str, np.ndarray] = field(repr=False)
    settings: dict[str, Any] = field(repr=False)
    stationarity: Stationarity | None = None

    @property
    def at_rest(self) -> bool:
        """Whether it came to an end by itself: stationary, or at least flat."""
        return self.state in AT_REST

    @property
    def norm_per_depth(self) -> float:
        """‖θ‖²/L over all weights and biases of a fully connected network; NaN for others."""
        return hooks_of(self.network).norm_per_depth()

    def to_dict(self) -> dict[str, Any]:
        """Everything but the network and the history, as plain data."""
        return {
            "state": self.state,
            "reason": self.reason,
            "loss": self.loss,
            "cost": self.cost,
            "norm": self.norm,
            "norm_per_depth": self.norm_per_depth,
            "ridge": self.ridge,
            "gradient": self.criteria.gradient,
            "decrease": self.criteria.decrease,
            "balance": self.criteria.balance,
            "stationarity": None if self.stationarity is None else self.stationarity.to_dict(),
            "steps": self.steps,
            "evaluations": self.evaluations,
            "seconds": self.seconds,
            "threads": torch.get_num_threads(),
            "settings": self.settings,
        }


def recent(history: dict[str, list[float]], window: int) -> list[float]:
    """The last ``window + 1`` losses, as far as phase and ridge are those of the last."""
    places = list(zip(history["ridge"][-window - 1 :], history["phase"][-window - 1 :]))
    count = 0
    while count < len(places) and places[-1 - count] == places[-1]:
        count += 1
    return history["loss"][len(history["loss"]) - count :]


def why_not(found: Criteria, tolerance: float, steps: int, *, judged: bool) -> str:
    """The reason of a training that came to the end of its plan."""
    if not judged:
        return f"not judged after {steps} steps: only 'lbfgs' phases converge. End `phases` with Phase(\"lbfgs\", …)"
    # Not every network has a law of balance.
    balance = f"balancedness residual {found.balance:.1e} (wanted {100 * tolerance:.0e}), "
    left = f"{'' if math.isnan(found.balance) else balance}gradient {found.gradient:.1e} of ridge·θ"
    if found.decrease == 0.0:
        return (
            f"no step lowers the loss after {steps} steps, yet {left} (wanted 0.5): a kink, or rounding. "
            'Add Phase("lbfgs", …, precision="double")'
        )
    return (
        f"not converged after {steps} steps: relative decrease {found.decrease:.1e} over the last {found.window} "
        f"(wanted {tolerance:.0e}), {left}. Allow more steps, or raise `tolerance`"
    )
