"""What claims share: points and segments of a network, minima, exponents, and networks that meet hypotheses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.stats import t as t_distribution
from torch import Tensor

from isthmus._checks import fail
from isthmus.claims._base import Check, Hypothesis, Subject
from isthmus.linalg import chunk_rows
from isthmus.measures import Stationarity, jacobian, jacobian_of_trace
from isthmus.networks import FullyConnected
from isthmus.objective import cost
from isthmus.trace import Trace, activate

#: Singular values of representations below this share of the largest are taken for residues of training.
CUT = 1e-7

#: Arguments of `verify` that claims about minimisers need.
TRAINING = "Y and ridge"


def bare_network(one: Any) -> Any:
    """The network of a construction; anything else as it is."""
    return getattr(one, "network", one)


def is_linear(net: FullyConnected) -> bool:
    """Whether the network is a product of matrices: slope 1, no biases."""
    return net.slope == 1.0 and not any(bool(b.any()) for b in net.bs)


#: The hypothesis that :func:`one_dimension` looks at.
ONE = "a layer of width 1, or a W_ℓ of rank 1"


@dataclass(frozen=True, eq=False)
class OneDimension:
    """A network that is h∘g with g of one dimension.

    ``net`` is the network, or that with a weight matrix of numerical rank 1 cut to rank 1; ``g`` gives the values of g
    from its trace.
    """

    net: FullyConnected
    g: Callable[[Trace], Tensor]
    said: str


@torch.no_grad()
def one_dimension(net: FullyConnected) -> OneDimension | None:
    """The network as h∘g through a layer of width 1, or through a weight matrix whose s_2 is below ``CUT`` of s_1."""
    narrow = next((ell for ell, width in enumerate(net.dims) if width == 1), None)
    if narrow is not None:
        layer = narrow - 1
        return OneDimension(
            net,
            lambda trace: trace.inputs[:, 0] if layer < 0 else trace.preactivations[layer][:, 0],
            f"layer {narrow} has width 1",
        )
    for ell, W in enumerate(net.Ws):
        if not _nearly_rank_one(W.detach().double()):
            continue
        U, s, Vh = torch.linalg.svd(W.detach().double(), full_matrices=False)
        if float(s[0]) > 0.0 and float(s[1]) <= CUT * float(s[0]):
            Ws = [M.detach().double() for M in net.Ws]
            Ws[ell] = s[0] * torch.outer(U[:, 0], Vh[0])
            biases = [b.detach().double() for b in net.bs]
            cut = FullyConnected.from_weights(Ws, biases or None, slope=net.slope, bias=net.bias)
            said = f"W_{ell + 1} cut to rank 1, s_2/s_1 = {float(s[1] / s[0]):.1g}"
            return OneDimension(cut.requires_grad_(False), partial(_along, ell, Vh[0]), said)
    return None


def _nearly_rank_one(W: Tensor) -> bool:
    """Whether one step of power iteration leaves little of W: cheap, where a decomposition of wide layers is not."""
    v = W.mT @ (W @ torch.randn(W.shape[1], dtype=W.dtype, generator=seeded(0)))
    v = v / v.norm().clamp_min(1e-300)
    return bool((W - torch.outer(W @ v, v)).norm() <= 1e-3 * W.norm())


def _along(ell: int, v: Tensor, trace: Trace) -> Tensor:
    return trace.activations[ell] @ v


def some_rows(X: Tensor, most: int) -> Tensor:
    """At most ``most`` indices of rows, evenly spaced."""
    return torch.linspace(0, len(X) - 1, min(len(X), most)).round().long().unique()


@dataclass(frozen=True)
class Exponent:
    """e of values ∝ sizes^e, with its confidence interval."""

    value: float
    low: float
    high: float

    @property
    def numbers(self) -> list[float]:
        """Value, lower and upper end: what a verdict's details show."""
        return [self.value, self.low, self.high]


def fit_exponent(
    sizes: Sequence[float], values: Sequence[float], *, finite_size: bool = False, confidence: float = 0.95
) -> Exponent:
    """Least squares of log value = e·log size + constant (+ a/size); the interval is Student's.

    Parameters
    ----------
    sizes, values : sequences of n > 2 positive numbers
        Repetitions of a size are allowed, and make the interval honest.
    finite_size : bool, default False
        Fit the term a/size too, by which a power law is approached. It needs 4 sizes and widens the interval.
    """
    x, y = np.asarray(sizes, dtype=np.float64), np.asarray(values, dtype=np.float64)
    least = 4 if finite_size else 3
    if len(x) != len(y) or len(np.unique(x)) < least or not (np.all(x > 0) and np.all(y > 0)):
        got = f"{len(x)} sizes and {len(y)} values"
        must = f"at least {least} different sizes, and positive values, are needed"
        fail("fit_exponent", must, got, "Pass more sizes.")
    columns = np.stack([np.log(x), np.ones_like(x), x.min() / x][: least - 1], axis=1)
    inverse = np.linalg.pinv(columns)
    fit = inverse @ np.log(y)
    freedom = len(x) - columns.shape[1]
    misfit = float(((np.log(y) - columns @ fit) ** 2).sum())
    error = math.sqrt(misfit / freedom * float(inverse[0] @ inverse[0]))
    reach = error * float(t_distribution.ppf(0.5 + confidence / 2.0, freedom))
    return Exponent(float(fit[0]), float(fit[0]) - reach, float(fit[0]) + reach)


# ---- Jacobians at a few points off the kinks, with what rounding leaves of their singular values


#: Points at which claims are evaluated, evenly spaced among the samples.
POINTS = 16

#: Bytes that the Jacobians at these points may take: fewer points in wide networks.
POINT_BYTES = 2**28

#: A pre-activation this near to 0, relative to the terms that it sums, is at a kink: f has no derivative there.
KINK = 1e-10

#: Singular values that rounding may have changed by more than this share are taken for 0.
TRUSTED = 1e-3


@dataclass(frozen=True, eq=False)
class Points:
    """A network at P points, none if every sample is at a kink.

    Attributes
    ----------
    index : Tensor (P,)
        Which samples they are.
    trace : Trace
        At these points, in float64.
    J : Tensor (P, d_out, d_in)
    s : Tensor (P, r)
        Singular values, decreasing; those that are rounding are 0.
    error : Tensor (P,)
        Bound on the error of each value.
    slope_hypothesis, kink_hypothesis : Hypothesis
    """

    index: Tensor
    trace: Trace
    J: Tensor
    s: Tensor
    error: Tensor
    slope_hypothesis: Hypothesis
    kink_hypothesis: Hypothesis

    @property
    def ranks(self) -> Tensor:
        """Rank of the Jacobian at each point, up to rounding."""
        return (self.s > 0).sum(1)

    def powers(self, exponent: float) -> Tensor:
        """s^exponent, (P, r), with 0 for what is rounding."""
        return self.s.pow(exponent).where(self.s > 0, torch.zeros_like(self.s))

    @property
    def log_products(self) -> Tensor:
        """log(s_1 … s_k) for k = 1, 2, …, (P, r); −∞ beyond the rank."""
        return self.s.log().cumsum(1)

    @property
    def log_error(self) -> float:
        """Bound on the error of 2 log(s_1 … s_k), at every point and for every k."""
        relative = (self.error[:, None] / self.s.clamp_min(1e-300)).where(self.s > 0, torch.zeros_like(self.s))
        return 2 * float(relative.sum(1).max()) if len(relative) else 0.0

    def at(self, rows: Tensor) -> Points:
        """These points alone."""
        fewer = {name: getattr(self, name)[rows] for name in ("index", "J", "s", "error")}
        return replace(self, trace=_some(self.trace, rows), **fewer)

    def name(self, row: int) -> str:
        """The sample of this row, in words."""
        return f"sample {int(self.index[row])}"


@torch.no_grad()
def off_kinks(trace: Trace) -> Tensor:
    """Samples near which the network is differentiable, because no neuron is at its kink, (N,) of bool."""
    off = torch.ones(trace.samples, dtype=torch.bool)
    for ell, (W, alpha, Z) in enumerate(zip(trace.Ws, trace.activations, trace.preactivations[:-1])):
        if trace.slope == 1.0:
            break
        constant = (trace.bias * trace.bs[ell]).abs() if trace.bs else Z.new_zeros(())
        terms = alpha.abs() @ W.abs().mT + constant
        # Off the kinks of earlier layers, neurons that are 0 stay so nearby: what sums only these is dead, at no kink.
        dead = (W == 0).all(1) & (constant == 0) if ell == 0 else terms == 0
        off &= ~((Z.abs() <= KINK * terms) & ~dead).any(1)
    return off


def points_of(subject: Subject, *, points: int = POINTS) -> Points:
    """Choose the points and differentiate there; none where the Jacobian or the bound on its error overflows.

    Once for a subject: many claims are about the same points, and Jacobians of wide networks are expensive.
    """
    if "points" not in subject.cache:
        subject.cache["points"] = _points_of(subject)
    found: Points = subject.cache["points"]
    return found if len(found.index) <= points else found.at(some_rows(found.index, points))


@torch.no_grad()
def _points_of(subject: Subject) -> Points:
    net = subject.net
    dims = (net.Ws[0].shape[1], *(W.shape[0] for W in net.Ws))
    # Three live copies of the widest intermediate product.
    most = chunk_rows(POINTS, 24.0 * min(dims[0], dims[-1]) * max(dims), POINT_BYTES)
    candidates = some_rows(subject.X, 4 * most)
    whole = subject.trace(candidates)
    # The trace is cached: let it share the network's weights where its copies equal them.
    own = zip((W.detach() for W in net.Ws), whole.Ws)
    whole = replace(whole, Ws=tuple(W if W.dtype == V.dtype and torch.equal(W, V) else V for W, V in own))
    off = off_kinks(whole).nonzero()[:, 0]
    rows = off[some_rows(off, most)]
    # |δJ| ≲ eps · n · L · Π‖W_ℓ‖_op, by the usual bound for a product.
    eps = torch.finfo(torch.float64).eps
    norms = torch.stack([torch.linalg.matrix_norm(W.double(), 2) for W in net.Ws])
    error = eps * max(dims) * len(net.Ws) * norms.prod()
    J = jacobian_of_trace(_some(whole, rows))
    finite = J.isfinite().all(2).all(1) & error.isfinite()
    rows, J = rows[finite], J[finite]
    said = f"{len(off)} of {len(candidates)} samples are" if bool(finite.all()) else "Jacobians overflow"
    kinks = Hypothesis.of("x off the kinks", None if len(finite) > len(rows) == 0 else len(rows) > 0, said)
    slope = Hypothesis.of("|slope| ≤ 1", abs(net.slope) <= 1.0, f"slope {net.slope:g}")
    s = torch.linalg.svdvals(J)
    s = torch.where(s * TRUSTED > error, s, torch.zeros_like(s))
    return Points(candidates[rows], _some(whole, rows), J, s, error.expand(len(s)), slope, kinks)


def _some(trace: Trace, rows: Tensor) -> Trace:
    """The trace of these samples, which may be none."""
    preactivations, activations = ([A[rows] for A in layers] for layers in (trace.preactivations, trace.activations))
    return replace(trace, preactivations=tuple(preactivations), activations=tuple(activations))


# ---- Functions along segments: the kinks of a network, where it is steepest, and the jumps of what is not continuous


#: Linear pieces shorter than this share of a segment are rounding.
SHORTEST = 1e-12

#: Memory for the values at all kinks of a segment.
SEGMENT_BYTES = 2**24

#: Pieces whose whole Jacobian is looked at, the steepest along the segment.
PIECES = 8


@torch.no_grad()
def kinks_on_segment(net: FullyConnected, start: Tensor, end: Tensor) -> Tensor:
    """Increasing t ∈ [0, 1], with both ends, between which t ↦ f(start + t(end − start)) is linear, (m,).

    Layer by layer: between two kinks every pre-activation is linear in t, so its zero is known exactly.
    """
    t = torch.tensor([0.0, 1.0], dtype=torch.float64)
    values = torch.stack([start, end]).double()
    for index, W in enumerate(net.Ws[:-1] if net.slope != 1.0 else ()):
        Z = values @ W.double().mT
        if net.bs:
            Z = Z + net.bias * net.bs[index].double()
        left, right = Z[:-1], Z[1:]
        crossing = left * right < 0
        piece = crossing.nonzero()[:, 0]
        share = left[crossing] / (left[crossing] - right[crossing])
        knots = torch.cat([t, t[piece] + share * t.diff()[piece]]).unique()
        if 8.0 * len(knots) * max(net.dims) > SEGMENT_BYTES:
            got = f"{len(knots)} at layer {index + 1}"
            fail("kinks_on_segment", "the segment must have fewer kinks", got, "Choose points nearer to one another.")
        at = (torch.searchsorted(t, knots, right=True) - 1).clamp(0, len(t) - 2)
        weight = ((knots - t[at]) / t.diff()[at])[:, None]
        values, t = activate(Z[at] + weight * (Z[at + 1] - Z[at]), net.slope), knots
    return t


@torch.no_grad()
def steepest_on_segment(net: FullyConnected, start: Tensor, end: Tensor) -> tuple[float, float]:
    """Largest ‖Jf(x)‖_op found at points x of the segment, and the length of the segment's image under f."""
    t = kinks_on_segment(net, start, end)
    rows = chunk_rows(len(t), 24.0 * sum(net.dims))
    outputs = torch.cat([net.trace(start + part[:, None] * (end - start)).outputs for part in t.split(rows)])
    steps = outputs.diff(dim=0).norm(dim=1)
    speeds = torch.where(t.diff() > SHORTEST, steps / t.diff(), torch.zeros_like(steps))
    fastest = speeds.topk(min(PIECES, len(speeds))).indices
    middles = (t[fastest] + t[fastest + 1]) / 2.0
    J = jacobian(net, start + middles[:, None] * (end - start))
    return float(torch.linalg.matrix_norm(J, 2).max()), float(steps.sum())


@torch.no_grad()
def largest_jump(f: Callable[[Tensor], Tensor], A: Tensor, B: Tensor, *, halvings: int = 44) -> float:
    """What is left of max‖f(b) − f(a)‖ when segments are halved, always keeping the half with the larger change.

    0 up to rounding for a Lipschitz function; the height of a jump otherwise, if a segment crosses it.

    Parameters
    ----------
    f : callable, (N, d_in) → (N, d_out)
    A, B : Tensor (N, d_in)
        Ends of N segments.
    """
    at_a, at_b = f(A), f(B)
    for _ in range(halvings):
        middle = (A + B) / 2.0
        value = f(middle)
        first = ((value - at_a).norm(dim=1) > (at_b - value).norm(dim=1))[:, None]
        A, at_a = torch.where(first, A, middle), torch.where(first, at_a, value)
        B, at_b = torch.where(first, middle, B), torch.where(first, value, at_b)
    return float((at_b - at_a).norm(dim=1).max())


# ---- Is a network at a minimum of cost + ridge·‖θ‖²?


def at_a_minimum(check: Check, subject: Subject) -> Stationarity | None:
    """The hypotheses of claims about minimisers; gives the certificate where there is one."""
    check.add(ridge_given(subject))
    found = subject.stationarity
    if found is None:
        check.assume("stationary point", None, "not looked at", supply=TRAINING)
        return None
    said = f"residual {found.residual:.2g} of the ridge's force, {len(found.multipliers)} entries at kinks"
    check.assume("stationary point", found.stationary, said)
    return found


@dataclass(frozen=True, eq=False)
class Pulls:
    """Gradients of the cost with the derivatives at kinks of a certificate, samples as columns.

    Attributes
    ----------
    Z : list of Tensor (n_ℓ, N)
        ∂C/∂Z_ℓ, ℓ = 1 … L.
    activation : list of Tensor (n_ℓ, N)
        ∂C/∂α_ℓ, ℓ = 1 … L−1.
    leak : list of Tensor (n_ℓ,)
        κ_ℓ = Σ|∂C/∂α_ℓ|·|Sz − σ(z)| over samples, ℓ = 1 … L−1: what the slopes S at entries next to kinks take from the
        homogeneity of each neuron.
    """

    Z: list[Tensor]
    activation: list[Tensor]
    leak: list[Tensor]


def pulls(subject: Subject, trace: Trace, certificate: Stationarity) -> Pulls:
    """Backpropagation through a fully connected network with the slopes S = a + (1 − a)D of ``certificate``."""
    assert subject.Y is not None
    outputs = trace.outputs.detach().requires_grad_()
    with torch.enable_grad():
        (g,) = torch.autograd.grad(cost(outputs, subject.Y, subject.loss), outputs)
    back, activations, leak = [g.mT], list[Tensor](), list[Tensor]()
    for ell in range(trace.depth - 1, 0, -1):
        G, Z = trace.Ws[ell].mT @ back[0], trace.Z(ell)
        if trace.slope == 1.0:
            S = torch.ones_like(Z)
        else:
            S = trace.slope + (1.0 - trace.slope) * certificate.derivatives[ell - 1].mT
        leak.insert(0, (G * (S * Z - activate(Z, trace.slope))).abs().sum(1))
        activations.insert(0, G)
        back.insert(0, S * G)
    return Pulls(back, activations, leak)


def ridge_given(subject: Subject) -> Hypothesis:
    """Whether a ridge and targets are given: without them there is no loss whose minimum could be meant."""
    given = bool(subject.ridge) and subject.Y is not None
    return Hypothesis.of("ridge > 0 given", given or None, "", supply="" if given else TRAINING)


def least_squares_minimum() -> Subject:
    """A linear network of two layers at the global minimum, in closed form.

    With X of orthogonal columns XᵀX = N, cost + ridge·‖θ‖² over A = W_2W_1 is ‖A − M‖² + 2·ridge·‖A‖_*, M the
    least-squares map: its singular values are soft-thresholded by ridge, and A's square roots are shared by the layers.
    """
    N, d, ridge = 40, 4, 0.05
    X = torch.linalg.qr(gaussian_inputs(N, d, 5)).Q * N**0.5
    M = gaussian_inputs(3, d, 6)
    U, s, Vh = torch.linalg.svd(M, full_matrices=False)
    root = (s - ridge).clamp_min(0).sqrt()
    net = FullyConnected.from_weights([root[:, None] * Vh, U * root], None, slope=1.0)
    return Subject(net, X, X @ M.mT, ridge)


# ---- Networks that meet the hypotheses of the claims: random, balanced, or written down


def seeded(seed: int) -> torch.Generator:
    """A generator with this seed."""
    return torch.Generator().manual_seed(seed)


def gaussian_inputs(samples: int, columns: int, seed: int) -> Tensor:
    """Standard normal rows, float64."""
    return torch.randn(samples, columns, dtype=torch.float64, generator=seeded(seed))


def uniform_inputs(samples: int, columns: int, seed: int) -> Tensor:
    """Rows uniform in [0, 1]^columns, float64."""
    return torch.rand(samples, columns, dtype=torch.float64, generator=seeded(seed))


def random_subject(
    dims: list[int], *, slope: float = 0.0, bias: float = 1.0, scale: float = 1.0, samples: int = 32, seed: int = 0
) -> Subject:
    """A random network with biases and standard normal inputs."""
    source = seeded(seed)
    net = FullyConnected(dims, slope, bias, init_scale=scale, dtype=torch.float64, generator=source)
    if net.bs:
        for b in net.biases:
            b.data = 0.3 * torch.randn(b.shape, dtype=torch.float64, generator=source)
    return Subject(net, gaussian_inputs(samples, dims[0], seed + 1))


def relu_random_net() -> Subject:
    """ReLU, depth 5, biases."""
    return random_subject([6, 12, 12, 12, 12, 5], seed=1)


def leaky_random_net() -> Subject:
    """Slope 0.3, depth 5, biases."""
    return random_subject([6, 12, 12, 12, 12, 5], slope=0.3, seed=2)
