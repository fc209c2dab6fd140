"""Q-denoise: how far an autoencoder is from projecting onto its data, by its Jacobian and by its outputs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from scipy.spatial import KDTree
from torch import Tensor, nn
from torch.func import jacrev, vmap

from isthmus._checks import as_matrix, as_tensor, fail
from isthmus._cite import cites
from isthmus.linalg import CHUNK_BYTES, chunk_rows, matrix, numerical_rank
from isthmus.measures._jacobian import jacobian


@cites("rank2023", "§5, 'Autoencoders'", ids=("Q-denoise",))
def projection_defect(J: Any) -> Tensor:
    """‖J² − J‖_F: 0 exactly for projections, orthogonal or oblique (also for 0 and the identity).

    Parameters
    ----------
    J : array (..., d, d)
        Jacobians of an autoencoder.

    Returns
    -------
    Tensor (...)
    """
    M = matrix("projection_defect", "J", J)
    if M.shape[-1] != M.shape[-2]:
        got = f"shape {tuple(M.shape)}"
        fail("projection_defect", "`J` must be square", got, "An autoencoder has as many outputs as inputs.")
    return (M @ M - M).flatten(-2).norm(dim=-1)


@cites("rank2023", "§5, 'Autoencoders'", ids=("Q-denoise",))
def tangent_defect(J: Any, T: Any) -> Tensor:
    """‖JT − T‖_F for an orthonormal basis of the span of T: 0 when J is the identity on the tangent space.

    Parameters
    ----------
    J : array (..., d, d)
        Jacobians of an autoencoder.
    T : array (..., d, k)
        Tangent vectors as columns, linearly independent; only their span counts.

    Returns
    -------
    Tensor (...)
    """
    who = "tangent_defect"
    M, tangents = matrix(who, "J", J), matrix(who, "T", T)
    if M.shape[-1] != M.shape[-2] or tangents.shape[-2] != M.shape[-1]:
        got = f"shapes {tuple(M.shape)} and {tuple(tangents.shape)}"
        fail(who, "`J` must be (..., d, d) and `T` (..., d, k)", got, "Pass tangent vectors as columns.")
    k = tangents.shape[-1]
    if bool((numerical_rank(tangents) < k).any()):
        got = "tangent vectors that are linearly dependent, or zero"
        fail(who, "`T` must have independent columns", got, "Pass a basis of each tangent space.")
    basis = torch.linalg.qr(tangents).Q
    return (M @ basis - basis).flatten(-2).norm(dim=-1)


def distance_to_data(Z: Any, data: Any = None, *, projection: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Distance of every row of Z to the nearest row of ``data``, or to its image under ``projection``, (N,).

    Parameters
    ----------
    Z : array (N, d)
        Points as rows.
    data : array (M, d), optional
        A sample of the manifold: the distance is then at most its spacing too large.
    projection : callable, optional
        Maps (N, d) to the nearest points of the manifold. One of the two must be given.
    """
    who = "distance_to_data"
    points = as_matrix(who, "Z", Z)
    if (data is None) == (projection is None):
        fail(who, "one of `data` and `projection` must be given", "both or none", "Pass exactly one.")
    if projection is not None:
        nearest = as_matrix(who, "projection(Z)", projection(points), columns=points.shape[1])
        return (points - nearest).norm(dim=1)
    sample = as_matrix(who, "data", data, columns=points.shape[1])
    return torch.from_numpy(KDTree(sample.cpu().numpy()).query(points.cpu().numpy())[0])


@dataclass(frozen=True, eq=False)
class Denoising:
    """How far an autoencoder f is from projecting onto its data near each of N points.

    Attributes
    ----------
    projection : Tensor (N,)
        ‖J² − J‖_F.
    tangency : Tensor (N,), or None
        ‖JT − T‖_F on orthonormal tangents, when they were given.
    ranks : Tensor (N,)
        Rank of J, rounding counted as zero. A projection of rank above the data's dimension does not denoise:
        the identity has no defect.
    reconstruction : Tensor (N,)
        ‖f(x) − x‖: what the two defects say about projecting onto the *data* needs this to be small.
    distance_before, distance_after : Tensor (M,), or None
        Distance to the data of the noisy inputs, and of their outputs, when noisy inputs were given.
    """

    projection: Tensor
    tangency: Tensor | None
    ranks: Tensor
    reconstruction: Tensor
    distance_before: Tensor | None
    distance_after: Tensor | None


@cites("rank2023", "§5, 'Autoencoders'; Fig. 3", ids=("Q-denoise",))
def denoising(
    autoencoder: Any,
    X: Any,
    *,
    tangents: Any = None,
    noisy: Any = None,
    projection: Callable[[Tensor], Tensor] | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Denoising:
    """‖J² − J‖ and ‖JT − T‖ at data points, and how near outputs of noisy inputs come to the data.

    Parameters
    ----------
    autoencoder : Network, torch.nn.Module or callable
        f: (N, d) → (N, d), row by row and, unless it has weights and ``trace``, of torch operations. Evaluated in
        float64: a module is copied, cast and put in evaluation mode; the original is left alone.
    X : array (N, d)
        Data points, where the Jacobians are taken.
    tangents : array (N, d, k) or (d, k), optional
        A basis of the tangent space at each point, as columns.
    noisy : array (M, d), optional
        Inputs off the data.
    projection : callable, optional
        Nearest point of the data manifold, if known; otherwise distances are to the nearest row of X.
    chunk_bytes : int
        Memory for the intermediates of the Jacobians.
    """
    who = "denoising"
    points = as_matrix(who, "X", X)
    f = _in_float64(autoencoder)
    J = _jacobians(f, points, chunk_bytes)
    basis = None if tangents is None else as_tensor(who, "tangents", tangents)
    before = after = None
    if noisy is not None:
        inputs = as_matrix(who, "noisy", noisy, columns=points.shape[1])
        data = points if projection is None else None
        before = distance_to_data(inputs, data, projection=projection)
        after = distance_to_data(_outputs(f, inputs), data, projection=projection)
    return Denoising(
        projection_defect(J),
        None if basis is None else tangent_defect(J, basis),
        numerical_rank(J),
        (_outputs(f, points) - points).norm(dim=1),
        before,
        after,
    )


def _in_float64(autoencoder: Any) -> Any:
    if isinstance(autoencoder, nn.Module):
        return copy.deepcopy(autoencoder).double().eval()
    if not callable(autoencoder):
        fail("denoising", "`autoencoder` must be callable", type(autoencoder).__name__, "Pass f: (N, d) → (N, d).")
    return autoencoder


@torch.no_grad()
def _outputs(f: Callable[[Tensor], Tensor], X: Tensor) -> Tensor:
    outputs = as_tensor("denoising", "autoencoder(X)", f(X))
    if outputs.shape != X.shape:
        got = f"{tuple(outputs.shape)} for inputs of shape {tuple(X.shape)}"
        fail("denoising", "`autoencoder` must return points like its inputs", got, "Pass f: (N, d) → (N, d).")
    return outputs


def _jacobians(f: Callable[[Tensor], Tensor], X: Tensor, chunk_bytes: int) -> Tensor:
    _outputs(f, X[:1])
    net: Any = f
    if hasattr(net, "trace") and hasattr(net, "Ws"):
        return jacobian(net, X, chunk_bytes=chunk_bytes)
    d = X.shape[1]
    # What f holds inside is not known: ten times its output for each of the d rows of J is a guess on the safe side.
    rows = chunk_rows(len(X), 80.0 * d * d, chunk_bytes)
    each = vmap(jacrev(lambda x: f(x[None])[0]))
    return torch.cat([each(part).detach() for part in X.split(rows)])
