"""A translation equivariant task that keeps a few frequencies of its inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from isthmus._checks import check_choice, check_integer, fail
from isthmus._cite import cites
from isthmus.problems._problem import Array, Problem, add_noise, streams

#: Pointwise, odd and increasing: they commute with translations and lose nothing.
NONLINEARITIES = {"none": lambda P: P, "tanh": np.tanh}


@cites("talk2023", "Slides 'Convolutional Networks'")
def planted_frequencies(
    *,
    size: int | Sequence[int] = (12,),
    kept: Sequence[Sequence[int]] = ((1,), (3,)),
    nonlinearity: str = "tanh",
    samples: int = 1000,
    noise: float = 0.0,
    seed: int = 0,
) -> Problem:
    """Waves through φ: y = φ(Px), x ~ N(0, I); P passes the frequencies ±ω of ``kept`` alone, each with a random shift.

    φ acts on every position, so that f(T_p x) = T_p f(x). P is scaled to outputs of unit variance, all kept frequencies
    equally strong. A pair ±ω is two dimensions, a frequency with −ω = ω one: their sum is the rank.

    Parameters
    ----------
    size : int or sequence of int
        n for images of n × n, (n,) for signals, (n, m). Rows of X are images of one channel, flattened.
    kept : sequence of sequences of int
        Frequencies in turns over the image, one of each pair.
    nonlinearity : {"tanh", "none"}
        φ.
    samples, noise, seed : int, float, int
        As everywhere.
    """
    who = "planted_frequencies"
    check_choice(who, "nonlinearity", nonlinearity, NONLINEARITIES)
    sizes = tuple(check_integer(who, "size", n, low=1) for n in (size if isinstance(size, Sequence) else (size, size)))
    samples = check_integer(who, "samples", samples, low=2)
    chosen: list[tuple[int, ...]] = []
    for omega in kept:
        turns = tuple(check_integer(who, "kept", k, low=-n, high=n) % n for k, n in zip(omega, sizes))
        if len(omega) != len(sizes) or {turns, _conjugate(turns, sizes)} & set(chosen):
            must = f"`kept` must be different frequencies of {len(sizes)} numbers, one of each pair ±ω"
            fail(who, must, [*kept], "Leave out what is there already.")
        chosen.append(turns)
    if not chosen:
        fail(who, "`kept` must not be empty", "no frequency", "Name one at least.")
    function_rng, input_rng, noise_rng = streams(who, seed)
    axes, positions = tuple(range(1, len(sizes) + 1)), math.prod(sizes)
    pairs = [_conjugate(turns, sizes) != turns for turns in chosen]
    rank = sum(2 if pair else 1 for pair in pairs)
    gain = np.zeros(sizes, dtype=np.complex128)
    for turns, pair in zip(chosen, pairs):
        # Where −ω = ω a real filter has a real gain.
        angle = function_rng.uniform(0.0, 2 * math.pi) if pair else math.pi * function_rng.integers(2)
        gain[turns] = math.sqrt(positions / rank) * np.exp(1j * angle)
        gain[_conjugate(turns, sizes)] = gain[turns].conj()
    apply = NONLINEARITIES[nonlinearity]

    def spectrum(X: Array) -> np.ndarray:
        return np.fft.fftn(X.reshape(len(X), *sizes), axes=axes)

    def function(X: Array) -> Array:
        return apply(np.fft.ifftn(spectrum(X) * gain, axes=axes).real).reshape(len(X), -1)

    X = input_rng.standard_normal((samples, positions))
    coefficients = [spectrum(X)[(slice(None), *turns)] for turns in chosen]
    columns = []
    for values, pair in zip(coefficients, pairs):
        unit = math.sqrt(positions / 2 if pair else positions)
        columns += [np.real(values) / unit, np.imag(values) / unit] if pair else [np.real(values) / unit]
    clean_Y = function(X)
    return Problem(
        name=f"planted_frequencies_{len(chosen)}",
        X=X,
        Y=add_noise(who, clean_Y, noise, noise_rng),
        rank=rank,
        jacobian_rank=rank,
        latents=np.stack(columns, axis=1),
        clean_Y=clean_Y,
        function=function,
        noise=noise,
        notes="The DFT coefficients of the kept frequencies determine the outputs, whose pointwise φ is invertible.",
    )


def _conjugate(turns: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(-k % n for k, n in zip(turns, sizes))
