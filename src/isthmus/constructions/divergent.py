"""A-divergent: networks of nearly least norm whose representations grow without bound (Example 20)."""

from __future__ import annotations

import math

import torch

from isthmus._checks import check_integer, check_number, fail
from isthmus._cite import cites
from isthmus.constructions.construction import Construction, Domain, Known
from isthmus.networks import FullyConnected


@cites("bottleneck2023", "App. D.1, Example 20", ids=("A-divergent",))
def divergent(depth: int, exponent: float = 0.75) -> Construction:
    """f(x) = (x_1, x_2, x_3 + σ(x_1 − x_2)) on ℝ³_+, with ‖θ‖² − 3L → 0 and representations of size e^{(L−2)ε/2}.

    ε = L^−γ. The first L/2 − 1 layers are diag(e^ε, e^ε, e^−2ε), two layers in the middle add the kinked
    neuron, the last L/2 − 1 undo the scaling. With S = e^{(L−2)ε/2},

        ‖θ‖² − 3L = (L − 2)(4 sinh²ε + 2 sinh²2ε) + 2S⁻² + S⁻⁴.

    The first term is about 12·L^{1−2γ} and needs γ > ½; the kink's share vanishes only if S grows, γ < 1.

    Parameters
    ----------
    depth : int
        L, even.
    exponent : float, default 0.75
        γ in (½, 1).

    Returns
    -------
    Construction
        ``details["scale"]`` is S, ``details["epsilon"]`` is ε.
    """
    who = "divergent"
    L = check_integer(who, "depth", depth, low=2)
    if L % 2:
        fail(who, "`depth` must be even", L, "Half of the layers scale up, half of them down.")
    gamma = check_number(who, "exponent", exponent)
    if gamma <= 0.5:
        must = "`exponent` must be in (1/2, 1)"
        fail(who, must, gamma, "The excess is about 12·L^(1 - 2·exponent), which vanishes only above 1/2.")
    if gamma >= 1.0:
        must = "`exponent` must be in (1/2, 1)"
        fail(who, must, gamma, "The scale e^((L-2)·ε/2) stays bounded from 1 on, and the kink keeps its norm.")
    eps = L**-gamma
    n = L // 2 - 1
    S = math.exp(n * eps)
    stretch = torch.tensor([eps, eps, -2.0 * eps], dtype=torch.float64).exp()
    kinked = torch.eye(4, 3, dtype=torch.float64)
    kinked[3, 0], kinked[3, 1] = 1.0 / S, -1.0 / S
    joined = torch.eye(3, 4, dtype=torch.float64)
    joined[2, 3] = S**-2
    Ws = [*[stretch.diag()] * n, kinked, joined, *[(1.0 / stretch).diag()] * n]
    # Squares of sinh, where sums of exponentials around 1 would cancel to order ε².
    excess = (L - 2) * (4.0 * math.sinh(eps) ** 2 + 2.0 * math.sinh(2.0 * eps) ** 2) + 2.0 * S**-2 + S**-4
    domain = Domain("x >= 0 (of R^3)", 3, lambda X: (X >= 0).all(-1))
    known = Known(3.0 * L + excess, 3, 0.0, domain, {"scale": S, "epsilon": eps})
    return Construction(FullyConnected.from_weights(Ws), known)
