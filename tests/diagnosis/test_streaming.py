"""Spectra of streams: the same numbers as a direct SVD, whatever the blocks, in little memory."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from isthmus import IsthmusError
from isthmus.diagnosis._observe import COORDINATES, StreamedSpectrum, as_rows
from tools import assert_close, gaussian, generator, orthogonal


def direct(A: Tensor, *, centered: bool = True) -> Tensor:
    A = A.double()
    return torch.linalg.svdvals(A - A.mean(0) if centered else A)[: len(A) - centered] / len(A) ** 0.5


def streamed(A: Tensor, size: int = 100, **options) -> StreamedSpectrum:
    stream = StreamedSpectrum(A.shape[1], **options)
    for block in A.split(size):
        stream.update(block)
    return stream


def with_spectrum(rows: int, values: Tensor, *, mean: float = 0.0, seed: int = 0) -> Tensor:
    """Centred rows whose singular values over √rows are ``values``, moved by ``mean``."""
    U = torch.cat([torch.ones(rows, 1, dtype=torch.float64), gaussian(rows, len(values), seed=seed)], 1)
    U = torch.linalg.qr(U).Q[:, 1:]
    return rows**0.5 * (U * values) @ orthogonal(len(values), len(values), seed=seed + 1).mT + mean


@pytest.mark.parametrize(("rows", "width"), [(3000, 7), (2500, 40), (30, 40), (1, 5), (2, 1), (40, 40), (41, 40)])
@pytest.mark.parametrize("centered", [True, False])
def test_equals_the_direct_svd(rows, width, centered):
    A = gaussian(rows, width, seed=rows) @ gaussian(width, width, seed=1) + 3.0
    stream = streamed(A)
    values = stream.spectrum(centered=centered)
    assert values.shape == (min(rows - centered, width),)
    assert_close(values, direct(A, centered=centered), atol=1e-11, reason="values up to 100")
    assert_close(stream.mean, A.mean(0))
    assert stream.rows == rows and stream.method == "exact" and not stream.error.any()


def test_known_spectrum():
    values = torch.tensor([5.0, 2.0, 0.5], dtype=torch.float64)
    stream = streamed(with_spectrum(5000, values, mean=4.0))
    assert_close(stream.spectrum(), values)
    # Uncentred, the constant 4·(1, 1, 1) adds a rank-one part: Σs² grows by its squared norm.
    assert_close(stream.spectrum(centered=False).square().sum(), values.square().sum() + 3 * 16.0)


def test_small_values_survive_where_a_covariance_loses_them():
    values = torch.logspace(0, -9, 10, dtype=torch.float64)
    A = with_spectrum(4000, values)
    assert_close(streamed(A).spectrum(), values, rtol=1e-5, reason="1e-9 of the largest: eps leaves 6 digits or so")
    covariance = torch.linalg.eigvalsh(A.mT @ A / len(A)).clamp_min(0).sqrt().flip(0)
    assert abs(covariance[-1] / values[-1] - 1) > 0.1


def test_a_huge_mean_does_not_hide_the_spread():
    values = torch.logspace(0, -4, 8, dtype=torch.float64)
    A = with_spectrum(4000, values, mean=1e8)
    assert_close(streamed(A).spectrum(), direct(A), rtol=1e-5, reason="1e8 leaves 8 digits of the spread")
    assert_close(streamed(A).spectrum(), values, rtol=1e-5, atol=1e-8, reason="1e8 leaves 8 digits of the spread")
    moments = A.mT @ A / len(A) - torch.outer(A.mean(0), A.mean(0))
    covariance = torch.linalg.eigvalsh(moments).clamp_min(0).sqrt().flip(0)
    assert float((covariance / values - 1).abs().max()) > 0.5


def test_the_shift_matters():
    """Without it the huge mean would cost digits: the comment in the code is not decoration."""
    A = with_spectrum(4000, torch.logspace(0, -7, 8, dtype=torch.float64), mean=1e7)

    def worst(stream):
        return float((stream.spectrum() / direct(A) - 1).abs().max())

    plain = streamed(A, seed=0)
    unshifted = StreamedSpectrum(8)
    unshifted._R = torch.zeros(1, 9, dtype=torch.float64)  # not empty, so that no shift is chosen
    unshifted.update(A)
    assert worst(plain) < 0.3 * worst(unshifted)


@given(cuts=st.lists(st.integers(1, 1499), max_size=12, unique=True), centered=st.booleans())
def test_blocks_do_not_matter(cuts, centered):
    A = gaussian(1500, 6, seed=3) * torch.logspace(0, -6, 6, dtype=torch.float64) + 1.0
    stream = StreamedSpectrum(6)
    edges = [0, *sorted(cuts), 1500]
    for start, stop in zip(edges, edges[1:]):
        stream.update(A[start:stop])
        if start % 3 == 0:
            stream.spectrum()  # looking in between changes nothing
    assert_close(stream.spectrum(centered=centered), direct(A, centered=centered), atol=1e-13, reason="down to 1e-6")


def test_coarse_rows_are_folded_into_a_gram_matrix():
    A = gaussian(3000, 150, seed=1) * torch.logspace(0, -5, 150, dtype=torch.float64) + 3.0
    stream = streamed(A, coarse=True, expected=3000)
    exact = streamed(A)
    for centered in (True, False):
        found, true = stream.spectrum(centered=centered), exact.spectrum(centered=centered)
        assert_close(found, true, rtol=1e-4, atol=1e-7 * float(true[0]), reason="square roots of a covariance")
    assert_close(stream.size, torch.linalg.vector_norm(A) / len(A) ** 0.5)
    # The twin: what is finer than single precision needs the factor.
    fine = with_spectrum(3000, torch.logspace(0, -12, 150, dtype=torch.float64))
    last = float(direct(fine)[-1])
    assert abs(float(streamed(fine).spectrum()[-1]) / last - 1) < 0.01
    assert abs(float(streamed(fine, coarse=True, expected=3000).spectrum()[-1]) / last - 1) > 0.5


def test_of_a_very_wide_layer_some_units_are_drawn():
    A = low_rank(60, 2 * COORDINATES, 0.0).double()
    stream = streamed(A)
    assert "drawn at random" in stream.explanation and len(stream._chosen) <= COORDINATES
    values = stream.spectrum()
    exact = torch.linalg.svdvals(torch.linalg.qr((A - A.mean(0)).mT, mode="r").R)[:5] / 60**0.5
    assert bool(((values[:5] / exact - 1).abs() < stream.error[:5]).all())
    assert bool((values[5:] < 1e-5 * values[0]).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int64])
def test_any_dtype(dtype):
    A = (gaussian(300, 5, seed=1) * 10).to(dtype)
    assert_close(streamed(A).spectrum(), direct(A))


def test_non_finite_rows_are_counted_and_left_out():
    A = gaussian(200, 4, seed=2)
    B = A.clone()
    B[3, 1], B[7, 0], B[7, 2], B[150, 3] = float("nan"), float("inf"), float("nan"), -float("inf")
    stream = streamed(B, keep=10)
    good = torch.isfinite(B).all(1)
    assert stream.nonfinite == 3 and stream.rows == 197
    assert_close(stream.spectrum(), direct(A[good]))
    assert_close(stream.mean, A[good].mean(0))
    assert_close(stream.kept, A[good][:10])
    assert streamed(A).nonfinite == 0


def test_nothing_but_bad_rows_is_a_state():
    stream = streamed(torch.full((5, 3), float("nan")))
    assert (stream.rows, stream.nonfinite) == (0, 5)
    assert stream.spectrum().shape == stream.spectrum(centered=False).shape == (0,)


def test_rows_are_copied_at_once():
    A = gaussian(10, 3, seed=4)
    before = direct(A)
    stream = StreamedSpectrum(3, keep=5)
    stream.update(A)
    kept = A[:5].clone()
    A.zero_()
    assert_close(stream.spectrum(), before)
    assert_close(stream.kept, kept)


def low_rank(rows: int, width: int, noise: float, seed: int = 0) -> Tensor:
    scale = torch.tensor([10.0, 6.0, 4.0, 2.0, 1.0], dtype=torch.float64)
    A = (gaussian(rows, 5, seed=seed) * scale) @ orthogonal(width, 5, seed=seed + 1).mT
    return A.float() + noise * torch.randn(rows, width, generator=generator(seed + 2))


def test_a_wide_layer_is_sketched_within_the_stated_error():
    A = low_rank(200, 50_000, 1e-5)
    stream = streamed(A, 64)
    assert stream.method == "sketched" and "√m" in stream.explanation
    values = stream.spectrum()
    exact = torch.linalg.svdvals(torch.linalg.qr((A - A.mean(0)).double().mT, mode="r").R)[:5] / 200**0.5
    assert bool(((values[:5] / exact - 1).abs() < stream.error[:5]).all())
    assert float(stream.error[4]) < 0.11
    assert values[5] < 0.01 * values[4], "the rank is still seen"


def test_the_stated_error_holds_over_seeds_and_can_fail():
    A = low_rank(200, 3000, 0.0).double()
    exact = direct(A)[:5]

    def share_within(m: int, stated: Tensor) -> float:
        inside = [(streamed(A, 200, sketch=m, seed=s).spectrum()[:5] / exact - 1).abs() < stated[:5] for s in range(10)]
        return float(torch.stack(inside).double().mean())

    large, small = (streamed(A, 200, sketch=m, seed=99).error for m in (512, 16))
    assert share_within(512, large) > 0.97
    # The twin: a sketch that is too small does not keep the error of the larger one.
    assert share_within(16, large) < 0.6
    assert share_within(16, small) > 0.97


def test_a_flat_tail_is_raised_as_explained():
    noise = gaussian(1500, 4000, seed=9)
    top = streamed(noise, 500, sketch=64).spectrum()
    # r = 4000 values near 1 (for many rows) in m = 64 coordinates show as √(4000 / 64).
    assert_close(top.square().mean().sqrt(), (4000 / 64) ** 0.5, rtol=0.03, reason="random")


def test_an_exact_rank_survives_the_sketch():
    values = streamed(low_rank(300, 2500, 0.0).double(), sketch=64).spectrum()
    assert bool((values[5:] < 1e-5 * values[0]).all()) and values[4] > 0.01 * values[0]


def test_the_sketch_is_an_isometry_on_average_and_seeded():
    first, again, other = (StreamedSpectrum(3000, seed=s)._embedding for s in (1, 1, 2))
    assert first is not None and again is not None and other is not None
    S = first.to_dense()
    assert_close(S.square().sum(0), torch.ones(3000))
    assert bool(((S != 0).sum(0) == 8).all())
    assert torch.equal(S, again.to_dense()) and not torch.equal(S, other.to_dense())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: StreamedSpectrum(0), "`width`"),
        (lambda: StreamedSpectrum(10, sketch=12), "multiple of 8"),
        (lambda: StreamedSpectrum(3).update(torch.zeros(4)), r"\(rows, 3\)"),
        (lambda: StreamedSpectrum(3).update(torch.zeros(4, 2)), r"Got shape \(4, 2\)"),
        (lambda: StreamedSpectrum(3).update(torch.zeros(4, 3, dtype=torch.complex64)), "real"),
        (lambda: as_rows(torch.zeros(2, 2), "first"), "`layout`"),
    ],
)
def test_wrong_use_is_named(call, message):
    with pytest.raises(IsthmusError, match=message):
        call()


def test_rows_of_outputs():
    images = torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    rows, note = as_rows(images, "channels-first")
    assert rows.shape == (40, 3) and "position" in note
    assert torch.equal(rows[1 * 20 + 2 * 5 + 3], images[1, :, 2, 3])
    tokens, note = as_rows(images[0], "last")
    assert tokens.shape == (12, 5) and "token" in note
    assert torch.equal(tokens[1 * 4 + 2], images[0, 1, 2])
    assert as_rows(images[0, 0], "last")[0].shape == as_rows(images[0, 0], "channels-first")[0].shape == (4, 5)
    assert as_rows(images[0, 0, 0], "last")[0].shape == (5, 1)
    assert as_rows(torch.tensor(1.0), "last")[0].shape == (1, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "width", "batch"), [(1_000_000, 512, 4096), (4096, 50_000, 512)])
def test_memory(rows, width, batch):
    """Peak memory of a process that streams; its spectrum against an SVD of the first rows and a covariance of all."""
    script = textwrap.dedent(f"""
        import resource, torch
        from isthmus.diagnosis._observe import StreamedSpectrum
        torch.set_num_threads(1)
        source = torch.Generator().manual_seed(0)
        scale = torch.logspace(0, -3, {width})
        stream = StreamedSpectrum({width})
        gram = torch.zeros({width}, {width}, dtype=torch.float64) if {width} <= 512 else None
        total = torch.zeros({width}, dtype=torch.float64)
        for start in range(0, {rows}, {batch}):
            A = torch.randn(min({batch}, {rows} - start), {width}, generator=source) * scale + 0.5
            stream.update(A)
            if start == {batch} and gram is not None:
                subset = torch.cat([last, A]).double()
                direct = torch.linalg.svdvals(subset - subset.mean(0)) / len(subset) ** 0.5
                assert float((stream.spectrum() / direct - 1).abs().max()) < 1e-6
            last = A
            if gram is not None:
                A = A.double() - 0.5
                gram += A.mT @ A
                total += A.sum(0)
        values = stream.spectrum()
        if gram is not None:
            mean = total / {rows}
            other = torch.linalg.eigvalsh(gram / {rows} - torch.outer(mean, mean)).flip(0).sqrt()
            assert float((values / other - 1).abs().max()) < 1e-6
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        assert stream.rows == {rows} and peak < 2.0, peak
        print(peak)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 0.05 < float(done.stdout) < 2.0
