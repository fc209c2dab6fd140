"""The cone of covariance pairs, and widths: how many neurons a pair needs, and the least loss by width."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from isthmus.claims._base import Check, Hypothesis, Subject, claim
from isthmus.claims._evidence import gaussian_inputs, random_subject
from isthmus.claims.features2022._maps import SPREAD_OF_COVARIANCES, ZERO, conditioned_rows, loss_of, underflows
from isthmus.constructions import (
    bipartite_optimum,
    constant_identity_path,
    minimal_network,
    one_hot_data,
    one_hot_optimum,
)
from isthmus.measures import (
    covariances,
    parameter_norms,
    representation_cost_terms,
    representation_loss,
    representations,
    sigma_rank_bounds,
)
from isthmus.networks import FullyConnected
from isthmus.reformulations import certify_layer
from isthmus.trace import activate, with_ones

#: Samples of which pairs are held and segments walked: drawn, where there are more.
LARGEST = 20

IN_CONE = "(K, K^σ) in the cone"

ONE_BLOCK, CONVEX, CONDITIONED = "one block free", "convex cost", "well conditioned"

#: γ as a share of the largest kernel, where rounding takes representations for inadmissible.
STABLE = 1e-10

#: Layers at most that are moved, evenly spaced, the outputs among them.
BLOCKS = 12

#: Positions on a segment.
PLACES = (0.1, 0.3, 0.5, 0.7, 0.9)


def lower_bound(K: Tensor, K_sigma: Tensor, *, bias: float, slope: float) -> int:
    """The number of neurons that the pair needs at least."""
    return sigma_rank_bounds(K, K_sigma, bias=bias, slope=slope).lower


def crowded_net() -> Subject:
    """60 neurons on 5 samples, with biases."""
    return random_subject([3, 60, 8, 2], samples=5, seed=11)


@claim(
    "C-feat-5",
    "Rank K ≤ Rank_σ(K, K^σ) ≤ N(N+1) for pairs of the cone; for the ReLU also Rank_cp(K^σ − β²11ᵀ) ≤ Rank_σ(K, K^σ)",
    paper="features2022",
    where="Lemma 10, §4.2",
    hypotheses=(IN_CONE,),
    sample=crowded_net,
    relation="≤",
    erratum="Printed with Rank_cp(K^σ), which is false for β ≠ 0: one neuron and the bias make K^σ of rank 2.",
)
def neurons_of_a_pair(check: Check, subject: Subject) -> None:
    """Bounds from below ≤ neurons that are left of a layer at the same pair ≤ N(N+1), at every hidden layer.

    The neurons that are left are at least Rank_σ, so that a bound above their number is wrong.
    """
    net = subject.net
    if net.depth == 1:
        check.assume(IN_CONE, False, "no hidden layer")
        check.not_applicable()
    # So few that N(N+1) is less than the width, where that is possible: then neurons are to go.
    fewer = (math.isqrt(4 * max(net.dims[1:-1]) + 1) - 1) // 2
    subject, rows = subject.drawn(min(LARGEST, max(2, fewer)))
    N = len(subject.X)
    check.assume(IN_CONE, None if underflows(subject.trace()) else True, f"of a network on {rows}")
    check.require()
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
    details = {"bound from below": lows, "neurons left": lefts}
    check.compare(lows, "≤", lefts, tolerance=0.0, part="Rank_σ ≤ neurons left", where=names, details=details)
    check.compare(lefts, "≤", float(N * (N + 1)), tolerance=0.0, part="neurons left ≤ N(N+1)", where=names)
    check.vanish(offs, tolerance=1e-9, part="the same pair", where=names)


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
    hypotheses=(ONE_BLOCK, CONVEX, CONDITIONED),
    sample=crowded_net,
    relation="≤",
)
def partial_convexity(check: Check, subject: Subject) -> None:
    """𝓛^k at (1−t)·pair + t·pair' ≤ (1−t)·𝓛^k + t·𝓛^k' for random pairs', at hidden layers and for outputs.

    A point of the segment is the pair of the neurons √(1−t)·z and √t·z': that it is one shows the cone's convexity.
    Without targets the representation cost is meant. ``known["free"]`` is the number of neighbouring blocks moved
    together, 1 unless given.
    """
    net = subject.net
    free = int(subject.known.get("free", 1))
    check.assume(ONE_BLOCK, free == 1, f"{free} free")
    check.assume(CONVEX, True, subject.loss if subject.Y is not None else "the norm alone")
    subject, wide, said = conditioned_rows(subject, LARGEST)
    check.assume(CONDITIONED, wide <= SPREAD_OF_COVARIANCES or None, said)
    check.require()
    places = []
    for block in torch.linspace(1, net.depth, min(net.depth, BLOCKS)).round().long().tolist():
        for seed in range(3):
            other = other_end(subject, [block], seed)
            here, ends = segment(subject, [block], other)
            if not all(map(math.isfinite, (*here, *ends))):
                # Rounding took a point for inadmissible: with K + γI, by the same proof convex, there is none.
                here, ends = segment(subject, [block], other, gamma=STABLE)
            name = "outputs" if block == net.depth else f"layer {block}"
            places += [(x, (1 - t) * ends[0] + t * ends[1], f"{name}, t = {t}") for x, t in zip(here, PLACES)]
    check.each(places, "≤", tolerance=1e-9)


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


def segment(
    subject: Subject, blocks: Sequence[int], ends: Sequence[Tensor], *, gamma: float = 0.0
) -> tuple[list[float], list[float]]:
    """The loss at ``PLACES`` from the network's representations to those with other blocks, and at both ends.

    ``gamma`` is γ of its stable form, as a share of the largest kernel.
    """
    net = subject.net
    Zs = list(representations(net, subject.X))
    trace = subject.trace()
    largest = max(float(trace.Z_sigma(ell).square().sum()) for ell in range(trace.depth))
    options = {"slope": net.slope, "bias": net.bias, "gamma": gamma * largest, "cut": ZERO}
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
        return representation_loss(at, subject.X, Y, ridge=ridge, loss=kind, **options)

    return [loss(t) for t in PLACES], [loss(0.0), loss(1.0)]


def _off(made: Tensor, wanted: Tensor) -> float:
    return float((made - wanted).abs().max())


# ---- Widths: the least loss falls with them to a plateau, which begins at Rank_σ of an optimal pair

GLOBAL, HOMOGENEOUS = "global minima", "homogeneous σ"

ADMISSIBLE, ENOUGH = "(K, Z_L) admissible", "n_ℓ ≥ Rank_σ"

#: Rounding of a loss, relative to it, from which nothing is concluded about a gradient.
ROUNDING = 1e-9


def loss_on(subject: Subject, net: FullyConnected | None = None) -> float:
    """C + λ‖θ‖² of the subject's network, or of another on its data."""
    made, Y = subject.net if net is None else net, torch.as_tensor(subject.Y)
    return loss_of(made, subject.X, Y, subject.ridge or 0.0, subject.loss)


def least_loss(subject: Subject) -> float | None:
    """A lower bound of the loss over all weights of these widths; None where none is known.

    For L = 2, β = 0, mse, |slope| ≤ 1: ‖θ‖² ≥ 2‖W_1‖‖W_2‖ ≥ 2‖Z_2‖_*/‖X‖_op as ‖σ(W_1X)‖ ≤ ‖W_1‖‖X‖_op, and Z_2 has
    at most n_1 singular values: each of the largest is made smaller by λN/‖X‖_op, the others are lost. For X = 0, all.
    """
    net = subject.net
    if net.depth != 2 or net.bias != 0.0 or subject.loss != "mse" or subject.Y is None or subject.ridge is None:
        return None
    s = torch.linalg.svdvals(subject.Y.double())
    N = len(subject.X)
    size = float(torch.linalg.matrix_norm(subject.X.double(), 2))
    if size == 0.0:
        return float(s.square().sum()) / N
    price = subject.ridge / size
    kept = (s - price * N).clamp_min(0.0)
    kept[net.dims[1] :] = 0.0
    return float((s - kept).square().sum()) / N + 2.0 * price * float(kept.sum())


def plateau_family() -> Subject:
    """Global minima on one-hot data of 2 classes, 3 samples, from 1 neuron to beyond N(N+1) = 12."""
    sizes, ridge = (2, 1), 0.05
    X, Y = one_hot_data(sizes)
    members = [Subject(one_hot_optimum(sizes, width=width, ridge=ridge), X, Y, ridge) for width in (1, 2, 3, 12, 15)]
    return members[-1].replace(known={"family": members})


@claim(
    "C-feat-4",
    "The least loss does not rise with any width, and is constant once every hidden layer has N(N+1) neurons",
    paper="features2022",
    where="Props 6 and 7",
    hypotheses=(GLOBAL, HOMOGENEOUS),
    sample=plateau_family,
    relation="≥",
)
def loss_plateau(check: Check, subject: Subject) -> None:
    """Losses of global minima by width, and the two moves of the proof on each: dead neurons, Carathéodory's reduction.

    ``known["family"]`` holds networks of growing widths on one task. That they are global minima is known where a loss
    equals a lower bound for its widths, and refuted where a narrower member does better.
    """
    check.assume(HOMOGENEOUS, True, f"slope {subject.net.slope:g}")
    family: list[Subject] = subject.family(Subject) or []
    if len(family) < 2 or any(one.Y is None or one.ridge is None for one in family) or len(family[0].X) > LARGEST:
        check.not_applicable(
            f"needs networks of growing width on one task of at most {LARGEST} samples", supply="known['family']"
        )
    N = len(family[0].X)
    nested = all(
        a.net.depth == b.net.depth and all(m <= n for m, n in zip(a.net.dims, b.net.dims))
        for a, b in zip(family, family[1:])
    )
    if not nested:
        check.not_applicable("needs members of one depth, each at least as wide as the last", supply="known['family']")
    losses = [loss_on(one) for one in family]
    check.add(_global_minima(family, losses))
    check.require()
    names = ["/".join(map(str, one.net.dims[1:-1])) for one in family]
    check.compare(
        losses[:-1],
        "≥",
        losses[1:],
        tolerance=1e-9,
        part="falls with the width",
        where=lambda i: f"widths {names[i]} and {names[i + 1]}",
        details={"loss": losses, "width": [float(max(one.net.dims[1:-1])) for one in family]},
    )
    wider = [loss_on(one, widened(one.net)) for one in family]
    fewer = [loss_on(one, narrowed(one)) for one in family]
    check.compare(wider, "=", losses, tolerance=1e-12, part="with dead neurons")
    check.compare(fewer, "≤", losses, tolerance=1e-9, part="reduced to ≤ N(N+1)")
    flat = [loss for one, loss in zip(family, losses) if min(one.net.dims[1:-1]) >= N * (N + 1)]
    if len(flat) > 1:
        check.compare(flat[1:], "=", flat[0], tolerance=1e-9, part="the plateau")


def _global_minima(family: list[Subject], losses: list[float]) -> Hypothesis:
    for index, (one, loss) in enumerate(zip(family, losses)):
        width = "/".join(map(str, one.net.dims[1:-1]))
        if index and min(losses[:index]) < loss * (1 - 1e-9):
            best = min(losses[:index])
            return Hypothesis.of(GLOBAL, False, f"width {width} has {loss:.6g}, a narrower member {best:.6g}")
        floor = least_loss(one)
        if floor is None or loss > floor * (1 + 1e-9):
            least = "no bound is known" if floor is None else f"the bound is {floor:.6g}"
            return Hypothesis.of(GLOBAL, None, f"width {width} has {loss:.6g}, {least}")
    return Hypothesis.of(GLOBAL, True, "each equals a lower bound for its widths")


def widened(net: FullyConnected) -> FullyConnected:
    """Two dead neurons more in every hidden layer."""
    Ws = [W.detach() for W in net.Ws]
    bs = [b.detach() for b in net.bs]
    for index in range(len(Ws) - 1):
        Ws[index] = torch.cat([Ws[index], Ws[index].new_zeros(2, Ws[index].shape[1])])
        Ws[index + 1] = torch.cat([Ws[index + 1], Ws[index + 1].new_zeros(len(Ws[index + 1]), 2)], 1)
        if bs:
            bs[index] = torch.cat([bs[index], bs[index].new_zeros(2)])
    return FullyConnected.from_weights(Ws, bs or None, slope=net.slope, bias=net.bias)


def narrowed(subject: Subject) -> FullyConnected:
    """At most N(N+1) neurons in every hidden layer, with the same pairs and outputs on the data."""
    net = subject.net
    Zs = representations(net, subject.X)
    rows = [reduced(Z, net.slope) for Z in Zs[:-1]]
    return realised([*rows, Zs[-1]], subject.X, net)


def realised(Zs: list[Tensor], X: Tensor, like: FullyConnected) -> FullyConnected:
    """The least weights with these representations; a layer without neurons keeps one dead one."""
    full = [Z if len(Z) else Z.new_zeros(1, Z.shape[1]) for Z in Zs]
    return minimal_network(full, X, slope=like.slope, bias=like.bias, cut=ZERO)


def doubled_bipartite() -> Subject:
    """The optimum of B_6 with each of its 9 neurons split in two."""
    net = bipartite_optimum(6)
    W_1, W_2 = (W / 2**0.5 for W in net.Ws)
    split = FullyConnected.from_weights([torch.cat([W_1, W_1]), torch.cat([W_2, W_2], 1)]).requires_grad_(False)
    return Subject(split, torch.eye(6, dtype=torch.float64))


@claim(
    "C-feat-12",
    "Widths realise admissible (K, Z_L) iff n_ℓ ≥ Rank_σ(K_ℓ, K^σ_ℓ) at every hidden layer; optimal pairs lie on the "
    "border of the cone",
    paper="features2022",
    where="Prop. 8 and Prop. 20, Cor. 9, Remark 11",
    hypotheses=(ADMISSIBLE, CONDITIONED, ENOUGH),
    sample=doubled_bipartite,
)
def widths_and_rank(check: Check, subject: Subject) -> None:
    """A network of the fewest neurons found has the same covariances and outputs, and no fewer than the bound are used.

    ``known["widths"]`` are the hidden widths asked for, those of the fewest neurons found unless given; where they are
    fewer than the bound from below of Rank_σ, nothing can be realised. Where the last hidden layer is proved optimal,
    the gradient supports the cone at its pair, as nearly as the proof allows: :func:`off_the_border`.
    """
    net = subject.net
    check.assume(ADMISSIBLE, net.depth > 1, "of a network" if net.depth > 1 else "no hidden layer")
    check.require()
    subject, wide, said = conditioned_rows(subject, LARGEST)
    N = len(subject.X)
    check.assume(CONDITIONED, wide <= SPREAD_OF_COVARIANCES or None, said)
    check.require()
    Zs = list(representations(net, subject.X))
    pairs = covariances(Zs, slope=net.slope, bias=net.bias)
    rows = [reduced(Z, net.slope) for Z in Zs[:-1]]
    bounds = [sigma_rank_bounds(K, K_sigma, bias=net.bias, slope=net.slope) for K, K_sigma in pairs]
    asked = [int(n) for n in subject.known.get("widths", [len(Z) for Z in rows])]
    lows, ups = [one.lower for one in bounds], [len(Z) for Z in rows]
    enough = all(n >= up for n, up in zip(asked, ups)) or (False if any(map(int.__lt__, asked, lows)) else None)
    check.assume(ENOUGH, enough, f"widths {asked}, {lows} ≤ Rank_σ ≤ {ups}")
    check.require()
    padded = [torch.cat([Z, Z.new_zeros(n - len(Z), N)]) for Z, n in zip(rows, asked)]
    made = realised([*padded, Zs[-1]], subject.X, net)
    again = representations(made, subject.X)
    offs = [
        float((a - b).abs().max()) / max(float(b.abs().max()), 1e-300)
        for new, old in zip(covariances(again, slope=net.slope, bias=net.bias), pairs)
        for a, b in zip(new, old)
    ]
    offs.append(float((again[-1] - Zs[-1]).abs().max()) / max(float(Zs[-1].abs().max()), 1e-300))
    # Both sides of Prop. 8 meet where the bounds do.
    details = {"at least": [float(n) for n in lows], "realised with": [float(n) for n in ups]}
    check.vanish(offs, tolerance=1e-7, part="pairs and outputs of the fewest neurons", details=details)
    check.compare(
        [float(n) for n in lows],
        "≤",
        [float(n) for n in ups],
        tolerance=0.0,
        part="Rank_σ at least, and realised with",
        where=lambda i: f"layer {i + 1}",
    )
    terms = representation_cost_terms(Zs, subject.X, slope=net.slope, bias=net.bias, cut=ZERO)
    check.compare(parameter_norms(made).total, "=", sum(terms), tolerance=1e-7, part="‖θ‖² of both")
    proof = certify_layer(net, subject.X, net.depth - 1, patterns=0)
    if proof.verdict == "certified":
        most = off_the_border(max(proof.value - proof.lower_bound, ROUNDING * proof.value), terms[-2])
        check.vanish(proof.complementarity, tolerance=most, part="⟨∇, (K, K^σ − β²11ᵀ)⟩ at an optimal pair")


def off_the_border(gap: float, spent: float) -> float:
    """√(g/a)(2 + √(g/a)): the most that |a − b|/a can be at a pair whose value is within g of the least.

    Of the pair times m the value is f(m) = ma + h(m), a = Tr[K(K^σ_{ℓ-1})⁺], with −h'(m) = b(m) = ⟨−∇, K^σ − β²11ᵀ⟩ and
    h'' ≤ 2b/m, so that m²b(m) does not fall: f(m) ≤ f(1) − a − b + ma + b/m, which at m = √(b/a) is f(1) − (√a − √b)².
    Hence (√a − √b)² ≤ g.
    """
    share = (gap / spent) ** 0.5 if spent > 0.0 else 0.0
    return share * (2.0 + share)
