"""A-threepart, for other slopes: a ReLU network written with σ_a by doubling its hidden neurons."""

from __future__ import annotations

import math

import torch

from isthmus._checks import check_number, fail
from isthmus._cite import cites
from isthmus.constructions.construction import Construction, as_construction, biases, weights
from isthmus.networks import FullyConnected


@cites("rank2023", "App. E, Cor. 1", ids=("A-threepart",))
def relu_to_leaky(net: FullyConnected | Construction, slope: float) -> Construction:
    """The same function with σ_a in place of ReLU: [z]_+ = (σ_a(z) + a·σ_a(−z))/(1 − a²), a ∈ (−1, 1).

    Every hidden neuron becomes the pair (z, −z). With r = (1 + a²)/(1 − a²)² the squared norm is
    2‖W_1‖² + 2‖b_1‖² for the first layer, 2r‖W_ℓ‖² + 2‖b_ℓ‖² inside and r‖W_L‖² + ‖b_L‖² for the last.

    Departs from the paper: the sign printed in App. E is minus (see docs/notes/constructions.md).

    Parameters
    ----------
    net : FullyConnected or Construction
        Of slope 0.
    slope : float
        a; 0 gives the network back.

    Notes
    -----
    Identity layers would be doubled too, at 2r ≥ 2 per dimension, although σ_a is the identity on ℝ^k_+ as
    well: convert g and h, then join them by :func:`three_part`.
    """
    a = check_number("relu_to_leaky", "slope", slope, low=-1.0, high=1.0, low_open=True)
    if a == 1.0:
        fail("relu_to_leaky", "`slope` must be in (-1, 1)", slope, "A linear network has no kinks to build with.")
    base = as_construction("relu_to_leaky", "net", net)
    N = base.network
    if N.slope != 0.0:
        fail("relu_to_leaky", "`net` must be a ReLU network", f"slope {N.slope:g}", "Convert from slope 0.")
    if a == 0.0:
        return base
    Ws, bs, norm = [], [], 0.0
    split = torch.tensor([[1.0], [-1.0]]).to(N.weights[0])
    join = torch.tensor([[1.0, a]], dtype=torch.float64).to(N.weights[0]) / (1.0 - a**2)
    growth = (1.0 + a**2) / (1.0 - a**2) ** 2
    for index, (W, b) in enumerate(zip(weights(N), biases(N))):
        first, last = index == 0, index == N.depth - 1
        square, offset = float(W.double().square().sum()), float(b.double().square().sum())
        if not first:
            W, square = torch.kron(join, W), growth * square
        if not last:
            W, b, square, offset = torch.kron(split, W), torch.cat([b, -b]), 2.0 * square, 2.0 * offset
        Ws.append(W)
        bs.append(b)
        norm += square + offset
    leaky = FullyConnected.from_weights(Ws, bs if N.bias else None, slope=a, bias=N.bias)
    limit = None if base.known.excess_limit is None else math.inf
    return Construction(leaky, base.known).with_known(norm_squared=norm, excess_limit=limit, details={})
