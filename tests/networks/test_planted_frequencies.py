"""Networks trained on a planted equivariant task keep its frequencies; other networks are distinguished."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

import isthmus
from isthmus import ConvolutionalNet, IsthmusError
from isthmus.measures import filter_spectra, kept_frequencies
from isthmus.problems import Problem, planted_frequencies
from isthmus.training import Phase
from tools import assert_close, generator

PLAN = [Phase("scale", 1), Phase("adam", 100, 1e-2), Phase("lbfgs", 800)]


def trained(problem: Problem, size, *, depth=5, channels=4, ridge=3e-2, slope=0.0, bias=1.0, tolerance=1e-3, plan=PLAN):
    widths = [1] + [channels] * (depth - 1) + [1]
    net = ConvolutionalNet(widths, size, slope=slope, bias=bias, dtype=torch.float64, generator=generator())
    return net, isthmus.train(net, problem.X, problem.Y, ridge=ridge, phases=plan, tolerance=tolerance)


def best(
    problem: Problem, size: tuple[int, ...], turns: tuple[int, ...], depth: int, ridge: float
) -> tuple[float, float]:
    """Gain |g| of the deep linear network at one frequency and its share of the loss, from the scalar problem.

    cost + ridge·‖θ‖² = (1/positions)·Σ_ω (mean|ŷ − g x̂|² + ridge·L·|g|^{2/L}), the norm that L filters need for g.
    """
    axes = tuple(range(1, len(size) + 1))
    x, y = (np.fft.fftn(A.reshape(-1, *size), axes=axes)[(slice(None), *turns)] for A in (problem.X, problem.Y))
    xx, yy, xy = np.mean(abs(x) ** 2), np.mean(abs(y) ** 2), abs(np.mean(y * x.conj()))

    def loss(u: float) -> float:  # g = u^L: smooth at 0
        return float(yy - 2 * u**depth * xy + u ** (2 * depth) * xx + ridge * depth * u**2)

    found = minimize_scalar(loss, bounds=(0.5, 3.0), method="bounded", options={"xatol": 1e-12})
    at, low = (found.x, found.fun) if found.fun < loss(0.0) else (0.0, loss(0.0))
    return float(at), low / math.prod(size)


@pytest.mark.parametrize("kept", [((1,), (3,)), ((2,), (6,))])
def test_a_linear_network_and_its_closed_form(kept):
    """Every layer has s_ω = |g|^{1/L} at the planted frequencies and 0 elsewhere; the loss is that of the formula."""
    size, depth, ridge = (12,), 4, 2e-2
    problem = planted_frequencies(size=size, kept=kept, nonlinearity="none", samples=50)
    net, result = trained(problem, size, depth=depth, slope=1.0, bias=0.0, ridge=ridge, tolerance=1e-7)
    found = kept_frequencies(net.trace(problem.X))
    assert found.verdict == "determined" and found.frequencies == set(kept)
    assert found.dimensions == problem.rank and found.layers == (1, 2, 3, 4) and found.mean == "absent"
    truth = {k: best(problem, size, (k,), depth, ridge) for k in range(12)}
    assert {k for k, (s, _) in truth.items() if s > 0} == {k % 12 for (k,) in kept} | {-k % 12 for (k,) in kept}
    assert_close(result.loss, sum(share for _, share in truth.values()), rtol=1e-5, reason="a training to 1e-7")
    for W in net.filters:
        spectrum = filter_spectra(W, size)
        for (k,), s in zip(spectrum.indices.tolist(), spectrum.values):
            assert_close(s[0], truth[k][0], atol=2e-3, reason="flat directions of the loss")
            assert float(s[1:].sum()) < 2e-3


@pytest.fixture(scope="module")
def relu():
    problem = planted_frequencies(samples=40)
    net, result = trained(problem, (12,))
    return problem, net, result


def test_a_relu_network_keeps_the_planted_frequencies(relu):
    problem, net, result = relu
    found = kept_frequencies(net.trace(problem.X))
    assert result.cost < 0.01 * problem.Y.var(0).sum()
    assert found.verdict == "determined" and found.frequencies == {(1,), (3,)} and found.dimensions == problem.rank
    assert {2, 3} <= set(found.layers)
    middle = found.through_depth[2].weights
    assert [one.channels for one in middle.waves] == [1, 1] and all(one.paired for one in middle.waves)
    # "Close to 1": what the slides say of the middle.
    assert all(0.8 < one.smallest < 1.5 for one in middle.kept)
    # It may carry a mean, which lifts the waves above the kink, but no other wave.
    assert middle.frequencies <= {(0,), (1,), (3,)}


def test_before_training_nothing_is_determined(relu):
    problem = relu[0]
    net = ConvolutionalNet([1, 4, 4, 4, 4, 1], (12,), dtype=torch.float64, generator=generator())
    assert kept_frequencies(net.trace(problem.X)).verdict != "determined"


@pytest.mark.slow
@pytest.mark.parametrize("kept", [((2,), (5,)), ((1,), (2,)), ((3,), (4,))])
def test_relu_networks_on_other_frequencies(kept):
    problem = planted_frequencies(kept=kept, samples=60)
    net, _ = trained(problem, (12,), depth=6, channels=5)
    found = kept_frequencies(net.trace(problem.X))
    assert found.verdict == "determined" and found.frequencies == set(kept) and found.dimensions == 4


@pytest.mark.slow
@pytest.mark.parametrize("kept", [((1, 0), (1, 2)), ((0, 1), (2, 1))])
def test_a_relu_network_on_images(kept):
    problem = planted_frequencies(size=6, kept=kept, samples=100)
    # The same price of a dimension beside the variance as on signals of 12: ridge·L/positions against positions.
    # With so much of it from the start all waves die; the default plan of ``train`` comes to it from below.
    net, _ = trained(problem, 6, depth=6, channels=6, ridge=3e-2 * (36 / 12) ** 2, plan=None)
    found = kept_frequencies(net.trace(problem.X))
    assert found.verdict == "determined" and found.frequencies == set(kept) and found.dimensions == 4


# --- the task itself


@pytest.mark.parametrize(
    ("size", "kept", "rank"), [((9,), ((0,), (2,)), 3), (4, ((2, 2), (1, 3)), 3), ((8,), ((4,),), 1)]
)
def test_the_task_is_equivariant_and_keeps_only_these(size, kept, rank):
    problem = planted_frequencies(size=size, kept=kept, samples=30, seed=2)
    sizes = (4, 4) if size == 4 else size
    axes = tuple(range(1, len(sizes) + 1))
    assert problem.rank == rank and problem.function is not None
    X = problem.X.reshape(-1, *sizes)
    moved = problem.function(np.roll(X, 1, axes).reshape(len(X), -1))
    np.testing.assert_allclose(moved, np.roll(problem.Y.reshape(X.shape), 1, axes).reshape(len(X), -1), atol=1e-12)
    P = np.arctanh(problem.clean_Y).reshape(X.shape)
    strength = np.abs(np.fft.fftn(P, axes=axes)).mean(0)
    there = {tuple(int(k) for k in place) for place in np.argwhere(strength > 1e-9)}
    both = {tuple(s * k % n for k, n in zip(one, sizes)) for one in kept for s in (1, -1)}
    assert there == both
    # The latents are the coefficients: the outputs are a function of them, and linear before φ.
    residual = (
        P.reshape(len(X), -1) - problem.latents @ np.linalg.lstsq(problem.latents, P.reshape(len(X), -1), rcond=None)[0]
    )
    assert np.abs(residual).max() < 1e-9


def test_wrong_frequencies_are_named():
    for arguments in [
        {"kept": ()},
        {"kept": ((1, 2),)},
        {"kept": ((1,), (11,))},
        {"kept": ((1,), (1,))},
        {"kept": ((40,),)},
        {"nonlinearity": "relu"},
        {"size": (0,)},
    ]:
        with pytest.raises(IsthmusError):
            planted_frequencies(**arguments)
