"""Networks of a given bottleneck rank: trained, narrowed by one coordinate, or begun from an unrolled surface."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from isthmus.measures import jacobian
from isthmus.measures._dimension import GRAPH_POINTS, NEIGHBOURS
from isthmus.networks import FullyConnected
from isthmus.training import Phase, TrainingEvent, TrainingResult, minimise

#: Rows on which coordinates are weighed.
WEIGHED_ROWS = 1000

#: Directions that are tried as the axis of a ring.
AXES = 2000

#: Rows of a mini-batch.
BATCH = 1024

#: What a coordinate's size weighs beside what it moves at the outputs, Newton steps to the coordinates of least size,
#: and the share of their variance from which on something is left out.
SIZE, NEWTON_STEPS, EXCESS = 0.01, 20, 0.005

#: The least share of what moves the outputs that a coordinate must have: of one that has stopped there is no size.
MOVING = 1e-6

#: The network that learns them: its hidden layers, quasi-Newton steps, ridge and rows; steps of the decoder behind it.
LEAN_WIDTHS, LEAN_STEPS, LEAN_RIDGE, LEAN_ROWS, DECODER_STEPS = (48, 48), 200, 1e-6, 1500, 30

#: Quasi-Newton steps over which a fit must have come to rest, the relative decrease of the loss that is rest, and how
#: many times its steps a fit may take to get there.
REST_STEPS, REST, PATIENCE = 20, 0.03, 2.5


@dataclass(frozen=True, eq=False)
class Fit:
    """A network, its training cost and regularised loss relative to a constant's cost, ‖θ‖², and its end.

    ``rest`` is the relative decrease of the loss over the last steps; ``state`` is ``"at rest"``, ``"falling"`` or
    ``"diverged"``.
    """

    network: FullyConnected
    cost: float
    loss: float
    norm: float
    rest: float
    state: str


def quasi_newton_fit(
    net: FullyConnected,
    X: Tensor,
    Y: Tensor,
    ridge: float,
    *,
    steps: int,
    scale: float,
    before: Sequence[Phase] = (),
    seed: int = 0,
    loss: str = "mse",
    patience: float = PATIENCE,
) -> Fit:
    """Minimise in place by L-BFGS.

    ``before`` are phases to begin with; cost and loss are divided by ``scale``, the cost of the best constant. After
    ``steps`` steps at the full ridge it goes on until it is at rest, to ``patience`` times as many at most.
    """
    phases = [*before, Phase("lbfgs", math.ceil(patience * steps))]
    losses: list[float] = []

    def rested(event: TrainingEvent) -> bool:
        if event.phase + 1 == len(phases):
            losses.append(event.loss)
        return len(losses) >= steps and _rest(losses) <= REST

    result = _train(net, X, Y, ridge, phases, seed, rested, loss)
    rest = _rest(losses)
    state = "at rest" if result.at_rest or rest <= REST else "falling"
    state = "diverged" if result.state == "diverged" else state
    return Fit(net, result.cost / scale, result.loss / scale, result.norm, rest, state)


def _rest(losses: list[float]) -> float:
    """Relative decrease over the last steps; infinite when there are too few to say."""
    if len(losses) <= REST_STEPS:
        return math.inf
    return (losses[-1 - REST_STEPS] - losses[-1]) / max(losses[-1], 1e-300)


def _train(
    net: nn.Module,
    X: Tensor,
    Y: Tensor,
    ridge: float,
    phases: list[Phase],
    seed: int,
    stop: Callable[[TrainingEvent], bool] | None = None,
    loss: str = "mse",
) -> TrainingResult:
    callbacks = [] if stop is None else [stop]
    return minimise(net, X, Y, ridge=ridge, loss=loss, phases=phases, tolerance=1e-3, seed=seed, callbacks=callbacks)


@dataclass(frozen=True, eq=False)
class Coordinates:
    """The waist in uncorrelated coordinates of unit variance, those first that move the outputs most.

    With C the covariance of z and M = E[JᵀJ] of the decoder's Jacobian, the eigenvalues of C^½MC^½ are the mean squares
    of what each coordinate moves at the outputs.

    Attributes
    ----------
    weights : Tensor (k,)
        Those eigenvalues, falling.
    into, out_of : Tensor (k, k)
        u = into·(z − mean), z = mean + out_of·u.
    mean : Tensor (k,)
    """

    weights: Tensor
    into: Tensor
    out_of: Tensor
    mean: Tensor

    @property
    def shares(self) -> NDArray[np.float64]:
        """The weights relative to their sum."""
        total = float(self.weights.sum())
        return (self.weights / total).numpy() if total > 0 else np.zeros(len(self.weights))


@torch.no_grad()
def weigh(net: FullyConnected, X: Tensor) -> Coordinates:
    """The coordinates of ``net`` on the data ``X``, in float64."""
    encoder, decoder = net.encoder().double(), net.decoder().double()
    rows = X if len(X) <= WEIGHED_ROWS else X[:: -(-len(X) // WEIGHED_ROWS)]
    Z = encoder(rows.double())
    mean = Z.mean(0)
    C = (Z - mean).mT @ (Z - mean) / len(Z)
    J = jacobian(decoder, Z)
    M = torch.einsum("noi,noj->ij", J, J) / len(Z)
    values, V = torch.linalg.eigh(C)
    # A direction without variance has no scale of its own; a floor keeps its inverse finite.
    deviations = values.clamp_min(max(float(values[-1]) * 1e-12, 1e-30)).sqrt()
    root, inverse = V * deviations @ V.mT, V / deviations @ V.mT
    weights, U = torch.linalg.eigh(root @ M @ root)
    weights, U = weights.flip(0).clamp_min(0), U.flip(1)
    return Coordinates(weights, U.mT @ inverse, root @ U, mean)


@torch.no_grad()
def narrow(net: FullyConnected, X: Tensor, rank: int) -> FullyConnected:
    """The network with all but the ``rank`` first coordinates held at their mean."""
    found = weigh(net, X)
    return rewaist(net, found.into[:rank], found.out_of[:, :rank], found.mean)


@torch.no_grad()
def rewaist(
    net: FullyConnected, into: Tensor, out_of: Tensor, mean: Tensor, *, balanced: bool = True
) -> FullyConnected:
    """The network with waist u = into·(z − mean) and z replaced by mean + out_of·u after it.

    ``balanced`` replaces u by the linear image of it at which the two weights around the waist have the least norm.
    """
    m, own = net.waist, net.weights[0].dtype
    Ws, bs = [W.detach().double() for W in net.Ws], [b.detach().double() for b in net.bs]
    A, a = into @ Ws[m - 1], into @ (net.bias * bs[m - 1] - mean)
    B, b = Ws[m] @ out_of, net.bias * bs[m] + Ws[m] @ mean
    if balanced and len(A) <= min(len(B), A.shape[1]):
        # With BA = USVᵀ the factors U√S and √SVᵀ have the least norm; a waist wider than its neighbours has too few.
        U, s, _ = torch.linalg.svd(B @ A, full_matrices=False)
        count = len(A)
        T = s[:count].clamp_min(float(s[0]) * 1e-9 + 1e-30).rsqrt()[:, None] * (U[:, :count].mT @ B)
        A, a, B = T @ A, T @ a, B @ torch.linalg.pinv(T)
    weights, biases = [*Ws[: m - 1], A, B, *Ws[m + 1 :]], [*bs[: m - 1], a / net.bias, b / net.bias, *bs[m + 1 :]]
    return type(net).from_weights(weights, biases, slope=net.slopes, bias=net.bias).to(own)


def unroll(
    net: FullyConnected,
    X: Tensor,
    Y: Tensor,
    ridge: float,
    rank: int,
    *,
    phases: list[Phase],
    seed: int,
    loss: str = "mse",
    ring: bool = False,
) -> FullyConnected | None:
    """A start for ``rank`` coordinates that no projection gives: a surface, unrolled along itself.

    The surface of outputs of ``net`` (which are denoised) is embedded in R^rank by shortest paths, or as a ``ring`` the
    cloud of its coordinates is; an encoder is fitted to the unrolled coordinates, and a decoder to its outputs, both by
    ``phases``. None where that is impossible: too few points, or all of them equal.
    """
    with torch.no_grad():
        U = _flat_ring(net, X, rank, seed) if ring else _shortest_paths(net(X).double().numpy(), rank)
    if U is None:
        return None
    deviation = U.std(axis=0)
    if not np.isfinite(U).all() or (deviation <= 1e-12 * deviation.max()).any():
        return None
    target = torch.from_numpy((U - U.mean(axis=0)) / deviation).to(X.dtype)
    generator = torch.Generator().manual_seed(seed)
    m = net.waist
    family, slopes = type(net), (net.slopes[: m - 1], net.slopes[m:])
    encoder = family([*net.dims[:m], rank], slopes[0], net.bias, dtype=X.dtype, generator=generator)
    decoder = family([rank, *net.dims[m + 1 :]], slopes[1], net.bias, dtype=X.dtype, generator=generator)
    _train(encoder, X, target, ridge * rank / Y.shape[1], phases, seed)
    _train(decoder, target, Y, ridge, phases, seed, loss=loss)
    return family.joined(encoder, decoder)


def _shortest_paths(F: NDArray[np.float64], rank: int) -> NDArray[np.float64] | None:
    """Points embedded in R^rank by shortest paths through their graph of neighbours (Isomap)."""
    from sklearn.manifold import Isomap

    chosen = F[:: -(-len(F) // GRAPH_POINTS)]
    if len(chosen) <= max(NEIGHBOURS, rank) + 1 or not np.ptp(chosen, axis=0).any():
        return None
    try:
        with warnings.catch_warnings():
            # Several connected components are joined by their nearest points, with a warning.
            warnings.simplefilter("ignore")
            return Isomap(n_neighbors=NEIGHBOURS, n_components=rank, eigen_solver="dense").fit(chosen).transform(F)
    except (ValueError, np.linalg.LinAlgError):
        return None


def _flat_ring(net: FullyConnected, X: Tensor, rank: int, seed: int) -> NDArray[np.float64] | None:
    """The coordinates of ``net``, one too many, as those of a ring: (S^{k−1} × an interval) lies in R^k.

    With a the axis around which the cloud is most evenly far away, u ↦ (u − (a·u)a)·exp(a·u/2) is one to one on a
    cylinder around a, and has as many coordinates as there are directions orthogonal to a.
    """
    if net.dims[net.waist] != rank + 1 or rank < 2:
        return None
    found = weigh(net, X)
    Z = net.encoder().double()(X.double())
    U = ((Z - found.mean) @ found.into.mT).numpy()
    rng = np.random.default_rng([seed, 4])
    axes = rng.standard_normal((AXES, rank + 1))
    axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    rows = U[:: max(1, -(-len(U) // WEIGHED_ROWS))]
    squares = (rows**2).sum(1)[:, None] - (rows @ axes.T) ** 2
    axis = axes[np.argmin(squares.std(axis=0) / squares.mean(axis=0))]
    beside = np.linalg.svd(axis[None])[2][1:]
    return (U @ beside.T) * np.exp(0.5 * (U @ axis))[:, None]


def minibatch_fit(
    net: FullyConnected, X: Tensor, Y: Tensor, ridge: float, rate: float, *, scale: float, seed: int, loss: str = "mse"
) -> Fit:
    """Go on in place by Adam in mini-batches, two passes over the rows; the start is kept if that is no better."""
    before = copy.deepcopy(net)
    steps = max(100, 2 * len(X) // BATCH)
    start = _train(before, X, Y, ridge, [Phase("adam", 0, rate)], seed, loss=loss)
    passes = [Phase("adam", steps, rate, batch_size=BATCH, anneal=True)]
    result = _train(net, X, Y, ridge, passes, seed, loss=loss)
    if not result.loss < start.loss:
        net, result = before, start
    return Fit(net, result.cost / scale, result.loss / scale, result.norm, 0.0, "at rest")


def least_coordinates(net: FullyConnected, X: Tensor) -> tuple[Coordinates, Tensor, Tensor]:
    """The coordinates of each row, and those of least size that give about the same outputs.

    u* = argmin_v ‖h(v) − h(u)‖² + SIZE·Σ_j w_j v_j², with u the uncorrelated coordinates of unit variance and w_j their
    weights. Along what the outputs do not respond to, the second term decides: u* is a function of h(u) there, while u
    need not be one. By Levenberg–Marquardt steps, in each row for itself.

    Returns
    -------
    Coordinates, Tensor (N, k), Tensor (N, k)
    """
    found = weigh(net, X)
    decoder = net.decoder().double()

    def moved(V: Tensor) -> Tensor:
        return found.mean + V @ found.out_of.mT

    with torch.no_grad():
        U = (net.encoder().double()(X.double()) - found.mean) @ found.into.mT
        F, weights = decoder(moved(U)), SIZE * found.weights
        V, damping = U.clone(), torch.full((len(U), 1), 1e-3, dtype=U.dtype)

        def amounts(V: Tensor) -> Tensor:
            return ((decoder(moved(V)) - F) ** 2).sum(1, keepdim=True) + (weights * V**2).sum(1, keepdim=True)

        amount, typical = amounts(V), found.weights.clamp_min(1e-12 * float(found.weights[0]) + 1e-300)
        for _ in range(NEWTON_STEPS):
            J = jacobian(decoder, moved(V)) @ found.out_of
            slope = torch.einsum("noi,no->ni", J, decoder(moved(V)) - F) + weights * V
            curvature = J.mT @ J + torch.diag_embed(weights + damping * typical)
            trial = V - torch.linalg.solve(curvature, slope)
            tried = amounts(trial)
            better = tried < amount
            V, amount = torch.where(better, trial, V), torch.where(better, tried, amount)
            damping = torch.where(better, damping / 4.0, damping * 8.0).clamp(1e-9, 1e9)
    return found, U, V


def lean_fit(fit: Fit, X: Tensor, Y: Tensor, ridge: float, *, scale: float, seed: int) -> Fit | None:
    """The same outputs through coordinates that say nothing else; None where they say nothing else already.

    A smooth coordinate goes on where the outputs no longer respond to it. The coordinates of least size are a function
    q of the coordinates alone: a small network learns it and becomes the end of the encoder.
    """
    rows = slice(None, None, max(1, -(-len(X) // LEAN_ROWS)))
    found, U, V = least_coordinates(fit.network, X[rows])
    # A common factor leaves nothing out.
    left = V - U * ((U * V).mean(0) / (U**2).mean(0))
    usable = bool(torch.isfinite(V).all()) and float(found.shares.min()) > MOVING
    if not usable or not bool(((left**2).mean(0) > EXCESS * (V**2).mean(0)).any()):
        return None
    net, k = fit.network, V.shape[1]
    family = type(net)
    q = family([k, *LEAN_WIDTHS, k], bias=net.bias, dtype=V.dtype, generator=torch.Generator().manual_seed(seed))
    _train(q, U, V, LEAN_RIDGE, [Phase("lbfgs", LEAN_STEPS)], seed)
    # In the measure of the waist, in which the decoder has the least norm: z ↦ mean + out_of·q(into·(z − mean)).
    Ws, bs = [W.detach() for W in q.Ws], [b.detach() for b in q.bs]
    Ws[0], bs[0] = Ws[0] @ found.into, bs[0] - Ws[0] @ found.into @ found.mean / net.bias
    Ws[-1], bs[-1] = found.out_of @ Ws[-1], found.out_of @ bs[-1] + found.mean / net.bias
    q = family.from_weights(Ws, bs, slope=q.slopes, bias=net.bias).to(X.dtype)
    encoder, decoder = family.joined(net.encoder(), q).merged(), net.decoder()
    with torch.no_grad():
        Z = encoder(X)
    # Sizes weigh a little everywhere: the decoder makes up for it.
    result = _train(decoder, Z, Y, ridge, [Phase("lbfgs", DECODER_STEPS)], seed)
    whole = family.joined(encoder, decoder)
    norm = float(sum(p.detach().double().square().sum() for p in whole.parameters()))
    cost = result.cost / scale
    return Fit(whole, cost, cost + ridge * norm / scale, norm, fit.rest, fit.state)
