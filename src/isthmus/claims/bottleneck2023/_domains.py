"""What the domain of a function says about its cost: planes, tangent spaces and symmetries."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from isthmus._checks import as_tensor, fail
from isthmus.claims._base import ABSENT, Check, Subject, claim, rounding
from isthmus.claims._evidence import gaussian_inputs, points_of, random_subject, seeded
from isthmus.claims.bottleneck2023._costs import Embedding, into_an_orthant
from isthmus.claims.bottleneck2023._jacobian_bounds import ranks_to_try
from isthmus.claims.rank2023._applications import NEAR, off_the_identity, on_a_manifold
from isthmus.constructions import interpolant_1d, three_part
from isthmus.linalg import rank_tolerance
from isthmus.measures import parameter_norms
from isthmus.measures._domain import bending_cost
from isthmus.measures._geodesic import planarity
from isthmus.networks import FullyConnected

#: Depths of the networks that show R1(id; Ω) = 0.
IDENTITY_DEPTHS = (2, 10, 100)

#: Cost of the angle between two tangent spaces, estimated from samples, below which they are taken for one plane.
CURVED = 1e-2

#: Share outside a plane, and relative errors, up to which points count as lying in it.
PLANE = 1e-12


_SLOPE, _RANKS, _IDENTITY = "|slope| ≤ 1", "Rank_J(id;Ω) = Rank_BN(id;Ω) = k", "f = id on Ω, or nearly"

_SHAPE = "tangent spaces that differ, or Ω k-planar and completely positive"


def l_shaped_domain() -> Subject:
    """The identity of two segments at a right angle, through one dimension."""
    t = torch.linspace(0.05, 1.0, 20, dtype=torch.float64)
    X = torch.cat([torch.stack([t, 0 * t], 1), torch.stack([0 * t, t], 1)])
    along = FullyConnected.from_weights([torch.tensor([[1.0, -1.0]], dtype=torch.float64)], [torch.ones(1).double()])
    corner = torch.tensor([[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    back = interpolant_1d(torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64), corner)
    tangents = torch.eye(2, dtype=torch.float64)[:, :, None]
    return Subject(three_part(along, back, 8, X=X).network, X, known={"tangents": tangents, "rank": 1})


@claim(
    "C-bn-5",
    "R1(id; Ω) ≥ Σ log(1 + sin φ_i) with φ_i the angles between two tangent spaces, and for any f with the volumes of "
    "Jf added; R1(id; Ω) = 0 if Ω is k-planar and completely positive",
    paper="bottleneck2023",
    where="Prop. 5 and Prop. 12",
    hypotheses=(_SLOPE, _RANKS, _IDENTITY, _SHAPE),
    sample=l_shaped_domain,
    relation="≥",
    erratum="Printed: R1 = 0 only if Ω is k-planar and completely positive. The proof gives k-planarity only.",
)
def cost_of_the_identity(check: Check, subject: Subject) -> None:
    """Tangent spaces that differ cost ‖θ‖² ≥ kL + Σ_i log(1 + sin φ_i); a plane in an orthant costs kL.

    The minimum over ‖W‖² = k of max{2 log|W⁺P_x|_+, 2 log|W⁺P_y|_+} is convex in WWᵀ and symmetric in the two spaces:
    in the basis of principal bisectors it is diagonal, and then Σ_i 2 log(cos ½φ_i + sin ½φ_i).

    ``known["tangents"]`` (P, d, k) has bases of tangent spaces of Ω, ``known["rank"]`` is Rank_BN(id;Ω). Without them
    the tangent spaces are those of nearest samples, f need only nearly be the identity, and the factors by which Jf
    changes volumes are counted: :func:`_nearly`. Of what is not the identity the planes are those that Jf stretches
    most: :func:`_anything`.
    """
    net = subject.net
    check.assume(_SLOPE, abs(net.slope) <= 1.0, f"slope {net.slope:g}")
    if "tangents" not in subject.known:
        square = net.dims[0] == net.dims[-1]
        near = square and float(off_the_identity(subject).median()) <= NEAR
        (_nearly if near else _anything)(check, subject)
        return
    bases = as_tensor(check.id, "tangents", subject.known["tangents"])
    if bases.ndim != 3 or bases.shape[1] != subject.X.shape[1]:
        must = f"known['tangents'] must be bases of shape (P, {subject.X.shape[1]}, k)"
        fail(check.id, must, f"shape {tuple(bases.shape)}", "Stack one (d, k) matrix for each point.")
    tangents = torch.linalg.qr(bases).Q
    k, rank = tangents.shape[-1], subject.known.get("rank")
    check.assume(_RANKS, None if rank is None else rank == k, f"tangents of dimension {k}, Rank_BN {rank}")
    error = _identity_error(subject)
    check.assume(_IDENTITY, error <= 1e-9, f"error {error:.2g} of the samples")
    bends = [(bending_cost(tangents[i], tangents[j]), f"tangent spaces {i} and {j}") for i, j in _two(len(tangents))]
    dearest = max((cost for cost, _ in bends), default=0.0)
    if dearest <= 1e-9:
        _planar(check, subject, k, tangents)
        return
    L, total = subject.net.depth, parameter_norms(subject.net).total
    check.assume(_SHAPE, True, f"largest cost of an angle {dearest:.4g}")
    check.compare(
        [total] * len(bends),
        "≥",
        [k * L + cost for cost, _ in bends],
        tolerance=rounding(subject.net),
        where=lambda i: bends[i][1],
    )


def _two(number: int) -> list[tuple[int, int]]:
    return list(combinations(range(number), 2))


def _identity_error(subject: Subject) -> float:
    if subject.net.dims[-1] != subject.X.shape[1]:
        return math.inf
    difference = subject.trace().outputs - subject.X
    return float(difference.norm() / subject.X.norm().clamp_min(1e-300))


def _nearly(check: Check, subject: Subject) -> None:
    """‖θ‖² ≥ kL + Σ_i log(1 + sin φ_i) + 2 min log|Jf(x)T|_k for the spaces Jf(x)T_x and Jf(y)T_y at two points.

    T has an orthonormal basis of the tangent space at each point; the bound is true of any k directions of any f.
    Jf(x)T = W_LY with Y = Jα_{L-1}(x)T, so that |Y|_k ≥ |W_L⁺Jf(x)T|_k = |W_L⁺U|_k·|Jf(x)T|_k for an orthonormal
    basis U of the image, and the first L − 1 layers cost k(L − 1) + 2 log|Y|_k at least (C-bn-1). What is left,
    ‖W_L‖² + 2 max log|W_L⁺U|_k over both points, is at least k + Σ_i log(1 + sin φ_i).
    """
    found, T, off = on_a_manifold(check, subject, _IDENTITY)
    check.assume(_IDENTITY, float(off.max()) <= NEAR, f"values differ by {float(off.max()):.2g}")
    k, L = T.shape[-1], subject.net.depth
    U, s, _ = torch.linalg.svd(found.J @ T, full_matrices=False)
    volumes = 2 * s.log().sum(1)
    pairs = _two(len(T))
    bends = [bending_cost(U[i], U[j]) for i, j in pairs]
    check.assume(_RANKS, True, f"not needed at k = {k}: the volumes of Jf are counted")
    dearest = max(bends, default=0.0)
    check.assume(_SHAPE, dearest > CURVED, f"largest cost of an angle {dearest:.4g}")
    check.require()
    check.compare(
        parameter_norms(subject.net).total,
        "≥",
        [k * L + bend + float(torch.minimum(volumes[i], volumes[j])) for bend, (i, j) in zip(bends, pairs)],
        tolerance=rounding(subject.net) + found.log_error,
        where=lambda i: f"tangent spaces at {found.name(pairs[i][0])} and {found.name(pairs[i][1])}",
        details={"volumes 2 log|Jf(x)T|": volumes.tolist()},
    )


def _anything(check: Check, subject: Subject) -> None:
    """The bound of :func:`_nearly` for T_x of the first k right singular vectors of Jf(x), at several k.

    Where f has bottleneck rank k its image bends between two points by the angles of the spaces Jf(x)T_x, and that is
    paid for on top of C-bn-1.
    """
    check.assume(_RANKS, True, "not needed: the volumes of Jf are counted")
    check.assume(_IDENTITY, False, "f is something else")
    found = points_of(subject, points=6)
    U = torch.linalg.svd(found.J, full_matrices=False).U
    L, logs, asked = subject.net.depth, found.log_products, subject.known.get("k")
    bounds, bends, names, granted = [], [0.0], [], []
    for k in ranks_to_try(found) if asked is None else [asked]:
        for i, j in _two(len(U)):
            if k > min(int(found.ranks[i]), int(found.ranks[j])):
                continue
            bends.append(bending_cost(U[i, :, :k], U[j, :, :k]))
            if bends[-1] <= CURVED:
                continue
            bounds.append(k * L + bends[-1] + 2 * float(torch.minimum(logs[i, k - 1], logs[j, k - 1])))
            names.append(f"{found.name(i)} and {found.name(j)}, k = {k}")
            # A relative error of s_k turns each of k directions by as much.
            granted.append((1 + k) * found.log_error)
    check.assume(_SHAPE, max(bends) > CURVED, f"largest cost of an angle {max(bends):.4g}")
    total = parameter_norms(subject.net).total
    check.compare(
        total,
        "≥",
        bounds,
        tolerance=[rounding(subject.net) + error / max(total, 1e-300) for error in granted],
        part="two planes that Jf stretches",
        where=names,
        assuming=(_SLOPE, _RANKS, _SHAPE),
    )


def _planar(check: Check, subject: Subject, k: int, tangents: Tensor) -> None:
    """R(id; Ω, L) = kL by an isometry O into an orthant: W_1 = O, W_ℓ = OOᵀ, W_L = Oᵀ."""
    X = subject.X
    beside = planarity(torch.cat([X, tangents[0].mT * X.abs().max()]), k)
    slope = subject.net.slope
    embedding = into_an_orthant(X) if slope != 1.0 else Embedding(_projection(X), True, "not needed: linear network")
    met = embedding.exists if beside <= PLANE else False
    found = f"share {beside:.2g} of Ω outside the plane; {embedding.found}"
    check.assume(_SHAPE, met, found)
    if met is not True or embedding.O is None:
        check.not_applicable("" if met is not True else "no isometry at hand", relation="=")
    norms: list[float] = []
    for L in IDENTITY_DEPTHS:
        O = embedding.O
        net = FullyConnected.from_weights([O, *[O @ O.mT] * (L - 2), O.mT], slope=slope)
        error = _identity_error(subject.replace(net=net))
        # A network that does not compute the identity shows nothing.
        norms.append(parameter_norms(net).total if error <= 1e-7 else math.nan)
    check.compare(
        norms,
        "=",
        [float(k * L) for L in IDENTITY_DEPTHS],
        tolerance=1e-9,
        trivial=ABSENT,
        where=lambda i: f"depth {IDENTITY_DEPTHS[i]}",
    )


def _projection(X: Tensor) -> Tensor:
    U, s, Vh = torch.linalg.svd(X, full_matrices=False)
    kept = Vh[s > 1e-10 * s[0]]
    return kept.mT @ kept


_SYMMETRY, _QUOTIENT = "f(g·x) = f(x)", "dim Ω/G given"


def translation_invariant_net() -> Subject:
    """A ReLU network of six inputs that is invariant under translations in four directions."""
    subject = random_subject([6, 12, 12, 5], seed=61)
    Q = torch.linalg.qr(gaussian_inputs(6, 4, 62)).Q
    W = subject.net.weights[0]
    W.data = W.data - W.data @ Q @ Q.mT

    def move(X: Tensor) -> Tensor:
        return X + gaussian_inputs(len(X), 4, 63) @ Q.mT

    return subject.replace(known={"action": move, "quotient_dimension": 2})


@claim(
    "C-bn-15",
    "Rank_BN(f; Ω) ≤ dim Ω/G for a function with the symmetries G, f(g·x) = f(x)",
    paper="bottleneck2023",
    where="§1, §5",
    hypotheses=(_SYMMETRY, _QUOTIENT, "x off the kinks"),
    sample=translation_invariant_net,
    relation="≤",
)
def rank_of_symmetric_functions(check: Check, subject: Subject) -> None:
    """Rank Jf(x) ≤ Rank_BN(f) ≤ dim Ω/G: the left side is what can be computed.

    ``known["action"]`` moves inputs along their orbits, in any of the forms that :func:`isthmus.symmetry` takes: a map
    X → g·X, or (X, generator) → g·X, a matrix, a permutation, or a list of these; ``known["quotient_dimension"]`` is
    dim Ω/G, the least dimension that Ω/G embeds into. Without them the translations are taken that W_1 does not see.
    """
    net, known, made = subject.net, subject.known, ""
    if "action" in known and "quotient_dimension" in known:
        moves, dimension = _moves(known["action"]), int(known["quotient_dimension"])
    else:
        W = net.Ws[0].detach().double()
        s = torch.linalg.svdvals(W)
        dimension = int((s > rank_tolerance(s, (W.shape[0], W.shape[1]))).sum())
        if dimension == W.shape[1]:
            wanted = "known['action'], known['quotient_dimension']"
            check.not_applicable("needs a group that leaves f as it is", supply=wanted)
        hidden = torch.linalg.svd(W, full_matrices=True).Vh[dimension:]
        moves = [lambda X: X + gaussian_inputs(len(X), len(hidden), 0) @ hidden]
        made = "by construction: the translations are those that W_1 does not see"
    check.assume(_QUOTIENT, True, dimension)
    outputs = subject.trace().outputs
    moved = [net.trace(move(subject.X)).outputs - outputs for move in moves]
    error = max(float(one.norm() / outputs.norm().clamp_min(1e-300)) for one in moved)
    check.assume(_SYMMETRY, error <= 1e-9, f"differs by {error:.2g}")
    found = points_of(subject)
    check.add(found.kink_hypothesis)
    check.compare(found.ranks.double(), "≤", float(dimension), tolerance=0.0, where=found.name, trivial=made)


def _moves(action: Any) -> list[Callable[[Tensor], Tensor]]:
    """One function of X for each group element that is given."""
    if isinstance(action, (list, tuple)) and not all(isinstance(entry, int) for entry in action):
        return [move for one in action for move in _moves(one)]
    if callable(action):
        move: Any = action
        draws = len(inspect.signature(move).parameters) > 1
        return [(lambda X: move(X, seeded(0))) if draws else move]
    g = torch.as_tensor(action)
    return [lambda X: X[:, g] if g.ndim == 1 else X @ g.to(X).mT]
