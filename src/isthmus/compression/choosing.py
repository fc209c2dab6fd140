"""Which neurons of a layer explain the next one, and the weights after them refitted: orthogonal least squares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus._checks import fail
from isthmus.linalg import matrix
from isthmus.measures.kernel_norms import fewer_columns

#: Directions of the chosen activations below this share of the largest are not used in a refit.
CUT = 1e-10


@dataclass(frozen=True, eq=False)
class Choice:
    """Neurons of a layer in the order in which they explain the next one.

    Attributes
    ----------
    order : Tensor (k,) of int64
    errors : Tensor (k + 1,)
        Relative error of the best fit with the first 0, 1, … k of them.
    floor : float
        The error with all neurons, which is what layers before have left.
    """

    order: Tensor
    errors: Tensor
    floor: float

    def least(self, tolerance: float) -> Tensor:
        """The fewest of the first neurons, at least one, with error² ≤ floor² + tolerance²; in their own order."""
        enough = torch.nonzero(self.errors <= _allowed(self.floor, tolerance))[:, 0]
        count = int(enough[0]) if len(enough) else len(self.order)
        return self.order[: max(1, count)].sort().values


def choose_neurons(S: Any, T: Any, *, bias: bool = True, tolerance: float = 0.0, ridge: float = 0.0) -> Choice:
    """Neurons by orthogonal least squares: each next one lowers ‖T − W'[S_J; 1]‖² + γ‖W'‖² most.

    The gain of neuron i is ‖R s̃_iᵀ‖² / ‖s̃_i‖², R the residual and s̃_i what is left of its activations beside the chosen
    ones; both are kept up to date by one rank-one step, O((n + m)·min(N, n + m)) for each neuron.

    Parameters
    ----------
    S : array (n, N)
        Activations, neurons as rows.
    T : array (m, N)
        What the next layer should see; weighted by what its coordinates matter, if they do not matter alike.
    bias : bool
        Whether a constant comes for free. Errors are relative to what it cannot explain.
    tolerance : float
        Stop at this error beyond that with all neurons, or at rounding.
    ridge : float
        γ.
    """
    A, B = matrix("choose_neurons", "S", S), matrix("choose_neurons", "T", T)
    if A.shape[1] != B.shape[1]:
        got = f"{tuple(A.shape)} and {tuple(B.shape)}"
        fail("choose_neurons", "`S` and `T` must have the same samples as columns", got, "Use the same data for both.")
    if bias:
        A, B = A - A.mean(1, keepdim=True), B - B.mean(1, keepdim=True)
    whole = float(B.norm())
    if whole == 0.0:
        return Choice(torch.zeros(1, dtype=torch.int64), torch.zeros(2, dtype=torch.float64), 0.0)
    A, B = _with_ridge(A, B, ridge)
    fitted = torch.linalg.lstsq(A.mT, B.mT, rcond=CUT, driver="gelsd").solution.mT @ A
    floor = float((B - fitted).norm()) / whole
    stop = max(_allowed(floor, tolerance), 1e-14)
    sizes = A.square().sum(1)
    rounding = CUT**2 * sizes
    free = sizes > 0
    order: list[int] = []
    errors = [1.0]
    while errors[-1] > stop and bool(free.any()):
        gains = (A @ B.mT).square().sum(1) / sizes.clamp_min(torch.finfo(torch.float64).tiny)
        best = int(torch.where(free, gains, -1.0).argmax())
        q = A[best] / A[best].norm()
        A = A - torch.outer(A @ q, q)
        B = B - torch.outer(B @ q, q)
        sizes = A.square().sum(1)
        order.append(best)
        free[best] = False
        # What is left of a neuron within the span of the chosen ones is rounding, and no direction.
        free &= sizes > rounding
        errors.append(float(B.norm()) / whole)
    # Without any neuron that moves, one stands for all.
    return Choice(torch.tensor(order or [0], dtype=torch.int64), torch.tensor(errors, dtype=torch.float64), floor)


def refit(S: Tensor, T: Tensor, *, bias: bool, ridge: float = 0.0) -> tuple[Tensor, Tensor | None]:
    """W', b' = argmin ‖T − W'S − b'1ᵀ‖² + γ‖W'‖²; directions of S below 1e-10 of the largest are left out."""
    mean_S, mean_T = (S.mean(1), T.mean(1)) if bias else (S.new_zeros(len(S)), T.new_zeros(len(T)))
    A, B = _with_ridge(S - mean_S[:, None], T - mean_T[:, None], ridge)
    W = torch.linalg.lstsq(A.mT, B.mT, rcond=CUT, driver="gelsd").solution.mT
    return W, mean_T - W @ mean_S if bias else None


def _allowed(floor: float, tolerance: float) -> float:
    # Rounding of the floor itself must not ask for one neuron more.
    return (floor**2 + tolerance**2) ** 0.5 * (1 + 1e-9)


def _with_ridge(A: Tensor, B: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Fewer columns with the same inner products, and √γ for each neuron as a sample of its own, where B is 0."""
    if ridge > 0.0:
        A = torch.cat([A, ridge**0.5 * torch.eye(len(A), dtype=A.dtype)], 1)
        B = torch.cat([B, B.new_zeros(len(B), len(A))], 1)
    A, B = fewer_columns([A, B]).split([len(A), len(B)])
    return A, B
