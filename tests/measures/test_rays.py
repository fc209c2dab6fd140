"""Neurons on rays, and classes in clusters."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus import IsthmusError
from isthmus.measures import class_separation, ray_concentration, ray_groups
from tools import assert_close, gaussian, generator


def planted(noise=0.0, seed=0):
    """Twelve neurons on three rays, in turn, of lengths 1 … 12, and a dead one."""
    rays = gaussian(3, 7, seed=seed)
    rays /= rays.norm(dim=1, keepdim=True)
    sizes = torch.arange(1.0, 13.0, dtype=torch.float64)
    Z = sizes[:, None] * (rays.repeat(4, 1) + noise * gaussian(12, 7, seed=seed + 1))
    return torch.cat([Z, torch.zeros(1, 7, dtype=torch.float64)]), rays


def test_planted_groups():
    Z, _ = planted()
    groups = ray_groups(Z)
    assert [sorted(g.tolist()) for g in groups] == [[2, 5, 8, 11], [1, 4, 7, 10], [0, 3, 6, 9]]
    assert groups[0].tolist() == [11, 8, 5, 2]
    # The opposite ray is another one.
    assert len(ray_groups(torch.stack([Z[0], -Z[0]]))) == 2
    # Angles that a cosine in float64 takes for 0.
    turned = Z[:2].clone()
    turned[1] = Z[0] + 1e-9 * Z[1]
    assert len(ray_groups(turned, tolerance=1e-7)) == 1 and len(ray_groups(turned, tolerance=1e-11)) == 2
    assert ray_groups(torch.zeros(3, 2)) == ()


def test_concentration_of_planted_rays():
    Z, rays = planted()
    share, found = ray_concentration(Z, 3)
    assert share == pytest.approx(1.0, abs=1e-12)
    # The ray of the lengths 3, 6, 9, 12 carries most.
    assert_close(found, rays[[2, 1, 0]], atol=1e-7, reason="leading singular vectors")
    assert ray_concentration(Z, 2)[0] < 0.99
    shares = [ray_concentration(planted(0.05)[0], count)[0] for count in (1, 2, 3, 4)]
    assert shares == sorted(shares) and 0.95 < shares[2] < 1.0
    spread = ray_concentration(gaussian(60, 20), 3)[0]
    assert spread < 0.45
    assert ray_concentration(torch.zeros(3, 2), 2)[0] == 1.0


def test_opposite_neurons_need_two_rays():
    z = gaussian(1, 5)
    Z = torch.cat([z, -2.0 * z])
    assert ray_concentration(Z, 1)[0] == pytest.approx(0.8)
    assert ray_concentration(Z, 2)[0] == pytest.approx(1.0)


def test_against_all_assignments():
    """Eight neurons on two rays by brute force over the 2⁷ partitions."""
    Z = gaussian(8, 4, seed=3)
    best = 0.0
    for code in range(128):
        owner = torch.tensor([0] + [(code >> k) & 1 for k in range(7)])
        value = 0.0
        for j in (0, 1):
            members = Z[owner == j]
            if len(members):
                lead = torch.linalg.svd(members).Vh[0]
                value += max(float((members @ (sign * lead)).clamp_min(0).square().sum()) for sign in (1, -1))
        best = max(best, value)
    share, _ = ray_concentration(Z, 2)
    assert 0.93 * best <= share * float(Z.square().sum()) <= 1.05 * best


@given(st.integers(0, 10_000))
def test_orders_and_rotations(seed):
    Z, _ = planted(0.3, seed)
    order = torch.randperm(13, generator=generator(seed))
    Q = torch.linalg.qr(gaussian(7, 7, seed=seed + 2)).Q
    assert ray_concentration(Z[order] @ Q, 3)[0] == pytest.approx(ray_concentration(Z, 3)[0], rel=1e-6)


def test_class_separation():
    labels = torch.tensor([0, 0, 1, 1])
    Z = torch.tensor([[0.0, 0.0, 4.0, 4.0]], dtype=torch.float64)
    assert class_separation(Z, labels) == 1.0
    assert class_separation(torch.tensor([[0.0, 4.0, 0.0, 4.0]]), labels) == 0.0
    # Means 1 and 5 about 3, variance 1 within: 4 of 5.
    assert class_separation(torch.tensor([[0.0, 2.0, 4.0, 6.0]]), labels) == pytest.approx(0.8)
    assert math.isnan(class_separation(torch.ones(2, 4), labels))
    with pytest.raises(IsthmusError, match="4 entries"):
        class_separation(Z, labels[:3])
