"""C-bn-9 and C-bn-11 on large networks use bounds: they are bounds, and on the safe side."""

from __future__ import annotations

import pytest
import torch

from isthmus import verify
from isthmus.claims._base import Subject
from isthmus.claims._evidence import points_of
from isthmus.claims.bottleneck2023 import _curvature as curvature
from tools import gaussian, random_net


def at_points(dims, slope=0.0, seed=0):
    net = random_net(dims, slope, seed=seed)
    return net, points_of(Subject(net, gaussian(8, dims[0])), points=4)


@pytest.mark.parametrize("dims", [[5, 9, 4], [6, 8, 8, 7], [3, 3], [4, 12, 2, 9, 5]])
def test_sharpness_from_below(dims):
    _, found = at_points(dims)
    L = len(dims) - 1
    for row in range(len(found.index)):
        below, exact = curvature._sharpness_from_below(found, row), curvature._sharpness(found, row)
        assert below <= exact * (1 + 1e-5)
        # The paper's proof: enough for the claim.
        assert below >= L * float(found.s[row, 0]) ** (2 - 2 / L) * (1 - 1e-6)


@pytest.mark.parametrize("shape", [(7, 4), (4, 7), (6, 6)])
def test_norms_from_above(shape, monkeypatch):
    J = gaussian(*shape)
    exact = curvature._norm_from_above(J)
    assert abs(exact - float(torch.linalg.matrix_norm(J, 2))) < 1e-12
    monkeypatch.setattr(curvature, "LARGE", 1)
    bound = curvature._norm_from_above(J)
    assert exact <= bound <= exact * min(shape) ** 0.125 * (1 + 1e-12)


def test_largest_partial_is_that_of_all_partial_jacobians():
    _, found = at_points([5, 9, 7, 4])
    for row in range(len(found.index)):
        inward, outward = curvature.partial_jacobians(found, row)
        onward = [G @ W for G, W in zip(outward, found.trace.Ws)]
        exact = max(float(torch.linalg.matrix_norm(J, 2)) for J in (*inward, *onward))
        assert abs(curvature._largest_partial(found, row) - exact) < 1e-10 * exact


def test_both_claims_hold_by_their_bounds(monkeypatch):
    net, X = random_net([5, 9, 9, 4]), gaussian(20, 5)
    monkeypatch.setattr(curvature, "LARGE", 1)
    found = verify(net, X, claims=["C-bn-9", "C-bn-11"])
    assert {v.status for v in found} == {"holds"}
