"""Rank-1 factorisation by gradient descent, and its two summary statistics."""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus._checks import as_matrix, check_integer, check_number, fail
from isthmus._cite import cites
from isthmus.problems.base import Array


@cites("bottleneck2023", "§5, summary statistics", ids=("Q-summary",))
def summary_statistics(V: Any, w: Any) -> Array:
    """u(v) = ((wᵀv)², ‖(I − wwᵀ)v‖²) for a unit vector w.

    Parameters
    ----------
    V : array (N, d)
        Vectors v as rows.
    w : array (d,)
        A unit vector.

    Returns
    -------
    array (N, 2)
        The slides use the square roots.
    """
    V = as_matrix("summary_statistics", "V", V).numpy()
    w = _unit("summary_statistics", w, V.shape[1])
    along = V @ w
    # By the residual, not by ‖v‖² − (wᵀv)², which cancels when v is nearly parallel to w.
    return np.column_stack([along**2, ((V - along[:, None] * w) ** 2).sum(axis=1)])


@cites("bottleneck2023", "§5, evolution of the summary statistics", ids=("Q-summary",))
def summary_velocity(U: Any) -> Array:
    """∂_t u under gradient flow with E = 0: (−8(n − 1)u₁, −8n u₂) with n = ‖v‖² = u₁ + u₂.

    Parameters
    ----------
    U : array (N, 2)
        Summary statistics u as rows.

    Returns
    -------
    array (N, 2)
    """
    U = as_matrix("summary_velocity", "U", U, columns=2).numpy()
    n = U.sum(axis=1)
    return np.column_stack([-8.0 * (n - 1.0) * U[:, 0], -8.0 * n * U[:, 1]])


@cites("bottleneck2023", "§5, the cost in summary statistics", ids=("Q-summary",))
def summary_cost(U: Any) -> Array:
    """C = ‖v‖⁴ − 2(wᵀv)² + 1 = (u₁ + u₂)² − 2u₁ + 1 with E = 0, (N,)."""
    U = as_matrix("summary_cost", "U", U, columns=2).numpy()
    return U.sum(axis=1) ** 2 - 2.0 * U[:, 0] + 1.0


def summary_step(U: Any, step_size: float) -> Array:
    """One step of gradient *descent* in summary statistics, exact for E = 0, not only as the step goes to 0.

    wᵀv is multiplied by 1 − 4η(n − 1) and (I − wwᵀ)v by 1 − 4ηn, so u by their squares.
    """
    U = as_matrix("summary_step", "U", U, columns=2).numpy()
    eta = check_number("summary_step", "step_size", step_size, low=0.0)
    n = U.sum(axis=1)
    return U * np.column_stack([1.0 - 4.0 * eta * (n - 1.0), 1.0 - 4.0 * eta * n]) ** 2


def factorisation_cost(V: Array, w: Array, E: Array | None = None) -> Array:
    """C(v) = ‖vvᵀ − (wwᵀ + E)‖_F² for each row of V, (N,)."""
    M = np.outer(w, w) + (0.0 if E is None else E)
    return (V**2).sum(axis=1) ** 2 - 2.0 * np.einsum("ni,ij,nj->n", V, M, V) + (M**2).sum()


def descend(V: Any, w: Any, *, steps: int, step_size: float, E: Any = None) -> tuple[Array, Array]:
    """Gradient descent v ← v − η∇C(v) on C(v) = ‖vvᵀ − (wwᵀ + E)‖_F² from each row of V.

    Returns
    -------
    paths : array (N, steps + 1, d)
        v(0) … v(T).
    costs : array (N, steps + 1)
        C(v(0)) … C(v(T)).
    """
    who = "descend"
    V = as_matrix(who, "V", V).numpy()
    d = V.shape[1]
    w = _unit(who, w, d)
    steps = check_integer(who, "steps", steps, low=0)
    eta = check_number(who, "step_size", step_size, low=0.0)
    noise_matrix = np.zeros((d, d)) if E is None else as_matrix(who, "E", E, columns=d).numpy()
    if noise_matrix.shape != (d, d):
        fail(who, f"`E` must be {d} × {d}", noise_matrix.shape, "Pass a square matrix.")
    M = np.outer(w, w) + noise_matrix
    symmetric = (M + M.T) / 2
    path = [V]
    for _ in range(steps):
        # ∇C = 4(‖v‖²v − sym(wwᵀ + E)v).
        gradient = 4.0 * ((V**2).sum(axis=1, keepdims=True) * V - V @ symmetric)
        V = V - eta * gradient
        path.append(V)
    costs = np.column_stack([factorisation_cost(v, w, noise_matrix) for v in path])
    return np.stack(path, axis=1), costs


def _unit(who: str, w: Any, d: int) -> Array:
    w = np.array(w, dtype=np.float64)
    if w.shape != (d,) or not np.isclose(np.linalg.norm(w), 1.0, rtol=0, atol=1e-9):
        fail(who, f"`w` must be a unit vector of {d} entries", f"shape {w.shape}", "Divide it by its norm.")
    return w
