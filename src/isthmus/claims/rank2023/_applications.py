"""What a rank means for other things: kernel regression, class boundaries, autoencoders, and two notions apart."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from isthmus.claims._base import ABSENT, Check, Subject, claim, rounding
from isthmus.claims._evidence import (
    ONE,
    Points,
    gaussian_inputs,
    largest_jump,
    off_kinks,
    one_dimension,
    points_of,
    seeded,
    some_rows,
    uniform_inputs,
)
from isthmus.constructions import (
    interpolant_1d,
    three_part,
)
from isthmus.linalg import numerical_rank
from isthmus.measures import jacobian
from isthmus.measures._denoising import projection_defect, tangent_defect
from isthmus.measures._topology import tripoints
from isthmus.networks import FullyConnected
from isthmus.networks._kernel_ridge import KERNELS, KernelRidge

#: Samples at most that the kernel is fitted to, and points at which its Jacobian is taken.
KERNEL_SAMPLES, KERNEL_POINTS = 200, 8

#: Relative error of the kernel's coefficients above which K is not invertible for our purposes.
LEAST_DIGITS = 1e-6

#: Share of the singular value that noise alone would give the Jacobian, above which rounding is not clearly below it.
CLEAR = 1e-2

#: Cells along each axis of the first picture of a classifier.
RESOLUTION = 96

#: How far a trained autoencoder may be from the identity on its data, and its rank from k; the tolerance follows, and
#: above the second share of ‖J‖ nothing is judged.
NEAR, JUDGED = 0.05, 0.1

#: Share of the least direction of a plane by which the nearest samples may be off it.
FLAT = 0.02

#: What is left of a change when a segment is halved to nothing, relative to the values: more is a jump.
JUMP = 1e-6

#: Lines along each axis that are searched for jumps of a function.
LINES = 32

#: Step to either side of a sample, and relative change of the Jacobian over it, above which it is at a kink.
SIDESTEP, BENT = 1e-7, 1e-4


def noisy_curve_task() -> Subject:
    """A task of rank 1 from ℝ⁵ to ℝ⁴ with noise; the network is not looked at."""
    X = gaussian_inputs(40, 5, 1)
    t = X[:, :1]
    Y = torch.cat([t, t.sin(), t.cos(), t.abs()], 1) + 0.05 * gaussian_inputs(40, 4, 2)
    return Subject(FullyConnected([5, 4, 4], dtype=torch.float64, generator=seeded(0)), X, Y, known={"noise": 0.05})


@claim(
    "C-rank-10",
    "Kernel regression with a radial kernel has Rank Jf(x) = min{Rank(X−x), Rank Y}, whatever the rank of the task",
    paper="rank2023",
    where="App. D, 'Rank of kernel regression'",
    hypotheses=("generic Y", "K invertible", "x not in X", "k' ≠ 0"),
    sample=noisy_curve_task,
)
def kernels_see_every_dimension(check: Check, subject: Subject) -> None:
    """Rank Jf(x) = min{Rank(X−x), Rank Y} half-way between samples, for the interpolant of a radial kernel.

    Of the subject only X and Y count. Y is generic when it has noise of full support, of standard deviation
    ``known["noise"]``; ``known["kernel"]`` and ``known["points"]`` choose a kernel (Laplace) and other points. Points
    at which rounding would hide what that noise makes of Jf are left out.
    """
    known, Y = subject.known, subject.Y
    if Y is None or Y.ndim != 2 or "noise" not in known or len(subject.X) < 2:
        wanted = "Y, known['noise']" if Y is None else "known['noise']"
        check.not_applicable("needs targets and the standard deviation of their noise", supply=wanted)
    rows = some_rows(subject.X, KERNEL_SAMPLES)
    X, Y = subject.X[rows], Y[rows]
    model = KernelRidge(known.get("kernel", "laplace")).fit(X, Y)
    points = known.get("points", ((X[:-1] + X[1:]) / 2)[:KERNEL_POINTS])
    distances = torch.cdist(points, X, compute_mode="donot_use_mm_for_euclid_dist")
    pull = KERNELS[model.kernel][1](distances / model.length_)
    nearest = float(distances.min())
    # The coefficients are known to eps/rcond, and J is a sum in which terms of their size may cancel.
    unit = max(1e-12, torch.finfo(torch.float64).eps * len(X) / max(model.rcond_, 1e-300))
    solvable = model.state_ == "solved" and unit <= LEAST_DIGITS
    check.assume("generic Y", known["noise"] > 0, f"noise {known['noise']:g}")
    check.assume("K invertible", solvable, f"{model.state_}, rcond {model.rcond_:.2g}")
    check.assume("x not in X", nearest > 0, f"nearest {nearest:.3g}")
    check.assume("k' ≠ 0", bool((pull * distances != 0).all()) or nearest == 0.0)
    check.require()
    s = torch.linalg.svdvals(model.jacobian(points))
    terms = (model.coefficients_.norm(dim=1) * pull.abs() * distances).sum(1, keepdim=True) / model.length_**2
    expected = torch.minimum(numerical_rank(X - points[:, None]), numerical_rank(Y))
    clear = (unit * terms[:, 0] <= CLEAR * known["noise"] * _response(model, X, points, expected)).nonzero()[:, 0]
    if len(clear) == 0:
        check.not_applicable("rounding is as large as what the noise makes of Jf", cause="numerical")
    ranks = (s > unit * terms).sum(1)
    check.compare(
        ranks[clear],
        "=",
        expected[clear],
        tolerance=1e-12,
        trivial=ABSENT,
        where=lambda i: f"point {int(clear[i])}",
        details={"least and largest singular value": [float(s.min()), float(s.max())]},
    )


def _response(model: KernelRidge, X: Tensor, points: Tensor, ranks: Tensor) -> Tensor:
    """s_r of K⁻¹A at each point, with Jf = YᵀK⁻¹A: noise of Y of size 1 gives Jf an r-th value of about that, (P,)."""
    moves = KernelRidge(model.kernel, length=model.length_).fit(X, torch.eye(len(X), dtype=torch.float64))
    s = torch.linalg.svdvals(moves.jacobian(points))
    return s.gather(1, (ranks - 1).clamp_min(0)[:, None])[:, 0]


def curved_stripes() -> Subject:
    """Four classes in the plane separated by one bent coordinate g: h∘g with scores of each class in turn."""
    g = FullyConnected([2, 6, 1], dtype=torch.float64, generator=seeded(5))
    X = 4 * uniform_inputs(200, 2, 2) - 2
    with torch.no_grad():
        values = g(X)[:, 0]
    low, high = float(values.min()), float(values.max())
    peaks = torch.linspace(low, high, 4, dtype=torch.float64)
    h = interpolant_1d(peaks, torch.eye(4, dtype=torch.float64))
    labels = (values[:, None] - peaks).abs().argmin(1)
    return Subject(three_part(g, h, 7, shift="least", X=X).network, X, labels, loss="cross_entropy")


@claim(
    "C-rank-11",
    "A classifier f = h∘g of bottleneck rank 1 has no tripoints: no point borders three classes",
    paper="rank2023",
    where="§5, 'Multiclass classification'",
    hypotheses=("inputs in the plane", "three classes", ONE, "partition resolved"),
    sample=curved_stripes,
)
def stripes_do_not_meet(check: Check, subject: Subject) -> None:
    """No tripoints in the box of the samples: g, up to a layer or matrix of rank 1, is continuous, as networks are.

    ``known["classifier"]`` is looked at in place of the network.
    """
    net, X, through = subject.net, subject.X, one_dimension(subject.net)
    check.assume("inputs in the plane", net.dims[0] == 2, f"{net.dims[0]} inputs")
    check.assume("three classes", net.dims[-1] >= 3, f"{net.dims[-1]} scores")
    check.assume(ONE, through is not None, through.said if through else f"narrowest {min(net.dims)}")
    if check.unmet or through is None:
        check.not_applicable()
    low, high = X.amin(0), X.amax(0)
    if bool((low >= high).any()):
        check.not_applicable("the samples span no box", cause="network")
    box = torch.stack([low, high], 1).tolist()
    found = tripoints(subject.known.get("classifier", through.net), box, points=RESOLUTION)
    seen = f"{len(found.classes)} classes, {found.state}"
    resolved = found.state == "computed" or (found.state == "unresolved" and len(found.tripoints) > 0)
    check.assume("partition resolved", resolved or None, seen)
    if len(found.classes) < 3:
        check.not_applicable(f"{seen}: three could not meet", cause="network")
    place = f", one near {[round(v, 4) for v in found.tripoints[0].tolist()]}" if len(found.tripoints) else ""
    check.compare(
        float(len(found.tripoints)),
        "=",
        0.0,
        tolerance=0.0,
        scale=1.0,
        where=seen + place,
        details={"classes that touch, pairs": [float(found.adjacency.sum()) / 2]},
    )


def two_dimensional_autoencoder() -> Subject:
    """f(x) = (x_1, φ(x_1), x_3, ψ(x_3)) in ℝ⁴: the identity on a bent surface, an oblique projection near it."""
    knots = torch.tensor([0.0, 0.3, 0.5, 1.0], dtype=torch.float64)
    heights = torch.tensor([[0.0, 0.6, 0.1, 0.9], [0.5, 0.2, 0.8, 0.4]], dtype=torch.float64)
    parts = [interpolant_1d(knots, torch.stack([knots, y], 1)).network for y in heights]
    read = torch.zeros(2, 4, dtype=torch.float64)
    read[0, 0] = read[1, 2] = 1.0
    g = FullyConnected.from_weights([read])
    Ws = [torch.block_diag(*(part.Ws[ell].detach() for part in parts)) for ell in range(2)]
    bs = [torch.cat([part.bs[ell].detach() for part in parts]) for ell in range(2)]
    z = uniform_inputs(40, 2, 4)
    X, tangents = torch.zeros(40, 4, dtype=torch.float64), torch.zeros(40, 4, 2, dtype=torch.float64)
    for i, y in enumerate(heights):
        piece = torch.searchsorted(knots, z[:, i].contiguous()) - 1
        slope = y.diff() / knots.diff()
        X[:, 2 * i], X[:, 2 * i + 1] = z[:, i], y[piece] + slope[piece] * (z[:, i] - knots[piece])
        tangents[:, 2 * i, i], tangents[:, 2 * i + 1, i] = 1.0, slope[piece]
    net = three_part(g, FullyConnected.from_weights(Ws, bs), 8).network
    return Subject(net, X, X, known={"tangents": tangents})


@claim(
    "C-rank-12",
    "An autoencoder of rank k that is the identity on a k-dimensional manifold has J² = J with Im J the tangent space",
    paper="rank2023",
    where="§5, 'Autoencoders'",
    hypotheses=("x off the kinks", "f = id on the manifold", "Rank Jf = k"),
    sample=two_dimensional_autoencoder,
)
def autoencoders_project(check: Check, subject: Subject) -> None:
    """‖J² − J‖ = 0 and ‖(1 − P_T)J‖ = 0: a projection onto the tangent space T, oblique or not.

    ``known["tangents"]`` (N, d, k) has a basis of the tangent space at each sample; unless given it is that of the
    nearest samples, where these lie in a plane, with k the number of singular values of Jf that are not small, or
    ``known["k"]``. The identity is
    checked in values, f(x) = x, and along the manifold, JT = T. What these and the singular values beyond k leave, the
    tolerance of each sample grants. With J_k the leading part, R = J − J_k and E = JT − T, J_k = (J_kT)P for a P with
    PT = 1, hence J_k² − J_k = J_k(E − RT)P and ‖P‖ ≤ ‖J‖/(1 − ε), ε = ‖E‖ + ‖R‖: ‖J² − J‖ is at most
    ‖J‖²ε/(1 − ε) + (1 + 2‖J‖ + ‖R‖)‖R‖, and ‖(1 − P_T)J‖ at most ‖J‖ε/(1 − ε) + ‖R‖. Samples at which that is more than
    a tenth of ‖J‖ are not judged.
    """
    net = subject.net
    if net.dims[0] != net.dims[-1]:
        check.not_applicable(f"needs an autoencoder: {net.dims[0]} inputs, {net.dims[-1]} outputs", cause="network")
    found, T, values = on_a_manifold(check, subject, "f = id on the manifold")
    check.add(found.kink_hypothesis)
    k, J, s = T.shape[-1], found.J, found.s
    size = J.flatten(1).norm(dim=1)
    along = tangent_defect(J, T)
    beyond = s[:, k:].norm(dim=1)
    off_identity, rest = float(torch.maximum(values, along).max()), float(beyond.max())
    least = float(s[:, k - 1].min())
    said = f"values {float(values.max()):.2g}, JT {float(along.max()):.2g}"
    check.assume("f = id on the manifold", off_identity <= NEAR, said)
    check.assume("Rank Jf = k", rest <= NEAR < least, f"k = {k}, s_k ≥ {least:.3g}, beyond {rest:.2g}")
    check.require()
    exact = rounding(net, condition=100 * float(size.max()))
    steepest, epsilon = s[:, 0], along + beyond
    reach = steepest * epsilon / (1 - epsilon).clamp_min(1e-300)
    lost = (1 + 2 * steepest + beyond) * beyond
    off = (J - T @ (T.mT @ J)).flatten(1).norm(dim=1)
    parts = (
        (projection_defect(J), steepest * reach + lost, "J² = J"),
        (off, reach + beyond, "Im J is the tangent space"),
    )
    for errors, left, part in parts:
        granted = exact + left / size.clamp_min(1e-300)
        kept = (granted <= JUDGED).nonzero()[:, 0]
        check.vanish(
            (errors / size.clamp_min(1e-300))[kept],
            tolerance=granted[kept].tolist(),
            part=part,
            where=[found.name(int(row)) for row in kept],
            details={f"{part}, relative error by sample": (errors / size.clamp_min(1e-300)).tolist()},
        )


def on_a_manifold(check: Check, subject: Subject, hypothesis: str) -> tuple[Points, Tensor, Tensor]:
    """Points off the kinks with bases of tangent spaces (P, d, k) there, and |f(x) − x| by the size of the data, (P,).

    Tangents are those that are given, or of the nearest samples. The claim ends here where f is nowhere near the
    identity, which is ``hypothesis``, or no tangents are known.
    """
    X, tangents = subject.X, subject.known.get("tangents")
    off = off_the_identity(subject)
    if float(off.min()) > NEAR:
        # Before any Jacobian.
        check.assume(hypothesis, False, f"values differ by {float(off.min()):.2g} or more")
        check.not_applicable()
    found = points_of(subject)
    if len(found.index) == 0:
        if found.kink_hypothesis.name in check.names:
            check.add(found.kink_hypothesis)
            check.not_applicable()
        check.not_applicable("all samples are at kinks", cause="numerical")
    if tangents is not None:
        return found, torch.linalg.qr(tangents[found.index].double()).Q, off[found.index]
    k = int(subject.known.get("k", (found.s > 0.5 * found.s[:, :1]).sum(1).max()))
    T, rows = local_tangents(X, found.index, k)
    if len(rows) == 0:
        check.not_applicable("no sample has nearest ones that lie in a k-dimensional plane", cause="network")
    found = found.at(rows)
    return found, T, off[found.index]


def off_the_identity(subject: Subject) -> Tensor:
    """|f(x) − x| by the size of the data, (N,)."""
    X = subject.X
    scale = max(float((X - X.mean(0)).square().sum(1).mean().sqrt()), 1e-300)
    return (subject.trace().outputs - X).norm(dim=1) / scale


def local_tangents(X: Tensor, index: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Orthonormal bases of the k leading directions of the nearest samples, (Q, d, k), and at which of ``index``, (Q,).

    Only where the nearest samples are off that plane by less than ``FLAT`` of its least direction: across a fold there
    is no tangent space.
    """
    count = 2 * k + 2
    if len(X) <= count or not 0 < k <= X.shape[1]:
        return X.new_zeros(0, X.shape[1], max(k, 1)), index[:0]
    nearest = torch.cdist(X[index], X).topk(count + 1, largest=False).indices[:, 1:]
    around = X[nearest] - X[index][:, None]
    _, s, Vh = torch.linalg.svd(around, full_matrices=False)
    flat = (s[:, k:].norm(dim=1) <= FLAT * s[:, k - 1]).nonzero()[:, 0]
    return Vh[flat, :k].mT, flat


def _skeleton(name: str) -> Tensor:
    """Points of a set of which no continuous image in ℝ is injective: arms that cross, or a closed curve, (M, 2)."""
    t = torch.linspace(-1, 1, 101, dtype=torch.float64)
    if name == "cross":
        return torch.cat([torch.stack([t, t], 1), torch.stack([t, -t], 1)])
    return torch.stack([(math.pi * t).cos(), (math.pi * t).sin()], 1)


def _across(box: Tensor) -> tuple[Tensor, Tensor]:
    """Ends (a, b) of the pieces of horizontal and vertical lines across the box of some points.

    The lines keep off the axes and other places that a symmetric function picks out: a function may lack a value there.
    """
    low, high = box.amin(0), box.amax(0)
    i = torch.arange(LINES, dtype=torch.float64)
    x, y = (low[axis] + (high - low)[axis] * (i + offset) / LINES for axis, offset in ((0, 0.4142), (1, 0.7321)))
    grid = torch.stack(torch.meshgrid(x, y, indexing="ij"), -1)
    pairs = [(grid[1:], grid[:-1]), (grid[:, 1:], grid[:, :-1])]
    ends = [torch.cat([pair[end].reshape(-1, 2) for pair in pairs]) for end in (0, 1)]
    return ends[0], ends[1]


def _jacobians_off_kinks(subject: Subject, f: Callable[[Tensor], Tensor] | None) -> Tensor:
    """Jf(x) at the samples at which it is the same on both sides, (P, 2, 2)."""
    X = subject.X
    if f is None:
        X = X[off_kinks(subject.trace())]
        return jacobian(subject.net, X) if len(X) else X.new_zeros(0, 2, 2)
    derivative = vmap(jacrev(lambda x: f(x[None])[0]))
    step = SIDESTEP * max(1.0, float(X.abs().max())) * torch.tensor([math.cos(1.0), math.sin(1.0)], dtype=torch.float64)
    J, *sides = (derivative(place).detach() for place in (X, X + step, X - step))
    bend = torch.stack([(side - J).flatten(1).norm(dim=1) for side in sides]).amax(0)
    return J[bend <= BENT * J.flatten(1).norm(dim=1)]


def cross_function() -> Subject:
    """f(x) = min(|x_0|, |x_1|)·(sign x_0, sign x_1) as a ReLU network of depth 4, without biases.

    f_0 = m − σ(2m − σ(x_0 + m)) with m = |x_1| clips x_0 to [−m, m]; f_1 likewise.
    """
    split = torch.tensor([[1, 0], [-1, 0], [0, 1], [0, -1]])
    # From x_0^±, x_1^±: σ(x_0 + m_1), m_1, σ(x_1 + m_0), m_0; then σ(2m_1 − …), m_1, σ(2m_0 − …), m_0.
    raise_ = torch.tensor([[1, -1, 1, 1], [0, 0, 1, 1], [1, 1, 1, -1], [1, 1, 0, 0]])
    cut = torch.tensor([[-1, 2, 0, 0], [0, 1, 0, 0], [0, 0, -1, 2], [0, 0, 0, 1]])
    join = torch.tensor([[-1, 1, 0, 0], [0, 0, -1, 1]])
    net = FullyConnected.from_weights([W.double() for W in (split, raise_, cut, join)])
    return Subject(net, 2 * uniform_inputs(200, 2, 1) - 1, known={"skeleton": "cross"})


@claim(
    "C-rank-13",
    "Rank_J(f) < Rank_BN(f) is possible: min(|x_0|,|x_1|)·(sign x_0, sign x_1), and the direction x/‖x‖",
    paper="rank2023",
    where="Prop. 1, Example 1; bottleneck2023 §3.3.1",
    hypotheses=("f continuous", "f = id on a cross or circle", "x off the kinks"),
    sample=cross_function,
    relation="≤",
    erratum="Example 1 as printed jumps on the axes: (x_0, sign(x_1)|x_0|) for |x_0| ≥ |x_1|. The minimum is used.",
)
def two_notions_apart(check: Check, subject: Subject) -> None:
    """Rank_J(f) + 1 ≤ 2 = Rank_BN(f) for f = id on ``known["skeleton"]``, "cross" or "circle".

    If f = h∘g with g: ℝ² → ℝ were the identity there, g would be injective and continuous on a set that does not fit
    into a line; so Rank_BN ≥ 2. Networks are continuous; of another ``known["function"]``, (N, 2) → (N, 2) in
    torch, lines between samples and across the box of samples and skeleton are searched for jumps; a single point,
    such as 0 for x/‖x‖, they do not meet. Rank_J is the maximum over the samples off the kinks.
    """
    name, X = subject.known.get("skeleton"), subject.X
    if name not in ("cross", "circle") or X.shape[1] != 2 or subject.net.dims[-1] != 2:
        plane = X.shape[1] == 2 and subject.net.dims[-1] == 2
        wanted, cause = ("known['skeleton']", "") if plane else ("", "network")
        check.not_applicable("needs a map of the plane, the identity on a cross or circle", cause=cause, supply=wanted)
    f: Callable[[Tensor], Tensor] | None = subject.known.get("function")
    points = _skeleton(name)
    image = subject.net.trace(points).outputs if f is None else f(points).detach()
    a, b = _across(torch.cat([X, points]))
    jump = 0.0 if f is None else largest_jump(f, torch.cat([X, a]), torch.cat([X.roll(1, 0), b]))
    gap = float((image - points).abs().max())
    J = _jacobians_off_kinks(subject, f)
    continuous = None if math.isnan(jump) else jump <= JUMP
    check.assume("f continuous", continuous, f"largest jump {jump:.2g}")
    check.assume("f = id on a cross or circle", gap <= 1e-9, f"differs by {gap:.2g} on the {name}")
    check.assume("x off the kinks", len(J) > 0, f"{len(J)} of {len(X)} samples are")
    check.require()
    s = torch.linalg.svdvals(J)
    rank = int((s > 1e-9 * s.max()).sum(1).max())
    check.compare(
        rank + 1.0,
        "≤",
        2.0,
        tolerance=0.0,
        where=f"Rank_J = {rank} over {len(J)} samples, Rank_BN = 2",
        details={"largest second singular value": [float(s[:, 1].max())]},
    )
