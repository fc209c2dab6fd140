"""Carathéodory's theorem for cones: non-negative shares of vectors with the same sum, carried by independent ones."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.linalg import thin_svd

#: A singular value of unit vectors below this share of the largest is a relation among them up to rounding.
RELATION = 1e-13
#: Vectors looked at together, unless more than these are independent.
BLOCK = 512


def eliminate(points: Tensor, costs: Tensor | None = None, *, relation: float = RELATION, block: int = BLOCK) -> Tensor:
    """Shares m ≥ 0 with Σm_ip_i = Σp_i and Σm_i·cost_i ≤ Σcost_i, the p_i of positive share independent.

    A relation Σr_ip_i = 0 with Σr_i·cost_i ≥ 0 has a positive entry: m ← m − t·r, up to the first share that vanishes,
    keeps the sum and does not raise the cost. The direction is the projection of the costs onto the relations that are
    left, along which the cost falls fastest; the relations without the vanished vector follow by one reflection. So a
    single decomposition serves all steps: O(n·min(n, d)·(n + d)) for it, O(n·q) for each of q relations.

    Parameters
    ----------
    points : Tensor (n, d), float64
        Or any d coordinates in which the same relations hold, such as a random sketch of at least n of them.
    costs : Tensor (n,), optional
        Non-negative; by default the lengths of the points.
    relation : float
        Singular values of the points, scaled to unit length, below this share of the largest count as 0.
    block : int
        Vectors that are taken into account at once, at least.

    Returns
    -------
    Tensor (n,)
        Equal sums up to rounding: at each step what a singular value of ``relation`` leaves, corrected at the end by a
        least-squares fit of the shares that are left, where it keeps them positive.
    """
    # Vectors of very different length would hide relations behind rounding.
    sizes = points.norm(dim=1)
    alive = torch.nonzero(sizes > 0)[:, 0]
    shares = torch.zeros_like(sizes)
    if not len(alive):
        return shares
    sizes = sizes[alive]
    units = points[alive] / sizes[:, None]
    price = torch.ones_like(sizes) if costs is None else costs[alive] / sizes
    price = price / price.abs().max().clamp_min(torch.finfo(torch.float64).tiny)
    weights, kept = sizes.clone(), torch.zeros(0, dtype=torch.int64)
    rest = torch.arange(len(sizes))
    while len(rest):
        # Block by block: the relations of all vectors at once would take n² numbers.
        count = max(block, len(kept))
        active, rest = torch.cat([kept, rest[:count]]), rest[count:]
        weights[active], gone = _walk(units[active], weights[active], price[active], relation)
        kept = active[~gone]
    shares[alive[kept]] = _mended(units[kept], weights[kept], sizes @ units) / sizes[kept]
    return shares


def _walk(units: Tensor, weights: Tensor, price: Tensor, relation: float) -> tuple[Tensor, Tensor]:
    """Weights after all relations have been used, and which of them became 0."""
    # The complement of Im U is wanted only where there are more vectors than coordinates; else U has it.
    U, s, _ = thin_svd(units, full_matrices=units.shape[0] > units.shape[1])
    # Rows are orthonormal relations.
    Q = U[:, int((s > relation * s[0]).sum()) :].mT.contiguous()
    pinned = torch.zeros(len(weights), dtype=torch.bool)
    inside = Q @ price
    while len(Q):
        # A price that no relation changes: any of them will do.
        direction = inside @ Q if float(inside.norm()) > 1e-12 * float(price.norm()) else Q[0]
        if float(price @ direction) < 0.0:
            direction = -direction
        if float(direction.max()) <= 0.0:  # at non-negative prices only where the gain is rounding
            direction = -direction
        # An entry that is rounding says nothing about its vector, which must not be the one to go.
        falling = direction > 1e-14 * float(direction.abs().max())
        steps = torch.where(falling, weights / direction, torch.inf)
        first = int(steps.argmin())
        weights = (weights - steps[first] * direction).clamp_min(0.0)
        pinned[first] = True
        weights[pinned] = 0.0
        Q, inside = _without(Q, inside, first)
    return weights, pinned


def _without(Q: Tensor, inside: Tensor, place: int) -> tuple[Tensor, Tensor]:
    """Orthonormal relations that vanish at ``place``, and the prices in them: one Householder reflection, in place."""
    v = Q[:, place].clone()
    # The sign that avoids cancellation.
    v[0] += v.norm() if v[0] >= 0 else -v.norm()
    scale = 2.0 / float(v @ v)
    Q.addr_(v, v @ Q, alpha=-scale)
    Q[:, place] = 0.0
    return Q[1:], (inside - scale * (v @ inside) * v)[1:]


def _mended(units: Tensor, weights: Tensor, wanted: Tensor) -> Tensor:
    """Weights of independent vectors refitted to the sum, unless one of them would become negative."""
    left = float((wanted - weights @ units).norm())
    for _ in range(2):
        missing = wanted - weights @ units
        trial = weights + torch.linalg.lstsq(units.mT, missing[:, None], driver="gelsd").solution[:, 0]
        after = float((wanted - trial @ units).norm())
        if float(trial.min()) < 0.0 or after >= left:
            break
        weights, left = trial, after
    return weights
