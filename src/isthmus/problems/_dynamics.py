"""Tasks from dynamics: a ball under gravity, and the losses of a gradient descent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from isthmus._checks import as_matrix, check_choice, check_integer, check_number, fail
from isthmus._cite import cites
from isthmus.problems._problem import Array, Problem, add_noise, isometry, streams

#: Points from which ranges to the ball are measured: so far that it meets none, where a range has a kink.
BEACONS = np.array([[-12.0, -20.0], [12.0, -20.0], [0.0, 15.0]])

#: g in m/s²; seconds between two looks at the ball; snapshots of each flight.
GRAVITY, INTERVAL, SNAPSHOTS = 9.81, 0.1, 10


@cites("talk2023", "a ball under gravity")
def ball_trajectories(
    *,
    throw: str = "plane",
    encoding: str = "positions",
    past: int = 4,
    future: Sequence[float] = (0.2, 0.4, 0.6, 0.8),
    samples: int = 1000,
    noise: float = 0.0,
    seed: int = 0,
) -> Problem:
    """Future positions of a ball, p(t) = p + vt − ½gt²e_y, from a redundant description of its present.

    Parameters
    ----------
    throw : {"plane", "vertical"}
        In a vertical plane the state is (x, y, v_x, v_y): rank 4. Straight up, (y, v_y): rank 2.
    encoding : {"positions", "ranges"}
        The ball at ``past`` times 0, −Δ, −2Δ, …, Δ = 0.1 s, by its coordinates, or by its distances to three fixed
        beacons, which is non-linear. Both add mixtures of the velocities and the kinetic energy.
    past : int
        At least 2: one position says nothing about the velocity.
    future : at least two times, in seconds
        Different and not 0; two positions determine the state, which makes the rank that of the state.
    samples, noise, seed : int, float, int
        As everywhere; ``samples`` counts snapshots, ten of each flight, 0.05 s apart, which share their group, in time
        order.

    Notes
    -----
    The slides show frames of a moving ball; this set-up is our choice. Every column is a function of the
    state, so the inputs lie on a surface of its dimension; ``function`` is one extension off it.
    """
    who = "ball_trajectories"
    check_choice(who, "throw", throw, ("plane", "vertical"))
    check_choice(who, "encoding", encoding, ("positions", "ranges"))
    past = check_integer(who, "past", past, low=2)
    samples = check_integer(who, "samples", samples, low=2)
    times = np.array(future, dtype=np.float64)
    if times.ndim != 1 or len(times) < 2 or len(set(times)) < len(times) or not np.isfinite(times).all():
        fail(who, "`future` must be at least two different times", future, "Pass e.g. (0.2, 0.4).")
    _, input_rng, noise_rng = streams(who, seed)
    flat = throw == "plane"
    fall = np.array([0.0, -0.5 * GRAVITY])

    def positions(p: Array, v: Array, t: Array) -> Array:
        return p[:, None] + v[:, None] * t[:, None] + fall * t[:, None] ** 2

    group = np.arange(samples) // SNAPSHOTS
    flights = int(group[-1]) + 1
    # In a vertical throw x and v_x are 0.
    start = input_rng.uniform([-1.0, 0.0], [1.0, 2.0], (flights, 2)) * [flat, 1.0]
    speed = input_rng.uniform([-3.0, -1.0], [3.0, 5.0], (flights, 2)) * [flat, 1.0]
    t = 0.05 * (np.arange(samples) % SNAPSHOTS)[:, None]
    v = speed[group] + 2.0 * fall * t
    p = start[group] + speed[group] * t + fall * t**2
    seen = positions(p, v, -INTERVAL * np.arange(past, dtype=np.float64))
    axes = [0, 1] if flat else [1]
    moments = [f"t-{j}" for j in range(past)]
    if encoding == "positions":
        columns = seen[:, :, axes].reshape(samples, -1)
        names = [f"{'xy'[a]}_{m}" for m in moments for a in axes]
    else:
        columns = np.linalg.norm(seen[:, :, None] - BEACONS, axis=3).reshape(samples, -1)
        names = [f"range{b}_{m}" for m in moments for b in range(len(BEACONS))]
    kinetic = 0.5 * (v**2).sum(axis=1)
    mixtures = [v.sum(axis=1), v[:, 0] - v[:, 1], kinetic] if flat else [v[:, 1], kinetic]
    names += ["vx+vy", "vx-vy", "kinetic"] if flat else ["vy", "kinetic"]
    X = np.column_stack([columns, *mixtures])

    def function(X: Array) -> Array:
        now, before = (_locate(X, j, encoding, axes) for j in (0, 1))
        # From p(−Δ) = p − vΔ + fall·Δ².
        velocity = (now - before + fall * INTERVAL**2) / INTERVAL
        return positions(now, velocity, times)[:, :, axes].reshape(len(X), -1)

    clean_Y = positions(p, v, times)[:, :, axes].reshape(samples, -1)
    rank = 2 * len(axes)
    return Problem(
        name=f"ball_{throw}_{encoding}",
        X=X,
        Y=add_noise(who, clean_Y, noise, noise_rng),
        rank=rank,
        jacobian_rank=rank,
        latents=np.column_stack([p[:, axes], v[:, axes]]),
        clean_Y=clean_Y,
        function=function,
        noise=noise,
        groups=group,
        feature_names=tuple(names),
        target_names=tuple(f"{'xy'[a]}_t+{s:g}" for s in times for a in axes),
        notes=f"The future depends on the {rank} numbers of the state, and so does every input column.",
    )


def _locate(X: Array, j: int, encoding: str, axes: list[int]) -> Array:
    """Position at time −jΔ, (M, 2), from the columns of X."""
    if encoding == "positions":
        p = np.zeros((len(X), 2))
        p[:, axes] = X[:, j * len(axes) : (j + 1) * len(axes)]
        return p
    # Differences of squared ranges are affine in p: r_i² − r_0² = −2(b_i − b_0)·p + |b_i|² − |b_0|².
    squares = X[:, 3 * j : 3 * j + 3] ** 2 - (BEACONS**2).sum(axis=1)
    return (squares[:, 1:] - squares[:, :1]) @ np.linalg.inv(-2.0 * (BEACONS[1:] - BEACONS[0])).T


@cites("bottleneck2023", "§5, Figure 2")
@cites("talk2023", "summary statistics")
def gradient_descent_losses(
    *,
    d: int = 20,
    steps: int = 20,
    step_size: float = 0.02,
    perturbation: float = 0.0,
    law: str = "spread",
    include_start: bool = False,
    samples: int = 1000,
    noise: float = 0.0,
    seed: int = 0,
) -> Problem:
    """From v(0), predict C(v(1)), …, C(v(T)) of gradient descent on C(v) = ‖vvᵀ − (wwᵀ + E)‖_F²: rank 2.

    For E = 0, rotations around w change nothing: the losses depend on v(0) through
    u = ((wᵀv)², ‖(I − wwᵀ)v‖²).

    Parameters
    ----------
    d, steps, step_size : int, int, float
        Dimension of v, T, and the step η of the descent. Not stated in the paper: our choice.
    perturbation : float
        ‖E‖_F of a random symmetric Gaussian E. ``function``, ``clean_Y`` and ``latents`` are those of E = 0,
        whose rank is exactly 2; what E changes counts as noise, and ``noise`` reports its measured root mean
        square relative to the outputs' deviations.
    law : {"spread", "gaussian"}
        ``"spread"``: wᵀv uniform in [−1.2, 1.2] and ‖(I − wwᵀ)v‖ uniform in [0, 1.2]; u fills a rectangle.
        ``"gaussian"``: v ~ N(0, I/d), where in high dimension ‖v‖ hardly varies.
    include_start : bool
        Begin with C(v(0)), as the slides do.
    samples, noise, seed : int, float, int
        As everywhere.
    """
    who = "gradient_descent_losses"
    d = check_integer(who, "d", d, low=2)
    start = 0 if include_start else 1
    steps = check_integer(who, "steps", steps, low=start + 1)
    eta = check_number(who, "step_size", step_size, low=0.0, low_open=True)
    size = check_number(who, "perturbation", perturbation, low=0.0)
    check_choice(who, "law", law, ("spread", "gaussian"))
    samples = check_integer(who, "samples", samples, low=2)
    function_rng, input_rng, noise_rng = streams(who, seed)
    w = isometry(function_rng, d, 1)[:, 0]
    G = function_rng.standard_normal((d, d))
    E = size * (G + G.T) / np.linalg.norm(G + G.T)
    V = input_rng.standard_normal((samples, d)) / np.sqrt(d)
    if law == "spread":
        aside = V - np.outer(V @ w, w)
        aside *= input_rng.uniform(0.0, 1.2, (samples, 1)) / np.linalg.norm(aside, axis=1, keepdims=True)
        V = aside + np.outer(input_rng.uniform(-1.2, 1.2, samples), w)
    if 4.0 * eta * (V**2).sum(axis=1).max() > 1.0:
        # Beyond this a step overshoots the axis; a little further the descent diverges.
        fail(who, "4·`step_size`·‖v(0)‖² must be at most 1", step_size, "Lower `step_size`.")

    def function(X: Array) -> Array:
        return descend(X, w, steps=steps, step_size=eta)[1][:, start:]

    clean_Y = function(V)
    Y = descend(V, w, steps=steps, step_size=eta, E=E)[1][:, start:] if size else clean_Y
    Y = Y + (add_noise(who, clean_Y, noise, noise_rng) - clean_Y)
    measured = float(np.sqrt((((Y - clean_Y) ** 2).mean(axis=0) / clean_Y.var(axis=0)).mean()))
    return Problem(
        name="gradient_descent_losses",
        X=V,
        Y=Y,
        rank=2,
        jacobian_rank=2,
        latents=summary_statistics(V, w),
        clean_Y=clean_Y,
        function=function,
        noise=measured if size else noise,
        feature_names=tuple(f"v{i}" for i in range(d)),
        target_names=tuple(f"C_{t}" for t in range(start, steps + 1)),
        notes="With E = 0 the losses depend on v(0) through two summary statistics: symmetry around w.",
    )


# ---- Rank-1 factorisation by gradient descent, and its two summary statistics


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
