"""What functions cost: compositions, sums and linear maps in R, R1 and R2 (bottleneck2023 §3)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from isthmus.claims._base import Check, Hypothesis, Subject, claim, rounding, unmet
from isthmus.claims._evidence import (
    TRAINING,
    Points,
    bare_network,
    gaussian_inputs,
    is_linear,
    points_of,
    pulls,
    random_subject,
)
from isthmus.claims.rank2023._families import deepened
from isthmus.constructions import Construction, compose, linear_network, parallel, positive_linear_network
from isthmus.linalg import rank_tolerance, svd
from isthmus.measures import diagonal_cost, diagonal_expansion, parameter_norms
from isthmus.measures._positivity import is_completely_positive
from isthmus.measures._representation_cost import CostEstimate, Estimate, estimate_costs
from isthmus.networks import FullyConnected, Network
from isthmus.networks._rescaling import least_norm

JOINS = ("f∘g", "f+g")

#: Layers at which a linear network is cut in two, evenly spaced; one in networks wider than this.
CUTS, WIDE = 4, 256

#: Share of ‖θ‖² that a residual may leave undecided.
SEEN = 1e-2

#: Relative error up to which the singular values of a product are trusted, and equalities taken for met.
TRUSTED = 1e-8


@dataclass(frozen=True, eq=False)
class Pair:
    """Two functions as networks, and how they are joined: ``"f∘g"`` or ``"f+g"``."""

    f: FullyConnected
    g: FullyConnected
    join: str
    name: str

    @property
    def linear(self) -> bool:
        """Whether both are products of matrices."""
        return is_linear(self.f) and is_linear(self.g)

    @property
    def joined(self) -> Construction:
        """The two networks put together."""
        return compose(self.f, self.g) if self.join == "f∘g" else parallel(self.f, self.g)


@torch.no_grad()
def matrix_product(net: FullyConnected) -> tuple[Tensor, float]:
    """W_L ⋯ W_1 in float64, and a bound of its rounding: eps · n · L · Π‖W_ℓ‖_op."""
    Ws = [W.detach().double() for W in net.Ws]
    A, size = Ws[0], _operator_norm(Ws[0])
    for W in Ws[1:]:
        A = W @ A
        size *= _operator_norm(W)
    return A, torch.finfo(torch.float64).eps * max(net.dims) * net.depth * size


def _operator_norm(W: Tensor) -> float:
    """‖W‖_op, or of a wide matrix the cheaper bound √(‖W‖_1‖W‖_∞)."""
    if max(W.shape) <= WIDE:
        return float(torch.linalg.matrix_norm(W, 2))
    return float((W.abs().sum(0).max() * W.abs().sum(1).max()).sqrt())


def nonzero_values(A: Tensor, error: float) -> Tensor | None:
    """The singular values of A that are not rounding, or None where it cannot be decided which those are."""
    if bool(A.any()) and float(A.norm()) * TRUSTED < error:
        return None
    s = torch.linalg.svdvals(A)
    kept = s[s > 10 * error]
    return None if len(kept) and float(kept[-1]) * TRUSTED < error else kept


def linear_values(pair: Pair) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Non-zero singular values of the join, of f and of g."""
    (A, a), (B, b) = matrix_product(pair.f), matrix_product(pair.g)
    if pair.join == "f+g":
        return nonzero_values(A + B, a + b), nonzero_values(A, a), nonzero_values(B, b)
    norms = [float(torch.linalg.matrix_norm(M, 2)) for M in (A, B)]
    return nonzero_values(A @ B, a * norms[1] + b * norms[0]), nonzero_values(A, a), nonzero_values(B, b)


def function_pairs(subject: Subject, joins: Sequence[str] = JOINS) -> tuple[list[Pair], Hypothesis]:
    """The two functions that are given; of a linear network its lower and upper part at some layers."""
    name = "two functions"
    f, g = (_plain(bare_network(subject.known.get(one))) for one in ("f", "g"))
    if f is not None and g is not None:
        join = subject.known.get("join", joins[0])
        met = join in joins
        # Copies: `.double()` would convert the networks of the caller.
        pair = Pair(copy.deepcopy(f).double(), copy.deepcopy(g).double(), join, join)
        return [pair] if met else [], Hypothesis.of(name, met, f"known['join'] is {join}")
    net, given = subject.net, {"f", "g"} & subject.known.keys()
    cheap = net.slope == 0.0 and max(net.dims) <= WIDE
    if not given and net.depth > 1 and "f∘g" in joins and (is_linear(net) or cheap):
        number = min(net.depth - 1, CUTS) if max(net.dims) <= WIDE else 1
        layers = torch.linspace(0, net.depth, number + 2).round().long().unique().tolist()[1:-1]
        cut = [Pair(*_halves(net, ell), "f∘g", f"cut after layer {ell}") for ell in layers]
        return cut, Hypothesis.of(name, True, "the network, cut in two")
    return [], Hypothesis.of(name, None, "needs two functions", supply="known['f'], known['g']")


def _halves(net: FullyConnected, ell: int) -> tuple[FullyConnected, FullyConnected]:
    """Networks f, g with f∘g the network: of a ReLU network g ends on identities behind σ(α̃_ℓ), so that σ(g) = g."""
    Ws, bs = [W.detach() for W in net.Ws], [b.detach() for b in net.bs]
    first, shifts = Ws[:ell], bs[:ell]
    if net.slope != 1.0:
        first = [*first, torch.eye(net.dims[ell], dtype=Ws[0].dtype)]
        shifts = [*shifts, torch.zeros(net.dims[ell], dtype=Ws[0].dtype)]
    made = []
    for weights, biases in ((Ws[ell:], bs[ell:]), (first, shifts)):
        one = FullyConnected.from_weights(weights, biases if bs else None, slope=net.slope, bias=net.bias)
        made.append(one.requires_grad_(False))
    return made[0], made[1]


def _plain(net: object) -> FullyConnected | None:
    """What can be joined: a network that is fully connected layers and nothing else."""
    layers = net.plain_layers() if isinstance(net, Network) else None
    return layers if layers is net else None


_JOINABLE = "σ(g) = g on Ω, or ⟨b_L^f, b_L^g⟩ ≤ 0"

_RANKS = "R0(f∘g) = R0(f) = R0(g), or R0 adds up"


def composed_pair() -> Subject:
    """Two ReLU networks through two dimensions, the inner one shifted until it is positive on the samples."""
    inner = random_subject([4, 9, 9, 2], seed=11)
    low = inner.net(inner.X).detach().amin(0)
    inner.net.biases[-1].data += 0.1 - low
    outer = random_subject([2, 9, 9, 4], seed=12)
    joined = compose(outer.net, inner.net).network
    return Subject(joined, inner.X, known={"f": outer.net, "g": inner.net, "join": "f∘g"})


@claim(
    "C-bn-2",
    "R(f∘g; L₁+L₂) ≤ R(f; L₁) + R(g; L₂) and R(f+g; L) ≤ R(f; L) + R(g; L); likewise R1 where R0 fits",
    paper="bottleneck2023",
    where="Thm 3(1), (2)",
    hypotheses=("two functions", _JOINABLE, _RANKS),
    sample=composed_pair,
    relation="≤",
)
def subadditivity(check: Check, subject: Subject) -> None:
    """R(join) ≤ ‖θ_f‖² + ‖θ_g‖², with a network that shows it and a lower bound that could break it.

    ``known["f"]``, ``known["g"]`` are networks or constructions, ``known["join"]`` is "f∘g" or "f+g"; without them a
    linear or ReLU network is cut in two. Linear networks are judged by their exact costs, R1 included. For others
    R(join) lies between L·Σs_i(J)^{2/L} at the samples and the norm of the network put together.
    """
    pairs, given = function_pairs(subject)
    costs, terms, made, least = [], [], [], []
    joinable, ranks = [Hypothesis.of(_JOINABLE, None)], [Hypothesis.of(_RANKS, None, "R1 of linear networks only")]
    for pair in pairs:
        joinable.append(_can_be_joined(pair, subject.X))
        if joinable[-1].status != "met":
            continue
        if pair.linear:
            rank, cost, term = _linear_sides(pair)
            ranks.append(rank)
            costs += [(*cost, pair.name)] if cost else []
            terms += [(*term, pair.name)] if rank.status == "met" and term else []
        else:
            norms, bounds = _bounds(pair, subject.X)
            made.append((*norms, pair.name))
            least += [(*sides, pair.name) for sides in bounds]
    check.add(given, first_met(joinable), first_met(ranks))
    if not pairs or first_met(joinable).status != "met":
        check.not_applicable("; ".join(unmet([h]) for h in (given, first_met(joinable)) if h.status != "met"))
    nets = [subject.net, *(net for pair in pairs for net in (pair.f, pair.g))]
    tolerance, needs = max(map(rounding, nets)), ("two functions", _JOINABLE)
    exact = tolerance + TRUSTED
    check.each(terms, "≤", tolerance=exact, part="R1", assuming=(*needs, _RANKS))
    if costs:
        check.each(costs, "≤", tolerance=exact, part="R, exactly", assuming=needs)
    if least:
        check.each(least, "≤", tolerance=tolerance, part="L·Σs^(2/L) of the join", assuming=needs)
    if made:
        built = "by construction: the network put together has the norm of both"
        check.each(made, "≤", tolerance=tolerance, part="the network put together", assuming=needs, trivial=built)


def first_met(found: Sequence[Hypothesis]) -> Hypothesis:
    """The first that is met, else the last that was looked at."""
    return next((h for h in found if h.status == "met"), found[-1])


@torch.no_grad()
def _can_be_joined(pair: Pair, X: Tensor) -> Hypothesis:
    """Do the two networks fit together, and is the result what it should be on the samples?"""
    f, g = pair.f, pair.g
    shapes = f"{g.dims[0]} → {g.dims[-1]} of depth {g.depth}, {f.dims[0]} → {f.dims[-1]} of depth {f.depth}"
    if pair.join == "f∘g":
        if f.dims[0] != g.dims[-1] or X.shape[1] != g.dims[0] or f.slope != g.slope:
            return Hypothesis.of(_JOINABLE, False, shapes)
        if pair.linear:
            return Hypothesis.of(_JOINABLE, True, "linear")
        wanted, found = f(g(X)), pair.joined.network(X)
        error = float((wanted - found).abs().max() / wanted.abs().max().clamp_min(1e-300))
        return Hypothesis.of(_JOINABLE, error <= TRUSTED, f"f(σ(g)) differs from f(g) by {error:.2g} on the samples")
    if (f.dims[0], f.dims[-1], f.depth, f.slope) != (g.dims[0], g.dims[-1], g.depth, g.slope) or f.depth < 2:
        return Hypothesis.of(_JOINABLE, False, shapes)
    overlap = float(f.bs[-1] @ g.bs[-1]) if f.bs and g.bs else 0.0
    return Hypothesis.of(_JOINABLE, overlap <= 0.0, f"⟨b_L^f, b_L^g⟩ = {overlap:.3g}")


def _linear_sides(pair: Pair) -> tuple[Hypothesis, tuple[float, float] | None, tuple[float, float] | None]:
    """Both sides of R and of kL + R1, exactly."""
    whole, f, g = linear_values(pair)
    if whole is None or f is None or g is None:
        return Hypothesis.of(_RANKS, None, "singular values at the level of rounding"), None, None
    met = len(whole) == len(f) == len(g) if pair.join == "f∘g" else len(whole) == len(f) + len(g)
    rank = Hypothesis.of(_RANKS, met, f"ranks {len(f)} and {len(g)}, joined {len(whole)}")
    L = pair.f.depth + pair.g.depth if pair.join == "f∘g" else pair.f.depth
    parts = ((f, pair.f.depth), (g, pair.g.depth))
    costs = diagonal_cost(whole, L), sum(diagonal_cost(s, depth) for s, depth in parts)
    terms = diagonal_expansion(whole).at(L, 2), sum(diagonal_expansion(s).at(depth, 2) for s, depth in parts)
    return rank, costs, terms


def _bounds(pair: Pair, X: Tensor) -> tuple[tuple[float, float], list[tuple[float, float]]]:
    """The norm of the network put together, and lower bounds L·Σs^{2/L} of its function, against ‖θ_f‖² + ‖θ_g‖²."""
    joined = pair.joined.network
    sums = points_of(Subject(joined, X)).powers(2 / joined.depth).sum(1)
    both = parameter_norms(pair.f).total + parameter_norms(pair.g).total
    return (parameter_norms(joined).total, both), [(joined.depth * float(value), both) for value in sums]


# ---- Functions whose representation cost is known: linear maps (bottleneck2023 §3, Thm 3(3))


#: Samples up to which an isometry into an orthant is searched for, and among which two at more than 90° are.
SEARCHED, PAIRED = 40, 2000

#: Width up to which networks of hundreds of layers are written down, s_1/s_k and |log s| up to which the terms
#: (log s/L)^j of their norms fall fast enough for a fit.
WIDEST, SPREAD, LARGEST_LOG = 200, 50.0, 6.0


@torch.no_grad()
def linear_map(subject: Subject) -> tuple[Tensor | None, Hypothesis]:
    """The matrix of f on the span of the samples, if f is linear there."""
    name = "f linear on Ω"
    if is_linear(subject.net):
        return matrix_product(subject.net)[0], Hypothesis.of(name, True, "a linear network")
    X, outputs = subject.X, subject.trace().outputs
    U, s, Vh = svd(X)
    kept = s > rank_tolerance(s, (len(X), X.shape[1]))
    if len(X) <= int(kept.sum()):
        return None, Hypothesis.of(name, None, f"{len(X)} samples span {int(kept.sum())} dimensions: too few to tell")
    A = ((Vh[kept].mT / s[kept]) @ (U[:, kept].mT @ outputs)).mT
    left = float((X @ A.mT - outputs).norm() / outputs.norm().clamp_min(1e-300))
    return A if left <= 1e-9 else None, Hypothesis.of(name, left <= 1e-9, f"no matrix gives a share {left:.2g} of f")


@dataclass(frozen=True, eq=False)
class Embedding:
    """An isometry of the span of some points into an orthant: O (m, d), with Oz ≥ 0 for each of them.

    ``exists`` is None where none was found and none excluded.
    """

    O: Tensor | None
    exists: bool | None
    found: str


def into_an_orthant(Z: Tensor) -> Embedding:
    """Are the rows of Z (N, d) completely positive?"""
    _, s, Vh = svd(Z)
    Q = Vh[s > rank_tolerance(s, (len(Z), Z.shape[1]))]
    if float(Z.min()) >= -1e-12 * float(Z.abs().max()):
        return Embedding(Q.mT @ Q, True, "in the orthant as they are")
    K = Z[:PAIRED] @ Z[:PAIRED].mT
    if float(K.min()) < -1e-12 * float(K.diagonal().max()):
        return Embedding(None, False, "two of them at more than 90°")
    if len(Z) > SEARCHED:
        return Embedding(None, None, f"more than {SEARCHED} samples: not searched")
    answer = is_completely_positive(K, restarts=3)
    if answer.factor is None:
        return Embedding(None, False if answer.verdict == "no" else None, answer.reason)
    # The nearest exact isometry: the factor holds to 1e-9 only.
    left, _, right = torch.linalg.svd(answer.factor @ torch.linalg.pinv(Z.mT) @ Q.mT, full_matrices=False)
    return Embedding(left @ right @ Q, True, answer.reason)


_POSITIVE = "PΩ and AΩ completely positive, k-dimensional"


def positive_map() -> Subject:
    """A ReLU network of a map with non-negative entries on the positive orthant."""
    A = torch.tensor([[1.6, 0.3, 0.0], [0.2, 0.7, 0.1], [0.0, 0.4, 1.2], [0.5, 0.0, 0.3]], dtype=torch.float64)
    return Subject(positive_linear_network(A, 6).network, gaussian_inputs(30, 3, 41).abs())


@claim(
    "C-bn-3",
    "R1(x ↦ Ax; Ω) = 2 log|A|₊, and R2(x ↦ Ax; Ω) = ½‖log₊ AᵀA‖² where AᵖΩ is completely positive for every p",
    paper="bottleneck2023",
    where="§3, Thm 3(3), Prop. 4(3)",
    hypotheses=("f linear on Ω", _POSITIVE),
    sample=positive_map,
    relation="≈",
    erratum="Thm 3(3) prints the path of kernels reversed; it must start at the input, (1−ℓ/L)P + (ℓ/L)AᵀA.",
    rate=True,
)
def costs_of_linear_maps(check: Check, subject: Subject) -> None:
    """R1 = 2 log|A|_+ (and R2 = ½‖log_+AᵀA‖²), fitted over depths to the norms of networks that compute Ax on Ω.

    No network has less (C-bn-1). The networks are the completely positive path for R1, and for R2 the least linear
    network, which σ leaves alone where each right singular vector has one sign on Ω. Slope 1 has no hypothesis.
    """
    A, linear = linear_map(subject)
    check.add(linear)
    if A is None:
        check.not_applicable()
    if max(A.shape) > WIDEST:
        why = f"wider than {WIDEST}: networks of {DEPTHS[-1]} layers are not written down"
        check.not_applicable(why, cause="numerical")
    _, s, Vh = svd(A)
    values = nonzero_values(A, float(rank_tolerance(s, (len(A), A.shape[1]))))
    k = 0 if values is None else len(values)
    if values is None or k == 0:
        check.assume(_POSITIVE, None, "rank 0, or not clear")
        check.not_applicable()
    positive, families = _families(subject, A, Vh[:k])
    check.add(positive)
    check.require()
    if float(values[0]) > SPREAD * float(values[-1]) or float(values.log().abs().max()) > LARGEST_LOG:
        why = f"singular values from {float(values[-1]):.3g} to {float(values[0]):.3g}: no fit up to depth {DEPTHS[-1]}"
        check.not_applicable(why, cause="numerical")
    exact = diagonal_expansion(values)
    fitted: list[tuple[Estimate, float, str]] = []
    for name, build, with_R2 in families:
        if not _computes(build(DEPTHS[0]), A, subject.X):
            check.not_applicable(f"the {name} does not compute Ax", cause="numerical")
        norms = [parameter_norms(build(depth)).total for depth in DEPTHS]
        fit = estimate_costs(DEPTHS, norms, confidence=CONFIDENCE)
        fitted += [(fit.R1, exact.R1, f"R1, {name}"), (fit.R2, exact.R2, f"R2, {name}")][: 2 if with_R2 else 1]
    sizes = [max(abs(found.value), abs(wanted), 1e-300) for found, wanted, _ in fitted]
    check.compare(
        [found.value for found, _, _ in fitted],
        "≈",
        [wanted for _, wanted, _ in fitted],
        # Whether each interval has the wanted number in it.
        tolerance=[((one.high - one.low) / 2 + TRUSTED) / size for (one, _, _), size in zip(fitted, sizes)],
        where=[name for _, _, name in fitted],
        details=lambda i: {"fitted, low, high": [fitted[i][0].value, fitted[i][0].low, fitted[i][0].high]},
    )


def _families(
    subject: Subject, A: Tensor, Vh: Tensor
) -> tuple[Hypothesis, list[tuple[str, Callable[[int], FullyConnected], bool]]]:
    """Networks of Ax by depth: name, builder, whether they attain R2."""
    slope = subject.net.slope
    if slope == 1.0:
        build = [("linear", lambda depth: linear_network(A, depth).network, True)]
        return Hypothesis.of(_POSITIVE, True, "not needed in linear networks"), build
    inputs = subject.X @ Vh.mT @ Vh
    if int(torch.linalg.matrix_rank(inputs)) < len(Vh):
        return Hypothesis.of(_POSITIVE, False, f"samples do not span {len(Vh)} dimensions"), []
    before, after = into_an_orthant(inputs), into_an_orthant(subject.X @ A.mT)
    if before.O is None or after.O is None:
        known = False if False in (before.exists, after.exists) else None
        return Hypothesis.of(_POSITIVE, known, f"PΩ: {before.found}; AΩ: {after.found}"), []

    # The path goes straight in kernels, which suits singular values around 1; all layers share the rest.
    size = float(torch.linalg.svdvals(A)[: len(Vh)].log().mean().exp())

    def path(depth: int) -> FullyConnected:
        made = positive_linear_network(A / size, depth, O_in=before.O, O_out=after.O)
        return FullyConnected.from_weights([size ** (1 / depth) * W for W in made.network.Ws], slope=slope)

    families: list[tuple[str, Callable[[int], FullyConnected], bool]] = [("positive path", path, False)]
    coordinates = subject.X @ Vh.mT
    signs = coordinates.sum(0).sign()
    if float((coordinates * signs).min()) >= -1e-12 * float(coordinates.abs().max()):
        flip = signs.diag()

        def least(depth: int) -> FullyConnected:
            first, *middle, last = linear_network(A, depth).network.Ws
            return FullyConnected.from_weights([flip @ first, *middle, last @ flip], slope=slope)

        families.append(("least network", least, True))
    return Hypothesis.of(_POSITIVE, True, f"PΩ: {before.found}; AΩ: {after.found}"), families


@torch.no_grad()
def _computes(net: FullyConnected, A: Tensor, X: Tensor) -> bool:
    wanted = X @ A.mT
    return float((net(X) - wanted).norm()) <= 1e-6 * float(wanted.norm())


# ---- R2, the second correction: of compositions and sums, and its sign (bottleneck2023 §3.2)


#: Depths over which costs are fitted.
DEPTHS = (100, 150, 200, 300, 400, 600)

#: What a fit leaves is the next term of the expansion and no noise. At these depths it moves a coefficient by up to 13
#: standard errors, which this interval (Student's, with 3 degrees of freedom) covers.
CONFIDENCE = 0.9999


def matched_linear_maps() -> Subject:
    """Two linear maps of rank 3 that meet in the same three dimensions, without common singular vectors."""
    Q = torch.linalg.qr(gaussian_inputs(6, 3, 21)).Q
    f = FullyConnected.from_weights([gaussian_inputs(5, 3, 22) @ Q.mT], slope=1.0)
    g = FullyConnected.from_weights([Q @ gaussian_inputs(3, 4, 23)], slope=1.0)
    net = FullyConnected.from_weights([*g.Ws, *f.Ws], slope=1.0)
    return Subject(net, gaussian_inputs(20, 4, 24), known={"f": f, "g": g})


@claim(
    "C-bn-4",
    "√R2(f∘g) ≤ √R2(f) + √R2(g) where R0(f∘g) = R0(f) = R0(g) and R1(f∘g) = R1(f) + R1(g)",
    paper="bottleneck2023",
    where="Prop. 4(1) and Prop. 14(1)",
    hypotheses=("two functions", "linear networks", "R0 equal and R1 additive"),
    sample=matched_linear_maps,
    relation="≤",
)
def second_correction_of_compositions(check: Check, subject: Subject) -> None:
    """√R2(f∘g) ≤ √R2(f) + √R2(g), by R2 = ½‖log_+AᵀA‖²: for linear networks, of which alone R2 is known.

    Of ``known["f"]``, ``known["g"]``; of a linear network alone, cut in two.
    """
    pairs, given = function_pairs(subject, JOINS[:1])
    linear = [pair for pair in pairs if pair.linear and pair.f.dims[0] == pair.g.dims[-1]]
    places, said = [], "not looked at"
    for pair in linear:
        whole, f, g = (None if s is None else diagonal_expansion(s) for s in linear_values(pair))
        if whole is None or f is None or g is None:
            said = "singular values at the level of rounding"
            continue
        said = f"{pair.name}: R0 {whole.R0}, {f.R0}, {g.R0}; R1 {whole.R1:.6g} and {f.R1:.6g} + {g.R1:.6g}"
        if whole.R0 == f.R0 == g.R0 and _equal(whole.R1, f.R1 + g.R1):
            places.append((_root(whole.R2), _root(f.R2) + _root(g.R2), pair.name))
    check.add(given)
    wanted = "" if pairs else "known['f'], known['g']"
    check.assume("linear networks", bool(linear) if pairs else None, "R2 of others has no formula", supply=wanted)
    check.assume("R0 equal and R1 additive", bool(places) if linear else None, said)
    check.each(places, "≤", tolerance=TRUSTED)


def _equal(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=10 * TRUSTED, abs_tol=10 * TRUSTED)


def _root(R2: float) -> float:
    """√R2; what rounding leaves of isometries is 0."""
    return math.sqrt(R2) if R2 > TRUSTED**2 else 0.0


_FAMILY, _LIMIT, _ADDITIVE = "networks of growing depth", "a limiting representation", "R0 and R1 additive"


def orthogonal_linear_maps() -> Subject:
    """Two linear maps with orthogonal row spaces and orthogonal images, and their sum as the least linear network."""
    V, U = torch.linalg.qr(gaussian_inputs(6, 4, 31)).Q, torch.linalg.qr(gaussian_inputs(5, 4, 32)).Q
    A = U[:, :2] @ gaussian_inputs(2, 2, 33) @ V[:, :2].mT
    B = U[:, 2:] @ gaussian_inputs(2, 2, 34) @ V[:, 2:].mT
    f, g, whole = (linear_network(M, 4).network for M in (A, B, A + B))
    return Subject(whole, gaussian_inputs(20, 6, 35), known={"f": f, "g": g, "join": "f+g"})


@claim(
    "C-bn-14",
    "R2(f) ≥ 0 where the representations converge; R2(f+g) ≤ R2(f) + R2(g) where R0 and R1 add up",
    paper="bottleneck2023",
    where="Prop. 4 and Prop. 14",
    hypotheses=(_FAMILY, _LIMIT, _ADDITIVE),
    sample=orthogonal_linear_maps,
    relation="≤",
    rate=True,
)
def second_correction_of_sums(check: Check, subject: Subject) -> None:
    """0 ≤ R2(f), fitted over depths, and R2(f+g) ≤ R2(f) + R2(g) of linear maps.

    ``known["family"]`` is a list of networks of one function and of least norm, at five depths or more, for the first
    part; for a linear network it is known. The second part takes linear ``known["f"]`` and ``known["g"]``.
    """
    family = _family(subject)
    if family is None:
        check.not_applicable("needs networks of one function at five depths", supply="known['family']")
    depths, fit, (shallow, deep), made = family
    move = _movement(shallow, deep, subject.X)
    sums, additive = _sums(subject)
    check.assume(_FAMILY, True, f"depths {depths[0]} to {depths[-1]}")
    check.assume(_LIMIT, move <= 0.05, f"the kernel at half depth still moves by {move:.2g} of itself")
    check.add(additive)
    check.compare(
        0.0,
        "≤",
        fit.R2.high,
        tolerance=10 * TRUSTED,
        # That a number is not negative: the norms themselves are the measure of how negative it could have been.
        scale=abs(fit.R1.value) + abs(fit.R2.value) + 1.0,
        part="R2 ≥ 0",
        where="fitted over depths, upper end of its interval",
        details={"R2 fitted, low, high": [fit.R2.value, fit.R2.low, fit.R2.high]},
        assuming=(_FAMILY, _LIMIT),
        trivial=made,
    )
    if sums:
        check.compare(sums[0], "≤", sums[1], tolerance=10 * TRUSTED, part="R2 of the sum", assuming=(_ADDITIVE,))


def _family(
    subject: Subject,
) -> tuple[list[int], CostEstimate, tuple[FullyConnected, FullyConnected], str] | None:
    """Depths, costs fitted over them, two networks whose representations can be compared, and why it is trivial."""
    given, made = subject.family(Construction, type(subject.net)), ""
    if given is None and not is_linear(subject.net):
        given, made = deepened(subject.net), "by construction: identity layers were put behind the narrowest layer"
    if given is not None and len({one.depth for one in given}) >= 5:
        nets = sorted((bare_network(one) for one in given), key=lambda net: net.depth)
        depths, norms = [net.depth for net in nets], [parameter_norms(net).total for net in nets]
        return depths, estimate_costs(depths, norms, confidence=CONFIDENCE), (nets[-2], nets[-1]), made
    if given is not None or not is_linear(subject.net):
        return None
    A, error = matrix_product(subject.net)
    s = nonzero_values(A, error)
    if s is None or len(s) == 0:
        return None
    # The norms of these networks have a closed form; a few layers show that half depth is the same in all of them.
    fit = estimate_costs(DEPTHS, [diagonal_cost(s, depth) for depth in DEPTHS], confidence=CONFIDENCE)
    return list(DEPTHS), fit, (linear_network(A, 8).network, linear_network(A, 16).network), ""


@torch.no_grad()
def _movement(shallow: FullyConnected, deep: FullyConnected, X: Tensor) -> float:
    """‖K − K'‖/‖K'‖ of the kernels at half depth of two networks, on at most 200 samples."""
    one, other = (net.trace(X[:200]).Z_sigma(net.depth // 2) for net in (shallow, deep))
    K = other.mT @ other
    return float((one.mT @ one - K).norm() / K.norm().clamp_min(1e-300))


def _sums(subject: Subject) -> tuple[list[float], Hypothesis]:
    """R2(f+g) and R2(f) + R2(g), or nothing when no sum is asked for."""
    if "f" not in subject.known or "g" not in subject.known:
        return [], Hypothesis.of(_ADDITIVE, True, "no sum asked for: known['f'], known['g'] not given")
    pairs, _ = function_pairs(subject.replace(known={**subject.known, "join": "f+g"}))
    if not pairs or not pairs[0].linear:
        return [], Hypothesis.of(_ADDITIVE, None, "R2 is known of linear networks only")
    whole, f, g = (None if s is None else diagonal_expansion(s) for s in linear_values(pairs[0]))
    if whole is None or f is None or g is None:
        return [], Hypothesis.of(_ADDITIVE, None, "singular values at the level of rounding")
    met = whole.R0 == f.R0 + g.R0 and _equal(whole.R1, f.R1 + g.R1)
    said = f"R0 {whole.R0} and {f.R0} + {g.R0}, R1 {whole.R1:.6g} and {f.R1:.6g} + {g.R1:.6g}"
    return [whole.R2, f.R2 + g.R2], Hypothesis.of(_ADDITIVE, met, said)


# ---- Networks known to be of least norm, because they attain its lower bound: their cost splits at every layer


_LEAST = "network of least norm"


def least_linear_network() -> Subject:
    """The least linear network of a map of rank 3, depth 7."""
    A = gaussian_inputs(5, 3, 51) @ gaussian_inputs(3, 6, 52)
    return Subject(linear_network(A, 7).network, gaussian_inputs(20, 6, 53))


@claim(
    "C-bn-13",
    "R(f; L) = R(α̃_ℓ; ℓ) + R(σ(α̃_ℓ) → f; L−ℓ) at every layer ℓ of a network of least norm",
    paper="bottleneck2023",
    where="§3.3",
    hypotheses=("x off the kinks", _LEAST),
    sample=least_linear_network,
)
def cost_splits_at_layers(check: Check, subject: Subject) -> None:
    """R(f;L) = R(α̃_ℓ;ℓ) + R(σ(α̃_ℓ) → f;L−ℓ), where ‖θ‖² is known to be least, or is so among its rescalings.

    It is least where it attains L·Σs_i(Jf(x))^{2/L}, as linear minimisers do and others that act as one. The cost of
    each part lies between its own bound at x and its part of ‖θ‖²: the bounds are summed here. The second map is needed
    on the image of the first only, so that its Jacobian is Jf(x)·(D_ℓJα̃_ℓ(x))⁺. At a stationary point of cost +
    ridge·‖θ‖² the costs of the parts are those of their cheapest rescalings: :func:`_at_a_minimum`.

    ``known["Ws"]`` puts other weights in the place of the network's.
    """
    if subject.net.depth < 2:
        check.assume(_LEAST, False, "one layer")
        check.not_applicable()
    norms = parameter_norms(subject.net)
    L, total = len(norms.weights), norms.total
    # Equal layers without biases are needed for the bound, and cheap to see.
    if torch.allclose(norms.layers, norms.weights[0].expand(L), rtol=1e-6):
        found = points_of(subject, points=4)
        sums = found.powers(2 / L).sum(1)
        row = int(sums.argmax()) if len(sums) else 0
        if len(sums) and abs(total - L * float(sums[row])) <= TRUSTED * total:
            check.add(found.kink_hypothesis)
            check.assume(_LEAST, True, f"‖θ‖² = {total:.6g}, bound {L * float(sums[row]):.6g}")
            rhs = _split_costs(found, row, subject.known.get("Ws", found.trace.Ws))
            tolerance = rounding(subject.net) + TRUSTED + found.log_error
            check.compare(total, "=", rhs, tolerance=tolerance, where=lambda i: f"layer {i + 1}")
            return
    _at_a_minimum(check, subject, total)


def _at_a_minimum(check: Check, subject: Subject, total: float) -> None:
    """‖θ‖² beside the least norms, over rescalings of their neurons, of the first ℓ layers and of the others.

    A part with a cheaper rescaling would make the whole cheaper. Over the logarithms u of the scales ‖θ‖² is convex,
    its gradient 2δ with δ_k = a_k − b_k the squares into and out of a neuron, its Hessian 4D^½(1 − A)D^½ with
    D = a + b and A the squared weights between neurons over the square roots of their D. The drop to the minimum is at
    most −2⟨δ, u⟩, to first order in δ at most ‖D^{-½}δ‖²/λ_min(1 − A), of a part as of the whole. A residual r leaves
    |δ_k| ≤ g_k·√D_k + κ_k/(2·ridge) with Σg_k² ≤ 2r²‖θ‖², each weight having two ends: see C-rank-9.
    """
    check.assume("x off the kinks", True, "not needed: rescaling keeps kinks")
    certificate = subject.stationarity
    if certificate is None:
        check.assume(_LEAST, None, "not looked at", supply=TRAINING)
        check.not_applicable()
    said = f"stationary: residual {certificate.residual:.2g} of the ridge's force"
    check.assume(_LEAST, certificate.stationary, said if certificate.stationary else f"not {said}")
    check.require()
    net = subject.net
    trace = subject.trace()
    leak = torch.cat(pulls(subject, trace, certificate).leak) / (2 * float(subject.ridge or 0.0))
    granted = _left_by_rescaling(trace.Ws, trace.bs, certificate.residual * total**0.5, leak) / total
    if not granted <= SEEN:
        check.not_applicable(f"the residual leaves {granted:.2g} of ‖θ‖²", cause="numerical")
    Ws, bs = subject.known.get("Ws", trace.Ws), trace.bs
    sums = [
        sum(_least_rescaled(part, bs[place]) for part, place in ((Ws[:ell], slice(ell)), (Ws[ell:], slice(ell, None))))
        for ell in range(1, net.depth)
    ]
    check.compare(total, "=", sums, tolerance=rounding(net) + granted, where=lambda i: f"layer {i + 1}")


def _least_rescaled(Ws: Sequence[Tensor], bs: Sequence[Tensor]) -> float:
    """The least ‖θ‖² of a network over rescalings of its hidden neurons."""
    least = least_norm(Ws, bs, by="neuron", tolerance=1e-13)
    return sum(float(p.square().sum()) for p in (*least.Ws, *least.bs))


def _left_by_rescaling(Ws: Sequence[Tensor], bs: Sequence[Tensor], force: float, leak: Tensor) -> float:
    """(√2·force + ‖D^{-½}leak‖)²/λ_min(1 − A) over the hidden neurons that have weights: see :func:`_at_a_minimum`."""
    into = [W.square().sum(1) for W in Ws[:-1]]
    if bs:
        into = [a + b.square() for a, b in zip(into, bs)]
    D = torch.cat(into) + torch.cat([W.square().sum(0) for W in Ws[1:]])
    A, place = torch.zeros(len(D), len(D), dtype=D.dtype), 0
    for below, above in pairwise(into):
        middle = place + len(below)
        A[middle : middle + len(above), place:middle] = Ws[1].square()
        Ws, place = Ws[1:], middle
    alive = torch.finfo(D.dtype).eps * D.sum() < D
    root = D[alive].sqrt()
    A = (A + A.mT)[alive][:, alive] / root[:, None] / root
    least = float(torch.linalg.eigvalsh(torch.eye(len(root), dtype=D.dtype) - A)[0]) if len(root) else 1.0
    return (2**0.5 * force + float((leak[alive] / root).norm())) ** 2 / max(least, 1e-300)


def _split_costs(found: Points, row: int, Ws: tuple[Tensor, ...]) -> list[float]:
    """ℓ·Σs^{2/ℓ} of the lower part plus (L−ℓ)·Σs^{2/(L−ℓ)} of the upper one, for ℓ = 1 … L−1."""
    L, k, J = len(Ws), int(found.ranks[row]), found.J[row]
    inward = torch.eye(J.shape[1], dtype=torch.float64)
    costs = []
    for ell in range(1, L):
        below = Ws[ell - 1] @ inward
        inward = found.trace.derivative(ell)[row][:, None] * below
        # At the rank of Jf: what is beyond it in the layers between is rounding, or lost on f.
        U, s, Vh = torch.linalg.svd(inward, full_matrices=False)
        onward = (J @ Vh[:k].mT / s[:k]) @ U[:, :k].mT
        parts = ((torch.linalg.svdvals(M)[:k], n) for M, n in ((below, ell), (onward, L - ell)))
        costs.append(sum(n * float(s.pow(2 / n).sum()) for s, n in parts))
    return costs
