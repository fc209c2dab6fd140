"""A-merge in one dimension: neurons that switch between the same inputs become one (features2022, Prop. 15)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isthmus._checks import as_tensor, check_number, fail
from isthmus._cite import cites


@cites("features2022", "Prop. 15 and Prop. 24", ids=("A-merge",))
def merge_one_dimensional(c: Any, d: Any, a: Any, x: Any, *, bias: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """At most 4N − 2 neurons with Σã_kσ(c̃_kx + βd̃_k) = Σa_kσ(c_kx + βd_k) on N inputs x, of no larger norm; ReLU.

    Neurons that are active on the same inputs and have the same sign of a merge: ãc̃ = Σac, ãd̃ = Σad, ã² = c̃² + d̃².
    On these inputs the sum is linear, and c̃x + βd̃ is positive; on the others every c_kx + βd_k ≤ 0, and so is their
    mean. The triangle inequality gives |ã|√(c̃² + d̃²) ≤ Σ|a|√(c² + d²): balanced, the norm does not grow. Of the sets
    that a neuron can switch on there are at most 2N − 1 (left parts, right parts, all), and two signs. Neurons that
    are never active, or unheard, go.

    Parameters
    ----------
    c, d, a : array (n,)
        Incoming weights, biases and outgoing weights. All that are returned are balanced, a² = c² + d².
    x : array (N,)
        In any order; repeated inputs count once.
    bias : float
        β. It does not enter the merging: the norm counts d, and c, d are added in the same proportions.

    Returns
    -------
    c, d, a : Tensor (n',)

    Notes
    -----
    Departs from the paper: neurons are compared by the set of inputs at which they are active rather than by their
    cusp −d/c. This treats cusps at an input, neurons with c = 0 and those left or right of the data alike.

    Examples
    --------
    >>> merge_one_dimensional([1.0, 1.0], [-0.2, -0.4], [3.0, 1.0], [0.0, 1.0])[0].shape
    torch.Size([1])
    """
    who = "merge_one_dimensional"
    check_number(who, "bias", bias)
    vectors = [as_tensor(who, name, value) for name, value in (("c", c), ("d", d), ("a", a), ("x", x))]
    shapes = [tuple(v.shape) for v in vectors]
    if any(v.ndim != 1 for v in vectors) or len(set(shapes[:3])) > 1 or not len(vectors[3]):
        fail(who, "`c`, `d`, `a` must be vectors of one length and `x` one of at least 1", shapes, "Flatten them.")
    C, D, A, inputs = vectors
    Z = torch.outer(C, inputs.unique()) + bias * D[:, None]
    rows, out = merge_patterns(torch.stack([C, D], 1), A, Z > 0)
    return rows[:, 0], rows[:, 1], out


def merge_patterns(rows: Tensor, a: Tensor, active: Tensor) -> tuple[Tensor, Tensor]:
    """One neuron ã² = ‖w̃‖², ãw̃ = Σa_kw_k, for all that are active on the same samples with the same sign of a.

    For a layer of ReLUs with one output and any inputs; see :func:`merge_one_dimensional`.

    Parameters
    ----------
    rows : Tensor (n, p)
        Incoming weights, the bias among them.
    a : Tensor (n,)
        Outgoing weights.
    active : Tensor (n, N) of bool
        Where the pre-activation is positive.

    Returns
    -------
    rows, a : Tensor (n', p), (n',)
        Balanced; in the order in which the groups first occur.
    """
    heard = active.any(1) & (a != 0)
    rows, a, active = rows[heard], a[heard], active[heard]
    if not len(a):
        return rows, a
    key = torch.cat([active, (a > 0)[:, None]], 1)
    _, group = torch.unique(key, dim=0, return_inverse=True)
    first = torch.full((int(group.max()) + 1,), len(a)).scatter_reduce(0, group, torch.arange(len(a)), "amin")
    first, order = first.sort()
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    sums = rows.new_zeros(len(first), rows.shape[1]).index_add(0, place[group], a[:, None] * rows)
    sizes = sums.norm(dim=1).sqrt()
    # A sum of pre-activations that are positive somewhere cannot vanish; by underflow it can.
    alive = sizes > 0
    out = (a[first].sign() * sizes)[alive]
    return sums[alive] / out[:, None], out
