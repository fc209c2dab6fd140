"""Tasks whose Jacobian rank is smaller than their bottleneck rank: a closed curve, and min on the cross."""

from __future__ import annotations

import math

import numpy as np

from isthmus._checks import check_integer, check_number, fail
from isthmus._cite import cites
from isthmus.problems._problem import Array, Problem, add_noise, isometry, streams


@cites("bottleneck2023", "§3.3.1, rank of the circle")
def angle(
    *,
    d_in: int = 2,
    harmonics: int = 3,
    arc: float = 2 * math.pi,
    inner_radius: float = 0.5,
    outer_radius: float = 1.5,
    samples: int = 1000,
    noise: float = 0.0,
    seed: int = 0,
) -> Problem:
    """Angles of points in a plane annulus, y = (cos θ, sin θ, cos 2θ, sin 2θ, …): Rank_J 1, Rank_BN 2.

    Moving along y changes one number, but the curve is closed: a continuous g: annulus → R takes the same
    value at two points of every circle, so no h∘g through R tells all angles apart. An open arc is the twin,
    of rank 1.

    Parameters
    ----------
    d_in : int
        The plane lies in R^{d_in} by a random isometry; for 2 a rotation.
    harmonics : int
        d_out = 2·harmonics.
    arc : float in (0, 3π/2], or 2π
        Range of angles; less than 2π leaves a gap, which makes the bottleneck rank 1. Gaps smaller than a
        quarter turn are refused: a noisy sample hardly tells them from a closed circle.
    inner_radius, outer_radius : float
        Of the annulus.
    samples, noise, seed : int, float, int
        As everywhere.
    """
    who = "angle"
    d_in = check_integer(who, "d_in", d_in, low=2)
    harmonics = check_integer(who, "harmonics", harmonics, low=1)
    inner = check_number(who, "inner_radius", inner_radius, low=0.0, low_open=True)
    outer = check_number(who, "outer_radius", outer_radius, low=inner)
    samples = check_integer(who, "samples", samples, low=2)
    closed = math.isclose(check_number(who, "arc", arc, low=0.0, low_open=True), 2 * math.pi)
    if not closed and arc > 1.5 * math.pi:
        fail(who, "`arc` must be at most 3π/2, or 2π", arc, "Close the circle or leave a quarter turn open.")
    function_rng, input_rng, noise_rng = streams(who, seed)
    plane = isometry(function_rng, d_in, 2)

    def theta(X: Array) -> Array:
        P = X @ plane
        return np.arctan2(P[:, 1], P[:, 0])

    def function(X: Array) -> Array:
        multiples = theta(X)[:, None] * np.arange(1, harmonics + 1)
        return np.stack([np.cos(multiples), np.sin(multiples)], axis=2).reshape(len(X), -1)

    t = input_rng.uniform(-arc / 2, arc / 2, samples)
    # Uniform over the area of the annulus.
    r = np.sqrt(input_rng.uniform(inner**2, outer**2, samples))
    X = (r[:, None] * np.column_stack([np.cos(t), np.sin(t)])) @ plane.T
    clean_Y = function(X)
    closed_note = "The angles form a closed circle, which no coordinate in R parametrises: rank 2, Rank_J 1."
    open_note = "An open arc of angles is parametrised by the angle: rank 1."
    return Problem(
        name="angle" if closed else "arc",
        X=X,
        Y=add_noise(who, clean_Y, noise, noise_rng),
        rank=2 if closed else 1,
        jacobian_rank=1,
        latents=clean_Y[:, :2] if closed else theta(X)[:, None],
        clean_Y=clean_Y,
        function=function,
        noise=noise,
        notes=closed_note if closed else open_note,
    )


@cites("rank2023", "Appendix A, Example 1")
def min_cross(*, d_in: int = 2, d_out: int = 2, samples: int = 1000, noise: float = 0.0, seed: int = 0) -> Problem:
    """f(x) = min(|x₀|, |x₁|)·(sign x₀, sign x₁): Rank_J 1, Rank_BN 2.

    Inputs are uniform on [−1, 1]², put into R^{d_in} by a random isometry, the outputs likewise into
    R^{d_out}; for dimension 2 there is no such map.

    Notes
    -----
    Departs from the paper: the function printed there, (x₀, sign(x₁)|x₀|) for |x₀| ≥ |x₁|, is discontinuous
    on the axes. This one is continuous, the identity on the cross |x₀| = |x₁|, and constant along one
    direction in each linear region.
    """
    who = "min_cross"
    d_in = check_integer(who, "d_in", d_in, low=2)
    d_out = check_integer(who, "d_out", d_out, low=2)
    samples = check_integer(who, "samples", samples, low=2)
    function_rng, input_rng, noise_rng = streams(who, seed)
    into = np.eye(2) if d_in == 2 else isometry(function_rng, d_in, 2)
    out = np.eye(2) if d_out == 2 else isometry(function_rng, d_out, 2)

    def latents(X: Array) -> Array:
        P = X @ into
        return np.abs(P).min(axis=1, keepdims=True) * np.sign(P)

    def function(X: Array) -> Array:
        return latents(X) @ out.T

    X = input_rng.uniform(-1.0, 1.0, (samples, 2)) @ into.T
    clean_Y = function(X)
    return Problem(
        name="min_cross",
        X=X,
        Y=add_noise(who, clean_Y, noise, noise_rng),
        rank=2,
        jacobian_rank=1,
        latents=latents(X),
        clean_Y=clean_Y,
        function=function,
        noise=noise,
        notes="The image is a cross of two lines, which no coordinate in R parametrises: rank 2, Rank_J 1.",
    )
