"""Singular values of large matrices: exact ones against NumPy, random ones against known spectra and their bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from isthmus import IsthmusError
from isthmus.measures import _spectra as large_spectra
from isthmus.measures._spectra import LargeSpectrum, Operator, large_spectrum
from tools import assert_close, gaussian, orthogonal

DECAYS = {
    "fast": 0.8 ** torch.arange(200, dtype=torch.float64),
    "slow": 1 / torch.arange(1, 201, dtype=torch.float64),
    "flat": torch.ones(200, dtype=torch.float64),
    "step": torch.cat([torch.ones(20), torch.full((180,), 1e-3)]).double(),
    "deficient": torch.cat([torch.ones(20), torch.zeros(180)]).double(),
}


def of_spectrum(s: Tensor, rows: int = 260, seed: int = 0) -> Tensor:
    return (orthogonal(rows, len(s), seed=seed) * s) @ orthogonal(len(s), len(s), seed=seed + 1).mT


def honest(found: LargeSpectrum, truth: Tensor) -> bool:
    """Whether the truth keeps to every bound that was given."""
    k = len(found.values)
    near = (found.values[:, None] - torch.cat([truth, truth.new_zeros(1)])).abs().amin(1)
    # What the values miss of Σs² is what their errors allow, and rounding.
    excess = found.tail_mass**2 - float(truth[k:].square().sum())
    allowed = float((found.error * (2 * found.values + found.error)).sum())
    return bool(
        ((found.values - truth[:k]).abs() <= found.error).all()
        and (near <= found.residual).all()
        and (k == len(truth) or truth[k] <= found.tail_norm)
        and abs(found.norm - truth.norm()) <= 1e-12 * found.norm
        and -1e-13 * found.norm**2 <= excess <= allowed + 1e-13 * found.norm**2
    )


@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 9), (7, 7), (40, 30), (30, 40), (500, 20), (20, 500), (90, 60), (61, 60), (3000, 8)]
)
@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200, 1e-310])
def test_exact_is_numpy(shape, scale):
    A = gaussian(*shape) * scale
    found = large_spectrum(A)
    # Where NumPy's own squares or denormals would spoil the truth, the factor is taken out first.
    truth = np.linalg.svd((A / scale).numpy() if scale > 1e-300 else (A * 1e300).numpy(), compute_uv=False)
    factor = scale if scale > 1e-300 else 1e-300
    assert found.method == "exact" and len(found.values) == min(shape)
    assert_close(found.values / factor, truth, rtol=1e-10, atol=1e-12 * truth[0], reason="relative to s₁")
    assert_close(found.norm / factor, np.linalg.norm(truth))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(30, 30), (200, 20), (20, 200)])
def test_the_dtype_of_the_weights_costs_nothing(dtype, shape):
    A = gaussian(*shape, dtype=dtype)
    truth = torch.from_numpy(np.linalg.svd(A.double().numpy(), compute_uv=False))
    found = large_spectrum(A)
    assert found.values.dtype == torch.float64
    assert_close(found.values, truth)


@pytest.mark.parametrize("shape", [(50, 50), (400, 50), (50, 400)])
def test_small_values_are_not_those_of_the_gram_matrix(shape):
    s = 10.0 ** -torch.arange(14, dtype=torch.float64)
    A = orthogonal(shape[0], 14, seed=1) * s @ orthogonal(shape[1], 14, seed=2).mT
    found = large_spectrum(A).values
    assert_close(found[:14], s, atol=1e-15, reason="rounding relative to s₁ = 1")
    assert float(found[14:].max()) < 1e-14
    # The twin: a Gram matrix alone has a floor at √eps · s₁.
    gram = torch.linalg.eigvalsh(A.mT @ A).flip(0)[:14].clamp_min(0).sqrt()
    assert float((gram - s).abs().max()) > 1e-10


def test_the_gram_matrix_is_used_and_the_bound_on_it_holds(monkeypatch):
    used, ways = [], set()
    real = torch.linalg.svdvals
    monkeypatch.setattr(torch.linalg, "svdvals", lambda A: used.append(A.shape) or real(A))
    for seed, (m, n, least) in enumerate(
        [(300, 100, -1), (200, 200, -3), (5000, 20, -1), (100, 160, -4), (300, 90, -7)]
    ):
        A = of_spectrum(torch.logspace(0, least, min(m, n), dtype=torch.float64), max(m, n), seed=seed)
        used.clear()
        found = large_spectrum(A if m >= n else A.mT)
        quick = not used
        ways.add(quick)
        truth = np.linalg.svd(A.numpy(), compute_uv=False)
        # Small matrices, and values so small that their squares drown, have an SVD.
        assert quick == (min(m, n) >= large_spectra.GRAM_FROM and least > -5)
        assert bool(((found.values - torch.from_numpy(truth)).abs() <= found.error).all())
        assert float(found.error.max()) <= 1e-9
    assert ways == {True, False}


def test_rows_are_read_in_pieces(monkeypatch):
    truth = {}
    for name, A in {"tall": gaussian(700, 20), "deficient": of_spectrum(DECAYS["deficient"], 400)}.items():
        truth[name] = (A, large_spectrum(A), large_spectrum(A, 8, exact_up_to=0, oversampling=8))
    monkeypatch.setattr(large_spectra, "chunk_rows", lambda rows, size, budget=0: 33)
    for A, exact, few in truth.values():
        assert_close(large_spectrum(A).values, exact.values)
        assert_close(large_spectrum(A, 8, exact_up_to=0, oversampling=8).values, few.values)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("power_iterations", [0, 1, 4])
def test_random_projection_is_honest(decay, wide, power_iterations):
    truth = DECAYS[decay]
    A = of_spectrum(truth, seed=3)
    found = large_spectrum(A.mT if wide else A, 30, exact_up_to=0, oversampling=8, power_iterations=power_iterations)
    assert found.method == "randomised" and "30 largest of 200" in found.note
    assert honest(found, truth)


@pytest.mark.parametrize("decay", ["fast", "slow", "step"])
def test_a_corrupted_result_breaks_its_bounds(decay):
    truth = DECAYS[decay]
    found = large_spectrum(of_spectrum(truth), 10, exact_up_to=0)
    assert honest(found, truth)
    for field, wrong in {
        "values": found.values * 1.05,
        "error": found.error * 0,
        "residual": found.residual * 0,
        "norm": found.norm * 1.001,
        "tail_norm": found.tail_norm * 0.5,
        "tail_mass": found.tail_mass * 0.9,
    }.items():
        changed = LargeSpectrum(**{**vars(found), field: wrong})
        assert not honest(changed, truth), field


def test_the_bound_is_also_small_where_the_spectrum_falls():
    for decay in ("fast", "deficient"):
        found = large_spectrum(of_spectrum(DECAYS[decay]), 30 if decay == "fast" else 20, exact_up_to=0)
        assert float(found.error[:20].max()) < 1e-12
    # And it grows when less is done.
    rough = large_spectrum(of_spectrum(DECAYS["slow"]), 20, exact_up_to=0, oversampling=2, power_iterations=0)
    fine = large_spectrum(of_spectrum(DECAYS["slow"]), 20, exact_up_to=0, oversampling=40, power_iterations=6)
    assert float(rough.error[0]) > 20 * float(fine.error[0])


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_random_projection_at_any_scale(scale):
    truth = DECAYS["slow"]
    found = large_spectrum(of_spectrum(truth) * scale, 10, exact_up_to=0)
    plain = {key: value if isinstance(value, str) else value / scale for key, value in vars(found).items()}
    unit = LargeSpectrum(**plain)
    assert honest(unit, truth)


@pytest.mark.parametrize("transposed", [False, True])
def test_an_operator_is_its_matrix(transposed):
    A = of_spectrum(DECAYS["slow"])
    A = A.mT if transposed else A
    operator = Operator((A.shape[0], A.shape[1]), lambda X: A @ X, lambda Y: A.mT @ Y)
    assert_close(large_spectrum(operator).values, large_spectrum(A).values)
    few, same = large_spectrum(operator, 9, exact_up_to=0), large_spectrum(A, 9, exact_up_to=0)
    assert_close(few.values, same.values)
    assert_close(few.norm, A.norm())
    assert honest(few, DECAYS["slow"])


def test_nothing_random_is_global_and_seeds_repeat():
    A = of_spectrum(DECAYS["slow"])
    before = torch.get_rng_state()
    first, again = (large_spectrum(A, 9, exact_up_to=0, power_iterations=0, seed=4).values for _ in range(2))
    other = large_spectrum(A, 9, exact_up_to=0, power_iterations=0, seed=5).values
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("exact_up_to", [0, 100])
def test_states(exact_up_to):
    A = gaussian(90, 80)
    A[3, 3], A[5, 6] = float("nan"), float("inf")
    found = large_spectrum(A, 5, exact_up_to=exact_up_to)
    assert found.method == "not computed" and found.note == "not computed: 2 non-finite entries"
    assert len(found.values) == 0 and math.isnan(found.norm)
    operator = Operator((90, 80), lambda X: A @ X, lambda Y: A.mT @ Y)
    assert large_spectrum(operator, 5, exact_up_to=exact_up_to).method == "not computed"
    zero = large_spectrum(torch.zeros(90, 80), 5, exact_up_to=exact_up_to)
    assert float(zero.values.abs().max()) == 0.0 and zero.norm == 0.0 and float(zero.error.max()) < 1e-300
    assert len(large_spectrum(torch.zeros(0, 3)).values) == 0


def test_wrong_input_is_named():
    with pytest.raises(IsthmusError, match="real matrix"):
        large_spectrum(torch.zeros(3))
    with pytest.raises(IsthmusError, match="real matrix"):
        large_spectrum(torch.zeros(3, 3, dtype=torch.complex64))
    with pytest.raises(IsthmusError, match="`k`"):
        large_spectrum(torch.zeros(3, 3), 0)
