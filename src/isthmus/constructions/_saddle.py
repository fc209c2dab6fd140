"""A-saddle: weights that are a local minimum of the loss while their covariances are not one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus._checks import check_choice, check_number, fail
from isthmus._cite import cites
from isthmus.networks import FullyConnected

#: How the paper's λ is meant: of the sum of squares (its proof) or of the mean over the two samples (its statement).
CONVENTIONS = ("mean", "sum")


@dataclass(frozen=True, eq=False)
class Saddle:
    """Prop. 19's network of widths (1, 2, 1), its data, and the way out at the end of its segment of minima.

    Attributes
    ----------
    network : FullyConnected
        W_1 = (a_1, a_2)ᵀ, W_2 = (a_1, a_2), a_i > 0: a local minimum of the loss.
    end : FullyConnected
        W_1 = (√c, 0)ᵀ, W_2 = (√c, 0), c = a_1² + a_2²: the same covariances and outputs, and no local minimum.
    X, Y : Tensor (2, 1)
        Inputs 1, −1 and targets 1, 1.
    ridge : float
        Ours: cost is the mean over the two samples. c = 1 − 2·ridge.
    """

    network: FullyConnected
    end: FullyConnected
    X: Tensor
    Y: Tensor
    ridge: float

    @property
    def value(self) -> float:
        """The loss at ``network`` and at ``end``: ½((2·ridge)² + 1) + 2·ridge·(1 − 2·ridge)."""
        lam = 2.0 * self.ridge
        return 0.5 * (lam**2 + 1.0) + lam * (1.0 - lam)

    def escape(self, epsilon: float, *, printed: bool = False) -> FullyConnected:
        """W_1 = (√c, −ε)ᵀ, W_2 = (√c, +ε): below the loss at ``end`` for small ε ≠ 0.

        Departs from the paper: it prints −ε in W_2 (``printed=True``), which gives the output −ε² in place of ε².
        """
        check_number("Saddle.escape", "epsilon", epsilon)
        root = math.sqrt(1.0 - 2.0 * self.ridge)
        return _network([root, -epsilon], [root, -epsilon if printed else epsilon])

    def value_along(self, epsilon: float) -> float:
        """The loss of ``escape(epsilon)``: ½[λ² + (1−ε²)² + 2λ(1−λ+ε²)] with λ = 2·ridge, of the plain sum."""
        lam = 2.0 * self.ridge
        return 0.5 * (lam**2 + (1.0 - epsilon**2) ** 2 + 2.0 * lam * (1.0 - lam + epsilon**2))


@cites("features2022", "Prop. 19", ids=("A-saddle",))
def saddle(lam: float, *, angle: float = math.pi / 4, convention: str = "mean") -> Saddle:
    """W_1 = (a_1, a_2)ᵀ, W_2 = (a_1, a_2) on X = (1, −1), Y = (1, 1): a local minimum in W, not in (K, K^σ, Z_2).

    For weights of positive sign the loss is ½(1 − t)² + ½ + 2·ridge·(t + 2d) with t = W_2W_1 and 4d = ‖W_1 − W_2ᵀ‖²:
    above its value at t = 1 − 2·ridge, d = 0 by ½(t − 1 + 2·ridge)² + 4·ridge·d exactly. So each point of the open
    quarter circle a_1² + a_2² = 1 − 2·ridge is a local minimum; at its end a neuron is free to see the other sample.

    Parameters
    ----------
    lam : float
        λ > 0; below ½ for the mean, below 1 for the sum.
    angle : float, default π/4
        (a_1, a_2) = √c(cos, sin), in (0, π/2).
    convention : {"mean", "sum"}
        ``"mean"``: our loss, ½‖Z_2 − Y‖² + λ‖W‖², c = 1 − 2λ. ``"sum"``: that of the paper's proof, ‖Z_2 − Y‖² + λ‖W‖²,
        c = 1 − λ: twice our loss with ridge = λ/2.
    """
    who = "saddle"
    check_choice(who, "convention", convention, CONVENTIONS)
    check_number(who, "lam", lam, low=0.0, low_open=True)
    check_number(who, "angle", angle)
    ridge = lam if convention == "mean" else lam / 2.0
    if ridge >= 0.5:
        limit = "½" if convention == "mean" else "1"
        fail(
            who, f"`lam` must be below {limit} for the {convention}", lam, "Above it the weights vanish at the minimum."
        )
    if not 0.0 < angle < math.pi / 2:
        fail(who, "`angle` must lie inside (0, π/2), so that both weights are positive", angle, "Try math.pi / 4.")
    root = math.sqrt(1.0 - 2.0 * ridge)
    a = [root * math.cos(angle), root * math.sin(angle)]
    X = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    return Saddle(_network(a, a), _network([root, 0.0], [root, 0.0]), X, torch.ones_like(X), ridge)


def _network(first: list[float], second: list[float]) -> FullyConnected:
    Ws = [torch.tensor(first, dtype=torch.float64)[:, None], torch.tensor(second, dtype=torch.float64)[None]]
    return FullyConnected.from_weights(Ws, slope=0.0, bias=0.0).requires_grad_(False)
