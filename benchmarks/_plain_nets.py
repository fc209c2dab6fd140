"""A plain PyTorch net through k numbers: what anybody would train, and the reference beside `discover`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from _rank_peers import MOST, PATIENCE, halves, smallest
from torch import nn

WIDTH = 160
EPOCHS = 120
BATCH = 128
#: Inputs wider than this go in as their first principal components, this many.
COMPONENTS = 40


def waist(d_in: int, d_out: int, k: int | None) -> nn.Sequential:
    """From x → 160 → 160 → k → 160 → 160 → y with SiLU, but none at the k; without the k if that is None."""
    dims = [d_in, WIDTH, WIDTH, *([] if k is None else [k]), WIDTH, WIDTH, d_out]
    layers: list[nn.Module] = []
    for ell in range(1, len(dims)):
        layers.append(nn.Linear(dims[ell - 1], dims[ell]))
        if ell != len(dims) - 1 and not (k is not None and ell == 3):
            layers.append(nn.SiLU())
    return nn.Sequential(*layers)


def scaled(A: np.ndarray, fit: np.ndarray, common: bool) -> np.ndarray:
    """Columns in units of their spread on the rows ``fit``: each its own, or all one."""
    spread = A[fit].std(axis=0)
    spread = np.sqrt((spread**2).mean()) if common else np.where(spread > 0, spread, 1.0)
    return (A - A[fit].mean(axis=0)) / spread


def prepared(task: Any, X: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, np.ndarray, np.ndarray]:
    """Inputs (principal components where they are many) and outputs of unit variance in all, rows to fit and judge."""
    fit, judge = halves(X, task.groups)
    A, B = scaled(X, fit, task.common), scaled(task.Y, fit, task.common)
    # Gross errors of a sensor must not decide the units of all others.
    A = np.clip(A, -20, 20)
    if A.shape[1] > COMPONENTS:
        U = np.linalg.svd(A[fit], full_matrices=False)[2][:COMPONENTS]
        A = A @ U.T
        A /= A[fit].std(axis=0).max() / math.sqrt(2)
    return torch.from_numpy(A).float(), torch.from_numpy(B).float(), fit, judge


def plain_error(task: Any, k: int | None, *, seed: int = 0, epochs: int = EPOCHS) -> float:
    """Held-out error through k numbers, a share of the variance, after AdamW with a rate that falls to 0."""
    X = task.X if task.relevant is None else task.X[:, task.relevant]
    A, B, fit, judge = prepared(task, X)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = waist(A.shape[1], B.shape[1], k)
        steps = epochs * math.ceil(len(fit) / BATCH)
        optimiser = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps, pct_start=0.1)
        rows = torch.from_numpy(fit)
        for _ in range(epochs):
            for batch in rows[torch.randperm(len(rows))].split(BATCH):
                optimiser.zero_grad()
                (net(A[batch]) - B[batch]).square().mean().backward()
                optimiser.step()
                schedule.step()
    with torch.no_grad():
        held = (net(A[judge]) - B[judge]).square().mean()
    return float(held / B[judge].square().mean())


def plain_sweep(task: Any) -> dict[str, Any]:
    """Widths 1, 2, … of the waist until two in a row bring no tenth; the least within a tenth of the best."""
    errors: list[float] = []
    for k in range(1, min(MOST, task.X.shape[1], task.Y.shape[1]) + 1):
        errors.append(plain_error(task, k))
        if len(errors) - smallest(errors) >= PATIENCE:
            break
    return {"rank": smallest(errors), "errors": errors}
