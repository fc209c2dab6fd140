"""Q-domain: dimensions of data sets whose dimensions are known, and what the identity on them costs."""

from __future__ import annotations

import json
import math

import pytest
import torch

from isthmus import DataError, IsthmusError
from isthmus.claims.bottleneck2023 import _domains as claims_domains
from isthmus.measures import domain_measures, parameter_norms
from isthmus.networks import FullyConnected
from tools import assert_close, gaussian, generator, orthogonal


def uniform(*shape, seed=0):
    return torch.rand(*shape, generator=generator(seed), dtype=torch.float64)


def arc(angle, samples=400):
    t = angle * uniform(samples)
    return torch.stack([t.cos(), t.sin()], 1)


def sphere(samples=1500):
    X = gaussian(samples, 3, seed=1)
    return X / X.norm(dim=1, keepdim=True)


def rolled(samples=1500):
    a, v = 1.5 * math.pi * (0.5 + uniform(samples, seed=2)), uniform(samples, seed=3)
    return torch.stack([a * a.cos(), 10 * v, a * a.sin()], 1)


@pytest.mark.parametrize(
    ("X", "jacobian", "bottleneck"),
    [
        (arc(2 * math.pi), 1, 2),
        (arc(0.5 * math.pi), 1, 1),
        (sphere(), 2, 3),
        (rolled(), 2, 2),
        (uniform(300, 2) @ orthogonal(6, 2).mT, 2, 2),
        (gaussian(400, 8), 8, 8),
        (arc(2 * math.pi) + 0.1 * gaussian(400, 2, seed=9), 2, 2),  # noise has its own dimensions
    ],
    ids=["circle", "arc", "sphere", "roll", "plane", "gaussian", "noise"],
)
def test_ranks(X, jacobian, bottleneck):
    found = domain_measures(X)
    assert found.jacobian_rank == (jacobian, jacobian) and found.bottleneck_rank == (bottleneck, bottleneck)
    # Where the two differ R1 is not defined.
    assert math.isnan(found.R1[0]) == (jacobian != bottleneck)
    assert found.two_nn == pytest.approx(jacobian, rel=0.25)  # the second route to the first


def test_a_rotation_and_a_shift_change_no_rank():
    X = rolled()
    moved = domain_measures(X @ orthogonal(3, 3, seed=5) + 7.0)
    found = domain_measures(X)
    assert moved.jacobian_rank == found.jacobian_rank and moved.bottleneck_rank == found.bottleneck_rank
    assert moved.R1[0] == pytest.approx(found.R1[0], abs=0.05)


@pytest.mark.parametrize("angle", [0.3, 1.0, math.pi / 2])
def test_two_segments_cost_their_angle(angle):
    t = uniform(300, 1)
    other = torch.tensor([[math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    X = torch.cat([t @ torch.tensor([[-1.0, 0.0]], dtype=torch.float64), uniform(300, 1, seed=1) @ other])
    found = domain_measures(X)
    assert found.R1[0] == pytest.approx(math.log1p(math.sin(angle)), abs=1e-6)
    assert found.R1[1] == math.inf


def test_the_claim_of_the_identity_agrees():
    subject = claims_domains.l_shaped_domain()
    t = uniform(200, 1)
    X = torch.cat([torch.cat([t, 0 * t], 1), torch.cat([0 * t, t.flip(0)], 1)])
    assert_close(subject.net(X), X)
    low = domain_measures(X).R1[0]
    assert low == pytest.approx(math.log(2.0), abs=1e-6)
    # A network that is the identity there costs at least that much more than kL.
    assert parameter_norms(subject.net).total - subject.net.depth >= low


def identity_on_a_plane(X, k, depth):
    """The network behind the upper bound, written down again."""
    mean = X.mean(0)
    U = torch.linalg.svd(X - mean, full_matrices=False).Vh[:k].mT
    flip = torch.where((-(X @ U)).amax(0) <= (X @ U).amax(0), 1.0, -1.0)
    U = U * flip
    t = (-(X @ U)).amax(0).clamp_min(0.0)
    middle = [torch.eye(k, dtype=torch.float64)] * (depth - 2)
    zeros = [torch.zeros(k, dtype=torch.float64)] * (depth - 2)
    last = mean - U @ (U.mT @ mean) - U @ t
    return FullyConnected.from_weights([U.mT, *middle, U], [t, *zeros, last])


@pytest.mark.parametrize("shift", [0.0, 0.7])
@pytest.mark.parametrize("depth", [3, 9])
def test_the_upper_bound_is_a_network(shift, depth):
    X = gaussian(200, 2) @ orthogonal(5, 2).mT + shift * gaussian(5, seed=3)
    found = domain_measures(X)
    net = identity_on_a_plane(X, 2, depth)
    assert_close(net(X), X)
    assert found.R1[0] == 0.0
    assert parameter_norms(net).total - 2 * depth == pytest.approx(found.R1[1], rel=1e-9)


def test_planes_in_an_orthant_cost_nothing():
    rotated = uniform(300, 2) @ orthogonal(6, 2).mT
    assert domain_measures(rotated).R1 == (0.0, 0.0) and domain_measures(rotated).positive == "yes"
    both = gaussian(300, 2) @ orthogonal(6, 2).mT
    assert domain_measures(both).positive == "no" and domain_measures(both).R1[1] > 0
    beside = rotated + 10 * orthogonal(6, 3)[:, 2]
    assert domain_measures(beside).linear_span == 3 and domain_measures(beside).R1[1] > 0


def test_too_few_neighbours_leave_it_open():
    found = domain_measures(gaussian(60, 40))
    assert found.jacobian_rank[0] < found.jacobian_rank[1] and math.isnan(found.R1[0])
    assert "between" in found.sentence


def test_plain_data_and_errors():
    found = domain_measures(arc(1.0))
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert content["R1"][1] is None and content["jacobian_rank"] == [1, 1]
    with pytest.raises(DataError):
        domain_measures(gaussian(40, 2))
    with pytest.raises(DataError):
        domain_measures(torch.ones(100, 2))
    with pytest.raises(IsthmusError):
        domain_measures(arc(1.0), neighbours=1)
