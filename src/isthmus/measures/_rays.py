"""Neurons on rays and classes in clusters: how sparse a representation is, in numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isthmus._checks import check_integer, check_number, fail
from isthmus._cite import cites
from isthmus.linalg import matrix

#: Largest distance of unit vectors on one ray, unless given.
ON_ONE_RAY = 1e-6

#: Rounds of reassignment, and neurons that a search for rays starts from.
ROUNDS, STARTS = 100, 8


@cites("features2022", "§3.1(4), rays", ids=("Q-forces",))
def ray_groups(Z: Any, *, tolerance: float = ON_ONE_RAY) -> tuple[Tensor, ...]:
    """Groups of neurons on one ray, Z_k = cZ_k' with c > 0; the largest ray by ‖·‖ first, dead neurons in none.

    Departs from the paper: c > 0, as σ is positively homogeneous only (erratum).

    Parameters
    ----------
    Z : array (n, N)
        Neurons as rows.
    tolerance : float, default 1e-6
        ‖Z_k/‖Z_k‖ − Z_k'/‖Z_k'‖‖ up to which neuron k is on the ray of k', the longest that is in no group yet. The
        distance, not the cosine, which cannot tell angles below 1e-8 apart.

    Returns
    -------
    tuple of Tensor of int64
        Indices in decreasing order of norm.
    """
    M = matrix("ray_groups", "Z", Z)
    check_number("ray_groups", "tolerance", tolerance, low=0.0)
    sizes = M.norm(dim=1)
    order = [int(k) for k in sizes.argsort(descending=True, stable=True) if float(sizes[k]) > 0.0]
    directions = M / sizes.clamp_min(torch.finfo(M.dtype).tiny)[:, None]
    groups = []
    while order:
        rest = torch.tensor(order)
        near = (directions[rest] - directions[order[0]]).norm(dim=1) <= tolerance
        groups.append(rest[near])
        order = [int(k) for k in rest[~near]]
    return tuple(groups)


@cites("features2022", "§3.1(4), Fig. 1", ids=("Q-forces",))
def ray_concentration(Z: Any, count: int) -> tuple[float, Tensor]:
    """Σ_k max_j ⟨Z_k, c_j⟩₊² / Σ_k ‖Z_k‖²: the share of the squared norm on the best ``count`` rays, and the rays.

    By k-means on directions weighted by norm: neurons go to the ray with the largest positive product, and a ray to the
    leading direction of its neurons. The starts are the longest neurons in turn, each followed by the neurons that the
    rays so far explain least. A lower bound of the best share, the same at every call.

    Returns
    -------
    share : float
        In [0, 1]; 1 for Z = 0.
    rays : Tensor (count, N)
        Unit vectors, the one with the largest share first.
    """
    M = matrix("ray_concentration", "Z", Z)
    check_integer("ray_concentration", "count", count, low=1)
    squares = M.square().sum(1)
    total = float(squares.sum())
    if total == 0.0:
        return 1.0, M.new_zeros(count, M.shape[1])
    best, rays = -1.0, M.new_zeros(count, M.shape[1])
    for start in squares.argsort(descending=True, stable=True)[:STARTS]:
        found, reached = _improve(M, _spread_out(M, squares, int(start), count))
        if reached > best:
            best, rays = reached, found
    held = (M @ rays.mT).clamp_min(0.0).square()
    shares = torch.where(held == held.amax(1, keepdim=True), held, torch.zeros_like(held)).sum(0)
    return min(best / total, 1.0), rays[shares.argsort(descending=True, stable=True)]


@cites("features2022", "§3.1(4), Fig. 1", ids=("Q-forces",))
def class_separation(Z: Any, labels: Any) -> float:
    """Σ_c N_c‖μ_c − μ‖² / Σ_i‖z_i − μ‖² ∈ [0, 1]: scatter between classes over total scatter of the samples.

    0 when all classes have one mean, 1 when every class is one point; NaN when all samples are one point.

    Parameters
    ----------
    Z : array (n, N)
        Samples as columns.
    labels : array (N,) of integers
    """
    M = matrix("class_separation", "Z", Z)
    classes = torch.as_tensor(labels).reshape(-1)
    if len(classes) != M.shape[1]:
        must = f"`labels` must have {M.shape[1]} entries, one for each column of `Z`"
        fail("class_separation", must, len(classes), "Pass neurons × samples, and a label for each sample.")
    centred = M - M.mean(1, keepdim=True)
    total = float(centred.square().sum())
    between = 0.0
    for value in classes.unique():
        members = centred[:, classes == value]
        between += members.shape[1] * float(members.mean(1).square().sum())
    return between / total if total > 0.0 else float("nan")


def _spread_out(M: Tensor, squares: Tensor, start: int, count: int) -> Tensor:
    """Directions of the neuron ``start`` and then of those with the largest part off the rays so far."""
    rays = M.new_zeros(count, M.shape[1])
    chosen = start
    for j in range(count):
        size = M[chosen].norm()
        if float(size) == 0.0:
            break
        rays[j] = M[chosen] / size
        left = squares - (M @ rays[: j + 1].mT).clamp_min(0.0).amax(1).square()
        chosen = int(left.argmax())
    return rays


def _improve(M: Tensor, rays: Tensor) -> tuple[Tensor, float]:
    """Reassign and re-aim until nothing is gained; the rays and Σ_k max_j ⟨Z_k, c_j⟩₊²."""
    products = (M @ rays.mT).clamp_min(0.0)
    reached = float(products.amax(1).square().sum())
    for _ in range(ROUNDS):
        owner, trial = products.argmax(1), rays.clone()
        for j in range(len(rays)):
            # A neuron at more than 90° from every ray counts 0 whichever it is given to.
            members = M[(owner == j) & (products.amax(1) > 0.0)]
            if len(members):
                lead = torch.linalg.svd(members, full_matrices=False).Vh[0]
                trial[j] = (
                    lead
                    if float((members @ lead).clamp_min(0.0).square().sum())
                    >= float((members @ -lead).clamp_min(0.0).square().sum())
                    else -lead
                )
        products = (M @ trial.mT).clamp_min(0.0)
        value = float(products.amax(1).square().sum())
        if value <= reached * (1.0 + 1e-12):
            break
        rays, reached = trial, value
    return rays, reached
