"""A-divergent: Example 20, its numbers, and why γ must lie between ½ and 1."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from isthmus import IsthmusError
from isthmus.constructions import divergent
from isthmus.measures import parameter_norms
from tools import assert_close, generator


def cube(samples, seed=0):
    return torch.rand(samples, 3, generator=generator(seed), dtype=torch.float64)


def target(X):
    return torch.stack([X[:, 0], X[:, 1], X[:, 2] + torch.relu(X[:, 0] - X[:, 1])], 1)


#: theory.md, at γ = ¾.
STATED = {10: ("3.67", "2.04"), 100: ("1.27", "4.71"), 1000: ("0.386", "16.5"), 10_000: ("0.120", "148")}


@pytest.mark.parametrize("depth", STATED)
@torch.no_grad()
def test_the_stated_numbers(depth):
    made = divergent(depth)
    excess, scale = STATED[depth]
    measured = parameter_norms(made.network).total - 3 * depth
    assert f"{measured:.3g}" == f"{float(excess):.3g}" and f"{made.excess:.3g}" == f"{float(excess):.3g}"
    assert f"{made.known.details['scale']:.3g}" == scale
    assert_close(made.known.norm_squared, parameter_norms(made.network).total)
    X = cube(20)
    assert_close(made.network(X), target(X), rtol=1e-9, atol=1e-9, reason="10⁴ layers")
    # The scale is that of the representations: the largest factor a coordinate is multiplied by on the way.
    H, largest = torch.ones(1, 3, dtype=torch.float64), 0.0
    for W in made.network.Ws[:-1]:
        H = torch.relu(H @ W.mT)
        largest = max(largest, float(H.max()))
    assert_close(largest, made.known.details["scale"], rtol=1e-9, reason="10⁴ products")


@pytest.mark.parametrize("depth", [2, 4, 10, 200])
@pytest.mark.parametrize("exponent", [0.51, 0.75, 0.99])
def test_function_and_norm(depth, exponent):
    made, X = divergent(depth, exponent), 3 * cube(50, seed=1)
    assert bool(made.known.domain.contains(X).all())
    assert_close(made.network(X), target(X))
    assert_close(made.known.norm_squared, parameter_norms(made.network).total)
    assert made.known.rank == 3 and made.known.excess_limit == 0.0
    assert_close(made.network.float()(X.float()), target(X.float()), rtol=1e-4, atol=1e-4, reason="scale e³ in float32")


def test_outside_its_domain():
    made, X = divergent(10), cube(20) - 1.0
    assert not bool(made.known.domain.contains(X).any())
    assert not torch.allclose(made.network(X), target(X))


def test_the_exponents_of_the_rates():
    depths = np.array([10**4, 10**5, 10**6], dtype=float)
    for gamma in (0.6, 0.75, 0.9):
        eps = depths**-gamma
        S = np.exp((depths - 2) * eps / 2)
        bend = 2 * S**-2.0 + S**-4.0
        excess = (depths - 2) * (4 * np.sinh(eps) ** 2 + 2 * np.sinh(2 * eps) ** 2)
        slope = np.polyfit(np.log(depths), np.log(excess), 1)[0]
        assert_close(slope, 1 - 2 * gamma, atol=2e-2, reason="a fit at finite depth")
        assert_close(divergent(200, gamma).excess, _excess(200, gamma), rtol=1e-9, reason="a difference near 3L")
        assert bool((np.diff(bend) < 0).all())


def _excess(L, gamma):
    """Layer by layer, with exponentials, as the paper prints it; any γ."""
    eps = L**-gamma
    scaling = (
        (L - 2) / 2 * (2 * math.exp(2 * eps) + math.exp(-4 * eps) + 2 * math.exp(-2 * eps) + math.exp(4 * eps) - 6)
    )
    return scaling + 2 * math.exp(-(L - 2) * eps) + math.exp(-2 * (L - 2) * eps)


def test_why_the_exponent_is_bounded():
    # γ < ½: the excess diverges; γ = ½: it stays at 12; γ = 1: the kink keeps 2/e + 1/e².
    assert _excess(10**6, 0.4) > _excess(10**4, 0.4) > 12
    assert_close(_excess(10**8, 0.5), 12.0, rtol=1e-3, reason="a limit")
    assert_close(_excess(10**6, 1.0), 2 / math.e + math.e**-2, rtol=1e-3, reason="a limit")
    assert _excess(10**6, 0.75) < 0.02


@pytest.mark.parametrize(
    ("depth", "exponent", "match"),
    [
        (11, 0.75, "must be even"),
        (0, 0.75, "integer in \\[2"),
        (10, 0.5, "vanishes only above 1/2"),
        (10, 0.3, "vanishes only above 1/2"),
        (10, 1.0, "stays bounded from 1 on"),
        (10, float("nan"), "finite"),
    ],
)
def test_refusals(depth, exponent, match):
    with pytest.raises(IsthmusError, match=match):
        divergent(depth, exponent)
