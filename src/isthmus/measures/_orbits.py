"""Whether a map collapses orbits: distances within the orbits of a group beside distances between them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus._checks import as_tensor, fail
from isthmus._cite import cites

#: A range below this many roundings of the representation's size is that of a constant.
ROUNDINGS = 1e3


@dataclass(frozen=True)
class OrbitDistance:
    """How far apart points of one orbit are, relative to points of different orbits.

    Attributes
    ----------
    within : float
        Mean of ‖α(x) − α(g·x)‖ over samples and draws of g.
    between : float
        The range: mean of ‖α(x) − α(g·y)‖ over different samples x, y.
    ratio : float
        ``within/between``: 0 when orbits are collapsed; NaN when the representation is constant.
    error : float
        Standard error of ``ratio`` over samples.
    """

    within: float
    between: float
    ratio: float
    error: float


@cites("bottleneck2023", "§5, Figure 2c")
def orbit_distance(A: Any, moved: Any) -> OrbitDistance:
    """Mean ‖α(x) − α(g·x)‖ / mean ‖α(x) − α(g·y)‖, with its standard error.

    Parameters
    ----------
    A : array (N, n)
        α(x), samples as rows; at least two.
    moved : array (draws, N, n)
        α(g·x) for as many draws of g.

    Examples
    --------
    >>> import torch
    >>> x = torch.linspace(-1, 1, 50, dtype=torch.float64)[:, None]
    >>> orbit_distance(x.abs(), (-x).abs()[None]).ratio
    0.0
    """
    who = "orbit_distance"
    A, moved = as_tensor(who, "A", A), as_tensor(who, "moved", moved)
    if A.ndim != 2 or moved.ndim != 3 or moved.shape[1:] != A.shape or len(A) < 2 or not len(moved):
        got = f"{tuple(A.shape)} and {tuple(moved.shape)}"
        fail(who, "`A` must be (N, n) and `moved` (draws, N, n), N ≥ 2", got, "Stack the moved samples in front.")
    size = float(torch.cat([A[None], moved]).square().mean(dim=(0, 1)).sum().sqrt())
    return summarise(*distances(A, moved), size)


def distances(A: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
    """For each sample the mean distance within its orbit, and to the orbits of other samples, both (N,).

    The partner of a sample is another one for each draw: as many pairs as there are within orbits.
    """
    count = len(A)
    within, between = A.new_zeros(count), A.new_zeros(count)
    for draw, B in enumerate(moved):
        within += (A - B).norm(dim=1)
        # Over the draws the partners are spread over all samples.
        shift = 1 + (draw * (count - 1)) // len(moved)
        apart = (A - B.roll(-shift, 0)).norm(dim=1)
        between += (apart + apart.roll(shift, 0)) / 2
    return within / len(moved), between / len(moved)


def summarise(
    within: Tensor, between: Tensor, size: float, eps: float = torch.finfo(torch.float64).eps
) -> OrbitDistance:
    """The ratio of the two means and its standard error, from :func:`distances`; ``size`` is that of the points."""
    inside, apart = float(within.mean()), float(between.mean())
    if apart <= ROUNDINGS * eps * size:
        return OrbitDistance(inside, apart, math.nan, math.nan)
    ratio = inside / apart
    # A mean over pairs moves twice as much with one sample as that sample's own mean does.
    influence = (within - inside) - 2.0 * ratio * (between - apart)
    return OrbitDistance(inside, apart, ratio, float(influence.std() / (apart * len(within) ** 0.5)))


def distance_matrix(P: Any) -> Tensor:
    """‖p_i − p_j‖ for the rows of P, (M, M), by differences: collapsed points would drown in |p|² − 2pᵀq + |q|²."""
    P = as_tensor("distance_matrix", "P", P)
    return torch.cdist(P, P, compute_mode="donot_use_mm_for_euclid_dist")


@cites("bottleneck2023", "§5, rotation around w")
def rotations_about(w: Any, *, reflect: bool = False) -> Callable[[Tensor, torch.Generator], Tensor]:
    """The action of O(d) fixing the axis w: each sample keeps wᵀv and ‖(I − wwᵀ)v‖, all else is drawn anew.

    Parameters
    ----------
    w : array (d,)
        Not zero; of any length.
    reflect : bool, default False
        Also turn w into −w, with probability a half.

    Returns
    -------
    callable (X, generator) → array like X
        Draws the part orthogonal to w uniformly from its sphere, which is what a uniform rotation does to it.
    """
    who = "rotations_about"
    axis = as_tensor(who, "w", w)
    if axis.ndim != 1 or len(axis) < 2 or not float(axis.norm()) > 0:
        fail(who, "`w` must be a vector of at least 2 entries, not zero", f"shape {tuple(axis.shape)}", "Pass an axis.")
    axis = axis / axis.norm()

    def action(X: Tensor, generator: torch.Generator) -> Tensor:
        if X.ndim != 2 or X.shape[1] != len(axis):
            fail(who, f"samples must have {len(axis)} entries", f"shape {tuple(X.shape)}", "Pass rows of that length.")
        V = X.double()
        along = V @ axis
        radius = (V - torch.outer(along, axis)).norm(dim=1, keepdim=True)
        G = torch.randn(V.shape, generator=generator, dtype=torch.float64)
        G = G - torch.outer(G @ axis, axis)
        G = G / G.norm(dim=1, keepdim=True)
        if reflect:
            along = along * (1 - 2 * torch.randint(2, along.shape, generator=generator))
        return (torch.outer(along, axis) + radius * G).to(X.dtype)

    return action
