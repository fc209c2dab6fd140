"""Ψ as a network: the smallest weights that have given representations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isthmus._cite import cites
from isthmus.measures import minimal_weights
from isthmus.networks import FullyConnected


@cites("features2022", "Prop. 1 and Prop. 16", ids=("A-zopt",))
def minimal_network(
    Zs: Sequence[Any], X: Any, *, slope: float = 0.0, bias: float = 1.0, least_squares: bool = False
) -> FullyConnected:
    """Ψ(Z): the network of weights Z_ℓ(Z^σ_{ℓ-1})⁺, with representations Z on ``X`` and the least norm among those.

    Parameters
    ----------
    Zs : sequence of arrays (n_ℓ, N)
        Z_1 … Z_L, samples as columns.
    X : array (N, n_0)
    least_squares : bool, default False
        As in :func:`isthmus.measures.minimal_weights`: project representations that are not admissible.
    """
    made = minimal_weights(Zs, X, slope=slope, bias=bias, least_squares=least_squares)
    return FullyConnected.from_weights(made.Ws, made.bs or None, slope=slope, bias=bias)
