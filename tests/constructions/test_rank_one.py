"""A-rank1: any data through one dimension, at the norm L + C_N."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from isthmus import IsthmusError
from isthmus.constructions import rank_one
from isthmus.measures import parameter_norms, weight_spectra
from tools import assert_close, gaussian, generator


def data(samples, d_in, d_out, seed=0):
    return gaussian(samples, d_in, seed=seed), gaussian(samples, d_out, seed=seed + 1)


@pytest.mark.parametrize("depth", [3, 4, 30, 200])
@pytest.mark.parametrize(("samples", "d_in", "d_out"), [(1, 3, 2), (2, 1, 1), (12, 1, 3), (15, 4, 5), (10, 30, 2)])
def test_interpolates_at_the_stated_norm(samples, d_in, d_out, depth):
    X, Y = data(samples, d_in, d_out, seed=samples)
    made = rank_one(X, Y, depth, tries=8)
    assert_close(made.network(X), Y, atol=1e-9, rtol=1e-9, reason="steep pieces between close projections")
    assert_close(parameter_norms(made.network).total, depth + made.known.details["norm_constant"])
    assert_close(made.known.norm_squared, parameter_norms(made.network).total)
    assert made.known.excess_limit == made.known.details["norm_constant"]
    assert made.known.rank == 1 and made.network.dims[1 : depth - 1] == (1,) * (depth - 2)
    for s in weight_spectra(made.network)[1 : depth - 2]:
        assert s.tolist() == [1.0]


def test_in_float32():
    X, Y = data(8, 3, 2)
    made = rank_one(X.float(), Y.float(), 12)
    assert_close(made.network.float()(X.float()), Y.float(), atol=1e-3, rtol=1e-3, reason="slopes near 1e3")


def test_is_a_function_of_one_projection():
    X, Y = data(12, 4, 3, seed=2)
    made = rank_one(X, Y, 9)
    u = made.network.Ws[0].detach()[0]
    probe, shift = gaussian(50, 4, seed=5), gaussian(50, 4, seed=6)
    shift = shift - (shift @ u)[:, None] * u / u.square().sum()
    assert made.known.domain.whole and bool(made.known.domain.contains(10 * probe).all())
    assert_close(
        made.network(probe + shift), made.network(probe), atol=1e-9, rtol=1e-9, reason="a projection to rounding"
    )
    # Between neighbours on the line: straight, by an independent interpolation.
    p, order = (X @ u), (X @ u).argsort()
    at = probe @ u
    inside = (at > p.min()) & (at < p.max())
    for column in range(3):
        expected = np.interp(at.numpy(), p[order].numpy(), Y[order][:, column].numpy())
        assert_close(
            made.network(probe)[inside][:, column], expected[inside.numpy()], rtol=1e-9, atol=1e-9, reason="slopes"
        )


def test_the_bound_of_prop_2():
    # C-rank-4: the regularised loss at this network is λ(1 + C_N/L), in the (λ/L) convention and in no other.
    X, Y = data(10, 3, 2, seed=3)
    for depth in (5, 50, 200):
        made, weight = rank_one(X, Y, depth, tries=8), 0.1
        cost = (made.network(X) - Y).square().sum(1).mean()
        norm = parameter_norms(made.network).total
        bound = weight * (1 + made.known.details["norm_constant"] / depth)
        assert_close((cost + weight / depth * norm).detach(), bound)
        assert float((cost + weight * norm).detach()) > bound


def test_the_scale_is_the_best():
    X, Y = data(9, 2, 3, seed=4)
    u = torch.tensor([0.6, 0.8], dtype=torch.float64)
    made = rank_one(X, Y, 6, direction=3 * u)
    order = (X @ u).argsort()
    p, y = (X @ u)[order].numpy(), Y[order].numpy()
    slopes = np.diff(y, axis=0) / np.diff(p)[:, None]
    v = np.linalg.norm(np.diff(slopes, axis=0, prepend=np.zeros((1, 3))), axis=1)

    def constant(log_s):
        s = math.exp(log_s)
        bends = 2 * (v * np.sqrt(s**-2 + (p[:-1] - p[0]) ** 2)).sum()
        return s**2 * (1 + p[0] ** 2) + bends + (y[0] ** 2).sum() - 3

    best: Any = minimize_scalar(constant, bracket=(-3.0, 3.0), tol=1e-12)
    assert_close(made.known.details["norm_constant"], best.fun)
    assert_close(made.known.details["scale"], math.exp(best.x), rtol=1e-5, reason="a minimum is flat")


def test_a_short_path_through_the_outputs_is_found():
    # More inputs than samples: every order is possible, so the path decides.
    X = gaussian(25, 40, seed=1)
    angle = torch.rand(25, generator=generator(2), dtype=torch.float64) * math.pi
    Y = torch.stack([angle.cos(), angle.sin()], 1)
    best = rank_one(X, Y, 5, tries=0).known.details["norm_constant"]
    random = [rank_one(X, Y, 5, direction=gaussian(40, seed=s)).known.details["norm_constant"] for s in range(10)]
    assert best < 0.2 * min(random)
    u = rank_one(X, Y, 5, tries=0).network.Ws[0].detach()[0]
    ordered = angle[(X @ u).argsort()].diff()
    assert bool((ordered > 0).all()) or bool((ordered < 0).all())


def test_more_directions_never_cost_more():
    X, Y = data(15, 3, 2, seed=7)
    few, many = (rank_one(X, Y, 5, tries=n).known.details["norm_constant"] for n in (4, 256))
    assert many <= few
    one, again = (rank_one(X, Y, 5, generator=generator(3)).known.norm_squared for _ in range(2))
    assert one == again


def test_repeated_and_constant_data():
    X, Y = data(6, 3, 2)
    made = rank_one(torch.cat([X, X[:2]]), torch.cat([Y, Y[:2]]), 7)
    assert_close(made.known.norm_squared, rank_one(X, Y, 7).known.norm_squared)
    flat = rank_one(X, torch.ones(6, 2), 7)
    assert_close(flat.network(X), torch.ones(6, 2).double())
    assert_close(flat.known.norm_squared, parameter_norms(flat.network).total)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda X, Y: rank_one(torch.cat([X, X[:1]]), torch.cat([Y, Y[1:2]]), 5), "equal inputs must have equal"),
        (lambda X, Y: rank_one(X, Y, 2), "integer in \\[3"),
        (lambda X, Y: rank_one(X, Y[:3], 5), "equally many rows"),
        (lambda X, Y: rank_one(X, Y, 5, direction=[0.0, 0.0, 0.0]), "non-zero vector"),
        (lambda X, Y: rank_one(X, Y, 5, direction=[1.0, 0.0]), "non-zero vector of 3"),
        (
            lambda X, Y: rank_one(X * torch.tensor([0.0, 1.0, 1.0]), Y, 5, direction=[1.0, 0.0, 0.0]),
            "distinct projections",
        ),
        (lambda X, Y: rank_one(X / 0.0, Y, 5), "finite"),
    ],
)
def test_refusals(call, match):
    with pytest.raises(IsthmusError, match=match):
        call(*data(12, 3, 2, seed=1))
