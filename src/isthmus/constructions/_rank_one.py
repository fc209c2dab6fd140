"""A-threepart, one variable: the piecewise linear interpolant of points on a line as a two-layer network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from isthmus._checks import as_matrix, as_tensor, check_integer, fail
from isthmus._cite import cites
from isthmus._errors import DataError
from isthmus.constructions._construction import Construction, Domain, Known, everywhere, three_part
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


# ---- A-rank1: a network of bottleneck rank 1 through any data, of norm L + C_N


@cites("rank2023", "Prop. 2, Prop. 8", ids=("A-rank1",))
def rank_one(
    X: Any,
    Y: Any,
    depth: int,
    *,
    direction: Any = None,
    tries: int = 64,
    generator: torch.Generator | None = None,
) -> Construction:
    """f(x_i) = y_i with f = h(uᵀx), h piecewise linear on a line: ‖θ‖² = L + C_N at every depth L ≥ 3.

    With p_1 < … < p_N the projections uᵀx_i, s > 0 a scale and v_j the changes of slope of y along p,

        C_N = s²(1 + p_1²) + 2Σ_j √(1/s² + (p_j − p_1)²)‖v_j‖ + ‖y_1‖² − 3.

    s is the one that minimises it. Of several directions u the one with the least C_N is taken: those in
    which a short path through the y_i is as nearly as possible in order, the principal axes of X, and random
    ones.

    Parameters
    ----------
    X : array (N, d_in)
        Rows that are equal must have equal rows of ``Y``.
    Y : array (N, d_out)
    depth : int
        L ≥ 3.
    direction : array (d_in,), optional
        u; its length is ignored.
    tries : int, default 64
        Number of random directions.
    generator : torch.Generator, optional
        Their source; one of its own, always the same, otherwise.

    Returns
    -------
    Construction
        A ReLU network, h(uᵀx) everywhere (h constant to the left of p_1). ``details["norm_constant"]`` is
        C_N, ``details["scale"]`` is s; u is the first weight.
    """
    who = "rank_one"
    check_integer(who, "depth", depth, low=3)
    check_integer(who, "tries", tries, low=0)
    inputs, outputs = as_matrix(who, "X", X, device="cpu"), as_matrix(who, "Y", Y, device="cpu")
    if len(inputs) != len(outputs):
        fail(who, "`X` and `Y` must have equally many rows", f"{len(inputs)} and {len(outputs)}", "Pass pairs.")
    inputs, outputs = _distinct(who, inputs, outputs)
    if direction is None:
        source = torch.Generator().manual_seed(0) if generator is None else generator
        candidates = _directions(inputs, outputs, tries, source)
    else:
        u = as_tensor(who, "direction", direction, device="cpu").flatten()
        if len(u) != inputs.shape[1] or float(u.norm()) == 0.0:
            must = f"`direction` must be a non-zero vector of {inputs.shape[1]} entries"
            fail(who, must, f"shape {tuple(u.shape)}, norm {float(u.norm()):g}", "Pass one entry per input.")
        candidates = u[None]
    candidates = candidates / candidates.norm(dim=1, keepdim=True)
    options = [option for u in candidates if (option := _along(u, inputs, outputs)) is not None]
    if not options:
        fail(
            who,
            "the inputs must have distinct projections",
            f"none of {len(candidates)} directions tells all {len(inputs)} apart",
            "Raise `tries`, choose another `direction`, or merge inputs that differ by rounding.",
            error=DataError,
        )
    constant, s, u = min(options, key=lambda option: option[0])
    p = inputs @ u
    order = p.argsort()
    p, y = p[order], outputs[order]
    g = FullyConnected.from_weights([s * u[None]], [-s * p[:1]])
    whole = three_part(g, interpolant_1d(s * (p - p[0]), y), depth)
    return whole.with_known(
        norm_squared=depth + constant,
        excess_limit=constant,
        domain=everywhere(inputs.shape[1]),
        details={"norm_constant": constant, "scale": s},
    )


def _distinct(who: str, X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    """The different rows of X with their rows of Y."""
    unique, label = torch.unique(X, dim=0, return_inverse=True)
    targets = torch.zeros(len(unique), Y.shape[1], dtype=Y.dtype)
    targets[label] = Y
    torn = int((targets[label] != Y).any(-1).sum())
    if torn:
        must = "equal inputs must have equal outputs"
        fail(who, must, f"{torn} rows that contradict another", "Average or drop them.", error=DataError)
    return unique, targets


def _directions(X: Tensor, Y: Tensor, tries: int, generator: torch.Generator) -> Tensor:
    """Candidates for u, both signs of each, (M, d_in): non-zero but not normalised."""
    centred = X - X.mean(0)
    axes = torch.linalg.svd(centred, full_matrices=False).Vh
    path = _path_positions(Y)
    along_path = torch.linalg.lstsq(centred, (path - path.mean())[:, None], driver="gelsd").solution.mT
    drawn = torch.randn(tries, X.shape[1], generator=generator, dtype=torch.float64)
    found = torch.cat([along_path, axes, drawn])
    found = found[found.norm(dim=1) > 0]
    return torch.cat([found, -found])


def _path_positions(Y: Tensor) -> Tensor:
    """Position of each y_i on a short open path through all, by length walked; equal points get a small step.

    Nearest neighbour from the point farthest from the mean: no shortest path, but in N² operations and no
    N × N matrix.
    """
    here = int((Y - Y.mean(0)).norm(dim=1).argmax())
    left = torch.ones(len(Y), dtype=torch.bool)
    positions, walked = torch.zeros(len(Y), dtype=Y.dtype), 0.0
    step = 1e-3 * float(Y.std(0, unbiased=False).norm()) / len(Y) or 1.0
    for _ in range(len(Y) - 1):
        left[here] = False
        distance = torch.where(left, (Y - Y[here]).norm(dim=1), torch.inf)
        here = int(distance.argmin())
        walked += float(distance[here]) + step
        positions[here] = walked
    return positions


def _along(u: Tensor, X: Tensor, Y: Tensor) -> tuple[float, float, Tensor] | None:
    """(C_N, s, u) for one direction, or None if projections coincide up to rounding."""
    p = X @ u
    order = p.argsort()
    p, y = p[order], Y[order]
    if bool((p.diff() <= 1e-12 * p.abs().max()).any()):
        return None
    changes, reach = slope_changes(p, y).norm(dim=1), (p - p[0])[:-1]
    s = _best_scale(changes, reach, float(p[0]))
    bends = float((2.0 * changes * (s**-2 + reach.square()).sqrt()).sum())
    return s**2 * (1.0 + float(p[0]) ** 2) + bends + float(y[0].square().sum()) - 3.0, s, u


def _best_scale(changes: Tensor, reach: Tensor, start: float) -> float:
    """The minimiser of s²(1 + p_1²) + 2Σ_j √(1/s² + d_j²)‖v_j‖: where s³(1 + p_1²) = Σ_j ‖v_j‖/√(1 + s²d_j²).

    The cost is convex in log s, so there is one. Solving for the s on the left is an iteration that contracts
    log s by at least 3 in each step: 20 steps leave 1e-10, of which a minimum feels the square.
    """
    if float(changes.sum()) == 0.0:
        return 1.0
    s = 1.0
    for _ in range(20):
        pull = float((changes / (1.0 + (s * reach).square()).sqrt()).sum())
        s = (pull / (1.0 + start**2)) ** (1.0 / 3.0)
    return s
