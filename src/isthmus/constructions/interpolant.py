"""A-threepart, one variable: the piecewise linear interpolant of points on a line as a two-layer network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isthmus._checks import as_matrix, as_tensor, fail
from isthmus._cite import cites
from isthmus._errors import DataError
from isthmus.constructions.construction import Construction, Domain, Known
from isthmus.networks import FullyConnected


@cites("rank2023", "Prop. 2, App. E", ids=("A-threepart",))
def interpolant_1d(t: Any, y: Any) -> Construction:
    """h(t) = y_1 + Σ_j v_j σ(t − t_j), with h(t_j) = y_j and h linear between: ‖θ‖² = ‖y_1‖² + 2Σ_j √(1+t_j²)‖v_j‖.

    v_j is the change of slope at t_j (from 0 at t_1). Each neuron is written σ(c(t − t_j))·v_j/c with the c
    of least norm. Knots where the slope does not change have no neuron.

    Parameters
    ----------
    t : array (N,)
        Distinct positions, in any order.
    y : array (N, d)
        Values there; 1-D for a scalar function.

    Returns
    -------
    Construction
        A ReLU network ℝ → ℝ^d, equal to y_1 left of all t and going on with the last slope right of them.
    """
    who = "interpolant_1d"
    positions = as_tensor(who, "t", t, device="cpu").flatten()
    values = as_matrix(who, "y", y, device="cpu")
    if len(positions) != len(values):
        fail(who, "`t` and `y` must have equal lengths", f"{len(positions)} and {len(values)}", "Pass one y per t.")
    order = positions.argsort()
    positions, values = positions[order], values[order]
    if bool((positions.diff() <= 0).any()):
        fail(who, "`t` must be distinct", "equal positions", "Merge them.", error=DataError)
    V = slope_changes(positions, values)
    knots = positions[: len(V)]
    size, reach = V.norm(dim=1), (1.0 + knots.square()).sqrt()
    kept = size > 0
    norm = float(values[0].square().sum() + 2.0 * (reach * size).sum())
    if not bool(kept.any()):
        # A layer needs a neuron: one of weight zero, for a constant.
        W, b, out = torch.zeros(1, 1).double(), torch.zeros(1).double(), torch.zeros(len(values[0]), 1).double()
    else:
        c = (size[kept] / reach[kept]).sqrt()
        W, b, out = c[:, None], -c * knots[kept], (V[kept] / c[:, None]).mT
    net = FullyConnected.from_weights([W, out], [b, values[0]])
    low, high = float(positions[0]), float(positions[-1])
    slack = 100 * torch.finfo(torch.float64).eps * max(abs(low), abs(high))
    text = f"{low:g} <= t <= {high:g}"
    domain = Domain(text, 1, lambda points: ((points >= low - slack) & (points <= high + slack)).all(-1))
    return Construction(net, Known(norm, 1, None, domain))


def slope_changes(positions: Tensor, values: Tensor) -> Tensor:
    """v_1 … v_{N-1}: the slope of each piece minus that of the piece before it (0 before the first)."""
    slopes = values.diff(dim=0) / positions.diff()[:, None]
    return slopes.diff(dim=0, prepend=torch.zeros_like(values[:1]))
