"""Random ReLU networks in NumPy, normalised so that every direction matters: the parts of the teachers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from isthmus._checks import check_integer, check_number, fail
from isthmus._cite import cites
from isthmus.problems._problem import Array, Problem, add_noise, streams

#: Points on which a teacher is normalised. Drawn with the function, not with the data, so that the function
#: does not depend on the number of samples.
REFERENCE = 4096


@dataclass(frozen=True, eq=False)
class RandomNetwork:
    """A ReLU network x ↦ W_L σ(… σ(W_1 x + b_1) …) + b_L in NumPy, rows as samples.

    With ``residual`` the layers between the first and the last are A ↦ A + Wσ(A) + b, and those two affine.
    """

    Ws: tuple[Array, ...]
    bs: tuple[Array, ...]
    residual: bool = False

    def __call__(self, X: Array) -> Array:
        """f(X), (M, n_L)."""
        return self._walk(X, None)[0]

    def jacobian(self, X: Array) -> Array:
        """Jf at each row, (M, n_L, n_0), by the product W_L D_{L-1} … D_1 W_1."""
        J = self._walk(X, np.broadcast_to(np.eye(X.shape[1]), (len(X), X.shape[1], X.shape[1])))[1]
        assert J is not None
        return J

    def _walk(self, A: Array, J: Array | None) -> tuple[Array, Array | None]:
        """Through all layers, with the derivative if there is one."""
        last = len(self.Ws) - 1
        for ell, (W, b) in enumerate(zip(self.Ws, self.bs)):
            inner = self.residual and 0 < ell < last
            if inner or (ell > 0 and not self.residual):
                active = A > 0
                dJ = None if J is None else W @ (J * active[:, :, None])
                dA = (A * active) @ W.T + b
            else:
                dJ, dA = None if J is None else W @ J, A @ W.T + b
            A = A + dA if inner else dA
            J = dJ if J is None or dJ is None or not inner else J + dJ
        return A, J


def random_network(
    rng: Generator,
    dims: Sequence[int],
    reference: Array,
    *,
    decoder: bool,
    bias: float = 0.5,
    residual: bool = False,
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
        net = RandomNetwork(tuple(Ws), tuple(bs), residual)
        J = net.jacobian(reference[:1024]) / _positive(net(reference).std(axis=0))[:, None]
        gram = np.einsum("nij,nik->jk", J, J)
        Ws[0] = Ws[0] @ _inverse_root(gram * dims[0] / np.trace(gram))
    raw = RandomNetwork(tuple(Ws), tuple(bs), residual)(reference)
    mean = raw.mean(axis=0)
    if decoder:
        scaling = np.diag(1.0 / _positive(raw.std(axis=0)))
    else:
        scaling = _inverse_root(np.atleast_2d(np.cov(raw, rowvar=False)))
    Ws[-1], bs[-1] = scaling @ Ws[-1], scaling @ (bs[-1] - mean)
    return RandomNetwork(tuple(Ws), tuple(bs), residual), (raw - mean) @ scaling


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


# ---- Random ReLU teachers: compositions through a narrow inner dimension, and surfaces seen in part


#: Added to latents of unit variance before a ReLU: each is then positive for about 84 % of the samples.
LATENT_SHIFT = 1.0


@cites("rank2023", "Figure 1")
@cites("hamiltonian2024", "Figure 1")
def teacher(
    *,
    d_in: int = 50,
    rank: int = 5,
    d_out: int = 50,
    hidden: int | None = None,
    depth_in: int = 2,
    depth_out: int = 2,
    bias_in: float = 3.0,
    bias_out: float = 0.5,
    relu_latents: bool = False,
    samples: int = 2000,
    noise: float = 0.0,
    seed: int = 0,
) -> Problem:
    """A teacher f = h∘g, random ReLU networks g: R^{d_in} → R^k and h: R^k → R^{d_out}: rank k.

    Inputs are N(0, I). The latents g(x) have the identity as covariance, h is about equally sensitive to each
    of their directions, and the outputs have unit variance: all k dimensions matter comparably.

    Parameters
    ----------
    d_in, rank, d_out : int
        F-rank-1: 50, 5, 50 with 2000 samples. F-ham-1: 20, 5, 20 with 2000, half of them held out.
    hidden : int, optional
        Width inside g and inside h; by default :func:`default_hidden`.
    depth_in, depth_out : int
        Number of weight matrices of g and of h; 1 makes it affine.
    bias_in, bias_out : float
        Size of the biases of g and h relative to their pre-activations. The larger, the fewer samples cross a
        kink and the closer the map is to an affine one. By default g is gently bent and h strongly: bends of
        a map from 50 dimensions take far more samples to learn than bends of a map from 5.
    relu_latents : bool
        Whether the latents are σ(g(x) + 1), σ the ReLU: then f is a ReLU network with a layer of ``rank`` neurons. Its
        latents lie in R^k_+, where identity layers cost exactly k each. Without it the latents are centred, and a
        network of moderate depth carries one more direction to keep them positive.
    samples, noise, seed : int, float, int
        As everywhere.

    Notes
    -----
    The papers do not state the law of their teachers: this one is our choice.
    """
    who = "teacher"
    d_in = check_integer(who, "d_in", d_in, low=1)
    d_out = check_integer(who, "d_out", d_out, low=1)
    rank = check_integer(who, "rank", rank, low=1, high=min(d_in, d_out))
    dims, depths, biases = (d_in, rank, d_out), (depth_in, depth_out), (bias_in, bias_out)
    return _chain(who, dims, depths, biases, hidden, relu=relu_latents, samples=samples, noise=noise, seed=seed)


@cites("hamiltonian2024", "Figure 2")
def teacher_chain(
    *,
    dims: Sequence[int] = (30, 6, 3, 30),
    depth: int = 2,
    bias_in: float = 3.0,
    bias_out: float = 0.5,
    hidden: int | None = None,
    residual: bool = False,
    samples: int = 2000,
    noise: float = 0.0,
    seed: int = 0,
) -> Problem:
    """A chain f = g_m∘…∘g_1 of random ReLU networks between the dimensions ``dims``: rank min(dims).

    Every inner representation has the identity as covariance; the latents are the (last) narrowest of them.
    ``bias_in`` is that of g_1, ``bias_out`` of all others, as in :func:`teacher`.

    Notes
    -----
    The stages of F-ham-2 are random ResNets of unstated law: with ``residual`` each is an affine map, ``depth`` − 2
    steps A ↦ A + Wσ(A) + b and another affine map. Without it, ``depth`` fully connected layers.
    """
    who, stages = "teacher_chain", max(len(dims) - 1, 1)
    depths, biases = (depth,) * stages, (bias_in, *(bias_out,) * (stages - 1))
    options = {"samples": samples, "noise": noise, "seed": seed, "residual": residual}
    return _chain(who, tuple(dims), depths, biases, hidden, **options)


def _chain(
    who: str,
    dims: tuple[int, ...],
    depths: tuple[int, ...],
    biases: tuple[float, ...],
    hidden: int | None,
    *,
    samples: int,
    noise: float,
    seed: int,
    relu: bool = False,
    residual: bool = False,
) -> Problem:
    if len(dims) < 2:
        fail(who, "`dims` must have at least an input and an output", dims, "Pass e.g. (30, 6, 3, 30).")
    for n in dims:
        check_integer(who, "dims", n, low=1)
    if hidden is not None:
        check_integer(who, "hidden", hidden, low=1)
    samples = check_integer(who, "samples", samples, low=2)
    function_rng, input_rng, noise_rng = streams(who, seed)
    reference = function_rng.standard_normal((REFERENCE, dims[0]))
    stages: list[RandomNetwork] = []
    J = np.broadcast_to(np.eye(dims[0]), (32, dims[0], dims[0]))
    for stage, (n_in, n_out, depth, bias) in enumerate(zip(dims[:-1], dims[1:], depths, biases), start=1):
        check_integer(who, "depth", depth, low=1)
        check_number(who, "bias", bias, low=0.0)
        inner = [default_hidden(n_in, n_out) if hidden is None else hidden] * (depth - 1)
        last = stage == len(dims) - 1
        points = reference[:32]
        widths = (n_in, *inner, n_out)
        net, reference = random_network(function_rng, widths, reference, decoder=last, bias=bias, residual=residual)
        J = net.jacobian(points) @ J
        stages.append(net)
        if relu and not last:
            J = J * (reference[:32] + LATENT_SHIFT > 0)[:, :, None]
            reference = np.maximum(reference + LATENT_SHIFT, 0.0)
    rank = min(dims)
    s = np.linalg.svd(J, compute_uv=False)
    found = int((s > 1e-8 * s[:, :1]).sum(1).max())
    if found != rank:
        fail(who, f"the teacher must have Jacobians of rank {rank}", f"rank {found}", "Widen `hidden`.")

    def forward(X: Array) -> list[Array]:
        representations = [X]
        for net in stages:
            A = net(representations[-1])
            inner = relu and net is not stages[-1]
            representations.append(np.maximum(A + LATENT_SHIFT, 0.0) if inner else A)
        return representations

    def function(X: Array) -> Array:
        return forward(X)[-1]

    X = input_rng.standard_normal((samples, dims[0]))
    representations = forward(X)
    narrowest = max(i for i, n in enumerate(dims) if n == rank)
    clean_Y = representations[-1]
    return Problem(
        name=f"{who}_{'_'.join(map(str, dims))}",
        X=X,
        Y=add_noise(who, clean_Y, noise, noise_rng),
        rank=rank,
        jacobian_rank=rank,
        latents=representations[narrowest],
        clean_Y=clean_Y,
        function=function,
        noise=noise,
        notes=f"The inner dimension {rank} bounds the rank above, Jacobians of rank {rank} bound it below.",
    )


@cites("bottleneck2023", "Appendix E, first experiment")
def partially_seen_surface(
    *,
    latent_dim: int = 8,
    seen: int = 2,
    d_in: int = 20,
    d_out: int = 20,
    hidden: int = 100,
    samples: int = 1000,
    noise: float = 0.0,
    seed: int = 0,
) -> Problem:
    """A surface x = g(z₁…z_m) and y = h(z₁…z_k), shallow random ReLU networks of z ~ N(0, I): rank k.

    The inputs fill a curved surface of dimension m = ``latent_dim`` in R^{d_in}, of which the outputs see k
    = ``seen`` coordinates. f = h∘g⁻¹ exists on the surface only: ``function`` is None. F-bn-1: 8, 2, 20, 20.

    Notes
    -----
    Number of samples, widths and laws are our choice; inputs and outputs have unit variance.
    """
    who = "partially_seen_surface"
    latent_dim = check_integer(who, "latent_dim", latent_dim, low=1, high=d_in)
    seen = check_integer(who, "seen", seen, low=1, high=min(latent_dim, d_out))
    samples = check_integer(who, "samples", samples, low=2)
    _, input_rng, noise_rng = streams(who, seed)
    g, h = surface_maps(latent_dim=latent_dim, seen=seen, d_in=d_in, d_out=d_out, hidden=hidden, seed=seed)
    Z = input_rng.standard_normal((samples, latent_dim))
    # An injective g has injective derivatives; h must not be flat everywhere.
    ranks = np.linalg.matrix_rank(g.jacobian(Z), rtol=1e-8)
    if ranks.min() < latent_dim or np.linalg.matrix_rank(h.jacobian(Z[:32, :seen]), rtol=1e-8).max() < seen:
        fail(
            who,
            "g must be an immersion, and h of full rank somewhere",
            "a degenerate draw",
            "Widen `hidden`.",
        )
    clean_Y = h(Z[:, :seen])
    return Problem(
        name=f"surface_{latent_dim}_seen_{seen}",
        X=g(Z),
        Y=add_noise(who, clean_Y, noise, noise_rng),
        rank=seen,
        jacobian_rank=seen,
        latents=Z[:, :seen],
        clean_Y=clean_Y,
        noise=noise,
        notes=(
            f"The inputs fill a surface of dimension {latent_dim}, and y is a function of {seen} of its "
            f"coordinates; f = h∘g⁻¹ exists on the surface only."
        ),
    )


def surface_maps(
    *, latent_dim: int, seen: int, d_in: int, d_out: int, hidden: int, seed: int
) -> tuple[RandomNetwork, RandomNetwork]:
    """The maps g: R^m → R^{d_in} and h: R^k → R^{d_out} of :func:`partially_seen_surface` with this seed."""
    who = "surface_maps"
    check_integer(who, "hidden", hidden, low=1)
    rng = streams(who, seed)[0]
    reference = rng.standard_normal((REFERENCE, latent_dim))
    g, _ = random_network(rng, (latent_dim, hidden, d_in), reference, decoder=True)
    h, _ = random_network(rng, (seen, hidden, d_out), reference[:, :seen], decoder=True)
    return g, h
