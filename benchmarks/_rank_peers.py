"""Supervised ways to a rank that people use today: PLS, a sweep of explicit bottlenecks, the gap of xRFM's AGOP."""

from __future__ import annotations

import contextlib
import io
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from sklearn.cross_decomposition import PLSRegression
from sklearn.model_selection import GroupKFold, GroupShuffleSplit, KFold, ShuffleSplit
from torch import Tensor, nn

#: Of sizes whose held-out errors are within this of the best, the smallest is the answer.
WITHIN = 0.10
#: Errors below this share of the variance are as good as none.
FLOOR = 1e-6
#: Largest number of components or of neurons that is tried.
MOST = 12
#: Sizes in a row that bring no such improvement, after which the sweep ends.
PATIENCE = 2
BATCH = 256


def smallest(errors: list[float]) -> int:
    """The first of sizes 1, 2, … whose error (a share of the variance) is within 10 % of the best."""
    best = max(min(errors), FLOOR)
    return 1 + next(i for i, error in enumerate(errors) if error <= (1 + WITHIN) * best)


def folds(X: np.ndarray, groups: Any, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Training and held-out rows; rows of one group stay together."""
    if groups is None:
        return iter(KFold(count, shuffle=True, random_state=0).split(X))
    return iter(GroupKFold(count).split(X, groups=groups))


def halves(X: np.ndarray, groups: Any) -> tuple[np.ndarray, np.ndarray]:
    """Four fifths to fit and a fifth to judge."""
    kind = ShuffleSplit if groups is None else GroupShuffleSplit
    fit, judge = next(kind(1, test_size=0.2, random_state=0).split(X, groups=groups))
    return fit, judge


def standard(A: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Columns in units of their own spread on some rows; constant ones are only centred."""
    spread = A[rows].std(axis=0)
    return (A - A[rows].mean(axis=0)) / np.where(spread > 0, spread, 1.0)


def pls(X: np.ndarray, Y: np.ndarray, groups: Any = None) -> dict[str, Any]:
    """Partial least squares: components by the error over five folds."""
    errors = []
    for k in range(1, min(MOST, X.shape[1]) + 1):
        total = 0.0
        for fit, judge in folds(X, groups, 5):
            A, B = standard(X, fit), standard(Y, fit)
            with warnings.catch_warnings():
                # A residual of nothing: more components than there is to explain, which shows in no lower error.
                warnings.simplefilter("ignore")
                model = PLSRegression(k, scale=False).fit(A[fit], B[fit])
                total += float(((model.predict(A[judge]) - B[judge]) ** 2).sum())
        errors.append(total / Y.size)
    return {"rank": smallest(errors), "errors": errors}


def hourglass(d_in: int, d_out: int, k: int, depth: int, width: int) -> nn.Sequential:
    """``depth`` layers, the middle one k neurons without a ReLU: x → k → y."""
    half = depth // 2
    dims = [d_in, *[width] * (half - 1), k, *[width] * (depth - half - 1), d_out]
    layers: list[nn.Module] = []
    for ell in range(1, len(dims)):
        layers.append(nn.Linear(dims[ell - 1], dims[ell]))
        if ell not in (half, len(dims) - 1):
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def fitted_error(net: nn.Sequential, fit: tuple[Tensor, Tensor], judge: tuple[Tensor, Tensor], steps: int) -> float:
    """Adam at 1e-3 on batches; the least held-out error on the way, looked at every 50 steps."""
    X, Y = fit
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    least = float("inf")
    for step in range(1, steps + 1):
        rows = torch.randint(len(X), (min(BATCH, len(X)),), generator=generator)
        optimiser.zero_grad()
        (net(X[rows]) - Y[rows]).square().mean().backward()
        optimiser.step()
        if step % 50 == 0:
            with torch.no_grad():
                least = min(least, float((net(judge[0]) - judge[1]).square().mean()))
    return least


def sweep(
    X: np.ndarray, Y: np.ndarray, groups: Any = None, *, depth: int = 8, width: int = 64, steps: int = 1500
) -> dict[str, Any]:
    """Networks with an explicit bottleneck of k = 1, 2, … neurons, as deep and wide as those of ``discover``."""
    fit, judge = halves(X, groups)
    A, B = (torch.from_numpy(standard(values, fit)).float() for values in (X, Y))
    errors: list[float] = []
    for k in range(1, min(MOST, X.shape[1], Y.shape[1]) + 1):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(k)
            net = hourglass(X.shape[1], Y.shape[1], k, depth, width)
        errors.append(fitted_error(net, (A[fit], B[fit]), (A[judge], B[judge]), steps))
        if len(errors) - smallest(errors) >= PATIENCE:
            break
    return {"rank": smallest(errors), "errors": errors}


def agop_gap(X: np.ndarray, Y: np.ndarray, groups: Any = None) -> dict[str, Any]:
    """Largest ratio of neighbouring eigenvalues of the AGOP of the best model of xRFM, at its default arguments."""
    from xrfm import xRFM  # pyright: ignore[reportMissingImports]  (an extra)

    fit, judge = halves(X, groups)
    A, B = (torch.from_numpy(standard(values, fit)).float() for values in (X, Y))
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        stack.enter_context(warnings.catch_warnings(action="ignore"))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        torch.manual_seed(0)
        model = xRFM(device="cpu", verbose=False, tuning_metric="mse")
        model.fit(A[fit], B[fit], A[judge], B[judge])
    (M,) = model.collect_best_agops()
    values = torch.linalg.eigvalsh(M.double()).flip(0)
    # Computed in float32: smaller ones are rounding.
    values = values.clamp(min=float(values[0]) * 1e-6)
    return {"rank": int((values[:-1] / values[1:]).argmax()) + 1, "eigenvalues": values.tolist()}


#: Name in the table → (what must be installed, how).
PEERS: dict[str, tuple[str, Callable[..., dict[str, Any]]]] = {
    "pls": ("scikit-learn", pls),
    "sweep": ("torch", sweep),
    "agop": ("xrfm", agop_gap),
}


def timed(function: Callable[..., dict[str, Any]], *given: Any, **more: Any) -> dict[str, Any]:
    """What a peer found, and its seconds."""
    start = time.perf_counter()
    found = function(*given, **more)
    return {**found, "seconds": round(time.perf_counter() - start, 2)}
