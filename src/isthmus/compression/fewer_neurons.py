"""Fewer neurons within a tolerance: a greedy choice in each layer, and the next weights refitted to the original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus._checks import check_number
from isthmus.compression.choosing import choose_neurons, refit
from isthmus.compression.polish import polish, sigma
from isthmus.linalg import CHUNK_BYTES, chunk_rows, matrix
from isthmus.trace import activation_derivative

#: Weights as large as the original ones may cost this share of the squared error that τ allows.
RIDGE = 0.01
#: Thresholds tried: powers of ten first, then halvings of the interval between the last that serves and the next.
DECADES = 10
HALVINGS = 6
#: A stack that deviates by at most this many times the tolerance is worth polishing.
REACH = 30.0
#: Iterations of it, and what they may cost: iterations × samples × parameters.
STEPS, WORK = 300, 2e10


@dataclass(frozen=True, eq=False)
class Reduced:
    """A stack of layers with fewer neurons.

    Attributes
    ----------
    Ws : list of Tensor (n_{i+1}, n_i)
    bs : list of Tensor (n_{i+1},) or None
    kept : list of Tensor (n_{i+1},) of int64
        Of each hidden layer, which of its neurons.
    threshold : float
        τ; 0 if nothing smaller served.
    deviation : float
        max|Δoutput| / max|output| on the data.
    parameters : int
    state : str
        ``"refitted"`` layer by layer; ``"polished"`` if then all weights were fitted together; ``"unchanged"`` when no
        smaller stack was found within the tolerance.
    """

    Ws: list[Tensor]
    bs: list[Tensor | None]
    kept: list[Tensor]
    threshold: float
    deviation: float
    parameters: int
    state: str


@torch.no_grad()
def reduce_chain(
    Ws: Sequence[Tensor],
    bs: Sequence[Tensor | None],
    slopes: Sequence[float],
    X: Any,
    tolerance: float,
    *,
    linear: Sequence[Tensor] | None = None,
    steps: int = STEPS,
) -> Reduced:
    """Fewer neurons in every hidden layer with max|Δoutput| ≤ tolerance·max|output| on X.

    Front to back: neurons of the current network are chosen by :func:`choose_neurons` until they explain the original
    next pre-activations up to τ, and the next weights are refitted to these. The error of a layer is measured where it
    counts: weighted by E[JᵀJ], J the derivative of the outputs, it is to first order the relative error of the outputs.
    If they deviate by a little more than allowed, all weights are fitted to them together (:func:`polish`), where
    there are two numbers to match, samples × outputs, for each weight. The one τ is the largest that stays within the
    tolerance, by halving; of all that did, the one with the fewest parameters is polished to the end.

    Parameters
    ----------
    Ws, bs : W_i (n_{i+1}, n_i), and what is added to W_i·x or None
        Float64. A layer without biases gets none.
    slopes : sequence of float
        Of each hidden layer.
    X : array (N, n_0)
        Samples as rows. The tolerance is promised on these alone.
    tolerance : float
    linear : sequence of Tensor (n_{i+1},) of bool, optional
        Neurons without activation.
    steps : int
        Of each polishing; 0 for none.
    """
    who = "reduce_chain"
    check_number(who, "tolerance", tolerance, low=0.0)
    stack = _Stack(Ws, bs, slopes, matrix(who, "X", X), linear)
    unchanged = [torch.arange(len(W)) for W in Ws[:-1]]
    best = Reduced(list(Ws), list(bs), unchanged, 0.0, 0.0, count_parameters(Ws, bs), "unchanged")
    if stack.scale == 0.0 or len(Ws) < 2 or tolerance == 0.0:
        return best

    def within(threshold: float) -> bool:
        nonlocal best
        found = stack.reduced(threshold)
        if tolerance < found.deviation <= REACH * tolerance and found.parameters < best.parameters:
            found = stack.polished(found, steps, stop=tolerance)
        serves = found.deviation <= tolerance
        if serves and found.parameters < best.parameters:
            best = found
        return serves

    high = 1.0
    low = min(1.0, REACH * tolerance)
    for _ in range(DECADES):
        if within(low):
            break
        high, low = low, low / 10.0
    else:
        return best
    for _ in range(HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if within(middle) else (low, middle)
    # The search stops at the tolerance; what these neurons can do is usually better, also off the data.
    nearer = stack.polished(best, steps, stop=0.0) if best.state != "unchanged" else best
    return nearer if nearer.deviation < best.deviation else best


def count_parameters(Ws: Sequence[Tensor], bs: Sequence[Tensor | None]) -> int:
    """Scalars of a stack."""
    return sum(W.numel() for W in Ws) + sum(0 if b is None else len(b) for b in bs)


class _Stack:
    """The original layers, their pre-activations on the data, and how much these matter."""

    def __init__(
        self,
        Ws: Sequence[Tensor],
        bs: Sequence[Tensor | None],
        slopes: Sequence[float],
        X: Tensor,
        linear: Sequence[Tensor] | None,
    ) -> None:
        self.Ws, self.bs, self.slopes = list(Ws), list(bs), list(slopes)
        self.linear = [torch.zeros(len(W), dtype=torch.bool) for W in Ws[:-1]] if linear is None else list(linear)
        self.X = X.mT
        self.targets: list[Tensor] = []
        S = self.X
        for i, (W, b) in enumerate(zip(Ws, bs)):
            self.targets.append(_affine(W, b, S))
            if i + 1 < len(Ws):
                S = sigma(self.targets[-1], slopes[i], self.linear[i])
        self.scale = float(self.targets[-1].abs().max())
        self.weights = self._sensitivities()

    def _sensitivities(self) -> list[Tensor]:
        """Square roots of E[JᵀJ] at each layer's pre-activations, J the derivative of the outputs."""
        d, N = len(self.Ws[-1]), self.X.shape[1]
        widest = max(max(W.shape) for W in self.Ws)
        size = chunk_rows(N, 16.0 * d * widest, CHUNK_BYTES)
        sums = [torch.zeros(len(W), len(W), dtype=torch.float64) for W in self.Ws]
        for start in range(0, N, size):
            rows = slice(start, start + size)
            J = torch.eye(d, dtype=torch.float64).expand(min(size, N - start), d, d)
            for i in range(len(self.Ws) - 1, -1, -1):
                flat = J.reshape(-1, J.shape[2])
                sums[i] += flat.mT @ flat
                if i:
                    D = activation_derivative(self.targets[i - 1][:, rows], self.slopes[i - 1])
                    D = torch.where(self.linear[i - 1][:, None], 1.0, D)
                    J = (J @ self.Ws[i]) * D.mT[:, None, :]
        roots = []
        for M in sums:
            values, vectors = torch.linalg.eigh(M / N)
            roots.append(values.clamp_min(0.0).sqrt()[:, None] * vectors.mT)
        return roots

    def reduced(self, threshold: float) -> Reduced:
        """One pass from the inputs to the outputs at this τ."""
        Ws, bs, kept = [self.Ws[0]], [self.bs[0]], []
        S = self.X
        for i in range(len(self.Ws) - 1):
            A = sigma(_affine(Ws[i], bs[i], S), self.slopes[i], self.linear[i])
            T, biased = self.targets[i + 1], self.bs[i + 1] is not None
            seen = self.weights[i + 1] @ (T - T.mean(1, keepdim=True) if biased else T)
            # Directions of the activations that are too small to matter off the data are not blown up for less than τ.
            size = float((self.weights[i + 1] @ self.Ws[i + 1]).square().sum())
            ridge = RIDGE * threshold**2 * float(seen.square().sum()) / max(size, torch.finfo(torch.float64).tiny)
            J = choose_neurons(A, seen, bias=biased, tolerance=threshold, ridge=ridge).least(threshold)
            Ws[i], b = Ws[i][J], bs[i]
            bs[i] = None if b is None else b[J]
            W, b = refit(A[J], T, bias=biased, ridge=ridge)
            Ws.append(W)
            bs.append(b)
            kept.append(J)
            S = A[J]
        deviation = float((_affine(Ws[-1], bs[-1], S) - self.targets[-1]).abs().max()) / self.scale
        return Reduced(Ws, bs, kept, threshold, deviation, count_parameters(Ws, bs), "refitted")

    def polished(self, found: Reduced, steps: int, *, stop: float) -> Reduced:
        """The same neurons with all weights fitted together, until the outputs deviate by at most ``stop``."""
        samples = self.X.shape[1]
        count = min(steps, int(WORK / (samples * found.parameters)))
        # With nearly as many weights as numbers to match, they would follow the samples and nothing else.
        if count < 1 or 2 * found.parameters > self.targets[-1].numel():
            return found
        linear = [mask[J] for mask, J in zip(self.linear, found.kept)]
        Ws, bs, deviation = polish(
            found.Ws, found.bs, self.slopes, linear, self.X, self.targets[-1], steps=count, stop=stop
        )
        return Reduced(Ws, bs, found.kept, found.threshold, deviation, found.parameters, "polished")


def _affine(W: Tensor, b: Tensor | None, S: Tensor) -> Tensor:
    return W @ S if b is None else W @ S + b[:, None]
