"""The cone of covariance pairs: how many neurons a pair needs, and the loss along its segments."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from isthmus.claims.base import Hypothesis, Subject, Verdict, claim, compare, not_applicable, worst
from isthmus.claims.samples import gaussian_inputs, random_subject
from isthmus.constructions import constant_identity_path
from isthmus.measures import covariances, representation_loss, representations, sigma_rank_bounds
from isthmus.trace import activate, with_ones

#: Samples up to which pairs are held and segments walked.
LARGEST = 20
IN_CONE = "(K, K^σ) in the cone"
ONE_BLOCK, CONVEX = "one block free", "convex cost"
#: Positions on a segment.
PLACES = (0.1, 0.3, 0.5, 0.7, 0.9)


def wide_net() -> Subject:
    """60 neurons on 5 samples, with biases."""
    return random_subject([3, 60, 8, 2], samples=5, seed=11)


def lower_bound(K: Tensor, K_sigma: Tensor, *, bias: float, slope: float) -> int:
    """The number of neurons that the pair needs at least."""
    return sigma_rank_bounds(K, K_sigma, bias=bias, slope=slope).lower


@claim(
    "C-feat-5",
    "Rank K ≤ Rank_σ(K, K^σ) ≤ N(N+1) for pairs of the cone; for the ReLU also Rank_cp(K^σ − β²11ᵀ) ≤ Rank_σ(K, K^σ)",
    paper="features2022",
    where="Lemma 10, §4.2",
    hypotheses=(IN_CONE,),
    sample=wide_net,
    erratum="Printed with Rank_cp(K^σ), which is false for β ≠ 0: one neuron and the bias make K^σ of rank 2.",
)
def neurons_of_a_pair(subject: Subject) -> Verdict:
    """Bounds from below ≤ neurons that are left of a layer at the same pair ≤ N(N+1), at every hidden layer.

    The neurons that are left are at least Rank_σ, so that a bound above their number is wrong.
    """
    net, N = subject.net, len(subject.X)
    hypotheses = [Hypothesis.of(IN_CONE, net.depth > 1, f"{net.depth - 1} hidden layers")]
    if net.depth == 1 or N > LARGEST:
        return not_applicable("C-feat-5", "≤", hypotheses, f"needs a hidden layer and N ≤ {LARGEST}")
    Zs = representations(net, subject.X)
    lows, lefts, offs, names = [], [], [], []
    for ell, (Z, (K, K_sigma)) in enumerate(zip(Zs, covariances(Zs, slope=net.slope, bias=net.bias)), start=1):
        rows = reduced(Z, net.slope)
        lefts.append(float(len(rows)))
        lows.append(float(lower_bound(K, K_sigma, bias=net.bias, slope=net.slope)))
        S = with_ones(activate(rows, net.slope), net.bias)
        scale = max(float(K.abs().max()), 1e-300), max(float(K_sigma.abs().max()), 1e-300)
        offs.append(max(_off(rows.mT @ rows, K) / scale[0], _off(S.mT @ S, K_sigma) / scale[1]))
        names.append(f"layer {ell}")
    below = compare(
        "C-feat-5",
        lows,
        "≤",
        lefts,
        tolerance=0.0,
        hypotheses=hypotheses,
        where=lambda i: f"{names[i]}: the bound from below and the neurons left",
        details={"bound from below": lows, "neurons left": lefts},
    )
    above = compare(
        "C-feat-5",
        lefts,
        "≤",
        float(N * (N + 1)),
        tolerance=0.0,
        hypotheses=hypotheses,
        where=lambda i: f"{names[i]}: neurons left and N(N+1)",
    )
    same = compare("C-feat-5", offs, "≤", 1e-9, tolerance=0.0, hypotheses=hypotheses, where="the same pair")
    return worst(below, above, same)


def reduced(Z: Tensor, slope: float) -> Tensor:
    """Neurons √a_i·z_i with the covariances of Z, at most N(N+1) of them."""
    path = constant_identity_path(Z, slope=slope)
    return path.at(1.0)[path.shares > 0]


@claim(
    "C-feat-11",
    "Pairs of covariances form a translated convex cone, and the loss over them is convex in each pair (K_ℓ, K^σ_ℓ), "
    "or in Z_L, with the others fixed",
    paper="features2022",
    where="Prop. 5",
    hypotheses=(ONE_BLOCK, CONVEX),
    sample=wide_net,
)
def partial_convexity(subject: Subject) -> Verdict:
    """𝓛^k at (1−t)·pair + t·pair' ≤ (1−t)·𝓛^k + t·𝓛^k' for random pairs', at every hidden layer and for outputs.

    A point of the segment is the pair of the neurons √(1−t)·z and √t·z': that it is one shows the cone's convexity.
    Without targets the representation cost is meant. ``known["free"]`` is the number of neighbouring blocks moved
    together, 1 unless given.
    """
    net, N = subject.net, len(subject.X)
    free = int(subject.known.get("free", 1))
    hypotheses = [
        Hypothesis.of(ONE_BLOCK, free == 1, f"{free} free"),
        Hypothesis.of(CONVEX, True, subject.loss if subject.Y is not None else "the norm alone"),
    ]
    if free != 1 or N > LARGEST:
        return not_applicable("C-feat-11", "≤", hypotheses, "" if free != 1 else f"needs N ≤ {LARGEST}")
    lhs, rhs, names = [], [], []
    for block in range(1, net.depth + 1):
        for seed in range(3):
            here, ends = segment(subject, [block], other_end(subject, [block], seed))
            if not all(map(math.isfinite, ends)):
                continue  # an infinite end bounds nothing
            lhs += here
            rhs += [(1 - t) * ends[0] + t * ends[1] for t in PLACES]
            names += [f"{'outputs' if block == net.depth else f'layer {block}'}, t = {t}" for t in PLACES]
    return compare("C-feat-11", lhs, "≤", rhs, tolerance=1e-9, hypotheses=hypotheses, where=lambda i: names[i])


def other_end(subject: Subject, blocks: Sequence[int], seed: int) -> list[Tensor]:
    """Other neurons (or outputs) for these blocks, in the images of the layers before them, half of the old kept."""
    trace = subject.trace()
    found = []
    for ell in blocks:
        S = trace.Z_sigma(ell - 1)
        count = len(trace.Z(ell)) if ell == trace.depth else 2 * trace.samples
        scale = float(trace.Z(ell).norm()) / max(float(S.norm()), 1e-300) / count**0.5
        new = scale * gaussian_inputs(count, len(S), 100 * seed + ell) @ S
        found.append(new if ell == trace.depth else torch.cat([new, 0.5 * trace.Z(ell)]))
    return found


def segment(subject: Subject, blocks: Sequence[int], ends: Sequence[Tensor]) -> tuple[list[float], list[float]]:
    """The loss at ``PLACES`` from the network's representations to those with other blocks, and at both ends."""
    net = subject.net
    Zs = list(representations(net, subject.X))
    Y = Zs[-1].mT if subject.Y is None else subject.Y
    ridge = 1.0 if subject.ridge is None else subject.ridge

    def loss(t: float) -> float:
        at = list(Zs)
        for ell, end in zip(blocks, ends):
            if ell == net.depth:
                at[-1] = (1 - t) * Zs[-1] + t * end
            else:
                at[ell - 1] = torch.cat([(1 - t) ** 0.5 * Zs[ell - 1], t**0.5 * end])
        kind = subject.loss if subject.Y is not None else "mse"
        return representation_loss(at, subject.X, Y, ridge=ridge, loss=kind, slope=net.slope, bias=net.bias)

    return [loss(t) for t in PLACES], [loss(0.0), loss(1.0)]


def _off(made: Tensor, wanted: Tensor) -> float:
    return float((made - wanted).abs().max())
