"""All weights of a reduced stack fitted together to the outputs of the original, until they are near enough."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from scipy.optimize import minimize
from torch import Tensor

from isthmus.trace import activate

#: Pairs that L-BFGS remembers.
MEMORY = 30


def run(
    Ws: Sequence[Tensor], bs: Sequence[Tensor | None], slopes: Sequence[float], linear: Sequence[Tensor], S: Tensor
) -> Tensor:
    """Outputs (n_L, N) of a stack on inputs S (n_0, N), samples as columns; ``linear`` neurons have no activation."""
    for i, (W, b) in enumerate(zip(Ws, bs)):
        S = W @ S if b is None else W @ S + b[:, None]
        if i + 1 < len(Ws):
            S = sigma(S, slopes[i], linear[i])
    return S


def sigma(Z: Tensor, slope: float, linear: Tensor) -> Tensor:
    """σ_a(Z) for rows that are not ``linear``."""
    S = activate(Z, slope)
    return torch.where(linear[:, None], Z, S) if bool(linear.any()) else S


def polish(
    Ws: Sequence[Tensor],
    bs: Sequence[Tensor | None],
    slopes: Sequence[float],
    linear: Sequence[Tensor],
    X: Tensor,
    Y: Tensor,
    *,
    steps: int,
    stop: float,
) -> tuple[list[Tensor], list[Tensor | None], float]:
    """Lower ‖f(X) − Y‖² over all weights by L-BFGS, from those given, until max|f(X) − Y| ≤ stop·max|Y|.

    Parameters
    ----------
    Ws, bs, slopes, linear
        The stack. Layers without biases stay so.
    X, Y : Tensor (n_0, N), (n_L, N)
        Samples as columns.
    steps : int
        At most so many iterations.
    stop : float

    Returns
    -------
    Ws, bs, deviation
        Of the iterate with the least max|f(X) − Y| / max|Y|.
    """
    tensors = [*Ws, *(b for b in bs if b is not None)]
    sizes = [t.numel() for t in tensors]
    square, top = float(Y.square().mean()), float(Y.abs().max())
    best: tuple[float, Tensor | None] = (float("inf"), None)

    def unpack(vector: Tensor) -> tuple[list[Tensor], list[Tensor | None]]:
        parts = [part.reshape(t.shape) for part, t in zip(vector.split(sizes), tensors)]
        biases = iter(parts[len(Ws) :])
        return parts[: len(Ws)], [None if b is None else next(biases) for b in bs]

    def value(point: object) -> tuple[float, object]:
        nonlocal best
        vector = torch.tensor(point, dtype=torch.float64, requires_grad=True)
        with torch.enable_grad():
            error = run(*unpack(vector), slopes, linear, X) - Y
            loss = error.square().mean() / square
            loss.backward()
        found = float(error.detach().abs().max()) / top
        if found < best[0]:
            best = found, vector.detach()
        assert vector.grad is not None
        return float(loss.detach()), vector.grad.numpy()

    def enough(_: object) -> None:
        if best[0] <= stop:
            raise StopIteration

    start = torch.cat([t.reshape(-1) for t in tensors]).numpy()
    options = {"maxiter": steps, "maxfun": 2 * steps, "maxcor": MEMORY, "ftol": 0.0, "gtol": 0.0}
    minimize(value, start, jac=True, method="L-BFGS-B", callback=enough, options=options)
    if best[1] is None:  # no finite value at all
        return list(Ws), list(bs), float("inf")
    weights, biases = unpack(best[1])
    return [W.clone() for W in weights], [None if b is None else b.clone() for b in biases], best[0]
