"""What may honestly be said about the optimality of one hidden layer: proved, disproved, or neither."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus._checks import as_matrix, check_integer, check_number, fail
from isthmus._cite import cites
from isthmus.measures import KernelNorm
from isthmus.networks import FullyConnected
from isthmus.objective import cost
from isthmus.reformulations.layer_block import Block
from isthmus.reformulations.oracle import MOST_PATTERNS, Ratio, largest_ratio

VERDICTS = ("certified", "descent found", "no descent found")


@dataclass(frozen=True, eq=False)
class LayerCertificate:
    """Whether the covariance pair of a hidden layer is optimal, the other layers fixed.

    Attributes
    ----------
    layer : int
        ℓ.
    verdict : {"certified", "descent found", "no descent found"}
        ``"certified"``: no pair of the whole cone is lower by more than the tolerance, proved by a dual point.
        ``"descent found"``: a lower value was evaluated. ``"no descent found"``: neither.
    value : float
        Loss, or representation cost, at the network's representations with the least weights.
    lower_bound : float
        Of the same over all pairs of this layer (at the last hidden layer with ``Y`` over all outputs too).
    ratio_found, ratio_bound : float
        max_z |Vσ(z)|²/zᵀ(K^σ_{ℓ-1})⁺z: the largest met, and what none exceeds. At an optimum it is 1.
    complementarity : float
        |⟨∇, (K, K^σ − β²11ᵀ)⟩| relative to Tr[K(K^σ_{ℓ-1})⁺]: 0 at an optimum.
    move : str
        What descends: ``"outputs"``, ``"reweighting"`` or ``"a neuron"``; empty unless the verdict is "descent found".
    lower_value : float
        The value after that move; ∞ without one.
    direction : Tensor (N,), or None
        The neuron z that descends.
    patterns : int
        Sign patterns behind ``ratio_bound``; 0 if it is that of norms.
    """

    layer: int
    verdict: str
    value: float
    lower_bound: float
    ratio_found: float
    ratio_bound: float
    complementarity: float
    move: str
    lower_value: float
    direction: Tensor | None
    patterns: int


@cites("features2022", "Prop. 5, §3.3", ids=("A-kopt",))
def certify_layer(
    net: FullyConnected,
    X: Any,
    ell: int,
    *,
    Y: Any = None,
    ridge: float | None = None,
    tolerance: float = 1e-6,
    starts: int = 64,
    patterns: int = MOST_PATTERNS,
    seed: int = 0,
) -> LayerCertificate:
    """Prove or disprove that (K_ℓ, K^σ_ℓ) minimises the convex problem in which all other blocks are fixed.

    With A = (K^σ_{ℓ-1})⁺ and B = VᵀV, V = Z_{ℓ+1}(K^σ_ℓ)⁺, the pair is optimal if zᵀAz − σ(z)ᵀBσ(z) ≥ 0 for all z ∈
    Im K^σ_{ℓ-1} and Tr[AK] = Tr[B(K^σ − β²11ᵀ)]. Both enter one number: if the largest ratio of the two terms is at
    most ρ, V/√ρ is feasible for the dual, whose value is a lower bound of the loss. The verdict compares it with the
    loss itself, so that it is right whatever the search did.

    For the last hidden layer with ``Y`` the outputs are free too, and V = Y(K^σ + λN)⁻¹. Depth 2 has nothing else:
    "certified" is then a global minimum over all weights of all widths. Deeper it is optimal layer by layer only.

    Where K^σ_ℓ is singular and the outputs are fixed, V is not unique and one choice is tried: optimal layers may then
    be left at "no descent found", never the converse.

    Parameters
    ----------
    net : FullyConnected
    X : array (N, n_0)
    ell : int
        Hidden layer, 1 … L−1.
    Y, ridge : optional
        Both or none. With them the loss (mse) is meant, without them the representation cost of the network's outputs.
    tolerance : float
        Relative to the value.
    starts, seed : int
        Of the search for a neuron.
    patterns : int
        Most sign patterns of neurons that are bounded one by one; 0 to rely on norms alone, which is quick and weak.
    """
    who = "certify_layer"
    trace = net.trace(as_matrix(who, "X", X, columns=net.dims[0]))
    check_integer(who, "ell", ell, low=1, high=trace.depth - 1)
    check_number(who, "tolerance", tolerance, low=0.0, low_open=True)
    if (Y is None) != (ridge is None):
        fail(
            who, "`Y` and `ridge` must be given together", f"Y {type(Y).__name__}, ridge {ridge}", "Give both or none."
        )
    N, slope, bias = trace.samples, trace.slope, trace.bias
    weight = 1.0 if ridge is None else check_number(who, "ridge", ridge, low=0.0, low_open=True)
    free = ridge is not None and ell == trace.depth - 1
    targets = None if Y is None else as_matrix(who, "Y", Y, columns=net.dims[-1])
    fixed = sum(
        KernelNorm(trace.Z_sigma(k - 1)).square(trace.Z(k))
        for k in range(1, trace.depth + 1)
        if k not in (ell, ell + 1)
    )
    if free and targets is not None:
        block = Block.after(trace.Z_sigma(ell - 1), targets.mT, weight * N, slope, bias)
        offset = weight * fixed
    else:
        block = Block.after(trace.Z_sigma(ell - 1), trace.Z(ell + 1), 0.0, slope, bias)
        offset = weight * fixed + (0.0 if targets is None else float(cost(trace.outputs, targets)))
    C = block.coordinates(trace.Z(ell))
    reached = block.value(C)
    value = offset + weight * reached
    if free and targets is not None:
        terms = float(C.square().sum()) + block.norm(C).square(trace.outputs.mT)
        value = offset + float(cost(trace.outputs, targets)) + weight * terms
    V = block.prices(C)
    check_integer(who, "patterns", patterns, low=0)
    aim = 1.0 + 0.1 * tolerance
    ratio = largest_ratio(V, block.Q, slope=slope, target=aim, starts=starts, seed=seed, patterns=patterns)
    least = offset + weight * block.lower_bound(V, max(ratio.bound, ratio.found))
    spent = float(C.square().sum())
    gained = float((V @ block.activations(C).mT).square().sum())
    move, lower, direction = _descent(block, C, V, ratio, offset, weight, value)
    verdict = "no descent found"
    if value - least <= tolerance * abs(value):
        verdict, move, lower, direction = "certified", "", math.inf, None
    elif lower < value - 1e-9 * abs(value):
        verdict = "descent found"
    else:
        move, lower, direction = "", math.inf, None
    complementarity = abs(spent - gained) / spent if spent > 0.0 else 0.0
    return LayerCertificate(
        ell,
        verdict,
        value,
        least,
        ratio.found,
        max(ratio.bound, ratio.found),
        complementarity,
        move,
        lower,
        direction,
        ratio.patterns,
    )


def _descent(
    block: Block, C: Tensor, V: Tensor, ratio: Ratio, offset: float, weight: float, value: float
) -> tuple[str, float, Tensor | None]:
    """The move with the lowest loss, each evaluated."""
    moves: list[tuple[str, float, Tensor | None]] = [
        ("outputs", offset + weight * block.value(C), None),
        ("reweighting", offset + weight * block.value(block.reweighted(C, V)), None),
    ]
    z = block.Q @ ratio.c
    for square in torch.logspace(-8, 1, 19, dtype=torch.float64).tolist():
        size = (square * max(float(C.square().sum()), 1e-300)) ** 0.5
        grown = torch.cat([C, size * ratio.c[None]])
        moves.append(("a neuron", offset + weight * block.value(grown), z))
    # Rounding of two ways to the same number is no move.
    gain = [value - lower if math.isfinite(lower) else -math.inf for _, lower, _ in moves]
    return moves[max(range(len(moves)), key=gain.__getitem__)]
