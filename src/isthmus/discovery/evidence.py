"""What other ways of counting say beside the rank profile, and why they may differ."""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import pdist
from torch import Tensor

from isthmus.discovery.fits import NEIGHBOURS, UNROLLED_ROWS, weigh
from isthmus.discovery.walk import UNUSED, Data
from isthmus.measures import agop, bottleneck_rank, jacobian_spectra, parameter_norms, read_spectrum, two_nn
from isthmus.networks import Hourglass

#: Rows that the measures look at.
ROWS = 1000
#: Rows without which a dimension is not estimated.
FEWEST = 50
#: Share of the trace that linear methods are asked to explain.
EXPLAINED = 0.99


@dataclass(frozen=True)
class Evidence:
    """One way of counting.

    Attributes
    ----------
    name : str
    value : float
        What was measured; NaN if nothing could be.
    rank : int or None
        The count it amounts to, where it amounts to one.
    meaning : str
        What it counts, and when it differs from the rank.
    """

    name: str
    value: float
    rank: int | None
    meaning: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        content = asdict(self)
        return {**content, "value": self.value if math.isfinite(self.value) else None}

    @staticmethod
    def from_dict(content: dict[str, Any]) -> Evidence:
        """Inverse of :meth:`to_dict`."""
        value = math.nan if content["value"] is None else float(content["value"])
        rank = None if content["rank"] is None else int(content["rank"])
        return Evidence(str(content["name"]), value, rank, str(content["meaning"]))


def local_dimension(net: Hourglass, data: Data) -> float:
    """TwoNN dimension of the cloud of coordinates, one row of each group; NaN where there are too few to say."""
    X = data.X
    if data.origins is not None:
        # Rows of one trajectory are each other's neighbours, along a line.
        X = X[np.unique(data.origins, return_index=True)[1]]
    if len(X) < FEWEST:
        return math.nan
    with torch.no_grad():
        return two_nn(net.encoder().double()(X[:: max(1, -(-len(X) // ROWS))].double())).dimension


def flattening_loss(net: Hourglass, data: Data) -> float:
    """How badly the cloud of k coordinates goes into R^{k-1} keeping distances along itself: 1 − R² of these distances.

    0 for an open curve, a helix or a rolled sheet, which one coordinate less could carry; about a half for a circle, a
    third for a sphere or a ball, which it could not. NaN for k = 1 and for too few rows.
    """
    from sklearn.manifold import Isomap

    if net.rank < 2 or len(data.X) < FEWEST:
        return math.nan
    found = weigh(net, data.X)
    with torch.no_grad():
        Z = net.encoder().double()(data.X[:: max(1, -(-len(data.X) // UNROLLED_ROWS))].double())
        cloud = ((Z - found.mean) @ found.into.mT).numpy()
    with warnings.catch_warnings():
        # Several connected components are joined by their nearest points, with a warning.
        warnings.simplefilter("ignore")
        flat = Isomap(n_neighbors=NEIGHBOURS, n_components=net.rank - 1, eigen_solver="dense").fit(cloud)
    pairs = np.triu_indices(len(cloud), 1)
    along, straight = flat.dist_matrix_[pairs], pdist(flat.embedding_)
    if not (np.isfinite(along).all() and along.std() > 0 and straight.std() > 0):
        return math.nan
    return float(1.0 - np.corrcoef(along, straight)[0, 1] ** 2)


def gather(wide: Hourglass, chosen: Hourglass, data: Data, shares: NDArray[np.float64]) -> list[Evidence]:
    """All of them, from the widest network, the chosen one, and the scaled training rows."""
    rows = slice(None, None, max(1, -(-len(data.X) // ROWS)))
    X, Y = data.X[rows].double(), data.Y[rows].double()
    net = wide.merged().double()
    found = bottleneck_rank(net.trace(X))
    centred, weights = found["representations"], found["weights"]
    used = read_spectrum(torch.from_numpy(np.sqrt(np.maximum(shares, UNUSED**2))), eps=1e-6)
    local = read_spectrum(jacobian_spectra(chosen.merged().double(), X).median(0).values, eps=1e-6)
    norms = parameter_norms(net)
    gradients = torch.linalg.eigvalsh(agop(net, X)).flip(0).clamp_min(0).numpy()
    variances = np.linalg.svd((Y - Y.mean(0)).numpy(), compute_uv=False) ** 2
    # A surface is only as thick as its noise: the network's coordinates have none, the outputs do.
    outputs, waist = two_nn(Y).dimension, local_dimension(chosen, data)
    linear, plain = _explaining(gradients), _explaining(variances)
    return [
        Evidence(
            "coordinates in use",
            float(used.count),
            used.count if used.status == "clear" else None,
            "coordinates of the widest network that move its outputs; one more than the rank is common at this depth",
        ),
        Evidence(
            "centred representations",
            math.nan if centred.rank is None else float(centred.rank),
            centred.rank,
            "dimensions of the narrowest layer of the widest network; one more than the rank is common at this depth",
        ),
        Evidence(
            "weights",
            math.nan if weights.rank is None else float(weights.rank),
            weights.rank,
            "singular values that stand out in the narrowest layer; one more may be constant, in place of a bias",
        ),
        Evidence(
            "Jacobian",
            float(local.count),
            local.count if local.status == "clear" else None,
            "directions that matter near one x; fewer than the rank where coordinates close up (a circle: 1, not 2)",
        ),
        Evidence(
            "TwoNN on the coordinates",
            waist,
            _rounded(waist),
            "dimension of the cloud of coordinates; fewer than the rank if it is a curved surface among them",
        ),
        Evidence(
            "‖θ‖²/L",
            norms.per_depth,
            None,
            "rank + regularity/L: an upper estimate that approaches the rank with depth",
        ),
        Evidence(
            "TwoNN on Y",
            outputs,
            _rounded(outputs),
            "dimension of the cloud of outputs, unsupervised; noise raises it, closed curves lower it",
        ),
        Evidence("AGOP", float(linear), linear, f"linear directions of x with {EXPLAINED:.0%} of the gradients"),
        Evidence("PCA of Y", float(plain), plain, f"linear directions of y with {EXPLAINED:.0%} of the variance"),
    ]


def explaining_gradients(net: Hourglass, X: Tensor) -> int:
    """The AGOP dimension: linear directions of the inputs with nearly all of the squared gradients."""
    rows = X[:: max(1, -(-len(X) // ROWS))].double()
    return _explaining(torch.linalg.eigvalsh(agop(net.merged().double(), rows)).flip(0).clamp_min(0).numpy())


def _explaining(values: NDArray[np.float64]) -> int:
    total = values.sum()
    return int(np.searchsorted(np.cumsum(values), EXPLAINED * total) + 1) if total > 0 else 0


def _rounded(dimension: float) -> int | None:
    return round(dimension) if math.isfinite(dimension) else None
