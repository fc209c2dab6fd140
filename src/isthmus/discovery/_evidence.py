"""What other ways of counting say beside the rank profile, and why they may differ."""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from isthmus._checks import fail
from isthmus._errors import IsthmusError
from isthmus.diagnosis import Evidence, diagnose
from isthmus.diagnosis._ranks import EXPLAINED, explaining, rounded
from isthmus.discovery._fits import weigh
from isthmus.discovery._task import Data
from isthmus.discovery._walk import UNUSED
from isthmus.measures import agop, bottleneck_rank, jacobian_spectra, parameter_norms, read_spectrum, two_nn
from isthmus.measures._dimension import FEWEST_POINTS, GRAPH_POINTS, flattening_loss
from isthmus.networks import FullyConnected
from isthmus.networks._network import hooks_of
from isthmus.objective import constant_cost
from isthmus.training import minimise

#: Rows that the measures look at.
ROWS = 1000

#: Rows whose Jacobians are looked at where only a count is needed, and the share of them that may have larger singular
#: values than those that are counted.
FEWER_ROWS, OFTEN = 300, 0.9


def local_dimension(net: FullyConnected, data: Data, errors: float = 0.0) -> float:
    """TwoNN dimension of the cloud of coordinates, one row of each group; NaN where there are too few to say.

    So many standard ``errors`` are added.
    """
    X = data.X
    if data.origins is not None:
        # Rows of one trajectory are each other's neighbours, along a line.
        X = X[np.unique(data.origins, return_index=True)[1]]
    if len(X) < FEWEST_POINTS:
        return math.nan
    with torch.no_grad():
        found = two_nn(net.encoder().double()(X[:: max(1, -(-len(X) // ROWS))].double()))
    return found.dimension + errors * found.standard_error


def surface_dimension(net: FullyConnected, data: Data, errors: float = 0.0) -> float:
    """Dimension of the surface that the outputs follow, as :func:`local_dimension`.

    The cloud of coordinates may be thicker than that: what the decoder ignores, such as the distance from the centre
    of a circle, may pass the waist. Then the directions in which the outputs move near one x are fewer than TwoNN says.
    They are counted where they are many, since a coordinate need not act everywhere.
    """
    cloud = local_dimension(net, data, errors)
    if math.isnan(cloud):
        return cloud
    X = data.X[:: max(1, -(-len(data.X) // FEWER_ROWS))].double()
    spectra = jacobian_spectra(net.merged().double(), X).quantile(OFTEN, dim=0)
    moved = read_spectrum(spectra, eps=1e-6)
    return min(cloud, float(moved.count)) if moved.status == "clear" else cloud


def flattening(net: FullyConnected, data: Data) -> float:
    """Loss of distances when the cloud of k coordinates goes into R^{k-1}; NaN for k = 1 and for too few rows."""
    if net.dims[net.waist] < 2 or len(data.X) < FEWEST_POINTS:
        return math.nan
    found = weigh(net, data.X)
    with torch.no_grad():
        Z = net.encoder().double()(data.X[:: max(1, -(-len(data.X) // GRAPH_POINTS))].double())
    return flattening_loss((Z - found.mean) @ found.into.mT, net.dims[net.waist] - 1)


def gather_evidence(
    wide: FullyConnected, chosen: FullyConnected, data: Data, shares: NDArray[np.float64]
) -> list[Evidence]:
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
    waist = local_dimension(chosen, data)
    linear, plain = explaining(gradients), explaining(variances)
    clues = [
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
            rounded(waist),
            "dimension of the cloud of coordinates; fewer than the rank if it is a curved surface among them",
        ),
        Evidence(
            "‖θ‖²/L",
            norms.per_depth,
            None,
            "rank + regularity/L: an upper estimate that approaches the rank with depth",
        ),
        Evidence("AGOP", float(linear), linear, f"linear directions of x with {EXPLAINED:.0%} of the gradients"),
    ]
    if data.loss == "cross_entropy":
        # Labels are points without neighbours: nothing can be counted on them.
        return clues
    outputs = two_nn(Y).dimension
    meaning = "dimension of the cloud of outputs, unsupervised; noise raises it, closed curves lower it"
    clues.insert(-1, Evidence("TwoNN on Y", outputs, rounded(outputs), meaning))
    meaning = f"linear directions of y with {EXPLAINED:.0%} of the variance"
    return [*clues, Evidence("PCA of Y", float(plain), plain, meaning)]


def explaining_gradients(net: FullyConnected, X: Tensor) -> int:
    """The AGOP dimension: linear directions of the inputs with nearly all of the squared gradients."""
    rows = X[:: max(1, -(-len(X) // ROWS))].double()
    return explaining(torch.linalg.eigvalsh(agop(net.merged().double(), rows)).flip(0).clamp_min(0).numpy())


# ---- Another network asked about the same data: what its isthmus says stands among the evidence


def check_witness(network: object, d_in: int, d_out: int) -> None:
    """Fail unless ``network`` is a module from the inputs to the outputs."""
    who, fix = "discover", "Pass e.g. isthmus.LeakyResNet(d_in, d_out), or leave `network` out."
    if not isinstance(network, nn.Module):
        fail(who, "`net` must be a torch.nn.Module", type(network).__name__, fix)
    parameter = next(network.parameters(), None)
    if parameter is None:
        fail(who, "`net` must have parameters", type(network).__name__, fix)
    try:
        with torch.no_grad():
            shape = tuple(network(torch.zeros(2, d_in, dtype=parameter.dtype)).shape)
    except (RuntimeError, TypeError, AttributeError) as error:
        fail(who, f"`net` must map (N, {d_in}) to (N, {d_out})", f"{type(error).__name__}: {error}", fix)
    if shape != (2, d_out):
        fail(who, f"`net` must map (N, {d_in}) to (N, {d_out})", f"outputs of shape {shape} for 2 rows", fix)


def testify(network: nn.Module, data: Data, strength: float, seed: int) -> tuple[tuple[Evidence, ...], str]:
    """Train a copy on the scaled rows, each dimension at the same price as in the discovery, and diagnose it.

    Returns
    -------
    tuple of Evidence, str
        What it counts, and how its training ended.
    """
    kind = type(network).__name__
    net = copy.deepcopy(network).to(data.X.dtype)
    alone = constant_cost(data.Y, data.loss)
    ridge = strength * alone / hooks_of(net).carrying_norm()
    result = minimise(net, data.X, data.Y, ridge=ridge, loss=data.loss, seed=seed)
    note = (
        f"the given {kind}: training {result.state} ({result.reason}), cost {result.cost / alone:.3g} of a constant's"
    )
    rows = slice(None, None, max(1, -(-len(data.X) // ROWS)))
    try:
        found = diagnose(net, data.X[rows], data.Y[rows], ridge=ridge, loss=data.loss)
    except IsthmusError as error:
        return (), f"{note}; not diagnosed: {error}"
    rank = found.rank if found.verdict == "determined" else None
    meaning = "narrowest place of the network that was given, trained on the same rows"
    clues = [Evidence(f"given {kind}", math.nan if rank is None else float(rank), rank, meaning)]
    if found.mechanics is not None and found.mechanics.arrays is not None:
        clues.append(
            Evidence(
                f"given {kind}: −(2/L̃)𝓗",
                found.mechanics.rank_estimate,
                None,
                f"approaches the rank from below with L̃ at critical points; here: {found.mechanics.state}",
            )
        )
    return tuple(clues), note
