"""Dimensions of a cloud of points: TwoNN, and whether it unrolls into fewer coordinates than it lies in."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.spatial import KDTree
from scipy.spatial.distance import pdist

from isthmus._checks import as_matrix, check_integer, check_number

#: Neighbours in the graph along which distances are measured, and points that it is made of at most.
NEIGHBOURS, GRAPH_POINTS = 10, 600

#: Points without which nothing is said.
FEWEST_POINTS = 50

#: Variance of TwoNN, in units of that for independent ratios. Points that are each other's neighbours share distances,
#: more than half of them: on flat tori of 1 to 8 dimensions 1.2 to 1.6 were measured, with no trend.
DEPENDENCE = 1.5

#: Loss of distances below which a cloud counts as unrolled; closed curves and surfaces lose a third or more.
FLAT = 0.05


@dataclass(frozen=True)
class TwoNN:
    """Dimension by the ratio of the two nearest distances.

    Attributes
    ----------
    dimension : float
        NaN when ``state`` is not ``"computed"``.
    standard_error : float
        For independent samples, dimension/√((r − 2)/1.5): the ratios of neighbours are not independent.
    points, duplicates : int
        Points used (after duplicates are dropped), and how many were dropped.
    state : str
        ``"computed"``, or why not: ``"too few distinct points"``, ``"all neighbours equidistant"``.
    """

    dimension: float
    standard_error: float
    points: int
    duplicates: int
    state: str


def two_nn(X: Any, *, discard: float = 0.1) -> TwoNN:
    """TwoNN intrinsic dimension of the rows of X (Facco et al. 2017), by censored maximum likelihood.

    On a d-dimensional manifold of locally constant density, log(r₂/r₁) is exponential with rate d. The
    largest ``discard`` share of the ratios, where the density is least constant, is censored: with r kept of
    n, d = (r − 1)/(Σ_{i ≤ r} tᵢ + (n − r)·t_r), the unbiased estimate for type-II censored exponentials.

    Parameters
    ----------
    X : array (N, d)
        Points as rows.
    discard : float in [0, 0.9], default 0.1
        Share of the ratios that is censored.
    """
    check_number("two_nn", "discard", discard, low=0.0, high=0.9)
    points = as_matrix("two_nn", "X", X).cpu().numpy()
    # Squared distances of very small or large coordinates leave the range of float64: scale first.
    points = points / (np.abs(points).max() or 1.0)
    distinct = np.unique(points, axis=0)
    dropped = len(points) - len(distinct)
    kept = math.ceil((1.0 - discard) * len(distinct))
    if len(distinct) < 3 or kept < 3:
        return TwoNN(math.nan, math.nan, len(distinct), dropped, "too few distinct points")
    distances, _ = KDTree(distinct).query(distinct, k=3)
    # Distinct points can be so near that their squared distance underflows.
    distances = np.maximum(distances, np.finfo(float).tiny)
    times = np.sort(np.log(distances[:, 2] / distances[:, 1]))
    total = times[:kept].sum() + (len(distinct) - kept) * times[kept - 1]
    # Equal distances differ by rounding (a rotated grid or simplex): that is no dimension of 10¹⁵.
    if total <= 1e-9 * kept:
        return TwoNN(math.nan, math.nan, len(distinct), dropped, "all neighbours equidistant")
    dimension = (kept - 1) / total
    error = dimension * math.sqrt(DEPENDENCE / (kept - 2))
    return TwoNN(float(dimension), float(error), len(distinct), dropped, "computed")


def flattening_loss(X: Any, dimensions: int) -> float:
    """How badly a cloud goes into R^dimensions keeping distances along itself: 1 − R² of these distances.

    0 for an open curve, a helix or a rolled sheet of that many dimensions; about a half for a circle in one, a third
    for a sphere or a ball in one less. NaN for fewer than 50 points, or none that differ.

    Parameters
    ----------
    X : array (N, d)
        Points as rows; of more than 600, evenly spaced ones.
    dimensions : int
        Coordinates allowed, at least 1.
    """
    from sklearn.manifold import Isomap

    check_integer("flattening_loss", "dimensions", dimensions, low=1)
    points = as_matrix("flattening_loss", "X", X).cpu().numpy()
    cloud = points[:: max(1, -(-len(points) // GRAPH_POINTS))]
    if len(points) < FEWEST_POINTS or not np.ptp(cloud, axis=0).any():
        return math.nan
    with warnings.catch_warnings():
        # Several connected components are joined by their nearest points, with a warning.
        warnings.simplefilter("ignore")
        flat = Isomap(n_neighbors=NEIGHBOURS, n_components=dimensions, eigen_solver="dense").fit(cloud)
    pairs = np.triu_indices(len(cloud), 1)
    along, straight = flat.dist_matrix_[pairs], pdist(flat.embedding_)
    if not (np.isfinite(along).all() and along.std() > 0 and straight.std() > 0):
        return math.nan
    return float(1.0 - np.corrcoef(along, straight)[0, 1] ** 2)
