"""C-rank-15: through k dimensions no k + 2 classes meet, up to a change of the output biases."""

from __future__ import annotations

import pytest
import torch
from judged import status, verdict

from isthmus.claims._base import Subject
from isthmus.claims._evidence import gaussian_inputs, random_subject
from isthmus.claims.rank2023._meetings import _contenders, _scores, five_classes_through_two, narrowest
from isthmus.measures import tripoints
from isthmus.networks import FullyConnected
from tools import assert_close


def classifier(dims, seed, **options):
    """A random classifier whose scores are of like size."""
    subject = random_subject(dims, samples=400, seed=seed, **options)
    last = subject.net.biases[-1]
    last.data = last.data - subject.trace().outputs.mean(0)
    return subject


def quadrants():
    """Four classes of the plane with the scores ±x ± y."""
    first = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]).double()
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]).double()
    last = torch.stack([signs[:, 0], -signs[:, 0], signs[:, 1], -signs[:, 1]], 1)
    return Subject(FullyConnected.from_weights([first, last]), gaussian_inputs(200, 2, 0))


@pytest.mark.parametrize("slope", [0.0, 0.2])
@pytest.mark.parametrize(("width", "seed"), [(1, 0), (1, 4), (2, 0), (2, 2), (3, 1), (3, 3)])
def test_it_holds_at_the_width_and_not_below(width, seed, slope):
    subject = classifier([4, 10, width, 12, 12, 7], seed, slope=slope)
    found = verdict("C-rank-15", subject)
    assert found.status == "holds" or "k + 2 classes seen: not met" in found.reason
    if width > 1:
        assert status("C-rank-15", subject.replace(known={"rank": width - 1})) == "fails"


def test_the_sample_has_as_many_classes_meeting_as_it_may():
    subject = five_classes_through_two()
    assert status("C-rank-15", subject) == "holds"
    assert status("C-rank-15", subject.replace(known={"rank": 1})) == "fails"


def test_quadrants_meet_until_the_biases_move():
    subject = quadrants()
    assert status("C-rank-15", subject.replace(known={"shift": 0.0})) == "fails"
    assert status("C-rank-15", subject) == "holds"
    # Three of them go on meeting: that is no accident in the plane.
    assert status("C-rank-15", subject.replace(known={"rank": 1})) == "fails"


@pytest.mark.parametrize("seed", range(6))
def test_the_plane_agrees_with_walks_around_cells(seed):
    subject = classifier([2, 8, 8, 4], seed)
    low, high = subject.X.amin(0), subject.X.amax(0)
    picture = tripoints(subject.net, torch.stack([low, high], 1).tolist(), points=96)
    if picture.state == "computed" and len(picture.classes) > 2:
        found = verdict("C-rank-15", subject.replace(known={"rank": 1, "shift": 0.0}))
        assert (found.status == "fails") == (len(picture.tripoints) > 0)


@pytest.mark.parametrize("slope", [-0.4, 0.0, 0.3, 1.0])
def test_scores_stay_within_their_bounds(slope):
    trace = random_subject([3, 7, 2, 9, 9, 4], slope=slope, seed=8).trace()
    source = torch.Generator().manual_seed(1)
    centres, halves = (torch.randn(50, 2, generator=source, dtype=torch.float64) for _ in range(2))
    halves, shift = halves.abs(), torch.randn(4, generator=source, dtype=torch.float64)
    c, A, r = _scores(trace, 2, centres, torch.diag_embed(halves), shift)
    possible = _contenders(c, A, r, 1e-12)
    for _ in range(20):
        e = 2 * torch.rand(50, 2, generator=source, dtype=torch.float64) - 1
        Z = centres + halves * e
        for layer in range(2, 5):
            Z = torch.where(Z > 0, Z, slope * Z) @ trace.Ws[layer].mT + trace.bs[layer]
        Z = Z + shift
        assert bool(((Z - c - (A @ e[..., None])[..., 0]).abs() <= r + 1e-9).all())
        assert bool(possible[torch.arange(50), Z.argmax(1)].all())


def wide_of_rank_two(noise):
    """A classifier of five classes whose layers are all wide, one matrix of rank 2 but for some noise."""
    subject = random_subject([4, 12, 12, 12, 5], samples=300, seed=3)
    W = subject.net.weights[1]
    U, s, Vh = torch.linalg.svd(W.data, full_matrices=False)
    s[2:] = noise * s[0]
    W.data = (U * s) @ Vh
    last = subject.net.biases[-1]
    last.data = last.data - subject.trace().outputs.mean(0)
    return subject


@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_a_matrix_of_low_rank_is_as_good_as_a_narrow_layer(noise):
    subject = wide_of_rank_two(noise)
    found = verdict("C-rank-15", subject)
    assert found.status == "holds" and "W_2 cut to rank 2" in found.where
    # The cut network is the one with a layer of width 2 put in, and it is that one that is searched.
    through = narrowest(subject)
    z = through.Z @ through.B.mT + through.c
    assert_close(z, through.trace.preactivations[1])
    assert status("C-rank-15", subject.replace(known={"rank": 1})) == "fails"
    assert status("C-rank-15", subject.replace(known={"k": 1})) == "not applicable"


def test_a_matrix_that_is_not_of_low_rank_is_not_cut():
    assert status("C-rank-15", wide_of_rank_two(0.05)) == "not applicable"


def test_what_it_needs():
    wide = classifier([6, 12, 12, 8], 0)
    assert "narrowest 6" in verdict("C-rank-15", wide).reason
    few = classifier([3, 8, 2, 8, 3], 0)
    assert "k + 2 classes seen" in verdict("C-rank-15", few).reason
