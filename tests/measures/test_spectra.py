"""Q-spectra and effective dimensions."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isthmus import DataError, IsthmusError
from isthmus.measures import participation_ratio, representation_spectra, stable_rank, weight_spectra
from tools import assert_close, gaussian, linear_net, orthogonal, random_net


def test_weights():
    net = random_net([3, 6, 5, 2], dtype=torch.float32)
    for s, W in zip(weight_spectra(net), net.Ws):
        assert s.dtype == torch.float64
        assert_close(s, np.linalg.svd(W.detach().double(), compute_uv=False))
    assert [len(s) for s in weight_spectra(net)] == [3, 5, 2]
    assert_close(weight_spectra(net.trace(gaussian(4, 3)))[1], weight_spectra(net)[1])


def test_non_finite_weights_are_named():
    net = random_net([3, 6, 5, 2])
    with torch.no_grad():
        net.weights[1][2, 2] = float("inf")
    with pytest.raises(DataError, match="W_2"):
        weight_spectra(net)


@pytest.mark.parametrize("samples", [2, 5, 10, 11, 12, 40])  # 2n = 12: below, at and above the QR route
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("of", ["preactivations", "activations"])
def test_representations_by_svd(samples, centered, of):
    trace = random_net([3, 6, 6, 2]).trace(gaussian(samples, 3))
    for s, A in zip(representation_spectra(trace, centered=centered, kind=of), getattr(trace, of)):
        A = A.numpy() - (A.numpy().mean(0) if centered else 0.0)
        # A spectrum that is zero by theory (one sample less) is zero up to the size of A.
        assert_close(
            s,
            np.linalg.svd(A, compute_uv=False) / samples**0.5,
            atol=1e-12,
            reason="absolute, relative to O(1) data",
        )
        assert len(s) == min(samples, A.shape[1])


def test_small_singular_values_survive():
    # Through the covariance these would be lost at √eps·s₁ ≈ 1e-8.
    s = torch.tensor([1.0, 1e-6, 1e-11], dtype=torch.float64)
    A = orthogonal(100, 3) * s @ orthogonal(3, 3, seed=1).mT
    net = linear_net([1.0, 1.0, 1.0], [3, 3])
    found = representation_spectra(net.trace(A), centered=False, kind="activations")[0]
    assert_close(found * 10, s, rtol=1e-4, reason="condition number 1e11 leaves 5 digits")


def test_constant_columns():
    A = gaussian(50, 4)
    A[:, 1] = 7.0
    trace = random_net([4, 3]).trace(A)
    (s,) = representation_spectra(trace, kind="activations")
    assert s[-1] < 1e-14
    (raw,) = representation_spectra(trace, kind="activations", centered=False)
    assert raw[-1] > 0.1


def test_refused_kind():
    with pytest.raises(IsthmusError, match="preactivations"):
        representation_spectra(random_net([3, 2]).trace(gaussian(4, 3)), kind="outputs")


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=9), st.sampled_from([1e-150, 1e-3, 1.0, 1e60]))
def test_ratios_are_scale_free_and_bounded(values, scale):
    s = np.sort(np.array(values))[::-1]
    for measure in (participation_ratio, stable_rank):
        found = float(measure(s))
        assert 1.0 - 1e-12 <= found <= len(s) + 1e-9
        assert_close(float(measure(scale * s)), found)
    assert_close(float(participation_ratio(s)), (s**2).sum() ** 2 / (s**4).sum())
    assert_close(float(stable_rank(s)), (s**2).sum() / s.max() ** 2)


def test_ratios_of_known_spectra():
    for measure in (participation_ratio, stable_rank):
        assert float(measure([1.0] * 5 + [0.0] * 3)) == 5.0
        assert float(measure([0.0, 0.0])) == 0.0
        assert measure(np.ones((3, 4))).tolist() == [4.0] * 3
        assert float(measure(pd.Series([2.0, 2.0]))) == 2.0
    A = gaussian(6, 4)
    assert_close(stable_rank(torch.linalg.svdvals(A)), A.square().sum() / torch.linalg.matrix_norm(A, 2) ** 2)


@pytest.mark.parametrize("bad", [[], [-1.0], [float("nan")], 3.0, ["a"]])
def test_ratios_refuse(bad):
    for measure in (participation_ratio, stable_rank):
        with pytest.raises(IsthmusError):
            measure(bad)
