"""What real tables add to a clean task: units, irrelevant columns, heavy tails, another order."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.random import default_rng

from isthmus._checks import check_integer, check_number, check_seed, fail
from isthmus.problems._problem import Array, Problem


def with_nuisances(
    problem: Problem,
    *,
    irrelevant: int = 0,
    units: float = 0.0,
    heavy_tails: float = 0.0,
    noise_tails: float | None = None,
    shuffle: bool = False,
    seed: int = 0,
) -> Problem:
    """The same task behind nuisances that leave its rank unchanged; latents and truth are carried along.

    Parameters
    ----------
    problem : Problem
        The clean task.
    irrelevant : int
        Columns added to X: independent of everything else, but correlated with each other (one common factor
        for about every four of them; the factors carry 80 % of the variance).
    units : float
        Every column of X and Y is multiplied by 10^U(−units, units): U decades up or down.
    heavy_tails : float
        c > 0 replaces each input column, of mean m and standard deviation s, by s·sinh(c(x − m)/s)/c: a
        bijection that stretches tails exponentially. 1 is strong; 0, the default, does nothing.
    noise_tails : float > 2, optional
        Degrees of freedom of a Student t that replaces the problem's noise, at the same standard deviation.
    shuffle : bool
        Permute the columns of X and of Y, and the rows unless the problem has groups, whose time order
        matters.
    seed : int
        Of every random choice made here.
    """
    who = "with_nuisances"
    irrelevant = check_integer(who, "irrelevant", irrelevant, low=0)
    units = check_number(who, "units", units, low=0.0, high=12.0)
    c = check_number(who, "heavy_tails", heavy_tails, low=0.0, high=3.0)
    rng = default_rng(check_seed(who, seed))
    X, Y, clean_Y = problem.X, problem.Y, problem.clean_Y
    if noise_tails is not None:
        degrees = check_number(who, "noise_tails", noise_tails, low=2.0, low_open=True)
        Y = _student_noise(who, problem, degrees, rng)
    extra = _correlated(rng, len(X), irrelevant)
    X = np.hstack([X, extra])
    mean, deviation = X.mean(axis=0), X.std(axis=0)
    deviation = np.where(deviation > 0, deviation, 1.0)
    if c > 0:
        X = deviation * np.sinh(c * (X - mean) / deviation) / c
    d_in, d_out = X.shape[1], Y.shape[1]
    scale_in = 10.0 ** rng.uniform(-units, units, d_in)
    scale_out = 10.0 ** rng.uniform(-units, units, d_out)
    order_in = rng.permutation(d_in) if shuffle else np.arange(d_in)
    order_out = rng.permutation(d_out) if shuffle else np.arange(d_out)
    rows = rng.permutation(len(X)) if shuffle and problem.groups is None else np.arange(len(X))
    back = np.argsort(order_in)

    def undo(X: Array) -> Array:
        X = X[:, back] / scale_in
        if c > 0:
            X = mean + deviation * np.arcsinh(c * X / deviation) / c
        return X[:, : problem.d_in]

    def redo(Y: Array) -> Array:
        return (Y * scale_out)[:, order_out]

    f = problem.function

    # Nuisances may be added to a problem that has some already.
    present = sum(name.startswith("irrelevant") for name in problem.feature_names)
    features = (*problem.feature_names, *(f"irrelevant{present + i}" for i in range(irrelevant)))
    return dataclasses.replace(
        problem,
        name=f"{problem.name}+nuisances",
        X=(X * scale_in)[rows][:, order_in],
        Y=redo(Y)[rows],
        clean_Y=redo(clean_Y)[rows],
        latents=problem.latents[rows],
        function=None if f is None else lambda X: redo(f(undo(X))),
        feature_names=tuple(features[i] for i in order_in),
        target_names=tuple(problem.target_names[i] for i in order_out),
    )


def _correlated(rng: np.random.Generator, rows: int, columns: int) -> Array:
    """Unit-variance columns with one common Gaussian factor for about every four of them."""
    factors = max(1, columns // 4)
    loadings = rng.standard_normal((factors, columns))
    loadings *= np.sqrt(0.8) / np.linalg.norm(loadings, axis=0)
    return rng.standard_normal((rows, factors)) @ loadings + np.sqrt(0.2) * rng.standard_normal((rows, columns))


def _student_noise(who: str, problem: Problem, degrees: float, rng: np.random.Generator) -> Array:
    if not 0.0 < problem.noise < np.inf:
        fail(
            who,
            "`noise_tails` needs a problem with noise to replace",
            problem.noise,
            "Generate it with `noise`.",
        )
    draws = rng.standard_t(degrees, problem.Y.shape)
    # The sample deviation of a heavy-tailed law is far from its expectation: fix it on the sample.
    draws = (draws - draws.mean(axis=0)) / draws.std(axis=0)
    return problem.clean_Y + problem.noise * problem.clean_Y.std(axis=0) * draws
