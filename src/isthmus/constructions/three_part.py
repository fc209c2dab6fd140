"""A-threepart: f = h∘g through k dimensions at any depth, of norm ‖W_g‖² + k(L − L_g − L_h) + ‖W_h‖²."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from isthmus._checks import as_matrix, as_tensor, check_integer, fail
from isthmus._cite import cites
from isthmus.constructions.compose import compose, pad
from isthmus.constructions.construction import Construction, Domain, as_construction, biases, common_bias, weights
from isthmus.measures import parameter_norms
from isthmus.networks import FullyConnected


@cites("rank2023", "Thm 1, Thm 3", ids=("A-threepart",))
@cites("talk2023", "Sketch of proof", ids=("A-threepart",))
def three_part(
    g: FullyConnected | Construction,
    h: FullyConnected | Construction,
    depth: int,
    *,
    shift: Any = 0.0,
    X: Any = None,
) -> Construction:
    """h∘g as g, then identity layers on ℝ^k_+, then h: ‖θ‖² = ‖θ_g‖² + k(L − L_g − L_h) + ‖θ_h‖².

    Parameters
    ----------
    g : FullyConnected or Construction, ℝ^{d_in} → ℝ^k
    h : FullyConnected or Construction, ℝ^k → ℝ^{d_out}
        Of the same slope, dtype and amount of bias (or none).
    depth : int
        L ≥ L_g + L_h.
    shift : float, array (k,) or "least", default 0.0
        c: the middle carries g + c in place of g, and h undoes it, h(z − c). The biases b of g's last layer
        and b' of h's first, W', become b + c/β and b' − W'c/β (β = 1 if there were none before), and the
        formula holds with these. "least" takes the smallest c ≥ 0 for which g(X) + c ≥ 0.
    X : array (N, d_in), optional
        Samples of Ω: a construction that is not h∘g on all of them is refused.

    Returns
    -------
    Construction
        Its rank is at most k; ‖θ‖² − kL is the same at every depth. ``details["shift_cost"]`` is what the
        shift has added to ‖θ‖² (it can be negative).
    """
    who = "three_part"
    first, last = as_construction(who, "g", g), as_construction(who, "h", h)
    G, H = first.network, last.network
    k = G.dims[-1]
    if H.dims[0] != k:
        fail(who, f"`h` must take the {k} outputs of `g`", f"{H.dims[0]} inputs", "Pass g before h.")
    check_integer(who, "depth", depth, low=G.depth + H.depth)
    samples = None if X is None else as_matrix(who, "X", X, columns=G.dims[0], device="cpu")
    c = _shift(who, shift, G, samples)
    before = first.known.norm_squared + last.known.norm_squared
    if bool((c != 0).any()):
        first, last = _shifted(who, first, last, c)
    whole = compose(last, pad(first, depth - H.depth))
    # The identity layers add no condition of their own.
    domain = compose(last, first).known.domain
    if samples is not None:
        outside = int((~domain.contains(samples)).sum())
        if outside:
            must = f"`X` must lie in the domain ({domain.text})"
            fail(who, must, f"{outside} of {len(samples)} samples outside", 'Try shift="least" if g is negative.')
    parts = first.known.norm_squared + last.known.norm_squared
    limit = parts - k * (G.depth + H.depth) if whole.known.rank == k else math.inf
    return whole.with_known(excess_limit=limit, domain=domain, details={"shift_cost": parts - before})


def _shift(who: str, shift: Any, G: FullyConnected, samples: Tensor | None) -> Tensor:
    """c, (k,) in the dtype of the network."""
    k, like = G.dims[-1], G.weights[0]
    if isinstance(shift, str):
        if shift != "least":
            fail(who, '`shift` must be a number, k numbers or "least"', repr(shift), "Choose one of these.")
        if samples is None:
            fail(who, '`shift="least"` needs `X`', "none", "Pass samples of the domain.")
        return (-G.trace(samples).outputs.amin(0)).clamp_min(0.0).to(like)
    c = as_tensor(who, "shift", shift)
    if c.ndim > 1 or c.numel() not in (1, k):
        fail(who, f"`shift` must be one number or {k}", f"shape {tuple(c.shape)}", "Pass one for each output of g.")
    return c.expand(k).to(like)


def _shifted(who: str, first: Construction, last: Construction, c: Tensor) -> tuple[Construction, Construction]:
    """The pair g + c and h(· − c), each with what is known about it."""
    G, H = first.network, last.network
    beta = common_bias(who, G, H) or 1.0
    bs, b_primes = biases(G), biases(H)
    bs[-1] = bs[-1] + c / beta
    b_primes[0] = b_primes[0] - weights(H)[0] @ c / beta
    up = FullyConnected.from_weights(weights(G), bs, slope=G.slope, bias=beta)
    down = FullyConnected.from_weights(weights(H), b_primes, slope=H.slope, bias=beta)
    home, offset = last.known.domain, c.cpu().double()
    moved = home if home.whole else Domain(f"z - c: {home.text}", home.columns, lambda Z: home.test(Z - offset))
    return (
        Construction(up, first.known).with_known(norm_squared=parameter_norms(up).total),
        Construction(down, last.known).with_known(norm_squared=parameter_norms(down).total, domain=moved),
    )
