"""Tasks whose rank can be read off a formula: linear maps, norms, products, pure noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from isthmus._checks import check_choice, check_integer, fail
from isthmus._cite import cites
from isthmus.problems._problem import Array, Problem, add_noise, isometry, streams
from isthmus.problems._teachers import REFERENCE, default_hidden, random_network


def linear(
    *,
    d_in: int = 20,
    d_out: int = 20,
    rank: int = 3,
    singular_values: Sequence[float] | None = None,
    samples: int = 1000,
    noise: float = 0.0,
    seed: int = 0,
) -> Problem:
    """A linear map y = A x, A = U diag(s) Vᵀ with random isometries U and V, x ~ N(0, I): rank = #s.

    Parameters
    ----------
    d_in, d_out, rank : int
        Columns of X, columns of Y, rank of A.
    singular_values : ``rank`` positive numbers, optional
        By default equally spaced from 1.5 down to 0.5.
    samples, noise, seed : int, float, int
        As everywhere.
    """
    who = "linear"
    d_in = check_integer(who, "d_in", d_in, low=1)
    d_out = check_integer(who, "d_out", d_out, low=1)
    rank = check_integer(who, "rank", rank, low=1, high=min(d_in, d_out))
    samples = check_integer(who, "samples", samples, low=2)
    s = np.linspace(1.5, 0.5, rank) if singular_values is None else np.array(singular_values, dtype=np.float64)
    if s.shape != (rank,) or not np.all(np.isfinite(s)) or not np.all(s > 0):
        fail(
            who,
            f"`singular_values` must be {rank} positive numbers",
            singular_values,
            "Pass one for each rank.",
        )
    function_rng, input_rng, noise_rng = streams(who, seed)
    U, V = isometry(function_rng, d_out, rank), isometry(function_rng, d_in, rank)
    A = U * s @ V.T
    X = input_rng.standard_normal((samples, d_in))
    clean_Y = X @ A.T
    return Problem(
        name=f"linear_{rank}",
        X=X,
        Y=add_noise(who, clean_Y, noise, noise_rng),
        rank=rank,
        jacobian_rank=rank,
        latents=X @ V,
        clean_Y=clean_Y,
        function=lambda X: X @ A.T,
        noise=noise,
        notes="The rank of a linear map is its bottleneck rank and its Jacobian rank.",
    )


@cites("bottleneck2023", "§5, rank of functions with symmetries")
def norms(
    *,
    blocks: int = 2,
    block_size: int = 5,
    d_out: int = 10,
    samples: int = 1000,
    noise: float = 0.0,
    seed: int = 0,
) -> Problem:
    """Norms of blocks: y = h(‖x_1‖, …, ‖x_m‖), x ~ N(0, I), h a shallow random ReLU network: rank m.

    f is invariant under rotations of each block; the norms are the coordinates of Ω/G. They enter h
    standardised by the mean and variance of the χ distribution, and the outputs have unit variance.
    """
    who = "norms"
    blocks = check_integer(who, "blocks", blocks, low=1)
    block_size = check_integer(who, "block_size", block_size, low=1)
    d_out = check_integer(who, "d_out", d_out, low=blocks)
    samples = check_integer(who, "samples", samples, low=2)
    mean = math.sqrt(2.0) * math.exp(math.lgamma((block_size + 1) / 2) - math.lgamma(block_size / 2))
    deviation = math.sqrt(block_size - mean**2)

    def radii(X: Array) -> Array:
        return np.linalg.norm(X.reshape(-1, blocks, block_size), axis=2)

    function_rng, input_rng, noise_rng = streams(who, seed)
    reference = function_rng.standard_normal((REFERENCE, blocks * block_size))
    T = (radii(reference) - mean) / deviation
    h, _ = random_network(function_rng, (blocks, default_hidden(blocks, d_out), d_out), T, decoder=True)
    if np.linalg.matrix_rank(h.jacobian(T[:64]), rtol=1e-8).max() < blocks:
        fail(who, f"h must have Jacobians of rank {blocks}", "a degenerate draw", "Take another seed.")

    def function(X: Array) -> Array:
        return h((radii(X) - mean) / deviation)

    X = input_rng.standard_normal((samples, blocks * block_size))
    clean_Y = function(X)
    return Problem(
        name=f"norms_{blocks}x{block_size}",
        X=X,
        Y=add_noise(who, clean_Y, noise, noise_rng),
        rank=blocks,
        jacobian_rank=blocks,
        latents=radii(X),
        clean_Y=clean_Y,
        function=function,
        noise=noise,
        notes=f"y depends on the norms of {blocks} blocks of inputs: rotating a block changes nothing.",
    )


def product(
    *,
    rank: int = 2,
    where: str = "encoder",
    d_in: int = 10,
    d_out: int = 10,
    samples: int = 1000,
    noise: float = 0.0,
    seed: int = 0,
) -> Problem:
    """Linear mixtures of coordinates that include the product x₀x₁ of two inputs: the known hard case.

    Parameters
    ----------
    rank : int
        k, the true rank.
    where : {"encoder", "decoder"}
        ``"encoder"``: y = M (x₀x₁, x₂, …, x_k), the product is a latent coordinate, formed on the way in.
        ``"decoder"``: y = M (x₀, …, x_{k-1}, x₀x₁) with k ≥ 2, it is formed on the way out.
    d_in, d_out : int
        Columns of X and of Y.
    samples, noise, seed : int, float, int
        As everywhere.

    Notes
    -----
    A ReLU network approximates a product by kinks, and each dimension beyond the true rank eases that:
    held-out errors may keep falling past k, so "undetermined" is an acceptable answer beside k.
    """
    who = "product"
    check_choice(who, "where", where, ("encoder", "decoder"))
    inside = where == "encoder"
    d_in = check_integer(who, "d_in", d_in, low=2)
    rank = check_integer(who, "rank", rank, low=1 if inside else 2, high=d_in - 1 if inside else d_in)
    terms = rank if inside else rank + 1
    d_out = check_integer(who, "d_out", d_out, low=terms)
    samples = check_integer(who, "samples", samples, low=2)
    function_rng, input_rng, noise_rng = streams(who, seed)
    M = isometry(function_rng, d_out, terms) * math.sqrt(d_out / terms)

    def latents(X: Array) -> Array:
        return np.column_stack([X[:, 0] * X[:, 1], X[:, 2 : rank + 1]]) if inside else X[:, :rank]

    def function(X: Array) -> Array:
        Z = latents(X)
        return (Z if inside else np.column_stack([Z, Z[:, 0] * Z[:, 1]])) @ M.T

    X = input_rng.standard_normal((samples, d_in))
    clean_Y = function(X)
    return Problem(
        name=f"product_{where}_{rank}",
        X=X,
        Y=add_noise(who, clean_Y, noise, noise_rng),
        rank=rank,
        jacobian_rank=rank,
        latents=latents(X),
        clean_Y=clean_Y,
        function=function,
        noise=noise,
        notes="A product of two inputs is hard for ReLU networks: 'undetermined' is an acceptable answer.",
    )


def pure_noise(*, d_in: int = 10, d_out: int = 10, samples: int = 500, seed: int = 0) -> Problem:
    """Y ~ N(0, I) independent of X ~ N(0, I): the best prediction is the constant 0, rank 0.

    There is nothing for a noise level to be relative to: ``noise`` is ∞.
    """
    who = "pure_noise"
    d_in = check_integer(who, "d_in", d_in, low=1)
    d_out = check_integer(who, "d_out", d_out, low=1)
    samples = check_integer(who, "samples", samples, low=2)
    _, input_rng, noise_rng = streams(who, seed)
    return Problem(
        name="pure_noise",
        X=input_rng.standard_normal((samples, d_in)),
        Y=noise_rng.standard_normal((samples, d_out)),
        rank=0,
        jacobian_rank=0,
        latents=np.empty((samples, 0)),
        clean_Y=np.zeros((samples, d_out)),
        function=lambda X: np.zeros((len(X), d_out)),
        noise=math.inf,
        notes="Y is independent of X: rank 0; 'undetermined' is an acceptable answer too.",
    )
