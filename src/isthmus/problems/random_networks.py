"""Random ReLU networks in NumPy, normalised so that every direction matters: the parts of the teachers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from isthmus.problems.base import Array

#: Points on which a teacher is normalised. Drawn with the function, not with the data, so that the function
#: does not depend on the number of samples.
REFERENCE = 4096


@dataclass(frozen=True, eq=False)
class RandomNetwork:
    """A ReLU network x ↦ W_L σ(… σ(W_1 x + b_1) …) + b_L in NumPy, rows as samples."""

    Ws: tuple[Array, ...]
    bs: tuple[Array, ...]

    def __call__(self, X: Array) -> Array:
        """f(X), (M, n_L)."""
        A = X
        for ell, (W, b) in enumerate(zip(self.Ws, self.bs), start=1):
            A = A @ W.T + b
            if ell < len(self.Ws):
                A = np.maximum(A, 0.0)
        return A

    def jacobian(self, X: Array) -> Array:
        """Jf at each row, (M, n_L, n_0), by the product W_L D_{L-1} … D_1 W_1."""
        A = X
        J = np.broadcast_to(np.eye(X.shape[1]), (len(X), X.shape[1], X.shape[1]))
        for ell, (W, b) in enumerate(zip(self.Ws, self.bs), start=1):
            A, J = A @ W.T + b, W @ J
            if ell < len(self.Ws):
                J = J * (A > 0)[:, :, None]
                A = np.maximum(A, 0.0)
        return J


def random_network(
    rng: Generator, dims: Sequence[int], reference: Array, *, decoder: bool, bias: float = 0.5
) -> tuple[RandomNetwork, Array]:
    """A random ReLU network of the given widths, and its values on ``reference``, where it is normalised.

    Weights are N(0, 2/n_{ℓ-1}), which gives pre-activations a variance near 2, and biases N(0, 2·bias²). The
    outputs then get mean 0 and, on ``reference``, unit variances; those of an encoder the identity as
    covariance. The first layer of a decoder absorbs a linear map that makes the mean of JᵀJ nearly a multiple
    of the identity: no direction of its inputs matters much less than another.
    """
    Ws = [rng.standard_normal((n, m)) * np.sqrt(2.0 / m) for m, n in zip(dims[:-1], dims[1:])]
    bs = [bias * np.sqrt(2.0) * rng.standard_normal(n) for n in dims[1:]]
    # Balancing moves the points at which J is taken: a few rounds settle it.
    for _ in range(4 if decoder else 0):
        net = RandomNetwork(tuple(Ws), tuple(bs))
        J = net.jacobian(reference[:1024]) / _positive(net(reference).std(axis=0))[:, None]
        gram = np.einsum("nij,nik->jk", J, J)
        Ws[0] = Ws[0] @ _inverse_root(gram * dims[0] / np.trace(gram))
    raw = RandomNetwork(tuple(Ws), tuple(bs))(reference)
    mean = raw.mean(axis=0)
    if decoder:
        scaling = np.diag(1.0 / _positive(raw.std(axis=0)))
    else:
        scaling = _inverse_root(np.atleast_2d(np.cov(raw, rowvar=False)))
    Ws[-1], bs[-1] = scaling @ Ws[-1], scaling @ (bs[-1] - mean)
    return RandomNetwork(tuple(Ws), tuple(bs)), (raw - mean) @ scaling


def _inverse_root(S: Array) -> Array:
    """S^{-1/2}, with eigenvalues floored: a nearly vanishing direction is not blown up to unit size."""
    values, axes = np.linalg.eigh(S)
    return axes / np.sqrt(_positive(np.maximum(values, 1e-6 * values[-1]))) @ axes.T


def _positive(deviations: Array) -> Array:
    """Deviations to divide by: what is constant (all its hidden units dead) stays constant."""
    return np.where(deviations > 1e-12, deviations, 1.0)


def default_hidden(n_in: int, n_out: int) -> int:
    """Hidden width of a stage: four times its narrow end; about twice as many units as needed are active.

    Not wider: a stage R⁵⁰ → R⁵ with many hidden units cannot be learned from 2000 samples, and its rank then
    says nothing about the method that looks for it.
    """
    return max(16, 4 * min(n_in, n_out))
