"""Q-domain: dimensions of a data set Ω and what the identity on it costs: Rank_J, Rank_BN and R1 of id on Ω."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import torch
from scipy.spatial import KDTree
from torch import Tensor

from isthmus._checks import as_matrix, check_integer, fail
from isthmus._cite import cites
from isthmus._errors import DataError
from isthmus.measures._bottleneck_rank import read_samples
from isthmus.measures._dimension import FEWEST_POINTS, FLAT, flattening_loss, two_nn
from isthmus.measures._positivity import SEARCH_SIZE, is_completely_positive

#: Points at which tangent spaces are estimated, and neighbours of each at least.
POINTS, NEIGHBOURS = 64, 10

#: Loss of distances from which a cloud counts as closed: it does not unroll. Circles lose a half, spheres a third.
CLOSED = 0.25

#: Share of the squares outside a plane up to which points lie in it.
PLANE = 1e-12


@dataclass(frozen=True)
class DomainMeasures:
    """Dimensions of a data set Ω, and what the identity on it costs beyond them; each as (low, high).

    Attributes
    ----------
    jacobian_rank : (int, int)
        Rank_J(id; Ω) = max_x dim T_xΩ, from local principal directions.
    bottleneck_rank : (int, int)
        Rank_BN(id; Ω), the least dimension that Ω embeds into: at least the first, at most the span; narrowed where the
        cloud unrolls into fewer coordinates, or closes up.
    R1 : (float, float)
        R1(id; Ω): at least Σ log(1 + sin φ_i) for the angles of two tangent spaces (Prop. 12), less what their
        estimates vary by; at most the norm beyond kL of a network that is the identity on Ω, ∞ where none is at hand.
        NaN unless both ranks are known and equal.
    span, linear_span : int
        Dimensions of the least affine and linear subspaces with all points.
    positive : {"yes", "no", "unknown"}
        Whether the points, as they are, fit rotated into an orthant.
    two_nn, two_nn_error : float
        The dimension by nearest neighbours, beside the first, and its standard error.
    evidence : tuple of str
    """

    jacobian_rank: tuple[int, int]
    bottleneck_rank: tuple[int, int]
    R1: tuple[float, float]
    span: int
    linear_span: int
    positive: str
    two_nn: float
    two_nn_error: float
    evidence: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """What was found, in one sentence."""
        low, high = self.R1
        cost = "R1 is not defined" if math.isnan(low) else f"R1(id) {_interval(low, high)}"
        ranks = f"Rank_J {_interval(*self.jacobian_rank)}, Rank_BN {_interval(*self.bottleneck_rank)}"
        return f"{ranks}, {cost}; the points span {self.span} dimensions."

    def to_dict(self) -> dict[str, Any]:
        """Plain data; what is not finite is null."""
        content = asdict(self)
        content["R1"] = [value if math.isfinite(value) else None for value in self.R1]
        for name in ("two_nn", "two_nn_error"):
            content[name] = content[name] if math.isfinite(content[name]) else None
        return {
            **content,
            "jacobian_rank": list(self.jacobian_rank),
            "bottleneck_rank": list(self.bottleneck_rank),
            "evidence": list(self.evidence),
        }


def _interval(low: float, high: float) -> str:
    if low == high:
        return f"= {low:.3g}"
    return f"≥ {low:.3g}" if math.isinf(high) else f"between {low:.3g} and {high:.3g}"


@cites("bottleneck2023", "§3.3.1, Prop. 5", ids=("Q-domain",))
@torch.no_grad()
def domain_measures(X: Any, *, neighbours: int | None = None) -> DomainMeasures:
    """Rank_J(id; Ω), Rank_BN(id; Ω) and R1(id; Ω) of the rows of X, as intervals with their evidence.

    A circle has 1 and 2. Where both ranks are k, R1 ≥ 0 says how far from planar Ω is: 0 if the points span k
    dimensions and fit into an orthant, positive if two tangent spaces differ.

    Parameters
    ----------
    X : array (N, d)
        Points as rows, at least 50.
    neighbours : int, optional
        Of a point, from which its tangent space is estimated: more than the dimension, and near enough for curvature
        not to show. By default 10, or 2·span + 2 if that is more, and at most a quarter of the points.
    """
    who = "domain_measures"
    points = as_matrix(who, "X", X)
    points = points.unique(dim=0)
    N = len(points)
    if N < FEWEST_POINTS:
        fail(who, f"`X` must have at least {FEWEST_POINTS} different rows", N, "Pass more points.", error=DataError)
    span, linear = _dimensions(points - points.mean(0)), _dimensions(points)
    count = neighbours or min(N // 4, max(NEIGHBOURS, 2 * span + 2))
    check_integer(who, "neighbours", count, low=2, high=N - 1)
    near, tangents, spread = _tangent_spaces(points, count)
    reading, share = read_samples(near, torch.finfo(torch.float64).eps)
    nearest = two_nn(points)
    evidence = [f"TwoNN: {nearest.dimension:.3g} ± {nearest.standard_error:.2g}"]
    # As many directions as neighbours are not resolved; a spectrum without a drop may still be too coarse.
    if reading.status == "unclear" or reading.count >= count - 1:
        jacobian = (1, span)
        evidence.append(f"{count} neighbours: no clear number of directions")
    else:
        k = min(reading.count, span)
        jacobian = (k, k)
        evidence.append(f"{count} neighbours: {reading.count} directions at {share:.0%} of {len(near)} points")
    bottleneck, unrolled = _embedding_dimension(points, jacobian, span)
    evidence += unrolled
    positive = _positive(points, linear)
    R1 = (math.nan, math.nan)
    if jacobian[0] == jacobian[1] == bottleneck[0] == bottleneck[1]:
        k = jacobian[0]
        low = _bending(tangents[:, :, :k], spread[:, :, :k])
        high = _planar_cost(points, k, positive == "yes" and linear == k) if span == k else math.inf
        R1 = (0.0, high) if span == k else (low, high)
    return DomainMeasures(
        jacobian_rank=jacobian,
        bottleneck_rank=bottleneck,
        R1=R1,
        span=span,
        linear_span=linear,
        positive=positive,
        two_nn=nearest.dimension,
        two_nn_error=nearest.standard_error,
        evidence=tuple(evidence),
    )


def _dimensions(Z: Tensor) -> int:
    """Of the least linear subspace with all points, up to ``PLANE``."""
    square = torch.linalg.svdvals(Z / Z.abs().max().clamp_min(torch.finfo(Z.dtype).tiny)).square()
    return max(1, int((square > PLANE * square.sum()).sum()))


def _tangent_spaces(points: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Local spectra (P, r), principal directions (P, d, r), and those by the nearer half of neighbours (P, d, r')."""
    rows = torch.linspace(0, len(points) - 1, min(len(points), POINTS)).long().unique()
    _, index = KDTree(points.numpy()).query(points[rows].numpy(), k=count + 1)
    around = points[torch.as_tensor(index)[:, 1:]] - points[rows][:, None]
    _, s, Vh = torch.linalg.svd(around, full_matrices=False)
    half = torch.linalg.svd(around[:, : max(2, count // 2)], full_matrices=False).Vh
    return s, Vh.mT, half.mT


def _embedding_dimension(points: Tensor, jacobian: tuple[int, int], span: int) -> tuple[tuple[int, int], list[str]]:
    """(low, high) of the least dimension that the points embed into."""
    low, high, said = jacobian[0], span, []
    if jacobian[0] != jacobian[1]:
        return (low, high), said
    for dimensions in range(low, span):
        loss = flattening_loss(points, dimensions)
        said.append(f"in {dimensions} coordinates a share {loss:.2g} of the distances along the cloud is lost")
        if loss < FLAT:
            return (low, dimensions), said
        if not loss >= CLOSED:
            break
        low = dimensions + 1
    return (low, high), said


def _positive(points: Tensor, linear_span: int) -> str:
    """Whether the kernel of the points is completely positive."""
    if float(points.min()) >= 0.0:
        return "yes"
    K = points @ points.mT
    if float(K.min()) < -1e-12 * float(K.diagonal().max()):
        return "no"
    # Vectors of a plane at angles of at most 90° fit into a quadrant.
    if linear_span <= 2:
        return "yes"
    return is_completely_positive(K, restarts=3).verdict if len(K) <= SEARCH_SIZE else "unknown"


def bending_cost(P: Tensor, Q: Tensor) -> float:
    """Σ_i log(1 + sin φ_i) over the principal angles of two subspaces with orthonormal bases P, Q (d, k)."""
    cosines = torch.linalg.svdvals(P.mT @ Q).clamp(0.0, 1.0)
    # Sines from the residual: those of small angles are lost in √(1 − cos²).
    sines = torch.linalg.svdvals(Q - P @ (P.mT @ Q)).clamp(0.0, 1.0).flip(0)
    return float(torch.where(cosines > 0.5, sines, (1 - cosines.square()).sqrt()).log1p().sum())


def _bending(tangents: Tensor, nearer: Tensor) -> float:
    """The largest cost of two tangent spaces, less what each differs by when half of its neighbours are taken."""
    own = [bending_cost(P, Q) if P.shape == Q.shape else math.inf for P, Q in zip(tangents, nearer)]
    pairs = combinations(range(len(tangents)), 2)
    return max(0.0, *(bending_cost(tangents[i], tangents[j]) - own[i] - own[j] for i, j in pairs))


def _planar_cost(points: Tensor, k: int, free: bool) -> float:
    """‖θ‖² − kL of a network that is the identity on points of a k-dimensional plane: 2‖t‖² + ‖m‖².

    x = m + Uz with m ⊥ U goes through Uᵀx + t ≥ 0 and identity layers to U(z + t) + m − Ut. Nothing is needed for a
    plane through 0 whose points fit into an orthant.
    """
    if free:
        return 0.0
    mean = points.mean(0)
    U = torch.linalg.svd(points - mean, full_matrices=False).Vh[:k].mT
    z = points @ U
    shift = torch.minimum((-z).amax(0), z.amax(0)).clamp_min(0.0)
    return float(2 * shift.square().sum() + (mean - U @ (U.mT @ mean)).square().sum())
