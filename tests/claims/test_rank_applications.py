"""Claims of rank2023 about kernels, classifiers, autoencoders and functions, with the twins of each."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from isthmus import FullyConnected
from isthmus.claims._base import CLAIMS, Subject
from isthmus.claims._evidence import random_subject
from isthmus.claims.rank2023 import _applications as rank_applications
from isthmus.claims.rank2023._applications import cross_function, local_tangents
from isthmus.networks._kernel_ridge import KERNELS, KernelRidge
from isthmus.problems import min_cross
from tools import assert_close, gaussian, random_net


def evaluate(identity, subject=None, **known):
    claim = CLAIMS[identity]
    subject = claim.sample() if subject is None else subject
    return claim.evaluate(subject.replace(known={**subject.known, **known}))


def status(identity, subject=None, **known):
    return evaluate(identity, subject, **known).status


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("d_in", "d_out", "rank"), [(5, 4, 4), (2, 4, 2), (6, 1, 1)])
def test_kernels_have_every_rank_they_can(kernel, d_in, d_out, rank):
    X, Y = gaussian(10, d_in, seed=1), gaussian(10, d_out, seed=2)
    verdict = evaluate("C-rank-10", Subject(random_net([d_in, d_out]), X, Y), noise=1.0, kernel=kernel)
    # About data alone: no network enters.
    assert verdict.status == "holds trivially", verdict.reason
    assert verdict.lhs == rank


def test_kernels_on_degenerate_data():
    """Inputs on a line and outputs of rank 1: the ranks that the formula has."""
    line = gaussian(20, 1, seed=1) * torch.ones(1, 3).double()
    on_line = Subject(random_net([3, 2]), line, gaussian(20, 2, seed=2), known={"noise": 1.0})
    assert evaluate("C-rank-10", on_line).lhs == 1
    off_line = line.mean(0, keepdim=True) + torch.tensor([[0.3, -0.2, 0.5]]).double()
    assert evaluate("C-rank-10", on_line, points=off_line).lhs == 2
    flat = gaussian(20, 3, seed=3), gaussian(20, 1, seed=4) * torch.ones(1, 2).double()
    assert evaluate("C-rank-10", Subject(on_line.net, *flat), noise=1.0).lhs == 1


def test_structured_outputs():
    """Coefficients that cancel at one point: Y is of full rank and the Jacobian there is 0."""
    subject = CLAIMS["C-rank-10"].sample()
    X = subject.X
    x = X.mean(0, keepdim=True)
    model = KernelRidge("laplace").fit(X, subject.Y)
    t = (x - X).norm(dim=1) / model.length_
    rows = KERNELS["laplace"][1](t)[:, None] * (x - X)
    null = torch.linalg.svd(rows.mT).Vh[5:].mT
    K = KERNELS["laplace"][0](torch.cdist(X, X, compute_mode="donot_use_mm_for_euclid_dist") / model.length_)
    structured = subject.replace(Y=K @ null @ gaussian(null.shape[1], 4))
    assert status("C-rank-10", structured, points=x, noise=0.0) == "not applicable"
    assert status("C-rank-10", structured, points=x) == "fails"
    assert status("C-rank-10", subject, points=x) == "holds trivially"


@pytest.mark.parametrize("seed", [89, 189, 287])
def test_kernels_too_flat_to_count_by(seed):
    """Gaussian kernels on a line: rounding of the coefficients is above singular values of 2 to 12."""
    source = np.random.default_rng(0)
    sizes = [(source.integers(4, 14), source.integers(1, 3), source.integers(1, 4)) for _ in range(seed + 1)]
    N, d, d_out = map(int, sizes[-1])
    drawn = torch.Generator().manual_seed(seed)
    X, Y = (torch.randn(N, columns, generator=drawn, dtype=torch.float64) for columns in (d, d_out))
    subject = Subject(random_net([d, d_out]), X, Y, known={"noise": 1.0, "kernel": "gaussian"})
    assert status("C-rank-10", subject) != "fails"
    # At the point nearest to failing alone, nothing is said.
    points = (X[:-1] + X[1:]) / 2
    alone = [evaluate("C-rank-10", subject, points=points[i : i + 1]) for i in range(len(points))]
    assert "rounding" in " ".join(one.reason for one in alone)


def test_kernels_out_of_hypothesis():
    subject = CLAIMS["C-rank-10"].sample()
    assert "x not in X" in evaluate("C-rank-10", subject, points=subject.X[:2]).reason
    twice = subject.replace(X=torch.cat([subject.X, subject.X]), Y=torch.cat([subject.Y, subject.Y]))
    assert "K invertible" in evaluate("C-rank-10", twice).reason
    flat = subject.replace(X=0.01 * subject.X[:, :1], net=random_net([1, 4]))
    assert "K invertible" in evaluate("C-rank-10", flat, kernel="gaussian").reason
    far = evaluate("C-rank-10", subject, points=subject.X[:1] + 1e4, kernel="gaussian")
    assert far.status == "not applicable" and "k'" in far.reason


def sectors(points):
    angle = np.arctan2(points[:, 1] - 0.1, points[:, 0] - 0.2)
    return (angle // (2 * np.pi / 3)).astype(np.int64)


def test_three_sectors_meet():
    sample = CLAIMS["C-rank-11"].sample()
    verdict = evaluate("C-rank-11", sample, classifier=sectors)
    assert verdict.status == "fails" and verdict.lhs == 1
    assert "0.2" in verdict.where and "0.1" in verdict.where
    # As a network, x ↦ Wx with three directions, it has no layer of width 1.
    angles = torch.arange(3).double() * 2 * torch.pi / 3
    meeting = FullyConnected.from_weights([torch.stack([angles.cos(), angles.sin()], 1)])
    assert "width 1" in evaluate("C-rank-11", sample.replace(net=meeting)).reason


def test_classes_that_tie_on_a_line_have_no_interior():
    """Without biases all scores are 0 where g is: a class that wins there alone met two others."""
    for seed in range(1, 40, 2):
        source = torch.Generator().manual_seed(seed)
        net = FullyConnected([2, 4, 1, 6, 4], 0.3, 0.0, dtype=torch.float64, generator=source).requires_grad_(False)
        X = torch.randn(60, 2, dtype=torch.float64, generator=source)
        assert status("C-rank-11", Subject(net, torch.cat([X, -X]))) != "fails"


def test_scores_that_cancel_are_known_to_rounding_of_what_they_sum():
    """x ↦ u(v·x): on v·x = 0 rounding decides between six scores."""
    W = torch.outer(gaussian(6, 1)[:, 0], gaussian(2, 1, seed=1)[:, 0])
    for seed in range(5):
        X = gaussian(6, 2, seed=seed)
        assert status("C-rank-11", Subject(FullyConnected.from_weights([W], bias=0.0), X)) != "fails"


def test_a_matrix_of_rank_one_is_as_good_as_a_layer_of_width_one():
    """Widths 2, 6, 8, 4 with W_2 = u·vᵀ, and noise of 1e-10 in it that is cut; noise of 1e-3 is another network."""
    statuses = set()
    for seed in range(12):
        subject = random_subject([2, 6, 8, 4], seed=seed)
        subject.net.weights[1].data = torch.outer(gaussian(8, 1, seed=seed)[:, 0], gaussian(6, 1, seed=seed + 50)[:, 0])
        subject.net.weights[1].data += 1e-10 * gaussian(8, 6, seed=seed)
        found = evaluate("C-rank-11", subject.replace(X=2 * subject.X))
        assert found.status == "holds" or "could not meet" in found.reason
        statuses.add(found.status)
        subject.net.weights[1].data += 1e-3 * gaussian(8, 6, seed=seed)
        assert "rank 1: not met" in evaluate("C-rank-11", subject).reason
    assert "holds" in statuses


def test_classifiers_out_of_hypothesis():
    sample = CLAIMS["C-rank-11"].sample()
    for dims, name in (([3, 4, 1, 4, 3], "plane"), ([2, 4, 1, 4, 2], "three classes")):
        assert name in evaluate("C-rank-11", sample.replace(net=random_net(dims), X=gaussian(20, dims[0]))).reason
    assert "no box" in evaluate("C-rank-11", sample.replace(X=sample.X[:1])).reason

    def snow(points):
        return (np.sin(1e7 * points).sum(1) * 1e6).astype(np.int64) % 3

    assert "resolved" in evaluate("C-rank-11", sample, classifier=snow).reason


@pytest.mark.parametrize("seed", range(4))
def test_random_networks_of_rank_one_have_no_tripoints(seed):
    subject = Subject(random_net([2, 16, 16, 1, 16, 4], seed=seed), 3 * gaussian(50, 2, seed=seed))
    assert status("C-rank-11", subject) != "fails"


def test_identity_networks_do_not_denoise():
    sample = CLAIMS["C-rank-12"].sample()
    identity = FullyConnected.from_weights([torch.eye(4).double()] * 3, slope=1.0)
    assert "Rank Jf = k" in evaluate("C-rank-12", sample.replace(net=identity)).reason
    shrunk = FullyConnected.from_weights([0.5 * torch.eye(4).double()], slope=1.0)
    assert "f = id" in evaluate("C-rank-12", sample.replace(net=shrunk)).reason
    assert status("C-rank-12", sample.replace(net=random_net([4, 3]))) == "not applicable"


def test_corrupted_projections(monkeypatch):
    sample = CLAIMS["C-rank-12"].sample()
    monkeypatch.setattr(rank_applications, "projection_defect", lambda J: torch.full((len(J),), 1e-3).double())
    verdict = evaluate("C-rank-12", sample)
    assert verdict.status == "fails" and "J² = J" in verdict.where


def test_projections_may_be_oblique():
    """J = t rᵀ with rᵀt = 1: a projection whose norm is above 1."""
    t, r = torch.tensor([[1.0], [2.0]]).double(), torch.tensor([[3.0, -1.0]]).double()
    net = FullyConnected.from_weights([r, t], slope=1.0)
    X = torch.linspace(-1, 1, 9).double()[:, None] * t.mT
    verdict = evaluate("C-rank-12", Subject(net, X), tangents=t.expand(9, 2, 1))
    assert verdict.status == "holds" and verdict.margin < 1e-9
    # A little off, the tolerance follows, and says so: at the edge of its hypotheses nothing is judged.
    bent = FullyConnected.from_weights([r * 1.001, t], slope=1.0)
    near = evaluate("C-rank-12", Subject(bent, X), tangents=t.expand(9, 2, 1))
    assert near.status == "holds" and 1e-4 < near.tolerance < 0.1
    assert 1e-4 < near.lhs <= near.tolerance
    edge = FullyConnected.from_weights([r * 1.02, t], slope=1.0)
    far = evaluate("C-rank-12", Subject(edge, X), tangents=t.expand(9, 2, 1))
    assert far.status == "not applicable" and far.cause == "numerical"


def test_tangents_are_those_of_the_nearest_samples():
    """Without given ones: exact on the flat pieces of a folded surface, none across its folds."""
    z = 2 * torch.rand(300, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 1
    X = torch.cat([z, 0.5 * z.abs()], 1)
    T, where = local_tangents(X, torch.arange(300), 2)
    assert 60 < len(where) < 300
    slopes = 0.5 * z[where].sign()
    true = torch.cat([torch.eye(2).double().expand(len(where), 2, 2), torch.diag_embed(slopes)], 1)
    off = (true - T @ (T.mT @ true)).flatten(1).norm(dim=1)
    assert float(off.median()) < 1e-12 and float(off.max()) < 0.05
    # f(x) = (x_0, x_1, ½|x_0|, ½|x_1|), an oblique projection onto it.
    split = torch.tensor([[1, 0, 0, 0], [-1, 0, 0, 0], [0, 1, 0, 0], [0, -1, 0, 0]], dtype=torch.float64)
    join = torch.tensor([[1, -1, 0, 0], [0, 0, 1, -1], [0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]], dtype=torch.float64)
    net = FullyConnected.from_weights([split, join])
    found = evaluate("C-rank-12", Subject(net, X))
    assert found.status == "holds" and found.margin < 0.1
    # Too few samples, and a network that is not the identity there.
    assert evaluate("C-rank-12", Subject(net, X[:5])).cause == "network"
    other = FullyConnected.from_weights([split, 1.2 * join])
    assert "f = id" in evaluate("C-rank-12", Subject(other, X)).reason


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2])
def test_what_an_autoencoder_leaves_of_a_projection_is_granted(epsilon):
    """‖J² − J‖ ≤ ‖J‖²ε/(1−ε) + (1+2‖J‖+‖R‖)‖R‖ for J = projection + noise: never fails, and is not far off."""
    shares = []
    for seed in range(40):
        T = torch.linalg.qr(gaussian(5, 2, seed=seed)).Q
        P = torch.linalg.solve(gaussian(2, 5, seed=seed + 99) @ T, gaussian(2, 5, seed=seed + 99))
        J = T @ P / max(1.0, 0.2 * float(P.norm())) if seed % 2 else T @ T.mT
        J = J + epsilon * gaussian(5, 5, seed=seed + 7)
        X = gaussian(12, 2, seed=seed) @ T.mT
        subject = Subject(FullyConnected.from_weights([J], slope=1.0), X, known={"tangents": T.expand(12, 5, 2)})
        found = evaluate("C-rank-12", subject)
        assert found.status != "fails", (seed, found.reason)
        shares += [found.lhs / found.tolerance] if found.status == "holds" else []
    assert len(shares) > 5 and max(shares) > 0.05


def printed(X):
    """Example 1 as it stands in the paper."""
    a, b = X[:, 0], X[:, 1]
    first = torch.stack([a, b.sign() * a.abs()], 1)
    second = torch.stack([a.sign() * b.abs(), b], 1)
    return torch.where((a.abs() >= b.abs())[:, None], first, second)


def test_the_printed_example_jumps():
    sample = cross_function()
    verdict = evaluate("C-rank-13", sample, function=printed)
    assert verdict.status == "not applicable" and "f continuous" in verdict.reason
    # All else is as the paper says: the identity on the cross, and Jacobians of rank 1.
    assert [h.status for h in verdict.hypotheses] == ["not met", "met", "met"]
    assert status("C-rank-13", sample) == "holds"


def test_jumps_away_from_the_samples_are_found():
    sample = cross_function()
    for X in (sample.X[:1], sample.X.abs() + 0.01):
        assert "f continuous: not met" in evaluate("C-rank-13", sample.replace(X=X), function=printed).reason

    def partial(X):
        return torch.where(X[:, :1] > 0.9, torch.nan, X.abs().amin(1, keepdim=True) * X.sign())

    within = sample.replace(X=0.5 * sample.X)
    assert "f continuous: not known" in evaluate("C-rank-13", within, function=partial).reason


def test_samples_at_kinks_have_no_rank():
    """x = σ(x) − σ(−x) in the plane: autograd has a Jacobian of rank 0 at 0, and of 1 on the axes."""
    split, join = torch.eye(2).double(), torch.eye(2).double()
    net = FullyConnected.from_weights([torch.cat([split, -split]), torch.cat([join, -join], 1)])
    axes = torch.tensor([[0.0, 0.0], [0.5, 0.0], [0.0, -0.3]]).double()
    subject = cross_function().replace(net=net, X=axes)
    for function in (None, net):
        for some in (subject, subject.replace(X=axes[:1])):
            assert "x off the kinks" in evaluate("C-rank-13", some, function=function).reason
        beside = subject.replace(X=torch.cat([axes, torch.tensor([[0.2, 0.3]]).double()]))
        assert status("C-rank-13", beside, function=function) == "fails"


def test_the_network_of_the_cross_is_the_function():
    sample = cross_function()
    problem = min_cross(samples=300, seed=3)
    assert_close(sample.net.trace(problem.X).outputs, torch.tensor(problem.Y))

    def function(X):
        return X.abs().amin(1, keepdim=True) * X.sign()

    assert status("C-rank-13", sample, function=function) == "holds"


def test_the_circle():
    sample = cross_function()
    direction = {"function": lambda X: X / X.norm(dim=1, keepdim=True), "skeleton": "circle"}
    assert status("C-rank-13", sample, **direction) == "holds"
    # It is not the identity on the cross.
    assert "cross or circle" in evaluate("C-rank-13", sample, function=direction["function"]).reason


def test_the_identity_of_the_plane_is_no_example():
    sample = cross_function()
    plane = sample.replace(net=FullyConnected.from_weights([torch.eye(2).double()], slope=1.0))
    assert status("C-rank-13", plane) == "fails"
    assert status("C-rank-13", sample, skeleton="line") == "not applicable"
